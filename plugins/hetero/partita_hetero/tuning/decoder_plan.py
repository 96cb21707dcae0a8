"""The plan of a decoder: where its layers go, how fast it will be, and what each device holds."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.contract.explanation import Candidate, Decision, DecoderRates
from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.errors import InfeasiblePlanError, PlanError
from partita.model.model import Model
from partita.model.prompt_chunk import chunk_tokens
from partita_hetero.compile.placer import Placer
from partita_hetero.compile.replicas import replicated
from partita_hetero.cost.attention_probe import AttentionShape
from partita_hetero.cost.token_work import DecoderWork
from partita_hetero.options.byte_sizes import format_bytes
from partita_hetero.partition.decoder_layers import cache_inputs, decoder_layers
from partita_hetero.placement.decision import Choice, Elsewhere, Replica
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.placement.lock_file import EITHER, SHARES, Lock, graph_digest
from partita_hetero.planner.chain.problem import Chain, ChainObjective, blend, excess, use_of
from partita_hetero.planner.chain.search import ChainPlan, solve_chain
from partita_hetero.tuning.decoder_chain import (
    PHASES,
    ChainBuilder,
    DecoderChain,
    DecoderDevice,
    Phase,
    TokenRequest,
    describe_devices,
    formats_of,
)
from partita_hetero.tuning.decoder_replicas import DecoderReplicas, best_replicas, whole_on
from partita_hetero.tuning.replication import FREE, twins_of

SMALLEST_CONTEXT = 16
"""Below this no context is tried where memory does not suffice."""


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
        weight_bytes: Weights.
        cache_bytes: Caches at the whole context.
        workspace_bytes: What running its layers needs beside.
        limit_bytes: What it may hold, or ``None``.
        decode_share: Part of a token's time that it is busy.
        prefill_share: The same for a prompt.
        bandwidth: Bytes that it reads a second, by the probe of the fastest format.
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

    @property
    def total_bytes(self) -> int:
        """All that it holds."""
        return self.weight_bytes + self.cache_bytes + self.workspace_bytes


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

    def line(self) -> str:
        """The plan in one line."""
        where = ", ".join(
            f"{one.device} {layer_range(one.layers)} ({format_bytes(one.total_bytes)})"
            for one in self.devices
            if one.layers
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
    elsewhere: Mapping[int, Elsewhere]
    replicas: Sequence[Replica] = ()

    def lock(self, model: Model, drivers: Mapping[str, str]) -> Lock:
        """The plan as a placement lock.

        Args:
            model: What was planned.
            drivers: Device to its driver, where known.
        """
        ops, plan = model.ops, self.plan
        every = [self.device_of, *(one.wishes for one in self.replicas)]
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

    def choice(self) -> Choice:
        """As a choice of HETERO's scheduler."""
        plan = self.plan
        every = [self.device_of, *(one.wishes for one in self.replicas)]
        homes = [[device for device, _ in one.values()] for one in every]
        counts = {name: ops.count(name) for ops in homes for name in dict.fromkeys(ops)}
        pieces = sum(1 + sum(one != two for one, two in itertools.pairwise(ops)) for ops in homes)
        name = f"replicas on {', '.join(plan.replicas)}" if plan.replicas else "plan"
        candidates = [Candidate(name, counts, pieces, plan.request_us, None, None)]
        rates = DecoderRates(plan.prefill, plan.decode, plan.decode_at_start, plan.request.context)
        return self._choice(
            Decision(plan.objective, name, candidates, plan.gap, False, [plan.line()], rates)
        )

    def _choice(self, decision: Decision | None) -> Choice:
        return Choice(
            *(self.device_of, decision, None, self.elsewhere),
            keeps_limits=True,
            replicas=self.replicas,
        )


def plan_decoder(
    placer: Placer,
    devices: Sequence[DecoderDevice],
    request: TokenRequest,
    objective: ChainObjective,
    out: Mapping[tuple[int, str], Reason],
) -> PlannedDecoder:
    """The best placement of a decoder's layers.

    Args:
        placer: Knows the operations, the pins and what devices take.
        devices: What layers can go to.
        request: What the plan is for.
        objective: What is minimized.
        out: What devices failed to compile.

    Raises:
        InfeasiblePlanError: Memory does not suffice; says which device lacks how much, and which
            context would fit.
        PlanError: The model's cache holds less than the context that is asked for.
    """
    start = time.perf_counter()

    def chain_at(context: int) -> DecoderChain:
        asked = replace(request, context=context)
        return ChainBuilder(placer, devices, asked, out, shrinks=True).build()

    decoder = ChainBuilder(placer, devices, request, out).build()
    whole = _whole(decoder, request)
    try:
        found = solve_chain(whole, objective)
    except InfeasiblePlanError as error:
        fits = _largest_context(chain_at, request, objective)
        advice = (
            f"A context of {fits} tokens would fit."
            if fits
            else f"Not even {SMALLEST_CONTEXT} tokens of context would fit."
        )
        raise InfeasiblePlanError(
            f"Model '{placer.model.name}' does not fit with a cache for {request.context} tokens: "
            f"{error} {advice} Raise a limit, add a device, or ask for less context."
        ) from error
    found, spread = _with_replicas(placer.devices, decoder, whole, objective, found)
    report = _Report(placer, decoder, request, objective, found, spread)
    return report.made(time.perf_counter() - start)


