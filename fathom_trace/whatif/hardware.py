"""Times of operations on described hardware, over whole arrays: a roofline and a systolic array in closed form.

Roofline: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
Systolic array: the schedule of A. Samajdar et al., "SCALE-Sim: systolic CNN accelerator simulator", 2018, whose `Total Cycles` of a
GEMM on an array with ideal memory it equals: each operand tile is skewed in, streamed through and drained before the next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fathom_trace.errors import ScenarioError, UnknownNameError
from fathom_trace.units import NS_PER_S
from fathom_trace.whatif.recording import Float, Int64

OUTPUT_STATIONARY, WEIGHT_STATIONARY, INPUT_STATIONARY = "os", "ws", "is"
DATAFLOWS = (OUTPUT_STATIONARY, WEIGHT_STATIONARY, INPUT_STATIONARY)


def roofline_ns(
    flops: ArrayLike,
    size_bytes: ArrayLike,
    peak_flops_per_s: float,
    bandwidth_bytes_per_s: float,
    overhead_ns: float = 0.0,
) -> Float:
    """max(flops / peak, bytes / bandwidth) + overhead, in ns, for arrays of operations.

    Raises:
        ScenarioError: a peak or bandwidth that is not above 0, or an overhead below 0.
    """
    for what, value in (("peak", peak_flops_per_s), ("bandwidth", bandwidth_bytes_per_s)):
        if not value > 0:
            raise ScenarioError(f"a roofline with a {what} of {value:g} a second is none; give a number above 0")
    if not 0 <= overhead_ns < np.inf:
        raise ScenarioError(f"an overhead of {overhead_ns:g} ns is none; give a finite number that is not below 0")
    compute_s = np.asarray(flops, np.float64) / peak_flops_per_s
    memory_s = np.asarray(size_bytes, np.float64) / bandwidth_bytes_per_s
    return np.asarray(np.maximum(compute_s, memory_s) * NS_PER_S + overhead_ns)


def systolic_cycles(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    rows: int,
    columns: int,
    dataflow: str = OUTPUT_STATIONARY,
) -> Int64:
    """Cycles of the GEMMs [m, k] x [k, n] on an array of `rows` x `columns`.

    * os: ceil(m / rows) ceil(n / columns) (k + rows + columns - 2) - 1
    * ws: ceil(k / rows) ceil(n / columns) (m + 2 rows + columns - 2) - 1
    * is: ceil(k / rows) ceil(m / columns) (n + 2 rows + columns - 2) - 1

    Raises:
        UnknownNameError: a dataflow other than these.
        ScenarioError: an extent below 1.
    """
    if dataflow not in DATAFLOWS:
        raise UnknownNameError("dataflow", dataflow, DATAFLOWS)
    m, n, k = (np.asarray(extent, np.int64) for extent in (m, n, k))
    if rows < 1 or columns < 1 or any(np.any(extent < 1) for extent in (m, n, k)):
        raise ScenarioError(f"a GEMM or an array of {rows}x{columns} has an extent below 1; give extents of 1 or more")
    down, across, streamed = {
        OUTPUT_STATIONARY: (m, n, k + rows + columns - 2),
        WEIGHT_STATIONARY: (k, n, m + 2 * rows + columns - 2),
        INPUT_STATIONARY: (k, m, n + 2 * rows + columns - 2),
    }[dataflow]
    tiles: NDArray[np.int64] = -(-down // rows) * -(-across // columns)
    return np.asarray(tiles * streamed - 1)
