"""Further checks of suite ``weights``: of every type and form, many, large, and changed in time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.blobs import exported

_SHAPES = ((), (1,), (3,), (7,), (0,), (2, 0), (2, 3), (3, 5, 1))
"""Of weights: of odd numbers of elements, of bytes that fill no word, of none, of one."""
_NARROW = ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2")
"""Types of which several elements share a byte."""
_TYPES = (
    *("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "INT16", "INT32", "INT64", "BOOL"),
    *("UINT8", "UINT16", "UINT32", "UINT64", "STRING", "COMPLEX64", "COMPLEX128", *_NARROW),
    *("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0"),
)


def _elements(kind: str, shape: tuple[int, ...], seed: int) -> Array:
    """Elements of a type, each other than its neighbours, with all bits in use."""
    count = int(np.prod(shape))
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, kind)))
    numbers = np.arange(count) * 5 + seed
    if kind == "STRING":
        texts = [("" if n % 3 == 1 else "\u00e4" * (n % 5)) + str(n) for n in numbers]
        return np.array(texts, object).reshape(shape)
    if kind == "BOOL":
        return np.asarray(numbers % 3 == 0).reshape(shape)
    if kind in _NARROW:
        low = -2 if kind == "INT2" else -8 if kind == "INT4" else 0
        span = 4 if kind.endswith("2") else 16 if "INT" in kind else 4
        return np.asarray(numbers % span + low).astype(dtype).reshape(shape)
    raw = np.random.default_rng(seed + count).integers(0, 256, count * dtype.itemsize)
    made = raw.astype(np.uint8).view(dtype)
    with np.errstate(all="ignore"):
        if dtype.kind not in "iu" and kind != "FLOAT8E8M0":
            made = np.where(np.isfinite(made), made, made.dtype.type(1.5))
    return np.asarray(made, dtype).reshape(shape)


def _in_fields(array: Array, name: str) -> onnx.TensorProto:
    """A tensor whose elements are in the field of their type rather than in bytes.

    Raises:
        ValueError: ONNX has no such field.
    """
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    flat = array.reshape(-1)
    if array.dtype.kind not in "biufc" or array.dtype == np.float16:
        raise ValueError("of bits that numpy has no numbers for")
    return helper.make_tensor(name, element, array.shape, flat.tolist())


_STORED: Mapping[str, Callable[[Array, str], onnx.TensorProto]] = {
    "bytes": numpy_helper.from_array,
    "fields": _in_fields,
}


@check("weights", values=True)
def every_type_and_size_stays(bench: Bench) -> None:
    """Weights of each type, of odd sizes, as bytes or fields or nodes, are handed on as they are.

    So they are by an imported model.
    """
    tried = 0
    for kind in _TYPES:
        if not hasattr(TensorProto, kind):
            continue
        for how, store in _STORED.items():
            due = {f"y{i}": _elements(kind, shape, i) for i, shape in enumerate(_SHAPES)}
            try:
                tensors = [store(array, f"w{name}") for name, array in due.items()]
                compiled = _handing_on(bench, kind, tensors)
            except (ValueError, TypeError, PartitaError):
                continue  # ONNX has no such weights
            if compiled is None:
                continue
            tried += 1
            what = f"weights of {kind} in {how}"
            wanted = [*due.values()] * 2
            for turn in range(2):
                compare(compiled({}).to_tuple(), wanted, f"{what}, run {turn + 1}", 0, 0)
            imported = bench.core.import_model(exported(compiled), bench.device)
            compare(imported({}).to_tuple(), wanted, f"{what}, imported", 0, 0)
    if not tried:
        raise NotApplicableError("the device does not take Identity")


def _handing_on(
    bench: Bench, kind: str, tensors: list[onnx.TensorProto]
) -> partita.CompiledModel | None:
    """A model of each weight, as an initializer and as a node; ``None`` if it is not taken."""
    element = getattr(TensorProto, kind)
    nodes, outputs = [], []
    for prefix in ("y", "z"):
        for tensor in tensors:
            name = prefix + tensor.name[2:]
            if prefix == "y":
                nodes.append(helper.make_node("Identity", [tensor.name], [name]))
            else:
                nodes.append(helper.make_node("Constant", [], [f"c{name}"], value=tensor))
                nodes.append(helper.make_node("Identity", [f"c{name}"], [name]))
            outputs.append(helper.make_tensor_value_info(name, element, tensor.dims))
    graph = helper.make_graph(nodes, "types", [], outputs, tensors)
    imports = [helper.make_opsetid("", 23)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=11)
    onnx.checker.check_model(proto)
    return None if bench.refusals(proto) else bench.compile(proto)


@check("weights", values=True)
def many_small_ones_stay_apart(bench: Bench) -> None:
    """Hundreds of weights of few elements, in one model, are each where they belong."""
    rng = np.random.default_rng(7)
    protos: list[tuple[str, onnx.ModelProto]] = []
    weights: dict[str, Array]
    for element, dtype in (("float", "f4"), ("int64", "i8"), ("uint8", "u1"), ("double", "f8")):
        weights = {f"w{i}": rng.integers(0, 99, i % 23 + 1).astype(dtype) for i in range(150)}
        text = f"g ({element}[1] x) => ({element}[A] y) {{ y = Concat <axis = 0>"
        protos.append((element, parse(f"{text} ({', '.join(weights)}, x) }}", weights)))
    for op, again in (("Add", "Sub"), ("Mul", "Add"), ("Max", "Min")):
        steps = [f"h{i + 1} = {(op, again)[i % 2]}(h{i}, w{i})" for i in range(200)]
        weights = {
            f"w{i}": rng.uniform(0.9, 1.1, (1, 4) if i % 3 else (3, 1)).astype(np.float32)
            for i in range(200)
        }
        text = f"g (float[3,4] h0) => (float[3,4] h200) {{ {' '.join(steps)} }}"
        protos.append((op, parse(text, weights)))
    for what, proto in bench.taken(protos):
        feeds = Sample(what, proto).feeds(3)
        due = bench.expected(proto, feeds)
        compiled = bench.compile(proto)
        compare(compiled(feeds).to_tuple(), due, f"many weights, {what}")
        imported = bench.core.import_model(exported(compiled), bench.device)
        compare(imported(feeds).to_tuple(), due, f"many weights, {what}, imported")


_LARGE: dict[str, tuple[str, tuple[int, ...], str]] = {
    "a sum": ("g (float[1031,1019] x) => (float[1031,1019] y) { y = Add(x, w) }", (1031, 1019), ""),
    "a product": (
        "g (float[1,1031] x) => (float[1,1019] y) { y = MatMul(x, w) }",
        (1031, 1019),
        "",
    ),
    "a turned product": (
        "g (float[1,1019] x) => (float[1,1031] y) { y = Gemm <transB = 1> (x, w) }",
        (1031, 1019),
        "",
    ),
    "a table": (
        "g (int64[1] x) => (float[4,3] y) { y = Gather(w, rows) }",
        (350003, 3),
        "rows",
    ),
}
"""Models of weights of more than four million bytes."""


@check("weights", values=True)
def large_ones_are_whole(bench: Bench) -> None:
    """Weights of millions of bytes, which no block divides, are known to their last element."""
    rows = {"rows": np.array([0, 350002, 349525, 174763], np.int64)}
    models = []
    for what, (text, shape, more) in _LARGE.items():
        numbers = (np.arange(int(np.prod(shape))) * 7 % 1021).astype(np.float32)
        weights = {"w": numbers.reshape(shape) / 1024, **(rows if more else {})}
        models.append((what, parse(text, weights)))
    for what, proto in bench.taken(models):
        feeds = Sample(what, proto).feeds(5)
        feeds = {
            n: np.asarray(a > 0, a.dtype) if "product" in what else a for n, a in feeds.items()
        }
        compiled = bench.compile(proto)
        due = bench.expected(proto, feeds)
        compare(compiled(feeds).to_tuple(), due, f"{what} of a large weight")


@check("weights", values=True)
def those_listed_as_inputs_are_weights(bench: Bench) -> None:
    """Weights that a model of an old version lists among its inputs are none of its ports."""
    weights = {"w": np.arange(1, 7, dtype=np.float32).reshape(2, 3)}
    texts = [f"g (float[2,3] x) => (float[2,3] y) {{ y = {op}(x, w) }}" for op in ("Sub", "Add")]
    for text, proto in bench.taken((text, parse(text, weights)) for text in texts):
        feeds = Sample("", proto).feeds(6)
        due = bench.expected(proto, feeds)
        listed = onnx.ModelProto()
        listed.CopyFrom(proto)
        listed.graph.input.insert(0, helper.make_tensor_value_info("w", TensorProto.FLOAT, [2, 3]))
        compiled = bench.compile(listed)
        names = [port.name for port in compiled.inputs]
        require(names == ["x"], f"The inputs are {names}; 'w' is a weight.")
        compare(compiled(feeds).to_tuple(), due, f"{text}, 'w' listed as an input")


_CHANGED = (
    "g (float[2,3] x) => (float[2,3] y) { a = Mul(x, w) y = LeakyRelu <alpha = 0.5> (a) }",
    "g (float[2,3] x) => (float[2,3] y) { a = Add(x, w) y = Elu <alpha = 0.5> (a) }",
    "g (float[2,3] x) => (float[2,2] y) { a = Sub(x, w)"
    " y = Gemm <alpha = 0.5, transB = 1> (a, w) }",
    "g (float[2,3] x) => (float[2,3] y) { a = Sub(x, w) y = Neg(a) }",
    "g (float[2,3] x) => (float[2,3] y) { a = Sub(x, w) y = Relu(a) }",
)


@check("weights", values=True)
def changes_count_in_the_next_compile(bench: Bench) -> None:
    """A model that was compiled, changed and compiled again is two: the old one and the new one.

    Changed is a weight, an attribute, or the operator of a node.
    """
    weights = {"w": np.arange(1, 7, dtype=np.float32).reshape(2, 3)}
    for text, proto in bench.taken((text, parse(text, weights)) for text in _CHANGED):
        model = bench.read(proto)
        feeds = Sample("", proto).feeds(9)
        made: list[tuple[onnx.ModelProto, partita.CompiledModel]] = []
        for change in (None, _weight, _attribute, _operator):
            if change is not None:
                change(model)
            now = model.to_onnx()
            if bench.refusals(now):
                break
            direct = bench.plugin.compile_model(model, bench.properties())
            made.append((now, partita.CompiledModel(direct)))
            made.append((now, bench.core.compile_model(model, bench.device, bench.target.config)))
            for place, (own, compiled) in enumerate(made):
                what = f"{text}, compile {place + 1} of {len(made)} with changes between"
                compare(compiled(feeds).to_tuple(), bench.expected(own, feeds), what)


def _weight(model: partita.Model) -> None:
    weight = np.array([[3, -1, 2], [0.5, 4, -2]], np.float32)
    model.ir.graph.initializers["w"].const_value = ir.tensor(weight, name="w")


def _attribute(model: partita.Model) -> None:
    for node in model.ir.graph:
        if "alpha" in node.attributes:
            node.attributes["alpha"] = ir.AttrFloat32("alpha", 0.125)


def _operator(model: partita.Model) -> None:
    for node in model.ir.graph:
        if node.op_type == "Sub":
            node.op_type = "Add"


_SAME_BYTES = (
    "float",
    "int32",
    "uint32",
    "float16",
    "int16",
    "uint16",
    "bfloat16",
    "int8",
    "uint8",
)


@check("weights", values=True)
def equal_bytes_keep_their_types(bench: Bench) -> None:
    """Weights of the same bytes and other types are not taken for one another.

    Neither in one model, nor in models that are there together.
    """
    raw = (np.arange(24) * 37 % 97 + 1).astype(np.uint8)
    weights = {}
    for element in _SAME_BYTES:
        kind = getattr(TensorProto, element.upper())
        weights[element] = raw.view(helper.tensor_dtype_to_np_dtype(kind))

    def made(names: tuple[str, ...]) -> onnx.ModelProto:
        infos = [helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, None) for n in names]
        nodes = [
            helper.make_node("Cast", [f"w{n}"], [f"y{n}"], name=n, to=TensorProto.FLOAT)
            for n in names
        ]
        tensors = [numpy_helper.from_array(weights[n], f"w{n}") for n in names]
        graph = helper.make_graph(nodes, "bytes", infos, [], tensors)
        graph.output.extend(graph.input)
        graph.ClearField("input")
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    refused = bench.refused(made(_SAME_BYTES))
    taken = tuple(n for n in _SAME_BYTES if n not in refused)
    if not taken:
        raise NotApplicableError("the device does not take Cast")
    groups = [taken, *((n,) for n in taken)]
    models = [(names, bench.compile(made(names))) for names in groups]
    with np.errstate(all="ignore"):
        for names, compiled in itertools.chain(models, reversed(models)):
            due = [weights[name].astype(np.float32) for name in names]
            compare(compiled({}).to_tuple(), due, f"equal bytes as {', '.join(names)}", 0, 0)
