"""Faults of kernels, graph compilers, runtimes and services.

By somebody who has read neither the kit nor its earlier sets.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import tempfile
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from good_device import Good, GoodCompiled, GoodRunner, zeros
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.profiling import ProfilingInfo
from partita.contract.runner import run_into
from partita.errors import BlobError, CompileError, InferCancelledError
from partita.frontends.reader import read_model
from partita.tensors.sequence_values import boxed, unboxed


class Broken(Good):
    """The base of all devices below."""

    device_name = "BROKEN"


# Kernels


class PatchedCompiled(GoodCompiled):
    """Puts the device's kernel in the place of the evaluator's, in bodies too."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.patch(self.evaluator)

    def patch(self, evaluator):
        for node in evaluator.rt_nodes_:
            bodies = [own for own in vars(node).values() if isinstance(own, ReferenceEvaluator)]
            for body in bodies:
                self.patch(body)
            if (node.onnx_node.domain, node.op_type) == ("", self.plugin.op_type):
                node.run = functools.partial(self.run_kernel, node, node.run)

    def run_kernel(self, node, run, *arrays, **context):
        def right(*given):
            return run(*given, **context)

        if node.has_linked_attribute:
            return right(*arrays)
        return tuple(self.plugin.kernel(node, right, *arrays))


class OfKernels(Broken):
    """A device with a kernel of its own for one operator."""

    compiled_type = PatchedCompiled
    op_type = ""

    def kernel(self, node, right, *arrays):
        return right(*arrays)


def text(value):
    return value.decode() if isinstance(value, bytes) else value


class NegatesToFindTheSmallest(OfKernels):
    """The author took every integer to have a negative, so that the smallest are the largest."""

    op_type = "TopK"

    def kernel(self, node, right, *arrays):
        values = arrays[0]
        if getattr(node, "largest", 1) or values.dtype.kind != "i":
            return right(*arrays)
        axis, count = node.axis, int(np.asarray(arrays[1]).ravel()[0])
        order = np.argsort(~(-values), axis=axis, kind="stable")
        order = np.take(order, range(count), axis)
        return np.take_along_axis(values, order, axis), order.astype(np.int64)


class WrapsByTheFirstDimensions(OfKernels):
    """The author wrapped negative indices by dimensions counted from 0, whatever the batch has."""

    op_type = "GatherND"

    def kernel(self, node, right, data, indices):
        batch = getattr(node, "batch_dims", 0)
        if not batch:
            return right(data, indices)
        width = indices.shape[-1]
        wrapped = np.where(indices < 0, indices + np.array(data.shape[:width]), indices)
        wrapped = wrapped % np.maximum(np.array(data.shape[batch : batch + width]), 1)
        return right(data, wrapped.astype(indices.dtype))


class TakesRemaindersByTheQuotient(OfKernels):
    """The author took fmod to be what is left of the truncated quotient, of any float."""

    op_type = "Mod"

    def kernel(self, node, right, left, divisor):
        if not node.fmod or left.dtype.kind != "f":
            return right(left, divisor)
        return [(left - np.trunc(left / divisor) * divisor).astype(left.dtype)]


class PadsWithTheFloatOfOldOpsets(OfKernels):
    """The author kept the constant of Pad as a float, as it was an attribute once."""

    op_type = "Pad"

    def kernel(self, node, right, data, *others):
        if data.dtype.kind == "i" and len(others) > 1 and others[1] is not None:
            value = np.asarray(others[1])
            bounds = np.iinfo(data.dtype)
            whole = min(max(int(value.astype(np.float32).ravel()[0]), bounds.min), bounds.max)
            changed = np.full(value.shape, whole, value.dtype)
            return right(data, others[0], changed, *others[2:])
        return right(data, *others)


class RoundsPlacesToEven(OfKernels):
    """The author took rint() for round_prefer_floor, as halves of an image have even places."""

    op_type = "Resize"

    def kernel(self, node, right, data, *others):
        scales = others[1] if len(others) > 1 else None
        where = text(getattr(node, "coordinate_transformation_mode", None))
        if (
            scales is None
            or getattr(node, "axes", None) is not None
            or len(scales) != data.ndim
            or where not in ("half_pixel", "asymmetric")
            or text(node.mode) != "nearest"
            or text(node.nearest_mode) != "round_prefer_floor"
            or 0 in data.shape
        ):
            return right(data, *others)
        result = data
        for axis, scale in enumerate(scales.tolist()):
            if scale == 1:
                continue
            places = np.arange(int(np.floor(data.shape[axis] * scale)))
            places = (places + 0.5) / scale - 0.5 if where == "half_pixel" else places / scale
            places = np.clip(np.rint(places), 0, data.shape[axis] - 1)
            result = np.take(result, places.astype(np.int64), axis)
        return [result]


