"""Suite ``memory``: what is not needed any more is given back."""

from __future__ import annotations

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
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.judging.requirements import NotApplicableError, require

_STATM = Path("/proc/self/statm")
_MIB = 2**20


def resident_bytes() -> int:
    """Memory of this process that is in use now, without what the C library keeps for later.

    Raises:
        NotApplicableError: This system does not tell.
    """
    if not _STATM.exists():
        raise NotApplicableError("this system does not tell how much memory a process has")
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

    def use(count: int) -> None:
        for _ in range(count):
            request.infer(sample.feeds(N=next(rows)))

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

    _require_level(use, 4, 48, 14, "questions about a 0.5 MiB model")


@check("memory")
def transfers_give_back(bench: Bench) -> None:
    """Tensors brought to the device and dropped leave nothing behind."""
    array = np.ones((512, 512), np.float32)

    def use(count: int) -> None:
        for _ in range(count):
            bench.core.device_api.transfer_to(bench.device, partita.HostTensor(array.copy()))

    _require_level(use, 5, 60, 20, "transfers of 1 MiB")
