"""Variables that a model keeps from one run to the next, as OpenVINO's ReadValue and Assign do.

In the graph a variable is an input, which a run reads, and an output, which is what the next run
reads; a second input says whether there was a run before, where the first one computes its own
beginning. They are the last inputs and outputs of the model, which says in its metadata what
belongs together. A request hands them on by itself: :mod:`partita.runtime.variable_state`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from partita.errors import ModelFormatError

METADATA_KEY = "partita.variables"
"""The entry of a model's metadata that names its variables."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of a model.

    Attributes:
        name: The variable's id.
        read: The input that holds what it was.
        written: The output that holds what it becomes.
        begun: The input (one bool) that says whether ``read`` holds anything; empty if there is
            none, and the variable begins with zeros.
    """

    name: str
    read: str
    written: str
    begun: str = ""


def to_metadata(variables: Sequence[Variable]) -> str:
    """The entry of the metadata."""
    return json.dumps([asdict(variable) for variable in variables])


def from_metadata(
    metadata: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str]
) -> tuple[Variable, ...]:
    """The variables of a model, or none.

    Args:
        metadata: The model's.
        inputs: Names of its inputs.
        outputs: Names of its outputs.

    Raises:
        ModelFormatError: The entry is damaged, or names inputs or outputs that are not there.
    """
    text = metadata.get(METADATA_KEY)
    if text is None:
        return ()
    try:
        entries = json.loads(text)
        if not all(isinstance(field, str) for entry in entries for field in entry.values()):
            raise ValueError("an entry holds something else than texts")
        found = tuple(Variable(**entry) for entry in entries)
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ModelFormatError(f"Metadata '{METADATA_KEY}' lists no variables: {error}") from error
    taken: set[str] = set()
    for variable in found:
        named = [variable.read, *([variable.begun] if variable.begun else [])]
        for name, known, what in [
            *((name, inputs, "input") for name in named),
            (variable.written, outputs, "output"),
        ]:
            if name not in known or name in taken:
                raise ModelFormatError(
                    f"Metadata '{METADATA_KEY}' gives variable '{variable.name}' the {what} "
                    f"{name!r}, which the model lacks or another variable has."
                )
            taken.add(name)
    return found
