"""Sizes of pools: inferred shapes are those that onnxruntime returns, in every opset."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import partita
from partita.model.inference.known_shapes import scopes
from partita.model.inference.pool_shapes import settle_rounding

CASES = {
    "a window would start in the padding": "kernel_shape=[2,2], strides=[3,3], pads=[1,1,1,1]",
    "one axis of two": "kernel_shape=[2,2], strides=[3,2], pads=[1,0,1,0]",
    "the last one reaches beyond": "kernel_shape=[3,3], strides=[2,2]",
    "padded and reaching beyond": "kernel_shape=[3,3], strides=[2,3], pads=[1,0,1,1]",
    "nothing to round": "kernel_shape=[2,3]",
}


def two_pools(opset, attributes, dims):
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[{dims}] x) => (float[a,b,c,d] z) {{
      y = MaxPool <ceil_mode=1, {attributes}> (x)
      z = AveragePool <ceil_mode=1, {attributes}> (y)
    }}""")


@pytest.mark.parametrize("opset", [10, 13, 19, 22])
@pytest.mark.parametrize("attributes", CASES.values(), ids=CASES)
def test_sizes_are_those_of_another_engine(attributes, opset):
    proto = two_pools(opset, attributes, "2,3,14,15")
    want = ort.InferenceSession(proto.SerializeToString()).run(
        None, {"x": np.zeros((2, 3, 14, 15), np.float32)}
    )
    model = partita.Core().read_model(proto)
    assert model.outputs[0].shape == want[0].shape
    (pool,) = (node for node in model.ir.graph if node.op_type == "MaxPool")
    assert pool.attributes["ceil_mode"].as_int() == 1  # the model itself stays as it is


BEYOND = {
    "one window": ("3", 2, "0,0", 2),
    "none": ("3", 2, "0,0", 1),
    "none for another stride": ("7", 4, "0,1", 2),
    "none behind padding": ("6", 2, "1,0", 2),
    "none that rounds": ("5", 3, "0,0", 1),
}


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("opset", [11, 18, 19, 22])
@pytest.mark.parametrize("case", BEYOND.values(), ids=BEYOND)
def test_windows_larger_than_the_input_are_as_many_as_for_another_engine(op_type, opset, case):
    kernel, stride, pads, size = case
    rounds = "" if op_type == "LpPool" and opset < 18 else "ceil_mode=1, "
    attributes = f"{rounds}kernel_shape=[{kernel}], strides=[{stride}], pads=[{pads}]"
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[1,1,{size}] x) => (float[a,b,c] y) {{ y = {op_type} <{attributes}> (x) }}""")
    x = np.ones((1, 1, size), np.float32)
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    assert partita.Core().read_model(proto).outputs[0].shape == want.shape
    for device in ("CPU", "REFERENCE"):
        found = partita.Core().compile_model(proto.SerializeToString(), device)([x])[0]
        np.testing.assert_allclose(found, want, rtol=1e-6)


@pytest.mark.parametrize("opset", [11, 18, 22])
@pytest.mark.parametrize(("kernel", "stride", "first", "last"), [(2, 1, 2, 2), (1, 3, 1, 1)])
@pytest.mark.parametrize("size", [2, 7, 24])
def test_no_window_starts_in_padding_that_is_wider_than_it(
    kernel, stride, first, last, size, opset
):
    attributes = f"kernel_shape=[{kernel}], strides=[{stride}], pads=[{first},{last}], ceil_mode=1"
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[1,1,{size}] x) => (float[a,b,c] y) {{ y = MaxPool <{attributes}> (x) }}""")
    places = np.arange(-first, size + last - kernel + stride, stride)
    count = np.count_nonzero(places < size)
    assert partita.Core().read_model(proto).outputs[0].shape == (1, 1, count)
    compiled = partita.Core().compile_model(proto.SerializeToString(), "CPU")
    assert compiled([np.ones((1, 1, size), np.float32)])[0].shape == (1, 1, count)


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("opset", [18, 19, 22])
@pytest.mark.parametrize("size", [7, 12, 13])
@pytest.mark.parametrize("kernel", [2, 3])
def test_sizes_without_padding_are_those_of_another_engine(op_type, opset, size, kernel):
    attributes = f'auto_pad="VALID", ceil_mode=1, kernel_shape=[{kernel}], strides=[4]'
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[1,1,{size}] x) => (float[a,b,c] y) {{ y = {op_type} <{attributes}> (x) }}""")
    x = np.arange(size, dtype=np.float32).reshape(1, 1, size)
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    for device in ("CPU", "REFERENCE"):
        found = partita.Core().compile_model(proto.SerializeToString(), device)([x])[0]
        np.testing.assert_allclose(found, want, rtol=1e-6)


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("opset", [18, 19, 22])
@pytest.mark.parametrize("padding", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("size", [7, 12, 13])
def test_chosen_padding_leaves_nothing_to_round(op_type, opset, padding, size):
    def of_pool(rounds):
        attributes = f'auto_pad="{padding}", {rounds}kernel_shape=[3], strides=[4]'
        proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[1,1,{size}] x) => (float[a,b,c] y) {{ y = {op_type} <{attributes}> (x) }}""")
        x = np.arange(size, dtype=np.float32).reshape(1, 1, size)
        return partita.Core().compile_model(proto.SerializeToString(), "CPU")([x])[0]

    np.testing.assert_array_equal(of_pool("ceil_mode=1, "), of_pool(""))


