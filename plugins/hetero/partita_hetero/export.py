"""The exported HETERO model: placement with its reasons, and what the devices keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from partita.contract.device_model import exported_state
from partita.contract.explanation import Decision, Explanation
from partita.contract.identity import stamp
from partita.contract.query import Reason, ReasonCode
from partita.errors import BlobError, PartitaError, PropertyError
from partita.model.expected_shapes import InputShapes
from partita.properties import DeviceProperties, validate
from partita.storage import exported_model as blobs
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.pipeline import Compilation, Tune
from partita_hetero.compile.replicas import ReplicaSet
from partita_hetero.compile.variants import with_variants
from partita_hetero.placement.by_priority import Placement
from partita_hetero.placement.decision import ChosenPlacement, Replica
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.properties import HeteroProperties

if TYPE_CHECKING:
    from partita.model.model import Model


def export(compilation: Compilation, assembly: Assembly, properties: Mapping[str, Any]) -> bytes:
    """Writes everything that importing needs, so that it asks no device and measures nothing.

    What each device keeps of its submodels (packed weights) is stored once per device and named by
    content, so that it serves another cut of the model too.

    Args:
        compilation: The model and its devices.
        assembly: What requests run.
        properties: Those that belong to the model wherever it is imported.
    """
    devices = compilation.devices
    arrays: dict[str, Any] = {}
    made_by: dict[str, str] = {}
    for one in assembly.every():
        for submodel, device_model in zip(one.submodels, one.compiled, strict=True):
            state = exported_state(device_model)
            arrays |= {f"{submodel.device}/{name}": array for name, array in state.items()}
            if state and submodel.device not in made_by:
                made_by[submodel.device] = _stamp(devices, submodel.device)
    header = {
        "properties": dict(properties),
        "placements": [_stored(one) for one in (assembly, *assembly.variants)],
        "notes": list(assembly.explanation.notes),
        "overrides": devices.overrides,
        "devices": made_by,
    }
    return blobs.pack(devices.own_name, header, compilation.model, arrays)


def restore(
    blob: Any,
    properties: DeviceProperties,
    own_name: str,
    devices_of: Callable[[DeviceProperties], DeviceList],
    tune: Tune,
) -> tuple[Compilation, Assembly]:
    """Reads it back: what a compiled model is made of.

    Args:
        blob: What :func:`export` wrote, in memory or mapped.
        properties: Those of this call, which override the stored ones.
        own_name: The name that HETERO is registered under.
        devices_of: Makes the device list of properties.
        tune: Decides by measurements, if a device fails later.

    Raises:
        BlobError: The blob is damaged, foreign, or does not fit its own model.
        DeviceError: A device of the placement is not there.
    """
    content = blobs.unpack(blob, own_name)
    header = content.header
    stored, placements = header.get("properties"), header.get("placements")
    if not isinstance(stored, dict) or not isinstance(placements, list) or not placements:
        raise BlobError("The exported model's header lacks its properties or its placement.")
    try:
        base = validate(HeteroProperties, stored, "The exported model")
    except PropertyError as error:
        raise BlobError(f"The exported model's properties are damaged: {error}") from error
    own = properties.model_dump(exclude_unset=True)
    devices = devices_of(validate(HeteroProperties, own, "The exported model", base))
    try:
        kept = [_restored(content.model, one) for one in placements]
        if len(kept) > 1 and not all(one.planned_for for one in kept):
            raise ValueError("nothing tells which request runs which placement")
        notes = [str(note) for note in header.get("notes", [])]
        for name, values in header.get("overrides", {}).items():
            for key, value in values.items():
                devices.override(str(name), str(key), value)
        made_by = {str(name): str(by) for name, by in header.get("devices", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BlobError(f"The exported model's placement is damaged: {error}") from error
    names = [op.name for op in content.model.ops]
    first = kept[0].replica_set.placements[0].device
    pins = {n: d for n, d in zip(names, first, strict=True) if d is not None}
    has_replicas = any(len(one.replica_set.placements) > 1 for one in kept)
    compilation = Compilation(content.model, devices, tune, {} if has_replicas else pins)
    inputs = [port.name for port in content.model.inputs]
    if has_replicas:  # for when a device fails: the others keep their replicas
        compilation.choices = [choice for one in kept for choice in one.choices(inputs)]
    states = _states(devices, made_by, content.arrays)
    placed = [(one.replica_set, one.planned_for) for one in kept]
    assembly = compilation.restore(placed, states, notes)
    return compilation, _explained(assembly, kept, inputs)


@dataclass(frozen=True)
class _Kept:
    """One placement of an exported model.

    Attributes:
        replica_set: Where each operation goes; with replicas, several times.
        planned_for: Input shapes that measurements chose it at, where input shapes vary.
        elsewhere: By operation, what was known of it on other devices.
        decision: How it was decided.
    """

    replica_set: ReplicaSet
    planned_for: Sequence[InputShapes]
    elsewhere: Mapping[str, Mapping[str, Any]]
    decision: Decision | None

    def choices(self, inputs: Sequence[str]) -> Iterator[ChosenPlacement]:
        """As choices of a scheduler, one for each of the shapes.

        Args:
            inputs: Names of the model's inputs.
        """
        replica_set = self.replica_set
        preferred, *others = (
            _preferred(replica_set.placements[seat]) for seat in replica_set.seats
        )
        replicas = [Replica(*pair) for pair in zip(others, replica_set.shares[1:], strict=True)]
        for shapes in self.planned_for or [()]:
            named = dict(zip(inputs, shapes, strict=False))
            yield ChosenPlacement(preferred, self.decision, shapes=named, replicas=replicas)


def _preferred(placement: Placement) -> dict[int, tuple[str, Reason]]:
    """Where operations are, and why, as a wish."""
    pairs = enumerate(zip(placement.device, placement.reason, strict=True))
    return {op: (device, reason) for op, (device, reason) in pairs if device is not None}


def _stored(assembly: Assembly) -> dict[str, Any]:
    """A placement as plain data."""
    why = assembly.explanation
    return {
        "operations": _stored_ops(why),
        "replicas": [_stored_ops(one.explanation) for one in assembly.replicas],
        "seats": list(assembly.seats),
        "shares": list(assembly.shares),
        "planned_for": assembly.planned_for,
        "decision": None if why.decision is None else asdict(why.decision),
    }


def _stored_ops(why: Explanation) -> list[dict[str, Any]]:
    return [
        {
            "name": op.name,
            "device": op.device if op.subgraph is not None else None,
            "reason": _pair(op.reason),
            "refused": {device: _pair(reason) for device, reason in op.refused.items()},
            "elsewhere": [op.own_us, op.alternative, op.extra_us, op.change],
        }
        for op in why.ops
    ]


def _restored(model: Model, stored: Mapping[str, Any]) -> _Kept:
    rows = stored["operations"]
    shapes = [
        tuple(tuple(int(dim) for dim in shape) for shape in one) for one in stored["planned_for"]
    ]
    ranks = [len(port.shape or ()) for port in model.inputs]
    if any([len(shape) for shape in one] != ranks for one in shapes):
        raise ValueError("it is for other inputs")
    alternatives = {str(row["name"]): _elsewhere(row["elsewhere"]) for row in rows}
    placements = [_placement(model, one) for one in (rows, *stored["replicas"])]
    seats = [int(seat) for seat in stored["seats"]]
    shares = [float(share) for share in stored["shares"]]
    if len(seats) != len(shares) or not all(share > 0 for share in shares):
        raise ValueError("its seats have no shares")
    if set(seats) != set(range(len(placements))):
        raise ValueError("its seats are of other placements")
    decision = _decision(stored.get("decision"))
    return _Kept(ReplicaSet(placements, seats, shares), shapes, alternatives, decision)


def _explained(assembly: Assembly, kept: Sequence[_Kept], inputs: Sequence[str]) -> Assembly:
    """The assembly, with all that was known of its placements when they were found."""
    built = (assembly, *assembly.variants)
    if len(built) < len(kept):
        return assembly  # a device has failed, and all of it was placed anew
    explained = []
    for one, known in zip(built, kept, strict=True):
        ops = [
            replace(op, **known.elsewhere[op.name]) if (device or "-") == op.device else op
            for op, device in zip(
                one.explanation.ops, known.replica_set.placements[0].device, strict=True
            )
        ]
        why = replace(one.explanation, decision=known.decision, ops=ops, near={})
        explained.append(replace(one, explanation=why, variants=()))
    return with_variants(explained, inputs)


def _placement(model: Model, rows: list[Any]) -> Placement:
    """The placement in the order of the model's operations."""
    by_name = {str(row["name"]): row for row in rows}
    names = [op.name for op in model.ops]
    if set(names) != set(by_name):
        raise ValueError("it is of other operations")
    placement = Placement([], [], [])
    for name in names:
        row = by_name[name]
        placement.device.append(None if row["device"] is None else str(row["device"]))
        placement.reason.append(_reason(row["reason"]))
        placement.refused.append({str(d): _reason(why) for d, why in row["refused"].items()})
    return placement


