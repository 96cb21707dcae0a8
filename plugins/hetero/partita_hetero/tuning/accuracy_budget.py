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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import partita
from partita.bisection.device_pair import Bench, RefusedError
from partita.contract.query import Reason, ReasonCode
from partita.errors import InfeasiblePlanError, PartitaError
from partita.model.compare import relative_error
from partita.progress import progress
from partita.runtime.compiled_model import CompiledModel
from partita_hetero.cost import clock
from partita_hetero.cost.database import Database
from partita_hetero.device_model import HeteroModel
from partita_hetero.placement.by_priority import Placement, PreferredDevices
from partita_hetero.tuning.sample_inputs import Samples
from partita_hetero.tuning.sized_model import sized_models

if TYPE_CHECKING:
    from partita.contract.core_api import CoreAPI
    from partita.model.model import Model
    from partita_hetero.compile.pipeline import Compilation

_log = logging.getLogger("partita.hetero")

Excluded = dict[tuple[int, str], Reason]

PRECISION = "INFERENCE_PRECISION_HINT"
EXACT = "f32"

_RUNS = 5
"""So often each of two ways is run to find the faster one."""

_NEGLIGIBLE = 1e-3
"""Operations whose own error is below this share of the budget are not moved."""


@dataclass(frozen=True)
class Fit:
    """How a placement comes within the budget.

    Attributes:
        excluded: Operations that a device loses, with their error as the reason.
        exact: Devices that have to compute in float32.
        error: Of the model's outputs, as measured.
        notes: For the explanation.
    """

    excluded: Excluded = field(default_factory=dict)
    exact: Sequence[str] = ()
    error: float = 0.0
    notes: Sequence[str] = ()

    @property
    def changes(self) -> bool:
        """Whether anything has to change."""
        return bool(self.excluded or self.exact)


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
        self._names = compilation.wiring.names()
        self._errors: dict[tuple[int, str], float] = {}
        self._exact: list[str] = []
        self._benches: dict[str, Bench] = {}

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
                return self._recalled(known)
            what = f"bringing {self._compilation.model.name} within {self._budget:g}"
            with progress(what, None):
                self._truth = self._bench(self._devices.names[0])
                found = self._search(preferred, dict(out))
            database.add_decision(key, _stored(found))
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
                    moved = self._found(_merged(moves[:count]), error, before)
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
            raise self._infeasible(least)
        for device in [name for name in self._exact if name not in moved.exact]:
            self._lower(device)
        return moved

    def _raise(self, device: str) -> None:
        """Lets a device compute in float32 from now on."""
        self._exact.append(device)
        self._devices.override(device, PRECISION, EXACT)
        self._compilation.compiler.forget_device(device)
        if device in self._benches:
            self._benches[device].config = self._devices.config(device)
        self._errors = {key: e for key, e in self._errors.items() if key[1] != device}

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
        best = self.error(preferred, {**out, **_merged(moves)})
        if best > self._budget:
            return None, best
        while high - low > 1:
            middle = (low + high) // 2
            error = self.error(preferred, {**out, **_merged(moves[:middle])})
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
            own = self.own_error(op, device)
            if own <= _NEGLIGIBLE * self._budget:
                continue
            others = [
                (self.own_error(op, other), other)
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
                            f"relative error {self.own_error(op, name):.2g} here; the budget is "
                            f"{self._budget:g}",
                        )
                        for name in [device, *worse]
                    },
                )
            )
        ranked.sort(key=lambda pair: -pair[0])
        return [excluded for _, excluded in ranked]

    def own_error(self, op: int, device: str) -> float:
        """Of an operation alone, fed with the reference's values; 0 where it cannot run alone."""
        if (op, device) not in self._errors:
            bench = self._bench(device)
            writes = bench.writes(op)
            error = 0.0
            try:
                model, feeds = bench.piece((op,), writes)
                values = bench.run_piece(model, feeds)
                error = max(relative_error(values[name], bench.truth[name]) for name in writes)
            except RefusedError:
                _log.info("'%s' cannot run alone on %s", self._names[op], device)
            except PartitaError:
                error = math.inf
            self._errors[op, device] = error
        return self._errors[op, device]

    def _to_raise(self) -> str | None:
        """The device with the largest errors that can compute more exactly than it does."""
        total: dict[str, float] = {}
        for (_, device), error in self._errors.items():
            total[device] = max(total.get(device, 0.0), error)
        for device in sorted(total, key=lambda name: -total[name]):
            config = self._devices.config(device)
            if (
                total[device] > _NEGLIGIBLE * self._budget
                and device not in self._exact
                and self._devices.core.accepts_property(device, PRECISION)
                and config.get(PRECISION) != EXACT
            ):
                return device
        return None

    def _infeasible(self, best: float) -> InfeasiblePlanError:
        """Names the operations with the largest errors on the best device that they may have."""
        worst: dict[int, dict[str, float]] = {}
        for (op, device), error in self._errors.items():
            worst.setdefault(op, {})[device] = error
        pins = {
            op: pin for op, pin in self._compilation.placer.constraints.pins.items() if pin.hard
        }
        least = {
            op: min(
                (e for device, e in errors.items() if op not in pins or device == pins[op].device),
                default=0.0,
            )
            for op, errors in worst.items()
        }
        floor = max(_NEGLIGIBLE * self._budget, max(least.values(), default=0.0) / 10)
        counting = [op for op in least if least[op] > floor]
        blocking = sorted(counting, key=lambda op: -least[op])[:3]
        lines = []
        for op in blocking:
            errors = ", ".join(f"{error:.2g} on {device}" for device, error in worst[op].items())
            node = self._compilation.wiring.nodes[op]
            kept = f", where the {pins[op].why} keeps it" if op in pins else ""
            if kept:
                here = pins[op].device
                others = {device: e for device, e in worst[op].items() if device != here}
                errors = f"{worst[op].get(here, 0.0):.2g} on {here}{kept}"
                errors += "".join(f" ({e:.2g} on {device})" for device, e in others.items())
            lines.append(f"'{self._names[op]}' ({node.op_type}): {errors}")
        drop = ", drop a pin" if any(op in pins for op in blocking) else ""
        return InfeasiblePlanError(
            f"No placement of '{self._compilation.model.name}' is within the accuracy budget "
            f"{self._budget:g}; the best is {best:.2g} from {self._against}. Most comes from "
            f"{'; '.join(lines) or 'no operation by itself'}. Raise the budget{drop}, or add a "
            "more exact device to the list."
        )

    # --------------------------------------------------------------------------- internals

    def _bench(self, device: str) -> Bench:
        if device not in self._benches:
            bench = Bench(
                _Compiler(self._devices.core),
                self._compilation.model,
                device,
                self._against,
                self._feeds,
                self._devices.config(device),
                0.0,
                0.0,
            )
            known = next(iter(self._benches.values()), None)
            if known is None:
                bench.record_truth()
            else:
                bench.truth, bench.recorded = known.truth, known.recorded
            self._benches[device] = bench
        return self._benches[device]

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

    def _recalled(self, known: Mapping[str, Any]) -> Fit:
        found = Fit(
            {
                (int(op), str(device)): Reason(ReasonCode.ACCURACY, str(detail))
                for op, device, detail in known["excluded"]
            },
            tuple(known["exact"]),
            float(known["error"]),
            [str(note) for note in known["notes"]],
        )
        for device in found.exact:
            self._raise(device)
        return found


def _merged(moves: Sequence[Excluded]) -> Excluded:
    return {key: why for excluded in moves for key, why in excluded.items()}


def _stored(found: Fit) -> dict[str, Any]:
    return {
        "excluded": [[op, device, why.detail] for (op, device), why in found.excluded.items()],
        "exact": list(found.exact),
        "error": found.error,
        "notes": list(found.notes),
    }


@dataclass(frozen=True)
class _Compiler:
    """Compiles for a device as applications do."""

    core: CoreAPI

    def compile_model(
        self, model: Model, device_name: str, config: Mapping[str, Any] | None = None
    ) -> CompiledModel:
        return CompiledModel(self.core.compile_model(model, device_name, config))
