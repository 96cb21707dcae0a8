"""Placement locks: a plan as a file that people read and diff, and that a compile takes back."""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.errors import PlanError
from partita.system.written_file import writing
from partita_hetero.placement import toml

if TYPE_CHECKING:
    from partita.model.model import Model

FORMAT = "partita-placement"
VERSION = 1

MOST_BYTES = 16 << 20
"""Of a lock: a line of a hundred letters for each of 160,000 operations."""

MOST_PARTS = 32
"""Dots in a line that are not in quotes; tomllib takes a time that grows by their square."""

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*')

_HEADER = """\
# Where each operation runs. Written by Partita; edit it, diff it, keep it beside the model.
# partita run MODEL -d HETERO:... --lock THIS_FILE
"""

EITHER = " or "
"""Between devices of which each runs an operation, for requests of its own."""

SHARES = "shares"
"""In the table of the plan: the share of the requests of each replica, as text."""


@dataclass(frozen=True)
class Lock:
    """A placement.

    Attributes:
        model: The model's name.
        graph: Digest of its operations, see :func:`graph_digest`.
        devices: Device to its driver, with version.
        ops: Operation to device, in the model's order. Constant operations are left out. With
            replicas, ``"GPU.0 or GPU.1"``.
        op_types: Operation to operator, for readers.
        plan: What the plan was made for and what it promises: texts and numbers, by name.
    """

    model: str
    graph: str
    devices: Mapping[str, str]
    ops: Mapping[str, str]
    op_types: Mapping[str, str] = field(default_factory=dict)
    plan: Mapping[str, toml.Scalar] = field(default_factory=dict)

    def devices_of(self, op: str) -> list[str]:
        """The device of an operation, or that of each replica."""
        return self.ops[op].split(EITHER)

    @property
    def replicas(self) -> int:
        """How many there are; 1 without any."""
        return max((len(self.devices_of(op)) for op in self.ops), default=1)

    @property
    def share_text(self) -> str:
        """What the plan says of the shares of the requests; equal ones where it says nothing."""
        return str(self.plan.get(SHARES, "1 " * self.replicas))

    @property
    def shares(self) -> list[float]:
        """The share of the requests of each replica; of one without replicas all."""
        shares = [float(one) for one in self.share_text.split()]
        return [share / sum(shares) for share in shares]

    def text(self) -> str:
        """The file: an operation a line, in the model's order."""
        head: dict[str, toml.Scalar] = {
            "name": self.model,
            "graph": self.graph,
            "operations": len(self.ops),
        }
        blocks = [
            [f'format = "{FORMAT}"', f"version = {VERSION}"],
            toml.table("model", head),
            toml.table("plan", self.plan),
            toml.table("devices", self.devices),
            toml.table("ops", self.ops, self.op_types),
        ]
        return _HEADER + "\n" + "\n\n".join("\n".join(block) for block in blocks) + "\n"

    def save(self, path: Path) -> None:
        """Writes the file.

        Raises:
            PlanError: It cannot be written.
        """
        try:
            with writing(path):
                path.write_text(self.text(), encoding="utf-8")
        except (OSError, ValueError) as error:
            raise PlanError(f"The placement lock '{path}' cannot be written: {error}") from error


