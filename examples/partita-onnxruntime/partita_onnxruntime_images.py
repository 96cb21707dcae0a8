"""Images that other devices hand over, in the order that onnxruntime's convolutions read."""

import copy
import platform

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

DIMS = 4
"""Of an image: batch, channels, rows and columns."""

BLOCK = 16
"""Channels that lie side by side in the memory of onnxruntime's convolutions, at most."""

BY_ELEMENT = {"Add", "Clip", "Mul", "Relu", "Sigmoid"}
"""Operators that it computes in either order."""

IN_BLOCKS = {"Conv", "BatchNormalization", *BY_ELEMENT}
"""Operators that it computes in blocks, if it is given these."""


def reorder_once(proto: ModelProto) -> ModelProto:
    """Has onnxruntime change the order of an image that enters once, whoever reads it.

    It computes convolutions, and what follows them, with channels in blocks. A convolution reads a
    copy in blocks of an input, which is in plain order; but a sum with that input is made in plain
    order, so that the other summand is changed back for it, and the sum changed again. With a
    window of one element before all of them, they read blocks. It is an average, which keeps NaN
    and infinities. What is computed by elements of inputs alone stays before it.

    Args:
        proto: A model; the nodes of its graph are replaced where that gains.
    """
    in_blocks = platform.machine().lower() in {"x86_64", "amd64"}
    if not in_blocks or not any(node.op_type == "Conv" for node in proto.graph.node):
        return proto
    plain = _in_plain_order(proto)
    first: list[NodeProto] = []
    rest: list[NodeProto] = []
    for node in proto.graph.node:
        (first if node.output[0] in plain else rest).append(copy.deepcopy(node))
    readers: dict[str, set[str]] = {}
    for node in rest:
        for name in plain.intersection(node.input):
            readers.setdefault(name, set()).add(node.op_type)
    windowed = {
        name: f"{name}/in blocks"
        for name, types in readers.items()
        if (len(types) > 1 or types <= BY_ELEMENT) and types & IN_BLOCKS
    }
    for node in rest:
        node.input[:] = [windowed.get(name, name) for name in node.input]
    windows = [
        helper.make_node("AveragePool", [name], [window], kernel_shape=[1, 1])
        for name, window in windowed.items()
    ]
    del proto.graph.node[:]
    proto.graph.node.extend([*first, *windows, *rest])
    return proto


def _in_plain_order(proto: ModelProto) -> set[str]:
    """Inputs that are images, and what is computed of elements of these; no outputs."""
    outputs = {port.name for port in proto.graph.output}
    constants = {tensor.name for tensor in proto.graph.initializer if len(tensor.dims) <= DIMS}
    names = {port.name for port in proto.graph.input if _is_image(port)}
    for node in proto.graph.node:
        read = set(node.input) - constants - {""}
        by_element = node.op_type in BY_ELEMENT and read and read <= names
        if by_element and outputs.isdisjoint(node.output):
            names.update(node.output)
    return names


def _is_image(port: ValueInfoProto) -> bool:
    """Whether its channels fill blocks."""
    tensor = port.type.tensor_type
    if tensor.elem_type != TensorProto.FLOAT or len(tensor.shape.dim) != DIMS:
        return False
    channels: int = tensor.shape.dim[1].dim_value
    return channels > 0 and channels % BLOCK == 0
