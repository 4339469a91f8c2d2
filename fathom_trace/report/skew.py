"""How few op types take most of the time (the Fathom paper's figure 2): cumulative share of op time over types, largest first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

MOST = 0.9


@dataclass(frozen=True)
class Skew:
    """Op types of one workload, largest first, with their shares and the running sum of those."""

    label: str
    op_types: tuple[str, ...]
    shares: tuple[float, ...]
    cumulative: tuple[float, ...]
    k90: int
    """The fewest op types that together take at least 90% of the op time."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def skew(label: str, times: Mapping[str, float]) -> Skew:
    """The curve of times (or shares) by op type; types that took no time are at its end."""
    rows = sorted(times.items(), key=lambda row: (-row[1], row[0]))
    whole = sum(times.values())
    shares = [time / whole if whole else 0.0 for _, time in rows]
    running, cumulative = 0.0, []
    for share in shares:
        running += share
        cumulative.append(min(running, 1.0))
    enough = [i for i, sum_so_far in enumerate(cumulative, 1) if sum_so_far >= MOST - 1e-12]
    return Skew(label, tuple(op for op, _ in rows), tuple(shares), tuple(cumulative), enough[0] if enough else len(rows))
