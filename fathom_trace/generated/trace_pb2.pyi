from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Record(_message.Message):
    __slots__ = ("marker", "provenance", "end", "strings", "shapes", "nodes", "source_nodes", "frames", "paths", "constants", "variables", "interface", "structures", "executions", "tensors", "steps", "step_times", "device_spans", "buffers", "allocations")
    MARKER_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NODES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    INTERFACE_FIELD_NUMBER: _ClassVar[int]
    STRUCTURES_FIELD_NUMBER: _ClassVar[int]
    EXECUTIONS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_SPANS_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    marker: Marker
    provenance: Provenance
    end: End
    strings: Strings
    shapes: Shapes
    nodes: Nodes
    source_nodes: SourceNodes
    frames: Frames
    paths: Paths
    constants: Constants
    variables: Variables
    interface: Interface
    structures: Structures
    executions: Executions
    tensors: Tensors
    steps: Steps
    step_times: StepTimes
    device_spans: DeviceSpans
    buffers: Buffers
    allocations: Allocations
    def __init__(self, marker: _Optional[_Union[Marker, _Mapping]] = ..., provenance: _Optional[_Union[Provenance, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., strings: _Optional[_Union[Strings, _Mapping]] = ..., shapes: _Optional[_Union[Shapes, _Mapping]] = ..., nodes: _Optional[_Union[Nodes, _Mapping]] = ..., source_nodes: _Optional[_Union[SourceNodes, _Mapping]] = ..., frames: _Optional[_Union[Frames, _Mapping]] = ..., paths: _Optional[_Union[Paths, _Mapping]] = ..., constants: _Optional[_Union[Constants, _Mapping]] = ..., variables: _Optional[_Union[Variables, _Mapping]] = ..., interface: _Optional[_Union[Interface, _Mapping]] = ..., structures: _Optional[_Union[Structures, _Mapping]] = ..., executions: _Optional[_Union[Executions, _Mapping]] = ..., tensors: _Optional[_Union[Tensors, _Mapping]] = ..., steps: _Optional[_Union[Steps, _Mapping]] = ..., step_times: _Optional[_Union[StepTimes, _Mapping]] = ..., device_spans: _Optional[_Union[DeviceSpans, _Mapping]] = ..., buffers: _Optional[_Union[Buffers, _Mapping]] = ..., allocations: _Optional[_Union[Allocations, _Mapping]] = ...) -> None: ...

class Marker(_message.Message):
    __slots__ = ("format", "version")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    format: str
    version: int
    def __init__(self, format: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("size_bytes", "crc32")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    crc32: int
    def __init__(self, size_bytes: _Optional[int] = ..., crc32: _Optional[int] = ...) -> None: ...

class Provenance(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    def __init__(self, json: _Optional[bytes] = ...) -> None: ...

class Strings(_message.Message):
    __slots__ = ("text_counts", "text")
    TEXT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text_counts: _containers.RepeatedScalarFieldContainer[int]
    text: bytes
    def __init__(self, text_counts: _Optional[_Iterable[int]] = ..., text: _Optional[bytes] = ...) -> None: ...

class Shapes(_message.Message):
    __slots__ = ("dims_counts", "dims")
    DIMS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    dims_counts: _containers.RepeatedScalarFieldContainer[int]
    dims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dims_counts: _Optional[_Iterable[int]] = ..., dims: _Optional[_Iterable[int]] = ...) -> None: ...

class Nodes(_message.Message):
    __slots__ = ("node_name", "op", "device", "attributes", "frame", "input_counts", "input_node", "input_port", "source_counts", "source", "read_counts", "read", "write_counts", "write")
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_NODE_FIELD_NUMBER: _ClassVar[int]
    INPUT_PORT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    READ_COUNTS_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    WRITE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    node_name: _containers.RepeatedScalarFieldContainer[int]
    op: _containers.RepeatedScalarFieldContainer[int]
    device: _containers.RepeatedScalarFieldContainer[int]
    attributes: _containers.RepeatedScalarFieldContainer[int]
    frame: _containers.RepeatedScalarFieldContainer[int]
    input_counts: _containers.RepeatedScalarFieldContainer[int]
    input_node: _containers.RepeatedScalarFieldContainer[int]
    input_port: _containers.RepeatedScalarFieldContainer[int]
    source_counts: _containers.RepeatedScalarFieldContainer[int]
    source: _containers.RepeatedScalarFieldContainer[int]
    read_counts: _containers.RepeatedScalarFieldContainer[int]
    read: _containers.RepeatedScalarFieldContainer[int]
    write_counts: _containers.RepeatedScalarFieldContainer[int]
    write: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, node_name: _Optional[_Iterable[int]] = ..., op: _Optional[_Iterable[int]] = ..., device: _Optional[_Iterable[int]] = ..., attributes: _Optional[_Iterable[int]] = ..., frame: _Optional[_Iterable[int]] = ..., input_counts: _Optional[_Iterable[int]] = ..., input_node: _Optional[_Iterable[int]] = ..., input_port: _Optional[_Iterable[int]] = ..., source_counts: _Optional[_Iterable[int]] = ..., source: _Optional[_Iterable[int]] = ..., read_counts: _Optional[_Iterable[int]] = ..., read: _Optional[_Iterable[int]] = ..., write_counts: _Optional[_Iterable[int]] = ..., write: _Optional[_Iterable[int]] = ...) -> None: ...

class SourceNodes(_message.Message):
    __slots__ = ("node_name", "op", "attributes", "input_counts", "input_node", "input_port")
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    INPUT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_NODE_FIELD_NUMBER: _ClassVar[int]
    INPUT_PORT_FIELD_NUMBER: _ClassVar[int]
    node_name: _containers.RepeatedScalarFieldContainer[int]
    op: _containers.RepeatedScalarFieldContainer[int]
    attributes: _containers.RepeatedScalarFieldContainer[int]
    input_counts: _containers.RepeatedScalarFieldContainer[int]
    input_node: _containers.RepeatedScalarFieldContainer[int]
    input_port: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, node_name: _Optional[_Iterable[int]] = ..., op: _Optional[_Iterable[int]] = ..., attributes: _Optional[_Iterable[int]] = ..., input_counts: _Optional[_Iterable[int]] = ..., input_node: _Optional[_Iterable[int]] = ..., input_port: _Optional[_Iterable[int]] = ...) -> None: ...

class Frames(_message.Message):
    __slots__ = ("frame_name", "kind", "parent")
    FRAME_NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    frame_name: _containers.RepeatedScalarFieldContainer[int]
    kind: _containers.RepeatedScalarFieldContainer[int]
    parent: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, frame_name: _Optional[_Iterable[int]] = ..., kind: _Optional[_Iterable[int]] = ..., parent: _Optional[_Iterable[int]] = ...) -> None: ...

