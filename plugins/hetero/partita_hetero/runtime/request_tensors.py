"""Tensors of a request by slot: what is in each slot, and the memory that it is written to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from partita.contract.core_api import CoreAPI
from partita.errors import InferError
from partita.model.model import Model
from partita.tensors.layout_tensor import LaidOutTensor
from partita.tensors.tensor import HOST, HostTensor, Tensor
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.in_place import in_place_pairs
from partita_hetero.compile.transfer_plan import OwnCopies, PermuteKind, PermuteStep


class RequestTensors:
    """The tensors of one request, by slot.

    Args:
        model: Whose inputs and outputs the request has.
        assembly: Its submodels, and the plan that joins them.
        core: Brings tensors to devices.
        copies: What submodels' runs copy between host and device themselves.

    Attributes:
        slots: What lies in each slot in this run.
        prepared: What is allocated for each slot; ``None`` where a run decides.
        uploads: Copies that submodels' runs make; see `OwnCopies`.
        downloads: Likewise.
    """

    def __init__(self, model: Model, assembly: Assembly, core: CoreAPI, copies: OwnCopies) -> None:
        plan = assembly.plan
        self._core = core
        self._inputs = len(model.inputs)
        self.slots: list[Tensor | None] = [None] * plan.slots
        self.prepared = assembly.prepare(core)
        self._planned = {slot: x for slot, x in enumerate(self.prepared) if x is not None}
        pairs = in_place_pairs(assembly, self._inputs)
        self._finals = {pair.written: pair.final for pair in pairs}
        self._state_of = {pair.input: pair.device for pair in pairs}
        self._outputs = [
            (slot, None if slot is not None else assembly.constants[port.name])
            for slot, port in zip(plan.outputs, model.outputs, strict=True)
        ]
        self.uploads, self.downloads = copies
        inputs = range(self._inputs)
        self._borrowed = [*inputs, *(to for to, of in copies.uploads.items() if of in inputs)]
        self._lent: dict[int, Tensor] = {}
        uses = Counter(slot for slot, _ in self._outputs)
        self._lendable = {slot for slot in plan.host_slots if uses[slot] == 1}

    def begin(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None, lends: bool
    ) -> None:
        """Takes what a run reads, and what it is to write to.

        Args:
            inputs: One tensor per input of the model; they are the first slots.
            outputs: Where results should go, as runners take it.
            lends: Whether submodels may write to the caller's tensors.
        """
        self.set_inputs(inputs)
        if lends and (outputs is not None or self._lent):
            self._lend(outputs or ())

    def set_inputs(self, inputs: Sequence[Tensor]) -> None:
        """Puts the model's inputs into their slots."""
        self.slots[: self._inputs] = inputs

    def inputs(self) -> list[Tensor]:
        """The model's inputs of this run."""
        return [self.read(slot) for slot in range(self._inputs)]

    def end(self) -> None:
        """Lets go of the caller's arrays."""
        for slot in self._borrowed:
            self.slots[slot] = None

    def reachable(self, index: int, tensor: Tensor) -> Tensor:
        """An input of a device's memory where its submodel reads it.

        State of a device that lost it is brought to the host.
        """
        device = self._state_of.get(index)
        if device is not None and self._core.can_share(device, tensor.memory):
            return tensor
        return HostTensor(tensor.numpy())

    def _lend(self, outputs: Sequence[Tensor | None]) -> None:
        """Has submodels write the model's outputs to tensors of the caller where they can.

        Calls that were bound to other memory for them are made no more.
        """
        self._lent = {
            slot: tensor
            for (slot, _), tensor in zip(self._outputs, outputs, strict=False)
            if tensor is not None and slot in self._lendable and self._can_lend(tensor)
        }
        for slot in self._lent:
            self.prepared[slot] = None

    def _can_lend(self, tensor: Tensor) -> bool:
        """Whether submodels can write an output to a tensor: of the host, or state of theirs."""
        return tensor.memory == HOST or any(tensor is x for x in self.slots[: self._inputs])

    def targets(self, slots: Sequence[int]) -> list[Tensor | None]:
        """What a submodel is to write its outputs to; state, wherever that lies."""
        if self._lent or self.downloads:
            return [self._target(slot) for slot in slots]
        return [self.prepared[slot] for slot in slots]

    def _target(self, slot: int) -> Tensor | None:
        final = self._finals.get(slot)
        if final is not None and final in self._lent:
            return self._lent[final]
        slot = self.downloads.get(slot, slot)
        return self._lent.get(slot, self.prepared[slot])

    def read(self, slot: int) -> Tensor:
        """What lies in a slot.

        Raises:
            InferError: Nothing has been written to it.
        """
        tensor = self.slots[slot]
        if tensor is None:
            raise InferError("The plan reads a tensor before it is written; please report this.")
        return tensor

    def results(self) -> list[Tensor]:
        """The outputs; copies of those that are inputs or weights as they are."""
        results: list[Tensor] = []
        for slot, constant in self._outputs:
            if slot is None:
                results.append(HostTensor(np.array(constant)))
            elif slot < self._inputs:
                results.append(HostTensor(np.array(self.read(slot).numpy())))
            else:
                results.append(self.read(slot))
        return results

    def downloaded(self, index: int, result: Tensor) -> Tensor:
        """An output in host memory: where it is planned, which its device copies to quickly.

        Calls that are bound later write to the same place.
        """
        slot, _ = self._outputs[index]
        planned = None if slot is None else self.prepared[slot]
        if planned is None or (planned.shape, planned.dtype) != (result.shape, result.dtype):
            return HostTensor(result.numpy())
        result.copy_to(planned)
        return planned

    def permuted(self, step: PermuteStep) -> Tensor:
        """A tensor as a Permute step makes it: elsewhere, or in another layout."""
        source = self.read(step.reads[0])
        (slot,) = step.writes
        if step.kind is PermuteKind.UPLOAD:
            left = slot in self.uploads
            return source if left else self._core.transfer_to(step.device, source)
        target = self._lent.get(slot, self.prepared[slot])
        if target is source:
            return target
        if target is not None:
            source.copy_to(target)
            return target
        if source.layout is not None:
            return LaidOutTensor(source.stored(), source.dtype, source.layout)
        return HostTensor(source.numpy())

    def tensors_to_bind(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> dict[int, Tensor] | None:
        """By slot what calls are to read and write; ``None`` if an output is no submodel's."""
        tensors = {**self._planned, **dict(enumerate(inputs))}
        for (slot, _), tensor in zip(self._outputs, outputs, strict=True):
            if slot is None or slot not in self._lendable:
                return None
            tensors[slot] = tensor
        return tensors
