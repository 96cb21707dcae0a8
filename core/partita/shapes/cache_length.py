"""Whether a cache of keys or values becomes longer by the tokens of a run."""

from __future__ import annotations

Length = int | str | None
"""Places of a cache: a number, a symbol, or ``None`` where the model says nothing."""


def may_grow(*caches: tuple[Length, Length]) -> bool:
    """Whether a GroupQueryAttention's present may be longer than its past.

    It is, in onnxruntime, as soon as there are more tokens than places, whatever a model declares.
    Here a model that calls both lengths alike has caches of a fixed capacity, whose requests are
    one program; and so has one whose past is a number of places, since no second run could take
    what has grown. Numbers of present are claims, which are stale where a model was given another
    context. What is said of keys holds for values, and the other way round.

    Args:
        caches: Of keys and of values what the model declares of past and of present.

    Example:
        >>> may_grow(("before", "after")), may_grow(("before", None)), may_grow(("room", "room"))
        (True, True, False)
        >>> may_grow((64, None)), may_grow(("before", 64)), may_grow((None, None), ("a", "a"))
        (False, False, False)
        >>> may_grow((0, None))
        True
    """
    return not any(_stays(past, present) for past, present in caches)


def _stays(past: Length, present: Length) -> bool:
    if present is not None and (isinstance(present, int) or present == past):
        return True
    return isinstance(past, int) and (past > 0 or present is not None)
