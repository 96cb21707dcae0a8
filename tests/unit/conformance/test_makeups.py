"""Drawn models of many traits: what they are said to compute, onnxruntime computes too."""

from __future__ import annotations

import random

import numpy as np
import onnxruntime
import pytest

from partita_conformance.bench.bench import Target
from partita_conformance.draws.makeup import traits
from partita_conformance.draws.makeup.built import built, fits
from partita_conformance.runs.collect import Selection, collect
from partita_conformance.runs.running import FAILED, InProcess
from partita_conformance.suites.makeups.answers import answers_are_the_callers
from partita_conformance.suites.makeups.monitor import agree


def drawn(count, strange=0.4):
    rng = random.Random(5)
    return [traits.drawn(rng, fits, strange) for _ in range(count)]


def test_formulas_agree_with_onnxruntime():
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    compared = 0
    for makeup in drawn(90):
        if makeup["order"] == "unsorted" or makeup["the graph's name"] == "none":
            continue  # which onnxruntime refuses
        made = built(makeup)
        try:
            session = onnxruntime.InferenceSession(made.proto.SerializeToString(), options)
        except Exception:  # noqa: BLE001, S112  # it has no kernels for some types
            continue
        compared += 1
        for feeds, due in made.cases:
            agree(session.run(None, feeds), due, traits.deviations(makeup))
    assert compared >= 40


def test_a_model_is_the_same_for_all_of_its_inputs():
    for makeup in drawn(20):
        made = built(makeup)
        names = {value.name for value in made.proto.graph.input}
        for feeds, _ in made.cases:
            assert feeds.keys() <= names


def test_neighbours_differ_in_one_trait():
    base = traits.PLAIN
    for trait in traits.TRAITS:
        near = traits.neighbours(base, trait, fits)
        assert all(traits.difference(base, one).startswith(f"{trait}: ") for one in near)
        assert all(";" not in traits.difference(base, one) for one in near)
    assert "plain" in traits.deviations(base)
    assert traits.difference(base, base) == "nothing"


def test_drawn_models_hold_every_choice_and_most_pairs():
    found = traits.covering(150, 11, fits, {})
    for trait, choices in traits.TRAITS.items():
        if "step" not in trait:
            assert {one[trait] for one in found} == set(choices)


@pytest.mark.parametrize("device", ["CPU", "REFERENCE"])
def test_answers_of_devices_are_the_callers(device):
    runner = InProcess(Target(device))
    (check,) = collect(Selection(("makeups/answers",)))
    assert check.run is answers_are_the_callers
    assert runner.run(check).status != FAILED


def test_messages_say_what_is_not_plain():
    (check,) = collect(Selection(("makeups/alone/0",)))
    runner = InProcess(Target("NULL", "tests.device.conformance.good_device:Null"))
    outcome = runner.run(check)
    assert outcome.status == FAILED
    assert outcome.detail.startswith("A model (")


def test_results_are_compared_closely():
    due = np.ones(3, np.float32)
    with pytest.raises(AssertionError, match="wrong"):
        agree([due * np.float32(1.0001)], [due], "it")
