"""Sweep files: what to capture, in YAML. A capture is made of every combination of an entry's lists; what an entry does not say, the
defaults say.

    defaults:
      presets: tiny
      steps: 10
    captures:
      - workloads: [vgg, memnet]
        threads: [1, 2]
      - workloads: residual
        modes: [training]
        batch_sizes: [1, 8]
        stages: [source, optimized]
        seeds: [0, 1]
        set: {classes: 100}        # options of the workload, as --set takes them

Lists: workloads (default: all), modes (both), presets (seminal), stages (source), batch_sizes (the preset's), threads (all cores), seeds
(0); a single value is a list of one. `steps` is one number, `set` a mapping. `whatif/documents.py` says what YAML may not do here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from fathom_trace.errors import FathomError, OptionError, UnknownNameError, one_line
from fathom_trace.options import parse_pairs
from fathom_trace.sweeps.sweep import SEMINAL, SOURCE, Point, check_names
from fathom_trace.untrusted import whole_number
from fathom_trace.whatif.documents import read_document
from fathom_trace.workload import MODES, choose_mode

MOST_POINTS = 10_000
MOST_NUMBER = 10**9
MOST_NAME = 200
SUFFIXES = (".yaml", ".yml")


def read_sweep(path: Path) -> list[Point]:
    """The captures that a file asks for, each once, entry by entry.

    Raises:
        FathomError: the file is wrong; names the file, the entry and the key.
    """
    document = read_document(path)
    if not isinstance(document, dict):
        raise OptionError(f"{path} is no sweep; write 'captures:', and below it a list of entries")
    _check_keys(document, ("captures", "defaults"), f"{path}")
    defaults = _mapping(document.get("defaults", {}), f"{path}: defaults")
    entries = document.get("captures", [])
    if not isinstance(entries, list) or not entries:
        raise OptionError(f"{path} lists no captures; write for example '- workloads: [vgg]' below 'captures:'")
    found: dict[Point, None] = {}
    for number, entry in enumerate(entries, start=1):
        where = f"{path}: entry {number}"
        own = _mapping(entry, where)
        try:
            lists = [_values(name, {**defaults, **own}) for name in AXES]
            steps = _steps({**defaults, **own})
            settings = _settings({**_set(defaults), **_set(own)})
        except FathomError as error:
            raise OptionError(one_line(f"{where}: {error}")) from None
        if len(found) + math.prod(map(len, lists)) > MOST_POINTS:
            raise OptionError(f"{where}: more than {MOST_POINTS:,} captures in all; split the file")
        for workload, mode, preset, stage, batch_size, threads, seed in product(*lists):
            point = Point(workload, mode, preset, stage, batch_size, threads, settings, seed, steps)
            if len(point.name) > MOST_NAME:
                raise OptionError(
                    f"{where}: preset and settings make a file name of {len(point.name):,} characters; at most {MOST_NAME}"
                )
            found[point] = None
    try:
        check_names(list(found))
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from None
    return list(found)


def _mapping(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise OptionError(f"{where} is no mapping; write for example 'workloads: [vgg]'")
    _check_keys(given, (*AXES, "steps", "set"), where)
    return given


def _check_keys(given: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise OptionError(one_line(f"{where}: {UnknownNameError('key', key, known)}"))


def _workload(text: str) -> str:
    from fathom_trace.workloads import REGISTRY

    return REGISTRY.resolve(text)


def _all_workloads() -> list[str]:
    from fathom_trace.workloads import REGISTRY

    return REGISTRY.names()


def _stage(text: str) -> str:
    from fathom_trace.capture.environment import STAGES

    if text not in STAGES:
        raise UnknownNameError("stage", text, STAGES)
    return text


def _name(text: str) -> str:
    """A preset's name; whether the workload has it, its capture says."""
    if not (text.isascii() and text.isidentifier()):
        raise OptionError(f"'{text}' is no preset's name; `fathom-trace workloads NAME` lists them")
    return text


def _whole(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        number = whole_number(text, least, MOST_NUMBER)
        if number is None:
            raise OptionError(f"'{text}' is not a whole number from {least} to {MOST_NUMBER:,}")
        return number

    return whole


AXES: dict[str, tuple[Callable[[str], Any], Callable[[], Sequence[Any]]]] = {
    "workloads": (_workload, _all_workloads),
    "modes": (choose_mode, lambda: MODES),
    "presets": (_name, lambda: (SEMINAL,)),
    "stages": (_stage, lambda: (SOURCE,)),
    "batch_sizes": (_whole(1), lambda: (0,)),
    "threads": (_whole(1), lambda: (0,)),
    "seeds": (_whole(0), lambda: (0,)),
}
"""What a list's values become, and what stands for one that is not given, in the order of `Point`."""


def _values(name: str, entry: Mapping[str, Any]) -> list[Any]:
    """The values of one list of an entry."""
    read, default = AXES[name]
    if name not in entry:
        return list(default())
    given = entry[name]
    texts = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise OptionError(f"'{name}' is no list of values; write for example '{name}: [{default()[0] or 1}]'")
    found = []
    for text in texts:
        try:
            found.append(read(text))
        except FathomError as error:
            raise OptionError(f"{name}: {error}") from None
    return list(dict.fromkeys(found))


def _steps(entry: Mapping[str, Any]) -> int:
    given = entry.get("steps", "auto")
    if not isinstance(given, str):
        raise OptionError("'steps' is one number, or auto")
    return 0 if given == "auto" else _whole(1)(given)


def _set(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the workload that an entry sets."""
    given = entry.get("set", {})
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise OptionError("'set' is no mapping of options to values; write for example 'set: {classes: 100}'")
    return given


def _settings(given: Mapping[str, str]) -> tuple[str, ...]:
    """Options as `--set` takes them, by name, so that their order makes no difference."""
    for name, value in given.items():
        if not (name.isidentifier() and value.isprintable()):
            raise OptionError(f"'{name}: {value}' is no option; write for example 'set: {{classes: 100}}'")
    return tuple(f"{name}={value}" for name, value in sorted(parse_pairs([f"{k}={v}" for k, v in given.items()]).items()))
