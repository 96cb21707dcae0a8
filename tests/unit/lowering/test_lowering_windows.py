"""Windows and sizes that attributes describe, as ONNX's own shape inference has them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from partita.lowering.geometry.resampling import scaled
from partita.lowering.geometry.windows import resolve, resolve_transposed


def node(op_type, **attrs):
    return SimpleNamespace(name="n", op_type=op_type, kind=op_type, attrs=attrs)


def inferred(op_type, shapes, constants=(), **attrs):
    """The spatial dimensions that ONNX infers for the output of an operator."""
    names = [f"x{i}" for i in range(len(shapes))]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(names, shapes, strict=True)
    ]
    weights = [numpy_helper.from_array(array, f"c{i}") for i, array in enumerate(constants)]
    reads = [*names, *(w.name for w in weights)]
    graph = helper.make_graph(
        [helper.make_node(op_type, reads, ["y"], **attrs)],
        "g",
        infos,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    found = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    return tuple(d.dim_value for d in found.graph.output[0].type.tensor_type.shape.dim[2:])


@st.composite
def placements(draw, modes, **more):
    """Sizes, window and the attributes that say how it moves."""
    rank = draw(st.integers(1, 3))

    def each(low, high, count=rank):
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    size, kernel = each(1, 12), each(1, 4)
    attrs = {"strides": each(1, 3), "dilations": each(1, 2), "auto_pad": draw(modes)}
    if attrs["auto_pad"] == "NOTSET":
        attrs["pads"] = each(0, 2, 2 * rank)
    attrs |= {name: each(*bounds) for name, bounds in more.items()}
    return size, kernel, attrs


@given(placements(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])))
def test_windows_of_pools(placement):
    size, kernel, attrs = placement
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, attrs["dilations"], strict=True)]
    pads = attrs.get("pads", [0] * (2 * len(size)))
    room = [n + pads[i] + pads[i + len(size)] - reach[i] for i, n in enumerate(size)]
    behind = [r + 2 * s for r, s in zip(room, attrs["strides"], strict=True)]
    assume(attrs["auto_pad"].startswith("SAME") or min(behind) > 0)  # else it infers no size
    window = resolve(node("MaxPool", **attrs), size, kernel)
    found = inferred("MaxPool", [[1, 1, *size]], kernel_shape=kernel, **attrs)
    assert window.out_shape == found


@given(placements(st.sampled_from(["NOTSET", "VALID"]), output_padding=(0, 0)))
def test_windows_of_transposed_convolutions(placement):
    size, kernel, attrs = placement
    window = resolve_transposed(node("ConvTranspose", **attrs), size, kernel)
    out = window.size[3 - window.rank :]
    assume(min(out) > 0)
    assert out == inferred("ConvTranspose", [[1, 2, *size], [2, 3, *kernel]], **attrs)


@given(st.integers(1, 300), st.floats(0.125, 4, width=32))
def test_sizes_by_scales(size, scale):
    scales = np.array([1, 1, scale], np.float32)
    none = np.zeros(0, np.float32)
    assert (scaled(size, scale),) == inferred("Resize", [[1, 1, size]], [none, scales])


@given(
    size=st.integers(0, 9),
    kernel=st.integers(1, 7),
    stride=st.integers(1, 3),
    gap=st.integers(1, 9),
    begin=st.integers(0, 30),
    more=st.integers(0, 5),
)
def test_taps_that_are_reached(size, kernel, stride, gap, begin, more):
    end = max((kernel - 1) * gap + 1 - size - begin, 0) + more
    pads = {"pads": [begin, end], "strides": [stride], "dilations": [gap]}
    window = resolve(node("Conv", **pads), (size,), (kernel,))
    starts = np.arange(window.out[2]) * stride - begin
    on_image = [
        tap
        for tap in range(kernel)
        if ((starts + tap * gap >= 0) & (starts + tap * gap < size)).any()
    ]
    low, high = window.reached[2]
    assert 0 <= low < high <= kernel
    if on_image:
        assert low <= on_image[0] and on_image[-1] < high
    if stride == 1 and on_image:  # no window steps over the image
        assert (low, high) == (on_image[0], on_image[-1] + 1)
    kept = window.trimmed
    again = resolve(
        node("Conv", **{**pads, "pads": [kept.begin[2], kept.end[2]]}), (size,), (kept.kernel[2],)
    )
    assert again.out == window.out
    halves, (first, behind) = [kernel], window.halved[2]
    while halves[-1] > 1:
        halves.append(-(-halves[-1] // 2))
    assert 0 <= first <= low
    assert high <= behind <= kernel
    assert behind - first == min(n for n in halves if n >= high - low)
    kept = window.within(window.halved)
    pads["pads"] = [kept.begin[2], kept.end[2]]
    assert resolve(node("Conv", **pads), (size,), (kept.kernel[2],)).out == window.out
