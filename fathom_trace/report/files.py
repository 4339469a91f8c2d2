"""Writes a report: numbers always, figures and the page where the extra `report` is installed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fathom_trace.errors import ExportError
from fathom_trace.report import pictures
from fathom_trace.report.analyses import Report
from fathom_trace.report.figures import figures
from fathom_trace.report.numbers import numbers
from fathom_trace.report.page import page
from fathom_trace.report.vega import Figure
from fathom_trace.untrusted import read_json, read_regular

MARKER = "report.json"
PAGE = "report.html"


@dataclass(frozen=True)
class Written:
    """Names of the files, and why there are no figures where there are none."""

    files: tuple[str, ...]
    figures: tuple[str, ...]
    no_figures: str


def write(report: Report, folder: Path) -> Written:
    """Write the report into `folder`, which exists: one CSV a table, `report.json` with everything, and figures and page if possible."""
    tables = numbers(report)
    texts = {f"{name}.csv": table.to_csv() for name, table in tables.items()}
    drawn: list[Figure] = []
    data: dict[str, bytes] = {}
    why = ""
    try:
        pictures.engine()
    except ExportError as error:
        why = str(error)
    else:
        drawn = figures(report)
        for figure in drawn:
            texts[f"{figure.name}.svg"] = pictures.svg(figure)
            data[f"{figure.name}.png"] = pictures.png(figure)
        texts[PAGE] = page(report, tables, drawn, pictures.javascript())
    files = tuple(sorted([*texts, *data, MARKER]))
    everything = {**report.to_dict(), "files": list(files)}
    texts[MARKER] = json.dumps(_finite(everything), indent=1, allow_nan=False) + "\n"
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    for name, content in data.items():
        (folder / name).write_bytes(content)
    return Written(files, tuple(figure.name for figure in drawn), why)


def refuse_to_lose(folder: Path) -> None:
    """Replacing a report may remove only what a report wrote.

    Raises:
        ExportError: the folder holds anything else.
    """
    if not folder.is_dir():
        return
    try:
        written = set(read_json(read_regular(folder / MARKER))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        written = {MARKER}
    lost = sorted(
        str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir() and str(p.relative_to(folder)) not in written
    )
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise ExportError(f"{folder} holds {lost[0]}{more}, which no report wrote; move it away, or choose another folder with --out")


def _finite(value: object) -> object:
    """`value` with None for what is not finite, and lists for tuples."""
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value
