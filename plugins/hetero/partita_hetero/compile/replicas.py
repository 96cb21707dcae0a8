"""Replicas: the whole model on several devices, over which requests are spread."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from partita.contract.query import Reason, ReasonCode
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_hetero.compile.executable import Assembly
from partita_hetero.placement.by_priority import Placement, PreferredDevices


def replicated(devices: Collection[str]) -> Reason:
    """Why an operation is on several devices, or on the last of them."""
    text = f"each of {', '.join(devices)} runs it, for requests of its own"
    if len(devices) < 2:
        text = "the other devices that ran it for requests of their own are gone"
    return Reason(ReasonCode.REPLICATED, text)


def replicas_name(used: Sequence[Collection[str]]) -> str:
    """What to call replicas: by their devices, those that all of them use last.

    Args:
        used: By replica, its devices.

    Example:
        >>> replicas_name([["GPU.0", "CPU"], ["GPU.1", "CPU"]])
        'replicas on GPU.0, GPU.1 with CPU'
    """
    every = dict.fromkeys(device for one in used for device in one)
    common = [device for device in every if all(device in one for one in used)]
    own = ", ".join(device for device in every if device not in common)
    return f"replicas on {own} with {', '.join(common)}" if common else f"replicas on {own}"


@dataclass(frozen=True)
class ReplicaSet:
    """Placements of one model, whole each, that requests are spread over.

    Attributes:
        placements: One, or some on different devices.
        seats: By seat that a request can have, the placement that runs it.
        shares: By seat, the share of the requests that should have it; they add up to 1.
    """

    placements: Sequence[Placement]
    seats: Sequence[int] = (0,)
    shares: Sequence[float] = (1.0,)

    @classmethod
    def single(cls, placement: Placement) -> ReplicaSet:
        """One placement for all requests."""
        return cls((placement,))

    @classmethod
    def of(
        cls, placed: Sequence[tuple[Placement, PreferredDevices]], shares: Sequence[float]
    ) -> ReplicaSet:
        """Of a placement for each seat those that came out as they were wished.

        A placement that cannot have its devices any more is left out, and its seats go to the
        others in turn. If all are so, the first one stands for all.

        Args:
            placed: What became of wishes, by seat.
            shares: By seat, the share of the requests.
        """
        intact = [
            seat for seat, (one, preferred) in enumerate(placed) if one.follows(preferred)
        ] or [0]
        spare = itertools.cycle(range(len(intact)))
        seats = [
            intact.index(seat) if seat in intact else next(spare) for seat in range(len(placed))
        ]
        return cls(_with_device_names([placed[seat][0] for seat in intact]), seats, shares)

    @property
    def key(self) -> tuple[tuple[str | None, ...], ...]:
        """Equal for those of the same devices."""
        return tuple(tuple(one.device) for one in self.placements)


def _with_device_names(placements: Sequence[Placement]) -> list[Placement]:
    """Replicas whose reasons name the devices on which there is one."""
    devices = [dict.fromkeys(homes) for homes in zip(*(p.device for p in placements), strict=True)]
    named = []
    for one in placements:
        pairs = zip(one.reason, devices, strict=True)
        why = [
            replicated([home for home in homes if home is not None])
            if reason.code is ReasonCode.REPLICATED
            else reason
            for reason, homes in pairs
        ]
        named.append(replace(one, reason=why))
    return named


def with_replicas(assemblies: Sequence[Assembly], replica_set: ReplicaSet) -> Assembly:
    """The first assembly, which knows the others, its replicas, and tells of them.

    Args:
        assemblies: Each is the whole model, by one of the placements.
        replica_set: The placements.
    """
    first, *others = assemblies
    if not others:
        return first
    columns = zip(*(one.explanation.ops for one in assemblies), strict=True)
    ops = []
    for own, *there in columns:
        also = tuple(dict.fromkeys(op.device for op in there if op.device != own.device))
        ops.append(replace(own, also=also, alternative="", extra_us=None) if also else own)
    share_of: dict[str, float] = {}
    for seat, share in zip(replica_set.seats, replica_set.shares, strict=True):
        devices = dict.fromkeys(submodel.device for submodel in assemblies[seat].submodels)
        name = " with ".join(devices)
        share_of[name] = share_of.get(name, 0.0) + share
    notes = dict.fromkeys(note for one in assemblies for note in one.explanation.notes)
    explanation = replace(first.explanation, ops=ops, notes=list(notes), replicas=share_of)
    return replace(
        first,
        explanation=explanation,
        replicas=others,
        seats=tuple(replica_set.seats),
        shares=tuple(replica_set.shares),
    )


def assembly_of_seat(assembly: Assembly, seat: int) -> Assembly:
    """What a request with this seat runs: the assembly, or one of its replicas.

    Args:
        assembly: What the model was compiled to.
        seat: Number of the request, counted from 0 as they are created.
    """
    if not assembly.replicas:
        return assembly
    return (assembly, *assembly.replicas)[assembly.seats[seat % len(assembly.seats)]]


class ReplicaBindings:
    """Which replica each request of a model is bound to, from its creation on.

    A new request gets the seat that then has the fewest requests for its share, the first of
    equals; one that is closed makes room.

    Example:
        >>> seats, found = ReplicaBindings(), []
        >>> for _ in range(4):
        ...     found.append(seats.choose([0.75, 0.25]))
        ...     seats.take(found[-1])
        >>> found
        [0, 0, 0, 1]
    """

    def __init__(self) -> None:
        self._lock = InterruptSafeLock()  # garbage that is collected while it is held leaves seats
        self._taken: defaultdict[int, int] = defaultdict(int)

    def choose(self, shares: Sequence[float]) -> int:
        """The seat that a new request should have.

        Args:
            shares: By seat, the share of the requests that should have it.
        """
        with self._lock:
            taken = self._taken
            return min(range(len(shares)), key=lambda one: (taken[one] + 1) / shares[one])

    def take(self, seat: int) -> None:
        """Counts a request that has a seat."""
        with self._lock:
            self._taken[seat] += 1  # no call, in which garbage may be collected

    def leave(self, seat: int) -> None:
        """Counts it no more."""
        with self._lock:
            self._taken[seat] -= 1
