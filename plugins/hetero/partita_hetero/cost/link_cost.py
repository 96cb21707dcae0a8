"""Transfer cost of a device: latency and time per byte, to the device and back."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.contract.core_api import CoreAPI
from partita.tensors.tensor import HOST, HostTensor, Tensor
from partita_hetero.cost.database import Database, LinkCost
from partita_hetero.cost.machine_load import LoadWatch, MachineLoad
from partita_hetero.cost.timing import Effort, median_of

SIZES = (4 << 10, 64 << 10, 1 << 20, 8 << 20)
"""Bytes of the tensors that are sent."""

EFFORT = Effort(warm=2, least=3, most=9, seconds=0.05)


def works_on_host(core: CoreAPI, device: str) -> bool:
    """Whether a device's tensors are ordinary host memory.

    Args:
        core: The Core that knows the device.
        device: Its name.
    """
    return core.device_info(device).memory == HOST


class BothWays(NamedTuple):
    """The links between the host and a device.

    Attributes:
        there: From the host.
        back: To the host.
    """

    there: LinkCost
    back: LinkCost

    @property
    def busy(self) -> float:
        """The share of the processors that others used while they were measured."""
        return max(self.there.busy, self.back.busy)


def link_costs(
    core: CoreAPI, device: str, key: str, database: Database, load: MachineLoad
) -> BothWays:
    """From the host to a device and back, measured unless the database knows.

    Args:
        core: Moves the tensors, as HETERO's Permute steps do.
        device: A device with a memory of its own.
        key: Its key in the database.
        database: Where costs are kept.
        load: How busy the machine is.
    """
    there, back = database.link(HOST, key), database.link(key, HOST)
    known = None if there is None or back is None else BothWays(there, back)
    found = load.best(known, lambda: _measured(core, device, key))
    if found is not known:
        for link in found:
            database.add_link(link)
    return found


def _measured(core: CoreAPI, device: str, key: str) -> BothWays:
    watch = LoadWatch()
    up, down = [], []
    for nbytes in SIZES:
        tensor = HostTensor(_block(core, device, nbytes))
        on_device = core.transfer_to(device, tensor)
        down.append(median_of(functools.partial(on_device.copy_to, tensor), EFFORT)[0])
        both = median_of(functools.partial(_there_and_back, core, device, tensor), EFFORT)[0]
        up.append(max(0.0, both - down[-1]))  # an upload may go on after the call
    busy = watch.share()
    return BothWays(
        LinkCost(HOST, key, *fit(SIZES, up), busy), LinkCost(key, HOST, *fit(SIZES, down), busy)
    )


def direct_cost(
    core: CoreAPI,
    source: str,
    target: str,
    keys: tuple[str, str],
    database: Database,
    load: MachineLoad,
) -> LinkCost:
    """From a device to another one that reads its memory itself, measured unless it is known.

    Where both have one memory there is nothing to move; the nodes of a cluster bring a tensor to
    the one that reads it, which takes time whoever does it.

    Args:
        core: Moves the tensors.
        source: A device with a memory of its own.
        target: A device that can share it.
        keys: Theirs in the database.
        database: Where costs are kept.
        load: How busy the machine is.
    """
    known = database.link(*keys)
    found = load.best(known, lambda: _measured_between(core, source, target, keys))
    if found is not known:
        database.add_link(found)
    return found


def _measured_between(core: CoreAPI, source: str, target: str, keys: tuple[str, str]) -> LinkCost:
    watch, seconds = LoadWatch(), []
    for nbytes in SIZES:
        tensor = HostTensor(_block(core, source, nbytes))
        first = median_of(functools.partial(core.transfer_to, source, tensor), EFFORT)[0]
        on_from_there = functools.partial(_there_and_on, core, source, target, tensor)
        both = median_of(on_from_there, EFFORT)[0]
        seconds.append(max(0.0, both - first))
    return LinkCost(*keys, *fit(SIZES, seconds), watch.share())


def _block(core: CoreAPI, device: str, nbytes: int) -> np.ndarray[Any, Any]:
    """Memory such as requests have for what crosses: the device's own kind, if it has one."""
    block = core.host_memory(device, nbytes)
    return np.zeros(nbytes, np.uint8) if block is None else block[:nbytes]


def _there_and_back(core: CoreAPI, device: str, tensor: Tensor) -> None:
    core.transfer_to(device, tensor).copy_to(tensor)


def _there_and_on(core: CoreAPI, first: str, second: str, tensor: Tensor) -> None:
    core.transfer_to(second, core.transfer_to(first, tensor))


def fit(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Latency and seconds per byte, by least squares of the relative errors; neither is negative.

    Example:
        >>> latency, per_byte = fit([0, 1000, 2000], [5.0, 7.0, 9.0])
        >>> round(latency, 9), round(per_byte, 9)
        (5.0, 0.002)
    """
    size, time = np.array(sizes, float), np.array(seconds, float)
    weight = 1 / np.maximum(time, max(1e-7, float(time.max()) * 1e-6))
    columns = np.stack([np.ones_like(size), size], axis=1) * weight[:, None]
    latency, per_byte = np.linalg.lstsq(columns, time * weight, rcond=None)[0]
    if latency < 0:
        latency, per_byte = 0.0, _slope(size * weight, time * weight)
    elif per_byte < 0:
        latency, per_byte = _slope(weight, time * weight), 0.0
    return float(latency), float(per_byte)


def _slope(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    total = float(x @ x)
    return max(0.0, float(x @ y) / total) if total > 0 and math.isfinite(total) else 0.0
