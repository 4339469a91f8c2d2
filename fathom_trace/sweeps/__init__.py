"""Many captures: lists of them, files that hold such lists, and what runs where: here or on a Dask cluster, one at a time on a machine.

`sweep` captures a list and goes on where an earlier one ended, `sweep_file` reads lists, `collection` runs single captures and writes the
manifest, `engine` says what runs where and what is tried again, `cluster` and `apart` are the two ends of a Dask cluster, `alone` is the
machine's lock, `tied` a process that ends with its parent, `projecting` sends what-if scenarios the same way.
"""
