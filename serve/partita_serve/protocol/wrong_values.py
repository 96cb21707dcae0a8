"""Short error messages for invalid values in requests, however many are wrong."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from partita_serve.protocol.errors import InvalidRequest

MOST_NAMES = 64
"""Names that objects from clients are looked at with; none of ours has as many."""

_MOST_TENSORS = 4096
_MOST_LISTED = 8
_LONGEST_PLACE = 100


def check_count(tensors: int, what: str) -> None:
    """Refuses more inputs or outputs than any model has, before one of them is looked at.

    Raises:
        InvalidRequest: There are too many.
    """
    if tensors > _MOST_TENSORS:
        raise InvalidRequest(f"The request has {tensors} {what}; {_MOST_TENSORS} are read at most.")


def in_words(error: ValidationError, kind: type[BaseModel]) -> str:
    """The first things that are wrong, without an end.

    Args:
        error: What pydantic found.
        kind: Class of the object to make; the message lists its names where one is unknown.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    messages = []
    for one in found[:_MOST_LISTED]:
        place = ".".join(map(str, one["loc"]))
        if len(place) > _LONGEST_PLACE:
            place = f"{place[:_LONGEST_PLACE]}..."
        if one["type"] == "extra_forbidden":
            messages.append(f"'{place}' is unknown; there are {', '.join(kind.model_fields)}")
        else:
            wrong = one["msg"].removeprefix("Value error, ")
            messages.append(f"'{place}': {wrong}" if place else wrong)
    if len(found) > _MOST_LISTED:
        messages.append(f"and {len(found) - _MOST_LISTED} more")
    return "; ".join(messages)
