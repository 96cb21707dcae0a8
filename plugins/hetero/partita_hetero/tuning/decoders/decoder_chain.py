"""A decoder as a chain of layers: what each costs on each device in each phase, and what it keeps.

Work is told from the graph, speeds from probes of the devices; nothing of the model is run or made.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import InfeasiblePlanError, PlanError
from partita.model.prompt_chunk import LARGEST_CHUNK
from partita_hetero.cost.database import Database, LinkCost
from partita_hetero.cost.device_speed import DecoderSizes, DeviceSpeed, ProbedDevice, device_speed
from partita_hetero.cost.launch_cost import launch_cost
from partita_hetero.cost.link_cost import link_costs, works_on_host
from partita_hetero.cost.machine_load import MachineLoad
from partita_hetero.cost.token_work import DecoderWork, TokenWork, WeightFormat
from partita_hetero.cost.weight_readers import TiedTable
from partita_hetero.partition.decoder_layers import LayerOps, cache_inputs, decoder_layers
from partita_hetero.planner.chain.problem import Array, Chain, Options, TiedWeights

if TYPE_CHECKING:
    from partita_hetero.compile.placer import Placer
    from partita_hetero.placement.device_list import DeviceList

Phase = Literal["decode", "decode_at_start", "prefill"]
PHASES: tuple[Phase, ...] = ("decode", "decode_at_start", "prefill")
"""One token when the cache is full, one when it is empty, and a chunk of a prompt."""


@dataclass(frozen=True)
class TokenRequest:
    """What a plan for a decoder is made for.

    Attributes:
        context: Tokens that the cache has room for.
        prompt: Tokens of a prompt.
        new: Tokens that are generated after it.
        longest_run: Tokens of the prompt that one run reads at most.
    """

    context: int
    prompt: int = 512
    new: int = 128
    longest_run: int = LARGEST_CHUNK

    @property
    def chunk(self) -> int:
        """Tokens of the prompt that are run at a time."""
        return max(1, min(self.longest_run, self.prompt, self.context))

    @property
    def shares(self) -> dict[Phase, float]:
        """How many runs of each phase a request has."""
        chunks = self.prompt / self.chunk
        return {"decode": float(self.new), "decode_at_start": 0.0, "prefill": chunks}

    def tokens(self, phase: Phase) -> tuple[int, int]:
        """Tokens of a run, and tokens before them."""
        if phase == "prefill":
            length = min(self.context, self.prompt)
            return self.chunk, max(0, (length - self.chunk) // 2)
        return 1, self.context - 1 if phase == "decode" else 0


@dataclass(frozen=True)
class DecoderDevice:
    """A device that layers can go to.

    Attributes:
        name: As in the device list.
        speed: What it reads and multiplies a second.
        limit: Bytes that it may hold, or ``None``.
        launch: Seconds to start a submodel.
        links: From the host and to the host; ``None`` if it works in host memory.
        is_reference: Whether it is a last resort.
        busy: The share of the processors that others used at most while all that was measured.
    """

    name: str
    speed: DeviceSpeed
    limit: int | None = None
    launch: float = 0.0
    links: tuple[LinkCost, LinkCost] | None = None
    is_reference: bool = False
    busy: float = 0.0


@dataclass(frozen=True)
class LayerUnit:
    """Operations of a layer that go to a device together.

    Attributes:
        ops: Their indices.
        devices: Indices of the devices that they may go to.
        pinned: Why there is only one, if a pin says so.
        refused: Device to the reason why it is left out.
        nbytes: Weights and cache.
        weight_bytes: Weights.
    """

    ops: tuple[int, ...]
    devices: tuple[int, ...]
    pinned: str
    refused: Mapping[str, Reason]
    nbytes: int
    weight_bytes: int


@dataclass(frozen=True)
class DecoderLayer:
    """A layer with its options.

    Attributes:
        layer: Its operations.
        units: Those that stay together; the first is where the layer's input goes.
        places: By option: device of each unit.
    """

    layer: LayerOps
    units: tuple[LayerUnit, ...]
    places: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class DecoderChain:
    """A decoder's layers as chains, one for each phase.

    Attributes:
        layers: In order.
        devices: What they can go to.
        chains: By phase.
        work: By phase and layer: what each unit of it does.
    """

    layers: tuple[DecoderLayer, ...]
    devices: tuple[DecoderDevice, ...]
    chains: Mapping[Phase, Chain]
    work: Mapping[Phase, tuple[tuple[TokenWork, ...], ...]] = field(default_factory=dict)


def formats_of(placer: Placer, work: DecoderWork) -> set[WeightFormat]:
    """How a decoder's weights are stored."""
    whole = work.work(range(len(placer.op_graph.nodes)), 1, 0)
    return set(whole.products)


