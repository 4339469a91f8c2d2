"""The errors a user can cause and correct: one tree under `FathomError`.

Each message says what was asked, what is wrong and what to do. The command line prints it on one line and returns 1; anything
else that is raised is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_CHARACTERS = 2_000
"""Of a message; of a longer one the middle is left out."""


class FathomError(Exception):
    """Any error that a user can correct; `str()` is the whole message, on one printable line, whatever it quotes."""

    def __init__(self, message: object = "") -> None:
        """Control signs in the message, as a hostile file or name may bring them, are escaped; a very long one is cut in its middle."""
        super().__init__(printable(str(message)))


class UnknownNameError(FathomError):
    """A workload, exporter, preset, option or stage that does not exist; offers the nearest that does."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        """`kind` is the noun for the message, `known` every name that would have been accepted."""
        known = sorted(known)
        close = difflib.get_close_matches(name[:100], known, n=1, cutoff=0.5)
        if close:
            hint = f"did you mean '{close[0]}'?"
        elif known:
            hint = "there are: " + ", ".join(known)
        else:
            hint = f"there is no {kind} at all"
        super().__init__(f"no {kind} is called '{name}'; {hint}")
        self.kind, self.name, self.known = kind, name, known


class OptionError(FathomError):
    """An option whose value cannot be used."""


class TraceError(FathomError):
    """A `Trace` whose parts contradict each other, or lack what was asked of it."""


class TraceFileError(FathomError):
    """A trace file that is missing, damaged, foreign, too new, or in the way."""


class CaptureError(FathomError):
    """A program that cannot be captured, or whose capture is incomplete."""


class ClusterError(FathomError):
    """A Dask cluster that cannot be reached, is lost, or has workers that lack what is needed."""


class DataError(FathomError):
    """An input data file that is not in the format that its name promises; says which file and which record."""


class ExportError(FathomError):
    """An export that cannot be written, or written files that their own grammar refuses."""


class ScenarioError(FathomError):
    """A what-if scenario that cannot be applied to the trace at hand."""


def one_line(text: object) -> str:
    """`text` with every run of white space folded to one blank, so that an error stays on one line."""
    return " ".join(str(text).split())


def printable(text: str, most: int = MOST_CHARACTERS) -> str:
    """`text` on one line and without control signs, which are escaped, and of at most `most` characters: the middle is left out."""
    if len(text) > most:
        text = text[:most] + text[-most:]
    if not text.isprintable():
        text = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    return text if len(text) <= most else f"{text[: most - most // 4 - 5]} ... {text[-(most // 4) :]}"
