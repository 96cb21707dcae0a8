"""Further checks of ``faults``, ``async``, ``properties``: what a run or a compile leaves behind.

A run may be the first one and fail, compute nothing, be cancelled, or several of these at once;
what follows it is as if it had never been.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx

import partita
from partita.errors import InferCancelledError, PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, parse, stranger
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.feeding import host_tensors, sums_of_any_sizes
from partita_conformance.suites.resources.meeting import at_each_moment, packages_of

Feeds = dict[str, Any]

_RESHAPED = "g (float[N] x, int64[2] s) => (float[A,B] y) { a = Neg(x) y = Reshape(a, s) }"
_UNFIT: dict[str, tuple[str, dict[str, Array] | None, Feeds, Feeds]] = {
    "sizes that do not fit": (
        "g (float[N] x, float[M] z) => (float[K] y) { a = Mul(x, w) y = Add(a, z) }",
        {"w": np.array([3], np.float32)},
        {"x": np.ones(3, np.float32), "z": np.ones(4, np.float32)},
        {"x": np.arange(4, dtype=np.float32), "z": np.ones(4, np.float32)},
    ),
    "a shape that is not reached": (
        _RESHAPED,
        None,
        {"x": np.arange(6, dtype=np.float32), "s": np.array([4, 2])},
        {"x": np.arange(6, dtype=np.float32), "s": np.array([2, 3])},
    ),
}
"""Models whose runs may fail: their weights, inputs of a run that fails and of one that works."""


def _failing(bench: Bench) -> Iterator[tuple[str, onnx.ModelProto, Feeds, Feeds]]:
    """Those that the device takes, with inputs that fail and inputs that do not."""
    models = ((what, parse(text, given)) for what, (text, given, *_) in _UNFIT.items())
    for what, proto in bench.taken(models):
        _, _, bad, good = _UNFIT[what]
        yield what, proto, bad, good


@check("faults", values=True)
def outputs_given_to_a_failed_run_are_forgotten(bench: Bench) -> None:
    """Tensors that a run was given for its outputs are none of the next one's, if it failed too."""
    for what, proto, bad, good in _failing(bench):
        compiled = bench.compile(proto)
        due = bench.expected(proto, good)
        runner = compiled.device_model.create_runner()
        for turn in range(4):
            given = [partita.HostTensor(np.full_like(array, 9)) for array in due]
            with contextlib.suppress(PartitaError):
                runner.run(host_tensors(compiled, bad), given)
            held = [tensor.numpy().copy() for tensor in given]
            others = [partita.HostTensor(np.full_like(array, 7)) for array in due]
            results = runner.run(host_tensors(compiled, good), others if turn % 2 else None)
            compare([t.numpy() for t in results], due, f"after {what}, run {turn + 1}")
            for before, tensor in zip(held, given, strict=True):
                same = np.array_equal(before, tensor.numpy(), equal_nan=True)
                require(
                    same, f"A run writes to a tensor that one was given which failed of {what}."
                )
        runner.close()


@check("faults", values=True)
def the_first_run_may_be_any(bench: Bench) -> None:
    """A first run may fail, be cancelled or have no elements: those that follow are right."""
    for what, proto, bad, good in _failing(bench):
        for first in (bad, {name: array[:0] for name, array in good.items()}):
            compiled = bench.compile(proto)
            requests = [compiled.create_infer_request() for _ in range(2)]
            for request in requests:
                with contextlib.suppress(PartitaError):
                    request.infer(first)
                _require_right(bench, proto, good, request, f"behind a first run of {what}")
    sample = bench.sample("dynamic")
    feeds, none = sample.feeds(31, N=5), sample.feeds(31, N=0)
    compiled = bench.compile(sample.proto)
    request = compiled.create_infer_request()
    due = bench.expected(sample.proto, none)
    compare(request.infer(none).to_tuple(), due, f"{sample.name}, a first run of no rows")
    _require_right(bench, sample.proto, feeds, request, "behind a first run of no rows")
    for pause in (0.0, 2e-5, 1e-4, 1e-3):
        request = bench.compile(sample.proto).create_infer_request()
        request.start_async(feeds)
        time.sleep(pause)
        request.cancel()
        with contextlib.suppress(InferCancelledError):
            request.wait()
        _require_right(bench, sample.proto, feeds, request, "behind a first run that was cancelled")


