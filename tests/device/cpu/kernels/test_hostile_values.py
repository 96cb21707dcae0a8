"""Values and attributes that are out of all bounds: an answer or an error, soon, and no crash."""

import numpy as np
import pytest
from models import model_of, node, value, weight
from onnx import TensorProto, helper

from partita.errors import PartitaError

RNG = np.random.default_rng(0)
HUGE = (1 << 31) - 1


def run(core, model, *feeds):
    return core.compile_model(model.SerializeToString(), "CPU").infer_new_request(list(feeds))


def attention(lengths, **attributes):
    """Attention of two batches of four keys, of which only the first ones count."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 1, 3, 8)).astype(np.float32)
    k, v = (rng.standard_normal((2, 1, 4, 8)).astype(np.float32) for _ in range(2))
    model = model_of(
        [node("Attention", ["q", "k", "v", "", "", "", "n"], "y", **attributes)],
        [*(value(name, None) for name in "qkv"), value("n", [2], TensorProto.INT64)],
        ["y"],
        opset=24,
        ir_version=10,
    )
    return model, (q, k, v, np.array(lengths, np.int64))


@pytest.mark.parametrize("least", [-(2**63), -(2**62), -5, -1])
def test_attention_of_fewer_than_no_keys(core, least):
    """It wrote before its scores."""
    expected = run(core, *unpacked(attention([0, 4])))[0]
    found = run(core, *unpacked(attention([least, 2**63 - 1])))[0]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("least", [-(2**63), -(2**63) + 1, -(2**62)])
def test_nothing_beside_the_scores_is_written(least):
    """The end of a window less its beginning overflowed, to a few keys before the first one."""
    from partita_cpu.kernels.attention.attention_rows import softmax_scores

    memory, masks = np.full(76, 7, np.float32), np.ones(76, np.float32)
    scores, mask = memory[32:44], masks[32:44]
    table = np.array([1, 1, 3, 4, 0, 0, 4, 4, 1, 0, 0, 3, -1, -1, 1], np.int64)
    lengths = np.array([least], np.int64)
    softmax_scores(scores, mask, lengths, scores, table, 1.0, 0.0, 0, 1)
    assert (memory[:32] == 7).all()
    assert (memory[44:] == 7).all()
    assert (scores == 0).all()


@pytest.mark.parametrize("side", ["left_window_size", "right_window_size"])
def test_attention_windows_wider_than_everything(core, side):
    wide, given = attention([4, 4], **{side: 2**63 - 1})
    plain, _ = attention([4, 4])
    np.testing.assert_array_equal(run(core, wide, *given)[0], run(core, plain, *given)[0])


def unpacked(pair):
    model, feeds = pair
    return model, *feeds


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["MaxPool", "LpPool", "AveragePool"])
@pytest.mark.parametrize("rank", [1, 2])
def test_windows_much_larger_than_the_image(core, kind, rank):
    """SAME windows of 2**31 - 1 see all of a small image, as windows of nine do."""
    x = RNG.standard_normal((1, 2, *(4, 5)[:rank])).astype(np.float32)
    results = []
    for size in (9, HUGE):
        attributes = {"kernel_shape": [size] * rank, "auto_pad": "SAME_UPPER"}
        pool = model_of([node(kind, ["x"], "y", **attributes)], ["x"], ["y"])
        results.append(run(core, pool, x)[0])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("gap", [1, 2])
def test_what_a_mean_is_of_is_counted_as_a_mask_counts_it(include, gap):
    from partita.lowering.geometry.windows import count_places, resolve

    for ceil_mode in (False, True):
        made = partita_node(strides=[2], dilations=[gap], pads=[1, 2])
        window = resolve(made, (7,), (3,), ceil_mode=ceil_mode)
        starts = np.arange(window.out[2]) * 2 - 1
        places = starts[:, None] + np.arange(3) * gap
        stop = 7 + 2 if include else 7
        wanted = (places < stop) & (places >= (-9 if include else 0))
        found = count_places(bool(include), *window.along(2))
        np.testing.assert_array_equal(found, wanted.sum(axis=1))


def partita_node(**attributes):
    from partita.lowering import Node

    return Node("AveragePool", [], [], attrs=attributes)


@pytest.mark.parametrize("seed", range(30))
def test_trimmed_windows_see_the_same(seed):
    from partita.lowering.geometry.windows import resolve

    rng = np.random.default_rng(seed)
    size, kernel = int(rng.integers(1, 8)), int(rng.integers(1, 9))
    pads = [int(n) for n in rng.integers(0, 6, 2)]
    attributes = {"strides": [int(rng.integers(1, 4))], "dilations": [int(rng.integers(1, 4))]}
    try:
        window = resolve(partita_node(pads=pads, **attributes), (size,), (kernel,))
    except PartitaError:
        return
    assert seen(window.trimmed) == seen(window)
    assert window.trimmed.kernel[2] <= window.kernel[2]


def seen(window):
    """For each window the elements of the input that are under it, in order."""
    taps = np.arange(window.kernel[2]) * window.dilation[2] - window.begin[2]
    starts = np.arange(window.out[2]) * window.stride[2]
    return [[p for p in taps + s if 0 <= p < window.size[2]] for s in starts]


@pytest.mark.parametrize("name", ["strides", "dilations", "pads"])
@pytest.mark.parametrize("large", [2**31, 2**62, -(2**63)])
def test_numbers_of_windows_that_would_overflow(core, name, large):
    count = 4 if name == "pads" else 2
    attributes = {"kernel_shape": [2, 2], name: [large] * count}
    pool = model_of([node("MaxPool", ["x"], "y", **attributes)], [value("x", [1, 1, 4, 4])], ["y"])
    with pytest.raises(PartitaError):
        run(core, pool, np.zeros((1, 1, 4, 4), np.float32))


def roi_model(**attributes):
    return model_of(
        [node("RoiAlign", ["x", "rois", "n"], "y", output_height=2, output_width=2, **attributes)],
        [value("x", None), value("rois", None), value("n", [None], TensorProto.INT64)],
        ["y"],
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("far", [1e9, 1e30, 3e38, np.inf, np.nan])
def test_regions_much_larger_than_the_image(core, mode, far):
    x = RNG.standard_normal((1, 2, 6, 7)).astype(np.float32)
    rois = np.array([[0, 0, far, far], [-far, -far, far, far], [far, far, -far, -far]], np.float32)
    y = run(core, roi_model(mode=mode), x, rois, np.zeros(3, np.int64))[0]
    assert y.shape == (3, 2, 2, 2)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 1, 3])
def test_regions_partly_beside_the_image(core, mode, ratio):
    """Samples beside the image are left out of the loops, not out of the result."""
    from onnx.reference import ReferenceEvaluator

    x = RNG.random((1, 2, 6, 7)).astype(np.float32)
    rois = np.array([[-9, -4, 3, 2], [2, 1, 25, 19], [-40, -30, 50, 44], [1, 1, 4, 5]], np.float32)
    model = roi_model(mode=mode, sampling_ratio=ratio)
    batches = np.zeros(4, np.int64)
    expected = ReferenceEvaluator(model).run(None, {"x": x, "rois": rois, "n": batches})[0]
    if mode == "max":  # the reference takes the largest of what weights have made of corners
        expected = np.maximum(expected, 0)
    np.testing.assert_allclose(run(core, model, x, rois, batches)[0], expected, atol=1e-5)


@pytest.mark.parametrize("ratio", [-1, 1025, 2**31, 2**63 - 1])
def test_too_many_samples_are_refused(core, ratio):
    with pytest.raises(PartitaError, match=f"sampling_ratio is {ratio}; takes 0 to 1024"):
        core.compile_model(roi_model(sampling_ratio=ratio).SerializeToString(), "CPU")


def test_weights_that_claim_more_channels_than_can_be_computed(core):
    """The emitter cut them in 2**31 pieces, one after another."""
    model = model_of(
        [node("ConvTranspose", ["x", "w"], "y")],
        [value("x", [1, 2, 3, 3]), value("w", [2, 1 << 31, 3, 3])],
        ["y"],
    )
    with pytest.raises(PartitaError, match=r"\(ConvTranspose\) would take more than"):
        core.compile_model(model.SerializeToString(), "CPU")


def test_a_grid_of_more_images_than_the_constant_it_samples(core):
    """Folded, it wrote behind its output: what shapes demand was only asked of run-time nodes."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((1, 1, 3, 2)).astype(np.float32)
    grid = np.zeros((64, 1, 2, 2), np.float32)
    model = model_of([node("GridSample", ["x", "g"], "y")], [], ["y"], opset=20)
    model.graph.initializer.extend([weight("x", images), weight("g", grid)])
    with pytest.raises(PartitaError, match="as many dimensions and images"):
        core.compile_model(model.SerializeToString(), "CPU")


