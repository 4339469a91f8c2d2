"""What commands print: tables and JSON on stdout (results), a progress bar on stderr (talk) when that is a terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, TextIO

from fathom_trace.errors import printable


def print_json(value: object) -> None:
    """`value` as JSON: dataclasses become objects, numpy scalars numbers, NaN and infinities null."""
    print(json.dumps(plain(value), indent=1, allow_nan=False))


def plain(value: Any) -> Any:
    """`value` made of what JSON has."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if value - value == 0 else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "", left: Collection[int] = (0,)) -> None:
    """Columns of text; those numbered in `left` are flush left, the others flush right. Control signs in names are escaped."""
    lines = [[printable(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    for line in lines:
        cells = [cell.ljust(w) if k in left else cell.rjust(w) for k, (cell, w) in enumerate(zip(line, widths, strict=True))]
        print((indent + "  ".join(cells)).rstrip())


def print_pairs(pairs: Sequence[tuple[str, str]], indent: str = "") -> None:
    """Names and values in two columns, both flush left. Control signs in them are escaped."""
    shown = [(printable(name), printable(value)) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{indent}{name.ljust(width)}  {value}".rstrip())


class ProgressBar:
    """One line on a terminal that says what is being done and how far it is; silent where stderr is not a terminal.

    Call it with `(text, done, total)`; as a context manager it clears its line at the end.
    """

    WIDTH = 24

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.shown = bool(self.stream.isatty())
        self.began = time.monotonic()

    def __call__(self, text: str, done: int = 0, total: int = 0) -> None:
        """Redraw the line."""
        if not self.shown:
            return
        filled = self.WIDTH * min(done, total) // total if total else 0
        bar = f"[{'#' * filled}{'.' * (self.WIDTH - filled)}] {done}/{total} " if total else ""
        self.stream.write(f"\r\x1b[K{bar}{text} ({time.monotonic() - self.began:.0f} s)")
        self.stream.flush()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.shown:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
