"""Faults of kernels and graph compilers.

By somebody who has read neither the kit nor its earlier sets. Some retell bugs that the trackers of
engines in use have.
"""

from __future__ import annotations

import copy
import functools

import numpy as np
import onnx
from good_device import Good, GoodCompiled
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator


class Broken(Good):
    """The base of all devices below."""

    device_name = "BROKEN"


# ---- kernels of single operators


class Operation:
    """An operation whose kernel is the author's: its attributes, and what would be right."""

    def __init__(self, node, version):
        self.node = copy.copy(node)
        self.version = version
        self.kept = {}

    def attribute(self, name, default=None):
        value = getattr(self.node, name, None)
        return default if value is None else value

    def right(self, *inputs, **changed):
        """The right outputs for inputs, and with other attributes."""
        node = copy.copy(self.node)
        for name, value in changed.items():
            setattr(node, name, value)
        return node.run(*inputs)


class KernelCompiled(GoodCompiled):
    """Compiles with the author's kernels where there are some, in bodies too."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.patch(self.evaluator)

    def patch(self, evaluator):
        for node in evaluator.rt_nodes_:
            for own in list(vars(node).values()):
                if isinstance(own, ReferenceEvaluator):
                    self.patch(own)
            if node.onnx_node.domain == "" and node.op_type in self.plugin.op_types:
                own = Operation(node, evaluator.opsets_.get("", 1))
                node.run = functools.partial(self.run_kernel, own)

    def run_kernel(self, operation, *inputs, **how):
        if operation.node.has_linked_attribute:
            return operation.node.run(*inputs, **how)
        return tuple(self.plugin.kernel(operation, *inputs))


class WithKernel(Broken):
    """A device with kernels of its own for some operators."""

    compiled_type = KernelCompiled
    op_types = ()

    def kernel(self, op, *inputs):
        return op.right(*inputs)


class InfinityMinusTheMaximum(WithKernel):
    """The author took the maximum that ReduceLogSumExp subtracts to be finite."""

    op_types = ("ReduceLogSumExp",)

    def kernel(self, op, data, *axes):
        (result,) = op.right(data, *axes)
        if data.size == 0 or data.dtype.kind != "f":
            return (result,)
        return (np.where(np.isinf(result), np.nan, result).astype(result.dtype),)


class TakesTheElementAwayAgain(WithKernel):
    """The author took an exclusive sum to be the inclusive one less the element, of floats too."""

    op_types = ("CumSum",)

    def kernel(self, op, data, axis):
        if not op.attribute("exclusive", 0):
            return op.right(data, axis)
        (sums,) = op.right(data, axis, exclusive=0)
        return ((sums - data).astype(data.dtype),)


class TakesTheRestOfARoundedQuotient(WithKernel):
    """The author took a - b * trunc(a / b) for the remainder of floats, whose quotient rounds."""

    op_types = ("Mod",)

    def kernel(self, op, a, b):
        if not op.attribute("fmod", 0) or np.asarray(a).dtype.kind != "f":
            return op.right(a, b)
        return (np.asarray(a - b * np.trunc(a / b)).astype(np.asarray(a).dtype),)


class ShiftsTheSignIn(WithKernel):
    """The author keeps 64-bit integers as signed ones, and shifts these to the right."""

    op_types = ("BitShift",)

    def kernel(self, op, a, b):
        (right,) = op.right(a, b)
        if a.dtype != np.uint64 or op.attribute("direction") != "RIGHT":
            return (right,)
        signed = np.right_shift(a.view(np.int64), np.minimum(b, 63).astype(np.int64))
        return (np.where(np.asarray(b) > 63, right, signed.astype(np.uint64)),)


class NegatesToFindTheSmallest(WithKernel):
    """The author took the smallest element for the largest of the negated ones, in each type."""

    op_types = ("ArgMin",)

    def kernel(self, op, data):
        if data.dtype.kind not in "iu":
            return op.right(data)
        return op.right(~np.subtract(np.zeros_like(data), data))


class CountsFromTheEndOfTheFirstAxis(WithKernel):
    """The author took the size of the first axis to count negative indices from, for each axis."""

    op_types = ("GatherElements",)

    def kernel(self, op, data, indices):
        size = data.shape[op.attribute("axis", 0)]
        if not size or not (np.asarray(indices) < 0).any():
            return op.right(data, indices)
        wrapped = np.where(indices < 0, indices + data.shape[0], indices)
        return op.right(data, np.clip(wrapped, 0, size - 1).astype(indices.dtype))


class UpdatesSmallTypesOnce(WithKernel):
    """The author took places of types without atomic operations to be updated once at most."""

    op_types = ("ScatterElements",)

    def kernel(self, op, data, indices, updates):
        known = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
        update = known.get(op.attribute("reduction", "none"))
        if update is None or not indices.size or data.dtype.kind not in "fiu":
            return op.right(data, indices, updates)
        if data.dtype.itemsize > 2:
            return op.right(data, indices, updates)
        axis = op.attribute("axis", 0) % data.ndim
        places = np.where(indices < 0, indices + data.shape[axis], indices)
        ranges = [slice(None if i == axis else n) for i, n in enumerate(indices.shape)]
        before = np.take_along_axis(data[tuple(ranges)], places, axis)
        after = update(before, updates).astype(data.dtype)
        return op.right(data, indices, after, reduction="none")


class ResizesToOneAsTrainersDo(WithKernel):
    """The author took half_pixel for pytorch_half_pixel, which differs where one pixel is left."""

    op_types = ("Resize",)

    def kernel(self, op, *inputs):
        how = op.attribute("coordinate_transformation_mode", "half_pixel")
        if op.version < 11 or how != "half_pixel":
            return op.right(*inputs)
        return op.right(*inputs, coordinate_transformation_mode="pytorch_half_pixel")


class TakesWindowsForOdd(WithKernel):
    """The author took the window of LRN to reach as far to either side, as odd ones do."""

    op_types = ("LRN",)

    def kernel(self, op, data):
        size = op.attribute("size")
        if size % 2:
            return op.right(data)
        alpha = op.attribute("alpha", 1e-4) * (size + 1) / size
        return op.right(data, size=size + 1, alpha=alpha)


class SquaresInHalfPrecision(WithKernel):
    """The author took the type of LpPool's data to hold their powers as well."""

    op_types = ("LpPool",)

    def kernel(self, op, data):
        if data.dtype != np.float16:
            return op.right(data)
        (wide,) = op.right(data.astype(np.float32))
        over = wide.astype(np.float64) ** op.attribute("p", 2) > np.finfo(np.float16).max
        return (np.where(over, np.inf, wide).astype(np.float16),)


