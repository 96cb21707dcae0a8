"""The kit's suite ``properties``: a hint may come to something else, if the device says why."""

from dataclasses import replace
from typing import Literal

import pydantic
import pytest
from good_device import Good, GoodCompiled, GoodProperties
from pydantic import Field

import partita
from partita_conformance.bench.bench import Target
from partita_conformance.runs.collect import Selection, collect
from partita_conformance.runs.running import PASSED, InProcess
from partita_conformance.suites.contract.suite_properties import other_values


class Limited(GoodCompiled):
    """Computes in f32 whatever it is asked for."""

    def extra_properties(self):
        return {self.plugin.wish: "f32"}

    def explain(self):
        return replace(super().explain(), notes=[self.plugin.note])


class Silent(Good):
    wish, note = "PRECISION_HINT", ""
    compiled_type = Limited

    class properties_type(GoodProperties):
        PRECISION_HINT: Literal["f32", "bf16"] = Field("f32", description="A wish.")
        PRECISION: Literal["f32", "bf16"] = Field("f32", description="An order.")


class Candid(Silent):
    note = "PRECISION_HINT=bf16 computes f32 here: no instructions for it."


class Disobedient(Silent):
    wish, note = "PRECISION", "PRECISION=bf16 computes f32 here: no instructions for it."


@pytest.mark.parametrize(
    ("plugin", "fault"),
    [
        (Candid, ""),
        (Silent, "PRECISION_HINT was set to 'bf16'; the compiled model has 'f32'"),
        (Disobedient, "PRECISION was set to 'bf16'; the compiled model has 'f32'"),
    ],
)
def test_a_hint_that_is_not_followed_is_explained(plugin, fault):
    name = f"{plugin.__module__}:{plugin.__name__}"
    (check,) = collect(Selection(("properties/set_ones_reach_the_compiled_model",)))
    outcome = InProcess(Target("GOOD", name)).run(check)
    assert outcome.bad == bool(fault)
    assert outcome.detail.startswith(fault)


class Roomy(Good):
    """Takes what fits into a memory that is limited, and compiles nothing else."""

    class properties_type(GoodProperties):
        ROOM: int = Field(100, description="What operations it has room for.")

    def query_model(self, model, properties):
        if len(model.ops) <= properties.ROOM:
            return super().query_model(model, properties)
        why = partita.Reason(partita.ReasonCode.MEMORY_LIMIT, f"has room for {properties.ROOM}")
        return partita.QueryResult.of(self.device_name, {op.name: why for op in model.ops})

    def compile_model(self, model, properties):
        self.query_model(model, properties).require_all(model)
        return super().compile_model(model, properties)


def test_a_number_may_leave_no_room_for_a_model():
    (check,) = collect(Selection(("properties/numbers_are_kept_or_refused",)))
    outcome = InProcess(Target("GOOD", f"{__name__}:Roomy")).run(check)
    assert outcome.status == PASSED, outcome.detail


def test_other_values_of_whole_numbers_are_multiples_of_what_they_must_be():
    """A step beside a value is one that the property may have."""

    class Properties(pydantic.BaseModel):
        PLAIN: int = 3
        EVEN: int = pydantic.Field(default=0, multiple_of=32)

    fields = Properties.model_fields
    assert other_values(fields["PLAIN"]) == [4]
    assert other_values(fields["EVEN"]) == [32]
    assert other_values(fields["EVEN"], 96) == [128]
