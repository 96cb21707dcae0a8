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
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from partita_opencl.programs import cache_folder

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
_lock = threading.Lock()


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


def choose(device: str, operation: str, key: str, ranked: Sequence[C]) -> C:
    """The choice for a product.

    Args:
        device: Identity of device and driver.
        operation: The operation's name.
        key: What the choice hangs on.
        ranked: All choices, the cost model's favourite first.
    """
    with _lock:
        trial = _running[-1] if _running else None
    if trial is not None:
        choice = ranked[min(trial.rank, len(ranked) - 1)]
        trial.taken[operation] = key, choice.name
        return choice
    name = _load(device).get(key)
    return next((choice for choice in ranked if choice.name == name), ranked[0])


def keep(device: str, found: Mapping[str, str]) -> Path | None:
    """Adds choices to the device's database; where it is, or ``None`` if none is kept."""
    path = _path(device)
    if path is None:
        return None
    content = {"device": device, "choices": {**_load(device), **found}}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        json.dump(content, file, indent=1, sort_keys=True)
    Path(file.name).replace(path)
    _load.cache_clear()
    return path


def _path(device: str) -> Path | None:
    folder = cache_folder()
    digest = hashlib.sha256(device.encode()).hexdigest()[:32]
    return None if folder is None else folder.with_name("opencl-tuning") / f"{digest}.json"


@functools.cache
def _load(device: str) -> Mapping[str, str]:
    path = _path(device)
    try:
        content = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
        choices = content.get("choices", {})
        return {str(key): str(name) for key, name in choices.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        _log.warning("The measured choices in '%s' cannot be read: %s", path, error)
        return {}
