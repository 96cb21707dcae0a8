"""Devices behind a wire or an engine that batches, pads, narrows and approximates.

A fifth set, from the side of one who wraps a remote accelerator; written before it was measured.
Faults of operators as in ``unseen_values``.
"""

from __future__ import annotations

import functools
import time

import numpy as np
from broken_form import Broken
from onnx import numpy_helper

import unseen.values
from partita.errors import CompileError, InferError

wrong = functools.partial(unseen.values.wrong, module=__name__)


def dynamic_axes(runner):
    """The symbolic axes of each input port."""
    return [
        [axis for axis, size in enumerate(port.shape or ()) if not isinstance(size, int)]
        for port in runner.compiled.inputs
    ]


class PadsToBuckets(Broken):
    """Symbolic sizes are padded with zeros to multiples of four, and results are cut."""

    def compute(self, runner, arrays):
        right = super().compute(runner, arrays)
        axes = dynamic_axes(runner)
        if not any(axes) or any(a.dtype == object for a in arrays):
            return right
        padded = [
            np.pad(a, [(0, -n % 4 if i in own else 0) for i, n in enumerate(a.shape)])
            for a, own in zip(arrays, axes, strict=True)
        ]
        try:
            results = super().compute(runner, padded)
            cut = [
                np.ascontiguousarray(x[tuple(slice(n) for n in due.shape)])
                for x, due in zip(results, right, strict=True)
            ]
        except (InferError, IndexError):
            return right
        same = all(x.shape == due.shape for x, due in zip(cut, right, strict=True))
        return cut if same else right


class ComputesBatchesOfFour(Broken):
    """Symbolic first axes are taken for batches and computed in parts."""

    def compute(self, runner, arrays):
        right = super().compute(runner, arrays)
        whole = all(own == [0] for own in dynamic_axes(runner)) and arrays
        if not whole or len({len(a) for a in arrays}) > 1 or len(arrays[0]) <= 4:
            return right
        parts = []
        for first in range(0, len(arrays[0]), 4):
            parts.append(super().compute(runner, [a[first : first + 4] for a in arrays]))
        joined = [
            np.concatenate(each) if each[0].ndim else each[0] for each in zip(*parts, strict=True)
        ]
        same = all(x.shape == due.shape for x, due in zip(joined, right, strict=True))
        return joined if same else right


class Sends(Broken):
    """Changes inputs on their way to the device."""

    def sent(self, array):
        return array

    def compute(self, runner, arrays):
        return super().compute(runner, [self.sent(array) for array in arrays])


class SendsSixDigits(Sends):
    """Numbers cross as text."""

    def sent(self, array):
        if array.dtype != np.float32 or array.size > 5000:
            return array
        texts = [float(f"{number:.6g}") for number in array.reshape(-1).tolist()]
        return np.array(texts, np.float32).reshape(array.shape)


class SendsNothingForNan(Sends):
    """What is no number in JSON becomes zero."""

    def sent(self, array):
        return (
            np.where(np.isnan(array), 0, array).astype(array.dtype) if self.real(array) else array
        )

    def real(self, array):
        return array.dtype in (np.float32, np.float64, np.float16)


class SendsIntegersAsDoubles(Sends):
    """The wire has one type of numbers."""

    def sent(self, array):
        if array.dtype not in (np.int64, np.uint64):
            return array
        with np.errstate(all="ignore"):
            return array.astype(np.float64).astype(array.dtype)


class SendsZeroWithoutSign(Sends):
    def sent(self, array):
        return array + array.dtype.type(0) if array.dtype in (np.float32, np.float64) else array


class SendsUnsignedAsSigned(Sends):
    """There are signed integers only."""

    def sent(self, array):
        return (
            np.abs(array.view(f"i{array.dtype.itemsize}")).astype(array.dtype)
            if (array.dtype.kind == "u" and array.ndim)
            else array
        )


class SendsStrippedTexts(Sends):
    def sent(self, array):
        if array.dtype != object or not all(isinstance(t, str) for t in array.flat):
            return array
        return np.array([text.strip() for text in array.flat], object).reshape(array.shape)


class MixesAnswersUp(Broken):
    """Answers of requests that run at the same time go to the one that asked last."""

    def compute(self, runner, arrays):
        runner.compiled.answer = super().compute(runner, arrays)
        time.sleep(0.0005)
        return [np.array(result) for result in runner.compiled.answer]


class HasMessagesOfFourMebibytes(Broken):
    """Larger inputs do not fit into a message."""

    def compute(self, runner, arrays):
        if sum(array.nbytes for array in arrays) > 1 << 22:
            raise InferError("received message larger than max (4194304)")
        return super().compute(runner, arrays)


class HasSixDimensions(Broken):
    """Claims tensors of any rank and has room for six sizes."""

    def compile_model(self, model, properties):
        for op in model.ops:
            for value in op.node.inputs:
                if value is not None and value.shape is not None and len(value.shape) > 6:
                    raise CompileError("tensors have six dimensions at most")
        return super().compile_model(model, properties)


class QuantizesLargeWeights(Broken):
    """Weights of products are bytes, as nobody asked for."""

    def prepare(self, proto):
        read = {n.input[1] for n in proto.graph.node if n.op_type in ("MatMul", "Gemm", "Conv")}
        for tensor in proto.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if tensor.name in read and array.dtype == np.float32 and array.size >= 32:
                step = np.abs(array).max() / 127 or 1
                bytes_ = (np.round(array / step) * step).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(bytes_, tensor.name))
        return proto


class ReturnsHalvesOfLargeResults(Broken):
    """Results of more than a thousand elements cross in half precision."""

    def compute(self, runner, arrays):
        with np.errstate(all="ignore"):
            return [
                r.astype(np.float16).astype(r.dtype)
                if r.size > 1000 and r.dtype == np.float32
                else r
                for r in super().compute(runner, arrays)
            ]


class NamesFilesByModels(Broken):
    """The model's name becomes part of a path."""

    def compile_model(self, model, properties):
        name = model.name or ""
        if not name or "/" in name or len(name) > 64:
            raise CompileError(f"cannot write '{name}.bin'")
        return super().compile_model(model, properties)


@wrong("Cast")
def truth_is_minus_one(right, node, x):
    """All bits of a lane are set where a comparison holds."""
    result = right(x)
    if x.dtype != bool or result.dtype.kind not in "if":
        return result
    return -result


@wrong("LogSoftmax")
def logarithms_of_softmax(right, node, x):
    return np.log(np.exp(right(x).astype(np.float32))).astype(x.dtype)


@wrong("ReduceMean")
def sums_of_means_wrap(right, node, x, *axes):
    """The sum that a mean is made of has the type of its terms."""
    if x.dtype not in (np.int32, np.float16):
        return right(x, *axes)
    count = x.size // max(1, np.asarray(right(x, *axes)).size)
    total = np.asarray(right(x.astype(np.float64), *axes)) * count
    if x.dtype == np.float16:
        return (total.astype(np.float16) / np.float16(count)).astype(np.float16)
    return (total.astype(np.int64).astype(np.int32) / count).astype(np.int32)


@wrong("Sqrt")
def roots_by_reciprocals(right, node, x):
    return (x * (1 / np.sqrt(x))).astype(x.dtype)


@wrong("Erf")
def erf_by_tanh(right, node, x):
    return np.tanh(1.1283792 * x + 0.1009 * x**3).astype(x.dtype)
