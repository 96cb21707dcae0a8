"""Further checks of suite ``compiled``: how weights are stored, and what rows depend on."""

from __future__ import annotations

import gc
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.feeding import host_tensors

_KINDS: Mapping[int, Any] = {
    TensorProto.FLOAT: [1 / 3, -0.0, 1e-40, np.inf, 16777217],
    TensorProto.DOUBLE: [1 / 3, -1e300, 2.0**-1060, 0, 7],
    TensorProto.FLOAT16: [6e-8, 65504, -0.1, 1, 2],
    TensorProto.BFLOAT16: [1e-38, 3e38, -0.1, 1, 2],
    TensorProto.INT8: [-128, 127, 0, 1, -1],
    TensorProto.UINT8: [255, 128, 0, 1, 7],
    TensorProto.INT16: [-(2**15), 2**15 - 1, 0, 1, 7],
    TensorProto.UINT16: [2**16 - 1, 2**15, 0, 1, 7],
    TensorProto.INT32: [-(2**31), 2**31 - 1, 2**24 + 1, 1, 7],
    TensorProto.UINT32: [2**32 - 1, 2**31, 2**24 + 1, 1, 7],
    TensorProto.INT64: [-(2**63), 2**53 + 1, 2**31, 1, 7],
    TensorProto.UINT64: [2**64 - 1, 2**53 + 1, 2**31, 1, 7],
    TensorProto.BOOL: [True, False, True, True, False],
    TensorProto.INT4: [-8, 7, 0, -1, 3],
    TensorProto.UINT4: [15, 8, 0, 1, 3],
}
"""Elements of weights by type, an odd number of them; all that a type holds."""


def _weight(kind: int) -> Array:
    return np.array(_KINDS[kind]).astype(helper.tensor_dtype_to_np_dtype(kind))


def _typed(weight: Array, kind: int, name: str) -> onnx.TensorProto:
    """A tensor with its elements in the field of its type, not as bytes."""
    tensor = TensorProto(name=name, data_type=kind, dims=weight.shape)
    match kind:
        case TensorProto.FLOAT:
            tensor.float_data.extend(weight)
        case TensorProto.DOUBLE:
            tensor.double_data.extend(weight)
        case TensorProto.INT64:
            tensor.int64_data.extend(weight)
        case TensorProto.UINT32 | TensorProto.UINT64:
            tensor.uint64_data.extend(weight)
        case TensorProto.FLOAT16 | TensorProto.BFLOAT16:
            tensor.int32_data.extend(weight.view(np.uint16))
        case TensorProto.INT4 | TensorProto.UINT4:
            tensor.int32_data.extend(numpy_helper.from_array(weight).raw_data)
        case _:
            tensor.int32_data.extend(weight.astype(np.int32))
    return tensor


def _outside(tensor: onnx.TensorProto, data: bytearray) -> None:
    """Moves a tensor's bytes to the end of a file that is being made, wherever that is."""
    raw = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights"), ("offset", len(data)), ("length", len(raw))):
        tensor.external_data.add(key=key, value=str(value))
    data += raw


def _handed_on(bench: Bench) -> tuple[onnx.ModelProto, list[Array]]:
    """A model that hands on weights of the types that the device takes, and these.

    Raises:
        NotApplicableError: It takes none.
    """
    tensors, nodes, outputs = [], [], []
    for kind in _KINDS:
        tensors.append(numpy_helper.from_array(_weight(kind), f"w{kind}"))
        nodes.append(helper.make_node("Identity", [f"w{kind}"], [f"y{kind}"], f"n{kind}"))
        outputs.append(helper.make_tensor_value_info(f"y{kind}", kind, [5]))
    opset = [helper.make_opsetid("", 21)]

    def made(kept: list[int]) -> onnx.ModelProto:
        parts = ([part[n] for n in kept] for part in (nodes, outputs, tensors))
        some, given, weights = parts
        graph = helper.make_graph(some, "weights", [], given, weights)
        return helper.make_model(graph, opset_imports=opset, ir_version=10)

    refused = bench.refused(made([*range(len(nodes))]))
    kept = [n for n, node in enumerate(nodes) if node.name not in refused]
    if not kept:
        raise NotApplicableError("the device does not take Identity")
    return made(kept), [_weight([*_KINDS][n]) for n in kept]