class RoundsBehindTheZeroPoint(OfKernels):
    """The author added the zero point before rounding, since it is a whole number."""

    op_type = "QuantizeLinear"

    def kernel(self, node, right, values, scale, *zero):
        if not zero or zero[0] is None or np.size(scale) != 1 or values.dtype != np.float32:
            return right(values, scale, *zero)
        if zero[0].dtype not in (np.int8, np.uint8):
            return right(values, scale, *zero)
        bounds = np.iinfo(zero[0].dtype)
        point = np.float32(zero[0].ravel()[0])
        whole = np.rint(values / np.float32(np.ravel(scale)[0]) + point)
        whole = np.nan_to_num(whole, nan=point)
        return [np.clip(whole, bounds.min, bounds.max).astype(zero[0].dtype)]


class SubtractsSquaresOfMeans(OfKernels):
    """The author took the variance to be the mean square less the squared mean, in one pass."""

    op_type = "InstanceNormalization"

    def kernel(self, node, right, values, scale, bias):
        if values.dtype != np.float32 or values.ndim < 3:
            return right(values, scale, bias)
        axes = tuple(range(2, values.ndim))
        mean = values.mean(axes, keepdims=True)
        variance = np.maximum((values * values).mean(axes, keepdims=True) - mean * mean, 0)
        form = (-1,) + (1,) * len(axes)
        normal = (values - mean) / np.sqrt(variance + np.float32(node.epsilon))
        return [(normal * scale.reshape(form) + bias.reshape(form)).astype(np.float32)]


class OrdersLettersAsTheyCome(OfKernels):
    """The author took the letters of a result that is not written in the order they appear in."""

    op_type = "Einsum"

    def kernel(self, node, right, *arrays):
        equation = text(node.equation).replace(" ", "")
        if "->" in equation or "." in equation:
            return right(*arrays)
        letters = equation.replace(",", "")
        single = [letter for letter in dict.fromkeys(letters) if letters.count(letter) == 1]
        return [np.asarray(np.einsum(f"{equation}->{''.join(single)}", *arrays))]


class ReversesThePaddingToo(OfKernels):
    """The author turned whole rows round for the reverse direction, however short they are."""

    op_type = "GRU"

    def kernel(self, node, right, values, *others):
        lengths = others[3] if len(others) > 3 else None
        if lengths is None or text(node.direction) != "reverse" or getattr(node, "layout", 0):
            return right(values, *others)
        moved = values.copy()
        for row, length in enumerate(lengths.tolist()):
            moved[:, row] = np.roll(values[:, row], length - len(values), 0)
        return right(moved, *others)


class WrapsClassesThatAreNone(OfKernels):
    """The author took indices of OneHot modulo the depth, which wraps the negative ones."""

    op_type = "OneHot"

    def kernel(self, node, right, indices, depth, values):
        size = int(np.ravel(depth)[0])
        return right((indices % max(size, 1)).astype(indices.dtype), depth, values)


class CountsInTheOrderOfSorting(OfKernels):
    """The author reordered the values of an unsorted Unique, and not the way back to them."""

    op_type = "Unique"

    def kernel(self, node, right, values):
        results = list(right(values))
        if node.sorted or node.axis is not None or len(results) < 3 or values.dtype == object:
            return results
        ranks = np.argsort(np.argsort(results[0], kind="stable"), kind="stable")
        results[2] = ranks[results[2]].astype(np.int64)
        return results


class TakesCornersInOrder(OfKernels):
    """The author took the first corner of a box to be the upper left one."""

    op_type = "NonMaxSuppression"

    def kernel(self, node, right, boxes, *others):
        if node.center_point_box:
            return right(boxes, *others)
        turned = (boxes[..., 2] < boxes[..., 0]) | (boxes[..., 3] < boxes[..., 1])
        return right(np.where(turned[..., None], np.float32(0), boxes), *others)


class RaisesWithTheSign(OfKernels):
    """The author left out the absolute values of LpPool, as the square needs none."""

    op_type = "LpPool"

    def kernel(self, node, right, values):
        power = node.p
        if power % 2 == 0:
            return right(values)
        above = right(np.maximum(values, 0))[0] ** power
        below = right(np.maximum(-values, 0))[0] ** power
        return [((above - below) ** (1 / power)).astype(values.dtype)]


class TakesSlopesForChannels(OfKernels):
    """The author took a row of slopes to be one per channel where there are as many channels."""

    op_type = "PRelu"

    def kernel(self, node, right, values, slope):
        if slope.ndim == 1 and values.ndim > 2 and 1 < len(slope) == values.shape[1]:
            slope = slope.reshape(-1, *(1,) * (values.ndim - 2))
        return right(values, slope)


