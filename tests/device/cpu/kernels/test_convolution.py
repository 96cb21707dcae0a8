"""Convolutions, Col2Im and DeformConv against onnxruntime, the fused forms against their parts."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge import onnxruntime_results
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from sampling import examples
from single_op import assert_same, check, model_of, normal, run_fused, run_ours

import partita
from partita.errors import CompileError, UnsupportedOpError
from partita.lowering import Activation, ActivationCode
from partita_cpu.kernels.conv import convolution

CONV = [
    # input, weights, attributes
    ((1, 3, 9, 8), (4, 3, 1, 1), {}),
    ((2, 4, 5, 7), (6, 2, 1, 1), {"group": 2}),
    ((1, 3, 9, 8), (4, 3, 1, 1), {"strides": [2, 2]}),
    ((1, 3, 9, 8), (4, 3, 1, 1), {"pads": [1, 0, 0, 2]}),
    ((2, 3, 12, 11), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 3, 12, 11), (5, 3, 3, 2), {"pads": [0, 2, 1, 0], "strides": [2, 3]}),
    ((1, 4, 12, 11), (6, 2, 3, 3), {"group": 2, "dilations": [2, 3]}),
    ((1, 3, 7, 5), (2, 3, 4, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 3, 7, 5), (2, 3, 4, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ((1, 3, 7, 5), (2, 3, 3, 3), {"auto_pad": "VALID"}),
    ((1, 3, 1, 1), (2, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 17), (4, 3, 5), {"pads": [3, 1], "strides": [2], "dilations": [2]}),
    ((2, 6, 17), (6, 1, 3), {"group": 6, "pads": [1, 1]}),
    ((1, 2, 5, 6, 7), (3, 2, 3, 2, 3), {"pads": [1, 0, 1, 0, 1, 0], "strides": [2, 1, 2]}),
    ((1, 4, 5, 6, 7), (4, 1, 3, 3, 3), {"group": 4, "pads": [1, 1, 1, 1, 1, 1]}),
    ((2, 6, 9, 8), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    ((2, 6, 9, 8), (6, 1, 3, 3), {"group": 6, "pads": [0, 1, 1, 0], "strides": [2, 2]}),
    ((1, 6, 13, 9), (6, 1, 3, 3), {"group": 6, "pads": [1, 2, 1, 2], "strides": [1, 2]}),
    ((1, 6, 13, 15), (6, 1, 5, 5), {"group": 6, "pads": [2, 2, 2, 2]}),
    ((1, 6, 13, 15), (6, 1, 5, 5), {"group": 6, "pads": [2, 2, 2, 2], "strides": [2, 2]}),
    ((1, 6, 13, 15), (6, 1, 7, 7), {"group": 6, "pads": [3, 3, 3, 3]}),
    ((1, 3, 13, 15), (6, 1, 3, 3), {"group": 3, "dilations": [2, 3]}),
    ((1, 3, 13, 15), (3, 1, 2, 4), {"group": 3, "strides": [3, 3], "dilations": [1, 2]}),
    ((1, 3, 70, 80), (3, 1, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    ((0, 3, 5, 5), (4, 3, 3, 3), {}),
]


@pytest.mark.parametrize("groups", [(1, 2), (2, 1), (2, 4, 1)])
def test_convolutions_of_other_groups_share_weights_and_bias(groups):
    w, bias, x = normal(1, 4, 4, 2, 2), normal(2, 4), normal(3, 1, 16, 5, 5)
    nodes = []
    for i, group in enumerate(groups):
        first = helper.make_node("Slice", ["x", "zero", f"n{group}", "one"], [f"x{i}"])
        nodes += [first, helper.make_node("Conv", [f"x{i}", "w", "bias"], [f"y{i}"], group=group)]
    weights = {"w": w, "bias": bias, "zero": np.array([0]), "one": np.array([1])}
    weights |= {f"n{group}": np.array([4 * group]) for group in groups}
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "shared",
            [helper.make_tensor_value_info("x", 1, x.shape)],
            [helper.make_tensor_value_info(f"y{i}", 1, None) for i in range(len(groups))],
            [numpy_helper.from_array(array, name) for name, array in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    core = partita.Core()
    got = core.compile_model(core.read_model(proto), "CPU")([x]).to_tuple()
    for have, due in zip(got, ReferenceEvaluator(proto).run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(have, due, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("x", "w", "attributes"), CONV)
def test_conv(x, w, attributes):
    check("Conv", [normal(1, *x), normal(2, *w), normal(3, w[0])], constants=(1, 2), **attributes)


def test_weights_given_at_run_time():
    check("Conv", [normal(1, 1, 3, 8, 8), normal(2, 4, 3, 3, 3)])
    check("Conv", [normal(1, 1, 4, 8, 8), normal(2, 4, 1, 3, 3), normal(3, 4)], group=4)


def test_columns_in_pieces(monkeypatch):
    monkeypatch.setattr(convolution, "COLUMN_BYTES", 2000)
    check("Conv", [normal(1, 3, 3, 9, 8), normal(2, 4, 3, 3, 3)], pads=[1, 1, 1, 1])
    monkeypatch.setattr(convolution, "COLUMN_BYTES", 50_000)
    check("Conv", [normal(1, 5, 3, 9, 8), normal(2, 4, 3, 3, 3)], pads=[1, 1, 1, 1])
    monkeypatch.setattr(convolution, "COLUMN_BYTES", 1000)
    check("ConvTranspose", [normal(1, 2, 4, 5, 6), normal(2, 4, 5, 3, 3)], group=2)


def valid_conv(x, w, bias, group):
    """A convolution without padding in float64."""
    x, w, bias = (a.astype(np.float64) for a in (x, w, bias))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    parts = [
        np.einsum("nchwij,ocij->nohw", part, weights)
        for part, weights in zip(
            np.split(windows, group, axis=1), np.split(w, group, axis=0), strict=True
        )
    ]
    return np.concatenate(parts, axis=1) + bias[:, None, None]


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("group", [1, 4])
def test_conv_types(dtype, group):
    x, w, bias = normal(1, 1, 4, 8, 8), normal(2, 4, 4 // group, 3, 3), normal(3, 4)
    x, w, bias = x.astype(dtype), w.astype(dtype), bias.astype(dtype)
    (got,) = run_ours("Conv", [x, w, bias], group=group)
    tolerance = 8 * float(ml_dtypes.finfo(dtype).eps)
    assert_same(got, valid_conv(x, w, bias, group).astype(dtype), tolerance, tolerance)


@st.composite
def convolutions(draw):
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    inputs, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 3)) for _ in range(rank)]
    attributes = {
        "group": groups,
        "strides": [draw(st.integers(1, 3)) for _ in range(rank)],
        "dilations": dilations,
        "pads": [draw(st.integers(0, 3)) for _ in range(2 * rank)],
    }
    spatial = [
        draw(st.integers(1, 9)) + (k - 1) * d for k, d in zip(kernel, dilations, strict=True)
    ]
    x = (draw(st.integers(1, 2)), groups * inputs, *spatial)
    return x, (groups * outputs, inputs, *kernel), attributes


@examples(40)
@given(convolutions())
def test_any_conv(case):
    x, w, attributes = case
    check("Conv", [normal(1, *x), normal(2, *w)], **attributes)


@st.composite
def far_taps(draw):
    """Windows with taps that lie beside the image wherever they are."""
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    sizes = [draw(st.integers(1, 5)) for _ in range(rank)]
    kernel = [draw(st.integers(1, 6)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 7)) for _ in range(rank)]
    ends = []
    for size, taps, gap in zip(sizes, kernel, dilations, strict=True):
        least = max((taps - 1) * gap + 1 - size, 0)
        begin = draw(st.integers(0, least + 6))
        ends.append((begin, max(least - begin, 0) + draw(st.integers(0, 3))))
    attributes = {
        "group": groups,
        "strides": [draw(st.integers(1, 3)) for _ in range(rank)],
        "dilations": dilations,
        "pads": [begin for begin, _ in ends] + [end for _, end in ends],
    }
    inputs, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    x = (draw(st.integers(1, 2)), groups * inputs, *sizes)
    return x, (groups * outputs, inputs, *kernel), attributes


@examples(100)
@given(far_taps())
def test_taps_that_lie_beside_the_image(case):
    x, w, attributes = case
    check("Conv", [normal(1, *x), normal(2, *w)], constants=(1,), **attributes)


TRANSPOSE = [
    ((1, 3, 5, 6), (3, 4, 3, 3), {}),
    ((2, 3, 5, 6), (3, 4, 2, 2), {"strides": [2, 2]}),
    ((1, 4, 5, 6), (4, 3, 3, 3), {"group": 2, "strides": [2, 3], "pads": [1, 0, 2, 1]}),
    ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 2], "output_padding": [1, 1]}),
    ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [3, 2], "output_shape": [14, 12]}),
    ((1, 3, 5, 6), (3, 2, 3, 3), {"dilations": [2, 1], "pads": [1, 1, 1, 1]}),
    ((1, 3, 5, 6), (3, 2, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 3, 5, 6), (3, 2, 4, 3), {"auto_pad": "SAME_LOWER", "strides": [3, 1]}),
    ((1, 3, 5, 6), (3, 2, 4, 3), {"auto_pad": "VALID", "strides": [2, 1]}),
    ((2, 6, 9), (6, 1, 5), {"group": 6, "strides": [3]}),
    ((1, 2, 3, 4, 5), (2, 3, 3, 2, 1), {"strides": [1, 2, 3], "pads": [1, 0, 0, 1, 1, 0]}),
    ((2, 4, 5, 7), (4, 1, 4, 4), {"group": 4, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 3, 5, 7), (3, 2, 3, 5), {"group": 3, "strides": [2, 3], "dilations": [2, 2]}),
    ((2, 3, 4, 5), (3, 2, 2, 2), {"group": 3, "strides": [3, 4], "output_padding": [2, 3]}),
    ((1, 3, 4, 5), (3, 1, 3, 3), {"group": 3, "pads": [2, 3, 1, 2], "dilations": [1, 2]}),
    ((1, 2, 2, 3, 4), (2, 1, 3, 2, 3), {"group": 2, "strides": [2, 1, 2], "pads": [1] * 6}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), TRANSPOSE)
def test_conv_transpose(x, w, attributes):
    outputs = w[1] * attributes.get("group", 1)
    inputs = [normal(1, *x), normal(2, *w), normal(3, outputs)]
    check("ConvTranspose", inputs, constants=(1, 2), **attributes)


def test_same_padding_adds_no_pixels():
    # A stride beyond the window: fewer pixels than input times stride, as ONNX's inference has it.
    inputs = [normal(1, 1, 1, 4), normal(2, 1, 1, 1)]
    attributes = {"strides": [3], "auto_pad": "SAME_UPPER"}
    check("ConvTranspose", inputs, **attributes)
    (y,) = run_ours("ConvTranspose", inputs, **attributes)
    assert y.shape == (1, 1, 10)


@pytest.mark.parametrize(
    ("shape", "block", "attributes"),
    [
        ((5, 6), (2, 3), {}),
        ((5, 6), (3, 2), {"strides": [2, 1], "pads": [1, 0, 1, 1]}),
        ((9,), (3,), {"dilations": [2]}),
        ((3, 4, 5), (2, 2, 2), {}),
    ],
)
def test_col2im(shape, block, attributes):
    rank = len(shape)
    strides, dilations = attributes.get("strides", [1] * rank), attributes.get("dilations")
    pads = attributes.get("pads", [0] * 2 * rank)
    windows = math.prod(
        (n + pads[i] + pads[i + rank] - (block[i] - 1) * (dilations or [1] * rank)[i] - 1)
        // strides[i]
        + 1
        for i, n in enumerate(shape)
    )
    columns = normal(1, 2, 3 * math.prod(block), windows)
    sizes = [np.array(v, np.int64) for v in (shape, block)]
    # Not onnxruntime: it is wrong for dilated sequences of several channels.
    model = model_of("Col2Im", [columns, *sizes], **attributes)
    feeds = dict(zip(("x0", "x1", "x2"), [columns, *sizes], strict=True))
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    (got,) = run_ours("Col2Im", [columns, *sizes], **attributes)
    assert_same(got, expected, 1e-5, 1e-5)


@pytest.mark.parametrize("code", list(ActivationCode))
@pytest.mark.parametrize("group", [1, 4])
def test_fused_activation(code, group):
    x, w, bias = normal(1, 2, 4, 6, 6), normal(2, 4, 4 // group, 3, 3), normal(3, 4)
    residual = normal(4, 2, 4, 4, 4)
    plain = valid_conv(x, w, bias, group)
    activation = Activation(code, 0.25, 0.75)
    got = run_fused("Conv", [x, w, bias, residual], group=group, activation=activation)
    assert_same(got, activated(activation, plain + residual), 1e-4, 1e-4)
    if group > 1:
        got = run_fused("Conv", [x, w, bias, None], group=group, activation=activation)
        assert_same(got, activated(activation, plain), 1e-4, 1e-4)


def activated(activation: Activation, x: np.ndarray) -> np.ndarray:
    """The activation's formula in float64, the result in float32."""
    v, a, b = x.astype(np.float64), activation.alpha, activation.beta
    sigmoid = 1 / (1 + np.exp(-v))
    softplus = np.log1p(np.exp(v))
    cubic = math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)
    result = {
        "NONE": lambda: v,
        "RELU": lambda: np.maximum(v, 0),
        "CLIP": lambda: np.clip(v, a, b),
        "LEAKY_RELU": lambda: np.where(v < 0, a * v, v),
        "HARD_SWISH": lambda: v * np.clip(v / 6 + 0.5, 0, 1),
        "HARD_SIGMOID": lambda: np.clip(a * v + b, 0, 1),
        "SIGMOID": lambda: sigmoid,
        "TANH": lambda: np.tanh(v),
        "SILU": lambda: v * sigmoid,
        "GELU": lambda: v / 2 * (1 + np.vectorize(math.erf)(v / math.sqrt(2))),
        "GELU_TANH": lambda: v / 2 * (1 + np.tanh(cubic)),
        "MISH": lambda: v * np.tanh(softplus),
        "ELU": lambda: np.where(v < 0, a * np.expm1(v), v),
        "SOFTPLUS": lambda: softplus,
    }[activation.code.name]()
    return result.astype(np.float32)


