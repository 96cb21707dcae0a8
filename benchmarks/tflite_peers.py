"""TFLite files on device CPU beside LiteRT (XNNPACK): whether they agree, and how long they take.

    python benchmarks/tflite_peers.py [--threads 2] [--rounds 12] [--no-times] [--invoke] [FILE ...]

Without files: those out of wheels that `tflite_files.toml` names, fetched and kept as zoo models
are. LiteRT answers twice: its own kernels without XNNPACK say what is right, XNNPACK how fast it
is. Both get seeded noise. Floats agree where they differ by at most 1e-4 of the largest (0.02 in
files with weights of levels alone, with which LiteRT rounds inputs too), levels by two, since what
each operator rounds adds up. Where floats differ by more, device REFERENCE computes the file in
float64: it agrees if Partita is at most twice as far from that as the farther of LiteRT's two
answers, which is what another order of sums makes. The line has all three distances, and how far
the float64 answer itself moves if each weight does by half a unit in its last place.

Both engines take turns in one process, some calls after a pause. A call is what a program does: it
hands inputs in, runs, and gets arrays of the outputs that are its own; with --invoke LiteRT only
runs, on inputs that were set before, and hands nothing out, which is less. The table has medians,
and how many operations and transposes the translation has; at the end stands the geometric mean of
the ratios.
"""

from __future__ import annotations

import argparse
import collections
import functools
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from onnx import TensorProto, numpy_helper

import partita
from partita.zoo.manifest import parse
from partita.zoo.store import Store

Array = np.ndarray[Any, Any]
PAUSE = 0.02
CALLS_PER_TURN = 6


@dataclass
class Row:
    """What was found of one file."""

    name: str
    ops: int
    transposes: int
    gap: str
    agrees: bool
    own_ms: float = math.nan
    litert_ms: float = math.nan