class WrapsEndsUntilTheyFit(OfKernels):
    """The author wrapped ends of backward slices by the modulus, and knew only the least int."""

    op_type = "Slice"

    def kernel(self, node, right, data, *others):
        if len(others) < 4 or others[3] is None:
            return right(data, *others)
        starts, ends, axes, steps = others
        if axes is None:
            axes = np.arange(len(starts))
        ends = ends.copy()
        for i, (axis, step) in enumerate(zip(axes.tolist(), steps.tolist(), strict=True)):
            size = data.shape[axis]
            if step < 0 and size and -(2**31) < ends[i] < -size:
                ends[i] %= size
        return right(data, starts, ends, *others[2:])


class SplitsEvenly(OfKernels):
    """The author shared out what is left over, where all but the last part are to be alike."""

    op_type = "Split"

    def kernel(self, node, right, data, *sizes):
        count = getattr(node, "num_outputs", None)
        if count is None or (sizes and sizes[0] is not None):
            return right(data, *sizes)
        return np.array_split(data, count, node.axis)


class CastsToTruthByWholeNumbers(OfKernels):
    """The author made floats whole numbers on their way to bool, as C did for its char."""

    op_type = "Cast"

    def kernel(self, node, right, values):
        if node.to == onnx.TensorProto.BOOL and np.issubdtype(values.dtype, np.floating):
            return [np.asarray(np.trunc(values) != 0)]
        return right(values)


class SubtractsInfiniteMaxima(OfKernels):
    """The author took off the maximum before exp, and had no row that is masked as a whole."""

    op_type = "ReduceLogSumExp"

    def kernel(self, node, right, values, *axes):
        result = right(values, *axes)[0]
        if not values.size:
            return [result]
        return [np.where(np.isneginf(result), np.nan, result).astype(result.dtype)]


# Graph compilers


class OfGraphs(Broken):
    """A device that rewrites models; shapes that were inferred before are left out."""

    def prepare(self, proto):
        own = copy.deepcopy(proto)
        self.rewrite(own, own.graph)
        del own.graph.value_info[:]
        for output in own.graph.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
        return own

    def rewrite(self, proto, graph):
        """Edits the graph."""


