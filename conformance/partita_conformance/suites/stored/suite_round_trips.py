"""Further checks of suite ``blob``: names, ports, bodies, variables and parts come back."""

from __future__ import annotations

from typing import Any

import numpy as np

import partita
from partita.errors import PartitaError
from partita.model.variables import METADATA_KEY, Variable, to_metadata
from partita.tensors.sequence_values import boxed, unboxed
from partita_conformance.bench.bench import REFERENCE, Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.bodies import bodies, turns
from partita_conformance.inputs.models import Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.blobs import exported
from partita_conformance.suites.contract.suite_sequences import SEQUENCES

_NAMED = (
    "named (float[N,4] x.1, float[N,4] X.1, int64[2] unread) =>"
    " (float[N,4] z, float[N,4] a, float[N,4] x_1) {"
    " z = Sub(x.1, X.1) x_1 = Add(z, x.1) b = Mul(x_1, X.1) a = Neg(b) }",
    "named (float[N,4] x_1, float[N,4] X_1, int64[2] unread) =>"
    " (float[N,4] z, float[N,4] a) { z = Add(x_1, X_1) a = Add(z, x_1) }",
    "named (float[N,4] x_1) => (float[N,4] z, float[N,4] a) { z = Relu(x_1) a = Neg(z) }",
    "named (float[N,4] x_1) => (float[N,4] z, float[N,4] a) { z = Relu(x_1) a = Relu(z) }",
)
_NODES = ("Second/first", "first", "\u00e4 \u2713", "second/FIRST:0")
"""Names of operations that are neither those of their outputs nor in their order."""


def _named(bench: Bench) -> Sample:
    """A model whose operations have names of their own."""
    models = []
    for text in _NAMED:
        proto = parse(text.replace("x.1", "x_in").replace("X.1", "X_in"))
        for node, name in zip(proto.graph.node, _NODES, strict=False):
            node.name = name
        proto.graph.name = "of many / names"
        models.append((text, proto))
    for text, proto in bench.taken(models):
        return Sample(text, proto, {"N": 3})
    raise NotApplicableError("the device takes none of the models")


@check("blob")
def names_and_ports_come_back(bench: Bench) -> None:
    """Operations, ports, counters and plans of an imported model have the names that they had."""
    sample = _named(bench)
    original = bench.compile(sample.proto, {"PERF_COUNT": True})
    restored = bench.new_core().import_model(exported(original), bench.device)
    asked = bench.new_core().import_model(
        exported(bench.compile(sample.proto)), bench.device, {"PERF_COUNT": True}
    )
    due = {node.name: node.op_type for node in sample.proto.graph.node}
    for what, compiled in {"compiled": original, "imported": restored, "counting": asked}.items():
        for side in ("inputs", "outputs"):
            ports = getattr(compiled, side), getattr(original, side)
            require(ports[0] == ports[1], f"The {side} are {ports[0]}, {what}, not {ports[1]}.")
        have = {op.name: op.op_type for op in compiled.explain().ops}
        require(have == due, f"explain() of the model, {what}, has {have}, not {due}.")
        runtime = {op.name: op.op_type for op in compiled.get_runtime_model().ops}
        require(runtime == due, f"The runtime model, {what}, is of {runtime}, not of {due}.")
        name = compiled.get_property("NETWORK_NAME")
        require(name == sample.proto.graph.name, f"NETWORK_NAME, {what}, is {name!r}.")
        request = compiled.create_infer_request()
        request.infer(sample.feeds(2))
        counted = {info.node_name for info in request.get_profiling_info()}
        known = counted <= {*due} or bench.core.device_info(bench.device).kind == "virtual"
        require(known, f"Counters, {what}, are of {sorted(counted - {*due})}.")
        if compiled is original:
            were = counted
        require(counted == were, f"Counters, {what}, are of {sorted(counted)}, not {sorted(were)}.")


