"""Which device a request of MULTI gets: one that is free, or the first to become it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from partita.contract.device_model import DeviceModel
from partita.errors import InferCancelledError, in_words

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
        running: How many do now.
        served: How many have ended well.
    """

    def __init__(self, device: str, compiled: DeviceModel, capacity: int) -> None:
        self.device, self.compiled, self.capacity = device, compiled, capacity
        self.running = self.served = 0


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
        self._changed = threading.Condition()
        self._notes: list[str] = []

    @property
    def present(self) -> tuple[PooledDevice, ...]:
        """Those that get requests."""
        with self._changed:
            return tuple(self._devices)

    @property
    def notes(self) -> tuple[str, ...]:
        """Why others get none any more."""
        with self._changed:
            return tuple(self._notes)

    def acquire(
        self, without: Collection[str], is_cancelled: Callable[[], bool]
    ) -> PooledDevice | None:
        """Takes room on a device, and waits for it if need be.

        Args:
            without: Devices that are not to be had.
            is_cancelled: Whether to give up.

        Returns:
            The device; ``None`` if none is left.

        Raises:
            InferCancelledError: The request was cancelled before there was room.
        """
        with self._changed:
            while True:
                if is_cancelled():
                    raise InferCancelledError("The request was cancelled before it began.")
                in_turn = self._devices[self._turn :] + self._devices[: self._turn]
                able = [member for member in in_turn if member.device not in without]
                if not able:
                    return None
                free = [member for member in able if member.running < member.capacity]
                if free:
                    break
                self._changed.wait()
            member = free[0]
            member.running += 1
            if self._by_turns:
                self._turn = (self._devices.index(member) + 1) % len(self._devices)
            return member

    def release(self, member: PooledDevice, is_served: bool) -> None:
        """Gives room back."""
        with self._changed:
            member.running -= 1
            member.served += is_served
            self._changed.notify_all()

    def wake(self) -> None:
        """Lets requests that wait look again whether they are cancelled."""
        with self._changed:
            self._changed.notify_all()

    def retire(self, failures: Mapping[str, BaseException], other: str) -> None:
        """Gives devices nothing more: they failed on what another one computed. One stays.

        Args:
            failures: Device to its error.
            other: The device that did not fail.
        """
        with self._changed:
            for device, error in failures.items():
                rest = [member for member in self._devices if member.device != device]
                if rest and len(rest) < len(self._devices):
                    self._devices, self._turn = rest, 0
                    cause = in_words(error)
                    self._notes.append(f"{device} gets no more requests: {cause} ({other} ran it)")
                    _log.warning("%s", self._notes[-1])
            self._changed.notify_all()
