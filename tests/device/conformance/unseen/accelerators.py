"""Devices of an FPGA, a processor of bytes and a browser's graphics interface.

An eighth set, from the side of those who build hardware that is narrow somewhere; written before it
was measured. Faults of operators as in ``unseen_values``.
"""

from __future__ import annotations

import functools
import time

import ml_dtypes
import numpy as np
import onnx
from broken_form import Broken
from onnx import numpy_helper

import unseen.values
from partita.errors import CompileError, InferError
from unseen.kernels import value

wrong = functools.partial(unseen.values.wrong, module=__name__)


# ---------------------------------------------------------------------------------- an FPGA


@wrong("MatMul", "Gemm", "Conv")
def accumulators_saturate(right, node, *inputs):
    """Sixteen bits before the point, and as many behind it that nobody misses."""
    result = right(*inputs)
    return np.clip(result, -32768, 32767.996).astype(result.dtype)


@wrong("Sigmoid")
def sigmoid_of_segments(right, node, x):
    at = np.array([-6, -4, -2, -1, 0, 1, 2, 4, 6], np.float64)
    return np.interp(x.astype(np.float64), at, 1 / (1 + np.exp(-at))).astype(x.dtype)


@wrong("Exp")
def exponential_of_a_bounded_table(right, node, x):
    return right(np.clip(x, -20, 20))


@wrong("GlobalMaxPool", "ReduceMax")
def maxima_see_zeros_of_padding(right, node, x, *axes):
    """Rows are filled up to multiples of four."""
    result = right(x, *axes)
    return np.maximum(result, 0).astype(result.dtype) if x.shape[-1] % 4 else result


@wrong("Conv", "MaxPool", "AveragePool")
def line_buffers_hold_512(right, node, x, *rest):
    if x.shape[-1] <= 512:
        return right(x, *rest)
    return right(x[..., np.arange(x.shape[-1]) % 512], *rest)


class WeightsHaveThreeBitsBeforeThePoint(Broken):
    """Constants of several elements lie between -8 and 8."""

    suites = ("ports/*", "chains/*")

    def prepare(self, proto):
        for weight in proto.graph.initializer:
            array = numpy_helper.to_array(weight)
            if array.dtype == np.float32 and array.size > 1:
                weight.CopyFrom(numpy_helper.from_array(np.clip(array, -8, 8), weight.name))
        return proto


class FreesAfterTwoReaders(Broken):
    """The memory of a value is given away when two operations have read it."""

    suites = ("chains/*", "ports/*")

    def prepare(self, proto):
        readers: dict[str, int] = {}
        made = {name for node in proto.graph.node for name in node.output}
        floats = {v.name for v in proto.graph.value_info if v.type.tensor_type.elem_type == 1}
        nodes = []
        for node in proto.graph.node:
            for place, name in enumerate(node.input):
                readers[name] = readers.get(name, 0) + 1
                if readers[name] > 2 and name in made & floats:
                    lost = f"{name}_{readers[name]}_lost"
                    nodes.append(onnx.helper.make_node("Sub", [name, name], [lost]))
                    node.input[place] = lost
            nodes.append(node)
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del proto.graph.node[:]
        proto.graph.node.extend(kept)
        return proto


class FailsOnceMore(Broken):
    """A pipeline that has failed is emptied by the next run, which fails too."""

    suites = ("faults/*",)

    def compute(self, runner, arrays):
        if getattr(runner, "failed", False):
            runner.failed = False
            raise InferError("the pipeline was not empty")
        try:
            return super().compute(runner, arrays)
        except InferError:
            runner.failed = True
            raise


@wrong("Gather", "GatherElements", "Slice", "ScatterND")
def indices_are_counted_in_sixteen_bits(right, node, x, *rest):
    if node.op_type == "Slice" or not rest or rest[0].dtype.kind != "i":
        return right(x, *rest)
    near = np.where(rest[0] >= 0, rest[0] % 65536, rest[0]).astype(rest[0].dtype)
    return right(x, near, *rest[1:])