class Paths(_message.Message):
    __slots__ = ("parent", "frame", "instance", "iteration")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    parent: _containers.RepeatedScalarFieldContainer[int]
    frame: _containers.RepeatedScalarFieldContainer[int]
    instance: _containers.RepeatedScalarFieldContainer[int]
    iteration: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, parent: _Optional[_Iterable[int]] = ..., frame: _Optional[_Iterable[int]] = ..., instance: _Optional[_Iterable[int]] = ..., iteration: _Optional[_Iterable[int]] = ...) -> None: ...

class Constants(_message.Message):
    __slots__ = ("node", "dtype", "shape", "size_bytes", "digest", "value_counts", "value")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    VALUE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    node: _containers.RepeatedScalarFieldContainer[int]
    dtype: _containers.RepeatedScalarFieldContainer[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    digest: _containers.RepeatedScalarFieldContainer[int]
    value_counts: _containers.RepeatedScalarFieldContainer[int]
    value: bytes
    def __init__(self, node: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Iterable[int]] = ..., shape: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[_Iterable[int]] = ..., digest: _Optional[_Iterable[int]] = ..., value_counts: _Optional[_Iterable[int]] = ..., value: _Optional[bytes] = ...) -> None: ...

class Variables(_message.Message):
    __slots__ = ("variable_name", "dtype", "shape", "size_bytes", "trainable", "slot_of", "slot_name", "node", "buffer")
    VARIABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_FIELD_NUMBER: _ClassVar[int]
    SLOT_OF_FIELD_NUMBER: _ClassVar[int]
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    variable_name: _containers.RepeatedScalarFieldContainer[int]
    dtype: _containers.RepeatedScalarFieldContainer[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    trainable: _containers.RepeatedScalarFieldContainer[bool]
    slot_of: _containers.RepeatedScalarFieldContainer[int]
    slot_name: _containers.RepeatedScalarFieldContainer[int]
    node: _containers.RepeatedScalarFieldContainer[int]
    buffer: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, variable_name: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Iterable[int]] = ..., shape: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[_Iterable[int]] = ..., trainable: _Optional[_Iterable[bool]] = ..., slot_of: _Optional[_Iterable[int]] = ..., slot_name: _Optional[_Iterable[int]] = ..., node: _Optional[_Iterable[int]] = ..., buffer: _Optional[_Iterable[int]] = ...) -> None: ...

