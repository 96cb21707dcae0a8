"""Devices with one fault each in what they say: plugin, properties, queries, compiled models."""

from __future__ import annotations

import pydantic
from good_device import Good, GoodCompiled, GoodProperties, GoodRunner
from pydantic import Field

import partita
from partita.contract.device_plugin import DeviceInfo
from partita.contract.profiling import ProfilingInfo
from partita.model.model import Port


class Broken(Good):
    """The base of all broken devices."""

    device_name = "BROKEN"


# ------------------------------------------------------------------------- plugin


class NamesAnotherDevice(Broken):
    suites = ("plugin/*",)

    def device_info(self, device_id):
        return DeviceInfo("OTHER", "Mistaken")


class HasNoFullName(Broken):
    suites = ("plugin/*",)

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, " ")


class InventsAKind(Broken):
    suites = ("plugin/*",)

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, "Odd", kind="toaster")


class RepeatsIds(Broken):
    suites = ("plugin/*",)

    def device_ids(self):
        return ("0", "0")

    def device_info(self, device_id):
        return DeviceInfo(f"{self.device_name}.{device_id}", "Doubled")


class ForgetsIds(Broken):
    suites = ("plugin/*",)
    asked = 0

    def device_ids(self):
        self.asked += 1
        return ("0", "1") if self.asked % 3 else ("0",)

    def device_info(self, device_id):
        return DeviceInfo(f"{self.device_name}.{device_id}", "Fading")


class SharesEveryMemory(Broken):
    suites = ("plugin/*",)

    def can_share(self, memory, device_id=""):
        return True


class SharesNoMemory(Broken):
    suites = ("plugin/*",)

    def can_share(self, memory, device_id=""):
        return False


class TransfersToFloat(Broken):
    suites = ("plugin/*",)

    def transfer_to(self, tensor, device_id=""):
        return partita.HostTensor(tensor.numpy().astype("float32"))


class TransfersScalarsAsVectors(Broken):
    suites = ("plugin/*",)

    def transfer_to(self, tensor, device_id=""):
        array = tensor.numpy()
        return partita.HostTensor(array.reshape(1) if array.ndim == 0 else array)


class CannotTransferNothing(Broken):
    suites = ("plugin/*",)

    def transfer_to(self, tensor, device_id=""):
        if tensor.nbytes == 0:
            raise ValueError("invalid buffer size 0")
        return partita.HostTensor(tensor.numpy())


class TakesNothing(Broken):
    suites = ("plugin/*",)

    def verdict(self, op):
        return partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, "not yet")


# --------------------------------------------------------------------- properties


class SwallowsUnknownProperties(Broken):
    suites = ("properties/*",)

    class properties_type(GoodProperties):
        model_config = pydantic.ConfigDict(frozen=True, extra="allow")

        def __init__(self, **values):
            known = type(self).model_fields
            super().__init__(**{key: v for key, v in values.items() if key in known})

    def compile_model(self, model, properties):
        return LenientCompiled(self, model, properties)


class LenientCompiled(GoodCompiled):
    def get_property(self, name):
        try:
            return super().get_property(name)
        except partita.errors.PropertyError:
            return None


class LowerCaseProperty(Broken):
    suites = ("properties/*",)

    class properties_type(GoodProperties):
        threads: int = Field(1, description="In lower case.")


class UndescribedProperty(Broken):
    suites = ("properties/*",)

    class properties_type(GoodProperties):
        SPEED: int = 3


class UntypedProperty(Broken):
    suites = ("properties/*",)

    class properties_type(GoodProperties):
        LEVEL: int = Field(1, description="Takes what comes.")

        @pydantic.field_validator("LEVEL", mode="wrap")
        @classmethod
        def lenient(cls, value, handler):
            try:
                return handler(value)
            except pydantic.ValidationError:
                return 1


class IgnoresPropertiesOfCompile(Broken):
    suites = ("properties/*",)

    def compile_model(self, model, properties):
        return super().compile_model(model, self.properties_type())


