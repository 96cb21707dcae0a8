"""Further checks of suites ``compiled`` and ``blob``: models that are alike are not the same.

Whoever keeps what was compiled, in memory or in files, finds it by a key. Each check here goes
through families of models that differ in one thing, which a key may have left out.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator

import numpy as np

import partita
from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.bench.promises import require_face
from partita_conformance.inputs.alike import families
from partita_conformance.inputs.models import Array, Sample
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError
from partita_conformance.suites.blobs import exported

Judged = tuple[Sample, dict[str, Array], list[Array]]
"""A model, with inputs and right results."""


def _taken(bench: Bench) -> Iterator[tuple[str, list[Judged]]]:
    """Families of which the device takes two members at least.

    Raises:
        NotApplicableError: There are none.
    """
    found = False
    for what, members in families():
        taken = [sample for sample in members if not bench.refusals(sample.proto)]
        judged = [one for sample in taken for one in _judged(bench, sample)]
        if len(judged) > 1:
            found = True
            yield what, judged
    if not found:
        raise NotApplicableError("the device takes no two models that are alike")


def _judged(bench: Bench, sample: Sample) -> Iterator[Judged]:
    """The model with inputs and right results, unless no judge can compute it."""
    feeds = {name: np.array(abs(array) + 1 if array.dtype.kind in "iu" else array)
             for name, array in sample.feeds(3).items()}  # fmt: skip
    try:
        yield sample, feeds, bench.expected(sample.proto, feeds)
    except PartitaError:
        return


def _agree(one: Judged, compiled: partita.CompiledModel, how: str) -> None:
    sample, feeds, due = one
    what = f"A model beside others that differ in {sample.name}, {how}"
    compare(compiled(feeds).to_tuple(), due, what)


@check("compiled", values=True)
def models_that_differ_in_one_thing_are_told_apart(bench: Bench) -> None:
    """Models are compiled each as itself, while others that are alike are there or were there."""
    core = bench.new_core()  # whose plugin has seen none of them
    for _, members in _taken(bench):
        made = [bench.compile(one[0].proto, core=core) for one in members]
        for _ in range(2):
            for one, compiled in zip(members, made, strict=True):
                _agree(one, compiled, "all of them there")
        del made, compiled
        gc.collect(0)
        one = members[0]
        _agree(one, bench.compile(one[0].proto, core=core), "after all were gone")


@check("blob", values=True)
def blobs_that_differ_in_one_thing_are_told_apart(bench: Bench) -> None:
    """Models that are alike come back each as itself, out of blobs and out of ``CACHE_DIR``."""
    exported(bench.compile(bench.sample("plain").proto))
    core = bench.new_core()
    for _, members in _taken(bench):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            blobs = []
            for one in members:
                compiled = bench.compile(one[0].proto, {"CACHE_DIR": folder})
                _agree(one, compiled, "with CACHE_DIR for the first time")
                blobs.append(exported(compiled))
            restored = [core.import_model(blob, bench.device) for blob in blobs]
            for one, compiled in zip(members, restored, strict=True):
                require_face(bench.read(one[0].proto), compiled)
                _agree(one, compiled, "imported")
            for one in members:
                compiled = bench.compile(one[0].proto, {"CACHE_DIR": folder})
                _agree(one, compiled, "with CACHE_DIR for the second time")
