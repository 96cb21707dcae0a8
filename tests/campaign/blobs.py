"""Exported models with arrays, headers or bytes changed, and a checksum that is right again."""

from __future__ import annotations

import functools
import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.storage import exported_model as blobs
from partita.storage.content_hash import fingerprint

from . import guard, numbers
from .cores import guarded_core


def case(seed):
    """Imports a changed blob, and runs what that made."""
    rng = np.random.default_rng(seed)
    name = list(exported())[rng.integers(len(exported()))]
    data, feeds = exported()[name]
    match rng.integers(6):
        case 0:
            changed = with_other_arrays(rng, data)
        case 1:
            changed = with_other_header(rng, data)
        case 2:
            changed = with_other_bytes(rng, data, checksum=True)
        case 3:
            changed = with_other_bytes(rng, data, checksum=False)
        case _:
            changed = with_other_claims(rng, data)
    yield name
    core = guarded_core()
    compiled = core.import_model(changed, "CPU")
    request = compiled.create_infer_request()
    for _ in range(2):
        request.infer([guard.guarded(feed) for feed in feeds])


def taken_apart(data):
    """Header and body of a blob, as JSON and bytes."""
    size = blobs.PREFIX.size
    head_size = blobs.PREFIX.unpack_from(data)[2]
    return json.loads(data[size : size + head_size]), bytearray(data[size + head_size :])


def put_together(content, body):
    """A blob with a checksum that fits."""
    head = content if isinstance(content, bytes) else json.dumps(content).encode()
    head += b" " * (-(blobs.PREFIX.size + len(head)) % 64)
    digest = fingerprint(head + fingerprint(bytes(body)))
    prefix = blobs.PREFIX.pack(blobs.MAGIC, blobs.FORMAT, len(head), digest, len(body))
    return prefix + head + bytes(body)


