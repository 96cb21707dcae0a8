"""Suite ``faults``: errors are typed and name what is wrong, and what raised them works on."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

import partita
from partita.errors import InferCancelledError, InferError, InputError, PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import (
    ConformanceError,
    NotApplicableError,
    require,
    require_raises,
)
from partita_conformance.suites.feeding import host_tensors

Array = np.ndarray[Any, Any]


@check("faults", values=True)
def wrong_inputs_are_refused(bench: Bench) -> None:
    """A wrong name, rank, size or count, or a tensor of a wrong dtype, raises InputError."""
    sample = bench.sample("plain")
    request = bench.compile(sample.proto).create_infer_request()
    feeds = sample.feeds()
    (name,) = feeds
    array = feeds[name]
    for what, given in {
        "an unknown name": {"nobody": array},
        "a tensor of another dtype": {name: partita.HostTensor(array.astype(np.float64))},
        "another rank": {name: array[None]},
        "another size": {name: np.concatenate([array, array])},
        "too many inputs": [array, array],
        "no array": {name: object()},
    }.items():
        require_raises(InputError, lambda given=given: request.infer(given), what)  # type: ignore[misc]  # mypy cannot type defaults of lambdas
        result = request.infer(feeds)
        compare(
            result.to_tuple(), bench.expected(sample.proto, feeds), f"{sample.name} after {what}"
        )


@check("faults")
def a_missing_input_is_named(bench: Bench) -> None:
    """Inferring without an input that was never given raises an InferError that names it."""
    sample = bench.sample("pair")
    request = bench.compile(sample.proto).create_infer_request()
    try:
        request.infer({"a": sample.feeds()["a"]})
    except InferError as error:
        require("'b'" in str(error), f"The error does not name input 'b': {error}")


def _require_not_cancelled(error: PartitaError, what: str) -> None:
    """Fails the check if a run that nobody has cancelled, or none but an earlier one, says so."""
    said = f"{what}: the run was not cancelled, and raises {type(error).__name__} ({error})."
    require(not isinstance(error, InferCancelledError), said)


def _require_typed(compiled: Any, bad: dict[str, Array], what: str) -> None:
    """Fails the check unless the runner itself says with a typed error what cannot be computed."""
    runner = compiled.device_model.create_runner()
    try:
        runner.run(host_tensors(compiled, bad))
    except PartitaError as error:
        require(str(error).strip(), f"{what}: the runner's {type(error).__name__} says nothing.")
        _require_not_cancelled(error, what)
    except Exception as error:
        raise ConformanceError(
            f"{what}: the runner raises {type(error).__name__} ({error}), no InferError."
        ) from error
    finally:
        runner.close()


@check("faults", values=True)
def a_failing_run_is_typed_and_forgotten(bench: Bench) -> None:
    """A run that cannot work raises InferError, each time; the same request then works."""
    candidates: dict[str, tuple[onnx.ModelProto, dict[str, Array], dict[str, Array]]] = {
        "rows that do not divide": (
            parse(
                "g (float[N] x) => (float[M,3] y) { y = Reshape(x, s) }",
                {"s": np.array([-1, 3], np.int64)},
            ),
            {"x": np.ones(7, np.float32)},
            {"x": np.arange(6, dtype=np.float32)},
        ),
        "rows that do not fit": (
            parse("g (float[N] a, float[M] b) => (float[K] y) { y = Add(a, b) }"),
            {"a": np.ones(3, np.float32), "b": np.ones(4, np.float32)},
            {"a": np.ones(3, np.float32), "b": np.arange(3, dtype=np.float32)},
        ),
        "columns that do not fit": (
            parse(
                "g (float[2,N] x) => (float[2,3] y) { y = MatMul(x, w) }",
                {"w": np.ones((4, 3), np.float32)},
            ),
            {"x": np.ones((2, 5), np.float32)},
            {"x": np.arange(8, dtype=np.float32).reshape(2, 4)},
        ),
    }
    models = (((what, bad, good), proto) for what, (proto, bad, good) in candidates.items())
    for (what, bad, good), proto in bench.taken(models):
        request = bench.compile(proto).create_infer_request()
        expected = bench.expected(proto, good)
        for turn in range(2):
            for time in range(2):
                try:
                    request.infer(bad)
                except PartitaError as error:
                    _require_not_cancelled(error, what)
                except Exception as error:
                    raise ConformanceError(
                        f"{what}: the run raises {type(error).__name__} ({error}), no InferError."
                    ) from error
                else:
                    raise ConformanceError(f"{what}: run {time + 1} of these raises nothing.")
            compare(request.infer(good).to_tuple(), expected, f"run {turn + 1} after {what}")
        _require_typed(request.compiled_model, bad, what)


_UNFIT = {
    "sizes that do not divide": (
        "g (float[N] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }",
        {"x": np.arange(4, dtype=np.float32), "s": np.array([2, 2])},
        {"x": np.ones(6, np.float32), "s": np.array([4, -1])},
        {"x": np.arange(6, dtype=np.float32), "s": np.array([3, -1])},
    ),
    "a place that is not there": (
        "g (float[N] x, int64[M] i) => (float[M] y) { y = Gather(x, i) }",
        {"x": np.arange(4, dtype=np.float32), "i": np.array([2, 0])},
        {"x": np.ones(4, np.float32), "i": np.array([0, 9, 1])},
        {"x": np.arange(4, dtype=np.float32), "i": np.array([3, 1, 1])},
    ),
    "a tile of negative sizes": (
        "g (float[N] x, int64[1] r) => (float[M] y) { y = Tile(x, r) }",
        {"x": np.arange(2, dtype=np.float32), "r": np.array([2])},
        {"x": np.ones(3, np.float32), "r": np.array([-1])},
        {"x": np.arange(3, dtype=np.float32), "r": np.array([3])},
    ),
}
"""Models, and inputs of one run, of one that fails, and of a third of the second one's shapes."""


