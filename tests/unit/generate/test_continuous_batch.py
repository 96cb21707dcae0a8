"""Rows of a decoder shared by texts, with a decoder that checks what it is given."""

import numpy as np
import pytest

from partita.errors import InferError
from partita.generate.continuous_batch import ContinuousBatch
from partita.generate.generation import Generation
from partita.generate.sampling import Sampler, Sampling
from partita.generate.statistics import Statistics
from partita.generate.text.stop_words import StopWords
from partita.generate.text.text_stream import TextStream

VOCABULARY = 97


def next_token(tokens):
    """What the decoder says behind these tokens: each of them and its place count."""
    return sum((place + 1) * (token + 3) for place, token in enumerate(tokens)) % VOCABULARY


class CheckedDecoder:
    """Keeps tokens instead of keys and values, and answers from what a row can see."""

    def __init__(self, batch, capacity, takes_rows=False):
        self.batch, self.capacity, self.takes_rows = batch, capacity, takes_rows
        self.held = np.full((batch, capacity), -1)
        self.counts_places = False
        self.sizes = []
        self.fails = False

    def reset(self):
        self.held[:] = -1

    def run(self, tokens, lengths, taking_part):
        count = tokens.shape[1]
        self.sizes.append(count)
        if self.fails:
            self.held[:] = 5  # nobody knows how far it got
            raise RuntimeError("the device is gone")
        logits = np.zeros((self.batch, VOCABULARY), np.float32)
        for row, (length, new) in enumerate(zip(lengths, tokens, strict=True)):
            assert length + count <= self.held.shape[1], "it writes beyond the cache"
            self.held[row, length : length + count] = new
            seen = self.held[row, : length + count]
            assert not taking_part[row] or (seen >= 0).all()
            logits[row, next_token(seen.tolist())] = 1
        return logits

    def run_row(self, row, tokens, length):
        assert self.takes_rows
        count = len(tokens)
        self.sizes.append((row, count))
        assert length + count <= self.held.shape[1], "it writes beyond the cache"
        self.held[row, length : length + count] = tokens
        seen = self.held[row, : length + count]
        assert (seen >= 0).all()
        logits = np.zeros(VOCABULARY, np.float32)
        logits[next_token(seen.tolist())] = 1
        return logits


def text_of(number, prompt, count):
    sampler = Sampler(Sampling(), VOCABULARY)
    return Generation(number, prompt, sampler, (count, "length"), frozenset(), StopWords(), None)


def expected(prompt, count):
    tokens = [*prompt]
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def finish(batch, texts):
    for _ in range(1000):
        if all(text.has_ended for text in texts):
            return
        batch.step()
    raise AssertionError("it does not end")


def made(batch=2, capacity=64, chunk=8, takes_rows=False):
    decoder, statistics = CheckedDecoder(batch, capacity, takes_rows), Statistics()
    return decoder, statistics, ContinuousBatch(decoder, chunk, statistics)


@pytest.mark.parametrize(("rows", "takes_rows"), [(1, False), (2, False), (3, False), (3, True)])
@pytest.mark.parametrize("capacity", [40, 64])
def test_texts_of_all_lengths_are_as_if_alone(rows, takes_rows, capacity):
    draw = np.random.default_rng(rows)
    for _ in range(10):
        _, _, batch = made(rows, capacity, takes_rows=takes_rows)
        prompts = [draw.integers(0, 9, draw.integers(1, 24)).tolist() for _ in range(7)]
        counts = [int(draw.integers(1, 16)) for _ in prompts]
        texts = [text_of(n, *both) for n, both in enumerate(zip(prompts, counts, strict=True))]
        for text in texts:
            batch.submit(text)
        finish(batch, texts)
        for text, prompt, count in zip(texts, prompts, counts, strict=True):
            assert [piece.token for piece in text.pieces] == expected(prompt, count)


def test_runs_are_of_few_sizes():
    decoder, _, batch = made(1, 512, 100)
    for length in range(1, 300, 7):
        text = text_of(0, [length % 50] * length, 1)
        batch.submit(text)
        finish(batch, [text])
    assert set(decoder.sizes) <= {1, 2, 4, 8, 16, 32, 64, 100}


