"""Suite ``memory``: what is not needed any more is given back."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import partita
from partita.tensors.tensor import HostTensor
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import parse
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.feeding import host_tensors, sums_of_any_sizes
from partita_conformance.suites.resources.collecting import (
    native_bytes,
    of_new_objects,
    python_blocks,
)

_STATM = Path("/proc/self/statm")
_MIB = 2**20


def resident_bytes() -> int:
    """Memory of this process that is in use now, without what the C library keeps for later.

    Raises:
        NotApplicableError: This system does not say.
    """
    if not _STATM.exists():
        raise NotApplicableError("this system does not say how much memory a process has")
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # what earlier checks freed would hide what this one leaks
        trim(0)
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _require_level(
    use: Callable[[int], None], first: int, count: int, most_mib: int, what: str
) -> None:
    """Requires that many uses take less memory than allowed beyond what the first few took.

    Twice: what others of the process give back meanwhile would hide what is lost.
    """
    use(first)
    for _ in range(2):
        gc.collect()
        before = resident_bytes()
        use(count)
        gc.collect()
        growth = (resident_bytes() - before) / _MIB
        require(growth < most_mib, f"{count} {what} take {growth:.0f} MiB more.")


@check("memory")
def runs_do_not_grow(bench: Bench) -> None:
    """A hundred runs of a half-megabyte model need no more memory than the first ten."""
    sample = bench.sample("large")
    compiled = bench.compile(sample.proto)
    request = compiled.create_infer_request()
    feeds = sample.feeds()

    def use(count: int) -> None:
        for _ in range(count):
            request.infer({name: array.copy() for name, array in feeds.items()})

    _require_level(use, 10, 100, 20, "runs of a 0.5 MiB model")


@check("memory")
def new_shapes_do_not_grow(bench: Bench) -> None:
    """Ever new shapes do not pile up: what is cached per shape has a limit."""
    sample = bench.sample("dynamic")
    request = bench.compile(sample.proto).create_infer_request()
    rows = itertools.count(20000, 16)
    most = sample.feeds(N=24000)  # of which others are the beginning: numbers take long to draw

    def use(count: int) -> None:
        for _ in range(count):
            size = next(rows)
            request.infer({name: array[:size] for name, array in most.items()})

    _require_level(use, 10, 70, 40, "new shapes of 0.6 MiB each")


@check("memory")
def small_shapes_do_not_grow(bench: Bench) -> None:
    """Hundreds of small shapes do not pile up: a shape costs little more than its elements."""
    sample = bench.sample("dynamic")
    request = bench.compile(sample.proto).create_infer_request()
    rows = itertools.count(1)

    def use(count: int) -> None:
        for _ in range(count):
            request.infer(sample.feeds(N=next(rows)))

    _require_level(use, 20, 400, 40, "new shapes of some rows each")


@check("memory")
def requests_give_back(bench: Bench) -> None:
    """Requests made, used and dropped leave nothing behind."""
    sample = bench.sample("large")
    compiled = bench.compile(sample.proto)
    feeds = sample.feeds()

    def use(count: int) -> None:
        for _ in range(count):
            compiled.create_infer_request().infer(feeds)

    _require_level(use, 5, 120, 30, "requests made and dropped")


@check("memory")
def compiled_models_give_back(bench: Bench) -> None:
    """A compiled model that nobody holds is gone, and so are its runners."""
    sample = bench.sample("large")
    compiled = bench.compile(sample.proto)
    request = compiled.create_infer_request()
    request.infer(sample.feeds())
    runner = request.runner
    refs: dict[str, weakref.ref[Any]] = {
        "compiled model": weakref.ref(compiled),
        "runner": weakref.ref(runner),
    }
    del compiled, request, runner
    gc.collect()
    for what, ref in refs.items():
        require(ref() is None, f"The {what} is still there after its last user let go of it.")


@check("memory")
def compiling_does_not_grow(bench: Bench) -> None:
    """Compiling, running and dropping a model over and over keeps memory level."""
    sample = bench.sample("large")
    feeds = sample.feeds()

    def use(count: int) -> None:
        for turn in range(count):
            bench.compile(sample.proto)(feeds)
            if turn % 8 == 7:  # in a large process Python would come to it too late
                gc.collect()

    with of_new_objects():
        _require_level(use, 4, 64, 18, "compiles of a 0.5 MiB model")


@check("memory")
def questions_do_not_grow(bench: Bench) -> None:
    """Asking about one model after another keeps memory level."""
    sample = bench.sample("large")

    def use(count: int) -> None:
        for _ in range(count):
            proto = type(sample.proto)()
            proto.CopyFrom(sample.proto)  # of which the model that is read holds the weights
            bench.core.query_model(bench.read(proto), bench.device, bench.target.config)
        gc.collect()  # in a large process Python would come to it too late

    with of_new_objects():
        _require_level(use, 4, 48, 14, "questions about a 0.5 MiB model")


@check("memory")
def transfers_give_back(bench: Bench) -> None:
    """Tensors brought to the device and dropped leave nothing behind."""
    array = np.ones((512, 512), np.float32)

    def use(count: int) -> None:
        for _ in range(count):
            bench.core.device_api.transfer_to(bench.device, partita.HostTensor(array.copy()))

    _require_level(use, 5, 60, 20, "transfers of 1 MiB")


_USES = 128
_BYTES_EACH = 96
"""So much native memory may each of many uses keep: less than the smallest record of one."""


def _small_uses(bench: Bench) -> dict[str, Callable[[int], object]]:
    """What is done hundreds of times, and is to leave nothing at all."""
    sample = bench.sample("pair")
    compiled = bench.compile(sample.proto, {"PERF_COUNT": True})
    request, runner = compiled.create_infer_request(), compiled.device_model.create_runner()
    feeds = sample.feeds(60)
    model = bench.read(sample.proto)
    array = np.ones((3, 4), np.float32)
    uses: dict[str, Callable[[int], object]] = {
        "runs": lambda _: request.infer(feeds),
        "runs of a runner": lambda _: runner.run(host_tensors(compiled, feeds)),
        "questions about counters": lambda _: list(request.get_profiling_info()),
        "requests": lambda _: compiled.create_infer_request(),
        "questions": lambda _: bench.core.query_model(model, bench.device, bench.target.config),
        "properties": lambda _: compiled.get_property("SUPPORTED_PROPERTIES"),
        "transfers": lambda _: bench.plugin.transfer_to(HostTensor(array.copy()), bench.device_id),
        "blocks of host memory": lambda n: bench.plugin.host_memory(64 + n % 4, bench.device_id),
        "facts about the device": lambda _: bench.plugin.device_info(bench.device_id),
    }
    proto = parse("g (float[N] a, float[M] b) => (float[K] y) { y = Add(a, b) }")
    if not bench.refusals(proto):
        failing = bench.compile(proto).create_infer_request()
        bad = {"a": np.ones(3, np.float32), "b": np.ones(4, np.float32)}

        def fail(_: int) -> None:
            with contextlib.suppress(partita.PartitaError):
                failing.infer(bad)

        uses["runs that fail"] = fail
    return uses


@check("memory")
def nothing_small_piles_up(bench: Bench) -> None:
    """Hundreds of runs, requests, questions and failures leave no object and no record behind."""
    with of_new_objects():
        for what, use in _small_uses(bench).items():
            for number in range(_USES):
                use(number)
            for _ in range(4):  # others of the process take and give back meanwhile
                gc.collect()
                before = python_blocks(), native_bytes()
                for number in range(_USES):
                    use(number)
                gc.collect()
                objects, taken = python_blocks() - before[0], native_bytes() - before[1]
                # What others give back would hide what is lost: that is not level either.
                if abs(objects) < _USES // 8 and abs(taken) < _USES * _BYTES_EACH:
                    break
            require(objects < _USES // 2, f"After {_USES} {what} there are {objects} more objects.")
            most = _USES * _BYTES_EACH
            require(taken < most, f"{_USES} {what} keep {taken} bytes of native memory.")


@check("memory")
def failures_give_back(bench: Bench) -> None:
    """Runs that fail, with large inputs, leave nothing behind."""
    proto = sums_of_any_sizes(bench)
    request = bench.compile(proto).create_infer_request()

    def use(count: int) -> None:
        for _ in range(count):
            feeds = {"a": np.ones(131_072, np.float32), "b": np.ones(131_071, np.float32)}
            with contextlib.suppress(partita.PartitaError):
                request.infer(feeds)

    _require_level(use, 4, 50, 18, "failing runs of 1 MiB")


@check("memory")
def imports_give_back(bench: Bench) -> None:
    """Exporting, importing, running and dropping a model over and over keeps memory level."""
    sample = bench.sample("large")
    try:
        blob = bench.compile(sample.proto).export_model()
    except (partita.PartitaError, NotImplementedError) as error:
        raise NotApplicableError(f"the device does not export: {error}") from error
    feeds = sample.feeds()

    def use(count: int) -> None:
        for turn in range(count):
            compiled = bench.core.import_model(blob, bench.device)
            compiled(feeds)
            compiled.export_model()
            if turn % 8 == 7:  # in a large process Python would come to it too late
                gc.collect()

    with of_new_objects():
        _require_level(use, 4, 40, 14, "imports of a 0.5 MiB model")
