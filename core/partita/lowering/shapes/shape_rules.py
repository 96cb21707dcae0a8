"""What operators demand of the shapes of their inputs, and of attributes that name dimensions.

Checked once, when a node gets its shapes, for all back-ends alike. Kernels trust it: one that is
given a scale or an order of dimensions that does not fit would read or write beyond its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from partita.errors import OperandError
from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.attention_rules import ATTENTION_DEMANDS
from partita.lowering.shapes.demands import Demand, Shape, Shapes, demands_in, is_of_shape
from partita.lowering.shapes.mixture_rules import MIXTURE_DEMANDS
from partita.lowering.shapes.type_rules import check_types

_DEMANDS: dict[str, Demand] = {**ATTENTION_DEMANDS, **MIXTURE_DEMANDS}

_demand = demands_in(_DEMANDS)


def check_demands(node: Node, operands: Sequence[Operand | None]) -> None:
    """Refuses a node whose inputs do not fit each other, in type or shape, or its attributes.

    Raises:
        OperandError: They do not.
    """
    check_types(node, operands)
    demand = _DEMANDS.get(node.kind)
    if demand is None:
        return
    shapes = [None if operand is None else operand.shape for operand in operands]
    try:
        fault = next(iter(demand(node, [*shapes, *[None] * 12])), None)
    except (IndexError, KeyError, ValueError) as error:  # too few inputs, dimensions, attributes
        fault = f"its inputs or attributes are incomplete ({type(error).__name__}: {error})"
    if fault is not None:
        listed = ", ".join("none" if shape is None else str(list(shape)) for shape in shapes)
        raise OperandError(
            f"Operation '{node.name}' ({node.told}): {fault}; its inputs have shapes {listed}."
        )


def check_box(
    node: Node, x: Operand, sizes: Sequence[int], steps: Sequence[int], start: int
) -> None:
    """Refuses a box of elements that reaches beyond a tensor.

    Args:
        node: Whose box it is.
        x: The tensor.
        sizes: Of the box, all at least 1.
        steps: Elements from one to the next along each dimension of the box.
        start: The element where it starts.

    Raises:
        OperandError: It does.
    """
    ends = [(n - 1) * step for n, step in zip(sizes, steps, strict=True)]
    first = start + sum(end for end in ends if end < 0)
    last = start + sum(end for end in ends if end > 0)
    if first < 0 or last >= x.size:
        raise OperandError(
            f"Operation '{node.name}' ({node.told}) would copy elements beyond a tensor of shape "
            f"{list(x.shape)}; check the shapes and attributes that lead to it."
        )


def _holds(name: str, shape: Shape | None, *sizes: int) -> Iterable[str]:
    if shape is not None and math.prod(shape) not in sizes:
        counts = " or ".join(map(str, dict.fromkeys(sizes)))
        yield f"{name} is to hold {counts} element{'s' if sizes != (1,) else ''}"


def _first(shapes: Shapes) -> Shape:
    if shapes[0] is None:
        raise IndexError("no first input")
    return shapes[0]


def _pair(shapes: Shapes, second: int = 1) -> tuple[Shape, Shape]:
    other = shapes[second]
    if other is None:
        raise IndexError(f"no input {second}")
    return _first(shapes), other


@_demand("Transpose", "partita::Transpose")
def _transpose(node: Node, shapes: Shapes) -> Iterable[str]:
    order, rank = node.attrs.get("perm"), len(_first(shapes))
    if order is not None and sorted(order) != list(range(rank)):
        yield f"perm {list(order)} is no order of {rank} dimensions"


@_demand("Concat", "com.microsoft::QLinearConcat")
def _concat(node: Node, shapes: Shapes) -> Iterable[str]:
    # The quantized form has its scale and zero point in front, and those of each input behind it.
    wanted = shapes if node.op_type == "Concat" else shapes[2::3]
    if node.op_type != "Concat":
        for shape in (*shapes[:2], *shapes[3::3], *shapes[4::3]):
            yield from _holds("a scale or zero point", shape, 1)
    given = [shape for shape in wanted if shape is not None]
    rank = max(map(len, given))
    axis = node.attrs.get("axis", 1)
    # Files of old exporters hold empty 1-D tensors that stand for "nothing yet".
    whole = [shape for shape in given if len(shape) == rank or shape != (0,)]
    if -rank <= axis < rank:
        others = [(len(s), *s[: axis % rank], *s[axis % rank + 1 :]) for s in whole]
        if any(other != others[0] for other in others):
            yield f"all dimensions but {axis} are to be the same"


@_demand("Pad")
def _pad(node: Node, shapes: Shapes) -> Iterable[str]:
    if len(shapes) > 1:  # an attribute, before opset 11
        axes = shapes[3] if len(shapes) > 3 else None
        count = len(_first(shapes)) if axes is None else math.prod(axes)
        yield from _holds("pads", shapes[1], 2 * count)


@_demand("Split")
def _split(node: Node, shapes: Shapes) -> Iterable[str]:
    count = node.attrs.get("num_outputs", len(node.outputs))
    if count != len(node.outputs):
        yield f"num_outputs is {count}, but it has {len(node.outputs)}"


@_demand("GatherElements", "Scatter", "ScatterElements")
def _elements(node: Node, shapes: Shapes) -> Iterable[str]:
    x, index = _pair(shapes)
    axis = node.attrs.get("axis", 0)
    if len(x) != len(index):
        yield "data and indices are to have as many dimensions"
    elif any(
        n > limit
        for k, (n, limit) in enumerate(zip(index, x, strict=True))
        if k != axis % max(len(x), 1)
    ):
        yield f"indices may be larger than data along axis {axis} only"
    yield from is_of_shape("updates", shapes[2], index)


@_demand("GatherND")
def _gather_nd(node: Node, shapes: Shapes) -> Iterable[str]:
    x, index = _pair(shapes)
    batch = node.attrs.get("batch_dims", 0)
    if not 0 <= batch < min(len(x), len(index)) or x[:batch] != index[:batch]:
        yield f"data and indices are to share {batch} leading dimensions and have more"
    elif batch + index[-1] > len(x):
        yield f"data has no {index[-1]} dimensions behind {batch}"


@_demand("ScatterND")
def _scatter_nd(node: Node, shapes: Shapes) -> Iterable[str]:
    x, index = _pair(shapes)
    if index[-1] > len(x):
        yield f"data has no {index[-1]} dimensions"
    yield from is_of_shape("updates", shapes[2], (*index[:-1], *x[index[-1] :]))


@_demand("ReverseSequence")
def _reverse_sequence(node: Node, shapes: Shapes) -> Iterable[str]:
    x, axes = _first(shapes), (node.attrs.get("time_axis", 0), node.attrs.get("batch_axis", 1))
    if axes not in ((0, 1), (1, 0)) or len(x) < 2:
        yield "time_axis and batch_axis are to be 0 and 1"
    else:
        yield from is_of_shape("sequence_lens", shapes[1], (x[axes[1]],))


@_demand("ArgMax", "ArgMin")
def _argument(node: Node, shapes: Shapes) -> Iterable[str]:
    x, axis = _first(shapes), node.attrs.get("axis", 0)
    if -len(x) <= axis < len(x) and x[axis] == 0 and x.count(0) == 1:
        yield f"axis {axis} holds no element"


@_demand("OneHot")
def _one_hot(node: Node, shapes: Shapes) -> Iterable[str]:
    yield from _holds("depth", shapes[1], 1)
    if shapes[2] is not None and tuple(shapes[2]) != (2,):
        yield "values is to be a row of 2 elements"


@_demand("PRelu")
def _prelu(node: Node, shapes: Shapes) -> Iterable[str]:
    x, slope = _pair(shapes)
    fits = all(n in (1, due) for n, due in zip(slope[::-1], x[::-1], strict=False))
    if len(slope) > len(x) or not fits:
        yield "the slope is to broadcast to the first input, which keeps its shape"


@_demand("BatchNormalization")
def _batch_normalization(node: Node, shapes: Shapes) -> Iterable[str]:
    x = _first(shapes)
    for name, shape in zip(("scale", "B", "mean", "var"), shapes[1:], strict=False):
        yield from _holds(name, shape, x[1] if len(x) > 1 else 1)


@_demand("InstanceNormalization", "GroupNormalization")
def _plane_normalization(node: Node, shapes: Shapes) -> Iterable[str]:
    size = _first(shapes)[1]
    if node.op_type == "GroupNormalization":
        groups = node.attrs["num_groups"]
        if groups < 1 or size % groups:
            yield f"{size} channels do not fall into {groups} groups; num_groups must divide them"
        size = groups if node.version < 21 else size
    yield from _holds("scale", shapes[1], size)
    yield from _holds("bias", shapes[2], size)


def _slides(node: Node, rank: int, *, kernel: bool = False) -> Iterable[str]:
    """Faults of the attributes that say how a window slides over ``rank`` dimensions."""
    sizes = {"strides": rank, "dilations": rank, "pads": 2 * rank, "output_padding": rank}
    if kernel:
        sizes["kernel_shape"] = rank
    for name, count in sizes.items():
        values = node.attrs.get(name) or ()
        if values and len(values) != count:
            yield f"{name} {list(values)} is to have {count} numbers"
        if name != "pads" and any(n < (name != "output_padding") for n in values):
            yield f"{name} {list(values)} holds a number that is too small"


def _weights(node: Node, x: Shape, w: Shape, transposed: bool) -> Iterable[str]:
    groups = node.attrs.get("group", 1)
    outputs, inputs = (w[1] * groups, w[0]) if transposed else (w[0], w[1] * groups)
    if len(x) != len(w) or groups < 1 or x[1] != inputs or (inputs or outputs) % groups:
        yield f"the weights do not fit the input in {groups} groups"
    if not transposed and outputs % max(groups, 1):
        yield f"{outputs} outputs do not fall into {groups} groups"
    if 0 in w[2:]:
        yield f"a window of {list(w[2:])} holds no element"


@_demand("Conv", "partita::Conv", "com.microsoft::FusedConv")
def _conv(node: Node, shapes: Shapes) -> Iterable[str]:
    x, w = _pair(shapes)
    yield from _slides(node, len(x) - 2)
    yield from _weights(node, x, w, False)
    yield from _holds("the bias", shapes[2], w[0])


@_demand("DeformConv")
def _deform_conv(node: Node, shapes: Shapes) -> Iterable[str]:
    x, w = _pair(shapes)
    groups, kernel = node.attrs.get("offset_group", 1), node.attrs.get("kernel_shape")
    yield from _slides(node, len(x) - 2, kernel=True)
    yield from _weights(node, x, w, False)
    if kernel and tuple(kernel) != tuple(w[2:]):
        yield f"kernel_shape {list(kernel)} is not that of the weights, {list(w[2:])}"
    if groups < 1 or x[1] % groups:
        yield f"{x[1]} channels do not fall into {groups} groups; offset_group must divide them"
    yield from _holds("the bias", shapes[3], w[0])


@_demand("ConvTranspose", "partita::ConvTranspose")
def _conv_transpose(node: Node, shapes: Shapes) -> Iterable[str]:
    x, w = _pair(shapes)
    yield from _slides(node, len(x) - 2)
    yield from _weights(node, x, w, True)
    yield from _holds("the bias", shapes[2], w[1] * node.attrs.get("group", 1))


@_demand("Gemm", "com.microsoft::FusedGemm")
def _gemm(node: Node, shapes: Shapes) -> Iterable[str]:
    for shape in _pair(shapes):
        if len(shape) != 2:
            yield "the factors are to have 2 dimensions"


@_demand("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")
def _global_pool(node: Node, shapes: Shapes) -> Iterable[str]:
    if len(_first(shapes)) < 2:
        yield "the input is to have 2 dimensions or more"


@_demand("MaxPool", "AveragePool", "LpPool")
def _pool(node: Node, shapes: Shapes) -> Iterable[str]:
    yield from _slides(node, len(_first(shapes)) - 2, kernel=True)


@_demand("Col2Im")
def _col2im(node: Node, shapes: Shapes) -> Iterable[str]:
    x, image = _pair(shapes)
    yield from _slides(node, image[0])
    yield from is_of_shape("block_shape", shapes[2], image)
    if len(x) != 3:
        yield "the columns are to have 3 dimensions"


@_demand("MaxUnpool")
def _max_unpool(node: Node, shapes: Shapes) -> Iterable[str]:
    yield from _slides(node, len(_first(shapes)) - 2, kernel=True)
    yield from is_of_shape("indices", shapes[1], _first(shapes))


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}


@_demand("LSTM", "GRU", "RNN")
def _recurrent(node: Node, shapes: Shapes) -> Iterable[str]:
    x, w = _pair(shapes)
    _, r = _pair(shapes, 2)
    directions = 2 if node.attrs.get("direction", "forward") == "bidirectional" else 1
    first = node.attrs.get("layout", 0)
    batch, hidden = x[0 if first else 1], r[2]
    rows = _GATES[node.op_type] * hidden
    yield from is_of_shape("W", w, (directions, rows, x[2]))
    yield from is_of_shape("R", r, (directions, rows, hidden))
    yield from is_of_shape("B", shapes[3], (directions, 2 * rows))
    yield from _holds("sequence_lens", shapes[4], batch)
    state = (batch, directions, hidden) if first else (directions, batch, hidden)
    yield from is_of_shape("initial_h", shapes[5], state)
    yield from is_of_shape("initial_c", shapes[6], state)
    yield from is_of_shape("P", shapes[7], (directions, 3 * hidden))
    yield from _activations(node, _ACTIVATIONS[node.op_type] * directions)


def _activations(node: Node, count: int) -> Iterable[str]:
    names = node.attrs.get("activations")
    if names and len(names) != count:
        yield f"{count} activations are needed, not {len(names)}"


@_demand("QuantizeLinear", "DequantizeLinear")
@_demand("com.microsoft::QuantizeLinear", "com.microsoft::DequantizeLinear")
def _quantize(node: Node, shapes: Shapes) -> Iterable[str]:
    x, scale = _pair(shapes)
    axis, size = node.attrs.get("axis", 1), math.prod(scale)
    blocks = node.attrs.get("block_size", 0) > 0
    if len(scale) <= 1 and size != 1 and not (blocks and len(x) == 1):
        if not -len(x) <= axis < len(x) or size != x[axis]:
            yield f"the scale is to hold 1 element, or one for each along axis {axis}"
    elif len(scale) > 1 and len(scale) != len(x):
        yield "a scale for blocks is to have as many dimensions as the input"
    yield from _holds("the zero point", shapes[2], size)
    yield from _blocks(node, shapes)


def _blocks(node: Node, shapes: Shapes) -> Iterable[str]:
    """Faults of scales of which each is for a block of elements along an axis."""
    (x, scale), block = _pair(shapes), node.attrs.get("block_size", 0)
    if block < 0:
        yield f"block_size {block} is negative"
    if block > 0 and scale:
        axis = node.attrs.get("axis", 1) % max(len(x), 1)
        blocks = (*x[:axis], -(-x[axis] // block), *x[axis + 1 :])
        yield from is_of_shape("a scale for blocks", scale, blocks)
        yield from is_of_shape("a zero point for blocks", shapes[2], blocks)


class _Places(NamedTuple):
    """Where a product of bytes has its weights, and what is for a tensor, an output or a row."""

    weights: int
    single: tuple[int, ...]
    per_output: tuple[int, ...]
    bias: int | None = None
    per_row: int | None = None


_PLACES = {
    "QLinearConv": _Places(3, (1, 2, 6, 7), (4, 5), 8),
    "ConvInteger": _Places(1, (2,), (3,)),
    "QLinearMatMul": _Places(3, (1, 6, 7), (4, 5), per_row=2),
    "MatMulInteger": _Places(1, (), (3,), per_row=2),
    "MatMulIntegerToFloat": _Places(1, (2,), (3, 5), 6, per_row=4),
    "DynamicQuantizeMatMul": _Places(1, (), (2, 3), 4),
    "QGemm": _Places(3, (1, 2, 7, 8), (4, 5)),
}


def _quantized(node: Node, shapes: Shapes, outputs: int, per_output: bool) -> Iterable[str]:
    places = _PLACES[node.op_type]
    for place in places.single:
        yield from _holds("a scale or zero point of input or output", shapes[place], 1)
    for place in places.per_output if per_output else ():
        yield from _holds("a scale or zero point of the weights", shapes[place], 1, outputs)
    if places.bias is not None:
        yield from _holds("the bias", shapes[places.bias], outputs)


@_demand("QLinearConv", "ConvInteger")
def _quantized_conv(node: Node, shapes: Shapes) -> Iterable[str]:
    x, w = _pair(shapes, _PLACES[node.op_type].weights)
    yield from _slides(node, len(x) - 2)
    yield from _weights(node, x, w, False)
    yield from _quantized(node, shapes, w[0], True)
    if not w[1]:
        yield "the input has no channels"


@_demand(
    "QLinearMatMul",
    "MatMulInteger",
    "com.microsoft::MatMulIntegerToFloat",
    "com.microsoft::DynamicQuantizeMatMul",
    "com.microsoft::QGemm",
)
def _quantized_product(node: Node, shapes: Shapes) -> Iterable[str]:
    places = _PLACES[node.op_type]
    x, w = _pair(shapes, places.weights)
    turned = node.op_type == "QGemm" and node.attrs.get("transB", 0)
    outputs, terms = (w[0], w[-1]) if turned else (w[-1], w[max(-2, -len(w))])
    if x[-1] != terms:
        yield f"rows of {x[-1]} cannot be multiplied by columns of {terms}"
    yield from _quantized(node, shapes, outputs if len(w) > 1 else 1, len(w) <= 2)
    if places.per_row is not None:
        rows = math.prod(x[:-1]), *x[-2:-1]
        yield from _holds("a zero point of the rows", shapes[places.per_row], 1, *rows)


_PAIRS_OF_LEVELS = ("QLinearAdd", "QLinearMul")
_LEVELS = ("Sigmoid", "LeakyRelu", "GlobalAveragePool", "AveragePool", "Softmax")


@_demand(*(f"com.microsoft::{name}" for name in _PAIRS_OF_LEVELS))
@_demand(*(f"com.microsoft::QLinear{name}" for name in _LEVELS))
def _levels(node: Node, shapes: Shapes) -> Iterable[str]:
    places = (1, 2, 4, 5, 6, 7) if node.op_type in _PAIRS_OF_LEVELS else (1, 2, 3, 4)
    for place in places:
        yield from _holds("a scale or zero point", shapes[place], 1)
    if node.op_type == "QLinearAveragePool":
        yield from _slides(node, len(_first(shapes)) - 2, kernel=True)


@_demand("com.microsoft::MatMulNBits")
def _matmul_nbits(node: Node, shapes: Shapes) -> Iterable[str]:
    x, w = _pair(shapes)
    terms, columns, size = node.attrs["K"], node.attrs["N"], node.attrs["block_size"]
    bits = node.attrs.get("bits", 4)
    if min(terms, columns, size, bits) < 1:
        yield "K, N, block_size and bits are to be positive"
    if x[-1] != terms:
        yield f"rows of {x[-1]} cannot be multiplied by columns of {terms}"
    blocks = -(-terms // size)
    if math.prod(w):  # else it is left out
        yield from _holds("the weights", w, columns * blocks * (size * bits // 8))
        yield from _holds("the scales", shapes[2], columns * blocks)
        packed = columns * -(-blocks * bits // 8)
        yield from _holds("the zero points", shapes[3], packed, columns * blocks)
    yield from _holds("the bias", shapes[5], columns)


@_demand("com.microsoft::GatherBlockQuantized")
def _gather_block_quantized(node: Node, shapes: Shapes) -> Iterable[str]:
    data, scales = _pair(shapes, 2)
    size, bits = node.attrs.get("block_size", 128), node.attrs.get("bits", 4)
    gathered, axis = node.attrs.get("gather_axis", 0), node.attrs.get("quantize_axis", 1)
    rank = len(data)
    if not (-rank <= axis < rank and -rank <= gathered < rank):
        yield f"gather_axis {gathered} and quantize_axis {axis} are to be dimensions of the data"
    if size < 1 or not 1 <= bits <= 8:
        yield "block_size is to be positive, and bits 1 to 8"
    axis %= rank
    # A byte holds one element or several: back-ends, which know the type of the data, know which.
    wholes = [(*data[:-1], data[-1] * each) for each in (1, 8 // bits)]
    blocks = [(*whole[:axis], -(-whole[axis] // size), *whole[axis + 1 :]) for whole in wholes]
    yield from is_of_shape("the scales", scales, *blocks)
    packed = (*scales[:-1], -(-scales[-1] * bits // 8))
    yield from is_of_shape("the zero points", shapes[3], packed, scales)


@_demand("com.microsoft::DynamicQuantizeLSTM")
def _dynamic_quantize_lstm(node: Node, shapes: Shapes) -> Iterable[str]:
    x, r = _pair(shapes, 2)
    directions = 2 if node.attrs.get("direction", "forward") == "bidirectional" else 1
    first = node.attrs.get("layout", 0)
    batch, hidden = x[0 if first else 1], r[1]
    columns = 4 * hidden
    state = (batch, directions, hidden) if first else (directions, batch, hidden)
    yield from is_of_shape("W", shapes[1], (directions, x[2], columns))
    yield from is_of_shape("R", r, (directions, hidden, columns))
    yield from is_of_shape("B", shapes[3], (directions, 2 * columns))
    yield from _holds("sequence_lens", shapes[4], batch)
    for place, name in ((5, "initial_h"), (6, "initial_c")):
        yield from is_of_shape(name, shapes[place], state)
    yield from is_of_shape("P", shapes[7], (directions, 3 * hidden))
    for place in range(8, 12):
        name = "a scale or zero point of the weights"
        yield from _holds(name, shapes[place], directions, directions * columns)
    yield from _activations(node, 3 * directions)


@_demand("com.microsoft::EmbedLayerNormalization")
def _embed_layer_normalization(node: Node, shapes: Shapes) -> Iterable[str]:
    _, words = _pair(shapes, 2)
    yield from _holds("gamma", shapes[5], words[1])
    yield from _holds("beta", shapes[6], words[1])


@_demand("NonMaxSuppression")
def _non_max_suppression(node: Node, shapes: Shapes) -> Iterable[str]:
    boxes, scores = _pair(shapes)
    if len(scores) != 3:
        yield "scores is to have 3 dimensions"
    yield from is_of_shape("boxes", boxes, (scores[0], scores[2], 4))
    for position, name in enumerate(("the most boxes", "the overlap", "the score"), 2):
        yield from _holds(name, shapes[position], 1)


@_demand("RoiAlign", "MaxRoiPool")
def _regions(node: Node, shapes: Shapes) -> Iterable[str]:
    x, regions = _pair(shapes)
    if len(x) != 4:
        yield "the input is to have 4 dimensions"
    yield from is_of_shape("rois", regions, (regions[0], 4 if node.op_type == "RoiAlign" else 5))
    yield from is_of_shape("batch_indices", shapes[2], (regions[0],))


@_demand("GridSample")
def _grid_sample(node: Node, shapes: Shapes) -> Iterable[str]:
    x, grid = _pair(shapes)
    if len(x) != len(grid) or x[0] != grid[0]:
        yield "input and grid are to have as many dimensions and images"


@_demand("DFT")
def _dft(node: Node, shapes: Shapes) -> Iterable[str]:
    x = _first(shapes)
    if len(x) < 2 or x[-1] not in (1, 2):
        yield "its input ends with the parts of a number: 1 of a real one, 2 of a complex one"
    yield from _holds("dft_length", shapes[1], 1)
    yield from _holds("axis", shapes[2], 1)


@_demand("STFT")
def _stft(node: Node, shapes: Shapes) -> Iterable[str]:
    signal, window = _first(shapes), shapes[2]
    if len(signal) not in (2, 3) or (len(signal) == 3 and signal[2] not in (1, 2)):
        yield "the signal is batch by samples, perhaps by the parts of a sample, 1 or 2"
    if window is not None and len(window) != 1:
        yield "the window is to have one dimension"
    yield from _holds("frame_step", shapes[1], 1)
    yield from _holds("frame_length", shapes[3], 1)
