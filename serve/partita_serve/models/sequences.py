"""Sequences: requests of one client that share the model's state, and run in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from partita_serve.models.batching import Batcher
from partita_serve.models.instance import Job, Outputs
from partita_serve.protocol.errors import InvalidRequest, Overloaded, ServingError
from partita_serve.protocol.records import Parameters

SequenceId = int | str


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """Which part of a sequence a request is.

    Attributes:
        id: The sequence.
        start: Whether it begins here.
        end: Whether it ends here.
    """

    id: SequenceId
    start: bool
    end: bool

    @classmethod
    def of(cls, parameters: Parameters) -> SequenceStep | None:
        """What the parameters of a request say; ``None`` if it belongs to no sequence.

        Raises:
            InvalidRequest: They cannot be.
        """
        name = parameters.get("sequence_id", 0)
        if isinstance(name, (bool, float)):
            raise InvalidRequest(
                f"Parameter 'sequence_id' is {name!r}; give a whole number or a text."
            )
        flags = {key: parameters.get(key, False) for key in ("sequence_start", "sequence_end")}
        for key, flag in flags.items():
            if not isinstance(flag, bool | int):
                raise InvalidRequest(f"Parameter '{key}' is {flag!r}; give true or false.")
        if not name:  # 0 and "" stand for none
            return None
        return cls(name, *map(bool, flags.values()))


@dataclass(slots=True, eq=False)
class _Sequence:
    """An open sequence.

    Attributes:
        batcher: Runs its requests.
        running: How many of them there are.
        begun: Whether one was answered.
        ends: Whether it is over once all are.
        timer: Ends it when it is idle.
    """

    batcher: Batcher
    running: int = 0
    begun: bool = False
    ends: bool = False
    timer: asyncio.TimerHandle | None = None


class Sequences:
    """The open sequences of a model. Each has an infer request, and by that a state, of its own.

    Args:
        model: The model's name, for messages.
        make: Makes what runs the requests of one sequence.
        most: How many may be open.
        idle_s: After so many seconds without a request a sequence is ended.
    """

    def __init__(self, model: str, make: Callable[[], Batcher], most: int, idle_s: float) -> None:
        self._model = model
        self._make = make
        self._most = most
        self._idle_s = idle_s
        self._open: dict[SequenceId, _Sequence] = {}
        self._spare: list[Batcher] = []
        self._ending = False  # all of them
        self.all_ended = asyncio.Event()
        self.all_ended.set()

    def holds(self, name: SequenceId) -> bool:
        """Whether a sequence is open."""
        return name in self._open

    async def run(self, step: SequenceStep, job: Job) -> Outputs:
        """The outputs of a request that is part of a sequence.

        Raises:
            InvalidRequest: The sequence has not begun.
            Overloaded: Too many are open, or too many requests wait.
            ServingError: The device failed, or its turn did not come in time.

        After an error the sequence is as it was before: one that was to begin has not, one that was
        to end is open.
        """
        sequence = self._begun(step) if step.start else self._open.get(step.id)
        if sequence is None or (sequence.ends and not step.start):
            raise InvalidRequest(
                f"Model '{self._model}' has no sequence {step.id!r}: it has ended, was idle for "
                f"{self._idle_s:g} s or never began; begin it with 'sequence_start'."
            )
        job.resets = step.start
        sequence.ends = step.end
        sequence.running += 1
        if sequence.timer is not None:
            sequence.timer.cancel()
        try:
            outputs = await sequence.batcher.run(job)
            sequence.begun = True
            return outputs
        except ServingError:
            if step.end:
                sequence.ends = self._ending
            raise
        finally:
            sequence.running -= 1
            if not sequence.running:
                self._rest(step.id, sequence)

    def end_all(self) -> None:
        """Ends every sequence, once the requests that it has are answered."""
        self._ending = True
        for name, sequence in list(self._open.items()):
            sequence.ends = True
            if not sequence.running:
                self._close(name)

    def _begun(self, step: SequenceStep) -> _Sequence:
        sequence = self._open.get(step.id)
        if sequence is None:
            if len(self._open) >= self._most:
                raise Overloaded(
                    f"{len(self._open)} sequences of model '{self._model}' are open, which is all "
                    "that may be (max_sequences); end one with 'sequence_end', or try again later."
                )
            sequence = _Sequence(self._spare.pop() if self._spare else self._make())
            self._open[step.id] = sequence
            self.all_ended.clear()
        return sequence

    def _rest(self, name: SequenceId, sequence: _Sequence) -> None:
        """Nothing of a sequence runs: it ends, or waits for its next request."""
        if sequence.ends or not sequence.begun:
            self._close(name)
        else:
            loop = asyncio.get_running_loop()
            sequence.timer = loop.call_later(self._idle_s, self._close, name)

    def _close(self, name: SequenceId) -> None:
        timer = self._open[name].timer
        if timer is not None:
            timer.cancel()
        batcher = self._open.pop(name).batcher
        batcher.forget()  # the next sequence is another client's
        self._spare.append(batcher)
        if not self._open:
            self.all_ended.set()
