"""Further checks of suite ``compiled``: many models together, and hundreds after each other."""

from __future__ import annotations

import gc

import numpy as np
import onnx

import partita
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import require

_KINDS = (
    "g (float[3,4] x) => (float[3,4] y) { y = Add(x, w) }",
    "g (float[3,4] x) => (float[3,4] y) { y = Mul(x, w) }",
    "g (float[3,4] x) => (float[3,3] y) { y = Gemm <transB = 1> (x, w) }",
    "g (float[3,4] x) => (float[3,4] y) { a = Neg(x) y = Sub(a, w) }",
    "g (float[N,4] x) => (float[N,4] y) { y = Sub(x, r) }",
)
_TOGETHER = 45
_AFTER_EACH_OTHER = 270
"""More than eight bits count."""


def _numbered(number: int, text: str) -> onnx.ModelProto:
    """A model whose weights depend on the number alone."""
    w = (np.arange(12) * (number + 3) % 17 + number / 8).astype(np.float32).reshape(3, 4)
    weights: dict[str, Array] = {"w": w} if "w)" in text else {"r": w[0]}
    return parse(text, weights)


def _taken(bench: Bench) -> list[str]:
    return [text for text, _ in bench.taken((text, _numbered(0, text)) for text in _KINDS)]


@check("compiled", values=True)
def many_may_be_there_and_go(bench: Bench) -> None:
    """Dozens of models are there together, of several cores, and go in any order.

    Those that stay compute on, in requests of before and new ones; others are compiled meanwhile.
    """
    texts, rng = _taken(bench), np.random.default_rng(6)
    cores = [bench.core, bench.new_core(), bench.new_core()]
    here: dict[int, tuple[onnx.ModelProto, partita.CompiledModel, partita.InferRequest]] = {}

    def begin(number: int) -> None:
        proto = _numbered(number, texts[number % len(texts)])
        core = cores[number % len(cores)]
        compiled = bench.compile(proto, core=core)
        here[number] = proto, compiled, compiled.create_infer_request()

    def agree(number: int, when: str) -> None:
        proto, compiled, request = here[number]
        feeds = Sample("", proto, {"N": number % 5 + 1}).feeds(number)
        due = bench.expected(proto, feeds)
        what = f"model {number + 1}, {when}, of {len(here)} that are there"
        compare(request.infer(feeds).to_tuple(), due, what)
        compare(compiled(feeds).to_tuple(), due, f"{what}, another request")

    for number in range(_TOGETHER):
        begin(number)
    for number in [*here][::-1]:
        agree(number, "run from the last to the first")
    for turn, number in enumerate(map(int, rng.permutation(_TOGETHER)[: _TOGETHER - 5])):
        del here[number]
        if turn % 8 == 0:
            gc.collect()
            begin(_TOGETHER + turn)
            for other in map(int, rng.choice([*here], 3, replace=False)):
                agree(other, "after others went")
    cores.clear()
    gc.collect()
    for number in here:
        agree(number, "when most are gone")


@check("compiled", values=True)
def hundreds_may_follow_each_other(bench: Bench) -> None:
    """Of hundreds of models that are compiled, run and dropped one by one the last is right too."""
    texts = _taken(bench)
    first = _numbered(0, texts[0])
    kept, identity = bench.compile(first), bench.plugin.identity(bench.properties())
    for number in range(_AFTER_EACH_OTHER):
        proto = _numbered(number, texts[number % len(texts)])
        compiled = bench.compile(proto)
        if number % 9 == 0 or number > _AFTER_EACH_OTHER - 4:
            feeds = Sample("", proto, {"N": 3}).feeds(number)
            due = bench.expected(proto, feeds)
            compare(compiled(feeds).to_tuple(), due, f"model {number + 1} in a row")
    feeds = Sample("", first, {"N": 3}).feeds(5)
    compare(kept(feeds).to_tuple(), bench.expected(first, feeds), "the first model, after hundreds")
    require(identity == bench.plugin.identity(bench.properties()), "identity() has changed since.")


@check("compiled", values=True)
def cores_keep_their_settings(bench: Bench) -> None:
    """What one core sets counts for none of the others, and for no model of before."""
    sample = bench.sample("plain")
    feeds = sample.feeds(44)
    due = bench.expected(sample.proto, feeds)
    one, other = bench.new_core(), bench.new_core()
    before = bench.compile(sample.proto, core=one)
    one.set_property(bench.device, {"PERF_COUNT": True})
    models = {
        "compiled before it was set": (before, False),
        "compiled afterwards": (bench.compile(sample.proto, core=one), True),
        "of another core": (bench.compile(sample.proto, core=other), False),
    }
    one.unload_plugin(bench.core.resolve_device(bench.device).partition(".")[0])
    del one
    gc.collect()
    for what, (compiled, counts) in models.items():
        compare(compiled(feeds).to_tuple(), due, f"{sample.name}, {what}")
        have = compiled.get_property("PERF_COUNT")
        require(have is counts, f"PERF_COUNT of a model {what} is {have!r}, not {counts}.")
        request = compiled.create_infer_request()
        request.infer(feeds)
        found = len(list(request.get_profiling_info()))
        require(counts or not found, f"A model {what} has {found} counters, and PERF_COUNT off.")
