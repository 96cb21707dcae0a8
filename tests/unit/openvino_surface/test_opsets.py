"""Graphs that are written with operation sets compute what they say."""

from __future__ import annotations

import numpy as np
import pytest
from interleaving import between_steps

import partita as ov
from partita import op, opset1, opset4, opset8, opset13, opset15, opset16
from partita.errors import ModelError
from partita.frontends.openvino_ir import translators
from partita.frontends.openvino_ir.translator import TRANSLATORS
from partita.opsets.node import Node
from partita.opsets.signature import NEWEST, signatures
from partita.system.modules import import_modules

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 3, 4)).astype(np.float32)
S = 1 / (1 + np.exp(-X))
SPECTRUM = np.fft.rfft(X, 3)


@pytest.fixture(scope="module")
def core():
    return ov.Core()


def computed(core, write, *arrays):
    """What a graph over some arrays computes."""
    parameters = [opset13.parameter(array.shape, array.dtype) for array in arrays]
    model = ov.Model([write(*parameters)], parameters, "written")
    return core.compile_model(model, "REFERENCE")(list(arrays))[0]


CASES = {
    "relu": (lambda x: opset13.relu(x), np.maximum(X, 0)),
    "sigmoid": (lambda x: opset13.sigmoid(x), S),
    "add a number": (lambda x: opset13.add(x, 1.5), X + 1.5),
    "number first": (lambda x: opset13.subtract(1, x), 1 - X),
    "arithmetic": (lambda x: -((x * 2 + 1) / 4 - x) ** 2, -(((X * 2 + 1) / 4 - X) ** 2)),
    "arithmetic, number first": (lambda x: 1 / (2 - x) + 3 * x, 1 / (2 - X) + 3 * X),
    "arithmetic with outputs": (
        lambda x: -(2 * x.output(0) - x) / x.output(0) ** 2 + x.output(0).node,
        -(X / X**2) + X,
    ),
    "arithmetic with arrays of numpy": (lambda x: X[0] * x + X / x.output(0), X[0] * X + 1),
    "softmax": (lambda x: opset8.softmax(x, 2), np.exp(X) / np.exp(X).sum(2, keepdims=True)),
    "reduce": (lambda x: opset13.reduce_sum(x, [1, 2], True), X.sum((1, 2), keepdims=True)),
    "l1": (lambda x: opset4.reduce_l1(x, [0]), np.abs(X).sum(0)),
    "transpose": (lambda x: opset13.transpose(x, [2, 0, 1]), X.transpose(2, 0, 1)),
    "reshape": (lambda x: opset13.reshape(x, [0, -1], special_zero=True), X.reshape(2, 12)),
    "concat": (lambda x: opset13.concat([x, x], axis=1), np.concatenate([X, X], 1)),
    "second part": (lambda x: opset13.split(x, 2, 2).output(1), X[..., 2:]),
    "uneven parts": (lambda x: opset13.variadic_split(x, 1, [1, 2]).output(1), X[:, 1:]),
    "gather": (lambda x: opset13.gather(x, [1, 0], 2), X[..., [1, 0]]),
    "clamp": (lambda x: opset13.clamp(x, -0.5, 0.5), X.clip(-0.5, 0.5)),
    "matmul": (lambda x: opset13.matmul(x, X, False, True), X @ X.transpose(0, 2, 1)),
    "convert": (lambda x: opset13.convert(x, np.int32), X.astype(np.int32)),
    "convert by name": (lambda x: opset13.convert(x, destination_type="f64"), X.astype("f8")),
    "largest": (lambda x: opset13.topk(x, 1, 2, "max", "value").output(0), X.max(2, keepdims=True)),
    "select": (lambda x: opset13.select(opset13.greater(x, 0.0), x, 0.0), np.maximum(X, 0)),
    "bags": (
        lambda x: opset15.embedding_bag_offsets(x, [0, 1, 1], [0, 2], reduction="mean"),
        np.stack([X.mean(0), X[1]]),
    ),
    "bags of as many rows": (
        lambda x: opset15.embedding_bag_packed(x, [[0, 1], [1, 1]]),
        np.stack([X.sum(0), X[1] * 2]),
    ),
    "sums of bags": (
        lambda x: opset4.embedding_bag_offsets_sum(x, [0, 1, 1], [0, 2]),
        np.stack([X.sum(0), X[1]]),
    ),
    "sums of bags of as many rows": (
        lambda x: opset4.embedding_bag_packed_sum(x, [[0, 1], [1, 1]]),
        np.stack([X.sum(0), X[1] * 2]),
    ),
    "sums of segments": (
        lambda x: opset4.embedding_segments_sum(x, [0, 1, 1], [0, 0, 2], 3),
        np.stack([X.sum(0), 0 * X[0], X[1]]),
    ),
    "largest of segments": (
        lambda x: opset16.segment_max(x, [0, 0], 2, "ZERO"),
        np.stack([X.max(0), 0 * X[0]]),
    ),
    "labels": (
        lambda x: opset8.ctc_greedy_decoder_seq_len(x, [3, 2], 0, False).output(1),
        np.array([(X[0].argmax(1) > 0).sum(), (X[1, :2].argmax(1) > 0).sum()]),
    ),
    "labels by a mask": (
        lambda x: opset8.ctc_greedy_decoder(x, np.zeros((2, 3), np.float32)),
        np.full((3, 2, 1, 1), -1),
    ),
    "short-time transform": (
        lambda x: opset15.stft(opset8.reshape(x, [-1], False), [1.0, 1.0], 2, 2, False),
        np.stack([X.reshape(-1, 2).sum(1), -np.diff(X.reshape(-1, 2))[:, 0]], 1)[..., None]
        * [1, 0],
    ),
    "patches": (
        lambda x: opset8.extract_image_patches(
            opset8.reshape(x, [1, 2, 3, 4], False), [1, 2], [1, 2], [1, 1], "valid"
        ),
        np.concatenate([X[..., ::2], X[..., 1::2]])[None],
    ),
    "darknet's blocks": (
        lambda x: opset8.reorg_yolo(opset8.reshape(x, [1, 4, 2, 3], False), [1]),
        X.reshape(1, 4, 2, 3),
    ),
    "roll": (lambda x: opset13.roll(x, [1, -2], [0, 2]), np.roll(X, [1, -2], [0, 2])),
    "batches as space": (
        lambda x: opset8.batch_to_space(x, [1, 1, 2], [0, 0, 1], [0, 0, 0]),
        np.stack([X[0], X[1]], -1).reshape(1, 3, 8)[..., 1:],
    ),
    "space as batches": (
        lambda x: opset8.space_to_batch(x, [1, 1, 2], [0, 0, 0], [0, 0, 0]),
        np.concatenate([X[..., ::2], X[..., 1::2]]),
    ),
    "buckets": (lambda x: opset13.bucketize(x, [-0.5, 0.5]), np.digitize(X, [-0.5, 0.5], True)),
    "places": (
        lambda x: opset15.search_sorted([-0.5, 0.5], x, True),
        np.searchsorted([-0.5, 0.5], X, "right"),
    ),
    "spectrum": (
        lambda x: opset13.rdft(x, [2], [3]),
        np.stack([SPECTRUM.real, SPECTRUM.imag], -1),
    ),
    "spectrum and back": (lambda x: opset13.irdft(opset13.rdft(x, [1, 2]), [1, 2], [3, 4]), X),
    "complex spectrum and back": (
        lambda x: opset8.idft(opset8.dft(opset13.reshape(x, [2, 6, 2], False), [1]), [1]),
        X.reshape(2, 6, 2),
    ),
    "responses": (
        lambda x: opset1.grn(x, 0.5),
        X / np.sqrt((X**2).sum(1, keepdims=True) + 0.5),
    ),
    "diagonal": (lambda x: opset13.multiply(x, opset13.eye(3, 4, 1, "f32")), X * np.eye(3, 4, 1)),
    "written slice": (
        lambda x: opset15.slice_scatter(x, [[[9.0]] * 3] * 2, [1], [2], [1], [2]),
        np.where(np.arange(4) == 1, np.float32(9), X),
    ),
    "squeeze": (lambda x: opset15.squeeze(opset13.unsqueeze(x, 0)), X),
    "slice": (lambda x: opset8.slice(x, [1], [3], [1], [2]), X[..., 1:3]),
    "pad": (lambda x: opset13.pad(x, [0, 0, 1], [0, 0, 0], "constant", 7.0),
            np.pad(X, [(0, 0), (0, 0), (1, 0)], constant_values=7)),
    "einsum": (lambda x: opset13.einsum([x, x], "ABC,ABC->AC"), (X * X).sum(1)),
    "name last": (lambda x: opset1.tanh(x, "last"), np.tanh(X)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_computed(core, case):
    write, expected = CASES[case]
    np.testing.assert_allclose(computed(core, write, X), expected, rtol=1e-5, atol=1e-6)


def test_every_function_has_a_translator():
    import_modules(translators)
    for number in range(1, NEWEST + 1):
        assert {one.layer for one in signatures(number).values()} <= TRANSLATORS.keys()


def test_names_are_kept(core):
    x = opset13.parameter([2], np.float32, name="x")
    y = opset13.relu(x, name="r")
    y.output(0).tensor.set_names({"y"})
    y.output(0).add_names({"z"})
    model = ov.Model([y, opset13.result(x, name="same")], [x], "names")
    assert model.get_friendly_name() == "names"
    assert [port.get_any_name() for port in model.inputs] == ["x"]
    assert [port.get_any_name() for port in model.outputs] == ["y", "same"]
    assert model.ops[0].name == "r"
    result = core.compile_model(model, "REFERENCE")({"x": [-1.0, 1.0]})
    assert (result["y"].tolist(), result["same"].tolist()) == ([0, 1], [-1, 1])


def test_what_nodes_tell():
    x = opset13.parameter(ov.PartialShape([-1, 3]), ov.Type.f32, name="x")
    node = opset13.transpose(x, [1, 0])
    assert isinstance(node, ov.Node)
    assert (node.get_type_name(), x.get_type_name()) == ("Transpose", "Parameter")
    assert (node.get_input_size(), node.get_output_size()) == (2, 1)
    assert (node.get_input_element_type(1), node.get_input_shape(1)) == (ov.Type.i64, [2])
    assert node.get_input_partial_shape(0) == [-1, 3]
    assert node.input_value(0) is x.output(0)
    sources = [one.get_source_output() for one in node.inputs()]
    assert sources == node.input_values() == [x.output(), node.input_value(1)]
    assert str(node.get_output_partial_shape(0)) == "[3,?]"
    assert node.get_element_type() is node.get_output_element_type(0) is ov.Type.f32
    assert node.output().get_node() is node
    assert (node.output().get_index(), node.output().get_names()) == (0, set())
    assert node.output().get_tensor().get_partial_shape() == node.output().partial_shape
    assert node.output().get_element_type() is ov.Type.f32
    assert opset13.constant([[1, 2]]).shape == [1, 2]
    assert opset13.constant([1]).output().get_shape() == opset13.constant([1]).get_output_shape(0)
    node.friendly_name = "named"
    assert (node.get_name(), node.get_friendly_name(), repr(node)) == (
        *("named", "named"),
        "<Transpose 'named'>",
    )
    assert opset13.softmax(x, 1).get_attributes() == {"axis": "1"}
    assert len(node.outputs()) == 1
    assert "of 'named': f32[3,?]" in repr(node.output())


def test_classes_of_nodes():
    x = op.Parameter(ov.Type.i32, ov.Shape([2]))
    assert x.get_element_type() is ov.Type.i32
    filled = op.Constant(ov.Type.f32, ov.Shape([2, 2]), [3])
    np.testing.assert_array_equal(filled.value, np.full((2, 2), 3, np.float32))
    held = op.Constant(ov.Type.i64, ov.Shape([2, 2]), [1, 2, 3, 4]).value
    np.testing.assert_array_equal(held, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(op.Constant(ov.Tensor(X)).value, X)
    assert op.Result(x).get_type_name() == "Result"


P = opset13.parameter([2, 3], np.float32)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda: opset13.softmax(P), r"softmax\(data, axis, name\) was called without 'axis'"),
        (lambda: opset13.softmax(P, 1, "n", 5), r"was called with 4 arguments"),
        (lambda: opset13.softmax(P, 1, axes=1), r"was called with 2 arguments and \{'axes': 1\}"),
        (lambda: opset13.transpose(P, [0, 1, 2]), "Transpose 'Transpose_.*' does not fit its inp"),
        (lambda: opset13.convert(P, "f33"), "'f33' is not an element type"),
        (lambda: opset13.relu("text"), "A node reads other nodes and numbers; found 'text'"),
        (lambda: opset13.variadic_split(P, 1, P), "must be a constant, which tells how many"),
        (lambda: P.output(1), "has 1 outputs; there is no output 1"),
        (
            lambda: ov.Model([opset13.relu(P)], [], "m"),
            "depends on <Parameter .*not a parameter of it",
        ),
        (lambda: ov.Model([P], [opset13.relu(P), P]), r"made by parameter\(\); found <ReLU"),
        (lambda: ov.Model(5), "found 5. Core.read_model reads files"),
        (lambda: ov.Model([]), r"found \[\]"),
    ],
)
def test_what_cannot_be_written(write, said):
    with pytest.raises(ModelError, match=said):
        write()


def test_functions_that_a_set_does_not_have():
    assert "gelu" not in dir(opset1)
    assert "relu" in dir(opset1)
    with pytest.raises(AttributeError, match=r"'partita.opset1'> has no function 'gelu'"):
        opset1.gelu(P)
    assert opset1.relu.__name__ == "relu"
    assert opset13.topk(P, 1, 1, "max", "value").get_output_size() == 2


def test_nodes_that_threads_make_at_once_have_names_of_their_own():
    """One wherever the other one is in being made."""
    names = []

    def make():
        names.append(opset13.parameter([1], np.float32).name)

    with between_steps(Node.__init__, make):
        names += [opset13.parameter([1], np.float32).name for _ in range(3)]
    assert len(names) == len(set(names)) > 10
