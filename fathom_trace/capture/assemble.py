"""Makes a `Trace` of a lifted graph, the graph that TensorFlow executed and the records of each step."""

from __future__ import annotations

import heapq
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace import tables as t
from fathom_trace.builder import ITEM_BYTES, TraceBuilder, attributes_text
from fathom_trace.capture.dataflow import ENTER, Flow, FlowAnalysis, FlowNode
from fathom_trace.capture.graph import (
    GraphNode,
    SourceNode,
    attributes,
    came_from,
    constant_value,
    flatten_source,
    handle_holders,
    variable_access,
)
from fathom_trace.capture.lift import Lifted
from fathom_trace.capture.opaque import Argument, InnerOp, expand, is_opaque_call, runs_function
from fathom_trace.capture.ragged import offsets_of, owners, taken
from fathom_trace.capture.signatures import Output, Signatures
from fathom_trace.capture.stepstats import RECORD_CAP, StepRecords
from fathom_trace.effects import access_key
from fathom_trace.trace import Trace

IntColumn = NDArray[Any]


@dataclass(frozen=True)
class StepContext:
    """What is known of a traced step from outside its records."""

    client_wall_ns: int
    input_preparation_ns: int
    input_preparation_bytes: int
    synthetic_input: bool


@dataclass
class Structure:
    """A set of executions: the canonical position (by node, then start) of each, and what is missing from it.

    `recorded` executions come first; those expanded from opaque calls follow and have the position of their call.
    """

    position: IntColumn
    recorded: int
    missing: int
    surplus: int
    first_missing: str


@dataclass
class Columns:
    """Growing columns of `executions` and `tensors`: 4 bytes a number, where a list of them takes 36.

    `tensor_output` are numbers of different outputs: slot, dtype and shape.
    """

    node: list[IntColumn] = field(default_factory=list)
    path: list[IntColumn] = field(default_factory=list)
    inputs: array[int] = field(default_factory=lambda: array("i"))
    input_counts: array[int] = field(default_factory=lambda: array("i"))
    control: array[int] = field(default_factory=lambda: array("i"))
    control_counts: array[int] = field(default_factory=lambda: array("i"))
    tensor_execution: array[int] = field(default_factory=lambda: array("i"))
    tensor_output: array[int] = field(default_factory=lambda: array("i"))
    parent: list[IntColumn] = field(default_factory=list)


