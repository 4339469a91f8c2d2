"""Traces of what deep-learning programs really execute, for hardware architects.

    import fathom_trace

    trace = fathom_trace.load("vgg-training.h5")
    trace.to_networkx()

`capture_workload` makes a trace and needs TensorFlow; all the rest does not. Every name is imported when it is first used, so that
importing this package costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers take it, without the cost of importing `typing`
if TYPE_CHECKING:
    from typing import Any

    from fathom_trace import capture as capture
    from fathom_trace.capture import CaptureRequest as CaptureRequest
    from fathom_trace.capture import capture_workload as capture_workload
    from fathom_trace.store import convert as convert
    from fathom_trace.store import load as load
    from fathom_trace.store import save as save
    from fathom_trace.trace import Trace as Trace
    from fathom_trace.whatif import project as project

__version__ = "0.1.0"

_HOME = {
    "CaptureRequest": "fathom_trace.capture",
    "Trace": "fathom_trace.trace",
    "capture_workload": "fathom_trace.capture",
    "convert": "fathom_trace.store",
    "load": "fathom_trace.store",
    "project": "fathom_trace.whatif",
    "save": "fathom_trace.store",
}

__all__ = ["CaptureRequest", "Trace", "__version__", "capture", "capture_workload", "convert", "load", "project", "save"]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "capture":
        return importlib.import_module("fathom_trace.capture")
    if name not in _HOME:
        raise AttributeError(f"module 'fathom_trace' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