def test_scales_for_fewer_columns_than_a_product_of_bytes_has(core):
    """It read a scale for each of 4096 columns, of three."""
    x, w = np.ones((2, 4, 8), np.uint8), np.ones((2, 8, 4096), np.uint8)
    one, zero = np.ones(1, np.float32), np.ones(1, np.uint8)
    feeds = [x, one, zero, w, np.ones(3, np.float32), zero, one, zero]
    with pytest.raises(PartitaError, match="has 3 scales for 4096 channels"):
        run_one(core, "QLinearMatMul", feeds)


def test_a_bias_of_one_element_for_a_product_of_bytes_with_a_vector(core):
    """A bias as long as the vector was read for each of the rows."""
    x, w = np.arange(200, dtype=np.uint8).reshape(100, 2), np.array([3, 4], np.uint8)
    one = np.ones(1, np.float32)
    feeds = [x, w, one, one, None, None, np.array([0.5], np.float32)]
    found = run_one(core, "MatMulIntegerToFloat", feeds, domain="com.microsoft")
    np.testing.assert_array_equal(found, x.astype(np.float32) @ w + 0.5)


def run_one(core, op_type, feeds, domain="", **attributes):
    """The first output of an operation on these inputs; ``None`` stands for one left out."""
    names = ["" if feed is None else f"x{i}" for i, feed in enumerate(feeds)]
    given = {name: feed for name, feed in zip(names, feeds, strict=True) if name}
    kinds = {name: helper.np_dtype_to_tensor_dtype(feed.dtype) for name, feed in given.items()}
    ports = [value(name, feed.shape, kinds[name]) for name, feed in given.items()]
    operation = node(op_type, names, "y", domain=domain, **attributes)
    model = model_of([operation], ports, ["y"], opset=18, ir_version=10)
    model.graph.output[0].CopyFrom(helper.make_empty_tensor_value_info("y"))
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return run(core, model, *given.values())[0]


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_the_largest_of_nothing_is_nowhere(core, op_type):
    """Its place was what the memory held before."""
    with pytest.raises(PartitaError, match="axis 1 holds no element"):
        run_one(core, op_type, [np.ones((3, 0), np.float32)], axis=1)


