"""Why executions are missing from a trace, and what to do about it: in words, from what capture wrote into the provenance.

That something is missing is counted in `steps` (`recorded`, `produced`, `complete`); the reasons here explain it where they are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fathom_trace.trace import Trace

NAMES_SHOWN = 3


def losses(trace: Trace) -> tuple[str, ...]:
    """One line for each known reason why the trace is not complete; empty for one that is."""
    if bool(trace.steps.complete.all()):
        return ()
    known = trace.provenance
    lines = [_cap(known), _unplaced(known), _missing(known)]
    return tuple(line for line in lines if line)


def _cap(known: Mapping[str, Any]) -> str:
    if not known.get("record_cap_reached"):
        return ""
    return (
        "TensorFlow keeps at most 1,048,576 records of a step and this one has more: the rest was dropped; make the step smaller"
        " (fewer iterations, a shorter sequence, a smaller preset)"
    )


def _unplaced(known: Mapping[str, Any]) -> str:
    unplaced: Mapping[str, int] = known.get("unplaced_records") or {}
    if not unplaced:
        return ""
    calls: Sequence[str] = known.get("opaque_calls") or ()
    where = f" inside {_shown(calls)}, which TensorFlow ran as one call" if calls else ""
    return (
        f"{sum(unplaced.values())} records are of ops that stand in no executed graph ({_shown(sorted(unplaced))}){where};"
        " a function with loops or branches of TensorFlow 1 is such a call: capture its SavedModel folder itself, with --signature"
    )


def _missing(known: Mapping[str, Any]) -> str:
    first = known.get("first_missing")
    if not first or known.get("max_events"):
        return ""
    advice = "" if known.get("record_cap_reached") else "; capture it again, and if it stays so with a smaller step"
    return f"the first node that lacks records is '{first}'{advice}"


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:NAMES_SHOWN]) + more
