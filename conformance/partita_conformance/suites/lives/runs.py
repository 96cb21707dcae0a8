"""The ways in which a step of a life runs a request."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import partita
from partita.errors import InferCancelledError
from partita_conformance.bench.bench import Bench
from partita_conformance.inputs.models import Array
from partita_conformance.judging.requirements import require
from partita_conformance.suites.lives.events import Events
from partita_conformance.suites.lives.forms import Form
from partita_conformance.suites.lives.inputs import Inputs
from partita_conformance.suites.lives.lending import Lent, edges_hold, target
from partita_conformance.suites.lives.made import Made, User
from partita_conformance.suites.lives.monitor import (
    Monitor,
    compare_values,
    require_counters,
    seen_by_all,
)
from partita_conformance.suites.resources.meeting import at_a_moment, on_a_thread, packages_of

_OF_ONE = frozenset(
    ("goes round", "is called", "goes through a queue", "is interrupted", "runs beside another")
)
"""Ways in which several requests take part, each with variables of its own."""
_TIMES = 5


class Run:
    """One run of a request.

    Args:
        bench: The device.
        form: The models.
        monitor: Looks at what comes back.
        inputs: Draws what is lent.
        made: The model that is run.
        user: Who runs it.
        levels: Of the step.
        rng: Draws what is left open.
    """

    plain = False
    """Whether inputs are for a runner, which takes contiguous arrays and all that there are."""

    def __init__(
        self,
        bench: Bench,
        form: Form,
        monitor: Monitor,
        inputs: Inputs,
        made: Made,
        user: User,
        levels: Mapping[str, str],
        rng: random.Random,
    ) -> None:
        self._bench, self._form, self._monitor, self._inputs = bench, form, monitor, inputs
        self._made, self._user, self._levels, self._rng = made, user, levels, rng
        self._ports = made.compiled.outputs

    def make(self, events: Events) -> None:
        """Makes it, and once more if the step says so.

        Args:
            events: What may happen between.
        """
        way = self._levels["way"]
        if self._form.has_state and way in _OF_ONE:
            way = "infers"
        self._sizes = self._inputs.sizes(self._levels["sizes"], self._made, self._rng)
        self._feeds = self._lend()
        self._due = self._judged(self._feeds)
        step = getattr(self, "_" + way.replace(" ", "_"))
        step()
        if self._levels["again"] != "no" and not self._form.has_state:
            if self._levels["again"] == "on others, behind the event":
                events.happen(self._levels["before"], self._made, self._user, self._rng)
                self._feeds = self._lend(values="usual")
            else:
                self._monitor.write(self._rng, 1)
            self._due = self._judged(self._feeds)
            step()
        self._user.feeds, self._user.sizes = self._feeds, self._sizes

    # -------------------------------------------------------------------------- what is due

    def _lend(self, beside: bool = False, values: str = "") -> dict[str, Lent]:
        """Inputs; for a run beside another one those of another place in any case.

        Args:
            beside: Whether they are for such a run.
            values: Their elements, if not as the step says.
        """
        levels = {**self._levels, "values": values or self._levels["values"]}
        if beside and levels["inputs"] == "where they lay":
            levels = {**levels, "inputs": "new"}
        return self._inputs.lend(levels, self._made, self._user, self._sizes, self._rng, self.plain)

    def _judged(self, feeds: Mapping[str, Lent], user: User | None = None) -> list[Array]:
        copies = {name: lent.array.copy() for name, lent in feeds.items()}
        if self._form.has_state and "past" not in copies:
            past = (user or self._user).past
            copies["past"] = np.zeros((2, 3), np.float32) if past is None else past
        return self._bench.expected(self._made.proto, copies)

    def _goes_on(self, due: Sequence[Array]) -> None:
        """A run of the request has ended well, so that its variable is another one."""
        if self._form.has_state and not self.plain:
            self._user.past = due[1].copy()

    # ------------------------------------------------------------------------- what is given

    def _named(self, feeds: Mapping[str, Lent]) -> Any:
        ports = {port.name: port for port in self._made.compiled.inputs}
        match self._levels["named"]:
            case "in order" if len(feeds) == len(ports) > 1:
                return [feeds[name].given for name in ports]
            case "by index":
                return {ports[name].index: lent.given for name, lent in feeds.items()}
            case "by port":
                return {ports[name]: lent.given for name, lent in feeds.items()}
        return {name: lent.given for name, lent in feeds.items()}

    def _give(self, due: Sequence[Array]) -> None:
        """Sets where outputs go, as the step says, and anew where what was set does not fit."""
        level, user = self._levels["outputs"], self._user
        wanted = [*range(len(due))] if level.startswith("given") else []
        if level == "one given":
            wanted = [self._rng.randrange(len(due))]
        for index, want in enumerate(due):
            port = self._ports[index]
            if port.dtype is None or (self._form.has_state and index):
                continue
            before = user.given.get(index)
            fits = before is not None and before.shape == want.shape
            if before is not None and fits and (level == "given again" or index not in wanted):
                continue
            if before is None and index not in wanted:
                continue
            offset = self._rng.choice((1, 2, 3, 5)) if level.endswith("offset") else 0
            user.given[index] = target(want, offset)
            user.request.set_output_tensor(index, user.given[index])

    def _read(self, result: Any, due: Sequence[Array], owner: object) -> None:
        """Reads results as the step says, and looks at them."""
        user, level = self._user, self._levels["read"]
        arrays = list(result.to_tuple())
        if level == "by name":
            arrays = [result[port.name] for port in self._ports]
        elif level == "as tensors" and not self._form.has_state:
            arrays = [user.request.get_output_tensor(i).numpy() for i in range(len(due))]
            owner = user
        elif level == "not at all":
            arrays = []
        given = [user.given.get(index) for index in range(len(due))]
        if arrays:
            exact = self._form.moves and self._levels["origin"] != "set otherwise"
            self._monitor.take(arrays, due, owner, self._feeds, exact, given, user)
        for index, one in user.given.items():
            compare_values([one], [due[index]], f"what was given for output {index}")
            require(edges_hold(one), f"The run has written beside output {index}.")

    def _go_on(self) -> None:
        """The application writes to its arrays, which no run reads any more."""
        given = self._feeds.items()
        any_of = {id(lent): lent for name, lent in given if name not in self._form.special}
        for lent in any_of.values():
            lent.change(np.zeros_like(lent.array), False, self._rng)

    # -------------------------------------------------------------------------------- ways

    def _infers(self, given: Any = None) -> None:
        user, due = self._user, self._due
        self._give(due)
        self._monitor.returned_to(user)
        inputs = self._named(self._feeds) if given is None else given
        shared = self._levels["outputs"] == "shared"
        start = time.perf_counter()
        result = user.request.infer(inputs or None, share_outputs=shared)
        wall = time.perf_counter() - start
        self._goes_on(due)
        self._monitor.count(user, user.request)
        self._read(result, due, user if shared else None)
        require_counters(user.request, self._made.names, self._made.counting, wall)

    def _infers_what_was_set(self) -> None:
        ports = {port.name: port for port in self._made.compiled.inputs}
        for name, lent in self._feeds.items():
            self._user.request.set_tensor(ports[name], lent.given)
        self._infers({})

    def _infers_five_times(self) -> None:
        for turn in range(_TIMES):
            if turn:
                for name, lent in self._feeds.items():
                    port = next(p for p in self._made.compiled.inputs if p.name == name)
                    if lent.array.dtype.hasobject or name in self._form.special:
                        continue
                    numbers = np.random.default_rng(self._rng.randrange(1 << 30))
                    sizes, values = self._sizes, self._levels["values"]
                    fresh = self._form.array(port, sizes, numbers, values, ())
                    lent.change(fresh, turn % 2 == 0, self._rng)
                self._due = self._judged(self._feeds)
            self._infers()

    def _infers_sizes_in_turn(self) -> None:
        """One request has inputs of some sizes, of others and of these again, empty ones too."""
        levels, first = self._levels, self._sizes
        for turn, level in enumerate(("as before", "none", "", "one", "vectors", "", "few")):
            if turn:
                drawn = self._inputs.sizes(level or "few", self._made, self._rng)
                self._sizes = drawn if level else first
                self._feeds = self._lend()
                self._due = self._judged(self._feeds)
            self._infers()
        self._levels = levels

    def _goes_round(self) -> None:
        """Results are the inputs of the next run, as they lie, wherever they fit."""
        for _ in range(4):
            self._infers()
            tensors = [self._user.request.get_output_tensor(port.name) for port in self._ports]
            given: dict[str, Any] = {}
            for port in self._made.compiled.inputs:
                alike = [
                    one
                    for one in tensors
                    if port.name not in self._form.special
                    and (one.dtype, one.shape) == (port.dtype, self._feeds[port.name].array.shape)
                ]
                if alike and not self._form.has_state:
                    given[port.name] = alike[0]
            copies = {name: Lent.over(one.numpy().copy()) for name, one in given.items()}
            self._feeds = {**self._feeds, **copies}
            self._due = self._judged(self._feeds)
            if given:
                self._infers({**self._named_by_name(), **given})

    def _named_by_name(self) -> dict[str, Any]:
        return {name: lent.given for name, lent in self._feeds.items()}

    def _is_called(self) -> None:
        self._monitor.returned_to(self._made)
        shared = self._levels["outputs"] == "shared"
        result = self._made.compiled(self._named(self._feeds) or None, share_outputs=shared)
        owner = self._made if shared else None
        self._monitor.take(result.to_tuple(), self._due, owner, self._feeds, self._form.moves)

    def _started(self, callback: bool = False, cancel: bool = False) -> bool:
        """Starts a run and waits for it; whether it came to its end."""
        user, due, request, token = self._user, self._due, self._user.request, object()
        called: list[object] = []
        self._give(due)
        self._monitor.returned_to(user)
        if callback:
            request.set_callback(called.append, token)
        shared = self._rng.random() < 0.5
        start = time.perf_counter()
        request.start_async(self._named(self._feeds) or None, share_inputs=shared)
        if not shared:  # it has its own copies, so that the application may go on with the arrays
            self._go_on()
        if cancel:
            request.cancel()
        try:
            request.wait()
        except InferCancelledError:
            require(cancel, "A run that nobody cancelled says that it was.")
            return False
        finally:
            if callback:
                request.set_callback(None)
        wall = time.perf_counter() - start
        self._goes_on(due)
        said = f"A callback was called {len(called)} times for one run."
        require(called == ([token] if callback else []), said)
        if self._levels["read"] == "later":
            self._go_on()
        self._read(request.results, due, user)
        require_counters(request, self._made.names, self._made.counting, wall)
        return True

    def _is_started(self) -> None:
        self._started()

    def _calls_back(self) -> None:
        self._started(callback=True)

    def _is_started_and_left_alone(self) -> None:
        """Nobody but the run itself holds its request and its model."""
        called: list[Any] = []
        done = threading.Event()
        request = self._bench.compile(self._made.proto).create_infer_request()

        def ended(token: Any) -> None:
            called.extend(array.copy() for array in token().results.to_tuple())
            done.set()

        if self._form.has_state:
            return self._infers()
        request.set_callback(ended, weakref.ref(request))
        request.start_async(self._named(self._feeds) or None)
        held, request = request, None  # type: ignore[assignment]
        gc.collect(1)
        require(done.wait(20), "A run whose model was let go does not end.")
        held.wait()
        compare_values(called, self._due, "a run whose model was let go")
        return None

    def _is_cancelled(self) -> None:
        if not self._started(cancel=True):
            self._feeds = self._lend()
            self._due = self._judged(self._feeds)
            self._infers()

    def _goes_through_a_queue(self) -> None:
        runs = [(self._feeds, self._due)]
        for _ in range(3):
            feeds = self._lend(beside=True)
            runs.append((feeds, self._judged(feeds)))
        have: dict[int, Any] = {}

        def ended(request: Any, number: Any) -> None:
            have[number] = [array.copy() for array in request.results.to_tuple()]

        queue = partita.AsyncInferQueue(self._made.compiled, self._rng.choice((0, 1, 2, 3)))
        queue.set_callback(ended)
        for number, (feeds, _) in enumerate(runs):
            queue.start_async(self._named(feeds) or None, number)
        queue.wait_all()
        require(len(have) == len(runs), f"Of {len(runs)} runs of a queue {len(have)} called back.")
        for number, (_, due) in enumerate(runs):
            compare_values(have[number], due, f"run {number + 1} of a queue")

    def _other(self) -> Any:
        """What another user does with the same model: a run, looked at."""
        both = self._rng.random() < 0.4  # read the same arrays
        feeds = self._feeds if both else self._lend(beside=True)
        due = self._due if both else self._judged(feeds)
        named, first = self._named(feeds) or None, self._rng.random() < 0.5
        other = User(self._made.compiled)
        lock, shared = threading.Lock(), seen_by_all()

        def run() -> None:
            self._monitor.look_meanwhile(shared)
            with contextlib.ExitStack() as stack:
                one = User(self._made.compiled) if first else other
                if not first:
                    stack.enter_context(lock)
                self._compare_beside(one, named, due)

        return run

    def _compare_beside(self, one: User, named: Any, due: Sequence[Array]) -> None:
        result = one.request.infer(named)
        compare_values(result.to_tuple(), due, "a run beside the step's")

    def _runs_beside_another(self) -> None:
        tasks = [self._other() for _ in range(3)]
        ends = [on_a_thread(task) for task in tasks for _ in range(2)]
        try:
            if self._rng.random() < 0.5:
                self._user = User(self._made.compiled)
            self._infers()
        finally:
            for ended in ends:
                ended()

    def _is_interrupted(self) -> None:
        device_model = self._made.compiled.device_model
        packages = packages_of(self._bench.plugin, device_model, self._user.runner)
        first, anew = self._rng.random() < 0.5, self._rng.random() < 0.3

        def task() -> None:
            if anew:
                compiled = self._bench.compile(self._made.proto)
                self._made = replace(self._made, compiled=compiled, counting=False, users=[])
            if first or anew:
                self._user = User(self._made.compiled)
            self._infers()

        at_a_moment(task, self._other(), packages, self._rng)
