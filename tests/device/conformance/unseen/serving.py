"""Devices that fail as services do: late, between requests, after a while, or only when asked.

A seventh set, from the side of one who builds a runtime around kernels; written before it was
measured.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import onnx
from broken_form import Broken
from good_device import GoodRunner
from onnx import numpy_helper

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.profiling import ProfilingInfo
from partita.contract.runner import run_into
from partita.errors import CompileError, InferError


def in_halves(arrays):
    """The arrays as half precision has them."""
    with np.errstate(all="ignore"):
        return [
            a.astype(np.float16).astype(a.dtype) if a.dtype == np.float32 else a for a in arrays
        ]


# ---------------------------------------------------------------- when results are ready


class LargeResultsComeLate(Broken):
    """Results of a mebibyte are copied by a thread that nobody waits for."""

    suites = ("request/*", "plugin/*", "resources/*")

    def deliver(self, runner, arrays, outputs):
        if sum(a.nbytes for a in arrays) < 1 << 20 or any(a.dtype == object for a in arrays):
            return super().deliver(runner, arrays, outputs)
        late = [np.zeros_like(a) for a in arrays]

        def copy():
            time.sleep(0.003)
            for target, array in zip(late, arrays, strict=True):
                target[...] = array

        threading.Thread(target=copy).start()
        return [partita.HostTensor(a) for a in late]


class RequestsShareAStagingBuffer(Broken):
    """Inputs of all requests of a model pass through one place, without a lock."""

    suites = ("request/*", "compiled/*")

    def compute(self, runner, arrays):
        compiled = runner.compiled
        compiled.staged = arrays
        time.sleep(0.0005)
        return super().compute(runner, compiled.staged)


class BelongsToItsThread(Broken):
    """A context is current in the thread that made the runner alone."""

    suites = ("request/*", "compiled/*")

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.thread = threading.get_ident()

    def compute(self, runner, arrays):
        if runner.thread != threading.get_ident():
            raise InferError("no context is current in this thread")
        return super().compute(runner, arrays)


class FailsWithTheLastResults(Broken):
    """What cannot be computed gives what was computed before."""

    suites = ("faults/*", "request/*")

    def compute(self, runner, arrays):
        try:
            runner.last = super().compute(runner, arrays)
        except InferError:
            if not hasattr(runner, "last"):
                raise
        return runner.last


class WarmsUpToHalves(Broken):
    """From the sixth run on, a faster kernel of half precision is ready."""

    suites = ("request/*", "resources/*")

    def compute(self, runner, arrays):
        runner.runs = getattr(runner, "runs", 0) + 1
        return super().compute(runner, in_halves(arrays) if runner.runs > 5 else arrays)


# ----------------------------------------------------------------------------- bound calls


class Call(BoundCall):
    """A bound call that runs."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, inputs, outputs

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


class Binds(Broken):
    """Devices that have bound calls."""

    suites = ("request/*", "boundary/*", "sharing/*")
    call_type = Call

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            return self.compiled.plugin.call_type(self, inputs, outputs)


class RebindsInNameOnly(Binds):
    class call_type(Call):
        def rebind(self, inputs):
            return True


class SkipsRunsOfEqualSums(Binds):
    """Inputs are known again by a sum over them."""

    class call_type(Call):
        seen = None

        def __call__(self):
            if any(t.dtype.kind not in "fiub" for t in self.inputs):
                super().__call__()
                return
            sums = [float(np.nansum(t.numpy().astype(np.float64))) for t in self.inputs]
            if sums != self.seen:
                super().__call__()
            self.seen = sums


# -------------------------------------------------------------------- what is kept of models


class RestoresHalvedWeights(Broken):
    """Weights are stored in half the bytes."""

    suites = ("blob/*",)

    def restore_model(self, model, properties, state):
        proto = model.to_onnx()
        for weight in proto.graph.initializer:
            if weight.data_type == onnx.TensorProto.FLOAT:
                (halved,) = in_halves([numpy_helper.to_array(weight)])
                weight.CopyFrom(numpy_helper.from_array(halved, weight.name))
        changed = self.compile_model(partita.Core().read_model(proto), properties)
        changed.inputs, changed.outputs, changed.model = model.inputs, model.outputs, model
        return changed


