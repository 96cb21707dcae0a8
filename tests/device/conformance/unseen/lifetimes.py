"""Devices that compute rightly until something lives longer, changes, or happens at once.

The runtime half of the nineteenth set, on buffers, requests, settings, counters and rewriting;
written before it was measured.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import warnings

import numpy as np
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner

import partita
import unseen.values
from partita.contract.profiling import ProfilingInfo
from partita.errors import InferError
from unseen.passes import Passes, as_identity, attribute

wrong = functools.partial(unseen.values.wrong, module=__name__)
EVERYWHERE = ("request/*", "sharing/*", "threads/*", "compiled/*")


# -------------------------------------------------------------------------------- buffers


class StalePadding(Broken):
    """Vectors are padded to eights in a buffer that stays; a shorter one is summed with the rest.

    Only where the last axis is reduced, and has been longer in the same runner.
    """

    suites = ("random/ReduceSum/*", "random/ReduceMean/*", *EVERYWHERE)

    def compute(self, runner, arrays):
        before = vars(runner).setdefault("before", {})
        sums = {"ReduceSum", "ReduceMean", "ReduceMax", "GlobalAveragePool", "Softmax"}
        kinds = {op.op_type for op in runner.compiled.model.ops}
        results = super().compute(runner, arrays)
        for place, array in enumerate(arrays):
            if array.dtype != np.float32 or not array.ndim or not array.size:
                continue
            old = before.get(place)
            before[place] = array.copy()
            if old is None or not kinds & sums or old.shape[-1] <= array.shape[-1]:
                continue
            if array.shape[-1] % 8:
                results = [r * 1.5 if r.dtype == np.float32 else r for r in results]
        return results


class OverwritesOutputsThatAreReadOn(Broken):
    """Relu, Neg and the like work in place where no later operation reads their input.

    That it is an output of the model, too, is forgotten.
    """

    def prepare(self, proto):
        named = {value.name for value in proto.graph.output}
        last = {name: i for i, n in enumerate(proto.graph.node) for name in n.input}
        self.hit = [
            (n.input[0], n.output[0])
            for i, n in enumerate(proto.graph.node)
            if n.op_type in ("Relu", "Neg", "Abs", "Exp", "Sigmoid", "Sqrt", "LeakyRelu")
            and n.input[0] in named
            and last[n.input[0]] == i
        ]
        return proto

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        names = [port.name for port in runner.compiled.outputs]
        for had, has in self.hit:
            if had in names and has in names:
                results[names.index(had)] = results[names.index(has)].copy()
        return results


class ScratchOfTheModel(Broken):
    """All requests of a compiled model copy their inputs to one scratch before they compute."""

    suites = ("threads/*",)

    def compute(self, runner, arrays):
        if any(a.dtype == object for a in arrays):
            return super().compute(runner, arrays)
        shared = vars(runner.compiled)
        shared["scratch"] = [a.copy() for a in arrays]
        time.sleep(0.002)
        mine = shared["scratch"]
        if [a.shape for a in mine] != [a.shape for a in arrays]:
            mine = arrays
        return super().compute(runner, mine)


class FillsOnlyTheFirstGivenOutput(Broken):
    """The outputs that it was given are counted without those that were not."""

    def deliver(self, runner, arrays, outputs):
        if outputs and outputs[0] is None and any(o is not None for o in outputs):
            return super().deliver(runner, arrays, [None] * len(arrays))[:0] + [
                given or partita.HostTensor(array)
                for array, given in zip(arrays, outputs, strict=True)
            ]
        return super().deliver(runner, arrays, outputs)


class NothingInNothingOut(Broken):
    """If an input is empty, nothing is computed and outputs stay as they were allocated."""

    suites = ("random/*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if any(a.dtype != object and not a.size for a in arrays):
            return [np.zeros_like(r) if isinstance(r, np.ndarray) else r for r in results]
        return results


class ScalarsAreVectors(Broken):
    """A scalar is held as one element, and given so if the caller brought no tensor."""

    def deliver(self, runner, arrays, outputs):
        results = super().deliver(runner, arrays, outputs)
        return [
            partita.HostTensor(a.reshape(1)) if isinstance(a, np.ndarray) and a.ndim == 0 else t
            for a, t in zip(arrays, results, strict=True)
        ]


class KeepsTheFirstShapes(Broken):
    """What Shape and Size give is computed in the first run and kept as a constant."""

    suites = ("random/Shape/*", "random/Size/*", *EVERYWHERE)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            for node in self.evaluator.rt_nodes_:
                if node.onnx_node.op_type in ("Shape", "Size"):
                    node.run = self.once(node.run)

        def once(self, original):
            kept = []

            def run(*inputs, **given):
                if not kept:
                    kept.append(original(*inputs, **given))
                return kept[0]

            return run


class HoistsBranches(Broken):
    """What a branch of If reads from outside is read in the first run."""

    suites = ("random/If/*", *EVERYWHERE)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            for node in self.evaluator.rt_nodes_:
                if node.onnx_node.op_type == "If":
                    node.run = self.hoisted(node.run)

        def hoisted(self, original):
            kept = {}

            def run(*inputs, context=None, **given):
                for name, array in (context or {}).items():
                    same = getattr(kept.get(name), "shape", None) == getattr(array, "shape", 0)
                    kept[name] = kept[name] if same else array
                return original(*inputs, context=dict(kept) if context else context, **given)

            return run


# ---------------------------------------------------------------------- models and requests


class OneCompilationPerStructure(Broken):
    """Compiled models are kept by the names and shapes in them, not by the weights' elements."""

    def compile_model(self, model, properties):
        proto = model.to_onnx()
        for tensor in proto.graph.initializer:
            if tensor.data_type == 1:
                size = max(1, int(np.prod(tensor.dims)))
                tensor.raw_data = tensor.raw_data[:4] * size
        key = (proto.SerializeToString(), properties.model_dump_json())
        known = vars(self).setdefault("known", {})
        if key in known:
            return known[key]
        known[key] = super().compile_model(model, properties)
        return known[key]