@check("faults", values=True)
def what_a_failed_run_has_planned_counts_for_none(bench: Bench) -> None:
    """Behind a run that failed, one of the same shapes has shapes and numbers of its own."""
    models = ((key, parse(text)) for key, (text, *_) in _UNFIT.items())
    for what, proto in bench.taken(models):
        _, first, bad, good = _UNFIT[what]
        request = bench.compile(proto).create_infer_request()
        for turn in range(2):
            compare(request.infer(first).to_tuple(), bench.expected(proto, first), "the first run")
            with contextlib.suppress(PartitaError):
                request.infer(bad)
            due = bench.expected(proto, good)
            compare(request.infer(good).to_tuple(), due, f"run {turn + 1} of the shapes of {what}")


@check("faults", values=True)
def a_failed_compile_leaves_no_trace(bench: Bench) -> None:
    """After a compile that raised, other models compile and run as before."""
    sample = bench.sample("plain")
    broken = type(sample.proto)()
    broken.CopyFrom(sample.proto)
    broken.graph.node[0].op_type = "Transmogrify"
    broken.graph.node[0].domain = "com.nobody"
    entry = broken.opset_import.add()
    entry.domain, entry.version = "com.nobody", 1
    before = bench.compile(sample.proto)
    for _ in range(3):
        require_raises(PartitaError, lambda: bench.compile(broken), "Compiling com.nobody")
    feeds = sample.feeds(3)
    expected = bench.expected(sample.proto, feeds)
    compare(before(feeds).to_tuple(), expected, f"{sample.name}, compiled before")
    compare(bench.compile(sample.proto)(feeds).to_tuple(), expected, f"{sample.name}, after")


@check("faults", values=True)
def indices_out_of_range_do_no_harm(bench: Bench) -> None:
    """Gather with an index that is not there raises or returns; the next run is right."""
    proto = parse("g (float[4,3] x, int64[2] i) => (float[2,3] y) { y = Gather(x, i) }")
    if bench.refusals(proto):
        raise NotApplicableError("the device does not take Gather")
    request = bench.compile(proto).create_infer_request()
    x = Sample("gather", proto).feeds()["x"]
    for turn, bad in enumerate((7, -9, 2**40)):
        with contextlib.suppress(PartitaError):
            (rows,) = request.infer({"x": x + turn, "i": np.array([0, bad], np.int64)}).to_tuple()
            compare([rows[:1]], [x[:1] + turn], f"the row of index 0, beside index {bad}")
        good = {"x": x - turn, "i": np.array([-1, 2], np.int64)}
        compare(request.infer(good).to_tuple(), bench.expected(proto, good), f"after index {bad}")


NEVER: dict[str, tuple[str, dict[str, Array], dict[str, Array]]] = {
    "rows that do not divide": (
        "g (float[N] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }",
        {"s": np.array([4, 2])},
        {"s": np.array([2, 3])},
    ),
    "a shape that is not reached": (
        "g (float[N] x, int64[2] s) => (float[A,B] y) { y = Expand(x, s) }",
        {"s": np.array([2, 5])},
        {"s": np.array([2, 6])},
    ),
    "parts that are not the whole": (
        "g (float[N] x, int64[2] s) => (float[A] y, float[B] z) { y, z = Split(x, s) }",
        {"s": np.array([5, 4])},
        {"s": np.array([2, 4])},
    ),
    "sizes that do not fit": (
        "g (float[N] x, float[M] s) => (float[K] y) { y = Add(x, s) }",
        {"s": np.ones(4, np.float32)},
        {"s": np.ones(6, np.float32)},
    ),
    "rows that are not there": (
        "g (float[N] x, int64[2] s) => (float[2] y) { y = Gather(x, s) }",
        {"s": np.array([0, 99])},
        {"s": np.array([0, -6])},
    ),
}
"""Models by what cannot be computed: an input for which it cannot, and one for which it can."""
_FAILURES = 36


