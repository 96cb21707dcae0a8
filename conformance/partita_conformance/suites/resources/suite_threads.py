"""Suite ``threads``: many callers at once, none in the other's way."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from partita.errors import PartitaError
from partita.tensors.tensor import HostTensor
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, networks, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.feeding import host_tensors, sums_of_any_sizes
from partita_conformance.suites.resources.process_state import (
    arithmetic,
    state_at_hand,
    unusual_state,
)

_OFTEN_S = 1e-5
"""After so long another of Python's threads goes on: runs overlap, however short they are."""
_LONG = 100
"""Operations of a model whose runs overlap."""


def _run_side_by_side(count: int, task: Callable[[int], None]) -> None:
    """Runs a task on several threads that start at the same time; raises what the first raised."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            barrier.wait(60)
            task(index)
        except BaseException as error:  # noqa: BLE001  # raised again below, on the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@check("threads", values=True)
def requests_run_together(bench: Bench) -> None:
    """Requests of one compiled model, each on its own thread, do not mix their numbers."""
    for sample in (bench.sample("plain"), bench.sample("large")):
        compiled = bench.compile(sample.proto)
        feeds = [sample.feeds(200 + i) for i in range(4)]
        expected = [bench.expected(sample.proto, one) for one in feeds]
        requests = [compiled.create_infer_request() for _ in range(4)]

        def task(index: int) -> None:
            for turn in range(12):
                result = requests[index].infer(feeds[index])  # noqa: B023  # joined in this turn
                what = f"{sample.name}, thread {index}, run {turn + 1}"  # noqa: B023  # see above
                compare(result.to_tuple(), expected[index], what)  # noqa: B023  # see above

        _run_side_by_side(4, task)


@check("threads", values=True)
def shapes_change_together(bench: Bench) -> None:
    """Each thread has its own number of rows, and changes it."""
    sample = bench.sample("dynamic")
    compiled = bench.compile(sample.proto)
    feeds = {(i, rows): sample.feeds(300 + i, N=rows) for i in range(4) for rows in (1 + i, 5 + i)}
    expected = {key: bench.expected(sample.proto, one) for key, one in feeds.items()}

    def task(index: int) -> None:
        for turn in range(10):
            key = (index, 1 + index if turn % 2 else 5 + index)
            what = f"{sample.name}, thread {index}, {key[1]} rows"
            compare(compiled(feeds[key]).to_tuple(), expected[key], what)

    _run_side_by_side(4, task)


@check("threads", values=True)
def models_compile_together(bench: Bench) -> None:
    """Several threads query, compile and infer different models at the same time."""
    chosen = [s for s in networks() if not bench.refusals(s.proto)][:3]
    usable = chosen or [bench.sample("plain")]
    expected = [bench.expected(s.proto, s.feeds(5)) for s in usable]

    def task(index: int) -> None:
        sample = usable[index % len(usable)]
        bench.refusals(sample.proto)
        result = bench.compile(sample.proto)(sample.feeds(5))
        compare(result.to_tuple(), expected[index % len(usable)], f"{sample.name}, thread {index}")

    _run_side_by_side(4, task)


@check("threads", values=True)
def any_thread_may_do_any_step(bench: Bench) -> None:
    """Compiled on one thread, its request made on a second one, run on others and on the first."""
    sample = bench.sample("plain")
    feeds = sample.feeds(8)
    expected = bench.expected(sample.proto, feeds)
    made: list[Any] = []
    core = bench.new_core()  # whose plugin has done nothing on any thread
    steps: list[Callable[[int], None]] = [
        lambda _: made.append(bench.compile(sample.proto, core=core)),
        lambda _: made.append(made[0].create_infer_request()),
    ]

    def run(_: int) -> None:
        what = f"{sample.name}, run on another thread"
        compare(made[1].infer(feeds).to_tuple(), expected, what)
        compare(made[0](feeds).to_tuple(), expected, what)

    for step in (*steps, run, run):
        _run_side_by_side(1, step)
    run(0)


@check("threads")
def transfers_are_made_together(bench: Bench) -> None:
    """Tensors that several threads bring to the device, and read back, are each what they were."""
    transfer = bench.core.device_api.transfer_to

    def task(index: int) -> None:
        for turn in range(8):
            arrays = [
                np.full((2**n + index, 5), 100 * index + turn, np.float32) for n in (1, 6, 12)
            ]
            tensors = [transfer(bench.device, HostTensor(array)) for array in arrays]
            have = [tensor.numpy() for tensor in tensors]
            compare(have, arrays, f"tensors of thread {index}, turn {turn + 1}", 0, 0)

    _run_side_by_side(4, task)


@check("threads")
def the_process_is_left_alone_together(bench: Bench) -> None:
    """What the process shares is as before when several threads have run long models at once.

    What is changed for the time of a run, and put back, stays changed where two runs overlap.
    """
    steps = " ".join(f"v{n + 1} = Add(v{n}, w)" for n in range(_LONG))
    text = f"g (float[4,4] v0) => (float[4,4] v{_LONG}) {{ {steps} }}"
    proto = parse(text, {"w": np.ones((4, 4), np.float32)})
    if bench.refusals(proto):
        proto = bench.sample("plain").proto
    compiled = bench.compile(proto)
    feeds = Sample("", proto).feeds(3)
    requests = [compiled.create_infer_request() for _ in range(4)]

    def task(index: int) -> None:
        for _ in range(3 + index):
            requests[index].infer(feeds)

    _run_side_by_side(1, task)  # what is imported now may set up its things
    with unusual_state():
        before, interval = state_at_hand(), sys.getswitchinterval()
        try:
            sys.setswitchinterval(_OFTEN_S)
            for _ in range(5):
                _run_side_by_side(4, task)
        finally:
            sys.setswitchinterval(interval)
        after = state_at_hand()
    changed = [what for what, value in before.items() if after[what] != value]
    require(not changed, f"Runs on several threads at once change {', '.join(changed)}.")


@check("threads", values=True)
def one_array_is_the_input_of_all(bench: Bench) -> None:
    """Requests and runners on several threads read one array at a time, which nobody changes."""
    for kind in ("plain", "pair", "dynamic", "large"):
        sample = bench.sample(kind)
        feeds = sample.feeds(9, **({"N": 40} if kind == "dynamic" else {}))
        held = {name: array.copy() for name, array in feeds.items()}
        expected = bench.expected(sample.proto, held)
        compiled = bench.compile(sample.proto)
        compiled(feeds)
        _run_side_by_side(
            4, functools.partial(_read_one_array, sample.name, compiled, feeds, expected)
        )
        compare([*feeds.values()], [*held.values()], f"inputs of {sample.name}", rtol=0, atol=0)


def _read_one_array(
    name: str, compiled: Any, feeds: dict[str, Array], expected: list[Array], index: int
) -> None:
    request, runner = compiled.create_infer_request(), compiled.device_model.create_runner()
    for turn in range(_TURNS):
        what = f"{name}, thread {index} with the input of all, run {turn + 1}"
        if index % 2:
            compare(request.infer(feeds, share_inputs=True).to_tuple(), expected, what)
        else:
            results = runner.run(host_tensors(compiled, feeds))
            compare([tensor.numpy() for tensor in results], expected, what)
    runner.close()


@check("threads", values=True)
def failures_stay_on_their_thread(bench: Bench) -> None:
    """Runs that cannot be computed, on one thread, end no run of another and change none."""
    proto = sums_of_any_sizes(bench)
    compiled = bench.compile(proto)
    good = [
        {"a": np.arange(9, dtype=np.float32) + i, "b": np.ones(9, np.float32)} for i in range(4)
    ]
    due = [bench.expected(proto, feeds) for feeds in good]
    bad = {"a": np.ones(3, np.float32), "b": np.ones(4, np.float32)}

    def task(index: int) -> None:
        request = compiled.create_infer_request()
        for turn in range(24):
            if index % 2 and turn % 2:
                with contextlib.suppress(PartitaError):
                    request.infer(bad)
                    require(False, "A run of sizes that do not fit raises nothing.")
            have = request.infer(good[index]).to_tuple()
            compare(have, due[index], f"thread {index} beside failing runs, run {turn + 1}")

    _run_side_by_side(4, task)


@check("threads", values=True)
def requests_are_made_together(bench: Bench) -> None:
    """A model's first requests, made and run by several threads at once, each compute right."""
    for kind in ("plain", "outputs", "large"):
        sample = bench.sample(kind)
        feeds = [sample.feeds(210 + i) for i in range(4)]
        due = [bench.expected(sample.proto, one) for one in feeds]
        for _ in range(3):
            compiled = bench.compile(sample.proto)

            def task(index: int) -> None:
                have = compiled.create_infer_request().infer(feeds[index]).to_tuple()  # noqa: B023  # joined in this turn
                compare(have, due[index], f"{sample.name}, first run of thread {index}")  # noqa: B023  # see above

            _run_side_by_side(4, task)


