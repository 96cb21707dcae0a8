"""A decoder with a place for each layer: what it will do, as data, and what HETERO makes of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partita.contract.explanation import Candidate, Decision, DecoderRates
from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.model.model import Model
from partita_hetero.options.byte_sizes import format_bytes
from partita_hetero.placement.decision import ChosenPlacement, DeviceAlternative, Replica
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.placement.lock_file import EITHER, SHARES, Lock, graph_digest
from partita_hetero.planner.chain.problem import ChainObjective
from partita_hetero.tuning.decoders.decoder_chain import (
    TokenRequest,
)


@dataclass(frozen=True)
class LayerPlace:
    """Where a layer is.

    Attributes:
        layer: ``"embedding"``, ``"layer 0"``, ..., ``"head"``.
        device: Where its attention is, and its cache; with replicas, ``"GPU.0 or GPU.1"``.
        experts: Where its experts are, if those are elsewhere; else empty.
        weight_bytes: Its weights.
        cache_bytes: Its cache at the whole context.
        decode_us: What it takes for one token, the cache being full.
        prefill_us: What it takes for a chunk of a prompt.
        reason: Why it is there.
        alternative: The best other device, if any takes it.
        extra_us: What a request would take longer with it there; ``None`` where it has no room.
        change: What would change its place.
    """

    layer: str
    device: str
    experts: str
    weight_bytes: int
    cache_bytes: int
    decode_us: float
    prefill_us: float
    reason: Reason
    alternative: str
    extra_us: float | None
    change: str


@dataclass(frozen=True)
class DeviceShare:
    """What one device holds and does.

    Attributes:
        device: Its name.
        layers: Names of the layers on it.
        weight_bytes: Weights; what two layers share counts as often as the device holds it.
        cache_bytes: Caches at the whole context.
        workspace_bytes: What running its layers needs beside.
        limit_bytes: What it may hold, or ``None``.
        decode_share: Share of a token's time that it is busy.
        prefill_share: The same for a prompt.
        bandwidth: Bytes that it reads a second, by the probe of the fastest format.
        parts: Names of the layers of which it has the experts, or other operations, alone.
    """

    device: str
    layers: tuple[str, ...]
    weight_bytes: int
    cache_bytes: int
    workspace_bytes: int
    limit_bytes: int | None
    decode_share: float
    prefill_share: float
    bandwidth: float
    parts: tuple[str, ...] = ()

    @property
    def has(self) -> str:
        """The layers on it, and those of which it has a part, in few words; empty for none."""
        of_others = [f"parts of {layer_range(self.parts)}"] if self.parts else []
        return ", ".join([layer_range(self.layers)] * bool(self.layers) + of_others)

    @property
    def total_bytes(self) -> int:
        """All that it holds."""
        return self.weight_bytes + self.cache_bytes + self.workspace_bytes


@dataclass(frozen=True)
class TiedPlace:
    """Where weights are that two layers share.

    Attributes:
        layers: Names of the two; each has them among its own weights.
        nbytes: What they take.
        devices: Devices that hold them, one that holds them twice two times.
    """

    layers: Sequence[str]
    nbytes: int
    devices: Sequence[str]

    def __str__(self) -> str:
        """Who shares how much, and where it is."""
        held = [
            f"{'once' if self.devices.count(name) == 1 else 'twice'} on {name}"
            for name in dict.fromkeys(self.devices)
        ]
        shared = f"{' and '.join(self.layers)} share {format_bytes(self.nbytes)} of weights"
        return f"{shared}, held {' and '.join(held)}"


@dataclass(frozen=True)
class OtherPlacement:
    """A placement that the plan is compared with.

    Attributes:
        name: ``"only CPU"``.
        decode: Tokens a second with a full cache; ``None`` if it is impossible.
        prefill: Tokens of a prompt a second.
        obstacle: Why it is impossible.
    """

    name: str
    decode: float | None
    prefill: float | None
    obstacle: str = ""


@dataclass(frozen=True)
class DecoderPlan:
    """Where a decoder's layers go.

    Attributes:
        model: The model's name.
        objective: ``"LATENCY"`` (of one request) or ``"THROUGHPUT"`` (of a pipeline of requests).
        request: What it was made for.
        decode: Tokens a second that it will generate while the cache is full.
        decode_at_start: The same while the cache is empty.
        prefill: Tokens of a prompt a second.
        request_us: What was minimized: a prompt and the tokens after it.
        bound_us: No placement takes less, by the same costs.
        gap: How far the plan can at most be above the optimum, as a share of it.
        bandwidth_decode: Tokens a second if each device did nothing but read its weights and caches
            as fast as the probe did.
        seconds: How long planning took.
        devices: What each one does.
        layers: Where each layer is, and why.
        others: Other placements.
        replicas: Devices that have the whole decoder each, if there are several; tokens a second
            are those of all together.
        tied: Weights that two layers share, and where they are.
        notes: What makes the prediction uncertain.
        busy: The share of the processors that others used at most while devices were measured.
    """

    model: str
    objective: ChainObjective
    request: TokenRequest
    decode: float
    decode_at_start: float
    prefill: float
    request_us: float
    bound_us: float
    gap: float
    bandwidth_decode: float
    seconds: float
    devices: Sequence[DeviceShare]
    layers: Sequence[LayerPlace]
    others: Sequence[OtherPlacement]
    replicas: Sequence[str] = ()
    tied: Sequence[TiedPlace] = ()
    notes: Sequence[str] = ()
    busy: float = 0.0

    def line(self) -> str:
        """The plan in one line."""
        where = ", ".join(
            f"{one.device} {one.has} ({format_bytes(one.total_bytes)})"
            for one in self.devices
            if one.has
        )
        if self.replicas:
            where = f"whole on each of {', '.join(self.replicas)}: {where}"
        return (
            f"{where}: decode {self.decode:.1f} tokens/s at {self.request.context} tokens of "
            f"context, prefill {self.prefill:.0f} tokens/s by the probes; at most "
            f"{self.gap:.1%} from the optimum"
        )


@dataclass(frozen=True)
class PlannedDecoder:
    """A plan with what HETERO needs to carry it out.

    Attributes:
        plan: For people.
        device_of: Operation to device and reason.
        elsewhere: Operation to what it would cost elsewhere.
        replicas: The same decoder on further devices.
    """

    plan: DecoderPlan
    device_of: Mapping[int, tuple[str, Reason]]
    elsewhere: Mapping[int, DeviceAlternative]
    replicas: Sequence[Replica] = ()

    def lock(self, model: Model, drivers: Mapping[str, str]) -> Lock:
        """The plan as a placement lock.

        Args:
            model: What was planned.
            drivers: Device to its driver, where known.
        """
        ops, plan = model.ops, self.plan
        every = [self.device_of, *(one.preferred for one in self.replicas)]
        homes = {op: dict.fromkeys(one[op][0] for one in every) for op in self.device_of}
        placed = {ops[op].name: EITHER.join(devices) for op, devices in homes.items()}
        used = dict.fromkeys(device for devices in homes.values() for device in devices)
        shares = [f"{share:.3f}" for share in self._choice(None).shares]
        spread = {SHARES: " ".join(shares)} if self.replicas else {}
        return Lock(
            model.name,
            graph_digest(model),
            {name: drivers.get(name, "") for name in used},
            placed,
            {ops[op].name: ops[op].op_type for op in self.device_of},
            {
                "objective": plan.objective,
                "context": plan.request.context,
                "prompt_tokens": plan.request.prompt,
                "new_tokens": plan.request.new,
                "decode_tokens_per_s": round(plan.decode, 3),
                "prefill_tokens_per_s": round(plan.prefill, 3),
                "value_us": round(plan.request_us, 3),
                "bound_us": round(plan.bound_us, 3),
                **spread,
            },
        )

    def query_result(self, model: Model, devices: DeviceList) -> QueryResult:
        """The plan as an answer to the question who takes what."""
        ops = model.ops
        planned = {ops[op].name: place for op, place in self.device_of.items()}
        unplanned = Reason(ReasonCode.CONSTANT, "computed once, or not needed for any output")
        return QueryResult(
            f"{devices.own_name}:{','.join(devices.names)}",
            {name: device for name, (device, _) in planned.items()},
            {op.name: planned[op.name][1] if op.name in planned else unplanned for op in ops},
        )

    def choice(self) -> ChosenPlacement:
        """As a choice of HETERO's scheduler."""
        plan = self.plan
        every = [self.device_of, *(one.preferred for one in self.replicas)]
        homes = [[device for device, _ in one.values()] for one in every]
        counts = {name: ops.count(name) for ops in homes for name in dict.fromkeys(ops)}
        submodels = sum(
            1 + sum(one != two for one, two in itertools.pairwise(ops)) for ops in homes
        )
        name = f"replicas on {', '.join(plan.replicas)}" if plan.replicas else "plan"
        candidates = [Candidate(name, counts, submodels, plan.request_us, None, None)]
        rates = DecoderRates(
            plan.prefill,
            plan.decode,
            plan.decode_at_start,
            plan.request.context,
            plan.busy,
            plan.request.chunk,
        )
        return self._choice(
            Decision(
                plan.objective, name, candidates, plan.gap, False, [plan.line(), *plan.notes], rates
            )
        )

    def _choice(self, decision: Decision | None) -> ChosenPlacement:
        return ChosenPlacement(
            preferred=self.device_of,
            decision=decision,
            predicted=None,
            elsewhere=self.elsewhere,
            keeps_limits=True,
            replicas=self.replicas,
        )


def layer_range(names: Sequence[str]) -> str:
    """Names of layers in few words.

    Example:
        >>> layer_range(["embedding", "layer 0", "layer 1", "layer 2", "layer 5", "head"])
        'embedding, layers 0-2, 5, head'
    """
    numbers = [int(name.removeprefix("layer ")) for name in names if name.startswith("layer ")]
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    ranges = ", ".join("-".join(map(str, run)) for run in runs)
    layers = [f"layer{'s' if len(numbers) > 1 else ''} {ranges}"] if numbers else []
    first = ["embedding"] if "embedding" in names else []
    last = ["head"] if "head" in names else []
    return ", ".join([*first, *layers, *last])
