"""Suite ``given``: tensors of the application's, of every class and type, as inputs and outputs."""

from __future__ import annotations

import gc
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

import partita
from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.feeding import host_tensors
from partita_conformance.suites.resources.collecting import of_new_objects
from partita_conformance.suites.resources.suite_sharing import OF_EVERY_TYPE

_ELEMENTS = (
    *("float16", "double", "bfloat16", "bool", "string", "int8", "uint8", "int16", "uint16"),
    *("int32", "uint32", "int64", "uint64", "complex64", "complex128"),
    *("float8e4m3fn", "float8e5m2", "int4", "uint4"),
)
_SIZES = ("", "3", "0,2", "N,3")


def _numbers(dtype: Any, shape: tuple[int, ...], seed: int) -> Array:
    """Few numbers of a type, each other than its neighbour; texts of other lengths."""
    count = int(np.prod(shape, dtype=int))
    places = (np.arange(count) + seed) % 5
    if np.dtype(dtype).hasobject:
        texts = ("", "a", "\u00e4\u2713 \U0001f600", "x" * 90, "two words")
        return np.array([texts[i] for i in places] or [], object).reshape(shape)
    return places.astype(np.bool_ if dtype == np.bool_ else dtype).reshape(shape)


def _handed_on(bench: Bench) -> Iterator[tuple[str, onnx.ModelProto, Any]]:
    """Models that hand on elements of each type: what they are, and the type of arrays."""
    for element in _ELEMENTS:
        number = TensorProto.DataType.Value(element.upper())
        dtype = object if element == "string" else helper.tensor_dtype_to_np_dtype(number)
        for dims in _SIZES:
            shape = [int(d) if d.isdigit() else d for d in dims.split(",") if d]
            x, y = (helper.make_tensor_value_info(n, number, shape) for n in "xy")
            node = helper.make_node("Identity", ["x"], ["y"])
            graph = helper.make_graph([node], "g", [x], [y])
            imports = [helper.make_opsetid("", 21)]
            proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
            try:
                refused = bench.refusals(proto)
            except PartitaError:  # no model of Partita's has such a type
                continue
            if not refused:
                yield f"{element}[{dims}]", proto, dtype


@check("given", values=True)
def outputs_of_every_type_may_be_given(bench: Bench) -> None:
    """A runner given tensors of any type, rank and size writes and returns them, or its own."""
    tried = 0
    for text in OF_EVERY_TYPE:
        proto = parse(text)
        if bench.refusals(proto):
            continue
        tried += 1
        _run_into_given(bench, Sample(text.partition("{")[2], proto), (2, 3, 2))
    for what, proto, dtype in _handed_on(bench):
        tried += 1
        compiled = bench.compile(proto)
        runner = compiled.device_model.create_runner()
        for turn, rows in enumerate((2, 0, 3, 2)):
            shape = tuple(d if isinstance(d, int) else rows for d in compiled.inputs[0].shape or ())
            x = _numbers(dtype, shape, turn)
            given = _numbers(dtype, shape, turn + 3)
            (result,) = runner.run([partita.HostTensor(x)], [partita.HostTensor(given)])
            compare([result.numpy()], [x], f"Identity of {what}, given an output, run {turn + 1}")
            (result,) = runner.run([partita.HostTensor(x)])
            compare([result.numpy()], [x], f"Identity of {what}, run {turn + 1}")
        runner.close()
    if not tried:
        raise NotApplicableError("the device takes none of the models")


@check("given", values=True)
def outputs_of_one_value_lie_apart(bench: Bench) -> None:
    """Of outputs that are one value each has memory of its own, whichever of them are given."""
    texts = (
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Neg(x) z = Identity(y) }",
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { a = Relu(x) y = Identity(a)"
        " z = Identity(a) }",
        "g (float[2,3] x) => (float[2,3] y, float[3,2] z) { y = Neg(x) z = Reshape(y, s) }",
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Exp(x) z = Exp(x) }",
    )
    weights = {"s": np.array([3, 2])}
    models = ((text, parse(text, weights if "s)" in text else None)) for text in texts)
    for text, proto in bench.taken(models):
        sample = Sample(text.partition("{")[2], proto)
        compiled = bench.compile(proto)
        runner = compiled.device_model.create_runner()
        for turn, places in enumerate(((0,), (1,), (), (0, 1), (0,))):
            feeds = sample.feeds(turn)
            due = bench.expected(proto, feeds)
            given = [
                partita.HostTensor(np.ones_like(array)) if place in places else None
                for place, array in enumerate(due)
            ]
            arrays = [t.numpy() for t in runner.run(host_tensors(compiled, feeds), given)]
            what = f"{sample.name} with outputs {list(places)} given"
            compare(arrays, due, what)
            require(
                not np.shares_memory(arrays[0], arrays[1]), f"{what}: both lie in the same memory."
            )
        runner.close()


def _run_into_given(bench: Bench, sample: Sample, seeds: tuple[int, ...]) -> None:
    compiled = bench.compile(sample.proto)
    runner = compiled.device_model.create_runner()
    for seed in seeds:
        feeds = sample.feeds(seed)
        due = bench.expected(sample.proto, feeds)
        given = [partita.HostTensor(np.ones_like(array)) for array in due]
        results = runner.run(host_tensors(compiled, feeds), given)
        compare([tensor.numpy() for tensor in results], due, f"{sample.name}, given outputs")
        for tensor, place in zip(results, given, strict=True):
            same = tensor is not place or tensor.numpy() is place.numpy()
            require(same, f"{sample.name}: a given tensor has another array after the run.")
    runner.close()


