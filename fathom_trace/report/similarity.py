"""How alike the workloads spend their time (the Fathom paper's figure 4): a dendrogram over profiles by op type.

A profile is the share of op time by op type, under the paper's names, so its entries sum to 1. The distance of two is the cosine distance
1 - a.b / (|a| |b|). Clusters are merged one pair at a time, the nearest first, by one of two rules:

* `centroid`: the distance of two clusters is the cosine distance of their mean vectors (what the paper calls centroidal; a merge may be
  nearer than an earlier one, as always with centroids);
* `average`: it is the mean of all distances between a member of one and a member of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import UnknownNameError

Float = NDArray[np.float64]

CENTROID, AVERAGE = "centroid", "average"
LINKAGES = (CENTROID, AVERAGE)


@dataclass(frozen=True)
class Merge:
    """Two clusters that became one at `distance`; members are positions of workloads, in the order of the drawing."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    distance: float

    @property
    def members(self) -> frozenset[int]:
        """All of them."""
        return frozenset(self.left + self.right)


@dataclass(frozen=True, eq=False)
class Similarity:
    """Distances `[n, n]` and merges, first to last, of `n` labelled profiles."""

    labels: tuple[str, ...]
    op_types: tuple[str, ...]
    linkage: str
    distance: Float
    merges: tuple[Merge, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """Leaves from left to right, so that no lines of the dendrogram cross."""
        return self.merges[-1].left + self.merges[-1].right if self.merges else tuple(range(len(self.labels)))

    def is_cluster(self, labels: Sequence[str]) -> bool:
        """True if exactly these were one cluster at some time."""
        wanted = frozenset(self.labels.index(label) for label in labels)
        return any(merge.members == wanted for merge in self.merges)

    def between(self, one: str, other: str) -> float:
        """Cosine distance of two profiles."""
        return float(self.distance[self.labels.index(one), self.labels.index(other)])

    def pairs(self) -> list[tuple[str, str, float]]:
        """All pairs, nearest first."""
        found = [(self.labels[i], self.labels[j], float(self.distance[i, j])) for i, j in combinations(range(len(self.labels)), 2)]
        return sorted(found, key=lambda pair: pair[2])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "linkage": self.linkage,
            "labels": list(self.labels),
            "op_types": list(self.op_types),
            "distance": self.distance.tolist(),
            "order": [self.labels[i] for i in self.order],
            "merges": [
                {"left": [self.labels[i] for i in m.left], "right": [self.labels[i] for i in m.right], "distance": m.distance}
                for m in self.merges
            ],
        }


def cosine_distance(one: Float, other: Float) -> float:
    """1 - cos of the angle between two vectors; 1 where one of them is zero, 0 for equal directions, never below."""
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return max(0.0, 1.0 - float(one @ other) / lengths) if lengths else 1.0


def similarity(profiles: Mapping[str, Mapping[str, float]], linkage: str = CENTROID) -> Similarity:
    """The dendrogram of profiles (label to op type to time or share; each is normalised to sum 1).

    Raises:
        UnknownNameError: `linkage` is neither.
    """
    if linkage not in LINKAGES:
        raise UnknownNameError("linkage", linkage, LINKAGES)
    labels = tuple(profiles)
    types = tuple(sorted({op for p in profiles.values() for op in p}))
    vectors = np.array([[profiles[label].get(op, 0.0) for op in types] for label in labels], np.float64)
    vectors = vectors.reshape(len(labels), len(types))
    sums = vectors.sum(axis=1, keepdims=True)
    vectors = np.divide(vectors, sums, out=np.zeros_like(vectors), where=sums > 0)
    distance = np.array([[cosine_distance(a, b) for b in vectors] for a in vectors]).reshape(len(labels), len(labels))
    np.fill_diagonal(distance, 0.0)
    clusters: list[tuple[int, ...]] = [(i,) for i in range(len(labels))]
    merges = []

    def apart(a: tuple[int, ...], b: tuple[int, ...]) -> float:
        if linkage == AVERAGE:
            return float(distance[np.ix_(a, b)].mean())
        return cosine_distance(vectors[list(a)].mean(axis=0), vectors[list(b)].mean(axis=0))

    while len(clusters) > 1:
        nearest, i, j = min((apart(clusters[i], clusters[j]), i, j) for i, j in combinations(range(len(clusters)), 2))
        merges.append(Merge(clusters[i], clusters[j], nearest))
        clusters = [c for k, c in enumerate(clusters) if k not in (i, j)] + [clusters[i] + clusters[j]]
    return Similarity(labels, types, linkage, distance, tuple(merges))
