"""Figures as SVG and PNG, and the JavaScript that draws them in a page; needs the extra `report` (PyPI vl-convert-python).

It holds Vega-Lite and an engine for it, so no browser is needed to draw and none of this touches the network. Its bundle of Vega,
Vega-Lite and Vega-Embed is 0.9 MB in a page; plotly.js 3.7 is 4.9 MB minified, and its basic bundle, 1.1 MB, has no heat map.
"""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

from fathom_trace.errors import ExportError
from fathom_trace.report.vega import WIDE, Figure, Spec, style

WIDTH = 560
SCALE = 2.0


def engine() -> ModuleType:
    """The module `vl_convert`.

    Raises:
        ExportError: it is not installed.
    """
    try:
        import vl_convert
    except ImportError:
        raise ExportError("figures and the page need vl-convert; install it with: pip install 'fathom-trace[report]'") from None
    found: ModuleType = vl_convert
    return found


def version() -> str:
    """The newest Vega-Lite that the engine has, as `6.4`."""
    versions: list[str] = engine().get_vegalite_versions()
    return versions[-1]


def javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, which sets `window.vegaEmbed`."""
    text: str = engine().javascript_bundle(vl_version=version())
    return text


def paper_spec(figure: Figure) -> Spec:
    """The specification for paper: of a fixed width, on white."""
    spec: dict[str, Any] = copy.deepcopy(figure.spec)
    del spec["autosize"]
    return spec | {"width": WIDTH, "config": style(is_dark=False, label_width=WIDE) | {"background": "#ffffff"}}


def svg(figure: Figure) -> str:
    """The figure as SVG."""
    text: str = engine().vegalite_to_svg(paper_spec(figure), vl_version=version())
    return text


def png(figure: Figure) -> bytes:
    """The figure as PNG, two pixels a point."""
    data: bytes = engine().vegalite_to_png(paper_spec(figure), vl_version=version(), scale=SCALE)
    return data