class _Foreign(partita.Tensor):
    """A tensor in host memory that is none of Partita's own classes."""

    def __init__(self, array: Array) -> None:
        self.shape, self.dtype = array.shape, array.dtype
        self.device = self.memory = "host"
        self._elements = array

    def numpy(self) -> Array:
        return self._elements

    def copy_from(self, source: partita.Tensor) -> None:
        self._elements[...] = source.numpy()


class _Derived(partita.HostTensor):
    """A tensor of an application that has added something to Partita's."""


@check("given", values=True)
def tensors_may_be_of_any_class(bench: Bench) -> None:
    """Host tensors of other classes are read and written like Partita's own."""
    for kind in ("plain", "pair", "outputs"):
        sample = bench.sample(kind)
        compiled = bench.compile(sample.proto)
        request, runner = compiled.create_infer_request(), compiled.device_model.create_runner()
        classes: tuple[Any, ...] = (_Foreign, _Derived, partita.HostTensor, _Foreign)
        for seed, made in enumerate(classes):
            feeds = sample.feeds(seed + 40)
            due = bench.expected(sample.proto, feeds)
            inputs = [made(feeds[port.name]) for port in compiled.inputs]
            what = f"{sample.name}, tensors of class {made.__name__}"
            compare([t.numpy() for t in runner.run(inputs)], due, what)
            given = [made(np.full_like(array, 9)) for array in due]
            results = runner.run(inputs, given)
            compare([t.numpy() for t in results], due, f"{what}, for outputs too")
            compare(request.infer(inputs).to_tuple(), due, f"{what}, of a request")
        runner.close()


class _Marked(np.ndarray[Any, Any]):
    """An array of an application that computes in its own way, which is nobody's business."""

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("this array computes nothing for others")


@check("given", values=True)
def arrays_may_be_of_any_class(bench: Bench) -> None:
    """Arrays derived from numpy's, or in a file that is only read, are inputs like others."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for kind in ("plain", "pair", "dynamic"):
            sample = bench.sample(kind)
            compiled = bench.compile(sample.proto)
            request, runner = compiled.create_infer_request(), compiled.device_model.create_runner()
            feeds = sample.feeds(44)
            due = bench.expected(sample.proto, feeds)
            forms: dict[str, dict[str, Array]] = {
                "mapped": {n: _mapped(a, Path(folder) / f"{kind} {n}") for n, a in feeds.items()},
                "derived": {n: a.view(_Marked) for n, a in feeds.items()},
            }
            for what, form in forms.items():
                for have in (
                    request.infer(form).to_tuple(),
                    [t.numpy() for t in runner.run(host_tensors(compiled, form))]
                    if what == "mapped"
                    else compiled(form).to_tuple(),
                ):
                    compare([np.asarray(a) for a in have], due, f"{sample.name}, arrays {what}")
                    for array in have:
                        said = f"{sample.name}, arrays {what}: a result is a {type(array).__name__}"
                        require(type(array) is np.ndarray, said)
            runner.close()
            del forms, form, have  # the file goes


def _mapped(array: Array, path: Path) -> Array:
    array.tofile(path)
    return np.memmap(path, array.dtype, "r", shape=array.shape)


@check("given")
def given_outputs_are_let_go(bench: Bench) -> None:
    """A runner holds output tensors that it was given no longer than until its next run."""
    sample = bench.sample("outputs")
    compiled = bench.compile(sample.proto)
    runner = compiled.device_model.create_runner()
    feeds = sample.feeds(45)
    inputs = host_tensors(compiled, feeds)
    due = bench.expected(sample.proto, feeds)
    with of_new_objects():
        for turn in range(3):
            given = [partita.HostTensor(np.zeros_like(array)) for array in due]
            refs = [weakref.ref(tensor.numpy()) for tensor in given]
            runner.run(inputs, given)
            del given
            runner.run(inputs)
            gc.collect()
            kept = sum(ref() is not None for ref in refs)
            require(not kept, f"Turn {turn + 1}: a run later {kept} given outputs are still kept.")
    runner.close()


@check("given")
def transfers_keep_every_type(bench: Bench) -> None:
    """transfer_to() keeps elements of every type, and takes tensors that lie anywhere."""
    dtypes = [
        *(np.int8, np.int16, np.int32, np.uint16, np.uint32, np.uint64, np.complex64),
        *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.uint4),
    ]
    for dtype in dtypes:
        for shape in ((), (0, 3), (5,), (2, 3)):
            array = _numbers(dtype, shape, 1)
            array.flags.writeable = False
            tensor = bench.plugin.transfer_to(partita.HostTensor(array), bench.device_id)
            what = f"transfer_to of {array.dtype}{list(shape)}"
            require(tensor.dtype == array.dtype, f"{what} has dtype {tensor.dtype}.")
            compare([tensor.numpy()], [array], what)
    block = np.zeros(100, np.uint8)
    for offset in (1, 4, 8, 12):
        array = block[offset : offset + 24].view(np.float32)
        array[...] = np.arange(6)
        tensor = bench.plugin.transfer_to(partita.HostTensor(array), bench.device_id)
        compare([tensor.numpy()], [array], f"transfer_to of what begins at byte {offset}")
