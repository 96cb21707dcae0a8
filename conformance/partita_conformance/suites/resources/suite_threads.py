"""Suite ``threads``: many callers at once, none in the other's way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import networks
from partita_conformance.judging.compare import compare


def _together(count: int, task: Callable[[int], None]) -> None:
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

        _together(4, task)


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

    _together(4, task)


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

    _together(4, task)


@check("threads", values=True)
def any_thread_may_do_any_step(bench: Bench) -> None:
    """Compiled on one thread, its request made on a second one, run on others and on the first."""
    sample = bench.sample("plain")
    feeds = sample.feeds(8)
    expected = bench.expected(sample.proto, feeds)
    made: list[Any] = []
    steps: list[Callable[[int], None]] = [
        lambda _: made.append(bench.compile(sample.proto)),
        lambda _: made.append(made[0].create_infer_request()),
    ]

    def run(_: int) -> None:
        what = f"{sample.name}, run on another thread"
        compare(made[1].infer(feeds).to_tuple(), expected, what)
        compare(made[0](feeds).to_tuple(), expected, what)

    for step in (*steps, run, run):
        _together(1, step)
    run(0)
