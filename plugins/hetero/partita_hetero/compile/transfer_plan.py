"""The transfer plan: the list of steps that a request runs, every copy and permute among them."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from partita.contract.explanation import Boundary
from partita.tensors.layout import MemoryLayout
from partita.tensors.tensor import HOST
from partita_hetero.partition.submodels import Submodel


class PermuteKind(enum.StrEnum):
    """What a Permute step does."""

    DOWNLOAD = "download"
    UPLOAD = "upload"


@dataclass(frozen=True, slots=True)
class RunStep:
    """Runs one submodel.

    Attributes:
        submodel: Its number.
        reads: Slots of its inputs.
        writes: Slots of its outputs.
    """

    submodel: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PermuteStep:
    """Copies one tensor to where the next step can read it.

    Attributes:
        value: The tensor's name in the model.
        kind: From a device to the host, or from the host to a device.
        device: The one that is not the host.
        reads: The one slot that is read.
        writes: The one slot that is written.
    """

    value: str
    kind: PermuteKind
    device: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    @property
    def name(self) -> str:
        """Shown in reports."""
        arrow = (
            f"{self.device} to host"
            if self.kind is PermuteKind.DOWNLOAD
            else f"host to {self.device}"
        )
        return f"permute {self.value} ({arrow})"


Step = RunStep | PermuteStep


@dataclass(frozen=True)
class Plan:
    """What one request does.

    Attributes:
        steps: In an order in which they can run; each slot is written by one step at most.
        slots: How many slots there are; the first ones are the model's inputs.
        slot_values: Name of the value in each slot.
        outputs: For each output of the model its slot, or ``None`` if it is a constant.
        host_slots: Slots that a submodel or a download writes and that may be host memory made
            beforehand.
        boundaries: Every tensor that crosses, and how.
    """

    steps: list[Step]
    slots: int
    slot_values: list[str]
    outputs: list[int | None]
    host_slots: list[int]
    boundaries: list[Boundary]


class OwnCopies(NamedTuple):
    """Copies that the runs of submodels can make.

    Attributes:
        uploads: Slots on a device that one submodel alone reads, with what they are copied from.
        downloads: Outputs of submodels that are read by a copy alone, with what that writes.
    """

    uploads: dict[int, int]
    downloads: dict[int, int]


def own_copies(plan: Plan) -> OwnCopies:
    """Which copies runs can make.

    Runners take host tensors, and write to those that they are given: then the device copies in its
    own queue, and nobody waits for the copy alone.
    """
    readers = Counter(slot for step in plan.steps for slot in step.reads)
    readers.update(slot for slot in plan.outputs if slot is not None)
    written = {slot for step in plan.steps if isinstance(step, RunStep) for slot in step.writes}
    found = OwnCopies({}, {})
    for step in plan.steps:
        if isinstance(step, PermuteStep):
            (source,), (target,) = step.reads, step.writes
            if step.kind is PermuteKind.UPLOAD and readers[target] == 1:
                found.uploads[target] = source
            elif step.kind is PermuteKind.DOWNLOAD and readers[source] == 1 and source in written:
                found.downloads[source] = target
    return found


def plan(
    submodels: Sequence[Submodel],
    model_inputs: Sequence[str],
    model_outputs: Sequence[str],
    memory_of: Callable[[str], str],
    can_share: Callable[[str, str], bool],
    nbytes: Mapping[str, int | None],
    layouts: Mapping[str, MemoryLayout] | None = None,
    casts: Mapping[tuple[int, str], str] | None = None,
) -> Plan:
    """Decides for every edge how its tensor passes.

    A tensor in a memory that the reader shares passes as it is. Otherwise it goes to the host,
    once, however many read it, and from there to each device that cannot read host memory, once.

    Args:
        submodels: In the order in which they run.
        model_inputs: Names of the model's inputs.
        model_outputs: Names of the model's outputs.
        memory_of: Device to the memory its outputs lie in.
        can_share: Whether a device reads a memory in place.
        nbytes: Sizes of values, where known.
        layouts: Layouts of the values that cross in one.
        casts: By submodel and value, how its device changes the elements' type at the boundary.
    """
    cast = casts or {}
    laid_out = {name: layout.name for name, layout in (layouts or {}).items()}
    builder = _Builder(memory_of, can_share)
    for name in model_inputs:
        builder.new_slot(name, HOST)
    boundaries = []
    source_of: dict[str, int] = {}
    for submodel in submodels:
        reads = []
        for name in submodel.inputs:
            slot, how = builder.bring(name, submodel.device)
            reads.append(slot)
            boundaries.append(
                Boundary(
                    name,
                    source_of.get(name),
                    submodel.number,
                    how,
                    nbytes.get(name),
                    laid_out.get(name, ""),
                    _casts_at(cast, name, source_of.get(name), submodel.number),
                )
            )
        memory = memory_of(submodel.device)
        writes = [builder.new_slot(name, memory, submodel.device) for name in submodel.outputs]
        source_of.update(dict.fromkeys(submodel.outputs, submodel.number))
        builder.steps.append(RunStep(submodel.number, tuple(reads), tuple(writes)))
    outputs: list[int | None] = []
    for name in model_outputs:
        if name not in builder.slot_of:
            outputs.append(None)
            continue
        slot, how = builder.to_host(name)
        outputs.append(slot)
        source = source_of.get(name)
        at = _casts_at(cast, name, source, None)
        boundaries.append(Boundary(name, source, None, how, nbytes.get(name), casts=at))
    written = [slot for step in builder.steps for slot in step.writes]
    return Plan(
        builder.steps,
        len(builder.values),
        builder.values,
        outputs,
        [slot for slot in written if builder.memory[slot] == HOST],
        boundaries,
    )


def _casts_at(
    casts: Mapping[tuple[int, str], str], name: str, source: int | None, target: int | None
) -> tuple[str, ...]:
    ends = [number for number in (source, target) if number is not None]
    return tuple(casts[number, name] for number in ends if (number, name) in casts)


class _Builder:
    """The slots so far: where each value is, in which memories."""

    def __init__(
        self, memory_of: Callable[[str], str], can_share: Callable[[str, str], bool]
    ) -> None:
        self._memory_of = memory_of
        self._can_share = can_share
        self.steps: list[Step] = []
        self.values: list[str] = []
        self.memory: list[str] = []
        self.slot_of: dict[str, int] = {}
        self._maker: dict[int, str] = {}
        self._on_host: dict[str, int] = {}
        self._on_device: dict[tuple[str, str], int] = {}

    def new_slot(self, name: str, memory: str, device: str = "") -> int:
        slot = self._slot(name, memory)
        self.slot_of[name] = slot
        self._maker[slot] = device
        if memory == HOST:
            self._on_host[name] = slot
        return slot

    def _slot(self, name: str, memory: str) -> int:
        self.values.append(name)
        self.memory.append(memory)
        return len(self.values) - 1

    def bring(self, name: str, device: str) -> tuple[int, str]:
        """A slot that the device can read, made by Permute steps where none is there."""
        slot = self.slot_of[name]
        if self._can_share(device, self.memory[slot]):
            return slot, "shared"
        target = self._memory_of(device)
        if (name, target) in self._on_device:
            return self._on_device[name, target], PermuteKind.UPLOAD
        host, how = self.to_host(name)
        if self._can_share(device, HOST):
            return host, how
        upload = self._slot(name, target)
        self.steps.append(PermuteStep(name, PermuteKind.UPLOAD, device, (host,), (upload,)))
        self._on_device[name, target] = upload
        return upload, PermuteKind.UPLOAD if how == "shared" else "host"

    def to_host(self, name: str) -> tuple[int, str]:
        """The slot on the host, made by a Permute step where there is none."""
        slot = self.slot_of[name]
        if name in self._on_host:
            return self._on_host[name], "shared" if self.memory[slot] == HOST else "download"
        host = self._slot(name, HOST)
        self.steps.append(
            PermuteStep(name, PermuteKind.DOWNLOAD, self._maker[slot], (slot,), (host,))
        )
        self._on_host[name] = host
        return host, "download"
