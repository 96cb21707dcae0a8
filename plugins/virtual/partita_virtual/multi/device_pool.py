"""Which device a request of MULTI gets: one that is free, or the first to become it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from partita.contract.device_model import DeviceModel
from partita.errors import InferCancelledError, in_words
from partita.system.living import Living
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.system.threads.sleepers import Sleepers

_log = logging.getLogger("partita.multi")


class PooledDevice:
    """A device with room for so many requests at a time.

    Args:
        device: Its name.
        compiled: The model on it.
        capacity: How many requests run there at the same time.

    Attributes:
        device: Its name.
        compiled: The model on it.
        capacity: How many requests run there at the same time.
        users: The requests that do now.
        served: How many have ended well.
    """

    def __init__(self, device: str, compiled: DeviceModel, capacity: int) -> None:
        self.device, self.compiled, self.capacity = device, compiled, capacity
        self.users: set[object] = set()
        self.served = 0


class DevicePool:
    """The devices of one model, shared by its requests.

    Args:
        devices: In order of priority.
        by_turns: Whether devices take turns; otherwise the first free one gets a request.
    """

    def __init__(self, devices: Sequence[PooledDevice], by_turns: bool) -> None:
        self._devices = list(devices)
        self._by_turns = by_turns
        self._turn = 0
        self._lock = InterruptSafeLock()
        self._waiting = Sleepers()
        self._notes: list[str] = []
        _all.add(self)

    def begin_anew(self) -> None:
        """Forgets all requests that run, as a child process has to: their threads are not here."""
        for member in self._devices:
            member.users.clear()

    @property
    def present(self) -> tuple[PooledDevice, ...]:
        """Those that get requests."""
        with self._lock:
            return tuple(self._devices)

    @property
    def notes(self) -> tuple[str, ...]:
        """Why others get none any more."""
        with self._lock:
            return tuple(self._notes)

    def acquire(
        self, user: object, without: Collection[str], is_cancelled: Callable[[], bool]
    ) -> PooledDevice | None:
        """Takes room on a device, and waits for it if need be.

        Args:
            user: Who takes it, for one run; Ctrl-C may come when he has it, before he knows.
            without: Devices that are not to be had.
            is_cancelled: Whether to give up.

        Returns:
            The device; ``None`` if none is left.

        Raises:
            InferCancelledError: The request was cancelled before there was room.
        """
        while True:
            if is_cancelled():
                raise InferCancelledError("The request was cancelled before it began.")
            with self._lock:
                able = self._able(without)
                if not able:
                    return None
                member = next(filter(_has_room, able), None)
                if member is not None:
                    member.users.add(user)
                    if self._by_turns:
                        self._turn = (self._devices.index(member) + 1) % len(self._devices)
                    return member
            self._waiting.wait(lambda: is_cancelled() or self._may_answer(without))

    def _able(self, without: Collection[str]) -> list[PooledDevice]:
        """The devices that are to be had, in the order in which they are."""
        in_turn = self._devices[self._turn :] + self._devices[: self._turn]
        return [member for member in in_turn if member.device not in without]

    def _may_answer(self, without: Collection[str]) -> bool:
        """Whether there is room, or no device left to wait for."""
        able = self._able(without)
        return not able or any(map(_has_room, able))

    def release(self, user: object, member: PooledDevice, is_served: bool) -> None:
        """Gives room back."""
        with self._lock:
            member.served += is_served
            member.users.discard(user)
        self._waiting.wake()

    def leave(self, user: object) -> None:
        """Gives back whatever room is still a user's, after Ctrl-C."""
        with self._lock:
            for member in self._devices:
                member.users.discard(user)
        self._waiting.wake()

    def wake(self) -> None:
        """Lets requests that wait look again whether they are cancelled."""
        self._waiting.wake()

    def retire(self, failures: Mapping[str, BaseException], other: str) -> None:
        """Gives devices nothing more: they failed on what another one computed. One stays.

        Args:
            failures: Device to its error.
            other: The device that did not fail.
        """
        with self._lock:
            for device, error in failures.items():
                rest = [member for member in self._devices if member.device != device]
                if rest and len(rest) < len(self._devices):
                    self._devices, self._turn = rest, 0
                    cause = in_words(error)
                    self._notes.append(f"{device} gets no more requests: {cause} ({other} ran it)")
                    _log.warning("%s", self._notes[-1])
        self._waiting.wake()


def _has_room(member: PooledDevice) -> bool:
    return len(member.users) < member.capacity


_all = Living(in_child=DevicePool.begin_anew)
