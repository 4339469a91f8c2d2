"""Parts of Vega-Lite specifications: charts as plain JSON with the data in them, as wide as what holds them.

https://vega.github.io/vega-lite/, version 6. Colours are those of M. Okabe and K. Ito, "Color Universal Design" (2008), which people with
the common colour deficiencies can tell apart (its yellow darkened, its black as grey, so that both show on white and on black); dashes or
shapes stand beside them. Scales are logarithmic where values span decades.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#8C8C8C", "#A89A00")
SOLID = (1, 0)
DASHES = (SOLID, (6, 3), (2, 2), (8, 3, 2, 3))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
LOG: Spec = {"type": "log"}
NARROW, WIDE = 125, 260
"""Pixels for an axis's labels where the page is narrow, and elsewhere."""
FEW_TICKS: Spec = {"format": "~g", "tickCount": 5}


@dataclass(frozen=True)
class Figure:
    """One picture. `analysis` is the table that it shows; `caption` says how to read it.

    Where the page is narrower than `least_width` pixels, the figure scrolls.
    """

    name: str
    analysis: str
    title: str
    caption: str
    spec: Spec
    least_width: int = 0


def style(is_dark: bool, label_width: int) -> Spec:
    """The Vega configuration of light or dark: text, lines, grid, background; labels of axes are cut at so many pixels."""
    text, line, grid = ("#e8e8e8", "#9a9a9a", "#3a3a3a") if is_dark else ("#1a1a1a", "#6a6a6a", "#e2e2e2")
    words = {"labelColor": text, "titleColor": text, "labelFontSize": 11, "titleFontWeight": "normal"}
    return {
        "background": None,
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "axis": {
            **words,
            "titleFontSize": 12,
            "tickColor": line,
            "domainColor": line,
            "gridColor": grid,
            "labelOverlap": True,
            "labelLimit": label_width,
        },
        "legend": {**words, "titleFontSize": 11},
        "text": {"color": text},
        "rule": {"color": line},
    }


def chart(values: Sequence[Spec], height: int, **rest: Any) -> Spec:
    """A chart of `values` that fills the width, `height` pixels high without its axes; `rest` is its mark and encoding, or layers."""
    fit = {"type": "fit-x", "contains": "padding"}
    return {"$schema": SCHEMA, "width": "container", "height": height, "autosize": fit, "data": {"values": list(values)}, **rest}


def quantity(field: str, title: str | None, scale: Spec | None = None, axis: Spec | None = None, **rest: Any) -> Spec:
    """A numeric channel."""
    found: Spec = {"field": field, "type": "quantitative", "title": title, **rest}
    if scale is not None:
        found["scale"] = scale
    if axis is not None:
        found["axis"] = axis
    return found


def percent(field: str, title: str) -> Spec:
    """A numeric channel for shares from 0 to 1."""
    return quantity(field, title, {"domain": [0, 1]}, {"format": "%"})


def words(field: str, domain: Sequence[str], **axis: Any) -> Spec:
    """A nominal channel with one label for each of `domain`, in that order."""
    return {
        "field": field,
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(domain)},
        "axis": {"labelOverlap": False, **axis},
    }


def row_labels(labels: Sequence[str], middle: float) -> Spec:
    """The axis of a numeric channel on which label `i` stands at `i + middle`."""
    quoted = ",".join("'" + label.replace("\\", "\\\\").replace("'", "\\'") + "'" for label in labels)
    at = [i + middle for i in range(len(labels))]
    look = {"grid": False, "ticks": False, "domain": False, "labelOverlap": False}
    return {"values": at, "labelExpr": f"[{quoted}][floor(datum.value)]", **look}


def _by_name(field: str, names: Sequence[str], values: Sequence[Any]) -> Spec:
    """A value for each name, with a legend below of as many columns as fit on a telephone."""
    columns = max(1, min(3, 36 // (4 + max(map(len, names), default=0))))
    legend = {"orient": "bottom", "columns": columns, "labelLimit": 260 // columns, "symbolLimit": 40}
    scale = {"domain": list(names), "range": [values[i % len(values)] for i in range(len(names))]}
    return {"field": field, "type": "nominal", "title": None, "legend": legend, "scale": scale}


def colour(field: str, names: Sequence[str]) -> Spec:
    """A colour for each name."""
    return _by_name(field, names, COLOURS)


def dash(field: str, names: Sequence[str]) -> Spec:
    """A dash for each name, other than the last time its colour was used."""
    return _by_name(field, names, [DASHES[(i + i // len(COLOURS)) % len(DASHES)] for i in range(len(names))])


def shape(field: str, names: Sequence[str]) -> Spec:
    """A shape for each name."""
    return _by_name(field, names, SHAPES)


def tips(**formats: str) -> list[Spec]:
    """What the pointer shows: fields, with a number format or an empty one for text."""
    return [{"field": field, **({"format": form} if form else {})} for field, form in formats.items()]