def load(path: Path) -> Lock:
    """Reads a lock.

    Args:
        path: A file as ``partita plan --lock`` writes it.

    Raises:
        PlanError: It cannot be read, or is none; says where it is wrong.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
        _check_size(text, len(content), path)
        data = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"The placement lock '{path}' cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or of impossible numbers
        raise PlanError(f"The placement lock '{path}' is not TOML: {error}") from error
    where = f"The placement lock '{path}'"
    if "format" not in data:
        raise PlanError(
            f"{where} does not say its format, as locks do; write one with "
            "'partita plan MODEL --lock FILE'."
        )
    if (data["format"], data.get("version")) != (FORMAT, VERSION):
        raise PlanError(
            f"{where} is '{data['format']}' version {data.get('version')}; this Partita reads "
            f"'{FORMAT}' version {VERSION}."
        )
    unknown = sorted(set(data) - {"format", "version", "model", "plan", "devices", "ops"})
    if unknown:
        raise PlanError(f"{where} has a key '{unknown[0]}', which means nothing.")
    model = _table(data, "model", where)
    ops, devices = _texts(data, "ops", where), _texts(data, "devices", where)
    named = {device for places in ops.values() for device in places.split(EITHER)}
    strays = sorted(named - set(devices))
    if strays:
        raise PlanError(
            f"{where} gives operations to '{strays[0]}', which [devices] does not list; it lists "
            f"{', '.join(devices) or 'none'}."
        )
    plan = _table(data, "plan", where)
    for label, value in plan.items():
        if not isinstance(value, (str, int, float)):
            raise PlanError(
                f"{where}: '{label}' in [plan] must be a text, a number or true or false."
            )
    lock = Lock(str(model.get("name", "")), str(model.get("graph", "")), devices, ops, plan=plan)
    _check_replicas(lock, where)
    return lock


def _check_replicas(lock: Lock, where: str) -> None:
    """Refuses replicas of which one lacks operations or a share.

    Raises:
        PlanError: There are such.
    """
    counts = {len(lock.devices_of(op)) for op in lock.ops} - {1}
    if len(counts) > 1:
        raise PlanError(
            f"{where} has operations of {min(counts)} and of {max(counts)} devices joined by "
            f"'{EITHER}'; each replica has one device for each of them."
        )
    due, text = lock.replicas, lock.share_text
    if len(text.split()) != due or not all(map(_is_positive, text.split())):
        raise PlanError(
            f"{where}: '{SHARES}' in [plan] is '{text}'; expected positive numbers, one for each "
            f"of the replicas, of which there {'is' if due == 1 else 'are'} {due}."
        )


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def _check_size(text: str, nbytes: int, path: Path) -> None:
    """Refuses what the parser would need hours for: long files, keys of very many parts.

    Raises:
        PlanError: It is one.
    """
    if nbytes > MOST_BYTES:
        raise PlanError(
            f"The placement lock '{path}' has more than {MOST_BYTES >> 20} MiB; no lock that "
            "Partita writes does."
        )
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > MOST_PARTS and _QUOTED.sub("", line).count(".") > MOST_PARTS:
            raise PlanError(
                f"The placement lock '{path}' has a key of more than {MOST_PARTS} parts in line "
                f"{number}; quote names that have dots in them."
            )


def graph_digest(model: Model) -> str:
    """A digest of operations and what they read; not of weights, shapes and metadata."""
    lines = [
        f"{op.name}\t{op.domain}\t{op.op_type}\t{op.version}\t"
        f"{','.join(name or '' for name in op.inputs)}\t{','.join(op.outputs)}"
        for op in model.ops
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Mismatch:
    """What of a lock no longer holds.

    Attributes:
        gone: Operations of the lock that the model lacks.
        new: Operations of the model that the lock lacks.
        missing: Devices of the lock that are not in the device list, with the number of their
            operations.
        refused: Operation to device and reason, where the device refuses it now.
        drivers: Device to the driver of the lock and the one of today.
        other_graph: Whether operations of the same names are wired otherwise, or of other types.
    """

    gone: Sequence[str] = ()
    new: Sequence[str] = ()
    missing: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    drivers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    other_graph: bool = False

    def lines(self) -> list[str]:
        """A sentence for each thing that differs; empty if the lock holds."""
        lines = []
        if self.gone:
            lines.append(f"In the lock alone: {_count(self.gone)}, {_some(self.gone)}.")
        if self.new:
            lines.append(f"In the model alone: {_count(self.new)}, {_some(self.new)}.")
        if self.other_graph and not (self.gone or self.new):
            lines.append("The operations have their names, but other types, or read other values.")
        lines += [
            f"Device '{device}', which has {_number(count)} in the lock, is not in the list."
            for device, count in self.missing.items()
        ]
        by_reason: dict[tuple[str, str], list[str]] = {}
        for op, verdict in self.refused.items():
            by_reason.setdefault(verdict, []).append(op)
        lines += [
            f"Device '{device}' refuses {_count(ops)} that the lock gives it: {_some(ops)} ({why})."
            for (device, why), ops in by_reason.items()
        ]
        lines += [
            f"Device '{device}' had driver '{before}' and has '{now}'; its times may have changed."
            for device, (before, now) in self.drivers.items()
        ]
        return lines


def check_model(lock: Lock, model: Model, path: Path) -> None:
    """Refuses a lock of another model; one of this model as it was before is compared instead.

    A lock is another model's if none of its operations are there, or if the model has another name
    and lacks some of them. A renamed model that has all of them is placed as the lock says.

    Raises:
        PlanError: It is another model's.
    """
    known = {op.name for op in model.ops}
    gone = [op for op in lock.ops if op not in known]
    if gone and (len(gone) == len(lock.ops) or lock.model != model.name):
        raise PlanError(
            f"The placement lock '{path}' was made for model '{lock.model}', and this is "
            f"'{model.name}': {len(gone)} of its {_count([*lock.ops])} are not in it, "
            f"{_some(gone)}. Write one for this model with 'partita plan MODEL --lock FILE', or "
            "leave the lock out."
        )


def compare(
    lock: Lock,
    model: Model,
    placed: Sequence[str],
    listed: Mapping[str, str],
    refusal: Callable[[str, str], str | None],
) -> Mismatch:
    """Finds what of a lock no longer holds.

    Args:
        lock: As it was read.
        model: As it is today.
        placed: Operations that need a place.
        listed: Device to driver, for the devices of today.
        refusal: Why a device refuses an operation, or ``None``.
    """
    known = {op.name for op in model.ops}
    gone = [op for op in lock.ops if op not in known]
    new = [op for op in placed if op not in lock.ops]
    missing: dict[str, int] = {}
    refused: dict[str, tuple[str, str]] = {}
    for op, device in [(name, device) for name in lock.ops for device in lock.devices_of(name)]:
        if device not in listed:
            missing[device] = missing.get(device, 0) + 1
        elif op in known:
            why = refusal(device, op)
            if why is not None:
                refused[op] = (device, why)
    drivers = {
        device: (before, listed[device])
        for device, before in lock.devices.items()
        if device in listed and before != listed[device]
    }
    return Mismatch(gone, new, missing, refused, drivers, lock.graph != graph_digest(model))


def _count(ops: Sequence[str]) -> str:
    return _number(len(ops))


def _number(count: int) -> str:
    return f"{count} operation{'' if count == 1 else 's'}"


def _some(ops: Sequence[str]) -> str:
    more = f" and {len(ops) - 5} more" if len(ops) > 5 else ""
    return ", ".join(f"'{op}'" for op in ops[:5]) + more


def _table(data: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    found = data.get(name, {})
    if not isinstance(found, dict):
        raise PlanError(f"{where}: '{name}' must be a table.")
    return found


def _texts(data: Mapping[str, Any], name: str, where: str) -> dict[str, str]:
    found = _table(data, name, where)
    for label, value in found.items():
        if not isinstance(value, str):
            raise PlanError(f"{where}: '{label}' in [{name}] is {value!r}; it must be a text.")
    return found
