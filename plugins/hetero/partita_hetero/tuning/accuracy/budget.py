"""The accuracy budget: moves operations, or raises a device's precision, until outputs are exact.

1. The placed model runs on samples; its outputs are compared with those of a reference device. If
   they are within the budget, that is all.
2. Each operation runs alone on its device, fed with the reference's values: its own error. Those
   with the largest go to a device that has less, as few of them as bring the model within the
   budget, found by halving and running the whole model each time.
3. Devices that can compute in float32 do so instead, one after the other, until the model is
   within the budget; of the two ways the one is taken that runs faster.

Errors are the largest difference over the largest magnitude of a tensor. What is found is kept in
the cost database.
"""

from __future__ import annotations

import hashlib
import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import partita
from partita.contract.query import Reason, ReasonCode
from partita.errors import PartitaError
from partita.model.compare import relative_error
from partita.progress import progress
from partita.runtime.compiled_model import CompiledModel
from partita_hetero.cost import clock
from partita_hetero.cost.database import Database
from partita_hetero.device_model import HeteroModel
from partita_hetero.placement.by_priority import Placement, PreferredDevices
from partita_hetero.tuning.accuracy.fit import Excluded, Fit, merged, restore, store
from partita_hetero.tuning.accuracy.operation_errors import NEGLIGIBLE, OperationErrors
from partita_hetero.tuning.sample_inputs import Samples
from partita_hetero.tuning.sized_model import sized_models

if TYPE_CHECKING:
    from partita_hetero.compile.pipeline import Compilation

_log = logging.getLogger("partita.hetero")

PRECISION = "INFERENCE_PRECISION_HINT"
EXACT = "f32"

_RUNS = 5
"""So often each of two ways is run to find the faster one."""