def _require_right(
    bench: Bench, proto: onnx.ModelProto, feeds: Feeds, request: partita.InferRequest, what: str
) -> None:
    due = bench.expected(proto, feeds)
    for turn in range(2):
        compare(request.infer(feeds).to_tuple(), due, f"{what}, run {turn + 2}")


@check("boundary", values=True)
def a_bound_call_that_fails_leaves_nothing(bench: Bench) -> None:
    """Behind a bound call that failed, or was cancelled, runs and calls are as they were before.

    Runs write to what they are given alone, not to what was bound.
    """
    proto = parse(_RESHAPED)
    bench.decline_unless_taken(proto)
    device_model = bench.compile(proto).device_model
    runner = device_model.create_runner()
    x, shape = np.arange(6, dtype=np.float32), np.array([2, 3])
    inputs = [partita.HostTensor(x), partita.HostTensor(shape)]
    runner.run(inputs)
    outputs = [partita.HostTensor(np.zeros((2, 3), np.float32))]
    call = runner.bind(inputs, outputs, np.zeros(device_model.scratch_bytes, np.uint8))
    if call is None:
        raise NotApplicableError("the device binds no call of shapes that an input decides")
    for turn in range(4):
        shape[...] = (4, 2) if turn % 2 else (2, 3)
        with contextlib.suppress(PartitaError):
            call()
        runner.cancel()
        outputs[0].numpy()[...] = 9
        shape[...] = (2, 3)
        x += 1
        given = [partita.HostTensor(np.zeros((2, 3), np.float32))] if turn % 3 else None
        (result,) = runner.run(inputs, given)
        due = -x.reshape(2, 3)
        compare([result.numpy()], [due], f"a run behind a bound call, turn {turn + 1}")
        beside = np.all(outputs[0].numpy() == 9)
        require(bool(beside), "A run writes to outputs that are bound to a call.")
        call()
        compare([outputs[0].numpy()], [due], f"a bound call behind a run, turn {turn + 1}")
    runner.close()


@check("async", values=True)
def what_fails_or_comes_first_may_be_cancelled_at_any_moment(bench: Bench) -> None:
    """Cancelled at whichever line, runs that fail, and a model's first ones, leave nothing."""
    proto = sums_of_any_sizes(bench)
    compiled = bench.compile(proto)
    runner = compiled.device_model.create_runner()
    packages = packages_of(bench.plugin, compiled.device_model, runner)
    bad = [partita.HostTensor(np.ones(count, np.float32)) for count in (3, 4)]
    feeds = {"a": np.arange(4, dtype=np.float32), "b": np.ones(4, np.float32)}
    due = bench.expected(proto, feeds)

    def right() -> None:
        results = runner.run(host_tensors(compiled, feeds))
        compare([t.numpy() for t in results], due, "after a run that failed and was cancelled")

    def fail() -> None:
        with contextlib.suppress(PartitaError):
            runner.run(bad)

    at_each_moment(fail, runner.cancel, packages, afterwards=right)
    fresh = [compiled.device_model.create_runner()]

    def first() -> None:
        with contextlib.suppress(InferCancelledError):
            fresh[0].run(host_tensors(compiled, feeds))

    def second() -> None:
        results = fresh[0].run(host_tensors(compiled, feeds))
        compare([t.numpy() for t in results], due, "after a first run that was cancelled")
        fresh[0] = bench.compile(proto).device_model.create_runner()

    at_each_moment(first, lambda: fresh[0].cancel(), packages, afterwards=second)


_REFUSALS = 70


@check("faults", values=True)
def refused_models_cost_nothing(bench: Bench) -> None:
    """After dozens of models that were refused, at once or late, others compile and run."""
    sample = bench.sample("plain")
    feeds = sample.feeds(33)
    due = bench.expected(sample.proto, feeds)
    properties = bench.properties()
    strange = [stranger(), bench.read(_late_stranger(sample.proto))]
    for number in range(_REFUSALS):
        is_refused = True
        with contextlib.suppress(Exception):  # of which type, suite query checks
            bench.plugin.compile_model(strange[number % 2], properties)
            is_refused = False
        require(is_refused, "A model of an operator that nobody knows compiles.")
        if number % 16 == 15:
            compiled = bench.compile(sample.proto)
            what = f"{sample.name}, after {number + 1} models that were refused"
            compare(compiled(feeds).to_tuple(), due, what)


