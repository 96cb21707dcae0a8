"""Suite ``lives``: so many runs, requests and models as the device's own code counts, and more."""

from __future__ import annotations

import gc

import numpy as np

from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import require, require_raises
from partita_conformance.suites.lives.code_numbers import numbers_of_code
from partita_conformance.suites.resources.collecting import native_bytes

_MOST_RUNS, _MOST_REQUESTS, _MOST_MODELS, _MOST_PORTS = 1100, 70, 40, 70
_A_SHAPE = 1 << 16
"""Bytes that may be kept for each shape."""


def _many_ports(bench: Bench, count: int) -> None:
    """Each of so many inputs is read anew in each run, and each output is written."""
    ports = [", ".join(f"float[3] {name}{n}" for n in range(count)) for name in "xy"]
    steps = " ".join(f"y{n} = Neg(x{count - 1 - n})" for n in range(count))
    compiled = bench.compile(parse(f"g ({ports[0]}) => ({ports[1]}) {{ {steps} }}"))
    request = compiled.create_infer_request()
    for turn in range(3):
        arrays = [np.full(3, 10 * turn + n, np.float32) for n in range(count)]
        have = request.infer(arrays).to_tuple()
        compare(have, [-one for one in arrays[::-1]], f"run {turn + 1} of {count} inputs")


@check("lives", values=True)
def there_may_be_many(bench: Bench) -> None:
    """Runs, failures, requests and models are one more than any number in the device's code."""
    proto = parse("g (float[N] a, float[N] b) => (float[N] y) { y = Sub(a, b) }")
    other = parse("g (float[N] a, float[N] b) => (float[N] y) { y = Max(a, b) }")
    bench.decline_unless_taken(proto)
    of_code = numbers_of_code(bench)
    protos = [one for one in (proto, other) if not bench.refusals(one)]

    def most(limit: int, least: int) -> int:
        return 2 + max((n for n in of_code if n <= limit), default=least)

    feeds = [
        {n: np.array([turn * (2 * i + 1), i, 1 - i], np.float32) for i, n in enumerate("ab")}
        for turn in range(7)
    ]
    due = [[bench.expected(one, feed) for feed in feeds] for one in protos]
    models = [bench.compile(protos[n % len(protos)]) for n in range(most(_MOST_MODELS, 16))]
    for number, compiled in enumerate([*models, *models[::-1]]):
        which = number if number < len(models) else 2 * len(models) - 1 - number
        have = compiled(feeds[number % 7]).to_tuple()
        want = due[which % len(protos)][number % 7]
        compare(have, want, f"one of {len(models)} models that are there")
    requests = [models[0].create_infer_request() for _ in range(most(_MOST_REQUESTS, 32))]
    kept: list[tuple[int, tuple[Array, ...]]] = []
    for number, request in enumerate([*requests, *requests]):
        have = request.infer(feeds[number % 7], share_outputs=True).to_tuple()
        compare(have, due[0][number % 7], f"one of {len(requests)} requests")
        kept = [*kept[1 - len(requests) :], (number % 7, have)]
    for turn, arrays in kept:
        compare(arrays, due[0][turn], f"results that all of {len(requests)} requests keep")
    _many_ports(bench, most(_MOST_PORTS, 40))
    bad = {"a": np.zeros(3, np.float32), "b": np.zeros((2, 2), np.float32)}
    runs = most(_MOST_RUNS, 300)
    for number in range(runs):
        have = requests[0].infer(feeds[number % 7]).to_tuple()
        compare(have, due[0][number % 7], f"run {number + 1} of a request")
        if number % 8 == 7:
            require_raises(PartitaError, lambda: requests[1].infer(bad), "An input of other rank")
    sizes = sorted({n for n in of_code if n <= _MOST_RUNS} | {257})
    shapes = [*range(1, 130), *sizes, 1, 2, 3]  # the first ones again, behind all others
    held = native_bytes()
    for number in shapes:
        feed = {n: np.full(number, i + 2, np.float32) for i, n in enumerate("ab")}
        have = requests[0].infer(feed).to_tuple()
        compare(have, [feed["a"] - feed["b"]], f"a run of size {number}, of many sizes in turn")
    del have, feed
    gc.collect()
    each = (native_bytes() - held) / len(shapes)
    require(each < _A_SHAPE, f"{each:.0f} bytes are kept for each shape that a request has seen.")


_TEXTS = {
    "handed on": "g (string[N] x) => (string[N] y) { y = Identity(x) }",
    "joined": "g (string[N] x) => (string[M] y) { y = Concat <axis = 0> (x, x) }",
    "in another shape": "g (string[N] x, int64[2] s) => (string[A,B] y) { y = Reshape(x, s) }",
    "looked up": "g (string[N] x, int64[M] i) => (string[M] y) { y = Gather(x, i) }",
    "compared": "g (string[N] x, string[N] z) => (bool[N] y) { y = Equal(x, z) }",
}
_MOST_TEXTS = (1 << 16) + 300
"""So many texts that numbers of two bytes do not tell them apart."""


@check("lives", values=True)
def there_may_be_many_texts(bench: Bench) -> None:
    """Texts of one run, and of all runs together, are more than bytes and pairs of them count."""
    for what, proto in bench.taken((what, parse(text)) for what, text in _TEXTS.items()):
        request = bench.compile(proto).create_infer_request()
        names = {value.name for value in proto.graph.input}
        first = 0
        for count in (300, 5000, 300, _MOST_TEXTS, 5, 300):
            x = np.array([f"{n:x}" for n in range(first, first + count)], object)
            first += count
            z = x.copy()
            z[::3] = x[::-1][::3]
            every = {"x": x, "z": z, "s": np.array([1, -1]), "i": np.arange(count)[::-1].copy()}
            have = request.infer({name: every[name] for name in names}).to_tuple()[0]
            due = {
                "handed on": x,
                "joined": np.concatenate([x, x]),
                "in another shape": x.reshape(1, -1),
                "looked up": x[::-1],
                "compared": np.equal(x, z).astype(np.bool_),
            }[what]
            require(np.array_equal(have, due), f"{count} texts, {what}, come out as others.")
