"""IRs that are written from ONNX compute, read back, what onnxruntime computes of the ONNX."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.errors import ModelError

RNG = np.random.default_rng(0)
CORE = partita.Core()
TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.bool_): TensorProto.BOOL,
    np.dtype(np.uint8): TensorProto.UINT8,
}


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def ints(*numbers):
    return np.array(numbers, np.int64)


X = normal(2, 4, 5, 6)
ROW = normal(3, 7)
WHOLE = RNG.integers(-9, 9, (3, 4))
IMAGE = normal(1, 4, 6, 6)


def model_of(op_type, feeds, constants, outputs=1, opset=21, **attributes):
    """A model of one operator, whose inputs are fed or constant."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate((*feeds, *constants))]
    made = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, made, **attributes)
    ports = [
        helper.make_tensor_value_info(name, TYPES[x.dtype], x.shape)
        for name, x in zip(names, feeds, strict=False)
    ]
    held = [
        numpy_helper.from_array(x, name)
        for name, x in zip(names[len(feeds) :], constants, strict=True)
        if x is not None
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in made]
    graph = helper.make_graph([node], "g", ports, results, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def ran(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {f"x{i}": x for i, x in enumerate(feeds)})


CASES = {
    **{name: (name, [X], []) for name in ("Relu", "Exp", "Softplus", "HardSwish", "Gelu", "Neg")},
    "Round": ("Round", [X * 3], []),
    "Elu": ("Elu", [X], [], {"alpha": 0.5}),
    "Celu": ("Celu", [X], [], {"alpha": 0.5}),
    "LeakyRelu": ("LeakyRelu", [X], [], {"alpha": 0.2}),
    "PRelu": ("PRelu", [X], [normal(4, 1, 1)]),
    "HardSigmoid": ("HardSigmoid", [X], []),
    "ThresholdedRelu": ("ThresholdedRelu", [X], [], {"alpha": 0.3}),
    "Reciprocal": ("Reciprocal", [X], []),
    "Add": ("Add", [X], [normal(5, 1)]),
    "Div of whole numbers": ("Div", [WHOLE], [ints(3)]),
    "Mod": ("Mod", [WHOLE], [ints(-4)]),
    "fmod": ("Mod", [WHOLE], [ints(-4)], {"fmod": 1}),
    "Pow": ("Pow", [np.abs(X)], [ints(3)]),
    "Max of three": ("Max", [X], [normal(6), normal(5, 1)]),
    "Mean": ("Mean", [X], [normal(6), normal(5, 1)]),
    "Where": ("Where", [X > 0, X], [normal(6)]),
    "Clip": ("Clip", [X], [np.float32(-0.5), np.float32(0.7)]),
    "Clip of whole numbers": ("Clip", [WHOLE], [np.int64(-3), np.int64(3)]),
    "Cast": ("Cast", [X * 9], [], {"to": TensorProto.INT64}),
    "Quantize": ("QuantizeLinear", [X], [np.float32(0.02), np.uint8(128)]),
    "Dequantize": (
        "DequantizeLinear",
        [RNG.integers(0, 255, (2, 4, 5), np.uint8)],
        [np.abs(normal(4)), np.array([1, 2, 3, 4], np.uint8)],
    ),
    "Reshape": ("Reshape", [X], [ints(0, -1, 3)]),
    "Flatten": ("Flatten", [X], [], {"axis": 2}),
    "Squeeze": ("Squeeze", [X[:, :1]], [ints(1)]),
    "Transpose": ("Transpose", [X], [], {"perm": [0, 2, 3, 1]}),
    "Shape": ("Shape", [X], [], {"start": 1, "end": -1}),
    "Size": ("Size", [X], []),
    "Expand": ("Expand", [normal(4, 1)], [ints(2, 1, 3)]),
    "Tile": ("Tile", [X], [ints(1, 2, 1, 2)]),
    "Slice": ("Slice", [X], [ints(3, -1), ints(0, -5), ints(2, 3), ints(-1, -2)]),
    "Pad": ("Pad", [X], [ints(1, -1, 0, 2), np.float32(7), ints(1, 3)]),
    "Pad that mirrors": ("Pad", [ROW], [ints(1, 2, 0, 3)], {"mode": "reflect"}),
    "DepthToSpace": ("DepthToSpace", [X], [], {"blocksize": 2, "mode": "CRD"}),
    "MatMul": ("MatMul", [ROW], [normal(7, 2)]),
    "Gemm": (
        "Gemm", [ROW], [normal(2, 7), normal(2)], {"transB": 1, "alpha": 0.5, "beta": 2.0}
    ),
    "Conv": ("Conv", [IMAGE], [normal(3, 4, 3, 3), normal(3)], {"pads": [1, 0, 1, 2]}),
    "Conv in groups": ("Conv", [IMAGE], [normal(6, 2, 3, 3)], {"group": 2, "strides": [2, 1]}),
    "Conv, SAME": ("Conv", [IMAGE], [normal(3, 4, 2, 2)], {"auto_pad": "SAME_LOWER"}),
    "ConvTranspose": (
        "ConvTranspose", [IMAGE], [normal(4, 2, 3, 3), normal(4)],
        {"group": 2, "strides": [2, 2], "output_padding": [1, 1], "pads": [1, 1, 0, 0]},
    ),
    "ConvTranspose to a shape": (
        "ConvTranspose", [IMAGE], [normal(4, 2, 3, 3)],
        {"strides": [2, 2], "output_shape": [12, 12]},
    ),
    "Einsum": ("Einsum", [ROW], [normal(7, 2)], {"equation": "ij, jk -> ki"}),
    "AveragePool": (
        "AveragePool", [IMAGE], [], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    ),
    "MaxPool": ("MaxPool", [IMAGE], [], {"kernel_shape": [2, 3], "strides": [2, 2]}),
    "GlobalAveragePool": ("GlobalAveragePool", [IMAGE], []),
    "Resize": ("Resize", [IMAGE], [None, None, ints(1, 4, 9, 3)], {"mode": "linear"}),
    "Resize by scales": (
        "Resize", [IMAGE], [None, np.array([1, 1, 2, 2], np.float32)],
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
         "nearest_mode": "floor"},
    ),
    "ReduceMean": ("ReduceMean", [X], [ints(-1, 1)], {"keepdims": 0}),
    "ReduceSum of all": ("ReduceSum", [X], []),
    "ReduceLogSumExp": ("ReduceLogSumExp", [X], [ints(2)]),
    "ArgMax": ("ArgMax", [X], [], {"axis": 1, "keepdims": 0}),
    "Softmax": ("Softmax", [X], [], {"axis": 1}),
    "BatchNormalization": (
        "BatchNormalization", [X], [normal(4), normal(4), normal(4), np.abs(normal(4))]
    ),
    "LayerNormalization": ("LayerNormalization", [X], [normal(5, 6), normal(5, 6)], {"axis": 2}),
    "InstanceNormalization": ("InstanceNormalization", [X], [normal(4), normal(4)]),
    "GroupNormalization": ("GroupNormalization", [X], [normal(4), normal(4)], {"num_groups": 2}),
    "LpNormalization": ("LpNormalization", [X], [], {"axis": 1}),
    "LRN": ("LRN", [X], [], {"size": 3}),
    "Gather": ("Gather", [X], [ints(2, 0)], {"axis": 2}),
    "GatherElements": ("GatherElements", [ROW], [WHOLE[:, :2] % 7], {"axis": 1}),
    "GatherND": ("GatherND", [X], [np.array([[0, 1], [1, 3]])]),
    "ScatterElements": (
        "ScatterElements", [ROW], [ints(4, 2, 1).reshape(3, 1), normal(3, 1)],
        {"axis": 1, "reduction": "add"},
    ),
    "ScatterND": ("ScatterND", [ROW], [ints(2, 0).reshape(2, 1), normal(2, 7)]),
    "OneHot": ("OneHot", [ints(1, -1, 5)], [np.int64(4), np.array([2, 9], np.float32)]),
    "CumSum": ("CumSum", [ROW], [np.int64(1)], {"reverse": 1}),
    "NonZero": ("NonZero", [WHOLE], []),
    "LSTM": (
        "LSTM", [normal(5, 2, 3)], [normal(2, 16, 3), normal(2, 16, 4), normal(2, 32)],
        {"hidden_size": 4, "direction": "bidirectional"},
    ),
    "GRU": (
        "GRU", [normal(5, 2, 3)], [normal(1, 12, 3), normal(1, 12, 4), normal(1, 24)],
        {"hidden_size": 4, "linear_before_reset": 1},
    ),
    "RNN": (
        "RNN", [normal(5, 2, 3)], [normal(1, 4, 3), normal(1, 4, 4)],
        {"hidden_size": 4, "direction": "reverse"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_computes_the_same_when_it_is_read(case, tmp_path):
    op_type, feeds, constants, *rest = CASES[case]
    model = model_of(op_type, feeds, constants, **(rest[0] if rest else {}))
    partita.serialize(CORE.read_model(model), tmp_path / "m.xml")
    again = CORE.read_model(tmp_path / "m.xml")
    assert [port.name for port in again.inputs] == [f"x{i}" for i in range(len(feeds))]
    assert again.output().name == "y0"
    found, expected = ran(again.to_onnx(), feeds), ran(model, feeds)
    assert found[0].dtype == expected[0].dtype
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)


def test_several_outputs_and_equal_parts(tmp_path):
    for op_type, constants, attributes in (
        ("Split", [], {"num_outputs": 3, "axis": 1}),
        ("TopK", [ints(2)], {"axis": 1, "largest": 0}),
    ):
        count = attributes.get("num_outputs", 2)
        model = model_of(op_type, [ROW], constants, outputs=count, **attributes)
        partita.serialize(CORE.read_model(model), tmp_path / "m.xml")
        found = ran(CORE.read_model(tmp_path / "m.xml").to_onnx(), [ROW])
        for one, other in zip(found, ran(model, [ROW]), strict=True):
            np.testing.assert_array_equal(one, other)


def test_weights_become_narrow_where_they_fit(tmp_path):
    weights = normal(7, 2)
    weights[0] = 1e6, -1e6
    model = CORE.read_model(model_of("MatMul", [ROW], [weights]))
    partita.save_model(model, tmp_path / "narrow.xml")
    partita.save_model(model, tmp_path / "wide.xml", compress_to_fp16=False)
    assert (tmp_path / "narrow.bin").stat().st_size == weights.nbytes // 2
    assert (tmp_path / "wide.bin").stat().st_size == weights.nbytes
    text = (tmp_path / "narrow.xml").read_text(encoding="utf-8")
    assert text.count('type="Convert"') == text.count('name="decompression"') == 1
    found = ran(CORE.read_model(tmp_path / "narrow.xml").to_onnx(), [ROW])[0]
    short = np.clip(weights, -65504, 65504).astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(found, ROW @ short, rtol=1e-4)
    tiny = CORE.read_model(model_of("Mul", [ROW], [np.float32(1e-12)]))
    partita.save_model(tiny, tmp_path / "tiny.xml")
    assert (tmp_path / "tiny.bin").stat().st_size == 4


def test_sizes_that_vary_and_names_with_commas(tmp_path):
    node = helper.make_node("Relu", ["a,b"], ["y"])
    ports = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3])] for n in ("a,b", "y")]
    model = CORE.read_model(helper.make_model(helper.make_graph([node], "g", *ports)))
    partita.serialize(model, tmp_path / "m.xml", tmp_path / "weights")
    again = CORE.read_model(tmp_path / "m.xml", tmp_path / "weights")
    assert (again.input().name, again.input().shape) == ("a,b", (None, 3))


