"""Operations that a driver failed at in every form, so that a query refuses them as compiling does.

A query makes no launches. So what compiling found is kept on disk per device, driver, mode and
source, and looked up by all that decides which kernels compute an operation. Operations that one
launch computes are refused together, and only in models that have all of them. Nothing is kept of
operations whose shapes are not known before a model runs.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from partita.lowering import Graph, Node, Value
from partita_opencl.device.device import Device
from partita_opencl.drivers import driver_trial, verdicts
from partita_opencl.drivers.verdicts import Verdict
from partita_opencl.trials.kernel_trial import Mode, source_digest
from partita_opencl.trials.rehearsal import Failure

MOST = 1000
"""Failures that are kept; those found first are dropped."""

_READ_BYTES = 1 << 12
"""Constants of integers up to this size count by content: kernels are chosen by them."""


def known_failures(device: Device, mode: Mode, graph: Graph) -> dict[str, str]:
    """Why the driver cannot compute operations of a graph, by their names; empty if it can.

    Costs a file that is read, and a digest per operation if there is one.
    """
    if driver_trial.has_adopted():
        return {}  # this process is itself one that tries
    kept = verdicts.read(*_subject(device, mode))
    if kept is None:
        return {}
    names: dict[str, list[str]] = defaultdict(list)
    for node in graph.nodes:
        names[operation_digest(node)].append(node.name)
    found: dict[str, str] = {}
    for digests, reason in kept.facts.items():
        members = digests.split()
        if members and isinstance(reason, str) and all(digest in names for digest in members):
            found.update((name, reason) for digest in members for name in names[digest])
    return found


def keep_failures(device: Device, mode: Mode, graph: Graph, failures: Iterable[Failure]) -> None:
    """Adds failures at launches of a graph to those that are kept."""
    digests = {node.name: operation_digest(node) for node in graph.nodes}
    new = {}
    for failure in failures:
        members = sorted({digests[name] for name in failure.names if name in digests})
        if members and all(members):
            new[" ".join(members)] = failure.reason
    if not new:
        return
    subject, marks = _subject(device, mode)
    kept = verdicts.read(subject, marks)
    facts = {**({} if kept is None else kept.facts), **new}
    verdicts.write(subject, marks, Verdict(facts=dict(list(facts.items())[-MOST:])))


def operation_digest(node: Node) -> str:
    """The digest of what decides which kernels compute an operation; empty if shapes are open."""
    values = [*node.inputs, *node.outputs]
    attributes = [(name, _told(value)) for name, value in sorted(node.attrs.items())]
    if not all(map(_is_static, values)) or any(told is None for _, told in attributes):
        return ""
    parts = [node.domain, node.op_type, node.version, len(node.inputs), attributes]
    parts += map(_form, values)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _is_static(value: Value | None) -> bool:
    if value is None:
        return True
    known = value.dtype is not None and value.shape is not None
    return known and all(isinstance(size, int) for size in value.shape or ())


def _form(value: Value | None) -> object:
    """Type and shape of a value, and what it holds if kernels are chosen by that."""
    if value is None:
        return None
    content = ""
    if value.const is not None:
        read = value.const.dtype.kind in "iub" and value.const.nbytes <= _READ_BYTES
        content = value.const.tobytes().hex() if read else "constant"
    return str(value.dtype), value.shape, content


def _told(attribute: object) -> str | None:
    """An attribute as text; ``None`` for graphs."""
    if isinstance(attribute, Graph):
        return None
    if isinstance(attribute, np.ndarray):
        digest = hashlib.sha256(attribute.tobytes()).hexdigest()
        return f"{attribute.dtype} {attribute.shape} {digest}"
    return repr(attribute)


def _subject(device: Device, mode: Mode) -> tuple[str, list[str]]:
    """What the kept failures are of, and everything that they depend on."""
    marks = [device.identity, *device.driver.marks(), repr(mode), source_digest()]
    return f"operations of OPENCL ({device.handle.name.strip()})", marks