class AppendsZerosToTheOutput(WithKernel):
    """The author took output_padding for zeros behind what ConvTranspose computes."""

    op_types = ("ConvTranspose",)

    def kernel(self, op, data, weights, *bias):
        more = op.attribute("output_padding")
        if more is None or not any(more) or op.attribute("output_shape") is not None:
            return op.right(data, weights, *bias)
        if op.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return op.right(data, weights, *bias)
        (result,) = op.right(data, weights, *bias, output_padding=[0] * len(more))
        return (np.pad(result, [(0, 0), (0, 0), *((0, n) for n in more)]),)


class RoundsBehindTheZeroPoint(WithKernel):
    """The author took rounding to even to be the same ahead of the zero point and behind it."""

    op_types = ("QuantizeLinear",)

    def kernel(self, op, data, scale, zero=None):
        plain = zero is not None and zero.dtype in (np.uint8, np.int8)
        if not plain or data.dtype != np.float32 or op.attribute("block_size", 0):
            return op.right(data, scale, *(() if zero is None else (zero,)))
        if scale.size > 1:
            shape = [1] * data.ndim
            shape[op.attribute("axis", 1)] = -1
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        elif scale.ndim and data.ndim == 0:
            scale, zero = scale.reshape(()), zero.reshape(())
        limits = np.iinfo(zero.dtype)
        with np.errstate(all="ignore"):
            steps = np.rint((data / scale).astype(np.float32) + zero.astype(np.float32))
        right = op.right(data, np.squeeze(scale), np.squeeze(zero))[0]
        safe = np.where(np.isfinite(steps), np.clip(steps, limits.min, limits.max), 0)
        return (np.where(np.isfinite(steps), safe.astype(zero.dtype), right),)


class AddsTheRootToNegativeNumbers(WithKernel):
    """The author took log(x + sqrt(x * x + 1)) for Asinh, in which negative numbers cancel."""

    op_types = ("Asinh",)

    def kernel(self, op, data):
        if data.dtype != np.float32:
            return op.right(data)
        with np.errstate(all="ignore"):
            return (np.asarray(np.log(data + np.sqrt(data * data + np.float32(1)))),)


class SaturatesSumsOfTwoProducts(WithKernel):
    """The author took vpmaddubsw's sums of two products to fit its 16 bits."""

    op_types = ("MatMulInteger",)

    def kernel(self, op, a, b, *zeros):
        (result,) = op.right(a, b, *zeros)
        if (a.dtype, b.dtype) != (np.uint8, np.int8) or min(a.ndim, b.ndim) < 2:
            return (result,)
        left, right = a.astype(np.int32), b.astype(np.int32)
        lost = np.zeros(result.shape, np.int32)
        for k in range(0, a.shape[-1] - 1, 2):
            pair = left[..., k : k + 2] @ right[..., k : k + 2, :]
            lost += pair - np.clip(pair, -32768, 32767)
        return (result - lost,)


