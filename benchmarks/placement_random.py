"""Random placement problems of any size, alike each time: a model of branches with skips."""

from __future__ import annotations

import random

from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST, Cost, Device, Link, Task, Value


def random_problem(
    count: int, devices: int = 2, seed: int = 1, limited: bool = False, launch_us: float = 0.0
) -> Problem:
    """A problem whose first device works in host memory and whose others are faster at some ops.

    Args:
        count: Number of operations.
        devices: Number of devices.
        seed: Of the random numbers.
        limited: Whether the other devices hold only part of the weights.
        launch_us: Launch cost of each of the other devices.
    """
    rng = random.Random(seed)
    tasks, readers = [], [set() for _ in range(count)]
    for index in range(count):
        host = rng.lognormvariate(3, 1)
        others = [
            Cost(None if rng.random() < 0.05 else host * rng.lognormvariate(-0.7, 0.8))
            for _ in range(devices - 1)
        ]
        tasks.append(Task(f"t{index}", (Cost(host), *others), weight_bytes=rng.randrange(10**6)))
        for _ in range(rng.choice((1, 1, 1, 2))):
            if index:
                near = rng.random() < 0.9
                readers[rng.randrange(max(0, index - 6) if near else 0, index)].add(index)
    values = [Value("x", None, (0,), 600_000)]
    for index, who in enumerate(readers):
        nbytes = int(rng.lognormvariate(11, 1.2))
        values.append(Value(f"v{index}", index, tuple(sorted(who)), nbytes, not who))
    weights = sum(task.weight_bytes for task in tasks)
    room = int(weights / (devices + 1)) if limited else None
    machines = [Device("CPU", host_memory=True)]
    links = []
    for index in range(1, devices):
        machines.append(Device(f"GPU.{index}", room, launch_us))
        links += [Link(HOST, index, 5, 12_000), Link(index, HOST, 5, 12_000)]
    return Problem(
        tuple(machines), tuple(tasks), tuple(values), tuple(links), name=f"random {count}"
    )