def _states(
    devices: DeviceList, made_by: Mapping[str, str], arrays: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """What was kept, for those devices that are still what they were."""
    states: dict[str, dict[str, Any]] = {}
    for device, maker in made_by.items():
        try:
            same = device in devices.names and _stamp(devices, device) == maker
        except PartitaError:
            same = False  # the placement will say what is wrong with the device
        if same:
            prefix = f"{device}/"
            states[device] = {
                name.removeprefix(prefix): array
                for name, array in arrays.items()
                if name.startswith(prefix)
            }
    return states


def _stamp(devices: DeviceList, device: str) -> str:
    return stamp(devices.core.identity(device, devices.config(device)))


def _decision(stored: Any) -> Decision | None:
    """How the placement was decided when it was, for reports."""
    if stored is None:
        return None
    return Decision.from_dict(stored)


def _elsewhere(stored: Any) -> dict[str, Any]:
    """What was known of an operation on other devices."""
    own_us, alternative, extra_us, change = stored
    return {
        "own_us": None if own_us is None else float(own_us),
        "alternative": str(alternative),
        "extra_us": None if extra_us is None else float(extra_us),
        "change": str(change),
    }


def _pair(reason: Reason) -> list[str]:
    return [str(reason.code), reason.detail]


def _reason(pair: Any) -> Reason:
    code, detail = pair
    return Reason(ReasonCode(code), str(detail))
