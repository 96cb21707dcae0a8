"""Suite ``async``: requests beside the caller, callbacks, queues, cancelling."""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np

import partita
from partita.errors import InferCancelledError, RequestBusyError
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import require
from partita_conformance.suites.feeding import host_tensors
from partita_conformance.suites.resources.meeting import on_a_thread


@check("async", values=True)
def starts_and_waits(bench: Bench) -> None:
    """start_async computes what infer computes; wait ends it; wait_for says whether it did."""
    sample = bench.sample("plain")
    request = bench.compile(sample.proto).create_infer_request()
    for seed in range(3):
        feeds = sample.feeds(seed)
        request.start_async(feeds)
        for array in feeds.values():
            array[...] = 5  # start_async has copied it
        request.wait()
        require(request.wait_for(1000), "wait_for(1000) is False after wait().")
        fresh = sample.feeds(seed)
        compare(request.results.to_tuple(), bench.expected(sample.proto, fresh), sample.name)


@check("async")
def calls_back(bench: Bench) -> None:
    """The callback is called once per run, with the userdata, when results are there."""
    sample = bench.sample("plain")
    request = bench.compile(sample.proto).create_infer_request()
    seen: list[tuple[object, int]] = []
    request.set_callback(lambda data: seen.append((data, len(request.output_tensors))))
    for index in range(3):
        request.start_async(sample.feeds(), userdata=index)
        request.wait()
    require([data for data, _ in seen] == [0, 1, 2], f"The callback saw {seen!r}.")


@check("async")
def a_running_request_is_busy(bench: Bench) -> None:
    """While a request runs, using it raises RequestBusyError; afterwards it works."""
    sample = bench.sample("plain")
    request = bench.compile(sample.proto).create_infer_request()
    entered, leave = threading.Event(), threading.Event()

    def block(_: object) -> None:
        entered.set()
        leave.wait(30)

    request.set_callback(block)
    request.start_async(sample.feeds())
    entered.wait(30)
    leave.set()
    request.wait()
    request.set_callback(None)
    for _ in range(20):
        try:
            request.start_async(sample.feeds())
            request.start_async(sample.feeds())
        except RequestBusyError:
            pass
        request.wait()
    request.infer(sample.feeds())


@contextlib.contextmanager
def _threads_take_turns() -> Iterator[None]:
    """Python lets another thread run more often, so that what cancels a run meets it midway.

    It does so every five milliseconds, in which a run of a processor may begin and end.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@check("async", values=True)
def a_cancelled_request_works_again(bench: Bench) -> None:
    """After cancel, wait ends (with InferCancelledError or a result), and the next run is right."""
    sample = bench.sample("plain")
    request = bench.compile(sample.proto).create_infer_request()
    for _ in range(5):
        request.start_async(sample.feeds())
        request.cancel()
        with contextlib.suppress(InferCancelledError):
            request.wait()
    feeds = sample.feeds(3)
    result = request.infer(feeds)
    compare(result.to_tuple(), bench.expected(sample.proto, feeds), f"{sample.name} after cancel")


@check("async", values=True)
@_threads_take_turns()
def a_run_that_was_cancelled_midway_leaves_nothing(bench: Bench) -> None:
    """Whenever a run is cancelled, it raises or its results are right; so are those of the next."""
    sample = _lasting(bench)
    request = bench.compile(sample.proto).create_infer_request()
    feeds, others = sample.feeds(), sample.feeds(1)
    expected, due = bench.expected(sample.proto, feeds), bench.expected(sample.proto, others)
    whole = np.inf
    for _ in range(4):  # the first is slow, and any may have to wait for a processor
        start = time.perf_counter()
        request.infer(feeds)
        whole = min(whole, time.perf_counter() - start)
    met = 0
    for turn in range(_MOST_MOMENTS):
        if turn >= _MOMENTS and met >= _MOMENTS // 4:
            break
        # Where a processor is shared, it is taken back late: later turns do not even wait for it.
        part = turn % _MOMENTS if turn < _MOMENTS else 0
        request.start_async(others)
        time.sleep(whole * part / _MOMENTS)
        request.cancel()
        what = f"run cancelled {part} of {_MOMENTS} parts through"
        met += 1
        with contextlib.suppress(InferCancelledError):
            request.wait()
            met -= 1
            compare(request.results.to_tuple(), due, f"{sample.name}, results of a {what}")
        if turn % 2:
            again = f"{sample.name}, the same once more after a {what}"
            compare(request.infer(others).to_tuple(), due, again)
        compare(request.infer(feeds).to_tuple(), expected, f"{sample.name}, after a {what}")


_MOMENTS = 24
"""At so many times of a run it is cancelled."""

_MOST_MOMENTS = 4 * _MOMENTS
"""So many runs are tried where processors are busy, and most are over before they are cancelled."""


def _lasting(bench: Bench) -> Sample:
    """A model whose run another thread comes into before it ends, where processors are busy too."""
    steps = " ".join(f"v{n + 1} = Add(v{n}, w)" for n in range(_STEPS))
    text = f"lasting (float[256,512] v0) => (float[256,512] v{_STEPS}) {{ {steps} }}"
    proto = parse(text, {"w": np.linspace(-1, 1, 512, dtype=np.float32)})
    return bench.sample("large") if bench.refusals(proto) else Sample("many sums", proto)


_STEPS = 32


class _Stopper:
    """Cancels runs while they go on, over and over, and counts them.

    Args:
        runner: Whose runs.
    """

    def __init__(self, runner: partita.Runner) -> None:
        self._runner = runner
        self._changes = InterruptSafeLock()
        self._now = 0
        self._going_on = False
        self._met: set[int] = set()

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Lets a run be cancelled, and no later one."""
        with self._changes:
            self._now += 1
            self._going_on = True
        try:
            yield
        finally:
            with self._changes:
                self._going_on = False

    def met(self) -> int:
        """How many runs were cancelled."""
        return len(self._met)

    def try_once(self) -> None:
        """Cancels the run that is going on, if any."""
        with self._changes:
            if self._going_on:
                self._runner.cancel()
                self._met.add(self._now)
        time.sleep(0 if self._going_on else 1e-5)  # others may want the processor


