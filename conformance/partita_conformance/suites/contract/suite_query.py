"""Suite ``query``: answers that can be relied on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import partita
from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.bench.promises import require_answer
from partita_conformance.inputs.models import Sample, networks, parse, samples, stranger
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import (
    ConformanceError,
    require,
)


@check("query")
def every_operation_has_an_answer(bench: Bench) -> None:
    """Each operation is taken or has a Reason, never both, and no other name appears."""
    for network in networks():
        model = bench.read(network.proto)
        answer = bench.plugin.query_model(model, bench.properties())
        require(
            isinstance(answer, partita.QueryResult),
            f"query_model gives {type(answer).__name__}, not QueryResult.",
        )
        require_answer(model, answer, bench.plugin.device_name, bench.is_virtual)


@check("query")
def an_unknown_operator_is_refused(bench: Bench) -> None:
    """An operator of a domain that nobody knows is not taken, and cannot be compiled."""
    model = stranger()
    answer = bench.core.query_model(model, bench.device)
    require("strange" not in answer, "The device takes com.nobody::Transmogrify.")
    code = answer.reasons["strange"].code
    said = f"The reason for an operator that nobody knows is {code.name}, not UNSUPPORTED_OP."
    require(bench.is_virtual or code == partita.ReasonCode.UNSUPPORTED_OP, said)
    try:
        bench.core.compile_model(model, bench.device)
    except PartitaError:
        return
    raise ConformanceError("The device compiles com.nobody::Transmogrify.")


@check("query")
def other_domains_are_not_onnx(bench: Bench) -> None:
    """An operator of a foreign domain is not taken for ONNX's own of the same name."""
    for network in (*networks(), *samples("plain")):
        foreign = type(network.proto)()
        foreign.CopyFrom(network.proto)
        for number, node in enumerate(foreign.graph.node):
            node.domain, node.name = "com.nobody", f"foreign_{number}"
        foreign.opset_import.add(domain="com.nobody", version=1)
        answer = bench.core.query_model(bench.read(foreign), bench.device, bench.target.config)
        taken = sorted(n.op_type for n in foreign.graph.node if n.name in answer)
        require(not taken, f"The device takes com.nobody's {', '.join(taken)} for ONNX's.")


@check("query", values=True)
def other_domains_may_be_imported_first(bench: Bench) -> None:
    """The version of ONNX's own operators is that of its domain, wherever the model names it."""
    ops = ("Softmax", "LogSoftmax", "Hardmax", "Softplus")  # the first three changed with 13
    for op, proto in bench.taken((op, _importing(op)) for op in ops):
        sample = Sample(op, proto)
        feeds = sample.feeds(3)
        what = f"{op} of opset 17 in a model that imports other domains"
        compare(bench.compile(proto)(feeds).to_tuple(), bench.expected(proto, feeds), what)


def _importing(op: str) -> onnx.ModelProto:
    """A model of an operator that imports other domains ahead of ONNX's and behind it."""
    proto = parse(f"imports (float[2,3,4] x) => (float[2,3,4] y) {{ y = {op}(x) }}")
    proto.opset_import.insert(0, helper.make_opsetid("com.nobody", 1))
    proto.opset_import.append(helper.make_opsetid("com.somebody", 99))
    return proto


@check("query")
def the_model_stays_as_it_is(bench: Bench) -> None:
    """Neither query nor compile changes the model or the affinities in it."""
    for network in networks():
        model = bench.read(network.proto)
        for op in model.ops:
            op.affinity = "SOMEWHERE"
        before = model.to_onnx().SerializeToString(deterministic=True)
        answer = bench.core.query_model(model, bench.device)
        after = model.to_onnx().SerializeToString(deterministic=True)
        require(before == after, f"query_model changes model '{network.name}'.")
        if len(answer) == len(model.ops):
            for op in model.ops:
                op.affinity = None
            before = model.to_onnx().SerializeToString(deterministic=True)
            bench.plugin.compile_model(model, bench.properties())
            after = model.to_onnx().SerializeToString(deterministic=True)
            require(before == after, f"compile_model changes model '{network.name}'.")


