"""Devices with a fault in names, ports, queries, caches, blobs, written before the kit looked."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from typing import ClassVar

import numpy as np
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner
from onnx import helper, numpy_helper

import partita
from partita.contract.device_plugin import DeviceInfo
from partita.contract.profiling import ProfilingInfo
from partita.errors import CompileError


def rename(proto, change):
    """The model with every value's name changed; equal names become one value."""
    graph = proto.graph
    for node in graph.node:
        node.input[:] = [change(name) if name else name for name in node.input]
        node.output[:] = [change(name) if name else name for name in node.output]
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = change(value.name)
    return proto


class Renames(Broken):
    """Gives values names of its own, which are not always different."""

    def change(self, name):
        return name

    def prepare(self, proto):
        if any(a.HasField("g") for node in proto.graph.node for a in node.attribute):
            return proto
        names = {name for node in proto.graph.node for name in (*node.input, *node.output)}
        names |= {value.name for value in proto.graph.input}
        if len({self.change(name) for name in names if name}) == len(names - {""}):
            return proto
        values, order = {}, {value.name: value for value in proto.graph.input}
        for tensor in proto.graph.initializer:
            kept = values.setdefault(self.change(tensor.name), tensor)
            name = tensor.name
            if kept is not tensor and list(kept.dims) == list(tensor.dims):
                tensor.CopyFrom(kept)
                tensor.name = name
        kept_inputs = {}
        for name in order:
            first = kept_inputs.setdefault(self.change(name), name)
            for node in proto.graph.node:
                node.input[:] = [first if given == name else given for given in node.input]
        written = {}
        for node in proto.graph.node:
            for name in node.output:
                if name:
                    written.setdefault(self.change(name), name)
        for node in proto.graph.node:
            node.input[:] = [written.get(self.change(n), n) if n else n for n in node.input]
        return proto


class MakesIdentifiersOfNames(Renames):
    def change(self, name):
        return re.sub(r"\W", "_", name)


class ForgetsCapitals(Renames):
    def change(self, name):
        return name.lower()


class CutsLongNames(Renames):
    def change(self, name):
        return name[:31]


class TakesNamesUpToTheSlash(Renames):
    def change(self, name):
        return name.rsplit("/", 1)[-1]


class DropsNumbersBehindColons(Renames):
    def change(self, name):
        return name.split(":")[0]


class GeneratesSourceOfNames(Broken):
    """Names become variables of generated code; some are no identifiers."""

    def prepare(self, proto):
        for value in proto.graph.input:
            compile(f"{re.sub('[^0-9A-Za-z_]', '_', value.name)} = 1", "kernel", "exec")
        return proto


class NamesNodesInAscii(Broken):
    def prepare(self, proto):
        for node in proto.graph.node:
            node.name.encode("ascii")
        return proto


class OrdersInputsByName(Broken):
    def compute(self, runner, arrays):
        names = [port.name for port in runner.compiled.inputs]
        order = sorted(range(len(names)), key=names.__getitem__)
        moved = [arrays[i] for i in order]
        if [(a.shape, a.dtype) for a in moved] == [(a.shape, a.dtype) for a in arrays]:
            arrays = moved
        return super().compute(runner, arrays)


class OrdersOutputsByName(Broken):
    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        names = [port.name for port in runner.compiled.outputs]
        moved = [results[i] for i in sorted(range(len(names)), key=names.__getitem__)]
        same = [(a.shape, a.dtype) for a in moved] == [(a.shape, a.dtype) for a in results]
        return moved if same else results


class HasSixteenInputs(Broken):
    def compute(self, runner, arrays):
        spare = [np.zeros_like(array) for array in arrays[16:]]
        return super().compute(runner, [*arrays[:16], *spare])


class HasSixteenOutputs(Broken):
    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        return [*results[:16], *(np.zeros_like(array) for array in results[16:])]


class ConcatenatesEight(Broken):
    def prepare(self, proto):
        for node in proto.graph.node:
            if node.op_type in ("Concat", "Sum", "Max", "Min", "Mean") and len(node.input) > 8:
                node.input[:] = [*node.input[:8], *[node.input[7]] * (len(node.input) - 8)]
        return proto


class GivesNoDetail(Broken):
    def verdict(self, op):
        reason = super().verdict(op)
        return reason and partita.Reason(reason.code, "")


