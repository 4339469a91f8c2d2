"""Where a data-parallel step's time would go: reading data, computing, exchanging weights.

* *data I/O*: the recorded time and bytes of preparing a step's inputs, beside the step and not in it (marked where inputs are synthetic);
* *computation*: the measured span of the step;
* *weights*: modelled, never measured: the bytes of the trainable variables, as `scheme` moves them, over a link of a stated speed. Each of
  N workers sends 2 (N - 1) / N times the bytes in a ring all-reduce (P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for
  clusters of workstations", JPDC 69(2), 2009), and twice the bytes (gradients up, weights down) with a parameter server. No latency, no
  overlap with computation; one worker exchanges nothing, nor does inference.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fathom_trace.errors import OptionError, UnknownNameError
from fathom_trace.report.captured import Captured

RING, SERVER = "ring all-reduce", "parameter server"
SCHEMES = {"ring": RING, "server": SERVER}


@dataclass(frozen=True)
class Exchange:
    """The modelled exchange of weights: N workers, bytes a second that each can send, and the scheme."""

    workers: int = 8
    link_bytes_per_s: float = 12.5e9
    scheme: str = "ring"

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise UnknownNameError("scheme", self.scheme, SCHEMES)
        if self.workers < 1 or not self.link_bytes_per_s > 0:
            raise OptionError(
                f"{self.workers} workers over {self.link_bytes_per_s:g} B/s exchange nothing; give at least 1 and above 0"
            )

    @property
    def times(self) -> float:
        """How many times the bytes of the weights each worker sends."""
        if self.workers == 1:
            return 0.0
        return 2 * (self.workers - 1) / self.workers if self.scheme == "ring" else 2.0

    def __str__(self) -> str:
        return f"modelled: {SCHEMES[self.scheme]} of {self.workers} workers over {self.link_bytes_per_s / 1e9:g} GB/s"


@dataclass(frozen=True)
class Traffic:
    """One trace: times of a step in ns, bytes of its inputs and of its weights."""

    label: str
    input_ns: float
    input_bytes: float
    synthetic_input: bool
    computation_ns: float
    trainable_bytes: int
    sent_bytes: float
    """Modelled."""
    exchange_ns: float
    """Modelled."""

    @property
    def shares(self) -> tuple[float, float, float]:
        """Of data I/O, computation and weights in their sum."""
        parts = (self.input_ns, self.computation_ns, self.exchange_ns)
        whole = sum(parts)
        one, two, three = (part / whole if whole else 0.0 for part in parts)
        return one, two, three

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "shares": dict(zip(("data_io", "computation", "weights_modelled"), self.shares, strict=True))}


def traffic(captured: Captured, exchange: Exchange) -> Traffic:
    """The breakdown of one trace."""
    trained = captured.trainable_bytes if captured.mode == "training" else 0
    sent = trained * exchange.times
    return Traffic(
        label=captured.label,
        input_ns=captured.input_ns,
        input_bytes=captured.input_bytes,
        synthetic_input=captured.synthetic_input,
        computation_ns=float(np.median(captured.span_ns)) if len(captured.span_ns) else 0.0,
        trainable_bytes=captured.trainable_bytes,
        sent_bytes=sent,
        exchange_ns=sent / exchange.link_bytes_per_s * 1e9,
    )