def _with_replicas(
    devices: DeviceList,
    decoder: DecoderChain,
    whole: Chain,
    objective: ChainObjective,
    found: ChainPlan,
) -> tuple[ChainPlan, DecoderReplicas | None]:
    """The plan, or the first of replicas that do more requests, and these."""
    groups = twins_of(devices, whole.devices) if objective == "THROUGHPUT" else []
    spread = best_replicas(decoder, whole, groups)
    if spread is None or spread.value_us >= found.value_us:
        return found, None
    bound = min(found.bound_us, spread.value_us)
    first = spread.choices[0]
    use = use_of(whole, first)
    return replace(found, choice=first, value_us=spread.value_us, bound_us=bound, use=use), spread


def plan_model(model: Model, devices: DeviceList) -> PlannedDecoder:
    """The plan of a decoder on a device list, by its properties; nothing is compiled.

    Raises:
        PlanError: The model is no decoder, or as :func:`plan_for`.
        InfeasiblePlanError: Memory does not suffice.
    """
    planned = plan_for(Placer(model, devices), {})
    if planned is None:
        raise PlanError(
            f"Model '{model.name}' is no decoder: it has no input that holds keys and values of "
            "tokens before."
        )
    return planned


def plan_for(placer: Placer, out: Mapping[tuple[int, str], Reason]) -> PlannedDecoder | None:
    """The plan that properties ask for; ``None`` if the model is no decoder.

    Devices are measured where the database knows nothing of them.

    Raises:
        InfeasiblePlanError: Memory does not suffice.
        PlanError: A device cannot be measured, or the model's cache holds less than is asked for.
    """
    if not decoder_layers(placer.model, placer.wiring):
        return None
    devices, properties = placer.devices, placer.devices.properties
    work = DecoderWork(placer.model, placer.wiring, properties.HETERO_CONTEXT)
    held = placer.model.weight_bytes + work.cache_bytes(cache_inputs(placer.model))
    request = TokenRequest(
        properties.HETERO_CONTEXT,
        properties.HETERO_PROMPT_TOKENS,
        properties.HETERO_NEW_TOKENS,
        properties.HETERO_CHUNK_TOKENS or chunk_tokens(placer.model, held),
    )
    objective: ChainObjective = "LATENCY"
    if properties.PERFORMANCE_HINT.is_throughput:
        objective = "THROUGHPUT"
    names = _usable(placer, [*devices.names, *placer.pins.values()])
    described = describe_devices(
        *(devices, names, formats_of(placer, work), placer.model.weight_bytes),
        AttentionShape.of(placer.model, placer.wiring),
    )
    return plan_decoder(placer, described, request, objective, out)


def _usable(placer: Placer, names: Sequence[str]) -> list[str]:
    """Devices without references, unless only those take something."""
    listed = list(dict.fromkeys(names))
    others = [name for name in listed if placer.devices.welcomes(name)]
    answers = [placer.ask(name) for name in others]
    taken = all(
        any(all(placer.wiring.names()[op] in answer for op in layer.ops) for answer in answers)
        for layer in decoder_layers(placer.model, placer.wiring)
    )
    return others if taken else listed


def _whole(decoder: DecoderChain, request: TokenRequest) -> Chain:
    """What a whole request costs: its prompt, and the tokens after it."""
    shares = request.shares
    return blend([decoder.chains[phase] for phase in PHASES], [shares[one] for one in PHASES])


def _largest_context(
    chain_at: Callable[[int], DecoderChain], request: TokenRequest, objective: ChainObjective
) -> int:
    """The longest context whose cache has room; 0 if there is none."""

    def fits(context: int) -> bool:
        try:
            solve_chain(_whole(chain_at(context), request), objective, most_labels=64)
        except (InfeasiblePlanError, PlanError):
            return False
        return True

    if not fits(SMALLEST_CONTEXT):
        return 0
    low, high = SMALLEST_CONTEXT, request.context
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class _Move:
    """A layer placed by another option.

    Attributes:
        option: Which.
        own_us: What the layer itself takes longer in a request.
        extra_us: What the request takes longer.
        lacking: Device to the bytes that it then lacks.
    """

    option: int
    own_us: float
    extra_us: float
    lacking: Mapping[str, int]


