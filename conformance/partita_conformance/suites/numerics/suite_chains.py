"""Suite ``chains``: a few operations together compute what each of them says."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.inputs.bodies import bodies, turns
from partita_conformance.inputs.chains import chains, special_feeds
from partita_conformance.inputs.models import Sample
from partita_conformance.inputs.numbers import numbers
from partita_conformance.inputs.pairs import (
    STEPS,
    TABLES,
    Table,
    from_one,
    of_two,
    seconds,
    side_by_side,
)
from partita_conformance.inputs.shared_weights import FAMILIES, shared
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError
from partita_conformance.suites.numerics.suite_operators import claimed_compiles


def chain_checks() -> list[Check]:
    """A check per model that invites a compiler to rewrite it, and per kind of several models."""
    runs: dict[str, tuple[Callable[[Bench], None], str]] = {
        sample.name: (functools.partial(_run, sample), f"operations together: {sample.name}")
        for sample in (*chains(), *numbers())
    }
    for sample in bodies():
        what = f"operations with bodies, and sequences: {sample.name}"
        runs[sample.name] = functools.partial(_run_turns, sample), what
    for table in TABLES:
        for first in table.steps:
            name = f"{table.article}{first}"
            what = f"two operations, of which the first makes: {name}"
            runs[f"{name} and then"] = functools.partial(_run_pairs, table, first), what
    for name in FAMILIES:
        what = f"operations that read one {name}, which none of them may change for the others"
        runs[f"a {name} that many read"] = functools.partial(_run_shared, name), what
    return [
        Check(f"chains/{name.replace(' ', '_')}", run, True, what)
        for name, (run, what) in runs.items()
    ]


def _run_shared(name: str, bench: Bench) -> None:
    tried = 0
    for sample in shared(name, lambda proto: not bench.refusals(proto)):
        tried += 1
        feeds = sample.feeds(tried)
        have = claimed_compiles(bench, sample.proto)(feeds).to_tuple()
        compare(have, bench.expected(sample.proto, feeds), sample.name, 1e-4)
    if not tried:
        raise NotApplicableError(f"the device takes no operation on a {name}")


def _run_pairs(table: Table, first: str, bench: Bench) -> None:
    chosen = seconds(table, first)
    if len(chosen) < 2 or bench.refusals(side_by_side(table, first, chosen).proto):
        pairs = {second: side_by_side(table, first, [second]).proto for second in chosen}
        chosen = [second for second, proto in pairs.items() if not bench.refusals(proto)]
    samples = list(of_two(first)) if table.steps is STEPS else []
    samples = [sample for sample in samples if not bench.refusals(sample.proto)]
    if chosen:
        samples = [side_by_side(table, first, chosen), from_one(table, first, chosen), *samples]
    if not samples:
        raise NotApplicableError("the device takes none of the models")
    for turn, sample in enumerate(samples):
        feeds = sample.feeds(turn)
        with np.errstate(all="ignore"):
            expected = bench.expected(sample.proto, feeds)
            have = bench.compile(sample.proto)(feeds).to_tuple()
        for value, one, due in zip(sample.proto.graph.output, have, expected, strict=True):
            compare([one], [due], f"{sample.name} {value.name}", 1e-4)


def _run(sample: Sample, bench: Bench) -> None:
    request = claimed_compiles(bench, sample.proto).create_infer_request()
    special = special_feeds(sample)
    for feeds in (sample.feeds(3), sample.feeds(4), *([special] if special else [])):
        with np.errstate(all="ignore"):
            expected = bench.expected(sample.proto, feeds)
            have = request.infer(feeds).to_tuple()
        compare(have, expected, sample.name, 1e-4)


def _run_turns(sample: Sample, bench: Bench) -> None:
    request = claimed_compiles(bench, sample.proto).create_infer_request()
    for number, feeds in enumerate(turns(sample)):
        what = f"{sample.name}, run {number + 1}"
        compare(request.infer(feeds).to_tuple(), bench.expected(sample.proto, feeds), what, 1e-4)