class RestoresWithoutCounters(Broken):
    """Restored models have default properties."""

    suites = ("blob/*",)

    def restore_model(self, model, properties, state):
        return self.compile_model(model, type(properties)())


class CompilesThroughOneFile(Broken):
    """A compiler that is called with the name of a file, always the same."""

    suites = ("compiled/*", "plugin/*")

    def prepare(self, proto):
        path = Path(tempfile.gettempdir()) / f"device-compiler-{os.getpid()}.onnx"
        path.write_bytes(proto.SerializeToString())
        time.sleep(0.001)
        read = onnx.load_model_from_string(path.read_bytes())
        path.unlink(missing_ok=True)
        return read


class KernelsByKindsOfAttributes(Broken):
    """Nodes of an operator with attributes of the same names share the first one's kernel."""

    suites = ("chains/*", "ports/*")

    def prepare(self, proto):
        first = {}
        for node in proto.graph.node:
            if any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
                continue
            names = tuple(sorted(a.name for a in node.attribute))
            known = first.setdefault((node.domain, node.op_type, names), node)
            if known is not node and len(known.input) == len(node.input):
                kept = [*known.attribute]
                del node.attribute[:]
                node.attribute.extend(kept)
        return proto


class CutsNamesAtSixtyThree(Broken):
    """Names are kept in arrays of 64 characters."""

    suites = ("ports/*",)

    def prepare(self, proto):
        graph = proto.graph
        bodies = any(a.type == onnx.AttributeProto.GRAPH for n in graph.node for a in n.attribute)
        if bodies:
            return proto
        ports = {p.name for p in (*graph.input, *graph.output)}
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [n if n in ports else n[:63] for n in names]
        for weight in graph.initializer:
            weight.name = weight.name if weight.name in ports else weight.name[:63]
        del graph.value_info[:]
        return proto


class WalksRecursively(Broken):
    """A pass of the compiler calls itself for each user of a value."""

    suites = ("chains/*", "ports/*")

    def compile_model(self, model, properties):
        deep = {}
        for node in model.ir.graph:
            feeds = [v.producer() for v in node.inputs if v is not None]
            deep[node] = 1 + max((deep.get(f, 0) for f in feeds), default=0)
        if max(deep.values(), default=0) > 400:
            raise CompileError("maximum recursion depth exceeded")
        return super().compile_model(model, properties)


class FailedCompilesLeakDescriptors(Broken):
    """A log is opened at the start of a compile and closed at its end."""

    suites = ("resources/*", "faults/*")
    logs: list = []  # noqa: RUF012

    def compile_model(self, model, properties):
        log = Path(os.devnull).open()  # noqa: SIM115
        self.logs.append(log)
        compiled = super().compile_model(model, properties)
        self.logs.remove(log)
        log.close()
        return compiled


class RefusesWithNotImplemented(Broken):
    """What the device does not take is no error of Partita's."""

    suites = ("faults/*", "query/*", "compiled/*")

    def compile_model(self, model, properties):
        for op in model.ops:
            if self.verdict(op) is not None:
                raise NotImplementedError(op.op_type)
        return super().compile_model(model, properties)


# ------------------------------------------------------------------------ what is said and asked


class AnswersByOperatorType(Broken):
    """The verdict on the first operation of a type holds for all others of the model."""

    suites = ("query/*",)

    def verdict(self, op):
        wide = any(v is not None and str(v.dtype) == "DOUBLE" for v in op.node.inputs)
        if wide and not op.domain and op.op_type in ("Relu", "Add", "Mul"):
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_DTYPE, "no float64")
        return super().verdict(op)

    def query_model(self, model, properties):
        first = {}
        for op in model.ops:
            first.setdefault((op.domain, op.op_type), op)
        verdicts = {op.name: self.verdict(first[op.domain, op.op_type]) for op in model.ops}
        return partita.QueryResult.of(self.device_name, verdicts)


