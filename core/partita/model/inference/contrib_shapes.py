"""Shapes behind operators that ONNX's inference does not know, as those of onnxruntime.

For inference alone each of them is replaced by operators of ONNX whose results are of the same
types and shapes: an input that has a result's shape goes through an Identity; where a result has
another last dimension, a product with a matrix of that width, which need not exist, tells it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from partita.model.inference.optimizer_shapes import OPTIMIZER_STAND_INS, name_at
from partita.model.port import Dim, value_shape
from partita.model.value_uses import attributes
from partita.shapes.cache_length import may_grow

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

_MICROSOFT = "com.microsoft"

FLOAT = 1
"""The type float32, by its number in protobufs."""

INT64 = 7
"""The type int64, by its number in protobufs."""

BOOL = 9
"""The type bool, by its number in protobufs."""

_WINDOWS = (
    *("AveragePool", "LpPool", "MaxPool"),
    *("Conv", "ConvInteger", "ConvTranspose", "QLinearConv"),
)

_TELLS_RANKS = 14
"""The opset from which on inference says something of a Reshape whose sizes are computed."""

_LAYER_NORMALIZATION = 17
"""The opset with which ONNX's LayerNormalization begins; onnxruntime's has its name before."""

_YOUNGER = "partita.younger"
"""The domain of functions that compute by a younger opset than their model."""

_MOST = (1 << 31) - 1
"""A size that no tensor has."""

_LIKE_FIRST = frozenset(
    {
        *("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding", "MoE", "QMoE"),
        *("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    }
)
"""Operators whose first result has the type and shape of the first input."""

_SUMS = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
"""Those whose fourth result has them too."""


_StandIn = Callable[["ModelWriter", "onnx.GraphProto", "ir.Node"], None]
"""Writes others in the place of an operation, or nothing where it is right as it is."""


class ModelWriter:
    """Writes the operations of a model, and of their bodies, for inference alone.

    Args:
        model: Its opsets are known. Inputs that operations in bodies may read as well are added to
            its graph, and functions to itself.
        written: Protobufs of operations that have them.
        doubts_sizes: What bodies claim of sizes in numbers only was true of other inputs; ranks
            are believed.

    Attributes:
        opset: Of ONNX's operators.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        written: Mapping[ir.Node, onnx.NodeProto],
        *,
        doubts_sizes: bool,
    ) -> None:
        self._model, self._main, self._written = model, model.graph, written
        self._doubts_sizes = doubts_sizes
        versions = {opset.domain: opset.version for opset in model.opset_import}
        self.opset = versions.get("", _TELLS_RANKS)

    def add(self, nodes: Iterable[ir.Node]) -> None:
        """Adds operations, or others that tell their shapes."""
        alike: list[onnx.NodeProto] = []  # to copy many at once takes a third of the time
        for node in nodes:
            source = self._written.get(node)
            if source is not None and self._stand_in(node) is None:
                alike.append(source)
                continue
            self._main.node.extend(alike)
            alike.clear()
            self._add(self._main, node)
        self._main.node.extend(alike)

    def source(self, name: str, element_type: int, dims: Sequence[Dim]) -> str:
        """Adds an input of the model that tells a type and sizes; its name, which is not taken."""
        return add_source(self._main, name, element_type, dims)

    def reshape(self, graph: onnx.GraphProto, node: ir.Node) -> None:
        """Adds a Reshape, or a call of one that tells a rank by the length of computed sizes."""
        self.as_it_is(graph, node)
        sizes = node.inputs[1] if len(node.inputs) > 1 else None
        ranks_known = self.opset >= _TELLS_RANKS
        if ranks_known or sizes is None or sizes.const_value is not None:
            return
        graph.node[-1].domain = _YOUNGER
        if not any(opset.domain == _YOUNGER for opset in self._model.opset_import):
            self._model.opset_import.add(domain=_YOUNGER, version=1)
            function = self._model.functions.add(domain=_YOUNGER, name="Reshape")
            function.input.extend(["data", "shape"])
            function.output.append("reshaped")
            function.opset_import.add(version=_TELLS_RANKS)
            function.node.add(op_type="Reshape", input=function.input, output=function.output)

    def _stand_in(self, node: ir.Node) -> _StandIn | None:
        """What writes others in the place of an operation."""
        names = _STAND_INS if node.domain == _MICROSOFT else {} if node.domain else _OF_ONNX
        return names.get(node.op_type)

    def _add(self, graph: onnx.GraphProto, node: ir.Node) -> None:
        stand_in, before = self._stand_in(node), len(graph.node)
        if stand_in is not None:
            stand_in(self, graph, node)
        if len(graph.node) == before:  # what it makes is read, whether anything tells its shapes
            self.as_it_is(graph, node)

    def as_it_is(self, graph: onnx.GraphProto, node: ir.Node) -> None:
        """Adds an operation, in half the time that onnx-ir takes, which writes notes as well."""
        source = self._written.get(node)
        if source is not None:
            graph.node.add().CopyFrom(source)
            return
        from onnx_ir import serde

        if node.overload:
            serde.serialize_node_into(graph.node.add(), node)
            return
        added = graph.node.add()
        added.op_type, added.domain, added.name = node.op_type, node.domain, node.name or ""
        added.input.extend(["" if value is None else value.name or "" for value in node.inputs])
        outputs = [value.name or "" for value in node.outputs]
        while outputs and not outputs[-1]:
            outputs.pop()
        added.output.extend(outputs)
        for attribute in attributes(node):
            place = added.attribute.add()
            kind = attribute.type.name
            if attribute.is_ref():
                serde.serialize_reference_attribute_into(place, attribute)
            elif kind == "INT":
                place.name, place.type, place.i = attribute.name, place.INT, attribute.value
            elif kind == "INTS":
                place.name, place.type = attribute.name, place.INTS
                place.ints.extend(attribute.value)
            elif kind == "GRAPH":
                place.name, place.type = attribute.name, place.GRAPH
                self._fill_body(place.g, attribute.value)
            else:
                serde.serialize_attribute_into(place, attribute)

    def _fill_body(self, proto: onnx.GraphProto, body: ir.Graph) -> None:
        """Writes a body of If, Loop or Scan, with what the file claims of its values."""
        from onnx_ir import serde

        proto.name = body.name or ""
        for value in body.inputs:
            self._describe(proto.input.add(), value)
        for name, value in body.initializers.items():
            if value.const_value is not None:
                tensor = proto.initializer.add()
                serde.serialize_tensor_into(tensor, value.const_value)
                tensor.name = name
        for node in body:
            self._add(proto, node)
            for value in node.outputs:
                if value.name and (value.type is not None or value.shape is not None):
                    self._describe(proto.value_info.add(), value)
        for value in body.outputs:
            self._describe(proto.output.add(), value)

    def _describe(self, info: onnx.ValueInfoProto, value: ir.Value) -> None:
        """Writes name, type and shape of a value; nearly all are tensors."""
        import onnx_ir as ir
        from onnx_ir import serde

        kind = value.type
        if type(kind) is not ir.TensorType:
            serde.serialize_value_into(info, value)
            return
        info.name = value.name or ""
        shape = value_shape(value)
        if self._doubts_sizes and shape and all(isinstance(size, int) for size in shape):
            shape = (None,) * len(shape)
        info.type.CopyFrom(tensor_type(kind.dtype.value, shape))