class Accuracy:
    """The budget of one compile.

    Args:
        compilation: Places and compiles.
    """

    def __init__(self, compilation: Compilation) -> None:
        properties = compilation.devices.properties
        self._compilation = compilation
        self._devices = compilation.devices
        self._budget = properties.HETERO_ACCURACY_BUDGET
        self._against = (
            properties.HETERO_ACCURACY_REFERENCE or compilation.devices.core.reference_device
        )
        sized = sized_models(compilation)[0]
        self._feeds = Samples(sized.model, properties.HETERO_SAMPLE_INPUTS).feeds
        self._names = compilation.op_graph.names()
        self._errors = OperationErrors(compilation, self._against, self._feeds)
        self._exact: list[str] = []

    def fit(self, preferred: PreferredDevices, out: Mapping[tuple[int, str], Reason]) -> Fit:
        """What must change so that the placement is within the budget.

        Args:
            preferred: What a plan wants.
            out: What devices failed on.

        Raises:
            InfeasiblePlanError: Nothing helps; names the operations with the largest errors.
            PartitaError: The reference cannot run the model.
        """
        with Database() as database:
            key = self._key(preferred, out)
            known = database.decision(key)
            if known is not None:
                found = restore(known)
                for device in found.exact:
                    self._raise(device)
                return found
            what = f"bringing {self._compilation.model.name} within {self._budget:g}"
            with progress(what, None):
                self._truth = self._errors.bench(self._devices.names[0])
                found = self._search(preferred, dict(out))
            database.add_decision(key, store(found))
            return found

    def error(self, preferred: PreferredDevices, out: Excluded) -> float:
        """Of the placed model's outputs, run for real; infinite if it cannot run."""
        try:
            outputs = CompiledModel(self._compiled(preferred, out))(self._feeds).to_dict()
        except PartitaError as error:
            _log.warning("The placed model cannot run on the samples: %s", error)
            return math.inf
        truth = self._truth.truth
        return max(
            (relative_error(array, truth[name]) for name, array in outputs.items()), default=0.0
        )

    def _seconds(self, preferred: PreferredDevices, out: Excluded) -> float:
        """Median time of the placed model on the samples."""
        request = CompiledModel(self._compiled(preferred, out)).create_infer_request()
        times = []
        for _ in range(_RUNS + 1):
            start = clock.seconds()
            request.infer(self._feeds, share_outputs=True)
            times.append(clock.seconds() - start)
        return statistics.median(times[1:])  # the first one makes buffers

    def _compiled(self, preferred: PreferredDevices, out: Excluded) -> HeteroModel:
        excluded = dict(out)
        while True:
            placement = self._compilation.placer.place(excluded, preferred)
            assembly = self._compilation.build(placement, excluded, [])
            if assembly is not None:
                return HeteroModel(self._compilation, assembly)

    # ------------------------------------------------------------------------------ search

    def _search(self, preferred: PreferredDevices, out: Excluded) -> Fit:
        """Moves, and then casts; of the two that work the faster one."""
        before = now = self.error(preferred, out)
        moved: Fit | None = None
        seconds = math.inf
        least = now
        while now > self._budget:
            if moved is None:
                moves = self._moves(self._compilation.placer.place(out, preferred), out)
                count, error = self._fewest(moves, preferred, out)
                least = min(least, error)
                if count is not None:
                    moved = self._found(merged(moves[:count]), error, before)
                    seconds = self._seconds(preferred, {**out, **moved.excluded})
            device = self._to_raise()
            if device is None:
                break
            self._raise(device)
            now = self.error(preferred, out)
            least = min(least, now)
        if now <= self._budget and (moved is None or self._seconds(preferred, out) < seconds):
            return self._found({}, now, before)
        if moved is None:
            raise self._errors.infeasible(self._budget, least)
        for device in [name for name in self._exact if name not in moved.exact]:
            self._lower(device)
        return moved

    def _raise(self, device: str) -> None:
        """Lets a device compute in float32 from now on."""
        self._exact.append(device)
        self._devices.override(device, PRECISION, EXACT)
        self._compilation.compiler.forget_device(device)
        self._errors.forget(device)

    def _lower(self, device: str) -> None:
        """Lets a device compute as the user has set it."""
        self._exact.remove(device)
        self._devices.drop_override(device, PRECISION)
        self._compilation.compiler.forget_device(device)

    def _found(self, excluded: Excluded, error: float, before: float) -> Fit:
        raised = list(self._exact)
        notes = [
            f"Accuracy: outputs are within {error:.2g} of {self._against} (budget "
            f"{self._budget:g}); before it was {before:.2g}."
            if excluded or raised
            else f"Accuracy: outputs are within {error:.2g} of {self._against} (budget "
            f"{self._budget:g})."
        ]
        if excluded:
            notes.append(
                f"Accuracy: {len({op for op, _ in excluded})} operations were moved for it."
            )
        notes += [f"Accuracy: {device} computes in float32 for it." for device in raised]
        return Fit(excluded, tuple(raised), error, notes)

    def _fewest(
        self, moves: Sequence[Excluded], preferred: PreferredDevices, out: Excluded
    ) -> tuple[int | None, float]:
        """How many of the moves it takes, and the error then; ``None`` if all are not enough."""
        if not moves:
            return None, math.inf
        low, high = 0, len(moves)
        best = self.error(preferred, {**out, **merged(moves)})
        if best > self._budget:
            return None, best
        while high - low > 1:
            middle = (low + high) // 2
            error = self.error(preferred, {**out, **merged(moves[:middle])})
            if error <= self._budget:
                high, best = middle, error
            else:
                low = middle
        return high, best

    def _moves(self, placement: Placement, out: Excluded) -> list[Excluded]:
        """For each operation that another device computes better the exclusions that move it."""
        ranked = []
        for op, device in enumerate(placement.device):
            if device is None:
                continue
            own = self._errors.of(op, device)
            if own <= NEGLIGIBLE * self._budget:
                continue
            others = [
                (self._errors.of(op, other), other)
                for other in self._devices.names
                if other != device and self._takes(other, op) and (op, other) not in out
            ]
            least = min(others, default=(math.inf, ""))[0]
            if least >= own / 2 or self._pinned(op, device):
                continue
            worse = [other for error, other in others if error > 2 * least]
            ranked.append(
                (
                    own,
                    {
                        (op, name): Reason(
                            ReasonCode.ACCURACY,
                            f"relative error {self._errors.of(op, name):.2g} here; the budget is "
                            f"{self._budget:g}",
                        )
                        for name in [device, *worse]
                    },
                )
            )
        ranked.sort(key=lambda pair: -pair[0])
        return [excluded for _, excluded in ranked]

    def _to_raise(self) -> str | None:
        """The device with the largest errors that can compute more exactly than it does."""
        total = self._errors.largest()
        for device in sorted(total, key=lambda name: -total[name]):
            config = self._devices.config(device)
            if (
                total[device] > NEGLIGIBLE * self._budget
                and device not in self._exact
                and self._devices.core.accepts_property(device, PRECISION)
                and config.get(PRECISION) != EXACT
            ):
                return device
        return None

    # --------------------------------------------------------------------------- internals

    def _takes(self, device: str, op: int) -> bool:
        return self._names[op] in self._compilation.placer.ask(device)

    def _pinned(self, op: int, device: str) -> bool:
        pin = self._compilation.placer.constraints.pins.get(op)
        return pin is not None and pin.hard and pin.device == device

    def _key(self, preferred: PreferredDevices, out: Mapping[tuple[int, str], Reason]) -> str:
        """What two compiles must agree in to need the same."""
        compilation, core = self._compilation, self._devices.core
        digest = hashlib.blake2b(digest_size=16)
        for graph in compilation.model.ir.graphs():
            for name, value in graph.initializers.items():
                digest.update(str(name).encode())
                if value.const_value is not None:
                    digest.update(value.const_value.tobytes())
        for name, array in self._feeds.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(
                repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
            )
        facts = [
            "accuracy",
            partita.__version__,
            digest.hexdigest(),
            *(f"{op.name} {op.op_type} {op.inputs}" for op in compilation.model.ops),
            *(
                str(core.fingerprint(name, self._devices.config(name)))
                for name in self._devices.names
            ),
            str(core.fingerprint(self._against, {})),
            f"{self._budget!r}",
            str(sorted((op, device) for op, (device, _) in preferred.items())),
            str(
                sorted((op, pin.device) for op, pin in compilation.placer.constraints.pins.items())
            ),
            str(sorted(out)),
            str(sorted(self._devices.memory_limits.items())),
        ]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