@check("threads", values=True)
def bound_calls_are_made_together(bench: Bench) -> None:
    """Bound calls of several runners, each with memory of its own, do not meet."""
    for kind in ("pair", "large"):
        sample = bench.sample(kind)
        compiled = bench.compile(sample.proto)
        device_model = compiled.device_model
        feeds = [sample.feeds(220 + i) for i in range(4)]
        due = [bench.expected(sample.proto, one) for one in feeds]
        runners = [device_model.create_runner() for _ in feeds]
        calls = []
        for runner, one, expected in zip(runners, feeds, due, strict=True):
            inputs = host_tensors(compiled, one)
            runner.run(inputs)
            outputs = [HostTensor(np.zeros_like(array)) for array in expected]
            call = runner.bind(inputs, outputs, np.zeros(device_model.scratch_bytes, np.uint8))
            if call is None:
                raise NotApplicableError("the device binds no call")
            calls.append((call, outputs))

        def task(index: int) -> None:
            call, outputs = calls[index]  # noqa: B023  # joined in this turn
            for turn in range(12):
                for tensor in outputs:
                    tensor.numpy()[...] = 9
                call()
                what = f"{sample.name}, bound call {turn + 1} of thread {index}"  # noqa: B023  # see above
                compare([tensor.numpy() for tensor in outputs], due[index], what)  # noqa: B023  # see above

        _run_side_by_side(4, task)
        for runner in runners:
            runner.close()


