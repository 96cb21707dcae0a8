"""Data movement of device OPENCL against onnxruntime."""

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from partita.errors import PartitaError

from ..comparison import (
    check,
    check_single,
    compiled,
    core,
    floats,
    int64s,
    integers,
    single,
)

DTYPES = [np.float32, np.int64, np.int32, np.uint8, np.bool_, np.float16, np.float64]


def numbers(dtype, *shape):
    return integers(*shape, low=0, high=99).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_moves(dtype):
    check_single("Transpose", [numbers(dtype, 3, 4, 5)], {"perm": [2, 0, 1]})
    inputs = [numbers(dtype, 2, 3), numbers(dtype, 2, 4)]
    check_single("Concat", inputs, {"axis": 1})


def test_bfloat16_moves_as_it_is():
    x = numbers(ml_dtypes.bfloat16, 3, 5)
    model, feeds = single("Transpose", [x])
    found = compiled(model).infer_new_request(feeds)[0]
    assert found.dtype == x.dtype
    assert np.array_equal(found, x.T)
    chosen = np.array([True, False, True])
    one = np.ones(1, x.dtype)
    model, feeds = single("Where", [chosen, x[:, :3], one], constant=(2,))
    found = compiled(model).infer_new_request(feeds)[0]
    assert np.array_equal(found, np.where(chosen, x[:, :3], one))


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((3, 4), None),
        ((40, 50), (1, 0)),
        ((2, 3, 40, 50), (0, 1, 3, 2)),
        ((2, 9, 10, 11), (0, 2, 3, 1)),
        ((2, 30, 10, 11), (0, 3, 1, 2)),
        ((2, 3, 4, 5), (3, 1, 2, 0)),
        ((2, 3, 4, 5, 2, 3), (5, 3, 1, 0, 2, 4)),
        ((1, 3, 1, 5), (2, 1, 0, 3)),
        ((0, 3), (1, 0)),
    ],
)
def test_transpose(shape, order):
    attrs = {} if order is None else {"perm": order}
    check_single("Transpose", [floats(*shape)], attrs)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis):
    shapes = [[3, 4, 5], [3, 4, 5], [3, 4, 5]]
    for n, shape in enumerate(shapes):
        shape[axis] = 2 * n
    check_single("Concat", [floats(*s, seed=n) for n, s in enumerate(shapes)], {"axis": axis})


def test_concat_of_one():
    check_single("Concat", [floats(3, 4)], {"axis": 0})


@pytest.mark.parametrize("axis", [0, 1])
def test_split(axis):
    sizes = int64s(1, 3, 2)
    check_single("Split", [floats(6, 6), sizes], {"axis": axis}, outputs=3, constant=(1,))


def test_split_evenly():
    check_single("Split", [floats(7, 3)], {"num_outputs": 3}, outputs=3)
    check_single("Split", [floats(6, 3)], {"split": [1, 5]}, outputs=2, opset=11)


SLICES = [
    ([0], [3], [0], [1]),
    ([1, 2], [-1, 6], [0, 1], [1, 2]),
    ([-1], [-100], [1], [-1]),
    ([5, 7], [0, 1], [0, 1], [-2, -3]),
    ([0, 0], [100, 100], [1, 2], [1, 1]),
    ([4], [2], [0], [1]),
    ([2], [-9223372036854775808], [2], [-1]),
    ([-100], [-9223372036854775808], [1], [-9]),
]


@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
@pytest.mark.parametrize("constant", [(1, 2, 3, 4), ()])
def test_slice(starts, ends, axes, steps, constant):
    arguments = [int64s(*v) for v in (starts, ends, axes, steps)]
    check_single("Slice", [floats(6, 8, 3), *arguments], constant=constant)


def test_slice_by_attributes():
    check_single("Slice", [floats(6, 8)], {"starts": [1, -3], "ends": [4, 8]}, opset=9)


