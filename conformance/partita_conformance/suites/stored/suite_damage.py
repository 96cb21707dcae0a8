"""Further checks of suite ``blob``: large blobs, damaged anywhere, foreign, or at odd places."""

from __future__ import annotations

import io
import mmap
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

import partita
from partita_conformance.bench.bench import REFERENCE, Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import (
    ConformanceError,
    NotApplicableError,
    require,
)
from partita_conformance.suites.blobs import exported, require_refused

_ROWS = 90


def _models(seed: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Models whose weights are many times larger than all that says what they are for."""
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {
        name: rng.standard_normal((_ROWS, _ROWS)).astype(np.float32) for name in "wvu"
    }
    ports = f"(float[{_ROWS},{_ROWS}] x) => (float[{_ROWS},{_ROWS}] y)"
    for steps in (
        "a = MatMul(x, w) b = Gemm <transB = 1> (a, v) y = Add(b, u)",
        "a = Mul(x, w) b = Add(a, v) y = Sub(b, u)",
        "a = Add(x, w) b = Add(a, v) y = Add(b, u)",
    ):
        yield steps, parse(f"large {ports} {{ {steps} }}", weights)


def _large(bench: Bench, seed: int = 1) -> Sample:
    """The first of them that the device takes."""
    for name, proto in bench.taken(_models(seed)):
        return Sample(name, proto)
    raise NotApplicableError("the device takes none of the models")


def _damaged(blob: bytes, other: bytes) -> Iterator[tuple[str, bytes]]:
    """Blobs with damages, of which some leave the length, and some the sum of all bytes.

    Args:
        blob: The right one.
        other: That of a model of the same form with other weights.
    """
    size, rng = len(blob), np.random.default_rng(3)
    places = [size * part // 23 for part in range(23)]
    places += [size - 2, size - 70, *map(int, rng.integers(0, size, 9))]
    for place in places:
        yield f"with another bit at {place}", _with(blob, place, bytes([blob[place] ^ 1]))
        yield f"with another sign at {place}", _with(blob, place, bytes([blob[place] ^ 128]))
    for place in places[1:-2:3]:
        page = blob[place : place + 512]
        yield f"with zeros at {place}", _with(blob, place, bytes(len(page)))
        yield f"with a page turned round at {place}", _with(blob, place, page[::-1])
        later = (place + size // 2) % (size - 1024)
        swapped = _with(_with(blob, place, blob[later : later + 512]), later, page)
        yield f"with two pages exchanged at {place} and {later}", swapped
        one, two = blob[place], blob[place + 1]
        if one not in (255, two) and two != 0:
            moved = bytes([one + 1, two - 1])
            yield f"with two bytes of one sum at {place}", _with(blob, place, moved)
        yield f"with another's end from {place} on", blob[:place] + other[place:]
        yield f"without a byte at {place}", blob[:place] + blob[place + 1 :]
        yield f"with a byte too many at {place}", blob[:place] + b"\0" + blob[place:]
        yield (
            f"with a byte moved to the end at {place}",
            (blob[:place] + blob[place + 1 :] + blob[place : place + 1]),
        )
    for count in (1, 2, 7, 64, 512, 4096, size // 3):
        yield f"cut by {count}", blob[:-count]
        yield f"with {count} zeros behind it", blob + bytes(count)
        yield f"without its first {count}", blob[count:]
        yield f"with {count} bytes before it", bytes(count) + blob
    yield "twice", blob + blob
    yield "with another behind it", blob + other


def _with(blob: bytes, place: int, part: bytes) -> bytes:
    return blob[:place] + part + blob[place + len(part) :]


@check("blob", values=True)
def damage_of_large_blobs_is_noticed(bench: Bench) -> None:
    """Whatever happens to a blob, wherever in it, it is not imported; whole ones are, as ever."""
    sample = _large(bench)
    feeds = sample.feeds(31)
    due = bench.expected(sample.proto, feeds)
    blob = exported(bench.compile(sample.proto))
    other = exported(bench.compile(_large(bench, 2).proto))
    for number, (what, damaged) in enumerate(_damaged(blob, other)):
        if damaged in (blob, other):
            continue
        require_refused(bench, damaged, f"Importing a blob of {len(blob)} bytes {what}")
        if number % 40 == 39:
            compiled = bench.core.import_model(blob, bench.device)
            compare(compiled(feeds).to_tuple(), due, f"a blob after {number + 1} damaged ones")


@check("blob")
def foreign_blobs_are_refused(bench: Bench) -> None:
    """A blob of another device, an ONNX model and other files' beginnings are not imported."""
    sample = bench.sample("plain")
    exported(bench.compile(sample.proto))
    foreign = {
        "an ONNX model": sample.proto.SerializeToString(),
        "zeros": bytes(4096),
        "a text": b"ply\n" * 200,
        "an archive": b"PK\x03\x04" + bytes(200),
        "a program": b"\x7fELF" + bytes(200),
    }
    if bench.plugin.device_name != REFERENCE:
        own = bench.new_core().compile_model(sample.proto, REFERENCE)
        foreign["a blob of REFERENCE"] = own.export_model()
    for what, blob in foreign.items():
        require_refused(bench, blob, f"Importing {what}")


@check("blob", values=True)
def blobs_may_lie_anywhere(bench: Bench) -> None:
    """A blob may lie at any address, in a file that is only mapped, or come out of a stream."""
    sample = _large(bench)
    feeds = sample.feeds(32)
    due = bench.expected(sample.proto, feeds)
    blob = exported(bench.compile(sample.proto))
    models: list[tuple[str, partita.CompiledModel]] = []
    for offset in (1, 3, 4, 8, 63):
        given = memoryview(bytes(offset) + blob)[offset:]
        models.append((f"{offset} bytes on", bench.core.import_model(given, bench.device)))
    models.append(("in a stream", bench.core.import_model(io.BytesIO(blob), bench.device)))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        path = Path(name) / "blob"
        path.write_bytes(blob)
        with path.open("rb") as stream:
            mapped = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        models.append(("in a mapped file", bench.core.import_model(mapped, bench.device)))
        del mapped
    for what, compiled in models:
        for turn in range(2):
            have = compiled(feeds).to_tuple()
            compare(have, due, f"{sample.name}, imported of a blob {what}, run {turn + 1}")


_THREADS = 4


@check("blob", values=True)
def threads_export_and_import_at_once(bench: Bench) -> None:
    """What threads export and import at the same time are models of their own each."""
    samples = [_large(bench, seed) for seed in range(1, _THREADS + 1)]
    feeds = samples[0].feeds(33)
    models = [bench.compile(sample.proto) for sample in samples]
    due = [bench.expected(sample.proto, feeds) for sample in samples]
    blobs = [exported(compiled) for compiled in models]
    failures: list[BaseException] = []
    start = threading.Barrier(_THREADS)

    def work(which: int) -> None:
        try:
            start.wait()
            for turn in range(2):
                compiled = bench.core.import_model(blobs[which], bench.device)
                what = f"import {turn + 1} of thread {which + 1}"
                compare(compiled(feeds).to_tuple(), due[which], what)
                again = bench.core.import_model(models[which].export_model(), bench.device)
                compare(again(feeds).to_tuple(), due[which], f"{what}, exported anew")
        except BaseException as error:  # noqa: BLE001  # whatever it is, the check's thread reports it
            failures.append(error)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise ConformanceError(f"{len(failures)} of {_THREADS} threads: {failures[0]}")


_FAILURES = 70
"""More than devices have handles for."""


@check("blob", values=True)
def failed_imports_cost_nothing(bench: Bench) -> None:
    """After dozens of blobs that are refused, and models that come and go, imports work as ever."""
    sample = bench.sample("plain")
    blob = exported(bench.compile(sample.proto))
    feeds = sample.feeds(34)
    due = bench.expected(sample.proto, feeds)
    for number in range(_FAILURES):
        place = len(blob) * number // _FAILURES
        damaged = _with(blob, place, bytes([blob[place] ^ 255]))
        require_refused(bench, damaged, "Importing a damaged blob")
        if number % 2:
            compiled = bench.core.import_model(blob, bench.device)
            compare(compiled(feeds).to_tuple(), due, f"{sample.name}, import {number}")
    kept = [bench.core.import_model(blob, bench.device) for _ in range(20)]
    for number, compiled in enumerate(kept):
        compare(compiled(feeds).to_tuple(), due, f"{sample.name}, import {number + 1} of 20")
    require(len({id(compiled.device_model) for compiled in kept}) == 20, "Two imports are one.")