def test_fused_conv_transpose():
    x, w, bias = normal(1, 1, 3, 5, 6), normal(2, 3, 4, 2, 2), normal(3, 4)
    residual = normal(4, 1, 4, 10, 12)
    # Windows that do not overlap: each input pixel becomes a square of its own.
    squares = np.einsum("nchw,coij->nohiwj", x, w).reshape(residual.shape)
    plain = squares + bias[:, None, None]
    relu = Activation(ActivationCode.RELU)
    got = run_fused("ConvTranspose", [x, w, bias, residual], strides=[2, 2], activation=relu)
    assert_same(got, np.maximum(plain + residual, 0), 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("activation", "params"),
    [("Relu", []), ("Sigmoid", []), ("LeakyRelu", [0.3]), ("Clip", [-0.5, 0.5]), ("Tanh", [])],
)
def test_fused_conv_of_onnxruntime(activation, params):
    inputs = [normal(1, 1, 3, 6, 6), normal(2, 4, 3, 3, 3), normal(3, 4)]
    extra = {"activation_params": params} if params else {}
    check("FusedConv", inputs, domain="com.microsoft", activation=activation, **extra)


@pytest.mark.parametrize(
    ("op_type", "x", "w"), [("Conv", (1, 3, 5, 5), (4, 2, 3, 3)), ("Conv", (1, 3, 5), (4, 3, 3, 3))]
)
def test_shapes_that_do_not_fit(op_type, x, w):
    with pytest.raises(CompileError, match="do not fit the input in 1 groups"):
        run_ours(op_type, [normal(1, *x), normal(2, *w)])


