"""Further checks of suite ``query``: what is taken is taken wherever it stands, and compiles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import onnx
from onnx import helper, numpy_helper

import partita
from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.chains import chains
from partita_conformance.inputs.models import Sample, networks, parse, samples
from partita_conformance.inputs.origins import OPERATIONS, origins
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import (
    ConformanceError,
    NotApplicableError,
    require,
)
from partita_conformance.suites.contract.suite_ports import value_of


@check("query", values=True)
def parameters_may_come_from_anywhere(bench: Bench) -> None:
    """A shape, an axis or a weight may be a weight, computed of weights or given, if it is taken.

    An operation that is taken compiles alone as well, where what was computed is an input.
    """
    tried = 0
    for op in OPERATIONS:
        for origin, proto in origins(op):
            what = f"{op} whose parameter is {origin}"
            model = bench.read(proto)
            refused = bench.refused(proto)
            for one in model.ops:
                if one.op_type == op and one.name not in refused:
                    tried += 1
                    _compiles_alone(bench, model, [one], what)
            if not refused:
                feeds = Sample("", proto).feeds(71)
                if "p" in feeds:
                    feeds["p"] = OPERATIONS[op][1]
                have = bench.compile(proto)(feeds).to_tuple()
                compare(have, bench.expected(proto, feeds), what)
    if not tried:
        raise NotApplicableError("the device takes none of the operations")


def _compiles_alone(
    bench: Bench, model: partita.Model, ops: Sequence[partita.Op], what: str
) -> None:
    """Fails unless the operations compile when they are cut out of their model."""
    made = {name for op in ops for name in op.outputs if name}
    inside = {*model.ir.graph.initializers, *made}
    read = dict.fromkeys(name for op in ops for name in op.inputs if name)
    inputs = [name for name in read if name not in inside]
    alone = model.extract(inputs, sorted(made), "alone", [op.node for op in ops])
    try:
        bench.core.compile_model(alone, bench.device, bench.target.config)
    except PartitaError as error:
        raise ConformanceError(f"{what} is taken, and does not compile alone: {error}") from error


@check("query")
def what_is_taken_compiles_alone(bench: Bench) -> None:
    """What is taken in a model compiles cut out of it: each operation, and each with its reader.

    Also where what is around it would let a compiler make one operation of them, and where values
    are of a type inside of the model that its inputs and outputs are not of.
    """
    plain = (*samples("plain"), *samples("dynamic"), *_of_types_inside())
    for sample in (*networks(), *plain, *chains()[:-_MANY]):
        model = bench.read(sample.proto)
        answer = bench.core.query_model(model, bench.device, bench.target.config)
        ops = [op for op in model.ops if op.name in answer]
        parts = [[op] for op in ops]
        parts += [[a, b] for a, b in itertools.combinations(ops, 2) if {*a.outputs} & {*b.inputs}]
        for part in parts:
            if len(part) < len(model.ops):
                what = " with ".join(f"'{op.name}' ({op.op_type})" for op in part)
                _compiles_alone(bench, model, part, f"{what} of '{sample.name}'")


_INSIDE = (
    *("double", "float16", "bfloat16", "bool", "int64", "int32", "int16", "int8"),
    *("uint64", "uint32", "uint16", "uint8"),
)


def _of_types_inside() -> Iterator[Sample]:
    """Models of float32 that compute in another type."""
    for name in _INSIDE:
        element = onnx.TensorProto.DataType.Value(name.upper())
        op = "Not(a)" if name == "bool" else "Add(a, a)"
        text = f"""g (float[2,3] x) => (float[2,3] y) {{
            a = Cast <to = {element}> (x)
            b = {op}
            c = Reshape(b, s)
            d = Concat <axis = 1> (c, c)
            y = Cast <to = 1> (d)
        }}"""
        proto = parse(text.replace("float[2,3] y", "float y"), {"s": np.array([3, 2])})
        proto.graph.output[0].type.tensor_type.ClearField("shape")
        yield Sample(f"{name} inside", proto)


_MANY = 2
"""The last of the chains are of very many operations of a few kinds."""


def _untidy(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what others would clear away: constants and operations that nobody reads."""
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    read = other.graph.input[0].name
    spare = numpy_helper.from_array(np.ones(3, np.float32))
    other.graph.node.insert(0, helper.make_node("Identity", [read], ["read by nobody"]))
    other.graph.node.insert(0, helper.make_node("Constant", [], ["a constant"], value=spare))
    other.graph.node.append(helper.make_node("Neg", ["a constant"], ["of no use"], "odd name/:"))
    for name in ("not read", "not read either"):
        other.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), name))
    other.graph.output.append(value_of(read, ()))
    other.graph.output[-1].CopyFrom(other.graph.input[0])
    other.metadata_props.add(key="author", value="nobody")
    other.opset_import.append(helper.make_opsetid("com.nobody", 3))
    other.graph.doc_string = "A model."
    return other