@check("compiled", values=True)
def weights_may_be_stored_in_any_way(bench: Bench) -> None:
    """Weights are the same as bytes, in the field of their type, and at any place of a file."""
    proto, due = _handed_on(bench)
    typed, outside, data = onnx.ModelProto(), onnx.ModelProto(), bytearray(b"x")
    typed.CopyFrom(proto)
    outside.CopyFrom(proto)
    for tensor, array in zip(typed.graph.initializer, due, strict=True):
        tensor.CopyFrom(_typed(array, tensor.data_type, tensor.name))
    for tensor in outside.graph.initializer:
        _outside(tensor, data)
    for what, one in {"bytes": proto, "the fields of their types": typed}.items():
        compare(bench.compile(one)({}).to_tuple(), due, f"weights in {what}", 0, 0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        (Path(folder) / "weights").write_bytes(data)
        (Path(folder) / "model.onnx").write_bytes(outside.SerializeToString())
        path = str(Path(folder) / "model.onnx")
        compiled = bench.core.compile_model(path, bench.device, bench.target.config)
        compare(compiled({}).to_tuple(), due, "weights in a file", 0, 0)


_ROWS = "g (float[64,64] x) => (float[64,64] y) {{ a = {op}(x, w) y = {op}(a, v) }}"


def _in_files(op: str, folder: Path, factor: float) -> tuple[str, onnx.ModelProto]:
    """A model whose weights lie in a file of the folder, and one that holds them."""
    numbers = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64) * np.float32(factor)
    proto = parse(_ROWS.format(op=op), {"w": numbers, "v": numbers[::-1].copy()})
    outside, data = onnx.ModelProto(), bytearray()
    outside.CopyFrom(proto)
    for tensor in outside.graph.initializer:
        _outside(tensor, data)
    folder.mkdir()
    (folder / "weights").write_bytes(data)
    (folder / "model.onnx").write_bytes(outside.SerializeToString())
    return str(folder / "model.onnx"), proto


