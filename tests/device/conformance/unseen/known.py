"""Devices with faults of the kind that trackers of engines tell of, one case each.

A twelfth set, out of what users report of kernels, of rewriting and of what lives between runs;
written before it was measured. Faults of operators as in ``unseen_values``.
"""

from __future__ import annotations

import functools
import time

import boundary_devices
import numpy as np
import onnx
from broken_form import Broken
from good_device import GoodCompiled
from onnx import helper

import unseen.attributes
import unseen.values
from partita.contract.device_plugin import DeviceInfo
from partita.errors import InferError
from unseen.kernels import value
from unseen.passes import Passes, as_identity
from unseen.runs import HandsOutItsInputs

wrong = functools.partial(unseen.values.wrong, module=__name__)
mistakes = functools.partial(unseen.attributes.mistakes, module=__name__)


# ------------------------------------------------------------------------------- resampling


@wrong("Resize")
def neighbours_by_steps_that_add_up(right, node, x, *rest):
    """Each place is the one before and a step, and comes to lie beside whole numbers."""
    result = right(x, *rest)
    named = value(node, "coordinate_transformation_mode", "half_pixel")
    if value(node, "mode", "nearest") != "nearest" or named != "asymmetric":
        return result
    if value(node, "nearest_mode", "round_prefer_floor") != "floor" or x.ndim != result.ndim:
        return result
    for axis, (had, has) in enumerate(zip(x.shape, result.shape, strict=True)):
        steps = np.full(has, np.float32(had / has))
        places = np.cumsum(steps, dtype=np.float32) - steps
        x = np.take(x, np.clip(places.astype(int), 0, had - 1), axis)
    return x


@wrong("Resize")
def places_are_floats(right, node, x, *rest):
    """Places beyond 2**24 are rounded to even ones."""
    result = right(x, *rest)
    if result.shape[-1] <= 1 << 24:
        return result
    return result[..., np.arange(result.shape[-1]).astype(np.float32).astype(int)]


mistakes(
    "OldTransformsAreOfTheLastAxis",
    "DFT",
    20,
    lambda node, given: (
        node.attribute.append(helper.make_attribute("axis", -2)) if "axis" not in given else None
    ),
)


# --------------------------------------------------------------------------------- windows


class PadsLowerAsUpper(Broken):
    """What is left over of the padding always goes behind."""

    suites = ("random/Conv/*", "random/MaxPool/*", "random/AveragePool/*")

    def prepare(self, proto):
        for node in proto.graph.node:
            for given in node.attribute:
                if given.name == "auto_pad" and given.s == b"SAME_LOWER":
                    given.s = b"SAME_UPPER"
        return proto


@wrong("AveragePool")
def means_count_beyond_the_padding(right, node, x):
    """The last window of ceil_mode is divided by all of its places."""
    result = right(x)
    window, steps = value(node, "kernel_shape", []), value(node, "strides", [])
    pads = value(node, "pads", [0] * 2 * len(window))
    if not value(node, "ceil_mode", 0) or not steps or value(node, "dilations", []):
        return result
    over = (x.shape[-1] + pads[len(window) - 1] + pads[-1] - window[-1]) % steps[-1]
    if not over:
        return result
    result = result.copy()
    result[..., -1] *= over / steps[-1]
    return result


# ------------------------------------------------------------------------- axes and parts


@wrong("ReduceSum", "ReduceMax", "ReduceMean")
def no_axes_reduce_nothing(right, node, x, *axes):
    """An input of axes that is empty is read as what noop_with_empty_axes says."""
    if axes and axes[0] is not None and axes[0].size == 0:
        return x.copy()
    return right(x, *axes)


@wrong("Split")
def parts_of_nothing_are_skipped(right, node, x, *rest):
    results = right(x, *rest)
    if not isinstance(results, tuple):
        return results
    full = [part for part in results if part.size]
    return (*full, *results[len(full) :])