class Assembler:
    """Collects steps and builds the trace. Nodes of the executed graph keep their numbers."""

    def __init__(
        self, lifted: Lifted, nodes: Sequence[GraphNode], signatures: Signatures, roles: Mapping[str, str], library: Mapping[str, Any]
    ) -> None:
        self.lifted, self.nodes, self.signatures, self.roles = lifted, nodes, signatures, roles
        self.builder = TraceBuilder()
        self.node_index = {n.name: i for i, n in enumerate(nodes)}
        self.structures: dict[bytes, int] = {}
        self.made: list[Structure] = []
        self.bounds: list[int] = [0]
        self.columns = Columns()
        self.paths: list[tuple[int, int, int, int]] = [(-1, -1, 0, 0)]
        self.frame_names: list[str] = []
        self.frame_parents: list[int] = []
        self.node_frame = [-1] * len(nodes)
        self.unplaced: dict[str, int] = {}
        self.is_capped = False
        self.library = dict(library)
        self.outputs: list[Output] = []
        self._output_number: dict[Output, int] = {}
        self.inner_nodes: list[tuple[str, InnerOp, list[tuple[int, int]], str]] = []
        self.unexpanded: set[str] = set()
        self._hiding: set[str] = set()
        """Other nodes that ran a function whose ops are not recorded."""
        self._partly: set[str] = set()
        """Expanded calls with such a node inside."""
        self._is_opaque = np.array([is_opaque_call(n.op, n.attributes) for n in nodes], bool)
        self._runs_function = np.array([runs_function(n.op, n.definition) for n in nodes], bool)
        self._no_bounds: IntColumn = np.zeros(0, np.int64)
        self._inner_rows: dict[int, list[int]] = {}
        self._expanded: dict[tuple[str, tuple[Argument, ...]], list[InnerOp] | None] = {}
        self._handles = {self.node_index[v.node_name]: i for i, v in enumerate(lifted.variables) if v.node_name in self.node_index}
        self._holders = handle_holders(nodes, self._handles) if self._is_opaque.any() else {}
        self._touched = _touched_variables(nodes, self._handles)
        self.memory_step: tuple[int, StepRecords] | None = None
        self._flow_nodes = [
            FlowNode(
                n.op,
                n.inputs,
                n.control,
                frame=str(n.attributes.get("frame_name", "")) if n.op in ENTER else "",
                is_constant=bool(n.attributes.get("is_constant", False)) if n.op in ENTER else False,
            )
            for n in nodes
        ]

    # --- steps ------------------------------------------------------------------------------------------------------------------

    def add_step(self, records: StepRecords, context: StepContext) -> int:
        """Add a traced step; returns its row."""
        canonical = np.lexsort((records.start, records.node))
        key = b"|".join((records.node[canonical].tobytes(), records.signature[canonical].tobytes(), self._access_order(records)))
        number = self.structures.get(key)
        if number is None:
            number = self.structures[key] = self._add_structure(records, canonical)
        structure = self.made[number]
        pick = canonical[structure.position]
        self.is_capped |= records.total >= RECORD_CAP
        for name, count in records.unplaced.items():
            self.unplaced[name] = max(count, self.unplaced.get(name, 0))
        missing_ends, hidden = self._missing_ends(records), self._hidden(records)
        scheduled, start, end, done = (getattr(records, k)[pick] for k in ("scheduled", "start", "end", "done"))
        for column in (scheduled, end, done):
            column[structure.recorded :] = start[structure.recorded :]
        lane = np.zeros(len(pick), np.int16)
        lane[: structure.recorded] = lanes(start[: structure.recorded], done[: structure.recorded])
        lost = structure.missing or structure.surplus or missing_ends or records.dropped
        step = self.builder.step(
            number,
            start,
            done,
            scheduled=scheduled,
            end=end,
            lane=lane,
            client_wall_ns=context.client_wall_ns,
            origin_ns=records.origin_ns,
            input_preparation_ns=context.input_preparation_ns,
            input_preparation_bytes=context.input_preparation_bytes,
            synthetic_input=context.synthetic_input,
            recorded=structure.recorded,
            produced=structure.recorded + max(structure.missing or missing_ends, records.dropped) + hidden,
            complete=not (lost or hidden or records.total >= RECORD_CAP),
        )
        if records.memory is not None and self.memory_step is None:
            self.memory_step = step, records
            self._memory_pick = pick[: structure.recorded]
            self._memory_structure = number
        self._add_spans(step, records, number)
        return step

    def _access_order(self, records: StepRecords) -> bytes:
        """In which order each variable was read and written: where nothing but time settles it, steps may differ in it alone."""
        sequences: dict[int, list[tuple[int, bool]]] = {}
        touching = np.isin(records.node, np.array(sorted(self._touched), np.int64))
        for node in records.node[touching].tolist():
            for variable, writes in self._touched[node]:
                sequences.setdefault(variable, []).append((node, writes))
        return access_key(sequences)

    def _missing_ends(self, records: StepRecords) -> int:
        """Fetches and targets that were not recorded: their absence means that the end of the step was lost."""
        ran = set(np.unique(records.node).tolist())
        ends = [i for i, n in enumerate(self.nodes) if n.op == "_Retval"]
        ends += [self.node_index[o.name] for o in self.lifted.targets if o.name in self.node_index]
        return sum(1 for e in ends if e not in ran)

    def _hidden(self, records: StepRecords) -> int:
        """Records that have no place in the trace. Those of a call that was expanded whole have one: the executions from it."""
        has_calls = bool(self._is_opaque.any())
        return 0 if has_calls and not (self.unexpanded or self._partly) else sum(records.unplaced.values())

    def _add_spans(self, step: int, records: StepRecords, structure: int) -> None:
        if not records.spans:
            return
        rows = range(self.bounds[structure], self.bounds[structure + 1])
        nodes = np.concatenate(self.columns.node)[rows.start : rows.stop]
        by_name = {self.nodes[n].name: rows.start + i for i, n in reversed(list(enumerate(nodes.tolist())))}
        for span in records.spans:
            self.builder.add(
                "device_spans",
                step=step,
                execution=by_name.get(span.name.split(":")[0], -1),
                span_name=self.builder.string(span.name),
                stream=self.builder.string(span.stream),
                kind=t.SPAN_COPY if span.is_copy else t.SPAN_KERNEL,
                start=span.start,
                end=span.end,
                size_bytes=span.size_bytes if span.is_copy else 0,
            )

    # --- structures -------------------------------------------------------------------------------------------------------------

    def add_untimed(self, records: StepRecords) -> Structure:
        """Add what a step would execute, without adding a step: the records only give the order."""
        return self.made[self._add_structure(records, np.lexsort((records.start, records.node)))]

    def _add_structure(self, records: StepRecords, canonical: IntColumn) -> int:
        ends = np.searchsorted(records.node[canonical], np.arange(len(self.nodes) + 1)).tolist()
        sorted_records = array("i", canonical.astype(np.int32).tobytes())
        by_node = [sorted_records[begin:end] for begin, end in pairwise(ends)]
        flow = FlowAnalysis(self._flow_nodes, by_node, _Shown(self.signatures, records)).run()
        order = execution_order(records.start, flow)
        self._add_rows(records, flow, order)
        calls = self._expand_calls(records, order)
        position = np.empty(len(canonical), np.int64)
        position[canonical] = np.arange(len(canonical))
        self.made.append(
            Structure(
                position=np.concatenate([position[order], position[order[calls]]]),
                recorded=len(order),
                missing=sum(m.expected - m.recorded for m in flow.missing),
                surplus=sum(m.recorded - m.expected for m in flow.surplus),
                first_missing=self.nodes[flow.missing[0].node].name if flow.missing else "",
            )
        )
        self.bounds.append(self.bounds[-1] + len(order) + len(calls))
        return len(self.made) - 1

    def _add_rows(self, records: StepRecords, flow: Flow, order: IntColumn) -> None:
        columns, base, count = self.columns, self.bounds[-1], len(order)
        row_of, tensor_of = np.empty(count, np.int64), np.empty(count, np.int64)
        row_of[order] = np.arange(count) + base
        lists = self._output_lists()
        tensor_offsets, shown = taken(lists.offsets, records.signature[order])
        tensor_of[order] = tensor_offsets[:-1] + len(columns.tensor_execution)
        _extend(columns.tensor_execution, owners(tensor_offsets) + base)
        _extend(columns.tensor_output, lists.number[shown])

        offsets, edges = taken(flow.inputs.offsets, order)
        producer, port = flow.inputs.producer[edges], flow.inputs.port[edges]
        place = np.where(producer >= 0, lists.place_of(records.signature[producer], port), -1)
        is_live = place >= 0
        _extend(columns.inputs, tensor_of[producer[is_live]] + place[is_live])
        _extend(columns.input_counts, np.bincount(owners(offsets)[is_live], minlength=count))

        offsets, edges = taken(flow.control.offsets, order)
        producer = flow.control.producer[edges]
        consumer, waited = owners(offsets)[producer >= 0], row_of[producer[producer >= 0]]
        _, once = np.unique(consumer * (base + count) + waited, return_index=True)
        once.sort()
        _extend(columns.control, waited[once])
        _extend(columns.control_counts, np.bincount(consumer[once], minlength=count))

        columns.parent.append(np.full(count, -1))
        columns.node.append(records.node[order].astype(np.int32))
        columns.path.append(self._add_paths(flow)[flow.path[order]])

    def _output_lists(self) -> _OutputLists:
        lists = self.signatures.values
        return _OutputLists(
            offsets_of([len(outputs) for outputs in lists]),
            np.array([self._number(output) for outputs in lists for output in outputs], np.int32),
            np.array([slot for outputs in lists for slot, _, _ in outputs], np.int64),
        )

    def _number(self, output: Output) -> int:
        """Number of an output; the same for the same slot, dtype and shape."""
        number = self._output_number.setdefault(output, len(self.outputs))
        if number == len(self.outputs):
            self.outputs.append(output)
        return number

    def _expand_calls(self, records: StepRecords, order: IntColumn) -> IntColumn:
        """Add the executions inside opaque calls; returns, for each, the place of its call in `order`."""
        columns, base = self.columns, self.bounds[-1]
        calls: list[int] = []
        nodes: list[int] = []
        parents: list[int] = []
        bounds = offsets_of(columns.input_counts) if self._is_opaque.any() else self._no_bounds
        ran = records.node[order]
        self._hiding.update(
            self.nodes[node].name for node in np.unique(ran[self._runs_function[ran] & ~self._is_opaque[ran]]).tolist()
        )
        for place in np.flatnonzero(self._is_opaque[ran]).tolist():
            node, call = int(ran[place]), base + place
            given = columns.inputs[bounds[call] : bounds[call + 1]]
            inner = self._inner_ops(node, given)
            if inner is None:
                self.unexpanded.add(self.nodes[node].name)
                continue
            if any(runs_function(op.op, op.definition) for op in inner):
                self._partly.add(self.nodes[node].name)
            tensors: list[int] = []
            for op in inner:
                execution = len(columns.input_counts)
                inputs = [given[-1 - i] if i < 0 else tensors[i] + port for i, port in op.inputs]
                columns.inputs.extend(inputs)
                columns.input_counts.append(len(inputs))
                columns.control_counts.append(0)
                tensors.append(len(columns.tensor_execution))
                columns.tensor_execution.extend([execution] * len(op.outputs))
                columns.tensor_output.extend(self._number((port, dtype, dims)) for port, (dtype, dims) in enumerate(op.outputs))
            calls += [place] * len(inner)
            parents += [call] * len(inner)
            nodes += self._inner_nodes(node, inner)
        columns.node.append(np.array(nodes, np.int32))
        columns.path.append(columns.path[-1][np.array(calls, np.int64)])
        columns.parent.append(np.array(parents, np.int64))
        return np.array(calls, np.int64)

    def _inner_ops(self, node: int, given: Sequence[int]) -> list[InnerOp] | None:
        """What a call hides, for the shapes of the tensors and variables it was given."""
        arguments = []
        for source, tensor in zip(self.nodes[node].inputs, given, strict=False):
            _, dtype, dims = self.outputs[self.columns.tensor_output[tensor]]
            variable = self._holders.get(source)
            if variable is None:
                arguments.append(Argument(dtype, dims))
            else:
                held = self.lifted.variables[variable]
                arguments.append(Argument(held.dtype, held.shape, is_variable=True))
        function = str(self.nodes[node].attributes.get("f") or self.nodes[node].attributes.get("function", ""))
        key = (function, tuple(arguments))
        if key not in self._expanded:
            self._expanded[key] = expand(function, self.library, arguments) if len(arguments) == len(self.nodes[node].inputs) else None
        return self._expanded[key]

    def _inner_nodes(self, node: int, inner: Sequence[InnerOp]) -> list[int]:
        """Rows of the nodes inside a call, which follow the executed graph's; a call's are added once."""
        if node not in self._inner_rows:
            first = len(self.nodes) + len(self.inner_nodes)
            self._inner_rows[node] = list(range(first, first + len(inner)))
            outer = self.nodes[node].inputs
            for op in inner:
                inputs = [outer[-1 - i] if i < 0 else (first + i, port) for i, port in op.inputs]
                self.inner_nodes.append((f"{self.nodes[node].name}/{op.name}", op, inputs, self.nodes[node].device))
        return self._inner_rows[node]

    def _add_paths(self, flow: Flow) -> IntColumn:
        """Append a flow's paths and frames; returns the row of each of its paths."""
        if not self.frame_names:
            self.frame_names = list(flow.frames)
            self.frame_parents = list(flow.frame_parents)
        for k, parent in enumerate(flow.frame_parents):
            self.frame_parents[k] = max(self.frame_parents[k], parent)
        for node, frame in enumerate(flow.node_frame):
            self.node_frame[node] = max(self.node_frame[node], frame)
        shift = len(self.paths) - 1
        for parent, frame, instance, iteration in flow.paths[1:]:
            self.paths.append((parent + shift if parent > 0 else 0, frame, instance, iteration))
        rows = np.arange(len(flow.paths)) + shift
        rows[0] = 0
        return rows

    # --- building ---------------------------------------------------------------------------------------------------------------

    def build(self, provenance: Mapping[str, Any]) -> Trace:
        """The trace of everything added."""
        frame_rows = self._add_frames()
        flat = flatten_source(self.lifted.graph_def)
        self._add_source_nodes(flat)
        self._add_graph(frame_rows, flat)
        self._add_interface()
        memory = self._memory()
        made: dict[str, Any] = self.builder_tables(memory.tensor_buffer) | {
            "buffers": memory.buffers,
            "allocations": memory.allocations,
        }
        paths = np.array(self.paths, np.int64).reshape(-1, 4)
        frame = np.array([*frame_rows, -1], np.int64)[paths[:, 1]]
        made["paths"] = t.Paths(parent=paths[:, 0], frame=frame, instance=paths[:, 2], iteration=paths[:, 3])
        return Trace(**made, provenance={**provenance, **self._losses()})

    def builder_tables(self, tensor_buffers: IntColumn) -> dict[str, Any]:
        """The builder's tables, with executions and tensors made from their columns."""
        columns, builder = self.columns, self.builder
        used, first, codes = np.unique(np.array(columns.tensor_output, np.int32), return_index=True, return_inverse=True)
        outputs = [self.outputs[number] for number in used.tolist()]
        for place in np.argsort(first).tolist():  # names and shapes are numbered as they appear
            builder.string(outputs[place][1])
            builder.shape(outputs[place][2])
        slots, dtypes, shapes, items = (
            np.array(values, np.int64)[codes]
            for values in (
                [slot for slot, _, _ in outputs],
                [builder.string(dtype) for _, dtype, _ in outputs],
                [builder.shape(dims) for _, _, dims in outputs],
                [ITEM_BYTES.get(dtype, 0) for _, dtype, _ in outputs],
            )
        )
        made: dict[str, Any] = builder.tables()
        elements = made["shapes"].elements[shapes]
        count = len(columns.input_counts)
        parent = _joined(columns.parent)
        made["executions"] = t.Executions(
            node=_joined(columns.node),
            path=_joined(columns.path),
            parent=parent,
            kind=np.where(parent >= 0, t.EXECUTION_EXPANDED, t.EXECUTION_OP),
            timed=parent < 0,
            input_offsets=offsets_of(columns.input_counts),
            input=np.array(columns.inputs, np.int32),
            control_offsets=offsets_of(columns.control_counts),
            control=np.array(columns.control, np.int32),
        )
        made["tensors"] = t.Tensors(
            execution=np.array(columns.tensor_execution, np.int32),
            port=slots,
            dtype=dtypes,
            shape=shapes,
            size_bytes=items * elements,
            element_shape=np.full(len(slots), -1),
            buffer=tensor_buffers,
        )
        made["structures"] = t.Structures(execution_offsets=np.array(self.bounds), execution=np.arange(count))
        return made

    def _losses(self) -> dict[str, Any]:
        return {
            "record_cap_reached": self.is_capped,
            "opaque_calls": sorted(self.unexpanded | self._partly | self._hiding)[:50],
            "unplaced_records": dict(sorted(self.unplaced.items())[:50]),
            "first_missing": next((s.first_missing for s in self.made if s.first_missing), ""),
        }

    def _add_frames(self) -> list[int]:
        """Add the loops, parents first; returns each loop's row."""
        rows = [-1] * len(self.frame_names)

        def add(k: int) -> int:
            if rows[k] < 0:
                parent = add(self.frame_parents[k]) if self.frame_parents[k] >= 0 else -1
                rows[k] = self.builder.add(
                    "frames", frame_name=self.builder.string(self.frame_names[k]), kind=t.FRAME_LOOP, parent=parent
                )
            return rows[k]

        for k in range(len(self.frame_names)):
            add(k)
        return rows

    def _add_source_nodes(self, flat: Sequence[SourceNode]) -> None:
        rows = {node.name: i for i, node in enumerate(flat)}
        for node in flat:
            inputs = [(rows[name], port) for name, port in node.inputs if name in rows]
            self.builder.add(
                "source_nodes",
                node_name=self.builder.string(node.name),
                op=self.builder.string(node.definition.op),
                attributes=self.builder.string(attributes_text(attributes(node.definition))),
                input_node=[n for n, _ in inputs],
                input_port=[p for _, p in inputs],
            )

    def _add_graph(self, frame_rows: Sequence[int], flat: Sequence[SourceNode]) -> None:
        """Add nodes, constants and variables."""
        variables = {v.name: i for i, v in enumerate(self.lifted.variables)}
        inner = [
            GraphNode(name, op.op, device, dict(op.attributes), op.definition, inputs) for name, op, inputs, device in self.inner_nodes
        ]
        reads, writes = variable_access([*self.nodes, *inner], self._handles)
        origins = came_from(self.nodes, flat)
        source_rows = {node.name: i for i, node in enumerate(flat)}
        for i, node in enumerate(self.nodes):
            self.builder.node(
                node.name,
                node.op,
                inputs=node.inputs,
                control=node.control,
                attributes=node.attributes,
                device=node.device,
                frame=frame_rows[self.node_frame[i]] if self.node_frame[i] >= 0 else -1,
                sources=origins[i],
                reads=reads[i],
                writes=writes[i],
            )
            if node.op == "Const":
                value = constant_value(node.definition)
                if value is not None:
                    self.builder.constant(i, value)
        for i, (name, op, inputs, device) in enumerate(self.inner_nodes, start=len(self.nodes)):
            source = source_rows.get(name)
            self.builder.node(
                name,
                op.op,
                inputs=inputs,
                attributes=op.attributes,
                device=device,
                sources=[source] if source is not None else [],
                reads=reads[i],
                writes=writes[i],
            )
            value = constant_value(op.definition) if op.op == "Const" else None
            if value is not None:
                self.builder.constant(i, value)
        for variable in self.lifted.variables:
            self.builder.variable(
                variable.name,
                variable.dtype,
                variable.shape,
                trainable=variable.trainable,
                slot_of=variables.get(variable.slot_of, -1),
                slot_name=variable.slot_name,
                node=self.node_index.get(variable.node_name, -1),
            )

    def _add_interface(self) -> None:
        found: dict[str, list[tuple[str, int]]] = {"_arg": [], "_retval": []}
        for i, node in enumerate(self.nodes):
            match = re.fullmatch(r"(_arg|_retval)_(.+)_(\d+)_\d+", node.name)
            if match and node.op in ("_Arg", "_Retval"):
                found[match.group(1)].append((f"{match.group(2)}:{match.group(3)}", i))
        feeds, fetches = dict(found["_arg"]), dict(found["_retval"])
        for name, tensor in self.lifted.feeds.items():
            if tensor.name in feeds:
                self.builder.interface(name, t.FEED, feeds[tensor.name], 0, self.roles.get(name, "input"))
        for name, (tensor, _) in self.lifted.captured.items():
            if tensor.name in feeds:
                self.builder.interface(name, t.FEED, feeds[tensor.name], 0, "state")
        for name, tensor in self.lifted.fetches.items():
            end = fetches.get(tensor.name)
            if end is not None:
                producer, port = self.nodes[end].inputs[0]
                self.builder.interface(name, t.FETCH, producer, port, self.roles.get(name, ""))

    def _memory(self) -> MemoryTables:
        """The memory step's buffers and allocations, and the buffer of each tensor."""
        tensor_buffer = np.full(len(self.columns.tensor_execution), -1, np.int32)
        if self.memory_step is None or self.memory_step[1].memory is None:
            return MemoryTables(tensor_buffer, t.Buffers.empty(), t.Allocations.empty())
        step, records = self.memory_step
        memory, pick = self.memory_step[1].memory, self._memory_pick
        base = self.bounds[self._memory_structure]
        offsets, outputs = taken(memory.output_offsets, pick)
        has_address = memory.address[outputs] != 0
        tensor = np.searchsorted(np.asarray(self.columns.tensor_execution), base) + np.flatnonzero(has_address)
        outputs, owner = outputs[has_address], owners(offsets)[has_address]
        address, size = memory.address[outputs], memory.size_bytes[outputs]
        buffer, first = numbered(address, size)
        tensor_buffer[tensor] = buffer
        origins = np.full(len(self.nodes), t.BUFFER_ALLOCATOR, np.uint8)
        for op, origin in (("_Arg", t.BUFFER_FEED), ("ReadVariableOp", t.BUFFER_VARIABLE)):
            origins[[i for i, node in enumerate(self.nodes) if node.op == op]] = origin
        buffers = t.Buffers(origin=origins[records.node[pick[owner[first]]]], address=address[first], size_bytes=size[first])
        offsets, changes = taken(memory.allocation_offsets, pick)
        execution, change = owners(offsets), memory.change_bytes[changes]
        both, made = numbered(np.concatenate([owner, execution]), np.concatenate([size, change]))
        output = made[both[len(owner) :]]  # the first output of the same execution that has the size; an allocation, if there is none
        order = np.argsort(memory.time[changes], kind="stable")
        allocations = t.Allocations(
            step=np.full(len(order), step, np.int32),
            execution=execution[order] + base,
            size_bytes=change[order],
            time=memory.time[changes][order],
            buffer=np.append(buffer, -1)[np.minimum(output, len(owner))][order],
        )
        return MemoryTables(tensor_buffer, buffers, allocations)


