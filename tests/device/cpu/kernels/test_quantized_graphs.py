"""Graphs of floats between quantized tensors are computed in integers, as onnxruntime has them."""

from __future__ import annotations

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper, parser

import partita

RNG = np.random.default_rng(3)


def quantized_model(kind, *, per_output=True, dtype=np.uint8, bias=True, relu=False, zero=None):
    """DequantizeLinear of an input, weights and bias; a product; QuantizeLinear."""
    outputs = 24
    convolution = kind == "Conv"
    shape = (outputs, 8, 3, 3) if convolution else (40, outputs)
    x_shape = [2, 8, 9, 7] if convolution else [5, 40]
    y_shape = [2, outputs, 9, 7] if convolution else [5, outputs]
    low = np.iinfo(dtype).min
    x_scale = np.float32(0.02)
    w_scale = (RNG.random(outputs if per_output else 1) * 0.01 + 0.002).astype(np.float32)
    arrays = {
        "xs": x_scale,
        "xz": np.array(low + 131, dtype),
        "w": RNG.integers(-127, 128, shape).astype(np.int8),
        "ws": w_scale if per_output else w_scale.reshape(()),
        "wz": np.zeros(w_scale.shape if per_output else (), np.int8),
        "b": RNG.integers(-3000, 3000, outputs).astype(np.int32),
        "bs": np.broadcast_to(x_scale * w_scale, outputs).astype(np.float32),
        "bz": np.zeros(outputs, np.int32),
        "ys": np.float32(0.3),
        "yz": np.array(low + (128 if zero is None else zero), dtype),
    }
    axis = {"axis": 0 if convolution else 1}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], **axis),
        helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bf"], axis=0),
    ]
    attrs = {"pads": [1, 1, 1, 1]} if convolution else {}
    inputs = ["xf", "wf", "bf"] if bias and convolution else ["xf", "wf"]
    nodes.append(helper.make_node(kind, inputs, ["p"], name="product", **attrs))
    if relu:
        nodes.append(helper.make_node("Relu", ["p"], ["r"]))
    nodes.append(helper.make_node("QuantizeLinear", ["r" if relu else "p", "ys", "yz"], ["y"]))
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element, x_shape)],
        [helper.make_tensor_value_info("y", element, y_shape)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    info = np.iinfo(dtype)
    x = RNG.integers(info.min, info.max + 1, x_shape).astype(dtype)
    return model, {"x": x}


def run(model, feeds):
    core = partita.Core()
    compiled = core.compile_model(
        core.read_model(model.SerializeToString()), "CPU", {"PERF_COUNT": True}
    )
    request = compiled.create_infer_request()
    result = request.infer(feeds)[0]
    ran = [i for i in request.get_profiling_info() if i.status == "EXECUTED"]
    executed = {i.node_name for i in ran if i.node_type != "Permute"}
    return result, executed


def expected(model, feeds):
    return onnxruntime_results(model, feeds)[0]


@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("bias", [False, True])
def test_products_in_integers(kind, per_output, dtype, bias):
    model, feeds = quantized_model(kind, per_output=per_output, dtype=dtype, bias=bias)
    result, executed = run(model, feeds)
    assert executed == {"product"}
    np.testing.assert_array_equal(result, expected(model, feeds))


@pytest.mark.parametrize(("zero", "alone"), [(0, True), (5, False)])
def test_relu_that_saturation_does(zero, alone):
    model, feeds = quantized_model("Conv", relu=True, zero=zero)
    result, executed = run(model, feeds)
    assert (executed == {"product"}) == alone
    np.testing.assert_array_equal(result, expected(model, feeds))


@pytest.mark.parametrize(("step", "fused"), [(0.3, True), (0.003, False)])
def test_a_bias_of_another_scale(step, fused):
    """It is rounded to steps of sums where these are much finer than those of the result."""
    model, feeds = quantized_model("Conv")
    changes = {"bs": lambda scales: scales * 1.7, "ys": lambda _: np.float32(step)}
    for tensor in model.graph.initializer:
        if tensor.name in changes:
            array = np.asarray(changes[tensor.name](numpy_helper.to_array(tensor)), np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    result, executed = run(model, feeds)
    assert (executed == {"product"}) == fused
    off = np.abs(result.astype(int) - expected(model, feeds))
    assert off.max() <= 1
    assert np.mean(off > 0) < (0.01 if fused else 0.001)


@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("bound", ["Relu", "Clip", "Max"])
def test_bounds_of_products_are_those_of_levels(kind, dtype, bound):
    """A bound whose levels are not the least and the largest is looked up behind the product."""
    model, feeds = quantized_model(kind, dtype=dtype, bias=False, relu=True, zero=90)
    (node,) = (node for node in model.graph.node if node.op_type == "Relu")
    if bound == "Clip":
        node.op_type = "Clip"
        for name, number in (("least", -2.0), ("most", 7.1)):
            node.input.append(name)
            model.graph.initializer.append(numpy_helper.from_array(np.float32(number), name))
    if bound == "Max":  # and Min, as OpenVINO has it
        zero = numpy_helper.from_array(np.float32(0), "none")
        most = numpy_helper.from_array(np.float32(7.1), "most")
        model.graph.initializer.extend([zero, most])
        node.CopyFrom(helper.make_node("Max", ["none", "p"], ["q"]))
        model.graph.node.insert(
            len(model.graph.node) - 1, helper.make_node("Min", ["most", "q"], ["r"])
        )
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    (result,) = request.infer(feeds).to_tuple()
    off = np.abs(result.astype(int) - expected(model, feeds))
    assert off.max() <= 1
    assert np.mean(off > 0) < 0.001
    steps = {step.how for step in request.explain_execution().steps}
    assert not steps & {"quantize", "dequantize"}


def test_floats_that_are_an_output_stay():
    model, feeds = quantized_model("MatMul")
    model.graph.output.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, [5, 24]))
    result, executed = run(model, feeds)
    assert len(executed) > 1
    np.testing.assert_array_equal(result, expected(model, feeds))


