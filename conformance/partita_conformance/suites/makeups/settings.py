"""Settings with which drawn models are compiled, and a model that no device can compile."""

from __future__ import annotations

import functools
import random
from typing import Any

import partita
from partita_conformance.bench.bench import Bench
from partita_conformance.inputs.models import stranger
from partita_conformance.suites.contract.suite_properties import other_settings


def drawn_setting(bench: Bench, number: int) -> dict[str, Any]:
    """The settings of a number: none for each other one."""
    values = [(n, v) for n, v in other_settings(bench) if "PRECISION" not in n]
    if number % 2 == 0 or not values:
        return {}
    rng = random.Random(number)  # noqa: S311  # the same settings each time
    return dict(rng.sample(values, min(len(values), 1 + number // 2 % 2)))


@functools.cache
def _stranger() -> partita.Model:
    return stranger()


def unknown_model() -> partita.Model:
    """A model of an operator that nobody has; read once, and each caller's own."""
    return _stranger().clone()