@check("async", values=True)
@_threads_take_turns()
def a_runner_that_is_cancelled_raises_or_is_right(bench: Bench) -> None:
    """A run that is cancelled over and over raises InferCancelledError or gives right results."""
    sample = _lasting(bench)
    compiled = bench.compile(sample.proto)
    runner = compiled.device_model.create_runner()
    feeds = [sample.feeds(2), sample.feeds(3)]
    expected = [bench.expected(sample.proto, one) for one in feeds]
    inputs = [host_tensors(compiled, one) for one in feeds]
    stopper = _Stopper(runner)

    def results_of(number: int, given: Sequence[partita.Tensor] | None = None) -> list[Array]:
        # Read by the thread that ran, at once: what comes later than run returns is missing.
        return [tensor.numpy().copy() for tensor in runner.run(inputs[number], given)]

    def work() -> None:
        for turn in range(_ATTEMPTS * _CANCELLED_RUNS):
            if turn >= _CANCELLED_RUNS <= stopper.met():
                break
            now = turn % 2
            results_of(1 - now)
            given = [partita.HostTensor(np.full_like(array, 9)) for array in expected[now]]
            with contextlib.suppress(InferCancelledError), stopper.run():
                results = results_of(now, given if turn % 3 else None)
                compare(results, expected[now], f"{sample.name}, cancelled while it ran")
            behind = turn // 2 % 2  # the same inputs once more, or others
            what = f"{sample.name}, after a run that was cancelled over and over"
            compare(results_of(behind), expected[behind], what)

    with concurrent.futures.ThreadPoolExecutor(1) as other:
        ended = other.submit(work)
        while not ended.done():
            stopper.try_once()
    ended.result()
    runner.close()


_CANCELLED_RUNS = 16
"""So many runs are cancelled while they go on."""
_ATTEMPTS = 16
"""So many times as many are tried where processors are busy, and runs over too early."""


@check("async", values=True)
def cancelling_nothing_does_nothing(bench: Bench) -> None:
    """A cancellation before a run, or after its end, does not end the next one."""
    sample = bench.sample("plain")
    compiled = bench.compile(sample.proto)
    request, runner = compiled.create_infer_request(), compiled.device_model.create_runner()
    for seed in range(3):
        feeds = sample.feeds(seed)
        expected = bench.expected(sample.proto, feeds)
        request.cancel()
        result = request.infer(feeds).to_tuple()
        compare(result, expected, f"{sample.name} after a cancelled request had no run")
        runner.cancel()
        inputs = host_tensors(compiled, feeds)
        results = [tensor.numpy() for tensor in runner.run(inputs)]
        compare(results, expected, f"{sample.name} after a cancelled runner had no run")


class _Beside:
    """A request that is run over and over on a thread of its own, until it has to end.

    Where processors are busy, runs that begin together end one by one, and nothing happens beside
    them; one who runs on and on is in the midst of a run most of the time.

    Args:
        request: What is run.
        sample: Its model.
        feeds: Its inputs.
        due: The outputs for them.

    Attributes:
        now: The number of the run that is going on; ``None`` between two.
    """

    def __init__(
        self,
        request: partita.InferRequest,
        sample: Sample,
        feeds: dict[str, Array],
        due: Sequence[Array],
    ) -> None:
        self._request, self._feeds, self._due = request, feeds, due
        self._what = f"{sample.name} beside a cancelled one"
        self._leaves = threading.Event()
        self.now: int | None = None
        self._ended = on_a_thread(self._run)

    def _run(self) -> None:
        right: Sequence[Array] | None = None
        number = 0
        try:
            while not self._leaves.is_set():
                self.now = number = number + 1
                have = self._request.infer(self._feeds).to_tuple()
                self.now = None
                if right is None or not all(map(np.array_equal, have, right)):
                    compare(have, self._due, self._what)  # takes longer than a run
                    right = have
        finally:
            self._leaves.set()

    def has_left(self) -> bool:
        """Whether no more runs begin: one failed, or it has to end."""
        return self._leaves.is_set()

    def leave(self) -> None:
        """Lets no more runs begin, and waits for the last one.

        Raises:
            Exception: What a run raised.
        """
        self._leaves.set()
        self._ended()


