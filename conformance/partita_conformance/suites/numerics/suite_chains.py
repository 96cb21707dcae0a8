"""Suite ``chains``: a few operations together compute what each of them says."""

from __future__ import annotations

import functools

from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.inputs.chains import chains
from partita_conformance.inputs.models import Sample
from partita_conformance.judging.compare import compare
from partita_conformance.suites.numerics.suite_operators import claimed_compiles


def chain_checks() -> list[Check]:
    """A check per model that invites a compiler to rewrite it."""
    return [
        Check(
            f"chains/{sample.name.replace(' ', '_')}",
            functools.partial(_run, sample),
            True,
            f"operations together: {sample.name}",
        )
        for sample in chains()
    ]


def _run(sample: Sample, bench: Bench) -> None:
    request = claimed_compiles(bench, sample.proto).create_infer_request()
    for seed in (3, 4):
        feeds = sample.feeds(seed)
        expected = bench.expected(sample.proto, feeds)
        compare(request.infer(feeds).to_tuple(), expected, sample.name, 1e-4)
