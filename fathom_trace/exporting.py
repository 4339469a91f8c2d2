"""Reaches exporters through the registry: writes an export beside its folder, has the exporter's own parser check the files, then puts
them in place together with `export.json`; checks it again at any time; reads a target's answer back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from fathom_trace.destination import check_folder, replacing_folder
from fathom_trace.errors import ExportError, FathomError, one_line
from fathom_trace.exporter import REPORT_NAME, CheckReport, ExportReport, read_layer_map, read_report, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.options import apply_settings
from fathom_trace.selecting import Choice, Part, part_of
from fathom_trace.trace import Trace
from fathom_trace.untrusted import brief


def export(
    trace: Trace,
    exporter: str,
    folder: Path,
    settings: Mapping[str, str] | None = None,
    force: bool = False,
    choice: Choice | None = None,
) -> tuple[ExportReport, CheckReport]:
    """Write `trace` as `exporter` does into `folder`; returns its report and what its own parser found in the files.

    Of a `choice`, only the part that it names is written, and the report says which it was and how much of the whole. Executions keep
    the numbers that they have in the whole.

    Raises:
        TraceError: nothing that ran is chosen.
        UnknownNameError: there is no such exporter or option.
        ExportError: `folder` is in the way, the trace has nothing that the format can say, or the files fail their own check.
    """
    name = REGISTRY.resolve(exporter)
    _check_destination(folder, force)
    module = REGISTRY.load(name)
    options = apply_settings(module.Options(), settings or {}, f"exporter '{name}'")
    part = part_of(trace, choice) if choice else None
    with replacing_folder(folder, force) as partial:
        report: ExportReport = module.write(part.trace if part else trace, partial, options)
        if part:
            report = replace(report, selection=part.to_dict())
            _refuse_more(report, part)
        write_report(partial, report)
        found: CheckReport = module.check(partial)
        if not found.ok:
            raise ExportError(f"{name} wrote files that its own parser refuses, so they were removed: {'; '.join(found.problems)}")
        _check_destination(folder, force)  # a simulator may have written there meanwhile
    return report, found


def _refuse_more(report: ExportReport, part: Part) -> None:
    """What an exporter was not asked for, it must not have exported or counted.

    Raises:
        ExportError: it did.
    """
    for layer in report.layers:
        rows = np.array(layer.executions, np.int64)
        outside = rows[~part.trace.chosen[rows]]
        if len(outside):
            raise ExportError(
                f"{report.exporter} exported execution {outside[0]}, which is not of {part.choice}; it takes no part of a trace"
            )


def _check_destination(folder: Path, force: bool) -> None:
    check_folder(folder, force, REPORT_NAME)
    _refuse_to_lose(folder)


def _refuse_to_lose(folder: Path) -> None:
    """Replacing an export may remove only what an export wrote: never a simulator's results, nor a user's own files.

    Raises:
        ExportError: the folder holds anything else.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    written = {REPORT_NAME, *(str(name) for name in read_report(folder).get("files", ()))}
    others = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() or p.is_symlink())
    lost = [name for name in others if name not in written]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise ExportError(f"{folder} holds {lost[0]}{more}, which no export wrote; move it away, or choose another folder with -o")


def check(folder: Path) -> tuple[str, CheckReport]:
    """The exporter that wrote `folder`, and what its parser finds there.

    Raises:
        ExportError: `folder` holds no export.
        UnknownNameError: this release has no such exporter.
    """
    report = read_report(folder)
    name = REGISTRY.resolve(report["exporter"])
    module = REGISTRY.load(name)
    _refuse_odd(folder, report.get("files", ()))
    with _of_another_kind(f"{folder} does not hold what {name} writes", "export again"):
        found: CheckReport = module.check(folder)
    return name, found


def read_results(folder: Path, results: Path, clock_hz: float) -> dict[int, float]:
    """Duration in ns of each execution that the target of an export has answered for; `folder` is the export, `results` its answer.

    Raises:
        ExportError: `folder` holds no export, its target gives no answers, or `results` is not one.
    """
    name = REGISTRY.resolve(read_report(folder)["exporter"])
    module = REGISTRY.load(name)
    if not hasattr(module, "read_results"):
        raise ExportError(f"{folder} is an export of {name}, which reads no results back; see `fathom-trace exporters`")
    _refuse_odd(results)
    with _of_another_kind(f"{results} is no answer of {module.TARGET.name} to {folder}", "export and simulate again"):
        durations: dict[int, float] = module.read_results(results, read_layer_map(folder), 1e9 / clock_hz)
    wrong = [execution for execution, time_ns in durations.items() if not 0 <= time_ns < math.inf]
    if wrong:
        raise ExportError(
            f"{results} gives execution {wrong[0]} the time {brief(durations[wrong[0]])} ns, which is none; simulate again"
        )
    return durations


def _refuse_odd(place: Path, names: Iterable[str] = ()) -> None:
    """Parsers wait for pipes and never come to the end of devices; a folder that others packed may have them, or links to them.

    Raises:
        ExportError: `place` is such a file, or holds one.
    """
    for path in (place, *(place / name for name in names), *place.rglob("*")):
        if path.exists() and not path.is_dir() and not path.is_file():
            raise ExportError(f"{path} is no regular file; give a folder without pipes, devices and links to them")


@contextmanager
def _of_another_kind(what: str, advice: str) -> Iterator[None]:
    """A folder that others may have changed holds values of any type and size, and a parser that stumbles over one is not at fault.

    Raises:
        ExportError: it did.
    """
    try:
        yield
    except FathomError:
        raise
    except (NameError, ImportError, AssertionError):
        raise
    except MemoryError:
        raise ExportError(f"{what}: it needs more memory than there is; {advice}") from None
    except Exception as error:
        raise ExportError(f"{what}: a value is of another kind ({type(error).__name__}: {one_line(error)}); {advice}") from error
