"""What an op *is*: the canonical kind of a TensorFlow op type, whatever the type is called.

One table, `KINDS`, lists every op type that is known, by kind. An op type that is not listed is `unknown`; nothing is guessed from
how a name looks. The only rewriting is of spellings that TensorFlow itself derives mechanically: oneDNN's `_Mkl`, `_MklNative` and
`_MklEager` prefixes (`canonical`).

The groups A to G are those in which the Fathom paper draws its heat map (Adolf et al., "Fathom: Reference Workloads for Modern Deep
Learning Methods", IISWC 2016, figure 3); which op types form a group beyond those that the paper names is decided here, by kind.
"""

from __future__ import annotations

import re
from functools import cache

KINDS: dict[str, str] = {
    "conv": """
        Conv Conv2D Conv3D DepthwiseConv2dNative FusedPadConv2D FusedResizeAndPadConv2D
        _FusedConv2D _FusedConv3D _FusedDepthwiseConv2dNative _FusedQuantizedConv2D _FusedQuantizedDepthwiseConv2D
        _MklConv2DWithBias _MklPadWithConv2D _MklPadWithFusedConv2D
        QuantizedConv2D QuantizedConv2DPerChannel QuantizedConv2DAndRelu QuantizedConv2DAndReluAndRequantize
        QuantizedConv2DAndRequantize QuantizedConv2DWithBias QuantizedConv2DWithBiasAndRelu
        QuantizedConv2DWithBiasAndReluAndRequantize QuantizedConv2DWithBiasAndRequantize QuantizedConv2DWithBiasSumAndRelu
        QuantizedConv2DWithBiasSumAndReluAndRequantize QuantizedConv2DWithBiasSignedSumAndReluAndRequantize
        QuantizedDepthwiseConv2D QuantizedDepthwiseConv2DWithBias QuantizedDepthwiseConv2DWithBiasAndRelu
        QuantizedDepthwiseConv2DWithBiasAndReluAndRequantize UniformQuantizedConvolution UniformQuantizedConvolutionHybrid
    """,
    "conv_filter_grad": """
        Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv3DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter
        _MklConv2DBackpropFilterWithBias
    """,
    "conv_input_grad": """
        Conv2DBackpropInput Conv2DBackpropInputV2 Conv3DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput
    """,
    "gemm": """
        MatMul _FusedMatMul SparseMatMul SparseTensorDenseMatMul SparseMatrixMatMul SparseMatrixSparseMatMul
        QuantizedMatMul QuantizedMatMulWithBias QuantizedMatMulWithBiasAndDequantize QuantizedMatMulWithBiasAndRelu
        QuantizedMatMulWithBiasAndReluAndRequantize QuantizedMatMulWithBiasAndRequantize _QuantizedMatMul
        UniformQuantizedDot UniformQuantizedDotHybrid
    """,
    "batched_gemm": "BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum _MklFusedBatchMatMulV2",
    "elementwise": """
        Abs AccumulateNV2 Acos Acosh Add AddN AddV2 AdjustContrastv2 AdjustHue AdjustSaturation Angle ApproximateEqual Asin Asinh
        Atan Atan2 Atanh BesselI0 BesselI0e BesselI1 BesselI1e BiasAdd BiasAddV1 BitwiseAnd BitwiseOr BitwiseXor Bucketize Cast Ceil
        CheckNumerics CheckNumericsV2 ClipByValue Complex ComplexAbs Conj Cos Cosh Cross Dawsn Dequantize Digamma Div DivNoNan Elu
        EluGrad Equal Erf Erfc Erfinv Exp Expint Expm1 FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient
        FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel
        FakeQuantWithMinMaxVarsPerChannelGradient Floor FloorDiv FloorMod FresnelCos FresnelSin Greater GreaterEqual
        HSVToRGB Igamma IgammaGradA Igammac Imag InplaceAdd InplaceSub Inv InvGrad Invert IsFinite IsInf IsNan LeakyRelu
        LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan
        Ndtri Neg NextAfter NotEqual Polygamma PopulationCount Pow QuantizeAndDequantize QuantizeAndDequantizeV2
        QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 QuantizeAndDequantizeV4Grad QuantizeDownAndShrinkRange QuantizeV2
        QuantizedAdd QuantizedBiasAdd QuantizedMul QuantizedRelu QuantizedRelu6 QuantizedReluX RGBToHSV Real RealDiv Reciprocal
        ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Requantize RequantizePerChannel ResizeArea ResizeBicubic ResizeBicubicGrad
        ResizeBilinear ResizeBilinearGrad CropAndResize CropAndResizeGradBoxes CropAndResizeGradImage ScaleAndTranslate
        ScaleAndTranslateGrad ImageProjectiveTransformV2 ImageProjectiveTransformV3 RightShift Rint Round Rsqrt RsqrtGrad Select
        SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Softplus SoftplusGrad Softsign SoftsignGrad SparseDenseCwiseAdd
        SparseDenseCwiseDiv SparseDenseCwiseMul SparseTensorDenseAdd Spence Sqrt SqrtGrad Square SquaredDifference
        StochasticCastToInt Sub Tan Tanh TanhGrad ToBool TruncateDiv TruncateMod UniformQuantizedAdd
        UniformQuantizedClipByValue Xdivy Xlog1py Xlogy Zeta _HostCast _MklFusedMish _MklSwish _UnaryOpsComposition
    """,
    "reduction": """
        All Any ApproxTopK ArgMax ArgMin BiasAddGrad Bincount CumulativeLogsumexp Cumprod Cumsum DenseBincount EuclideanNorm
        HistogramFixedWidth InTopK InTopKV2 L2Loss Max Mean Min NthElement Prod RaggedBincount RequantizationRange
        RequantizationRangePerChannel SegmentMax SegmentMaxV2 SegmentMean SegmentMin SegmentMinV2 SegmentProd SegmentProdV2
        SegmentSum SegmentSumV2 SparseBincount SparseReduceMax SparseReduceMaxSparse SparseReduceSum SparseReduceSumSparse
        SparseSegmentMean SparseSegmentMeanGrad SparseSegmentMeanGradV2 SparseSegmentMeanWithNumSegments SparseSegmentSqrtN
        SparseSegmentSqrtNGrad SparseSegmentSqrtNGradV2 SparseSegmentSqrtNWithNumSegments SparseSegmentSum SparseSegmentSumGrad
        SparseSegmentSumGradV2 SparseSegmentSumWithNumSegments Sum TopK TopKUnique TopKV2 TopKWithUnique UnsortedSegmentMax
        UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum
    """,
    "normalization": """
        BatchNormWithGlobalNormalization BatchNormWithGlobalNormalizationGrad FusedBatchNorm FusedBatchNormGrad
        FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3 LRN LRNGrad
        QuantizedBatchNormWithGlobalNormalization QuantizedInstanceNorm _FusedBatchNormEx _FusedBatchNormGradEx _MklFusedInstanceNorm
        _MklLayerNorm
    """,
    "pooling": """
        AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad Dilation2D Dilation2DBackpropFilter Dilation2DBackpropInput FractionalAvgPool
        FractionalAvgPoolGrad FractionalMaxPool FractionalMaxPoolGrad MaxPool MaxPool3D MaxPool3DGrad MaxPool3DGradGrad
        MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradGradWithArgmax MaxPoolGradV2 MaxPoolGradWithArgmax MaxPoolV2
        MaxPoolWithArgmax QuantizedAvgPool QuantizedMaxPool _QuantizedMaxPool3D
    """,
    "softmax": """
        LogSoftmax Softmax SoftmaxCrossEntropyWithLogits SparseMatrixSoftmax SparseMatrixSoftmaxGrad SparseSoftmax
        SparseSoftmaxCrossEntropyWithLogits
    """,
    "embedding": "Gather GatherNd GatherV2 RaggedGather ResourceGather ResourceGatherNd",
    "recurrent": """
        BlockLSTM BlockLSTMGrad BlockLSTMGradV2 BlockLSTMV2 CudnnRNN CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3
        CudnnRNNV2 CudnnRNNV3 GRUBlockCell GRUBlockCellGrad LSTMBlockCell LSTMBlockCellGrad
    """,
    "ctc": "CTCBeamSearchDecoder CTCGreedyDecoder CTCLoss CTCLossV2",
    "random": """
        AllCandidateSampler AnonymousRandomSeedGenerator AnonymousSeedGenerator DummySeedGenerator FixedUnigramCandidateSampler
        LearnedUnigramCandidateSampler LogUniformCandidateSampler Multinomial NonDeterministicInts ParameterizedTruncatedNormal
        RandomCrop RandomGamma RandomGammaGrad RandomIndexShuffle RandomPoisson RandomPoissonV2 RandomShuffle
        RandomStandardNormal RandomUniform RandomUniformInt RngReadAndSkip RngSkip SampleDistortedBoundingBox
        SampleDistortedBoundingBoxV2 SobolSample StatefulRandomBinomial StatefulStandardNormal StatefulStandardNormalV2
        StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt StatefulUniformInt StatelessMultinomial
        StatelessParameterizedTruncatedNormal StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3
        StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomNormal
        StatelessRandomNormalV2 StatelessRandomPoisson StatelessRandomUniform StatelessRandomUniformFullInt
        StatelessRandomUniformFullIntV2 StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformV2
        StatelessSampleDistortedBoundingBox StatelessShuffle StatelessTruncatedNormal StatelessTruncatedNormalV2
        ThreadUnsafeUnigramCandidateSampler TruncatedNormal UniformCandidateSampler
    """,
    "optimizer": """
        ApplyAdaMax ApplyAdadelta ApplyAdagrad ApplyAdagradDA ApplyAdagradV2 ApplyAdam ApplyAddSign ApplyCenteredRMSProp ApplyFtrl
        ApplyFtrlV2 ApplyGradientDescent ApplyMomentum ApplyPowerSign ApplyProximalAdagrad ApplyProximalGradientDescent
        ApplyRMSProp ResourceApplyAdaMax ResourceApplyAdadelta ResourceApplyAdagrad ResourceApplyAdagradDA
        ResourceApplyAdagradV2 ResourceApplyAdam ResourceApplyAdamWithAmsgrad ResourceApplyAddSign ResourceApplyCenteredRMSProp
        ResourceApplyFtrl ResourceApplyFtrlV2 ResourceApplyGradientDescent ResourceApplyKerasMomentum ResourceApplyMomentum
        ResourceApplyPowerSign ResourceApplyProximalAdagrad ResourceApplyProximalGradientDescent ResourceApplyRMSProp
        ResourceSparseApplyAdadelta ResourceSparseApplyAdagrad ResourceSparseApplyAdagradDA ResourceSparseApplyAdagradV2
        ResourceSparseApplyCenteredRMSProp ResourceSparseApplyFtrl ResourceSparseApplyFtrlV2 ResourceSparseApplyKerasMomentum
        ResourceSparseApplyMomentum ResourceSparseApplyProximalAdagrad ResourceSparseApplyProximalGradientDescent
        ResourceSparseApplyRMSProp SparseApplyAdadelta SparseApplyAdagrad SparseApplyAdagradDA SparseApplyAdagradV2
        SparseApplyCenteredRMSProp SparseApplyFtrl SparseApplyFtrlV2 SparseApplyMomentum SparseApplyProximalAdagrad
        SparseApplyProximalGradientDescent SparseApplyRMSProp
    """,
    "variable": """
        Assign AssignAdd AssignAddVariableOp AssignSub AssignSubVariableOp AssignVariableOp CountUpTo DestroyResourceOp
        DestroyTemporaryVariable DisableCopyOnRead IsVariableInitialized ReadVariableOp ResourceCountUpTo ResourceScatterAdd
        ResourceScatterDiv ResourceScatterMax ResourceScatterMin ResourceScatterMul ResourceScatterNdAdd ResourceScatterNdMax
        ResourceScatterNdMin ResourceScatterNdSub ResourceScatterNdUpdate ResourceScatterSub ResourceScatterUpdate
        ResourceStridedSliceAssign ScatterAdd ScatterDiv ScatterMax ScatterMin ScatterMul ScatterNdAdd ScatterNdMax ScatterNdMin
        ScatterNdSub ScatterNdUpdate ScatterSub ScatterUpdate StridedSliceAssign TemporaryVariable VarHandleOp
        VarIsInitializedOp Variable VariableShape VariableV2 _ReadVariablesOp _VarHandlesOp _XlaAotOnlyVarHandleOp
    """,
    "data_movement": """
        AllToAll BatchMatrixBandPart BatchMatrixDiag BatchMatrixDiagPart BatchMatrixSetDiag BatchToSpace BatchToSpaceND Bitcast
        BroadcastArgs BroadcastGradientArgs BroadcastTo CollectiveBcastRecv CollectiveBcastRecvV2 CollectiveBcastSend
        CollectiveBcastSendV2 CollectiveGather CollectiveGatherV2 ComputeAccidentalHits Concat ConcatOffset ConcatV2
        ConjugateTranspose Const Copy CopyHost CopyOp DataFormatDimMap DataFormatVecPermute DeepCopy DepthToSpace Diag DiagPart
        DynamicPartition DynamicStitch Empty EmptyTensorList EnsureShape ExpandDims ExtractImagePatches ExtractVolumePatches
        Fill GuaranteeConst HostConst Identity IdentityN ImmutableConst InplaceUpdate InvertPermutation LinSpace ListDiff
        LowerBound MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3
        MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MirrorPad MirrorPadGrad OneHot OnesLike Pack Pad PadV2 ParallelConcat
        ParallelDynamicStitch PreventGradient QuantizedConcat QuantizedConcatV2 QuantizedReshape RaggedRange
        RaggedTensorToSparse RaggedTensorToTensor Range Rank Recv RefIdentity Relayout RelayoutLike Reshape ResizeNearestNeighbor
        ResizeNearestNeighborGrad Reverse ReverseSequence ReverseV2 Roll ScatterNd ScatterNdNonAliasingAdd Send Shape ShapeN Size
        Slice Snapshot SpaceToBatch SpaceToBatchND SpaceToDepth SparseConcat SparseFillEmptyRows SparseFillEmptyRowsGrad
        SparseReorder SparseReshape SparseSlice SparseSliceGrad SparseSplit SparseToDense Split SplitV Squeeze Stack StackClose
        StackCloseV2 StackPop StackPopV2 StackPush StackPushV2 StackV2 StopGradient StridedSlice StridedSliceGrad TensorArray
        TensorArrayClose TensorArrayCloseV2 TensorArrayCloseV3 TensorArrayConcat TensorArrayConcatV2 TensorArrayConcatV3
        TensorArrayGather TensorArrayGatherV2 TensorArrayGatherV3 TensorArrayGrad TensorArrayGradV2 TensorArrayGradV3
        TensorArrayGradWithShape TensorArrayPack TensorArrayRead TensorArrayReadV2 TensorArrayReadV3 TensorArrayScatter
        TensorArrayScatterV2 TensorArrayScatterV3 TensorArraySize TensorArraySizeV2 TensorArraySizeV3 TensorArraySplit
        TensorArraySplitV2 TensorArraySplitV3 TensorArrayUnpack TensorArrayV2 TensorArrayV3 TensorArrayWrite TensorArrayWriteV2
        TensorArrayWriteV3 TensorListConcat TensorListConcatLists TensorListConcatV2 TensorListElementShape
        TensorListFromTensor TensorListGather TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack
        TensorListPushBackBatch TensorListReserve TensorListResize TensorListScatter TensorListScatterIntoExistingList
        TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack TensorScatterAdd TensorScatterMax TensorScatterMin
        TensorScatterSub TensorScatterUpdate TensorStridedSliceUpdate Tile TileGrad Transpose Unique UniqueV2 UniqueWithCounts
        UniqueWithCountsV2 Unpack UnravelIndex UpperBound Where ZerosLike _ArrayToList _CopyFromGpuToHost _CopyFromHostToGpu
        _EagerConst _HostRecv _HostSend _ListToArray _ParallelConcatStart _ParallelConcatUpdate _Recv _ScopedAllocator
        _ScopedAllocatorConcat _ScopedAllocatorSplit _Send
    """,
    "control": """
        Abort Assert ControlTrigger Enter Exit FakeParam LoopCond Merge NextIteration NoOp Placeholder PlaceholderV2
        PlaceholderWithDefault RefEnter RefExit RefMerge RefNextIteration RefSelect RefSwitch Switch _Arg _DeviceArg
        _DeviceRetval _Retval _SINK _SOURCE _SwitchN
    """,
    "opaque": """
        BatchFunction Case ChooseFastestBranchDataset DataServiceDatasetV3 DataServiceDatasetV4 DatasetToSingleElement
        DatasetToTFRecord EagerPyFunc ExperimentalGroupByReducerDataset ExperimentalGroupByWindowDataset
        ExperimentalMapAndBatchDataset ExperimentalMapDataset ExperimentalParallelInterleaveDataset ExperimentalScanDataset
        ExperimentalTakeWhileDataset FilterDataset FlatMapDataset For GeneratorDataset GroupByReducerDataset
        GroupByWindowDataset If IndexFlatMapDataset InterleaveDataset IteratorGetNext IteratorGetNextAsOptional
        IteratorGetNextSync LegacyParallelInterleaveDatasetV2 LoadDataset MapAndBatchDataset MapDataset MapDefun
        MultiDeviceIteratorGetNextFromShard OneShotIterator ParallelFilterDataset ParallelInterleaveDataset
        ParallelInterleaveDatasetV2 ParallelInterleaveDatasetV3 ParallelInterleaveDatasetV4 ParallelMapDataset
        ParallelMapDatasetV2 PartitionedCall PyFunc PyFuncStateless ReduceDataset RemoteCall RiscCondition RiscWhile SaveDataset
        SaveDatasetV2 ScanDataset SnapshotDatasetV2 StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile
        SymbolicGradient TPUPartitionedCall TakeWhileDataset While XlaCallModule XlaHostCompute XlaIf XlaLaunch XlaLaunchV2
        XlaReduce XlaReduceWindow XlaScatter XlaSelectAndScatter
        XlaSparseDenseMatmulCustomCombinerOnTcGradWithAdagradAndCsrInput
        XlaSparseDenseMatmulCustomCombinerOnTcGradWithAdagradMomentumAndCsrInput
        XlaSparseDenseMatmulCustomCombinerOnTcGradWithAdamAndCsrInput XlaSparseDenseMatmulCustomCombinerOnTcGradWithCsrInput
        XlaSparseDenseMatmulCustomCombinerOnTcGradWithFtrlAndCsrInput
        XlaSparseDenseMatmulCustomCombinerOnTcGradWithSgdAndCsrInput XlaSparseDenseMatmulCustomCombinerOnTcWithCsrInput
        XlaSparseDenseMatmulGradWithCsrInput XlaVariadicReduce XlaVariadicReduceV2 XlaVariadicSort XlaWhile _If _TPUReplicate
        _While _XlaCompile _XlaMerge _XlaRun
    """,
}
"""Kind to the op types that are of it, separated by blanks."""