class _Report:
    """What a found placement means."""

    def __init__(
        self,
        placer: Placer,
        decoder: DecoderChain,
        request: TokenRequest,
        objective: ChainObjective,
        found: ChainPlan,
        spread: DecoderReplicas | None = None,
    ) -> None:
        self._placer, self._decoder, self._request = placer, decoder, request
        self._objective, self._found = objective, found
        self._whole = _whole(decoder, request)
        self._shares = (1.0,) if spread is None else spread.shares
        self._choices = (found.choice,) if spread is None else spread.choices
        self._homes = self._homes_of(found.choice)
        self._twins = (
            [] if spread is None else [self._name(self._homes_of(c)[0]) for c in spread.choices]
        )

    def _homes_of(self, choice: Sequence[int]) -> list[tuple[int, ...]]:
        """By layer, where its parts are."""
        return [layer.places[row] for layer, row in zip(self._decoder.layers, choice, strict=True)]

    def _name(self, places: Sequence[int]) -> str:
        return self._decoder.devices[places[0]].name

    def made(self, seconds: float) -> PlannedDecoder:
        """The plan."""
        rates = {
            phase: sum(self._rate(phase, choice) for choice in self._choices) for phase in PHASES
        }
        layers = [self._layer(index) for index in range(len(self._homes))]
        plan = DecoderPlan(
            self._placer.model.name,
            self._objective,
            self._request,
            rates["decode"],
            rates["decode_at_start"],
            rates["prefill"],
            self._found.value_us,
            self._found.bound_us,
            self._found.gap,
            self._bandwidth_decode(),
            seconds,
            [self._share(index) for index in range(len(self._decoder.devices))],
            layers,
            [self._alone(index) for index in range(len(self._decoder.devices))],
            self._twins,
        )
        elsewhere = {
            op: Elsewhere(told.decode_us, told.alternative, told.extra_us, told.change)
            for layer, told in zip(self._decoder.layers, layers, strict=True)
            for part in layer.parts
            for op in part.ops
        }
        first, *others = (self._device_of(choice, layers) for choice in self._choices)
        replicas = [Replica(*pair) for pair in zip(others, self._shares[1:], strict=True)]
        return PlannedDecoder(plan, first, elsewhere, replicas)

    def _device_of(
        self, choice: Sequence[int], layers: Sequence[LayerPlace]
    ) -> dict[int, tuple[str, Reason]]:
        """Operation to device and reason."""
        device_of: dict[int, tuple[str, Reason]] = {}
        homes = self._homes_of(choice)
        for layer, places, told in zip(self._decoder.layers, homes, layers, strict=True):
            for part, place in zip(layer.parts, places, strict=True):
                pinned = Reason(ReasonCode.PINNED, part.pinned) if part.pinned else told.reason
                for op in part.ops:
                    device_of[op] = (self._decoder.devices[place].name, pinned)
        return dict(sorted(device_of.items()))

    def _rate(self, phase: Phase, choice: Sequence[int]) -> float:
        """Tokens a second."""
        value = use_of(self._decoder.chains[phase], choice).value(self._objective)
        return 1e6 * self._request.tokens(phase)[0] / value

    def _bandwidth_decode(self) -> float:
        """Tokens a second by bytes over bandwidth alone."""
        rate = 0.0
        for choice in self._choices:
            busy = np.zeros(len(self._decoder.devices))
            works = self._decoder.work["decode"]
            for (place, *_), work in zip(self._homes_of(choice), works, strict=True):
                busy[place] += work.bytes_read / self._decoder.devices[place].speed.bandwidth
            rate += float(1 / (busy.sum() if self._objective == "LATENCY" else busy.max()))
        return rate

    def _layer(self, index: int) -> LayerPlace:
        layer, places = self._decoder.layers[index], self._homes[index]
        row = self._found.choice[index]
        names = [self._decoder.devices[place].name for place in places]
        experts = names[-1] if layer.layer.experts and places[-1] != places[0] else ""
        weights = sum(part.weight_bytes for part in layer.parts)
        reason, other, extra, change = self._why(index)
        return LayerPlace(
            layer.layer.name,
            EITHER.join(self._twins) or names[0],
            experts,
            weights,
            sum(part.nbytes for part in layer.parts) - weights,
            float(self._decoder.chains["decode"].tasks[index].us[row].sum()),
            float(self._decoder.chains["prefill"].tasks[index].us[row].sum()),
            reason,
            other,
            extra,
            change,
        )

    def _why(self, index: int) -> tuple[Reason, str, float | None, str]:
        """Reason, best other device, what it would cost, and what would change the place."""
        if self._twins:
            return replicated(self._twins), "", None, FREE
        layer, row = self._decoder.layers[index], self._found.choice[index]
        pins = [part.pinned for part in layer.parts if part.pinned]
        home = self._homes[index][0]
        others = [
            other
            for other, places in enumerate(layer.places)
            if other != row and places != self._homes[index]
        ]
        if not others:
            if pins:
                return Reason(ReasonCode.PINNED, pins[0]), "", None, "dropping its pin"
            refused = layer.parts[0].refused
            told = "; ".join(f"not {name}: {why}" for name, why in refused.items())
            text = told or "there is no other device"
            return Reason(ReasonCode.FALLBACK, text), "", None, "another device taking it"
        moves = [self._moved(index, other) for other in others]
        crowded = [move for move in moves if move.lacking and move.own_us < 0]
        move = min(crowded or moves, key=lambda one: one.own_us if crowded else one.extra_us)
        here, there = self._decoder.devices[home].name, self._changed(index, move.option)
        if crowded:
            short = ", ".join(f"'{who}' lacks {format_bytes(n)}" for who, n in move.lacking.items())
            saved = f"it would compute it in {-move.own_us / 1e3:.1f} ms less for a request"
            reason = Reason(ReasonCode.MEMORY_LIMIT, f"{short} for it; {saved}")
            return reason, there, None, f"a higher limit for {next(iter(move.lacking))}"
        text = f"a request takes {move.extra_us / 1e3:.1f} ms less on {here} than on {there}"
        reason = Reason(ReasonCode.CHEAPER_BY, text)
        return reason, there, move.extra_us, f"other speeds of {there}"

    def _changed(self, index: int, option: int) -> str:
        """The device that a part of a layer would go to by another option."""
        places = self._decoder.layers[index].places[option]
        pairs = zip(places, self._homes[index], strict=True)
        return next(self._decoder.devices[place].name for place, now in pairs if place != now)

    def _moved(self, index: int, option: int) -> _Move:
        """One layer elsewhere, and all else as it is."""
        choice = list(self._found.choice)
        own = self._whole.tasks[index].us
        own_us = float(own[option].sum() - own[choice[index]].sum())
        choice[index] = option
        use = use_of(self._whole, choice)
        extra = use.value(self._objective) - self._found.value_us
        return _Move(option, own_us, extra, excess(self._whole, use))

    def _share(self, device: int) -> DeviceShare:
        weights = total = 0
        choice = next(
            (one for one in self._choices if any(device in p for p in self._homes_of(one))),
            self._found.choice,
        )
        homes = self._homes_of(choice)
        for layer, places in zip(self._decoder.layers, homes, strict=True):
            for part, place in zip(layer.parts, places, strict=True):
                if place == device:
                    weights += part.weight_bytes
                    total += part.nbytes
        busy: dict[Phase, float] = {}
        for phase in PHASES:
            load = use_of(self._decoder.chains[phase], choice).load_us
            busy[phase] = float(load[device] / load.sum())
        one = self._decoder.devices[device]
        names = tuple(
            layer.layer.name
            for layer, places in zip(self._decoder.layers, homes, strict=True)
            if places[0] == device
        )
        return DeviceShare(
            one.name,
            names,
            weights,
            total - weights,
            self._whole.fixed_bytes[device] if total else 0,
            one.limit,
            busy["decode"],
            busy["prefill"],
            one.speed.bandwidth,
        )

    def _alone(self, device: int) -> OtherPlacement:
        """Everything on one device."""
        name = f"only {self._decoder.devices[device].name}"
        choice = whole_on(self._decoder, device)
        if choice is None:
            layer = next(
                one for one in self._decoder.layers if (device,) * len(one.parts) not in one.places
            )
            pins = [part.pinned for part in layer.parts if part.pinned]
            refused = [part.refused.get(name.removeprefix("only ")) for part in layer.parts]
            why = next((str(one) for one in refused if one), pins[0] if pins else "refused")
            return OtherPlacement(name, None, None, f"{layer.layer.name}: {why}")
        lacking = excess(self._whole, use_of(self._whole, choice))
        obstacle = ", ".join(f"lacks {format_bytes(nbytes)}" for nbytes in lacking.values())
        if obstacle:
            return OtherPlacement(name, None, None, obstacle)
        return OtherPlacement(name, self._rate("decode", choice), self._rate("prefill", choice))


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
    told = ", ".join("-".join(map(str, run)) for run in runs)
    layers = [f"layer{'s' if len(numbers) > 1 else ''} {told}"] if numbers else []
    first = ["embedding"] if "embedding" in names else []
    last = ["head"] if "head" in names else []
    return ", ".join([*first, *layers, *last])
