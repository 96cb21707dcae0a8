"""What attributes and inputs ONNX's operators must have, checked before anything computes.

onnx's shape inference trusts attributes: an axis of 2**31 makes it read beyond its tables, a Split
that is told of fewer outputs than it has makes it write there, and a process ends. So every model
is checked before: attributes are there if they must be, are of the type that ONNX's definition
says, and numbers lie in the ranges below, which are wider than any real model needs. Once functions
are inlined, inputs are there that must be.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from partita.errors import ModelFormatError
from partita.model.value_uses import attributes, operations

if TYPE_CHECKING:
    import onnx_ir as ir

MOST_DIMENSIONS = 64
"""numpy has arrays of no more."""

_LARGE = (1 << 31) - 1
_AXIS = (-MOST_DIMENSIONS, MOST_DIMENSIONS)
_PLACE = (0, MOST_DIMENSIONS)
_COUNT = (1, _LARGE)
_SIZE = (0, _LARGE)
_TYPE = (1, 64)
"""Numbers of element types; there are less than thirty, and more with each year."""

TRUTHS = frozenset(
    {
        *("keepdims", "noop_with_empty_axes", "select_last_index", "ceil_mode", "storage_order"),
        *("exclusive", "reverse", "largest", "sorted", "allowzero", "exclude_outside", "antialias"),
        *("upper", "inverse", "onesided", "periodic", "center_point_box", "fmod", "saturate"),
        *("training_mode", "spatial", "input_forget", "layout", "new_axis", "is_case_sensitive"),
        *("scan_input_directions", "scan_output_directions", "directions", "is_causal"),
        *("interleaved", "rotary_interleaved", "do_rotary", "unidirectional"),
    }
)
"""Integers that stand for yes or no, and of which engines do not agree what another number than 0
and 1 means: to onnxruntime it is a no for some and a yes for others, or refused, and to OpenVINO
and onnx's inference often the contrary. Those that all take for a yes may be any number: `transA`,
`transB`, `count_include_pad`, `align_corners`, `detect_negative`, `detect_positive`,
`linear_before_reset`."""

RANGES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("axis", "axes", "batch_axis", "time_axis"), _AXIS),
    **dict.fromkeys(("scan_input_axes", "scan_output_axes"), _AXIS),
    **dict.fromkeys(("batch_dims", "perm"), _PLACE),
    **dict.fromkeys(("kernel_shape", "strides", "dilations", "group", "offset_group"), _COUNT),
    **dict.fromkeys(("num_outputs", "num_groups"), _COUNT),
    "blocksize": (1, 1 << 15),
    **dict.fromkeys(("num_scan_inputs", "hidden_size", "block_size", "num_heads"), _SIZE),
    **dict.fromkeys(("q_num_heads", "kv_num_heads", "rotary_embedding_dim"), _SIZE),
    **dict.fromkeys(("K", "N"), _SIZE),
    **dict.fromkeys(("output_height", "output_width", "pooled_shape", "sample_size"), _SIZE),
    **dict.fromkeys(("output_padding", "output_shape", "min_gram_length"), _SIZE),
    **dict.fromkeys(("max_gram_length", "max_skip_count", "ngram_counts"), _SIZE),
    **dict.fromkeys(("ngram_indexes", "size"), _SIZE),
    **dict.fromkeys(("to", "dtype"), _TYPE),
    **dict.fromkeys(("output_dtype", "output_datatype", "stash_type"), (0, _TYPE[1])),
    **dict.fromkeys(("precision", "softmax_precision"), (0, _TYPE[1])),
    "pads": (-_LARGE, _LARGE),
    "shape": (-1, 1 << 62),
    **dict.fromkeys(TRUTHS, (0, 1)),
}
"""Attribute to the smallest and the largest number that is allowed, whatever the operator."""

_DOMAINS = ("ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
"""What ONNX defines besides its main operators; its inference trusts these as well."""

_CHECKED = frozenset({"", "ai.onnx", *_DOMAINS})

PRIVATE_DOMAIN = "partita"
"""Of operators that devices make of others when they compile, and the beginning of such domains.

