"""Further checks of suite ``members``: keys of caches, and what comes out of caches by them."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from typing import Any

import onnx

from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.bench.elsewhere import identities_elsewhere
from partita_conformance.inputs.models import Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.blobs import exported
from partita_conformance.suites.contract.suite_properties import other_values, settable


def _settings(bench: Bench) -> Iterator[dict[str, Any]]:
    """No settings, and each value that a property may have beside its default, as JSON has it."""
    yield {}
    for name, field in settable(bench):
        for value in other_values(field):
            yield {name: getattr(value, "value", value)}


@check("members")
def identities_are_the_same_in_other_processes(bench: Bench) -> None:
    """identity() is the same text in other processes, whatever seed their hashes have.

    Else nothing comes out of a cache of yesterday.
    """
    settings = [*_settings(bench)]
    due = [bench.plugin.identity(bench.properties(**given)) for given in settings]
    properties = json.dumps([{**bench.listed, **given} for given in settings])
    for seed in ("1", "77"):
        found = identities_elsewhere(bench.target, properties, seed)
        for given, here, there in zip(settings, due, found, strict=True):
            what = f"identity() with {given}"
            require(here == there, f"{what} is {here!r}, and {there!r} in another process.")


@check("members")
def identities_follow_values_alone(bench: Bench) -> None:
    """identity() depends on the values that properties have: not on where a cache lies.

    Nor on the order in which they are set, on models and requests that there are, or on time.
    """
    plain = bench.plugin.identity(bench.properties())
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        found = {bench.plugin.identity(bench.properties(CACHE_DIR=name)) for name in (one, two)}
        require(len(found) == 1, "identity() depends on where CACHE_DIR lies.")
        require(found == {plain}, "identity() depends on whether there is a CACHE_DIR.")
    settings = [given for given in _settings(bench) if given]
    for first, second in itertools.pairwise(settings[:6]):
        merged = [{**first, **second}, {**second, **first}]
        if first.keys() != second.keys():
            found = {bench.plugin.identity(bench.properties(**given)) for given in merged}
            require(len(found) == 1, f"identity() depends on the order of {[*first, *second]}.")
    identities = [bench.plugin.identity(bench.properties(**given)) for given in settings]
    sample = bench.sample("plain")
    models = [bench.compile(sample.proto) for _ in range(3)]
    for compiled in models:
        compiled(sample.feeds())
    again = [bench.plugin.identity(bench.properties(**given)) for given in settings]
    require(identities == again, "identity() has changed over three compiles and runs.")
    require(plain == bench.plugin.identity(bench.properties()), "identity() has changed in time.")


@check("blob")
def the_cache_serves_each_setting(bench: Bench) -> None:
    """With CACHE_DIR a model computes under each setting what it does without, and at once.

    In either order of settings, and each setting's model comes out of the cache later.
    """
    sample = bench.sample("plain")
    exported(bench.compile(sample.proto))
    feeds = sample.feeds(42)
    settings = [*_settings(bench)]
    fresh = [bench.compile(sample.proto, given)(feeds).to_tuple() for given in settings]
    for order in (range(len(settings)), reversed(range(len(settings)))):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            turns = [*order]
            for time, which in itertools.product(range(2), turns):
                given = {**settings[which], "CACHE_DIR": folder}
                compiled = bench.compile(sample.proto, given)
                what = f"{sample.name} with {settings[which]} and CACHE_DIR, time {time + 1}"
                compare(compiled(feeds).to_tuple(), fresh[which], what, 1e-6, 1e-7)
                for name, value in settings[which].items():
                    have = compiled.get_property(name)
                    due = bench.compile(sample.proto, {name: value}).get_property(name)
                    require(have == due, f"{what} has {name}={have!r}, not {due!r}.")
                if time:
                    loaded = compiled.get_property("LOADED_FROM_CACHE")
                    require(loaded is True, f"{what} does not come out of the cache.")


_FORMS = (
    "g (float[2,3] x, float[2,3] z) => (float[2,3] y) { y = Add(x, z) }",
    "g (float[3,2] x, float[3,2] z) => (float[3,2] y) { y = Add(x, z) }",
    "g (float[6] x, float[6] z) => (float[6] y) { y = Add(x, z) }",
    "g (float[2,3] x, float[3] z) => (float[2,3] y) { y = Add(x, z) }",
    "g (float[2,3] x, float[2,1] z) => (float[2,3] y) { y = Add(x, z) }",
    "g (float[N,3] x, float[N,3] z) => (float[N,3] y) { y = Add(x, z) }",
    "g (double[2,3] x, double[2,3] z) => (double[2,3] y) { y = Add(x, z) }",
    "g (int32[2,3] x, int32[2,3] z) => (int32[2,3] y) { y = Add(x, z) }",
    "g (float[2,3] z, float[2,3] x) => (float[2,3] y) { y = Sub(x, z) }",
    "g (float[2,3] x, float[2,3] z) => (float[2,3] y) { y = Sub(x, z) }",
    "g (float[2,3] x, float[2,3] z) => (float[2,3] y) { y = Sub(z, x) }",
    "g (float[2,3] x, float[2,3] z) => (float[2,3] y, float[2,3] u) { y = Sub(z, x) u = Neg(y) }",
    "g (float[2,3] x, float[2,3] z) => (float[2,3] u, float[2,3] y) { y = Sub(z, x) u = Neg(y) }",
    "g (float[2,3] x, float[2,3] z) => (float[2,3] y) { y = Clip(x) }",
    "g (float[2,3] x, float low) => (float[2,3] y) { y = Clip(x, low) }",
    "g (float[2,3] x, float low) => (float[2,3] y) { y = Clip(x, , low) }",
    "g (float[2,3] x) => (float[2,3] y) { a = Neg(x) y = Exp(a) }",
    "g (float[2,3] x) => (float[2,3] y) { a = Exp(x) y = Neg(a) }",
    "g (float[4,6] x) => (float[6,4] y) { y = Reshape(x, s) }",
    "g (float[4,6] x) => (float[6,4] y) { y = Transpose(x) }",
    "g (bool b, float[2] x) => (float[2] y) { y = If (b) <then_branch = p () => (float[2] u) {"
    " u = Neg(x) }, else_branch = q () => (float[2] v) { v = Abs(x) }> }",
    "g (bool b, float[2] x) => (float[2] y) { y = If (b) <then_branch = p () => (float[2] u) {"
    " u = Abs(x) }, else_branch = q () => (float[2] v) { v = Neg(x) }> }",
    "g (bool b, float[2] x) => (float[2] y) { y = If (b) <then_branch = p () => (float[2] u)"
    " <float c = {2.5}> { u = Mul(x, c) }, else_branch = q () => (float[2] v) { v = Neg(x) }> }",
    "g (bool b, float[2] x) => (float[2] y) { y = If (b) <then_branch = p () => (float[2] u)"
    " <float c = {3.5}> { u = Mul(x, c) }, else_branch = q () => (float[2] v) { v = Neg(x) }> }",
    "g (float[2] x) => (float[2] y) { c = Constant <value_float = 2.5> () y = Mul(x, c) }",
    "g (float[2] x) => (float[2] y) { c = Constant <value_float = 3.5> () y = Mul(x, c) }",
    "g (float[2] x) => (float[2] y) { c = Constant <value = float {2.5}> () y = Mul(x, c) }",
    "g (float[2] x) => (float[2] y) { c = Constant <value = float {1.5}> () y = Mul(x, c) }",
    'g (float[2,2] x) => (float[2,2] y) { y = Einsum <equation = "ij->ji"> (x) }',
    'g (float[2,2] x) => (float[2,2] y) { y = Einsum <equation = "ij->ij"> (x) }',
    "g (float[2,4] x) => (float[2,1] a, float[2,3] c) { a, c = Split <axis = 1> (x, parts) }",
    "g (float[2,4] x) => (float[2,3] a, float[2,1] c) { a, c = Split <axis = 1> (x, strap) }",
)
"""Models of one name that differ in a size, a rank, a type, an order, a gap, a body or a text."""


def _alike() -> Iterator[tuple[str, onnx.ModelProto]]:
    import numpy as np

    shapes = {"s": [6, 4], "parts": [1, 3], "strap": [3, 1]}
    for text in _FORMS:
        read = {n: np.array(v, np.int64) for n, v in shapes.items() if f", {n})" in text}
        yield text, parse(text, read)


@check("compiled", values=True)
def models_of_one_name_stay_apart(bench: Bench) -> None:
    """Models that differ in a size, a type, an order, a gap, a body or a text are told apart.

    All are there together, compiled, imported, and then in a cache; they are run in any order.
    """
    taken = [*bench.taken(_alike())]
    fed = [Sample(text, proto, {"N": 2}).feeds(43) for text, proto in taken]
    due = [bench.expected(proto, feeds) for (_, proto), feeds in zip(taken, fed, strict=True)]
    models = [bench.compile(proto) for _, proto in taken]
    sets = {"compiled": models}
    try:
        blobs = [exported(compiled) for compiled in models]
    except NotApplicableError:
        blobs = []
    sets["imported"] = [bench.core.import_model(blob, bench.device) for blob in reversed(blobs)][
        ::-1
    ]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        given = {"CACHE_DIR": folder}
        for time in ("into the cache", "out of the cache"):
            sets[time] = [bench.compile(proto, given) for _, proto in taken] if blobs else []
        for how, group in sets.items():
            for which in (*range(len(group)), *reversed(range(0, len(group), 3))):
                have = group[which](fed[which]).to_tuple()
                compare(have, due[which], f"{taken[which][0]} beside others, {how}")