@check("async", values=True)
@_threads_take_turns()
def cancelling_one_ends_no_other(bench: Bench) -> None:
    """Other requests of the model, which run meanwhile, come to their ends."""
    sample = bench.sample("large")
    compiled = bench.compile(sample.proto)
    cancelled = compiled.create_infer_request()
    requests = [compiled.create_infer_request() for _ in range(3)]
    feeds = sample.feeds()
    expected = bench.expected(sample.proto, feeds)
    lasts = np.inf
    for _ in range(3):  # the first is slow
        began = time.perf_counter()
        cancelled.infer(feeds)
        lasts = min(lasts, time.perf_counter() - began)
    others = [_Beside(request, sample, feeds, expected) for request in requests]
    met: set[tuple[int, int | None]] = set()  # runs of others, by who and number
    for moment in range(_ATTEMPTS * _MOMENTS):
        if len(met) >= len(others) * _MOMENTS or any(other.has_left() for other in others):
            break
        if _has_ended(cancelled):
            cancelled.start_async(feeds)
        if moment % 2:  # its run may not have begun yet; four at once take longer
            time.sleep(lasts * (moment % 16) / 4)
        before = [other.now for other in others]
        cancelled.cancel()
        going_on = {(n, other.now) for n, other in enumerate(others)} & {*enumerate(before)}
        if _was_stopped(cancelled):
            met |= {(n, run) for n, run in going_on if run is not None}
    for other in others:
        other.leave()
    with contextlib.suppress(InferCancelledError):
        cancelled.wait()


def _was_stopped(request: partita.InferRequest) -> bool:
    """Whether a run was going on when the request was cancelled, which the device then did."""
    try:
        return not request.wait_for(0)
    except InferCancelledError:
        return True


def _has_ended(request: partita.InferRequest) -> bool:
    try:
        return request.wait_for(0)
    except InferCancelledError:
        return True


@check("async", values=True)
def a_queue_loses_nothing(bench: Bench) -> None:
    """AsyncInferQueue runs every job once, each with its own inputs."""
    sample = bench.sample("plain")
    queue = partita.AsyncInferQueue(bench.compile(sample.proto), jobs=3)
    results: dict[int, tuple[object, ...]] = {}
    queue.set_callback(
        lambda request, index: results.__setitem__(
            index, tuple(a.copy() for a in request.results.to_tuple())
        )
    )
    feeds = [sample.feeds(100 + index) for index in range(24)]
    for index, one in enumerate(feeds):  # at once, so that the first runs meet
        queue.start_async(one, userdata=index)
    queue.wait_all()
    require(sorted(results) == list(range(24)), f"{len(results)} of 24 jobs came back.")
    for index, arrays in results.items():
        compare(arrays, bench.expected(sample.proto, feeds[index]), f"{sample.name}, job {index}")


@check("async", values=True)
def runs_are_awaited_in_any_order(bench: Bench) -> None:
    """Of runs awaited last first, and more than once, each has the results of its own inputs.

    A request may be cancelled twice, by other threads too, and waits no longer then.
    """
    for kind in ("pair", "large"):
        sample = bench.sample(kind)
        compiled = bench.compile(sample.proto)
        requests = [compiled.create_infer_request() for _ in range(6)]
        for turn in range(3):
            feeds = [sample.feeds(300 + 10 * turn + n) for n in range(len(requests))]
            for request, one in zip(requests, feeds, strict=True):
                request.start_async(one)
            for number in reversed(range(len(requests))):
                requests[number].wait()
                requests[number].wait()
                due = bench.expected(sample.proto, feeds[number])
                what = f"{sample.name}, run {number + 1} of {len(requests)}, awaited last first"
                compare(requests[number].results.to_tuple(), due, what)
        started = requests[0]
        for _ in range(3):
            started.start_async(feeds[0])
            threads = [threading.Thread(target=started.cancel) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for _ in range(2):
                with contextlib.suppress(InferCancelledError):
                    started.wait()
            due = bench.expected(sample.proto, feeds[1])
            compare(started.infer(feeds[1]).to_tuple(), due, f"{sample.name}, cancelled twice")
