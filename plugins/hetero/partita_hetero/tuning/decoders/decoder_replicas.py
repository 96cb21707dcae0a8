"""A whole decoder on each of several devices that compute alike, for sequences of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita_hetero.planner.chain.problem import Chain, excess, use_of
from partita_hetero.tuning.decoders.decoder_chain import DecoderChain


@dataclass(frozen=True)
class DecoderReplicas:
    """Devices that have all of a decoder each.

    Attributes:
        choices: By replica, the option of each layer.
        shares: By replica, the share of the requests.
        value_us: Time between results of requests, all replicas working.
    """

    choices: tuple[tuple[int, ...], ...]
    shares: tuple[float, ...]
    value_us: float


def whole_on(decoder: DecoderChain, device: int) -> tuple[int, ...] | None:
    """The options by which each layer is on a device; ``None`` if one cannot be there.

    Args:
        decoder: The layers.
        device: Its index.
    """
    choice = []
    for layer in decoder.layers:
        places = (device,) * len(layer.units)
        if places not in layer.places:
            return None
        choice.append(layer.places.index(places))
    return tuple(choice)


def best_replicas(
    decoder: DecoderChain, whole: Chain, groups: Sequence[Sequence[str]]
) -> DecoderReplicas | None:
    """The fastest replicas; ``None`` where no two devices that compute alike have room.

    Args:
        decoder: The layers.
        whole: What a whole request costs.
        groups: Devices that compute alike, by name.
    """
    found = []
    for group in groups:
        fitting: list[tuple[tuple[int, ...], float]] = []
        for name in group:
            choice = whole_on(decoder, whole.devices.index(name))
            if choice is None:
                continue
            use = use_of(whole, choice)
            if not excess(whole, use):
                fitting.append((choice, 1 / use.value("THROUGHPUT")))
        if len(fitting) > 1:
            speed = sum(speed for _, speed in fitting)
            choices = tuple(choice for choice, _ in fitting)
            shares = tuple(own / speed for _, own in fitting)
            found.append(DecoderReplicas(choices, shares, 1 / speed))
    return min(found, key=lambda one: one.value_us, default=None)