@check("threads", values=True)
def models_come_and_go_together(bench: Bench) -> None:
    """Threads compile, run, export and drop models while others run theirs."""
    sample = bench.sample("pair")
    steady = bench.compile(sample.proto)
    feeds = [sample.feeds(230 + i) for i in range(4)]
    due = [bench.expected(sample.proto, one) for one in feeds]

    def task(index: int) -> None:
        for turn in range(4):
            if index % 2:
                compiled = bench.compile(sample.proto)
                bench.refusals(sample.proto)
                with contextlib.suppress(PartitaError, NotImplementedError):
                    compiled.export_model()
            else:
                compiled = steady
            for _ in range(4):
                have = compiled(feeds[index]).to_tuple()
                compare(have, due[index], f"{sample.name}, thread {index}, model {turn + 1}")

    _run_side_by_side(4, task)


_TURNS = 12
_TINY = np.array([1e-40, -1e-40, 3e-39, 1e-38, -1.2e-38, 0.1, 1 / 3, 1e30], np.float32)


@check("threads")
def all_threads_compute_alike(bench: Bench) -> None:
    """Small numbers, and roundings, are on each thread those of the thread that compiled.

    Nor is it computed otherwise on a thread after a run than before.
    """
    steps = ("Neg(x)", "Abs(x)", "Identity(x)", "Add(x, x)", "Mul(x, x)", "Relu(x)")
    text = "g (float[N] x) => (float[N] y) {{ y = {0} }}"
    for step, proto in bench.taken((step, parse(text.format(step))) for step in steps):
        compiled = bench.compile(proto)
        for count in (1, 40, 4001):
            x = np.resize(_TINY, _TINY.size * count)
            (due,) = compiled({"x": x}).to_tuple()
            due = due.copy()
            _run_side_by_side(3, functools.partial(_computes_alike, step, compiled, x, due))
            request = compiled.create_infer_request()
            request.start_async({"x": x})
            request.wait()
            _require_bits(request.results.to_tuple()[0], due, f"{step}, asynchronously")
            _require_bits(compiled({"x": x}).to_tuple()[0], due, f"{step}, again")


def _computes_alike(step: str, compiled: Any, x: Array, due: Array, index: int) -> None:
    before = arithmetic()
    for _ in range(2):
        _require_bits(compiled({"x": x}).to_tuple()[0], due, f"{step}, on thread {index}")
    after = arithmetic()
    changed = [what for what, value in before.items() if after[what] != value]
    require(not changed, f"A run changes {', '.join(changed)} on the thread that called it.")


def _require_bits(have: Array, due: Array, what: str) -> None:
    """Fails unless two arrays are the same, zeros' signs too."""
    same = np.array_equal(have.view(np.uint32), due.view(np.uint32))
    require(same, f"{what}: other results than on the thread that compiled.")