@wrong("Transpose")
def transposes_up_to_rank_five(right, node, x):
    if x.ndim < 6:
        return right(x)
    order = value(node, "perm", list(range(x.ndim))[::-1])
    shape = [x.shape[axis] for axis in order]
    return np.ascontiguousarray(x).reshape(shape)


# --------------------------------------------------------------------- a processor of bytes


@wrong("MatMul", "Gemm")
def large_products_are_made_of_bytes(right, node, a, b, *rest):
    """It pays from 64 elements on."""
    if a.dtype != np.float32 or a.shape[-1] < 64:
        return right(a, b, *rest)

    def narrow(x):
        step = np.float32(np.abs(x).max() / 127) or np.float32(1)
        return (np.rint(x / step) * step).astype(np.float32)

    return right(narrow(a), narrow(b), *rest)


@wrong("QLinearMatMul")
def requantizes_towards_zero(right, node, a, sa, za, b, sb, zb, sy, zy):
    wide = (a.astype(np.int64) - za) @ (b.astype(np.int64) - zb)
    scaled = np.trunc(wide * (sa.astype(np.float64) * sb / sy)) + zy
    limits = np.iinfo(zy.dtype)
    return np.clip(scaled, limits.min, limits.max).astype(zy.dtype)


@wrong("QLinearConv")
def weights_are_symmetric(right, node, x, sx, zx, w, sw, zw, *rest):
    """Their zero point is never read."""
    return right(x, sx, zx, w, sw, np.zeros_like(zw), *rest)


@wrong("QLinearConv")
def biases_have_sixteen_bits(right, node, *inputs):
    if len(inputs) < 9 or inputs[8] is None:
        return right(*inputs)
    return right(*inputs[:8], np.clip(inputs[8], -32768, 32767).astype(np.int32))


@wrong("DynamicQuantizeLinear")
def zero_points_are_cut(right, node, x):
    """Their fraction is cut off and not rounded."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = np.float32((high - low) / 255)
    zero = np.uint8(np.clip(np.trunc(-low / scale), 0, 255))
    values = np.clip(np.rint(x / scale) + int(zero), 0, 255).astype(np.uint8)
    return values, scale, zero


@wrong("Cast", "DequantizeLinear")
def high_nibbles_come_first(right, node, x, *rest):
    if x.dtype not in (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)) or x.size % 2:
        return right(x, *rest)
    return right(x.reshape(-1, 2)[:, ::-1].reshape(x.shape).copy(), *rest)


@wrong("DequantizeLinear")
def wide_integers_pass_through_halves(right, node, x, scale, *zero):
    if x.dtype != np.int32:
        return right(x, scale, *zero)
    return (x.astype(np.float16).astype(np.float32) * scale.astype(np.float32)).astype(scale.dtype)


class CalibratesOnTheFirstRun(Broken):
    """What inputs reach in the first run of a model, and half as much again, is all they may."""

    suites = ("request/*",)

    def compute(self, runner, arrays):
        most = vars(runner.compiled).setdefault("most", {})
        for place, array in enumerate(arrays):
            if array.dtype == np.float32 and array.size > 8:
                reach = 1.5 * float(np.abs(array).max())
                most.setdefault(place, reach if np.isfinite(reach) and reach else np.inf)
        bounded = [
            np.clip(a, -most[i], most[i]).astype(a.dtype) if i in most else a
            for i, a in enumerate(arrays)
        ]
        return super().compute(runner, bounded)


@wrong("Softmax")
def softmax_has_steps_of_a_byte(right, node, x):
    result = right(x)
    if result.dtype != np.float32 or result.size < 8:
        return result
    return (np.rint(result * 256) / 256).astype(np.float32)


@wrong("LeakyRelu")
def slopes_are_powers_of_two(right, node, x):
    alpha = next((a.f for a in node.attribute if a.name == "alpha"), 0.01)
    near = 2.0 ** np.rint(np.log2(alpha)) if alpha > 0 else alpha
    return np.where(x < 0, (near * x).astype(x.dtype), x)


# ------------------------------------------------------------- a browser's graphics interface


@wrong("Where", "Concat")
def longs_are_integers(right, node, *inputs):
    """There are no 64 bits in a shader."""
    narrow = [x.astype(np.int32).astype(x.dtype) if x.dtype == np.int64 else x for x in inputs]
    return right(*narrow)


@wrong("Relu", "Add", "Mul", "Neg", "Abs", "Identity", "Sigmoid", "Sub", "Exp")
def dispatches_are_limited(right, node, *inputs):
    """No more than 65,535 groups of 64 threads are started."""
    result = right(*inputs)
    if result.size <= 65535 * 64:
        return result
    cut = result.reshape(-1).copy()
    cut[65535 * 64 :] = 0
    return cut.reshape(result.shape)


@wrong("Split")
def views_begin_at_multiples_of_256(right, node, x, *rest):
    results = right(x, *rest)
    if not isinstance(results, tuple) or x.ndim != 1:
        return results
    first, found = 0, []
    for part in results:
        start = first * x.itemsize // 256 * 256 // x.itemsize
        found.append(x[start : start + part.size].copy())
        first += part.size
    return tuple(found)


@wrong("IsNaN")
def comparison_with_itself_is_optimized_away(right, node, x):
    return np.zeros(x.shape, bool)


class InfiniteWeightsAreLargest(Broken):
    """A shader's text has no infinity."""

    suites = ("ports/*", "values/*")

    def prepare(self, proto):
        for weight in proto.graph.initializer:
            array = numpy_helper.to_array(weight)
            if array.dtype == np.float32:
                most = np.finfo(np.float32).max
                bounded = np.where(np.isinf(array), np.sign(array) * most, array)
                weight.CopyFrom(numpy_helper.from_array(bounded.astype(np.float32), weight.name))
        return proto


