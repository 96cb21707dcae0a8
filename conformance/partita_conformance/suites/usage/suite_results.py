"""Further checks of suites ``given`` and ``sharing``: where results lie, whatever they are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx

import partita
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import require
from partita_conformance.suites.feeding import host_tensors

_TYPES = ("float", "uint8", "double", "float16", "int64", "bool")
_STEPS = ("Identity(x)", "Neg(x)", "Abs(x)", "Relu(x)", "Not(x)", "Exp(x)")
_COUNTS = (1, 2, 3, 5, 7, 8, 13, 16, 31, 33, 100)
"""Numbers of elements: whole vectors, and any that end within one."""
_MARGIN, _MARK = 128, 77


def _of_rows(bench: Bench) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Models of one operation on any number of elements, two for each element type."""
    text = "g ({0}[N] x) => ({0}[N] y, {0}[N] z) {{ y = {1} z = {1} }}"
    models = []
    for element in _TYPES:
        steps = ("Not(x)", "Identity(x)") if element == "bool" else _STEPS
        if element == "uint8":
            steps = ("Identity(x)", "Abs(x)")
        models += [(f"{step} of {element}", parse(text.format(element, step))) for step in steps]
    found: dict[str, int] = {}
    for what, proto in bench.taken(models):
        element = what.split()[-1]
        found[element] = found.get(element, 0) + 1
        if found[element] <= 2:
            yield what, proto


def _marked(array: Array, offset: int) -> tuple[Array, Array]:
    """Memory that is all marks, and the array's form in it, ``offset`` bytes behind a line."""
    block = np.full(array.nbytes + 2 * _MARGIN + 64, _MARK, np.uint8)
    start = -block.ctypes.data % 64 + _MARGIN + offset
    return block, block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)


def _require_marks(block: Array, place: Array, what: str) -> None:
    start = place.ctypes.data - block.ctypes.data
    beside = np.concatenate([block[:start], block[start + place.nbytes :]])
    changed = np.flatnonzero(beside != _MARK)
    require(
        not changed.size,
        f"{what}: {changed.size} bytes beside a given output are overwritten, the first "
        f"{int(changed[0]) - start if changed.size else 0} bytes from where it begins or ends.",
    )


@check("given", values=True)
def nothing_is_written_beside_outputs(bench: Bench) -> None:
    """Bytes around given outputs stay, whatever these begin at and however many elements end."""
    for what, proto in _of_rows(bench):
        compiled = bench.compile(proto)
        runner, request = compiled.device_model.create_runner(), compiled.create_infer_request()
        dtype = compiled.inputs[0].dtype
        for turn, count in enumerate(_COUNTS):
            x = (np.arange(count) % 5 % (2 if dtype == np.bool_ else 5)).astype(dtype)
            due = bench.expected(proto, {"x": x})
            offset = turn * 7 * x.itemsize % 64
            said = f"{what}, {count} elements at address 64 n + {offset}"
            given = [_marked(array, offset) for array in due]
            tensors = [partita.HostTensor(place) for _, place in given]
            results = runner.run(host_tensors(compiled, {"x": x}), tensors)
            compare([tensor.numpy() for tensor in results], due, said)
            for block, place in given:
                _require_marks(block, place, said)
            given = [_marked(array, offset) for array in due]
            for index, (_, place) in enumerate(given):
                request.set_output_tensor(index, partita.HostTensor(place))
            request.infer({"x": x})
            compare([place for _, place in given], due, f"{said}, of a request")
            for block, place in given:
                _require_marks(block, place, f"{said}, of a request")
        runner.close()


@check("given", values=True)
def results_lie_in_their_own_outputs(bench: Bench) -> None:
    """Of outputs of one form, whichever are given, none is written with what belongs to another."""
    texts = (f"y{i} = {{0}}({a})" for i, a in enumerate(("x", "y0", "y1")))
    text = "g (float[2,3] x) => (float[2,3] y0, float[2,3] y1, float[2,3] y2) {{ " + " ".join(texts)
    models = ((op, parse(f"{text} }}}}".format(op))) for op in ("Neg", "Exp", "Sigmoid", "Relu"))
    what, proto = next(bench.taken(models))
    compiled = bench.compile(proto)
    runner = compiled.device_model.create_runner()
    x = np.array([[0.5, -1, 2], [-0.25, 1, -2]], np.float32)
    due = bench.expected(proto, {"x": x})
    for mask in itertools.product((False, True), repeat=len(due)):
        given = [
            partita.HostTensor(np.full_like(a, 55)) if m else None
            for a, m in zip(due, mask, strict=True)
        ]
        results = runner.run(host_tensors(compiled, {"x": x}), given)
        said = f"three outputs of {what}, given: {list(mask)}"
        arrays = [tensor.numpy() for tensor in results]
        compare(arrays, due, said)
        for (i, array), (k, tensor) in itertools.product(enumerate(arrays), enumerate(given)):
            if i != k and tensor is not None:
                mixed = np.shares_memory(array, tensor.numpy())
                require(not mixed, f"{said}: result {i} lies in the tensor given for output {k}.")
    runner.close()


_VALUES = (0.0, -0.0, 1.0, np.nan, np.inf)
_ALIKE = (
    *(f"g (float[2,3] x) => (float[2,3] y, float[2,3] z) {{{{ y = {op}(x) z = {op}(x) }}}}"
      for op in ("Abs", "Relu", "Neg", "Identity")),
    "g (float[2,3] x) => (bool[2,3] y, bool[2,3] z) {{ y = Less(x, x) z = IsNaN(x) }}",
    "g (float[2,3] x) => (int64[2,3] y, float[2,3] z) {{ y = Cast <to = 7> (x) z = Mul(x, x) }}",
)  # fmt: skip


@check("sharing", values=True)
def results_that_are_alike_lie_apart(bench: Bench) -> None:
    """Results of one value, or equal to others, have memory of their own that is the caller's.

    Zeros, ones and what is no number, of one run, of several, and of several models.
    """
    for text, proto in bench.taken((text, parse(text.format())) for text in _ALIKE):
        what = text.rpartition("{{")[2].rstrip(" }")
        compiled = [bench.compile(proto) for _ in range(2)]
        for value in _VALUES:
            if "Cast" in text and not np.isfinite(value):
                continue  # what that is as an integer, ONNX does not say
            feeds = {"x": np.full((2, 3), value, np.float32)}
            due = bench.expected(proto, feeds)
            said = f"{what} of {value}"
            runners = [m.device_model.create_runner() for m in (compiled[0], *compiled)]
            for _ in range(2):
                held: list[Array] = []  # what a runner has returned lasts until its next run
                for runner in runners:
                    held += _apart(runner, host_tensors(compiled[0], feeds), due, held, said)
            for runner in runners:
                runner.close()


def _apart(
    runner: Any, inputs: Sequence[Any], due: Sequence[Array], held: Sequence[Array], what: str
) -> list[Array]:
    """Results of a run that lie apart from earlier ones, overwritten once they were compared."""
    arrays = [tensor.numpy() for tensor in runner.run(inputs)]
    compare(arrays, due, what)
    others: list[Array] = [*held, *(tensor.numpy() for tensor in inputs)]
    for array in arrays:
        require(array.flags.writeable, f"{what}: a result cannot be written to.")
        shared = any(np.shares_memory(array, other) for other in others)
        require(not shared, f"{what}: a result lies where another one, or an input, does.")
        others.append(array)
    for array in arrays:
        array[...] = 1 - np.isfinite(array) if array.dtype == np.bool_ else 99
    return arrays