def test_onnx_is_saved_too(tmp_path):
    model = CORE.read_model(model_of("Relu", [ROW], []))
    partita.save_model(model, tmp_path / "m.onnx")
    assert CORE.read_model(tmp_path / "m.onnx").input().describe() == "float32[3, 7]"


@pytest.mark.parametrize(
    ("op_type", "feeds", "constants", "attributes", "message"),
    [
        ("Det", [normal(3, 3)], [], {}, "operators that are not written as an IR: Det; save it"),
        ("MaxPool", [IMAGE], [], {"kernel_shape": [2, 2], "storage_order": 1}, "storage_order"),
        ("Pad", [ROW], [ints(1, 1, 1, 1)], {"mode": "wrap"}, "mode 'wrap'"),
        ("AveragePool", [IMAGE], [], {"kernel_shape": [2, 2], "dilations": [2, 2]}, "dilations"),
        ("ArgMax", [ROW], [], {"select_last_index": 1}, "select_last_index"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(
    op_type, feeds, constants, attributes, message, tmp_path
):
    model = CORE.read_model(model_of(op_type, feeds, constants, **attributes))
    with pytest.raises(ModelError, match=message):
        partita.serialize(model, tmp_path / "m.xml")


def test_other_endings_and_folders_that_are_not_there(tmp_path):
    model = CORE.read_model(model_of("Relu", [ROW], []))
    with pytest.raises(ModelError, match=r"the name ends with \.xml for an OpenVINO IR"):
        partita.save_model(model, tmp_path / "m.pt")
    with pytest.raises(ModelError, match=r"A model is saved, not str; make one with convert_model"):
        partita.save_model("m.onnx", tmp_path / "m.xml")
    with pytest.raises(ModelError, match="Cannot save the model to"):
        partita.save_model(model, tmp_path / "none" / "m.xml")
