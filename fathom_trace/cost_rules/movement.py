"""Declared data movement: no operations, but bytes. What hands a tensor on without touching it (`Identity`, `Reshape`, reading a variable,
loop and branch plumbing, keeping a tensor in a list) moves nothing: its bytes are counted where they are written and read. A constant
exists before the step.
"""

from __future__ import annotations

from fathom_trace.cost_rules.call import (
    ALIAS,
    GENERATED,
    INPUT,
    LIST,
    TENSORS,
    VARIABLE,
    Call,
    Part,
    Rule,
    Traffic,
    none,
    nothing,
    rule,
    selected,
    whole_inputs,
    whole_outputs,
)
from fathom_trace.ops import op_types


def _moves(ops: str, source: str, traffic: Traffic) -> Rule:
    return rule(ops, "0", none, source, traffic)


def _adds(ops: str, position: int, text: str) -> Rule:
    """Rows added (or the like) at indices: one operation per element of the updates, at input `position`."""
    return rule(ops, "elements of the updates", lambda c: c.read_elements(position), text, TENSORS)


def _updates(ops: str, per_element: int, text: str) -> Rule:
    """Rows of a variable changed in place; inputs are (resource, indices, updates)."""

    def operations(call: Call) -> int:
        return per_element * call.read_elements(2)

    traffic = Traffic(
        "the inputs, and the rows that change if their old values count + the rows",
        lambda c: [*whole_inputs(c), Part(VARIABLE, 0, per_element * c.inputs[2].size_bytes)],
        lambda c: [Part(VARIABLE, 0, c.inputs[2].size_bytes)],
    )
    return rule(ops, "elements of the updates" if per_element else "0", operations, text, traffic)


_SLICE_OF_INPUT_0 = selected(0)
_LISTED = Traffic("the elements as they are stacked + each output once", lambda c: [Part(LIST, 0, c.output_bytes)], whole_outputs)
_TO_LIST = Traffic(
    "the tensor + as much, in the list's elements",
    lambda c: [Part(INPUT, 0, c.inputs[0].size_bytes)],
    lambda c: [Part(LIST, 0, c.inputs[0].size_bytes)],
)

RULES = (
    _moves(" ".join(op for op in op_types("control") if op not in ("Assert", "Abort", "RefSelect")), "only steers execution", ALIAS),
    _moves(
        """
        Identity IdentityN RefIdentity StopGradient PreventGradient EnsureShape Snapshot Reshape Squeeze ExpandDims Bitcast
        QuantizedReshape GuaranteeConst Relayout RelayoutLike
        """,
        "the output shares the input's memory", ALIAS,
    ),
    _moves("Assert", "the condition is tested", TENSORS),
    _moves("Const HostConst ImmutableConst _EagerConst", "its value exists before the step", ALIAS),
    _moves(
        """
        VarHandleOp _VarHandlesOp VarIsInitializedOp IsVariableInitialized DestroyResourceOp DisableCopyOnRead Variable VariableV2
        """,
        "a handle", ALIAS,
    ),
    _moves("ReadVariableOp _ReadVariablesOp", "the variable's memory is handed on; its readers read it", ALIAS),
    _moves("AssignVariableOp", "the variable takes over the value's memory, which its producer wrote", ALIAS),
    _moves(
        """
        TensorListReserve EmptyTensorList TensorListSetItem TensorListGetItem TensorListPushBack TensorListPopBack TensorListResize
        TensorListLength TensorListElementShape TensorListConcatLists StackV2 Stack StackPushV2 StackPush StackPopV2 StackPop StackCloseV2
        StackClose TensorArrayV3 TensorArrayWriteV3 TensorArrayReadV3 TensorArraySizeV3 TensorArrayGradV3 TensorArrayGradWithShape
        TensorArrayCloseV3
        """,
        "the list keeps or gives back a tensor, not a copy", ALIAS,
    ),
    _moves("TensorListStack TensorListGather TensorListConcat TensorListConcatV2 TensorArrayGatherV3 TensorArrayConcatV3",
           "the list's elements are copied into one tensor", _LISTED),
    _moves("TensorListFromTensor TensorListSplit TensorListScatter TensorListScatterV2", "the tensor is copied into elements", _TO_LIST),
    _moves("Shape ShapeN Size Rank VariableShape", "made from the shape", GENERATED),
    _moves("Fill ZerosLike OnesLike Range", "written without reading values", GENERATED),
    _moves("Empty", "memory, filled with zeros if `init`",
           Traffic("0 + the output, if `init`", nothing, lambda c: whole_outputs(c) if c.flag("init") else [])),
    _moves(
        """
        Slice StridedSlice Gather GatherNd GatherV2 ResourceGather ResourceGatherNd
        """,
        "the selected elements are copied", _SLICE_OF_INPUT_0,
    ),
    _moves(
        """
        BatchToSpace BatchToSpaceND BroadcastArgs BroadcastGradientArgs BroadcastTo ComputeAccidentalHits Concat ConcatOffset ConcatV2
        ConjugateTranspose Copy CopyHost CopyOp DataFormatDimMap DataFormatVecPermute DeepCopy DepthToSpace Diag DiagPart
        DynamicPartition DynamicStitch ExtractImagePatches ExtractVolumePatches InvertPermutation ListDiff MatrixBandPart MatrixDiag
        MatrixDiagV2 MatrixDiagV3 MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MirrorPad
        OneHot Pack Pad PadV2 ParallelConcat ParallelDynamicStitch ResizeNearestNeighbor Reverse ReverseSequence ReverseV2 Roll SpaceToBatch
        SpaceToBatchND SpaceToDepth SparseConcat SparseReorder SparseReshape SparseSlice SparseToDense Split SplitV StridedSliceGrad Tile
        TensorScatterUpdate Transpose Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Unpack UnravelIndex Where
        Send Recv _Send _Recv _HostSend _HostRecv _CopyFromGpuToHost _CopyFromHostToGpu
        """,
        "elements are copied or rearranged", TENSORS,
    ),
    _adds("ScatterNd", 1, "updates of one place are added up"),
    _adds("TensorScatterAdd TensorScatterSub TensorScatterMax TensorScatterMin", 2,
          "one operation per updated element; the rest is copied"),
    rule("ResizeNearestNeighborGrad MirrorPadGrad TileGrad", "m", lambda c: c.read_elements(), "gradients of copies are added up"),
    _updates("ResourceScatterUpdate ResourceScatterNdUpdate", 0, "rows are overwritten"),
    _updates("ResourceScatterAdd ResourceScatterSub ResourceScatterMul ResourceScatterDiv ResourceScatterMax ResourceScatterMin"
             " ResourceScatterNdAdd ResourceScatterNdSub ResourceScatterNdMax ResourceScatterNdMin",
             1, "one operation per updated element"),
)  # fmt: skip