def describe_devices(
    devices: DeviceList, names: Sequence[str], decoder: DecoderSizes
) -> list[DecoderDevice]:
    """Speeds, links and limits, measured unless the database knows.

    Args:
        devices: Of the compile at hand.
        names: Which of them.
        decoder: What they are measured for.

    Raises:
        PlanError: A device cannot be measured.
    """
    core, found, load = devices.core, [], MachineLoad()
    with Database() as database:
        for name in names:
            info = core.device_info(name)
            key = database.add_device(core.fingerprint(name, devices.config(name)))
            on_host = works_on_host(core, name)
            probed = ProbedDevice(devices, name, key, database, load)
            speed = device_speed(probed, decoder)
            launch = launch_cost(devices, name, key, database, load)
            links = None if on_host else link_costs(core, name, key, database, load)
            found.append(
                DecoderDevice(
                    name,
                    speed,
                    devices.room(name),
                    launch.seconds if launch else 0.0,
                    links,
                    info.kind == "reference",
                    max(one.busy for one in (speed, launch, links) if one is not None),
                )
            )
    return found


class ChainBuilder:
    """Makes the chains of one decoder.

    Args:
        placer: Knows the operations, the pins and what devices take.
        devices: What layers can go to.
        request: What the plan is for.
        out: What devices failed to compile.
        shrinks: Whether caches of fixed capacity count as if the model had been read for the
            context.

    Raises:
        PlanError: The model's cache holds less than the context that is asked for.
    """

    def __init__(
        self,
        placer: Placer,
        devices: Sequence[DecoderDevice],
        request: TokenRequest,
        out: Mapping[tuple[int, str], Reason],
        shrinks: bool = False,
    ) -> None:
        self._placer, self._out = placer, out
        self._devices, self._request = tuple(devices), request
        self._op_graph = placer.op_graph
        self._work = DecoderWork(placer.model, placer.op_graph, request.context, shrinks)
        self._caches = cache_inputs(placer.model)
        self._layers = decoder_layers(placer.model, placer.op_graph)

    def build(self) -> DecoderChain:
        """The chains.

        Raises:
            InfeasiblePlanError: A device refuses a hard pin.
            PlanError: No device takes a layer as a whole.
        """
        layers = tuple(self._layer(layer) for layer in self._layers)
        chains = {phase: self._chain(layers, phase) for phase in PHASES}
        work = {
            phase: tuple(
                tuple(
                    self._work.work(unit.ops, *self._request.tokens(phase)) for unit in layer.units
                )
                for layer in layers
            )
            for phase in PHASES
        }
        return DecoderChain(layers, self._devices, chains, work)

    # --------------------------------------------------------------------------- layers

    def _layer(self, layer: LayerOps) -> DecoderLayer:
        """Splits a layer by pins, and takes experts apart."""
        pins = self._placer.constraints.pins
        groups: dict[tuple[bool, str], list[int]] = {}
        for op in layer.ops:
            device = pins[op].device if op in pins else ""
            groups.setdefault((op in layer.experts, device), []).append(op)
        ordered = sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1])))
        units = tuple(self._unit(layer, ops, device) for (_, device), ops in ordered)
        places = tuple(itertools.product(*(unit.devices for unit in units)))
        return DecoderLayer(layer, units, places)

    def _unit(self, layer: LayerOps, ops: Sequence[int], device: str) -> LayerUnit:
        refused = {one.name: self._refusal(ops, one.name) for one in self._devices}
        taking = [index for index, one in enumerate(self._devices) if refused[one.name] is None]
        pinned = ""
        if device:
            pin = self._placer.constraints.pins[ops[0]]
            mine = [index for index in taking if self._devices[index].name == device]
            if not mine and pin.hard:
                raise InfeasiblePlanError(
                    f"The {pin.why} cannot be kept: {layer.name} is not for '{device}': "
                    f"{refused.get(device) or 'it is not in the device list'}."
                )
            taking, pinned = mine or taking, pin.why if mine else ""
        others = [index for index in taking if not self._devices[index].is_reference]
        if not taking:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
            raise PlanError(f"No device takes {layer.name} as a whole: {reasons}.")
        mine_of = set(ops)
        caches = [
            name for name in layer.caches if any(name in self._op_graph.reads[op] for op in mine_of)
        ]
        weights = self._work.stored_bytes(ops)
        return LayerUnit(
            tuple(ops),
            tuple(others or taking),
            pinned,
            {name: reason for name, reason in refused.items() if reason is not None},
            weights + self._work.cache_bytes(caches),
            weights,
        )

    def _refusal(self, ops: Sequence[int], device: str) -> Reason | None:
        """Why a device does not take operations together."""
        answer, names = self._placer.ask(device), self._op_graph.names()
        for op in ops:
            if (op, device) in self._out:
                return self._out[op, device]
            if names[op] not in answer:
                reason = answer.reasons.get(names[op])
                detail = f"'{names[op]}' ({self._op_graph.nodes[op].op_type}): {reason}"
                return Reason(ReasonCode.UNSUPPORTED_OP, detail)
        return None

    # --------------------------------------------------------------------------- chains

    def _chain(self, layers: Sequence[DecoderLayer], phase: Phase) -> Chain:
        devices, count = self._devices, len(self._devices)
        boundaries = max(0, len(layers) - 1)
        leaving = np.zeros((boundaries, count, count))
        arriving = np.zeros((boundaries, count, count))
        for boundary in range(boundaries):
            sizes = self._crossing(layers, boundary, phase)
            for source, target in itertools.permutations(range(count), 2):
                halves = self._move(source, target, sizes)
                leaving[boundary, source, target], arriving[boundary, source, target] = halves
        return Chain(
            tuple(device.name for device in devices),
            tuple(device.limit for device in devices),
            tuple(self._workspace(layers, index) for index in range(count)),
            tuple(self._options(layer, phase) for layer in layers),
            leaving,
            arriving,
            np.array([1e6 * (device.launch + _upload(device, 2, 16)) for device in devices]),
            np.array([1e6 * _download(device, [self._logits_bytes()]) for device in devices]),
            tuple(layer.layer.name for layer in layers),
            tuple(self._tied(layers, table) for table in self._work.tied),
        )

    def _options(self, layer: DecoderLayer, phase: Phase) -> Options:
        shape = (len(layer.places), len(self._devices))
        us, nbytes = np.zeros(shape), np.zeros(shape, np.int64)
        tokens, past = self._request.tokens(phase)
        works = [self._work.work(unit.ops, tokens, past) for unit in layer.units]
        trips = [self._around(unit.ops, layer.layer.ops, tokens) for unit in layer.units]
        for row, places in enumerate(layer.places):
            for unit, work, (read, written), device in zip(
                layer.units, works, trips, places, strict=True
            ):
                us[row, device] += 1e6 * self._devices[device].speed.seconds(work)
                nbytes[row, device] += max(1, unit.nbytes)
                if device != places[0]:
                    for source, target, sizes in (
                        (places[0], device, read),
                        (device, places[0], written),
                    ):
                        out, arrive = self._move(source, target, sizes)
                        us[row, source] += out
                        us[row, target] += arrive
        return Options(np.array([places[0] for places in layer.places]), us, nbytes)

    def _tied(self, layers: Sequence[DecoderLayer], table: TiedTable) -> TiedWeights:
        """Which options of the two layers that share weights read them where.

        In the host's memory both have them from the model; a device with a memory of its own gets
        those of each submodel.
        """
        on_host = np.array([device.links is None for device in self._devices])
        first, last = (self._reads(layers[index], table.ops) for index in table.layers)
        within = on_host | table.in_one_form
        return TiedWeights(table.layers, table.nbytes, (first, last), within, on_host)

    def _reads(self, layer: DecoderLayer, ops: Collection[int]) -> Array:
        """By option of a layer and device: whether one of some operations is there."""
        found = np.zeros((len(layer.places), len(self._devices)), bool)
        for row, places in enumerate(layer.places):
            for unit, device in zip(layer.units, places, strict=True):
                found[row, device] |= any(op in ops for op in unit.ops)
        return found

    def _workspace(self, layers: Sequence[DecoderLayer], device: int) -> int:
        """Room that any layer that may come to a device needs while it runs, and shared tables."""
        tokens = self._request.chunk
        return self._work.shared_bytes + max(
            (
                self._work.workspace_bytes(unit.ops, tokens)
                for layer in layers
                for unit in layer.units
                if device in unit.devices
            ),
            default=0,
        )

    # ---------------------------------------------------------------------------- moves

    def _move(self, source: int, target: int, sizes: Sequence[int]) -> tuple[float, float]:
        """Microseconds that the source and the target are busy with handing values over."""
        start, end = self._devices[source], self._devices[target]
        core = self._placer.devices.core
        if (
            start.links is not None
            and end.links is not None
            and core.can_share(end.name, core.device_info(start.name).memory)
        ):
            return 0.0, 1e6 * end.launch
        arriving = end.launch + _upload(end, 2, 16) + sum(_upload(end, 1, size) for size in sizes)
        return 1e6 * _download(start, sizes), 1e6 * arriving

    def _crossing(self, layers: Sequence[DecoderLayer], boundary: int, phase: Phase) -> list[int]:
        """Bytes of the values between two layers, but for what several layers read (masks)."""
        before = {op for layer in layers[: boundary + 1] for op in layer.layer.ops}
        own = set(layers[boundary].layer.ops)
        tokens = self._request.tokens(phase)[0]
        return self._read_outside(own, before, tokens)

    def _read_outside(
        self, own: Collection[int], inside: Collection[int], tokens: int
    ) -> list[int]:
        """Bytes of what operations make and others than those inside read."""
        kept = set(self._caches.values())
        return [
            self._work.value_bytes(value, tokens)
            for op in own
            for value in self._op_graph.nodes[op].outputs
            if value.name not in kept
            and any(
                reader not in inside and value.name in self._op_graph.reads[reader]
                for reader in self._op_graph.succs[op]
            )
        ]

    def _around(
        self, ops: Sequence[int], whole: Sequence[int], tokens: int
    ) -> tuple[list[int], list[int]]:
        """Bytes of what a unit of a layer reads from the rest, and of what it makes for it."""
        mine, rest = set(ops), set(whole) - set(ops)
        everyone = set(range(len(self._op_graph.nodes)))
        read = self._read_outside(rest, everyone - mine, tokens)
        written = self._read_outside(mine, mine, tokens)
        return read, written

    def _logits_bytes(self) -> int:
        outputs = self._placer.model.ir.graph.outputs
        return sum(
            self._work.value_bytes(value, 1)
            for value in outputs
            if value.name not in self._caches.values()
        )


def _upload(device: DecoderDevice, count: int, nbytes: int) -> float:
    """Seconds to bring values of a size to a device."""
    if device.links is None:
        return 0.0
    return count * (device.links[0].latency + nbytes * device.links[0].per_byte)


def _download(device: DecoderDevice, sizes: Sequence[int]) -> float:
    """Seconds to bring values back."""
    if device.links is None:
        return 0.0
    return sum(device.links[1].latency + size * device.links[1].per_byte for size in sizes)
