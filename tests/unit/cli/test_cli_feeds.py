"""Inputs from files, pictures, numbers and chance; shapes from the command line."""

import argparse

import numpy as np
import pytest
from models import model_of, node, value
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import partita
from partita.cli.arguments import parse_shape, positive_float, positive_int
from partita.cli.feeds import make_feeds, reshape
from partita.errors import InputError, ModelError
from partita.model.inference.guessed_shapes import guessed


def model(**inputs):
    """A model that passes its inputs on; each is given as (type, shape)."""
    infos = [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in inputs]
    outputs = [helper.make_tensor_value_info(f"{name}_out", *info) for name, info in inputs.items()]
    graph = helper.make_graph(nodes, "pass", infos, outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return partita.Core().read_model(proto)


F32, I64 = TensorProto.FLOAT, TensorProto.INT64


@pytest.fixture
def picture(tmp_path):
    """Left half red, right half blue; 8 x 4 pixels."""
    image = Image.new("RGB", (8, 4), (255, 0, 0))
    image.paste((0, 0, 255), (4, 0, 8, 4))
    image.save(tmp_path / "picture.png")
    return str(tmp_path / "picture.png")


def feed(model, *given, **options):
    return make_feeds(model, given, 0, **options).arrays


# ------------------------------------------------------------------------------------ shapes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1x3x224x224", (None, (1, 3, 224, 224))),
        ("x=5", ("x", (5,))),
        ("x[0]=y=2,3", ("x[0]=y", (2, 3))),
        ("data=[1, 3, 4]", ("data", (1, 3, 4))),
    ],
)
def test_shapes_are_read(text, expected):
    assert parse_shape(text) == expected


@pytest.mark.parametrize("text", ["", "x=", "1x", "axb", "x=-1x3", "1.5x2"])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a shape; write 1x3x224x224"):
        parse_shape(text)


def test_numbers_must_be_positive():
    assert positive_int("3") == 3
    assert positive_float("0.5") == 0.5
    for text in ("0", "-1", "1.5", "a"):
        with pytest.raises(argparse.ArgumentTypeError):
            positive_int(text)
    for text in ("0", "-1", "nan", "inf", "a"):
        with pytest.raises(argparse.ArgumentTypeError):
            positive_float(text)


def test_a_shape_without_a_name_needs_a_single_input():
    assert reshape(model(x=(F32, ["n", 4])), [(None, (2, 4))]).inputs[0].shape == (2, 4)
    two = model(a=(F32, ["n"]), b=(F32, ["n"]))
    with pytest.raises(
        InputError, match=r"has 2 inputs; write --shape NAME=\.\.\., with one of 'a'"
    ):
        reshape(two, [(None, (2,))])
    assert reshape(two, [("b", (3,))]).inputs[1].shape == (3,)


def test_bad_shapes_are_refused():
    with pytest.raises(ModelError, match=r"no input 'y'; it has 'x'"):
        reshape(model(x=(F32, [2])), [("y", (2,))])
    with pytest.raises(ModelError, match="has rank 1"):
        reshape(model(x=(F32, [2])), [("x", (2, 3))])


# ------------------------------------------------------------------------------------ random


def test_random_inputs_repeat_by_seed_and_fit():
    found = model(
        x=(F32, [2, 3]), i=(I64, [4]), b=(TensorProto.BOOL, []), s=(TensorProto.STRING, [2])
    )
    first = make_feeds(found, [], 7)
    assert {name: (array.dtype.kind, array.shape) for name, array in first.arrays.items()} == {
        "x": ("f", (2, 3)),
        "i": ("i", (4,)),
        "b": ("b", ()),
        "s": ("O", (2,)),
    }
    assert first.notes == ["random input (seed 7) for 'x', 'i', 'b', 's'"]
    again, other = (make_feeds(found, [], seed).arrays["x"] for seed in (7, 8))
    np.testing.assert_array_equal(first.arrays["x"], again)
    assert (other != again).any()


@pytest.mark.parametrize(
    ("given", "samples", "shape", "is_guess"),
    [
        ([], {}, (1, 4, 224, 224), True),
        (["0.5"], {}, (1, 4, 224, 224), True),
        ([], {"x": (2, 4, 9, 8)}, (2, 4, 9, 8), False),
        (["picture"], {"x": (2, 4, 9, 8)}, (3, 4, 5, 6), False),
    ],
)
def test_free_sizes_are_those_of_data_or_samples_or_are_guessed(
    tmp_path, given, samples, shape, is_guess
):
    np.save(tmp_path / "picture.npy", np.zeros((3, 4, 5, 6), np.float32))
    found = model(x=(F32, ["n", 4, "h", "w"]))
    given = [one.replace("picture", str(tmp_path / "picture.npy")) for one in given]
    feeds = make_feeds(found, given, 0, samples=samples)
    assert feeds.arrays["x"].shape == shape
    assert feeds.guessed == ({"x": shape} if is_guess else {})
    told = any("is float32[n, 4, h, w]; its free sizes are assumed" in n for n in feeds.notes)
    assert told == is_guess
    assert not found.inputs[0].is_static


