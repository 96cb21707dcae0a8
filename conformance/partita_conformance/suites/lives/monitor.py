"""Invariants that hold after each step of a life, all checked every time.

Checks of one thing look at what that thing may spoil. This looks at all of it each time: results
against the judge, the bytes of everything lent and handed out so far, the form of what came back,
times and counters, and whatever a process shares.
"""

from __future__ import annotations

import contextlib
import io
import locale
import math
import operator
import os
import random
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import partita
from partita.contract.profiling import Status
from partita.tensors.sequence_values import unboxed
from partita_conformance.inputs.models import Array
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import ConformanceError, require
from partita_conformance.suites.contract.suite_properties import of_a_submodel
from partita_conformance.suites.lives.lending import Lent, edges_hold
from partita_conformance.suites.resources.library_state import known_operators
from partita_conformance.suites.resources.process_state import ARITHMETIC, arithmetic, state_at_hand

_KEPT, _MOST_BYTES = 20, 6 << 20
"""So many inputs and results are looked at behind each step, and bytes of them."""
_RANDOM = ("numpy's random numbers", "Python's random numbers")
_AT_EXIT, _MOST_AT_EXIT = "functions called at exit", 8
_MODULES = (
    "builtins",
    "os",
    "sys",
    "time",
    "threading",
    "random",
    "math",
    "json",
    "logging",
    "tempfile",
    "warnings",
    "gc",
    "signal",
    "pathlib",
    "numpy",
    "numpy.random",
    "socket",
    "locale",
    "copy",
    "pickle",
    "io",
    "functools",
    "itertools",
    "weakref",
)


class _Held:
    """A result that somebody has, as it is to stay until its owner runs again."""

    def __init__(self, array: Array, owner: object, what: str) -> None:
        self.array, self.owner, self.what = array, owner, what
        self.hold()

    def hold(self) -> None:
        """What it holds now is what it is to hold."""
        self._contents = self._now()

    def holds(self) -> bool:
        """Whether it does."""
        return bool(self._now() == self._contents)

    def _now(self) -> Any:
        value = unboxed(self.array) if self.array.dtype.hasobject else self.array
        items = value if isinstance(value, list) else [value]
        return [
            item if item is None else item.tolist() if item.dtype.hasobject else item.tobytes()
            for item in items
        ]