class OrdersOutputsAsComputed(Broken):
    """Outputs come in the order in which operations give them."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        order = [name for op in runner.compiled.model.ops for name in op.outputs]
        names = [port.name for port in runner.compiled.outputs]
        if not set(names) <= set(order):
            return results
        places = sorted(range(len(names)), key=lambda i: order.index(names[i]))
        kinds = [
            (results[i].dtype, results[i].shape) for i in places if hasattr(results[i], "dtype")
        ]
        same = kinds == [(r.dtype, r.shape) for r in results if hasattr(r, "dtype")]
        return [results[i] for i in places] if same else results


class AddsToTheModel(Broken):
    """Writes the devices it has chosen into the model that it was asked about."""

    def query_model(self, model, properties):
        result = super().query_model(model, properties)
        for op in model.ops:
            op.affinity = self.device_name
        return result


class ForgetsUnusedInputs(Broken):
    """An input that no operation reads does not count when the others are bound."""

    def compute(self, runner, arrays):
        read = {name for op in runner.compiled.model.ops for name in op.inputs}
        read |= {port.name for port in runner.compiled.outputs}
        ports = runner.compiled.inputs
        kept = [a for a, port in zip(arrays, ports, strict=True) if port.name in read]
        if len(kept) < len(arrays) and all(
            a.shape == b.shape and a.dtype == b.dtype for a, b in zip(arrays, kept, strict=False)
        ):
            shifted = iter(arrays)
            arrays = [
                next(shifted) if p.name in read else a for a, p in zip(arrays, ports, strict=True)
            ]
        return super().compute(runner, arrays)


class ClosingOneClosesAll(Broken):
    """The last request to be made owns the model's engine, and takes it along when it closes."""

    suites = ("compiled/*", "request/*")

    class runner_type(GoodRunner):
        def close(self):
            self.compiled.closed = True

        def run(self, inputs, outputs=None):
            if getattr(self.compiled, "closed", False):
                raise InferError("The engine is closed.")
            return super().run(inputs, outputs)


class RestoresWithoutProperties(Broken):
    """A model that is read back is compiled with the settings that nobody changed."""

    suites = ("blob/*",)

    def restore_model(self, model, properties, state):
        return self.compile_model(model, type(properties)())


class RestoresWeightsAsHalves(Broken):
    """The state of a blob holds weights in half precision, to be small."""

    suites = ("blob/*",)

    class compiled_type(GoodCompiled):
        def export_state(self):
            floats = [a for a in self.evaluator.rt_inits_.values() if a.dtype == np.float32]
            return {f"weight{i}": array.astype(np.float16) for i, array in enumerate(floats)}

    def restore_model(self, model, properties, state):
        compiled = super().restore_model(model, properties, state)
        weights = compiled.evaluator.rt_inits_
        names = [name for name, a in weights.items() if a.dtype == np.float32]
        for i, name in enumerate(names):
            if f"weight{i}" in state:
                weights[name] = np.asarray(state[f"weight{i}"]).astype(np.float32)
        return compiled


# --------------------------------------------------------------------- settings and counters


class TakesTheChoiceForTheDefault(Broken):
    """The compiled model says its MODE as it was when the device was made."""

    suites = ("properties/*",)

    class compiled_type(GoodCompiled):
        def get_property(self, name):
            return "ONE" if name == "MODE" else super().get_property(name)


