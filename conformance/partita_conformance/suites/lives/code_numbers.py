"""Thresholds in the device's own Python code: sizes and counts at which its behaviour may change.

Where a device written in Python compares sizes with 4096, or keeps sixteen of something, these
numbers stand in its code. Drawing around them meets thresholds that no list of usual sizes has. A
device whose code is native shows none, and is tried with usual sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

import numpy as np

import partita
from partita_conformance.bench.bench import Bench
from partita_conformance.inputs.models import parse
from partita_conformance.suites.resources.meeting import packages_of

_LEAST, _MOST = 2, 1 << 24


def numbers_of_code(bench: Bench) -> list[int]:
    """Numbers that stand in the code by which a device runs a small model."""
    proto = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    if bench.refusals(proto):
        return []
    compiled = bench.compile(proto)
    device_model = compiled.device_model
    runner = device_model.create_runner()
    packages = packages_of(bench.plugin, device_model, runner)

    def use() -> None:
        one = bench.compile(proto)
        for count in (3, 4, 3):
            array = np.zeros(count, np.float32)
            one(array)
            given = [partita.HostTensor(array.copy())]
            one.device_model.create_runner().run([partita.HostTensor(array)], given)

    classes = {cls for thing in (bench.plugin, device_model, runner) for cls in type(thing).__mro__}
    return numbers_in(use, packages, classes)


def _code_run(task: Callable[[], object], packages: frozenset[str]) -> dict[CodeType, FrameType]:
    """The code of some packages that a task runs on this thread, with a frame of each."""
    found: dict[CodeType, FrameType] = {}

    def enter(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code not in found:
            name = frame.f_globals.get("__name__", "")
            if name.partition(".")[0] in packages:
                found[frame.f_code] = frame

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        task()
    finally:
        sys.setprofile(before)
    return found


def numbers_in(
    task: Callable[[], object], packages: frozenset[str], classes: Iterable[type]
) -> list[int]:
    """Whole numbers that some code may compare sizes and counts with, in order.

    Args:
        task: Runs the code.
        packages: Whose code counts.
        classes: Their attributes count, too.
    """
    found: set[int] = set()
    for code, frame in _code_run(task, packages).items():
        found |= set(_within(code.co_consts))
        found |= set(_within([frame.f_globals.get(name) for name in code.co_names]))
    for cls in classes:
        if cls.__module__.partition(".")[0] in packages:
            found |= set(_within(vars(cls).values()))
    return sorted(found)


def _within(values: Iterable[object]) -> Iterator[int]:
    for value in values:
        if isinstance(value, (tuple, frozenset)):
            yield from _within(value)
        elif type(value) in (int, float) and _LEAST <= value <= _MOST:  # type: ignore[operator]  # numbers
            yield int(value)  # type: ignore[call-overload]
