"""Cuts of products that were measured to be the fastest, kept on disk per device and driver.

A cost model ranks the ways to cut a product. ``partita tune`` tries the first ones of a model's
products and notes the winner where it beats the model's choice. What is noted for tiles that there
are no more, or by another driver, is not used; nothing here changes what is computed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from partita.storage.cache_folder import cache_folder, read_private, write_private
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

_log = logging.getLogger(__name__)


class Named(Protocol):
    """Anything that has a name in the database."""

    @property
    def name(self) -> str:
        """Stays the same as long as the thing does."""


C = TypeVar("C", bound=Named)


class Trial:
    """Takes the choice of a certain rank for every product, and notes what it took.

    Args:
        rank: 0 for the cost model's first choice.

    Attributes:
        taken: Operation name to key and name of the choice.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.taken: dict[str, tuple[str, str]] = {}


_running: list[Trial] = []
_lock = InterruptSafeLock()


@contextlib.contextmanager
def trying(rank: int) -> Iterator[Trial]:
    """Lets all models that are compiled meanwhile try the choices of a rank."""
    trial = Trial(rank)
    with _lock:
        _running.append(trial)
    try:
        yield trial
    finally:
        with _lock:
            _running.remove(trial)


def is_trying() -> bool:
    """Whether choices of a certain rank are tried now."""
    with _lock:
        return bool(_running)


def choose(device: str, operation: str, key: str, ranked: Sequence[C]) -> C:
    """The choice for a product.

    Args:
        device: Identity of device and driver.
        operation: The operation's name.
        key: What the choice depends on.
        ranked: All choices, the cost model's favourite first.
    """
    with _lock:
        trial = _running[-1] if _running else None
    if trial is not None:
        choice = ranked[min(trial.rank, len(ranked) - 1)]
        trial.taken[operation] = key, choice.name
        return choice
    return named(measured(device, key), ranked)


def measured(device: str, key: str) -> str | None:
    """The name of the choice that was measured for a product; ``None`` if none was."""
    return load_database(device).get(key)


def named(name: str | None, ranked: Sequence[C]) -> C:
    """The choice of a name, or the cost model's favourite if none has it any more."""
    if name is None:
        return ranked[0]  # to write the names of all takes longer than to rank them
    return next((choice for choice in ranked if choice.name == name), ranked[0])


def keep(device: str, found: Mapping[str, str]) -> Path | None:
    """Adds choices to the device's database; where it is, or ``None`` if none is kept."""
    path = _path(device)
    if path is None:
        return None
    content = {"device": device, "choices": {**load_database(device), **found}}
    write_private(path, json.dumps(content, indent=1, sort_keys=True).encode())
    load_database.cache_clear()
    return path


def _path(device: str) -> Path | None:
    folder = cache_folder("opencl-tuning")
    digest = hashlib.sha256(device.encode()).hexdigest()[:32]
    return None if folder is None else folder / f"{digest}.json"


@functools.cache
def load_database(device: str) -> Mapping[str, str]:
    """The choices that were measured on a device; none if there is no file or it is damaged."""
    path = _path(device)
    try:
        known = None if path is None else read_private(path)
        content = {} if known is None else json.loads(known)
        choices = content.get("choices", {})
        return {str(key): str(name) for key, name in choices.items()}
    except (ValueError, AttributeError) as error:
        _log.warning("The measured choices in '%s' cannot be read: %s", path, error)
        return {}