UNKNOWN = "unknown"
ALL_KINDS = (*KINDS, UNKNOWN)

GROUPS: dict[str, str] = {
    "A": "elementwise arithmetic",
    "B": "matrix operations",
    "C": "reduction and expansion",
    "D": "convolution",
    "E": "random sampling",
    "F": "optimization",
    "G": "data movement",
}
"""The paper's groups."""

_GROUP_OF_KIND = {
    "elementwise": "A",
    "gemm": "B",
    "batched_gemm": "B",
    "recurrent": "B",
    "reduction": "C",
    "normalization": "C",
    "pooling": "C",
    "softmax": "C",
    "ctc": "C",
    "conv": "D",
    "conv_filter_grad": "D",
    "conv_input_grad": "D",
    "random": "E",
    "optimizer": "F",
    "embedding": "G",
    "variable": "G",
    "data_movement": "G",
}
_EXPANSIONS = frozenset({"BroadcastTo", "Tile"})

_PAPER_NAMES = {
    "AddN": "Add",
    "BiasAdd": "Add",
    "RandomStandardNormal": "RandomNormal",
    "RealDiv": "Div",
    "SoftmaxCrossEntropyWithLogits": "CrossEntropy",
}

_ONEDNN = re.compile(r"_Mkl(?:Native|Eager)?(?=[A-Z])")
_VERSION = re.compile(r"V\d+$")


