"""Makes a placement from devices' answers, pins and memory limits, and cuts it into submodels."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.errors import DeviceError, InfeasiblePlanError, PluginError
from partita.model.model import Model
from partita.tensors.tensor import HOST
from partita_hetero.compile.failures import Exclusions
from partita_hetero.partition import partitioner
from partita_hetero.partition.decoder_layers import cache_inputs
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.partition.submodels import Submodel, submodels_of
from partita_hetero.placement import by_priority, constraints, memory_limits
from partita_hetero.placement.by_priority import Placement
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.placement.value_sizes import sizes_of

_log = logging.getLogger("partita.hetero")


class Placer:
    """Places one model on one device list.

    Args:
        model: The model; affinities in it are pins.
        devices: The device list.
        pins: Operation name to device, instead of affinities, pins and lock file.
        heeds_affinities: Whether affinities in the model are pins.

    Attributes:
        model: The model.
        devices: The device list.
        op_graph: The model's operations.
        sizes: Bytes of its values, where they are known.
        constraints: What applications demand of the placement.
        pins: Operation to the device that it is wanted on.
        answers: What devices have said they take.

    Raises:
        DeviceNotFoundError: A pin names a device that does not exist.
        PlanError: A pin or the lock file cannot be used.
    """

    def __init__(
        self,
        model: Model,
        devices: DeviceList,
        pins: Mapping[str, str] | None = None,
        heeds_affinities: bool = True,
    ) -> None:
        self.model = model
        self.devices = devices
        self.op_graph = OpGraph.of(model)
        self.sizes = sizes_of(model, {})
        self.answers: dict[str, QueryResult] = {}
        if pins is None:
            marked = model.ops if heeds_affinities else []
            affinities = {op.name: op.affinity for op in marked if op.affinity}
            self.constraints = constraints.gather(
                model, self.op_graph, devices, self.ask, affinities
            )
        else:
            self.constraints = constraints.by_name(pins, self.op_graph, devices)
        self.pins = {op: pin.device for op, pin in self.constraints.pins.items()}
        self.constraints.notes.extend(self._unknown_sizes())

    def ask(self, device: str) -> QueryResult:
        """A device's answer; one that cannot answer takes nothing, with its error as the reason."""
        if device not in self.answers:
            try:
                self.answers[device] = self.devices.ask(self.model, device)
            except (DeviceError, PluginError) as error:
                if self.devices.properties.STRICT:
                    raise
                _log.warning("%s could not be asked and gets nothing to do: %s", device, error)
                reason = Reason(ReasonCode.QUERY_FAILED, str(error))
                refusals = {op.name: reason for op in self.model.ops}
                self.answers[device] = QueryResult.of(device, refusals)
        return self.answers[device]

    def forget(self, device: str) -> None:
        """Asks a device anew when it is needed next."""
        self.answers.pop(device, None)

    def place(
        self,
        out: Exclusions,
        preferred: by_priority.PreferredDevices,
        order: Sequence[str] | None = None,
        keeps_limits: bool = False,
    ) -> Placement:
        """A device for every operation: pins first, then wishes, then the devices in order.

        Args:
            out: What devices failed to compile.
            preferred: What was chosen for operations.
            order: The devices; ``None`` for those of the list.
            keeps_limits: Whether the choice keeps memory limits if all its wishes come true.
        """
        properties, pins = self.devices.properties, self.constraints.pins
        names = self.devices.names if order is None else order

        def place(full: Exclusions) -> Placement:
            every = {**full, **out}
            return by_priority.place(
                graph=self.op_graph,
                devices=names,
                pins=pins,
                query=self.ask,
                welcomes=self.devices.welcomes,
                excluded=every,
                strict=properties.STRICT,
                preferred=preferred,
            )

        limits = self._limits([*names, *(device for device, _ in preferred.values())])
        if not limits:
            return place({})
        if keeps_limits:
            placement = place({})
            if placement.follows(preferred):
                return placement
        return memory_limits.enforce(
            self._memory,
            limits,
            lambda op, device: op in pins and pins[op].hard and pins[op].device == device,
            self.op_graph.names(),
            place,
        )

    @functools.cached_property
    def _memory(self) -> memory_limits.MemoryModel:
        """Counts what devices hold."""
        return memory_limits.MemoryModel(
            self.op_graph,
            self.sizes,
            lambda device: self.devices.core.device_info(device).memory == HOST,
            self.devices.properties.executor.objective,
        )

    @functools.cached_property
    def _most_bytes(self) -> int:
        """More than a device can hold of the model."""
        return self._memory.everything()

    def _limits(self, names: Sequence[str]) -> dict[str, int]:
        """Device to bytes: those that users set, and devices' own where the model may be larger.

        Args:
            names: What operations may go to, beside what they are pinned to.
        """
        limits = dict(self.devices.memory_limits)
        for name in dict.fromkeys([*names, *self.pins.values()]):
            room = None if name in limits else self.devices.room(name)
            if room is not None and room < self._most_bytes:
                limits[name] = room
        return limits

    def query(self) -> QueryResult:
        """Who would take what within the memory limits.

        Raises:
            InfeasiblePlanError: Pinned operations break a limit.
            UnsupportedOpError: No device that takes an operation has room for it.
        """
        answer = self.devices.query(self.model, self.op_graph, self.constraints.pins)
        if len(answer) < len(self.model.ops) or not self._limits(self.devices.names):
            return answer  # what nobody takes has no place
        placement = self.place({}, {})
        reasons = dict(answer.reasons)
        for op, name in enumerate(self.op_graph.names()):
            device = placement.device[op]
            if device is not None and device != answer[name]:
                answer[name] = device
                refused = [f"not {other}: {why}" for other, why in placement.refused[op].items()]
                refusal = Reason(ReasonCode.FALLBACK, "; ".join(refused))
                reasons[name] = refusal if refused else placement.reason[op]
        answer.reasons = reasons
        return answer

    def submodels(self, placement: Placement) -> list[Submodel]:
        """The submodels of a placement."""
        subgraphs = partitioner.partition(
            self.op_graph.preds,
            self.op_graph.succs,
            placement.device,
            merge_islands=self.devices.properties.executor.one_at_a_time,
        )
        submodels = submodels_of(self.op_graph, subgraphs)
        if len(submodels) > 1:
            return submodels
        order = [port.name for port in self.model.inputs]
        return [replace(p, inputs=tuple(sorted(p.inputs, key=order.index))) for p in submodels]

    def _is_planned_decoder(self) -> bool:
        """Whether layers are placed by memory as a context fills it, whatever shapes are open."""
        return bool(self.devices.properties.HETERO_CONTEXT and cache_inputs(self.model))

    def _unknown_sizes(self) -> list[str]:
        """A note on what memory limits cannot count.

        Raises:
            InfeasiblePlanError: ``STRICT`` is set: nobody can promise that such limits are kept.
        """
        limited = {} if self._is_planned_decoder() else self.devices.memory_limits
        unknown = memory_limits.uncounted(self.op_graph, self.sizes) if limited else []
        if not unknown:
            return []
        note = (
            f"Memory limits count {len(unknown)} values by their known dimensions alone, since "
            f"their shapes are not fixed, '{unknown[0]}' first; a run may need more."
        )
        if self.devices.properties.STRICT:
            raise InfeasiblePlanError(
                f"{note} Fix the shapes of the inputs with model.reshape(...), or set STRICT=NO."
            )
        _log.warning("%s", note)
        return [note]