@pytest.mark.parametrize(
    ("length", "sizes"),
    [
        (64, [64]),
        (13, [8, 8]),
        (7, [4, 4]),
        (5, [4, 1]),
        (157, [100, 64]),
        (121, [100, 16, 8]),  # eleven tokens again would be too many
        (127, [100, 32]),
        (303, [100, 100, 100, 4]),
        (228, [100, 100, 32]),
    ],
)
def test_few_tokens_are_read_again_to_save_runs(length, sizes):
    decoder, statistics, batch = made(1, 512, 100)
    prompt = [place % 9 for place in range(length)]
    text = text_of(0, prompt, 3)
    batch.submit(text)
    finish(batch, [text])
    assert decoder.sizes[:-2] == sizes
    assert [piece.token for piece in text.pieces] == expected(prompt, 3)
    assert statistics.prefill_tokens == length


def test_a_prompt_is_read_without_rows_that_have_nothing_to_read():
    decoder, statistics, batch = made(4, 512, 64, takes_rows=True)
    text = text_of(0, [3] * 100, 4)
    batch.submit(text)
    finish(batch, [text])
    assert decoder.sizes == [(0, 64), (0, 32), (0, 4), (0, 1), (0, 1), (0, 1)]
    assert [piece.token for piece in text.pieces] == expected([3] * 100, 4)
    assert (statistics.prefill_tokens, statistics.decode_tokens) == (100, 3)


def test_equal_prompts_are_read_together_by_runs_no_larger_than_that_of_one():
    decoder, statistics, batch = made(4, 512, 64, takes_rows=True)
    texts = [text_of(number, [number + 3] * 32, 2) for number in range(4)]
    for text in texts:
        batch.submit(text)
    finish(batch, texts)
    assert decoder.sizes == [16, 16, 1]
    assert statistics.prefill_tokens == 4 * 32


def test_texts_go_on_while_a_prompt_is_read():
    decoder, _, batch = made(4, 512, 64, takes_rows=True)
    texts = [text_of(0, [5], 20), text_of(1, [6], 20), text_of(2, [7] * 192, 1)]
    for text in texts[:2]:
        batch.submit(text)
    for _ in range(3):
        batch.step()
    batch.submit(texts[2])
    decoder.sizes.clear()
    for _ in range(6):
        batch.step()
    assert decoder.sizes == [(2, 64), 1, (2, 64), 1, (2, 64), 1]
    finish(batch, texts)
    for text, prompt, count in zip(texts, ([5], [6], [7] * 192), (20, 20, 1), strict=True):
        assert [piece.token for piece in text.pieces] == expected(prompt, count)


def test_prompts_are_read_in_the_order_in_which_they_came():
    decoder, _, batch = made(3, 512, 64, takes_rows=True)
    short = text_of(0, [4, 4], 1)
    texts = [text_of(1, [5] * 128, 1), text_of(2, [6] * 128, 1)]
    batch.submit(short)
    batch.submit(texts[0])
    finish(batch, [short])  # its row, the first one, is free for the prompt that comes last
    batch.submit(texts[1])
    finish(batch, texts)
    assert [size for size in decoder.sizes if size != 1] == [
        2,
        (1, 64),
        (1, 64),
        (0, 64),
        (0, 64),
    ]


def test_nothing_is_read_again_where_the_cache_grows():
    decoder, _, batch = made(1, 512, 100)
    decoder.capacity = None
    text = text_of(0, [3] * 157, 1)
    batch.submit(text)
    finish(batch, [text])
    assert decoder.sizes == [100, 32, 16, 8, 1]


def test_what_the_cache_holds_is_not_read_again():
    _, statistics, batch = made(2)
    first = text_of(0, [1, 2, 3, 4, 5, 6], 4)
    batch.submit(first)
    finish(batch, [first])
    answer = [piece.token for piece in first.pieces]
    turn = [1, 2, 3, 4, 5, 6, *answer, 7, 8]
    statistics.clear()
    second = text_of(1, turn, 3)
    batch.submit(second)
    finish(batch, [second])
    assert [piece.token for piece in second.pieces] == expected(turn, 3)
    assert statistics.prefill_tokens == 3  # the last answer's token was chosen, never read
    again = text_of(2, turn, 3)
    statistics.clear()
    batch.submit(again)
    finish(batch, [again])
    assert [piece.token for piece in again.pieces] == expected(turn, 3)
    assert statistics.prefill_tokens == 1


