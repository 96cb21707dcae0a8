"""Halves that stream through matrix units: images with channels last, products, attention.

Devices without matrix units compute the same kernels by ordinary arithmetic.
"""

import functools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from partita.errors import CompileError, PartitaError
from partita_opencl.device.device import find_device
from partita_opencl.drivers.hopper_ptx import HIDDEN, multiplier, unhidden
from partita_opencl.emitters import nhwc_images
from partita_opencl.launches.work_sizes import Tuning
from partita_opencl.passes.stream_fusion import Merger
from partita_opencl.runtime import device_model as compiled_module
from partita_opencl.trials import matrix_unit_checks
from partita_opencl.trials.matrix_unit_checks import Units
from partita_opencl.tuning import product_tiles
from partita_opencl.tuning.product_tiles import StreamTile

from ..comparison import build, compiled, expected, floats, int64s, integers
from ..half_networks import check, conv, request_of, weights


@pytest.fixture(autouse=True)
def matrix_units(monkeypatch):
    """Kernels for matrix units, computing without them where the device has none.

    Such a device is never asked whether its driver makes right code of them, so it is asked here.
    """
    device = find_device("")
    monkeypatch.setattr(device, "limits", replace(device.limits, matrix_units=True))
    if not device.limits.is_nvidia:
        monkeypatch.setattr(
            compiled_module, "objections", lambda _, wanted: dict.fromkeys(wanted, "")
        )
        if fault := fault_of_units(device.id):
            pytest.skip(f"{device.identity} fails the trial of these kernels: {fault}")


@functools.cache
def fault_of_units(device_id):
    """What a driver computes wrongly of these kernels; empty if nothing."""
    limits = find_device(device_id).limits
    parts = range(matrix_unit_checks.parts(Units.MATRIX, limits))
    faults = (matrix_unit_checks.fault(device_id, Units.MATRIX, part) for part in parts)
    return next(filter(None, faults), "")


SAME = [1, 1, 1, 1]