class Interface(_message.Message):
    __slots__ = ("user_name", "role", "direction", "node", "port")
    USER_NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    user_name: _containers.RepeatedScalarFieldContainer[int]
    role: _containers.RepeatedScalarFieldContainer[int]
    direction: _containers.RepeatedScalarFieldContainer[int]
    node: _containers.RepeatedScalarFieldContainer[int]
    port: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, user_name: _Optional[_Iterable[int]] = ..., role: _Optional[_Iterable[int]] = ..., direction: _Optional[_Iterable[int]] = ..., node: _Optional[_Iterable[int]] = ..., port: _Optional[_Iterable[int]] = ...) -> None: ...

class Structures(_message.Message):
    __slots__ = ("execution_counts", "execution")
    EXECUTION_COUNTS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    execution_counts: _containers.RepeatedScalarFieldContainer[int]
    execution: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, execution_counts: _Optional[_Iterable[int]] = ..., execution: _Optional[_Iterable[int]] = ...) -> None: ...

class Executions(_message.Message):
    __slots__ = ("node", "path", "parent", "kind", "timed", "input_counts", "input", "control_counts", "control")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TIMED_FIELD_NUMBER: _ClassVar[int]
    INPUT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    CONTROL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    node: _containers.RepeatedScalarFieldContainer[int]
    path: _containers.RepeatedScalarFieldContainer[int]
    parent: _containers.RepeatedScalarFieldContainer[int]
    kind: _containers.RepeatedScalarFieldContainer[int]
    timed: _containers.RepeatedScalarFieldContainer[bool]
    input_counts: _containers.RepeatedScalarFieldContainer[int]
    input: _containers.RepeatedScalarFieldContainer[int]
    control_counts: _containers.RepeatedScalarFieldContainer[int]
    control: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, node: _Optional[_Iterable[int]] = ..., path: _Optional[_Iterable[int]] = ..., parent: _Optional[_Iterable[int]] = ..., kind: _Optional[_Iterable[int]] = ..., timed: _Optional[_Iterable[bool]] = ..., input_counts: _Optional[_Iterable[int]] = ..., input: _Optional[_Iterable[int]] = ..., control_counts: _Optional[_Iterable[int]] = ..., control: _Optional[_Iterable[int]] = ...) -> None: ...

class Tensors(_message.Message):
    __slots__ = ("execution", "port", "dtype", "shape", "size_bytes", "element_shape", "buffer")
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_SHAPE_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    execution: _containers.RepeatedScalarFieldContainer[int]
    port: _containers.RepeatedScalarFieldContainer[int]
    dtype: _containers.RepeatedScalarFieldContainer[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    element_shape: _containers.RepeatedScalarFieldContainer[int]
    buffer: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, execution: _Optional[_Iterable[int]] = ..., port: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Iterable[int]] = ..., shape: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[_Iterable[int]] = ..., element_shape: _Optional[_Iterable[int]] = ..., buffer: _Optional[_Iterable[int]] = ...) -> None: ...