def _late_stranger(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose last operation is one that nobody knows."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    output = made.graph.output[0]
    node = onnx.helper.make_node(
        "Transmogrify", [output.name], ["nobody_knows"], name="strange", domain="com.nobody"
    )
    made.graph.node.append(node)
    output.name = "nobody_knows"
    made.opset_import.append(onnx.helper.make_opsetid("com.nobody", 1))
    return made


@check("request", values=True)
def what_is_closed_may_be_closed_again(bench: Bench) -> None:
    """Runners that come after one that was closed twice, or never ran, are each their own."""
    for kind in ("pair", "outputs"):
        sample = bench.sample(kind)
        compiled = bench.compile(sample.proto)
        for used in (True, False):
            gone = compiled.device_model.create_runner()
            if used:
                gone.run(host_tensors(compiled, sample.feeds(50)))
            for _ in range(3):
                gone.close()
            _require_apart(bench, sample, compiled, "after one that was closed three times")


def _require_apart(
    bench: Bench, sample: Sample, compiled: partita.CompiledModel, what: str
) -> None:
    """Results of several runners stay as they are while the others run."""
    runners = [compiled.device_model.create_runner() for _ in range(4)]
    held: list[tuple[Sequence[Any], Sequence[Array]]] = []
    for number, runner in enumerate(runners):
        feeds = sample.feeds(60 + number)
        results = runner.run(host_tensors(compiled, feeds))
        held.append((results, bench.expected(sample.proto, feeds)))
    for results, due in held:
        compare([tensor.numpy() for tensor in results], due, f"{sample.name}, runners {what}")
    for runner in runners:
        runner.close()


_ROWS = 200_000
_PAUSE_S = 0.03
_SLACK_US = 2000.0


@check("properties")
def counters_are_of_the_last_run_whatever_it_was(bench: Bench) -> None:
    """Counters are of the last run: of nothing before it, nor of a run that was longer.

    The last one may have no elements, follow a failure or a cancellation, or be the first of its
    shape. No operation took longer than the run in which it was made.
    """
    sample = bench.sample("dynamic")
    compiled = bench.compile(sample.proto, {"PERF_COUNT": True})
    request = compiled.create_infer_request()
    large, small, none = (sample.feeds(3, N=rows) for rows in (_ROWS, 2, 0))
    request.infer(small)
    if not list(request.get_profiling_info()):
        raise NotApplicableError("the device has no counters")

    def refused() -> None:
        with contextlib.suppress(PartitaError):
            request.infer({name: array[..., None] for name, array in small.items()})

    def cancelled() -> None:
        request.start_async(large)
        request.cancel()
        with contextlib.suppress(PartitaError):
            request.wait()

    before: dict[str, Callable[[], object]] = {
        "a long run": lambda: request.infer(large),
        "a run that was refused": refused,
        "a run that was cancelled": cancelled,
    }
    for what, happen in before.items():
        for feeds in (none, small, none):
            happen()
            time.sleep(_PAUSE_S)
            _require_within(request, feeds, f"behind {what}")
    for what, proto, bad, good in _failing(bench):
        request = bench.compile(proto, {"PERF_COUNT": True}).create_infer_request()
        for _ in range(2):
            with contextlib.suppress(PartitaError):
                request.infer(bad)
            time.sleep(_PAUSE_S)
            _require_within(request, good, f"behind a run that failed of {what}")


def _require_within(request: partita.InferRequest, feeds: Feeds, what: str) -> None:
    """Runs, and compares the reported times with the time it took."""
    began = time.perf_counter()
    request.infer(feeds)
    took_us = 1e6 * (time.perf_counter() - began)
    longest = max((info.real_time_us for info in request.get_profiling_info()), default=0)
    said = f"A run of {took_us:.0f} us {what} has an operation of {longest:.0f} us."
    require(longest <= took_us + _SLACK_US, said)
