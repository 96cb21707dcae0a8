"""Suite ``weights``: weights in files, which change, go away, and are named alike."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import partita
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError
from partita_conformance.suites.blobs import exported
from partita_conformance.suites.feeding import host_tensors

_TEXTS = {
    "a product and a sum": "g (float[4,8] x) => (float[4,5] y) { a = MatMul(x, w) y = Add(a, c) }",
    "a product with a turned weight": "g (float[4,8] x) => (float[4,5] y) {"
    " y = Gemm <transB = 1> (x, t, c) }",
    "a convolution": "g (float[1,3,6,6] x) => (float[1,4,6,6] y) {"
    " y = Conv <pads = [1,1,1,1]> (x, k) }",
    "rows of a table": "g (int64[3] x) => (float[3,5] y) { a = Abs(x) b = Mod(a, eight)"
    " y = Gather(w, b) }",
    "a sum": "g (float[4,5] x) => (float[4,5] y) { y = Add(x, c) }",
    "a product of elements": "g (float[4,5] x) => (float[4,5] y) { y = Mul(c, x) }",
    "a weight as it is": "g (float[4,5] x) => (float[5] y, float[4,5] z) {"
    " y = Identity(c) z = Identity(x) }",
    "a weight that is an output": "g (float[4,5] x) => (float[5] c, float[4,5] z) { z = Neg(x) }",
    "weights of branches": "g (float[4,5] x, bool b) => (float[4,5] y) { y = If (b) <"
    " then_branch = p () => (float[4,5] u) { u = Add(x, c) },"
    " else_branch = q () => (float[4,5] v) { v = MatMul(x, s) }> }",
}
"""Models, by what their weights are for."""


def _weights(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {"w": (8, 5), "c": (5,), "t": (5, 8), "k": (4, 3, 3, 3), "s": (5, 5)}
    made = {n: rng.uniform(0.5, 2, shape).astype(np.float32) for n, shape in shapes.items()}
    return {**made, "eight": np.array(8, np.int64)}


def _model(text: str, seed: int) -> onnx.ModelProto:
    """A model with those weights that it reads."""
    named = set(re.findall(r"\w+", text))
    return parse(text, {n: a for n, a in _weights(seed).items() if n in named})


def save(proto: onnx.ModelProto, path: Path, data: str = "weights.bin", first: int = 0) -> None:
    """Writes a model whose weights lie in a file beside it, one behind the other.

    Args:
        proto: The model, which stays as it is.
        path: Of the model.
        data: Name of the other file.
        first: Where the first weight begins in it.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    content = bytearray(b"\x7f" * first)
    for tensor in copy.graph.initializer:
        raw = numpy_helper.to_array(tensor).tobytes()
        place = {"location": data, "offset": str(len(content)), "length": str(len(raw))}
        content += raw + b"\x7f" * (-len(raw) % 4)
        for field in ("raw_data", "float_data", "int32_data", "int64_data"):
            tensor.ClearField(field)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in place.items():
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / data).write_bytes(content)
    path.write_bytes(copy.SerializeToString())