@check("compiled", values=True)
def weights_of_files_are_of_their_folders(bench: Bench) -> None:
    """Models whose files have equal names in other folders are two, also when the files are gone.

    What is exported of them holds their weights.
    """
    ops = ((op, parse(_ROWS.format(op=op), _SQUARES)) for op in ("Add", "Mul", "Sub", "MatMul"))
    op, _ = next(bench.taken(ops))
    made: list[tuple[onnx.ModelProto, partita.CompiledModel]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        for number, factor in enumerate((1, -0.5, 1)):
            path, proto = _in_files(op, Path(name) / f"folder {number}", factor)
            core = bench.core if number else bench.new_core()
            made.append((proto, core.compile_model(path, bench.device, bench.target.config)))
        _compare_all(bench, made, "whose weights are in files")
        shutil.rmtree(Path(name) / "folder 0")
        gc.collect()
    _compare_all(bench, made, "whose files are gone")
    try:
        blobs = [compiled.export_model() for _, compiled in made]
    except PartitaError:
        return
    core = bench.new_core()
    protos = [proto for proto, _ in made]
    back = [core.import_model(blob, bench.device) for blob in blobs]
    _compare_all(bench, [*zip(protos, back, strict=True)], "whose files are gone, imported")


_SQUARES = {name: np.ones((64, 64), np.float32) for name in "wv"}


def _compare_all(
    bench: Bench, made: list[tuple[onnx.ModelProto, partita.CompiledModel]], what: str
) -> None:
    for number, (proto, compiled) in enumerate(made):
        feeds = Sample("", proto).feeds(64)
        due = bench.expected(proto, feeds)
        compare(compiled(feeds).to_tuple(), due, f"model {number + 1} {what}")


_NO_BATCHES = (
    "(float[N,6] x) => (float[N,6] y) { y = Softmax <axis = 0> (x) }",
    "(float[N,6] x) => (float[N,6] y) { y = CumSum(x, zero) }",
    "(float[N,6] x) => (float[N,6] y) { m = ReduceMean <axes = [0]> (x) y = Sub(x, m) }",
    "(float[N,6] x) => (float[N,6] y) { m = ReduceMax <axes = [0]> (x) y = Sub(x, m) }",
    "(float[N,6] x) => (float[N,N] y) { t = Transpose(x) y = MatMul(x, t) }",
    "(float[N,N] x) => (float[N,N] y) { y = Transpose(x) }",
    "(float[N,N] x) => (float[N,N] y) { y = MatMul(x, x) }",
    "(float[N,6] x, int64[N] i) => (float[N,6] y) { y = Gather(x, i) }",
    "(float[N,6] x, float[N,6] z) => (float[N,6] y, float[N,6] u)"
    " { m = ReduceSum(z, zeros) y = Add(x, m) u = Sub(x, z) }",
    "(float[N] x) => (float[N] y) { y = Softmax(x) }",
    "(float[N] x, float[N] z) => (float[N,N] y) { a = Unsqueeze(x, ones) y = Mul(a, z) }",
    "(float[2,N] x) => (float[2,N] y) { y = Softmax(x) }",
)
"""Models of symbols in which elements of one row depend on those of others."""
_NUMBERS = {"zero": np.array(0), "zeros": np.array([0]), "ones": np.array([1])}
_LENGTHS = (3, 66, 130, 3, 1, 257)
"""Rows of runs: fewer and more than one takes at a time, and not a multiple of that."""


@check("compiled", values=True)
def rows_may_depend_on_each_other(bench: Bench) -> None:
    """What begins with a symbol is no batch: rows are computed together, however many there are."""

    def models() -> Iterator[tuple[str, onnx.ModelProto]]:
        for text in _NO_BATCHES:
            weights = {n: a for n, a in _NUMBERS.items() if f"{n})" in text}
            yield text.rpartition("{")[2], parse(f"g {text}", weights)

    for what, proto in bench.taken(models()):
        request = bench.compile(proto).create_infer_request()
        for turn, rows in enumerate(_LENGTHS):
            feeds = Sample("", proto).feeds(65 + turn, N=rows)
            if "i" in feeds:
                feeds["i"] = np.arange(rows)[::-1].copy()
            have = request.infer(feeds).to_tuple()
            said = f"{what}: {rows} rows in run {turn + 1}"
            compare(have, bench.expected(proto, feeds), said)


_CONSTANT = (
    "(float[3] x) => (float[3] y, float[3] w) { y = Neg(x) }",
    "(float[3] x) => (float[3] y, float[3] z) { y = Add(x, w) z = Identity(w) }",
    "(float[3] x) => (float[3] y, float[3] z) { y = Add(x, w) z = Neg(w) }",
    "(float[3] x) => (float[3] y, float[1,3] z) { y = Mul(x, w) z = Reshape(w, s) }",
    "(float[3] x) => (float[3] y, float[3] x, float[3] w) { y = Add(x, w) }",
    "(float[3] x) => (float[3] y, int64[1] z) { y = Add(x, w) z = Shape(x) }",
)


@check("compiled", values=True)
def constant_results_are_the_callers(bench: Bench) -> None:
    """Results that are a weight, or follow from weights alone, may be written to."""
    weights = {"w": np.array([1, 2, -3], np.float32), "s": np.array([1, 3])}

    def models() -> Iterator[tuple[str, onnx.ModelProto]]:
        for text in _CONSTANT:
            words = re.findall(r"\w+", text)
            read = {name: array for name, array in weights.items() if name in words}
            yield text, parse(f"g {text}", read)

    for what, proto in bench.taken(models()):
        feeds = {"x": np.array([0.5, -1, 2], np.float32)}
        due = bench.expected(proto, feeds)
        made = [bench.compile(proto) for _ in range(2)]
        runners = [compiled.device_model.create_runner() for compiled in (made[0], *made)]
        for turn in range(2):
            for runner in runners:
                inputs = {"x": feeds["x"].copy()}
                results = [tensor.numpy() for tensor in runner.run(host_tensors(made[0], inputs))]
                compare(results, due, f"{what}, run {turn + 1}, after results were written to")
                for array in results:
                    require(array.flags.writeable, f"{what}: a result cannot be written to.")
                    array[...] = 77
                kept = np.array_equal(inputs["x"], feeds["x"])
                require(kept, f"{what}: who writes to a result writes to the input.")
        for runner in runners:
            runner.close()
