"""Random models of one operator: which operators there are, and how each is drawn."""

from __future__ import annotations

import zlib

import numpy as np
import onnx
from onnx import helper, numpy_helper

from partita_conformance import draw_elements, draw_movement, draw_networks
from partita_conformance.draw import Array, Draw, Generator, bools

OPSET = 17


def model_of(
    op_type: str, draw: Draw, opset: int = OPSET
) -> tuple[onnx.ModelProto, dict[str, Array]]:
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
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, data_prop=True), feeds


def element_type(op_type: str, number: int = 0) -> str:
    """ONNX's name, in small letters, of the type of the first input that a draw gives."""
    first = next(array for array in draw(op_type, number).inputs if array is not None)
    element = helper.np_dtype_to_tensor_dtype(first.dtype)
    return str(onnx.TensorProto.DataType.Name(element)).lower()


def draw(op_type: str, number: int, attempt: int = 0) -> Draw:
    """The draw of an operator and number; always the same one."""
    rng = np.random.default_rng(zlib.crc32(f"{op_type}/{number}/{attempt}".encode()))
    return GENERATORS[op_type](rng)


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
}
"""Operator to its generator, each of one opset."""