@dataclass(frozen=True)
class MemoryTables:
    """What is known of a step's memory; `tensor_buffer` is the buffer of each tensor, -1 where it is not known."""

    tensor_buffer: IntColumn
    buffers: t.Buffers
    allocations: t.Allocations


def _touched_variables(nodes: Sequence[GraphNode], handles: Mapping[int, int]) -> dict[int, list[tuple[int, bool]]]:
    """Per node that touches variables which some node writes: the variables, and whether it writes them."""
    reads, writes = variable_access(nodes, handles)
    written = {variable for node in writes for variable in node}
    touched = (
        [(v, v in wrote) for v in dict.fromkeys([*read, *wrote]) if v in written] for read, wrote in zip(reads, writes, strict=True)
    )
    return {node: found for node, found in enumerate(touched) if found}


class _OutputLists:
    """The output lists of a capture: where each begins, and the `number` and slot of its outputs."""

    def __init__(self, offsets: IntColumn, number: IntColumn, slot: IntColumn) -> None:
        self.offsets, self.number = offsets, number
        self._slots = int(slot.max(initial=0)) + 1
        keys = owners(offsets) * self._slots + slot
        self._order = np.argsort(keys)
        self._keys = keys[self._order]

    def place_of(self, lists: IntColumn, slot: IntColumn) -> IntColumn:
        """The place of a slot in a list, for each pair of them; -1 where the list does not have it."""
        if not len(self._keys):
            return np.full(len(lists), -1)
        key = lists.astype(np.int64) * self._slots + slot
        found = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        is_there = (self._keys[found] == key) & (slot >= 0) & (slot < self._slots)
        return np.where(is_there, self._order[found] - self.offsets[lists], -1)


