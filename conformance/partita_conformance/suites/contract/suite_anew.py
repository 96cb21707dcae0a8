"""Further checks of suite ``request``: whatever changed in an input counts in the next run."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import partita
from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.contract.suite_request import agree


@check("request", values=True)
def every_element_is_read_anew(bench: Bench) -> None:
    """Inputs that differ from those of the run before in one element, at any place, count."""
    rng = np.random.default_rng(21)
    for kind in ("plain", "pair", "dynamic", "large"):
        sample = bench.sample(kind)
        request = bench.compile(sample.proto).create_infer_request()
        feeds = sample.feeds(12, **({"N": 151} if kind == "dynamic" else {}))
        request.infer(feeds)
        for name, array in feeds.items():
            flat = array.reshape(-1)
            anywhere = rng.integers(0, array.size, 4 if array.size > _SMALL else 0)
            for place in (0, array.size // 2, array.size // 3, array.size - 1, *anywhere):
                flat[place] += 3
                changed = {**feeds, name: array.copy()}
                agree(bench, sample, changed, request.infer(changed), f"element {place} changed")
            one, other = array.size // 5, array.size // 2 + 1
            flat[[one, other]] = flat[[other, one]]
            what = f"elements {one} and {other} have changed places"
            agree(bench, sample, feeds, request.infer(feeds), what)


_SMALL = 100
"""Elements that all are looked at, by devices that look at some."""
_NAN_OF_ANOTHER_KIND = np.array([0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
_EQUAL: dict[str, tuple[Array, ...]] = {
    "float": (
        np.array([0.0, -0.0, 1.0, 0.0], np.float32),
        np.array([-0.0, 0.0, 1.0, 0.0], np.float32),
        np.array([0.0, 0.0, np.nextafter(np.float32(1), np.float32(2)), -0.0], np.float32),
        np.array([np.nan, -np.nan, 1e-30, -2e-30], np.float32),
        np.array([*_NAN_OF_ANOTHER_KIND, 2e-30, -1e-30], np.float32),
    ),
    "double": (np.array([1, 0.0, -0.0, 3]), np.array([1 + 2.0**-52, -0.0, 0.0, 3])),
    "int64": (np.array([2**53, 2**62, 1, 0]), np.array([2**53 + 1, 2**62 + 1, 1, 0])),
    "int32": (np.array([2**24, 5, 1, 0], np.int32), np.array([2**24 + 1, 5, 1, 0], np.int32)),
    "string": (
        np.array(["a", "b", "", "x" * 70 + "1"], object),
        np.array(["a ", "b", "", "x" * 70 + "1"], object),
        np.array(["a ", "b", " ", "x" * 70 + "2"], object),
        np.array(["a\0", "b", "", "X" * 70 + "1"], object),
        np.array(["abc", "b", "", "x" * 35 + "1" + "x" * 35], object),
        np.array(["aac", "b", "", "x" * 35 + "2" + "x" * 35], object),
        np.array(["aac", "bx", "y", "xx1" + "x" * 68], object),
        np.array(["aac", "b", "xy", "x1x" + "x" * 68], object),
    ),
}
"""Inputs by element type that one may take for one another, as numbers or by how they begin."""


@check("request", values=True)
def inputs_that_compare_equal_are_told_apart(bench: Bench) -> None:
    """Zeros of either sign, neighbouring numbers and texts nearly alike count in each run."""
    tried = 0
    ops = ("Identity", "Neg", "Reciprocal", "Add")
    for (element, turns), op in itertools.product(_EQUAL.items(), ops):
        given = "x, x" if op == "Add" else "x"
        proto = parse(f"g ({element}[4] x) => ({element}[4] y) {{ y = {op}({given}) }}")
        try:
            if bench.refusals(proto):
                continue
            due = [bench.expected(proto, {"x": x})[0] for x in turns]
        except PartitaError:
            continue  # the operator has no such type
        tried += 1
        request = bench.compile(proto).create_infer_request()
        for turn in (*range(len(turns)), 0, *reversed(range(len(turns)))):
            what = f"{op} of {turns[turn]} ({element})"
            with np.errstate(all="ignore"):
                (have,) = request.infer({"x": turns[turn].copy()}).to_tuple()
            compare([have], [due[turn]], what, rtol=0, atol=0)
            if due[turn].dtype.kind == "f":
                other = (np.signbit(have) != np.signbit(due[turn])) & (due[turn] == 0)
                require(not other.any(), f"{what} has zeros of another sign.")
    if not tried:
        raise NotApplicableError("the device takes none of the models")


_CHAINED = (
    "g (float[4,6] x) => (float[4,6] y, float[4,6] z) { y = Neg(x) z = Add(x, x) }",
    "g (float[4,6] x) => (float[4,6] y, float[4,6] z) { z = Exp(x) y = Mul(x, x) }",
    "g (float[4,6] x) => (float[4,6] y) { y = Neg(x) }",
    "g (float[N,6] x) => (float[N,6] y) { y = Add(x, x) }",
    "g (float[N,6] x) => (float[N,6] y) { y = Relu(x) }",
)
"""Models whose outputs can be their next input."""


@check("request", values=True)
def results_may_be_the_next_inputs(bench: Bench) -> None:
    """What a run gave, as it lies, may be the input of the next of its request, or of another one.

    So it may for a runner, if it is another one's.
    """
    for text, proto in bench.taken((text, parse(text)) for text in _CHAINED):
        sample = Sample(text.rpartition("{")[2], proto, {"N": 4})
        compiled = bench.compile(proto)
        for place in range(len(compiled.outputs)):
            _chain_requests(bench, sample, compiled, place)
            _chain_runners(bench, sample, compiled, place)


def _chain_requests(
    bench: Bench, sample: Sample, compiled: partita.CompiledModel, place: int
) -> None:
    """Runs in turn one request on its own output, and another on an array of its results."""
    bound, shared = (compiled.create_infer_request() for _ in range(2))
    feeds = sample.feeds(17)
    bound.infer(feeds)
    array = shared.infer(feeds, share_outputs=True).to_tuple()[place]
    for turn in range(4):
        feeds = {"x": np.array(bench.expected(sample.proto, feeds)[place])}
        what = f"its own output {place}, run {turn + 2}"
        bound.set_input_tensor(0, bound.get_output_tensor(place))
        agree(bench, sample, feeds, bound.infer().to_tuple(), what)
        have = shared.infer({"x": array}, share_inputs=True, share_outputs=True).to_tuple()
        agree(bench, sample, feeds, have, f"an array of {what}")
        array = have[place]


def _chain_runners(
    bench: Bench, sample: Sample, compiled: partita.CompiledModel, place: int
) -> None:
    """Runs two runners in turn, each on what the other gave."""
    runners = [compiled.device_model.create_runner() for _ in range(2)]
    feeds = sample.feeds(18)
    given: partita.Tensor = partita.HostTensor(feeds["x"].copy())
    for turn in range(5):
        results = runners[turn % 2].run([given])
        have = [tensor.numpy() for tensor in results]
        agree(bench, sample, feeds, have, f"the other runner's output {place}, run {turn + 1}")
        feeds = {"x": np.array(bench.expected(sample.proto, feeds)[place])}
        given = results[place]
    for runner in runners:
        runner.close()


_DECIDING: dict[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "If": (
        "g (float[6] x, bool c) => (float[6] y) { y = If (c) <"
        " then_branch = t () => (float[6] a) { a = Add(x, x) },"
        " else_branch = e () => (float[6] b) { b = Neg(x) }> }",
        ({"c": True}, {"c": False}, {"c": True}),
    ),
    "Reshape": (
        "g (float[6] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }",
        ({"s": [2, 3]}, {"s": [3, 2]}, {"s": [1, 6]}, {"s": [2, 3]}),
    ),
    "Slice": (
        "g (float[6] x, int64[1] i, int64[1] j) => (float[A] y) { y = Slice(x, i, j) }",
        ({"i": [1], "j": [3]}, {"i": [2], "j": [4]}, {"i": [0], "j": [6]}),
    ),
    "Expand": (
        "g (float[6] x, int64[2] s) => (float[A,6] y) { y = Expand(x, s) }",
        ({"s": [2, 6]}, {"s": [3, 6]}, {"s": [1, 1]}),
    ),
    "Tile": (
        "g (float[6] x, int64[1] n) => (float[A] y) { y = Tile(x, n) }",
        ({"n": [1]}, {"n": [3]}, {"n": [2]}),
    ),
    "Gather": (
        "g (float[6] x, int64[2] i) => (float[2] y) { y = Gather(x, i) }",
        ({"i": [0, 5]}, {"i": [-1, 2]}, {"i": [3, 3]}),
    ),
    "TopK": (
        "g (float[6] x, int64[1] k) => (float[A] y, int64[A] i) { y, i = TopK(x, k) }",
        ({"k": [2]}, {"k": [5]}, {"k": [1]}),
    ),
    "ReduceSum": (
        "g (float[6] x, float[2,3] z, int64[1] a) => (float[A,B] y) { y = ReduceSum(z, a) }",
        ({"a": [0]}, {"a": [1]}, {"a": [-2]}),
    ),
    "Clip": (
        "g (float[6] x, float low) => (float[6] y) { y = Clip(x, low) }",
        ({"low": -0.5}, {"low": 0.5}, {"low": -9}),
    ),
    "Loop": (
        "g (float[6] x, int64 n, bool c) => (float[6] y, float[A,6] z) { y, z = Loop (n, c, x) <"
        " body = r (int64 i, bool p, float[6] s) => (bool q, float[6] t, float[6] u) {"
        " q = Identity(p) t = Add(s, s) u = Neg(s) }> }",
        ({"n": 2, "c": True}, {"n": 0, "c": True}, {"n": 3, "c": False}, {"n": 1, "c": True}),
    ),
    "Range": (
        "g (float[6] x, int64 n) => (int64[A] y) { y = Range(one, n, one) }",
        ({"n": 4}, {"n": 7}, {"n": 2}),
    ),
}
"""Operator to a model in which elements of an input decide a shape or a way, and those elements."""


@check("request", values=True)
def inputs_that_decide_are_read_anew(bench: Bench) -> None:
    """Conditions, shapes, axes, bounds and indices that are inputs count in each run anew."""
    one = {"one": np.array(1, np.int64)}
    models = (
        ((op, turns), parse(text, one if "one" in text else None))
        for op, (text, turns) in _DECIDING.items()
    )
    for (op, turns), proto in bench.taken(models):
        sample = Sample(op, proto)
        request = bench.compile(proto).create_infer_request()
        usual = sample.feeds(13)
        for number, given in enumerate(turns):
            feeds = usual | {n: np.array(v, usual[n].dtype) for n, v in given.items()}
            agree(bench, sample, feeds, request.infer(feeds), f"{given} in run {number + 1}")


@check("request", values=True)
def arrays_that_take_turns_are_read_anew(bench: Bench) -> None:
    """Arrays count in each run, small or large, copied or not: others, and those before again."""
    for kind in ("plain", "large"):
        try:
            sample = bench.sample(kind)
        except NotApplicableError:
            continue
        request = bench.compile(sample.proto).create_infer_request()
        turns = [sample.feeds(seed) for seed in (15, 16)]
        turns.append({n: np.ascontiguousarray(np.flip(a)) for n, a in turns[1].items()})
        for shared in (False, True):
            for number in (0, 0, 0, 1, 1, 2, 1, 0):
                feeds = turns[number]
                result = request.infer(feeds, share_inputs=shared)
                agree(bench, sample, feeds, result, f"arrays {number}, shared: {shared}")
        for array in turns[0].values():
            array += 1
        result = request.infer(turns[0], share_inputs=True)
        agree(bench, sample, turns[0], result, "shared arrays changed in place")
