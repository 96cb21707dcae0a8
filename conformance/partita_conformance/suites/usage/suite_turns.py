"""Suite ``turns``: runs, requests and models take turns, and none is taken for another."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

import partita
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.contract.suite_ports import UNARY, model, value_of
from partita_conformance.suites.feeding import host_tensors

_PLACES = 8
"""Elements that change one after another: a device that looks at a quarter of them misses one."""


@check("turns", values=True)
def one_element_changed_in_place_counts(bench: Bench) -> None:
    """Inputs that lie where they lay are read anew, whichever element of them has changed."""
    rng = np.random.default_rng(31)
    for kind, rows in (("pair", (0,)), ("dynamic", (11, 151, 3001)), ("large", (0,))):
        sample = bench.sample(kind)
        compiled = bench.compile(sample.proto)
        request, runner = compiled.create_infer_request(), compiled.device_model.create_runner()
        for count in rows:
            feeds = sample.feeds(31, **({"N": count} if count else {}))
            tensors = host_tensors(compiled, feeds)
            runner.run(tensors)
            request.infer(feeds)
            for name, array in feeds.items():
                flat = array.reshape(-1)
                for turn, place in enumerate(rng.integers(0, flat.size - 1, _PLACES)):
                    what = _change(flat, int(place), turn)
                    due = bench.expected(sample.proto, feeds)
                    where = f"{sample.name}, '{name}' of {flat.size} elements, {what}"
                    compare([t.numpy() for t in runner.run(tensors)], due, where)
                    compare(request.infer(feeds).to_tuple(), due, f"{where}, of a request")
        runner.close()


def _change(flat: Array, place: int, turn: int) -> str:
    """Changes an array in one place, or in two beside each other; says how.

    Some changes leave its sum as it is, others the set of its elements, or their magnitudes.
    """
    if turn % 4 == 1:
        flat[[place, place + 1]] = flat[[place + 1, place]]
        return f"elements {place} and {place + 1} exchanged"
    if turn % 4 == 2:
        flat[place] += 2
        flat[place + 1] -= 2
        return f"elements {place} and {place + 1} changed by 2 and -2"
    if turn % 4 == 3:
        flat[place] *= -1
        return f"element {place} negated"
    flat[place] += 3
    return f"element {place} changed by 3"


_OF_ANY_SHAPE = (
    "g (float[N,M] x) => (float[N,M] y) { y = Softmax <axis = -1> (x) }",
    "g (float[N,M] x) => (float[M,N] y) { y = Transpose <perm = [1, 0]> (x) }",
    "g (float[N,M] x) => (float[N,1] y) { y = ReduceMax <axes = [1], keepdims = 1> (x) }",
    "g (float[N,M] x) => (int64[2] y) { y = Shape(x) }",
    "g (float[N,M] x) => (float[N,M] y) { y = Neg(x) }",
)
_SHAPES = ((2, 12), (3, 8), (3, 8), (12, 2), (1, 24), (24, 1), (2, 12), (4, 6))


@check("turns", values=True)
def equal_bytes_in_other_shapes_count(bench: Bench) -> None:
    """Inputs of the same bytes, in the same memory or not, have in each run the shape they have."""
    block, tried = np.arange(24, dtype=np.float32) / 8, 0
    for text in _OF_ANY_SHAPE:
        proto = parse(text)
        if bench.refusals(proto):
            continue
        tried += 1
        compiled = bench.compile(proto)
        request, runner = compiled.create_infer_request(), compiled.device_model.create_runner()
        for turn, (shape, copied) in enumerate(itertools.product(_SHAPES, (False, True))):
            x = block.reshape(shape)
            feeds = {"x": x.copy() if copied else x}
            due = bench.expected(proto, feeds)
            what = f"{text.rpartition('{')[2]} of the same bytes in shape {shape}, run {turn + 1}"
            compare([t.numpy() for t in runner.run(host_tensors(compiled, feeds))], due, what)
            compare(request.infer(feeds).to_tuple(), due, f"{what}, of a request")
        runner.close()
    if not tried:
        raise NotApplicableError("the device takes none of the models")


@check("turns", values=True)
def equal_bytes_of_other_types_count(bench: Bench) -> None:
    """Inputs of the same bytes, of models of other element types, are read as their own type."""
    block, tried = np.linspace(1, 2, 12, dtype=np.float32), 0
    for op in ("Neg(x)", "Add(x, x)", "Identity(x)", "Mul(x, x)"):
        taken = []
        for dtype in (np.float32, np.int32, np.float64, np.int64, np.uint8, np.float16):
            x = block.view(dtype)
            element = TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(x.dtype)).lower()
            kind = f"{element}[{x.size}]"
            proto = parse(f"g ({kind} x) => ({kind} y) {{ y = {op} }}")
            if not (op.startswith("Neg") and x.dtype.kind == "u") and not bench.refusals(proto):
                taken.append((proto, x, bench.compile(proto)))
        if len(taken) < 2:
            continue
        tried += 1
        for proto, x, compiled in (*taken, *taken[::-1]):
            what = f"{op} of the same bytes as {x.dtype}"
            with np.errstate(all="ignore"):
                compare(compiled({"x": x}).to_tuple(), bench.expected(proto, {"x": x}), what)
    if not tried:
        raise NotApplicableError("the device takes no operation in two element types")


@check("turns", values=True)
def inputs_may_change_places(bench: Bench) -> None:
    """Two tensors that are exchanged between two inputs are read where they are given."""
    sample = bench.sample("pair")
    compiled = bench.compile(sample.proto)
    request, runner = compiled.create_infer_request(), compiled.device_model.create_runner()
    arrays = [sample.feeds(33)["a"], sample.feeds(34)["b"]]
    tensors = [partita.HostTensor(array) for array in arrays]
    for turn, (a, b) in enumerate(((0, 1), (1, 0), (0, 1), (1, 1), (1, 0), (0, 0), (0, 1))):
        due = bench.expected(sample.proto, {"a": arrays[a], "b": arrays[b]})
        what = f"{sample.name}, tensors {a} and {b} in run {turn + 1}"
        compare([t.numpy() for t in runner.run([tensors[a], tensors[b]])], due, what)
        request.set_input_tensor(0, tensors[a])
        request.set_input_tensor(1, tensors[b])
        compare(request.infer().to_tuple(), due, f"{what}, of a request")
    runner.close()
    for turn, (name, which) in enumerate((("a", 1), ("b", 0), ("a", 0), ("b", 1))):
        request.infer({name: arrays[which]})  # the other one stays as it was set
        pair = {"a": (1, 1, 0, 0)[turn], "b": (1, 0, 0, 1)[turn]}
        due = bench.expected(sample.proto, {n: arrays[i] for n, i in pair.items()})
        what = f"{sample.name}, only '{name}' set anew in turn {turn + 1}"
        compare(request.results.to_tuple(), due, what)


_GROWING = (
    "g (float[N,6] x) => (float[N,6] y) { y = Neg(x) }",
    "g (float[N,6] x) => (float[N,6] y, float[N,1] z) {"
    " y = Exp(x) z = ReduceMax <axes = [1], keepdims = 1> (x) }",
    "g (float[N,6] x) => (float[A,6] y) { y = Concat <axis = 0> (x, x) }",
    "g (float[N,6] x) => (float[N,6] y) { y = Add(x, x) }",
)
_ROWS = (3, 5, 3, 5, 2, 3, 9, 2, 9, 0, 0, 5, 3, 70, 3, 9)
"""Rows in runs of two requests in turn."""


@check("turns", values=True)
def requests_of_other_shapes_take_turns(bench: Bench) -> None:
    """Two requests, and two runners, grow and shrink each for itself, and keep their results."""
    tried = 0
    for text in _GROWING:
        proto = parse(text)
        if bench.refusals(proto):
            continue
        tried += 1
        sample = Sample(text.rpartition("{")[2], proto)
        compiled = bench.compile(proto)
        requests = [compiled.create_infer_request() for _ in range(2)]
        runners = [compiled.device_model.create_runner() for _ in range(2)]
        kept: list[tuple[Sequence[Array], Sequence[Array]]] = []
        for turn, rows in enumerate(_ROWS):
            feeds = sample.feeds(turn, N=rows)
            due = bench.expected(proto, feeds)
            what = f"{sample.name} of {rows} rows, turn {turn + 1}"
            have = requests[turn % 2].infer(feeds, share_outputs=True).to_tuple()
            compare(have, due, what)
            given = [partita.HostTensor(np.full_like(a, 9)) for a in due] if turn % 3 else None
            results = runners[turn % 2].run(host_tensors(compiled, feeds), given)
            compare([t.numpy() for t in results], due, f"{what}, of a runner")
            for arrays, expected in kept[-1:]:
                compare(arrays, expected, f"{what}: the other request's results afterwards")
            kept.append((have, due))
        for runner in runners:
            runner.close()
    if not tried:
        raise NotApplicableError("the device takes none of the models")


@check("turns", values=True)
def ranks_take_turns(bench: Bench) -> None:
    """Where a rank is not known, one request is given one and another; so it is inside a model."""
    tried = 0
    shapes = ((2, 3), (6,), (), (3, 1, 2), (6,), (0, 2), (2, 3))
    unknown = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    shape = helper.make_tensor_value_info("s", TensorProto.INT64, ["K"])
    for op in UNARY:
        alone = model([helper.make_node(op, ["x"], ["y"])], unknown[:1], unknown[1:])
        nodes = [
            helper.make_node("Reshape", ["x", "s"], ["a"]),
            helper.make_node(op, ["a"], ["y"]),
        ]
        inside = model(nodes, [value_of("x", ("N",)), shape], unknown[1:])
        for proto in (alone, inside):
            if bench.refusals(proto):
                continue
            tried += 1
            request = bench.compile(proto).create_infer_request()
            for turn, dims in enumerate(shapes):
                numbers = np.arange(np.prod(dims, dtype=int), dtype=np.float32) - 1.5
                feeds: dict[str, Array] = {"x": numbers.reshape(dims)}
                if proto is inside:
                    feeds = {"x": numbers, "s": np.array(dims, np.int64)}
                what = f"{op} of shape {dims} in run {turn + 1}"
                compare(request.infer(feeds).to_tuple(), bench.expected(proto, feeds), what)
    if not tried:
        raise NotApplicableError("the device takes nothing of unknown rank")


@check("turns", values=True)
def models_come_and_go(bench: Bench) -> None:
    """Models that are alike in all but an operation or a number follow each other, one at a time.

    What is gone may have lain where the next one lies.
    """
    x, tried = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.25, 0
    for turn in range(12):
        op = ("Add", "Mul", "Sub")[turn % 3]
        weight = {"w": np.full((2, 3), 1.5 + turn // 3, np.float32)}
        proto = parse(f"g (float[2,3] x) => (float[2,3] y) {{ y = {op}(x, w) }}", weight)
        if bench.refusals(proto):
            continue
        tried += 1
        due = bench.expected(proto, {"x": x})
        compare(bench.compile(proto)({"x": x}).to_tuple(), due, f"{op}, model {turn + 1} in a row")
        if turn % 4 == 3:
            gc.collect()
    if not tried:
        raise NotApplicableError("the device takes none of the models")


_RUNS = 300
"""More than a counter of eight bits holds."""


@check("turns", values=True)
def hundreds_of_runs_are_right(bench: Bench) -> None:
    """Three inputs in turn give in hundreds of runs what they give in the first ones."""
    for kind in ("plain", "dynamic"):
        sample = bench.sample(kind)
        compiled = bench.compile(sample.proto)
        request, runner = compiled.create_infer_request(), compiled.device_model.create_runner()
        inputs = [sample.feeds(35 + n, **({"N": n + 1} if sample.sizes else {})) for n in range(3)]
        due = [bench.expected(sample.proto, feeds) for feeds in inputs]
        tensors = [host_tensors(compiled, feeds) for feeds in inputs]
        for turn in range(_RUNS):
            which = turn % 3
            what = f"{sample.name}, run {turn + 1}"
            compare([t.numpy() for t in runner.run(tensors[which])], due[which], what)
            have = request.infer(inputs[which]).to_tuple()
            compare(have, due[which], f"{what} of a request")
        runner.close()


@check("turns", values=True)
def results_outlive_what_made_them(bench: Bench) -> None:
    """Results stay as they are when their request, its model and core are gone and others run."""
    for kind in ("outputs", "large"):
        sample = bench.sample(kind)
        kept = []
        for seed, share in ((36, False), (37, True)):
            core = bench.new_core()
            request = bench.compile(sample.proto, core=core).create_infer_request()
            feeds = sample.feeds(seed)
            arrays = request.infer(feeds, share_outputs=share).to_tuple()
            kept.append((arrays, bench.expected(sample.proto, feeds), share))
            del request, core
        gc.collect()
        others = [bench.compile(sample.proto) for _ in range(3)]
        for seed, other in enumerate(others):
            other(sample.feeds(seed))
        for arrays, due, share in kept:
            what = f"{sample.name}, results after their request is gone (shared: {share})"
            compare(arrays, due, what)
            require(all(a.flags.c_contiguous for a in arrays), f"{what} are not C-contiguous.")


@check("turns", values=True)
def one_model_is_compiled_twice(bench: Bench) -> None:
    """A model that was asked about, compiled and run can be asked about and compiled once more."""
    for kind in ("plain", "pair", "dynamic", "outputs"):
        sample = bench.sample(kind)
        read = bench.read(sample.proto)
        feeds = sample.feeds(38)
        due = bench.expected(sample.proto, feeds)
        answers: list[dict[str, str]] = []
        models: list[partita.CompiledModel] = []
        for turn in range(3):
            answers.append(dict(bench.plugin.query_model(read, bench.properties())))
            made = bench.plugin.compile_model(read, bench.properties())  # Core would give a copy
            models.append(partita.CompiledModel(made))
            for number, compiled in enumerate(models):
                what = f"{sample.name}, compile {number + 1} of {turn + 1} from one model"
                compare(compiled(feeds).to_tuple(), due, what)
        require(answers[0] == answers[-1], f"{sample.name}: answers change when it is compiled.")
