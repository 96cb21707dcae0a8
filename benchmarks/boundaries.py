"""What a tensor costs that crosses between CPU and an OpenCL device, by the way it crosses.

    python benchmarks/boundaries.py [--device OPENCL]

An operation on CPU, one on the device, one on CPU: two crossings. Each size is measured with the
plan as it is (host memory shared where the device is the host's processor, page-locked memory
elsewhere), with a device memory apart and page-locked host memory, and with ordinary host memory;
in turns, beside the same three operations on the device alone, from and to ordinary arrays.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from hetero import alternate
from onnx import TensorProto, helper

import partita
from partita_opencl.device.device import find_device

SIZES = (1 << 10, 150 << 10, 16 << 20)
"""Elements of float32."""


class OrdinaryMemory(partita.Core):
    """A core whose devices offer no host memory of their own."""

    def host_memory(self, device: str, nbytes: int) -> None:
        """Nothing."""


def model_of(count: int) -> Any:
    """Three operations in a row."""
    names = ["x", "a", "b", "y"]
    nodes = [
        helper.make_node(op_type, [names[i]], [names[i + 1]], name=f"op{i}")
        for i, op_type in enumerate(("Neg", "Abs", "Relu"))
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [count]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "crossing", ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def request_of(core: partita.Core, count: int, device: str) -> Callable[[], object]:
    """One inference over CPU, the device and CPU."""
    model = core.read_model(model_of(count))
    for op, name in zip(model.ops, ("CPU", device, "CPU"), strict=True):
        op.affinity = name
    request = core.compile_model(model, f"HETERO:CPU,{device}").create_infer_request()
    feeds = {"x": np.ones(count, np.float32)}
    request.infer(feeds)  # buffers are bound now
    return lambda: request.infer(feeds, share_outputs=True)


def main() -> None:
    """Prints a line for every size and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="OPENCL")
    device = parser.parse_args().device
    core = partita.Core()
    target = find_device(core.resolve_device(device).partition(".")[2])
    print(f"{target.handle.name.strip()}: works in host memory: {target.shares_host}")
    for count in SIZES:
        calls = {"as planned": request_of(core, count, device)}
        shared, vars(target)["shares_host"] = target.shares_host, False
        if shared:
            calls["page-locked"] = request_of(core, count, device)
        calls["ordinary"] = request_of(OrdinaryMemory(), count, device)
        vars(target)["shares_host"] = shared
        whole = core.compile_model(model_of(count), device).create_infer_request()
        x = {"x": np.ones(count, np.float32)}
        calls["device alone"] = lambda r=whole, x=x: r.infer(x, share_outputs=True)
        for name, median in alternate(calls, rounds=9).items():
            print(f"  {4 * count / 1e6:8.3f} MB, {name:<12} {median * 1e3:9.0f} us")


if __name__ == "__main__":
    main()