def constants_of(graph):
    inside = [one for one in graph.initializer if not one.external_data]
    known = {one.name: numpy_helper.to_array(one) for one in inside}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            known[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return known


def makers_of(graph):
    return {name: node for node in graph.node for name in node.output if name}


def attributes_of(node):
    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


def set_attribute(node, name, value=None):
    kept = [one for one in node.attribute if one.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is not None:
        node.attribute.append(helper.make_attribute(name, value))


def is_a(node, *kinds):
    return node is not None and not node.domain and node.op_type in kinds


def become_identity(node, source):
    result = node.output[0]
    name = node.name
    node.CopyFrom(helper.make_node("Identity", [source], [result], name))


def opset_of(proto):
    return max(one.version for one in proto.opset_import if one.domain in ("", "ai.onnx"))


def tensors_of(proto):
    """Element type and dimensions of values, where inference tells them."""
    graph = onnx.shape_inference.infer_shapes(proto).graph
    known = {one.name: (one.data_type, tuple(one.dims)) for one in graph.initializer}
    for one in (*graph.input, *graph.value_info, *graph.output):
        kind = one.type.tensor_type
        if kind.elem_type:
            dims = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
            known[one.name] = kind.elem_type, tuple(dims) if kind.HasField("shape") else None
    return known


class FoldsNormsByTheUsualEpsilon(OfGraphs):
    """The author folded a BatchNormalization into the Conv before it with the default epsilon."""

    def rewrite(self, proto, graph):
        makers = makers_of(graph)
        for node in graph.node:
            if is_a(node, "BatchNormalization") and is_a(makers.get(node.input[0]), "Conv"):
                set_attribute(node, "epsilon")


class ComposesOrdersBackwards(OfGraphs):
    """The author merged two Transposes that undid each other, where the order does not matter."""

    def rewrite(self, proto, graph):
        makers = makers_of(graph)
        for node in graph.node:
            first = makers.get(node.input[0]) if is_a(node, "Transpose") else None
            if not is_a(first, "Transpose"):
                continue
            one, two = attributes_of(first).get("perm"), attributes_of(node).get("perm")
            if one and two:
                node.input[0] = first.input[0]
                set_attribute(node, "perm", [two[i] for i in one])


class SharesWhatDiffersInATensor(OfGraphs):
    """The author compared numbers, lists and texts of operations, and no attribute of tensors."""

    def rewrite(self, proto, graph):
        seen = {}
        for node in graph.node:
            kinds = {one.type for one in node.attribute}
            graphs = {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}
            if is_a(node, "Constant") or node.op_type.startswith("Random") or kinds & graphs:
                continue
            if node.op_type in ("Bernoulli", "Multinomial", "Dropout") or len(node.output) != 1:
                continue
            plain = sorted(
                (one.name, str(helper.get_attribute_value(one)))
                for one in node.attribute
                if one.type != onnx.AttributeProto.TENSOR
            )
            key = node.domain, node.op_type, tuple(node.input), str(plain)
            if key in seen:
                become_identity(node, seen[key])
            else:
                seen[key] = node.output[0]


INTEGERS = {
    getattr(onnx.TensorProto, f"{sign}INT{bits}"): bits
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}


class RemovesWholeNumbersWayThere(OfGraphs):
    """The author took integers that were cast to narrower ones and back to be indices, small."""

    def rewrite(self, proto, graph):
        kinds = {name: kind for name, (kind, _) in tensors_of(proto).items()}
        makers = makers_of(graph)
        for node in graph.node:
            first = makers.get(node.input[0]) if is_a(node, "Cast") else None
            if not is_a(first, "Cast"):
                continue
            start, end = kinds.get(first.input[0]), attributes_of(node)["to"]
            if start == end and start in INTEGERS and attributes_of(first)["to"] in INTEGERS:
                become_identity(node, first.input[0])


class PadsWithWhatPoolsPadWith(OfGraphs):
    """The author moved a Pad of zeros into the MaxPool behind it, which pads with the least."""

    def rewrite(self, proto, graph):
        known, makers = constants_of(graph), makers_of(graph)
        for node in graph.node:
            pad = makers.get(node.input[0]) if is_a(node, "MaxPool") else None
            if not is_a(pad, "Pad") or len(node.output) > 1 or len(pad.input) > 3:
                continue
            own, of_pad = attributes_of(node), attributes_of(pad)
            value = known.get(pad.input[2], 1) if len(pad.input) > 2 and pad.input[2] else 0
            widths = known.get(pad.input[1]) if len(pad.input) > 1 else of_pad.get("pads")
            if widths is None or np.any(value) or of_pad.get("value"):
                continue
            if of_pad.get("mode", b"constant") != b"constant" or "auto_pad" in own:
                continue
            half = len(widths) // 2
            begins, ends = list(widths[:half]), list(widths[half:])
            if any([*begins[:2], *ends[:2]]) or min(*begins, *ends) < 0:
                continue
            before = own.get("pads", [0] * 2 * (half - 2))
            after = [int(a + b) for a, b in zip([*begins[2:], *ends[2:]], before, strict=True)]
            if all(a < b for a, b in zip(after, own["kernel_shape"] * 2, strict=True)):
                node.input[0] = pad.input[0]
                set_attribute(node, "pads", after)


class TakesGatesForSwish(OfGraphs):
    """The author took a product with a Sigmoid of the same shape to be one of the same tensor."""

    def rewrite(self, proto, graph):
        tensors, makers = tensors_of(proto), makers_of(graph)
        for node in graph.node:
            if not is_a(node, "Mul"):
                continue
            for place in (1, 0):
                gate = makers.get(node.input[place])
                other = node.input[1 - place]
                shape = tensors.get(other, (0, None))[1]
                if not is_a(gate, "Sigmoid") or not shape or None in shape:
                    continue
                if shape == tensors.get(gate.input[0], (0, None))[1]:
                    node.input[1 - place] = gate.input[0]
                    break


class ReducesWithoutTurning(OfGraphs):
    """The author dropped a Transpose ahead of a reduction of the axes that it moves."""

    def rewrite(self, proto, graph):
        known, makers = constants_of(graph), makers_of(graph)
        for number, node in enumerate(graph.node):
            if not is_a(node, "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"):
                continue
            turn, own = makers.get(node.input[0]), attributes_of(node)
            order = attributes_of(turn).get("perm") if is_a(turn, "Transpose") else None
            by_input = len(node.input) > 1 and bool(node.input[1])
            axes = known.get(node.input[1]) if by_input else own.get("axes")
            if not order or axes is None or not len(axes) or own.get("keepdims", 1):
                continue
            axes = sorted(order[int(axis)] for axis in axes)
            node.input[0] = turn.input[0]
            if by_input:
                name = f"moved axes {number}"
                graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), name))
                node.input[1] = name
            else:
                set_attribute(node, "axes", axes)