@pytest.mark.parametrize("shape", [(1, 2, 0, 8), (1, 2, 8, 0)])
def test_regions_of_an_image_of_no_pixels(core, shape):
    """They read before its first element."""
    regions = np.array([[-0.5, -0.5, 0, 0], [0, 0, 4, 4]], np.float32)
    feeds = [np.ones(shape, np.float32), regions, np.zeros(2, np.int64)]
    found = run_one(core, "RoiAlign", feeds, output_height=2, output_width=2)
    np.testing.assert_array_equal(found, np.zeros((2, 2, 2, 2)))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_samples_of_an_image_of_no_pixels(core, mode, padding):
    feeds = [np.ones((1, 1, 0, 3), np.float32), RNG.standard_normal((1, 2, 2, 2), np.float32)]
    found = run_one(core, "GridSample", feeds, mode=mode, padding_mode=padding)
    np.testing.assert_array_equal(found, np.zeros((1, 1, 2, 2)))


def test_an_element_of_a_scalar(core):
    """The shape of the result was the remainder of a division by a rank of 0."""
    feeds = [np.ones((), np.float32), np.zeros(2, np.int64)]
    with pytest.raises(PartitaError, match="has axis 0, but its tensor has 0 dimensions"):
        run_one(core, "Gather", feeds)


@pytest.mark.parametrize("kind", ["ReduceMean", "ReduceMax", "ReduceL2"])
@pytest.mark.parametrize("axes", [(6, 7), (2, 7), (-6, -5)])
def test_a_reduction_along_axes_that_an_image_has_not(core, axes, kind):
    """Behind a convolution they were taken for its pixels, whose reduction came back."""
    weights = np.ones((8, 8, 3, 3), np.float32)
    nodes = [
        node("Conv", ["x", "w"], "c", pads=[1] * 4),
        node(kind, ["c"], "y", axes=list(axes)),
    ]
    model = model_of(nodes, [value("x", (1, 8, 12, 12))], ["y"], [weight("w", weights)], opset=17)
    with pytest.raises(PartitaError, match=rf"has axis {axes[0] if axes[0] != 2 else 7}"):
        run(core, model, np.ones((1, 8, 12, 12), np.float32))


