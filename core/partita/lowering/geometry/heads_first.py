"""The layout of heads in fused attention.

Tensors are (batch, head, row, element), heads first, or (batch, row, head, element).
"""

from __future__ import annotations

from typing import NamedTuple

from partita.lowering.graph import Node


class HeadsFirst(NamedTuple):
    """Which tensors of ``partita::Attention`` are (batch, head, row, element).

    Others are (batch, row, head, element).

    Attributes:
        query: Whether queries are.
        key: Whether keys are.
        value: Whether values are.
        result: Whether the result is.
    """

    query: bool = False
    key: bool = False
    value: bool = False
    result: bool = False

    @property
    def inputs(self) -> tuple[bool, bool, bool]:
        """Those of queries, keys and values."""
        return self.query, self.key, self.value


def heads_first(node: Node) -> HeadsFirst:
    """What a node of fused attention says in its attribute of that name; without it none is."""
    return HeadsFirst(*node.attrs.get("heads_first", ()))
