"""Cycles of a matrix product on a systolic array, in closed form: milliseconds where a cycle-level simulation takes CPU-hours.

The formulas give the `Total Cycles` of SCALE-Sim 3.0.0 with memory that never stalls (its estimate-bandwidth mode). An array of R x C
multiply-accumulators works a product [M, K] x [K, N] off in folds; with T(x, y) = ceil(x / y):

* output stationary `os`: T(M, R) T(N, C) (K + R + C - 2) - 1
* weight stationary `ws`: T(K, R) T(N, C) (M + 2 R + C - 2) - 1
* input stationary  `is`: T(K, R) T(M, C) (N + 2 R + C - 2) - 1
"""

from __future__ import annotations

from dataclasses import dataclass

from fathom_trace.errors import OptionError

DATAFLOWS = ("os", "ws", "is")


@dataclass(frozen=True)
class SystolicArray:
    """An array of `rows` x `columns` multiply-accumulators and the operand that stays in place (`os`, `ws` or `is`).

    Raises:
        OptionError: there is no such array.
    """

    rows: int
    columns: int
    dataflow: str

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise OptionError(f"a systolic array of {self.rows} x {self.columns} cannot be; give at least 1 x 1")
        if self.dataflow not in DATAFLOWS:
            raise OptionError(f"dataflow is '{self.dataflow}'; it is one of: {', '.join(DATAFLOWS)}")

    def cycles(self, m: int, n: int, k: int) -> int:
        """Cycles of one product [m, k] x [k, n]; all extents at least 1."""
        rows, columns = self.rows, self.columns
        if self.dataflow == "os":
            return -(-m // rows) * -(-n // columns) * (k + rows + columns - 2) - 1
        moving, across = (m, n) if self.dataflow == "ws" else (n, m)
        return -(-k // rows) * -(-across // columns) * (moving + 2 * rows + columns - 2) - 1
