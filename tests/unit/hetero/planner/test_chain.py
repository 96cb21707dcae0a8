"""Chains: the search against every placement there is, and on tables with a known optimum."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from partita.errors import InfeasiblePlanError, PlanError
from partita_hetero.planner.chain.problem import (
    Chain,
    Options,
    TiedWeights,
    blend,
    excess,
    use_of,
)
from partita_hetero.planner.chain.search import solve_chain

MIB = 1 << 20


def chain_of(us, nbytes, limits, move=5.0, fixed=None, launch=0.0):
    """Tasks with one option for each device, and moves that all cost the same."""
    count, tasks = len(limits), len(us)
    away = 1 - np.eye(count)
    moves = np.broadcast_to(away, (max(0, tasks - 1), count, count))
    return Chain(
        tuple(f"D{index}" for index in range(count)),
        tuple(limits),
        tuple(fixed or [0] * count),
        tuple(
            Options.single(times, sizes)
            for times, sizes in zip(us, np.broadcast_to(nbytes, (tasks, count)), strict=True)
        ),
        moves * move,
        moves * launch,
        np.full(count, launch),
        np.zeros(count),
        tuple(f"task{index}" for index in range(tasks)),
    )


def brute_force(chain, objective):
    """The least value of all placements that keep the limits; ``None`` if there is none."""
    values = [
        use_of(chain, choice).value(objective)
        for choice in itertools.product(*(range(len(one.home)) for one in chain.tasks))
        if not excess(chain, use_of(chain, choice))
    ]
    return min(values, default=None)


def random_chain(seed):
    """A few tasks on a few devices, some alike, some refused, some with parts elsewhere."""
    rng = np.random.default_rng(seed)
    devices, tasks = int(rng.integers(2, 4)), int(rng.integers(2, 7))
    kinds = rng.integers(0, 2, tasks) if rng.random() < 0.7 else np.arange(tasks)
    us, nbytes = rng.integers(1, 40, (tasks, devices)), rng.integers(1, 20, (tasks, devices))
    options = []
    for kind in kinds:
        taken = [None if rng.random() < 0.1 else float(t) for t in us[kind]]
        taken[int(rng.integers(devices))] = 7.0
        one = Options.single(taken, nbytes[kind].tolist())
        if rng.random() < 0.3:
            spread = Options(
                one.home[:1],
                rng.integers(1, 20, (1, devices)).astype(float),
                rng.integers(0, 9, (1, devices)),
            )
            one = Options(
                *(np.concatenate(pair) for pair in zip(parts(one), parts(spread), strict=True))
            )
        options.append(one)
    moves = (tasks - 1, devices, devices)
    away = 1 - np.eye(devices)
    limits = [None if rng.random() < 0.3 else int(rng.integers(5, 80)) for _ in range(devices)]
    return Chain(
        tuple(f"D{index}" for index in range(devices)),
        tuple(limits),
        tuple(rng.integers(0, 5, devices).tolist()),
        tuple(options),
        rng.integers(0, 9, moves) * away,
        rng.integers(0, 9, moves) * away,
        rng.integers(0, 9, devices).astype(float),
        rng.integers(0, 9, devices).astype(float),
        tuple(f"task{index}" for index in range(tasks)),
    )


def with_tied(chain, seed):
    """The chain with weights that two of its tasks share, and limits that need them shared."""
    rng = np.random.default_rng(1000 + seed)
    first, last = sorted(rng.choice(len(chain.tasks), 2, replace=False).tolist())
    nbytes = int(rng.integers(5, 40))
    tasks, reads = list(chain.tasks), []
    for task in (first, last):
        one = tasks[task]
        there = (one.nbytes > 0) & (rng.random(one.nbytes.shape) < 0.9)
        tasks[task] = replace(one, nbytes=one.nbytes + nbytes * there)
        reads.append(there)
    within, across = rng.random((2, len(chain.devices))) < [[0.9], [0.5]]
    tied = TiedWeights((first, last), nbytes, tuple(reads), within, across)
    limits = tuple(limit and limit + int(rng.integers(nbytes)) for limit in chain.limits)
    return replace(chain, tasks=tuple(tasks), limits=limits, tied=(tied,))


def parts(options):
    return options.home, options.us, options.nbytes


def check_against_all_placements(chain, objective):
    best = brute_force(chain, objective)
    if best is None:
        with pytest.raises(InfeasiblePlanError):
            solve_chain(chain, objective)
        return
    plan = solve_chain(chain, objective)
    assert plan.value_us == pytest.approx(best)
    assert plan.bound_us == pytest.approx(best)
    assert not excess(chain, plan.use)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("objective", ["LATENCY", "THROUGHPUT"])
@pytest.mark.parametrize("seed", range(120))
def test_no_placement_is_better(seed, objective):
    check_against_all_placements(random_chain(seed), objective)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("objective", ["LATENCY", "THROUGHPUT"])
@pytest.mark.parametrize("seed", range(150))
def test_no_placement_is_better_where_weights_are_tied(seed, objective):
    check_against_all_placements(with_tied(random_chain(seed), seed), objective)


@pytest.mark.parametrize("objective", ["LATENCY", "THROUGHPUT"])
def test_tied_weights_often_decide_where_tasks_go(objective):
    chains = [with_tied(random_chain(seed), seed) for seed in range(150)]
    apart = [brute_force(replace(chain, tied=()), objective) for chain in chains]
    tied = [brute_force(chain, objective) for chain in chains]
    assert sum(one != two for one, two in zip(tied, apart, strict=True)) >= 15


@pytest.mark.parametrize("seed", range(40))
def test_too_few_labels_give_a_bound_that_holds_where_weights_are_tied(seed):
    chain = with_tied(random_chain(seed), seed)
    best = brute_force(chain, "LATENCY")
    if best is None:
        return
    try:
        plan = solve_chain(chain, "LATENCY", most_labels=1)
    except InfeasiblePlanError:
        return  # the one label led nowhere
    assert plan.bound_us <= best * (1 + 1e-9)
    assert plan.value_us >= best * (1 - 1e-9)


@pytest.mark.parametrize(
    ("across", "held"), [(False, [8 * MIB, 12 * MIB]), (True, [8 * MIB, 7 * MIB])]
)
def test_a_device_shares_tied_weights_between_its_submodels_or_holds_them_twice(across, held):
    # The middle is on D0; first and last are on D1, and each has 5 MiB that both read.
    us = [[9.0, 1.0], *[[1.0, 9.0]] * 8, [9.0, 1.0]]
    nbytes = [[6 * MIB] * 2, *[[MIB] * 2] * 8, [6 * MIB] * 2]
    chain = chain_of(us, nbytes, [20 * MIB, 12 * MIB], move=0.5)
    reads = np.ones((2, 2), bool) & np.eye(2, dtype=bool)
    tied = TiedWeights((0, 9), 5 * MIB, (reads, reads), np.ones(2, bool), np.array([across] * 2))
    plan = solve_chain(replace(chain, tied=(tied,)))
    assert plan.choice == (1, *[0] * 8, 1)
    assert plan.use.nbytes.tolist() == held
    tight = replace(chain, tied=(tied,), limits=(20 * MIB, 7 * MIB))
    assert (solve_chain(tight).choice == plan.choice) is across
    whole = use_of(replace(chain, tied=(tied,)), [0] * 10)
    assert whole.nbytes.tolist() == [15 * MIB, 0]


def test_tied_weights_of_another_shape_are_refused():
    chain = chain_of([[1.0, 1.0]] * 3, 1, [None, None])
    reads, every = np.ones((2, 2), bool), np.ones(2, bool)
    for tasks, both in (((0, 2), (reads, reads[:1])), ((2, 0), (reads, reads))):
        with pytest.raises(PlanError, match="need two in order"):
            replace(chain, tied=(TiedWeights(tasks, 1, both, every, every),))


@pytest.mark.parametrize("seed", range(30))
def test_too_few_labels_give_a_bound_that_holds(seed):
    chain = random_chain(seed)
    best = brute_force(chain, "LATENCY")
    if best is None:
        return
    try:
        plan = solve_chain(chain, "LATENCY", most_labels=1)
    except InfeasiblePlanError:
        return  # the one label led nowhere
    assert plan.bound_us <= best * (1 + 1e-9)
    assert plan.value_us >= best * (1 - 1e-9)


def test_a_fast_device_gets_as_many_layers_as_fit():
    chain = chain_of([[1.0, 10.0]] * 80, 100 * MIB, [1000 * MIB, None], fixed=[50 * MIB, 0])
    plan = solve_chain(chain)
    homes = [int(one.home[row]) for one, row in zip(chain.tasks, plan.choice, strict=True)]
    assert homes.count(0) == 9  # (1000 - 50) / 100
    assert plan.value_us == 9 * 1.0 + 71 * 10.0 + 5.0
    assert plan.gap == 0


def test_two_equal_devices_are_balanced_for_a_pipeline():
    chain = chain_of([[10.0, 10.0]] * 33, MIB, [100 * MIB, 100 * MIB], move=2.0)
    plan = solve_chain(chain, "THROUGHPUT")
    assert sorted(plan.use.load_us) == [162.0, 170.0]  # 16 and 17 layers; the shorter hands over
    assert plan.gap == 0


def test_two_equal_devices_are_not_both_used_for_one_request():
    chain = chain_of([[10.0, 10.0]] * 33, MIB, [100 * MIB, 100 * MIB], move=2.0)
    assert solve_chain(chain).use.load_us.tolist() in ([330.0, 0.0], [0.0, 330.0])


@pytest.mark.parametrize("objective", ["LATENCY", "THROUGHPUT"])
def test_eight_equal_devices_with_room_for_little_more_than_their_share(objective):
    chain = chain_of([[10.0] * 8] * 80, MIB, [11 * MIB] * 8, move=1.0)
    plan = solve_chain(chain, objective)
    if objective == "LATENCY":
        assert plan.value_us == 80 * 10.0 + 7 * 1.0
        assert plan.gap == 0
    else:
        assert plan.value_us == 101.0
        assert plan.gap < 0.011


def test_layers_of_two_kinds_go_where_their_bytes_bring_most():
    # A large layer gains 6 us for 2 MiB on D0, a small one 4 us for 1 MiB: small ones first.
    us = [[2.0, 8.0], [1.0, 5.0]] * 20
    nbytes = [[2 * MIB, 2 * MIB], [MIB, MIB]] * 20
    plan = solve_chain(chain_of(us, nbytes, [20 * MIB, None], move=0.0))
    assert plan.value_us == 20 * 8.0 + 20 * 1.0


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ([3 * MIB, 2 * MIB], "10.0 MiB are needed and the limits leave 5.0 MiB in all: 5.0 MiB"),
        ([500_000, 20 * MIB], None),
    ],
)
def test_what_does_not_fit_says_by_how_much(limits, said):
    chain = chain_of([[1.0, 2.0]] * 10, MIB, limits)
    if said is None:
        assert solve_chain(chain).use.nbytes[0] == 0
        return
    with pytest.raises(InfeasiblePlanError, match=said):
        solve_chain(chain)


def test_what_computing_takes_is_no_room_and_is_said():
    chain = chain_of([[1.0, 2.0]] * 10, MIB, [3 * MIB, MIB], fixed=[2 * MIB, 2 * MIB])
    said = "leave 1.0 MiB in all besides what computing takes: 9.0 MiB are lacking"
    with pytest.raises(InfeasiblePlanError, match=said):
        solve_chain(chain)


def test_large_tasks_that_fit_nowhere_name_the_device():
    chain = chain_of([[1.0, 2.0]] * 2, 8 * MIB, [9 * MIB, 7 * MIB])
    with pytest.raises(InfeasiblePlanError, match=r"lacks on 'D0' 7\.0 MiB"):
        solve_chain(chain)


def test_a_task_that_no_device_takes_is_named():
    with pytest.raises(PlanError, match="'task1' has no device that takes it"):
        chain_of([[1.0, 1.0], [None, None]], 1, [None, None])


def test_moves_of_another_shape_are_refused():
    chain = chain_of([[1.0, 1.0]] * 3, 1, [None, None])
    with pytest.raises(PlanError, match="needs costs of moves of shape"):
        Chain(**{**vars(chain), "leaving_us": np.zeros((1, 2, 2))})


def test_limits_of_another_number_are_refused():
    chain = chain_of([[1.0, 1.0]] * 3, 1, [None, None])
    with pytest.raises(PlanError, match="as many limits"):
        Chain(**{**vars(chain), "limits": (None,)})


def test_a_blend_costs_the_weighted_sum():
    decode = chain_of([[1.0, 2.0]] * 3, 1, [None, None], move=1.0)
    prefill = chain_of([[10.0, 3.0]] * 3, 1, [None, None], move=4.0)
    both = blend([decode, prefill], [8.0, 1.0])
    for choice in itertools.product((0, 1), repeat=3):
        value = 8 * use_of(decode, choice).value("LATENCY")
        value += use_of(prefill, choice).value("LATENCY")
        assert use_of(both, choice).value("LATENCY") == pytest.approx(value)