def test_free_sizes_follow_by_name_from_data_that_is_given(tmp_path):
    np.save(tmp_path / "ids.npy", np.zeros((2, 7), np.int64))
    found = model(ids=(I64, ["batch", "tokens"]), mask=(I64, ["batch", "tokens"]))
    feeds = feed(found, f"ids={tmp_path / 'ids.npy'}")
    assert feeds["mask"].shape == (2, 7)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.UINT8])
def test_random_inputs_of_other_types(dtype):
    found = model(x=(dtype, [3]))
    assert feed(found)["x"].dtype == found.inputs[0].dtype


def test_free_sizes_follow_by_name_from_shapes_that_are_told():
    found = model(ids=(I64, ["batch", "tokens"]), state=(F32, [2, "batch", 8]), one=(F32, ["n"]))
    sized = reshape(found, [("ids", (3, 7))])
    assert [port.shape for port in sized.inputs] == [(3, 7), (2, 3, 8), ("n",)]


def flattened(due, *dims):
    """A product of what is flattened behind a window, with weights of a width."""
    weights = numpy_helper.from_array(np.ones((5, due), np.float32), "w")
    pooled = node("MaxPool", ["x"], "p", kernel_shape=[2] * len(dims), strides=[2] * len(dims))
    nodes = [pooled, node("Flatten", ["p"], "f"), node("Gemm", ["f", "w"], "y", transB=1)]
    return partita.Core().read_model(
        model_of(nodes, [value("x", ["n", 3, *dims])], ["y"], [weights])
    )


@pytest.mark.parametrize(
    ("found", "shapes"),
    [
        (flattened(3 * 14 * 14, "h", "w"), [(1, 3, 28, 28)]),
        (flattened(3 * 14 * 8, "h", 16), [(1, 3, 28, 16)]),
        (flattened(3 * 14, "samples"), [(1, 3, 28)]),
        (flattened(1000, "h", "w"), [(1, 3, 224, 224)]),  # no picture gives so many
        (model(wave=(F32, ["n", "t"]), state=(F32, [2, "?", 8])), [(1, 512), (2, 1, 8)]),
        (model(ids=(I64, ["n", "t"]), x=(F32, ["n", "t", 8])), [(1, 128), (1, 128, 8)]),
    ],
)
def test_guessed_sizes_are_those_of_fixed_widths_of_sound_and_of_recurrent_state(found, shapes):
    sized, guesses = guessed(found, {})
    assert list(guesses.values()) == shapes == [port.shape for port in sized.inputs]


# ------------------------------------------------------------------------------------- files


def test_npy_with_and_without_a_name(tmp_path):
    array = np.arange(3, dtype=np.float32)
    path = tmp_path / "a=b.npy"
    np.save(path, array)
    found = model(x=(F32, [3]))
    np.testing.assert_array_equal(feed(found, f"x={path}")["x"], array)
    np.testing.assert_array_equal(feed(found, str(path))["x"], array)


def test_names_with_equal_signs_and_colons(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(1, np.float32))
    found = model(**{"serving:0=x": (F32, [1]), "serving:0": (F32, [1])})
    feeds = feed(found, f"serving:0=x={tmp_path / 'a.npy'}", "serving:0=2")
    assert feeds["serving:0=x"].tolist() == [0]
    assert feeds["serving:0"].tolist() == [2]


def test_npz_feeds_all_inputs_that_it_names(tmp_path):
    np.savez(tmp_path / "in.npz", a=np.ones(2, np.float32), other=np.zeros(1))
    found = model(a=(F32, [2]), b=(F32, [2]))
    feeds = make_feeds(found, [str(tmp_path / "in.npz")], 0)
    assert feeds.arrays["a"].tolist() == [1, 1]
    assert feeds.notes == ["random input (seed 0) for 'b'"]


def test_npz_with_a_name_takes_that_array_or_the_only_one(tmp_path):
    found = model(a=(F32, [2]))
    np.savez(tmp_path / "one.npz", whatever=np.ones(2, np.float32))
    assert feed(found, f"a={tmp_path / 'one.npz'}")["a"].tolist() == [1, 1]
    np.savez(tmp_path / "two.npz", b=np.ones(2), c=np.ones(2))
    with pytest.raises(InputError, match=r"holds no 'a'; it holds b, c"):
        feed(found, f"a={tmp_path / 'two.npz'}")
    with pytest.raises(InputError, match=r"holds no input of model 'pass'; it holds b, c"):
        feed(found, str(tmp_path / "two.npz"))


