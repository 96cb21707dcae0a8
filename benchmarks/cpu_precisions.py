"""The precisions of device CPU beside both peers in float32: time, and error against float64.

    python benchmarks/cpu_precisions.py [--threads 2] [--rounds 12] [model ...]

Models are named as for `cpu_peers`. Device REFERENCE evaluates the network in float64: its weights
and constants are the model's, widened; ppocr-det takes a minute. Prints the median of all calls in
milliseconds (mixed is the default: on AMX long sums as three bfloat16 products), its ratio to
strict f32, and the largest error of the outputs, in parts of each one's largest value. The error
of a network that the device does not take (tashkeel-int8) is against onnxruntime.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import onnx
from cpu_peers import Feeds, Results, largest_error, load, partita_call, peer_calls, take_turns
from onnx import AttributeProto, GraphProto, TensorProto, helper, numpy_helper

import partita
from partita.errors import UnsupportedOpError

PRECISIONS: dict[str, dict[str, Any]] = {
    "f32": {"EXECUTION_MODE_HINT": "ACCURACY"},
    "mixed": {},
    "f16": {"INFERENCE_PRECISION_HINT": "f16"},
    "bf16": {"INFERENCE_PRECISION_HINT": "bf16"},
}


def in_float64(model: bytes, feeds: Feeds) -> Results:
    """The outputs of a network whose floats are all float64.

    Raises:
        UnsupportedOpError: The network has operators that ONNX does not define.
    """
    proto = onnx.load_from_string(model)
    widen(proto.graph)
    core = partita.Core()
    compiled = core.compile_model(core.read_model(proto.SerializeToString()), "REFERENCE")
    request = compiled.create_infer_request()
    for name, array in feeds.items():
        wide = array.astype(np.float64) if array.dtype == np.float32 else array
        request.set_tensor(name, partita.Tensor(wide))
    request.infer()
    return [np.array(request.get_output_tensor(i).data) for i in range(len(compiled.outputs))]


def widen(graph: GraphProto) -> None:
    """Makes float64 of all that is float32 in a graph and its bodies."""
    for tensor in graph.initializer:
        widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and not node.attribute:
            zero = numpy_helper.from_array(np.zeros(1))
            node.attribute.append(helper.make_attribute("value", zero))
        for attribute in node.attribute:
            widen_attribute(node.op_type, attribute)


def widen_attribute(op_type: str, attribute: AttributeProto) -> None:
    """The same for an attribute."""
    if attribute.type == AttributeProto.GRAPH:
        widen(attribute.g)
    elif attribute.type == AttributeProto.TENSOR:
        widen_tensor(attribute.t)
    elif op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        value = np.asarray(helper.get_attribute_value(attribute), np.float64)
        attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))
    elif op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
        attribute.i = TensorProto.DOUBLE


def widen_tensor(tensor: TensorProto) -> None:
    """The same for a constant."""
    if tensor.data_type == TensorProto.FLOAT:
        wide = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def measure(name: str, threads: int, rounds: int) -> None:
    """Prints the lines of a model."""
    model, feeds = load(name)
    made, refused = peer_calls(model, feeds, threads)
    try:
        references = in_float64(model, feeds)
    except UnsupportedOpError:
        references = made["ort"][1]
    made |= {label: partita_call(model, feeds, threads, c) for label, c in PRECISIONS.items()}
    taken = take_turns({label: call for label, (call, _) in made.items()}, rounds)
    for label, (_, results) in made.items():
        error = largest_error(results, references)
        ratio = taken["f32"] / taken[label]
        print(f"{name:24} {label:6} {taken[label]:9.3f} ms {ratio:6.2f} {error:9.1e}", flush=True)
    if refused:
        print(f"{name:24} {refused}", flush=True)


def main() -> None:
    """Measures the models named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["encoder", "resnet50", "mobilenetv2"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    for name in arguments.models:
        measure(name, arguments.threads, arguments.rounds)


if __name__ == "__main__":
    main()