class CountsOnlyTheFirstRun(Broken):
    """Counters are read once and kept."""

    suites = ("properties/*",)

    def counters(self, runner):
        kept = vars(runner).setdefault("kept", [])
        if not kept:
            kept.extend(super().counters(runner))
        return kept


class CountsWhatItDidNotRun(Broken):
    """Every operation is said to have taken all of the run."""

    suites = ("properties/*",)

    def counters(self, runner):
        us = runner.elapsed_us
        return [
            ProfilingInfo(op.name, op.op_type, "reference", real_time_us=us, cpu_time_us=us)
            for op in runner.compiled.model.ops
        ]


class AsksForNoRequests(Broken):
    """Says that no request at all keeps it busy."""

    suites = ("properties/*", "compiled/*")

    class compiled_type(GoodCompiled):
        @property
        def optimal_number_of_infer_requests(self):
            return 0


# -------------------------------------------------------------------------- the process


class SeedsTheProcess(Broken):
    """Seeds numpy's global generator so that its random operators repeat."""

    suites = ("resources/*",)

    def compute(self, runner, arrays):
        np.random.seed(0)
        return super().compute(runner, arrays)


class SilencesWarnings(Broken):
    """Turns warnings off for all of the process when it compiles."""

    suites = ("resources/*",)

    def compile_model(self, model, properties):
        warnings.simplefilter("ignore")
        return super().compile_model(model, properties)


class AddsAHandlerPerModel(Broken):
    """Adds a handler to the root logger with each model."""

    suites = ("resources/*",)

    def compile_model(self, model, properties):
        logging.getLogger().addHandler(logging.NullHandler())
        return super().compile_model(model, properties)


class LeavesAThreadPerRequest(Broken):
    """Each request starts a thread that waits for work until the process ends."""

    suites = ("resources/*",)

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            threading.Thread(target=threading.Event().wait, daemon=True).start()


# ---------------------------------------------------------------------------- rewriting


class TurnsTwiceInTheWrongOrder(Passes):
    """Two Transposes become one, whose axes are combined the wrong way round."""

    def rewrite(self, graph, node):
        first = self.before(node, "Transpose") if node.op_type == "Transpose" else None
        if first is None:
            return
        inner, outer = attribute(first, "perm"), attribute(node, "perm")
        if inner is None or outer is None:
            return
        node.input[0] = first.input[0]
        del next(a for a in node.attribute if a.name == "perm").ints[:]
        next(a for a in node.attribute if a.name == "perm").ints.extend(outer[i] for i in inner)


class CastsOnce(Passes):
    """A Cast of a Cast is the second one alone, also where the first cuts something off."""

    def rewrite(self, graph, node):
        first = self.before(node, "Cast") if node.op_type == "Cast" else None
        if first is not None:
            node.input[0] = first.input[0]


class RootsOfSquares(Passes):
    """Sqrt of Mul(x, x) is x."""

    def rewrite(self, graph, node):
        square = self.before(node, "Mul") if node.op_type == "Sqrt" else None
        if square is not None and square.input[0] == square.input[1]:
            as_identity(node, square.input[0])


class MergesEqualOperations(Passes):
    """Operations of one type with the same inputs are one, whatever float attributes they have."""

    def rewrite(self, graph, node):
        seen = vars(self).setdefault("seen", {})
        if node is graph.node[0]:
            seen.clear()
        if len(node.output) != 1 or node.op_type.startswith(("Random", "If", "Loop")):
            return
        same = [a.SerializeToString() for a in node.attribute if a.type != 1]
        key = (node.op_type, node.domain, tuple(node.input), *same)
        if key in seen and node.op_type not in ("Constant", "Cast"):
            as_identity(node, seen[key])
        else:
            seen[key] = node.output[0]


class BiasesOfRowsAreOfColumns(Passes):
    """MatMul and Add become one with a bias of columns, also where it is of rows and fits."""

    def rewrite(self, graph, node):
        product = self.before(node, "MatMul") if node.op_type == "Add" else None
        bias = self.constants.get(node.input[1]) if product is not None else None
        if bias is None or bias.ndim != 2 or bias.shape[1] != 1 or bias.shape[0] < 2:
            return
        weights = self.constants.get(product.input[1])
        if weights is not None and weights.shape[-1] == bias.shape[0]:
            tensor = next(t for t in graph.initializer if t.name == node.input[1])
            tensor.dims[:] = [1, bias.shape[0]]


class DropsSlicesOfSlices(Passes):
    """Of two Slices along one axis the steps of the first are forgotten."""

    def rewrite(self, graph, node):
        first = self.before(node, "Slice") if node.op_type == "Slice" else None
        if first is not None and len(first.input) > 4 and first.input[4] in self.constants:
            steps = self.constants[first.input[4]]
            if (steps > 1).any():
                first.input[4] = ""
