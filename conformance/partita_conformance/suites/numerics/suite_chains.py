"""Suite ``chains``: a few operations together compute what each of them says."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.inputs.chains import chains, special_feeds
from partita_conformance.inputs.models import Sample
from partita_conformance.inputs.pairs import IMAGE_STEPS, STEPS, image_pairs, pairs
from partita_conformance.inputs.shared_weights import FAMILIES, shared
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import DeclinedError, NotApplicableError
from partita_conformance.suites.numerics.suite_operators import claimed_compiles


def chain_checks() -> list[Check]:
    """A check per model that invites a compiler to rewrite it, and per kind of several models."""
    runs: dict[str, tuple[Callable[[Bench], None], str]] = {
        sample.name: (functools.partial(_run, sample), f"operations together: {sample.name}")
        for sample in chains()
    }
    for prefix, made, steps in (("", pairs, STEPS), ("an image ", image_pairs, IMAGE_STEPS)):
        for first in steps:
            what = f"two operations, of which the first makes: {prefix}{first}"
            runs[f"{prefix}{first} and then"] = functools.partial(_run_pairs, made, first), what
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


def _run_pairs(made: Callable[[str], Iterator[Sample]], first: str, bench: Bench) -> None:
    declined: DeclinedError | None = None
    taken = 0
    for sample in made(first):
        try:
            compiled = claimed_compiles(bench, sample.proto)
        except DeclinedError as reason:
            declined = reason
            continue
        taken += 1
        feeds = sample.feeds(taken)
        with np.errstate(all="ignore"):
            expected = bench.expected(sample.proto, feeds)
            have = compiled(feeds).to_tuple()
        compare(have, expected, sample.name, 1e-4)
    if declined is not None and not taken:
        raise declined


def _run(sample: Sample, bench: Bench) -> None:
    request = claimed_compiles(bench, sample.proto).create_infer_request()
    special = special_feeds(sample)
    for feeds in (sample.feeds(3), sample.feeds(4), *([special] if special else [])):
        with np.errstate(all="ignore"):
            expected = bench.expected(sample.proto, feeds)
            have = request.infer(feeds).to_tuple()
        compare(have, expected, sample.name, 1e-4)
