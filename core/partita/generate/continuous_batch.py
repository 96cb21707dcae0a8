"""Several texts at once: each takes a free row of the decoder, and leaves it when it ends.

A run gives every row that takes part equally many tokens. As long as prompts are to be read, runs
read them, in chunks that are no longer than what is left of the shortest; then every text gets a
token a run. Rows without tokens take part with padding, which is computed too; so where the decoder
can read a row alone it does, if that computes less, and between the runs that read a prompt those
texts that go on get a token: nobody waits for all of another's prompt. Chunks that are not full are
of 1, 2, 4, ... tokens, since a device prepares a program for every number of tokens, and prompts
are of all lengths. A new text joins as soon as a row is free, and begins behind what its cache
holds of it already. A decoder whose cache grows takes new ones when all rows are free, and reads
their prompts so that all end at the same place.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partita.errors import InferError
from partita.generate.decoder import Decoder
from partita.generate.generation import Generation
from partita.generate.statistics import Statistics

Array = np.ndarray[Any, Any]

READ_AGAIN = 8
"""Tokens that are read again at most to save a run: it reads all weights, which takes as long."""

_WEIGHTS = READ_AGAIN
"""Tokens that take as long to compute as it takes to read all weights."""


@dataclass
class _Row:
    """A row of the decoder: the tokens whose keys and values it holds, and whose they are.

    Attributes:
        index: Which row it is.
        held: The tokens.
        generation: The text; ``None`` while the row is free.
        turn: A number that is larger the later the text came.
    """

    index: int
    held: list[int] = field(default_factory=list)
    generation: Generation | None = None
    turn: int = 0

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

    def can_read(self, count: int) -> bool:
        """Whether it has so many tokens to read, those included that it may read again."""
        return self.pending >= count or self.can_step_back(count - self.pending)


@dataclass(frozen=True)
class _Run:
    """A run of the decoder.

    Attributes:
        count: Tokens of each row.
        rows: Those that take part.
        alone: Whether it is a run of the one row that takes part, not of all.
    """

    count: int
    rows: Sequence[_Row]
    alone: bool = False

    def cost(self, batch: int) -> float:
        """How long it takes for each token that is read, in times of a token's computation."""
        computed = self.count * (1 if self.alone else batch)
        return (_WEIGHTS + computed) / (self.count * len(self.rows))


