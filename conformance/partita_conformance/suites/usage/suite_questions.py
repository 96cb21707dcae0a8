"""Further checks of suite ``query``: bodies, operations alone, and names of any kind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Sample, networks, parse, samples
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import (
    ConformanceError,
    NotApplicableError,
    require,
)
from partita_conformance.suites.contract.suite_ports import LONG, NAMES, UNARY, model, value_of


def _body(op: str, domain: str, name: str) -> onnx.GraphProto:
    """A body of one operation that reads ``x`` from outside."""
    node = helper.make_node(op, ["x"], [f"in {op} {domain}"], name=name, domain=domain)
    return helper.make_graph([node], "body", [], [value_of(node.output[0])])


def _branching(op: str, strange: str, deep: bool) -> onnx.ModelProto:
    """A model of an operation, and of a branch in which an operation has the same name.

    Args:
        op: What is taken.
        strange: The domain of the operation in the branch.
        deep: Whether it is in a branch of a branch.
    """
    inner = _body(op, strange, "one")
    if deep:
        other = _body(op, "", "two")
        nested = helper.make_node("If", ["c"], ["r"], "one", then_branch=inner, else_branch=other)
        inner = helper.make_graph([nested], "deep", [], [value_of("r")])
    nodes = [
        helper.make_node(op, ["x"], ["y"], name="one"),
        helper.make_node(
            "If", ["c"], ["z"], "two", then_branch=inner, else_branch=_body(op, "", "one")
        ),
    ]
    inputs = [value_of("x"), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    made = model(nodes, inputs, [value_of("y"), value_of("z")])
    made.opset_import.append(helper.make_opsetid("com.nobody", 1))
    return made


@check("query", values=True)
def bodies_are_looked_into(bench: Bench) -> None:
    """A branch is taken if all of its body is, however deep; names in it are its own."""
    tried = 0
    for op in UNARY:
        for deep in (False, True):
            good, bad = (_branching(op, domain, deep) for domain in ("", "com.nobody"))
            answers = []
            for proto in (good, bad, good):
                answer = bench.core.query_model(
                    bench.read(proto), bench.device, bench.target.config
                )
                found = set(answer) | set(answer.reasons)
                require(found == {"one", "two"}, f"Of one and two, {found} are answered.")
                answers.append({name for name in ("one", "two") if name in answer})
            require("two" not in answers[1], f"A branch is taken that holds com.nobody's {op}.")
            outside = {name for name in answers[0] if name == "one"}
            require(answers[1] == outside, f"{op} beside a branch is refused for what is in that.")
            require(answers[0] == answers[2], "The same question has two answers.")
            if answers[0] != {"one", "two"}:
                continue
            tried += 1
            compiled = bench.compile(good)
            for turn, which in enumerate((True, False, True)):
                feeds = {"x": np.full((2, 3), turn - 1.5, np.float32), "c": np.array(which)}
                due = bench.expected(good, feeds)
                compare(compiled(feeds).to_tuple(), due, f"{op} in a branch, run {turn + 1}")
    if not tried:
        raise NotApplicableError("the device takes no branches")


def _singles() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Small models of one operation each, by their texts, of types that a device may not have."""
    for element in ("float", "double", "float16", "int32", "int64", "uint8", "bool", "string"):
        kind = f"{element}[2,3]"
        for step in (
            *("Relu(x)", "Neg(x)", "Abs(x)", "Add(x, x)", "Mul(x, x)", "Sub(x, x)", "Div(x, x)"),
            *("Exp(x)", "Sqrt(x)", "Not(x)", "Max(x, x)", "Identity(x)", "Sign(x)", "Softmax(x)"),
            *("Concat <axis = 0> (x, x)", "Transpose(x)", "Flatten(x)", "CumSum(x, n)"),
            *("ReduceSum(x)", "ReduceMax(x)", "ReduceProd(x)", "Shape(x)", "Size(x)"),
        ):
            weights = {"n": np.array(1)} if ", n)" in step else None
            proto = parse(f"g ({kind} x) => ({kind} y) {{ y = {step} }}", weights)
            proto.graph.output[0].ClearField("type")
            try:
                proto = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
                onnx.checker.check_model(proto)
            except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
                continue  # the operator has no such type
            yield f"{step} of {element}", proto


@check("query")
def refusals_hold_when_compiling(bench: Bench) -> None:
    """An operation that is refused, in whatever element type, does not compile either.

    That what is taken compiles, the suites of operators check.
    """
    refused = [(what, proto) for what, proto in _singles() if bench.refusals(proto)]
    if not refused:
        raise NotApplicableError("the device takes all of the models")
    for what, proto in refused:
        try:
            bench.compile(proto)
        except PartitaError:
            continue
        raise ConformanceError(f"{what} is refused, and compiles.")


_PAIRS = (
    "a = MatMul(x, x) y = Add(a, x)",
    "a = Mul(x, x) y = Add(a, x)",
    "a = Add(x, x) y = Relu(a)",
    "a = Sigmoid(x) y = Mul(a, x)",
    "a = Transpose(x) y = MatMul(a, x)",
    "a = Add(x, x) y = Softmax(a)",
)
"""What devices compute at once, and may not, once it is cut."""


