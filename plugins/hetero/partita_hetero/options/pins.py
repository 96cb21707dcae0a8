"""Pins: wishes for operations by name, expression, type, module or metadata, hard or soft."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from partita.errors import PlanError
from partita.frontends.torch.module_paths import MODULE_PATH, lies_in
from partita.suggestions import guess

Match = Literal["name", "re", "type", "path", "meta"]

_FORM = re.compile(
    r"(?:(?P<match>name|re|type|path|meta):)?(?P<pattern>.+)=(?P<device>[^=?]+)(?P<soft>\?)?"
)

_EXACT = 1 << 30
"""A pin by name is more precise than any other; one by module as its path is long."""


class PinRule(BaseModel):
    """A wish for all operations that it matches.

    Written as text: ``conv1=GPU`` (by name), ``re:^/head/.*=CPU`` (the expression must be found in
    the name), ``type:Conv=GPU`` (``domain::Type`` for other domains), ``path:encoder.layer.3=GPU``
    (a module of a PyTorch model, with all inside) or ``meta:key=value=GPU`` (the node's metadata).
    A question mark behind the device makes it soft: kept if the device
    takes the operation and no limit forbids it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    match: Match = Field("name", description="What the pattern is compared with.")
    pattern: str = Field(min_length=1, description="Name, expression, operator or key=value.")
    device: str = Field(min_length=1, description="Where the operations shall run.")
    hard: bool = Field(True, description="Whether it is an error if that is not possible.")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        form = _FORM.fullmatch(value.strip())
        if form is None:
            raise ValueError(
                f"'{value}' is not a pin; write NAME=DEVICE, re:EXPRESSION=DEVICE, "
                "type:OPERATOR=DEVICE, path:MODULE=DEVICE or meta:KEY=VALUE=DEVICE, with '?' "
                "behind the device for a soft pin"
            )
        return {
            "match": form["match"] or "name",
            "pattern": form["pattern"],
            "device": form["device"].strip(),
            "hard": form["soft"] is None,
        }

    @model_validator(mode="after")
    def _well_formed(self) -> PinRule:
        if self.match == "re":
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(
                    f"'{self.pattern}' is not a regular expression: {error}"
                ) from error
        if self.match == "meta" and "=" not in self.pattern:
            raise ValueError(f"'{self.pattern}' is not a metadata entry; write KEY=VALUE")
        return self

    def takes(self, op: OpFacts) -> bool:
        """Whether the rule is for an operation."""
        match self.match:
            case "name":
                return op.name == self.pattern
            case "re":
                return re.search(self.pattern, op.name) is not None
            case "type":
                full = f"{op.domain}::{op.op_type}" if op.domain else op.op_type
                return self.pattern == full
            case "path":
                return lies_in(op.metadata.get(MODULE_PATH, ""), self.pattern)
            case _:
                key, _, value = self.pattern.partition("=")
                return op.metadata.get(key) == value

    def __str__(self) -> str:
        kind = "" if self.match == "name" else f"{self.match}:"
        return f"{kind}{self.pattern}={self.device}{'' if self.hard else '?'}"


@dataclass(frozen=True, slots=True)
class OpFacts:
    """An operation as rules see it.

    Attributes:
        name: Its name.
        op_type: Its operator.
        domain: The operator's domain; ``""`` is ONNX's own.
        metadata: Its metadata in the model.
    """

    name: str
    op_type: str = ""
    domain: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pin:
    """A wish for one operation.

    Attributes:
        device: Where it shall run.
        why: Where the wish comes from, for people: ``"pin 'type:Conv=GPU'"``.
        hard: Whether it is an error if the device refuses.
        loud: Whether to warn if a pin that is not hard cannot be kept.
    """

    device: str
    why: str
    hard: bool = True
    loud: bool = False


def read_rules(texts: Sequence[str]) -> list[PinRule]:
    """Reads rules written as text.

    Raises:
        PlanError: One is no rule; says what the forms are.
    """
    rules = []
    for text in texts:
        try:
            rules.append(PinRule.model_validate(text))
        except ValidationError as error:
            raise PlanError(f"{error.errors()[0]['msg'].removeprefix('Value error, ')}.") from error
    return rules


def resolve(rules: Sequence[PinRule], ops: Sequence[OpFacts]) -> dict[int, Pin]:
    """Finds the pin of each operation.

    A hard rule beats a soft one, then a rule by name any other, then one by module all but those
    by modules inside of that.

    Args:
        rules: The pins that were asked for, in any order.
        ops: Facts of the model's operations, in the model's order.

    Returns:
        The index of each operation that is pinned, and its pin.

    Raises:
        PlanError: A rule matches nothing, or two rules of the same rank disagree.
    """
    pins: dict[int, Pin] = {}
    winner: dict[int, PinRule] = {}
    for rule in rules:
        matched = [index for index, op in enumerate(ops) if rule.takes(op)]
        if not matched:
            raise PlanError(
                f"Pin '{rule}' matches none of {len(ops)} operations.{_hint(rule, ops)}"
            )
        for index in matched:
            other = winner.get(index)
            if other is not None and _rank(other) == _rank(rule) and other.device != rule.device:
                raise PlanError(
                    f"Pins '{other}' and '{rule}' disagree on operation '{ops[index].name}' "
                    f"({ops[index].op_type}); drop one, or name the operation in a third."
                )
            if other is None or _rank(rule) > _rank(other):
                winner[index] = rule
                pins[index] = Pin(rule.device, f"pin '{rule}'", rule.hard)
    return pins


def _rank(rule: PinRule) -> tuple[bool, int]:
    if rule.match == "path":
        return rule.hard, len(rule.pattern.split("."))
    return rule.hard, _EXACT if rule.match == "name" else 0


def _hint(rule: PinRule, ops: Sequence[OpFacts]) -> str:
    match rule.match:
        case "name":
            known, what = [op.name for op in ops], "name"
        case "type":
            known = sorted(
                {f"{op.domain}::{op.op_type}" if op.domain else op.op_type for op in ops}
            )
            if len(known) <= 12:
                return f" There are {', '.join(known)}."
            what = "operator"
        case "path":
            paths = sorted({op.metadata[MODULE_PATH] for op in ops if MODULE_PATH in op.metadata})
            if not paths:
                return (
                    " None of them comes from a PyTorch module; convert_model(module, "
                    "example_input=...) keeps where operations come from."
                )
            known, what = paths, "module"
        case "re":
            shown = ", ".join(f"'{op.name}'" for op in ops[:3])
            return f" Names are such as {shown}." if shown else ""
        case _:
            keys = sorted({key for op in ops for key in op.metadata})
            return f" Metadata keys are {', '.join(keys) or 'not there'}."
    return guess(rule.pattern, known) or f" There is no such {what}."
