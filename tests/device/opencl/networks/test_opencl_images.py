"""Images of halves with channels last: what is computed so beside convolutions, without turns."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ..comparison import build, floats, int64s
from ..half_networks import check, conv, weights

pytestmark = pytest.mark.usefixtures("matrix_units")

SAME = [1, 1, 1, 1]


def transpose(x, y, *perm):
    return helper.make_node("Transpose", [x], [y], perm=list(perm))


def turned(kernels):
    """Kernels that only change the order of axes."""
    names = "to_channels_first", "to_channels_last", "transpose_planes", "copy_box"
    return [name for name in kernels if name in names]


def test_channels_are_normalized_and_multiplied_as_they_lie():
    nodes = [
        conv("a", "x", "a", pads=SAME),
        transpose("a", "b", 0, 2, 3, 1),
        helper.make_node("LayerNormalization", ["b", "scale", "shift"], ["c"]),
        helper.make_node("MatMul", ["c", "wm"], ["d"]),
        transpose("d", "e", 0, 3, 1, 2),
        helper.make_node("Mul", ["e", "gamma"], ["f"]),
        helper.make_node("Add", ["f", "a"], ["g"]),
        conv("d", "g", "h", pads=SAME, group=16),
        transpose("h", "y", 0, 2, 3, 1),
    ]
    constants = weights(
        wa=(16, 8, 3, 3), ba=(16,), scale=(16,), shift=(16,), wm=(16, 16), gamma=(16, 1, 1),
        wd=(16, 1, 3, 3), bd=(16,),
    )  # fmt: skip
    feeds = {"x": floats(2, 8, 9, 7)}
    kernels = check(build(nodes, feeds, ["y"], constants), feeds)
    assert turned(kernels) == ["to_channels_last"]  # of the input


def test_rows_of_channels_are_images_as_they_lie():
    nodes = [
        conv("a", "x", "a", strides=[2, 2]),
        helper.make_node("Reshape", ["a", "flat"], ["b"]),
        transpose("b", "c", 0, 2, 1),
        helper.make_node("MatMul", ["c", "wm"], ["d"]),
        transpose("d", "e", 0, 2, 1),
        helper.make_node("Reshape", ["e", "image"], ["f"]),
        conv("d", "f", "g", pads=SAME, group=24),
        helper.make_node("Reshape", ["g", "flat_again"], ["h"]),
        transpose("h", "y", 0, 2, 1),
    ]
    constants = weights(wa=(16, 8, 2, 2), ba=(16,), wm=(16, 24), wd=(24, 1, 3, 3), bd=(24,))
    shapes = {"flat": (2, 16, 20), "image": (2, 24, 5, 4), "flat_again": (2, 24, 20)}
    constants += [numpy_helper.from_array(int64s(*s), name) for name, s in shapes.items()]
    feeds = {"x": floats(2, 8, 10, 8)}
    kernels = check(build(nodes, feeds, ["y"], constants), feeds)
    assert turned(kernels) == ["to_channels_last"]


@pytest.mark.parametrize("channels", [12, 16])
def test_channels_that_are_filled_up_are_turned(channels):
    """What lies behind them in memory is no element; results that others read stay right, too."""
    nodes = [
        conv("a", "x", "a"),
        transpose("a", "b", 0, 2, 3, 1),
        helper.make_node("Softmax", ["b"], ["c"], axis=-1),
        transpose("c", "d", 0, 3, 1, 2),
        helper.make_node("Relu", ["d"], ["e"]),
        conv("c", "e", "y", pads=SAME),
        helper.make_node("Slice", ["a", "from", "to", "axes"], ["z"]),
    ]
    constants = weights(wa=(channels, 8, 1, 1), ba=(channels,), wc=(8, channels, 3, 3), bc=(8,))
    cut = {"from": (1, 3), "to": (5, -1), "axes": (2, 1)}
    constants += [numpy_helper.from_array(np.array(v), name) for name, v in cut.items()]
    feeds = {"x": floats(1, 8, 6, 9)}
    check(build(nodes, feeds, ["y", "z", "d"], constants), feeds)


def test_what_is_float32_in_memory_is_converted_on_its_way_to_an_image():
    nodes = [
        helper.make_node("Cast", ["n"], ["f"], to=1),
        transpose("f", "a", 0, 3, 1, 2),
        conv("a", "a", "y", pads=SAME),
    ]
    constants = weights(wa=(8, 16, 3, 3), ba=(8,))
    feeds = {"n": np.arange(480, dtype=np.int32).reshape(1, 6, 5, 16) % 7}
    check(build(nodes, feeds, ["y"], constants), feeds)


TRANSPOSED = [
    ((1, 16, 5, 4), (16, 8, 2, 2), {"strides": [2, 2]}),
    ((2, 24, 6, 5), (24, 1, 9, 9), {"strides": [2, 2], "pads": [4] * 4, "output_padding": [1, 1]}),
    ((1, 8, 4, 7), (8, 20, 4, 3), {"strides": [2, 1], "pads": [1, 1, 1, 1]}),
    ((1, 70, 3, 4), (70, 9, 3, 5), {"pads": [0, 2, 1, 2]}),
    ((1, 16, 4, 3), (16, 8, 2, 2), {"strides": [3, 4], "output_padding": [1, 2]}),
    ((1, 8, 1, 9), (8, 8, 1, 16), {"strides": [1, 8], "pads": [0, 4, 0, 4]}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), TRANSPOSED)
def test_transposed_convolutions_are_products(x, w, attrs):
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["a"], **attrs),
        helper.make_node("LeakyRelu", ["a"], ["y"], alpha=0.3),
    ]
    feeds = {"x": floats(*x)}
    kernels = check(build(nodes, feeds, ["y"], weights(w=w, b=(w[1],))), feeds, 3e-3)
    assert "conv_transpose" not in kernels
    assert "product_stream" in kernels


def test_transposed_convolutions_of_other_kinds_gather():
    attrs = {"strides": [2, 2], "pads": [1, 1, 0, 0]}  # the results are no whole blocks
    nodes = [helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attrs)]
    feeds = {"x": floats(1, 8, 5, 4)}
    kernels = check(build(nodes, feeds, ["y"], weights(w=(8, 8, 2, 2))), feeds)
    assert "conv_transpose" in kernels


@pytest.mark.parametrize(("groups", "pixels"), [(1, (6, 5)), (1, (40, 33)), (3, (40, 33))])
def test_channels_in_groups_are_normalized_as_they_lie(groups, pixels):
    nodes = [
        conv("a", "x", "a"),
        helper.make_node("GroupNormalization", ["a", "s", "t"], ["b"], num_groups=groups),
        helper.make_node("AveragePool", ["b"], ["c"], kernel_shape=[3, 3], pads=SAME),
        helper.make_node("Sub", ["c", "b"], ["d"]),
        conv("d", "d", "y", pads=SAME, group=24),
    ]
    constants = weights(wa=(24, 8, 1, 1), ba=(24,), s=(24,), t=(24,), wd=(24, 1, 3, 3), bd=(24,))
    feeds = {"x": floats(2, 8, *pixels)}
    kernels = check(build(nodes, feeds, ["y"], constants, 21), feeds, 4e-3)
    assert turned(kernels) in (["to_channels_last"], ["to_channels_last", "to_channels_first"])
    assert "normalize_parts" in kernels


@pytest.mark.parametrize("channels", [16, 20])
def test_batches_are_normalized_as_they_lie(channels):
    nodes = [
        conv("a", "x", "a"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("BatchNormalization", ["b", "s", "t", "m", "v"], ["c"], epsilon=1e-3),
        helper.make_node("Relu", ["c"], ["d"]),
        conv("c", "d", "e", pads=SAME),
        helper.make_node("Concat", ["b", "e"], ["y"], axis=1),
    ]
    rows = dict.fromkeys(("ba", "s", "t", "m"), (channels,))
    constants = weights(wa=(channels, 8, 1, 1), wc=(8, channels, 3, 3), bc=(8,), **rows)
    variance = np.abs(floats(channels, seed=9)) + 0.1
    constants.append(numpy_helper.from_array(variance, "v"))
    feeds = {"x": floats(2, 8, 7, 6)}
    kernels = check(build(nodes, feeds, ["y"], constants), feeds)
    assert kernels.count("to_channels_last") == 1
    assert kernels.count("to_channels_first") <= (1 if channels == 16 else 3)  # ports, Concat
