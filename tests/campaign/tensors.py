"""ONNX's own node cases with hostile values, shapes and attributes, on tensors at guard pages."""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import onnx
from onnx import numpy_helper

import partita
from partita_conformance.inputs.node_cases import node_cases

from . import guard, numbers
from .cores import guarded_core
from .patience import ended_after

LOOP_SECONDS = 5


def case(seed, device="CPU"):
    """Reads, compiles and runs one model; what that raises is the case's outcome."""
    rng = np.random.default_rng(seed)
    name = names()[rng.integers(len(names()))]
    chosen = node_cases()[name]
    proto = chosen.proto()
    feeds = list(chosen.runs[0][0]) if chosen.runs else []
    if rng.random() < 0.45:
        change_attributes(rng, proto.graph.node)
    arrays = [i for i, feed in enumerate(feeds) if isinstance(feed, np.ndarray)]
    for i in arrays:
        if rng.random() < 0.5:
            feeds[i] = numbers.hostile_array(rng, feeds[i])
        if rng.random() < 0.15:
            feeds[i] = numbers.hostile_shape(rng, feeds[i])
    shapes = ("exact", "open", "absent")[rng.integers(3)]
    declare(proto, feeds, shapes)
    if rng.random() < 0.5 and arrays:
        feeds = make_constant(rng, proto, feeds, arrays)
    at_end = guard.DEVICE["at_end"] = bool(rng.random() < 0.7)
    feeds = [guard.guarded(f, at_end) if isinstance(f, np.ndarray) else f for f in feeds]
    yield f"{name} at {'end' if at_end else 'start'}"
    run_patiently(proto, feeds, device)


def run_patiently(proto, feeds, device):
    """Runs a model, one with a Loop for some seconds at most.

    A Loop of 2**62 iterations is a program that never ends, not a fault of who runs it.
    """
    loops = any(node.op_type == "Loop" for node in proto.graph.node)
    with ended_after(LOOP_SECONDS) if loops else contextlib.nullcontext():
        run(proto, feeds, device)


def run(proto, feeds, device, properties=None):
    """Reads, asks, compiles and infers, three times with the same tensors."""
    core = guarded_core()
    model = core.read_model(proto.SerializeToString())
    core.query_model(model, device, properties)
    compiled = core.compile_model(model, device, properties)
    request = compiled.create_infer_request()
    request.infer(feeds)
    for index, tensor in enumerate(request.output_tensors):
        result = tensor.data
        if isinstance(result, np.ndarray) and result.nbytes and not result.dtype.hasobject:
            request.set_output_tensor(index, partita.Tensor(guard.guarded(np.array(result))))
    for _ in range(2):  # the second time by calls that are bound
        request.infer(feeds, share_inputs=True)


@functools.cache
def names():
    """The cases that are tried."""
    return list(node_cases())


def change_attributes(rng, nodes):
    """Gives some attributes hostile values, adds ones or takes ones away."""
    for node in nodes:
        schema = schema_of(node)
        if schema is not None and rng.random() < 0.5:
            absent = [a for a in schema.attributes.values() if not has(node, a.name)]
            if absent:
                add_attribute(rng, node, absent[rng.integers(len(absent))])
        for attribute in node.attribute:
            if rng.random() < 0.5:
                change_attribute(rng, attribute)
        if node.attribute and rng.random() < 0.1:
            del node.attribute[rng.integers(len(node.attribute))]


def schema_of(node):
    """What ONNX says of an operator, if anything."""
    try:
        return onnx.defs.get_schema(node.op_type, domain=node.domain)
    except onnx.defs.SchemaError:
        return None


def has(node, name):
    return any(attribute.name == name for attribute in node.attribute)


def add_attribute(rng, node, attribute):
    """Adds an attribute that the operator knows."""
    kind = onnx.defs.OpSchema.AttrType
    made = {
        kind.INT: lambda: numbers.hostile_integer(rng),
        kind.INTS: lambda: [numbers.hostile_integer(rng) for _ in range(rng.integers(1, 5))],
        kind.FLOAT: lambda: numbers.hostile_float(rng),
        kind.FLOATS: lambda: [numbers.hostile_float(rng) for _ in range(rng.integers(1, 5))],
        kind.STRING: lambda: "hostile",
    }.get(attribute.type)
    if made is not None:
        node.attribute.append(onnx.helper.make_attribute(attribute.name, made()))


def change_attribute(rng, attribute):
    """Changes one attribute's value, the number of its values, or its type."""
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = numbers.hostile_integer(rng)
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = numbers.hostile_float(rng)
    elif attribute.type == onnx.AttributeProto.STRING:
        attribute.s = [b"", b"hostile", b"\xff\xfe", b"linear", b"SAME_UPPER"][rng.integers(5)]
    elif attribute.type == onnx.AttributeProto.INTS:
        values = list(attribute.ints)
        change_list(rng, values, numbers.hostile_integer)
        del attribute.ints[:]
        attribute.ints.extend(values)
    elif attribute.type == onnx.AttributeProto.FLOATS:
        values = list(attribute.floats)
        change_list(rng, values, numbers.hostile_float)
        del attribute.floats[:]
        attribute.floats.extend(values)
    elif attribute.type == onnx.AttributeProto.GRAPH:
        change_attributes(rng, attribute.g.node)
    if rng.random() < 0.05:
        attribute.type = int(rng.integers(1, 9))


def change_list(rng, values, draw):
    for i in range(len(values)):
        if rng.random() < 0.5:
            values[i] = draw(rng)
    if rng.random() < 0.15:
        values.append(draw(rng))
    if values and rng.random() < 0.1:
        del values[rng.integers(len(values))]


def declare(proto, feeds, how):
    """Lets inputs be declared as they come, or with sizes or shapes left open."""
    for value, feed in zip(proto.graph.input, feeds, strict=False):
        if not isinstance(feed, np.ndarray) or not value.type.HasField("tensor_type"):
            continue
        shape = value.type.tensor_type.shape
        del shape.dim[:]
        for number, size in enumerate(feed.shape):
            dim = shape.dim.add()
            if how == "exact":
                dim.dim_value = size
            else:
                dim.dim_param = f"{value.name}{number}"
        if how == "absent":
            value.type.tensor_type.ClearField("shape")
    for value in proto.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def make_constant(rng, proto, feeds, arrays):
    """Turns some inputs into initializers; returns the feeds that are left."""
    gone = {i for i in arrays if rng.random() < 0.6 and feeds[i].dtype.kind != "O"}
    inputs = list(proto.graph.input)
    for i in sorted(gone):
        try:
            proto.graph.initializer.append(numpy_helper.from_array(feeds[i], inputs[i].name))
        except (NotImplementedError, TypeError, KeyError):  # a type that onnx has no bytes for
            gone.discard(i)
    kept = [value for i, value in enumerate(inputs) if i not in gone]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    return [feed for i, feed in enumerate(feeds) if i not in gone]
