"""Devices with one fault each in what plugins promise of answers, settings, models and blobs.

Each is of a kind that a matrix of the contract's sentences, by types, names, values, turns and
places, found no check for.
"""

from __future__ import annotations

import enum
import hashlib
import unicodedata
from typing import Literal

import numpy as np
import pydantic
from broken_form import Broken
from good_device import GoodCompiled, GoodProperties, GoodRunner
from pydantic import Field

import partita
from partita.contract.device_plugin import DeviceInfo
from partita.errors import CompileError
from partita.model.port import Port


def notes(owner):
    """What a fault keeps with a request, a compiled model or a plugin."""
    return vars(owner).setdefault("notes_of_fault", {})


# ---------------------------------------------------------------------------------------- answers


class AnswersByNormalForm(Broken):
    """Its answers name operations as Unicode composes them, so that some have none."""

    suites = ("ports/names_may*",)

    def query_model(self, model, properties):
        verdicts = {unicodedata.normalize("NFKC", op.name): self.verdict(op) for op in model.ops}
        return partita.QueryResult.of(self.device_name, verdicts)


class GivesReasonsOfOthers(Broken):
    """It says of what it does not take that another device has priority."""

    suites = ("query/every*",)

    def verdict(self, op):
        if super().verdict(op) is not None:
            return partita.Reason(partita.ReasonCode.PRIORITY, "others have this one")
        return None


class BlamesTypesForStrangers(Broken):
    """It looks at types first, and finds none it knows in what nobody knows."""

    suites = ("query/an_unknown*",)

    def verdict(self, op):
        if op.domain == "com.nobody":
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_DTYPE, "no such type")
        return super().verdict(op)


class LendsItsAnswers(Broken):
    """The answer to a question that was asked is the very object that was given for it."""

    suites = ("query/answers_are_the*",)

    def query_model(self, model, properties):
        key = hashlib.sha256(model.to_onnx().SerializeToString(deterministic=True)).digest()
        if key not in notes(self):
            notes(self)[key] = super().query_model(model, properties)
        return notes(self)[key]


class RefusesLongNames(Broken):
    """Its compiler has room for names of 60 letters, and it refuses what has longer ones."""

    suites = ("query/answers_are_about*",)

    def verdict(self, op):
        if any(len(name) > 60 for name in (*op.inputs, *op.outputs)):
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, "a name is too long")
        return super().verdict(op)


class RefusesWhatHasNotes(Broken):
    """It refuses operations with a note, for which its format has no room."""

    suites = ("query/answers_are_about*",)

    def verdict(self, op):
        if op.node.doc_string:
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_ATTRIBUTE, "has a note")
        return super().verdict(op)


# ------------------------------------------------------------------------------------------ ports


class HasNoBfloats(Broken):
    """Its table of types has no bfloat16, whose ports say float32."""

    suites = ("types/Add/bfloat16*", "compiled/models_that*")

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.inputs = tuple(
                Port(p.index, p.name, np.dtype(np.float32), p.shape)
                if p.dtype is not None and p.dtype.name == "bfloat16"
                else p
                for p in self.inputs
            )


class TellsNamesOfFiles(Broken):
    """A model is called as the file that it was written to for the compiler."""

    suites = ("ports/models_may*",)

    class compiled_type(GoodCompiled):
        def extra_properties(self):
            return {"NETWORK_NAME": "".join(c if c.isalnum() else "_" for c in self.model.name)}


# -------------------------------------------------------------------------- models that are alike


class KnowsProgramsBy(Broken):
    """A frame: finds programs by a key that leaves something out."""

    suites = ("compiled/models_that*",)

    def key(self, model):
        raise NotImplementedError

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        ports = tuple((p.name, str(p.dtype), p.shape) for p in (*made.inputs, *made.outputs))
        key = (ports, self.key(model))
        made.evaluator = notes(self).setdefault(key, made.evaluator)
        return made


def _weights(model):
    """A hash of all weights with their names."""
    found = hashlib.sha256()
    for name, value in sorted(model.ir.graph.initializers.items()):
        found.update(name.encode() + str(value.shape).encode() + value.const_value.tobytes())
    return found.digest()


def _attributes(op):
    return str(sorted((name, str(one.value)) for name, one in op.node.attributes.items()))


class KnowsProgramsByOperators(KnowsProgramsBy):
    """Its key has operators, attributes and weights, and not what reads what."""

    def key(self, model):
        return tuple((op.op_type, _attributes(op)) for op in model.ops), _weights(model)


class KnowsProgramsWithoutWords(KnowsProgramsBy):
    """Its key has no attributes that are words."""

    def key(self, model):
        parts = []
        for op in model.ops:
            known = [a for a in op.node.attributes.values() if a.type.name != "STRING"]
            parts.append((op.op_type, *op.inputs, *op.outputs, str([str(a) for a in known])))
        return tuple(parts), _weights(model)


class KnowsProgramsWithSortedWeights(KnowsProgramsBy):
    """Its key has the weights that there are, and not which of them is which."""

    def key(self, model):
        weights = model.ir.graph.initializers.values()
        parts = tuple((op.op_type, *op.inputs, *op.outputs, _attributes(op)) for op in model.ops)
        return parts, tuple(sorted(value.const_value.tobytes() for value in weights))