@check("query")
def models_stay_untidy(bench: Bench) -> None:
    """A model keeps what nobody reads, and all else, when it is asked about and compiled."""
    for network in (*networks(), *(Sample(op, next(origins(op))[1]) for op in OPERATIONS)):
        model = bench.read(_untidy(network.proto))
        before = _content(model)
        asked: dict[str, Callable[[], object]] = {
            "query_model of Core": partial(bench.core.query_model, model, bench.device),
            "query_model": partial(bench.plugin.query_model, model, bench.properties()),
            "compile_model": partial(bench.plugin.compile_model, model, bench.properties()),
        }
        if bench.refusals(_untidy(network.proto)):
            del asked["compile_model"]
        for what, action in asked.items():
            action()
            require(_content(model) == before, f"{what} changes '{network.name}' of a caller.")


def _content(model: partita.Model) -> tuple[object, ...]:
    """All that a model says, of which its file says most."""
    graph = model.ir.graph
    return (
        model.to_onnx().SerializeToString(deterministic=True),
        [*graph.initializers],
        [(op.name, op.op_type, tuple(op.inputs), tuple(op.outputs)) for op in model.ops],
        [*map(str, (*model.inputs, *model.outputs))],
        dict(graph.opset_imports),
        model.name,
    )


def _many() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Models that hold much: weights, values, operations."""
    for (side, count), op in itertools.product(
        ((512, 12), (128, 96), (32, 384)), ("Add", "Mul", "MatMul")
    ):
        weights = {f"w{n}": np.full((side, side), n / 9, np.float32) for n in range(count)}
        steps = " ".join(f"v{n + 1} = {op}(v{n}, w{n})" for n in range(count))
        ports = f"(float[{side},{side}] v0) => (float[{side},{side}] v{count})"
        what = f"{count} weights of {side * side * 4 >> 10} kibibytes by {op}"
        yield what, parse(f"g {ports} {{ {steps} }}", weights)
    one = {"w": np.ones((2048, 2048), np.float32)}
    yield "a weight of 16 mebibytes", parse("g (float x) => (float[A,B] y) { y = Mul(x, w) }", one)
    for op in ("Neg", "Relu", "Exp"):
        steps = " ".join(f"y{n} = {op}(x)" for n in range(96))
        outputs = ", ".join(f"float[64,1024] y{n}" for n in range(96))
        yield f"96 results of {op}", parse(f"g (float[64,1024] x) => ({outputs}) {{ {steps} }}")


@check("query")
def what_is_taken_compiles_in_number(bench: Bench) -> None:
    """Operations that are taken compile however many there are, and however much they hold."""
    for what, proto in bench.taken(_many()):
        try:
            bench.compile(proto)
        except PartitaError as error:
            raise ConformanceError(f"{what} are taken, and do not compile: {error}") from error


_DOMAINS = (("com.nobody", 1), ("com.nobody", 99))
_CHANGED = (
    "Softmax(x)",
    "Softmax <axis = 0> (x)",
    "Softmax <axis = 1> (x)",
    "LogSoftmax <axis = 1> (x)",
    "Hardmax <axis = 1> (x)",
    "Flatten <axis = 1> (x)",
    "ReduceSum(x)",
    "ReduceMax <axes = [1]> (x)",
)
"""Operations that opsets have in other forms, with and without attributes."""


@check("query", values=True)
def opsets_are_those_of_their_domains(bench: Bench) -> None:
    """Whatever domains a model imports first or last, of whatever version, ONNX's is as it says."""

    def models() -> Iterator[tuple[str, onnx.ModelProto]]:
        for step, (domain, version), opset in itertools.product(_CHANGED, _DOMAINS, (11, 17)):
            proto = parse(f"g (float[2,3,4] x) => (float y) {{ y = {step} }}")
            proto.graph.output[0].type.tensor_type.ClearField("shape")
            proto.opset_import[0].version = opset
            other = helper.make_opsetid(domain, version)
            for place in (0, 1):
                made = onnx.ModelProto()
                made.CopyFrom(proto)
                made.opset_import.insert(place, other)
                yield f"{step} of opset {opset} beside {domain} {version}", made

    for what, proto in bench.taken(models()):
        feeds = Sample("", proto).feeds(72)
        compare(bench.compile(proto)(feeds).to_tuple(), bench.expected(proto, feeds), what)


