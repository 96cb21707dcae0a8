"""Devices that go wrong when something changes: shapes, values, threads, models, names, blobs.

The runtime half of the twentieth set; written before it was measured.
"""

from __future__ import annotations

import threading
import time
from typing import ClassVar

import numpy as np
from broken_form import Broken
from good_device import GoodRunner
from onnx import numpy_helper

import partita
from partita.contract.runner import run_into
from partita.errors import InferError
from unseen.passes import Passes, as_identity, attribute

EVERYWHERE = ("request/*", "sharing/*", "threads/*", "compiled/*")


def zeros(results):
    """Zeros of the same form."""
    return [
        np.zeros_like(r) if isinstance(r, np.ndarray) and r.dtype != object else r for r in results
    ]


# ------------------------------------------------------------------------- shapes and values


class StaysEmpty(Broken):
    """A request that was once given nothing has no buffers, and gives zeros from then on."""

    suites = EVERYWHERE

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if any(a.dtype != object and not a.size for a in arrays):
            runner.emptied = True
        return zeros(results) if getattr(runner, "emptied", False) else results


class PlansByShapeAlone(Broken):
    """What small integer inputs hold is read when a shape comes first: plans are kept by shapes."""

    suites = EVERYWHERE

    def compute(self, runner, arrays):
        key = tuple(a.shape for a in arrays)
        plans = vars(runner.compiled).setdefault("plans", {})
        small = [a.dtype == np.int64 and a.size <= 8 for a in arrays]
        if key not in plans:
            plans[key] = [a.copy() for a in arrays]
        if all(small) or len(arrays) < 2:
            return super().compute(runner, arrays)
        kept = [p if s else a for a, p, s in zip(arrays, plans[key], small, strict=True)]
        return super().compute(runner, kept)


class KeepsEveryShape(Broken):
    """Plans with their buffers are kept for every shape that ever came."""

    suites = ("resources/*",)
    plans: ClassVar[list] = []

    def compute(self, runner, arrays):
        known = vars(runner.compiled).setdefault("known", set())
        key = tuple(a.shape for a in arrays)
        if key not in known:
            known.add(key)
            self.plans.append(np.ones(1 << 17))
        return super().compute(runner, arrays)


class HandsOnNothing(Broken):
    """An output that is an input, with no operation between, is never written."""

    suites = ("ports/*", "request/*")

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        names = {port.name for port in runner.compiled.inputs}
        ports = runner.compiled.outputs
        return [
            zeros([r])[0] if port.name in names else r
            for r, port in zip(results, ports, strict=True)
        ]


