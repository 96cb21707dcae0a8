"""Where every operation runs and why: the data that ``explain()`` returns, as table and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from partita.contract.query import Reason, ReasonCode
from partita.printable import printable

if TYPE_CHECKING:
    from partita.model.model import Model


@dataclass(frozen=True, slots=True)
class OpPlacement:
    """The placement of one operation.

    Attributes:
        name: The operation's name.
        op_type: Its operator.
        device: The device that runs it; ``"-"`` if it runs nowhere (constant, or unused).
        subgraph: Number of the submodel that holds it, from 1; ``None`` if it runs nowhere.
        reason: Why it is placed there.
        refused: Device to reason, for the preferred devices that do not support it.
        own_us: Its measured time there in microseconds, with the operations that are always fused
            with it; ``None`` if it was not measured.
        alternative: The next best device that supports it; empty if that is not known.
        extra_us: How much longer the whole run would take with it on the alternative, in
            microseconds; ``None`` if that is not known.
        change: What would change its placement.
        also: Other devices that run it for some of the requests, where the model has replicas.
    """

    name: str
    op_type: str
    device: str
    subgraph: int | None
    reason: Reason
    refused: Mapping[str, Reason] = field(default_factory=dict)
    own_us: float | None = None
    alternative: str = ""
    extra_us: float | None = None
    change: str = ""
    also: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Its device, or its devices joined by "or"."""
        return " or ".join((self.device, *self.also))

    @property
    def elsewhere(self) -> str:
        """The next best device and its extra cost, as text."""
        if self.extra_us is None:
            return self.alternative
        if abs(self.extra_us) >= 10_000:
            return f"{self.alternative} {self.extra_us / 1e3:+.1f} ms"
        return f"{self.alternative} {self.extra_us:+.1f} us"

    @property
    def why(self) -> str:
        """Reason and refusals in one line."""
        parts = [str(self.reason)]
        parts += [f"not {device}: {reason}" for device, reason in self.refused.items()]
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Boundary:
    """One tensor that crosses between two submodels.

    Attributes:
        value: The tensor's name in the model.
        source: Submodel that computes it, or ``None`` for an input of the model.
        target: Submodel that reads it, or ``None`` for an output of the model.
        how: ``"shared"`` (no copy), ``"upload"``, ``"download"``, or ``"host"`` (both).
        nbytes: Size, or ``None`` while the shape is not known.
        layout: The layout that both sides have agreed on; empty for C order of the tensor's type.
        casts: Conversions of the element type on the way, in order, with the device that does them.
    """

    value: str
    source: int | None
    target: int | None
    how: str
    nbytes: int | None
    layout: str = ""
    casts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One placement that was considered.

    Attributes:
        name: ``"plan"``, ``"only CPU"``, ``"priority"``, ``"CPU first"`` (all that CPU takes), or
            ``"replicas on GPU.0, GPU.1"``: the model on each, for requests that stay there.
        ops: Device to the number of operations it runs.
        submodels: How many submodels it has.
        foreseen_us: The cost model's prediction before it was run, in microseconds; ``None`` if not
            all costs were known then.
        predicted_us: The prediction after each submodel had been timed, in microseconds.
        measured_us: Median of real runs in turns with the other candidates, in microseconds.
        failure: Why it was not run, or could not be.
        spread_us: Median absolute deviation of these runs, in microseconds.
    """

    name: str
    ops: Mapping[str, int]
    submodels: int
    foreseen_us: float | None
    predicted_us: float | None
    measured_us: float | None
    failure: str = ""
    spread_us: float | None = None

    def __str__(self) -> str:
        where = ", ".join(f"{device} {count} ops" for device, count in self.ops.items())
        plural = "" if self.submodels == 1 else "s"
        text = f"{self.name} ({where} in {self.submodels} subgraph{plural})"
        if self.measured_us is not None:
            text += f": measured {self.measured_us / 1e3:.3f} ms"
            if self.spread_us is not None:
                text += f" +- {self.spread_us / 1e3:.3f}"
            if self.predicted_us is not None:
                text += f", predicted {self.predicted_us / 1e3:.3f} ms"
        return f"{text}: {self.failure}" if self.failure else text


QUIET = 0.1
"""The share of the processors that others may use of a machine that counts as quiet."""


@dataclass(frozen=True, slots=True)
class DecoderRates:
    """The predicted speed of a decoder, in tokens per second.

    Attributes:
        prefill: Speed of reading prompts, by runs of as many tokens as `chunk` says.
        decode: Speed of generating tokens while the cache is full.
        decode_at_start: Speed of generating tokens while the cache is empty.
        context: Capacity of the cache in tokens.
        busy: The share of the processors that other processes used at most while the devices were
            measured; beyond `QUIET` the prediction may be too low.
        chunk: Tokens of a prompt that one run reads.
    """

    prefill: float
    decode: float
    decode_at_start: float
    context: int
    busy: float = 0.0
    chunk: int = 1

    def prefill_in_runs_of(self, tokens: float) -> float:
        """Speed of reading prompts, in tokens per second, by runs of ``tokens``.

        The time of a run grows linearly from that of one token, in which all weights are read.
        """
        if tokens >= self.chunk:
            return self.prefill
        one, whole = 1 / self.decode_at_start, self.chunk / self.prefill
        return tokens / (one + (tokens - 1) / (self.chunk - 1) * (whole - one))

    def decode_behind(self, tokens: float) -> float:
        """Speed of generating tokens, in tokens per second, when the cache holds ``tokens``.

        The time of a token grows linearly with the part of the cache that it reads.
        """
        share = min(1.0, tokens / max(1, self.context - 1))
        return 1 / ((1 - share) / self.decode_at_start + share / self.decode)


@dataclass(frozen=True)
class Decision:
    """How the placement was chosen by measurement.

    Attributes:
        objective: What was minimized: ``"LATENCY"``, ``"PARALLEL"`` or ``"THROUGHPUT"``. Times are
            of one request, for ``"THROUGHPUT"`` the time between results.
        chosen: Name of the candidate that was kept.
        candidates: All candidates that were considered.
        gap: Upper bound on how far the plan's predicted time is above the optimum for the table of
            costs it was made from, as a fraction of that time; ``None`` without a plan.
        from_database: Whether all times were known from earlier compiles, so that nothing was run.
        notes: What could not be measured or decided, and why.
        rates: The predicted speed, for a decoder that was placed by it.
        busy: The share of the processors that other processes used at most while candidates ran;
            beyond `QUIET` the decision is made again when the machine is quieter.
    """

    objective: str
    chosen: str
    candidates: Sequence[Candidate]
    gap: float | None
    from_database: bool
    notes: Sequence[str] = ()
    rates: DecoderRates | None = None
    busy: float = 0.0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Decision:
        """The inverse of ``dataclasses.asdict``.

        Raises:
            KeyError: A field is missing.
            TypeError: There are unknown fields, or fields of other types.
        """
        candidates = [Candidate(**one) for one in data["candidates"]]
        rates = data.get("rates")
        known = {"candidates": candidates, "rates": rates and DecoderRates(**rates)}
        known["busy"] = float(data.get("busy", 0.0))
        return cls(**{**data, **known})

    def __getitem__(self, name: str) -> Candidate:
        """The candidate with a name."""
        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        raise KeyError(name)

    def lines(self) -> list[str]:
        """The decision as text, with one line per candidate."""
        source = "times of an earlier compile" if self.from_database else "measured now"
        gap = (
            ""
            if self.gap is None
            else f"; the plan was at most {self.gap:.1%} from the optimum of its table"
        )
        return [
            f"placed by costs, {self.objective}: kept '{self.chosen}' ({source}{gap})",
            *(f"  {candidate}" for candidate in self.candidates),
            *(f"  {note}" for note in self.notes),
        ]


@dataclass(frozen=True)
class Explanation:
    """The placement of a compiled model.

    Attributes:
        model: The model's name.
        ops: Every operation, in the model's order.
        subgraph_devices: Device of each submodel, by number.
        boundaries: Tensors that cross between submodels.
        notes: What else a person should know (failed devices, fallbacks), in order.
        decision: How measurements decided it, if they did.
        planned_for: Where input shapes vary: those at which measurements decided.
        near: Other placements, by the input shapes at which measurements decided for them; a
            request runs what was planned for the shapes nearest to its own.
        replicas: Where the model is on several sets of devices, whole on each: the devices of each
            set, and the part of the requests that is bound to it; empty where it is on one.
    """

    model: str
    ops: Sequence[OpPlacement]
    subgraph_devices: Sequence[str]
    boundaries: Sequence[Boundary] = ()
    notes: Sequence[str] = ()
    decision: Decision | None = None
    planned_for: str = ""
    near: Mapping[str, Explanation] = field(default_factory=dict)
    replicas: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def single_device(cls, model: Model, device: str) -> Explanation:
        """Everything on one device."""
        from partita.extensions import noted

        reason = Reason(ReasonCode.PINNED, "the model was compiled for this device")
        ops = [
            OpPlacement(op.name, op.op_type, device, 1, noted(op.node, reason)) for op in model.ops
        ]
        return cls(model.name, ops, [device])

    def __getitem__(self, op_name: str) -> OpPlacement:
        """The placement of one operation."""
        for op in self.ops:
            if op.name == op_name:
                return op
        raise KeyError(op_name)

    @property
    def ops_per_device(self) -> dict[str, int]:
        """How many operations each device runs; constant operations are not counted."""
        placed = (op for op in self.ops if op.subgraph is not None)
        return dict(Counter(device for op in placed for device in (op.device, *op.also)))

    @property
    def bytes_crossing(self) -> int:
        """Known bytes copied between submodels (shared tensors cost none)."""
        return sum(b.nbytes or 0 for b in self.boundaries if b.how != "shared")

    def summary(self) -> str:
        """One line: which device got how many operations, how many submodels, what crosses."""
        places = Counter(op.where for op in self.ops if op.subgraph is not None)
        counts = ", ".join(f"{where} {n} ops" for where, n in places.items())
        inner = [b for b in self.boundaries if b.source is not None and b.target is not None]
        shared = sum(b.how == "shared" for b in inner)
        unknown = sum(b.nbytes is None for b in inner)
        copied = sum(b.nbytes or 0 for b in inner if b.how != "shared")
        text = (
            f"{printable(self.model)}: {counts or 'no operations'} in {len(self.subgraph_devices)} "
            f"subgraph{'' if len(self.subgraph_devices) == 1 else 's'}; "
            f"{len(inner)} tensors cross ({shared} shared, {copied / 1e6:.2f} MB copied"
        )
        casts = sum(len(b.casts) for b in self.boundaries)
        text += f", {unknown} of unknown size" if unknown else ""
        return text + (f", {casts} cast{'' if casts == 1 else 's'})" if casts else ")")

    def table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Names of columns, and a row for each operation; empty columns are left out."""
        columns = ("op", "type", "device", "sub", "elsewhere", "what would change it", "why")
        rows = [
            (
                op.name,
                op.op_type,
                op.where,
                "" if op.subgraph is None else str(op.subgraph),
                op.elsewhere,
                op.change,
                op.why,
            )
            for op in self.ops
        ]
        shown = [i for i in range(7) if i < 4 or any(row[i] for row in rows) or i == 6]
        return [columns[i] for i in shown], [[printable(row[i]) for i in shown] for row in rows]

    def remarks(self) -> list[str]:
        """What stands below the table, a line each."""
        decided = self.decision.lines() if self.decision else []
        shapes = [f"planned for inputs near {self.planned_for}"] if self.planned_for else []
        spread = [self.spread()] if self.replicas else []
        return [*map(printable, [self.summary(), *spread, *self.notes, *shapes, *decided])]

    def spread(self) -> str:
        """Which replica gets which part of the requests, in words; empty where there is one."""
        shares = ", ".join(f"{devices} {share:.0%}" for devices, share in self.replicas.items())
        if not shares:
            return ""
        return f"each request stays on one of {len(self.replicas)} replicas: {shares}"

    def __str__(self) -> str:
        columns, body = self.table()
        rows = [columns, *body]
        widths = [min(48, max(map(len, column))) for column in zip(*rows, strict=True)][:-1]
        lines = [
            "  ".join([*map(str.ljust, row, widths), row[-1]])  # the last column is not padded
            for row in rows
        ]
        others = (f"\n{one}" for one in self.near.values())
        return "\n".join([*lines, "", *self.remarks(), *others])

    def to_dict(self) -> dict[str, object]:
        """The same as plain data for JSON."""
        return {**asdict(self), "summary": self.summary()}

    def to_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.to_dict(), indent=2)