class Steps(_message.Message):
    __slots__ = ("structure", "traced", "client_wall_ns", "span_ns", "origin_ns", "input_preparation_ns", "input_preparation_bytes", "synthetic_input", "recorded", "produced", "complete")
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    TRACED_FIELD_NUMBER: _ClassVar[int]
    CLIENT_WALL_NS_FIELD_NUMBER: _ClassVar[int]
    SPAN_NS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_NS_FIELD_NUMBER: _ClassVar[int]
    INPUT_PREPARATION_NS_FIELD_NUMBER: _ClassVar[int]
    INPUT_PREPARATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    SYNTHETIC_INPUT_FIELD_NUMBER: _ClassVar[int]
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    structure: _containers.RepeatedScalarFieldContainer[int]
    traced: _containers.RepeatedScalarFieldContainer[bool]
    client_wall_ns: _containers.RepeatedScalarFieldContainer[int]
    span_ns: _containers.RepeatedScalarFieldContainer[int]
    origin_ns: _containers.RepeatedScalarFieldContainer[int]
    input_preparation_ns: _containers.RepeatedScalarFieldContainer[int]
    input_preparation_bytes: _containers.RepeatedScalarFieldContainer[int]
    synthetic_input: _containers.RepeatedScalarFieldContainer[bool]
    recorded: _containers.RepeatedScalarFieldContainer[int]
    produced: _containers.RepeatedScalarFieldContainer[int]
    complete: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, structure: _Optional[_Iterable[int]] = ..., traced: _Optional[_Iterable[bool]] = ..., client_wall_ns: _Optional[_Iterable[int]] = ..., span_ns: _Optional[_Iterable[int]] = ..., origin_ns: _Optional[_Iterable[int]] = ..., input_preparation_ns: _Optional[_Iterable[int]] = ..., input_preparation_bytes: _Optional[_Iterable[int]] = ..., synthetic_input: _Optional[_Iterable[bool]] = ..., recorded: _Optional[_Iterable[int]] = ..., produced: _Optional[_Iterable[int]] = ..., complete: _Optional[_Iterable[bool]] = ...) -> None: ...

class StepTimes(_message.Message):
    __slots__ = ("scheduled", "start", "end", "done", "lane", "valid")
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    scheduled: _containers.RepeatedScalarFieldContainer[int]
    start: _containers.RepeatedScalarFieldContainer[int]
    end: _containers.RepeatedScalarFieldContainer[int]
    done: _containers.RepeatedScalarFieldContainer[int]
    lane: _containers.RepeatedScalarFieldContainer[int]
    valid: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, scheduled: _Optional[_Iterable[int]] = ..., start: _Optional[_Iterable[int]] = ..., end: _Optional[_Iterable[int]] = ..., done: _Optional[_Iterable[int]] = ..., lane: _Optional[_Iterable[int]] = ..., valid: _Optional[_Iterable[bool]] = ...) -> None: ...

class DeviceSpans(_message.Message):
    __slots__ = ("step", "execution", "span_name", "stream", "kind", "start", "end", "size_bytes")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    SPAN_NAME_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    step: _containers.RepeatedScalarFieldContainer[int]
    execution: _containers.RepeatedScalarFieldContainer[int]
    span_name: _containers.RepeatedScalarFieldContainer[int]
    stream: _containers.RepeatedScalarFieldContainer[int]
    kind: _containers.RepeatedScalarFieldContainer[int]
    start: _containers.RepeatedScalarFieldContainer[int]
    end: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, step: _Optional[_Iterable[int]] = ..., execution: _Optional[_Iterable[int]] = ..., span_name: _Optional[_Iterable[int]] = ..., stream: _Optional[_Iterable[int]] = ..., kind: _Optional[_Iterable[int]] = ..., start: _Optional[_Iterable[int]] = ..., end: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class Buffers(_message.Message):
    __slots__ = ("origin", "address", "size_bytes")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    origin: _containers.RepeatedScalarFieldContainer[int]
    address: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, origin: _Optional[_Iterable[int]] = ..., address: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class Allocations(_message.Message):
    __slots__ = ("step", "execution", "size_bytes", "time", "buffer")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    step: _containers.RepeatedScalarFieldContainer[int]
    execution: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    time: _containers.RepeatedScalarFieldContainer[int]
    buffer: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, step: _Optional[_Iterable[int]] = ..., execution: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[_Iterable[int]] = ..., time: _Optional[_Iterable[int]] = ..., buffer: _Optional[_Iterable[int]] = ...) -> None: ...