def joined_model(shapes, axis, scales, dtype):
    """Tensors that are dequantized, put together and quantized; the first is an output, too."""
    sizes = list(shapes[0])
    sizes[axis] = sum(shape[axis] for shape in shapes)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    arrays, nodes, inputs = {}, [], []
    for number, (shape, scale) in enumerate(zip(shapes, scales, strict=True)):
        arrays[f"s{number}"] = np.float32(scale)
        arrays[f"z{number}"] = np.array(np.iinfo(dtype).min + 10 * scale * 100, dtype)
        names = [f"x{number}", f"s{number}", f"z{number}"]
        nodes.append(helper.make_node("DequantizeLinear", names, [f"f{number}"], name=f"d{number}"))
        inputs.append(helper.make_tensor_value_info(f"x{number}", element, shape))
    floats = [f"f{number}" for number in range(len(shapes))]
    nodes.append(helper.make_node("Concat", floats, ["c"], name="joined", axis=axis))
    nodes.append(helper.make_node("QuantizeLinear", ["c", "s0", "z0"], ["y"], name="quantized"))
    outputs = [helper.make_tensor_value_info("y", element, sizes)]
    outputs.append(helper.make_tensor_value_info("f0", TensorProto.FLOAT, shapes[0]))
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    info = np.iinfo(dtype)
    feeds = {
        f"x{number}": RNG.integers(info.min, info.max + 1, shape).astype(dtype)
        for number, shape in enumerate(shapes)
    }
    return model, feeds


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("scales", [(0.02, 0.02), (0.02, 0.05, 0.02), (0.02, 0.01, 0.013)])
def test_levels_that_are_put_together(dtype, axis, scales):
    """Those of the result's scale as they are, others by a table."""
    shapes = [[2, 3, 5, 7] for _ in scales]
    for number, shape in enumerate(shapes):
        shape[axis] = 3 + int(RNG.integers(0, 5)) + number
    model, feeds = joined_model(shapes, axis, scales, dtype)
    result, executed = run(model, feeds)
    assert "quantized" not in executed or len(set(scales)) > 1
    floats = {"d0"} | {f"d{n}" for n, scale in enumerate(scales) if scale == scales[0]}
    assert not {name for name in executed if name.startswith("d")} - floats
    np.testing.assert_array_equal(result, expected(model, feeds))