PADS = [(0, 1, 2, 1, 0, 3), (1, 1, 1, 1, 1, 1), (2, 0, 0, 0, 0, 0)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pads", [*PADS, (-1, 1, 0, 0, -1, 2)])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(pads, mode):
    inputs = [floats(3, 4, 5), int64s(*pads)]
    if mode == "constant":
        inputs.append(np.array(1.5, np.float32))
    constant = tuple(range(1, len(inputs)))
    check_single("Pad", inputs, {"mode": mode}, constant=constant, opset=19)


def test_pad_of_named_axes():
    inputs = [floats(3, 4, 5), int64s(1, 2, 3, 4), None, int64s(-1, 0)]
    check_single("Pad", inputs, constant=(1, 3))


def test_pad_by_attributes():
    check_single("Pad", [floats(3, 4)], {"pads": [1, 0, 0, 2], "value": 2.0}, opset=10)


@pytest.mark.parametrize(
    ("shape", "wanted"), [((3, 1), (2, 1, 6)), ((5,), (4, 5)), ((2, 1, 3), (1,)), ((1,), (2, 0))]
)
def test_expand(shape, wanted):
    check_single("Expand", [floats(*shape), int64s(*wanted)], constant=(1,))


@pytest.mark.parametrize("repeats", [(1, 1, 1), (2, 1, 3), (1, 4, 1), (0, 1, 1)])
def test_tile(repeats):
    check_single("Tile", [floats(2, 3, 4), int64s(*repeats)], constant=(1,))


@pytest.mark.parametrize(
    ("shape", "repeats"),
    [
        ((2, 3, 2, 3, 2), (2, 3, 2, 2, 3)),
        ((2, 3, 1, 2, 2, 3), (2, 1, 3, 2, 2, 2)),
        ((2,) * 8, (2,) * 8),
        ((2, 2, 2, 2, 2), (2, 2, 0, 2, 2)),
    ],
)
def test_tile_of_more_dimensions_than_a_box_has(shape, repeats):
    x = floats(*shape)
    model, feeds = single("Tile", [x, int64s(*repeats)], constant=(1,))
    assert not core().query_model(core().read_model(model), "OPENCL").reasons
    np.testing.assert_array_equal(np.array(compiled(model)(feeds)[0]), np.tile(x, repeats))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather(axis, dtype):
    indices = np.array([[0, 2, -1], [1, -3, 2]], dtype)
    check_single("Gather", [floats(3, 4, 5), indices], {"axis": axis})


def test_gather_by_a_scalar():
    check_single("Gather", [floats(3, 4, 5), np.array(-2, np.int64)], {"axis": 1}, constant=(1,))


@pytest.mark.parametrize("axis", [0, 1])
def test_gather_elements(axis):
    check_single("GatherElements", [floats(4, 4), integers(4, 4, low=-4, high=4)], {"axis": axis})
    check_single("GatherElements", [floats(4, 4), integers(2, 3, low=-4, high=4)], {"axis": axis})


@pytest.mark.parametrize("op_type", ["Gather", "GatherElements"])
def test_an_index_out_of_bounds_is_an_error(op_type):
    from partita.errors import InputError

    model, feeds = single(op_type, [floats(3, 4), int64s(0, 3).reshape(1, 2)])
    request = compiled(model).create_infer_request()
    for _ in range(2):
        try:
            request.infer(feeds)
        except InputError as error:
            assert f"'{op_type}'" in str(error)
            assert "out of bounds" in str(error)
        else:
            raise AssertionError("an index out of bounds went unnoticed")
    good = {**feeds, "x1": int64s(0, 2).reshape(1, 2)}
    check(model, good)
    request.infer(good)


@pytest.mark.parametrize(
    ("shape", "wanted"), [((2, 3, 4), (4, -1)), ((2, 3, 4), (0, 0, -1)), ((6,), (1, 2, 3))]
)
@pytest.mark.parametrize("constant", [(1,), ()])
def test_reshape(shape, wanted, constant):
    check_single("Reshape", [floats(*shape), int64s(*wanted)], constant=constant)


def test_views():
    check_single("Flatten", [floats(2, 3, 4)], {"axis": 2})
    check_single("Squeeze", [floats(1, 3, 1), int64s(0)], constant=(1,))
    check_single("Squeeze", [floats(1, 3, 1)])
    check_single("Unsqueeze", [floats(3, 4), int64s(0, -1)], constant=(1,))
    check_single("Unsqueeze", [floats(3, 4)], {"axes": [1]}, opset=11)
    check_single("Identity", [floats(3, 4)])
    check_single("Dropout", [floats(3, 4)])


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode):
    check_single("DepthToSpace", [floats(2, 12, 3, 4)], {"blocksize": 2, "mode": mode})