def main() -> int:
    """Prints a row for each file; returns how many do not agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--no-times", action="store_true", help="only say whether answers agree")
    parser.add_argument("--invoke", action="store_true", help="time nothing but LiteRT's invoke")
    args = parser.parse_args()
    versions = [f"{name} {metadata.version(name)}" for name in ("ai-edge-litert", "numpy")]
    print(f"{platform.processor() or platform.machine()}, {args.threads} threads, {versions}")
    rows, failed = [], 0
    for path in files(args.files):
        try:
            rows.append(compared(path, args))
        except (partita.errors.PartitaError, RuntimeError, ValueError) as error:
            failed += 1
            print(f"{path.stem:32} {type(error).__name__}: {error}")
            continue
        print(line(rows[-1]), flush=True)
    wrong = sum(not row.agrees for row in rows)
    ratios = [row.litert_ms / row.own_ms for row in rows if row.own_ms > 0]
    print(f"{len(rows) - wrong} of {len(rows) + failed} files agree")
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"speed over LiteRT, geometric mean of {len(ratios)}: {mean:.2f}")
    return wrong + failed


def files(named: list[Path]) -> Iterator[Path]:
    """The files that were named, those in folders, or those of the manifest."""
    if named:
        for path in named:
            yield from sorted(path.glob("*.tflite")) if path.is_dir() else [path]
        return
    manifest = parse(Path(__file__).with_name("tflite_files.toml").read_text("utf-8"))
    found = Store(manifest=manifest, notify=print).ensure(manifest)
    yield from (one.model for one in found.values())


def compared(path: Path, args: argparse.Namespace) -> Row:
    """Answers and times of both engines."""
    judge = interpreter(path, 1, plain=True)
    rng = np.random.default_rng(0)
    feeds = [noise(rng, detail) for detail in judge.get_input_details()]
    expected = answer(judge, feeds)
    core = partita.Core()
    model = core.read_model(path)
    named = {port.name: array for port, array in zip(model.inputs, feeds, strict=False)}
    model.reshape({name: list(array.shape) for name, array in named.items()})
    config = {"INFERENCE_NUM_THREADS": args.threads}
    request = core.compile_model(model, "CPU", config).create_infer_request()
    results = request.infer(named)
    gaps = [gap(np.array(results[index]), due) for index, due in enumerate(expected)]
    counts = collections.Counter(op.op_type for op in model.ops)
    hybrid = any(node.op_type == "DequantizeLinear" for node in model.ir.graph.all_nodes())
    allowed = 0.02 if hybrid else 1e-4
    wrong = [i for i, (found, unit) in enumerate(gaps) if found > (allowed, 2)[unit == "levels"]]
    worst = max(gaps, key=lambda one: one[0], default=(0.0, ""))
    row = Row(path.stem, len(model.ops), counts["Transpose"], f"{worst[0]:.2g} {worst[1]}", True)
    peer = interpreter(path, args.threads, plain=False)
    fast = answer(peer, feeds)
    if wrong:
        answers = [[np.array(results[i]) for i in range(len(expected))], expected, fast]
        judged = None if hybrid else by_float64(model, named, answers, wrong)
        row.agrees = judged is not None and judged[0] <= 2 * max(judged[1:3])
        if judged is not None:
            names = ("Partita", "LiteRT", "XNNPACK", "half an ulp of weights")
            shown = (f"{name} {off:.2g}" for name, off in zip(names, judged, strict=True))
            row.gap += f"; off float64: {', '.join(shown)}"
    if not args.no_times:
        theirs = peer.invoke if args.invoke else whole_call(peer, feeds)
        calls = [functools.partial(request.infer, named), theirs]
        row.own_ms, row.litert_ms = times(calls, args.rounds)
    return row


def by_float64(
    model: partita.Model, feeds: dict[str, Array], answers: list[list[Array]], places: list[int]
) -> list[float]:
    """How far answers are from float64 at some outputs, and what rounding the weights makes there.

    Returns:
        A gap for each of the answers, and that of float64 with each weight moved by up to half a
        unit in the last place of a float32.
    """
    wide, moved = (_outputs(_widened(model, ulps), feeds) for ulps in (0.0, 0.5))
    rows = [*answers, moved]
    return [max(gap(row[i].astype(np.float64), wide[i])[0] for i in places) for row in rows]


def _outputs(proto: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """What device REFERENCE computes in float64."""
    core = partita.Core()
    compiled = core.compile_model(proto, "REFERENCE")
    wide = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in feeds.items()}
    return [np.array(x) for x in compiled(wide).to_tuple()]


def _widened(model: partita.Model, ulps: float) -> onnx.ModelProto:
    """The model in float64, with weights moved by up to so many units of a float32."""
    single, double = TensorProto.FLOAT, TensorProto.DOUBLE
    rng = np.random.default_rng(1)
    proto = model.to_onnx()
    graph = proto.graph
    for weight in graph.initializer:
        if weight.data_type == single:
            array = numpy_helper.to_array(weight)
            noise = rng.uniform(-ulps, ulps, array.shape) * np.spacing(np.abs(array))
            weight.CopyFrom(numpy_helper.from_array(array + noise.astype(np.float64), weight.name))
    for port in (*graph.input, *graph.output, *graph.value_info):
        if port.type.tensor_type.elem_type == single:
            port.type.tensor_type.elem_type = double
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == single:
                attribute.i = double
    return proto


def interpreter(path: Path, threads: int, plain: bool) -> Interpreter:
    """LiteRT for a file, with its own kernels alone or with XNNPACK."""
    kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if plain else OpResolverType.AUTO
    made = Interpreter(str(path), num_threads=threads, experimental_op_resolver_type=kind)
    made.allocate_tensors()
    return made


def answer(one: Interpreter, feeds: list[Array]) -> list[Array]:
    """The outputs of a run."""
    for detail, array in zip(one.get_input_details(), feeds, strict=True):
        one.set_tensor(detail["index"], array)
    one.invoke()
    return [one.get_tensor(detail["index"]) for detail in one.get_output_details()]


def whole_call(one: Interpreter, feeds: list[Array]) -> Callable[[], list[Array]]:
    """A call that hands inputs in and outputs out, and looks nothing up."""
    pairs = [(d["index"], array) for d, array in zip(one.get_input_details(), feeds, strict=True)]
    results = [detail["index"] for detail in one.get_output_details()]
    put, get, invoke = one.set_tensor, one.get_tensor, one.invoke

    def call() -> list[Array]:
        for index, array in pairs:
            put(index, array)
        invoke()
        return [get(index) for index in results]

    return call


def noise(rng: np.random.Generator, detail: dict[str, Any]) -> Array:
    """Numbers for an input, or levels that stand for such."""
    array, dtype = rng.normal(0, 1, detail["shape"]), np.dtype(detail["dtype"])
    if dtype.kind == "f":
        return array.astype(dtype)
    scale, zero = detail["quantization"]
    limits = np.iinfo(dtype)
    return np.clip(np.round(array / (scale or 1.0) + zero), limits.min, limits.max).astype(dtype)


def gap(found: Array, due: Array) -> tuple[float, str]:
    """How far an output is off: in levels, or as a part of the largest number."""
    if found.shape != due.shape or found.dtype != due.dtype:
        return math.inf, f"{found.dtype}{found.shape} for {due.dtype}{due.shape}"
    most = float(np.abs(found.astype(np.float64) - due.astype(np.float64)).max(initial=0))
    if due.dtype.kind in "iu":
        return most, "levels"
    return most / max(float(np.abs(due).max(initial=0)), 1e-30), "of the largest"


def times(calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Median milliseconds of each call; they take turns."""
    taken: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        for call, own in zip(calls, taken, strict=True):
            time.sleep(PAUSE)
            for _ in range(CALLS_PER_TURN):
                start = time.perf_counter()
                call()
                if turn:
                    own.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(own) for own in taken]


def line(row: Row) -> str:
    """A row of the table."""
    speed = ""
    if not math.isnan(row.own_ms):
        ratio = row.litert_ms / row.own_ms
        speed = f"{row.own_ms:9.3f} ms, LiteRT {row.litert_ms:9.3f} ms, {ratio:5.2f}"
    verdict = "agrees" if row.agrees else "DIFFERS"
    counts = f"{row.ops:4} ops, {row.transposes:3} transposes"
    return f"{row.name:32} {verdict} ({row.gap}) {counts} {speed}"


if __name__ == "__main__":
    sys.exit(main())