@pytest.mark.parametrize("dtypes", [(np.uint8, np.int8), (np.int8, np.uint8)])
def test_levels_of_another_type_that_are_constants_are_added(dtypes):
    one, other = (np.iinfo(dtype) for dtype in dtypes)
    kind = np.dtype(dtypes[0]).name
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({kind}[1,3,50] x) => ({kind}[1,3,50] y) '
        "{ f = DequantizeLinear (x, xs, xz) c = DequantizeLinear (cq, cs, cz) "
        "s = Add (f, c) y = QuantizeLinear (s, ys, xz) }"
    )
    arrays = {
        "xs": np.float32(0.04),
        "xz": np.array(one.min + 90, dtypes[0]),
        "cq": RNG.integers(other.min, other.max + 1, (3, 50)).astype(dtypes[1]),
        "cs": np.float32(0.013),
        "cz": np.array(other.min + 140, dtypes[1]),
        "ys": np.float32(0.05),
    }
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    model.graph.initializer.extend(tensors)
    x = RNG.integers(one.min, one.max + 1, (1, 3, 50)).astype(dtypes[0])
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    (y,) = request.infer({"x": x}).to_tuple()
    assert [step.how for step in request.explain_execution().steps] == ["add_levels"]
    numbers = (x.astype(np.float32) - np.float32(arrays["xz"])) * arrays["xs"]
    term = (arrays["cq"].astype(np.float32) - np.float32(arrays["cz"])) * arrays["cs"]
    due = np.rint((numbers + term) / arrays["ys"]) + np.float32(arrays["xz"])
    np.testing.assert_array_equal(y, np.clip(due, one.min, one.max).astype(dtypes[0]))


