"""Pins find their operations, and say what is wrong with them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from partita.errors import PlanError
from partita_hetero.options.pins import OpFacts, PinRule, resolve

OPS = [
    OpFacts("/head/conv", "Conv"),
    OpFacts("/head/relu", "Relu"),
    OpFacts("/tail/conv", "Conv", metadata={"part": "tail"}),
    OpFacts("norm", "Norm", "com.example"),
]

LAYERS = [
    OpFacts(f"op{place}", "Add", metadata={"partita.module_path": path})
    for place, path in enumerate(["enc.layer.1.mlp", "enc.layer.1", "enc.layer.10", "head"])
]


def rules(*texts):
    return [PinRule.model_validate(text) for text in texts]


def devices(*texts):
    return {OPS[i].name: pin.device for i, pin in resolve(rules(*texts), OPS).items()}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("conv1=GPU", ("name", "conv1", "GPU", True)),
        ("name:a=b=GPU.1?", ("name", "a=b", "GPU.1", False)),
        ("re:^/head/.*=CPU?", ("re", "^/head/.*", "CPU", False)),
        ("type:com.example::Norm=NPU", ("type", "com.example::Norm", "NPU", True)),
        ("path:encoder.layer.3=GPU", ("path", "encoder.layer.3", "GPU", True)),
        ("meta:part=tail=CPU", ("meta", "part=tail", "CPU", True)),
    ],
)
def test_rules_are_read_from_text_and_written_back(text, fields):
    rule = PinRule.model_validate(text)
    assert (rule.match, rule.pattern, rule.device, rule.hard) == fields
    assert PinRule.model_validate(str(rule)) == rule
    assert PinRule.model_validate(rule.model_dump(mode="json")) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv1", "'conv1' is not a pin; write NAME=DEVICE"),
        ("=GPU", "is not a pin"),
        ("conv1=", "is not a pin"),
        ("re:(=GPU", r"'\(' is not a regular expression: missing \)"),
        ("meta:part=GPU", "'part' is not a metadata entry; write KEY=VALUE"),
    ],
)
def test_what_is_no_rule_is_refused(text, message):
    with pytest.raises(ValidationError, match=message):
        PinRule.model_validate(text)


def test_each_kind_of_rule_finds_its_operations():
    assert devices("/tail/conv=A") == {"/tail/conv": "A"}
    assert devices("re:head=A") == {"/head/conv": "A", "/head/relu": "A"}
    assert devices("type:Conv=A") == {"/head/conv": "A", "/tail/conv": "A"}
    assert devices("type:com.example::Norm=A") == {"norm": "A"}
    assert devices("meta:part=tail=A") == {"/tail/conv": "A"}


def test_a_pin_by_module_takes_what_lies_in_it_and_an_inner_module_comes_first():
    pins = rules("path:enc=A", "path:enc.layer.1=B", "op1=C", "type:Add=D")
    found = {place: pin.device for place, pin in resolve(pins, LAYERS).items()}
    assert found == {0: "B", 1: "C", 2: "A", 3: "D"}


def test_a_pin_by_module_that_matches_nothing():
    with pytest.raises(PlanError, match=r"Did you mean 'enc\.layer\.1"):
        resolve(rules("path:enc.layer.11=A"), LAYERS)
    with pytest.raises(PlanError, match="None of them comes from a PyTorch module; convert_model"):
        resolve(rules("path:enc=A"), OPS)


def test_hard_beats_soft_and_a_name_beats_a_pattern():
    assert devices("type:Conv=A", "/tail/conv=B")["/tail/conv"] == "B"
    assert devices("/tail/conv=B", "type:Conv=A")["/tail/conv"] == "B"
    assert devices("/tail/conv=B?", "type:Conv=A")["/tail/conv"] == "A"
    assert devices("type:Conv=A?", "re:tail=B")["/tail/conv"] == "B"
    found = resolve(rules("type:Conv=A?"), OPS)[0]
    assert (found.hard, found.why) == (False, "pin 'type:Conv=A?'")


def test_rules_that_disagree():
    expected = "Pins 'type:Conv=A' and 're:head=B' disagree on operation '/head/conv' \\(Conv\\)"
    with pytest.raises(PlanError, match=expected):
        resolve(rules("type:Conv=A", "re:head=B"), OPS)
    assert devices("type:Conv=A", "re:conv=A") == {"/head/conv": "A", "/tail/conv": "A"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "/head/convv=A",
            "'/head/convv=A' matches none of 4 operations. Did you mean '/head/conv'",
        ),
        ("zzz=A", "There is no such name"),
        ("type:Gemm=A", "There are Conv, Relu, com.example::Norm"),
        ("type:Norm=A", "There are Conv"),
        ("re:^x=A", "Names are such as '/head/conv', '/head/relu', '/tail/conv'"),
        ("meta:part=nose=A", "Metadata keys are part"),
    ],
)
def test_rules_that_match_nothing(text, message):
    with pytest.raises(PlanError, match=message):
        resolve(rules(text), OPS)
