"""What tests of forks and of the end of a process run: a small network before and after."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import threading
import time

import numpy as np
from onnx import TensorProto, helper

import partita
from partita_cpu.jit import disk_cache

SHAPE = [1, 8, 32, 32]
SECONDS = 300
"""After so long a child that waits for ever is ended, and its parent fails."""


@functools.cache
def model():
    """A network with a step for each way to compute: a product, many threads, rows."""
    weights = np.linspace(-1, 1, 8 * 8 * 9, dtype=np.float32).reshape(8, 8, 3, 3)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    held = helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights)
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [held])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def x():
    """The input."""
    return np.linspace(-2, 2, 8 * 32 * 32, dtype=np.float32).reshape(SHAPE)


def use(compiled, request, wanted):
    """Computes in every way that there is."""
    for _ in range(3):
        np.testing.assert_allclose(request.infer({"x": x()})[0], wanted, 1e-5, 1e-6)
    request.start_async({"x": x()})
    request.wait()
    np.testing.assert_allclose(request.get_output_tensor(0).numpy(), wanted, 1e-5, 1e-6)
    np.testing.assert_allclose(compiled({"x": x()})[0], wanted, 1e-5, 1e-6)
    queue = partita.AsyncInferQueue(compiled, 2)
    for _ in range(4):
        queue.start_async({"x": x()})
    queue.wait_all()


def afresh(device, config):
    """What a process does that starts with nothing but its arguments."""
    compiled = partita.Core().compile_model(model(), device, config)
    return np.array(compiled({"x": x()})[0])


def fork_while_others_compile(device, config):
    """Forks in the middle of what is imported and compiled first; the child does the same."""
    thread = threading.Thread(target=afresh, args=(device, config))
    thread.start()
    time.sleep(0.1)
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        afresh(device, config)
        os._exit(0)
    ended_well(child)
    thread.join()


def fork_while_others_load_kernels(device, config):
    """Forks while a first run, of sizes that no compile knew, loads what computes it."""
    port, result = (helper.make_tensor_value_info(n, TensorProto.DOUBLE, ["n"]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Atan", ["x"], ["y"])], "g", [port], [result])
    opset = [helper.make_opsetid("", 17)]
    source = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    compiled = partita.Core().compile_model(source, device, config)
    loads, read = threading.Event(), disk_cache.read

    def slow_read(*place):
        loads.set()
        time.sleep(0.3)
        return read(*place)

    disk_cache.read = slow_read
    thread = threading.Thread(target=compiled, args=({"x": np.ones(7)},))
    thread.start()
    assert loads.wait(SECONDS)
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        np.testing.assert_allclose(compiled({"x": np.ones(7)})[0], np.pi / 4)
        os._exit(0)
    ended_well(child)
    thread.join()


def main(way, device, config):
    """Computes, does what `way` says, and computes again."""
    if way == "fork while others compile":
        fork_while_others_compile(device, config)
        fork_while_others_load_kernels(device, config)
        return
    core = partita.Core()
    compiled = core.compile_model(model(), device, config)
    request = compiled.create_infer_request()
    wanted = np.array(request.infer({"x": x()})[0])
    use(compiled, request, wanted)
    if way == "fork":
        child = os.fork()
        if not child:
            signal.alarm(SECONDS)
            use(compiled, request, wanted)
            use(core.compile_model(model(), device, config), request, wanted)
            sys.exit(0)
        ended_well(child)
        use(compiled, request, wanted)
    elif way in ("fork while others compute", "exit while others compute"):
        daemon = threading.Thread(target=compute_for_ever, args=(compiled,), daemon=True)
        daemon.start()
        time.sleep(0.1)
        if way.startswith("fork"):
            for _ in range(5):
                child = os.fork()
                if not child:
                    signal.alarm(SECONDS)
                    np.testing.assert_allclose(request.infer({"x": x()})[0], wanted, 1e-5, 1e-6)
                    os._exit(0)
                ended_well(child)
    elif way == "exit while requests run":
        requests = [compiled.create_infer_request() for _ in range(4)]
        for each in requests:
            each.start_async({"x": x()})
    else:
        with multiprocessing.get_context(way).Pool(2) as pool:
            for found in pool.starmap(afresh, [(device, config)] * 2):
                np.testing.assert_allclose(found, wanted, 1e-5, 1e-6)


def ended_well(child):
    """Waits for one child, and says how it ended if not as it should."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"the child ended with {code}; negative codes are signals"


def compute_for_ever(compiled):
    """Computes until the process ends."""
    request = compiled.create_infer_request()
    while True:
        request.infer({"x": x()})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], {"INFERENCE_NUM_THREADS": 3} if sys.argv[2] == "CPU" else {})