def with_other_arrays(rng, data):
    """Arrays of other shapes, types, places and names."""
    content, body = taken_apart(data)
    for entry in content["arrays"]:
        match rng.integers(6):
            case 0:
                entry[2] = [max(int(n * rng.choice([0, 0.5, 0.9])), 0) for n in entry[2]]
            case 1:
                entry[2] = [entry[2][0] // 2, 2, *entry[2][1:]] if entry[2] else [0]
            case 2:
                entry[1] = ["float64", "int8", "<u2", "object", "float32"][rng.integers(5)]
            case 3:
                entry[3] = int(rng.choice([0, 64, len(body), len(body) - 1, -64, 2**62]))
            case 4:
                entry[2] = [numbers.hostile_integer(rng) for _ in entry[2]]
            case _:
                entry[0] = content["arrays"][rng.integers(len(content["arrays"]))][0]
    return put_together(content, body)


def with_other_header(rng, data):
    """A header in which something is of another type, or missing."""
    content, body = taken_apart(data)
    holder = [content, content["header"], content["header"].get("properties", {})][rng.integers(3)]
    if holder:
        key = list(holder)[rng.integers(len(holder))]
        values = [None, -1, 2**70, 1.5, "x" * 100, [], {}, [[]], {"a": {"b": 1}}, True]
        holder[key] = values[rng.integers(len(values))]
        if rng.random() < 0.2:
            del holder[key]
    return put_together(content, body)


def with_other_claims(rng, data):
    """False types and shapes of the model's values, which are believed without inference.

    Operations out of order as well, and under others' names.
    """
    content, body = taken_apart(data)
    size = content["model"]
    proto = onnx.ModelProto.FromString(bytes(body[:size]))
    graph = proto.graph
    for info in (*graph.value_info, *graph.output, *graph.input):
        tensor = info.type.tensor_type
        if rng.random() < 0.1:
            info.type.Clear()
        elif rng.random() < 0.1:
            tensor.ClearField("shape")
        for dim in tensor.shape.dim:
            match rng.integers(10):
                case 0:
                    dim.dim_value = max(dim.dim_value + int(rng.integers(-3, 4)), 0)
                case 1:
                    dim.dim_value = int(dim.dim_value * rng.choice([0.5, 2, 16]))
                case 2:
                    dim.dim_param = "n"
        if rng.random() < 0.1:
            tensor.elem_type = int(rng.choice([1, 2, 3, 6, 7, 9, 10, 11, 16]))
    nodes = list(graph.node)
    if rng.random() < 0.2:
        nodes = [nodes[i] for i in rng.permutation(len(nodes))]
    if rng.random() < 0.2:
        nodes[0].name = nodes[-1].name
    changed = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(changed)
    payload = proto.SerializeToString()
    content["model"] = len(payload)
    payload += b"\0" * (-len(payload) % 64)
    before = size + -size % 64
    for entry in content["arrays"]:
        entry[3] += len(payload) - before
    return put_together(content, payload + bytes(body[before:]))


def with_other_bytes(rng, data, checksum):
    """Some bytes changed, some cut off."""
    content, body = taken_apart(data)
    broken = bytearray(body if checksum else data)
    for _ in range(rng.integers(1, 6)):
        broken[rng.integers(len(broken))] = rng.integers(256)
    if rng.random() < 0.2:
        del broken[rng.integers(len(broken)) :]
    return put_together(content, broken) if checksum else bytes(broken)


@functools.cache
def exported():
    """Name to a blob that keeps packed weights, and inputs for it."""
    rng = np.random.default_rng(0)
    models = {
        "matmul": matmul(rng, np.float32),
        "conv": conv(rng),
        "lstm": lstm(rng),
        "half": matmul(rng, np.float16),
        "several": several(rng),
    }
    made = {}
    for name, (proto, feeds) in models.items():
        compiled = partita.Core().compile_model(proto.SerializeToString(), "CPU")
        compiled(feeds)
        made[name] = compiled.export_model(), feeds
    return made


def model(nodes, feeds, weights):
    """A model of float inputs; its weights by name."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(feed.dtype) for name, feed in feeds.items()}
    graph = helper.make_graph(
        nodes,
        "exported",
        [helper.make_tensor_value_info(n, kinds[n], f.shape) for n, f in feeds.items()],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    graph.output[0].ClearField("type")
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made, list(feeds.values())


def matmul(rng, dtype):
    x, w = rng.standard_normal((9, 130)), rng.standard_normal((130, 140))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return model([node], {"x": x.astype(dtype)}, {"w": w.astype(dtype)})


def conv(rng):
    x, w = rng.standard_normal((1, 64, 12, 12)), rng.standard_normal((64, 64, 3, 3))
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    return model([node], {"x": x.astype(np.float32)}, {"w": w.astype(np.float32)})


def several(rng):
    """Operations whose results others read, so that what is said of them matters."""
    wide, tall = rng.standard_normal((64, 64, 1, 1)), rng.standard_normal((64, 70))
    nodes = [
        helper.make_node("Conv", ["x", "wide"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Add", ["c", "c"], ["d"]),
        helper.make_node("Transpose", ["d"], ["e"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["e", "tall"], ["f"]),
        helper.make_node("Softmax", ["f"], ["g"]),
        helper.make_node("Concat", ["f", "g"], ["h"], axis=3),
        helper.make_node("ReduceMean", ["h"], ["y"], axes=[1]),
    ]
    x = {"x": rng.standard_normal((1, 64, 12, 12)).astype(np.float32)}
    weights = {"wide": wide.astype(np.float32), "tall": tall.astype(np.float32)}
    return model(nodes, x, weights)


def lstm(rng):
    weights = {
        "w": rng.standard_normal((1, 4 * 40, 30)).astype(np.float32),
        "r": rng.standard_normal((1, 4 * 40, 40)).astype(np.float32),
    }
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=40)
    return model([node], {"x": rng.standard_normal((5, 2, 30)).astype(np.float32)}, weights)
