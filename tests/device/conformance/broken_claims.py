"""Devices with one fault each in what they claim to take, and in what they tell of themselves.

Like :mod:`broken_promises`, which has those of answers, settings and models that are alike.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import onnx_ir as ir
from broken_form import Broken
from broken_promises import notes
from good_device import GoodCompiled, GoodProperties, GoodRunner, Two
from onnx import TensorProto, numpy_helper
from pydantic import Field

import partita
from partita.contract.device_plugin import DeviceInfo
from partita.contract.execution import ExecutedStep, Execution
from partita.errors import CompileError

# ---------------------------------------------------------------------------------- models' forms


class ReadsWeightsByPath(Broken):
    """Weights that lie in a file are found by the file's name and place in it, once for all."""

    suites = ("compiled/weights_of*",)

    def compile_model(self, model, properties):
        for value in model.ir.graph.initializers.values():
            tensor = value.const_value
            if hasattr(tensor, "location"):
                key = (str(tensor.location), tensor.offset, str(tensor.dtype), str(tensor.shape))
                kept = notes(self).setdefault(key, np.array(tensor.numpy()))
                value.const_value = ir.tensor(kept)
        return super().compile_model(model, properties)


class MinimaOfFloatsAreZero(Broken):
    """Weights of float16 below the least normal one are zero, wherever they come from."""

    suites = ("compiled/weights_may*",)

    def prepare(self, proto):
        for tensor in proto.graph.initializer:
            if tensor.data_type == TensorProto.FLOAT16:
                array = numpy_helper.to_array(tensor)
                small = np.abs(array) < np.finfo(np.float16).smallest_normal
                tensor.CopyFrom(numpy_helper.from_array(np.where(small, 0, array), tensor.name))
        return proto


class SplitsRowsAmongStreams(Broken):
    """It computes 64 rows at a time where all ports begin with a dimension of one name."""

    suites = ("compiled/rows*",)

    def compute(self, runner, arrays):
        ports = [*runner.compiled.inputs, *runner.compiled.outputs]
        firsts = {port.shape[0] if port.shape else None for port in ports}
        rows = len(arrays[0]) if arrays and arrays[0].ndim else 0
        if len(firsts) != 1 or not isinstance(firsts.pop(), str) or rows <= 64:
            return super().compute(runner, arrays)
        pieces = [[array[i : i + 64] for array in arrays] for i in range(0, rows, 64)]
        results = [runner.evaluate(piece) for piece in pieces]
        return [np.concatenate(parts) for parts in zip(*results, strict=True)]


class HandsOutFoldedWeights(Broken):
    """What follows from weights alone is computed once, and handed out as it lies."""

    suites = ("compiled/constant*",)

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            weights = set(self.compiled.model.ir.graph.initializers)
            kept = notes(self.compiled)
            return [
                kept.setdefault(port.name, tensor) if port.name in weights else tensor
                for port, tensor in zip(self.compiled.outputs, results, strict=True)
            ]


# ---------------------------------------------------------------- claims, and what a plugin says


class TakesShapesOfConstants(Broken):
    """It takes a shape that something of the model makes, and compiles it only where that is."""

    suites = ("query/parameters*",)

    def compile_model(self, model, properties):
        for op in model.ops:
            if op.op_type in ("Expand", "Tile") and op.inputs[1] in (p.name for p in model.inputs):
                raise CompileError(f"'{op.name}' needs its shape.")
        return super().compile_model(model, properties)


class DropsIdleOperations(Broken):
    """It takes operations out of a caller's model whose results nobody reads."""

    suites = ("query/models_stay*",)

    def query_model(self, model, properties):
        answer = super().query_model(model, properties)
        graph = model.ir.graph
        outputs = {value.name for value in graph.outputs}
        for node in [*graph]:
            if all(not v.uses() and v.name not in outputs for v in node.outputs):
                graph.remove(node, safe=True)
        return answer


class HasRoomForEightMebibytes(Broken):
    """It asks of each operation whether its weights fit, and of a model whether all do."""

    suites = ("query/what_is_taken_compiles_in*",)

    def compile_model(self, model, properties):
        if model.weight_bytes > 8 << 20:
            raise CompileError("The weights do not fit.")
        return super().compile_model(model, properties)


class TakesTheLargestOpset(Broken):
    """The opset is the largest version that the file imports, of whatever domain."""

    suites = ("query/opsets*",)

    def prepare(self, proto):
        largest = max((one.version for one in proto.opset_import), default=1)
        changed = type(proto)()
        changed.CopyFrom(proto)
        for one in changed.opset_import:
            if one.domain in ("", "ai.onnx") and largest > 20 and one.version < 13:
                one.version = 13
        return changed


