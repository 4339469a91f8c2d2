"""The commands: one file each, with `EXAMPLES`, `configure(parser)` and `run(arguments)`, which returns the exit status.

Their modules import little; `run` imports what it needs, so that `--help` stays cheap.
"""