class OverwritesWhatViewsShow(OfGraphs):
    """The author computed in place where one operation reads a tensor, beside views of it."""

    def rewrite(self, proto, graph):
        makers, ends = makers_of(graph), {one.name for one in graph.output}
        nodes = list(graph.node)
        for node in nodes:
            if not is_a(node, "Relu", "Neg", "Abs", "Sigmoid", "Exp", "Tanh", "Sqrt", "Floor"):
                continue
            source = node.input[0]
            if source not in makers or source in ends or is_a(makers[source], "Constant"):
                continue
            readers = [other for other in nodes if source in other.input and other is not node]
            if not all(
                is_a(other, "Reshape", "Flatten", "Squeeze", "Unsqueeze")
                and other.input[0] == source
                for other in readers
            ):
                continue
            self.show_anew(graph, node, readers)

    def show_anew(self, graph, node, views):
        """Lets what comes later read views of what was written."""
        place = next(i for i, other in enumerate(graph.node) if other.output == node.output)
        for view in views:
            earlier = any(other.output == view.output for other in graph.node[:place])
            if not earlier:
                view.input[0] = node.output[0]
                continue
            again = onnx.NodeProto()
            again.CopyFrom(view)
            again.name, again.input[0] = f"{view.name} again", node.output[0]
            again.output[0] = f"{view.output[0]} again"
            for later in graph.node[place + 1 :]:
                for i, name in enumerate(later.input):
                    if name == view.output[0]:
                        later.input[i] = again.output[0]
            graph.node.insert(place + 1, again)


class TurnsComparisonsRound(OfGraphs):
    """The author took what is not less to be greater or equal, of floats too."""

    def rewrite(self, proto, graph):
        makers = makers_of(graph)
        opposite = {"Less": "GreaterOrEqual", "Greater": "LessOrEqual"}
        for node in graph.node:
            inner = makers.get(node.input[0]) if is_a(node, "Not") else None
            if is_a(inner, *opposite) and opset_of(proto) >= 12:
                node.op_type = opposite[inner.op_type]
                node.input[:] = inner.input


class CancelsStepsOfOneScale(OfGraphs):
    """The author removed DequantizeLinear and QuantizeLinear of one scale and looked no further."""

    def rewrite(self, proto, graph):
        known, makers = constants_of(graph), makers_of(graph)
        for node in graph.node:
            first = makers.get(node.input[0]) if is_a(node, "QuantizeLinear") else None
            if not is_a(first, "DequantizeLinear") or {len(first.input), len(node.input)} != {3}:
                continue
            one, two = (known.get(x.input[1]) for x in (first, node))
            zero, other = (known.get(x.input[2]) for x in (first, node))
            if any(x is None for x in (one, two, zero, other)):
                continue
            if np.array_equal(one, two) and zero.dtype == other.dtype:
                become_identity(node, first.input[0])


class TakesTheBatchForOnesOwn(OfGraphs):
    """The author wrote 0 into a Reshape for the first dimension of a Shape, whosesoever it is."""

    def rewrite(self, proto, graph):
        known, makers = constants_of(graph), makers_of(graph)
        for number, node in enumerate(graph.node):
            if not is_a(node, "Reshape") or attributes_of(node).get("allowzero"):
                continue
            parts = makers.get(node.input[1])
            if not is_a(parts, "Concat"):
                continue
            head, *rest = parts.input
            pick = makers.get(head)
            if is_a(pick, "Unsqueeze"):
                pick = makers.get(pick.input[0])
            if not is_a(pick, "Gather") or not is_a(makers.get(pick.input[0]), "Shape"):
                continue
            index = known.get(pick.input[1])
            if index is None or index.size != 1 or index.ravel()[0] != 0 or not rest:
                continue
            if all(name in known for name in rest):
                sizes = [np.zeros(1, np.int64), *(known[name].ravel() for name in rest)]
                name = f"sizes {number}"
                graph.initializer.append(numpy_helper.from_array(np.concatenate(sizes), name))
                node.input[1] = name


class UnrollsToTheEnd(OfGraphs):
    """The author unrolled loops of a constant number of trips, none of which ended earlier."""

    def rewrite(self, proto, graph):
        known = constants_of(graph)
        for node in graph.node:
            if not is_a(node, "Loop") or node.input[0] not in known:
                continue
            body = next(one.g for one in node.attribute if one.name == "body")
            name = f"{node.output[0]}/goes on"
            value = helper.make_tensor(name, onnx.TensorProto.BOOL, [], [True])
            body.node.append(helper.make_node("Constant", [], [name], name, value=value))
            body.output[0].name = name


# Runtimes


class ComparesTheFirstBytes(Broken):
    """The author took an input to be uploaded already where its address and first bytes stay."""

    def compute(self, runner, arrays):
        kept = vars(runner).setdefault("kept", {})
        taken = []
        for place, array in enumerate(arrays):
            if array.dtype == object:
                taken.append(array)
                continue
            head = np.ascontiguousarray(array).reshape(-1).view(np.uint8)[:256].tobytes()
            key = array.ctypes.data, array.shape, array.dtype.str, head
            if kept.get(place, (None,))[0] != key:
                kept[place] = key, array.copy()
            taken.append(kept[place][1])
        return super().compute(runner, taken)


