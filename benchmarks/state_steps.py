"""What Python does in a step of a decoder: with few and many caches, on CPU and through HETERO.

Each layer is one GroupQueryAttention over caches that are state. A step's processor time grows with
the layers, since they compute; its calls of Python functions must not::

    python benchmarks/state_steps.py

Rows with "by turns" are the same model on a device that updates nothing in place.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

import partita
from partita.model.variables import METADATA_KEY, Variable, to_metadata

WIDTH, ROOM, STEPS, REPEATS = 16, 256, 200, 5


def chain(layers: int) -> bytes:
    """Layers of attention, each of which reads what the one before it computed."""
    nodes, caches, pairs = [], [], []
    x = "x"
    for layer in range(layers):
        pasts = [f"past.{layer}.{what}" for what in ("key", "value")]
        presents = [f"present.{layer}.{what}" for what in ("key", "value")]
        nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [x, x, x, *pasts, "seqlens_k", "total_sequence_length"],
                [f"y.{layer}", *presents],
                f"layer.{layer}",
                domain="com.microsoft",
                num_heads=1,
                kv_num_heads=1,
            )
        )
        caches += zip(pasts, presents, strict=True)
        pairs += [Variable(past, past, present) for past, present in caches[-2:]]
        x = f"y.{layer}"
    of, shape = helper.make_tensor_value_info, (1, 1, ROOM, WIDTH)
    graph = helper.make_graph(
        nodes,
        "chain",
        [
            of("x", TensorProto.FLOAT, (1, 1, WIDTH)),
            of("seqlens_k", TensorProto.INT32, (1,)),
            of("total_sequence_length", TensorProto.INT32, ()),
            *(of(past, TensorProto.FLOAT, shape) for past, _ in caches),
        ],
        [
            of(x, TensorProto.FLOAT, (1, 1, WIDTH)),
            *(of(present, TensorProto.FLOAT, shape) for _, present in caches),
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    helper.set_model_props(model, {METADATA_KEY: to_metadata(pairs)})
    return model.SerializeToString()


def request_on(device: str, layers: int, in_place: bool) -> partita.InferRequest:
    """A request; of HETERO with half of the layers on a second device of the same processor."""
    core = partita.Core()
    core.register_plugin("partita_cpu", "CPU2")
    model = core.read_model(chain(layers))
    for number, op in enumerate(model.ops):
        op.affinity = "CPU2" if ":" in device and number >= layers // 2 else None
    compiled = core.compile_model(model, device)
    if not in_place:
        compiled.device_model.in_place_outputs = dict  # type: ignore[method-assign]
    return compiled.create_infer_request()


def feeds(at: int) -> dict[str, np.ndarray]:
    """Inputs of one step."""
    return {
        "x": np.full((1, 1, WIDTH), 0.5, np.float32),
        "seqlens_k": np.array([at], np.int32),
        "total_sequence_length": np.array(at + 1, np.int32),
    }


def processor_us(step: Callable[[], object]) -> float:
    """The least processor time of a step in microseconds, of some repeats of many steps."""
    least = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        for _ in range(STEPS):
            step()
        least = min(least, time.process_time() - start)
    return least / STEPS * 1e6


def python_calls(step: Callable[[], object]) -> int:
    """How many functions of Python and C a step calls."""
    count = 0

    def noting(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(noting)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count


def main() -> None:
    """Prints a row per device and number of layers."""
    print("| device | state | layers | caches | us of a step | calls of Python in it |")
    print("| --- | --- | --- | --- | --- | --- |")
    for device in ("CPU", "HETERO:CPU,CPU2"):
        for in_place in (True, False):
            for layers in (2, 8, 30):
                request = request_on(device, layers, in_place)
                for at in range(8):
                    request.infer(feeds(at))
                given = feeds(8)

                def step(request: partita.InferRequest = request, given: dict = given) -> object:
                    return request.infer(given)

                us, calls = processor_us(step), python_calls(step)
                how = "in place" if in_place else "by turns"
                print(f"| {device} | {how} | {layers} | {2 * layers} | {us:.0f} | {calls} |")


if __name__ == "__main__":
    main()