def transposed_model(kernel, strides, *, per_output=True, dtype=np.uint8, bias=True, relu=False):
    """DequantizeLinear of an image, weights and bias; ConvTranspose; QuantizeLinear."""
    inputs, outputs = 12, 10
    low = np.iinfo(dtype).min
    x_scale, count = np.float32(0.02), outputs if per_output else 1
    w_scale = (RNG.random(count) * 0.01 + 0.002).astype(np.float32)
    shape = () if count == 1 else (count,)
    arrays = {
        "xs": x_scale,
        "xz": np.array(low + 131, dtype),
        "w": RNG.integers(-127, 128, (inputs, outputs, *kernel)).astype(np.int8),
        "ws": w_scale.reshape(shape),
        "wz": np.zeros(shape, np.int8),
        "b": RNG.integers(-3000, 3000, outputs).astype(np.int32),
        "bs": (x_scale * w_scale).reshape(shape),
        "bz": np.zeros(shape, np.int32),
        "ys": np.float32(0.3),
        "yz": np.array(low if relu else low + 128, dtype),
    }
    bias_axis = {} if count == 1 else {"axis": 0}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=1),
        helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bf"], **bias_axis),
    ]
    terms = ["xf", "wf", "bf"] if bias else ["xf", "wf"]
    attrs = {"strides": strides, "kernel_shape": kernel}
    nodes.append(helper.make_node("ConvTranspose", terms, ["p"], name="product", **attrs))
    if relu:
        nodes.append(helper.make_node("Relu", ["p"], ["r"]))
    nodes.append(helper.make_node("QuantizeLinear", ["r" if relu else "p", "ys", "yz"], ["y"]))
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element, [2, inputs, 5, 7])],
        [helper.make_tensor_value_info("y", element, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    info = np.iinfo(dtype)
    return model, {"x": RNG.integers(info.min, info.max + 1, (2, inputs, 5, 7)).astype(dtype)}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(("bias", "relu"), [(False, False), (True, True), (True, False)])
def test_blocks_of_levels(size, per_output, dtype, bias, relu):
    """Transposed convolutions whose windows touch are products of bytes.

    The sum of whole numbers is exact, where floats may round the other way in the middle of two
    levels.
    """
    kinds = {"per_output": per_output, "dtype": dtype, "bias": bias, "relu": relu}
    model, feeds = transposed_model([size, size], [size, size], **kinds)
    result, executed = run(model, feeds)
    assert executed == {"product"}
    wanted = expected(model, feeds)
    assert result.dtype == wanted.dtype
    off = np.abs(result.astype(int) - wanted.astype(int))
    assert off.max() <= 1
    assert np.count_nonzero(off) <= off.size / 100


@pytest.mark.parametrize(("kernel", "strides"), [([2, 3], [2, 3]), ([3, 3], [2, 2])])
def test_transposed_windows_that_are_no_squares_stay_in_floats(kernel, strides):
    model, feeds = transposed_model(kernel, strides)
    result, executed = run(model, feeds)
    assert len(executed) > 1
    assert np.abs(result.astype(int) - expected(model, feeds).astype(int)).max() <= 1


NORMALIZED = """f = DequantizeLinear (x, xs, xz) s = DequantizeLinear (sq, ss, sz)
  b = DequantizeLinear (bq, bs) n = BatchNormalization (f, s, b, m, v)"""


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("shape", [(7, 70), (2, 20, 6, 5), (1, 3, 9), (5, 1)])
@pytest.mark.parametrize("relu", [False, True])
def test_normalizations_of_levels(dtype, shape, relu):
    """Each result is the nearest level, to some steps of float32; nothing but levels is written."""
    rng, channels, low = np.random.default_rng(len(shape)), shape[1], np.iinfo(dtype).min
    zero = low if relu else low + 120
    arrays = {
        "xs": np.float32(0.04),
        "xz": np.array(low + 90, dtype),
        "sq": rng.integers(0, 256, channels).astype(np.uint8),
        "ss": np.float32(0.01),
        "sz": np.array(77, np.uint8),
        "bq": rng.integers(-900, 900, channels).astype(np.int32),
        "bs": np.float32(0.002),
        "m": rng.standard_normal(channels).astype(np.float32),
        "v": rng.uniform(0.3, 2, channels).astype(np.float32),
        "ys": np.float32(0.03),
        "yz": np.array(zero, dtype),
    }
    end = (
        "r = Relu (n) y = QuantizeLinear (r, ys, yz)" if relu else "y = QuantizeLinear (n, ys, yz)"
    )
    kind, dims = np.dtype(dtype).name, ",".join(map(str, shape))
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({kind}[{dims}] x) => ({kind}[{dims}] y)'
        f" {{ {NORMALIZED} {end} }}"
    )
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    model.graph.initializer.extend(tensors)
    x = rng.integers(low, low + 256, shape).astype(dtype)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    (y,) = request.infer({"x": x}).to_tuple()
    assert [step.how for step in request.explain_execution().steps] == ["scale_levels"]
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    row = (1, channels) + (1,) * (len(shape) - 2)
    scale = (wide["sq"] - wide["sz"]) * wide["ss"] / np.sqrt(wide["v"] + 1e-5)
    term = wide["bq"] * wide["bs"] - wide["m"] * scale
    numbers = (x.astype(np.float64) - wide["xz"]) * wide["xs"]
    exact = (numbers * scale.reshape(row) + term.reshape(row)) / wide["ys"] + zero
    exact = np.clip(exact, low, low + 255)
    assert y.dtype == dtype
    assert np.abs(y.astype(np.float64) - exact).max() <= 0.5 + 1e-4


def test_normalizations_whose_quotients_are_near_the_limits_of_float32_stay_in_floats():
    """Factors in steps of the result would be infinite."""
    arrays = {
        "xs": np.float32(1),
        "xz": np.array(0, np.uint8),
        "sq": np.array([255, 1], np.uint8),
        "ss": np.float32(1e36),
        "sz": np.array(0, np.uint8),
        "bq": np.zeros(2, np.int32),
        "bs": np.float32(1),
        "m": np.zeros(2, np.float32),
        "v": np.ones(2, np.float32),
        "ys": np.float32(1e-6),
        "yz": np.array(3, np.uint8),
    }
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (uint8[2,2] x) => (uint8[2,2] y)'
        f" {{ {NORMALIZED} y = QuantizeLinear (n, ys, yz) }}"
    )
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    model.graph.initializer.extend(tensors)
    x = np.array([[0, 9], [9, 0]], np.uint8)
    (y,) = partita.Core().compile_model(model, "CPU")({"x": x}).to_tuple()
    np.testing.assert_array_equal(y, [[3, 255], [255, 3]])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantized_concat_moves_levels(dtype):
    """Images that products bring with channels last stay so, whatever their scales."""
    kind, low = np.dtype(dtype).name, np.iinfo(dtype).min
    dims = "[2,3,9,9]"
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1]> g ({kind}{dims} x, '
        f"{kind}{dims} w) => ({kind}[n,c,h,v] y) {{ "
        "a = com.microsoft.QLinearConcat <axis = 1> (ys, yz, x, ys, yz, w, ws, wz, x, xs, yz) "
        "y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a) }"
    )
    arrays = {
        "ys": np.float32(0.04),
        "ws": np.float32(0.013),
        "xs": np.float32(0.06),
        "yz": np.array(low + 90, dtype),
        "wz": np.array(low + 140, dtype),
    }
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    model.graph.initializer.extend(tensors)
    feeds = {name: RNG.integers(low, low + 256, (2, 3, 9, 9)).astype(dtype) for name in "xw"}
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    (y,) = request.infer(feeds).to_tuple()
    np.testing.assert_array_equal(y, expected(model, feeds))
    steps = [step.how for step in request.explain_execution().steps]
    assert steps.count("look_up") == 2
    assert "quantize" not in steps


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("axis", [1, -1])
def test_levels_are_split(dtype, axis):
    """Parts of the same scale are levels as they are, others by a table."""
    kind, low = np.dtype(dtype).name, np.iinfo(dtype).min
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 13]> g ({kind}[2,12,12] x) => '
        f"({kind}[a,b,c] y, {kind}[d,e,f] z, {kind}[h,i,j] w) {{ f = DequantizeLinear (x, s, z0) "
        f"p, q, r = Split <axis = {axis}> (f, sizes) y = QuantizeLinear (p, s, z0) "
        "z = QuantizeLinear (q, t, z1) w = QuantizeLinear (r, s, z0) }"
    )
    arrays = {
        "s": np.float32(0.04),
        "z0": np.array(low + 90, dtype),
        "t": np.float32(0.013),
        "z1": np.array(low + 140, dtype),
        "sizes": np.array([3, 4, 5]),
    }
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    model.graph.initializer.extend(tensors)
    x = RNG.integers(low, low + 256, (2, 12, 12)).astype(dtype)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    found = request.infer({"x": x}).to_tuple()
    for one, due in zip(found, onnxruntime_results(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(one, due)
    steps = [step.how for step in request.explain_execution().steps]
    assert steps.count("look_up") == 1
    assert not {"quantize", "dequantize"} & {*steps}


@pytest.mark.parametrize("dtypes", [(np.uint8, np.uint8), (np.int8, np.uint8), (np.uint8, np.int8)])
@pytest.mark.parametrize("shape", [(3, 70), (2, 3, 196), (1, 1), (2, 0), (5, 17)])
def test_softmax_of_levels(dtypes, shape):
    """Each result is the nearest level, to some steps of float32; nothing but levels is written."""
    rng, (low, y_low) = np.random.default_rng(shape[-1]), (np.iinfo(kind).min for kind in dtypes)
    names = [np.dtype(kind).name for kind in dtypes]
    dims = ",".join(map(str, shape))
    arrays = {
        "xs": np.float32(0.043),
        "xz": np.array(low + 90, dtypes[0]),
        "ys": np.float32(1 / 130),
        "yz": np.array(y_low + 3, dtypes[1]),
    }
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({names[0]}[{dims}] x) => '
        f"({names[1]}[{dims}] y) {{ f = DequantizeLinear (x, xs, xz) "
        f"s = Softmax <axis = {len(shape) - 1}> (f) y = QuantizeLinear (s, ys, yz) }}"
    )
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    model.graph.initializer.extend(tensors)
    x = rng.integers(low, low + 256, shape).astype(dtypes[0])
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    (y,) = request.infer({"x": x}).to_tuple()
    powers = np.exp((x.astype(np.float64) - float(low)) * float(arrays["xs"]))
    exact = powers / powers.sum(-1, keepdims=True) / float(arrays["ys"]) + float(arrays["yz"])
    assert y.dtype == dtypes[1]
    assert np.abs(y - np.clip(exact, y_low, y_low + 255)).max(initial=0) <= 0.5 + 1e-4
    steps = [step.how for step in request.explain_execution().steps]
    assert steps == (["softmax_levels"] if x.size else [])


@pytest.mark.parametrize(("axis", "opset"), [(0, 17), (1, 12), (-1, 12)])
def test_softmax_over_other_axes_stays_in_floats(axis, opset):
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (uint8[3,4,5] x) => (uint8[3,4,5] y) '
        "<float s = {0.04}, uint8 z = {9}> { f = DequantizeLinear (x, s, z) "
        f"a = Softmax <axis = {axis}> (f) y = QuantizeLinear (a, s, z) }}"
    )
    x = RNG.integers(0, 256, (3, 4, 5)).astype(np.uint8)
    (y,) = partita.Core().compile_model(model, "CPU")({"x": x}).to_tuple()
    off = np.abs(y.astype(int) - expected(model, {"x": x}).astype(int))
    assert off.max() <= 1