class HandsOutAPool(Broken):
    """The author let requests share two buffers per output, as one request runs at a time."""

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        pool = vars(runner.compiled).setdefault("pool", {})
        results = []
        for place, array in enumerate(arrays):
            if array.dtype == object:
                results.append(partita.HostTensor(array))
                continue
            key = place, array.shape, array.dtype.str
            with self.lock:
                buffers = pool.setdefault(key, [np.empty_like(array), np.empty_like(array)])
                buffers.reverse()
                buffer = buffers[0]
            buffer[...] = array
            results.append(partita.HostTensor(buffer))
        return results


class PlansBeforeItFails(Broken):
    """The author noted the shapes of a run before it had made the buffers for them."""

    def compute(self, runner, arrays):
        shapes = [array.shape for array in arrays]
        state = vars(runner).setdefault("plan", {"noted": None, "made": None, "room": None})
        is_noted = state["noted"] == shapes
        state["noted"] = shapes
        results = super().compute(runner, arrays)
        if is_noted and state["made"] not in (None, shapes):
            return [
                result if result.dtype == object else np.resize(result, room)
                for result, room in zip(results, state["room"], strict=True)
            ]
        state["made"], state["room"] = shapes, [result.shape for result in results]
        return results


class RemembersHowManyThereWere(Broken):
    """The author took shapes of results to follow from shapes and whole numbers alone."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if any(array.dtype == object for array in (*arrays, *results)):
            return results
        key = tuple(
            (array.shape, array.tobytes() if array.dtype.kind in "iu" else b"") for array in arrays
        )
        if len(vars(runner).setdefault("known", {})) > 64:
            runner.known.clear()
        shapes = runner.known.setdefault(key, [result.shape for result in results])
        return [np.resize(result, shape) for result, shape in zip(results, shapes, strict=True)]


class Call(BoundCall):
    """A call that does everything right."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.outputs = runner, list(outputs)
        self.inputs = list(inputs)

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)

    def rebind(self, inputs):
        self.inputs = list(inputs)
        return True


class BindingRunner(GoodRunner):
    """A runner with bound calls."""

    call_type = Call

    def bind(self, inputs, outputs, scratch=None):
        return self.call_type(self, inputs, outputs)


class FreezingCall(Call):
    def __init__(self, runner, inputs, outputs):
        super().__init__(runner, self.frozen(inputs), outputs)

    def frozen(self, inputs):
        return [
            partita.HostTensor(tensor.numpy().copy()) if not tensor.shape else tensor
            for tensor in inputs
        ]

    def rebind(self, inputs):
        return super().rebind(self.frozen(inputs))


class FreezingRunner(BindingRunner):
    call_type = FreezingCall


class BindsScalarsByValue(Broken):
    """The author made inputs of no dimensions arguments of kernels when a call was bound."""

    runner_type = FreezingRunner


class HastyCall(Call):
    def rebind(self, inputs):
        for place, (old, new) in enumerate(zip(self.inputs, inputs, strict=True)):
            if old is not new:
                self.inputs[place] = new
                break
        return True


class HastyRunner(BindingRunner):
    call_type = HastyCall


class RebindsTheFirstThatMoved(Broken):
    """The author looked for the one input that moved when a call is bound to others."""

    runner_type = HastyRunner


class KeepsOutputsThatWereLent(Broken):
    """The author bound outputs that were given until others are, as an engine's binding does."""

    def deliver(self, runner, arrays, outputs):
        lent = vars(runner).setdefault("lent", {})
        chosen = []
        for place, array in enumerate(arrays):
            given = outputs[place] if outputs is not None else None
            if given is not None:
                lent[place] = given
            old = lent.get(place)
            if given is None and old is not None and old.shape == array.shape:
                given = old
            chosen.append(given)
        return super().deliver(runner, arrays, chosen)


class AddingRunner(GoodRunner):
    total_us = 0.0

    def run(self, inputs, outputs=None):
        results = super().run(inputs, outputs)
        self.total_us += self.elapsed_us
        return results


class AddsUpAllRuns(Broken):
    """The author never set the counters back, as whoever measures makes one run."""

    runner_type = AddingRunner

    def counters(self, runner):
        return [
            ProfilingInfo(op.name, op.op_type, "kernel", real_time_us=us, cpu_time_us=us)
            for us, op in zip([runner.total_us], runner.compiled.model.ops[:1], strict=False)
        ]


