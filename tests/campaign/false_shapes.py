"""ONNX's node cases whose files say false types and shapes of the values between operations."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from partita_conformance.inputs.node_cases import node_cases

from . import guard, numbers, tensors


def case(seed, device="CPU"):
    """Reads, compiles and runs one model; what that raises is the case's outcome."""
    rng = np.random.default_rng(seed)
    name = tensors.names()[rng.integers(len(tensors.names()))]
    chosen = node_cases()[name]
    proto = chosen.proto()
    feeds = list(chosen.runs[0][0]) if chosen.runs else []
    arrays = [i for i, feed in enumerate(feeds) if isinstance(feed, np.ndarray)]
    tensors.declare(proto, feeds, ("exact", "open", "absent")[rng.integers(3)])
    for _ in range(rng.integers(0, 3)):
        put_between(rng, proto.graph)
    tell_falsely(rng, proto.graph)
    if arrays and rng.random() < 0.3:
        feeds = tensors.make_constant(rng, proto, feeds, arrays)
    feeds = [guard.guarded(f) if isinstance(f, np.ndarray) else f for f in feeds]
    yield name
    tensors.run_patiently(proto, feeds, device)


def put_between(rng, graph):
    """An operation that reads an input for the others, or one that makes an output of theirs."""
    kind = ("Identity", "Neg", "Abs", "Relu", "Flatten", "Shape")[rng.integers(6)]
    if graph.input and rng.random() < 0.5:
        read = graph.input[rng.integers(len(graph.input))].name
        made = f"between{len(graph.node)}"
        for node in graph.node:
            node.input[:] = [made if name == read else name for name in node.input]
        graph.node.insert(0, helper.make_node(kind, [read], [made]))
        return
    written = graph.output[rng.integers(len(graph.output))].name
    made = f"between{len(graph.node)}"
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [made if name == written else name for name in names]
    graph.node.append(helper.make_node(kind, [made], [written]))


def tell_falsely(rng, graph):
    """Says of some values what need not be so: other types, sizes and ranks; of some twice."""
    names = [name for node in graph.node for name in node.output if name]
    names += [value.name for value in graph.input] + [t.name for t in graph.initializer]
    for name in names:
        if rng.random() < 0.7:
            graph.value_info.append(false_value(rng, name))
    for value in graph.output:
        if rng.random() < 0.3:
            value.CopyFrom(false_value(rng, value.name))
    rest = list(graph.output)
    if rng.random() < 0.1:
        graph.output.append(rest[rng.integers(len(rest))])


def false_value(rng, name):
    """A value's type and shape, drawn."""
    kind = int(rng.integers(1, 24)) if rng.random() < 0.4 else onnx.TensorProto.FLOAT
    dims = [
        f"d{rng.integers(3)}" if rng.random() < 0.2 else small_or_hostile(rng)
        for _ in range(rng.integers(0, 5))
    ]
    if rng.random() < 0.05:
        return helper.make_tensor_sequence_value_info(name, kind, None)
    return helper.make_tensor_value_info(name, kind, None if rng.random() < 0.1 else dims)


def small_or_hostile(rng):
    """A size: mostly one that a tensor may have."""
    return int(rng.integers(0, 9)) if rng.random() < 0.8 else numbers.hostile_integer(rng)
