"""Scenario files: several named scenarios in YAML, each a list of changes as the command line takes them.

    faster convolutions:
      - Conv2D=10
      - layer:fc*: 4              # the same as layer:fc*=4
    fused:
      - fuse:BiasAdd+Relu
    offloaded:
      - hardware: accelerator.yaml   # file names start from the folder of the scenario file
      - kind:pooling=remove

What begins with `*` must be quoted. `documents.py` says what else YAML may not do here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fathom_trace.errors import FathomError, ScenarioError, one_line
from fathom_trace.whatif.accelerator import PREFIX as HARDWARE
from fathom_trace.whatif.documents import read_document
from fathom_trace.whatif.fusion import PREFIX as FUSE
from fathom_trace.whatif.scaling import PREFIX as THREADS
from fathom_trace.whatif.scenario import Context, Scenario, parse_scenario

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
    result = {}
    for name, given in document.items():
        where = one_line(f"{path}: scenario '{name}'")
        if not isinstance(given, list):
            raise ScenarioError(f"{where} is no list of changes; write for example '- Conv2D=10' below it")
        texts: list[str] = []
        for number, item in enumerate(given, start=1):
            texts += _texts(item, f"{where}, change {number}")
        for number, text in enumerate(texts, start=1):
            try:
                parse_scenario([text], context)
            except FathomError as error:
                raise ScenarioError(one_line(f"{where}, change {number}: {error}")) from None
        try:
            result[name] = parse_scenario(texts, context)
        except FathomError as error:
            raise ScenarioError(one_line(f"{where}: {error}")) from None
    return result


def _texts(item: Any, where: str) -> list[str]:
    """A change as text: `a=b`, or a mapping of `a: b`."""
    if isinstance(item, str):
        return [item]
    if not isinstance(item, dict) or not item or not all(isinstance(value, str) for value in item.values()):
        raise ScenarioError(f"{where} is no change; write for example Conv2D=10, or Conv2D: 10")
    return [f"{key}:{value}" if key in _VERBS else f"{key}={value}" for key, value in item.items()]