def test_a_number_fills_the_input():
    found = model(x=(F32, [2, 2]), rate=(I64, []))
    feeds = feed(found, "rate=16000", "x=-0.5")
    assert (feeds["rate"].dtype, feeds["rate"].shape, int(feeds["rate"])) == (np.int64, (), 16000)
    assert (feeds["x"] == -0.5).all()


# ---------------------------------------------------------------------------------- pictures


def test_a_picture_becomes_nchw(picture):
    array = feed(model(x=(F32, [1, 3, 4, 8])), picture)["x"]
    assert (array.shape, array.dtype) == ((1, 3, 4, 8), np.float32)
    assert array[0, :, 0, 0].tolist() == [1, 0, 0]
    assert array[0, :, 0, 7].tolist() == [0, 0, 1]
    assert array.flags.c_contiguous


def test_a_picture_becomes_nhwc_uint8(picture):
    array = feed(model(x=(TensorProto.UINT8, [1, 4, 8, 3])), picture)["x"]
    assert array[0, 0, 0].tolist() == [255, 0, 0]


def test_a_picture_becomes_grey_and_is_scaled(picture):
    array = feed(model(x=(F32, [1, 1, 2, 2])), picture)["x"]
    assert array.shape == (1, 1, 2, 2)
    assert array[0, 0, 0, 0] == pytest.approx(76 / 255, abs=0.05)  # the blue half bleeds in


def test_a_picture_keeps_its_size_where_the_model_leaves_it_open(picture):
    assert feed(model(x=(F32, ["n", 3, "h", "w"])), picture)["x"].shape == (1, 3, 4, 8)


@pytest.mark.parametrize(
    ("normalize", "expected"),
    [
        ("raw", [255, 0, 0]),
        ("half", [1, -1, -1]),
        ("imagenet", [(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225]),
    ],
)
def test_pictures_are_normalized(picture, normalize, expected):
    array = feed(model(x=(F32, [1, 3, 4, 8])), picture, normalize=normalize)["x"]
    assert array[0, :, 0, 0] == pytest.approx(expected, rel=1e-5)


def test_what_takes_no_picture_says_so(picture):
    with pytest.raises(InputError, match=r"takes float32\[2\], which is not a picture"):
        feed(model(x=(F32, [2])), picture)
    with pytest.raises(InputError, match="a picture needs 1 or 3 channels"):
        feed(model(x=(F32, [1, 5, 4, 8])), picture)


# ------------------------------------------------------------------------------------ errors


def test_wrong_inputs_are_explained(tmp_path, picture):
    one = model(x=(F32, [2]))
    whole = model(x=(TensorProto.INT8, [2]))
    two = model(a=(F32, [2]), b=(F32, [2]))
    (tmp_path / "bad.npy").write_bytes(b"no numpy")
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    (tmp_path / "bad.txt").write_text("text")
    for found, text, message in [
        (one, "y=1", r"no input 'y'; it has 'x'"),
        (one, "x=nothing.npy", r"Input 'x': 'nothing.npy' is neither a file \(looked in"),
        (one, "nothing.npz", r"'nothing.npz' does not exist \(looked in"),
        (whole, "0.5", r"takes int8\[2\], and 0.5 is no int8"),
        (whole, "128", r"takes int8\[2\], and 128 is no int8"),
        (whole, "nan", r"takes int8\[2\], and nan is no int8"),
        (model(x=(TensorProto.BOOL, [2])), "0.5", r"takes bool\[2\], and 0.5 is no bool"),
        (
            one,
            str(tmp_path / "bad.npy"),
            r"bad.npy' is not a numpy file that can be read: it does not",
        ),
        (one, str(tmp_path / "bad.npz"), r"bad.npz' is not a numpy file that can be read"),
        (one, str(tmp_path / "bad.txt"), r"neither .npy, .npz nor a picture"),
        (two, picture, r"has 2 inputs; write --input NAME=.*one of 'a', 'b'"),
    ]:
        with pytest.raises(InputError, match=message):
            feed(found, text)
    with pytest.raises(InputError, match="'x' is given twice"):
        feed(one, "x=1", "x=2")


def test_an_input_of_unknown_rank_must_be_given(tmp_path):
    found = model(x=(F32, None))
    with pytest.raises(InputError, match=r"no known rank; give it as --input x=file.npy"):
        feed(found)