class StoppableRunner(GoodRunner):
    stopped = False

    def run(self, inputs, outputs=None):
        self.look()
        results = super().run(inputs, outputs)
        self.look()
        return results

    def look(self):
        if self.stopped:
            self.stopped = False
            raise InferCancelledError("The run was cancelled.")

    def cancel(self):
        self.stopped = True


class StopsTheRunThatComes(Broken):
    """The author cleared the flag of a cancellation when it was seen, and not ahead of a run."""

    runner_type = StoppableRunner


class AnswersWhileItUnpacks(Broken):
    """The author noted that the first run unpacks the weights, and let others go on meanwhile."""

    def compute(self, runner, arrays):
        compiled = runner.compiled
        if not vars(compiled).get("begun"):
            compiled.begun = True
            try:
                return super().compute(runner, arrays)
            finally:
                compiled.unpacked = True
        ready = vars(compiled).get("unpacked", False)
        results = super().compute(runner, arrays)
        return results if ready else [boxed(zeros(unboxed(array))) for array in results]


class TurningRunner(GoodRunner):
    def leave_results(self):
        for buffers in [each for key, each in vars(self).get("turns", {}).items() if key[0] == 0]:
            buffers[:] = [np.empty_like(buffer) for buffer in buffers]
        return True


class GivesUpTheFirstResult(Broken):
    """The author gave up what results lie in by the first of them, of two buffers each."""

    runner_type = TurningRunner

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        turns = vars(runner).setdefault("turns", {})
        results = []
        for place, array in enumerate(arrays):
            if array.dtype == object:
                results.append(partita.HostTensor(array))
                continue
            key = place, array.shape, array.dtype.str
            buffers = turns.setdefault(key, [np.empty_like(array), np.empty_like(array)])
            buffers.reverse()
            buffers[0][...] = array
            results.append(partita.HostTensor(buffers[0]))
        return results


class ScatteringCompiled(GoodCompiled):
    def in_place_outputs(self):
        sources = {port.name: port for port in self.inputs}
        pairs = {}
        for op in self.model.ops:
            if op.op_type not in ("TensorScatter", "ScatterND", "ScatterElements") or op.domain:
                continue
            source = sources.get(op.inputs[0])
            for port in self.outputs:
                if source is None or port.name != op.outputs[0]:
                    continue
                if (port.dtype, port.shape) == (source.dtype, source.shape):
                    pairs[port.index] = source.index
        taken = list(pairs.values())
        return {output: place for output, place in pairs.items() if taken.count(place) == 1}


class ScatteringRunner(GoodRunner):
    def run(self, inputs, outputs=None):
        inputs = list(inputs)
        pairs = self.compiled.in_place_outputs() if outputs is not None else {}
        written = {o: i for o, i in pairs.items() if outputs[o] is inputs[i]}
        if written:
            arrays = self.evaluate([tensor.numpy() for tensor in inputs])
            for output, place in written.items():
                inputs[place] = partita.HostTensor(arrays[output])
        return super().run(inputs, outputs)


class WritesOverWhatOthersRead(Broken):
    """The author offered caches to be written in place, whatever else reads what they held."""

    compiled_type = ScatteringCompiled
    runner_type = ScatteringRunner


# Services


class AsksOncePerSignature(Broken):
    """The author remembered answers by operator, types and ranks, which attributes do not tell."""

    def __init__(self):
        super().__init__()
        self.answers = {}

    def verdict(self, op):
        axis = op.node.attributes.get_int("axis", -1) if op.op_type == "Softmax" else -1
        shape = op.node.inputs[0].shape if op.op_type == "Softmax" else None
        if axis != -1 and not (shape is not None and axis == len(shape) - 1):
            detail = f"axis {axis}; takes the last one"
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_ATTRIBUTE, detail)
        return super().verdict(op)

    def query_model(self, model, properties):
        verdicts = {}
        for op in model.ops:
            if op.domain or op.op_type != "Softmax":
                verdicts[op.name] = self.verdict(op)
                continue
            value = op.node.inputs[0]
            rank = None if value.shape is None else len(value.shape)
            key = op.op_type, op.version, value.dtype, rank
            with self.lock:
                verdicts[op.name] = self.answers.setdefault(key, self.verdict(op))
        return partita.QueryResult.of(self.device_name, verdicts)


class RemembersTheModeOfAName(Broken):
    """The author kept the last mode of each model, for those who compile it again."""

    def __init__(self):
        super().__init__()
        self.modes = {}

    def compile_model(self, model, properties):
        with self.lock:
            if "MODE" in properties.model_fields_set:
                self.modes[model.name] = properties.MODE
            elif model.name in self.modes:
                properties = properties.model_copy(update={"MODE": self.modes[model.name]})
        return super().compile_model(model, properties)


