"""Suite ``hetero``: the device beside another one in HETERO: operators, networks, whole models."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from partita.zoo.naming import resolve
from partita_conformance.bench.bench import REFERENCE, Bench
from partita_conformance.bench.checks import Check
from partita_conformance.draws.cover import nth
from partita_conformance.draws.operators import GENERATORS
from partita_conformance.inputs.models import Sample, networks
from partita_conformance.judging.compare import OF_LARGEST, compare
from partita_conformance.judging.requirements import DeclinedError, NotApplicableError, require
from partita_conformance.suites.numerics.suite_operators import telling_draw

BUILTIN = ("builtin:digits", "builtin:pitch")
"""Models that are made on the spot, which are cut in every run."""


def hetero_checks(seeds: int, models: Sequence[str] = ()) -> list[Check]:
    """Every operator between two others on REFERENCE, and random sets of networks and models.

    Args:
        seeds: Random sets per network.
        models: Names of further models to cut, e.g. ``"zoo:magika"``.
    """
    single = [
        Check(
            f"hetero/operator/{op}",
            functools.partial(_one_operator, op),
            True,
            f"{op} on the device, its neighbours on {REFERENCE}",
            op,
            nth(op, 0).element_type,
        )
        for op in GENERATORS
    ]
    cuts = [
        Check(
            f"hetero/network/{network.name}/{seed}",
            functools.partial(_random_cut, network, seed),
            True,
            f"a random part of '{network.name}' on the device",
        )
        for network in networks()
        for seed in range(seeds)
    ]
    whole = [
        Check(
            f"hetero/model/{name}/{seed}",
            functools.partial(_random_cut_of_model, name, seed),
            True,
            f"a random part of '{name}' on the device",
        )
        for name in dict.fromkeys((*BUILTIN, *models))
        for seed in range(seeds)
    ]
    return [*single, *cuts, *whole]


def sandwich(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with an Identity before each input and behind each output."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    graph = model.graph
    before, after = [], []
    inputs = {value.name for value in graph.input}
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in inputs:
                node.input[i] = f"{name}_inside"
        for i, name in enumerate(node.output):
            if name in outputs:
                node.output[i] = f"{name}_inside"
    for name in sorted(inputs):
        before.append(helper.make_node("Identity", [name], [f"{name}_inside"], name=f"to_{name}"))
    for name in sorted(outputs):
        after.append(helper.make_node("Identity", [f"{name}_inside"], [name], name=f"of_{name}"))
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _beside(bench: Bench) -> str:
    if bench.core.device_info(bench.device).kind == "virtual":
        raise NotApplicableError("the device is made of other devices itself")
    if bench.plugin.device_name == REFERENCE:
        raise NotApplicableError(f"the device is {REFERENCE} itself")
    return f"HETERO:{bench.device},{REFERENCE}"


def _run(
    bench: Bench,
    proto: onnx.ModelProto,
    pinned: set[str],
    feeds: Any,
    what: str,
    of_largest: float = OF_LARGEST,
) -> None:
    """Compiles with some operations on the device and the others on REFERENCE; compares."""
    device = _beside(bench)
    model = bench.read(proto)
    for op in model.ops:
        op.affinity = bench.device if op.name in pinned else REFERENCE
    compiled = bench.core.compile_model(model, device, {"STRICT": True})
    name = bench.plugin.device_name
    for place in compiled.explain().ops:
        if place.name in pinned and place.device != "-":
            on_it = place.device.partition(".")[0] == name
            require(on_it, f"{what}: '{place.name}' is on {place.device}: {place.why}")
    for _ in range(2):
        with np.errstate(all="ignore"):
            have = compiled(feeds).to_tuple()
        compare(have, bench.expected(proto, feeds), what, of_largest=of_largest)


def _one_operator(op: str, bench: Bench) -> None:
    _, proto, feeds, _ = telling_draw(op, 0, bench)
    proto = sandwich(proto)
    model = bench.read(proto)
    name = op.lower()
    answer = bench.core.query_model(model, bench.device, bench.target.config)
    if name not in answer:
        raise DeclinedError(f"{op}: {answer.reasons.get(name, 'no reason given')}")
    _run(bench, proto, {name}, feeds, f"{op} between two on {REFERENCE}")


def _random_cut(network: Sample, seed: int, bench: Bench) -> None:
    pinned = _some_taken(bench, network.proto, network.name, seed)
    _run(bench, network.proto, pinned, network.feeds(seed), f"{network.name} with {sorted(pinned)}")


def _random_cut_of_model(name: str, seed: int, bench: Bench) -> None:
    proto, feeds = _model(name)
    model = bench.read(proto)
    known = bench.core.query_model(model, REFERENCE)
    unknown = sorted({op.op_type for op in model.ops if op.name not in known})
    if unknown:
        raise NotApplicableError(f"{REFERENCE} does not take {', '.join(unknown)} of '{name}'")
    pinned = _some_taken(bench, proto, name, seed)
    what = f"{name} with {len(pinned)} operations on the device"
    # Rounding errors add up over hundreds of operations, on both devices.
    _run(bench, proto, pinned, feeds, what, of_largest=1e-4)


def _some_taken(bench: Bench, proto: onnx.ModelProto, name: str, seed: int) -> set[str]:
    """Names of operations that the device takes: all of them, or a part drawn by the seed."""
    rng = np.random.default_rng(zlib.crc32(f"{name}/{seed}".encode()))
    model = bench.read(proto)
    answer = bench.core.query_model(model, bench.device, bench.target.config)
    taken = [op.name for op in model.ops if op.name in answer]
    if not taken:
        raise DeclinedError(f"the device takes no operation of '{name}'")
    share = (1.0, 0.5, 0.3, 0.7)[seed % 4]
    # Operations are named by position where the model names none, so names hold for the same file.
    return {name for name in taken if rng.random() < share} or {taken[seed % len(taken)]}


@functools.cache
def _model(name: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model with its natural input."""
    named = resolve(name)
    if named.sample is None:
        raise NotApplicableError(f"'{name}' has no natural input; take a model of the zoo")
    source = named.source
    proto = source if isinstance(source, onnx.ModelProto) else onnx.load(source)
    return proto, dict(named.sample().feeds)
