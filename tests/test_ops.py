"""Is every op type what TensorFlow's documentation says it is, and nothing guessed?"""

from __future__ import annotations

import pytest

from fathom_trace import ops


@pytest.mark.parametrize(
    ("op_type", "kind"),
    [
        ("Conv2D", "conv"),
        ("_FusedConv2D", "conv"),
        ("_MklConv2D", "conv"),
        ("_MklNativeFusedConv2D", "conv"),
        ("_MklNativeConv2DWithBias", "conv"),
        ("DepthwiseConv2dNative", "conv"),
        ("Conv2DBackpropFilter", "conv_filter_grad"),
        ("_MklNativeConv2DBackpropFilter", "conv_filter_grad"),
        ("Conv2DBackpropInput", "conv_input_grad"),
        ("MatMul", "gemm"),
        ("_MklMatMul", "gemm"),
        ("_FusedMatMul", "gemm"),
        ("_MklNativeFusedMatMul", "gemm"),
        ("BatchMatMulV3", "batched_gemm"),
        ("Einsum", "batched_gemm"),
        ("_MklEinsum", "batched_gemm"),
        ("AddV2", "elementwise"),
        ("_MklSwish", "elementwise"),
        ("BiasAddGrad", "reduction"),
        ("_MklNativeFusedBatchNormGradV3", "normalization"),
        ("LRN", "normalization"),
        ("MaxPoolGrad", "pooling"),
        ("SparseSoftmaxCrossEntropyWithLogits", "softmax"),
        ("ResourceGather", "embedding"),
        ("BlockLSTMV2", "recurrent"),
        ("CTCLoss", "ctc"),
        ("StatelessTruncatedNormalV2", "random"),
        ("ResourceApplyMomentum", "optimizer"),
        ("ResourceSparseApplyAdagradV2", "optimizer"),
        ("ReadVariableOp", "variable"),
        ("TensorListStack", "data_movement"),
        ("Const", "data_movement"),
        ("Merge", "control"),
        ("_SOURCE", "control"),
        ("_Retval", "control"),
        ("StatefulPartitionedCall", "opaque"),
        ("MatrixInverse", "unknown"),
        ("MyConv2D", "unknown"),
        ("Conv2DPlus", "unknown"),
        ("LayerNorm", "unknown"),
        ("", "unknown"),
    ],
)
def test_kind(op_type: str, kind: str) -> None:
    assert ops.kind(op_type) == kind


def test_the_kinds_are_those_of_the_design() -> None:
    listed = (
        "conv conv_filter_grad conv_input_grad gemm batched_gemm elementwise reduction normalization pooling softmax embedding recurrent"
        " ctc random optimizer variable data_movement control opaque unknown"
    )
    assert set(ops.ALL_KINDS) == set(listed.split())


def test_no_op_type_is_listed_twice() -> None:
    listed = [op for kind in ops.KINDS for op in ops.op_types(kind)]
    assert len(listed) == len(set(listed)) > 700


@pytest.mark.parametrize(
    ("op_type", "name"),
    [
        ("ResourceApplyMomentum", "ApplyMomentum"),
        ("ResourceApplyAdam", "ApplyAdam"),
        ("RealDiv", "Div"),
        ("ConcatV2", "Concat"),
        ("BatchMatMulV2", "BatchMatMul"),
        ("SelectV2", "Select"),
        ("RandomStandardNormal", "RandomNormal"),
        ("AddN", "Add"),
        ("BiasAdd", "Add"),
        ("AddV2", "Add"),
        ("SoftmaxCrossEntropyWithLogits", "CrossEntropy"),
        ("Conv2D", "Conv2D"),
        ("ResourceGather", "ResourceGather"),
        ("_MklNativeConv2D", "Conv2D"),
    ],
)
def test_name_in_the_paper(op_type: str, name: str) -> None:
    assert ops.paper_name(op_type) == name


@pytest.mark.parametrize(
    ("op_type", "group"),
    [
        ("Mul", "A"),
        ("BiasAdd", "A"),
        ("MatMul", "B"),
        ("BatchMatMulV2", "B"),
        ("Sum", "C"),
        ("Tile", "C"),
        ("BroadcastTo", "C"),
        ("Conv2DBackpropFilter", "D"),
        ("RandomStandardNormal", "E"),
        ("ResourceApplyRMSProp", "F"),
        ("Transpose", "G"),
        ("Switch", ""),
        ("StatefulPartitionedCall", ""),
        ("MatrixInverse", ""),
    ],
)
def test_group_of_the_paper(op_type: str, group: str) -> None:
    assert ops.group(op_type) == group


def test_every_kind_has_a_group_but_the_three_that_the_paper_lacks() -> None:
    without = {kind for kind in ops.KINDS if not ops.group(ops.op_types(kind)[0])}
    assert without == {"control", "opaque"}


def test_plumbing_is_what_only_steers() -> None:
    steering = ("Enter", "Merge", "Switch", "LoopCond", "NextIteration", "Exit", "NoOp", "_Arg", "_Retval", "_SOURCE")
    assert all(ops.is_plumbing(op) for op in steering)
    assert not any(ops.is_plumbing(op) for op in ("Identity", "Const", "MatMul", "Less", "ReadVariableOp"))


@pytest.mark.capture
def test_every_listed_op_type_exists_in_tensorflow() -> None:
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.client import pywrap_tf_session

    registered = op_def_pb2.OpList()
    registered.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    names = {op.name for op in registered.op}
    listed = {op for kind in ops.KINDS for op in ops.op_types(kind)}
    # The executor's own two nodes have names but no registered type.
    assert listed - names == {"_SOURCE", "_SINK"}
    spelled = {name for name in names if name.startswith("_Mkl")}
    assert len(spelled) > 80
    assert {name for name in spelled if ops.kind(name) == "unknown"} == set()