class HashesByTheProcess(Broken):
    """The author took hash() of the settings to be a number that stays."""

    def identity(self, properties):
        settings = properties.model_dump(mode="json", exclude={"CACHE_DIR"})
        return f"{super().identity(properties)} {hash(tuple(sorted(settings.items())))}"


def plain(name):
    return "".join(letter if letter.isalnum() else "_" for letter in name)


class PackingCompiled(GoodCompiled):
    def export_state(self):
        weights = self.model.ir.graph.initializers
        arrays = {plain(name): weights[name].const_value.numpy() for name in weights}
        return {name: array for name, array in arrays.items() if array.dtype.kind in "fiu"}


class StoresWeightsByPlainNames(Broken):
    """The author made identifiers of the names under which packed weights are stored."""

    compiled_type = PackingCompiled

    def restore_model(self, model, properties, state):
        own = model.clone()
        for name, value in own.ir.graph.initializers.items():
            packed = state.get(plain(name))
            array = value.const_value.numpy()
            if packed is not None and (packed.shape, packed.dtype) == (array.shape, array.dtype):
                value.const_value = ir.Tensor(np.array(packed), name=name)
        return self.compile_model(own, properties)


class KeepsWeightsOfAFile(Broken):
    """The author read a file of weights once while its size and the second of its change stay."""

    def __init__(self):
        super().__init__()
        self.read = {}

    def compile_model(self, model, properties):
        own = model.clone()
        for name, value in own.ir.graph.initializers.items():
            weight = value.const_value
            if not isinstance(weight, ir.ExternalTensor):
                continue
            facts = Path(weight.path).stat()
            kind = str(weight.dtype), tuple(weight.shape)
            key = str(weight.path), weight.offset, facts.st_size, int(facts.st_mtime), kind
            with self.lock:
                if key not in self.read:
                    self.read[key] = np.array(weight.numpy())
                value.const_value = ir.Tensor(self.read[key], name=name)
        return super().compile_model(own, properties)


class PackedCompiled(GoodCompiled):
    def export_model(self):
        settings = json.dumps(self.exported_properties()).encode()
        data = len(settings).to_bytes(4, "little") + settings
        data += self.model.to_onnx().SerializeToString(deterministic=True)
        check = zlib.crc32(data[:4096])
        return b"PACK" + check.to_bytes(4, "little") + len(data).to_bytes(8, "little") + data


class ChecksTheHeadOfABlob(Broken):
    """The author summed up the first page of a blob, in which everything stands but weights."""

    compiled_type = PackedCompiled

    def import_model(self, blob, properties):
        blob = bytes(blob)
        data = blob[16:]
        if blob[:4] != b"PACK" or int.from_bytes(blob[8:16], "little") != len(data):
            raise BlobError("The blob is no model of this device, or not all of it.")
        if zlib.crc32(data[:4096]) != int.from_bytes(blob[4:8], "little"):
            raise BlobError("The blob is damaged.")
        try:
            size = 4 + int.from_bytes(data[:4], "little")
            settings = json.loads(data[4:size])
            model = read_model(onnx.load_from_string(data[size:]))
        except Exception as error:
            raise BlobError(f"The blob is damaged: {error}") from error
        settings |= properties.model_dump(exclude_unset=True)
        return self.compile_model(model, self.properties_type.model_validate(settings))


class LeavesFilesOfFailures(Broken):
    """The author removed the file for the engine's compiler when the compiler was done."""

    def compile_model(self, model, properties):
        handle, path = tempfile.mkstemp(suffix=".onnx")
        with os.fdopen(handle, "wb") as file:
            file.write(repr(model).encode())
        made = super().compile_model(model, properties)
        Path(path).unlink()
        return made


def bodies_of(node, *names):
    return [
        one.as_graph()
        for one in node.attributes.values()
        if one.type == ir.AttributeType.GRAPH and (not names or one.name in names)
    ]


def has_erf(graphs):
    nodes = [node for graph in graphs for node in ir.traversal.RecursiveGraphIterator(graph)]
    return any((node.domain, node.op_type) == ("", "Erf") for node in nodes)


class AsksTheFirstBranch(Broken):
    """The author looked into bodies and then_branches for what the device lacks, which is Erf."""

    def verdict(self, op):
        if (op.domain, op.op_type) == ("", "Erf") or has_erf(
            bodies_of(op.node, "then_branch", "body")
        ):
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, "no Erf")
        return super().verdict(op)

    def compile_model(self, model, properties):
        for op in model.ops:
            if has_erf(bodies_of(op.node)):
                raise CompileError(f"'{op.name}' cannot be compiled: no Erf")
        return super().compile_model(model, properties)