@pytest.mark.parametrize("kind", ["MatMul", "Gemm"])
@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("bias", ["", "row", "matrix"])
def test_products_of_levels_whose_results_stay_floats(kind, per_output, dtype, bias):
    low, outputs = np.iinfo(dtype).min, 24
    scale = (RNG.random(outputs if per_output else 1) * 0.01 + 0.002).astype(np.float32)
    weights = RNG.integers(-128, 128, (40, outputs)).astype(np.int8)
    turned = kind == "Gemm"
    arrays = {
        "xs": np.float32(0.02),
        "xz": np.array(low + 131, dtype),
        "w": np.ascontiguousarray(weights.T) if turned else weights,
        "ws": scale if per_output else scale.reshape(()),
        "wz": np.zeros(scale.shape if per_output else (), np.int8),
        "b": RNG.standard_normal((5, outputs) if bias == "matrix" else outputs).astype(np.float32),
    }
    level = np.dtype(dtype).name
    product = {
        "MatMul": "p = MatMul (f, v) y = Add (b, p)" if bias else "y = MatMul (f, v)",
        "Gemm": f"y = Gemm <transB = 1> (f, v{', b' if bias else ''})",
    }[kind]
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({level}[5,40] x) => (float[5,24] y) {{ '
        f"f = DequantizeLinear (x, xs, xz) v = DequantizeLinear <axis = {1 - turned}> (w, ws, wz) "
        f"{product} }}"
    )
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    model.graph.initializer.extend(tensors)
    x = RNG.integers(low, low + 256, (5, 40)).astype(dtype)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    (y,) = request.infer({"x": x}).to_tuple()
    sums = (x.astype(np.int64) - int(arrays["xz"])) @ weights.astype(np.int64)
    exact = sums * (np.float64(arrays["xs"]) * scale) + (arrays["b"] if bias else 0)
    np.testing.assert_allclose(y, exact, rtol=1e-6, atol=1e-5)
    steps = [step.how for step in request.explain_execution().steps]
    assert ("multiply_bytes" in steps) == (kind == "MatMul" or bias != "matrix")
    assert len(steps) <= 2 or bias == "matrix"


def test_products_of_two_computed_matrices_of_levels_stay_floats():
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (uint8[2,3,9,20] x, int8[2,3,20,33] w) => '
        "(float[2,3,9,33] y) <float s = {0.02}, float t = {0.013}, uint8 z = {99}, int8 v = {-7}> "
        "{ f = DequantizeLinear (x, s, z) g = DequantizeLinear (w, t, v) y = MatMul (f, g) }"
    )
    x = RNG.integers(0, 256, (2, 3, 9, 20)).astype(np.uint8)
    w = RNG.integers(-128, 128, (2, 3, 20, 33)).astype(np.int8)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    (y,) = request.infer({"x": x, "w": w}).to_tuple()
    exact = ((x.astype(np.int64) - 99) @ (w.astype(np.int64) + 7)) * (
        np.float64(np.float32(0.02)) * np.float32(0.013)
    )
    np.testing.assert_allclose(y, exact, rtol=1e-6, atol=1e-5)
    steps = [step.how for step in request.explain_execution().steps]
    assert "multiply_byte_batches" in steps
    assert "dequantize" not in steps


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("bias", ["", "floats", "levels"])
@pytest.mark.parametrize("size", [7, 20])
@pytest.mark.parametrize("relu", [False, True])
def test_convolutions_of_levels_whose_results_stay_floats(
    kernel, per_output, dtype, bias, size, relu
):
    low, outputs, channels = np.iinfo(dtype).min, 70, 12
    scale = (RNG.random(outputs if per_output else 1) * 0.01 + 0.002).astype(np.float32)
    arrays = {
        "xs": np.float32(0.02),
        "xz": np.array(low + 131, dtype),
        "w": RNG.integers(-128, 128, (outputs, channels, kernel, kernel)).astype(np.int8),
        "ws": scale if per_output else scale.reshape(()),
        "wz": np.zeros(scale.shape if per_output else (), np.int8),
        "b": RNG.standard_normal(outputs).astype(np.float32),
        "bq": RNG.integers(-900, 900, outputs).astype(np.int32),
        "bs": np.float32(0.002),
    }
    level, dims, pad = np.dtype(dtype).name, f"2,{channels},{size},{size}", kernel // 2
    terms = {"": "f, v", "floats": "f, v, b", "levels": "f, v, d"}[bias]
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({level}[{dims}] x) => '
        f"(float[2,{outputs},{size},{size}] y) {{ f = DequantizeLinear (x, xs, xz) "
        f"v = DequantizeLinear <axis = 0> (w, ws, wz) d = DequantizeLinear (bq, bs) "
        f"{'p' if relu else 'y'} = Conv <pads = [{pad}, {pad}, {pad}, {pad}]> ({terms}) "
        f"{'y = Relu (p)' if relu else ''} }}"
    )
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    model.graph.initializer.extend(tensors)
    x = RNG.integers(low, low + 256, (2, channels, size, size)).astype(dtype)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    (y,) = request.infer({"x": x}).to_tuple()
    wanted = expected(model, {"x": x})
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    steps = [step.how for step in request.explain_execution().steps]
    assert "dequantize" not in steps
    # A step that computes, and one that lays windows out; images are permuted around it.
    assert sum(step in ("multiply_bytes", "convolve_lines") for step in steps) == 1
    moves = {"copy_nd", "transpose_planes", "pack_rows", "gather_windows"}
    assert set(steps) <= {*moves, "multiply_bytes", "convolve_lines"}, "a Relu is no step"