@check("query")
def refusals_are_of_one_operation(bench: Bench) -> None:
    """What is taken is taken beside operations that are not, before and behind them in the list."""
    for sample in samples("plain"):
        if bench.refusals(sample.proto):
            continue
        for place in ("before", "behind"):
            beside = type(sample.proto)()
            beside.CopyFrom(sample.proto)
            nodes = [*beside.graph.node]
            read = beside.graph.input[0].name
            strange = helper.make_node("Transmogrify", [read], ["strange"], domain="com.nobody")
            strange.name = "strange"
            del beside.graph.node[:]
            beside.graph.node.extend([strange, *nodes] if place == "before" else [*nodes, strange])
            beside.graph.output.append(helper.make_tensor_value_info("strange", 1, [1]))
            beside.opset_import.add(domain="com.nobody", version=1)
            model = bench.read(beside)
            answer = bench.core.query_model(model, bench.device, bench.target.config)
            others = [op for op in model.ops if op.domain != "com.nobody"]
            lost = [op.op_type for op in others if op.name not in answer]
            require(
                not lost,
                f"{', '.join(lost)} of '{sample.name}' are taken alone, and are not with an "
                f"operation of com.nobody {place} them.",
            )


@check("query")
def affinities_do_not_matter(bench: Bench) -> None:
    """The answer is the same with and without affinities, and when asked twice."""
    for network in networks():
        model = bench.read(network.proto)
        first = dict(bench.core.query_model(model, bench.device))
        for op in model.ops:
            op.affinity = "SOMEWHERE"
        second = dict(bench.core.query_model(model, bench.device))
        require(first == second, f"Affinities change the answer for '{network.name}'.")


@check("query")
def the_same_question_has_one_answer(bench: Bench) -> None:
    """The answer is the same when asked again, of another core, and after compiling and running."""
    for network in (*networks(), *samples("plain")):
        model = bench.read(network.proto)

        def answer(core: partita.Core = bench.core, model: partita.Model = model) -> Any:
            result = core.query_model(model, bench.device, bench.target.config)
            return dict(result), {name: str(reason) for name, reason in result.reasons.items()}

        first = answer()
        for what in ("asked again", "asked a third time"):
            require(answer() == first, f"'{network.name}', {what}: the answer is another one.")
        core = bench.new_core()
        read = core.read_model(network.proto)
        require(answer(core, read) == first, f"Another core's answer to '{network.name}' differs.")
        if len(first[0]) == len(model.ops):
            bench.compile(network.proto)(network.feeds())
            again = answer()
            require(again == first, f"'{network.name}' compiled: the answer is another one.")


@check("query")
def operations_are_not_known_by_name(bench: Bench) -> None:
    """Of two models whose operations have the same names, each is answered for itself."""
    proto = bench.sample("plain").proto
    stranger = type(proto)()
    stranger.CopyFrom(proto)
    for node in stranger.graph.node:
        node.domain, node.op_type = "com.nobody", "Transmogrify"
    stranger.opset_import.add(domain="com.nobody", version=1)
    for model, taken in ((stranger, False), (proto, True), (stranger, False)):
        named = type(proto)()
        named.CopyFrom(model)
        for number, node in enumerate(named.graph.node):
            node.name = f"the_same_name_{number}"
        answer = bench.core.query_model(bench.read(named), bench.device, bench.target.config)
        for node in named.graph.node:
            have = node.name in answer
            require(have == taken, f"'{node.op_type}' is answered as another of its name was.")


@check("query")
def refusals_to_compile_say_why(bench: Bench) -> None:
    """The error of a compile that is refused has words."""
    for op, kind in (
        ("Transmogrify", "com.nobody"),
        ("Tanh", ""),
        ("Det", ""),
        ("Multinomial", ""),
    ):
        node = helper.make_node(op, ["x"], ["y"], name="odd", domain=kind)
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 3]) for n in "xy"]
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.nobody", 1)]
        graph = helper.make_graph([node], "odd", values[:1], values[1:])
        model = bench.read(helper.make_model(graph, opset_imports=imports, ir_version=8))
        if "odd" in bench.plugin.query_model(model, bench.properties()):
            continue
        try:
            bench.plugin.compile_model(model, bench.properties())
        except PartitaError as error:
            require(
                str(error).strip(), f"Compiling {op} raises {type(error).__name__} of no words."
            )


