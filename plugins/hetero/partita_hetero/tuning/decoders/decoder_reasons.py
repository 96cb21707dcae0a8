"""What a placement of layers means: speeds, memory, and a reason for each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.contract.explanation import QUIET
from partita.contract.query import Reason, ReasonCode
from partita_hetero.compile.placer import Placer
from partita_hetero.compile.replicas import replicated
from partita_hetero.cost.machine_load import busy_note
from partita_hetero.options.byte_sizes import format_bytes
from partita_hetero.placement.decision import DeviceAlternative, Replica
from partita_hetero.placement.lock_file import EITHER
from partita_hetero.planner.chain.problem import (
    Chain,
    ChainObjective,
    TiedWeights,
    blend,
    excess,
    held_once,
    use_of,
)
from partita_hetero.planner.chain.search import ChainPlan
from partita_hetero.tuning.decoders.decoder_chain import (
    PHASES,
    DecoderChain,
    Phase,
    TokenRequest,
)
from partita_hetero.tuning.decoders.decoder_replicas import DecoderReplicas, whole_on
from partita_hetero.tuning.decoders.planned_decoder import (
    DecoderPlan,
    DeviceShare,
    LayerPlace,
    OtherPlacement,
    PlannedDecoder,
    TiedPlace,
)
from partita_hetero.tuning.replication import FREE

LEAST_TIED = 1024
"""Bytes that two layers share from which on a plan says so: not of single numbers."""


def whole_request(decoder: DecoderChain, request: TokenRequest) -> Chain:
    """What a whole request costs: its prompt, and the tokens after it."""
    shares = request.shares
    return blend([decoder.chains[phase] for phase in PHASES], [shares[one] for one in PHASES])


@dataclass(frozen=True)
class Move:
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


class DecoderReport:
    """What a found placement means.

    Args:
        placer: Knows the model, and where pins and devices would have operations.
        decoder: What every layer costs.
        request: What a request is: a prompt, and tokens that follow it.
        objective: What was minimized.
        found: The plan: an option for each layer.
        replicas: Its like on further devices, if requests are spread over them.
    """

    def __init__(
        self,
        placer: Placer,
        decoder: DecoderChain,
        request: TokenRequest,
        objective: ChainObjective,
        found: ChainPlan,
        replicas: DecoderReplicas | None = None,
    ) -> None:
        self._placer, self._decoder, self._request = placer, decoder, request
        self._objective, self._found = objective, found
        self._whole = whole_request(decoder, request)
        self._shares = (1.0,) if replicas is None else replicas.shares
        self._choices = (found.choice,) if replicas is None else replicas.choices
        self._homes = self._homes_of(found.choice)
        self._twins = (
            [] if replicas is None else [self._name(self._homes_of(c)[0]) for c in replicas.choices]
        )

    def _homes_of(self, choice: Sequence[int]) -> list[tuple[int, ...]]:
        """By layer, where its units are."""
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
            [self._tied(tied) for tied in self._whole.tied if tied.nbytes >= LEAST_TIED],
            self._notes(),
            self._busy,
        )
        elsewhere = {
            op: DeviceAlternative(
                placed.decode_us, placed.alternative, placed.extra_us, placed.change
            )
            for layer, placed in zip(self._decoder.layers, layers, strict=True)
            for unit in layer.units
            for op in unit.ops
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
        for layer, places, placed in zip(self._decoder.layers, homes, layers, strict=True):
            for unit, place in zip(layer.units, places, strict=True):
                pinned = Reason(ReasonCode.PINNED, unit.pinned) if unit.pinned else placed.reason
                for op in unit.ops:
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
            for places, units in zip(self._homes_of(choice), works, strict=True):
                for place, work in zip(places, units, strict=True):
                    busy[place] += self._decoder.devices[place].speed.reading_seconds(work)
            rate += float(1 / (busy.sum() if self._objective == "LATENCY" else busy.max()))
        return rate

    def _layer(self, index: int) -> LayerPlace:
        layer, places = self._decoder.layers[index], self._homes[index]
        row = self._found.choice[index]
        names = [self._decoder.devices[place].name for place in places]
        experts = names[-1] if layer.layer.experts and places[-1] != places[0] else ""
        weights = sum(unit.weight_bytes for unit in layer.units)
        reason, other, extra, change = self._why(index)
        return LayerPlace(
            layer.layer.name,
            EITHER.join(self._twins) or names[0],
            experts,
            weights,
            sum(unit.nbytes for unit in layer.units) - weights,
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
        pins = [unit.pinned for unit in layer.units if unit.pinned]
        home = self._homes[index][0]
        others = [
            other
            for other, places in enumerate(layer.places)
            if other != row and places != self._homes[index]
        ]
        if not others:
            if pins:
                return Reason(ReasonCode.PINNED, pins[0]), "", None, "dropping its pin"
            refused = layer.units[0].refused
            reasons = "; ".join(f"not {name}: {why}" for name, why in refused.items())
            text = reasons or "there is no other device"
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
        """The device that a unit of a layer would go to by another option."""
        places = self._decoder.layers[index].places[option]
        pairs = zip(places, self._homes[index], strict=True)
        return next(self._decoder.devices[place].name for place, now in pairs if place != now)

    def _moved(self, index: int, option: int) -> Move:
        """One layer elsewhere, and all else as it is."""
        choice = list(self._found.choice)
        own = self._whole.tasks[index].us
        own_us = float(own[option].sum() - own[choice[index]].sum())
        choice[index] = option
        use = use_of(self._whole, choice)
        extra = use.value(self._objective) - self._found.value_us
        return Move(option, own_us, extra, excess(self._whole, use))

    def _share(self, device: int) -> DeviceShare:
        weights = total = 0
        choice = next(
            (one for one in self._choices if any(device in p for p in self._homes_of(one))),
            self._found.choice,
        )
        homes = self._homes_of(choice)
        for layer, places in zip(self._decoder.layers, homes, strict=True):
            for unit, place in zip(layer.units, places, strict=True):
                if place == device:
                    weights += unit.weight_bytes
                    total += unit.nbytes
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
        cache = total - weights
        weights -= int(held_once(self._whole, choice)[device])
        return DeviceShare(
            one.name,
            names,
            weights,
            cache,
            self._whole.fixed_bytes[device] if total else 0,
            one.limit,
            busy["decode"],
            busy["prefill"],
            one.speed.bandwidth,
            tuple(
                layer.layer.name
                for layer, places in zip(self._decoder.layers, homes, strict=True)
                if device in places and places[0] != device
            ),
        )

    @property
    def _busy(self) -> float:
        """The share of the processors that others used at most while devices were measured."""
        return max(one.busy for one in self._decoder.devices)

    def _notes(self) -> list[str]:
        """That devices were measured while the machine was busy."""
        devices = self._decoder.devices
        names = [one.name for one in devices if one.busy > QUIET]
        note = busy_note(f"Speeds of {', '.join(names)}", self._busy)
        return [note] if note else []

    def _tied(self, tied: TiedWeights) -> TiedPlace:
        """Where weights are that two layers share."""
        alone, held = replace(self._whole, tied=(tied,)), []
        for choice in self._choices:
            once = held_once(alone, choice) > 0
            ends = zip(tied.reads, tied.tasks, strict=True)
            first, last = (np.flatnonzero(on[choice[task]]).tolist() for on, task in ends)
            held += [*first, *(place for place in last if not (place in first and once[place]))]
        names = [self._decoder.devices[place].name for place in held]
        return TiedPlace([self._whole.names[task] for task in tied.tasks], tied.nbytes, names)

    def _alone(self, device: int) -> OtherPlacement:
        """Everything on one device."""
        name = f"only {self._decoder.devices[device].name}"
        choice = whole_on(self._decoder, device)
        if choice is None:
            layer = next(
                one for one in self._decoder.layers if (device,) * len(one.units) not in one.places
            )
            pins = [unit.pinned for unit in layer.units if unit.pinned]
            refused = [unit.refused.get(name.removeprefix("only ")) for unit in layer.units]
            why = next((str(one) for one in refused if one), pins[0] if pins else "refused")
            return OtherPlacement(name, None, None, f"{layer.layer.name}: {why}")
        lacking = excess(self._whole, use_of(self._whole, choice))
        obstacle = ", ".join(f"lacks {format_bytes(nbytes)}" for nbytes in lacking.values())
        if obstacle:
            return OtherPlacement(name, None, None, obstacle)
        return OtherPlacement(name, self._rate("decode", choice), self._rate("prefill", choice))
