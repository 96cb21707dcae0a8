"""Memory in which threads put things down within a step lies where it lay in other steps."""

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import helper, numpy_helper

import partita
from partita.lowering.shapes.symbolic_size import Recording
from partita_cpu.gemm.macrokernel.product_loop import multiply_tiles
from partita_cpu.threads.thread_memory import LEAST, room_of


@pytest.mark.parametrize(
    ("needed", "room"), [(0, 0), (1, LEAST), (LEAST, LEAST), (LEAST + 1, 2 * LEAST)]
)
def test_room_is_a_power_of_two_of_several_threads(needed, room):
    assert room_of(needed, 2) == room
    assert room_of(needed, 1) == needed


def test_sizes_that_stand_for_others_are_left_alone():
    size = Recording().size(5000)
    assert room_of(size, 4) is size


def convolutions(sizes):
    """Convolutions one after another, with so many channels and taps."""
    rng, nodes, weights, before = np.random.default_rng(0), [], [], 16
    for number, (channels, taps) in enumerate(sizes):
        w = rng.standard_normal((channels, before, taps, taps)) / taps / before**0.5
        weights.append(numpy_helper.from_array(w.astype(np.float32), f"w{number}"))
        pads, before = [taps // 2] * 4, channels
        names = [f"x{number}", f"w{number}"]
        nodes.append(helper.make_node("Conv", names, [f"x{number + 1}"], pads=pads))
    given = helper.make_tensor_value_info("x0", 1, [1, 16, 8, 8])
    made = helper.make_tensor_value_info(f"x{len(sizes)}", 1, None)
    graph = helper.make_graph(nodes, "convolutions", [given], [made], weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def test_products_of_several_threads_share_their_memory(level):
    model = convolutions([(32, 3), (64, 1), (48, 5), (64, 3), (16, 1)])
    feeds = {"x0": np.random.default_rng(1).standard_normal((1, 16, 8, 8)).astype(np.float32)}
    core = partita.Core()
    config = {"INFERENCE_NUM_THREADS": 4, "EXECUTION_MODE_HINT": "ACCURACY"}
    compiled = core.compile_model(core.read_model(model), "CPU", config)
    found = compiled.create_infer_request().infer(feeds)[0]
    wanted = onnxruntime_results(model, feeds)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    (program,) = compiled.device_model.specializer.programs.values()
    products = [step for step in program.steps if step.fn is multiply_tiles]
    scratch = {arg for step in products for arg in step.args if getattr(arg, "dtype", None) == "u1"}
    assert len(products) == 5
    assert [operand.nbytes for operand in scratch] == [4 * LEAST]
