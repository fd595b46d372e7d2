"""What each operator does to the batch dimension: a table of rules, from the values of its inputs to the dimensions of
its outputs. An operator without a rule mixes rows, as far as is known here.

A rule raises RowsMix where the operator computes along the batch dimension. None stands for a dimension that is not the
batch and that shape inference fills in.
"""

from taglio.model.batch import elementwise, movement, products
from taglio.model.batch.values import Rule

_ELEMENTWISE = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu "
    "Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN "
    "LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink "
    "Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"
)
_IMAGES = (
    "Conv ConvInteger QLinearConv ConvTranspose MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool "
    "GlobalLpPool DepthToSpace SpaceToDepth"
)
_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)
_STANDARD: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), elementwise.elementwise),
    **dict.fromkeys(_IMAGES.split(), elementwise.image),
    **dict.fromkeys(_REDUCTIONS.split(), elementwise.reduce),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization", "LRN"), elementwise.image_kept),
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), elementwise.normalized(-1)
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), elementwise.softmax),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), elementwise.scaled),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), products.recurrent),
    **dict.fromkeys(("ArgMax", "ArgMin"), elementwise.arg_reduce),
    **dict.fromkeys(("MatMul", "MatMulInteger"), products.product_of(0, 1)),
    **dict.fromkeys(("Resize", "Upsample"), movement.resize),
    "Attention": products.attention,
    "BatchNormalization": elementwise.batch_norm,
    "CastLike": movement.as_first,
    "Concat": movement.concat,
    "ConstantOfShape": movement.filled,
    "CumSum": elementwise.cum_sum,
    "Dropout": elementwise.dropout,
    "Einsum": products.einsum,
    "Expand": movement.expand,
    "Flatten": movement.flatten,
    "Gather": movement.gather,
    "GatherElements": movement.gather_elements,
    "GatherND": movement.gather_nd,
    "Gemm": products.gemm,
    "GridSample": movement.grid_sample,
    "LpNormalization": elementwise.along(-1),
    "MeanVarianceNormalization": elementwise.mean_variance,
    "OneHot": movement.one_hot,
    "Pad": movement.pad,
    "QLinearMatMul": products.product_of(0, 3),
    "Reshape": movement.reshape,
    "ReverseSequence": movement.reverse_sequence,
    "Slice": movement.slice_of,
    "Split": movement.split,
    "Squeeze": movement.squeeze,
    "Tile": movement.tile,
    "TopK": elementwise.top_k,
    "Transpose": movement.transpose,
    "Trilu": movement.triangle,
    "Unsqueeze": movement.unsqueeze,
}
# What ONNX Runtime fuses. Operators with the names of ONNX's own that are not here are other operators.
_FUSED: dict[str, Rule] = {
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu"), elementwise.elementwise),
    **dict.fromkeys(("FusedConv", "NhwcFusedConv"), elementwise.fused_conv),
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool", "NhwcMaxPool"), elementwise.image),
    **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid"), elementwise.elementwise_of(0)),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), elementwise.elementwise_of(0, 3)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), elementwise.scaled),
    "Attention": products.projecting_attention,
    "MultiHeadAttention": products.multi_head_attention,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), products.skip_norm),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul", "MatMulIntegerToFloat"), products.product_of(0, 1)),
    "EmbedLayerNormalization": products.embed,
    "FusedGemm": products.gemm,
    "MatMulNBits": products.blockwise_product,
    "QGemm": products.product_of(0, 3),
    "QLinearConcat": products.quantized_concat,
    "QLinearSoftmax": elementwise.normalized(-1),
}
_CLASSICAL: dict[str, Rule] = {
    **dict.fromkeys(("Binarizer", "Imputer", "LabelEncoder", "Scaler"), elementwise.elementwise_of(0)),
    **dict.fromkeys(("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"), products.per_row(1, 2)),
    **dict.fromkeys(("LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor", "TreeEnsemble"), products.per_row(2)),
    "Normalizer": products.per_row(2),
}
# By domain.
RULES: dict[str, dict[str, Rule]] = {
    "": _STANDARD, "ai.onnx": _STANDARD, "com.microsoft": _FUSED, "ai.onnx.ml": _CLASSICAL,
}  # fmt: skip
# Operators with an input that may hold the number of rows.
TAKES_SIZES = frozenset({"ConstantOfShape", "Expand", "Reshape", "Resize", "Slice", "Tile"})
# Reasons why operators without a rule mix rows, where one is known.
_TOGETHER = "scales all rows together: one row's values would change the others'"
_COUNT = "has as many results as the values of all rows make"
_BODY = "runs its subgraph on all rows together"
REASONS: dict[str, str] = {
    **dict.fromkeys(("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QAttention"), _TOGETHER),
    **dict.fromkeys(("NonZero", "NonMaxSuppression", "Unique", "Compress", "RoiAlign", "MaxRoiPool"), _COUNT),
    **dict.fromkeys(("If", "Loop", "Scan", "SequenceMap"), _BODY),
}