def test_space_to_depth():
    check_single("SpaceToDepth", [floats(2, 3, 6, 4)], {"blocksize": 2})


def test_space_to_depth_column_row_depth():
    x = floats(2, 3, 6, 4)
    model, feeds = single("SpaceToDepth", [x], {"blocksize": 2, "mode": "CRD"}, opset=28)
    (want,) = ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_array_equal(compiled(model)(feeds)[0], want)


def test_shape_arithmetic_is_done_by_the_host():
    check_single("Shape", [floats(3, 4, 5)], {"start": 1})
    check_single("Size", [floats(3, 4, 5)])
    check_single("ConstantOfShape", [int64s(2, 3)])
    check_single("Range", [np.array(n, np.int64) for n in (2, 9, 3)])


def test_a_grid_by_floats_that_follow_from_a_shape():
    """As detectors are exported whose pictures may have any size: Range counts in floats."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, M] x) => (float[K] y, float[N, M] z)
        <int64 one = {1}, float first = {0.5}, float step = {1}> {
            s = Shape(x)
            m = Gather <axis = 0> (s, one)
            size = Cast <to = 1> (m)
            y = Range(first, size, step)
            z = Neg(x)
        }"""
    )
    check(model, {"x": floats(2, 5)}, {"x": floats(3, 2)}, {"x": floats(2, 5)})


def test_values_of_shape_inputs_may_change():
    model, feeds = single("Expand", [floats(3, 1), int64s(2, 3, 4)])
    check(model, feeds, {**feeds, "x1": int64s(1, 3, 2)}, feeds)


def test_nothing_is_refused_here():
    assert "OPENCL.0" in core().available_devices


def test_slice_by_scalars():
    """Starts and ends of one number are taken for lists of one, as on the other devices."""
    x = floats(5, 4)
    bounds = [np.array(n, np.int64) for n in (1, 3)]
    model, feeds = single("Slice", [x, *bounds], constant=(1, 2))
    np.testing.assert_array_equal(compiled(model)(feeds)[0], x[1:3])


@pytest.mark.parametrize(
    ("op_type", "more", "opset"),
    [
        ("Slice", [[0], [1], [2]], 13),
        ("Slice", [[0], [1], [0], [0]], 13),
        ("Squeeze", [[-3]], 13),
        ("Unsqueeze", [[2**62]], 13),
        ("ReduceSum", [[5]], 13),
        ("Pad", [[1, 1], np.zeros((), np.float32), [7]], 18),
    ],
)
def test_axes_that_are_not_there_are_refused(op_type, more, opset):
    """They were wrapped round, and some other axis was taken."""
    inputs = [floats(5, 4), *(np.array(n, getattr(n, "dtype", np.int64)) for n in more)]
    model, feeds = single(op_type, inputs, opset=opset, constant=range(1, len(inputs)))
    with pytest.raises(PartitaError, match=rf"\({op_type}\)"):
        compiled(model)(feeds)


@pytest.mark.parametrize("unit", [1, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64])
def test_rows_of_many_tensors_are_joined(dtype, unit):
    widths = [3, 1, 0, 4, 2, 1, 5, 1, 2, 3, 1]
    inputs = [integers(2, 3, n * unit, 2, seed=seed).astype(dtype) for seed, n in enumerate(widths)]
    check_single("Concat", inputs, {"axis": 2})
