"""Random models of one operator: which operators there are, and how each is drawn."""

from __future__ import annotations

import zlib

import numpy as np
import onnx
from onnx import helper, numpy_helper

from partita_conformance.draws.draw import Array, Draw, Generator, WideRng, bools
from partita_conformance.draws.families import (
    attention,
    elementwise,
    images,
    indexing,
    integers,
    movement,
    networks,
    rare,
    sizes,
)


def model_of(op_type: str, draw: Draw) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model and its inputs."""
    names = ["" if array is None else f"in{i}" for i, array in enumerate(draw.inputs)]
    outputs = [f"out{i}" for i in range(draw.outputs)]
    node = helper.make_node(
        op_type, names, outputs, name=op_type.lower(), domain=draw.domain, **draw.attributes
    )
    feeds, infos, constants = {}, [], []
    for i, (name, array) in enumerate(zip(names, draw.inputs, strict=True)):
        if array is None:
            continue
        if i in draw.constant:
            constants.append(numpy_helper.from_array(array, name))
            continue
        feeds[name] = array
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        infos.append(helper.make_tensor_value_info(name, element, array.shape))
    graph = helper.make_graph(
        [node],
        f"random_{op_type}",
        infos,
        [_output(op_type, name, draw) for name in outputs],
        constants,
    )
    imports = [helper.make_opsetid("", draw.opset)]
    imports += [helper.make_opsetid(draw.domain, 1)] if draw.domain else []
    version = max(8, helper.find_min_ir_version_for(imports, ignore_unknown=True))
    model = helper.make_model(graph, opset_imports=imports, ir_version=version)
    return onnx.shape_inference.infer_shapes(model, data_prop=True), feeds


def _output(op_type: str, name: str, draw: Draw) -> onnx.ValueInfoProto:
    """What is known of an output before inference: nothing, unless ONNX infers nothing."""
    first = draw.inputs[0]
    if op_type == "GroupNormalization" and first is not None:
        element = helper.np_dtype_to_tensor_dtype(first.dtype)
        return helper.make_tensor_value_info(name, element, first.shape)
    return helper.make_empty_tensor_value_info(name)


def draw(op_type: str, number: int, attempt: int = 0, wide: bool = False) -> Draw:
    """The draw of an operator and number; always the same one.

    Args:
        op_type: The operator.
        number: Which of its draws.
        attempt: Which of the draws of that number.
        wide: Whether sizes are to be such that no vector divides them.
    """
    seed = zlib.crc32(f"{op_type}/{number}/{attempt}".encode())
    kind = WideRng if wide else np.random.Generator
    return GENERATORS[op_type](kind(np.random.PCG64(seed)))


_UNARIES = [
    "Abs",
    "Neg",
    "Relu",
    "Sigmoid",
    "Tanh",
    "Exp",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Sin",
    "Cos",
    "Erf",
    "Softplus",
    "Softsign",
    "Identity",
    "HardSwish",
    "Atan",
    "Sinh",
    "Cosh",
]

GENERATORS: dict[str, Generator] = {
    **{op: elementwise.unary() for op in _UNARIES},
    "Sqrt": elementwise.unary(0, 9),
    "Log": elementwise.unary(0.01, 9),
    "Reciprocal": elementwise.unary(0.2, 5),
    "Asin": elementwise.unary(-0.9, 0.9),
    "Acosh": elementwise.unary(1.1, 4),
    "LeakyRelu": elementwise.unary(alpha=[None, 0.3, 1.5]),
    "Elu": elementwise.unary(alpha=[None, 0.3, 2.0]),
    "Selu": elementwise.unary(alpha=[None, 1.2], gamma=[None, 0.7]),
    "Celu": elementwise.unary(alpha=[None, 0.4]),
    "ThresholdedRelu": elementwise.unary(alpha=[None, 0.4]),
    "HardSigmoid": elementwise.unary(alpha=[None, 0.4], beta=[None, 0.1]),
    "Clip": elementwise.clip,
    "PRelu": networks.prelu,
    **{op: elementwise.binary() for op in ("Add", "Sub", "Mul", "Max", "Min", "Greater", "Less")},
    **{op: elementwise.binary() for op in ("GreaterOrEqual", "LessOrEqual")},
    "Div": elementwise.binary(away=0.3),
    "Equal": elementwise.binary(elementwise.small_ints),
    **{op: elementwise.binary(bools) for op in ("And", "Or", "Xor")},
    "Sum": elementwise.several,
    "Mean": elementwise.several,
    "Where": elementwise.where,
    "Cast": elementwise.cast,
    **dict.fromkeys(
        ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"), elementwise.reduction
    ),
    "ReduceProd": elementwise.reduction,
    "ReduceSumSquare": elementwise.reduction,
    "ReduceLogSumExp": elementwise.reduction,
    "ReduceLogSum": elementwise.reduction_of_positives,
    "ReduceSum": elementwise.reduce_sum,
    "ArgMax": elementwise.arg,
    "ArgMin": elementwise.arg,
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), elementwise.along_axis),
    "Conv": networks.conv,
    "ConvTranspose": networks.conv_transpose,
    "MaxPool": networks.max_pool,
    "AveragePool": networks.average_pool,
    "GlobalAveragePool": networks.global_pool,
    "GlobalMaxPool": networks.global_pool,
    "GlobalLpPool": networks.global_lp_pool,
    "MatMul": networks.matmul,
    "Gemm": networks.gemm,
    "Einsum": networks.einsum,
    "BatchNormalization": networks.batch_norm,
    "InstanceNormalization": networks.instance_norm,
    "LayerNormalization": networks.layer_norm,
    "LRN": networks.lrn,
    "Concat": movement.concat,
    "Split": movement.split,
    "Slice": movement.slice,
    "Gather": movement.gather,
    "GatherElements": movement.gather_elements,
    "Transpose": movement.transpose,
    "Reshape": movement.reshape,
    "Flatten": movement.flatten,
    "Squeeze": movement.squeeze,
    "Unsqueeze": movement.unsqueeze,
    "Expand": movement.expand,
    "Tile": movement.tile,
    "Pad": movement.pad,
    "Resize": movement.resize,
    "TopK": movement.topk,
    "CumSum": movement.cumsum,
    "DepthToSpace": movement.depth_to_space,
    "SpaceToDepth": movement.space_to_depth,
    "Trilu": movement.trilu,
    "OneHot": movement.one_hot,
    "QuantizeLinear": networks.quantize,
    "DequantizeLinear": networks.dequantize,
    "LSTM": networks.lstm,
    **{op: elementwise.unary(-0.9, 0.9) for op in ("Acos", "Atanh")},
    **{op: elementwise.unary(-1.4, 1.4) for op in ("Asinh", "Tan")},
    "Gelu": elementwise.newer(20, approximate=[None, "tanh"]),
    "Mish": elementwise.newer(18),
    "Swish": elementwise.newer(24, alpha=[None, 0.4]),
    "Shrink": elementwise.shrink,
    "Not": lambda rng: Draw([bools(rng, [3, 5])]),
    "BitShift": elementwise.bit_shift,
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), elementwise.bitwise),
    "BitwiseNot": elementwise.bitwise_not,
    "Pow": elementwise.power,
    "Mod": elementwise.modulo,
    "IsInf": elementwise.is_inf,
    "IsNaN": elementwise.is_nan,
    "CastLike": elementwise.cast_like,
    "Dropout": elementwise.dropout,
    "EyeLike": sizes.eye_like,
    "Range": sizes.range_,
    "Shape": sizes.shape,
    "Size": sizes.plain(),
    "NonZero": indexing.non_zero,
    "Compress": indexing.compress,
    "ConstantOfShape": sizes.constant_of_shape,
    "GatherND": indexing.gather_nd,
    "ScatterElements": indexing.scatter_elements,
    "ScatterND": indexing.scatter_nd,
    "Scatter": indexing.scatter,
    "ReverseSequence": indexing.reverse_sequence,
    "GRU": networks.recurrent(3, ("HardSigmoid", "LeakyRelu"), linear_before_reset=[0, 1]),
    "RNN": networks.recurrent(1, ("HardSigmoid",)),
    "LpNormalization": networks.lp_normalization,
    "LpPool": networks.lp_pool,
    "MeanVarianceNormalization": networks.mean_variance,
    "GroupNormalization": networks.group_norm,
    "RMSNormalization": networks.rms_norm,
    "GridSample": images.grid_sample,
    "AffineGrid": images.affine_grid,
    "RoiAlign": images.roi_align,
    "NonMaxSuppression": images.suppression,
    "MatMulInteger": integers.matmul_integer,
    "ConvInteger": integers.conv_integer,
    "QLinearMatMul": integers.qlinear_matmul,
    "DynamicQuantizeLinear": integers.dynamic_quantize,
    "Unique": indexing.unique,
    "CenterCropPad": images.center_crop_pad,
    "Col2Im": images.col2im,
    "Attention": attention.attention,
    "RotaryEmbedding": attention.rotary,
    "Upsample": images.upsample,
    "NegativeLogLikelihoodLoss": networks.nll_loss,
    "SoftmaxCrossEntropyLoss": networks.nll_loss,
    "Det": networks.determinant,
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow"), sizes.hann_window),
    "QLinearConv": rare.qlinear_conv,
    "DeformConv": rare.deform_conv,
    "MaxRoiPool": rare.max_roi_pool,
    "MaxUnpool": rare.max_unpool,
    "DFT": rare.dft,
    "STFT": rare.stft,
    "MelWeightMatrix": rare.mel_weights,
    "TensorScatter": rare.tensor_scatter,
    "TfIdfVectorizer": rare.tf_idf,
    "Scan": rare.scan,
    "StringNormalizer": rare.normalizer,
    "RegexFullMatch": rare.full_match,
    "StringSplit": rare.split_text,
    "StringConcat": rare.join_text,
}
"""Operator to its generator, each of one opset."""
