"""The error that each operation makes by itself on a device, fed with the reference's values."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partita.bisection.device_pair import Bench, RefusedError
from partita.errors import InfeasiblePlanError, PartitaError
from partita.model.compare import relative_error
from partita.runtime.compiled_model import CompiledModel

if TYPE_CHECKING:
    from partita.contract.core_api import CoreAPI
    from partita.lowering import Array
    from partita.model.model import Model
    from partita_hetero.compile.pipeline import Compilation

_log = logging.getLogger("partita.hetero")

NEGLIGIBLE = 1e-3
"""Operations whose own error is below this share of the budget are not moved."""


class OperationErrors:
    """Errors of operations, measured when they are asked for, and kept.

    Args:
        compilation: The model and its devices.
        against: The reference device.
        feeds: Sample inputs, by name.
    """

    def __init__(self, compilation: Compilation, against: str, feeds: Mapping[str, Array]) -> None:
        self._compilation = compilation
        self._devices = compilation.devices
        self._against, self._feeds = against, feeds
        self._names = compilation.op_graph.names()
        self._known: dict[tuple[int, str], float] = {}
        self._benches: dict[str, Bench] = {}

    def of(self, op: int, device: str) -> float:
        """Of an operation alone, fed with the reference's values; 0 where it cannot run alone."""
        if (op, device) not in self._known:
            bench = self.bench(device)
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
            self._known[op, device] = error
        return self._known[op, device]

    def largest(self) -> dict[str, float]:
        """By device the largest error of those that were measured."""
        found: dict[str, float] = {}
        for (_, device), error in self._known.items():
            found[device] = max(found.get(device, 0.0), error)
        return found

    def forget(self, device: str) -> None:
        """Has a device measured anew, with the properties that it has now."""
        if device in self._benches:
            self._benches[device].config = self._devices.config(device)
        self._known = {key: error for key, error in self._known.items() if key[1] != device}

    def infeasible(self, budget: float, best: float) -> InfeasiblePlanError:
        """Names the operations with the largest errors on the best device that they may have."""
        worst: dict[int, dict[str, float]] = {}
        for (op, device), error in self._known.items():
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
        floor = max(NEGLIGIBLE * budget, max(least.values(), default=0.0) / 10)
        counting = [op for op in least if least[op] > floor]
        blocking = sorted(counting, key=lambda op: -least[op])[:3]
        lines = []
        for op in blocking:
            errors = ", ".join(f"{error:.2g} on {device}" for device, error in worst[op].items())
            node = self._compilation.op_graph.nodes[op]
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
            f"{budget:g}; the best is {best:.2g} from {self._against}. Most comes from "
            f"{'; '.join(lines) or 'no operation by itself'}. Raise the budget{drop}, or add a "
            "more exact device to the list."
        )

    def bench(self, device: str) -> Bench:
        """What runs operations on a device, with what the reference made of samples."""
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


@dataclass(frozen=True)
class _Compiler:
    """Compiles for a device as applications do."""

    core: CoreAPI

    def compile_model(
        self, model: Model, device_name: str, config: Mapping[str, Any] | None = None
    ) -> CompiledModel:
        return CompiledModel(self.core.compile_model(model, device_name, config))
