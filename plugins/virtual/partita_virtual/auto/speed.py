"""How fast devices compute a model: measured in turns, on the same inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from partita.contract.device_model import DeviceModel, new_runner, requests_at_once
from partita.contract.runner import Runner
from partita.errors import PLUGIN_FAILURES
from partita.model.model import Model
from partita.model.synthetic_inputs import synthetic_inputs
from partita.system.threads import joint_work
from partita.tensors.tensor import HostTensor, Tensor

clock: Callable[[], float] = time.perf_counter
"""Tells seconds."""

ROUNDS = 5
"""How often each device is measured, at most."""

SECONDS = 1.0
"""After so many seconds no further round begins."""

NEAR = 1.1
"""Devices that take at most so many times as long as the fastest count as equal to it."""


def inputs_of(model: Model, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Made-up inputs of a model.

    Args:
        model: The model.
        shapes: Of its inputs.

    Raises:
        InputError: An input is no tensor.
    """
    fixed = model.clone().reshape(dict(enumerate(shapes)))
    made = synthetic_inputs(fixed, np.random.default_rng(0))
    return [HostTensor(made[port.name]) for port in fixed.inputs]


def seconds_per_request(
    contenders: Mapping[str, DeviceModel], inputs: Sequence[Tensor], at_once: bool
) -> tuple[dict[str, float], dict[str, BaseException]]:
    """Measures devices in turns, the first run of each not counted.

    Args:
        contenders: Device to the model on it.
        inputs: What all of them compute.
        at_once: Whether as many requests run at a time as a device likes best.

    Returns:
        Device to the least time of a request, and device to the error of those that failed.
    """
    counts = {device: requests_at_once(one) if at_once else 1 for device, one in contenders.items()}
    least: dict[str, float] = {}
    failed: dict[str, BaseException] = {}
    runners: dict[str, list[Runner]] = {}
    with joint_work.workers(max(counts.values())) as pool:
        begin = clock()
        for round_number in range(ROUNDS + 1):
            for device, one in contenders.items():
                if device in failed:
                    continue
                try:
                    if device not in runners:
                        runners[device] = [new_runner(one) for _ in range(counts[device])]
                    start = clock()
                    for done in [pool.submit(r.run, inputs) for r in runners[device]]:
                        done.result()
                    seconds = (clock() - start) / counts[device]
                except PLUGIN_FAILURES as error:  # whatever a broken device raises
                    failed[device] = error
                    least.pop(device, None)
                    continue
                if round_number:
                    least[device] = min(seconds, least.get(device, seconds))
            if round_number and clock() - begin > SECONDS:
                break
    for several in runners.values():
        for runner in several:
            runner.close()
    return least, failed


def best(seconds: Mapping[str, float]) -> str:
    """The first device that is about as fast as the fastest.

    Example:
        >>> best({"A": 1.05, "B": 1.0, "C": 5.0})
        'A'
    """
    enough = NEAR * min(seconds.values())
    return next(device for device, taken in seconds.items() if taken <= enough)
