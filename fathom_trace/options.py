"""Options as frozen dataclasses, set from text: what `--set name=value` accepts for workloads and exporters alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from fathom_trace.errors import OptionError, UnknownNameError

T = TypeVar("T")

_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


@dataclass(frozen=True)
class OptionInfo:
    """One option for help texts: its name, type, default as text and the `doc` of its field's metadata."""

    name: str
    type: str
    default: str
    doc: str


def option(default: Any, doc: str, choices: tuple[Any, ...] = ()) -> Any:
    """A field of an options dataclass: its default, its line in the help texts and, where it takes only some values, those."""
    return field(default=default, metadata={"doc": doc, "choices": choices})


def parse_pairs(pairs: list[str]) -> dict[str, str]:
    """`["a=1", "b=x"]` as a dict.

    Raises:
        OptionError: an item has no `=`, or a name is given twice.
    """
    result: dict[str, str] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise OptionError(f"'{pair}' is not a setting; write --set name=value")
        key = name.strip().replace("-", "_")
        if key in result:
            raise OptionError(f"option '{key}' is set twice; give it once")
        result[key] = value.strip()
    return result


def apply_settings(options: T, settings: Mapping[str, str], owner: str) -> T:
    """`options` (a frozen dataclass) with `settings` applied, each value parsed by the field's type.

    Types: int, float, bool, str, a tuple of one of them (`2,3`), and any of them `| None` (`none`). A field whose metadata has
    `choices` takes only those.

    Raises:
        UnknownNameError: no field has that name; offers the nearest.
        OptionError: a value does not parse, or the dataclass refuses it.
    """
    if not settings:
        return options
    hints = get_type_hints(type(options))
    known = {f.name: f for f in fields(cast(Any, options))}
    values: dict[str, Any] = {}
    for name, text in settings.items():
        if name not in known:
            raise UnknownNameError(f"option of {owner}", name, known)
        values[name] = _parse(name, text, hints[name])
        choices = known[name].metadata.get("choices")
        if choices and values[name] not in choices:
            raise OptionError(f"option '{name}' of {owner} is '{text}'; it takes one of: {', '.join(map(str, choices))}")
    return cast(T, replace(cast(Any, options), **values))


def describe_options(options: object) -> list[OptionInfo]:
    """The fields of an options dataclass, with the values in `options` as defaults."""
    hints = get_type_hints(type(options))
    return [
        OptionInfo(f.name, _type_text(hints[f.name]), _text(getattr(options, f.name)), f.metadata.get("doc", ""))
        for f in fields(cast(Any, options))
    ]


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _type_text(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"{_type_text(get_args(hint)[0])},..."
    members = [m for m in get_args(hint) if m is not type(None)]
    if members and get_origin(hint) is not tuple:
        return " or ".join(_type_text(m) for m in members)
    return getattr(hint, "__name__", str(hint))


def _parse(name: str, text: str, hint: Any) -> Any:
    try:
        return _convert(text, hint)
    except ValueError:
        raise OptionError(
            f"option '{name}' is '{text}'; it takes {'a finite number' if hint is float else _type_text(hint)}"
        ) from None


def _convert(text: str, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return tuple(_convert(part.strip(), item) for part in text.split(",")) if text else ()
    members = get_args(hint)
    if members:
        if type(None) in members and text.lower() == "none":
            return None
        return _convert(text, next(m for m in members if m is not type(None)))
    if hint is bool:
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise ValueError(text)
    if hint is int:
        return int(text.replace("_", ""))
    if hint is float and not math.isfinite(float(text)):
        raise ValueError(text)
    return hint(text)