def add_source(main: onnx.GraphProto, name: str, element_type: int, dims: Sequence[Dim]) -> str:
    """Adds an input that operations in bodies may read as well.

    Args:
        main: The model's own graph, which all bodies see.
        name: What the input's name begins with.
        element_type: ONNX's number of the type.
        dims: Sizes or symbols.

    Returns:
        The input's name, which nothing else has.
    """
    own = f"{name}/{len(main.input)}"
    main.input.add(name=own, type=tensor_type(element_type, tuple(dims)))
    return own


@functools.lru_cache(maxsize=1 << 10)
def tensor_type(element_type: int, shape: tuple[Dim, ...] | None) -> onnx.TypeProto:
    """The type of a tensor, which others may have too: it is not to be written to."""
    import onnx

    return onnx.helper.make_tensor_type_proto(element_type, shape)


def _like_first(_writer: ModelWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    _same(graph, node, 0, 0)
    if node.op_type in _SUMS:
        _same(graph, node, 0, 3)


def _typed_by_scale(_writer: ModelWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """The first input in the type of the second; CastLike begins with opset 15."""
    given, scale, made = name_at(node.inputs, 0), name_at(node.inputs, 1), name_at(node.outputs, 0)
    if not given or not scale or not made:
        return
    element_type = None if node.inputs[1] is None else node.inputs[1].dtype
    if element_type is None:
        graph.node.add(op_type="CastLike", input=[given, scale], output=[made])
        return
    cast = graph.node.add(op_type="Cast", input=[given], output=[made])
    cast.attribute.add(name="to", type=2, i=element_type.value)  # AttributeProto.INT


def _layer_normalization(writer: ModelWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """What onnxruntime's optimizer makes before opset 17, with which ONNX's own begins."""
    if writer.opset < _LAYER_NORMALIZATION:
        _typed_by_scale(writer, graph, node)


def _sorted_axes(writer: ModelWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """The axes of a Squeeze in order: inference before opset 11 goes through them but once."""
    writer.as_it_is(graph, node)
    for attribute in graph.node[-1].attribute:
        if attribute.name == "axes":
            axes = sorted(attribute.ints)
            del attribute.ints[:]
            attribute.ints.extend(axes)


def _one_sided(writer: ModelWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """Half of the frequencies where nothing is said, which inference takes for all of them."""
    writer.as_it_is(graph, node)
    if "onesided" not in node.attributes:
        graph.node[-1].attribute.add(name="onesided", type=2, i=1)  # AttributeProto.INT


def _window(writer: ModelWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """What ``auto_pad`` says, where pads are given too, which inference goes by.

    A transposed convolution that pads so that the sizes stay has input times stride, whatever is to
    be added to the end, which inference adds; less only where windows do not meet, and there what
    is added fills the gap.
    """
    writer.as_it_is(graph, node)
    attribute = node.attributes.get("auto_pad")
    mode = "NOTSET" if attribute is None else str(attribute.value)
    if mode == "NOTSET":
        return
    written = graph.node[-1]
    extra = _gaps_filled(node) if mode.startswith("SAME") else None
    beaten = {"pads"} if extra is None else {"pads", "output_padding"}
    kept = [one for one in written.attribute if one.name not in beaten]
    del written.attribute[:]
    written.attribute.extend(kept)
    if extra:
        written.attribute.add(name="output_padding", type=7, ints=extra)  # AttributeProto.INTS


def _gaps_filled(node: ir.Node) -> list[int]:
    """Of ``output_padding``, by axis, what lies between windows that do not meet; mostly none."""
    extra = node.attributes.get_ints("output_padding", ())
    strides = node.attributes.get_ints("strides", ())
    weights = node.inputs[1] if len(node.inputs) > 1 else None
    shape = None if weights is None else value_shape(weights)
    kernel = node.attributes.get_ints("kernel_shape") or list(shape or ())[2:]
    dilations = node.attributes.get_ints("dilations") or [1] * len(extra)
    if not any(extra) or not len(extra) == len(strides) == len(kernel) == len(dilations):
        return []
    return [
        max(0, min(more, stride - ((width - 1) * apart + 1))) if isinstance(width, int) else 0
        for more, stride, width, apart in zip(extra, strides, kernel, dilations, strict=True)
    ]


def _same(graph: onnx.GraphProto, node: ir.Node, source: int, result: int) -> None:
    """Says that a result is of the type and shape of an input, if both are there."""
    given, made = name_at(node.inputs, source), name_at(node.outputs, result)
    if given and made:
        graph.node.add(op_type="Identity", input=[given], output=[made])


def _widened(
    writer: ModelWriter, graph: onnx.GraphProto, node: ir.Node, source: int, width: int
) -> None:
    """Says that the first result is an input with another last dimension."""
    given, made = name_at(node.inputs, source), name_at(node.outputs, 0)
    if given and made and width > 0:
        matrix = writer.source(made, FLOAT, (None, width))
        graph.node.add(op_type="MatMul", input=[given, matrix], output=[made])


def _group_query_attention(writer: ModelWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """Present is as long as past unless the total length follows from shapes and may be more.

    Or nothing that the model says of both lengths keeps it as long.
    """
    heads, kv_heads = (_integer(node, name, 0) for name in ("num_heads", "kv_num_heads"))
    size, packed = _dimension(node, 3, 3), _dimension(node, 0, 2)
    if _integer(node, "kv_cache_bit_width", 0):  # rows of the cache are more than a head
        size = None if packed is None else packed // max(heads + 2 * kv_heads, 1)
    if name_at(node.inputs, 1):
        _same(graph, node, 0, 0)
    elif size is not None:
        _widened(writer, graph, node, 0, heads * size)
    total = node.inputs[6] if len(node.inputs) > 6 else None
    caches = (3, 1), (4, 2)
    lengths = ((_places(node.inputs, i), _places(node.outputs, k)) for i, k in caches)
    stays = total is not None and total.is_graph_input() and not may_grow(*lengths)
    for past, present in caches:
        if stays:
            _same(graph, node, past, present)
        else:
            _of_open_length(writer, graph, node, past, present)


def _of_open_length(
    writer: ModelWriter, graph: onnx.GraphProto, node: ir.Node, past: int, present: int
) -> None:
    """Says that a cache is as another one but for its length."""
    given, made = name_at(node.inputs, past), name_at(node.outputs, present)
    if given and made:
        condition = writer.source(made, BOOL, (None,))
        graph.node.add(op_type="Compress", input=[given, condition], output=[made])
        graph.node[-1].attribute.add(name="axis", i=2, type="INT")


def _places(values: Sequence[ir.Value | None], place: int) -> int | str | None:
    """How long a model says that a cache is."""
    value = values[place] if place < len(values) else None
    shape = None if value is None else value_shape(value)
    return shape[2] if shape is not None and len(shape) == 4 else None


def _mat_mul_n_bits(writer: ModelWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    _widened(writer, graph, node, 0, _integer(node, "N", 0))


def _gather_block_quantized(writer: ModelWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """Rows of the weights, unpacked, in the type of the scales."""
    weights, scales = node.inputs[0], node.inputs[2]
    made = name_at(node.outputs, 0)
    if weights is None or scales is None or weights.shape is None or scales.dtype is None:
        return
    sizes = [size for size in weights.shape if isinstance(size, int)]
    if not made or not sizes or len(sizes) != len(weights.shape):
        return
    packed = weights.dtype is not None and weights.dtype.name == "UINT8"
    bits = _integer(node, "bits", 4)
    if bits not in (2, 4, 8):
        return
    if packed:
        sizes[-1] = sizes[-1] * (8 // bits)
    table = writer.source(made, scales.dtype.value, sizes)
    gather = graph.node.add(op_type="Gather", input=[table, name_at(node.inputs, 1)], output=[made])
    gather.attribute.add(name="axis", type=2, i=_integer(node, "gather_axis", 0, -1))


def _tokenizer(writer: ModelWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """Texts, of which nobody knows how many: in a shape that is computed."""
    given, made = name_at(node.inputs, 0), name_at(node.outputs, 0)
    if given and made:
        sizes = writer.source(made, INT64, [None])
        graph.node.add(op_type="Reshape", input=[given, sizes], output=[made])


_STAND_INS: dict[str, _StandIn] = {
    **OPTIMIZER_STAND_INS,
    **dict.fromkeys(_LIKE_FIRST, _like_first),
    "GroupQueryAttention": _group_query_attention,
    "MatMulNBits": _mat_mul_n_bits,
    "GatherBlockQuantized": _gather_block_quantized,
    "SimplifiedLayerNormalization": _typed_by_scale,
    "Tokenizer": _tokenizer,
}

_OF_ONNX: dict[str, _StandIn] = {
    **dict.fromkeys(_WINDOWS, _window),
    "GroupNormalization": _like_first,
    "LayerNormalization": _layer_normalization,
    "MeanVarianceNormalization": _like_first,
    "RMSNormalization": _typed_by_scale,
    "Reshape": ModelWriter.reshape,
    "SimplifiedLayerNormalization": _typed_by_scale,
    "Squeeze": _sorted_axes,
    "STFT": _one_sided,
    "ThresholdedRelu": _like_first,
}
"""What ONNX's inference gets wrong or says nothing of (onnx 1.23), and what onnxruntime has under
ONNX's domain."""


def _integer(node: ir.Node, name: str, default: int, least: int = 0) -> int:
    """An attribute, which nobody has checked yet; 0 if it is none that a size can be."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    value: object = attribute.value
    return value if isinstance(value, int) and least <= value <= _MOST else 0


def _dimension(node: ir.Node, place: int, axis: int) -> int | None:
    """A dimension of an input, if it is known."""
    value = node.inputs[place] if place < len(node.inputs) else None
    if value is None or value.shape is None or axis >= len(value.shape):
        return None
    found = value.shape[axis]
    return found if isinstance(found, int) else None
