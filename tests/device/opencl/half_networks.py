"""Networks of halves, compared with onnxruntime in float32, and the kernels that computed them."""

import numpy as np
from onnx import helper, numpy_helper

from .comparison import compiled, expected, floats


def request_of(model, **properties):
    how = {"INFERENCE_PRECISION_HINT": "f16", "TILING": "LOCAL", "PERF_COUNT": True, **properties}
    return compiled(model, **how).create_infer_request()


def check(model, feeds, bound=2e-3):
    """Compares with onnxruntime in float32; returns the names of the kernels."""
    request = request_of(model)
    for _ in range(2):
        results = [np.array(x) for x in request.infer(feeds).to_tuple()]
    for found, wanted in zip(results, expected(model, feeds), strict=True):
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        assert np.linalg.norm(found - wanted) <= bound * np.linalg.norm(wanted)
    return [name for info in request.get_profiling_info() for name in info.exec_type.split("+")]


def conv(name, x, y, *, bias=True, **attrs):
    return helper.make_node("Conv", [x, f"w{name}", *([f"b{name}"] if bias else [])], [y], **attrs)


def weights(**shapes):
    """Random initializers that keep the scale of what passes through."""
    made = []
    for seed, (name, shape) in enumerate(shapes.items()):
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        made.append(numpy_helper.from_array(floats(*shape, seed=seed) * fan**-0.5, name))
    return made
