"""Failures of devices while compiling: which operations they lose, and the messages about it."""

from __future__ import annotations

from collections.abc import Mapping

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError, OperandError, UnsupportedOpError, in_words
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.partition.submodels import Submodel

Exclusions = Mapping[tuple[int, str], Reason]
"""Operations that a device took and then failed on, with the reason."""


def exclude(
    op_graph: OpGraph, submodel: Submodel, code: ReasonCode, error: BaseException
) -> dict[tuple[int, str], Reason]:
    """The exclusions that keep a submodel's operations off its device.

    Args:
        op_graph: The model's operations.
        submodel: The submodel.
        code: When it failed.
        error: What its device raised.

    Returns:
        By operation and device the reason: of those operations that the error names as refused, if
        it names any, else of all.
    """
    refused = error.reasons if isinstance(error, UnsupportedOpError) else {}
    named = {
        (op, submodel.device): reason
        for op in submodel.ops
        if (reason := refused.get(op_graph.nodes[op].name or ""))
    }
    return named or dict.fromkeys(
        ((op, submodel.device) for op in submodel.ops), Reason(code, in_words(error))
    )


def exclude_device(op_graph: OpGraph, device: str, reason: Reason) -> dict[tuple[int, str], Reason]:
    """The exclusions that leave a device alone altogether."""
    return {(op, device): reason for op in range(len(op_graph.nodes))}


def not_compiled(submodel: Submodel, error: BaseException) -> CompileError:
    """What STRICT raises where a device cannot compile what it claimed."""
    kind = OperandError if isinstance(error, OperandError) else CompileError
    return kind(
        f"Device '{submodel.device}' claimed {len(submodel.ops)} operations and failed to compile "
        f"them: {in_words(error)}"
    )


def remark(op_graph: OpGraph, submodel: Submodel, what: str, error: BaseException) -> str:
    """A sentence for the explanation's notes about a submodel that failed.

    Args:
        op_graph: The model's operations.
        submodel: The submodel.
        what: What happened, such as ``"failed to compile"``.
        error: What its device raised.
    """
    first = op_graph.nodes[submodel.ops[0]].name
    return (
        f"{submodel.device} claimed {len(submodel.ops)} operations (from '{first}') and {what} "
        f"them: {in_words(error)}"
    )
