"""Where a trace comes from: the machine, the libraries, the settings."""

from __future__ import annotations

import datetime
import os
import platform
from importlib import metadata
from typing import Any

import tensorflow as tf

from fathom_trace.capture import Plan
from fathom_trace.capture.session import rewriters
from fathom_trace.trace import SCHEMA_VERSION

_LIBRARIES = ("tensorflow", "keras", "numpy", "protobuf", "fathom-trace")


def describe(plan: Plan, threads: int, has_onednn: bool) -> dict[str, Any]:
    """The part of a trace's provenance that does not depend on the program."""
    return {
        "schema_version": SCHEMA_VERSION,
        "captured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "stage": plan.stage,
        "onednn": has_onednn,
        "rewriters": dict.fromkeys(rewriters(), "off" if plan.stage == "source" else "default"),
        "warmup": plan.warmup,
        "intra_threads": threads,
        "inter_threads": plan.inter_threads,
        "parallel_iterations": 1,
        "max_events": plan.max_events,
        "device": "CPU" if not tf.config.list_physical_devices("GPU") else "GPU",
        "cpu_model": cpu_model(),
        "cores": available_cores(),
        "operating_system": platform.platform(),
        "python": platform.python_version(),
        "versions": _versions(),
    }


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's own name, or its architecture where the system does not tell."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        return platform.machine()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for library in _LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found