def test_sizes_of_a_constant_are_those_of_another_engine():
    proto = two_pools(13, CASES["one axis of two"], "2,3,14,15")
    x = np.zeros((2, 3, 14, 15), np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(x, "x"))
    del proto.graph.input[:]
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, {})
    assert partita.Core().read_model(proto).outputs[0].shape == want.shape


@pytest.mark.parametrize("opset", [13, 19])
@pytest.mark.parametrize("attributes", CASES.values(), ids=CASES)
def test_an_axis_that_is_known_beside_one_that_is_not(attributes, opset):
    proto = two_pools(opset, attributes, "N,3,14,W")
    want = ort.InferenceSession(proto.SerializeToString()).run(
        None, {"x": np.zeros((2, 3, 14, 15), np.float32)}
    )
    assert partita.Core().read_model(proto).outputs[0].shape[1:3] == want[0].shape[1:3]


def test_sizes_that_are_not_known_stay_so():
    model = partita.Core().read_model(two_pools(13, CASES["one axis of two"], "2,3,N,15"))
    assert model.outputs[0].shape[2] is None or isinstance(model.outputs[0].shape[2], str)


@pytest.mark.parametrize("wrong", ["pads=[1,1]", "strides=[0,1]", "kernel_shape=[99,99]"])
def test_attributes_that_make_no_sense_are_left_to_others(wrong):
    attributes = wrong if "kernel" in wrong else f"kernel_shape=[2,2], {wrong}"
    proto = two_pools(13, attributes, "2,3,4,5")
    before = proto.SerializeToString()
    assert not settle_rounding(scopes(proto, proto))
    assert proto.SerializeToString() == before


@pytest.mark.parametrize("mode", ["VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
def test_pads_that_are_given_beside_auto_pad_do_not_count(op_type, mode):
    """ONNX forbids both; its inference goes by the pads, and what computes by auto_pad."""
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 21]>
    g (float[1,2,3,18] x) => (float[a,b,c,d] y) {{
      y = {op_type} <kernel_shape=[2,5], strides=[2,2], pads=[1,0,0,2], auto_pad="{mode}"> (x)
    }}""")
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 18)).astype(np.float32)
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    model = partita.Core().read_model(proto)
    assert model.outputs[0].shape == want.shape
    request = partita.Core().compile_model(model, "REFERENCE").create_infer_request()
    np.testing.assert_allclose(request.infer({"x": x})[0], want, rtol=1e-5, atol=1e-6)