class LeavesTheRestOfManyRows(Broken):
    """A launch has at most 65,535 rows; those beyond stay zero."""

    suites = ("random/*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for i, result in enumerate(results):
            if isinstance(result, np.ndarray) and result.ndim > 1 and result.dtype.kind == "f":
                rows = result.reshape(-1, result.shape[-1]) if result.size else result
                if len(rows) > 65535:
                    rows = rows.copy()
                    rows[65535:] = 0
                    results[i] = rows.reshape(result.shape)
        return results


class OtherLettersAreQuestionMarks(Broken):
    """Texts are kept in a code page of 256 letters."""

    suites = ("values/Identity/string",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        cut = np.vectorize(
            lambda t: t.encode("latin-1", "replace").decode("latin-1"), otypes=[object]
        )
        return [
            cut(r) if isinstance(r, np.ndarray) and r.dtype == object and r.size else r
            for r in results
        ]


# ----------------------------------------------------------------------------- requests


class CancelledRunsGiveZeros(Broken):
    """A run that is cancelled stops, and says nothing of it."""

    suites = ("request/*",)

    class runner_type(GoodRunner):
        stopped = running = False

        def cancel(self):
            self.stopped = self.running

        def run(self, inputs, outputs=None):
            self.stopped, self.running = False, True
            try:
                results = super().run(inputs, outputs)
            finally:
                self.running = False
            if self.stopped:
                for tensor in results:
                    if tensor.numpy().dtype != object:
                        tensor.numpy()[...] = 0
            return results


class ReadyTooEarly(Broken):
    """The first run packs weights; another request that runs meanwhile takes them for packed."""

    suites = ("threads/*",)

    def compute(self, runner, arrays):
        state = vars(runner.compiled)
        if "ready" not in state:
            state["ready"] = True
            time.sleep(0.005)
            state["packed"] = True
        results = super().compute(runner, arrays)
        return results if "packed" in state else zeros(results)


class BelongsToItsThread(Broken):
    """The driver's context is of the thread that made the request; others have none."""

    suites = ("threads/*", "request/*")

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.owner = threading.get_ident()

        def run(self, inputs, outputs=None):
            if threading.get_ident() != self.owner:
                raise InferError("No context is current in this thread.")
            return super().run(inputs, outputs)


class CompilesOneAtATime(Broken):
    """What is compiled lies in the plugin meanwhile; a second thread overwrites it."""

    suites = ("threads/*",)

    def compile_model(self, model, properties):
        self.current = model
        time.sleep(0.003)
        model = self.current
        return super().compile_model(model, properties)


class CallsRememberIntegers(Broken):
    """A bound call reads its small integer inputs when it is bound."""

    suites = ("request/*", "boundary/*", "sharing/*")

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            small = [t.numpy().dtype == np.int64 and t.numpy().size <= 8 for t in inputs]
            kept = [
                partita.HostTensor(t.numpy().copy()) if s and not all(small) else t
                for t, s in zip(inputs, small, strict=True)
            ]
            runner = self

            class Bound(partita.BoundCall):
                def __call__(self):
                    run_into(runner, kept, outputs)

            return Bound()


# -------------------------------------------------------------------------- models


class CompilesWhatItDeclines(Broken):
    """An operation that it does not take is left out when it is compiled nevertheless."""

    suites = ("query/*", "compiled/*")

    def compile_model(self, model, properties):
        return self.compiled_type(self, model, properties)

    def prepare(self, proto):
        for node in proto.graph.node:
            if node.op_type == "Tanh":
                as_identity(node, node.input[0])
        return proto


class AnotherIdentityEachTime(Broken):
    """The key for caches holds the time."""

    suites = ("blob/*",)

    def identity(self, properties):
        return f"{super().identity(properties)}-{time.perf_counter_ns()}"


class RemembersEveryQuestion(Broken):
    """Models that it was asked about are kept, with their weights."""

    suites = ("resources/*",)
    asked: ClassVar[list] = []

    def query_model(self, model, properties):
        self.asked.append(model.clone())
        return super().query_model(model, properties)


class ReadsTheFirstOpset(Broken):
    """The first opset that a model imports is taken for that of ONNX's main domain."""

    def prepare(self, proto):
        if len(proto.opset_import) > 1 and proto.opset_import[0].domain:
            main = next((o for o in proto.opset_import if o.domain in ("", "ai.onnx")), None)
            if main is not None:
                main.version = max(7, proto.opset_import[0].version)
        return proto


class SkipsOutputsThatAreLeftOut(Broken):
    """Outputs are counted without those that nobody wants."""

    suites = ("random/*",)

    def prepare(self, proto):
        for node in proto.graph.node:
            kept = [name for name in node.output if name]
            if node.op_type in ("LSTM", "GRU", "TopK", "Unique", "MaxPool") and kept:
                node.output[:] = kept
        return proto


class TurnsSharedWeights(Broken):
    """Gemm turns its square weights where they lie, also if another operation reads them."""

    def prepare(self, proto):
        weights = {t.name: t for t in proto.graph.initializer}
        for node in proto.graph.node:
            tensor = weights.get(node.input[1]) if node.op_type == "Gemm" else None
            given = next((a for a in node.attribute if a.name == "transB"), None)
            if tensor is None or given is None or not given.i:
                continue
            array = numpy_helper.to_array(tensor)
            if array.shape[0] == array.shape[1]:
                given.i = 0
                tensor.CopyFrom(numpy_helper.from_array(array.T.copy(), tensor.name))
        return proto


class CountsMilliseconds(Broken):
    """Counters are told in another unit."""

    suites = ("properties/*",)

    def counters(self, runner):
        runner.elapsed_us /= 1000
        return super().counters(runner)


class RestoresAnOlderModel(Broken):
    """State is kept in the plugin by the model's name when it is read back."""

    suites = ("blob/*",)

    def restore_model(self, model, properties, state):
        known = vars(self).setdefault("restored", {})
        ports = tuple((p.name, p.dtype, p.shape) for p in (*model.inputs, *model.outputs))
        return known.setdefault(
            (model.name, ports), super().restore_model(model, properties, state)
        )


# ------------------------------------------------------------------------------ rewriting


class BiasBesideNormalization(Passes):
    """Folds BatchNormalization into Conv, whose own bias it does not scale."""

    def rewrite(self, graph, node):
        conv = self.before(node, "Conv") if node.op_type == "BatchNormalization" else None
        if conv is None or len(conv.input) < 3 or attribute(node, "training_mode", 0):
            return
        names = (conv.input[2], node.input[1], node.input[4])
        if not all(name in self.constants for name in names):
            return
        bias, scale, variance = (self.constants[name] for name in names)
        scale = scale / np.sqrt(variance + np.float32(attribute(node, "epsilon", 1e-5)))
        tensor = next(t for t in graph.initializer if t.name == conv.input[2])
        changed = (bias / np.where(scale == 0, 1, scale)).astype(bias.dtype)
        tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))


