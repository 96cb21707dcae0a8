"""What may have been meant by a name that is not there."""

from __future__ import annotations

from collections.abc import Iterable

_NEAR = 0.75
_NEAR_FROM_THE_FIRST_LETTER = 0.6
"""How like names are, of 1, of which one may be the other mistyped: ``HETRO`` and ``HETERO`` are,
``CPV`` and ``CPU``, but not ``NPU`` and ``CPU``. Few mistype the first letter."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that one is most like, whatever its case; none if all are far from it.

    Example:
        >>> nearest("hetro", ["CPU", "HETERO"])
        'HETERO'
        >>> nearest("NPU", ["CPU", "GPU"])
    """
    import difflib

    folded = {one.casefold(): one for one in known}
    given = name.casefold()
    alike = {one for one in folded if one[:1] == given[:1]}
    close = difflib.get_close_matches(given, folded, n=1, cutoff=_NEAR) or (
        difflib.get_close_matches(given, alike, n=1, cutoff=_NEAR_FROM_THE_FIRST_LETTER)
    )
    return folded[close[0]] if close else None


def guess(name: str, known: Iterable[str]) -> str:
    """The sentence that ends a message with the nearest name, or nothing.

    Example:
        >>> guess("CPUX", ["CPU", "HETERO"])
        " Did you mean 'CPU'?"
    """
    near = nearest(name, known)
    return "" if near is None else f" Did you mean '{near}'?"
