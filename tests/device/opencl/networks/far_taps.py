"""What a test runs in a process of its own: taps half an address space apart, at guard pages."""

from dataclasses import replace

import numpy as np
from onnx import helper, numpy_helper

from partita_opencl.device.device import find_device
from partita_opencl.runtime import device_model
from tests.campaign import guard
from tests.device.opencl.comparison import build, compiled, floats

FAR = 1 << 30


def main():
    """Convolves 81 pixels, of tiles of 64, whose first taps lie in the padding."""
    guard.guard_opencl()
    device = find_device("")
    device.limits = replace(device.limits, matrix_units=True)
    device_model.objections = lambda _, wanted: dict.fromkeys(wanted, "")
    x, w = floats(9, 1, 9, 1), floats(8, 1, 2, 1, seed=1)
    node = helper.make_node("Conv", ["x", "w"], ["y"], dilations=[FAR, 1], pads=[FAR, 0, 0, 0])
    model = build([node], {"x": x}, ["y"], [numpy_helper.from_array(w, "w")])
    how = {"INFERENCE_PRECISION_HINT": "f16", "TILING": "LOCAL", "PERF_COUNT": True}
    request = compiled(model, **how).create_infer_request()
    (found,) = request.infer({"x": x}).to_tuple()
    names = "+".join(info.exec_type for info in request.get_profiling_info())
    wanted = x.astype(np.float64) * w[:, 0, 1].reshape(1, 8, 1, 1)
    assert "product_stream" in names
    np.testing.assert_allclose(found, wanted, atol=0.01)


if __name__ == "__main__":
    main()
