"""Are settings refused when they are given, not after an hour?"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fathom_trace.errors import OptionError, UnknownNameError
from fathom_trace.options import apply_settings, describe_options, option, parse_pairs


@dataclass(frozen=True)
class Options:
    rate: float = option(0.1, "a rate")
    sizes: tuple[int, ...] = option((1, 2), "sizes")
    name: str = option("a", "a name", choices=("a", "b"))
    limit: int | None = option(None, "a limit")
    is_on: bool = option(False, "a switch")


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "fast", ""])
def test_a_number_is_finite(text: str) -> None:
    with pytest.raises(OptionError, match=f"option 'rate' is '{text}'; it takes a finite number"):
        apply_settings(Options(), {"rate": text}, "test")


def test_values_are_parsed_by_type() -> None:
    given = {"rate": "1e-3", "sizes": "3,4,5", "name": "b", "limit": "7", "is_on": "yes"}
    assert apply_settings(Options(), given, "test") == Options(0.001, (3, 4, 5), "b", 7, True)
    assert apply_settings(Options(limit=3), {"limit": "none"}, "test").limit is None


def test_wrong_names_and_values_say_what_would_do() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'rate'"):
        apply_settings(Options(), {"rat": "1"}, "test")
    with pytest.raises(OptionError, match="takes one of: a, b"):
        apply_settings(Options(), {"name": "c"}, "test")
    with pytest.raises(OptionError, match="is not a setting"):
        parse_pairs(["rate"])
    with pytest.raises(OptionError, match="set twice"):
        parse_pairs(["rate=1", "rate=2"])


def test_options_describe_themselves() -> None:
    assert [(o.name, o.default) for o in describe_options(Options())][:2] == [("rate", "0.1"), ("sizes", "1,2")]
