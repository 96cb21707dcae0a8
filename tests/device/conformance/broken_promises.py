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
from good_device import GoodCompiled, GoodProperties
from pydantic import Field

import partita
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