class RemembersPropertiesOfCompile(Broken):
    suites = ("properties/*",)
    last = None

    def compile_model(self, model, properties):
        merged = {**(self.last or {}), **properties.model_dump(exclude_unset=True)}
        type(self).last = merged = {k: v for k, v in merged.items() if k != "DEVICE_ID"}
        return super().compile_model(model, self.properties_type(**merged))


class RaisesKeyErrorForProperties(Broken):
    suites = ("properties/*",)

    class compiled_type(GoodCompiled):
        def get_property(self, name):
            return {**self.facts(), **self.properties.model_dump()}[name]


class ListsWhatItDoesNotHave(Broken):
    suites = ("properties/*",)

    class compiled_type(GoodCompiled):
        def get_property(self, name):
            found = super().get_property(name)
            return {**found, "TURBO": "RO"} if name == "SUPPORTED_PROPERTIES" else found


class CountersAddUp(Broken):
    suites = ("properties/*",)

    def counters(self, runner):
        runner.all = [*getattr(runner, "all", []), *super().counters(runner)]
        return runner.all


class CountersAlways(Broken):
    suites = ("properties/*",)

    class runner_type(GoodRunner):
        def profiling_info(self):
            return self.compiled.plugin.counters(self)


class CountersInThePast(Broken):
    suites = ("properties/*",)

    def counters(self, runner):
        return [ProfilingInfo("model", "Model", real_time_us=-3.0)]


class LevelChangesResults(Broken):
    suites = ("properties/*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if runner.compiled.properties.LEVEL > 1:
            results[0][-1] = 0  # the last share of the work is lost
        return results


# -------------------------------------------------------------------------- query


class ClaimsWhatItCannotCompile(Broken):
    suites = ("query/*",)

    def compile_model(self, model, properties):
        if any(op.op_type == "Softmax" for op in model.ops):
            raise partita.errors.CompileError("no Softmax after all")
        return super().compile_model(model, properties)


class ClaimsOnlyInCompany(Broken):
    suites = ("query/*",)

    def compile_model(self, model, properties):
        ops = [op.op_type for op in model.ops]
        if ops == ["Relu"]:
            raise partita.errors.CompileError("Relu must follow something to be fused into")
        return super().compile_model(model, properties)


class LeavesOperationsOut(Broken):
    suites = ("query/*",)

    def query_model(self, model, properties):
        answer = super().query_model(model, properties)
        return partita.QueryResult(self.device_name, dict(answer), {})


class SpeaksOfOtherNames(Broken):
    suites = ("query/*",)

    def query_model(self, model, properties):
        answer = super().query_model(model, properties)
        return partita.QueryResult.of(
            self.device_name, {name.lower(): None for name in answer} | dict(answer.reasons)
        )


class AnswersForAnotherDevice(Broken):
    suites = ("query/*",)

    def query_model(self, model, properties):
        answer = super().query_model(model, properties)
        return partita.QueryResult("CPU", dict.fromkeys(answer, "CPU"), answer.reasons)


class GivesTextAsReasons(Broken):
    suites = ("query/*",)

    def query_model(self, model, properties):
        answer = super().query_model(model, properties)
        reasons = dict.fromkeys(answer.reasons, "not supported")
        return partita.QueryResult(self.device_name, dict(answer), reasons)


class ClaimsEverything(Broken):
    suites = ("query/*",)

    def query_model(self, model, properties):
        return partita.QueryResult.of(self.device_name, {op.name: None for op in model.ops})


class RefusesWhatItCompiles(Broken):
    suites = ("query/*",)

    def query_model(self, model, properties):
        verdicts = {
            op.name: partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, "no Relu")
            if op.op_type in ("Relu", "Tanh")
            else None
            for op in model.ops
        }
        return partita.QueryResult.of(self.device_name, verdicts)