class Monitor:
    """Looks at everything behind each step of one life."""

    def __init__(self) -> None:
        self._lent: list[Lent] = []
        self._results: list[_Held] = []
        self._functions: list[_Functions] = []
        self._states: dict[tuple[str, ...], dict[str, Any]] = {}
        self._counted: list[tuple[object, partita.InferRequest, list[Any]]] = []
        self._lasting: list[weakref.ref[Array]] = []
        self._at_exit, self._operators = state_at_hand()[_AT_EXIT], known_operators()

    # -------------------------------------------------------------------- what is kept in mind

    @property
    def results(self) -> list[Array]:
        """Results that somebody has still."""
        return [held.array for held in self._results]

    def results_of_others(self, owner: object, alone: bool) -> list[tuple[Array, object]]:
        """Results that may be inputs of somebody's next run, each with whose it is.

        Args:
            owner: Who runs.
            alone: Whether what he has returned himself may not be.
        """
        mine = (held for held in self._results if not alone or held.owner is not owner)
        return [(held.array, held.owner) for held in mine]

    def lend(self, lent: Lent) -> None:
        """Watches an input from now on."""
        if not any(one is lent for one in self._lent):
            self._lent = [*self._lent[1 - _KEPT :], lent]
            self._lasting.append(weakref.ref(lent.array))
        while sum(one.size for one in self._lent) > _MOST_BYTES and len(self._lent) > 1:
            self._lent.pop(0)

    def returned_to(self, owner: object) -> None:
        """What somebody returned is valid until it runs again, as an input of others too."""
        self._counted = [one for one in self._counted if one[0] is not owner]
        self._results = [held for held in self._results if held.owner is not owner]
        self._lent = [one for one in self._lent if one.owner is not owner or owner is None]

    def write(self, rng: random.Random, share: float = 0.5) -> None:
        """Lets the application write to a share of the results, which are its own."""
        for held in self._results:
            array = held.array
            if rng.random() < share and array.flags.writeable and not array.dtype.hasobject:
                array.reshape(-1).view(np.uint8)[...] = rng.choice((0, 1))
        for held in self._results:
            held.hold()
        for lent in self._lent:
            lent.hold()

    # ------------------------------------------------------------------------------- results

    def take(
        self,
        results: Sequence[Array],
        due: Sequence[Array],
        owner: object,
        inputs: Mapping[str, Lent],
        exact: bool,
        given: Sequence[Array | None] = (),
        of_given: object = None,
    ) -> None:
        """Looks at the results of a run, and keeps them in mind.

        Args:
            results: What came back.
            due: What is right.
            owner: Whose next run ends their validity; ``None`` if they are the caller's own.
            inputs: What the run has read.
            exact: Whether each bit is to be right, but for those of NaN.
            given: By output where it was to go.
            of_given: Whose next run writes there again, if anybody's.
        """
        compare_values(results, due, "its results")
        if exact:
            for index, (have, want) in enumerate(zip(results, due, strict=True)):
                require(_same_bits(have, want), f"Output {index} differs in a bit, as of a zero.")
        there = [*(lent.array for lent in inputs.values()), *self.results]
        for index, array in enumerate(results):
            lasts = any(one is not None and _meet(array, one) for one in given)
            if not lasts:
                require_plain(array, index)
                shared = any(_meet(array, other) for other in there)
                require(not shared, f"Output {index} lies where something else does.")
            there.append(array)
            held = _Held(array, of_given if lasts else owner, f"Output {index} of an earlier run")
            self._results.append(held)
            self._lasting.append(weakref.ref(array))
        for index, one in enumerate(given):
            require(one is None or edges_hold(one), f"The run has written beside output {index}.")
        self._results = self._results[-_KEPT:]
        while sum(held.array.nbytes for held in self._results) > _MOST_BYTES:
            self._results.pop(0)

    # -------------------------------------------------------------------------------- a step

    @contextlib.contextmanager
    def step(self, *where: str) -> Iterator[None]:
        """Looks at everything behind a step; to be entered on the thread that makes it.

        Args:
            where: Levels on which depends what the process and its threads are like.
        """
        if where not in self._states:  # else it is as it was behind an earlier step
            self._states[where] = state_at_hand()
        before, threads, here = self._states[where], arithmetic(), _of_thread()
        self._functions = self._functions or list(_functions())
        random.seed(len(self._lasting))  # the application draws numbers, too
        np.random.random_sample()
        drawn = _drawn()
        yield
        self._look()
        after = state_at_hand()
        require(_drawn() == drawn, "The step has changed the random numbers of the application.")
        left = (_AT_EXIT, *_RANDOM)  # looked at over the whole life, and above
        before = {what: was for what, was in before.items() if what not in left}
        for what, was in before.items():
            if after[what] != was:
                found = _difference(was, after[what])
                raise ConformanceError(f"The step has changed {what}: {found}.")
        now = arithmetic()
        changed = [what for what in ARITHMETIC if now[what] != threads[what]]
        require(not changed, f"The step has changed {changed}.")
        replaced = [
            f"{there['__name__']}.{key}"
            for there, keys, ones in self._functions
            if not all(map(operator.is_, map(there.get, keys), ones))
            for key, one in zip(keys, ones, strict=True)
            if there.get(key) is not one
        ]
        require(not replaced, f"The step has replaced {replaced}.")
        require(_of_thread() == here, "The step has changed what its thread has of its own.")

    def look_when_all_are_gone(self) -> None:
        """Looks at what is the application's still, and lets go of it."""
        self._counted = []
        self._look()
        self._lent, self._results = [], []

    def end(self) -> None:
        """Looks at what may be done once, as when something is used first, and not each time."""
        count = state_at_hand()[_AT_EXIT] - self._at_exit
        said = f"{count} functions more than before will be called at exit."
        require(count <= _MOST_AT_EXIT, said)
        known = known_operators() == self._operators
        require(known, "Some step has changed which operators ONNX knows.")
        self._look()

    def kept(self) -> int:
        """How many arrays of the life are there still."""
        return sum(one() is not None for one in self._lasting)

    def written_again(self, arrays: Sequence[Array | None]) -> None:
        """Results that lie in these arrays are to be others behind the next run."""
        self._results = [
            held
            for held in self._results
            if not any(one is not None and _meet(held.array, one) for one in arrays)
        ]

    def count(self, owner: object, request: partita.InferRequest) -> None:
        """Keeps in mind what a request says of its last run."""
        infos = list(request.get_profiling_info())
        if infos:
            self._counted = [*self._counted[-3:], (owner, request, infos)]

    def look_meanwhile(self, shared: Mapping[str, Any]) -> None:
        """Looks at what other threads see while a step is made.

        Args:
            shared: What :func:`seen_by_all` gave before it.
        """
        self._look_at_inputs()
        now = seen_by_all()
        changed = [what for what, was in shared.items() if now[what] != was]
        require(not changed, f"For a while all threads have another {' and '.join(changed)}.")

    def _look_at_inputs(self) -> None:
        for lent in self._lent:
            fault = lent.fault()
            require(fault is None, f"An input {fault}.")

    def _look(self) -> None:
        self._look_at_inputs()
        for held in self._results:
            require(held.holds(), f"{held.what} has changed since.")
        for _, request, infos in self._counted:
            same = list(request.get_profiling_info()) == infos
            require(same, "Counters of a request are others though it has not run since.")


def compare_values(have: Sequence[Array], due: Sequence[Array], what: str) -> None:
    """Compares arrays, sequences in some of them by their items."""
    compare([unboxed(one) for one in have], [unboxed(one) for one in due], what)


