"""Matrix products of device OPENCL, by tiles and by registers, against onnxruntime."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper

from partita_opencl.device.device import find_device
from partita_opencl.device.limits import Limits
from partita_opencl.tuning.product_tiles import cut, tiles_for

from ..comparison import build, check, check_single, compiled, floats, single

SHAPES = [
    ((4, 5), (5, 6)),
    ((65, 33), (33, 70)),
    ((130, 300), (300, 17)),
    ((1, 200), (200, 33)),
    ((3, 700), (700, 40)),
    ((20, 30), (30, 70)),
    ((96, 30), (30, 9)),
    ((2, 3, 5, 7), (2, 3, 7, 4)),
    ((2, 1, 5, 7), (3, 7, 4)),
    ((3, 5, 7), (7, 4)),
    ((5, 7), (3, 7, 4)),
    ((2, 1, 2, 5, 7), (3, 1, 7, 4)),
    ((2, 3, 1, 5, 7), (1, 3, 2, 7, 4)),
    ((2, 1, 2, 5, 7), (1, 3, 1, 7, 4)),
    ((7,), (7, 4)),
    ((5, 7), (7,)),
    ((2, 5, 7), (7,)),
    ((7,), (2, 7, 4)),
    ((7,), (7,)),
    ((0, 7), (7, 4)),
    ((3, 0), (0, 4)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_matmul(left, right):
    check_single("MatMul", [floats(*left), floats(*right, seed=1)], atol=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_long_sums_are_split(rows):
    inputs = [floats(rows, 5000), floats(5000, 20, seed=1)]
    check_single("MatMul", inputs, rtol=1e-3, atol=1e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("constant", [(1, 2), ()])
@pytest.mark.parametrize(
    ("attrs", "a", "b", "c"),
    [
        ({}, (9, 8), (8, 7), (7,)),
        ({"transB": 1}, (9, 8), (7, 8), (9, 1)),
        ({"transA": 1, "transB": 1}, (8, 9), (7, 8), (9, 7)),
        ({"alpha": 0.5, "beta": 2.0}, (9, 8), (8, 7), (1, 7)),
        ({"beta": 0.5}, (9, 8), (8, 7), ()),
        ({"beta": 0.0}, (9, 8), (8, 7), (7,)),
    ],
)
def test_gemm(attrs, a, b, c, constant):
    inputs = [floats(*a), floats(*b, seed=1), floats(*c, seed=2)]
    check_single("Gemm", inputs, attrs, constant=constant, atol=1e-4)


def test_gemm_without_bias():
    check_single("Gemm", [floats(9, 8), floats(8, 7, seed=1)])


ACTIVATIONS = [
    ("Relu", {}),
    ("Sigmoid", {}),
    ("Tanh", {}),
    ("LeakyRelu", {"alpha": 0.1}),
    ("HardSigmoid", {}),
    ("HardSwish", {}),
    ("Elu", {}),
    ("Softplus", {}),
]


@pytest.mark.parametrize(("activation", "attrs"), ACTIVATIONS, ids=[a for a, _ in ACTIVATIONS])
def test_bias_residual_and_activation(activation, attrs):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Add", ["r", "c"], ["d"]),
        helper.make_node(activation, ["d"], ["y"], **attrs),
    ]
    weights = [
        numpy_helper.from_array(floats(20, 37, seed=1), "w"),
        numpy_helper.from_array(floats(37, seed=2), "b"),
    ]
    feeds = {"x": floats(2, 9, 20), "r": floats(2, 9, 37, seed=3)}
    check(build(nodes, feeds, ["y"], weights), feeds, atol=1e-4)


def test_one_row_with_bias_and_activation():
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(floats(50, 900, seed=1), "w"),
        numpy_helper.from_array(floats(50, seed=2), "b"),
    ]
    feeds = {"x": floats(1, 900)}
    check(build(nodes, feeds, ["y"], weights), feeds, atol=1e-3)


def test_results_repeat_bit_for_bit():
    model, feeds = single("MatMul", [floats(9, 5000), floats(5000, 20, seed=1)])
    request = compiled(model, TILING="LOCAL").create_infer_request()
    first = np.array(request.infer(feeds)[0])
    for _ in range(3):
        assert np.array_equal(first, request.infer(feeds)[0])


@pytest.mark.parametrize("hands_over", [True, False])
def test_parts_of_sums_are_added_inside_the_kernel_or_by_a_second_one(monkeypatch, hands_over):
    if hands_over and "PoCL 5" in find_device("").identity:
        pytest.skip("PoCL 5 makes wrong code of kernels that hand sums over, which it never gets")
    monkeypatch.setattr(Limits, "hands_over", hands_over)
    for shapes in (((9, 5000), (5000, 20)), ((40, 3000), (3000, 37)), ((2, 5, 2000), (2, 2000, 8))):
        left, right = (floats(*shape, seed=n) for n, shape in enumerate(shapes))
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Add", ["a", "r"], ["b"]),
            helper.make_node("Relu", ["b"], ["y"]),
        ]
        weights = [numpy_helper.from_array(right, "w")]
        feeds = {"x": left, "r": floats(*(left @ right).shape, seed=3)}
        model = build(nodes, feeds, ["y"], weights)
        check(model, feeds, feeds, rtol=1e-3, atol=1e-3)


def test_cuts_cover_the_sums_and_fit_the_device():
    limits = replace(find_device("").limits, is_cpu=False, compute_units=132)
    for rows, columns, depth in ((1, 1, 1), (64, 3136, 576), (512, 49, 4608), (4096, 4096, 4096)):
        found = cut(limits, tiles_for(limits), rows, columns, depth, 2)
        assert (found.splits - 1) * found.per_split < depth <= found.splits * found.per_split
        assert found.tiles * found.tile.high * found.tile.wide >= 2 * rows * columns
    small = replace(limits, group_items=128, local_bytes=20 << 10, kernel_local_bytes=20 << 10)
    assert cut(small, tiles_for(small), 4096, 4096, 4096, 1).tile.items <= 128


def test_small_images_of_long_sums_are_split():
    limits = replace(find_device("").limits, is_cpu=False, compute_units=132)
    tiles = tiles_for(limits)
    assert cut(limits, tiles, 512, 49, 4608, 1).splits > 4
    assert cut(limits, tiles, 4096, 4096, 4096, 1).splits == 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("equation", "of_x", "of_w"),
    [("ibh,hnd->ibnd", (3, 2, 70), (70, 2, 33)), ("...nd,hnd->...h", (3, 2, 4, 30), (65, 4, 30))],
)
def test_einsum_by_weights_is_a_product(equation, of_x, of_w, dynamic):
    inputs, attrs = [floats(*of_x, seed=1), floats(*of_w, seed=2)], {"equation": equation}
    model, feeds = single("Einsum", inputs, attrs, constant=(1,))
    if dynamic:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    check(model, feeds)
