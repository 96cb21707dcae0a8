"""Factors and summands one after another, and reductions over pixels, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser
from sampling import examples

import partita

from .test_native_layout import Net, check

pytestmark = pytest.mark.usefixtures("level")


def response(net, x, channels, swap=False):
    """Global response normalization as PyTorch spells it: its steps between, and its result."""
    size = net.add("ReduceL2", x, axes=[2, 3], keepdims=1)
    mean = net.add("ReduceMean", size, axes=[1], keepdims=1)
    mean = net.add("Add", mean, net.const(values=np.float32(1e-3)))
    weight, bias = (net.const(1, channels, 1, 1) for _ in range(2))
    steps = [net.add("Mul", x, net.add("Div", size, mean))]
    steps.append(net.add("Mul", weight, steps[-1]))
    steps.append(net.add("Mul", steps[-1], net.const(values=np.ones(1, np.float32))))
    steps.append(net.add("Add", bias, steps[-1]))
    return steps, net.add("Add", *((steps[-1], x) if swap else (x, steps[-1])))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_global_response_normalization(batch, swap, padded):
    net = Net(batch, 24, 14, 11)
    x = net.add("Relu", net.conv("x", 24, 48, 1))
    steps, y = response(net, x, 48, swap=swap)
    kinds = check(net, net.conv(y, 48, 24, 3, pads=[int(padded)] * 4))
    assert not any(kinds[step] for step in steps)
    assert kinds[y]


REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceSumSquare")


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("axes", [[2, 3], [-1, -2], [3], [1, 2, 3]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions_of_images(kind, axes, keepdims):
    net = Net(2, 20, 9, 11)
    image = net.conv("x", 20, 36)
    if kind == "ReduceSum":
        numbers = net.const(values=np.array(axes, np.int64))
        y = net.add(kind, image, numbers, keepdims=keepdims)
    else:
        y = net.add(kind, image, axes=axes, keepdims=keepdims)
    outputs = [net.conv(image, 36, 20)]
    check(net, net.add("Mul", image, y) if keepdims else y, *outputs)


SHAPES = ((), (1,), (16, 1, 1), (1, 16, 1, 1), (2, 16, 1, 1), (1, 1, 1, 13), (1, 16, 9, 13))
"""Of constants that an image of 2 x 16 x 9 x 13 meets; the last one is not small."""


@given(
    st.lists(
        st.tuples(st.sampled_from(["Add", "Mul", "sum", "gate"]), st.sampled_from(SHAPES),
                  st.booleans(), st.booleans()),
        min_size=1, max_size=7,
    ),
    st.sampled_from(["", "pointwise", "padded"]),
    st.integers(0, 2**31),
)  # fmt: skip
@examples(60)
def test_random_chains(steps, behind, seed):
    net = Net(2, 16, 9, 13, seed=seed)
    image = net.add("Relu", net.conv("x", 16, 16, 1))
    gate = net.add("ReduceMax", image, axes=[2, 3], keepdims=1)
    before, y, outputs = [image], image, []
    for kind, shape, swap, is_output in steps:
        if kind == "sum":
            pair = [y, before[len(steps) % len(before)]]
        elif kind == "gate":
            pair = [y, gate]
        else:
            pair = [y, net.const(*shape)]
        kind = {"sum": "Add", "gate": "Mul"}.get(kind, kind)
        y = net.add(kind, *(pair[::-1] if swap else pair))
        before.append(y)
        outputs += [y] if is_output else []
    if behind:
        y = net.conv(y, 16, 24, 3, pads=[int(behind == "padded")] * 4)
    check(net, *dict.fromkeys([y, *outputs]), tolerance=1e-5)


def test_long_sums():
    """No step of a walk stands for each of hundreds of tensors that are added up."""
    net = Net(1, 8, 5, 5)
    y, other = (net.conv("x", 8, 8, 1) for _ in range(2))
    for _ in range(400):
        y = net.add("Add", y, other)
    check(net, net.conv(y, 8, 8, 1))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("Add", 1e8), ("Add", -1e8)),
        (("Add", 3e38), ("Add", 3e38)),
        (("Mul", 1e30), ("Mul", 1e-30)),
        (("Mul", 1e-30), ("Mul", 1e30)),
    ],
)
def test_constants_one_after_another_round_and_overflow_in_between(first, second):
    text = "<ir_version: 8, opset_import: ['': 17]> g (float[12] x) => (float[12] y)"
    (a, m), (b, n) = first, second
    model = parser.parse_model(
        f"{text} <float m = {{{m}}}, float n = {{{n}}}> {{ t = {a}(x, m) y = {b}(t, n) }}".replace(
            "'", '"'
        )
    )
    x = np.array(
        [0, 1, -np.inf, -3e38, np.inf, 1e30, -1e38, 3e38, -2, np.nan, 2, 1e-20], np.float32
    )
    due = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_array_equal(partita.Core().compile_model(model, "CPU")(x)[0], due)
