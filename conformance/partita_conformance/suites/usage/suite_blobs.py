"""Further checks of suite ``blob``: blobs beside each other, damaged, and what is in them."""

from __future__ import annotations

import gc
import itertools
import tempfile
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Sample, beside, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.blobs import exported, require_refused
from partita_conformance.suites.contract.suite_properties import other_settings
from partita_conformance.suites.feeding import steps_taken


def _variants(bench: Bench) -> list[onnx.ModelProto]:
    """Models of one name and one form, of other weights."""
    sample = bench.sample("plain")
    variants = [sample.proto]
    for factor in (-1.0, 0.25):
        other = onnx.ModelProto()
        other.CopyFrom(sample.proto)
        for tensor in other.graph.initializer:
            array = numpy_helper.to_array(tensor)
            array = array * array.dtype.type(factor)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        variants.append(other)
    return variants


@check("blob", values=True)
def blobs_are_told_apart(bench: Bench) -> None:
    """Models of one name, exported after each other, come back each as itself, as often as asked.

    So they do while their originals are there, and when these are gone.
    """
    protos = _variants(bench)
    feeds = bench.sample("plain").feeds(21)
    models = [bench.compile(proto) for proto in protos]
    blobs = [exported(compiled) for compiled in models]
    core = bench.new_core()
    imported = []
    for turn, which in enumerate((0, 1, 0, 2, 1, 0, 2)):
        if turn == 4:
            models.clear()
            gc.collect()
        before = bytes(blobs[which])
        imported.append((which, core.import_model(blobs[which], bench.device)))
        require(blobs[which] == before, "An import changes the blob that it is given.")
        for number, (own, compiled) in enumerate(imported):
            what = f"import {number + 1} of {turn + 1}, of blob {own}"
            compare(compiled(feeds).to_tuple(), bench.expected(protos[own], feeds), what)


@check("blob", values=True)
def blobs_are_not_kept(bench: Bench) -> None:
    """A blob may be any buffer, and is the caller's again when it was imported."""
    sample = bench.sample("plain")
    feeds = sample.feeds(22)
    due = bench.expected(sample.proto, feeds)
    blob = exported(bench.compile(sample.proto))
    for name, made in {
        "bytes": bytes,
        "a bytearray": bytearray,
        "a memoryview": memoryview,
    }.items():
        compiled = bench.core.import_model(made(blob), bench.device)
        compare(compiled(feeds).to_tuple(), due, f"{sample.name} imported out of {name}")
    given = bytearray(blob)
    compiled = bench.core.import_model(given, bench.device)
    given[:] = bytes(len(given))
    compare(
        compiled(feeds).to_tuple(), due, f"{sample.name}, its blob overwritten after the import"
    )


@check("blob", values=True)
def imported_models_are_whole(bench: Bench) -> None:
    """An imported model has requests, shapes, counters and a life like one that was compiled."""
    sample = bench.sample("dynamic")
    original = bench.compile(sample.proto, {"PERF_COUNT": True})
    blob = exported(original)
    request = original.create_infer_request()
    request.infer(sample.feeds(N=3))
    counts = len(list(request.get_profiling_info()))
    restored = bench.new_core().import_model(blob, bench.device)
    gc.collect()  # its core
    requests = [restored.create_infer_request() for _ in range(2)]
    for turn, rows in enumerate((3, 7, 1, 0, 7, 40, 3)):
        feeds = sample.feeds(turn, N=rows)
        what = f"{sample.name} imported, {rows} rows in run {turn + 1}"
        have = requests[turn % 2].infer(feeds).to_tuple()
        compare(have, bench.expected(sample.proto, feeds), what)
    found = len(list(requests[0].get_profiling_info()))
    require(bool(found) == bool(counts), f"An imported model has {found} counters, not {counts}.")
    for what in ("NETWORK_NAME", "OPTIMAL_NUMBER_OF_INFER_REQUESTS"):
        pair = original.get_property(what), restored.get_property(what)
        require(pair[0] == pair[1], f"{what} is {pair[0]!r}, and {pair[1]!r} after the import.")
    due = {op.name for op in bench.read(sample.proto).ops}
    placed = {op.name for op in restored.explain().ops}
    require(placed == due, f"explain() of the imported model lacks {sorted(due - placed)}.")
    moment = exported(restored)
    feeds = sample.feeds(8, N=5)
    again = bench.core.import_model(moment, bench.device)(feeds).to_tuple()
    compare(again, bench.expected(sample.proto, feeds), "exported after runs, imported once more")