class SaysThreeDots(Broken):
    def verdict(self, op):
        reason = super().verdict(op)
        return reason and partita.Reason(reason.code, "  ")


class TiresOfQuestions(Broken):
    """Declines, the second time, one operation that it took the first time."""

    asked = 0

    def query_model(self, model, properties):
        type(self).asked += 1
        verdicts = {op.name: self.verdict(op) for op in model.ops}
        if self.asked % 2 == 0 and len(verdicts) > 1:
            name = next(iter(verdicts))
            busy = partita.Reason(partita.ReasonCode.MEMORY_LIMIT, "no room at the moment")
            verdicts[name] = verdicts[name] or busy
        return partita.QueryResult.of(self.device_name, verdicts)


class DeclinesWhatItCompiledBefore(Broken):
    seen = frozenset()

    def verdict(self, op):
        if op.op_type in self.seen and op.op_type in ("Add", "Relu", "MatMul", "Exp"):
            return partita.Reason(partita.ReasonCode.MEMORY_LIMIT, "compiled already")
        return super().verdict(op)

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        type(self).seen |= {op.op_type for op in model.ops}
        return compiled


class ChangesItsDescription(Broken):
    count = 0

    def device_info(self, device_id):
        type(self).count += 1
        return DeviceInfo(self.device_name, "Counted", driver=f"1.{self.count}")


class CompilesTenOperations(Broken):
    """Claims any number of operations and has room for ten."""

    def compile_model(self, model, properties):
        if len(list(model.ops)) > 10:
            raise CompileError("The program store is full.")
        return super().compile_model(model, properties)


class RecursesOverNodes(Broken):
    def compile_model(self, model, properties):
        def visit(ops):
            return 1 + visit(ops[1:]) if ops else 0

        before = sys.getrecursionlimit()
        sys.setrecursionlimit(220)
        try:
            visit(list(model.ops))
        finally:
            sys.setrecursionlimit(before)
        return super().compile_model(model, properties)


class NeedsAnInput(Broken):
    def compute(self, runner, arrays):
        if not arrays:
            raise IndexError("list index out of range")
        return super().compute(runner, arrays)


class NeedsANode(Broken):
    def compile_model(self, model, properties):
        next(iter(model.ops))
        return super().compile_model(model, properties)


class LosesOutputsThatAreInputs(Broken):
    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        names = {port.name for port in runner.compiled.inputs}
        for i, port in enumerate(runner.compiled.outputs):
            if port.name in names:
                results[i] = np.zeros_like(results[i])
        return results


class LosesOutputsThatAreWeights(Broken):
    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        weights = runner.compiled.model.ir.graph.initializers
        for i, port in enumerate(runner.compiled.outputs):
            if port.name in weights:
                results[i] = np.zeros_like(results[i])
        return results


class ClosesGapsBetweenInputs(Broken):
    """Optional inputs that are left out are dropped, so that later ones move up."""

    def prepare(self, proto):
        for node in proto.graph.node:
            if node.op_type in ("Clip", "Resize", "Slice", "Pad", "LSTM", "GRU", "RNN"):
                node.input[:] = [name for name in node.input if name]
        return proto


class ClosesGapsBetweenOutputs(Broken):
    def prepare(self, proto):
        for node in proto.graph.node:
            if node.op_type in ("TopK", "LSTM", "GRU", "Unique"):
                node.output[:] = [name for name in node.output if name]
        return proto


class FreesAfterTheFirstRead(Broken):
    """A node that reads one value twice finds it gone the second time."""

    def prepare(self, proto):
        for node in proto.graph.node:
            if node.op_type in ("Add", "Mul") and node.input[0] == node.input[1]:
                node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output))
        return proto


class WritesInPlace(Broken):
    """Relu and its like overwrite their input, though others read it later."""

    def prepare(self, proto):
        nodes = list(proto.graph.node)
        for i, node in enumerate(nodes):
            if node.op_type in ("Relu", "Neg", "Exp", "Abs") and node.output[0]:
                for later in nodes[i + 1 :]:
                    later.input[:] = [
                        node.output[0] if name == node.input[0] else name for name in later.input
                    ]
        return proto


