"""Texts cut into words, and words counted: Tokenizer and TfIdfVectorizer.

What scikit-learn's vectorizers become: texts, tokens, and numbers of each n-gram of a vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun

from partita_reference.texts.characters import Test
from partita_reference.texts.matching import Step
from partita_reference.texts.pattern import steps_of

Array = np.ndarray[Any, Any]

BEGIN, END = "\2", "\3"
"""What stands before and behind the tokens of a text that are to be marked."""

_REPEATED = 5
"""Steps of a pattern of one set of characters and a plus."""


def refused_tokens(separators: Sequence[str], pattern: str) -> str | None:
    """Why a Tokenizer is not computed; mostly for nothing."""
    if separators:
        return "separators are given; takes tokenexp, of one set of characters, or that and '+'"
    try:
        token_test(steps_of(pattern))
    except ValueError as error:
        return f"tokenexp: {error}"
    return None


def token_test(steps: Sequence[Step]) -> tuple[Test, bool]:
    """Which characters tokens are of, and whether a token takes all that follow each other.

    Raises:
        ValueError: The pattern is more than that.
    """
    first = steps[0].test
    if first is not None and len(steps) == 2:
        return first, False
    if first is not None and len(steps) == _REPEATED:
        ways = [step.ways for step in steps[1:]]
        if ways == [(1, 3), (), (-2,), ()] and steps[2].test == first:
            return first, True
    raise ValueError("it is more than one set of characters, or that and '+'")


class _Kept(dict[int, int]):
    """By code the character, or a separator for one that is of no token; each is asked for once."""

    def __init__(self, test: Test) -> None:
        self._test = test
        codes = range(sys.maxunicode + 1)
        self.separator = next((chr(code) for code in codes if not test(chr(code))), "")

    def __missing__(self, code: int) -> int:
        found = self[code] = code if self._test(chr(code)) else ord(self.separator)
        return found


class Tokenizer(OpRun):
    """Of each text what a pattern takes, in rows that are filled up."""

    op_domain = "com.microsoft"
    op_schema = None

    def __init__(self, onnx_node: onnx.NodeProto, run_params: Any) -> None:
        super().__init__(onnx_node, run_params)
        pattern = onnx.helper.get_node_attr_value(onnx_node, "tokenexp").decode()
        test, self._is_run = token_test(steps_of(pattern))
        self._kept = _Kept(test)

    def _run(self, x: Array, **given: Any) -> tuple[Array]:
        least, marks = given.get("mincharnum", 1), bool(given.get("mark", 0))
        rows = [[t for t in self._tokens(text) if len(t) >= least] for text in x.ravel().tolist()]
        width = max(map(len, rows), default=0)
        if width and marks:
            rows, width = [[BEGIN, *row, END] for row in rows], width + 2
        filled = [row + [given["pad_value"]] * (width - len(row)) for row in rows]
        return (np.array(filled, object).reshape(*x.shape, width),)

    def _tokens(self, text: str) -> Iterable[str]:
        kept, separator = text.translate(self._kept), self._kept.separator
        if not self._is_run:
            return (character for character in kept if character != separator)
        return filter(None, kept.split(separator) if separator else [kept])


class TfIdfVectorizer(OpRun):
    """How often each n-gram of a vocabulary is in a row, by weights.

    The original walks through rows in Python, takes weights of n-grams for those of the places to
    which these are written, and fails where weights are left out, which are ones then.
    """

    def __init__(self, onnx_node: onnx.NodeProto, run_params: Any) -> None:
        super().__init__(onnx_node, run_params)
        settings: Any = self
        pool = settings.pool_strings or settings.pool_int64s
        self._places = np.array(settings.ngram_indexes, np.int64)
        self._weights = np.array(settings.weights or np.ones(len(self._places)), np.float32)
        self._vocabulary = {token: n for n, token in enumerate(dict.fromkeys(pool))}
        self._steps: dict[int, int] = {}
        """By node of the tree of n-grams and token, the next node."""
        self._grams = [-1]
        """By node the number of the n-gram that ends there, or -1."""
        self._grow(pool, settings)
        self._keys = np.array(sorted(self._steps), np.int64)
        self._nodes = np.array([self._steps[key] for key in self._keys.tolist()], np.int64)

    def _grow(self, pool: Sequence[Any], settings: Any) -> None:
        """Makes the tree of all n-grams of the lengths that are counted."""
        number, ends = 0, [*settings.ngram_counts[1:], len(pool)]
        for size, (first, end) in enumerate(zip(settings.ngram_counts, ends, strict=True), 1):
            for at in range(first, end - size + 1, size):
                if settings.min_gram_length <= size <= settings.max_gram_length:
                    node = 0
                    for token in pool[at : at + size]:
                        key = node * len(self._vocabulary) + self._vocabulary[token]
                        node = self._steps.setdefault(key, len(self._grams))
                        if node == len(self._grams):
                            self._grams.append(-1)
                    self._grams[node] = number
                number += 1

    def _run(self, x: Array, **given: Any) -> tuple[Array]:
        if x.ndim > 2:
            raise ValueError(f"TfIdfVectorizer takes one row of tokens or several, not {x.shape}")
        rows = np.atleast_2d(x)
        numbers = (self._vocabulary.get(token, -1) for token in rows.ravel().tolist())
        flat = np.fromiter(numbers, np.int64, rows.size)
        found = list(self._found(flat.reshape(rows.shape), given))
        row = np.concatenate([part for part, _ in found]) if found else np.zeros(0, np.int64)
        gram = np.concatenate([part for _, part in found]) if found else np.zeros(0, np.int64)
        if given["mode"] == "IDF":
            row, gram = np.divmod(np.unique(row * len(self._places) + gram), len(self._places))
        width = int(self._places.max()) + 1
        weights = None if given["mode"] == "TF" else self._weights[gram]
        cells = row * width + self._places[gram]
        y = np.bincount(cells, weights, len(rows) * width).astype(np.float32)
        return (y.reshape(*x.shape[:-1], width),)

    def _found(self, tokens: Array, given: dict[str, Any]) -> Iterator[tuple[Array, Array]]:
        """Rows and numbers of all n-grams that are there, by their lengths and gaps."""
        least, most = given["min_gram_length"], given["max_gram_length"]
        grams = np.array(self._grams)
        for step in range(1, given["max_skip_count"] + 2):
            row, place = np.nonzero(tokens >= 0)
            node = np.zeros(len(row), np.int64)
            for size in range(1, most + 1):
                node, kept = self._next(node, tokens[row, place])
                row, place = row[kept], place[kept]
                if size >= least and (size > 1 or step == 1):  # alone there is nothing to skip
                    ends = grams[node] >= 0
                    yield row[ends], grams[node[ends]]
                inside = place + step < tokens.shape[1]
                row, place, node = row[inside], place[inside] + step, node[inside]

    def _next(self, node: Array, token: Array) -> tuple[Array, Array]:
        """Where tokens lead from nodes, and of which of them that is anywhere."""
        keys = node * len(self._vocabulary) + token
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        kept = (token >= 0) & (self._keys[at] == keys)
        return self._nodes[at[kept]], kept