def require_plain(array: Array, index: int) -> None:
    """Looks at the form of a result.

    Raises:
        ConformanceError: It is no plain array of its own.
    """
    flags = array.flags
    for holds, what in (
        (type(array) is np.ndarray, f"is a {type(array).__name__}"),
        (flags.c_contiguous, "is not in C order"),
        (flags.writeable, "cannot be written to"),
        (flags.aligned, "is not aligned to its elements"),
        (array.dtype.isnative, "has its bytes the other way round"),
    ):
        require(holds, f"Output {index} {what}.")


def require_counters(
    request: partita.InferRequest, names: set[str], counting: bool, wall_s: float
) -> None:
    """Looks at what a request says of its last run.

    Args:
        request: The request.
        names: Of the model's operations.
        counting: Whether its model was compiled to count.
        wall_s: How long the run took, seen from without.

    Raises:
        ConformanceError: It cannot be of that run.
    """
    infos = list(request.get_profiling_info())
    require(counting or not infos, f"There are {len(infos)} counters without PERF_COUNT.")
    seen: list[str] = []
    for info in infos:
        seen.append(info.node_name)
        known = [n for n in (of_a_submodel(info.node_name), *info.covers) if n not in names]
        # What moves between operations is none of the model's.
        require(not known or info.node_type == "Permute", f"Counters are about {known}.")
        require(info.status in Status, f"The status of a counter is {info.status!r}.")
        most = 1e6 * wall_s + 1000
        times = info.real_time_us, info.cpu_time_us
        fine = all(math.isfinite(one) and one >= 0 for one in times) and times[0] <= most
        said = f"'{info.node_name}' is said to have taken {times} us in a run of {most:.0f} us."
        require(fine, said)
    again = [info.node_name for info in request.get_profiling_info()]
    require(again == seen, f"Counters read twice are of {seen} and of {again}.")
    twice = {name for name in seen if seen.count(name) > 1}
    require(not twice, f"There are several counters of {twice}.")
    latency = request.latency
    said = f"The latency is said to be {latency} ms; the run took {1e3 * wall_s:.3f} ms."
    require(0 <= latency <= 1e3 * wall_s + 1, said)


_Functions = tuple[dict[str, Any], Sequence[str], Sequence[Any]]


def _functions() -> Iterator[_Functions]:
    """The functions and classes of modules that everybody calls: where, their names, and they."""
    for name in _MODULES:
        there = vars(sys.modules[name])
        keys = [key for key, value in there.items() if callable(value)]
        yield there, keys, [there[key] for key in keys]


def seen_by_all() -> dict[str, Any]:
    """What all threads of the process see, so that it may not even change for a while."""
    return {
        "working directory": Path.cwd(),
        "environment": dict(os.environ),
        "recursion limit": sys.getrecursionlimit(),
        "locale": locale.setlocale(locale.LC_ALL),
        "folder of temporary files": tempfile.tempdir,
        "standard output": [(one.st_dev, one.st_ino) for one in map(os.fstat, (1, 2))],
    }


def _drawn() -> tuple[Any, ...]:
    """Where everybody's random numbers are."""
    _, key, place, *_ = np.random.get_state()
    return key.tobytes() if isinstance(key, np.ndarray) else key, place, random.getstate()


def _of_thread() -> dict[str, Any]:
    """What a thread has of its own."""
    one = threading.current_thread()
    return {"name": one.name, "daemon": one.daemon, "tracing": (sys.gettrace(), sys.getprofile())}


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Looks whether anything is written to standard output meanwhile, Python's or the process's."""
    sys.stdout.flush()
    with tempfile.TemporaryFile() as file, contextlib.redirect_stdout(io.StringIO()) as text:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        size = os.fstat(file.fileno()).st_size
        require(not size and not text.getvalue(), "Something was written to standard output.")


def _same_bits(have: Array, want: Array) -> bool:
    if want.dtype.hasobject or want.dtype == np.bool_ or not want.size:
        return True
    kind = f"u{want.dtype.itemsize}"
    same = have.reshape(-1).view(kind) == want.reshape(-1).view(kind)
    if want.dtype.kind not in "iu":
        with np.errstate(all="ignore"):
            numbers = want.reshape(-1)
            same |= numbers != numbers
    return bool(same.all())


def _meet(one: Array, other: Array) -> bool:
    if one.dtype.hasobject or other.dtype.hasobject:
        return one is other
    return np.may_share_memory(one, other) and np.shares_memory(one, other)


def _difference(was: Any, now: Any) -> str:
    """What differs, in few words."""
    if isinstance(was, dict) and isinstance(now, dict):
        names = sorted(k for k in was.keys() | now.keys() if was.get(k) != now.get(k))
        return ", ".join(map(str, names))
    return f"{str(was)[:80]} became {str(now)[:80]}"


clock = time.perf_counter