@pytest.mark.parametrize("axis", [4, 5, 7, -5, -7])
@pytest.mark.parametrize("kind", ["Slice", "Split", "Concat", "ArgMax", "TopK", "Gather"])
def test_a_part_along_an_axis_that_an_image_has_not(core, kind, axis):
    """Behind a convolution axis 5 was taken for that of the channels, which Split cut."""
    inputs = {
        "Slice": ["c", "zero", "two", "axis"],
        "Concat": ["c", "c"],
        "TopK": ["c", "two"],
        "Gather": ["c", "zero"],
    }
    outputs = ["y", "z"] if kind in ("Split", "TopK") else ["y"]
    attrs = {} if kind == "Slice" else {"axis": axis}
    constants = {"zero": np.zeros(1, np.int64), "two": np.array([2]), "axis": np.array([axis])}
    nodes = [
        node("Conv", ["x", "w"], "c", pads=[1] * 4),
        node(kind, inputs.get(kind, ["c"]), outputs, **attrs),
    ]
    weights = [weight("w", np.ones((8, 8, 3, 3), np.float32))]
    weights += [weight(name, array) for name, array in constants.items()]
    model = model_of(nodes, [value("x", (1, 8, 12, 12))], outputs, weights, opset=17)
    with pytest.raises(PartitaError, match=f"has axis {axis}, but its tensor has 4 dimensions"):
        run(core, model, np.ones((1, 8, 12, 12), np.float32))


def test_a_dimension_added_twice(core):
    with pytest.raises(PartitaError, match=r"names an axis twice: axes \[0, 0\]"):
        run_one(core, "Unsqueeze", [np.ones((2, 3), np.float32), np.zeros(2, np.int64)])


@pytest.mark.parametrize("antialias", [0, 1])
def test_a_region_where_no_element_weighs_anything(core, antialias):
    """Without a single tap left, it read weights of other memory."""
    model = resize_model(
        mode="cubic",
        coordinate_transformation_mode="tf_crop_and_resize",
        exclude_outside=1,
        antialias=antialias,
        extrapolation_value=7.0,
    )
    x, roi = np.ones((4, 5), np.float32), np.array([0, 1e8, 1, 2e8], np.float32)
    assert (run(core, model, x, roi, np.ones(2, np.float32))[0] == 7).all()


def resize_model(**attributes):
    return model_of(
        [node("Resize", ["x", "roi", "scales"], "y", **attributes)], ["x", "roi", "scales"], ["y"]
    )


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("far", [np.nan, np.inf, -np.inf])
def test_a_region_that_is_nowhere_is_refused(core, mode, far):
    """The places of its elements were those of NaN as an integer."""
    model = resize_model(mode=mode, coordinate_transformation_mode="tf_crop_and_resize")
    x, roi = np.ones((4, 5), np.float32), np.array([0, 0, 1, far], np.float32)
    with pytest.raises(PartitaError, match="Resize cannot make 5 elements of 5"):
        run(core, model, x, roi, np.ones(2, np.float32))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("bounds", [(-3e38, 3e38), (1e30, 1e31), (3e38, -3e38)])
def test_a_region_far_away_is_extrapolated(core, mode, antialias, bounds):
    model = resize_model(
        mode=mode,
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.0,
        antialias=antialias,
    )
    x, roi = np.ones((4, 5), np.float32), np.array([0, bounds[0], 1, bounds[1]], np.float32)
    assert (run(core, model, x, roi, np.ones(2, np.float32))[0][:, 0] == 7).all()


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_scales_are_positive_numbers(core, scale):
    x, roi = np.ones((4, 5), np.float32), np.zeros(0, np.float32)
    with pytest.raises(PartitaError, match="scales are positive numbers"):
        run(core, resize_model(), x, roi, np.array([1, scale], np.float32))


def test_sizes_are_not_negative(core):
    model = model_of(
        [node("Resize", ["x", "", "", "s"], "y")], ["x", value("s", [2], TensorProto.INT64)], ["y"]
    )
    with pytest.raises(PartitaError, match="none may be negative"):
        run(core, model, np.ones((4, 5), np.float32), np.array([4, -(2**63)]))
    with pytest.raises(PartitaError, match="cannot make 4 elements of 0"):
        run(core, model, np.ones((0, 5), np.float32), np.array([4, 5]))


@pytest.mark.parametrize("pads", [np.array(0), np.array([1]), np.array([0, 0, 1])])
def test_pads_for_fewer_or_more_dimensions_than_there_are(core, pads):
    model = model_of([node("Pad", ["x", "pads"], "y")], [value("x", [3])], ["y"])
    model.graph.initializer.append(weight("pads", pads))
    with pytest.raises(PartitaError, match="pads is to hold 2 elements"):
        core.compile_model(model.SerializeToString(), "CPU")