def test_window_larger_than_input():
    with pytest.raises(CompileError, match="does not fit its padded input"):
        run_ours("Conv", [normal(1, 1, 1, 2, 2), normal(2, 1, 1, 5, 5)])


def test_output_larger_than_any_memory():
    with pytest.raises(CompileError, match="more than any memory"):
        run_ours("Conv", [normal(1, 1, 1, 4, 4), normal(2, 1, 1, 3, 3)], pads=[1 << 30] * 4)


@pytest.mark.parametrize(
    ("columns", "block", "attrs", "message"),
    [
        ((1, 5, 4), [1, 5], {}, "are not those of an image"),
        ((1, 4, 5), [1, 5], {}, "are not those of an image"),
        ((1, 5, 5), [-1, -5], {}, "are not those of an image"),
        ((1, 5, 5), [1, 5], {"strides": [0, 1]}, "number that is too small"),
        ((1, 5, 5), [5], {}, "block_shape is to be of shape"),
    ],
)
def test_columns_that_are_not_those_of_the_image(columns, block, attrs, message):
    inputs = [normal(1, *columns), np.array([5, 5]), np.array(block)]
    with pytest.raises(CompileError, match=message):
        run_ours("Col2Im", inputs, constants=[1, 2], **attrs)


def deformed(seed, n, groups, parts, size, kernel, bias=True, mask=True, far=3.0, **attrs):
    """Inputs and attributes of a DeformConv; offsets are ``far`` in the middle."""
    channels, outputs, rng = 4 * groups * parts, 3 * groups, np.random.default_rng(seed)
    steps, gaps = attrs.get("strides", [1, 1]), attrs.get("dilations", [1, 1])
    pads = attrs.get("pads", [0] * 4)
    out = [
        (size[i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * gaps[i] - 1) // steps[i] + 1
        for i in range(2)
    ]
    taps = parts * math.prod(kernel)
    w = rng.standard_normal((outputs, channels // groups, *kernel)).astype(np.float32)
    offsets = (rng.standard_normal((n, 2 * taps, *out)) * far).astype(np.float32)
    masks = rng.random((n, taps, *out)).astype(np.float32) if mask else None
    bias = normal(seed, outputs) if bias else None
    inputs = [normal(seed, n, channels, *size), w, offsets, bias, masks]
    return inputs[: 3 + bool(mask or bias is not None) + bool(mask)], {
        **attrs,
        "group": groups,
        "offset_group": parts,
    }


DEFORMED = [
    {"groups": 1, "parts": 1, "size": (7, 9), "kernel": (3, 3), "pads": [1, 1, 1, 1]},
    {"groups": 2, "parts": 1, "size": (8, 5), "kernel": (2, 3), "mask": False, "strides": [2, 1]},
    {"groups": 1, "parts": 2, "size": (8, 9), "kernel": (3, 2), "bias": False},
    {"groups": 2, "parts": 3, "size": (9, 8), "kernel": (2, 2), "dilations": [3, 2]},
    {"groups": 1, "parts": 1, "size": (5, 6), "kernel": (1, 1), "bias": False, "mask": False},
    {"groups": 2, "parts": 2, "size": (6, 7), "kernel": (3, 3), "pads": [0, 2, 3, 1], "far": 40},
    {"groups": 1, "parts": 1, "size": (1, 6), "kernel": (1, 2), "pads": [1, 0, 1, 0]},
    {"groups": 4, "parts": 2, "size": (64, 70), "kernel": (3, 3), "strides": [1, 2]},
]


@pytest.mark.parametrize("opset", [19, 22])
@pytest.mark.parametrize("case", DEFORMED)
def test_deformed_convolutions(case, opset):
    inputs, attrs = deformed(1, 2, **case)
    check("DeformConv", inputs, constants=(1,), opset=opset, **attrs)
    wanted = onnxruntime_results(
        model_of("DeformConv", inputs, opset=opset, **attrs),
        {f"x{k}": x for k, x in enumerate(inputs) if x is not None},
    )
    doubles = [None if x is None else x.astype(np.float64) for x in inputs]
    (y,) = run_ours("DeformConv", doubles, opset=opset, **attrs)
    assert_same(y, wanted[0].astype(np.float64), 1e-4, 1e-4)


def test_taps_that_are_moved_nowhere_read_zero():
    case = {"groups": 1, "parts": 1, "size": (6, 7), "kernel": (3, 3), "mask": False}
    inputs, attrs = deformed(2, 1, **case, bias=False)
    offsets = inputs[2]
    offsets[0, :2, 1] = np.nan
    offsets[0, 4:6, 2] = [[np.inf], [-np.inf]]
    offsets[0, 8:10] = 3e38
    (y,) = run_ours("DeformConv", inputs, opset=19, **attrs)
    weights = inputs[1].copy()
    weights[:, :, 1, 1] = 0
    inputs[2] = np.where(np.abs(offsets) < 1e9, offsets, -100).astype(np.float32)
    inputs[1] = weights
    (due,) = onnxruntime_results(
        model_of("DeformConv", inputs, opset=19, **attrs),
        {f"x{k}": x for k, x in enumerate(inputs)},
    )
    np.testing.assert_allclose(y, due, rtol=1e-4, atol=1e-4)


def test_offsets_of_another_shape_are_refused():
    case = {"groups": 1, "parts": 1, "size": (6, 7), "kernel": (3, 3), "bias": False}
    inputs, attrs = deformed(3, 1, **case)
    for place, name in ((2, "offset"), (4, "mask")):
        wrong = [*inputs]
        wrong[place] = inputs[place][..., :-1]
        with pytest.raises(CompileError, match=f"has the {name} of shape"):
            run_ours("DeformConv", wrong, opset=19, **attrs)


def test_deformed_convolutions_of_volumes_are_not_taken():
    inputs = [normal(1, 1, 2, 3, 4, 5), normal(2, 2, 2, 1, 1, 1), normal(3, 1, 3, 3, 4, 5)]
    proto = model_of("DeformConv", inputs, opset=19)
    for info, x in zip(proto.graph.input, inputs, strict=True):
        info.CopyFrom(helper.make_tensor_value_info(info.name, 1, x.shape))
    with pytest.raises(UnsupportedOpError, match="input of 5 dimensions; takes images of 4"):
        partita.Core().compile_model(proto, "CPU")