@check("faults", values=True)
def many_failures_cost_nothing(bench: Bench) -> None:
    """After dozens of runs that failed, of one request and of others, all runs are right.

    What cannot be computed raises also where inputs of these shapes could be, the run before. It is
    no cancellation then, also where runs before it were cancelled.
    """
    x = np.arange(6, dtype=np.float32)
    models = (((what, bad, good), parse(text)) for what, (text, bad, good) in NEVER.items())
    for (what, bad, good), proto in bench.taken(models):
        compiled = bench.compile(proto)
        request, runner = compiled.create_infer_request(), compiled.device_model.create_runner()
        raises = what != "rows that are not there"  # any row will do for these
        for turn in range(_FAILURES):
            one = request if turn % 3 else compiled.create_infer_request()
            feeds = {"x": x + turn, **bad}
            _cancelled(one, runner, {"x": x, **good}, turn)
            failed = _fails(one.infer, feeds, what)
            require(failed or not raises, f"{what}: run {turn + 1} raises nothing.")
            _fails(runner.run, host_tensors(compiled, feeds), what)
            if turn % 8 and turn < _FAILURES - 1:
                continue
            feeds = {"x": x - turn, **good}
            due = bench.expected(proto, feeds)
            for name, have in {
                "the request": request.infer(feeds).to_tuple(),
                "the runner": [t.numpy() for t in runner.run(host_tensors(compiled, feeds))],
                "another request": compiled(feeds).to_tuple(),
            }.items():
                compare(have, due, f"{what}, {name} after {turn + 1} failures")
        runner.close()


def _cancelled(request: Any, runner: partita.Runner, feeds: dict[str, Array], turn: int) -> None:
    """Cancels a run of a request, or where none is, at some turns; a runner has none."""
    if turn % 4 == 1:
        request.start_async(feeds)
    if turn % 2:
        request.cancel()
        runner.cancel()
    if turn % 4 == 1:
        with contextlib.suppress(InferCancelledError):
            request.wait()


def _fails(action: Callable[[Any], object], given: Any, what: str) -> bool:
    """Whether it raises a PartitaError, which must be no cancellation."""
    try:
        action(given)
    except PartitaError as error:
        _require_not_cancelled(error, what)
        return True
    return False


@check("faults", values=True)
def failures_are_of_their_own_run(bench: Bench) -> None:
    """A run that fails raises where one waits for it, and leaves the runs of others as they are.

    Also if it was started, was given outputs, or was to be counted.
    """
    x = np.arange(6, dtype=np.float32)
    tried = 0
    for what, (text, bad, good) in NEVER.items():
        proto = parse(text)
        if bench.refusals(proto) or what == "rows that are not there":
            continue
        tried += 1
        compiled = bench.compile(proto, {"PERF_COUNT": True})
        failing, working = (compiled.create_infer_request() for _ in range(2))
        runner = compiled.device_model.create_runner()
        for turn in range(4):
            feeds = {"x": x + turn, **good}
            due = bench.expected(proto, feeds)
            failing.start_async({"x": x, **bad})
            working.start_async(feeds)
            require_raises(PartitaError, failing.wait, f"{what}: wait() for a run of it")
            working.wait()
            compare(working.results.to_tuple(), due, f"{what}: another request's run beside it")
            list(failing.get_profiling_info())  # of no run that ended well: any, and no error
            require_raises(PartitaError, lambda: failing.results, f"{what}: its results")  # noqa: B023  # called at once
            given = [partita.HostTensor(np.zeros_like(array)) for array in due]
            inputs = host_tensors(compiled, {"x": x, **bad})
            with contextlib.suppress(PartitaError):
                runner.run(inputs, given)
            results = runner.run(host_tensors(compiled, feeds), given)
            compare([t.numpy() for t in results], due, f"{what}: into outputs given before, too")
            have = failing.infer(feeds).to_tuple()
            compare(have, due, f"{what}: the run after it, number {turn + 1}")
        runner.close()
    if not tried:
        raise NotApplicableError("the device takes none of the models")


@check("faults", values=True)
def callers_may_want_errors_of_numpy(bench: Bench) -> None:
    """Where numpy is to raise for overflows and the like, devices compute as ever, and say nothing.

    How numpy treats these is the application's affair.
    """
    x = np.array([[3e38, -3e38, 0, 1, -1, 1e-38], [100, -100, 88, 1e-40, 0.5, np.inf]], np.float32)
    tried = 0
    for step in (
        *("Exp(x)", "Reciprocal(x)", "Sqrt(x)", "Log(x)", "Mul(x, x)", "Add(x, x)", "Div(x, x)"),
        *("Softmax(x)", "Sigmoid(x)", "Pow(x, x)", "Sub(x, x)"),
        "Cast <to = 10> (x)",
    ):
        kind = "float16" if step.startswith("Cast") else "float"
        proto = parse(f"g (float[2,6] x) => ({kind}[2,6] y) {{ y = {step} }}")
        if bench.refusals(proto):
            continue
        tried += 1
        due = bench.expected(proto, {"x": x})
        with np.errstate(all="raise"), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            compiled = bench.compile(proto)
            have = [compiled({"x": x}).to_tuple() for _ in range(2)]
        for arrays in have:
            compare(arrays, due, f"{step} where numpy raises errors")
    if not tried:
        raise NotApplicableError("the device takes none of the models")