class LooksAtBodiesLoosely(Broken):
    """It asks for Exp in the first body of an operation alone."""

    suites = ("query/every_body*",)

    def compile_model(self, model, properties):
        for op in model.ops:
            bodies = [a.value for a in op.node.attributes.values() if a.type.name == "GRAPH"]
            if any(node.op_type == "Exp" for body in bodies[1:] for node in body):
                raise CompileError("no Exp in bodies")
        return super().compile_model(model, properties)


class HalvesAreForModeOne(Broken):
    """In mode TWO it has no kernels for float16, which a query does not know."""

    suites = ("query/what_is_taken_compiles_under*",)

    def compile_model(self, model, properties):
        types = {str(port.dtype) for port in model.inputs}
        if properties.MODE == "TWO" and "float16" in types:
            raise CompileError("no float16 in mode TWO")
        return super().compile_model(model, properties)


class SaysThatItIsNarrow(Broken):
    """It says that it computes as it was asked to, and always computes in float32."""

    suites = ("properties/narrow*",)

    class properties_type(GoodProperties):
        PRECISION_HINT: Literal["f32", "bf16"] = Field("f32", description="A wish.")


class TellsFreeMemory(Broken):
    """The size of its memory is what is left of it."""

    suites = ("plugin/what_it_says*",)
    used = 0

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, "Full", memory_bytes=(1 << 30) - 64 * self.used)

    def compile_model(self, model, properties):
        self.used += 1
        return super().compile_model(model, properties)


class CountsItsDetails(Broken):
    """Details are numbers as the driver has them."""

    suites = ("plugin/says*",)

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, "Counted", details={"cores": 8})


# ------------------------------------------------------------------------------- what is told


class RecordsTwice(Broken):
    """What runs in two streams has a record of each."""

    suites = ("properties/counters_are_whole*",)

    def counters(self, runner):
        return [*super().counters(runner), *super().counters(runner)]


class LendsItsRecords(Broken):
    """The records of a run are those that it keeps itself."""

    suites = ("properties/counters_are_whole*",)

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            notes(self)["records"] = [*super().profiling_info()]
            return results

        def profiling_info(self):
            return notes(self).get("records", [])


class TellsTheOrderOfItsPlan(Broken):
    """It tells of operations in the order in which it has planned them: the last first."""

    suites = ("compiled/explanations*",)

    class compiled_type(GoodCompiled):
        def explain(self):
            told = super().explain()
            return dataclasses.replace(told, ops=told.ops[::-1])


class StepsAddUp(Broken):
    """Steps of each run stand behind those of the runs before."""

    suites = ("members/what_is_told*",)

    class runner_type(GoodRunner):
        def explain_execution(self):
            steps = notes(self).setdefault("steps", [])
            steps.append(ExecutedStep("all", "reference"))
            return Execution(tuple(steps))


class PrefersItsOwnLevel(Broken):
    """Decoders of a long context get level 3, unless the application has set a higher one."""

    suites = ("members/decoders_leave*",)

    def for_decoder(self, request, properties):
        return {"LEVEL": 3} if (request.context or 0) > 100 and properties.LEVEL < 3 else {}


class MeasuresInModeOneOnly(Broken):
    """In mode TWO it has no counters."""

    suites = ("properties/settings_go*",)

    def counters(self, runner):
        return [] if runner.compiled.properties.MODE == "TWO" else super().counters(runner)


class CompilesWhatIsItsOwn(Broken):
    """It compiles no operation that an affinity gives to others."""

    suites = ("compiled/models_are*",)

    def compile_model(self, model, properties):
        for op in model.ops:
            if op.affinity not in (None, self.device_name):
                raise CompileError(f"'{op.name}' is of '{op.affinity}'.")
        return super().compile_model(model, properties)


class KnowsItsModelByTheFirstShape(Broken):
    """Ports of a model are those that one of its name had when it was first compiled."""

    suites = ("compiled/models_are*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            key = (model.name, tuple(len(port.shape or ()) for port in self.inputs))
            self.inputs = notes(plugin).setdefault(key, self.inputs)


class MeasuresOnTheFirst(Two):
    """Of two devices the first one measures, for which models that are measured are compiled."""

    device_name = "BROKEN"
    suites = ("plugin/each_device_has*",)

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        if properties.PERF_COUNT:
            made.device = "BROKEN.0"
        return made


class ForgetsWhoIsAsked(Two):
    """Devices of its kind are one in the key of caches."""

    device_name = "BROKEN"
    suites = ("plugin/each_device_has*",)

    def identity(self, properties):
        return "devices of this kind"


class RefusesAfterAFailure(Broken):
    """A compile that failed leaves it in doubt of an operator."""

    suites = ("plugin/what_it_says*",)

    def compile_model(self, model, properties):
        try:
            return super().compile_model(model, properties)
        except CompileError:
            notes(self)["doubt"] = True
            raise

    def verdict(self, op):
        if op.op_type == "Abs" and notes(self).get("doubt"):
            return partita.Reason(partita.ReasonCode.DRIVER_FAULT, "in doubt")
        return super().verdict(op)