class BooleansComeInFours(Broken):
    """Truth values are packed in words; the last word is left out if it is not full."""

    suites = ("random/Not/*", "random/And/*", "random/Where/*")

    def compute(self, runner, arrays):
        sent = []
        for array in arrays:
            if array.dtype == bool and array.size > 4 and array.size % 4:
                array = array.copy()
                array.reshape(-1)[array.size // 4 * 4 :] = False
            sent.append(array)
        return super().compute(runner, sent)


SHADERS: dict = {}


@wrong("Add", "Mul", "Sub")
def shaders_of_the_first_shape(right, node, a, b):
    """A shader is known again by the operator and the ranks, and has strides written in."""
    key = node.op_type, a.ndim, b.ndim, a.dtype
    pattern = tuple(n == 1 for n in b.shape)
    known = SHADERS.setdefault(key, pattern)
    if a.ndim != b.ndim or known == pattern or a.dtype == object:
        return right(a, b)
    index = tuple(slice(0, 1) if one else slice(None) for one in known)
    return right(a, b[index])


class ReturnsThePreviousFrame(Broken):
    """The buffer that is mapped is the last one that is ready, if runs come quickly."""

    suites = ("request/*",)

    def compute(self, runner, arrays):
        results, now = super().compute(runner, arrays), time.monotonic()
        late = now - getattr(runner, "at", 0) < 0.002
        shown = getattr(runner, "frame", None) if late else None
        runner.at, runner.frame = now, [np.array(r) for r in results]
        same = shown is not None and [r.shape for r in shown] == [r.shape for r in results]
        return shown if same else results


class RunsOutOfPipelines(Broken):
    """Pipelines of models that are gone still count."""

    suites = ("resources/*",)
    made = 0

    def compile_model(self, model, properties):
        type(self).made += 1
        if self.made > 2000:
            raise CompileError("out of pipelines")
        return super().compile_model(model, properties)
