"""Several texts at once: each takes a free row of the decoder, and leaves it when it ends.

A run gives every row that takes part equally many tokens. As long as prompts are to be read, runs
read them, in chunks that are no longer than what is left of the shortest; then every text gets a
token a run. Chunks that are not full are of 1, 2, 4, ... tokens, since a device prepares a program
for every number of tokens, and prompts are of all lengths. A new text joins as soon as a row is
free (a decoder whose cache grows takes new ones when all rows are free), and begins behind what
its row's cache holds of it already.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partita.generate.decoder import Decoder
from partita.generate.generation import Generation
from partita.generate.statistics import Statistics

Array = np.ndarray[Any, Any]

READ_AGAIN = 8
"""Tokens that are read again at most to save a run: it reads all weights, which takes as long."""


@dataclass
class _Row:
    """A row of the decoder: the tokens whose keys and values it holds, and whose they are."""

    held: list[int] = field(default_factory=list)
    generation: Generation | None = None

    @property
    def pending(self) -> int:
        """Tokens that wait to be read."""
        return 0 if self.generation is None else len(self.generation.pending)

    def can_step_back(self, count: int) -> bool:
        """Whether few enough of the tokens that it holds would be read again, and are there."""
        return count <= min(READ_AGAIN, len(self.held))

    def step_back(self, count: int) -> None:
        """Lets so many tokens that it holds wait to be read again."""
        if self.generation is not None:
            self.generation.pending[:0] = self.held[-count:]
            del self.held[-count:]


class ContinuousBatch:
    """Texts in the making on one decoder. Not for several threads at once.

    Args:
        decoder: Runs the model.
        chunk: Tokens of a prompt that one run reads at most.
        statistics: Is told what was done.
    """

    def __init__(self, decoder: Decoder, chunk: int, statistics: Statistics) -> None:
        self._decoder = decoder
        self._chunk = chunk
        self._statistics = statistics
        self._rows = [_Row() for _ in range(decoder.batch)]
        self._waiting: deque[Generation] = deque()
        self._sizes = {1}  # the decoder is warm for it

    def submit(self, generation: Generation) -> None:
        """Takes a text; it begins when a row is free."""
        self._waiting.append(generation)

    def drop(self, generation: Generation) -> None:
        """Forgets a text, whether it waits, goes on or has ended."""
        if generation in self._waiting:
            self._waiting.remove(generation)
        for row in self._rows:
            if row.generation is generation:
                row.generation = None

    def step(self) -> None:
        """Makes one run, if there is anything to do.

        Raises:
            InferError: A device failed; no text that was going on can go on.
        """
        self._admit()
        if not any(row.pending for row in self._rows):
            return
        try:
            self._run(*self._plan())
        except BaseException as error:
            self._abandon(error)
            raise

    def _admit(self) -> None:
        """Gives free rows to waiting texts."""
        if self._decoder.capacity is None and self._waiting:
            if any(row.generation for row in self._rows):
                return
            self._decoder.reset()
            for row in self._rows:
                row.held.clear()
        while self._waiting:
            free = [row for row in self._rows if row.generation is None]
            if not free:
                return
            generation = self._waiting.popleft()
            known = [_common(row.held, generation.prompt) for row in free]
            best = known.index(max(known))
            row = free[best]
            # The last token of the prompt is read in any case: its logits are wanted.
            start = min(known[best], len(generation.prompt) - 1)
            del row.held[start:]
            generation.pending = generation.prompt[start:]
            row.generation = generation

    def _plan(self) -> tuple[int, list[bool], int]:
        """Tokens of each row that the next run reads, which rows take part, and how many again."""
        capacity, most = self._decoder.capacity, self._chunk
        if capacity is not None:  # the padding of those that wait needs room too
            held = [len(row.held) for row in self._rows if row.generation is not None]
            most = min(most, capacity - max(held))
        prompts = [row for row in self._rows if row.pending > 1]
        count = self._size_of_run(prompts, most) if prompts else 1
        again = 0
        for row in prompts:
            lacks = count - row.pending
            if lacks > 0 and row.can_step_back(lacks):
                row.step_back(lacks)
                again += lacks
        for row in self._rows:
            if row.generation is None and capacity is not None and capacity - len(row.held) < count:
                row.held.clear()
        return count, [row.pending >= count for row in self._rows], again

    def _size_of_run(self, prompts: list[_Row], most: int) -> int:
        """Tokens of the next run of these rows, at most so many; those that lack few step back."""
        shortest = min(prompts, key=lambda row: row.pending)
        size = _size_within(min(shortest.pending, most), self._chunk)
        # A cache that grows has a place for each token that was ever read.
        if self._decoder.capacity is None or size in (shortest.pending, self._chunk):
            return size
        larger = min(2 * size, self._chunk)
        fits = larger <= most and shortest.can_step_back(larger - shortest.pending)
        return larger if fits else size

    def _run(self, count: int, taking_part: list[bool], again: int) -> None:
        start = time.perf_counter()
        tokens = np.zeros((len(self._rows), count), np.int64)
        lengths = np.array([len(row.held) for row in self._rows], np.int64)
        for index, row in enumerate(self._rows):
            if taking_part[index] and row.generation is not None:
                tokens[index] = row.generation.pending[:count]
        logits = self._decoder.run(tokens, lengths, np.array(taking_part))
        is_prefill = False
        for index, row in enumerate(self._rows):
            if taking_part[index] and row.generation is not None:
                is_prefill |= row.generation.is_prompt
                self._advance(row, row.generation, tokens[index].tolist(), logits[index])
        seconds = time.perf_counter() - start
        read = count * sum(taking_part) - again
        self._count(is_prefill, read, lengths[taking_part].sum(), seconds)
        if count not in self._sizes:
            self._sizes.add(count)
            self._statistics.first_run_seconds += seconds

    def _advance(self, row: _Row, generation: Generation, read: list[int], logits: Array) -> None:
        """Notes that a row has read tokens, and chooses the next one behind the last of them."""
        row.held += read
        del generation.pending[: len(read)]
        if not generation.pending:
            generation.advance(logits)
        if generation.failure is not None:
            row.held.clear()  # keys and values behind such logits are no beginning of others
        if generation.has_ended:
            row.generation = None

    def _count(self, is_prefill: bool, tokens: int, places: int, seconds: float) -> None:
        statistics = self._statistics
        if is_prefill:
            statistics.prefill_tokens += tokens
            statistics.prefill_seconds += seconds
        else:
            statistics.decode_tokens += tokens
            statistics.decode_seconds += seconds
            statistics.decode_runs += 1
            statistics.decode_places += int(places)

    def _abandon(self, error: BaseException) -> None:
        """Ends all texts that were going on, after a run of which nobody knows how far it got."""
        for row in self._rows:
            row.held.clear()
            if row.generation is not None:
                row.generation.failure = error
                row.generation = None
        self._decoder.reset()


def _size_within(count: int, chunk: int) -> int:
    """The largest number of tokens, at most ``count``, that a run may have."""
    return chunk if count >= chunk else 1 << (count.bit_length() - 1)


def _common(held: list[int], prompt: list[int]) -> int:
    """How many tokens both begin with."""
    for index, (one, other) in enumerate(zip(held, prompt, strict=False)):
        if one != other:
            return index
    return min(len(held), len(prompt))
