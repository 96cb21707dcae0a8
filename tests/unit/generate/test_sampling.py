"""Sampling, compared with plain numpy that sorts the whole vocabulary."""

from fractions import Fraction

import numpy as np
import pytest

from partita.errors import InferError, InputError
from partita.generate.sampling import Sampler, Sampling, distribution, penalize

SIZE = 5000


def plain_distribution(logits, sampling):
    """Probabilities of all tokens, zeros for those that are filtered out; by a full sort."""
    scores = logits.astype(np.float64) / sampling.temperature
    order = np.argsort(-scores, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    shares = np.exp(scores[order] - scores[order[0]])
    shares /= shares.sum()
    kept = np.concatenate([[0.0], shares.cumsum()[:-1]]) < sampling.top_p
    order, shares = order[kept], shares[kept]
    kept = shares >= sampling.min_p * shares[0]
    found = np.zeros(logits.size)
    found[order[kept]] = shares[kept] / shares[kept].sum()
    return found


@pytest.mark.parametrize("scale", [0.1, 3.0])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.3},
        {"top_k": 40},
        {"top_k": SIZE + 7},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_p": 1e-9},
        {"min_p": 0.05},
        {"temperature": 1.7, "top_k": 300, "top_p": 0.8, "min_p": 0.01},
    ],
)
def test_distributions_are_those_of_a_full_sort(options, scale):
    sampling = Sampling(**({"temperature": 1.0} | options))
    for seed in range(5):
        logits = (scale * np.random.default_rng(seed).standard_normal(SIZE)).astype(np.float32)
        tokens, probabilities = distribution(logits, sampling)
        found = np.zeros(SIZE)
        found[tokens] = probabilities
        expected = plain_distribution(logits, sampling)
        np.testing.assert_array_equal(found > 0, expected > 0)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-9])
def test_the_lowest_temperatures_take_the_most_probable_token(temperature):
    logits = np.array([1.0, 3.0, -np.inf, 3.0, -1e30], np.float32)
    tokens, probabilities = distribution(logits, Sampling(temperature=temperature))
    assert dict(zip(tokens.tolist(), probabilities.tolist(), strict=True)) == {
        0: 0,
        1: 0.5,
        2: 0,
        3: 0.5,
        4: 0,
    }


def test_draws_follow_the_distribution():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = Sampler(Sampling(temperature=1, top_p=0.9, seed=3), 4)
    drawn = np.bincount([sampler.choose(logits) for _ in range(20_000)], minlength=4) / 20_000
    np.testing.assert_allclose(drawn, np.array([0.5, 0.3, 0.15, 0]) / 0.95, atol=0.015)


def test_temperature_0_takes_the_first_of_the_largest():
    assert Sampler(Sampling(), 4).choose(np.array([1, 3, 3, 2], np.float32)) == 1


def test_a_seed_repeats_and_numbers_differ():
    logits = np.zeros(1000, np.float32)

    def draws(seed, number):
        sampler = Sampler(Sampling(temperature=1, seed=seed), 1000, number)
        return [sampler.choose(logits) for _ in range(8)]

    assert draws(1, 0) == draws(1, 0)
    assert draws(1, 0) != draws(1, 1)
    assert draws(1, 0) != draws(2, 0)
    assert draws(None, 0) != draws(None, 0)


def test_repetition_penalty_lowers_what_has_occurred():
    logits = np.array([4, -2, 1, -3], np.float32)
    seen = np.array([True, True, False, False])
    np.testing.assert_array_equal(penalize(logits, seen, 2.0), [2, -4, 1, -3])
    np.testing.assert_array_equal(logits, [4, -2, 1, -3])
    sampler = Sampler(Sampling(repetition_penalty=5.0), 4)
    assert [sampler.choose(logits) for _ in range(2)] == [0, 2]  # 4 / 5 is less than 1
    told = Sampler(Sampling(repetition_penalty=5.0), 4)
    told.observe([0])
    assert told.choose(logits) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-300),
        ("repetition_penalty", 1e9),
        ("seed", -1),
        ("top_k", 1.5),
        ("top_p", "0.5"),
        ("seed", "x"),
        ("temperature", None),
        ("temperature", 10**400),
    ],
)
def test_values_out_of_range_are_refused(name, value):
    with pytest.raises(InputError, match=rf"{name}={value} is out of range; it is "):
        Sampling(**{name: value})


def test_numbers_of_any_type_are_taken():
    given = Sampling(Fraction(1, 2), np.int64(3), np.float32(0.5), Fraction(1, 4), seed=np.uint8(7))
    plain = Sampling(0.5, 3, 0.5, 0.25, seed=7)
    assert given == plain
    logits = np.log(np.array([0.1, 0.6, 0.3]))
    assert Sampler(given, 3).choose(logits) == Sampler(plain, 3).choose(logits)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_nothing_can_be_chosen_from_are_an_error(value):
    with pytest.raises(InferError, match="cannot be sampled from"):
        Sampler(Sampling(), 3).choose(np.full(3, value, np.float32))


def test_tokens_of_minus_infinity_are_never_drawn():
    logits = np.array([-np.inf, 0, -np.inf, 0], np.float32)
    sampler = Sampler(Sampling(temperature=1, seed=0), 4)
    assert {sampler.choose(logits) for _ in range(50)} == {1, 3}
