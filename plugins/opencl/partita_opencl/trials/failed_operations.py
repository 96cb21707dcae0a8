"""Operations that a driver failed at in every form, so that a query refuses them as compiling does.

A query makes no launches. So what compiling found is kept on disk per device, driver, mode and
source, and looked up by all that decides which kernels compute an operation. Operations that one
launch computes are refused together, and only where a model has all of them side by side. Nothing
is kept of operations whose shapes are not known before a model runs.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from partita.lowering import Graph, Node, Value
from partita_opencl.device.device import Device
from partita_opencl.drivers import driver_trial, verdicts
from partita_opencl.drivers.verdicts import Verdict
from partita_opencl.trials.kernel_trial import Mode, source_digest
from partita_opencl.trials.rehearsal import Failure

MOST = 1000
"""Failures that are kept; those found first are dropped."""

_BESIDE = " / "
"""Parts digests of operations that fail from those of operations that only stand between them."""

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
    digests = {node: operation_digest(node) for node in graph.nodes}
    found: dict[str, str] = {}
    for key, reason in kept.facts.items():
        if isinstance(reason, str):
            found.update((node.name, reason) for node in _refused(key, digests))
    return found


def keep_failures(device: Device, mode: Mode, graph: Graph, failures: Iterable[Failure]) -> None:
    """Adds failures at launches of a graph to those that are kept."""
    nodes = {node.name: node for node in graph.nodes}
    new = {}
    for failure in failures:
        members = [nodes[name] for name in sorted(failure.names) if name in nodes]
        if key := _key(graph, members):
            new[key] = failure.reason
    if not new:
        return
    subject, marks = _subject(device, mode)
    kept = verdicts.read(subject, marks)
    facts = {**({} if kept is None else kept.facts), **new}
    verdicts.write(subject, marks, Verdict(facts=dict(list(facts.items())[-MOST:])))


def _key(graph: Graph, members: Sequence[Node]) -> str:
    """What tells operations that one launch computes, and those between them, from others.

    Empty if shapes are open, or if nothing says where the operations stand.
    """
    others = _nodes_between(graph, members)
    if len(_neighbourhoods([*members, *others])) != 1:
        return ""
    parts = [sorted(map(operation_digest, nodes)) for nodes in (members, others)]
    return _BESIDE.join(map(" ".join, parts)) if all(map(all, parts)) else ""


def _refused(key: str, digests: Mapping[Node, str]) -> Iterator[Node]:
    """The operations that a kept failure is of, wherever all of them stand side by side."""
    members, _, others = key.partition(_BESIDE)
    needed = Counter(members.split()) + Counter(others.split())
    for group in _neighbourhoods([node for node, digest in digests.items() if digest in needed]):
        if needed <= Counter(digests[node] for node in group):
            yield from (node for node in group if digests[node] in members.split())


def operation_digest(node: Node) -> str:
    """The digest of what decides which kernels compute an operation; empty if shapes are open."""
    values = [*node.inputs, *node.outputs]
    attributes = [(name, _attribute_text(value)) for name, value in sorted(node.attrs.items())]
    if not all(map(_is_static, values)) or any(content is None for _, content in attributes):
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


def _attribute_text(attribute: object) -> str | None:
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


def _neighbourhoods(nodes: Sequence[Node]) -> list[list[Node]]:
    """Nodes in groups: each node reads what another one of its group writes or reads.

    Constants do not count: nodes far from one another may read the same.
    """
    touching: dict[Value, list[Node]] = defaultdict(list)
    for node in nodes:
        for value in _computed(node):
            touching[value].append(node)
    groups: list[list[Node]] = []
    seen: set[Node] = set()
    for first in nodes:
        group, left = [], [first]
        while left:
            node = left.pop()
            if node in seen:
                continue
            seen.add(node)
            group.append(node)
            for value in _computed(node):
                left += touching.pop(value, ())
        if group:
            groups.append(group)
    return groups


def _nodes_between(graph: Graph, members: Collection[Node]) -> list[Node]:
    """The other nodes of a graph on ways from one member to another."""
    below: set[Value | None] = set()
    after: set[Node] = set()
    for node in graph.nodes:
        if not below.isdisjoint(node.reads()):
            after.add(node)
        if node in after or node in members:
            below.update(node.outputs)
    above: set[Value | None] = set()
    found: list[Node] = []
    for node in reversed(graph.nodes):
        if node in members or not above.isdisjoint(node.outputs):
            above.update(node.reads())
            found.append(node)
    return [node for node in found[::-1] if node in after and node not in members]


def _computed(node: Node) -> set[Value]:
    """What a node reads and writes, but for constants."""
    values = (*node.reads(), *node.outputs)
    return {value for value in values if value is not None and value.const is None}