def _replace(path: Path) -> None:
    """Puts another file of as many bytes in its place; what is mapped stays what it was.

    Raises:
        NotApplicableError: The system does not let files be replaced that are read from.
    """
    other = np.full(path.stat().st_size // 4, -7.25, np.float32).tobytes()
    fresh = path.with_suffix(".new")
    fresh.write_bytes(other.ljust(path.stat().st_size, b"\0"))
    try:
        fresh.replace(path)
    except PermissionError as error:
        raise NotApplicableError(f"files that are read from cannot be replaced: {error}") from error


def _taken(bench: Bench, seed: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    return bench.taken((what, _model(text, seed)) for what, text in _TEXTS.items())


@check("weights", values=True)
def what_was_compiled_needs_no_file(bench: Bench) -> None:
    """Weights of files are those of the moment of compiling, whatever becomes of the files.

    Requests and runners made afterwards have them, and so has an exported model.
    """
    for number, (what, proto) in enumerate(_taken(bench, 1)):
        sample = Sample(what, proto)
        feeds = sample.feeds(1)
        due = bench.expected(proto, feeds)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            path = Path(name) / "model.onnx"
            save(proto, path, first=4 * number)
            compiled = bench.core.compile_model(str(path), bench.device, bench.target.config)
            before = compiled.create_infer_request()
            for turn, happens in enumerate(("is there", "was replaced", "is gone")):
                file = path.with_name("weights.bin")
                if turn == 1:
                    _replace(file)
                elif turn == 2:
                    file.unlink()
                    path.unlink()
                _work(compiled, before, feeds, due, f"{what}, whose file {happens}")
            blob = exported(compiled)
        again = bench.new_core().import_model(blob, bench.device)
        compare(again(feeds).to_tuple(), due, f"{what}, exported when its file was gone")


def _work(
    compiled: partita.CompiledModel,
    before: partita.InferRequest,
    feeds: Mapping[str, Array],
    due: list[Array],
    what: str,
) -> None:
    """Runs a request of before, one of now, and a runner of now."""
    compare(before.infer(dict(feeds)).to_tuple(), due, f"{what}, a request of before")
    request = compiled.create_infer_request()
    compare(request.infer(dict(feeds)).to_tuple(), due, f"{what}, another request")
    runner = compiled.device_model.create_runner()
    results = runner.run(host_tensors(compiled, feeds))
    compare([tensor.numpy() for tensor in results], due, f"{what}, another runner")
    runner.close()


@check("weights", values=True)
def files_of_one_name_are_told_apart(bench: Bench) -> None:
    """Models whose weights lie at one place of files of one name have each their own.

    So has a model that is compiled again when its file was replaced.
    """
    for what, proto in _taken(bench, 1):
        protos = [proto, _model(_TEXTS[what], 2), _model(_TEXTS[what], 3)]
        feeds = Sample(what, proto).feeds(2)
        models = []
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            for number, each in enumerate(protos):
                folder = Path(name) / ("same" if number == 2 else str(number))
                save(protos[0] if number == 2 else each, folder / "model.onnx")
                if number == 2:  # compiled here, and again from another file of the name
                    place = str(folder / "model.onnx")
                    models.append((protos[0], bench.core.compile_model(place, bench.device)))
                    fresh = Path(name) / "fresh"
                    save(each, fresh / "model.onnx")
                    for file in fresh.iterdir():
                        file.replace(folder / file.name)
                path = str(folder / "model.onnx")
                models.append((each, bench.core.compile_model(path, bench.device)))
            for number, (each, compiled) in enumerate((*models, *reversed(models))):
                due = bench.expected(each, feeds)
                compare(compiled(feeds).to_tuple(), due, f"{what}, run {number + 1} of files")


@check("weights", values=True)
def weights_may_share_a_file(bench: Bench) -> None:
    """Weights that lie in one file may overlap, differ in type, begin anywhere, and be read twice.

    Each is what lies at its own place, in the model and in another one of the same file.
    """
    content = np.random.default_rng(4).integers(0, 120, 400).astype(np.uint8).tobytes()
    kinds = {"float": np.float32, "int32": np.int32, "uint8": np.uint8, "int64": np.int64}
    tried = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        (Path(name) / "shared.bin").write_bytes(content)
        for first in (0, 4, 16):
            proto, due = onnx.ModelProto(), {}
            for element, dtype in kinds.items():
                for number, shape in enumerate(((3, 5), (5, 3), (7,), ())):
                    port, place = f"{element}{number}", first + 8 * number
                    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
                    due[port] = np.frombuffer(content[place : place + size], dtype).reshape(shape)
            proto = _handed_on(due)
            refused = {op.removeprefix("hand ") for op in bench.refused(proto)}
            due = {port: array for port, array in due.items() if port not in refused}
            if not due:
                continue
            tried += 1
            proto = _handed_on(due)
            for tensor in proto.graph.initializer:
                place = first + 8 * int(tensor.name[-1])
                length = len(tensor.raw_data)
                tensor.ClearField("raw_data")
                tensor.data_location = onnx.TensorProto.EXTERNAL
                for key, value in (
                    ("location", "shared.bin"),
                    ("offset", str(place)),
                    ("length", str(length)),
                ):
                    entry = tensor.external_data.add()
                    entry.key, entry.value = key, value
            path = Path(name) / f"model{first}.onnx"
            path.write_bytes(proto.SerializeToString())
            compiled = bench.core.compile_model(str(path), bench.device, bench.target.config)
            for turn in range(2):
                what = f"weights of one file from byte {first} on, run {turn + 1}"
                compare(compiled({}).to_tuple(), list(due.values()), what, 0, 0)
    if not tried:
        raise NotApplicableError("the device does not take Identity")


def _handed_on(weights: Mapping[str, Array]) -> onnx.ModelProto:
    """A model without inputs, each of whose outputs is a weight."""
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Identity", [f"w{name}"], [name], name=f"hand {name}")
            for name in weights
        ],
        "handed on",
        [],
        [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in weights.items()
        ],
        [numpy_helper.from_array(array, f"w{name}") for name, array in weights.items()],
    )
    imports = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