def test_a_network_stays_with_channels_last():
    nodes = [
        conv("s", "x", "stem", strides=[2, 2], pads=[3, 3, 3, 3]),
        helper.make_node("Relu", ["stem"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[3, 3], strides=[2, 2], pads=SAME),
        conv("1", "b", "c", pads=SAME),
        helper.make_node("Add", ["c", "b"], ["d"]),
        helper.make_node("HardSwish", ["d"], ["e"]),
        conv("d", "e", "f", pads=[0, 1, 1, 1], group=20, strides=[2, 1]),
        helper.make_node("GlobalAveragePool", ["f"], ["g"]),
        helper.make_node("Sigmoid", ["g"], ["h"]),
        helper.make_node("Mul", ["f", "h"], ["i"]),
        helper.make_node("Add", ["i", "shift"], ["j"]),
        helper.make_node("AveragePool", ["j"], ["k"], kernel_shape=[2, 2], count_include_pad=1,
                         pads=[1, 0, 0, 1]),
        helper.make_node("ReduceMean", ["k", "axes"], ["l"]),
        helper.make_node("Flatten", ["l"], ["m"]),
        helper.make_node("MatMul", ["m", "wf"], ["n"]),
        helper.make_node("Add", ["n", "bf"], ["y"]),
    ]  # fmt: skip
    constants = weights(
        ws=(20, 3, 7, 7), bs=(20,), w1=(20, 20, 3, 3), b1=(20,), wd=(20, 1, 3, 3), bd=(20,),
        shift=(1, 20, 1, 1), wf=(20, 11), bf=(11,),
    )  # fmt: skip
    constants.append(numpy_helper.from_array(int64s(2, 3), "axes"))
    feeds = {"x": floats(2, 3, 38, 46)}
    kernels = check(build(nodes, feeds, ["y", "k"], constants), feeds)
    assert "product_stream" in kernels
    assert "window_last" in kernels
    assert kernels.count("to_channels_first") <= 1  # of k; the rest never leaves its layout


CONVOLUTIONS = [
    ((1, 3, 9, 11), (5, 3, 3, 3), {"pads": SAME}),
    ((1, 4, 9, 12), (8, 4, 5, 3), {"pads": [2, 0, 2, 2], "strides": [1, 2]}),
    ((2, 32, 7, 6), (24, 32, 3, 2), {"dilations": [2, 3], "pads": [2, 1, 0, 3]}),
    ((1, 48, 5, 7), (32, 24, 3, 3), {"group": 2, "strides": [2, 1]}),
    ((1, 10, 6, 5), (70, 10, 1, 1), {"strides": [2, 2]}),
    ((1, 640, 3, 3), (16, 640, 3, 3), {"pads": SAME}),
    ((1, 6, 9, 8), (6, 1, 3, 3), {"group": 6, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), CONVOLUTIONS)
def test_convolutions(x, w, attrs):
    feeds = {"x": floats(*x)}
    nodes = [conv("", "x", "y", bias=x[0] == 1, **attrs)]
    model = build(nodes, feeds, ["y"], weights(w=w, b=(w[0],)))
    kernels = check(model, feeds)
    assert {"product_stream", "window_last"} & set(kernels)


def test_images_meet_again_with_channels_last():
    nodes = [
        conv("1", "x", "a", pads=SAME),
        conv("2", "a", "b", strides=[2, 2]),
        helper.make_node("Resize", ["b", "", "scales"], ["c"], mode="nearest"),
        helper.make_node("Resize", ["b", "", "", "sizes"], ["d"], mode="linear"),
        helper.make_node("Concat", ["c", "d"], ["e"], axis=1),
        helper.make_node("PRelu", ["e", "slope"], ["f"]),
        conv("3", "f", "g"),
        helper.make_node("Softmax", ["g"], ["y"], axis=1),
    ]
    constants = weights(w1=(16, 8, 3, 3), b1=(16,), w2=(24, 16, 1, 1), b2=(24,), slope=(48, 1, 1))
    constants += weights(w3=(9, 48, 1, 1), b3=(9,))
    constants.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"))
    constants.append(numpy_helper.from_array(int64s(1, 24, 6, 8), "sizes"))
    feeds = {"x": floats(1, 8, 6, 8)}
    check(build(nodes, feeds, ["y"], constants), feeds)


TILES = [
    StreamTile(32, 64, 64, (2, 2), 1.0, 1.0, 2, False, 1.0, 1.0),
    StreamTile(64, 32, 64, (4, 1), 1.0, 1.0, 3, True, 1.0, 1.0),
]


@pytest.mark.parametrize("tile", TILES)
def test_tiles_of_other_shapes(monkeypatch, tile):
    """A warpgroup's tile too: its sums lie in the same fragments, its copies run further ahead."""
    monkeypatch.setattr(product_tiles, "CPU_STREAM_TILES", (tile,))
    others = replace(product_tiles.STREAM_TILES[0], start=1e9)  # for what a warp does alone
    monkeypatch.setattr(product_tiles, "STREAM_TILES", (tile, others))
    of = Tuning.of
    able = find_device("").limits.warpgroups or not find_device("").limits.is_nvidia
    monkeypatch.setattr(Tuning, "of", lambda *a, **how: replace(of(*a, **how), warpgroups=able))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "r"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    # Long sums are handed over by parts; the third product has all its tiles at once.
    for rows, depth, columns in ((70, 1288, 40), (33, 512, 104), (65, 64, 24)):
        feeds = {"x": floats(rows, depth), "r": floats(rows, columns, seed=2)}
        check(build(nodes, feeds, ["y"], weights(w=(depth, columns))), feeds)


def attention(rows, keys, heads, size, *, mask=None, scale="Mul"):
    """A model of attention as exporters spell it, and its feeds."""
    turn, turned = [0, 2, 1, 3], [0, 2, 3, 1]
    nodes = [
        helper.make_node("Transpose", ["q"], ["heads"], perm=turn),
        helper.make_node("Transpose", ["k"], ["keys"], perm=turned),
        helper.make_node("Transpose", ["v"], ["values"], perm=turn),
        helper.make_node("MatMul", ["heads", "keys"], ["scores"]),
        helper.make_node(scale, ["scores", "factor"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked" if mask else "scaled"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "values"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["y"], perm=turn),
    ]
    feeds = {"q": floats(2, rows, heads, size), "k": floats(2, keys, heads, size, seed=1)}
    feeds["v"] = floats(2, keys, heads, size, seed=2)
    if mask:
        feeds["mask"] = floats(*mask, seed=3)
    else:
        del nodes[5]
    factor = numpy_helper.from_array(np.float32(3.0 if scale == "Div" else 0.2), "factor")
    return build(nodes, feeds, ["y"], [factor]), feeds


@pytest.mark.parametrize(
    ("sizes", "mask", "scale"),
    [
        ((40, 70, 2, 24), (2, 1, 1, 70), "Mul"),
        ((17, 130, 3, 64), None, "Div"),
        ((33, 9, 1, 8), (33, 9), "Mul"),
    ],
)
def test_attention(sizes, mask, scale):
    model, feeds = attention(*sizes, mask=mask, scale=scale)
    assert "attention" in check(model, feeds)


def test_a_row_without_keys_is_a_mean_and_not_nan():
    model, feeds = attention(4, 6, 1, 16, mask=(1, 1, 4, 6))
    feeds["mask"][0, 0, 2] = -3.4e38
    found = np.array(request_of(model).infer(feeds)[0])
    values = feeds["v"][:, :, 0]
    assert (found[:, 2, 0] >= values.min(1) - 1e-3).all()
    assert (found[:, 2, 0] <= values.max(1) + 1e-3).all()


def layer(width=64, heads=2, tokens=21, activation="Relu"):
    """A layer of an encoder: its nodes, feeds and weights."""

    def dense(name, x, y):
        return [
            helper.make_node("MatMul", [x, f"w{name}"], [f"m{name}"]),
            helper.make_node("Add", [f"m{name}", f"b{name}"], [y]),
        ]

    nodes = []
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += dense(name, "x", f"d{name}")
        nodes.append(helper.make_node("Reshape", [f"d{name}", "split"], [f"r{name}"]))
        nodes.append(helper.make_node("Transpose", [f"r{name}"], [f"t{name}"], perm=perm))
    nodes += [
        helper.make_node("MatMul", ["tq", "tk"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "tv"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "join"], ["joined"]),
        *dense("o", "joined", "out"),
        helper.make_node("Add", ["out", "x"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", "scale", "shift"], ["n"]),
        *dense("1", "n", "wide"),
        helper.make_node(activation, ["wide"], ["act"]),
        *dense("2", "act", "narrow"),
        helper.make_node("Add", ["narrow", "n"], ["y"]),
    ]
    shapes = {f"w{name}": (width, width) for name in "qkvo"} | {"w1": (width, 96)}
    shapes |= {f"b{name}": (width,) for name in "qkvo2"} | {"b1": (96,), "w2": (96, width)}
    constants = weights(**shapes, scale=(width,), shift=(width,))
    constants.append(numpy_helper.from_array(int64s(0, 0, heads, width // heads), "split"))
    constants.append(numpy_helper.from_array(int64s(0, 0, width), "join"))
    return nodes, {"x": floats(2, tokens, width)}, constants


def test_a_layer_of_an_encoder_is_six_products_and_attention():
    nodes, feeds, constants = layer()
    kernels = check(build(nodes, feeds, ["y"], constants), feeds)
    assert kernels.count("attention") == 1
    # Three products are one; the normalization goes with the fourth.
    assert "normalize_short" not in kernels
    assert kernels.count("product_stream") == 4


def test_a_normalization_that_others_read_and_products_that_differ_stay_right():
    nodes, feeds, constants = layer(width=72, heads=3)
    model = build(nodes, feeds, ["y", "n", "dk"], constants)
    kernels = check(model, feeds)
    assert "normalize_short" in kernels  # 72 elements are no whole tile
    assert "attention" in kernels


def test_shapes_that_change_share_what_was_merged(monkeypatch):
    nodes, feeds, constants = layer()
    request = request_of(build(nodes, feeds, ["y"], constants, dynamic=True))
    merges, merge = [], Merger.run
    monkeypatch.setattr(Merger, "run", lambda *args: merges.append(args) or merge(*args))
    for tokens in (5, 21, 9, 5, 13, 37):
        model = build(nodes, {"x": floats(1, tokens, 64)}, ["y"], constants)
        given = {"x": floats(1, tokens, 64, seed=tokens)}
        wanted = expected(model, given)[0]
        found = np.array(request.infer(given)[0])
        assert np.linalg.norm(found - wanted) <= 2e-3 * np.linalg.norm(wanted)
    # For the first shapes, for all that differ from them in a size, and for these once more when
    # channels, which might vary, have turned out to be those of the weights.
    assert len(merges) == 3


@pytest.mark.parametrize(("width", "tokens"), [(64, 37), (192, 9), (72, 21)])
def test_sums_that_layers_add_to_stay_single(width, tokens):
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Add", ["a", "far"], ["b"]),
        helper.make_node("Add", ["b", "x"], ["c"]),
        helper.make_node("LayerNormalization", ["c", "s0", "t0"], ["d"]),
        helper.make_node("MatMul", ["d", "w1"], ["e"]),
        helper.make_node("Add", ["e", "b1"], ["f"]),
        helper.make_node("Relu", ["f"], ["g"]),
        helper.make_node("MatMul", ["g", "w2"], ["h"]),
        helper.make_node("Add", ["h", "far"], ["i"]),
        helper.make_node("Add", ["i", "d"], ["j"]),
        helper.make_node("LayerNormalization", ["j", "s1", "t1"], ["k"]),
        helper.make_node("MatMul", ["k", "w3"], ["l"]),
        helper.make_node("Relu", ["l"], ["m"]),
        helper.make_node("MatMul", ["m", "w4"], ["n"]),
        helper.make_node("Add", ["n", "k"], ["o"]),
        helper.make_node("LayerNormalization", ["o", "s0", "t0"], ["y"]),
    ]
    rows = dict.fromkeys(("s0", "t0", "s1", "t1"), (width,))
    constants = weights(w0=(width, width), w1=(width, 128), b1=(128,), w2=(128, width),
                        w3=(width, 128), w4=(128, width), **rows)  # fmt: skip
    # Halves round a sum of a thousand to a half.
    constants.append(numpy_helper.from_array(np.full(width, 1000, np.float32), "far"))
    feeds = {"x": floats(1, tokens, width)}
    model = build(nodes, feeds, ["y"], constants)
    check(model, feeds, bound=2e-3)
    request = request_of(model)
    request.infer(feeds)
    options = [name for step in request.explain_execution().steps for name in step.options]
    assert options.count("ADDS_SINGLE") == 2
    assert options.count("SINGLE_ROWS") == 3
    assert options.count("SINGLE_NORMAL") + options.count("BOTH") == 2


def test_a_model_of_halves_streams_too():
    w = numpy_helper.from_array(floats(16, 8, 3, 3).astype(np.float16), "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=SAME)]
    feeds = {"x": floats(1, 8, 6, 7).astype(np.float16)}
    request = request_of(build(nodes, feeds, ["y"], [w]), INFERENCE_PRECISION_HINT="f32")
    found = np.array(request.infer(feeds)[0])
    wide = [numpy_helper.from_array(numpy_helper.to_array(w).astype(np.float32), "w")]
    single = {"x": feeds["x"].astype(np.float32)}
    wanted = expected(build(nodes, single, ["y"], wide), single)[0]
    assert found.dtype == np.float16
    assert np.linalg.norm(found - wanted) <= 2e-3 * np.linalg.norm(wanted)
    assert "product_stream" in request.get_profiling_info()[0].exec_type


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("columns", [8, 640])
def test_rows_normalized_by_warps(precision, columns):
    nodes = [helper.make_node("LayerNormalization", ["x", "scale"], ["y"])]
    feeds = {"x": floats(37, columns) + 3}
    model = build(nodes, feeds, ["y"], weights(scale=(columns,)))
    request = request_of(model, INFERENCE_PRECISION_HINT=precision)
    found, wanted = np.array(request.infer(feeds)[0]), expected(model, feeds)[0]
    bound = 2e-3 if precision == "f16" else 1e-6
    assert np.linalg.norm(found - wanted) <= bound * np.linalg.norm(wanted)
    assert (
        "normalize_short" in request.get_profiling_info()[-1 if precision == "f32" else 0].exec_type
    )


def test_hidden_instructions_come_into_force():
    text = multiplier(64)
    assert HIDDEN in text
    assert "m64n64k16" in text
    assert "%33, p, 1, 1, 0, 0" in text
    binary = b".version 8.0\n.target sm_90, texmode\n//@@wgmma.fence;\n// a comment\n"
    assert unhidden(binary) == (
        b".version 8.0\n.target sm_90a, texmode\nwgmma.fence;\n// a comment\n"
    )


def test_a_trial_of_warpgroups_that_fails_leaves_the_warps(monkeypatch):
    device = find_device("")
    monkeypatch.setattr(device, "limits", replace(device.limits, warpgroups=True))
    failing = dict.fromkeys(Units, "") | {Units.WARPGROUP: "no wgmma here"}
    monkeypatch.setattr(compiled_module, "objections", lambda *_: failing)
    feeds = {"x": floats(9, 64)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = build(nodes, feeds, ["y"], weights(w=(64, 16)))
    built = compiled(model, INFERENCE_PRECISION_HINT="f16", TILING="LOCAL")
    assert built.device_model.tuning.matrix_units
    assert not built.device_model.tuning.warpgroups
    request = request_of(model)
    request.infer(feeds)
    [info, *_] = [i for i in request.get_profiling_info() if i.node_type == "MatMul"]
    assert "product_stream (stepped back: no wgmma here)" in info.exec_type


def test_units_of_a_warp_that_fail_when_a_plan_is_made_are_an_error_once(monkeypatch):
    """They are tried before fusion, if the graph tells that they will be needed."""
    wrong = iter(["", "wrong here", "wrong here"])

    def objections(_, wanted):
        return dict.fromkeys(wanted, "") | {Units.MATRIX: next(wrong)}

    monkeypatch.setattr(compiled_module, "objections", objections)
    feeds = {"x": floats(9, 64)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = build(nodes, feeds, ["y"], weights(w=(64, 16)))
    how = {"INFERENCE_PRECISION_HINT": "f16", "TILING": "LOCAL"}
    with pytest.raises(CompileError, match=r"wrong here\. Compile it again"):
        compiled(model, **how)
    assert not compiled(model, **how).device_model.tuning.matrix_units


def test_rows_of_a_tile_that_are_not_there_read_nothing_by_taps_far_away():
    """They were said to lie 2**30 rows above the image, and a tap lay as many below."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.device.opencl.networks.far_taps"],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_padding_beyond_what_kernels_count_is_refused():
    """The end of a window was a number of 32 bits that had wrapped."""
    most = 2**31 - 1
    attrs = {"strides": [1 << 30, 1], "pads": [most, 0, most, 0]}
    model = build([conv("", "x", "y", bias=False, **attrs)], {"x": floats(1, 8, 8, 8)}, ["y"],
                  weights(w=(16, 8, 2, 1)))  # fmt: skip
    with pytest.raises(PartitaError, match="device OPENCL takes 2147483647"):
        request_of(model)


def test_pictures_of_all_images_are_addressed_by_an_int(monkeypatch):
    """Each image was small enough, and all of them together were not."""
    feeds = {"x": floats(4, 3, 8, 8)}
    nodes = [conv("", "x", "y", bias=False, strides=[2, 2], pads=SAME)]
    model = build(nodes, feeds, ["y"], weights(w=(16, 3, 3, 3)))
    check(model, feeds)
    monkeypatch.setattr(nhwc_images, "LARGEST_IMAGE", 1500)
    with pytest.raises(PartitaError, match=r"pads 4 images to \[10, 10\] pixels of 4 elements"):
        request_of(model)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("depth", [64, 200])
def test_weights_in_blocks(bits, biased, depth):
    """Weights of a few bits are unpacked to what the kernels of products take."""
    blocks = -(-depth // 32)
    x, bias = floats(70, depth), floats(40, seed=3)  # fewer rows are multiplied by what blocks hold
    data = integers(40, blocks, 4 * bits, low=0, high=256, dtype=np.uint8)
    scales = floats(40, blocks, seed=1) / 16
    arrays = {"data": data, "scales": scales, **({"bias": bias} if biased else {})}
    inputs = ["x", "data", "scales", "", "", "bias"][: 6 if biased else 3]
    attrs = {"K": depth, "N": 40, "bits": bits, "block_size": 32, "domain": "com.microsoft"}
    node = helper.make_node("MatMulNBits", inputs, ["y"], "y", **attrs)
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    kernels = check(build([node], {"x": x}, ["y"], weights), {"x": x})
    assert "block_unpack" in kernels
    assert any(kernel.startswith("product_stream") for kernel in kernels)


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_decoders_of_halves(rows):
    """Products of halves take in norms, residuals and gates as those of weights of few bits do."""
    made = weights(wq=(64, 32), wk=(64, 32), wv=(64, 32), wo=(32, 64), gate=(64, 48), up=(64, 48))
    made += weights(down=(48, 64), scale=(64,))
    lengths = {"last": np.array([rows + 4], np.int32), "total": np.array(rows + 5, np.int32)}
    feeds = {"x": floats(1, rows, 64), **lengths}
    feeds |= {name: floats(1, 2, rows + 5, 16, seed=7) for name in ("keys", "values")}
    attention = {"num_heads": 2, "kv_num_heads": 2, "domain": "com.microsoft"}
    skip = {"domain": "com.microsoft", "epsilon": 1e-5}
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "scale"], ["n"], epsilon=1e-5),
        *(helper.make_node("MatMul", ["n", f"w{name}"], [name]) for name in "qkv"),
        helper.make_node(
            "GroupQueryAttention",
            ["q", "k", "v", "keys", "values", "last", "total"],
            ["a", "new_keys", "new_values"],
            **attention,
        ),
        helper.make_node("MatMul", ["a", "wo"], ["o"]),
        helper.make_node(
            "SkipSimplifiedLayerNormalization", ["x", "o", "scale"], ["m", "", "", "sum"], **skip
        ),
        helper.make_node("MatMul", ["m", "gate"], ["g"]),
        helper.make_node("MatMul", ["m", "up"], ["u"]),
        helper.make_node("Sigmoid", ["g"], ["open"]),
        helper.make_node("Mul", ["g", "open"], ["active"]),
        helper.make_node("Mul", ["active", "u"], ["gated"]),
        helper.make_node("MatMul", ["gated", "down"], ["d"]),
        helper.make_node(
            "SkipSimplifiedLayerNormalization", ["sum", "d", "scale"], ["y", "", "", ""], **skip
        ),
    ]
    for number, node in enumerate(nodes):
        node.name = f"n{number}"
    kernels = check(build(nodes, feeds, ["y", "new_keys"], made, opset=21), feeds, 4e-3)
    products = [name for name in kernels if name.startswith(("block_product", "product_stream"))]
    assert len(products) == 4
    assert all(name.startswith("block" if rows < 5 else "product") for name in products)
