"""Quantities as people write and read them: `7.21 s`, `4.6 GB`, `1.04 TFLOP`. Inside, only ns, bytes, MACs and FLOPs."""

from __future__ import annotations

import re

from fathom_trace.errors import OptionError

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def _significant(value: float) -> str:
    """Three significant digits without an exponent."""
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def format_ns(ns: float) -> str:
    """A duration given in nanoseconds, to three digits: `812 ns`, `4.06 us`, `7.21 s`."""
    for scale, unit in ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "us")):
        if abs(ns) >= scale * 0.9995:
            return f"{_significant(ns / scale)} {unit}"
    return f"{ns:.0f} ns"


def format_count(value: float, unit: str = "") -> str:
    """A count with an SI prefix (powers of 1000): `19.6 GMAC`, `574 MB`, `12`."""
    for scale, prefix in _SI:
        if abs(value) >= scale * 0.9995:
            return f"{_significant(value / scale)} {prefix}{unit}"
    number = f"{value:.0f}" if float(value).is_integer() else _significant(value)
    return f"{number} {unit}".rstrip()


def format_bytes(size_bytes: float) -> str:
    """A size in bytes with an SI prefix (1 kB = 1000 B)."""
    return format_count(size_bytes, "B")


def format_share(share: float) -> str:
    """A fraction of one as a percentage with one decimal; what is not zero never prints as `0.0%`."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{100 * share:.1f}%"


def parse_quantity(text: str, unit: str) -> float:
    """The number in `text`, which may carry an SI prefix and `unit`: `parse_quantity('700MHz', 'Hz')` is 7e8.

    Raises:
        OptionError: `text` is not a number, or carries another unit.
    """
    match = re.fullmatch(rf"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([kKMGTP]?)(?:{re.escape(unit)})?\s*", text)
    try:
        if match is None:
            raise ValueError
        return float(match.group(1)) * _PREFIX[match.group(2)]
    except ValueError:
        raise OptionError(f"'{text}' is not a quantity in {unit}; write for example 700M{unit}") from None


def parse_duration_ns(text: str) -> float:
    """The duration in `text` in ns: a number with a unit, `50us`, `1.5 s`; `0` needs none.

    Raises:
        OptionError: it is none.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)\s*(ns|us|ms|s|)\s*", text, re.ASCII)
    if match is None or (not match[2] and float(match[1])):
        raise OptionError(f"'{text.strip()}' is no duration; write a number with a unit, for example 50us, 10ms or 1.5s")
    return float(match[1]) * {"": 1, "ns": 1, "us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}[match[2]]
