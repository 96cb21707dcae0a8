"""Suite ``resources``: files, threads and references are given back; the process is left alone."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import partita
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.bench.elsewhere import run_elsewhere
from partita_conformance.inputs.models import Sample, parse, stranger
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.feeding import host_tensors, sums_of_any_sizes
from partita_conformance.suites.resources.collecting import of_new_objects
from partita_conformance.suites.resources.process_state import (
    ARITHMETIC,
    arithmetic,
    state,
    unusual_state,
)

_FILES, _TASKS = Path("/proc/self/fd"), Path("/proc/self/task")
_TURNS, _FEW = 16, 6


def _entries(folder: Path) -> int:
    """Number of entries of a folder of the process.

    Raises:
        NotApplicableError: This system has none.
    """
    if not folder.exists():
        raise NotApplicableError(f"this system has no {folder}")
    return len(list(folder.iterdir()))


def _threads() -> int:
    return _entries(_TASKS) if _TASKS.exists() else threading.active_count()


def _children(states: str = "") -> int:
    """Processes that this one has started and not waited for; 0 where the system has no list.

    Args:
        states: Those of processes that count, as the system calls them; any if empty.
    """
    count = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # one that ends meanwhile
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
            count += parent == str(os.getpid()) and state in (states or state)
    return count


def _shared() -> int:
    """Parts of this process's memory that lie in files of shared memory, or in deleted ones."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return 0
    marks = ("/memfd:", "(deleted)", f"{os.sep}shm{os.sep}")
    return sum(any(mark in line for mark in marks) for line in maps.read_text().splitlines())


def _exported(compiled: partita.CompiledModel) -> bytes:
    """A blob; an empty one if the device has none."""
    with contextlib.suppress(partita.PartitaError, NotImplementedError):
        return compiled.export_model()
    return b""