class KeysWeightsByShape(Broken):
    """Compiled programs are shared by models of the same operators, shapes and types."""

    programs: ClassVar[dict] = {}

    def prepare(self, proto):
        key = str([(n.op_type, len(n.input)) for n in proto.graph.node])
        key += str([(t.dims, t.data_type) for t in proto.graph.initializer])
        texts = [t.SerializeToString() for t in proto.graph.initializer]
        kept = self.programs.setdefault(key, texts)
        for tensor, text in zip(proto.graph.initializer, kept, strict=True):
            name = tensor.name
            tensor.ParseFromString(text)
            tensor.name = name
        return proto


class HashesTheStartOfWeights(Broken):
    """Packed weights are found again by their first four elements."""

    packed: ClassVar[dict] = {}

    def prepare(self, proto):
        for tensor in proto.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.dtype.kind == "f" and array.size > 4:
                key = (array.shape, array.dtype.str, array.ravel()[:4].tobytes())
                kept = type(self).packed.setdefault(key, array)
                tensor.CopyFrom(numpy_helper.from_array(kept, tensor.name))
        return proto


class RestoresForeignState(Broken):
    """What one model exported is taken for any other of the same names."""

    class compiled_type(GoodCompiled):
        def export_state(self):
            weights = self.model.ir.graph.initializers
            return {
                str(i): np.ascontiguousarray(value.const_value.numpy() * 2)
                for i, value in enumerate(weights.values())
                if value.const_value.dtype.name == "FLOAT"
            }

    def restore_model(self, model, properties, state):
        compiled = self.compile_model(model, properties)
        compiled.restored = bool(state)
        return compiled

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if getattr(runner.compiled, "restored", False):
            return [r * 2 if r.dtype == np.float32 else r for r in results]
        return results


class BreaksAfterExport(Broken):
    class compiled_type(GoodCompiled):
        exported = False

        def export_model(self):
            self.exported = True
            return super().export_model()

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        return [np.zeros_like(r) for r in results] if runner.compiled.exported else results


class SameIdentityForAllProperties(Broken):
    """Compiled models of one MODE come out of CACHE_DIR for another."""

    def identity(self, properties):
        return "broken-1.0"


class ForgetsTheMode(Broken):
    """compile_model hears LEVEL and never MODE."""

    def compile_model(self, model, properties):
        return super().compile_model(model, properties.model_copy(update={"MODE": "ONE"}))


class CountsOperationsThatAreNotThere(Broken):
    def counters(self, runner):
        return [ProfilingInfo("fused_kernel_7", "Fused", "jit", real_time_us=1.0, cpu_time_us=1.0)]


class CountsNegativeTimes(Broken):
    def counters(self, runner):
        return [ProfilingInfo("model", "Model", "jit", real_time_us=-1.0, cpu_time_us=1.0)]


class CountsForEver(Broken):
    class runner_type(GoodRunner):
        def profiling_info(self):
            rows = self.compiled.__dict__.setdefault("rows", [])
            rows.extend(self.compiled.plugin.counters(self))
            return list(rows) if self.compiled.properties.PERF_COUNT else ()


class LeavesFilesBehind(Broken):
    def prepare(self, proto):
        number, _ = tempfile.mkstemp(suffix=".kernel")
        os.close(number)
        return proto


class WorksInItsOwnFolder(Broken):
    """Changes the process's working directory to where its kernels are."""

    def compile_model(self, model, properties):
        os.chdir(tempfile.gettempdir())
        return super().compile_model(model, properties)


class SetsEnvironmentVariables(Broken):
    def compile_model(self, model, properties):
        os.environ["OMP_NUM_THREADS"] = "1"
        return super().compile_model(model, properties)


class SeedsEverybodysRandomNumbers(Broken):
    def compute(self, runner, arrays):
        np.random.seed(0)
        return super().compute(runner, arrays)


class SilencesFloatingPointErrors(Broken):
    def compute(self, runner, arrays):
        np.seterr(all="ignore")
        return super().compute(runner, arrays)


class TalksOnStandardOutput(Broken):
    def compute(self, runner, arrays):
        sys.stdout.write("running 1 kernel\n")
        return super().compute(runner, arrays)


class RefusesWithoutAWord(Broken):
    """An error of the right type that says nothing."""

    def compile_model(self, model, properties):
        for op in model.ops:
            if self.verdict(op):
                raise CompileError("")
        return super().compile_model(model, properties)
