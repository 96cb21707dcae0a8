"""Outputs of the model that a submodel writes in place of one of the model's inputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from partita.contract.device_model import DeviceModel, offered_in_place
from partita.model.model import Port
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.transfer_plan import RunStep


@dataclass(frozen=True, slots=True)
class InPlacePair:
    """An output and an input of the model that can be one tensor.

    Attributes:
        output: The output's index.
        input: The input's index, which is its slot.
        written: The slot that the submodel writes.
        final: The slot that is the output.
        device: Where the submodel runs.
        device_model: The compiled submodel.
        port: Its input.
    """

    output: int
    input: int
    written: int
    final: int
    device: str
    device_model: DeviceModel
    port: Port


def in_place_pairs(assembly: Assembly, inputs: int) -> list[InPlacePair]:
    """The pairs that lie whole in one submodel, whose device offers them.

    No other submodel reads such an input.

    Args:
        assembly: Submodels and the plan that joins them.
        inputs: How many inputs the model has; they are the first slots.
    """
    plan = assembly.plan
    finals = {plan.slot_values[slot]: slot for slot in plan.outputs if slot is not None}
    of_value = {
        plan.slot_values[slot]: i for i, slot in enumerate(plan.outputs) if slot is not None
    }
    given = {name: index for index, name in enumerate(plan.slot_values[:inputs])}
    readers = Counter(name for submodel in assembly.submodels for name in submodel.inputs)
    outputs = Counter(plan.slot_values[slot] for slot in plan.outputs if slot is not None)
    writes = {step.submodel: step.writes for step in plan.steps if isinstance(step, RunStep)}
    pairs = []
    for submodel, device_model in zip(assembly.submodels, assembly.compiled, strict=True):
        for made, source in offered_in_place(device_model).items():
            name, read = submodel.outputs[made], submodel.inputs[source]
            if read not in given or readers[read] > 1 or outputs[read] or outputs[name] != 1:
                continue
            pairs.append(
                InPlacePair(
                    of_value[name],
                    given[read],
                    writes[submodel.number][made],
                    finals[name],
                    submodel.device,
                    device_model,
                    device_model.inputs[source],
                )
            )
    return pairs
