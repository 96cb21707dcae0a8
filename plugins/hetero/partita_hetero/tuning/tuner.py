"""The tuner: all that HETERO decides by measurement, the placement and the accuracy budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from partita.contract.query import Reason
from partita_hetero.compile.replicas import replicated
from partita_hetero.placement.decision import ChosenPlacement, Replica

if TYPE_CHECKING:
    from partita_hetero.compile.pipeline import Compilation

Excluded = dict[tuple[int, str], Reason]


def tune(compilation: Compilation, out: Excluded, remarks: list[str]) -> None:
    """Has the scheduler and the accuracy budget decide, once each, if properties ask for them.

    Args:
        compilation: The model, its devices, and what compiles placements; its ``choices`` and
            ``inexact`` are set.
        out: What devices failed to compile; what fails here is added.
        remarks: Notes for the explanation; what fails here is added.
    """
    properties = compilation.devices.properties
    if not compilation.choices:
        compilation.choices = _locked_choice(compilation)
    if not compilation.choices and properties.HETERO_CONTEXT:
        compilation.choices = _decoder_choice(compilation, out, remarks)
    if not compilation.choices and properties.HETERO_SCHEDULE == "COST":
        _choose(compilation, out, remarks)
    if compilation.inexact is None and properties.HETERO_ACCURACY_BUDGET:
        compilation.inexact = _within_budget(compilation, out, remarks)


def _locked_choice(compilation: Compilation) -> list[ChosenPlacement]:
    """The replicas of a lock file; none where it has none."""
    wanted = compilation.placer.constraints.replicas
    if len(wanted) < 2:
        return []
    first, *others = (
        Replica({op: (device, replicated([device])) for op, device in homes.items()}, share)
        for homes, share in wanted
    )
    return [ChosenPlacement(first.preferred, None, replicas=others)]


def _decoder_choice(
    compilation: Compilation, out: Excluded, remarks: list[str]
) -> list[ChosenPlacement]:
    """The plan of a decoder; none where the model is another one.

    Raises:
        InfeasiblePlanError: Memory does not suffice.
        PlanError: A device cannot be measured, or the model's cache holds less than is asked for.
    """
    from partita_hetero.tuning.decoders.decoder_plan import plan_for

    planned = plan_for(compilation.placer, out)
    if planned is None:
        remarks.append("HETERO_CONTEXT is for decoders; this model keeps no past from run to run.")
        return []
    return [planned.choice()]


def _choose(compilation: Compilation, out: Excluded, remarks: list[str]) -> None:
    from partita_hetero.tuning.scheduler import Scheduler
    from partita_hetero.tuning.sized_model import sized_models

    choices: list[ChosenPlacement] = []
    for sized in sized_models(compilation):
        choices.append(Scheduler(compilation, sized, out, remarks, choices).choose())
    compilation.choices = choices


def _within_budget(
    compilation: Compilation, out: Mapping[tuple[int, str], Reason], remarks: list[str]
) -> Excluded:
    """What devices must lose for the accuracy budget; where times decide, they decide anew."""
    from partita_hetero.tuning.accuracy.budget import Accuracy

    accuracy = Accuracy(compilation)
    inexact: Excluded = {}
    for decisions_left in (2, 1, 0):
        changes = False
        for preferred in compilation.choice.every if compilation.choice else ({},):
            found = accuracy.fit(preferred, {**out, **inexact})
            inexact |= found.excluded
            changes |= bool(found.changes)
            remarks += [note for note in found.notes if note not in remarks]
        if compilation.choice is None or not changes or not decisions_left:
            break
        if compilation.choice.decision is None:
            break  # a lock file's
        _choose(compilation, {**out, **inexact}, remarks)
    return inexact
