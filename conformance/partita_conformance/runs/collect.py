"""All checks of a run, in the order in which they are made."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from pathlib import Path

from partita import zoo
from partita.zoo.store import Store
from partita_conformance.bench.checks import Check, registered
from partita_conformance.draws.operators import GENERATORS
from partita_conformance.inputs.cases_file import NodeCase, load
from partita_conformance.inputs.node_cases import node_cases
from partita_conformance.suites.contract import (  # noqa: F401  (importing them enters what they hold)
    suite_anew,
    suite_async,
    suite_blob,
    suite_boundary,
    suite_compiled,
    suite_faults,
    suite_plugin,
    suite_ports,
    suite_properties,
    suite_query,
    suite_request,
    suite_sequences,
    suite_state,
    suite_weights,
)
from partita_conformance.suites.lives import suite_counts  # noqa: F401  (it enters a check)
from partita_conformance.suites.lives.suite_lives import life_checks
from partita_conformance.suites.makeups.suite_makeups import makeup_checks
from partita_conformance.suites.numerics import suite_chance  # noqa: F401  (it enters a check)
from partita_conformance.suites.numerics.suite_again import again_checks, known_checks
from partita_conformance.suites.numerics.suite_beside import beside_checks
from partita_conformance.suites.numerics.suite_chains import chain_checks
from partita_conformance.suites.numerics.suite_decoder import decoder_checks
from partita_conformance.suites.numerics.suite_hetero import hetero_checks
from partita_conformance.suites.numerics.suite_kinds import rest_checks, shape_checks
from partita_conformance.suites.numerics.suite_operators import operator_checks, random_checks
from partita_conformance.suites.numerics.suite_outputs import output_checks
from partita_conformance.suites.numerics.suite_passes import pass_checks
from partita_conformance.suites.numerics.suite_sweep import case_checks, sweep_checks
from partita_conformance.suites.resources import (  # noqa: F401  (importing them enters what they hold)
    suite_aftermath,
    suite_memory,
    suite_moments,
    suite_resources,
    suite_sharing,
    suite_threads,
)
from partita_conformance.suites.stored import (  # noqa: F401  (importing them enters what they hold)
    suite_damage,
    suite_files,
    suite_keys,
    suite_many,
    suite_round_trips,
    suite_stores,
)
from partita_conformance.suites.stored.suite_imports import import_checks
from partita_conformance.suites.usage import (  # noqa: F401  (importing them enters what they hold)
    suite_alike,
    suite_blobs,
    suite_claims,
    suite_forms,
    suite_given,
    suite_lent,
    suite_members,
    suite_questions,
    suite_reports,
    suite_results,
    suite_settings,
    suite_turns,
    suite_variables,
)
from partita_conformance.suites.usage.suite_walks import walk_checks

_FIRST = "resources"
"""The suite that is made first: it sees best in a process in which the device has done nothing."""


_LETTER = re.compile(r"\[!?\]?[^\]]*\]|.")
"""What stands for a letter in a pattern: itself, ``?``, or a class; and ``*``, for any."""


@dataclass(frozen=True)
class Selection:
    """Which checks a run makes.

    Attributes:
        patterns: Check names, with ``*`` and ``?``; none selects all.
        draws: Random models per operator.
        cuts: Random cuts per network and model.
        models: Models to cut besides those that are made on the spot, e.g. ``"zoo:magika"``.
    """

    patterns: tuple[str, ...] = ()
    draws: int = 4
    cuts: int = 4
    models: tuple[str, ...] = ()

    def takes(self, name: str) -> bool:
        """Whether a check is selected."""
        return not self.patterns or _any_of(self.patterns).match(name) is not None

    def may_take(self, suite: str) -> bool:
        """Whether a pattern may select a check of a suite: to make its checks takes time."""
        return not self.patterns or any(_begins(pattern, f"{suite}/") for pattern in self.patterns)


@functools.lru_cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """What matches the names that one of the patterns does: thousands of names are asked for."""
    return re.compile("|".join(map(translate, patterns)))


@functools.cache
def _begins(pattern: str, start: str) -> bool:
    """Whether a pattern may match what begins so: its letters and classes before a ``*`` do."""
    letters = [*itertools.takewhile(lambda one: one != "*", _LETTER.findall(pattern))]
    return fnmatchcase(start[: len(letters)], "".join(letters[: len(start)]))


def model_names(given: Sequence[str]) -> tuple[str, ...]:
    """The models that options name: as they are; for ``"zoo"`` all ONNX models in the cache."""
    store = Store()
    cached = [
        f"zoo:{name}"
        for name, entry in zoo.entries().items()
        if entry.model.path.endswith(".onnx") and store.cached(name)
    ]
    return tuple(name for one in given for name in (cached if one == "zoo" else [one]))


def collect(selection: Selection, cases_file: Path | None = None) -> list[Check]:
    """The selected checks.

    Args:
        selection: Which ones.
        cases_file: Node cases that another process saved; by default they are made here.
    """
    cases: Mapping[str, NodeCase] = {}
    if selection.may_take("operators"):
        cases = load(cases_file) if cases_file is not None else node_cases()
    form = sorted(registered(), key=lambda one: one.suite != _FIRST)
    options = selection.draws, selection.cuts, selection.models
    numeric = (
        _numeric(suites, *options) for suites in _NUMERIC if any(map(selection.may_take, suites))
    )
    operators = [op for op in GENERATORS if selection.may_take(f"random/{op}")]
    random = [make(selection.draws, operators) for make in (random_checks, rest_checks)]
    cased = *case_checks(cases), *operator_checks(cases)
    everything = (*form, *itertools.chain(*random, *numeric), *cased)
    return [one for one in everything if selection.takes(one.name)]


def suite_names() -> list[str]:
    """The suites of all checks, without making those."""
    numeric = itertools.chain(*_NUMERIC)
    return sorted({"operators", "random", *numeric, *(one.suite for one in registered())})


_NUMERIC: Mapping[tuple[str, ...], Callable[[int, int, tuple[str, ...]], Iterable[Check]]] = {
    ("chains",): lambda draws, cuts, models: chain_checks(),
    ("passes",): lambda draws, cuts, models: pass_checks(draws),
    ("hetero",): lambda draws, cuts, models: hetero_checks(cuts, models),
    ("shapes",): lambda draws, cuts, models: shape_checks(),
    ("outputs",): lambda draws, cuts, models: output_checks(),
    ("decoder",): lambda draws, cuts, models: decoder_checks(draws),
    ("attributes", "choices", "opsets", "sizes", "types", "values"): (
        lambda draws, cuts, models: sweep_checks(draws)
    ),
    ("again",): lambda draws, cuts, models: again_checks(),
    ("beside",): lambda draws, cuts, models: beside_checks(),
    ("imports",): lambda draws, cuts, models: import_checks(),
    ("known",): lambda draws, cuts, models: known_checks(),
    ("walks",): lambda draws, cuts, models: walk_checks(),
    ("lives",): lambda draws, cuts, models: life_checks(),
    ("makeups",): lambda draws, cuts, models: makeup_checks(),
}
"""What makes the checks of numbers but for node cases, by the suites that they are of."""


@functools.cache
def _numeric(
    suites: tuple[str, ...], draws: int, cuts: int, models: tuple[str, ...]
) -> tuple[Check, ...]:
    """Checks of suites, kept: which there are takes thousands of draws."""
    return tuple(_NUMERIC[suites](draws, cuts, models))
