"""Trace files: `save`, `load` and `convert`. The suffix picks the format; both hold the same columns and convert without loss.

| suffix | format | documented in |
|---|---|---|
| `.h5`, `.hdf5` | HDF5, one dataset a column, compressed | `schemas/trace_hdf5.md` |
| `.pb` | length-delimited protobuf records | `schemas/trace.proto` |

Readers distrust files: whatever is wrong with one is a `TraceFileError` of one line.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from fathom_trace.errors import TraceError, TraceFileError
from fathom_trace.placing import PARTIAL
from fathom_trace.store.files import check_replaceable

if TYPE_CHECKING:
    from fathom_trace.trace import Trace

FORMATS = {".h5": "hdf5", ".hdf5": "hdf5", ".pb": "proto"}
"""Suffix to the module of this package that reads and writes it."""

PathLike = str | os.PathLike[str]


class Format(Protocol):
    """What a module of `FORMATS` offers."""

    def write(self, trace: Trace, path: Path, force: bool = False) -> None:
        """Put `trace` in a file that appears whole or not at all."""

    def read(self, path: Path) -> Trace:
        """The trace in a file."""

    def read_lazily(self, path: Path) -> Trace:
        """The same, with columns read when they are first asked for, if the format allows."""


def save(trace: Trace, path: PathLike, force: bool = False) -> None:
    """Write `trace` to `path`.

    Raises:
        TraceFileError: the suffix is unknown, `path` exists and `force` is not set, or the system refuses to write.
        TraceError: the trace holds texts that no reader would accept.
    """
    from fathom_trace.store.columns import check_texts

    destination = Path(path)
    module = format_of(destination)
    check_replaceable(destination, force)
    check_texts(trace)
    module.write(trace, destination, force)


def load(path: PathLike, lazy: bool = False) -> Trace:
    """The trace in the file `path`, checked throughout.

    With `lazy`, a column of an HDF5 file is read when it is first asked for, and the file stays open as long as the trace exists. All that
    is promised of what is read holds then too, but what is never asked for is never looked at, and whoever asks for a column may meet
    the `TraceFileError` that loading the whole would have ended in. Protobuf files are read as a whole either way.

    Raises:
        TraceFileError: the file is missing, unreadable, of another format, too new, unfinished or damaged.
    """
    source = Path(path)
    if source.name.endswith(PARTIAL):
        raise TraceFileError(f"{source} is an unfinished trace, left by a program that was stopped while writing it; capture it again")
    if source.suffix.lower() not in FORMATS and not source.exists():
        raise TraceFileError(f"{source} does not exist; `fathom-trace capture` writes traces")
    module = format_of(source)
    try:
        return module.read_lazily(source) if lazy else module.read(source)
    except TraceError as error:
        raise TraceFileError(f"{source}: {error}") from None
    except MemoryError:
        raise TraceFileError(f"{source} needs more memory than there is; load it on a larger machine") from None


def convert(source: PathLike, destination: PathLike, force: bool = False) -> None:
    """Write the trace in `source` to `destination`, in the format of its suffix. Nothing is lost either way.

    Raises:
        TraceFileError: as `load` and `save`.
    """
    target = Path(destination)
    format_of(target)
    check_replaceable(target, force)
    save(load(source), target, force)


def format_of(path: Path) -> Format:
    """What reads and writes `path`, by its suffix.

    Raises:
        TraceFileError: the suffix is unknown.
    """
    module = FORMATS.get(path.suffix.lower())
    if module is None:
        raise TraceFileError(f"{path} is not a trace's file name; give it the suffix .h5 or .hdf5 (HDF5), or .pb (protobuf)")
    return cast(Format, importlib.import_module(f"fathom_trace.store.{module}"))