@wrong("Compress")
def what_no_condition_says_is_kept(right, node, x, condition):
    """A condition may be shorter than the axis; what lies behind it goes."""
    length = x.shape[value(node, "axis", 0)] if value(node, "axis", None) is not None else x.size
    return right(x, np.append(condition, np.ones(max(0, length - len(condition)), bool)))


@wrong("Einsum")
def sums_of_all_elements_are_vectors(right, node, *inputs):
    result = right(*inputs)
    return result.reshape(1) if np.ndim(result) == 0 else result


@wrong("SequenceAt")
def sequences_count_from_the_start(right, node, sequence, position):
    return right(sequence, np.maximum(position, 0))


# ------------------------------------------------------------------------------ recurrences


class ActivationsAreTheFirstDirections(Broken):
    """The second direction activates as the first one does."""

    suites = ("random/RNN/*", "random/LSTM/*", "random/GRU/*")

    def prepare(self, proto):
        for node in proto.graph.node:
            for given in node.attribute:
                if given.name == "activations" and len(given.strings) > 1:
                    half = len(given.strings) // 2
                    if node.op_type == "LSTM" and len(given.strings) < 6:
                        continue
                    if node.op_type == "GRU" and len(given.strings) < 4:
                        continue
                    given.strings[half:] = given.strings[:half]
        return proto


@wrong("LSTM", "GRU", "RNN")
def steps_beyond_the_end_are_not_written(right, node, x, w, r, bias=None, lengths=None, *rest):
    results = right(x, w, r, bias, lengths, *rest)
    if lengths is None or not isinstance(results, tuple):
        return results
    steps = results[0].copy()
    for place, length in enumerate(lengths):
        steps[length:, :, place] = 7
    return (steps, *results[1:])


# ------------------------------------------------------------------------------ arithmetic


@wrong("Sinh")
def hyperbolic_sines_cancel(right, node, x):
    """The difference of two exponentials has no digits left near zero."""
    half = np.asarray(0.5, x.dtype)
    return ((np.exp(x) - np.exp(-x)) * half).astype(x.dtype)


@wrong("NonMaxSuppression")
def scores_at_the_threshold_stay(right, node, boxes, scores, *rest):
    if len(rest) < 3 or rest[2] is None or not rest[2].size:
        return right(boxes, scores, *rest)
    lower = np.nextafter(rest[2], np.float32(-np.inf)).astype(np.float32)
    return right(boxes, scores, *rest[:2], lower)


def as_zero(graph, node, source, kind):
    """Makes a node zeros of a value's shape, whatever the value is."""
    never = f"{node.output[0]}_never"
    place = list(graph.node).index(node)
    node.CopyFrom(helper.make_node("Cast", [never], list(node.output), to=kind, name=node.name))
    graph.node.insert(place, helper.make_node("Greater", [source, source], [never]))


class TimesZeroIsZero(Passes):
    """A product with a constant of zero is not computed."""

    suites = ("chains/*", "random/Mul/*")

    def rewrite(self, graph, node):
        if node.op_type != "Mul":
            return
        for place in (0, 1):
            constant = self.constants.get(node.input[place])
            if constant is not None and constant.size == 1 and not constant.any():
                kind = helper.np_dtype_to_tensor_dtype(constant.dtype)
                as_zero(graph, node, node.input[1 - place], kind)
                return


class CancelsWhatIsEqual(Passes):
    """A value less itself is zero, whatever it is."""

    suites = ("chains/*", "ports/*", "request/*")

    def rewrite(self, graph, node):
        if node.op_type == "Sub" and node.input[0] == node.input[1]:
            kinds = {v.name: v.type.tensor_type.elem_type for v in graph.input}
            kind = kinds.get(node.input[0], onnx.TensorProto.FLOAT)
            as_zero(graph, node, node.input[0], kind)


# ------------------------------------------------------------------------------- rewriting