def _uses(bench: Bench) -> dict[str, Callable[[], object]]:
    """What is done over and over: runs, requests, compiles, imports, queries, and failures."""
    sample = bench.sample("plain")
    compiled = bench.compile(sample.proto)
    request = compiled.create_infer_request()
    feeds = sample.feeds()

    def asynchronous() -> None:
        request.start_async(feeds)
        request.wait()

    def cached() -> None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            bench.compile(sample.proto, {"CACHE_DIR": folder})(feeds)

    def failing() -> None:
        with contextlib.suppress(partita.PartitaError):
            request.infer({name: array[..., None] for name, array in feeds.items()})

    counting = bench.compile(sample.proto, {"PERF_COUNT": True}).create_infer_request()

    def counted() -> None:
        counting.infer(feeds)
        list(counting.get_profiling_info())

    blob = _exported(compiled)

    def cancelled() -> None:
        request.start_async(feeds)
        request.cancel()
        with contextlib.suppress(partita.PartitaError):
            request.wait()

    def refused() -> None:
        with contextlib.suppress(Exception):  # of which type, suite faults checks
            bench.plugin.compile_model(stranger(), bench.properties())

    def imported() -> None:
        if blob:
            bench.core.import_model(blob, bench.device)(feeds)

    def damaged() -> None:
        with contextlib.suppress(Exception):
            bench.core.import_model(blob[: len(blob) // 2], bench.device)

    return {
        "compiles that fail": refused,
        "imports": imported,
        "imports that fail": damaged,
        "runs": lambda: request.infer(feeds),
        "runs with counters": counted,
        "asynchronous runs": asynchronous,
        "requests": lambda: compiled.create_infer_request().infer(feeds),
        "compiles": lambda: bench.compile(sample.proto)(feeds),
        "queries": lambda: bench.refusals(sample.proto),
        "compiles with CACHE_DIR": cached,
        "runs that fail": failing,
        "runs that are cancelled": cancelled,
        **_impossible(bench),
    }


def _impossible(bench: Bench) -> dict[str, Callable[[], object]]:
    """Runs of sizes that the device alone finds not to fit, awaited or not; none if it has none."""
    proto = parse("g (float[N] a, float[M] b) => (float[K] y) { y = Add(a, b) }")
    if bench.refusals(proto):
        return {}
    compiled = bench.compile(proto)
    kept = compiled.create_infer_request()
    feeds = {"a": np.ones(3, np.float32), "b": np.ones(4, np.float32)}

    def use(request: partita.InferRequest) -> None:
        with contextlib.suppress(partita.PartitaError):
            request.infer(feeds)
        request.start_async(feeds)
        with contextlib.suppress(partita.PartitaError):
            request.wait()

    return {
        "runs that the device cannot compute": lambda: use(kept),
        "requests whose runs it cannot compute": lambda: use(compiled.create_infer_request()),
        "models whose runs it cannot compute": lambda: use(
            bench.compile(proto).create_infer_request()
        ),
    }


def _growth(count: Callable[[], int], before: int) -> int:
    """How much more there is than before, once what is ending has ended."""
    for _ in range(20):
        growth = count() - before
        if growth < _FEW:
            break
        gc.collect()
        time.sleep(0.02)
    return growth


@check("resources")
def nothing_is_left_open(bench: Bench) -> None:
    """Runs, requests, compiles, failures: no files, threads or processes are left of them.

    Nor does anything fail where nobody sees it: on a thread, or when an object ends.
    """
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, of_new_objects():
        counts: dict[str, Callable[[], int]] = {
            "open files": lambda: _entries(_FILES),
            "threads": _threads,
            "temporary files": lambda: _entries(Path(folder)),
            "child processes": _children,
            "blocks of shared memory": _shared,
        }
        tempfile.tempdir = folder
        hooks = sys.unraisablehook, threading.excepthook
        unseen: list[str] = []
        sys.unraisablehook = lambda lost: unseen.append(repr(lost.exc_value))
        threading.excepthook = lambda lost: unseen.append(repr(lost.exc_value))
        try:
            for name, use in _uses(bench).items():
                for _ in range(3):
                    use()
                gc.collect()
                levels = {what: count() for what, count in counts.items()}
                for _ in range(_TURNS):
                    use()
                gc.collect()
                for what, count in counts.items():
                    growth = _growth(count, levels[what])
                    require(
                        growth < _FEW,
                        f"After {_TURNS} {name} there are {growth} more {what} than before.",
                    )
                require(not unseen, f"Errors that nobody sees, of {name}: {unseen[:1]}.")
        finally:
            sys.unraisablehook, threading.excepthook = hooks
            tempfile.tempdir = before


@check("resources")
def processes_are_waited_for(bench: Bench) -> None:
    """Of models that differ, and are all there, no process is left that has ended: compiled or run.

    The system keeps a process that has ended until the one that started it has read its exit code.
    """

    def ended() -> int:
        return _children("Z")

    sample = bench.sample("dynamic")
    held: list[object] = []
    before = ended()
    for rows in range(2, 2 + _TURNS):
        model = bench.read(sample.proto)
        model.reshape({0: [rows, *(model.input(0).shape or ())[1:]]})
        request = bench.core.compile_model(
            model, bench.device, bench.target.config
        ).create_infer_request()
        request.infer(sample.feeds(rows, N=rows))
        held.append(request)
    growth = _growth(ended, before)
    require(
        growth < _FEW,
        f"Beside {len(held)} models there are {growth} processes that have ended, for which nobody "
        f"has waited.",
    )


@check("resources")
def arrays_are_let_go(bench: Bench) -> None:
    """Inputs and outputs of a run are gone when the caller, the request and its model are."""
    sample = bench.sample("plain")
    refs: list[weakref.ref[Any]] = []

    def use() -> None:
        compiled = bench.compile(sample.proto)
        for turn in range(3):
            request = compiled.create_infer_request()
            feeds = sample.feeds(turn)
            request.infer(feeds)
            refs.extend(weakref.ref(array) for array in feeds.values())
            refs.extend(weakref.ref(array) for array in request.results.to_tuple())

    use()
    gc.collect()
    alive = sum(ref() is not None for ref in refs)
    require(not alive, f"{alive} of {len(refs)} inputs and outputs are kept by somebody.")


@check("resources")
def failed_runs_let_go(bench: Bench) -> None:
    """A run that cannot be computed keeps none of its inputs, nor any thread."""
    proto = sums_of_any_sizes(bench)
    runner = bench.compile(proto).device_model.create_runner()
    before = 0
    with of_new_objects():
        for count in range(3, 3 + _TURNS):
            arrays = [np.ones(count, np.float32), np.ones(count + 4, np.float32)]
            refs = [weakref.ref(array) for array in arrays]
            with contextlib.suppress(Exception):  # of which type, suite faults checks
                runner.run([partita.HostTensor(array) for array in arrays])
            del arrays
            gc.collect()
            kept = sum(ref() is not None for ref in refs)
            require(not kept, f"After a run that failed, {kept} of its inputs are kept.")
            before = before or _threads()
    growth = _growth(_threads, before)
    require(growth < _FEW, f"After {_TURNS} runs that failed there are {growth} more threads.")
    runner.close()


@check("resources")
def inputs_are_let_go_after_the_run(bench: Bench) -> None:
    """A runner holds its inputs no longer than the run."""
    sample = bench.sample("plain")
    compiled = bench.compile(sample.proto)
    runner = compiled.device_model.create_runner()
    with of_new_objects():
        for seed in range(3):
            feeds = sample.feeds(seed)
            tensors = host_tensors(compiled, feeds)
            runner.run(tensors)
            refs = [weakref.ref(array) for array in feeds.values()]
            del feeds, tensors
            gc.collect()
            kept = sum(ref() is not None for ref in refs)
            require(not kept, f"After run {seed + 1} the runner keeps {kept} of its inputs.")
    runner.close()


@check("resources")
def models_are_let_go(bench: Bench) -> None:
    """A model that was asked about or compiled is gone when its users are; so is Core's copy."""
    sample = bench.sample("plain")
    refs = []
    for _ in range(3):
        model = bench.read(sample.proto)
        bench.core.query_model(model, bench.device, bench.target.config)
        compiled = bench.core.compile_model(model, bench.device, bench.target.config)
        compiled(sample.feeds())
        refs.append(weakref.ref(model))
        del model, compiled
        own = bench.read(sample.proto)  # what Core gives to a plugin may be a copy
        properties = bench.properties(**bench.target.config)
        bench.plugin.query_model(own, properties)
        bench.plugin.compile_model(own, properties)
        refs.append(weakref.ref(own))
        del own
    gc.collect()
    alive = sum(ref() is not None for ref in refs)
    require(not alive, f"{alive} of {len(refs)} models are kept by somebody.")


@check("resources")
def the_process_is_left_alone(bench: Bench) -> None:
    """Compiling and running change nothing that the process shares, and print nothing.

    They do not for inputs of any size, nor with counters, and garbage is collected after
    them if the application has it collected, and not if it has not. No file is left by them in
    the working directory, nor in the home directory but where its name begins with a dot.
    """
    samples = [bench.sample("plain")]
    with contextlib.suppress(NotApplicableError):
        samples.append(bench.sample("large"))
    _use_all(bench, samples)  # what is imported now may set up its things
    out = io.StringIO()
    for collect in (gc.disable, gc.enable):
        with contextlib.redirect_stdout(out), unusual_state():
            collect()
            before = state()
            _use_all(bench, samples)
            after = state()
        before, after = before | ARITHMETIC, after | arithmetic()
        changed = [what for what, value in before.items() if after[what] != value]
        require(not changed, f"Compiling or running changes {', '.join(changed)}.")
        require(not out.getvalue(), f"Compiling or running prints {out.getvalue()[:80]!r}.")


def _use_all(bench: Bench, samples: Sequence[Sample]) -> None:
    """Compiles and runs some models, and does all else that is done over and over."""
    for sample in samples:
        compiled = bench.compile(sample.proto)
        for seed in range(2):
            compiled(sample.feeds(seed))
    for use in _uses(bench).values():
        use()


@check("resources", values=True)
def standard_output_is_the_applications(bench: Bench) -> None:
    """A process that finds the device, compiles and runs prints nothing, beside Python either."""
    sample = bench.sample("plain")
    feeds = sample.feeds(4)
    content = sample.proto.SerializeToString()
    results, printed = run_elsewhere(bench.target, content, feeds, exported=False)
    compare(results, bench.expected(sample.proto, feeds), f"{sample.name} in another process")
    require(not printed, f"The device writes {printed[:80]!r} to standard output.")