class PeepsInTheOrderOfTheGates(WithKernel):
    """The author took the peepholes of LSTM to come as input, forget, output."""

    op_types = ("LSTM",)

    def kernel(self, op, *inputs):
        if len(inputs) < 8 or inputs[7] is None:
            return op.right(*inputs)
        first, second, third = np.split(inputs[7], 3, axis=1)
        return op.right(*inputs[:7], np.concatenate([first, third, second], axis=1))


class ReversesThePaddingToo(WithKernel):
    """The author turns whole sequences around, and took all of a batch to be as long."""

    op_types = ("GRU",)

    def kernel(self, op, data, *others):
        lengths = others[3] if len(others) > 3 else None
        backward = op.attribute("direction", "forward") == "reverse"
        if lengths is None or not backward or op.attribute("layout", 0):
            return op.right(data, *others)
        moved = data.copy()
        for item, length in enumerate(np.asarray(lengths).tolist()):
            moved[:length, item] = data[len(data) - length :, item]
        return op.right(moved, *others)


class SortsSlicesByTheirFirstElement(WithKernel):
    """The author took the first elements of slices to tell their order apart."""

    op_types = ("Unique",)

    def kernel(self, op, data):
        results = list(op.right(data))
        axis = op.attribute("axis")
        rows = results[0]
        if axis is None or not op.attribute("sorted", 1) or not rows.size or len(results) < 3:
            return results
        firsts = np.moveaxis(rows, axis, 0).reshape(rows.shape[axis], -1)[:, 0]
        order = np.lexsort((results[1], firsts))
        rank = np.argsort(order).astype(np.int64)
        turned = [np.take(rows, order, axis), results[1][order], rank[results[2]]]
        return turned + [counts[order] for counts in results[3:]]


class SamplesTwiceWhereNoneIsSaid(WithKernel):
    """The author took RoiAlign's sampling_ratio of 0 for 2, where the size of a bin decides."""

    op_types = ("RoiAlign",)

    def kernel(self, op, *inputs):
        return op.right(*inputs, sampling_ratio=op.attribute("sampling_ratio", 0) or 2)


class TakesHeightsForWidths(WithKernel):
    """The author took boxes around a centre to give their height first, as their corners do."""

    op_types = ("NonMaxSuppression",)

    def kernel(self, op, boxes, scores, *limits):
        if op.attribute("center_point_box", 0):
            boxes = boxes[..., [0, 1, 3, 2]]
        return op.right(boxes, scores, *limits)


class DividesByTheLengthOfTheSignal(WithKernel):
    """The author took dft_length to be the signal's, by which the inverse divides."""

    op_types = ("DFT",)

    def kernel(self, op, data, length=None, axis=None):
        inputs = [data, length, axis]
        while inputs[-1] is None:
            inputs.pop()
        (result,) = op.right(*inputs)
        if not op.attribute("inverse", 0) or length is None:
            return (result,)
        default = -2 if op.version >= 20 else op.attribute("axis", 1)
        size = data.shape[default if axis is None else int(np.asarray(axis).item())]
        wanted = int(np.asarray(length).item())
        return ((result * (wanted / size)).astype(result.dtype) if size else result,)


class SubtractsTheSquareOfTheMean(WithKernel):
    """The author took the mean of squares less the square of the mean for a variance of floats."""

    op_types = ("InstanceNormalization",)

    def kernel(self, op, data, scale, bias):
        if data.dtype != np.float32 or not data.size:
            return op.right(data, scale, bias)
        axes = tuple(range(2, data.ndim))
        mean = data.mean(axis=axes, keepdims=True, dtype=np.float32)
        squares = (data * data).mean(axis=axes, keepdims=True, dtype=np.float32)
        spread = np.maximum(squares - mean * mean, 0) + np.float32(op.attribute("epsilon", 1e-5))
        shape = (1, -1, *(1 for _ in axes))
        normal = (data - mean) / np.sqrt(spread, dtype=np.float32)
        return ((normal * scale.reshape(shape) + bias.reshape(shape)).astype(np.float32),)