_SIZED = (
    "g (float[N,3] x, float[M,3] z, float[3] r) => (float[A,3] y, float[N,3] u) {"
    " y = Concat <axis = 0> (x, z) u = Add(x, r) }",
    "g (float[N,M] x, float[M] z) => (float[N,M] y) { y = Sub(x, z) }",
    "g (float[N,M] x, float[N,M] z) => (float[N,M] y) { y = Add(x, z) }",
    "g (float[N,M] x) => (float[M,N] y, int64[2] s) { y = Transpose(x) s = Shape(x) }",
    "g (float[N,M] x) => (float[N,M] y) { y = Relu(x) }",
)


@check("blob", values=True)
def sizes_stay_open(bench: Bench) -> None:
    """An imported model takes each size that the exported one took, and has its symbols."""
    for text, proto in bench.taken((text, parse(text)) for text in _SIZED):
        sample = Sample(text, proto)
        original = bench.compile(proto)
        original(sample.feeds(1, N=4, M=2))
        restored = bench.new_core().import_model(exported(original), bench.device)
        for side in ("inputs", "outputs"):
            ports = getattr(restored, side), getattr(original, side)
            require(ports[0] == ports[1], f"{text}: {side} are {ports[0]}, not {ports[1]}.")
        for turn, (rows, columns) in enumerate(((4, 2), (1, 7), (9, 1), (0, 3), (3, 3), (130, 5))):
            feeds = sample.feeds(turn, N=rows, M=columns)
            what = f"{text} of sizes {rows} and {columns}, imported"
            compare(restored(feeds).to_tuple(), bench.expected(proto, feeds), what)


@check("blob", values=True)
def reshaped_models_come_back(bench: Bench) -> None:
    """A model that was reshaped is exported with the shapes that it was compiled with."""
    sample = bench.sample("dynamic")
    for shape in ([5, None], [None, None], [(2, 6), None]):
        model = bench.read(sample.proto)
        rest = (model.input(0).shape or ())[1:]
        model.reshape({0: [shape[0] if shape[0] is not None else "Rows", *rest]})
        compiled = bench.core.compile_model(model, bench.device, bench.target.config)
        restored = bench.new_core().import_model(exported(compiled), bench.device)
        require(
            restored.inputs == compiled.inputs and restored.outputs == compiled.outputs,
            f"Ports are {restored.inputs} after the import, not {compiled.inputs}.",
        )
        for rows in (5, 7, 2):
            feeds = sample.feeds(rows, N=rows)
            due = _outcome(compiled, feeds)
            have = _outcome(restored, feeds)
            what = f"{sample.name} reshaped to {shape}, imported, {rows} rows"
            require((due is None) == (have is None), f"{what}: only one of both takes them.")
            if due is not None and have is not None:
                compare(have, due, what, 1e-5, 1e-6)
                compare(have, bench.expected(sample.proto, feeds), what)


def _outcome(compiled: partita.CompiledModel, feeds: dict[str, Any]) -> tuple[Any, ...] | None:
    """The results; ``None`` if the model does not take the inputs."""
    try:
        return compiled(feeds).to_tuple()
    except PartitaError:
        return None


@check("blob", values=True)
def bodies_and_sequences_come_back(bench: Bench) -> None:
    """Branches, loops, scans and sequences compute after an import what they did before."""
    models = ((sample, sample.proto) for sample in bodies())
    for sample, proto in bench.taken(models):
        restored = bench.core.import_model(exported(bench.compile(proto)), bench.device)
        for feeds in turns(sample)[:2]:
            try:
                due = bench.expected(proto, feeds)
            except PartitaError:
                continue  # nobody can say what is right
            with np.errstate(all="ignore"):
                compare(restored(feeds).to_tuple(), due, f"{sample.name}, imported")


_TEXTS = (
    "g (string[3] x) => (string[3] y) { y = Identity(x) }",
    "g (string[3] x) => (string[3] y, bool[3] z) { y = Identity(w) z = Equal(x, w) }",
    "g (string[3] x) => (string[3] y) { y = StringConcat(x, w) }",
)


