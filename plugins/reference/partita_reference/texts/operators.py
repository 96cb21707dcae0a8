"""Operators of texts that ``onnx.reference`` computes otherwise than ONNX specifies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_string_split import StringSplit as OriginalStringSplit

from partita_reference.texts.matching import matches
from partita_reference.texts.pattern import steps_of

_CHANGES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper}


class RegexFullMatch(OpRun):
    """The original leaves patterns to Python's ``re``, whose syntax and speed are others."""

    def _run(
        self, x: np.ndarray[Any, Any], pattern: str | None = None
    ) -> tuple[np.ndarray[Any, Any]]:
        steps = steps_of(pattern or "")
        found = [matches(steps, str(text)) for text in x.reshape(-1)]
        return (np.array(found, bool).reshape(x.shape),)


class StringNormalizer(OpRun):
    """The original looks for stop words within texts, strips accents and drops empty texts."""

    def _run(
        self,
        x: np.ndarray[Any, Any],
        case_change_action: str | None = None,
        is_case_sensitive: int | None = None,
        locale: str | None = None,
        stopwords: Sequence[str] | None = None,
    ) -> tuple[np.ndarray[Any, Any]]:
        seen: Callable[[str], str] = str if is_case_sensitive else str.lower
        stopped = {seen(word) for word in stopwords or ()}
        changed = _CHANGES.get(case_change_action or "NONE", str)
        kept = [changed(text) for text in x.reshape(-1) if seen(text) not in stopped]
        shape = (*x.shape[:-1], -1)
        return (np.array(kept or [""], dtype=object).reshape(shape),)


class StringSplit(OriginalStringSplit):
    """The original fails at a text without dimensions."""

    def _run(
        self, x: np.ndarray[Any, Any], delimiter: str | None = None, maxsplit: int | None = None
    ) -> tuple[np.ndarray[Any, Any], ...]:
        results: tuple[np.ndarray[Any, Any], ...] = super()._run(  # type: ignore[no-untyped-call]  # onnx
            np.atleast_1d(x), delimiter, maxsplit
        )
        return results if x.ndim else tuple(result[0, ...] for result in results)