class OwnTable(Broken):
    """A frame: its blobs are kept in a table, and hold the key of it."""

    suites = ("blob/blobs_that*",)
    table = None

    class compiled_type(GoodCompiled):
        def export_model(self):
            plugin = self.plugin
            table = OwnTable.table = OwnTable.table or {}
            key = hashlib.sha256(repr(plugin.named_by(self)).encode()).hexdigest()
            table.setdefault(key, (self.model, self.properties))
            return f"TABLE {key}".encode()

    def named_by(self, compiled):
        raise NotImplementedError

    def import_model(self, blob, properties):
        found = (OwnTable.table or {}).get(bytes(blob).decode("latin1").removeprefix("TABLE "))
        if found is None:
            raise partita.errors.BlobError("This is no blob of it.")
        stored = found[1].model_dump(exclude_unset=True) | properties.model_dump(exclude_unset=True)
        return self.compile_model(found[0], self.properties_type(**stored))


class ExportsByStructure(OwnTable):
    """Blobs of equal structure are one, whatever bodies hold."""

    def named_by(self, compiled):
        ops = [(op.op_type, op.inputs, op.outputs, len(op.node.attributes))
               for op in compiled.model.ops]  # fmt: skip
        ports = [str(port) for port in (*compiled.inputs, *compiled.outputs)]
        return compiled.model.name, ops, ports, _weights(compiled.model)


# --------------------------------------------------------------------------------------- settings


class TextsInSmallLetters(Broken):
    """It keeps a text in small letters, without spaces around it."""

    suites = ("properties/texts*",)

    class properties_type(GoodProperties):
        TARGET: str = Field("", description="What to compile for.")

        @pydantic.field_validator("TARGET")
        @classmethod
        def tidy(cls, value):
            return value.strip().lower()


class Effort(enum.StrEnum):
    """How hard to try."""

    LOW = "low"
    HIGH = "high"


class MembersOnly(Broken):
    """It takes members of its enumeration, and no texts."""

    suites = ("properties/values*",)

    class properties_type(GoodProperties):
        EFFORT: Effort = Field(Effort.LOW, description="How hard to try.")

        @pydantic.field_validator("EFFORT", mode="before")
        @classmethod
        def members(cls, value):
            if not isinstance(value, Effort):
                raise ValueError("takes Effort.LOW and Effort.HIGH")
            return value


class AnyTextIsTrue(Broken):
    """It asks Python for the truth of texts, which is that they are not empty."""

    suites = ("properties/values*",)

    class properties_type(GoodProperties):
        FAST: bool = Field(False, description="Whether to hurry.")

        @pydantic.field_validator("FAST", mode="before")
        @classmethod
        def truth(cls, value):
            return bool(value)


class RoundsLevels(Broken):
    """A level that is no whole number is cut."""

    suites = ("properties/wrong*",)

    class properties_type(GoodProperties):
        @pydantic.field_validator("LEVEL", mode="before")
        @classmethod
        def cut(cls, value):
            return int(value) if isinstance(value, float) else value


class ImportsWithoutChecks(Broken):
    """A wrong value for an import is left out, as the blob has one."""

    suites = ("properties/wrong*",)

    class properties_type(GoodProperties):
        @pydantic.field_validator("LEVEL", mode="wrap")
        @classmethod
        def lenient(cls, value, handler):
            try:
                return handler(value)
            except pydantic.ValidationError:
                if value == "":
                    return 1
                raise


class LevelsChooseModes(Broken):
    """A level above 1 turns mode TWO on, and says so."""

    suites = ("properties/each_model*",)

    class compiled_type(GoodCompiled):
        def get_property(self, name):
            if name == "MODE" and self.properties.LEVEL > 1:
                return "TWO"
            return super().get_property(name)


class ForgetsThatModesGoBack(Broken):
    """A mode that was set once is that of all later compiles that do not have another one."""

    suites = ("properties/each_model*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            if properties.MODE == "TWO":
                notes(plugin)["mode"] = "TWO"
            super().__init__(plugin, model, properties)
            self.mode = notes(plugin).get("mode", "ONE")

        def get_property(self, name):
            return self.mode if name == "MODE" else super().get_property(name)


class LastOfThreeIsTheSecond(Broken):
    """Of three speeds it has two: the last one reads as the one before."""

    suites = ("properties/set_ones*",)

    class properties_type(GoodProperties):
        SPEED: Literal["slow", "usual", "fast"] = Field("slow", description="How fast.")

    class compiled_type(GoodCompiled):
        def get_property(self, name):
            have = super().get_property(name)
            return "usual" if name == "SPEED" and have == "fast" else have


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
                value.const_value = partita_tensor(kept)
        return super().compile_model(model, properties)


def partita_tensor(array):
    """A weight of the graph."""
    import onnx_ir as ir

    return ir.tensor(array)


class MinimaOfFloatsAreZero(Broken):
    """Weights of float16 below the least normal one are zero, wherever they come from."""

    suites = ("compiled/weights_may*",)

    def prepare(self, proto):
        from onnx import TensorProto, numpy_helper

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