They trust the form of these operators."""

LENIENT = frozenset({"Resize"})
"""Operators of which exporters leave out inputs, but the first, that a version of ONNX asks for."""

REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
"""Operators that reduce along axes."""

OF_SCALARS = frozenset({"ArgMax", "ArgMin", *REDUCTIONS})
"""Operators that take an axis of a scalar, as in onnxruntime, though it has none."""

_MICROSOFT = "com.microsoft"

_REQUIRED_OF_MICROSOFT = {
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu"), (0,)),
    **dict.fromkeys(("FusedConv", "FusedGemm", "FusedMatMul", "TransposeMatMul"), (0, 1)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "SimplifiedLayerNormalization"), (0, 1)),
    **dict.fromkeys(("Attention", "MultiHeadAttention"), (0,)),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), (0, 1, 2)),
    "GroupQueryAttention": (0, 5, 6),
    "MoE": (0, 1, 2, 4),
    "QMoE": (0, 1, 2, 5),
    "RotaryEmbedding": (0, 1, 2, 3),
    "EmbedLayerNormalization": (0, 2, 3, 5, 6),
    "DynamicQuantizeLSTM": (0, 1, 2, 8, 9, 10, 11),
    "DynamicQuantizeMatMul": (0, 1, 2),
    "MatMulIntegerToFloat": (0, 1, 2, 3),
    "QGemm": (0, 1, 2, 3, 4, 5),
    **dict.fromkeys(("MatMulNBits", "GatherBlockQuantized"), (0, 1, 2)),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), (0, 1, 3, 4, 6)),
    **dict.fromkeys(
        (
            *("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"),
            *("QLinearAveragePool", "QLinearGlobalAveragePool"),
        ),
        (0, 1, 3),
    ),
}
"""Operators of onnxruntime that back-ends take, and the inputs that must be there.

onnx has no definitions of them. Of QLinearConcat all inputs must be there."""

_UNDER_ONNX = frozenset({"SimplifiedLayerNormalization"})
"""Those of them that files have under ONNX's own domain, which does not define them."""

_UNDEFINED, _FLOAT, _INT, _STRING, _FLOATS, _INTS = 0, 1, 2, 3, 6, 7
"""Types of attributes, by their numbers in protobufs."""

_NUMBERS = {_FLOAT: _INT, _FLOATS: _INTS}
"""Types to what exporters write for them, and that means the same."""


@functools.lru_cache(maxsize=4096)  # models name few operators, and each many times
def is_of_onnx(op_type: str, domain: str) -> bool:
    """Whether ONNX defines an operator, in whatever version."""
    import onnx

    return bool(onnx.defs.has(op_type, domain="" if domain == "ai.onnx" else domain))


def check_attributes(ir_model: ir.Model) -> None:
    """Refuses a model with attributes that are out of all bounds, in bodies and functions too.

    Raises:
        ModelFormatError: Names the operation, the attribute, what it is and what is allowed.
    """
    graphs: list[ir.Graph | ir.Function] = [ir_model.graph, *ir_model.functions.values()]
    for graph in graphs:
        versions = graph.opset_imports
        for node in operations(graph)[0]:
            if node.domain in _CHECKED:
                _check(node, _version(node, versions))
            elif node.domain == _MICROSOFT:
                for attribute in attributes(node):
                    if attribute.name in TRUTHS:
                        _check_range(node, attribute)


def check_domains(nodes: Iterable[ir.Node]) -> None:
    """Refuses operations of Partita's own domain, which only its devices may make, and of no name.

    Args:
        nodes: With functions inlined: a function may have any domain.

    Raises:
        ModelFormatError: Names the first such operation.
    """
    for node in nodes:
        if not (isinstance(node.op_type, str) and isinstance(node.domain, str)):  # protobuf's bytes
            raise _refusal(node, "is of an operator or a domain whose name is no UTF-8 text")
        if node.domain.partition(".")[0] == PRIVATE_DOMAIN:
            raise _refusal(
                node,
                f"is of domain '{node.domain}', whose operators no file may hold: devices make "
                "them when they compile; use another domain for your own, or ONNX's operators",
            )


def check_inputs(nodes: Iterable[ir.Node], versions: Mapping[str, int]) -> None:
    """Refuses operations that lack an input that ONNX's definition does not call optional.

    Args:
        nodes: With functions inlined, whose inputs may be left out where they are called.
        versions: Of the operators of each domain.

    Raises:
        ModelFormatError: Names the operation and the input.
    """
    for node in nodes:
        if node.domain == _MICROSOFT or (not node.domain and node.op_type in _UNDER_ONNX):
            _check_inputs_of_microsoft(node)
            continue
        version = _version(node, versions)
        if version is None:
            continue
        required, first, repeated = _required(str(node.op_type), version, str(node.domain))
        for position, name in required[:1] if node.op_type in LENIENT else required:
            if position >= len(node.inputs) or node.inputs[position] is None:
                raise _refusal(node, f"lacks its input {position}, '{name}'")
        if repeated and None in node.inputs[first:]:
            place = node.inputs.index(None, first)
            raise _refusal(node, f"lacks its input {place}, one of '{repeated}'")


def _check_inputs_of_microsoft(node: ir.Node) -> None:
    places: Iterable[int] = _REQUIRED_OF_MICROSOFT.get(str(node.op_type), ())
    if node.op_type == "QLinearConcat":
        places = range(len(node.inputs))
    for place in places:
        if place >= len(node.inputs) or node.inputs[place] is None:
            raise _refusal(node, f"lacks its input {place}")


