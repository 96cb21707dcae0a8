"""Random models of one operator: which operators there are, and how each is drawn."""

from __future__ import annotations

import zlib

import numpy as np
import onnx
from onnx import helper, numpy_helper

from partita_conformance import draw_elements, draw_movement, draw_networks, draw_rest
from partita_conformance.draw import Array, Draw, Generator, WideRng, bools


def model_of(op_type: str, draw: Draw) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model and its inputs."""
    names = ["" if array is None else f"in{i}" for i, array in enumerate(draw.inputs)]
    outputs = [f"out{i}" for i in range(draw.outputs)]
    node = helper.make_node(op_type, names, outputs, name=op_type.lower(), **draw.attributes)
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
        [_output(op_type, name, infos) for name in outputs],
        constants,
    )
    imports = [helper.make_opsetid("", draw.opset)]
    version = max(8, helper.find_min_ir_version_for(imports, ignore_unknown=True))
    model = helper.make_model(graph, opset_imports=imports, ir_version=version)
    return onnx.shape_inference.infer_shapes(model, data_prop=True), feeds


def _output(op_type: str, name: str, inputs: list[onnx.ValueInfoProto]) -> onnx.ValueInfoProto:
    """What is known of an output before inference: nothing, unless ONNX infers nothing."""
    value = helper.make_empty_tensor_value_info(name)
    if op_type == "GroupNormalization":
        value.type.CopyFrom(inputs[0].type)
    return value


def element_type(op_type: str, number: int = 0) -> str:
    """ONNX's name, in small letters, of the type of the first input that a draw gives."""
    first = next(array for array in draw(op_type, number).inputs if array is not None)
    element = helper.np_dtype_to_tensor_dtype(first.dtype)
    return str(onnx.TensorProto.DataType.Name(element)).lower()


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
    **{op: draw_elements.unary() for op in _UNARIES},
    "Sqrt": draw_elements.unary(0, 9),
    "Log": draw_elements.unary(0.01, 9),
    "Reciprocal": draw_elements.unary(0.2, 5),
    "Asin": draw_elements.unary(-0.9, 0.9),
    "Acosh": draw_elements.unary(1.1, 4),
    "LeakyRelu": draw_elements.unary(alpha=[None, 0.3, 1.5]),
    "Elu": draw_elements.unary(alpha=[None, 0.3, 2.0]),
    "Selu": draw_elements.unary(alpha=[None, 1.2], gamma=[None, 0.7]),
    "Celu": draw_elements.unary(alpha=[None, 0.4]),
    "ThresholdedRelu": draw_elements.unary(alpha=[None, 0.4]),
    "HardSigmoid": draw_elements.unary(alpha=[None, 0.4], beta=[None, 0.1]),
    "Clip": draw_elements.clip,
    "PRelu": draw_networks.prelu,
    **{op: draw_elements.binary() for op in ("Add", "Sub", "Mul", "Max", "Min", "Greater", "Less")},
    **{op: draw_elements.binary() for op in ("GreaterOrEqual", "LessOrEqual")},
    "Div": draw_elements.binary(away=0.3),
    "Equal": draw_elements.binary(draw_elements.small_ints),
    **{op: draw_elements.binary(bools) for op in ("And", "Or", "Xor")},
    "Sum": draw_elements.several,
    "Mean": draw_elements.several,
    "Where": draw_elements.where,
    "Cast": draw_elements.cast,
    **dict.fromkeys(
        ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"), draw_elements.reduction
    ),
    "ReduceProd": draw_elements.reduction,
    "ReduceSumSquare": draw_elements.reduction,
    "ReduceLogSumExp": draw_elements.reduction,
    "ReduceLogSum": draw_elements.reduction_of_positives,
    "ReduceSum": draw_elements.reduce_sum,
    "ArgMax": draw_elements.arg,
    "ArgMin": draw_elements.arg,
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), draw_elements.along_axis),
    "Conv": draw_networks.conv,
    "ConvTranspose": draw_networks.conv_transpose,
    "MaxPool": draw_networks.max_pool,
    "AveragePool": draw_networks.average_pool,
    "GlobalAveragePool": draw_networks.global_pool,
    "GlobalMaxPool": draw_networks.global_pool,
    "MatMul": draw_networks.matmul,
    "Gemm": draw_networks.gemm,
    "Einsum": draw_networks.einsum,
    "BatchNormalization": draw_networks.batch_norm,
    "InstanceNormalization": draw_networks.instance_norm,
    "LayerNormalization": draw_networks.layer_norm,
    "LRN": draw_networks.lrn,
    "Concat": draw_movement.concat,
    "Split": draw_movement.split,
    "Slice": draw_movement.slice,
    "Gather": draw_movement.gather,
    "GatherElements": draw_movement.gather_elements,
    "Transpose": draw_movement.transpose,
    "Reshape": draw_movement.reshape,
    "Flatten": draw_movement.flatten,
    "Squeeze": draw_movement.squeeze,
    "Unsqueeze": draw_movement.unsqueeze,
    "Expand": draw_movement.expand,
    "Tile": draw_movement.tile,
    "Pad": draw_movement.pad,
    "Resize": draw_movement.resize,
    "TopK": draw_movement.topk,
    "CumSum": draw_movement.cumsum,
    "DepthToSpace": draw_movement.depth_to_space,
    "SpaceToDepth": draw_movement.space_to_depth,
    "Trilu": draw_movement.trilu,
    "OneHot": draw_movement.one_hot,
    "QuantizeLinear": draw_networks.quantize,
    "DequantizeLinear": draw_networks.dequantize,
    "LSTM": draw_networks.lstm,
    **{op: draw_elements.unary(-0.9, 0.9) for op in ("Acos", "Atanh")},
    **{op: draw_elements.unary(-1.4, 1.4) for op in ("Asinh", "Tan")},
    "Gelu": draw_rest.newer(20, approximate=[None, "tanh"]),
    "Mish": draw_rest.newer(18),
    "Swish": draw_rest.newer(24, alpha=[None, 0.4]),
    "Shrink": draw_rest.shrink,
    "Not": lambda rng: Draw([bools(rng, [3, 5])]),
    "BitShift": draw_rest.bit_shift,
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), draw_rest.bitwise),
    "BitwiseNot": draw_rest.bitwise_not,
    "Pow": draw_rest.power,
    "Mod": draw_rest.modulo,
    "IsInf": draw_rest.is_inf,
    "IsNaN": draw_rest.is_nan,
    "CastLike": draw_rest.cast_like,
    "Dropout": draw_rest.dropout,
    "EyeLike": draw_rest.eye_like,
    "Range": draw_rest.range_,
    "Shape": draw_rest.shape,
    "Size": draw_rest.plain(),
    "NonZero": draw_rest.non_zero,
    "Compress": draw_rest.compress,
    "ConstantOfShape": draw_rest.constant_of_shape,
    "GatherND": draw_rest.gather_nd,
    "ScatterElements": draw_rest.scatter_elements,
    "ScatterND": draw_rest.scatter_nd,
    "Scatter": draw_rest.scatter,
    "ReverseSequence": draw_rest.reverse_sequence,
    "GRU": draw_rest.recurrent(3, ("HardSigmoid", "LeakyRelu"), linear_before_reset=[0, 1]),
    "RNN": draw_rest.recurrent(1, ("HardSigmoid",)),
    "LpNormalization": draw_rest.lp_normalization,
    "LpPool": draw_rest.lp_pool,
    "MeanVarianceNormalization": draw_rest.mean_variance,
    "GroupNormalization": draw_rest.group_norm,
    "RMSNormalization": draw_rest.rms_norm,
    "GridSample": draw_rest.grid_sample,
    "AffineGrid": draw_rest.affine_grid,
    "RoiAlign": draw_rest.roi_align,
    "NonMaxSuppression": draw_rest.suppression,
    "MatMulInteger": draw_rest.matmul_integer,
    "ConvInteger": draw_rest.conv_integer,
    "QLinearMatMul": draw_rest.qlinear_matmul,
    "DynamicQuantizeLinear": draw_rest.dynamic_quantize,
    "Unique": draw_rest.unique,
    "CenterCropPad": draw_rest.center_crop_pad,
    "Col2Im": draw_rest.col2im,
    "Attention": draw_rest.attention,
    "RotaryEmbedding": draw_rest.rotary,
    "Upsample": draw_rest.upsample,
    "NegativeLogLikelihoodLoss": draw_rest.nll_loss,
    "HannWindow": draw_rest.hann_window,
}
"""Operator to its generator, each of one opset."""
