"""Runs a lifted graph: configures the session for a stage, initialises variables, times plain steps and runs traced ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

from fathom_trace.capture.lift import Lifted
from fathom_trace.errors import CaptureError, one_line

_KEPT_ON = frozenset({"function_optimization"})
"""Function inlining stays on: without it the ops of a call are recorded under names that stand in no graph."""

FED_BYTES = 1 << 28
"""Values of variables that are fed at once, at most, unless a single one is larger."""


@dataclass(frozen=True)
class TracedRun:
    """One traced step: its serialised RunMetadata and the client's wall time in ns (which includes handing the metadata over)."""

    metadata: bytes
    wall_ns: int


class _Unparsed:
    """Stands for the RunMetadata that a session fills, and keeps it as it comes: objects of its records take several times the memory."""

    def __init__(self) -> None:
        self.data = b""

    def ParseFromString(self, data: bytes) -> None:  # noqa: N802
        """Keep it."""
        self.data = data


def session_config(stage: str, intra_threads: int, inter_threads: int) -> Any:
    """The `ConfigProto` of a stage; in `source` every rewriter is off by name, and only function inlining is on."""
    config = config_pb2.ConfigProto(
        intra_op_parallelism_threads=intra_threads,
        inter_op_parallelism_threads=inter_threads,
        use_per_session_threads=True,
        allow_soft_placement=True,
    )
    if stage != "source":
        return config
    rewrite = config.graph_options.rewrite_options
    off = rewriter_config_pb2.RewriterConfig.OFF
    for name in rewriters():
        setattr(rewrite, name, off)
    rewrite.function_optimization = rewriter_config_pb2.RewriterConfig.ON
    rewrite.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    rewrite.disable_model_pruning = True
    rewrite.min_graph_nodes = -1
    config.graph_options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
    return config


def rewriters() -> list[str]:
    """Every on/off rewriter that this TensorFlow has, function inlining apart."""
    fields = rewriter_config_pb2.RewriterConfig.DESCRIPTOR.fields
    return [f.name for f in fields if f.enum_type is not None and f.enum_type.name == "Toggle" and f.name not in _KEPT_ON]


class Runner:
    """A session over a lifted graph. Use as a context manager."""

    def __init__(self, lifted: Lifted, stage: str, intra_threads: int, inter_threads: int) -> None:
        self.lifted = lifted
        self._session = tf.compat.v1.Session(graph=lifted.graph, config=session_config(stage, intra_threads, inter_threads))
        self._reads: dict[str, Any] | None = None
        self._fetches = [list(lifted.fetches.values()), lifted.targets]

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *unused: object) -> None:
        self._session.close()

    def initialise(self) -> None:
        """Give every variable its value as a fed value, up to `FED_BYTES` at once: each set of variables costs a pass over the graph."""
        targets: list[Any] = []
        feed: dict[Any, NDArray[Any]] = {}
        for variable in self.lifted.variables:
            value = variable.source.numpy()
            if feed and sum(v.nbytes for v in feed.values()) + value.nbytes > FED_BYTES:
                self._session.run(targets, feed)
                targets, feed = [], {}
            targets.append(variable.assign)
            feed[variable.assign_value] = value
        if feed:
            self._session.run(targets, feed)

    def variable_values(self) -> dict[str, NDArray[Any]]:
        """The present value of every variable, by name. The ops that read them are made when first asked for and lie in no step."""
        if self._reads is None:
            with self.lifted.graph.as_default():
                self._reads = {v.name: tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=v.dtype) for v in self.lifted.variables}
        found: dict[str, NDArray[Any]] = self._session.run(self._reads)
        return found

    def run(self, values: Mapping[str, NDArray[Any]]) -> tuple[dict[str, Any], int]:
        """One plain step: outputs by name and the client's wall time in ns."""
        feed = self._feed(values)
        begin = time.perf_counter_ns()
        outputs = self._call(feed)
        return outputs, time.perf_counter_ns() - begin

    def trace(self, values: Mapping[str, NDArray[Any]], with_graphs: bool = False) -> tuple[dict[str, Any], TracedRun]:
        """One step under full tracing. Graphs are asked for once only: they do not change and make tracing two to three times dearer."""
        feed = self._feed(values)
        metadata = _Unparsed()
        options = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.FULL_TRACE, output_partition_graphs=with_graphs)
        begin = time.perf_counter_ns()
        outputs = self._call(feed, options=options, run_metadata=metadata)
        return outputs, TracedRun(metadata.data, time.perf_counter_ns() - begin)

    def _feed(self, values: Mapping[str, NDArray[Any]]) -> dict[Any, Any]:
        feed = dict(self.lifted.captured.values())
        for name, tensor in self.lifted.feeds.items():
            if name not in values:
                raise CaptureError(f"the step has no value for its input '{name}'; it was given: {', '.join(sorted(values))}")
            feed[tensor] = values[name]
        return feed

    def _call(self, feed: dict[Any, Any], **tracing: Any) -> dict[str, Any]:
        try:
            fetched, _ = self._session.run(self._fetches, feed, **tracing)
        except tf.errors.ResourceExhaustedError as error:
            raise CaptureError(f"the step ran out of memory ({one_line(error.message)}); use a smaller --batch-size") from None
        except tf.errors.OpError as error:
            text = one_line(error.message)
            if "2GB" in text or "2147483647" in text or "protobuf" in text.lower():
                raise CaptureError(
                    f"the step's run metadata does not fit TensorFlow's 2 GB limit of one message ({text[:200]}); use a smaller step"
                ) from None
            raise CaptureError(f"the step failed in TensorFlow: {text[:500]}") from None
        return dict(zip(self.lifted.fetches, fetched, strict=True))