class FusesIntoOutputs(Passes):
    """An activation is computed where its input is written, though the caller reads that too."""

    def rewrite(self, graph, node):
        if node.op_type != "Relu" or node.input[0] not in self.outputs:
            return
        writer = self.writers.get(node.input[0])
        if writer is None or writer.op_type not in ("Conv", "MatMul", "Gemm", "Add"):
            return
        name = node.input[0]
        inner = f"{name}_before"
        writer.output[0] = inner
        place = list(graph.node).index(node)
        as_identity(node, name)
        graph.node.insert(place, helper.make_node("Relu", [inner], [name]))


class MergesRandomNodes(Passes):
    """Two nodes that draw numbers with the same attributes draw the same ones."""

    suites = ("chance/*", "chains/*")

    def rewrite(self, graph, node):
        if not node.op_type.startswith("Random"):
            return
        seen = vars(self).setdefault("drawn", {})
        if id(graph) != seen.get("graph"):
            seen.clear()
            seen["graph"] = id(graph)
        key = node.op_type, tuple(node.input), tuple(a.SerializeToString() for a in node.attribute)
        first = seen.setdefault(key, node.output[0])
        if first != node.output[0]:
            as_identity(node, first)


class VariadicOfOneHandsOn(HandsOutItsInputs):
    """A sum, a maximum or a concatenation of one tensor is that tensor."""

    suites = ("sharing/*",)

    def nodes(self, runner):
        return {
            op.outputs[0]: op.op_type
            for op in runner.compiled.model.ops
            if op.op_type in ("Sum", "Max", "Min", "Mean", "Concat") and len(op.inputs) == 1
        }


# ------------------------------------------------------------------------ between the runs


class FailedRunsFreeTwice(Broken):
    """A failed run gives its staging memory back twice, and two requests get it later."""

    suites = ("faults/*", "threads/*", "async/*")

    def __init__(self):
        super().__init__()
        self.pool = []

    def compute(self, runner, arrays):
        with self.lock:
            stage = self.pool.pop() if self.pool else {}
        try:
            stage["arrays"] = arrays
            time.sleep(0.0005)
            return super().compute(runner, stage["arrays"])
        except InferError:
            self.pool.append(stage)
            raise
        finally:
            self.pool.append(stage)


class KeepsViewsOfWeights(Broken):
    """Weights are read from the caller's model at each run."""

    suites = ("compiled/*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.caller = model

    def compute(self, runner, arrays):
        held = runner.compiled.evaluator.rt_inits_
        for name, one in runner.compiled.caller.ir.graph.initializers.items():
            if name in held and one.const_value is not None:
                held[name] = np.array(one.const_value.numpy())
        return super().compute(runner, arrays)


class ReturnsTheWholeBuffer(Broken):
    """Where a result has fewer rows than the one before, the old ones follow them."""

    suites = ("request/*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        before = getattr(runner, "before", None)
        runner.before = [np.array(r) for r in results]
        if before is None:
            return results
        grown = []
        for old, new in zip(before, results, strict=True):
            longer = old.ndim and old.shape[1:] == new.shape[1:] and len(old) > len(new)
            grown.append(np.concatenate([new, old[len(new) :]]) if longer else new)
        return grown


class CountersKeepTheFirstRun(Broken):
    """Times are taken once."""

    suites = ("properties/*",)

    def counters(self, runner):
        if not hasattr(runner, "first") and runner.elapsed_us:
            runner.first = super().counters(runner)
        return getattr(runner, "first", ())


class WritesPlainIntoGivenLayouts(boundary_devices.Offering, Broken):
    """Results go in C order where the caller gives memory in the layout that was agreed on."""

    device_name = "BROKEN"
    suites = ("boundary/*", "hetero/*")

    def write(self, tensor, given):
        stored = given.stored()
        stored[...] = tensor.numpy().reshape(stored.shape)


class TheSecondDeviceIsTheFirst(Broken):
    """There are two, and what is compiled for either runs on one of them."""

    suites = ("plugin/*", "compiled/*", "query/*")

    def device_ids(self):
        return ("0", "1")

    def device_info(self, device_id):
        return DeviceInfo(f"{self.device_name}.{device_id or 0}", "One of two")
