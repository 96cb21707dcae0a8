"""Whether a cache of keys or values becomes longer by the tokens of a run."""

from __future__ import annotations

Length = int | str | None
"""Places of a cache: a number, a symbol, or ``None`` where the model says nothing."""


def may_grow(past: Length, present: Length) -> bool:
    """Whether a GroupQueryAttention's present may be longer than its past.

    It is, in onnxruntime, as soon as there are more tokens than places, whatever a model declares.
    Here a model that calls both lengths alike has caches of a fixed capacity, whose requests are
    one program; and so has one whose past is a number of places, since no second run could take
    what has grown. Numbers of present are claims, which are stale where a model was given another
    context.

    Args:
        past: What the model declares of the cache before.
        present: What it declares of the cache behind.

    Example:
        >>> may_grow("before", "after"), may_grow("before", None), may_grow("room", "room")
        (True, True, False)
        >>> may_grow(64, None), may_grow("before", 64)
        (False, False)
    """
    if isinstance(past, int) or isinstance(present, int):
        return False
    return past is None or past != present