class EditsTheModelItIsAskedAbout(Broken):
    suites = ("query/*",)

    def query_model(self, model, properties):
        answer = super().query_model(model, properties)
        for op in model.ops:
            op.rt_info["seen"] = "yes"
        return answer


class EditsTheModelItCompiles(Broken):
    suites = ("query/*",)

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        for op in model.ops:
            op.affinity = self.device_name
        return compiled


class HeedsAffinities(Broken):
    suites = ("query/*",)

    def verdict(self, op):
        if op.affinity not in (None, self.device_name):
            return partita.Reason(partita.ReasonCode.PINNED, f"pinned to {op.affinity}")
        return super().verdict(op)


class AnswersWithADict(Broken):
    suites = ("query/*",)

    def query_model(self, model, properties):
        return {op.name: self.device_name for op in model.ops}


# ----------------------------------------------------------------- compiled models


class SwapsOutputs(Broken):
    suites = ("compiled/*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.outputs = self.outputs[::-1]


class ForgetsSymbols(Broken):
    suites = ("compiled/*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.inputs = tuple(
                Port(p.index, p.name, p.dtype, tuple(d if d != "N" else 1 for d in p.shape))
                for p in self.inputs
            )


class CachesByName(Broken):
    suites = ("compiled/*",)
    cache = None

    def compile_model(self, model, properties):
        if self.cache is None:
            self.cache = {}
        if model.name not in self.cache:
            self.cache[model.name] = super().compile_model(model, properties)
        return self.cache[model.name]


class RunsElsewhere(Broken):
    suites = ("compiled/*",)

    class compiled_type(GoodCompiled):
        @property
        def execution_devices(self):
            return ["CPU"]


class WantsNoRequests(Broken):
    suites = ("compiled/*",)

    class compiled_type(GoodCompiled):
        @property
        def optimal_number_of_infer_requests(self):
            return 0


class RaisesWhatItWants(Broken):
    suites = ("compiled/a_model_that_is_not_taken_raises",)

    def compile_model(self, model, properties):
        for op in model.ops:
            if self.verdict(op) is not None:
                raise KeyError(op.op_type)
        return super().compile_model(model, properties)


class OneRunnerForAll(Broken):
    suites = ("compiled/*",)

    class compiled_type(GoodCompiled):
        def create_runner(self):
            if not hasattr(self, "only"):
                self.only = super().create_runner()
            return self.only


class ClosesOnce(Broken):
    suites = ("compiled/*",)

    class runner_type(GoodRunner):
        closed = False

        def close(self):
            if self.closed:
                raise RuntimeError("closed already")
            self.closed = True


class CompilesLate(Broken):
    """Compiles when it first infers, from the model as it is then."""

    suites = ("compiled/*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.original = model

        def create_runner(self):
            fixed = [port.shape for port in self.original.inputs]
            runner = super().create_runner()
            runner.fixed = fixed
            return runner

    def compute(self, runner, arrays):
        for array, port in zip(arrays, runner.compiled.original.inputs, strict=True):
            for have, due in zip(array.shape, port.shape, strict=True):
                if isinstance(due, int) and have != due:
                    raise partita.errors.InferError(f"{port.name} is {port.describe()}")
        return super().compute(runner, arrays)


class LosesPropertiesInBlobs(Broken):
    suites = ("blob/keeps_its_properties",)

    class compiled_type(GoodCompiled):
        def exported_properties(self):
            return {}


class TrustsBlobs(Broken):
    suites = ("blob/keeps_its_properties",)

    class compiled_type(GoodCompiled):
        def export_model(self):
            return self.model.to_onnx().SerializeToString()

    def import_model(self, blob, properties):
        return self.compile_model(partita.Core().read_model(bytes(blob)), properties)


class ImportsTheLastOne(Broken):
    suites = ("blob/*",)
    last = None

    class compiled_type(GoodCompiled):
        def export_model(self):
            blob = super().export_model()
            type(self.plugin).last = type(self.plugin).last or self
            return blob

    def import_model(self, blob, properties):
        return type(self).last
