"""Groups of interchangeable devices: which of them gets a task makes no difference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita_hetero.planner.arrays.problem_arrays import Arrays


@dataclass(frozen=True)
class Kind:
    """Devices that cannot be told apart by costs, limits and links.

    Attributes:
        devices: Their indices.
        reusable: Whether they take any number of subgraphs, since they run tasks by themselves.
    """

    devices: tuple[int, ...]
    reusable: bool


def kinds(arrays: Arrays) -> list[Kind]:
    """Groups the devices, in order of the first of each kind."""
    found: list[list[int]] = []
    for device in range(len(arrays.slots)):
        for alike in found:
            if _alike(arrays, alike[0], device):
                alike.append(device)
                break
        else:
            found.append([device])
    return [Kind(tuple(alike), bool(arrays.per_task[alike[0]])) for alike in found]


def _alike(arrays: Arrays, one: int, other: int) -> bool:
    swapped = np.arange(len(arrays.slots))
    swapped[[one, other]] = other, one
    by_device = (arrays.limit, arrays.launch, arrays.slots, arrays.on_host, arrays.per_task)
    by_column = (arrays.unit_cost, arrays.penalty, arrays.up, arrays.down)
    return (
        all(array[one] == array[other] for array in by_device)
        and all(np.array_equal(array[:, one], array[:, other]) for array in by_column)
        and np.array_equal(arrays.is_direct, arrays.is_direct[np.ix_(swapped, swapped)])
        and np.array_equal(arrays.direct, arrays.direct[:, swapped][:, :, swapped])
    )