class ContinuousBatch:
    """Texts in the making on one decoder. Not for several threads at once.

    Args:
        decoder: Runs the model.
        chunk: Tokens of a prompt that one run reads at most.
        statistics: Receives what was done.
    """

    def __init__(self, decoder: Decoder, chunk: int, statistics: Statistics) -> None:
        self._decoder = decoder
        self._chunk = chunk
        self._statistics = statistics
        self._rows = [_Row(index) for index in range(decoder.batch)]
        self._waiting: deque[Generation] = deque()
        self._sizes = {(1, False), (1, True)}  # the decoder is warm for these
        self._turns = 0
        self._has_read = False  # whether the last run read prompts

    def submit(self, generation: Generation) -> None:
        """Takes a text; it begins when a row is free."""
        self._waiting.append(generation)

    def step(self) -> None:
        """Makes one run, if there is anything to do; texts that are given up leave before it.

        Raises:
            InferError: A device failed; no text that was going on can go on.
        """
        try:
            self._dismiss()
            self._admit()
            if any(row.pending for row in self._rows):
                self._run(self._plan())
        except BaseException as error:
            self._abandon(error)
            raise

    def _dismiss(self) -> None:
        """Forgets texts that are given up, and those that failed before they had left the queue."""
        for row in self._rows:
            if row.generation is not None and row.generation.is_given_up:
                row.generation = None
        self._waiting = deque(
            text for text in self._waiting if not (text.is_given_up or text.has_ended)
        )

    def _admit(self) -> None:
        """Gives free rows to waiting texts."""
        if self._decoder.capacity is None and self._waiting:
            if any(row.generation for row in self._rows):
                return
            self._decoder.reset()
            for row in self._rows:
                row.held.clear()
        length = len(self._waiting[0].prompt) if self._waiting else 0
        while self._waiting:
            free = [row for row in self._rows if row.generation is None]
            if not free:
                return
            generation = self._waiting[0]
            if self._decoder.counts_places and len(generation.prompt) != length:
                return  # its beginning would be another place; it waits for those before it
            known = [_common(row.held, generation.prompt) for row in free]
            best = known.index(max(known))
            row = free[best]
            # The last token of the prompt is read in any case: its logits are wanted.
            start = min(known[best], len(generation.prompt) - 1)
            del row.held[start:]
            generation.pending = generation.prompt[start:]
            row.generation = generation
            self._waiting.popleft()  # not before: Ctrl-C in between would lose it
            self._turns += 1
            row.turn = self._turns

    def _plan(self) -> _Run:
        """Which rows read how many tokens in the next run."""
        going = [row for row in self._rows if row.pending]
        if self._decoder.capacity is None:
            return self._of_growing(going)
        prompts = [row for row in going if row.pending > 1]
        if not self._decoder.takes_rows:
            return self._of_all(going)
        others = [row for row in going if row.pending == 1]
        self._has_read = bool(prompts) and not (others and self._has_read)
        if not self._has_read:
            return _Run(1, others, alone=len(others) == 1 < len(self._rows))
        first = min(prompts, key=lambda row: row.turn)
        together = self._of_all(going)
        alone = _Run(self._size_of_run([first], self._most([first])), [first], alone=True)
        return min(together, alone, key=lambda run: run.cost(len(self._rows)))

    def _of_growing(self, going: Sequence[_Row]) -> _Run:
        """A run behind which prompts are nearer to their common end.

        All texts began together. A row that takes no part has a gap in its cache, which models with
        windows or distances by places of the cache would count: so shorter prompts begin later, and
        nothing but the beginning of a row is ever a gap.
        """
        longest = max(row.pending for row in going)
        others = [row.pending for row in going if row.pending < longest]
        count = _size_within(longest - max(others, default=0), self._chunk)
        return _Run(count, [row for row in going if row.pending == longest])

    def _of_all(self, going: Sequence[_Row]) -> _Run:
        """A run of all rows in which prompts are read, or each text gets a token."""
        prompts = [row for row in going if row.pending > 1]
        most = self._most(going)
        if self._decoder.takes_rows:  # a run of all need be no larger than that of one
            most = max(1, min(most, self._chunk // len(self._rows)))
        count = self._size_of_run(prompts, most) if prompts else 1
        taking = [row for row in going if row.pending >= count or row in prompts]
        return _Run(count, [row for row in taking if row.can_read(count)])

    def _most(self, rows: Sequence[_Row]) -> int:
        """Tokens that a run of these rows may have; the padding of those that wait needs room."""
        capacity = self._decoder.capacity
        if capacity is None:
            return self._chunk
        return min(self._chunk, capacity - max(len(row.held) for row in rows))

    def _size_of_run(self, prompts: Sequence[_Row], most: int) -> int:
        """Tokens of the next run of these rows, at most so many; those that lack few step back."""
        shortest = min(prompts, key=lambda row: row.pending)
        size = _size_within(min(shortest.pending, most), self._chunk)
        if size in (shortest.pending, self._chunk):
            return size
        larger = min(2 * size, self._chunk)
        fits = larger <= most and shortest.can_step_back(larger - shortest.pending)
        return larger if fits else size

    def _run(self, run: _Run) -> None:
        start = time.perf_counter()
        again = 0
        for row in run.rows:
            lacks = run.count - row.pending
            if lacks > 0:
                row.step_back(lacks)
                again += lacks
        lengths = np.array([len(row.held) for row in run.rows])
        texts = [(row, row.generation) for row in run.rows if row.generation is not None]
        read = [text.pending[: run.count] for _, text in texts]
        logits = self._logits(run, read)
        is_prefill = any(text.is_prompt for _, text in texts)
        for (row, text), tokens, scores in zip(texts, read, logits, strict=True):
            self._advance(row, text, tokens, scores)
        seconds = time.perf_counter() - start
        self._count(is_prefill, run.count * len(texts) - again, lengths.sum(), seconds)
        if (run.count, run.alone) not in self._sizes:
            self._sizes.add((run.count, run.alone))
            self._statistics.first_run_seconds += seconds

    def _logits(self, run: _Run, read: Sequence[Sequence[int]]) -> Sequence[Array]:
        """Makes a run; logits of the rows that take part, whose tokens are given."""
        if run.alone:
            (row,) = run.rows
            return [self._decoder.run_row(row.index, np.array(read[0], np.int64), len(row.held))]
        self._make_room_for_padding(run.count)
        tokens = np.zeros((len(self._rows), run.count), np.int64)
        lengths = np.array([len(row.held) for row in self._rows], np.int64)
        places = [row.index for row in run.rows]
        tokens[places] = read
        takes_part = np.zeros(len(self._rows), np.bool_)
        takes_part[places] = True
        logits = self._decoder.run(tokens, lengths, takes_part)
        return [logits[place] for place in places]

    def _make_room_for_padding(self, count: int) -> None:
        """Lets free rows forget what they hold where so many tokens do not fit behind it."""
        capacity = self._decoder.capacity
        for row in self._rows:
            if row.generation is None and capacity is not None and capacity - len(row.held) < count:
                row.held.clear()

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
            statistics.prefill_runs += 1
        else:
            statistics.decode_tokens += tokens
            statistics.decode_seconds += seconds
            statistics.decode_runs += 1
            statistics.decode_places += int(places)

    def _abandon(self, error: BaseException) -> None:
        """Ends all texts that were going on, after a run of which nobody knows how far it got."""
        if isinstance(error, Exception):
            failure = error
        else:  # Ctrl-C is raised where it was pressed, and is no one's beside it
            failure = InferError(
                f"{type(error).__name__} ended a run in which this text had part, and its keys and "
                "values are lost; generate it again."
            )
        for row in self._rows:
            row.held.clear()
            if row.generation is not None:
                row.generation.failure = failure
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