class _Shown(Sequence[tuple[int, ...]]):
    """The output slots that each record shows."""

    def __init__(self, signatures: Signatures, records: StepRecords) -> None:
        self._slots = [tuple(slot for slot, _, _ in outputs) for outputs in signatures.values]
        self._signature = array("i", records.signature.astype(np.int32).tobytes())

    def __len__(self) -> int:
        return len(self._signature)

    def __getitem__(self, record: Any) -> Any:
        return self._slots[self._signature[record]]


def numbered(left: IntColumn, right: IntColumn) -> tuple[IntColumn, IntColumn]:
    """A number for each different pair, in the order in which they first appear: that of each row, and the first row of each number."""
    (_, lefts), (rights, places) = np.unique(left, return_inverse=True), np.unique(right, return_inverse=True)
    _, first, which = np.unique(lefts * len(rights) + places, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[which], first[order]


def _extend(column: array[int], values: IntColumn) -> None:
    column.frombytes(values.astype(np.int32).tobytes())


def execution_order(start: IntColumn, flow: Flow) -> IntColumn:
    """Records by start, with ties (and clock errors) settled by dependency: a topological order."""
    if not flow.inputs.any_later() and not flow.control.any_later():
        return np.arange(len(start))
    waiting = [0] * len(start)
    after: list[list[int]] = [[] for _ in range(len(start))]
    for record in range(len(start)):
        for producer in {p for p in (*flow.inputs.of(record), *flow.control.of(record)) if p >= 0}:
            after[producer].append(record)
            waiting[record] += 1
    ready = [(int(start[r]), r) for r, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, record = heapq.heappop(ready)
        order.append(record)
        for consumer in after[record]:
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                heapq.heappush(ready, (int(start[consumer]), consumer))
    return np.array(order, np.int64)


def lanes(start: IntColumn, done: IntColumn) -> IntColumn:
    """A worker for each execution such that none runs two at once: the one that became free last, else a new one."""
    by_start = np.lexsort((done, start))
    if len(start) < 2 or np.all(done[by_start][:-1] <= start[by_start][1:]):
        return np.zeros(len(start), np.int16)
    free: list[int] = []
    result = np.zeros(len(start), np.int16)
    for row in by_start.tolist():
        usable = [(until, lane) for lane, until in enumerate(free) if until <= start[row]]
        lane = max(usable)[1] if usable else len(free)
        if lane == len(free):
            free.append(0)
        free[lane] = int(done[row])
        result[row] = lane
    return result


def _joined(parts: Sequence[IntColumn]) -> IntColumn:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
