"""Devices that break the plugin contract as tracing compilers and drivers tempt one to.

A third set, written before the checks that it is measured with were read.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import logging
import platform
import threading
from typing import ClassVar

import numpy as np
import onnx.defs
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner
from onnx import numpy_helper

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.runner import run_into
from partita.errors import CompileError, InferError
from partita.tensors.sequence_values import unboxed


class BranchesAsTheFirstTime(Broken):
    """The condition of an If is a constant of the trace that the first run left."""

    def compute(self, runner, arrays):
        if any(op.op_type == "If" for op in runner.compiled.model.ops):
            traced = runner.compiled.__dict__.setdefault("traced", {})
            arrays = [
                traced.setdefault(i, np.array(a)) if a.dtype == bool and a.size == 1 else a
                for i, a in enumerate(arrays)
            ]
        return super().compute(runner, arrays)


class BakesSmallIntegers(Broken):
    """Integers that may be sizes are constants of the program for these shapes."""

    def compute(self, runner, arrays):
        if len(arrays) > 1:
            traced = runner.compiled.__dict__.setdefault("traced", {})
            shapes = str([a.shape for a in arrays])
            arrays = [
                traced.setdefault((shapes, i), np.array(a))
                if a.dtype == np.int64 and a.ndim < 2 and a.size <= 8
                else a
                for i, a in enumerate(arrays)
            ]
        return super().compute(runner, arrays)


class CannotCancelWhatIsDone(Broken):
    """Cancelling when nothing runs is an error of the driver."""

    class runner_type(GoodRunner):
        running = False

        def run(self, inputs, outputs=None):
            self.running = True
            try:
                return super().run(inputs, outputs)
            finally:
                self.running = False

        def cancel(self):
            if not self.running:
                raise InferError("invalid event")


class CopyingCall(BoundCall):
    """Computes from what the inputs held when it was made."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.outputs = runner, outputs
        self.inputs = [partita.HostTensor(np.array(tensor.numpy())) for tensor in inputs]

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


class BindsValuesNotAddresses(Broken):
    """A recorded graph holds the inputs that it was recorded with."""

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            return CopyingCall(self, inputs, outputs)


class LocksUpAfterAnError(Broken):
    """The queue's lock is not given back when a run fails."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.lock = threading.Lock()

    def compute(self, runner, arrays):
        lock = runner.compiled.lock
        if not lock.acquire(timeout=2):
            raise InferError("timed out while waiting for the queue")
        results = super().compute(runner, arrays)
        lock.release()
        return results


class ChangesWeights(Broken):
    """Stores weights in another way than they are."""

    def change(self, array):
        return array

    def prepare(self, proto):
        for tensor in proto.graph.initializer:
            changed = self.change(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
        return proto


class NarrowsWeightsOfDoubles(ChangesWeights):
    """Constants have single precision, as the library has without a switch."""

    def change(self, array):
        return array.astype(np.float32).astype(np.float64) if array.dtype == np.float64 else array


class NarrowsLongWeights(ChangesWeights):
    """Integer constants have 32 bits."""

    def change(self, array):
        return array.astype(np.int32).astype(np.int64) if array.dtype == np.int64 else array


class DeduplicatesWeightsByBytes(Broken):
    """Weights of equal bytes and type are one array, though their shapes differ."""

    def prepare(self, proto):
        known = {}
        for tensor in proto.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.size:
                first = known.setdefault((array.dtype.str, array.tobytes()), array)
                tensor.CopyFrom(numpy_helper.from_array(first, tensor.name))
        return proto


class ExportsAHandle(Broken):
    """The blob is the number of a program that only this process holds."""

    programs: ClassVar[list] = []

    class compiled_type(GoodCompiled):
        def export_model(self):
            ExportsAHandle.programs.append(self)
            return f"program {len(ExportsAHandle.programs) - 1}".encode()

    def import_model(self, blob, properties):
        word, _, number = bytes(blob).decode("latin-1").partition(" ")
        if word != "program" or not number.isdigit() or int(number) >= len(self.programs):
            raise partita.errors.BlobError("no such program")
        return self.programs[int(number)]


class IgnoresDomains(Broken):
    """Operators of any domain are taken for ONNX's own of that name."""

    def verdict(self, op):
        foreign = op.domain not in ("", "ai.onnx", "ai.onnx.ml")
        return None if foreign and onnx.defs.has(op.op_type) else super().verdict(op)

    def prepare(self, proto):
        for node in proto.graph.node:
            if node.domain not in ("", "ai.onnx.ml") and onnx.defs.has(node.op_type):
                node.domain = ""
        return proto


def type_name(value):
    """The element type of a node's input, by name."""
    return None if value is None or value.dtype is None else value.dtype.name


class LooksAtTheFirstTypeOnly(Broken):
    """Kernels are found by the first input's type; others are looked at when it is too late."""

    def verdict(self, op):
        if op.node.inputs and type_name(op.node.inputs[0]) not in ("FLOAT", "INT64", "BOOL"):
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_DTYPE, "takes float32 and int64")
        return super().verdict(op)

    def compile_model(self, model, properties):
        for op in model.ops:
            for value in op.node.inputs[1:]:
                if type_name(value) not in (None, "FLOAT", "INT64", "BOOL"):
                    raise CompileError(f"no kernel for {type_name(value)}")
        return super().compile_model(model, properties)


class NeedsKnownRanks(Broken):
    """Claims what it does not know the rank of, and then wants to know it."""

    def compile_model(self, model, properties):
        for op in model.ops:
            for value in op.node.inputs:
                if value is not None and value.dtype is not None and value.shape is None:
                    raise CompileError(f"the rank of '{value.name}' is not known")
        return super().compile_model(model, properties)


class LeavesFlushToZeroOn(Broken):
    """A library compiled with fast mathematics makes subnormal numbers zero on its thread."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if platform.machine() in ("x86_64", "AMD64"):
            library = ctypes.CDLL(ctypes.util.find_library("m"))
            state = (ctypes.c_uint32 * 16)()
            library.fegetenv(state)
            state[7] |= 0x8040  # the control register's two bits, behind that of the x87
            library.fesetenv(state)
        return results


class ConfiguresTheRootLogger(Broken):
    def compile_model(self, model, properties):
        logging.getLogger().addHandler(logging.NullHandler())
        logging.getLogger().setLevel(logging.DEBUG)
        return super().compile_model(model, properties)


class SwitchesGarbageCollectionOff(Broken):
    """Recording is quicker without, and nobody switches it on again."""

    def compile_model(self, model, properties):
        gc.disable()
        return super().compile_model(model, properties)


class RunsOutOfQueues(Broken):
    """Sixteen requests may be made of a model, however many of them are gone."""

    class compiled_type(GoodCompiled):
        made = 0

        def create_runner(self):
            self.made += 1
            if self.made > 16:
                raise InferError("no command queue is left")
            return super().create_runner()


class ReturnsBitsOfBfloats(Broken):
    """numpy has no such type, so the library hands out its bits."""

    def deliver(self, runner, arrays, outputs):
        bits = [a.view(np.uint16) if a.dtype.name == "bfloat16" else a for a in arrays]
        return [partita.HostTensor(array) for array in bits]


class InsertsInPlace(Broken):
    """SequenceInsert appends to the sequence that the caller gave."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        names = {op.inputs[0] for op in runner.compiled.model.ops if op.op_type == "SequenceInsert"}
        for port, array in zip(runner.compiled.inputs, arrays, strict=True):
            value = unboxed(array) if port.name in names else None
            if isinstance(value, list) and value:
                value.append(value[0])
        return results
