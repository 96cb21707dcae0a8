"""Which device AUTO's requests run on: the first that is ready, then the best, then what is left.

Once made, a selection is an object that never changes; requests look for a new one before each run.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partita.contract.device_model import DeviceModel
from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.errors import PLUGIN_FAILURES, in_words
from partita.model.model import Model, is_static
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.system.threads.task_threads import TaskThreads
from partita_virtual.auto import speed
from partita_virtual.auto.candidates import Candidates
from partita_virtual.members import unsupported_by_all
from partita_virtual.properties import AutoProperties

_log = logging.getLogger("partita.auto")

threads = TaskThreads("partita-auto", 4)
"""They compile and measure while requests run."""

Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class SelectedDevice:
    """A device, and the model on it.

    Attributes:
        device: Its name, as devices are compiled for.
        compiled: The model on it.
        reason: Why it is this one.
    """

    device: str
    compiled: DeviceModel
    reason: Reason


class DeviceSelector:
    """What the requests of one model share.

    Args:
        model: The model.
        candidates: The devices.
        properties: What counts.
        state: What an earlier compile left.

    Attributes:
        present: Where requests run from now on.
        refused: Answers of devices that do not take the model as a whole.

    Raises:
        UnsupportedOpError: No device takes the model.
        OperandError: Nor could any, since what an operation reads does not fit it.
    """

    def __init__(
        self,
        model: Model,
        candidates: Candidates,
        properties: AutoProperties,
        state: Mapping[str, Any],
    ) -> None:
        self._model, self._candidates, self._properties = model, candidates, properties
        self._state = dict(state)
        self._lock = InterruptSafeLock()
        self._compiling = InterruptSafeLock()
        self._notes: list[str] = []
        self._causes: dict[str, BaseException] = {}
        self._failed: set[str] = set()
        self._spares: dict[str, DeviceModel] = {}
        self._contenders: dict[str, DeviceModel] = {}
        self.refused: dict[str, QueryResult] = {}
        ports = model.inputs
        fixed = [port.shape for port in ports if is_static(port.shape)]
        self._shapes: Shapes | None = fixed if len(fixed) == len(ports) else None
        self.present = self._first()
        self._rivals = self._better_than(self.present.device)
        if not self._rivals:
            return
        if properties.ENABLE_STARTUP_FALLBACK:
            self._later(self._compile_rivals)
        else:
            self._compile_rivals()

    # ----------------------------------------------------------------- the first choice

    def _first(self) -> SelectedDevice:
        """The first device that compiles the model; a CPU, if requests shall not wait."""
        first = self._candidates.starter if self._properties.ENABLE_STARTUP_FALLBACK else None
        order = [*([first] if first else []), *(d for d in self._candidates if d != first)]
        for device in order:
            compiled = self._compiled(device)
            if compiled is not None:
                return SelectedDevice(device, compiled, self._why_first(device))
        raise unsupported_by_all(self._candidates.own_name, self._model, self._causes)

    def _why_first(self, device: str) -> Reason:
        refused = [name for name in self._candidates if name in self._causes]
        if refused:
            detail = f"the first that takes the model as a whole; not {', '.join(refused)}"
            return Reason(ReasonCode.FALLBACK, detail)
        return Reason(ReasonCode.PRIORITY, f"{device} is the first of the list that is ready")

    def _compiled(self, device: str) -> DeviceModel | None:
        """The model on a device; ``None`` if it cannot, which is noted once."""
        try:
            answer = self._candidates.ask(self._model, device)
            if len(answer) < len(self._model.ops):
                self.refused[device] = answer
            answer.require_all(self._model)
            return self._candidates.compile(self._model, device, self._state)
        except PLUGIN_FAILURES as error:  # whatever a broken plugin raises
            self._causes[device] = error
            self._note(f"{device} was not chosen: {in_words(error)}")
            return None

    # ---------------------------------------------------------------- the better choice

    def _better_than(self, device: str) -> list[str]:
        """Devices that may take over from the first one."""
        names = [name for name in self._candidates if name not in self._causes]
        if self._properties.AUTO_SCHEDULE == "PRIORITY":
            return names[: names.index(device)]
        return [n for n in names if n != device and not self._candidates.is_last_resort(n)]

    def _later(self, task: Callable[..., None], *args: Any) -> None:
        """Does a task of the choice in the background, unless nobody holds the model by then.

        Models that are compiled and dropped, one after another, would leave compiles behind that
        others wait for, and the end of the process. A task that a device ends by
        ``KeyboardInterrupt`` ends the choice: Ctrl-C itself is raised on the main thread.
        """
        held, own = weakref.WeakMethod(task), weakref.ref(self)

        def call() -> None:
            found, selector = held(), own()
            if found is None or selector is None:
                return
            try:
                found(*args)
            except KeyboardInterrupt:
                selector._note(f"{selector.present.device} stays: an interrupt ended the choice")
                selector._close()

        threads.submit(call)

    @property
    def is_open(self) -> bool:
        """Whether other devices may still take over."""
        return bool(self._rivals)

    def _compile_rivals(self) -> None:
        """Compiles for other devices, and lets the best one take over."""
        by_priority = self._properties.AUTO_SCHEDULE == "PRIORITY"
        contenders: dict[str, DeviceModel] = {}
        for device in self._rivals:
            compiled = self._compiled(device)
            if compiled is None:
                continue
            if by_priority:
                why = Reason(ReasonCode.PRIORITY, f"{device} is the first of the list that can")
                self._take_over(SelectedDevice(device, compiled, why))
                return
            contenders[device] = compiled
        with self._lock:
            self._contenders = contenders
            shapes = self._shapes
            if not contenders:
                self._rivals = []
        if contenders and shapes is not None:
            self._measure(shapes)

    def look_at(self, shapes: Shapes) -> None:
        """Lets devices be measured, where the model's own shapes are not fixed.

        Args:
            shapes: Of the inputs of a request.
        """
        if self._shapes is not None:
            return
        with self._lock:
            is_first, self._shapes = self._shapes is None, shapes
            ready = bool(self._contenders)
        if is_first and ready:
            self._later(self._measure, shapes)

    def _measure(self, shapes: Shapes) -> None:
        """Lets the fastest device take over."""
        present = self.present
        everyone = {present.device: present.compiled, **self._contenders}
        contenders = {name: everyone[name] for name in self._candidates if name in everyone}
        try:
            inputs = speed.inputs_of(self._model, shapes)
            at_once = self._properties.PERFORMANCE_HINT == "THROUGHPUT"
            seconds, failed = speed.seconds_per_request(contenders, inputs, at_once)
        except PLUGIN_FAILURES as error:  # a model may refuse any input made up
            self._note(f"{present.device} stays: devices cannot be compared: {in_words(error)}")
            self._close()
            return
        for device, failure in failed.items():
            self._note(f"{device} was not chosen: {in_words(failure)}")
        if not seconds:
            self._close()
            return
        device = speed.best(seconds)
        timings = ", ".join(f"{name} {taken * 1e3:.3g} ms" for name, taken in seconds.items())
        why = Reason(ReasonCode.CHEAPER_BY, f"measured for each request: {timings}")
        self._take_over(SelectedDevice(device, contenders[device], why))

    def _take_over(self, choice: SelectedDevice) -> None:
        with self._lock:
            if choice.device not in self._failed:
                self.present = choice
        _log.info("requests run on %s: %s", choice.device, choice.reason)
        self._close()

    def _close(self) -> None:
        """Ends the choice, and drops what lost."""
        with self._lock:
            self._rivals, self._contenders = [], {}

    # ------------------------------------------------------------------ the next choice

    def fallback_for(self, failed: Collection[str]) -> SelectedDevice | None:
        """Where a request can be repeated that devices have failed on; ``None`` if nowhere."""
        with self._compiling:
            if self.present.device not in failed:
                return self.present
            for device in self._candidates:
                if device in failed or device in self._failed or device in self._causes:
                    continue
                if device not in self._spares:
                    compiled = self._compiled(device)
                    if compiled is None:
                        continue
                    self._spares[device] = compiled
                why = Reason(ReasonCode.FALLBACK, f"{', '.join(failed)} failed")
                return SelectedDevice(device, self._spares[device], why)
        return None

    def adopt(self, choice: SelectedDevice, failures: Mapping[str, BaseException]) -> None:
        """Lets requests run where one has succeeded after others had failed."""
        with self._lock:
            fresh = [device for device in failures if device not in self._failed]
            self._failed.update(fresh)
            if self.present.device in self._failed:
                self.present = choice
        for device in fresh:
            self._note(
                f"{device} failed to run, {choice.device} did not: {in_words(failures[device])}"
            )

    # --------------------------------------------------------------------------- notes

    @property
    def notes(self) -> tuple[str, ...]:
        """What went wrong, in order."""
        with self._lock:
            return tuple(self._notes)

    def _note(self, text: str) -> None:
        with self._lock:
            self._notes.append(text)
        _log.info("%s", text)
