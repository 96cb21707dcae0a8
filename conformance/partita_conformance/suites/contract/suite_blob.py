"""Suite ``blob``: compiled models that are exported come back as they were."""

from __future__ import annotations

import itertools
import tempfile
import typing
from typing import Any

import numpy as np
from onnx import numpy_helper

from partita.errors import BlobError, CompileError
from partita.properties import writable
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.bench.elsewhere import run_elsewhere
from partita_conformance.inputs.models import parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.blobs import exported, require_refused

_SAME = (1e-5, 1e-6)
"""Tolerances of two results of one device, whose sums may be made in another order."""


@check("blob", values=True)
def comes_back(bench: Bench) -> None:
    """An exported model, imported by another core, has the ports and results that it had."""
    for kind in ("plain", "dynamic", "outputs"):
        sample = bench.sample(kind)
        blob = exported(bench.compile(bench.sample(kind).proto))
        restored = bench.new_core().import_model(blob, bench.device)
        original = bench.compile(sample.proto)
        for side in ("inputs", "outputs"):
            require(
                getattr(restored, side) == getattr(original, side),
                f"The {side} of '{sample.name}' are {getattr(restored, side)} after import.",
            )
        feeds = sample.feeds()
        compare(
            restored(feeds).to_tuple(),
            bench.expected(sample.proto, feeds),
            f"{sample.name} imported",
        )
        compare(
            restored(feeds).to_tuple(),
            original(feeds).to_tuple(),
            f"{sample.name} imported, beside what was exported",
            *_SAME,
        )
        again = bench.core.import_model(restored.export_model(), bench.device)
        compare(
            again(feeds).to_tuple(), bench.expected(sample.proto, feeds), f"{sample.name}, twice"
        )


@check("blob", values=True)
def comes_back_in_another_process(bench: Bench) -> None:
    """A blob holds all that it takes: another process imports it and computes the same."""
    sample = bench.sample("plain")
    blob = exported(bench.compile(bench.sample("plain").proto))
    feeds = sample.feeds(9)
    results = run_elsewhere(bench.target, blob, feeds).results
    compare(results, bench.expected(sample.proto, feeds), f"{sample.name} in another process")


_ALIKE = (
    *("layer.w", "layer/w", "layer_w", "layer:w", "layer w", "Layer.w", "layer.w ", "layer..w"),
    *("\u00e4w", "a\u0308w", "aw", "weight" * 40 + "1", "weight" * 40 + "2", "0", "00", "s.0"),
    *("\u6743w", "\u91cdw", "?w"),
)
"""Names that become one if they are made names of files or identifiers, cut off, or not Unicode."""


@check("blob", values=True)
def many_weights_keep_their_places(bench: Bench) -> None:
    """Weights of one shape come back in their order, and by their names, which are much alike."""
    count = 24 + len(_ALIKE)
    steps = " ".join(f"a{i} = Add(h{i}, w{i}) h{i + 1} = Mul(a{i}, s)" for i in range(count))
    text = f"g (float[2,3] h0) => (float[2,3] h{count}) {{ {steps} }}"
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    weights = {f"w{i}": (numbers + i * i) % 11 for i in range(count)}
    proto = parse(text, {**weights, "s": np.array(-0.75, np.float32)})
    renamed = dict(zip((f"w{i}" for i in range(24, count)), _ALIKE, strict=True))
    for tensor in proto.graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    for node in proto.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    refusals = bench.refusals(proto)
    if refusals:
        raise NotApplicableError(f"the device does not take the model: {refusals[0]}")
    try:
        blob = bench.compile(proto).export_model()
    except (CompileError, NotImplementedError, BlobError) as error:
        raise NotApplicableError(f"the device does not export: {error}") from error
    feeds = {"h0": numbers}
    restored = bench.new_core().import_model(blob, bench.device)
    what = f"a model of {count} weights, imported"
    compare(restored(feeds).to_tuple(), bench.expected(proto, feeds), what)


@check("blob")
def keeps_its_properties(bench: Bench) -> None:
    """Properties of the exported model are there after import, but for those given anew."""
    sample = bench.sample("plain")
    exported(bench.compile(bench.sample("plain").proto))
    blob = bench.compile(sample.proto, {"PERF_COUNT": True}).export_model()
    restored = bench.new_core().import_model(blob, bench.device)
    require(restored.get_property("PERF_COUNT") is True, "PERF_COUNT is lost by export and import.")
    schema = bench.plugin.properties_type
    for name in writable(schema):
        annotation = schema.model_fields[name].annotation
        if annotation is not bool and typing.get_origin(annotation) is not typing.Literal:
            continue
        values = (True, False) if annotation is bool else typing.get_args(annotation)
        for stored, given in itertools.permutations(values[:2]):
            compiled = bench.compile(sample.proto, {name: stored})
            restored = bench.new_core().import_model(
                compiled.export_model(), bench.device, {name: given}
            )
            due = bench.compile(sample.proto, {name: given}).get_property(name)
            have = restored.get_property(name)
            what = f"{name}={stored!r} was exported, {given!r} given to the import"
            require(have == due, f"{what}; the imported model has {have!r}.")


