"""Shapes behind operators of onnxruntime, without anything that the model claims."""

from __future__ import annotations

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper

from partita import Core


def shapes_of(nodes, inputs, outputs, weights=(), opset=21):
    """Types and shapes of the outputs of a model that claims nothing."""
    graph = helper.make_graph(
        [
            helper.make_node(op, reads, writes, domain=domain, **attributes)
            for op, domain, reads, writes, attributes in nodes
        ],
        "decoder",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = Core().read_model(
        helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    )
    return [(port.dtype and port.dtype.name, port.shape) for port in model.outputs]


F32, I32, I64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
MICROSOFT = "com.microsoft"
LENGTHS = [("lengths", I32, ["batch"]), ("total", I32, [])]
CACHE = ["batch", 2, 64, 16]
HEADS = {"num_heads": 4, "kv_num_heads": 2}


def test_a_layer_of_a_decoder():
    """From tokens to logits, through every operator of such a layer and some of ONNX."""
    nodes = [
        (
            "GatherBlockQuantized",
            MICROSOFT,
            ["table", "tokens", "scales"],
            ["x"],
            {"bits": 4, "block_size": 16, "quantize_axis": 1},
        ),
        ("SimplifiedLayerNormalization", "", ["x", "weight"], ["normed"], {"axis": -1}),
        (
            "MatMulNBits",
            MICROSOFT,
            ["normed", "w", "s"],
            ["qkv"],
            {"K": 64, "N": 128, "bits": 4, "block_size": 16},
        ),
        (
            "GroupQueryAttention",
            MICROSOFT,
            ["qkv", "", "", "past_k", "past_v", "lengths", "total"],
            ["y", "k", "v"],
            HEADS,
        ),
        (
            "SkipSimplifiedLayerNormalization",
            MICROSOFT,
            ["y", "x", "weight"],
            ["z", "", "", "sum"],
            {},
        ),
        ("Add", "", ["z", "sum"], ["out"], {}),
    ]
    weights = {
        "table": np.zeros((100, 32), np.uint8),
        "scales": np.zeros((100, 4), np.float32),
        "weight": np.zeros(64, np.float32),
        "w": np.zeros((128, 4, 8), np.uint8),
        "s": np.zeros(512, np.float32),
    }
    inputs = [("tokens", I64, ["batch", "length"]), ("past_k", TensorProto.FLOAT16, CACHE)]
    inputs += [("past_v", TensorProto.FLOAT16, CACHE), *LENGTHS]
    found = shapes_of(nodes, inputs, ["out", "k", "v"], weights.items())
    cache = ("float16", ("batch", 2, 64, 16))
    assert found == [("float32", ("batch", "length", 64)), cache, cache]


def test_present_may_be_longer_where_the_total_follows_from_shapes():
    nodes = [
        ("Shape", "", ["mask"], ["sizes"], {}),
        ("Gather", "", ["sizes", "one"], ["wide"], {}),
        ("Cast", "", ["wide"], ["total"], {"to": I32}),
        (
            "GroupQueryAttention",
            MICROSOFT,
            ["q", "a", "a", "past_k", "past_v", "lengths", "total"],
            ["y", "k", "v"],
            HEADS,
        ),
    ]
    inputs = [("mask", I64, ["batch", "total length"]), ("q", F32, ["batch", "length", 64])]
    inputs += [("a", F32, ["batch", "length", 32]), ("past_k", F32, CACHE), ("past_v", F32, CACHE)]
    weights = [("one", np.array(1))]
    found = shapes_of(nodes, [*inputs, LENGTHS[0]], ["y", "k"], weights)
    assert found == [("float32", ("batch", "length", 64)), ("float32", ("batch", 2, None, 16))]


@pytest.mark.parametrize("attributes", [{"N": -5}, {"N": "many"}, {"N": 2**40}, {}])
def test_attributes_that_are_no_sizes_tell_nothing(attributes):
    node = ("MatMulNBits", MICROSOFT, ["x", "w", "s"], ["y"], {"K": 64, **attributes})
    inputs = [("x", F32, [2, 64]), ("w", TensorProto.UINT8, [8, 4, 8]), ("s", F32, [32])]
    assert shapes_of([node], inputs, ["y"]) == [(None, None)]


@pytest.mark.parametrize(
    ("op_type", "domain", "opset"),
    [
        ("RMSNormalization", "", 23),
        ("SimplifiedLayerNormalization", "", 21),
        *(("SimplifiedLayerNormalization", "", opset) for opset in (9, 14, 15)),
        *(("LayerNormalization", "", opset) for opset in (9, 14, 16)),
        ("SimplifiedLayerNormalization", MICROSOFT, 21),
    ],
)
def test_the_scale_tells_the_type_of_a_root_mean_square(op_type, domain, opset):
    """ONNX specifies it so; its own inference of opset 23 takes the type of the rows."""
    nodes = [(op_type, domain, ["x", "scale"], ["y"], {"axis": -1})]
    inputs = [("x", TensorProto.FLOAT16, [2, 5]), ("scale", F32, [5])]
    assert shapes_of(nodes, inputs, ["y"], opset=opset) == [("float32", (2, 5))]


@pytest.mark.parametrize("attributes", [{}, {"onesided": 1}, {"onesided": 0}], ids=str)
def test_frequencies_are_half_of_them_unless_a_model_says_otherwise(attributes):
    nodes = [("STFT", "", ["signal", "step", "", "length"], ["y"], attributes)]
    weights = [("step", np.array(4, np.int64)), ("length", np.array(8, np.int64))]
    inputs = [("signal", F32, [2, 32, 1])]
    whole = np.fft.rfft if attributes.get("onesided", 1) else np.fft.fft
    frequencies = whole(np.zeros(8)).size
    found = shapes_of(nodes, inputs, ["y"], weights)
    assert found == [("float32", (2, 7, frequencies, 2))]


@pytest.mark.parametrize("pads", ["SAME_UPPER", "SAME_LOWER"])
def test_same_pads_of_a_transposed_convolution_make_input_times_stride(pads):
    """As ONNX specifies it and onnxruntime computes it, whatever `output_padding` says."""
    attributes = {"auto_pad": pads, "strides": [3, 2], "output_padding": [1, 1]}
    nodes = [("ConvTranspose", "", ["x", "w"], ["y"], attributes)]
    inputs = [("x", F32, [1, 2, 5, 6])]
    weights = [("w", np.zeros((2, 3, 4, 4), np.float32))]
    assert shapes_of(nodes, inputs, ["y"], weights) == [("float32", (1, 3, 15, 12))]


@pytest.mark.parametrize("pads", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2])
def test_output_padding_fills_gaps_between_windows_that_do_not_meet(kernel, dilation, pads):
    attributes = {"auto_pad": pads, "strides": [3], "output_padding": [2], "dilations": [dilation]}
    nodes = [("ConvTranspose", "", ["x", "w"], ["y"], attributes)]
    inputs, weights = [("x", F32, [1, 1, 9])], [("w", np.zeros((1, 1, kernel), np.float32))]
    graph = helper.make_graph(
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)],
        "alone",
        [helper.make_tensor_value_info("x", F32, [1, 1, 9])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(weights[0][1], "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (want,) = onnxruntime_results(proto, {"x": np.zeros((1, 1, 9), np.float32)})
    assert shapes_of(nodes, inputs, ["y"], weights) == [("float32", want.shape)]


@pytest.mark.parametrize("axes", [[0, 1, 3], [3, 1, 0], [1, 0], [3, 0]], ids=str)
@pytest.mark.parametrize("opset", [7, 11])
def test_axes_are_taken_away_in_any_order(axes, opset):
    nodes = [("Squeeze", "", ["x"], ["y"], {"axes": axes})]
    due = np.zeros((1, 1, 3, 1)).squeeze(tuple(axes)).shape
    assert shapes_of(nodes, [("x", F32, [1, 1, 3, 1])], ["y"], opset=opset) == [("float32", due)]


BYTES, MATRIX = ("x", TensorProto.UINT8, [2, 3, 8]), np.ones((8, 5), np.float32)
IMAGE = ("x", TensorProto.UINT8, [1, 3, 8, 9])
GRID = [("s", np.array(0.1, np.float32)), ("z", np.array(3, np.uint8))]
OPTIMIZED = [
    ("FusedMatMul", ["x", "w"], [("x", F32, [2, 3, 8])], [("w", MATRIX)], {"alpha": 0.5}),
    ("FusedConv", ["x", "w"], [("x", F32, [2, 3, 8])], [("w", np.ones((4, 3, 3), np.float32))], {}),
    (
        *("FusedGemm", ["x", "w", "c"], [("x", F32, [4, 8])]),
        *([("w", MATRIX.T.copy()), ("c", MATRIX[0])], {"transB": 1, "activation": "Relu"}),
    ),
    ("QLinearAdd", ["x", "s", "z", "t", "s", "z", "s", "z"], [BYTES], [("t", MATRIX[:, 0])], {}),
    ("QLinearMul", ["t", "s", "z", "x", "s", "z", "s", "z"], [BYTES], [("t", MATRIX[:, 0])], {}),
    ("QLinearSigmoid", ["x", "s", "z", "s", "z"], [BYTES], [], {}),
    ("QLinearLeakyRelu", ["x", "s", "z", "s", "z"], [BYTES], [], {}),
    ("QLinearSoftmax", ["x", "s", "z", "s", "z"], [BYTES], [], {"opset": 13, "axis": -1}),
    ("QLinearConcat", ["s", "z", *["x", "s", "z"] * 2], [BYTES], [], {"axis": 1}),
    (
        *(
            "QLinearAveragePool",
            ["x", "s", "z", "s", "z"],
            [IMAGE],
        ),
        *([], {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 0, 0, 1]}),
    ),
    (
        *("QLinearGlobalAveragePool", ["x", "s", "z", "s", "z"]),
        *([IMAGE], [], {"channels_last": 0}),
    ),
    ("DynamicQuantizeMatMul", ["x", "t", "s"], [("x", F32, [2, 3, 8])], [("t", MATRIX)], {}),
    ("MatMulIntegerToFloat", ["x", "t", "s", "s", "z"], [BYTES], [("t", MATRIX)], {}),
    ("QuantizeLinear", ["x", "s", "z"], [("x", F32, [2, 3, 8])], [], {}),
    ("DequantizeLinear", ["x", "s", "z"], [BYTES], [], {}),
    (
        *("EmbedLayerNormalization", ["x", "", "t", "t", "", "g", "g"], [("x", I32, [2, 5])]),
        *([("t", np.ones((9, 8), np.float32)), ("g", np.ones(8, np.float32))], {}),
    ),
]


@pytest.mark.parametrize(
    ("op_type", "reads", "inputs", "weights", "attributes"),
    OPTIMIZED,
    ids=lambda one: str(one)[:20],
)
def test_types_and_shapes_are_those_that_onnxruntime_computes(
    op_type, reads, inputs, weights, attributes
):
    """Of what its optimizer makes of a model; its files say nothing of such results."""
    quantized = op_type.startswith("QLinear") or "MatMulInteger" in op_type
    levels = np.uint8 if quantized else np.int8 if op_type.startswith("Dynamic") else None
    weights = [*GRID, *((n, w.astype(levels) if n == "t" and levels else w) for n, w in weights)]
    made = ["y", "mask"] if op_type.startswith("Embed") else ["y"]
    graph = helper.make_graph(
        [helper.make_node(op_type, reads, made, domain=MICROSOFT, **attributes)],
        "alone",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in weights],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    feeds = {
        name: np.ones(shape, helper.tensor_dtype_to_np_dtype(kind)) for name, kind, shape in inputs
    }
    (due,) = onnxruntime_results(proto, feeds)
    found = shapes_of([(op_type, MICROSOFT, reads, ["y"], attributes)], inputs, ["y"], weights)
    assert found == [(due.dtype.name, due.shape)]


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        *(("FusedMatMul", {name: 1}) for name in ("transA", "transB", "transBatchA")),
        *(("FusedConv", {"auto_pad": "VALID"}), ("MultiHeadAttention", {"num_heads": 2})),
        *(("QLinearAveragePool", {"ceil_mode": 1}), ("Attention", {"num_heads": 2})),
    ],
)
def test_a_type_is_known_where_sizes_are_not(op_type, attributes):
    others = 4 if op_type.startswith("QLinear") else 1
    nodes = [(op_type, MICROSOFT, ["x", *["w"] * others], ["y"], attributes)]
    inputs = [("x", F32, [2, 8, 8]), ("w", F32, [8, 8])]
    assert shapes_of(nodes, inputs, ["y"]) == [("float32", None)]


@pytest.mark.parametrize("opset", [7, 9, 10])
def test_onnxruntime_has_thresholds_before_onnx(opset):
    nodes = [("ThresholdedRelu", "", ["x"], ["y"], {"alpha": 0.5})]
    assert shapes_of(nodes, [("x", F32, [2, 3])], ["y"], opset=opset) == [("float32", (2, 3))]