@check("blob", values=True)
def every_property_comes_back(bench: Bench) -> None:
    """A model has after its import each property that it was compiled with."""
    sample = bench.sample("plain")
    feeds = sample.feeds(26)
    due = bench.expected(sample.proto, feeds)
    exported(bench.compile(sample.proto))
    for name, value in other_settings(bench):
        compiled = bench.compile(sample.proto, {name: value})
        have = compiled.get_property(name)
        restored = bench.new_core().import_model(exported(compiled), bench.device)
        found = restored.get_property(name)
        what = f"{name}={value!r} was compiled with"
        require(found == have, f"{what}; {have!r} became {found!r} by export and import.")
        if "PRECISION" not in name:
            compare(restored(feeds).to_tuple(), due, f"{sample.name}, imported; {what}")


_MOMENTS = 9
_WORD = 8
"""Bytes of the widest word that checksums are made of."""


@check("blob", values=True)
def damage_anywhere_is_noticed(bench: Bench) -> None:
    """Of a blob altered or cut anywhere none is imported; what follows is imported as ever."""
    sample = bench.sample("plain")
    blob = exported(bench.compile(sample.proto))
    feeds = sample.feeds(23)
    due = bench.expected(sample.proto, feeds)
    places = [len(blob) * part // _MOMENTS for part in range(_MOMENTS)]
    for place in (*places, 1, 5, len(blob) - 1):
        altered = blob[:place] + bytes([blob[place] ^ 0x41]) + blob[place + 1 :]
        for what, damaged in {"altered": altered, "cut": blob[:place]}.items():
            require_refused(
                bench, damaged, f"Importing a blob {what} at byte {place} of {len(blob)}"
            )
    named = onnx.ModelProto.FromString(sample.proto.SerializeToString())
    for behind in range(1, _WORD + 1):  # a checksum of whole words leaves out what is behind them
        named.graph.name += "a"
        longer = exported(bench.compile(named))
        for place in {len(longer) - 1, len(longer) - behind}:
            altered = longer[:place] + bytes([longer[place] ^ 1]) + longer[place + 1 :]
            what = f"Importing a blob altered at byte {place} of {len(longer)}"
            require_refused(bench, altered, what)
    compiled = bench.core.import_model(blob, bench.device)
    compare(compiled(feeds).to_tuple(), due, f"{sample.name}, imported after damaged ones")


_TYPED: dict[str, Any] = {
    "double": np.array([1 / 3, 1e300, -1 - 2.0**-40]),
    "int64": np.array([2**53 + 1, -(2**62) - 1, 2**31]),
    "float16": np.array([6e-8, 65504, -0.1], np.float16),
    "uint8": np.array([200, 255, 0], np.uint8),
    "bool": np.array([True, False, True]),
    "float": np.array([1e-40, 16777217, -0.0], np.float32),
    "int32": np.array([2**24 + 1, -(2**31), 5], np.int32),
    "string": np.array(["", "x" * 300, "\u00e4\0\u2713"], object),
}


@check("blob", values=True)
def weights_of_every_type_come_back(bench: Bench) -> None:
    """Weights have all their digits after an import, whatever their type; scalars and none too."""
    tried = 0
    for element, weight in _TYPED.items():
        for form in (weight, weight[:1].reshape(()), weight[:0]):
            dims = ",".join(map(str, form.shape))
            kind = f"{element}[{dims}]" if form.ndim else element
            weights = {"w": form}
            ports = f"({element}[1] x) => ({kind} y, {element}[1] z)"
            text = f"g {ports} {{ y = Identity(w) z = Identity(x) }}"
            try:
                proto = parse(text, weights)
                refused = bench.refusals(proto)
            except PartitaError:
                continue
            if refused:
                continue
            tried += 1
            feeds = {"x": weight[:1]}
            restored = bench.new_core().import_model(exported(bench.compile(proto)), bench.device)
            what = f"a weight {kind}, imported"
            compare(restored(feeds).to_tuple(), [form, weight[:1]], what, 0, 0)
    if not tried:
        raise NotApplicableError("the device does not take Identity")


_STEPS = (
    *("LeakyRelu <alpha = {0}> (x)", "Elu <alpha = {0}> (x)", "Celu <alpha = {0}> (x)"),
    *("Selu <alpha = {0}, gamma = {1}> (x)", "HardSigmoid <alpha = {0}, beta = {1}> (x)"),
    *("ThresholdedRelu <alpha = {0}> (x)", "Gemm <alpha = {0}, beta = {1}> (x, w, c)"),
    *("Shrink <lambd = {0}, bias = {1}> (x)", "LayerNormalization <epsilon = {0}> (x, c, c)"),
    "InstanceNormalization <epsilon = {0}> (image, one, one)",
    "BatchNormalization <epsilon = {0}> (image, one, one, one, one)",
    "LRN <size = 3, alpha = {0}, beta = {1}, bias = {1}> (image)",
    *("Constant <value_float = {0}> ()", "Constant <value_floats = [{0}, {1}]> ()"),
    "Constant <value_int = 9007199254740993> ()",
    "Constant <value_ints = [1, -4611686018427387905]> ()",
    "If (truth) <then_branch = p () => (float[2,3] b) {{ b = LeakyRelu <alpha = {0}> (x) }},"
    " else_branch = q () => (float[2,3] d) {{ d = Neg(x) }}>",
)
"""Operations that have numbers for attributes."""
_PORTS = ("float[2,3] x", "float[1,2,4,5] image")
_WEIGHTS = {
    "w": np.array([[0.5, 2, 1], [1.5, -1, 3], [0.1, 7, 2]], np.float32),
    "c": np.array([1.5, 0.5, -2], np.float32),
    "one": np.array([1, 1], np.float32),
    "truth": np.array(True),
}
_DIGITS = ("1e-07", "0.33333334", "0.000030000001", "1234567.9", "2.5e-30", "16777215.0")
"""Numbers of float32 that need all their digits, or their exponent."""


@check("blob")
def numbers_of_attributes_come_back(bench: Bench) -> None:
    """What a model computes by its attributes is the same after an import, to the last digits."""
    feeds = {
        "x": np.array([[-3e4, -1.5, -1e-3], [1e-3, 2, 5e4]], np.float32),
        "image": np.linspace(-3, 40, 40, dtype=np.float32).reshape(1, 2, 4, 5) ** 3,
    }
    tried = 0
    for pair in itertools.pairwise((*_DIGITS, _DIGITS[0])):
        steps = steps_taken(bench, [step.format(*pair) for step in _STEPS], _PORTS, _WEIGHTS)
        if not steps:
            continue
        tried += 1
        proto = beside(steps, _PORTS, _WEIGHTS)
        compiled = bench.compile(proto)
        restored = bench.new_core().import_model(exported(compiled), bench.device)
        given = {port.name: feeds[port.name] for port in compiled.inputs}
        due, have = compiled(given).to_tuple(), restored(given).to_tuple()
        for step, *arrays in zip(steps, have, due, strict=True):
            compare(arrays[:1], arrays[1:], f"{step}, imported", 1e-6, 0)
    if not tried:
        raise NotApplicableError("the device takes none of the operations")


@check("blob", values=True)
def the_cache_tells_operations_apart(bench: Bench) -> None:
    """Models that differ in an operation, an attribute or an opset do not share a cached one."""
    texts = [
        "g (float[2,3] x) => (float[2,3] y) { y = Softmax <axis = 0> (x) }",
        "g (float[2,3] x) => (float[2,3] y) { y = Softmax <axis = 1> (x) }",
        "g (float[2,3] x) => (float[2,3] y) { y = Softmax(x) }",
        "g (float[2,3] x) => (float[2,3] y) { y = LeakyRelu <alpha = 0.5> (x) }",
        "g (float[2,3] x) => (float[2,3] y) { y = LeakyRelu <alpha = 0.25> (x) }",
        "g (float[2,3] x) => (float[2,3] y) { y = Neg(x) }",
        "g (float[2,3] x) => (float[2,3] y) { y = Abs(x) }",
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { z = Neg(x) y = Abs(x) }",
        "g (float[2,3] x) => (float[2,3] z, float[2,3] y) { z = Neg(x) y = Abs(x) }",
    ]
    protos = [parse(text) for text in texts]
    taken = [proto for proto in protos if not bench.refusals(proto)]
    exported(bench.compile(bench.sample("plain").proto))
    if not taken:
        raise NotApplicableError("the device takes none of the models")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for turn in range(2):
            for proto in taken:
                feeds = Sample("", proto).feeds(25)
                compiled = bench.compile(proto, {"CACHE_DIR": folder}, bench.new_core())
                what = f"{proto.graph.node[0].op_type} with CACHE_DIR, time {turn + 1}"
                compare(compiled(feeds).to_tuple(), bench.expected(proto, feeds), what)
