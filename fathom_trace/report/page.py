"""The page: one HTML file with every figure, table, provenance and exclusion in it, which asks nothing of the network.

Its content security policy forbids it to. Figures are drawn by Vega from the specifications in the page, anew when the reader's system
changes between light and dark; without scripts the tables remain.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from fathom_trace.report.analyses import Report
from fathom_trace.report.captured import Captured, LeftOut
from fathom_trace.report.numbers import Numbers, Value
from fathom_trace.report.published import AGREES, DISAGREES, counts
from fathom_trace.report.vega import NARROW, WIDE, Figure, style
from fathom_trace.units import format_ns, format_share

ROWS = 60
"""Rows of a table that the page shows; CSV has all."""

SECTIONS = (
    ("stationarity", "Stationarity"),
    ("skew", "Skew"),
    ("heat_map", "Op types by workload"),
    ("similarity", "Similarity"),
    ("training_inference", "Training and inference"),
    ("parallelism", "Parallelism and operation balance"),
    ("roofline", "Roofline"),
    ("memory", "Memory over the step"),
    ("traffic", "Input and weight traffic"),
)

_LACKING = {
    "stationarity": "It needs traces with at least two kept steps.",
    "similarity": "It needs traces of at least two workloads.",
    "training_inference": "It needs a workload captured in training and in inference, with the same preset, stage and threads.",
    "parallelism": "It needs training traces of a workload at two or more numbers of threads: fathom-trace sweep --threads 1,2.",
    "memory": "It needs traces with allocation records: capture with --memory-steps 1.",
}

_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --dim: #555; --line: #d8d8d8; --back: #fff; --good: #00664b; --bad: #a33c00; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --dim: #a8a8a8; --line: #3c3c3c; --back: #161616; --good: #4fd0a8; --bad: #ff9d66; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { margin-top: 2.5rem; font-size: 1.25rem; }
p, li, summary, td, th { overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; }
a { color: inherit; }
figure { margin: 1rem 0; }
figcaption { font-size: .9rem; color: var(--dim); margin-bottom: .5rem; }
figcaption strong { display: block; color: var(--text); font-size: 1rem; }
.chart { width: 100%; min-height: 6rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); }
.scroll td, .scroll th { overflow-wrap: normal; white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.out, .dim { color: var(--dim); font-size: .9rem; }
.agrees { color: var(--good); } .disagrees { color: var(--bad); }
.fact { border-top: 1px solid var(--line); padding: .6rem 0; }
.fact p { margin: .15rem 0; }
summary { cursor: pointer; }
details { margin: .5rem 0; }
"""

_SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)");
async function draw() {
  for (const figure of document.querySelectorAll("figure[data-figure]")) {
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const config = structuredClone(styles[dark.matches ? "dark" : "light"]);
    if (figure.clientWidth < 700) config.axis.labelLimit = narrow;
    await vegaEmbed(figure.querySelector(".chart"), spec, { actions: false, renderer: "svg", config });
    figure.dataset.drawn = dark.matches ? "dark" : "light";
  }
  document.documentElement.dataset.drawn = "yes";
}
dark.addEventListener("change", draw);
draw();
"""

_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"


def page(report: Report, tables: dict[str, Numbers], figures: Sequence[Figure], javascript: str) -> str:
    """The whole page; `javascript` sets `window.vegaEmbed`."""
    workloads = ", ".join(dict.fromkeys(c.workload for c in report.traces))
    machines = dict.fromkeys(c.machine for c in report.traces)
    links = "".join(f'<a href="#{name}">{escape(title)}</a> ' for name, title in _all_sections())
    body = [
        "<header><h1>Where the time of these workloads goes</h1>",
        f"<p>{len(report.traces)} traces of {escape(workloads)}, analysed as the Fathom paper does (Adolf et al., IISWC 2016).</p>",
        *(f'<p class="dim">Measured on: {escape(machine)}.</p>' for machine in machines),
        f"<nav>{links}</nav></header><main>",
        _published(report),
        *(_section(name, title, report, tables, figures) for name, title in SECTIONS),
        _traces(report.traces, report.profiled, report.left_out),
        "</main>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<link rel="icon" href="data:,"><title>fathom-trace report: {escape(workloads)}</title><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + f"\n<script>{_in_script(javascript)}</script>\n<script>{_constants()}{_SCRIPT}</script>\n</body></html>\n"
    )


def _constants() -> str:
    styles = {"light": style(is_dark=False, label_width=WIDE), "dark": style(is_dark=True, label_width=WIDE)}
    return f"const narrow = {NARROW}, styles = {_json(styles)};"


def _all_sections() -> Iterable[tuple[str, str]]:
    return (("published", "Published and measured"), *SECTIONS, ("traces", "The traces"))


def _published(report: Report) -> str:
    rows = []
    for fact in report.facts:
        kind = {AGREES: "agrees", DISAGREES: "disagrees"}.get(fact.finding, "dim")
        where = "; ".join(fact.machines) or "no trace"
        rows.append(
            f'<div class="fact"><p>{escape(fact.claim)} <span class="dim">({escape(fact.place)})</span>: '
            f'<strong class="{kind}">{escape(fact.finding)}</strong></p><p>measured: {escape(fact.measured)}</p>'
            + (f"<p>{escape(fact.note)}.</p>" if fact.note else "")
            + f'<p class="dim">Counts as agreement: {escape(fact.criterion)}.</p><p class="dim">On: {escape(where)}.</p></div>'
        )
    summary = escape(counts(report.facts).capitalize())
    return f'<section id="published"><h2>Published and measured</h2><p>{summary}.</p>{"".join(rows)}</section>'


def _section(name: str, title: str, report: Report, tables: dict[str, Numbers], figures: Sequence[Figure]) -> str:
    mine = [figure for figure in figures if figure.analysis == name]
    parts = [f'<section id="{name}"><h2>{escape(title)}</h2>']
    parts += [
        f'<figure data-figure="{escape(f.name)}"><figcaption><strong>{escape(f.title)}</strong>{escape(f.caption)}</figcaption>'
        f'<div class="scroll"><div class="chart" style="min-width: {f.least_width}px" role="img" aria-label="{escape(f.title)}">'
        f"</div></div>"
        f'<script type="application/json">{_json(f.spec)}</script></figure>'
        for f in mine
    ]
    if not mine:
        parts.append(f"<p>Nothing to draw. {escape(_LACKING.get(name, 'These traces hold nothing for it.'))}</p>")
    left_out = report.excluded[name]
    if left_out:
        parts.append(f'<p class="out">Left out: {escape("; ".join(left_out))}.</p>')
    parts.append(_table(name, tables[name]))
    if name == "similarity":
        parts.append(_table("distances", tables["distances"]))
    return "".join(parts) + "</section>"


def _table(name: str, table: Numbers) -> str:
    if not table.rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in table.header)
    rows = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in table.rows[:ROWS])
    more = f" (the first {ROWS} of {len(table.rows)} rows; {name}.csv has all)" if len(table.rows) > ROWS else ""
    return (
        f"<details><summary>Numbers: {escape(name)}{more}</summary>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>'
    )


def _cell(value: Value) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, (bool, str)):
        return f"<td>{escape(str(value))}</td>"
    return f'<td class="number">{value if isinstance(value, int) else format(value, ".4g")}</td>'


def _traces(traces: Sequence[Captured], profiled: Sequence[Captured], files_left_out: Sequence[LeftOut]) -> str:
    parts = ['<section id="traces"><h2>The traces</h2><p>How each came about, and what of it is in no figure.</p>']
    parts += [f'<p class="out">{escape(left.file)} is in no figure: {escape(left.why)}.</p>' for left in files_left_out]
    for c in traces:
        left_out = [
            f"{e.what}: {e.why}" + ("" if e.share is None else f" ({format_share(e.share)} of the op time)") for e in c.exclusions
        ]
        rows = "".join(
            f"<tr><th>{escape(key)}</th><td>{escape(_text(value))}</td></tr>"
            for key, value in c.provenance.items()
            if value not in ("", [], {})
        )
        role = "in every profile" if c in profiled else "in the comparison of training and inference only"
        parts.append(
            f"<details><summary><strong>{escape(c.label)}</strong>: {escape(c.setting)}; a step takes {format_ns(c.step_ns)}</summary>"
            f'<p class="dim">{escape(c.file)}; {role}</p><p class="out">Left out: {escape("; ".join(left_out) or "nothing")}.</p>'
            f"<table><tbody>{rows}</tbody></table></details>"
        )
    return "".join(parts) + "</section>"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json(value: Any) -> str:
    """JSON that no reader of HTML takes for the end of a script."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _in_script(javascript: str) -> str:
    return javascript.replace("</script", "<\\/script").replace("<!--", "<\\!--")
