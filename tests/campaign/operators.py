"""Windows, products, reductions and element-wise operators that do not fit what they are given.

A case is one node whose inputs fit each other, of sizes at which kernels begin to differ; then one
or two things of it are changed: a shape, an element type, an attribute, what the model says of a
value. Others stand before and behind it, so that it is fused and laid out as in a real model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from partita.tensors.cache_rows import ATTRIBUTES, row_bytes
from partita_conformance.draws.decoder import DECODER
from partita_conformance.draws.families.rare import tensor_scatter

from . import guard, numbers, tensors

sys.path.append(str(Path(__file__).parents[1]))

MICROSOFT = "com.microsoft"
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 48, 64, 65)
TYPES = tuple(
    np.dtype(kind)
    for kind in (
        *(np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.uint8),
        *(np.int16, np.int32, np.int64, np.uint32, np.bool_),
    )
)
LEVELS = (np.dtype(np.int8), np.dtype(np.uint8))


def case(seed, device="CPU", properties=None):
    """Makes, breaks and runs one model."""
    rng = np.random.default_rng(seed)
    maker = MAKERS[rng.integers(len(MAKERS))]
    node = Node(*maker(Draw(rng)))
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        BREAKS[rng.integers(len(BREAKS))](rng, node)
    proto, feeds = node.model(rng)
    at_end = guard.DEVICE["at_end"] = bool(rng.random() < 0.7)
    feeds = [guard.guarded(feed, at_end) for feed in feeds]
    shapes = [None if x is None else (x.dtype.name, *x.shape) for x in node.inputs]
    yield f"{node.op_type} {shapes} {node.attrs} at {'end' if at_end else 'start'}"
    tensors.run(proto, feeds, device, properties)


class Draw:
    """Draws sizes and tensors."""

    def __init__(self, rng):
        self.rng = rng

    def size(self, most=65):
        return int(self.rng.choice([n for n in SIZES if n <= most]))

    def shape(self, most_rank=4, most=33):
        return tuple(self.size(most) for _ in range(self.rng.integers(most_rank + 1)))

    def one_of(self, *values):
        return values[self.rng.integers(len(values))]

    def chance(self, share=0.5):
        return self.rng.random() < share

    def tensor(self, shape, kind=np.float32):
        kind = np.dtype(kind)
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            drawn = self.rng.integers(max(limits.min, -100), min(limits.max, 100), size=shape)
            return np.asarray(drawn, kind)
        return np.asarray(self.rng.standard_normal(shape)).astype(kind)

    def maybe(self, array, share=0.6):
        return array if self.chance(share) else None

    def integer(self):
        """One that few operators take."""
        return int(self.rng.choice(numbers.INTEGERS))

    def float_type(self):
        return self.one_of(np.float32, np.float32, np.float32, np.float16, np.float64)


class Node:
    """One operation and the arrays that it reads.

    Args:
        op_type: The operator.
        inputs: Arrays, ``None`` for those that are left out.
        attrs: Attributes.
        domain: Of the operator.
        outputs: How many there are.
        opset: Of ONNX's operators; drawn if it is 0.
        constants: Positions of inputs that are constants in any case.
    """

    def __init__(self, op_type, inputs, attrs, domain="", outputs=1, opset=0, constants=()):
        self.op_type, self.inputs, self.attrs = op_type, list(inputs), attrs
        self.domain, self.outputs, self.opset = domain, outputs, opset
        self.constants = constants
        self.told = {}

    def model(self, rng):
        """The model, and arrays for those inputs that are not constants."""
        opset = int(rng.choice([7, 11, 13, 17, 21, 22], p=[0.05, 0.05, 0.1, 0.4, 0.2, 0.2]))
        opset = self.opset or opset
        nodes, given, constants = [], {}, []
        names = ["" if x is None else f"i{k}" for k, x in enumerate(self.inputs)]
        for k, x in enumerate(self.inputs):
            if x is None:
                continue
            is_constant = k in self.constants
            before = not is_constant and rng.random() < 0.3 and x.dtype.kind == "f"
            source = f"i{k}s" if before else f"i{k}"
            if before:
                nodes += before_of(rng, x, source, f"i{k}")
            if is_constant or rng.random() < (0.25 if k == 0 else 0.75):
                constants.append(numpy_helper.from_array(x, source))
            else:
                given[source] = x
        results = [f"y{k}" for k in range(self.outputs)]
        made = helper.make_node(self.op_type, names, results, domain=self.domain, name="tried")
        made.attribute.extend(attributes_of(self.attrs))
        nodes.append(made)
        behind = ("Relu", "Sigmoid", "Neg", "Transpose", "Softmax", "Identity", "GlobalMaxPool")
        if rng.random() < 0.5:
            name = behind[rng.integers(len(behind))]
            nodes.append(helper.make_node(name, ["y0"], ["z"], name="behind"))
            results[0] = "z"
        how = ("exact", "open", "absent")[rng.integers(3)]
        inputs = [declared(name, x, how) for name, x in given.items()]
        outputs = [helper.make_tensor_value_info(name, 1, None) for name in results]
        for value in outputs:
            value.type.Clear()
        graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
        for name, (kind, shape) in self.told.items():
            if name not in results:
                graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10), list(given.values())


def before_of(rng, x, source, target):
    """Nodes that hand an input on as it is."""
    if x.ndim == 4 and 0 < x.shape[1] < 70 and x.dtype == np.float32 and rng.random() < 0.7:
        eye = np.eye(x.shape[1], dtype=np.float32).reshape(x.shape[1], x.shape[1], 1, 1)
        eye = numpy_helper.from_array(eye)
        weights = helper.make_node("Constant", [], [f"{target}w"], value=eye)
        return [weights, helper.make_node("Conv", [source, f"{target}w"], [target])]
    return [helper.make_node("Abs", [source], [target])]


def attributes_of(attrs):
    """Attributes with values of any type; those that protobuf does not take are left out."""
    for name, value in attrs.items():
        try:
            yield helper.make_attribute(name, value)
        except (TypeError, ValueError):  # an empty list has no type
            yield onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS)


def declared(name, x, how):
    shape = {"exact": x.shape, "open": [f"{name}{k}" for k in range(x.ndim)], "absent": None}[how]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), shape)


# ------------------------------------------------------------------------------------- breaks


def other_shape(rng, node):
    place = place_of(rng, node)
    if place is not None:
        node.inputs[place] = numbers.hostile_shape(rng, node.inputs[place])


def empty_dimension(rng, node):
    place = place_of(rng, node)
    if place is not None and node.inputs[place].ndim:
        shape = list(node.inputs[place].shape)
        shape[rng.integers(len(shape))] = 0
        node.inputs[place] = np.zeros(shape, node.inputs[place].dtype)


def other_rank(rng, node):
    place = place_of(rng, node)
    if place is not None:
        x = node.inputs[place]
        node.inputs[place] = np.resize(x, ()) if x.ndim == 1 and x.size else x.reshape(-1)


def other_type(rng, node):
    place = place_of(rng, node)
    if place is not None:
        with np.errstate(all="ignore"):
            node.inputs[place] = node.inputs[place].astype(TYPES[rng.integers(len(TYPES))])


def other_values(rng, node):
    place = place_of(rng, node)
    if place is not None and node.inputs[place].dtype.kind in "fiub":
        node.inputs[place] = numbers.hostile_array(rng, node.inputs[place])


def one_input_less(rng, node):
    place = place_of(rng, node)
    if place is not None:
        node.inputs[place] = None


def other_attribute(rng, node):
    if not node.attrs:
        return
    name = list(node.attrs)[rng.integers(len(node.attrs))]
    value = node.attrs[name]
    if isinstance(value, list):
        value = list(value)
        tensors.change_list(rng, value, numbers.hostile_integer)
    elif isinstance(value, int):
        value = numbers.hostile_integer(rng)
    elif isinstance(value, float):
        value = numbers.hostile_float(rng)
    node.attrs[name] = value


def small_attribute(rng, node):
    """Numbers that nobody would notice: a little negative, or larger than the image."""
    lists = [name for name, value in node.attrs.items() if isinstance(value, list) and value]
    if lists:
        name = lists[rng.integers(len(lists))]
        node.attrs[name] = [int(n) for n in rng.integers(-7, 8, len(node.attrs[name]))]


def lie(rng, node):
    """Says of a value that it has another shape or type than it has."""
    values = [("y0", node.inputs[0])]
    values += [(f"i{k}", x) for k, x in enumerate(node.inputs) if x is not None]
    name, x = values[rng.integers(len(values))]
    shape = [] if x is None else list(numbers.hostile_shape(rng, x).shape)
    kind = TensorProto.FLOAT if x is None else helper.np_dtype_to_tensor_dtype(x.dtype)
    if rng.random() < 0.2:
        kind = int(rng.integers(1, 17))
    node.told[name] = kind, shape


BREAKS = (
    *(other_shape, other_shape, empty_dimension, other_rank, other_type, other_values),
    *(one_input_less, other_attribute, other_attribute, small_attribute, small_attribute, lie),
)


def place_of(rng, node):
    """The place of one of the inputs that are there."""
    there = [k for k, x in enumerate(node.inputs) if x is not None]
    return there[rng.integers(len(there))] if there else None


# ------------------------------------------------------------------------------------- makers


def window_of(d, rank, sizes):
    """Attributes of a window, and its size."""
    kernel = [min(int(d.one_of(1, 2, 3, 3, 5)), n) for n in sizes]
    attrs = {"kernel_shape": kernel}
    if d.chance():
        attrs["strides"] = [int(n) for n in d.rng.integers(1, 4, rank)]
    if d.chance():
        attrs["pads"] = [int(n) for n in d.rng.integers(0, 3, 2 * rank)]
    if d.chance(0.2):
        attrs["dilations"] = [int(n) for n in d.rng.integers(1, 3, rank)]
    if d.chance(0.1):
        attrs["auto_pad"] = d.one_of("SAME_UPPER", "SAME_LOWER", "VALID")
    return attrs, kernel


def image_of(d, most_channels=65):
    """Rank, batch, channels and sizes of an image."""
    rank = int(d.one_of(1, 2, 2, 2, 2, 2, 3))
    most = {1: 33, 2: 17, 3: 7}[rank]
    return rank, int(d.one_of(1, 1, 2)), d.size(most_channels), [d.size(most) for _ in range(rank)]


def grouped(d, channels):
    """Groups, weights' outputs and inputs per group."""
    groups = int(d.one_of(1, 1, 1, channels, channels, 2))
    if channels % groups:
        groups = 1
    each = 1 if groups == channels else max(d.size(33) // groups, 1)
    return groups, groups * each, channels // groups


def convolution(d):
    rank, n, channels, sizes = image_of(d)
    groups, outputs, inputs = grouped(d, channels)
    attrs, kernel = window_of(d, rank, sizes)
    kind = d.float_type()
    x, w = d.tensor((n, channels, *sizes), kind), d.tensor((outputs, inputs, *kernel), kind)
    bias = d.maybe(d.tensor((outputs,), kind))
    if d.chance(0.8):
        return "Conv", [x, w, bias], {**attrs, "group": groups}
    attrs["activation"] = d.one_of("Relu", "LeakyRelu", "Clip")
    attrs["activation_params"] = [0.1, 2.0]
    return "FusedConv", [x, w, bias], {**attrs, "group": groups}, MICROSOFT


def transposed_convolution(d):
    rank, n, channels, sizes = image_of(d, 24)
    groups, outputs, _ = grouped(d, channels)
    attrs, kernel = window_of(d, rank, sizes)
    if d.chance(0.3):
        attrs["output_padding"] = [int(k) for k in d.rng.integers(0, 2, rank)]
    if d.chance(0.2):
        attrs["output_shape"] = [2 * k for k in sizes]
    if d.chance(0.3):
        attrs["strides"], attrs["pads"] = list(kernel), [0] * 2 * rank
    kind = d.float_type()
    weights = d.tensor((channels, outputs // groups, *kernel), kind)
    bias = d.maybe(d.tensor((outputs,), kind))
    x = d.tensor((n, channels, *sizes), kind)
    return "ConvTranspose", [x, weights, bias], {**attrs, "group": groups}


def quantized_convolution(d):
    rank, n, channels, sizes = image_of(d)
    groups, outputs, inputs = grouped(d, channels)
    attrs, kernel = window_of(d, rank, sizes)
    kinds = d.one_of(*LEVELS), d.one_of(*LEVELS), d.one_of(*LEVELS)
    x = d.tensor((n, channels, *sizes), kinds[0])
    w = d.tensor((outputs, inputs, *kernel), kinds[1])
    attrs["group"] = groups
    if d.chance(0.3):
        zeros = d.maybe(d.tensor((), kinds[0])), d.maybe(d.tensor((), kinds[1]))
        return "ConvInteger", [x, w, *zeros], attrs
    each = (outputs,) if d.chance() else ()
    scales = [np.abs(d.tensor(shape)) + np.float32(0.1) for shape in ((), each, ())]
    zeros = [d.tensor(shape, k) for shape, k in zip(((), each, ()), kinds, strict=True)]
    bias = d.maybe(d.tensor((outputs,), np.int32))
    inputs = [x, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], zeros[2], bias]
    return "QLinearConv", inputs, attrs


def pool(d):
    rank, n, channels, sizes = image_of(d)
    name = d.one_of("MaxPool", "MaxPool", "AveragePool", "LpPool")
    attrs, _ = window_of(d, rank, sizes)
    attrs["ceil_mode"] = int(d.chance())
    if name == "AveragePool":
        attrs["count_include_pad"] = int(d.chance())
    if name == "LpPool":
        attrs["p"] = int(d.one_of(1, 2, 3))
    kind = d.one_of(*LEVELS) if name == "MaxPool" and d.chance(0.3) else d.float_type()
    two = name == "MaxPool" and d.chance(0.3)
    return name, [d.tensor((n, channels, *sizes), kind)], attrs, "", 2 if two else 1


def quantized_pool(d):
    rank, n, channels, sizes = image_of(d)
    attrs, _ = window_of(d, rank, sizes)
    name = d.one_of("QLinearAveragePool", "QLinearGlobalAveragePool")
    attrs = attrs if name == "QLinearAveragePool" else {"channels_last": int(d.chance(0.3))}
    return name, [d.tensor((n, channels, *sizes), LEVELS[1]), *grid(d), *grid(d)], attrs, MICROSOFT


def grid(d, kind=LEVELS[1]):
    """A scale and a zero point."""
    return [np.abs(d.tensor(())) + np.float32(0.1), d.tensor((), kind)]


def whole_pool(d):
    _, n, channels, sizes = image_of(d)
    name = d.one_of("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
    attrs = {"p": 2} if name == "GlobalLpPool" else {}
    return name, [d.tensor((n, channels, *sizes), d.float_type())], attrs


def unpool(d):
    n, channels, h, w = 1, d.size(5), d.size(5), d.size(5)
    x = d.tensor((n, channels, h, w))
    places = d.rng.integers(0, x.size * 4, x.shape)
    shape = d.maybe(np.array([n, channels, 2 * h, 2 * w + 1]), 0.3)
    return "MaxUnpool", [x, places, shape], {"kernel_shape": [2, 2], "strides": [2, 2]}


def columns(d):
    h, w, a, b = (d.size(9) for _ in range(4))
    block = [min(a, h), min(b, w)]
    count = (h - block[0] + 1) * (w - block[1] + 1)
    x = d.tensor((1, d.size(5) * block[0] * block[1], count))
    return "Col2Im", [x, np.array([h, w]), np.array(block)], {"strides": [1, 1]}


def matrices(d):
    """Shapes of a product's two sides, and its columns."""
    m, k, n = d.size(), d.size(), d.size()
    batch = d.shape(2, 3) if d.chance(0.3) else ()
    left = (k,) if d.chance(0.1) else (*batch, m, k)
    right = (*batch, k, n) if d.chance(0.3) else (k, n)
    return left, right, n


def product(d):
    left, right, n = matrices(d)
    kind = d.float_type()
    if d.chance():
        return "MatMul", [d.tensor(left, kind), d.tensor(right, kind)], {}
    attrs = {"transA": int(d.chance(0.3)), "transB": int(d.chance()), "alpha": 1.0, "beta": 1.0}
    m, k = d.size(), d.size()
    x = (k, m) if attrs["transA"] else (m, k)
    w = (n, k) if attrs["transB"] else (k, n)
    c = d.one_of(None, (n,), (m, n), (m, 1), (1, n), (1,), ())
    inputs = [d.tensor(x, kind), d.tensor(w, kind), None if c is None else d.tensor(c, kind)]
    if d.chance(0.2):
        return "FusedGemm", inputs, {**attrs, "activation": "Relu"}, MICROSOFT
    return "Gemm", inputs, attrs


def quantized_product(d):
    left, right, n = matrices(d)
    one, other, third = d.one_of(*LEVELS), d.one_of(*LEVELS), d.one_of(*LEVELS)
    x, w = d.tensor(left, one), d.tensor(right, other)
    each = (n,) if d.chance() else ()
    scale, zero = np.abs(d.tensor(each)) + np.float32(0.1), d.tensor(each, other)
    bias = d.maybe(d.tensor((n,)))
    match d.rng.integers(5):
        case 0:
            of_rows = d.tensor((left[-2],) if len(left) > 1 and d.chance() else (), one)
            return "MatMulInteger", [x, w, d.maybe(of_rows), d.maybe(zero)], {}
        case 1:
            return "QLinearMatMul", [x, *grid(d, one), w, scale, zero, *grid(d, third)], {}
        case 2:
            points = d.maybe(d.tensor((), one)), d.maybe(zero)
            inputs = [x, w, np.abs(d.tensor(())), scale, *points, bias]
            return "MatMulIntegerToFloat", inputs, {}, MICROSOFT
        case 3:
            inputs = [d.tensor(left), w, scale, d.maybe(zero), bias]
            return "DynamicQuantizeMatMul", inputs, {}, MICROSOFT
        case _:
            turned = int(d.chance())
            m, k = d.size(), d.size()
            w = d.tensor((n, k) if turned else (k, n), other)
            end = grid(d, third) if d.chance() else [None, None]
            terms = d.maybe(d.tensor((n,), np.int32))
            inputs = [d.tensor((m, k), one), *grid(d, one), w, scale, zero, terms, *end]
            return "QGemm", inputs, {"transB": turned}, MICROSOFT


def quantized_blocks(d):
    """Products with, and look-ups in, weights that have a scale for each block."""
    bits, size = int(d.one_of(4, 8)), int(d.one_of(16, 16, 32, 64))
    terms, columns = d.size(), d.size(33)
    blocks = -(-terms // size)
    zeros = d.one_of(
        None,
        d.tensor((columns, -(-blocks * bits // 8)), np.uint8),
        np.abs(d.tensor((columns, blocks))),
    )
    scales = np.abs(d.tensor((columns, blocks)))
    if d.chance(0.3):
        index = d.tensor(d.shape(2, 5), d.one_of(np.int32, np.int64))
        data = d.tensor((columns, terms), np.uint8)
        if bits == 4:
            data, scales = d.tensor((columns, size), np.uint8), np.abs(d.tensor((columns, 2)))
            zeros = d.maybe(d.tensor((columns, 1), np.uint8))
        attrs = {"bits": bits, "block_size": size, "gather_axis": 0, "quantize_axis": 1}
        return "GatherBlockQuantized", [data, index % columns, scales, zeros], attrs, MICROSOFT
    w = d.tensor((columns, blocks, size * bits // 8), np.uint8)
    inputs = [d.tensor((*d.shape(2, 4), terms)), w, scales, zeros, None, d.maybe(d.tensor(columns))]
    attrs = {"K": terms, "N": columns, "bits": bits, "block_size": size}
    if d.chance(0.2):  # terms name their scales
        inputs[4] = d.rng.integers(0, blocks, terms).astype(np.int32)
        return "MatMulNBits", inputs, attrs, MICROSOFT, 1, 0, (1, 2, 3, 4)
    return "MatMulNBits", inputs, attrs, MICROSOFT


def mixture(d):
    """Mixtures of experts, by weights of floats or of few bits."""
    from mixtures import Mixture

    activation = d.one_of("relu", "gelu", "silu", "identity", "swiglu")
    bits, third = int(d.one_of(0, 4, 8)), bool(d.chance(0.3))
    attrs = {"activation_type": activation, "k": int(d.one_of(1, 2))}
    attrs |= {"normalize_routing_weights": int(d.chance())}
    if activation == "swiglu":
        attrs["swiglu_fusion"] = 0 if third else int(d.one_of(1, 2))
    sizes = 2 * d.size(33), 2 * d.size(33), int(d.one_of(2, 3, 5))
    block = int(d.one_of(0, 16, 32)) if bits else 0
    kind = d.one_of(np.float32, np.float32, np.float16)
    seed = int(d.rng.integers(1 << 30))
    made = Mixture(
        seed, sizes, bits, block, bool(d.chance()), third, bool(d.chance()), kind, **attrs
    )
    inputs = made.inputs(*made.tokens(*d.one_of((1,), (d.size(),), (2, d.size(9)))))
    constants = range(2, len(inputs))
    return made.op_type, inputs, made.node_attributes(), MICROSOFT, 1, 0, constants


def decoding(d):
    """An operator of a language model, as the conformance kit draws it, or a cache's update."""
    name = d.one_of(*DECODER, "GroupQueryAttention", "GroupQueryAttention", "TensorScatter")
    op, draw = DECODER.get(name, (name, tensor_scatter))
    drawn = draw(d.rng)
    inputs = list(drawn.inputs)
    if name == "GroupQueryAttention" and d.chance(0.3):
        kind = d.one_of(np.float16, ml_dtypes.bfloat16)
        inputs[3:5] = [past.astype(kind) for past in inputs[3:5]]
    if name == "RotaryEmbedding" and inputs[1].ndim == 2 and d.chance():  # ONNX's own
        attrs = {**drawn.attributes, "num_heads": inputs[0].shape[-1] // 2 // inputs[2].shape[1]}
        return name, [inputs[0], *inputs[2:], inputs[1]], attrs, "", 1, 23
    return op, inputs, drawn.attributes, drawn.domain, drawn.outputs, drawn.opset


def quantized_elements(d):
    kind = d.one_of(*LEVELS)
    shape = d.shape()
    x = d.tensor(shape, kind)
    match d.rng.integers(4):
        case 0:
            name = d.one_of("QLinearAdd", "QLinearMul")
            other = d.tensor(shape if d.chance() else shape[1:], kind)
            inputs = [x, *grid(d, kind), other, *grid(d, kind), *grid(d, kind)]
            return name, inputs, {}, MICROSOFT
        case 1:
            name = d.one_of("QLinearSigmoid", "QLinearLeakyRelu")
            return name, [x, *grid(d, kind), *grid(d, kind)], {}, MICROSOFT
        case 2:
            attrs = {"axis": -1, "opset": int(d.one_of(11, 13))}
            return "QLinearSoftmax", [x, *grid(d, kind), *grid(d, kind)], attrs, MICROSOFT
        case _:
            parts, end = [], grid(d, kind)
            for _ in range(d.rng.integers(1, 4)):
                own = end if d.chance() else grid(d, kind)
                parts += [d.tensor((d.size(9), *shape[1:]), kind), *own]
            return "QLinearConcat", [*end, *parts], {"axis": 0}, MICROSOFT


def quantizing(d):
    shape = (d.size(17), d.size(17), d.size(17))[: d.rng.integers(1, 4)]
    axis = int(d.rng.integers(len(shape)))
    kind = d.one_of(*LEVELS, np.dtype(np.int16), np.dtype(np.int32))
    attrs = {"axis": axis}
    scales = d.one_of((), (shape[axis],))
    if d.chance(0.3):
        attrs["block_size"] = 2
        scales = (*shape[:axis], -(-shape[axis] // 2), *shape[axis + 1 :])
    zero = d.maybe(d.tensor(scales, kind))
    scale = np.abs(d.tensor(scales)) + np.float32(0.1)
    name = d.one_of("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
    if name == "DynamicQuantizeLinear":
        return name, [d.tensor(shape)], {}, "", 3
    x = d.tensor(shape, np.float32 if name == "QuantizeLinear" else kind)
    return name, [x, scale, zero], attrs


REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")


def reduction(d):
    x = d.tensor(d.shape() or (7,), d.one_of(np.float32, np.float32, np.int32, np.int64))
    name = f"Reduce{d.one_of(*REDUCTIONS)}"
    axes = [int(a) for a in d.rng.integers(-x.ndim, x.ndim, d.rng.integers(0, 3))]
    attrs = {"keepdims": int(d.chance())}
    if d.chance():
        return name, [x], {**attrs, "axes": axes}
    return name, [x, np.array(axes, np.int64)], {**attrs, "noop_with_empty_axes": int(d.chance())}


def along_an_axis(d):
    x = d.tensor(d.shape() or (7,), d.float_type())
    axis = int(d.rng.integers(-x.ndim, x.ndim))
    name = d.one_of("Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "CumSum")
    if name == "CumSum":
        attrs = {"exclusive": int(d.chance()), "reverse": int(d.chance())}
        return name, [x, np.array(axis, np.int64)], attrs
    attrs = {"axis": axis}
    if name.startswith("Arg"):
        attrs |= {"keepdims": int(d.chance()), "select_last_index": int(d.chance(0.3))}
    return name, [x], attrs


def transform(d):
    """Frames, or lines along any axis; steps, lengths and axes may be anything."""
    kind, parts, onesided = d.float_type(), d.one_of(1, 1, 2), int(d.chance())
    if d.chance():
        x = d.tensor((*d.shape(3), d.size(), parts), kind)
        length = d.maybe(np.array(d.one_of(d.size(), d.size(), d.integer())))
        axis = d.maybe(np.array(d.rng.integers(-x.ndim, x.ndim - 1)))
        attrs = {"onesided": onesided, "inverse": int(d.chance())}
        return "DFT", [x, length, axis], attrs, "", 1, 20
    length = d.size(33)
    signal = d.tensor((d.size(5), d.size() + length, parts), kind)
    step = np.array(d.one_of(d.size(9), d.size(9), d.integer()))
    window = d.maybe(d.tensor((length,), kind))
    given = [signal, step, window, d.maybe(np.array(length)) if window is not None else None]
    return "STFT", given, {"onesided": onesided}, "", 1, 17


def pair(d):
    shape = d.shape()
    names = ("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Max", "Min", "Mean", "Equal", "Less")
    name = d.one_of(*names, "BitShift", "BitwiseAnd", "PRelu")
    kind = d.one_of(np.float32, np.float16, np.int32, np.int64, np.uint8, np.uint32)
    if name in ("BitShift", "BitwiseAnd"):
        kind = d.one_of(np.uint8, np.uint32, np.uint64)
    attrs = {"direction": d.one_of("LEFT", "RIGHT")} if name == "BitShift" else {}
    if name == "Mod":
        attrs["fmod"] = int(np.dtype(kind).kind == "f")
    other = tuple(int(d.one_of(1, n)) for n in shape)[d.rng.integers(len(shape) + 1) :]
    return name, [d.tensor(shape, kind), d.tensor(other, kind)], attrs


def single(d):
    names = ("Relu", "Abs", "Neg", "Exp", "Erf", "Sin", "Floor", "Round", "IsInf", "HardSwish")
    name = d.one_of(*names, "Gelu", "Elu", "LeakyRelu", "Clip", "Cast", "Where", "Shrink")
    x = d.tensor(d.shape(), d.float_type())
    if name == "Clip":
        low, high = d.tensor((), x.dtype), d.tensor((), x.dtype)
        return name, [x, d.maybe(low), d.maybe(high)], {}
    if name == "Cast":
        to = helper.np_dtype_to_tensor_dtype(TYPES[d.rng.integers(len(TYPES))])
        return name, [x], {"to": int(to)}
    if name == "Where":
        return name, [d.tensor(x.shape) > 0, x, d.tensor(x.shape[1:], x.dtype)], {}
    attrs = {"alpha": 0.5} if name in ("Elu", "LeakyRelu") else {}
    return name, [x], attrs


def attention(d):
    heads, depth, queries, keys = d.size(4), d.size(33), d.size(17), d.size(17)
    shared = int(d.one_of(1, heads))
    q = d.tensor((1, heads, queries, depth))
    k, v = d.tensor((1, shared, keys, depth)), d.tensor((1, shared, keys, d.size(33)))
    mask = d.maybe(d.tensor(d.one_of((queries, keys), (1, keys), (1, 1, queries, keys))))
    if d.chance(0.7):
        return "Attention", [q, k, v, mask], {"is_causal": int(d.chance())}
    merged = [x.transpose(0, 2, 1, 3).reshape(1, x.shape[2], -1) for x in (q, k, k)]
    return "MultiHeadAttention", merged, {"num_heads": heads}, MICROSOFT


def normalized(d):
    x = d.tensor((d.size(5), d.size(33), *d.shape(2, 9)))
    each = x.shape[1]
    match d.rng.integers(4):
        case 0:
            terms = [np.abs(d.tensor((each,))) for _ in range(4)]
            return "BatchNormalization", [x, *terms], {"epsilon": 1e-5}
        case 1:
            terms = d.tensor((each,)), d.tensor((each,))
            return "InstanceNormalization", [x, *terms], {"epsilon": 1e-5}
        case 2:
            axis = int(d.rng.integers(-x.ndim, x.ndim))
            shape = x.shape[axis:]
            return "LayerNormalization", [x, d.tensor(shape), d.tensor(shape)], {"axis": axis}
        case _:
            return "LRN", [x], {"size": 3}


def normalized_sum(d):
    kind = d.one_of(np.float32, np.float16)
    x = d.tensor((d.size(3), d.size(9), d.size()), kind)
    row = x.shape[2:]
    skip = d.tensor(x.shape[d.rng.integers(2) :], kind)
    inputs = [x, skip, d.tensor(row, kind), d.maybe(d.tensor(row, kind))]
    return "SkipSimplifiedLayerNormalization", inputs, {"epsilon": 1e-5}, MICROSOFT


def cached_attention(d):
    heads, group, size = d.one_of(1, 2, 3), d.one_of(1, 2, 3), d.one_of(8, 16, 24, 32, 64)
    batch, tokens, places = d.size(3), d.one_of(d.size(9), d.size(33), d.size()), d.size()
    kind, cache = d.one_of(np.float32, np.float16), d.one_of(np.float32, np.float16, np.int8)
    q = d.tensor((batch, tokens, heads * group * size), kind)
    k, v = (d.tensor((batch, tokens, heads * size), kind) for _ in range(2))
    if d.chance(0.3):
        q, k, v = np.concatenate([q, k, v], 2), None, None
    quantized = cache == np.int8  # any bytes are scales, NaN among them
    row = row_bytes(size) if quantized else size
    past = [d.tensor((batch, heads, places, row), cache) for _ in range(2)]
    most = int(d.rng.integers(tokens, max(places, tokens) + 1))
    lengths = d.rng.integers(min(tokens, most) - 1, most, batch)
    if d.chance(0.2):
        lengths, most = d.rng.integers(-4, 99, batch), int(d.rng.integers(-4, 99))
    lengths = [np.asarray(lengths, np.int32), np.array(most, np.int32)]
    attrs = {"num_heads": heads * group, "kv_num_heads": heads, "do_rotary": d.one_of(0, 1)}
    attrs |= {"rotary_interleaved": d.one_of(0, 1), "local_window_size": d.one_of(-1, -1, 0, 1, 5)}
    attrs |= ATTRIBUTES if quantized else {}
    tables = [d.tensor((places + d.one_of(0, 0, -1), size // 2), kind)] * 2
    return "GroupQueryAttention", [q, k, v, *past, *lengths, *tables], attrs, MICROSOFT, 3


def turned_heads(d):
    heads, size, batch, tokens, rows = d.size(4), 2 * d.size(9), d.size(3), d.size(5), d.size(9)
    x = d.tensor(d.one_of((batch, tokens, heads * size), (batch, heads, tokens, size)))
    ids = d.rng.integers(-1, rows + 1, d.one_of((1,), (batch, tokens)))
    tables = [d.tensor((rows, size // 2)) for _ in range(2)]
    attrs = {"num_heads": heads, "interleaved": d.one_of(0, 1)}
    return "RotaryEmbedding", [x, ids, *tables], attrs, MICROSOFT


MAKERS = (
    *(cached_attention,) * 2,
    turned_heads,
    normalized_sum,
    *(convolution,) * 4,
    *(transposed_convolution,) * 2,
    *(quantized_convolution,) * 3,
    *(pool,) * 3,
    *(quantized_pool, whole_pool, unpool, columns),
    *(product,) * 2,
    *(quantized_product,) * 4,
    *(quantized_blocks,) * 4,
    *(mixture,) * 2,
    *(decoding,) * 4,
    *(quantized_elements,) * 2,
    *(quantizing,) * 2,
    *(reduction,) * 2,
    *(along_an_axis, transform, pair, pair, single, attention, normalized),
)
"""What makes a node: as often as its kernels differ."""