@check("blob", values=True)
def comes_out_of_the_cache(bench: Bench) -> None:
    """A model compiled again with CACHE_DIR comes out of the cache and computes what it did."""
    for kind in ("plain", "dynamic"):
        sample = bench.sample(kind)
        exported(bench.compile(bench.sample(kind).proto))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            config = {"CACHE_DIR": folder}
            first = bench.compile(sample.proto, config)
            cached = bench.new_core().compile_model(sample.proto, bench.device, config)
            require(
                cached.get_property("LOADED_FROM_CACHE") is True,
                "LOADED_FROM_CACHE is not True in the second compile with one CACHE_DIR.",
            )
            feeds = sample.feeds()
            compare(
                cached(feeds).to_tuple(),
                bench.expected(sample.proto, feeds),
                f"{sample.name} out of the cache",
            )
            compare(
                cached(feeds).to_tuple(),
                first(feeds).to_tuple(),
                f"{sample.name} out of the cache, beside what went in",
                *_SAME,
            )


@check("blob", values=True)
def the_original_works_on(bench: Bench) -> None:
    """A compiled model that was exported computes afterwards as before, with other requests."""
    sample = bench.sample("plain")
    exported(bench.compile(bench.sample("plain").proto))
    compiled = bench.compile(sample.proto)
    request = compiled.create_infer_request()
    for seed in (0, 1):
        feeds = sample.feeds(seed)
        expected = bench.expected(sample.proto, feeds)
        compare(request.infer(feeds).to_tuple(), expected, f"{sample.name}, request of before")
        compare(compiled(feeds).to_tuple(), expected, f"{sample.name}, after export")
        compiled.export_model()


@check("blob", values=True)
def the_cache_keeps_models_apart(bench: Bench) -> None:
    """Other weights and other properties do not come out of CACHE_DIR for one another."""
    sample = bench.sample("plain")
    exported(bench.compile(bench.sample("plain").proto))
    other = type(sample.proto)()
    other.CopyFrom(sample.proto)
    for tensor in other.graph.initializer:
        array = numpy_helper.to_array(tensor)
        array = array * array.dtype.type(0.5)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    feeds = sample.feeds(4)
    settings: list[dict[str, Any]] = [{"PERF_COUNT": True}, {"PERF_COUNT": False}]
    schema = bench.plugin.properties_type
    for name in writable(schema):
        field = schema.model_fields[name]
        if typing.get_origin(field.annotation) is typing.Literal and "PRECISION" not in name:
            settings += [{name: value} for value in typing.get_args(field.annotation)]
    plain = bench.compile(sample.proto)
    usual = {name: plain.get_property(name) for given in settings for name in given}
    for order in (settings, settings[::-1]):  # usual ones come out of what another one has left
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for proto, given in itertools.product((sample.proto, other), 2 * [*order, {}]):
                compiled = bench.compile(proto, {**given, "CACHE_DIR": folder})
                what = f"{sample.name} with {given} and CACHE_DIR"
                compare(compiled(feeds).to_tuple(), bench.expected(proto, feeds), what)
                for name, value in {**usual, **given}.items():
                    have = compiled.get_property(name)
                    require(have == value, f"{what} has {name}={have!r}.")


@check("blob")
def damage_is_noticed(bench: Bench) -> None:
    """Blobs that are empty, foreign, cut short or altered raise a PartitaError."""
    blob = exported(bench.compile(bench.sample("plain").proto))
    middle = len(blob) // 2
    for what, damaged in {
        "an empty blob": b"",
        "foreign bytes": b"this is no model" * 9,
        "a blob cut short": blob[:middle],
        "a blob with bytes too many": blob + b"tail",
        "a blob with a byte altered": blob[:-9] + bytes([blob[-9] ^ 255]) + blob[-8:],
        "a blob altered in the middle": blob[:middle]
        + bytes([blob[middle] ^ 255])
        + blob[middle + 1 :],
    }.items():
        require_refused(bench, damaged, f"Importing {what}")
