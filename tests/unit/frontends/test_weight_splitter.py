"""Large weights are taken out of a serialized model before it is parsed."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.errors import ModelFormatError
from partita.frontends.onnx.weight_splitter import LARGE_BYTES, without_weights
from partita.frontends.reader import read_model
from partita.system.memory_map import give_back, map_file

KINDS = ["float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"]


def weights(count=300_000):
    rng = np.random.default_rng(0)
    large = {f"large {kind}": rng.integers(0, 2, count // 4).astype(kind) for kind in KINDS}
    small = {"small": np.arange(4, dtype=np.float32)}
    return {"w": rng.standard_normal((30, count // 30)).astype(np.float32), **large, **small}


def model(arrays, **more):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 30])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, arrays["w"].shape[1]])
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors, doc_string="d" * 300)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], **more)


def elements(read):
    found = read.ir.graph.initializers
    return {name: value.const_value.numpy() for name, value in found.items()}


def test_what_is_taken_out():
    arrays = weights()
    whole = model(arrays)
    rest, apart = without_weights(memoryview(whole.SerializeToString()))
    assert len(rest) < 20_000
    assert set(apart) == {name for name, array in arrays.items() if array.nbytes >= LARGE_BYTES}
    for name, content in apart.items():
        assert bytes(content) == arrays[name].tobytes()
    parsed = onnx.ModelProto.FromString(bytes(rest))
    for tensor in parsed.graph.initializer:
        if tensor.name in apart:
            tensor.raw_data = bytes(apart[tensor.name])
    assert parsed == whole


@pytest.mark.parametrize("from_file", [False, True])
def test_a_model_is_read_with_all_elements(tmp_path, from_file):
    arrays = weights()
    data = model(arrays).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    read = read_model(path if from_file else data)
    for name, array in elements(read).items():
        np.testing.assert_array_equal(array, arrays[name])
        assert array.dtype == arrays[name].dtype
    x = np.random.default_rng(1).standard_normal((2, 30)).astype(np.float32)
    result = partita.Core().compile_model(read, "CPU")(x)[0]
    np.testing.assert_allclose(result, x @ arrays["w"], rtol=1e-4, atol=1e-3)
    saved = tmp_path / "model.onnx"
    read.save(saved)  # over the file that it was read from
    for name, array in elements(read_model(saved)).items():
        np.testing.assert_array_equal(array, arrays[name])


def test_elements_in_fields_of_their_type():
    """Those of floats lie as numpy has them; those of integers do not."""
    arrays = weights()
    fields = {"large float32": "float_data", "large float64": "double_data"}
    whole = model(arrays)
    for tensor in whole.graph.initializer:
        if tensor.name in {*fields, "large int64"}:
            numbers = arrays[tensor.name]
            tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, [75_000], numbers))
    data = whole.SerializeToString()
    _, apart = without_weights(memoryview(data))
    assert "large int64" not in apart
    for name in fields:
        assert bytes(apart[name]) == arrays[name].tobytes()
    for name, array in elements(read_model(data)).items():
        np.testing.assert_array_equal(array, arrays[name])
    for tensor in whole.graph.initializer:
        if tensor.name in fields:
            getattr(tensor, fields[tensor.name]).append(1)
    with pytest.raises(ModelFormatError, match="'large float32' of the given data has 300004 "):
        read_model(whole.SerializeToString())


def test_two_weights_of_one_name_stay():
    whole = model(weights())
    whole.graph.initializer.add().CopyFrom(whole.graph.initializer[0])
    data = whole.SerializeToString()
    rest, apart = without_weights(memoryview(data))
    assert not apart
    assert bytes(rest) == data


@pytest.mark.parametrize("where", [9, 400, 1000, 100_000])
def test_damage_is_left_to_the_parser(where):
    data = bytearray(model(weights()).SerializeToString())
    for byte in (0x07, 0xFF, 0x00):
        data[where] = byte
        rest, apart = without_weights(memoryview(bytes(data)))
        assert len(rest) + sum(map(len, apart.values())) <= len(data)
    data = bytes(data[: len(data) // 2])
    assert bytes(without_weights(memoryview(data))[0]) == data
    with pytest.raises(ModelFormatError):
        read_model(data)


def test_weights_of_the_wrong_size():
    whole = model(weights())
    whole.graph.initializer[0].dims[0] += 1
    with pytest.raises(ModelFormatError, match="'w' of the given data has 1200000 bytes; its"):
        read_model(whole.SerializeToString())


def test_pages_that_were_given_back_are_read_again(tmp_path):
    content = np.random.default_rng(0).integers(0, 256, 100_000).astype(np.uint8)
    path = tmp_path / "file"
    path.write_bytes(content.tobytes())
    mapped = np.frombuffer(map_file(path), np.uint8)
    for part in (mapped, mapped[5000:90_000], mapped[3:20], mapped[::2], np.arange(9000)):
        give_back(part)
    np.testing.assert_array_equal(mapped, content)
    (tmp_path / "empty").write_bytes(b"")
    assert not map_file(tmp_path / "empty")


def resident(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return int(done.stdout)


COMES = (
    "import inspect, sys, threading; "
    "from partita.frontends.onnx.lazy_onnx_ir import import_onnx_ir; "
    "import_onnx_ir(); {asks}; print(int('sympy.core' in sys.modules))"
)


@pytest.mark.parametrize(
    ("asks", "comes"),
    [
        ("inspect.getmodule(inspect.currentframe())", 0),  # asks all modules for their files
        ("import onnx_ir; onnx_ir.SymbolicDim('n') + 1", 1),
        ("import sympy.core.expr; sympy.Symbol('n')", 1),
        ("exec('from sympy import *'); Symbol('n')", 1),
    ],
)
def test_onnx_ir_comes_without_sympy(asks, comes):
    assert resident(COMES.format(asks=asks)) == comes


def test_sympy_comes_whole_to_threads_that_ask_at_once():
    code = (
        "import sympy; found = []; "
        "asks = lambda: found.append(sympy.Symbol('n') + sympy.oo); "
        "threads = [threading.Thread(target=asks) for _ in range(8)]; "
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]; "
        "assert len(found) == 8"
    )
    assert resident(COMES.format(asks=code)) == 1


def test_no_thread_sees_a_part_of_sympy(tmp_path, monkeypatch):
    (tmp_path / "sympy").mkdir()
    stub = "import time\nearly = 1\ntime.sleep(0.5)\nlate = 2\n"
    (tmp_path / "sympy" / "__init__.py").write_text(stub)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    code = (
        "import sympy, time; first = threading.Thread(target=lambda: sympy.late); first.start(); "
        "list(iter(lambda: 'early' in vars(sympy) or time.sleep(0.001), True)); "
        "assert sympy.early == 1; assert vars(sympy)['late'] == 2; first.join()"
    )
    assert resident(COMES.format(asks=code)) == 0


def test_constants_become_initializers():
    arrays = weights()
    whole = model(arrays)
    graph = whole.graph
    named = {tensor.name: tensor for tensor in graph.initializer}
    other = helper.make_node("Constant", [], ["seven"], value_float=7.0)
    text = helper.make_node(
        "Constant", [], ["text"], value=helper.make_tensor("t", TensorProto.STRING, [1], [b"a"])
    )
    shown = helper.make_node("Constant", [], ["y"], value=named["small"])
    moved = [
        helper.make_node("Constant", [], [name], name=f"c {name}", value=tensor)
        for name, tensor in named.items()
    ]
    foreign = helper.make_node("Constant", [], ["f"], domain="other", value=named["small"])
    nodes = [*moved, text, other, foreign, shown]
    del graph.initializer[:], graph.node[:]
    graph.node.extend(nodes)
    rest, apart = without_weights(memoryview(whole.SerializeToString()))
    assert set(apart) == {name for name, array in arrays.items() if array.nbytes >= LARGE_BYTES}
    parsed = onnx.ModelProto.FromString(bytes(rest)).graph
    assert list(parsed.node) == [other, foreign, shown]
    assert [tensor.name for tensor in parsed.initializer] == [*named, "text"]
    for tensor in parsed.initializer:
        if tensor.name in apart:
            tensor.raw_data = bytes(apart[tensor.name])
        if tensor.name != "text":
            assert tensor == named[tensor.name]
