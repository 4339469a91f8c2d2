"""Each analysis as a figure, where the traces have data for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from fathom_trace.report.analyses import Report
from fathom_trace.report.other_figures import draw_memory, draw_roofline, draw_traffic
from fathom_trace.report.paper_figures import (
    draw_dendrogram,
    draw_heat_map,
    draw_parallelism,
    draw_skew,
    draw_stationarity,
    draw_training_inference,
)
from fathom_trace.report.similarity import AVERAGE, CENTROID
from fathom_trace.report.vega import Figure


def figures(report: Report) -> list[Figure]:
    """Every figure for which the traces have data, in the order of the paper, each under a name of its own."""
    found = (
        draw_stationarity(report),
        draw_skew(report),
        draw_heat_map(report),
        draw_dendrogram(report, CENTROID, "similarity"),
        draw_dendrogram(report, AVERAGE, "similarity_average"),
        draw_training_inference(report),
        *(draw_parallelism(scaling) for scaling in report.parallelism),
        draw_roofline(report),
        draw_memory(report),
        draw_traffic(report),
    )
    used: Counter[str] = Counter()
    result = []
    for figure in filter(None, found):
        used[figure.name] += 1
        number = used[figure.name]
        result.append(figure if number == 1 else replace(figure, name=f"{figure.name}_{number}"))
    return result
