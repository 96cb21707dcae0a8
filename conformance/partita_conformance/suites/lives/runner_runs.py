"""The ways in which a step of a life runs a runner without a request."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import partita
from partita.errors import BoundCallEndedError, InferError
from partita_conformance.judging.requirements import require
from partita_conformance.suites.lives.lending import Lent, edges_hold, target
from partita_conformance.suites.lives.made import Bound
from partita_conformance.suites.lives.monitor import compare_values
from partita_conformance.suites.lives.runs import Run
from partita_conformance.suites.resources.meeting import at_a_moment, packages_of

OF_RUNNERS = frozenset(
    (
        *("runs", "runs into outputs", "runs on what was brought"),
        *("is bound", "is bound and rebound", "is stopped midway"),
    )
)
"""The levels of dimension ``way`` that are made so."""


class RunnerRun(Run):
    """One run of a runner."""

    plain = True
    _given: Sequence[Any] | None = None

    def _tensors(self, feeds: Mapping[str, Lent]) -> list[partita.Tensor]:
        return [partita.HostTensor(feeds[p.name].array) for p in self._made.compiled.inputs]

    def _runs(self, outputs: Sequence[Any] | None = None) -> None:
        user, feeds = self._user, self._feeds
        self._monitor.returned_to(user)
        self._monitor.written_again([o and o[0] for o in outputs or ()])
        before = [sys.getrefcount(lent.array) for lent in feeds.values()]
        given = None if outputs is None else [o and partita.HostTensor(o[0]) for o in outputs]
        results = user.runner.run(self._tensors(feeds), given)
        if self._levels["read"] == "later":
            self._go_on()
        arrays = [tensor.numpy() for tensor in results]
        places = [o and o[0] for o in outputs or ()]
        self._monitor.take(arrays, self._due, user, feeds, self._form.moves, places)
        del given, results
        after = [sys.getrefcount(lent.array) for lent in feeds.values()]
        more = [name for name, a, b in zip(feeds, before, after, strict=True) if b > a]
        require(not more, f"The runner keeps the arrays of {more} behind the run.")

    def _runs_into_outputs(self) -> None:
        """Runs into tensors that are given, and into the same ones if it is to be done again."""
        offset = self._rng.choice((0, 0, 1, 3))
        given = zip(self._given or (), self._due, strict=False)
        # Inputs are others by now: they decide the shape, or are what the last run has returned.
        read = [lent.array for lent in self._feeds.values()]
        if any(
            one is not None
            and (one[0].shape != due.shape or any(np.shares_memory(one[0], x) for x in read))
            for one, due in given
        ):
            self._given = None
        self._given = self._given or [
            (target(due, offset),)
            if self._rng.random() < 0.7 and self._ports[i].dtype is not None
            else None
            for i, due in enumerate(self._due)
        ]
        self._runs(self._given)

    def _is_stopped_midway(self) -> None:
        """A run is to stop at some line of it; whatever it does then, the next ones are right."""
        user, device_model = self._user, self._made.compiled.device_model
        packages = packages_of(self._bench.plugin, device_model, user.runner)
        self._monitor.returned_to(user)

        def run() -> None:
            with contextlib.suppress(InferError):
                user.runner.run(self._tensors(self._feeds))

        at_a_moment(run, user.runner.cancel, packages, self._rng)
        self._feeds = self._lend()
        self._due = self._judged(self._feeds)
        self._runs()

    def _runs_on_what_was_brought(self) -> None:
        """The device brings inputs to its memory, and the application writes to them again."""
        user, plugin, device_id = self._user, self._bench.plugin, self._bench.device_id
        if any(port.dtype is None for port in self._made.compiled.inputs):
            return self._runs()
        self._monitor.returned_to(user)
        tensors = [plugin.transfer_to(one, device_id) for one in self._tensors(self._feeds)]
        apart = all(
            one.memory != "host" or not np.may_share_memory(one.numpy(), lent.array)
            for one, lent in zip(tensors, self._feeds.values(), strict=True)
        )
        if apart:
            self._go_on()
        for _ in range(2):
            arrays = [tensor.numpy() for tensor in user.runner.run(tensors)]
            compare_values(arrays, self._due, "a run on tensors that were brought")
        return None

    def _is_bound(self, again: bool = False) -> None:
        user, device_model = self._user, self._made.compiled.device_model
        if any(port.dtype is None for port in (*self._made.compiled.inputs, *self._ports)):
            return self._runs()
        self._runs()
        self._monitor.returned_to(user)
        outputs = [target(due, self._rng.choice((0, 0, 1))) for due in self._due]
        scratch = np.full(device_model.scratch_bytes, 0x7F, np.uint8)
        tensors = [partita.HostTensor(one) for one in outputs]
        call = user.runner.bind(self._tensors(self._feeds), tensors, scratch)
        if call is None:
            return None
        user.bound = [*user.bound[-2:], Bound(call, self._feeds, outputs)]
        for turn in range(3):
            bound = user.bound[-1] if turn < 2 else self._rng.choice(user.bound)
            scratch[...] = self._rng.choice((0, 0xFF))
            if again and turn == 1:
                feeds = self._lend()
                if call.rebind(self._tensors(feeds)):
                    bound.inputs = feeds
            self._call(bound, turn)
        return None

    def _is_bound_and_rebound(self) -> None:
        self._is_bound(again=True)

    def _call(self, bound: Bound, turn: int) -> None:
        """Makes a bound call on other elements."""
        for name, lent in bound.inputs.items():
            if turn and name not in self._form.special:
                port = next(p for p in self._made.compiled.inputs if p.name == name)
                sizes = dict(zip(map(str, port.shape or ()), lent.array.shape, strict=True))
                numbers = np.random.default_rng(self._rng.randrange(1 << 30))
                fresh = self._form.array(port, sizes, numbers, "usual", ())
                lent.change(fresh, turn == 2, self._rng)
        due = self._judged(bound.inputs)
        for one in bound.outputs:
            if not one.dtype.hasobject:
                one.reshape(-1).view(np.uint8)[...] = 1
        try:
            bound.call()
        except BoundCallEndedError:
            self._user.bound = [one for one in self._user.bound if one is not bound]
            return
        compare_values(bound.outputs, due, "the outputs of a bound call")
        held = all(edges_hold(one) for one in bound.outputs)
        require(held, "A bound call has written beside an output.")
