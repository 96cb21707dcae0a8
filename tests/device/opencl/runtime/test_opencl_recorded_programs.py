"""Programs of device OPENCL that are recorded once for a class of shapes, beside other engines."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper, parser

import partita
from partita.lowering.recording import class_programs
from partita_opencl.device.device import find_device
from partita_opencl.runtime import device_model
from partita_opencl.tuning import product_tiles

SCORES = """<ir_version: 10, opset_import: ["" : 18]>
g (float[N, 8] x) => (float[N, 8] y) {
    t = Transpose <perm = [1, 0]> (x)
    s = MatMul(x, t)
    p = Softmax(s)
    y = MatMul(p, x)
}"""

PICTURES = """<ir_version: 10, opset_import: ["" : 18]>
g (float[N, 3, H, W] x) => (float[N, 8, A, B] y, float[N, 8] mean, float[N, C, 2, B] part) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    d = Conv <pads = [1, 1, 1, 1], group = 8> (c, v)
    m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
    r = Resize <mode = "linear"> (m, , scales)
    n = Resize <mode = "nearest", nearest_mode = "floor",
                coordinate_transformation_mode = "asymmetric"> (m, , scales)
    s = Add(r, n)
    t = Transpose <perm = [0, 2, 3, 1]> (s)
    u = Softmax(t)
    y = Transpose <perm = [0, 3, 1, 2]> (u)
    mean = ReduceMean <keepdims = 0> (s, axes)
    joined = Concat <axis = 1> (s, x)
    part = Slice(joined, starts, ends, along)
}"""

TOKENS = """<ir_version: 10, opset_import: ["" : 18]>
g (int64[B, L] ids) => (float[B, L, 64] y) {
    dims = Shape(ids)
    length = Gather(dims, one)
    last = Unsqueeze(length, zeros)
    places = Slice(positions, zeros, last, ones)
    words = Gather(table, ids)
    where = Gather(table, places)
    sum = Add(words, where)
    n = LayerNormalization(sum, scale, bias)
    a = MatMul(n, w)
    b = Add(a, bias)
    y = Relu(b)
}"""


COUNTED = """<ir_version: 10, opset_import: ["" : 18]>
g (int64[B, L] ids) => (float[B, L, 64] y) {
    dims = Shape(ids)
    length = Gather(dims, one)
    places = Range(zero, length, one)
    rows = Unsqueeze(places, zeros)
    words = Gather(table, ids)
    where = Gather(table, rows)
    y = Add(words, where)
}"""
"""Places that are counted up to a size, and seen as rows."""


def weights(**shapes):
    rng = np.random.default_rng(0)
    return {n: 0.3 * rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def integers(**lists):
    return {name: np.array(numbers, np.int64) for name, numbers in lists.items()}


KINDS = {
    "scores": (SCORES, {}),
    "pictures": (
        PICTURES,
        {
            **weights(w=(8, 3, 3, 3), v=(8, 1, 3, 3)),
            "scales": np.array([1, 1, 2, 2], np.float32),
            **integers(axes=[2, 3], starts=[-3], ends=[-1], along=[2]),
        },
    ),
    "tokens": (
        TOKENS,
        {
            **weights(table=(300, 64), scale=64, bias=64, w=(64, 64)),
            **integers(positions=range(300), one=1, zeros=[0], ones=[0]),
        },
    ),
    "counted": (COUNTED, {**weights(table=(300, 64)), **integers(zero=0, one=1, zeros=[0])}),
}

SIZES = [1, 2, 3, 4, 5, 15, 16, 17, 23, 24, 25, 63, 64, 65, 255, 256, 257, 300, 7, 100]


def feeds(kind, rng):
    """Inputs of all sizes that emitters decide by, and of random ones between, in random order."""
    if kind == "pictures":
        for _ in range(14):
            n, h, w = rng.integers(1, 4), 2 * rng.integers(2, 24), 2 * rng.integers(2, 24)
            yield {"x": rng.standard_normal((n, 3, h, w), np.float32)}
        return
    for size in rng.permutation([*SIZES, *rng.integers(1, 300, 6)]):
        if kind == "scores":
            yield {"x": 0.5 * rng.standard_normal((size, 8), np.float32)}
        else:
            batch = 1 if size > 100 else int(rng.integers(1, 4))
            yield {"ids": rng.integers(0, 300, (batch, size))}


def model_of(kind):
    text, constants = KINDS[kind]
    model = parser.parse_model(text)
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def noted(monkeypatch):
    """The walks through classes of shapes from now on, and the programs recorded in such."""
    walks, recorded = [], []
    for name, seen in (("Walk", walks), ("RecordedProgram", recorded)):
        make = getattr(class_programs, name)

        def noting(*args, make=make, seen=seen, **more):
            seen.append(made := make(*args, **more))
            return made

        monkeypatch.setattr(class_programs, name, noting)
    return walks, recorded


def compare(kind, config, tolerance, seed=1):
    model = model_of(kind)
    judge = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    request = partita.Core().compile_model(model, "OPENCL", config).create_infer_request()
    for given in feeds(kind, np.random.default_rng(seed)):
        results = request.infer(given).to_tuple()
        for found, wanted in zip(results, judge.run(None, given), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("kind", "precision", "tiling"),
    [
        ("scores", "f32", "AUTO"),
        ("scores", "f16", "LOCAL"),
        ("pictures", "f32", "LOCAL"),
        ("pictures", "f16", "AUTO"),
        ("tokens", "f32", "AUTO"),
        ("tokens", "f16", "LOCAL"),
        ("counted", "f32", "AUTO"),
    ],
)
def test_recorded_programs_compute_what_onnxruntime_does(kind, precision, tiling, monkeypatch):
    """Each pair of a model, a precision and a tiling is there, if not all three together."""
    tolerance = {"f32": 1e-4, "f16": 3e-2}[precision]
    walks, recorded = noted(monkeypatch)
    compare(kind, {"INFERENCE_PRECISION_HINT": precision, "TILING": tiling}, tolerance)
    assert recorded
    assert len(walks) == len(recorded)


def test_other_tiles_are_no_other_recording(monkeypatch):
    """A graphics card has tiles for each size of a product."""
    tiles = tuple(product_tiles.TILES[n] for n in (2, 4, 5))
    for kind in ("CPU_TILES", "TILES"):
        monkeypatch.setattr(product_tiles, kind, tiles)
    device = find_device("")
    monkeypatch.setattr(device, "limits", replace(device.limits, compute_units=2))
    chosen = set()
    cut = product_tiles.ranked

    def noting(*args, **more):
        found = cut(*args, **more)
        chosen.add(found[0].tile)
        return found

    monkeypatch.setattr("partita_opencl.emitters.gemm.products.ranked", noting)
    walks, recorded = noted(monkeypatch)
    compare("scores", {"TILING": "LOCAL"}, 1e-4)
    assert len(chosen) > 1
    assert len(walks) == len(recorded) < len(SIZES) / 2


def test_products_that_stream_through_matrix_units_are_recorded(monkeypatch):
    device = find_device("")
    if not device.limits.is_nvidia:
        limits = replace(device.limits, matrix_units=True)
        monkeypatch.setattr(device, "limits", limits)
        monkeypatch.setattr(device_model, "objections", lambda _, wanted: dict.fromkeys(wanted, ""))
    walks, recorded = noted(monkeypatch)
    compare("tokens", {"INFERENCE_PRECISION_HINT": "f16", "TILING": "LOCAL"}, 5e-2)
    assert recorded
    assert len(walks) == len(recorded)


def test_a_new_size_is_not_emitted(monkeypatch):
    request = partita.Core().compile_model(model_of("tokens"), "OPENCL").create_infer_request()
    for length in (40, 41, 42):
        request.infer([np.zeros((1, length), np.int64)])
    walked = []
    walk = class_programs.Walk.emit
    monkeypatch.setattr(class_programs.Walk, "emit", lambda self: walked.append(self) or walk(self))
    for length in range(43, 60):
        request.infer([np.zeros((1, length), np.int64)])
    assert walked == []