@check("query")
def what_is_taken_compiles_together(bench: Bench) -> None:
    """A model all of whose operations are taken compiles as a whole."""
    everything = [s for kind in ("plain", "dynamic", "pair", "outputs") for s in samples(kind)]
    for sample in (*everything, *networks()):
        if bench.refusals(sample.proto):
            continue
        try:
            bench.compile(sample.proto)
        except PartitaError as error:
            raise ConformanceError(
                f"All of '{sample.name}' is taken, and it does not compile: {error}"
            ) from error


@check("query")
def what_is_refused_does_not_compile(bench: Bench) -> None:
    """A model with an operation that is refused raises when it is compiled, and says which."""
    for sample in networks():
        refused = bench.refusals(sample.proto)
        if not refused:
            continue
        try:
            bench.compile(sample.proto)
        except PartitaError:
            continue
        raise ConformanceError(
            f"'{sample.name}' compiles, though query_model refuses {'; '.join(refused)}."
        )


_ELEMENTS = (np.float32, np.float64, np.float16, np.int32, np.int64)


@check("query")
def operations_of_a_type_are_told_apart(bench: Bench) -> None:
    """Operations of one type in one model have each the answer that they have alone.

    They are of other element types, in either order, and one after another.
    """
    for op_type in ("Relu", "Add", "Mul", "Abs", "Neg", "ReduceMax", "MatMul"):
        found = {np.dtype(t).name: _taken(bench, [(op_type, t)]) for t in _ELEMENTS}
        alone = [taken for answers in found.values() for taken in answers]
        for turn in (1, -1):
            pairs = [(op_type, t) for t in _ELEMENTS][::turn]
            have = _taken(bench, pairs)[::turn]
            require(
                have == alone,
                f"{op_type} of {', '.join(found)} is taken {alone} alone, {have} in one model.",
            )


def _taken(bench: Bench, pairs: Sequence[tuple[str, Any]]) -> list[bool]:
    """Which operations of these element types are taken, side by side in one model."""
    nodes, inputs, outputs = [], [], []
    for number, (op_type, dtype) in enumerate(pairs):
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        names = [f"a{number}", f"b{number}"][: 2 if op_type in ("Add", "Mul", "MatMul") else 1]
        nodes.append(helper.make_node(op_type, names, [f"y{number}"], name=f"n{number}"))
        inputs += [helper.make_tensor_value_info(name, element, [3, 3]) for name in names]
        outputs.append(helper.make_tensor_value_info(f"y{number}", element, None))
    graph = helper.make_graph(nodes, "mixed", inputs, outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    answer = bench.core.query_model(bench.read(proto), bench.device, bench.target.config)
    return [f"n{number}" in answer for number in range(len(pairs))]


@check("query")
def dtypes_are_looked_at(bench: Bench) -> None:
    """An operator that is taken for one element type and refused for another runs as it says."""
    for dtype in (np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8, np.bool_):
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        for op_type in ("Add", "Equal", "Concat", "Identity"):
            inputs = ["a"] if op_type == "Identity" else ["a", "b"]
            out = TensorProto.BOOL if op_type == "Equal" else element
            attributes: dict[str, Any] = {"axis": 0} if op_type == "Concat" else {}
            if op_type == "Add" and dtype is np.bool_:
                continue
            rows = 4 if op_type == "Concat" else 2
            proto = helper.make_model(
                helper.make_graph(
                    [helper.make_node(op_type, inputs, ["y"], **attributes)],
                    op_type,
                    [helper.make_tensor_value_info(name, element, [2, 3]) for name in inputs],
                    [helper.make_tensor_value_info("y", out, [rows, 3])],
                ),
                opset_imports=[helper.make_opsetid("", 17)],
                ir_version=8,
            )
            if bench.refusals(proto):
                continue
            array = np.ones((2, 3), dtype)
            (y,) = bench.compile(proto)(dict.fromkeys(inputs, array)).to_tuple()
            due = np.dtype(np.bool_) if op_type == "Equal" else array.dtype
            require(y.dtype == due, f"{op_type} of {array.dtype} gives {y.dtype}, not {due}.")