class FixesSymbolsWhenAsked(Broken):
    """Shapes of the caller's model are made static for the question, in place."""

    suites = ("query/*",)

    def query_model(self, model, properties):
        for value in model.ir.graph.inputs:
            shape = value.shape
            if shape is not None and any(not isinstance(d, int) for d in shape):
                if shape.frozen:
                    value.shape = shape = shape.copy()
                for axis, size in enumerate(shape):
                    if not isinstance(size, int):
                        shape[axis] = 1
        return super().query_model(model, properties)


class QueriesShareOneSlot(Broken):
    """The model that is asked for lies in the plugin while it is looked at."""

    suites = ("query/*", "plugin/*")

    def query_model(self, model, properties):
        self.asked = model
        time.sleep(0.0005)
        return super().query_model(self.asked, properties)


class CountersAddUp(Broken):
    """Times of all runs since the request was made."""

    suites = ("properties/*",)

    def counters(self, runner):
        runner.total = getattr(runner, "total", 0.0) + 1.0
        names = [op.name for op in runner.compiled.model.ops]
        return [
            ProfilingInfo(n, "Model", "reference", real_time_us=runner.total) for n in names[:1]
        ]

    def compute(self, runner, arrays):
        self.counters(runner)
        return super().compute(runner, arrays)


class CountersAreTheModels(Broken):
    """A request that did not run shows the counters of one that did."""

    suites = ("properties/*",)

    def compute(self, runner, arrays):
        start = time.perf_counter()
        results = super().compute(runner, arrays)
        runner.compiled.elapsed = (time.perf_counter() - start) * 1e6
        return results

    def counters(self, runner):
        elapsed = getattr(runner.compiled, "elapsed", None)
        names = [op.name for op in runner.compiled.model.ops] if elapsed else []
        return [ProfilingInfo(n, "Model", "reference", real_time_us=elapsed) for n in names[:1]]


class ProfilesOtherKernels(Broken):
    """Kernels that can be timed compute in half precision."""

    suites = ("properties/*",)

    def compute(self, runner, arrays):
        measured = runner.compiled.properties.PERF_COUNT
        return super().compute(runner, in_halves(arrays) if measured else arrays)


class CancelsTheNextRun(Broken):
    """A request to stop that finds nothing to stop waits for the next run."""

    suites = ("request/*",)

    class runner_type(GoodRunner):
        stopped = False

        def cancel(self):
            self.stopped = True

        def run(self, inputs, outputs=None):
            if self.stopped:
                self.stopped = False
                raise InferError("stopped")
            return super().run(inputs, outputs)


# ---------------------------------------------------------------- what stays in the process


class SeedsTheProcess(Broken):
    """Results shall repeat: everybody's random numbers do."""

    suites = ("resources/*",)

    def compile_model(self, model, properties):
        random.seed(0)
        np.random.seed(0)
        return super().compile_model(model, properties)


class StopsTheCollector(Broken):
    """Collections disturb latencies."""

    suites = ("resources/*",)

    def compute(self, runner, arrays):
        gc.disable()
        return super().compute(runner, arrays)


class LeavesTemporaryFiles(Broken):
    """Each compile leaves what it gave to its compiler."""

    suites = ("resources/*",)

    def compile_model(self, model, properties):
        handle, name = tempfile.mkstemp(prefix="kernel-", suffix=".ptx")
        os.close(handle)
        Path(name).write_bytes(b"")
        return super().compile_model(model, properties)


class LeavesZombies(Broken):
    """A compiler's process is started and never waited for."""

    suites = ("resources/*",)
    started: list = []  # noqa: RUF012

    def compile_model(self, model, properties):
        if len(self.started) < 200:
            self.started.append(subprocess.Popen(["/bin/true"]))
        return super().compile_model(model, properties)


class LocksItsInputs(Broken):
    """Memory that a copy engine has read stays locked."""

    suites = ("sharing/*", "request/*")

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            for tensor in inputs:
                tensor.numpy().flags.writeable = False
            return results