@cache
def _kind_of() -> dict[str, str]:
    table: dict[str, str] = {}
    for name, text in KINDS.items():
        for op_type in text.split():
            if op_type in table:
                raise ValueError(f"op type {op_type} is listed as {table[op_type]} and as {name}")
            table[op_type] = name
    return table


def op_types(kind_name: str) -> tuple[str, ...]:
    """The op types listed for one kind, in the canonical spelling."""
    return tuple(KINDS[kind_name].split())


@cache
def canonical(op_type: str) -> str:
    """The op type without oneDNN's spelling: `_MklNativeFusedConv2D` is `_FusedConv2D`, `_MklRelu` is `Relu`.

    What oneDNN fuses on its own has no other spelling; `_MklX` stands for `_MklNativeX` too.
    """
    match = _ONEDNN.match(op_type)
    if match:
        rest = op_type[match.end() :]
        for spelling in (rest, f"_{rest}", f"_Mkl{rest}"):
            if spelling in _kind_of():
                return spelling
    return op_type


@cache
def kind(op_type: str) -> str:
    """The canonical kind of an op type, one of `ALL_KINDS`; `unknown` for a type that is not listed."""
    return _kind_of().get(canonical(op_type), UNKNOWN)


def is_plumbing(op_type: str) -> bool:
    """True for what only steers execution (loops, branches, feeds, fetches, no-ops), so that a view may hide it."""
    return kind(op_type) == "control"


def group(op_type: str) -> str:
    """The paper's group, `A` to `G`; empty for plumbing, opaque calls and unknown op types, which the paper has none for."""
    if canonical(op_type) in _EXPANSIONS:
        return "C"
    return _GROUP_OF_KIND.get(kind(op_type), "")


@cache
def paper_name(op_type: str) -> str:
    """The name under which the Fathom paper counts an op type; op types of one name have their times added.

    TensorFlow 0.8 had neither versions (`ConcatV2` is Concat) nor resource variables (`ResourceApplyAdam` is ApplyAdam); additions of
    more operands and of a bias count as Add.
    """
    name = _VERSION.sub("", canonical(op_type))
    name = name.removeprefix("Resource") if kind(op_type) == "optimizer" else name
    return _PAPER_NAMES.get(name, name)
