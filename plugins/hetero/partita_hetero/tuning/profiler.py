"""The profiler: fills a cost table by running the model on every device, and by whole submodels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from partita.contract.device_model import new_runner
from partita.errors import PLUGIN_FAILURES, PartitaError, in_words
from partita.model.model import is_static
from partita.model.synthetic_inputs import synthetic_inputs
from partita.tensors.tensor import HostTensor, Tensor
from partita_hetero.cost.cost_table import CostTable, DeviceCosts
from partita_hetero.cost.database import Cost, Database
from partita_hetero.cost.machine_load import busy_note, is_quieter
from partita_hetero.cost.signature import Signatures
from partita_hetero.cost.timing import Effort, median_of
from partita_hetero.partition.submodels import Submodel, cut_out, submodel_of
from partita_hetero.tuning.sized_model import SizedModel
from partita_hetero.tuning.trial_run import Counters, Run

if TYPE_CHECKING:
    from partita_hetero.compile.pipeline import Compilation

ALONE = Effort(warm=2, least=3, most=15, seconds=0.05)
"""For one group by itself."""

LEAST_SHARE = 0.05
"""Of a submodel's time at least so much is taken as computing, whatever its launch costs."""


class Profile:
    """Turns what was measured into costs of groups.

    Args:
        compilation: What compiles for the devices.
        sized: The model, with fixed shapes.
        table: What is filled.
        database: Where costs come from and go to.
        signatures: Names of the work.
    """

    def __init__(
        self,
        compilation: Compilation,
        sized: SizedModel,
        table: CostTable,
        database: Database,
        signatures: Signatures,
    ) -> None:
        self._compilation = compilation
        self._sized = sized
        self._table = table
        self._database = database
        self._names = compilation.op_graph.names()
        self._op_of = {name: op for op, name in enumerate(self._names)}
        self.works = [signatures.of(group.ops) for group in table.groups]
        self._labels = [signatures.label(group.ops) for group in table.groups]
        self.notes: list[str] = []
        self._busy: dict[tuple[str, int], float] = {}

    def recall(self, device: DeviceCosts) -> None:
        """Takes over what the database knows of a device, or of others just like it."""
        known = self._database.costs(device.key, self.works)
        for index, work in enumerate(self.works):
            if work in known and self._takes(device, index):
                device.groups[index] = known[work].seconds
                self._busy[device.name, index] = known[work].busy

    def missing(self, device: DeviceCosts) -> bool:
        """Whether something that the device takes was never measured there."""
        return any(
            self._takes(device, index) and index not in device.groups
            for index in range(len(self._table.groups))
        )

    def busy(self, device: DeviceCosts) -> float:
        """The greatest share of the processors that others used as its costs were measured."""
        return max(
            (busy for (name, _), busy in self._busy.items() if name == device.name), default=0.0
        )

    def busy_notes(self) -> list[str]:
        """A note for each device whose costs were measured on a busy machine."""
        found = {one.name: self.busy(one) for one in self._table.devices}
        notes = [busy_note(f"Operations on {name}", busy) for name, busy in found.items()]
        return [note for note in notes if note]

    def learn(
        self,
        device: DeviceCosts,
        submodels: Sequence[Submodel],
        run: Run,
        counters: Mapping[int, Counters],
    ) -> None:
        """Costs of a device's groups, from a run in which it did all that it takes.

        A device's own counters say how a submodel's time is shared among its groups; groups of a
        device without counters are run one by one for that. Either is scaled so that the sum is
        what the submodel took, for operations by themselves are slower or faster than together.
        Costs that were measured on a quieter machine stay.

        Args:
            device: Whose costs.
            submodels: The submodels of the run.
            run: Their times.
            counters: What devices counted, by submodel and operation.
        """
        fresh: list[Cost] = []
        for submodel in submodels:
            if submodel.device != device.name:
                continue
            inside = self._table.inside(submodel.ops)
            counted = counters.get(submodel.number)
            if counted:
                how, shares = "profiled", self._counted(device, inside, counted)
            else:
                how, shares = "measured", self._alone(device, inside, run.busy)
            total = sum(shares.values())
            if total <= 0:
                continue
            factor = computing(run.submodel_seconds[submodel.number], device.launch) / total
            for index, seconds in shares.items():
                if is_quieter(self._busy.get((device.name, index), 1.0), run.busy):
                    continue
                device.groups[index] = seconds * factor
                self._busy[device.name, index] = run.busy
                fresh.append(
                    Cost(
                        device.key,
                        self.works[index],
                        seconds * factor,
                        run.samples,
                        how,
                        self._labels[index],
                        run.busy,
                    )
                )
        self._database.add_costs(fresh)

    def scales(self, submodels: Sequence[Submodel], run: Run) -> dict[tuple[int, str], float]:
        """Factors that make each submodel's groups add up to what the submodel took in a run."""
        factors: dict[tuple[int, str], float] = {}
        for submodel in submodels:
            device = next(d for d in self._table.devices if d.name == submodel.device)
            guesses = self._table.estimated(device)
            inside = self._table.inside(submodel.ops)
            expected = sum(device.groups.get(i, guesses.get(i, 0.0)) for i in inside)
            if expected > 0:
                factor = computing(run.submodel_seconds[submodel.number], device.launch) / expected
                factors |= dict.fromkeys(((index, device.name) for index in inside), factor)
        return factors

    def _takes(self, device: DeviceCosts, index: int) -> bool:
        return device.name not in self._table.refusals[index]

    def _counted(
        self, device: DeviceCosts, inside: Sequence[int], counters: Counters
    ) -> dict[int, float]:
        """Times that the device counted; estimates if it counted none at all (views, mostly).

        What one kernel computes of several groups is shared among them by the work that it does
        for each: left with the first, it would make the others free wherever they are alone.
        """
        shares = dict.fromkeys(inside, 0.0)
        for names, seconds in counters.items():
            split = self._table.shares(device, [self._op_of[n] for n in names if n in self._op_of])
            for index, share in split.items():
                if index in shares:
                    shares[index] += seconds * share
        if sum(shares.values()) > 0:
            return shares
        guesses = self._table.estimated(device)
        return {index: guesses.get(index, device.groups.get(index, 0.0)) for index in inside}

    def _alone(self, device: DeviceCosts, inside: Sequence[int], busy: float) -> dict[int, float]:
        """Times of groups by themselves; estimates for those that cannot be run so.

        Args:
            device: What they run on.
            inside: Their numbers.
            busy: The share of the processors that others use: what was measured beside many more
                is measured again.
        """
        guesses = self._table.estimated(device)
        known = {
            work: cost.seconds
            for work, cost in self._database.costs(
                device.key, [self.works[index] for index in inside]
            ).items()
            if not is_quieter(busy, cost.busy)
        }
        times: dict[int, float] = {}
        for index in inside:
            work = self.works[index]
            if work not in known:
                try:
                    known[work] = self._run_alone(device, index)
                except PLUGIN_FAILURES as error:  # whatever a broken device raises
                    name = self._names[self._table.groups[index].ops[-1]]
                    self.notes.append(
                        f"'{name}' cannot be timed alone on {device.name}: {in_words(error)}"
                    )
                    known[work] = guesses.get(index, 0.0)
            times[index] = known[work]
        return times

    def _run_alone(self, device: DeviceCosts, index: int) -> float:
        """Seconds of one group, compiled as a submodel of its own."""
        devices = self._compilation.devices
        core = devices.core
        ops = self._table.groups[index].ops
        submodel = submodel_of(self._sized.op_graph, device.name, ops)
        model = cut_out(self._sized.model, self._sized.op_graph, submodel)
        for port in model.inputs:
            if not is_static(port.shape):
                raise PartitaError(f"the shape of '{port.name}' is not known before the model runs")
        inputs: list[Tensor] = []
        for array in synthetic_inputs(model, np.random.default_rng(0)).values():
            tensor: Tensor = HostTensor(array)
            if not core.can_share(device.name, tensor.memory):
                tensor = core.transfer_to(device.name, tensor)
            inputs.append(tensor)
        compiled = core.compile_model(model, device.name, devices.config(device.name))
        runner = new_runner(compiled)
        try:
            seconds, _ = median_of(lambda: runner.run(inputs), ALONE)
        finally:
            runner.close()
        return computing(seconds, device.launch)


def computing(seconds: float, launch: float) -> float:
    """What of a submodel's time is not its launch."""
    return max(seconds - launch, LEAST_SHARE * seconds)
