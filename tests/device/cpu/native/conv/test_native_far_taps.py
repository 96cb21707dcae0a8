"""Convolutions whose windows reach far beyond their image, at every level."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper
from sampling import examples

import partita
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.kernels.nhwc import row_groups
from partita_cpu.llvm.levels import EVERY

from ..networks.test_native_layout import SETTINGS, Net, check, compiled

pytestmark = pytest.mark.usefixtures("level")
"""Every level in turn."""


@st.composite
def nets(draw):
    """Attributes of a convolution, its group size, and the size of its image."""
    kernel = draw(st.sampled_from([(3, 3), (1, 3), (3, 1), (5, 5), (2, 4), (9, 9)]))
    dilations = [draw(st.sampled_from([1, 2, 5, 12, 24])) for _ in range(2)]
    sizes, ends = [], []
    for taps, gap in zip(kernel, dilations, strict=True):
        sizes.append(draw(st.integers(1, 16)))
        least = max((taps - 1) * gap + 1 - sizes[-1], 0)
        begin = draw(st.sampled_from([least // 2, (taps - 1) * gap // 2, least, 0]))
        ends.append((begin, max(least - begin, 0) + draw(st.integers(0, 2))))
    return {
        "kernel": kernel,
        "strides": [draw(st.sampled_from([1, 1, 1, 2])) for _ in range(2)],
        "dilations": dilations,
        "pads": [begin for begin, _ in ends] + [end for _, end in ends],
        "group": draw(st.sampled_from([1, 1, 3, 24])),
        "size": sizes,
        "batch": draw(st.integers(1, 2)),
    }


@examples(30)
@given(nets(), st.sampled_from(SETTINGS), st.booleans())
def test_random_windows(drawn, config, residual):
    drawn = dict(drawn)
    size, kernel, group = drawn.pop("size"), drawn.pop("kernel"), drawn["group"]
    net = Net(drawn.pop("batch"), 24, *size)
    w = net.const(24, 24 // group, *kernel)
    y = net.add("Conv", net.add("Relu", "x"), w, net.const(24), **drawn)
    if residual:
        y = net.add("Add", y, net.add("Sigmoid", y))
    check(net, net.add("Relu", y), config=config, tolerance=4e-6 if config else 4e-5)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("residual", [False, True])
def test_rows_under_the_same_taps_are_a_step(level, batch, stride, residual, monkeypatch):
    steps = []
    emit = row_groups.emit_product
    monkeypatch.setattr(row_groups, "emit_product", lambda *a: (steps.append(a[2]), emit(*a)))
    net = Net(batch, 20, 15, 32)
    far = {"dilations": [12, 9], "pads": [12, 9, 12, 9], "strides": [stride, 1]}
    y = net.add("Conv", net.add("Relu", "x"), net.const(24, 20, 3, 3), net.const(24), **far)
    if residual:
        y = net.add("Add", y, net.conv("x", 20, 24, 1, strides=[stride, 1], pads=[0] * 4))
    check(net, net.add("Relu", y), config=SETTINGS[0])
    if stride == 1 and not EVERY[level].tiles:
        assert len(steps) == 3 * batch


@given(
    sizes=st.tuples(st.integers(1, 30), st.integers(2, 5)),
    stride=st.integers(1, 3),
    gap=st.integers(2, 20),
    begin=st.integers(0, 40),
    end=st.integers(0, 40),
)
def test_groups_of_rows(sizes, stride, gap, begin, end):
    height, taps = sizes
    room = height + begin + end - (taps - 1) * gap - 1
    assume(room >= 0)
    rows = room // stride + 1
    images = Images(
        *(1, height, 9, 4, 4, 1, (taps, 1), (stride, 1), (gap, 1), (begin, 0), (end, 0)),
        *(rows, 9),
    )
    on_image = [
        [t for t in range(taps) if 0 <= row * stride + t * gap - begin < height]
        for row in range(rows)
    ]
    groups = row_groups.row_groups(images)
    told = [list(range(*reached)) for _, count, reached in groups for _ in range(count)]
    if groups:
        assert told == on_image
        assert [n for first, count, _ in groups for n in range(first, first + count)] == list(
            range(rows)
        )
    else:
        few = sum(map(len, on_image)) * row_groups.GAIN > taps * rows
        assert few or not all(on_image)


def test_rows_that_a_file_claims_are_not_walked():
    """Two thousand million of them: it takes as long as for two."""
    rows, gap = 2**31 - 1, 2**30
    images = Images(
        *(1, rows, 9, 4, 4, 1, (3, 1), (1, 1), (gap, 1), (gap, 0), (gap, 0)),
        *(rows, 9),
    )
    groups = [(0, gap - 1, (1, 3)), (gap - 1, 1, (1, 2)), (gap, gap - 1, (0, 2))]
    assert row_groups.row_groups(images) == groups


def test_images_that_a_file_claims_are_not_walked(monkeypatch):
    """Each would be some steps; whether they are too many is known before the first is made."""
    made, part = [], row_groups.replace
    monkeypatch.setattr(row_groups, "replace", lambda *a, **k: (made.append(a), part(*a, **k))[1])
    net = Net(5000, 4, 6, 7)
    far = {"dilations": [4, 1], "pads": [4, 1, 4, 1]}
    y = net.add("Relu", net.add("Conv", "x", net.const(5, 4, 3, 3), net.const(5), **far))
    compiled(net.model(y), **SETTINGS[0])
    assert len(made) <= 2 * row_groups.MOST_STEPS


@pytest.mark.parametrize("group", [1, 8])
def test_padding_takes_no_memory(group):
    """Of 3 x 3 taps one is on the image; a row of padding has a million elements."""
    net = Net(1, 8, 5, 6)
    w = net.const(8, 8 // group, 3, 3)
    far = {"dilations": [1 << 20, 1 << 20], "pads": [1 << 20] * 4, "group": group}
    check(net, net.add("Relu", net.add("Conv", "x", w, **far)), config=SETTINGS[0])


@pytest.mark.parametrize("group", [1, 16])
@pytest.mark.parametrize("bias", [False, True])
def test_quantized_windows(group, bias):
    rng = np.random.default_rng(3)
    w = rng.integers(-60, 61, (16, 16 // group, 3, 3)).astype(np.int8)
    constants = {
        "xs": np.float32(0.02), "xz": np.uint8(7), "w": w, "ws": np.float32(0.01),
        "wz": np.int8(0), "ys": np.float32(0.3), "yz": np.uint8(120),
        "b": rng.integers(-99, 99, 16).astype(np.int32),
    }  # fmt: skip
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", *(["b"] if bias else [])]
    far = {"dilations": [9, 24], "pads": [9, 24, 9, 24], "group": group}
    graph = helper.make_graph(
        [helper.make_node("QLinearConv", names, ["y"], **far)],
        "bytes",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, (2, 16, 8, 11))],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = rng.integers(0, 256, (2, 16, 8, 11)).astype(np.uint8)
    core = partita.Core()
    found = core.compile_model(core.read_model(model), "CPU")({"x": x})[0]
    np.testing.assert_array_equal(found, onnxruntime_results(model, {"x": x})[0])