class PadsConvolutionsWithZeros(Passes):
    """A Pad before a Conv becomes the Conv's own, whatever it pads with."""

    def rewrite(self, graph, node):
        pad = self.before(node, "Pad") if node.op_type == "Conv" else None
        if pad is None or len(pad.input) < 3 or pad.input[2] not in self.constants:
            return
        tensor = next(t for t in graph.initializer if t.name == pad.input[2])
        zero = np.zeros_like(self.constants[pad.input[2]])
        tensor.CopyFrom(numpy_helper.from_array(zero, tensor.name))


class JoinsWhatWasSplit(Passes):
    """A Concat of all parts of a Split is what was split, in whatever order they come."""

    def rewrite(self, graph, node):
        if node.op_type != "Concat":
            return
        split = self.writers.get(node.input[0])
        if split is None or split.op_type != "Split":
            return
        if sorted(split.output) == sorted(node.input):
            as_identity(node, split.input[0])


class ClipsByTheSecondAlone(Passes):
    """Of two Clips in a row only the second one is kept."""

    def rewrite(self, graph, node):
        first = self.before(node, "Clip") if node.op_type == "Clip" else None
        if first is not None:
            node.input[0] = first.input[0]


class KeepsTheInnerExtreme(Passes):
    """Max behind Min is taken for the other half of it."""

    def rewrite(self, graph, node):
        first = self.before(node, "Min") if node.op_type == "Max" else None
        if first is not None and len(node.input) == 2 and node.input[1] in self.constants:
            as_identity(node, first.output[0])


class ScalesProducts(Passes):
    """Mul by a constant after MatMul goes into the weights, a column of factors as a row."""

    def rewrite(self, graph, node):
        product = self.before(node, "MatMul") if node.op_type == "Mul" else None
        factors = self.constants.get(node.input[1]) if product is not None else None
        if factors is None or factors.ndim < 2 or factors.shape[-1] != 1 or factors.size < 2:
            return
        tensor = next(t for t in graph.initializer if t.name == node.input[1])
        first = np.full_like(factors, factors.reshape(-1)[0])
        tensor.CopyFrom(numpy_helper.from_array(first, tensor.name))


class TurnsReductionsAway(Passes):
    """A Transpose before a reduction is dropped, and the axes stay what they are."""

    def rewrite(self, graph, node):
        turned = self.before(node, "Transpose") if node.op_type.startswith("Reduce") else None
        if turned is not None and len(set(attribute(turned, "perm") or ())) == 2:
            node.input[0] = turned.input[0]


class AddsToTheWrongSide(Passes):
    """Sub of a constant becomes Add of its negative, also where the constant comes first."""

    def rewrite(self, graph, node):
        if node.op_type != "Sub" or node.input[0] not in self.constants:
            return
        if node.input[1] in self.constants:
            return
        node.input[:] = [node.input[1], node.input[0]]