@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("ends_in_levels", [False, True])
def test_weights_that_the_graph_quantizes_are_levels(kind, per_output, ends_in_levels):
    """Floats, QuantizeLinear and DequantizeLinear, and a bias by another name, as for TensorRT."""
    outputs, channels = 40, 24
    scale = (RNG.random(outputs if per_output else 1) * 0.01 + 0.002).astype(np.float32)
    shape = (outputs, channels, 3, 3) if kind == "Conv" else (channels, outputs)
    axis = 0 if kind == "Conv" else 1
    arrays = {
        "xs": np.float32(0.02),
        "w": RNG.uniform(-0.4, 0.4, shape).astype(np.float32),
        "ws": scale if per_output else scale.reshape(()),
        "wz": np.zeros(scale.shape if per_output else (), np.int8),
        "given": RNG.standard_normal(outputs).astype(np.float32),
        "ys": np.float32(0.1),
        "z": np.int8(0),
    }
    sizes = "1,24,20,20" if kind == "Conv" else "30,24"
    bias = ", b" if kind == "Conv" and not ends_in_levels else ""
    pads = "<pads = [1, 1, 1, 1]>" if kind == "Conv" else ""
    result = "1,40,20,20" if kind == "Conv" else "30,40"
    ends = "y = QuantizeLinear (p, ys, z)" if ends_in_levels else "y = Identity (p)"
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (int8[{sizes}] x) => '
        f"({'int8' if ends_in_levels else 'float'}[{result}] y) {{ b = Identity (given) "
        f"q = QuantizeLinear <axis = {axis}> (w, ws, wz) "
        f"v = DequantizeLinear <axis = {axis}> (q, ws, wz) f = DequantizeLinear (x, xs, z) "
        f"p = {kind} {pads} (f, v{bias}) {ends} }}"
    )
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    model.graph.initializer.extend(tensors)
    x = RNG.integers(-128, 128, [int(n) for n in sizes.split(",")]).astype(np.int8)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    (y,) = request.infer({"x": x}).to_tuple()
    wanted = expected(model, {"x": x})
    if ends_in_levels:
        np.testing.assert_array_equal(y, wanted)
    else:
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    steps = [step.how for step in request.explain_execution().steps]
    assert "dequantize" not in steps
    assert {"multiply_bytes", "convolve_lines"} & set(steps)


@pytest.mark.parametrize(("channels", "side"), [(3, 7), (8, 3), (5, 1)])
def test_weights_of_uint8_around_their_middle(channels, side):
    """Windows whose rows are no whole quads of terms are filled up with weights that are 0."""
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (uint8[1,{channels},40,40] x) => '
        "(uint8[1,20,n,m] y) <float s = {0.02}, float t = {0.00317}, "
        "float u = {0.0571}, uint8 z = {120}, uint8 v = {128}> { f = DequantizeLinear (x, s, z) "
        "g = DequantizeLinear (w, t, v) p = Conv <strides = [2, 2]> (f, g) "
        "y = QuantizeLinear (p, u, z) }"
    )
    w = RNG.integers(0, 256, (20, channels, side, side)).astype(np.uint8)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    feeds = {"x": RNG.integers(0, 256, (1, channels, 40, 40)).astype(np.uint8)}
    result, _ = run(model, feeds)
    np.testing.assert_array_equal(result, expected(model, feeds))