_IN_BODIES = ("Neg", "Relu", "Abs", "Exp", "Tanh", "Sigmoid", "Softmax", "Erf", "Floor")
_BODIES = {
    "the first branch": "y = If (c) <then_branch = t () => (float[2,3] a) {{ a = {0}(x) }},"
    " else_branch = e () => (float[2,3] b) {{ b = Neg(x) }}>",
    "the second branch": "y = If (c) <then_branch = t () => (float[2,3] a) {{ a = Neg(x) }},"
    " else_branch = e () => (float[2,3] b) {{ b = {0}(x) }}>",
    "a branch in the second branch": "y = If (c) <"
    " then_branch = t () => (float[2,3] a) {{ a = Neg(x) }},"
    " else_branch = e () => (float[2,3] b) {{ b = If (c) <"
    " then_branch = u () => (float[2,3] d) {{ d = Neg(x) }},"
    " else_branch = v () => (float[2,3] f) {{ f = {0}(x) }}> }}>",
    "a loop": "y = Loop (n, c, x) <body = r (int64 i, bool p, float[2,3] s)"
    " => (bool q, float[2,3] t) {{ q = Identity(p) t = {0}(s) }}>",
    "a branch in a loop": "y = Loop (n, c, x) <body = r (int64 i, bool p, float[2,3] s)"
    " => (bool q, float[2,3] t) {{ q = Identity(p) t = If (p) <"
    " then_branch = u () => (float[2,3] d) {{ d = Neg(s) }},"
    " else_branch = v () => (float[2,3] f) {{ f = {0}(s) }}> }}>",
    "a scan": "z, y = Scan <num_scan_inputs = 1, body = r (float[3] s, float[3] e)"
    " => (float[3] t, float[3] o) {{ t = Add(s, e) o = {0}(t) }}> (row, x)",
}


@check("query", values=True)
def every_body_is_looked_into(bench: Bench) -> None:
    """An operation with bodies that is taken compiles, whatever is in whichever of them."""
    tried = 0
    weights = {"n": np.array(2), "row": np.zeros(3, np.float32)}
    for (where, step), op in itertools.product(_BODIES.items(), _IN_BODIES):
        read = {name: array for name, array in weights.items() if f"{name}," in step}
        if "Scan" in step:
            read = {"row": weights["row"]}
        text = f"g (float[2,3] x, bool c) => (float[2,3] y) {{ {step.format(op)} }}"
        proto = parse(text, read)
        if bench.refusals(proto):
            continue
        what = f"{op} in {where}"
        try:
            compiled = bench.compile(proto)
        except PartitaError as error:
            raise ConformanceError(f"{what} is taken, and does not compile: {error}") from error
        tried += 1
        for truth in (True, False):
            feeds = {"x": Sample("", proto).feeds(73)["x"], "c": np.array(truth)}
            due = bench.expected(proto, feeds)
            compare(compiled(feeds).to_tuple(), due, f"{what}, {truth}")
    if not tried:
        raise NotApplicableError("the device takes no bodies")
