"""Small models, and their comparison with onnxruntime; used by the tests of the OPENCL device."""

import functools

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

import partita


@functools.cache
def core():
    return partita.Core()


def single(op_type, inputs, attrs=None, *, outputs=1, opset=18, constant=(), dynamic=False):
    """A model of one operator.

    Args:
        op_type: The operator.
        inputs: Arrays in order; ``None`` leaves an optional one out.
        attrs: Its attributes.
        outputs: How many outputs it has.
        opset: Opset version.
        constant: Positions of the inputs that become initializers.
        dynamic: Declare all dimensions of the model's inputs as unknown.

    Returns:
        The model and the arrays of its inputs by name.
    """
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, results, name=op_type, **(attrs or {}))
    feeds = {
        n: x for i, (n, x) in enumerate(zip(names, inputs, strict=True)) if n and i not in constant
    }
    weights = [numpy_helper.from_array(inputs[i], names[i]) for i in constant]
    return build([node], feeds, results, weights, opset, dynamic), feeds


def build(nodes, feeds, outputs, weights=(), opset=18, dynamic=False):
    """A model of nodes; inputs are declared as the feeds are."""
    ports = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(x.dtype),
            [None] * x.ndim if dynamic else x.shape,
        )
        for name, x in feeds.items()
    ]
    graph = helper.make_graph(
        nodes, "g", ports, [helper.make_empty_tensor_value_info(n) for n in outputs], weights
    )
    versions = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=10)


def expected(model, feeds):
    """What onnxruntime computes without optimizing the graph."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def compiled(model, **properties):
    return core().compile_model(core().read_model(model), "OPENCL", properties)


TILINGS = ("LOCAL", "REGISTERS")
"""The ways in which kernels are cut for GPUs and for CPUs; every device can run both."""


def check(model, *runs, rtol=1e-4, atol=1e-5, **properties):
    """Compares every set of feeds, run in one request per tiling, with onnxruntime."""
    taken = core().query_model(core().read_model(model), "OPENCL")
    assert not taken.reasons
    wanted = [expected(model, feeds) for feeds in runs]
    for tiling in TILINGS:
        request = compiled(model, TILING=tiling, **properties).create_infer_request()
        for feeds, outputs in zip(runs, wanted, strict=True):
            found = [np.array(x) for x in request.infer(feeds).to_tuple()]
            for mine, theirs in zip(found, outputs, strict=True):
                assert mine.shape == theirs.shape
                assert mine.dtype == theirs.dtype
                np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=atol)


def check_single(op_type, inputs, attrs=None, *, rtol=1e-4, atol=1e-5, **how):
    """One operator against onnxruntime."""
    model, feeds = single(op_type, inputs, attrs, **how)
    check(model, feeds, rtol=rtol, atol=atol)


def refusal(op_type, inputs, attrs=None, **how):
    """The reason why a single operator is refused."""
    model, _ = single(op_type, inputs, attrs, **how)
    return core().query_model(core().read_model(model), "OPENCL").reasons[op_type]


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(*shape, low=-5, high=6, dtype=np.int64, seed=0):
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def int64s(*values):
    return np.array(values, np.int64)
