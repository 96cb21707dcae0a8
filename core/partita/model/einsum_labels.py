"""The labels of an Einsum equation: those of an ellipsis and of a result that is not named, too."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

Labels = list[str]


def labels_of(equation: str, shapes: Sequence[Sequence[object]]) -> tuple[list[Labels], Labels]:
    """A label for each dimension of each operand, and for each one of the result.

    The last dimension of an ellipsis is ".00", the one before ".01". A result that is not named has
    those of the ellipses, then all labels that come once, in the order of the alphabet.

    Args:
        equation: The equation, with or without an arrow.
        shapes: Those of the operands; their dimensions may be anything.

    Raises:
        ValueError: They do not fit each other; says how.

    Example:
        >>> labels_of("...ab, bc", [(2, 3, 4), (4, 5)])
        ([['.00', 'a', 'b'], ['b', 'c']], ['.00', 'a', 'c'])
    """
    left, arrow, right = re.sub(r"\s", "", equation).partition("->")
    texts = left.split(",")
    if len(texts) != len(shapes):
        raise ValueError(f"it has {len(shapes)} inputs, but its equation names {len(texts)}")
    terms = [_expanded(text, len(shape)) for text, shape in zip(texts, shapes, strict=True)]
    for text, labels, shape in zip(texts, terms, shapes, strict=True):
        if len(labels) != len(shape):
            raise ValueError(f"'{text}' does not fit an input of shape {list(shape)}")
    counted = Counter(label for labels in terms for label in labels)
    dots = sorted((label for label in counted if label[0] == "."), reverse=True)
    if not arrow:
        once = (label for label, count in counted.items() if count == 1 and label[0] != ".")
        return terms, [*dots, *sorted(once)]
    head, mark, tail = right.partition("...")
    for label in head + tail:
        if label not in counted:
            raise ValueError(f"no input has '{label}', which its result has")
    return terms, [*head, *(dots if mark else []), *tail]


def _expanded(text: str, rank: int) -> Labels:
    head, mark, tail = text.partition("...")
    count = rank - len(head) - len(tail) if mark else 0
    return [*head, *(f".{place:02}" for place in reversed(range(count))), *tail]
