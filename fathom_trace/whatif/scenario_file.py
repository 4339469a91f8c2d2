"""Scenario files: several named scenarios in YAML, each a list of changes as the command line takes them, or a grid of such lists.

    faster convolutions:
      - Conv2D=10
      - layer:fc*: 4              # the same as layer:fc*=4
    fused:
      - fuse:BiasAdd+Relu
    offloaded:
      - hardware: accelerator.yaml   # file names start from the folder of the scenario file
      - kind:pooling=remove
    arrays:                        # a grid: a scenario for every combination of what is listed, `arrays: Conv2D=2, MatMul=1` and so on
      - Conv2D: [1, 2, 4, 8]
      - MatMul: [1, 2, 4]
      - BiasAdd=2                  # in each of them

What begins with `*` must be quoted. `documents.py` says what else YAML may not do here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from fathom_trace.errors import FathomError, ScenarioError, one_line
from fathom_trace.whatif.accelerator import PREFIX as HARDWARE
from fathom_trace.whatif.documents import read_document
from fathom_trace.whatif.fusion import PREFIX as FUSE
from fathom_trace.whatif.scaling import PREFIX as THREADS
from fathom_trace.whatif.scenario import Change, Context, Scenario, parse_scenario

MOST_SCENARIOS = 100_000

_VERBS = {prefix.removesuffix(":") for prefix in (HARDWARE, FUSE, THREADS)}


def read_scenarios(path: Path, context: Context | None = None) -> dict[str, Scenario]:
    """The scenarios of a file by name, in its order.

    Raises:
        ScenarioError: the file or a change in it is wrong; names the file, the scenario and the change.
    """
    context = replace(context or Context(), folder=path.parent)
    document = read_document(path)
    if not isinstance(document, dict) or not document:
        raise ScenarioError(f"{path} holds no scenarios; write names, each with a list of changes")
    if len(document) > MOST_SCENARIOS:
        raise ScenarioError(f"{path} holds {len(document):,} scenarios; at most {MOST_SCENARIOS:,} are taken")
    result: dict[str, Scenario] = {}
    for name, given in document.items():
        where = one_line(f"{path}: scenario '{name}'")
        if not isinstance(given, list):
            raise ScenarioError(f"{where} is no list of changes; write for example '- Conv2D=10' below it")
        choices: list[list[str]] = []
        for number, item in enumerate(given, start=1):
            choices += _choices(item, f"{where}, change {number}")
        if len(result) + math.prod(map(len, choices)) > MOST_SCENARIOS:
            raise ScenarioError(f"{where} brings more than {MOST_SCENARIOS:,} scenarios into the file; list fewer values, or split it")
        for label, scenario in _expand(name, choices, context, where):
            if label in result:
                raise ScenarioError(one_line(f"{where}: there are two scenarios '{label}'; give one of them another name"))
            result[label] = scenario
    return result


def _expand(name: str, choices: list[list[str]], context: Context, where: str) -> Iterator[tuple[str, Scenario]]:
    """The scenarios of one entry by name: one, or where changes have several values, one for every combination of them."""
    changes: dict[str, tuple[Change, ...]] = {}
    for number, texts in enumerate(choices, start=1):
        for text in texts:
            try:
                changes[text] = parse_scenario([text], context).changes
            except FathomError as error:
                raise ScenarioError(one_line(f"{where}, change {number}: {error}")) from None
    try:
        parse_scenario(
            [texts[0] for texts in choices], context
        )  # whether they go together, their selections say, which all combinations share
    except FathomError as error:
        raise ScenarioError(one_line(f"{where}: {error}")) from None
    varied = [len(texts) > 1 for texts in choices]
    for combination in product(*choices):
        label = ", ".join(text for text, varies in zip(combination, varied, strict=True) if varies)
        yield f"{name}: {label}" if label else name, Scenario(tuple(c for text in combination for c in changes[text]))


def _choices(item: Any, where: str) -> list[list[str]]:
    """A change as text, `a=b`, or those of a mapping of `a: b`; several where the mapping lists several values."""
    if isinstance(item, str):
        return [[item]]
    if not isinstance(item, dict) or not item:
        raise ScenarioError(f"{where} is no change; write for example Conv2D=10, or Conv2D: 10")
    result = []
    for key, value in item.items():
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(each, str) for each in values):
            raise ScenarioError(f"{where} is no change; write for example Conv2D=10, or Conv2D: 10, or Conv2D: [2, 4, 8] for a grid")
        texts = [f"{key}:{each}" if key in _VERBS else f"{key}={each}" for each in values]
        counts = Counter(texts)
        for text in texts:
            if counts[text] > 1:
                raise ScenarioError(one_line(f"{where}: '{text}' is listed twice; list it once"))
        result.append(texts)
    return result