@check("blob", values=True)
def sequences_and_texts_come_back(bench: Bench) -> None:
    """Ports of sequences and texts are after an import what they were."""
    texts = np.array(["", "\u00e4\0\u2713", "x" * 300], object)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    fed = {"x": array, "i": np.array(1, np.int64), "s": boxed([array, -array, array + 1])}
    models = [(text, parse(text)) for text in SEQUENCES]
    for text in _TEXTS:
        proto = parse(text, {"w": texts[::-1].copy()} if "w)" in text else None)
        proto.opset_import[0].version = 20
        proto.ir_version = 9
        models.append((text, proto))
    for text, proto in bench.taken(models):
        given = {value.name for value in proto.graph.input}
        feeds = {**fed, "x": texts} if text in _TEXTS else fed
        feeds = {name: array for name, array in feeds.items() if name in given}
        compiled = bench.compile(proto)
        restored = bench.core.import_model(exported(compiled), bench.device)
        ports = (restored.inputs, restored.outputs), (compiled.inputs, compiled.outputs)
        require(ports[0] == ports[1], f"{text}: ports are {ports[0]}, not {ports[1]}.")
        due = [unboxed(each) for each in bench.expected(proto, feeds)]
        have = [unboxed(each) for each in restored(feeds).to_tuple()]
        compare(have, due, f"{text}, imported")


@check("blob", values=True)
def variables_come_back_unset(bench: Bench) -> None:
    """A model with a variable has it after an import, from its beginning, in each request anew."""
    text = "g (float[2,3] x, float[2,3] past) => (float[2,3] y, float[2,3] present)"
    models = []
    for steps in (
        "present = Add(x, past) y = Mul(present, present)",
        "present = Add(x, past) y = Add(present, past)",
        "present = Identity(x) y = Add(past, x)",
    ):
        proto = parse(f"{text} {{ {steps} }}")
        entry = proto.metadata_props.add()
        entry.key, entry.value = METADATA_KEY, to_metadata([Variable("v", "past", "present")])
        models.append((steps, proto))
    for steps, proto in bench.taken(models):
        original = bench.compile(proto)
        feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
        used = original.create_infer_request()
        for _ in range(2):
            used.infer(feeds)
        blob = exported(original)
        restored = bench.new_core().import_model(blob, bench.device)
        names = [port.name for port in restored.inputs], [port.name for port in original.inputs]
        require(names[0] == names[1], f"{steps}: inputs are {names[0]}, not {names[1]}.")
        requests = [restored.create_infer_request() for _ in range(2)]
        past = np.zeros((2, 3), np.float32)
        for turn in range(3):
            y, past = bench.expected(proto, {**feeds, "past": past})
            for number, request in enumerate(requests):
                what = f"{steps}, imported, run {turn + 1} of request {number + 1}"
                compare([request.infer(feeds).to_tuple()[0]], [y], what)


@check("blob", values=True)
def parts_of_models_come_back(bench: Bench) -> None:
    """A model of HETERO of which a part is the device's comes back, in another core too."""
    if bench.core.device_info(bench.device).kind == "virtual" or bench.device == REFERENCE:
        raise NotApplicableError("the device is not a part of another one")
    sample = bench.sample("plain")
    exported(bench.compile(sample.proto))
    both = f"HETERO:{bench.device},{REFERENCE}"
    feeds = sample.feeds(41)
    due = bench.expected(sample.proto, feeds)
    models = []
    for first in (bench.device, REFERENCE):
        model = bench.read(sample.proto)
        for number, op in enumerate(model.ops):
            op.affinity = (bench.device, REFERENCE)[(number + (first == REFERENCE)) % 2]
        compiled = bench.core.compile_model(model, both)
        blob = compiled.export_model()
        models += [(first, compiled), (first, bench.core.import_model(blob, both))]
        models.append((first, bench.new_core().import_model(blob, both)))
        where = {op.name: op.device for op in compiled.explain().ops}
        for _, imported in models[-2:]:
            have = {op.name: op.device for op in imported.explain().ops}
            require(have == where, f"Operations are on {have} after the import, not on {where}.")
    for number, (first, compiled) in enumerate(models):
        what = f"{sample.name} on {both}, from {first} on, model {number + 1}"
        compare(compiled(feeds).to_tuple(), due, what)