def test_a_text_that_is_given_up_frees_its_row_or_its_place_in_the_queue():
    _, _, batch = made(1)
    first, waiting, last = text_of(0, [1, 2], 50), text_of(1, [4], 50), text_of(2, [3], 4)
    for text in (first, waiting, last):
        batch.submit(text)
    batch.step()
    first.is_given_up = waiting.is_given_up = True
    finish(batch, [last])
    assert [piece.token for piece in last.pieces] == expected([3], 4)
    assert not waiting.pieces


def test_ctrl_c_in_a_run_is_raised_there_and_told_to_those_beside_it(monkeypatch):
    decoder, _, batch = made(2)
    texts = [text_of(number, [number, 2], 9) for number in range(3)]
    for text in texts:
        batch.submit(text)
    batch.step()
    with monkeypatch.context() as patch:
        patch.setattr(decoder, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            batch.step()
    for text in texts[:2]:
        with pytest.raises(InferError, match=r"KeyboardInterrupt ended a run .* generate it again"):
            raise text.failure
    finish(batch, texts)  # the one that waited has lost nothing
    assert [piece.token for piece in texts[2].pieces] == expected([2, 2], 9)


def test_ctrl_c_while_a_text_gets_its_row_loses_none():
    class InterruptedOnce(list):
        is_new = True

        def __iter__(self):
            if self.is_new:
                self.is_new = False
                raise KeyboardInterrupt
            return super().__iter__()

    _, _, batch = made(1)
    text = text_of(0, [1, 2], 4)
    text.prompt = InterruptedOnce(text.prompt)
    batch.submit(text)
    with pytest.raises(KeyboardInterrupt):
        batch.step()
    finish(batch, [text])
    assert [piece.token for piece in text.pieces] == expected([1, 2], 4)


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_failing_run_ends_all_texts_and_later_ones_begin_anew():
    decoder, _, batch = made(2)
    texts = [text_of(0, [1, 2, 3], 9), text_of(1, [1, 2, 4], 9)]
    for text in texts:
        batch.submit(text)
    batch.step()
    decoder.fails = True
    with pytest.raises(RuntimeError, match="the device is gone"):
        batch.step()
    assert all(text.has_ended and str(text.failure) == "the device is gone" for text in texts)
    decoder.fails = False
    later = text_of(2, [1, 2, 3], 3)
    batch.submit(later)
    finish(batch, [later])
    assert [piece.token for piece in later.pieces] == expected([1, 2, 3], 3)


def generation(stop=(), ends=frozenset(), count=9):
    stream = TextStream(lambda tokens: bytes(tokens).decode(errors="replace"))
    sampler = Sampler(Sampling(), 256)
    return Generation(0, [1], sampler, (count, "length"), ends, StopWords(stop), stream)


def said(text, generation):
    """What a generation passes on of a text whose bytes the model says one by one."""
    for byte in text.encode():
        if not generation.has_ended:
            generation.advance(np.eye(256, dtype=np.float32)[byte])
    pieces = generation.pieces
    return "".join(piece.text for piece in pieces), pieces[-1].finish, len(pieces)


def test_a_text_ends_at_a_stop_word_an_end_token_or_its_length():
    assert said("a\u20acb END c", generation(["END"], count=20)) == ("a\u20acb ", "stop", 9)
    assert said("ab\0c", generation(ends=frozenset([0]))) == ("ab", "end", 3)
    assert said("abcdef", generation(count=4)) == ("abcd", "length", 4)


def test_what_is_held_back_comes_with_the_end():
    assert said("abEN", generation(["END"], count=4)) == ("abEN", "length", 4)
    assert said("abE\0", generation(["END"], frozenset([0]))) == ("abE", "end", 4)
    assert said("a\u20ac", generation(count=3)) == ("a\ufffd", "length", 3)