def _pairs() -> Iterator[Sample]:
    """Two operations each, in types that a device may have for one of them alone."""
    for ops, kind in itertools.product(_PAIRS, ("float16", "bfloat16", "double")):
        name = f"{kind}: {ops}"
        yield Sample(name, parse(f"g ({kind}[4,4] x) => ({kind}[4,4] y) {{ {ops} }}"))


@check("query")
def answers_hold_for_parts(bench: Bench) -> None:
    """What is taken in a network is taken alone and in each half of it, and what is not, is not.

    An operation whose neighbours decide is the exception: it is refused alone with a reason.
    """
    for network in (*networks(), *_pairs()):
        read = bench.read(network.proto)
        whole = bench.core.query_model(read, bench.device, bench.target.config)
        constants = set(read.ir.graph.initializers)
        ops = list(read.ops)
        for first, last in ((0, len(ops) // 2), (len(ops) // 2, len(ops))):
            part = [op for op in ops[first:last] if op.name in whole]
            made = {name for op in part for name in op.outputs if name}
            inputs = [
                n
                for n in dict.fromkeys(name for op in part for name in op.inputs if name)
                if n not in constants and n not in made
            ]
            if not part:
                continue
            outputs = list(dict.fromkeys(name for op in part for name in op.outputs if name))
            cut = read.extract(inputs, outputs, "part", [op.node for op in part])
            answer = bench.core.query_model(cut, bench.device, bench.target.config)
            names = {op.name for op in cut.ops}
            require(
                set(answer) | set(answer.reasons) == names,
                f"Of a part of '{network.name}' {sorted(set(answer) ^ names)} have no answer.",
            )
            lost = sorted(names - set(answer))
            require(not lost, f"{lost} of '{network.name}' are taken, and refused in a part of it.")
            try:
                bench.core.compile_model(cut, bench.device, bench.target.config)
            except PartitaError as error:
                raise ConformanceError(
                    f"What is taken of a part of '{network.name}' does not compile: {error}"
                ) from error


@check("query")
def answers_are_the_callers(bench: Bench) -> None:
    """An answer that its caller has edited, as affinities are, does not change the next one."""
    for network in (*networks(), *samples("plain")[:3]):
        model = bench.read(network.proto)
        for ask in (
            partial(bench.core.query_model, model, bench.device, bench.target.config),
            partial(bench.plugin.query_model, model, bench.properties()),
        ):
            answer = ask()
            first = dict(answer), dict(answer.reasons)
            answer.update(dict.fromkeys(answer, "SOMEWHERE"), nobody="SOMEWHERE")
            if isinstance(answer.reasons, dict):
                answer.reasons.clear()
            again = ask()
            same = (dict(again), dict(again.reasons)) == first
            require(same, f"An edit of the answer for '{network.name}' is in the next answer.")


def _renamed(proto: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """The model with other names of values, of what has no bodies."""
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    graph = other.graph
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    return other


def _says_more(proto: onnx.ModelProto) -> onnx.ModelProto:
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    other.producer_name, other.domain, other.model_version = "somebody", "org.nobody", 7
    other.doc_string = other.graph.doc_string = "A model; of 'nobody'."
    other.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    other.metadata_props.add(key="author", value="nobody")
    other.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "not read"))
    other.graph.input.append(value_of("nobody's", ("Q", 2)))
    for number, node in enumerate(other.graph.node):
        node.name, node.doc_string = f"{NAMES[number]}/{number}", "A node."
    return other


def _gives_all(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every value as an output."""
    other = onnx.shape_inference.infer_shapes(proto)
    known = {value.name for value in other.graph.output}
    other.graph.output.extend(v for v in other.graph.value_info if v.name not in known)
    return other


def _in_another_order(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model whose nodes come as late as those that read what they make let them."""
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    late: list[onnx.NodeProto] = []
    left = [*proto.graph.node]
    while left:
        read = {name for node in left for name in node.input}
        free = next(node for node in left if not read & set(node.output))
        left.remove(free)
        late.insert(0, free)
    del other.graph.node[:]
    other.graph.node.extend(late)
    return other


def _other_wordings(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Models that say the same of each operation as a model does, and what is otherwise."""
    values = dict.fromkeys(
        name for node in proto.graph.node for name in (*node.input, *node.output)
    )
    values.pop("", None)
    yield "with other names", _renamed(proto, dict(zip(values, NAMES, strict=False)))
    yield "with long names", _renamed(proto, {name: f"{LONG}{name}" for name in values})
    yield "that says more", _says_more(proto)
    yield "in another order", _in_another_order(proto)
    yield "with every value as an output", _gives_all(proto)


def _refused(bench: Bench, proto: onnx.ModelProto) -> list[str]:
    """The operators that are not taken, in the order of the alphabet."""
    refused = bench.refused(proto)
    return sorted(op.op_type for op in bench.read(proto).ops if op.name in refused)


@check("query", values=True)
def answers_are_about_operations(bench: Bench) -> None:
    """Names, notes, ports and the order of a model change no answer, and no result."""
    for network in (*networks(), *samples("plain")[:3]):
        due = _refused(bench, network.proto)
        for what, proto in _other_wordings(network.proto):
            have = _refused(bench, proto)
            require(have == due, f"Of '{network.name}' {due} are refused; {what}, {have}.")
            if not due:
                feeds = Sample("", proto, {**network.sizes, "Q": 2}).feeds(63)
                results = bench.compile(proto)(feeds).to_tuple()
                compare(results, bench.expected(proto, feeds), f"'{network.name}' {what}")
