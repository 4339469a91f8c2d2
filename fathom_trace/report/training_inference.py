"""What training costs over inference (the Fathom paper's figure 5): step times of both modes on each device, training on CPU set to 1.

A step time is the median wall time of untraced steps (of traced ones where there are none). The ratio is training over inference on one
device. Where the two steps have different batches the ratio compares different amounts of work, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fathom_trace.report.captured import Captured, names_of

TRAINING, INFERENCE = "training", "inference"


@dataclass(frozen=True)
class Pair:
    """One workload on one device, ns a step. `normalized` are of training and inference, over training on CPU (None: not captured).

    `label` is the workload, and where several pairs are of it, what tells them apart.
    """

    label: str
    workload: str
    device: str
    training_ns: float
    inference_ns: float
    training_batch: int
    inference_batch: int
    normalized: tuple[float, float] | None

    @property
    def ratio(self) -> float:
        """Training over inference."""
        return self.training_ns / self.inference_ns

    @property
    def has_equal_batches(self) -> bool:
        """Whether both steps have the same number of samples."""
        return self.training_batch == self.inference_batch

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "ratio": self.ratio, "has_equal_batches": self.has_equal_batches}


@dataclass(frozen=True)
class TrainingInference:
    """All pairs; `correlation` is of the ratios between two devices, None without three workloads on both. `left_out` have no partner."""

    pairs: tuple[Pair, ...]
    correlation: float | None
    left_out: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "pairs": [pair.to_dict() for pair in self.pairs],
            "correlation": self.correlation,
            "left_out": list(self.left_out),
        }


def training_inference(traces: Sequence[Captured]) -> TrainingInference:
    """Pair the traces by workload, device, preset, stage, threads, part and scenario; of several the inference of equal batch is taken.

    A trace without its other mode, or for which another stands, is left out, and named.
    """
    by_key: dict[tuple[object, ...], dict[str, list[Captured]]] = {}
    for c in traces:
        get = c.provenance.get
        key: tuple[object, ...] = (
            c.workload, c.device, c.preset, get("stage"), c.threads, get("inter_threads"), c.selection, c.projected,
        )  # fmt: skip
        if c.mode in (TRAINING, INFERENCE) and c.step_ns > 0:
            by_key.setdefault(key, {}).setdefault(c.mode, []).append(c)
    found = {key: pair for key, modes in by_key.items() if (pair := _partners(modes.get(TRAINING, []), modes.get(INFERENCE, [])))}
    labels = names_of(list(found))
    reference = {(k[0], *k[2:]): training.step_ns for k, (training, _) in found.items() if k[1] == "CPU"}
    pairs = []
    for key, (training, inference) in found.items():
        cpu = reference.get((key[0], *key[2:]))
        pairs.append(
            Pair(
                label=labels[key],
                workload=training.workload,
                device=training.device,
                training_ns=training.step_ns,
                inference_ns=inference.step_ns,
                training_batch=training.batch_size,
                inference_batch=inference.batch_size,
                normalized=(training.step_ns / cpu, inference.step_ns / cpu) if cpu else None,
            )
        )
    used = {id(c) for pair in found.values() for c in pair}
    return TrainingInference(tuple(pairs), _correlation(pairs), tuple(c.label for c in traces if id(c) not in used))


def _partners(trainings: Sequence[Captured], inferences: Sequence[Captured]) -> tuple[Captured, Captured] | None:
    """A training and an inference: the first two of equal batch, or else the first of each."""
    for training in trainings:
        for inference in inferences:
            if training.batch_size == inference.batch_size:
                return training, inference
    return (trainings[0], inferences[0]) if trainings and inferences else None


def _correlation(pairs: Sequence[Pair]) -> float | None:
    """Pearson's correlation of the ratios on the first two devices, over the workloads that ran on both."""
    devices = list(dict.fromkeys(pair.device for pair in pairs))[:2]
    ratios = [{pair.workload: pair.ratio for pair in pairs if pair.device == device} for device in devices]
    if len(devices) < 2:
        return None
    shared = [name for name in ratios[0] if name in ratios[1]]
    one, other = ([r[name] for name in shared] for r in ratios)
    if len(shared) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])