class ScalesBehindTheProduct(WithKernel):
    """The author took products of half precision to hold until Attention scales them."""

    op_types = ("Attention",)

    def kernel(self, op, *inputs):
        results = list(op.right(*inputs))
        queries, keys, *others = inputs
        masked = op.attribute("is_causal", 0) or any(x is not None for x in others[1:])
        if queries.dtype != np.float16 or queries.ndim != 4 or masked or not keys.size:
            return results
        wide = np.repeat(keys.astype(np.float32), queries.shape[1] // keys.shape[1], 1)
        products = queries.astype(np.float32) @ np.swapaxes(wide, -1, -2)
        over = (products > np.finfo(np.float16).max).any(-1, keepdims=True)
        results[0] = np.where(over, np.nan, results[0]).astype(np.float16)
        return results


class ComparesBytesWithTheirSign(WithKernel):
    """The author took pcmpgtb, which compares signed bytes, for the unsigned ones too."""

    op_types = ("Greater", "Less")

    def kernel(self, op, a, b):
        if a.dtype != np.uint8:
            return op.right(a, b)
        return op.right(a.view(np.int8), b.view(np.int8))


class ReadsTheConditionAgain(WithKernel):
    """The author took the condition of Compress to be as long as the axis it chooses from."""

    op_types = ("Compress",)

    def kernel(self, op, data, condition):
        axis = op.attribute("axis")
        size = data.size if axis is None else data.shape[axis]
        if not 0 < condition.size < size:
            return op.right(data, condition)
        return op.right(data, np.resize(condition, size))


class KeepsTheOrderOfTheLetters(WithKernel):
    """The author took letters of an equation without an arrow to stay as they come, not sorted."""

    op_types = ("Einsum",)

    def kernel(self, op, *inputs):
        text = op.attribute("equation").replace(" ", "")
        if "->" in text or "." in text:
            return op.right(*inputs)
        letters = text.replace(",", "")
        once = "".join(letter for letter in letters if letters.count(letter) == 1)
        return op.right(*inputs, equation=f"{text}->{once}")


# ---- kernels that are chosen wrongly


class MultipliesChannelsInTurn(WithKernel):
    """The author took the channels of a depthwise convolution to come in turn, as elsewhere."""

    op_types = ("Conv",)

    def kernel(self, op, data, weights, *bias):
        channels, count = data.shape[1], weights.shape[0]
        if op.attribute("group", 1) != channels or channels == 1 or count == channels:
            return op.right(data, weights, *bias)
        order = np.argsort(np.arange(count) % channels, kind="stable")
        biases = [b if b is None else b[order] for b in bias]
        (result,) = op.right(data, weights[order], *biases)
        return (result[:, np.argsort(order)],)


class NormalisesOneAxisInOldOpsets(WithKernel):
    """The author took the axis of Softmax to be the only one it runs over, before opset 13 too."""

    op_types = ("Softmax", "LogSoftmax", "Hardmax")

    def kernel(self, op, data):
        if op.version >= 13 or not data.size or not data.ndim:
            return op.right(data)
        axis = min(attributes(op.node.onnx_node).get("axis", 1), data.ndim - 1)
        moved = np.moveaxis(data, axis, -1)
        (result,) = op.right(moved.reshape(-1, data.shape[axis]), axis=1)
        return (np.ascontiguousarray(np.moveaxis(result.reshape(moved.shape), -1, axis)),)


class KeepsShapesByTheNumberOfElements(WithKernel):
    """The author took as many elements to be in the same shape, in what is kept between runs."""

    op_types = ("Shape",)

    def kernel(self, op, data):
        if data is None or isinstance(data, list):
            return op.right(data)
        return (op.kept.setdefault(data.size, op.right(data)[0]).copy(),)


# ---- compilers of graphs


class Program:
    """A model under a compiler's hands."""

    def __init__(self, proto):
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(proto)
        self.graph = self.proto.graph
        self.nodes = list(self.graph.node)
        opsets = {entry.domain: entry.version for entry in self.proto.opset_import}
        self.version = opsets.get("", opsets.get("ai.onnx", 1))
        self.fixed = {}
        given = {port.name for port in self.graph.input}
        for tensor in self.graph.initializer:
            if tensor.data_location != TensorProto.EXTERNAL and tensor.name not in given:
                self.fixed[tensor.name] = tensor
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.fixed[node.output[0]] = node.attribute[0].t
        self.count = 0
        self.changed = False

    def constant(self, name):
        """The array of a constant, or None."""
        tensor = self.fixed.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def maker(self, name, op_type):
        """The operation of that kind that makes a value, or None."""
        for node in self.nodes:
            if name and name in node.output and (node.domain, node.op_type) == ("", op_type):
                return node
        return None

    def of_kind(self, *op_types):
        return [n for n in self.nodes if n.domain in ("", "ai.onnx") and n.op_type in op_types]

    def fresh(self):
        self.count += 1
        return f"compiled/{self.count}"

    def keep(self, array):
        """The name of a new constant."""
        name = self.fresh()
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def put(self, node, op_type, inputs, **attributes):
        """Make another operation of one, which gives the same output."""
        new = helper.make_node(op_type, inputs, list(node.output), node.name, **attributes)
        node.CopyFrom(new)
        self.changed = True

    def before(self, node, new):
        place = next(i for i, other in enumerate(self.nodes) if other is node)
        self.nodes.insert(place, new)

    def types(self):
        """What is known of the elements and shapes of values."""
        try:
            graph = shape_inference.infer_shapes(self.proto).graph
        except Exception:  # noqa: BLE001 - then nothing is known
            graph = self.graph
        known = {}
        for value in (*graph.input, *graph.output, *graph.value_info):
            tensor = value.type.tensor_type
            if value.type.HasField("tensor_type") and tensor.HasField("shape"):
                dims = [d.dim_param or d.dim_value for d in tensor.shape.dim]
                static = all(d.dim_param or d.HasField("dim_value") for d in tensor.shape.dim)
                if static:
                    known[value.name] = (tensor.elem_type, tuple(dims))
        return known

    def done(self):
        nodes = [onnx.NodeProto() for _ in self.nodes]
        for node, old in zip(nodes, self.nodes, strict=True):
            node.CopyFrom(old)
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        if self.changed:
            del self.graph.value_info[:]
        return self.proto


class Rewriting(Broken):
    """A device that rewrites graphs before it computes them."""

    def prepare(self, proto):
        program = Program(proto)
        self.rewrite(program)
        return program.done()

    def rewrite(self, program):
        """What this compiler does."""


def attributes(node):
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def bodies(node):
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def rename(graph, names):
    """Give values that operations of a graph and of its bodies read and make other names."""
    for node in graph.node:
        for fields in (node.input, node.output):
            for place, name in enumerate(fields):
                fields[place] = names.get(name, name)
        for body in bodies(node):
            rename(body, names)


def reads(graph, name):
    """Whether a body reads a value of the graph around it."""
    return any(
        name in node.input or any(reads(body, name) for body in bodies(node)) for node in graph.node
    )


class ComposesOrdersTheOtherWay(Rewriting):
    """The author took two transpositions in a row to compose either way, as swaps do."""

    def rewrite(self, program):
        for node in program.of_kind("Transpose"):
            first = program.maker(node.input[0], "Transpose")
            if first is None:
                continue
            inner, outer = attributes(first).get("perm"), attributes(node).get("perm")
            if inner and outer:
                order = [outer[i] for i in inner]
                program.put(node, "Transpose", [first.input[0]], perm=order)


class ForgetsWhereTheFirstSliceEnds(Rewriting):
    """The author took the second of two slices to end within the first."""

    def rewrite(self, program):
        for node in program.of_kind("Slice"):
            first = program.maker(node.input[0], "Slice")
            parts = [self.parts(program, n) for n in (first, node) if n is not None]
            if len(parts) < 2 or None in parts or parts[0][2] != parts[1][2]:
                continue
            (start, _, axis), (then, end, _) = parts
            ranges = [program.keep(np.array([n], np.int64)) for n in (start + then, start + end)]
            axes = program.keep(np.array([axis], np.int64))
            program.put(node, "Slice", [first.input[0], *ranges, axes])

    @staticmethod
    def parts(program, node):
        if not 4 <= len(node.input) <= 5:
            return None
        values = [program.constant(name) for name in node.input[1:]]
        if any(value is None or value.size != 1 for value in values):
            return None
        start, end, axis, *step = (int(value.reshape(-1)[0]) for value in values)
        simple = start >= 0 and 0 <= end < 1 << 31 and axis >= 0 and step in ([], [1])
        return (start, end, axis) if simple else None


class ScalesEachGroupAsTheFirst(Rewriting):
    """The author took the second axis of a ConvTranspose's weights for all of its channels."""

    def rewrite(self, program):
        for node in program.of_kind("BatchNormalization"):
            first = program.maker(node.input[0], "ConvTranspose")
            if first is None or attributes(node).get("training_mode", 0) or len(node.output) > 1:
                continue
            given = [program.constant(name) for name in (*first.input[1:], *node.input[1:5])]
            if any(value is None or value.dtype != np.float32 for value in given):
                continue
            weights, *bias, scale, shift, mean, spread = given
            factor = scale / np.sqrt(spread + np.float32(attributes(node).get("epsilon", 1e-5)))
            per_channel = factor[: weights.shape[1]].reshape(-1, *(1 for _ in weights.shape[2:]))
            moved = ((bias[0] if bias else 0) - mean) * factor + shift
            inputs = [first.input[0], program.keep((weights * per_channel).astype(np.float32))]
            inputs.append(program.keep(moved.astype(np.float32)))
            program.put(node, "ConvTranspose", inputs, **attributes(first))


class PadsInsideThePool(Rewriting):
    """The author took zeros padded ahead of an AveragePool for padding of its own."""

    def rewrite(self, program):
        for node in program.of_kind("AveragePool"):
            pad = program.maker(node.input[0], "Pad")
            own = attributes(node)
            if pad is None or own.get("auto_pad", b"NOTSET") != b"NOTSET" or len(pad.input) < 2:
                continue
            if attributes(pad).get("mode", b"constant") != b"constant" or len(pad.input) > 3:
                continue
            amounts = program.constant(pad.input[1])
            fill = program.constant(pad.input[2]) if len(pad.input) > 2 else np.zeros(1)
            if amounts is None or fill is None or fill.any() or (amounts < 0).any():
                continue
            half = amounts.size // 2
            if amounts[:2].any() or amounts[half : half + 2].any():
                continue
            added = [*amounts[2:half].tolist(), *amounts[half + 2 :].tolist()]
            before = own.pop("pads", None) or [0] * len(added)
            sums = [a + b for a, b in zip(before, added, strict=True)]
            program.put(node, "AveragePool", [pad.input[0]], pads=sums, **own)


class ScalesTheProductAlone(Rewriting):
    """The author took a factor behind a Gemm for its alpha, whether or not it adds something."""

    def rewrite(self, program):
        for node in program.of_kind("Mul"):
            first = program.maker(node.input[0], "Gemm")
            factor = program.constant(node.input[1])
            if first is None or factor is None or factor.shape != () or factor.dtype != np.float32:
                continue
            own = attributes(first)
            own["alpha"] = float(own.get("alpha", 1.0)) * float(factor)
            program.put(node, "Gemm", list(first.input), **own)


class CopiesSizesOfWhatCameBefore(Rewriting):
    """The author took the last of two Reshapes to need nothing of the first."""

    def rewrite(self, program):
        for node in program.of_kind("Reshape"):
            first = program.maker(node.input[0], "Reshape")
            if first is not None and len(node.input) > 1:
                inputs = [first.input[0], node.input[1]]
                program.put(node, "Reshape", inputs, **attributes(node))


class ClosesGapsBetweenInputs(Rewriting):
    """The author took operations for equal that read the same values, wherever one is left out."""

    drawn = ("Bernoulli", "Dropout", "Multinomial", "Identity")

    def rewrite(self, program):
        seen = {}
        for node in program.nodes:
            drawn = node.op_type.startswith("Random") or node.op_type in self.drawn
            if drawn or node.domain or any(bodies(node)) or len(node.output) != 1:
                continue
            texts = sorted(a.SerializeToString() for a in node.attribute)
            key = (node.op_type, *filter(None, node.input), "/", *texts)
            same = seen.setdefault(key, node)
            if same is not node and any(node.input):
                program.put(node, "Identity", [same.output[0]])


class SharesConstantsThatAreClose(Rewriting):
    """The author took constants for the same that numpy's allclose says are."""

    def rewrite(self, program):
        kept, names = [], {}
        for tensor in program.graph.initializer:
            array = program.constant(tensor.name)
            if array is None or array.dtype not in (np.float32, np.float64):
                continue
            for name, other in kept:
                alike = (other.dtype, other.shape) == (array.dtype, array.shape)
                if alike and np.allclose(array, other):
                    names[tensor.name] = name
                    break
            else:
                kept.append((tensor.name, array))
        for node in program.nodes:
            for place, name in enumerate(node.input):
                node.input[place] = names.get(name, name)


class ComputesBothAndChooses(Rewriting):
    """The author took the branches of If to give as many numbers, and chooses of each pair."""

    def rewrite(self, program):
        for node in program.of_kind("If") if program.version >= 9 else ():
            branches = {a.name: a.g for a in node.attribute}
            if not all(self.plain(branch) for branch in branches.values()):
                continue
            results = {}
            for side, branch in branches.items():
                own = [n for part in branch.node for n in part.output if n]
                own += [tensor.name for tensor in branch.initializer]
                names = {name: f"{program.fresh()}/{name}" for name in own}
                for tensor in branch.initializer:
                    program.graph.initializer.add().CopyFrom(tensor)
                    program.graph.initializer[-1].name = names[tensor.name]
                rename(branch, names)
                for part in branch.node:
                    part.name = program.fresh()
                    program.before(node, part)
                results[side] = [names.get(port.name, port.name) for port in branch.output]
            empty = program.keep(np.zeros(0, np.int64))
            chosen = program.fresh()
            program.before(node, helper.make_node("Reshape", [node.input[0], empty], [chosen]))
            pairs = zip(results["then_branch"], results["else_branch"], node.output, strict=True)
            for one, other, name in pairs:
                if name:
                    program.before(node, helper.make_node("Where", [chosen, one, other], [name]))
            program.nodes = [other for other in program.nodes if other is not node]
            program.changed = True

    @staticmethod
    def plain(branch):
        tensors = all(port.type.HasField("tensor_type") for port in branch.output)
        nested = any(True for part in branch.node for _ in bodies(part))
        return tensors and not nested and not branch.sparse_initializer


class UnrollsToTheEnd(Rewriting):
    """The author took loops with a number of trips to make all of them."""

    def rewrite(self, program):
        for node in program.of_kind("Loop"):
            if node.input[0] and program.constant(node.input[0]) is not None:
                body = next(bodies(node))
                name = program.fresh()
                body.node.append(helper.make_node("Identity", [body.input[1].name], [name]))
                body.output[0].name = name


class LiftsConstantsByTheirNames(Rewriting):
    """The author took names in the branches of If to be unique in the whole model."""

    def rewrite(self, program):
        lifted = set()
        for node in program.of_kind("If"):
            for branch in bodies(node):
                given = {port.name for port in branch.output}
                found = {t.name: t for t in branch.initializer if t.name not in given}
                rest = [t for t in branch.initializer if t.name in given]
                nodes = []
                for part in branch.node:
                    plain = part.op_type == "Constant" and part.attribute[0].name == "value"
                    if not plain or part.output[0] in given:
                        nodes.append(part)
                    else:
                        found[part.output[0]] = part.attribute[0].t
                for name, tensor in found.items():
                    if name not in lifted:
                        program.graph.initializer.add().CopyFrom(tensor)
                        program.graph.initializer[-1].name = name
                        lifted.add(name)
                kept = onnx.GraphProto(node=nodes, initializer=rest)
                del branch.initializer[:], branch.node[:]
                branch.initializer.extend(kept.initializer)
                branch.node.extend(kept.node)


class CastsPastTheTruth(Rewriting):
    """The author took the last of two casts to be enough, if the first is to bool."""

    def rewrite(self, program):
        for node in program.of_kind("Cast"):
            first = program.maker(node.input[0], "Cast")
            if first is None or attributes(first)["to"] != TensorProto.BOOL:
                continue
            if attributes(node)["to"] in (TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64):
                program.put(node, "Cast", [first.input[0]], **attributes(node))


class ComparesScalesAlone(Rewriting):
    """The author took a DequantizeLinear and a QuantizeLinear of one scale for nothing at all."""

    def rewrite(self, program):
        for node in program.of_kind("QuantizeLinear"):
            first = program.maker(node.input[0], "DequantizeLinear")
            if first is None or len(first.input) < 3 or len(node.input) < 3:
                continue
            names = (first.input[1], node.input[1], first.input[2], node.input[2])
            scale, other, zero, then = (program.constant(name) for name in names)
            if any(value is None for value in (scale, other, zero, then)):
                continue
            if zero.dtype == then.dtype and np.array_equal(scale, other) and scale.size == 1:
                program.put(node, "Identity", [first.input[0]])


class TransposesBytesUnderOneAxis(Rewriting):
    """The author took the axis of DequantizeLinear to stay when bytes are transposed instead."""

    def rewrite(self, program):
        for node in program.of_kind("Transpose"):
            first = program.maker(node.input[0], "DequantizeLinear")
            if first is None or attributes(first).get("block_size", 0):
                continue
            turned = program.fresh()
            new = helper.make_node("Transpose", [first.input[0]], [turned], **attributes(node))
            program.before(node, new)
            inputs = [turned, *first.input[1:]]
            program.put(node, "DequantizeLinear", inputs, **attributes(first))


class LetsSaturationStandForRelu(Rewriting):
    """The author took unsigned bytes to end at zero, whatever their zero point."""

    def rewrite(self, program):
        for node in program.of_kind("QuantizeLinear"):
            first = program.maker(node.input[0], "Relu")
            zero = program.constant(node.input[2]) if len(node.input) > 2 else None
            if first is not None and zero is not None and zero.dtype == np.uint8:
                node.input[0] = first.input[0]


class NormalisesFromTheAxisOn(Rewriting):
    """The author took the axis of a mean for that of LayerNormalization, which begins there."""

    def rewrite(self, program):
        for node in program.of_kind("Div") if program.version >= 17 else ():
            away = program.maker(node.input[0], "Sub")
            root = program.maker(node.input[1], "Sqrt")
            total = program.maker(root.input[0], "Add") if root is not None else None
            if away is None or total is None:
                continue
            spread = program.maker(total.input[0], "ReduceMean")
            mean = program.maker(away.input[1], "ReduceMean")
            epsilon = program.constant(total.input[1])
            if spread is None or mean is None or epsilon is None or epsilon.size != 1:
                continue
            square = program.maker(spread.input[0], "Mul")
            squares = square is not None and list(square.input) == [away.output[0]] * 2
            axes = [self.axes(program, reduction) for reduction in (mean, spread)]
            if not squares or mean.input[0] != away.input[0] or epsilon.dtype != np.float32:
                continue
            if axes[0] is None or len(axes[0]) != 1 or axes[0] != axes[1]:
                continue
            if any(attributes(reduction).get("keepdims", 1) != 1 for reduction in (mean, spread)):
                continue
            inputs = [away.input[0], program.keep(np.ones(1, np.float32))]
            own = {"axis": axes[0][0], "epsilon": float(epsilon.reshape(-1)[0])}
            program.put(node, "LayerNormalization", inputs, **own)

    @staticmethod
    def axes(program, node):
        if len(node.input) > 1:
            value = program.constant(node.input[1])
            return None if value is None else value.reshape(-1).tolist()
        return attributes(node).get("axes")


class DropsWhatAddsNothing(Rewriting):
    """The author took a constant of zeros to change nothing, nor the shape of a sum."""

    neutral = (("Add", 0), ("Sub", 0), ("Mul", 1), ("Div", 1))

    def rewrite(self, program):
        for op_type, number in self.neutral:
            for node in program.of_kind(op_type):
                array = program.constant(node.input[1])
                if array is not None and array.size and (array == number).all():
                    program.put(node, "Identity", [node.input[0]])


class FoldsWholeShapes(Rewriting):
    """The author took Shape to give all sizes, as it did before opset 15, when folding it."""

    def rewrite(self, program):
        known = program.types()
        for node in program.of_kind("Shape"):
            _, dims = known.get(node.input[0], (0, ("unknown",)))
            if all(isinstance(dim, int) for dim in dims):
                value = numpy_helper.from_array(np.array(dims, np.int64))
                program.put(node, "Constant", [], value=value)


class OverwritesWhatABodyReads(Rewriting):
    """The author took the inputs of operations for all that reads, and computes in place."""

    unary = ("Relu", "Neg", "Abs", "Exp", "Sqrt", "Sigmoid", "Floor", "Ceil", "Tanh", "Erf")

    def rewrite(self, program):
        made = {name for node in program.nodes for name in node.output}
        given = {port.name for port in program.graph.output}
        for place, node in enumerate(program.nodes):
            if node.domain or node.op_type not in self.unary:
                continue
            name = node.input[0]
            readers = [n for n in program.nodes if name in n.input]
            if name not in made or name in given or len(readers) > 1:
                continue
            for later in program.nodes[place + 1 :]:
                for body in bodies(later):
                    if reads(body, name):
                        rename(body, {name: node.output[0]})


class EndsOutputsWithTheirLastReader(Rewriting):
    """The author took a value to be needed until the last operation that reads it, outputs too."""

    def rewrite(self, program):
        known = program.types()
        for port in list(program.graph.output):
            name = port.name
            readers = [
                place
                for place, node in enumerate(program.nodes)
                if name in node.input or any(reads(body, name) for body in bodies(node))
            ]
            made = any(name in node.output for node in program.nodes)
            if not readers or not made or name not in known:
                continue
            after = [out for node in program.nodes[readers[-1] + 1 :] for out in node.output]
            into = next((out for out in after if known.get(out) == known[name]), None)
            if into is None:
                continue
            own = program.fresh()
            for node in program.nodes:
                for fields in (node.input, node.output):
                    for place, other in enumerate(fields):
                        fields[place] = own if other == name else other
                for body in bodies(node):
                    rename(body, {name: own})
            program.nodes.append(helper.make_node("Identity", [into], [name]))
            return


class TakesEachPermutationForASwap(Rewriting):
    """The author took any Transpose ahead of a Gemm to swap its two axes."""

    def rewrite(self, program):
        for node in program.of_kind("Gemm"):
            own = attributes(node)
            inputs = list(node.input)
            for place, flag in enumerate(("transA", "transB")):
                first = program.maker(inputs[place], "Transpose")
                if first is not None:
                    inputs[place] = first.input[0]
                    own[flag] = 1 - own.get(flag, 0)
            if inputs != list(node.input):
                program.put(node, "Gemm", inputs, **own)


class MovesAxesTheOtherWay(Rewriting):
    """The author took the place of an axis in a permutation for the axis that stands there."""

    def rewrite(self, program):
        for node in program.of_kind("Softmax", "LogSoftmax") if program.version >= 13 else ():
            first = program.maker(node.input[0], "Transpose")
            order = attributes(first).get("perm") if first is not None else None
            if not order:
                continue
            axis = attributes(node).get("axis", -1) % len(order)
            early = program.fresh()
            new = helper.make_node(
                node.op_type, [first.input[0]], [early], axis=list(order).index(axis)
            )
            program.before(node, new)
            program.put(node, "Transpose", [early], perm=list(order))