def _version(node: ir.Node, versions: Mapping[str, int]) -> int | None:
    """Of the domain of an operation, if it is one of ONNX's and imported."""
    if node.domain in ("", "ai.onnx"):
        return versions.get("", versions.get("ai.onnx"))
    return versions.get(node.domain) if node.domain in _DOMAINS else None


def _check(node: ir.Node, version: int | None) -> None:
    op_type = str(node.op_type)
    due = _NOTHING if version is None else _due(op_type, version, str(node.domain))
    for name in due.required:
        if name not in node.attributes:
            kind = _type_name(due.types[name])
            raise _refusal(node, f"lacks its attribute '{name}' of type {kind}")
    for attribute in attributes(node):
        if attribute.ref_attr_name:
            continue  # of a function; known when it is called
        name = attribute.name
        expected = due.types.get(name)
        if expected is None:
            expected = _type_in_newest(op_type, name)
        found: int = attribute.type
        if found == _UNDEFINED:
            raise _refusal(node, f"has an attribute '{name}' of no type")
        if expected and found not in (expected, _NUMBERS.get(expected)):
            kind, other = _type_name(expected), _type_name(found)
            raise _refusal(node, f"has an attribute '{name}' of type {other}; expected {kind}")
        if found == _STRING and not isinstance(attribute.value, str):
            raise _refusal(node, f"has an attribute '{name}' that is no UTF-8 text")
        if name in RANGES:
            _check_range(node, attribute)
    if op_type == "Split" and "num_outputs" in node.attributes:
        count = node.attributes["num_outputs"].value
        if count != len(node.outputs):
            raise _refusal(node, f"has num_outputs {count} and {len(node.outputs)} outputs")


def _check_range(node: ir.Node, attribute: ir.Attr) -> None:
    """Refuses an attribute that is a number, or has one, out of its range."""
    name, value = attribute.name, attribute.value
    if attribute.ref_attr_name or attribute.type not in (_INT, _INTS):
        return
    low, high = RANGES[name]
    for number in (value,) if attribute.type == _INT else value:
        if not low <= number <= high:
            between = "and" if name in TRUTHS else "to"
            raise _refusal(
                node, f"has an attribute '{name}' of {number}; allowed are {low} {between} {high}"
            )


def _type_name(number: int) -> str:
    """What ONNX calls a type of attributes."""
    import onnx_ir as ir

    return ir.AttributeType(number).name


def _refusal(node: ir.Node, fault: str) -> ModelFormatError:
    name = node.name or (node.outputs[0].name if node.outputs else "")
    return ModelFormatError(f"Operation '{name}' ({node.op_type}) {fault}.")


def _type_in_newest(op_type: str, name: str) -> int:
    """The type that newer versions give an attribute: kernels read it; 0: they have it not."""
    import onnx

    return _due(op_type, onnx.defs.onnx_opset_version(), "").types.get(name, 0)


@functools.cache
def _required(
    op_type: str, version: int, domain: str
) -> tuple[tuple[tuple[int, str], ...], int, str]:
    """By ONNX's definition, position and name of the inputs that must be there.

    And the first position and the name of those that there are any number of, none of which may be
    left out.
    """
    import onnx

    place = "" if domain == "ai.onnx" else domain
    try:
        if onnx.defs.has(op_type, version, place):
            schema = onnx.defs.get_schema(op_type, version, place)
        else:  # younger than the version that the model names: engines take it all the same
            schema = onnx.defs.get_schema(op_type, domain=place)
    except onnx.defs.SchemaError:
        return (), 0, ""
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    found = [(n, x.name) for n, x in enumerate(schema.inputs) if x.option == single]
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    repeated = [(n, x.name) for n, x in enumerate(schema.inputs) if x.option == variadic]
    return (tuple(found), *(repeated[0] if repeated else (0, "")))


class _DueAttributes(NamedTuple):
    """The attributes of an operator.

    Attributes:
        types: Name to type, by its number.
        required: The names of those that must be there.
    """

    types: Mapping[str, int]
    required: tuple[str, ...]


_NOTHING = _DueAttributes({}, ())


@functools.cache
def _due(op_type: str, version: int, domain: str) -> _DueAttributes:
    """The attributes that an operator has by ONNX's definition."""
    import onnx
    import onnx_ir as ir

    try:
        schema = onnx.defs.get_schema(op_type, version, "" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return _NOTHING
    types: dict[str, int] = {}
    for name, attribute in schema.attributes.items():
        kind: Any = attribute.type  # onnx's stubs know of no name
        types[name] = ir.AttributeType[kind.name].value
    needed = [name for name, attribute in schema.attributes.items() if attribute.required]
    return _DueAttributes(types, tuple(needed))
