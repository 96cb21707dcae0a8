"""``partita run``: one inference; shows what came out, compares two devices, writes the outputs."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from partita import Core
from partita.cli import workload
from partita.cli.arguments import (
    Commands,
    add_command,
    add_device,
    add_device_options,
    add_model,
    add_shapes,
    device_of,
    output_file,
    properties_of,
)
from partita.cli.output import Output
from partita.errors import PartitaError
from partita.model.compare import difference
from partita.system.written_file import writing
from partita.zoo.decoding import top

Array = np.ndarray[Any, Any]

STDOUT = Path("-")


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "run",
        run,
        "infers once and shows the outputs",
        [
            "partita run model.onnx -d HETERO:GPU,CPU --explain",
            "partita run model.onnx -d CPU --input cat.jpg --shape 1x3x224x224",
            "partita run model.onnx -d CPU -i ids=ids.npy -i mask=1 -o out.npz",
            "partita run model.onnx -d CPU -o - | python postprocess.py",
            "partita run zoo:magika -d CPU --compare REFERENCE",
            "partita run zoo:ppocr-rec -d CPU --input line.png",
        ],
    )
    add_model(parser)
    add_device(parser)
    add_device_options(parser)
    add_shapes(parser)
    workload.add_inputs(parser)
    parser.add_argument(
        "--explain", action="store_true", help="say where every operation ran, and why"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output_file(".npz", ""),
        metavar="FILE.npz",
        help="write the outputs; '-' writes them to stdout, and what is shown to stderr",
    )
    parser.add_argument(
        "--compare",
        metavar="DEVICE",
        help="run there too, without the properties; exit with 1 if the outputs differ",
    )
    parser.add_argument("--rtol", type=float, default=1e-3, help="relative tolerance (1e-3)")
    parser.add_argument("--atol", type=float, default=1e-4, help="absolute tolerance (1e-4)")


def run(args: argparse.Namespace, out: Output) -> int:
    """Infers and prints."""
    if args.output == STDOUT:
        _check_stdout(args.json)
    core = Core()
    device = device_of(args, core)
    if args.compare:
        core.resolve_device(args.compare)
    work = workload.load(args, core, out)
    compiled, compile_ms = workload.compile_for(core, work.model, device, properties_of(args), out)
    request = compiled.create_infer_request()
    start = time.perf_counter()
    outputs = workload.infer(request, work.feeds)
    infer_ms = workload.milliseconds(start)
    answer = None
    if work.sample is not None:
        answer = work.sample.answer(lambda feeds: workload.infer(request, feeds))
        if not work.sample.expected:
            answer = replace(answer, correct=None)
    differences = []
    if args.compare:
        other, _ = workload.compile_for(core, work.model, args.compare, {}, out)
        expected = workload.infer(other.create_infer_request(), work.feeds)
        differences = compare(outputs, expected, args.rtol, args.atol)
    to_stdout = args.output == STDOUT
    if to_stdout:
        _write(sys.stdout.buffer, outputs)
    elif args.output:
        save(args.output, outputs)
    result = {
        "model": args.model,
        "device": device,
        "compile_ms": compile_ms,
        "infer_ms": infer_ms,
        "outputs": {name: describe(array) for name, array in outputs.items()},
        "answer": answer,
        "expected_answer": (work.sample.expected or None) if work.sample else None,
        "compared_with": args.compare,
        "differences": differences,
        "written": None if to_stdout else args.output,
        "explanation": compiled.explain() if args.explain else None,
    }
    if args.json:
        out.json(result)
    else:
        with contextlib.redirect_stdout(sys.stderr if to_stdout else sys.stdout):
            _print(result, out)
    wrong = [f"'{difference['output']}'" for difference in differences if not difference["ok"]]
    if wrong:
        raise PartitaError(
            f"{len(wrong)} of {len(differences)} outputs on {device} differ from "
            f"{args.compare} by more than rtol {args.rtol:g}, atol {args.atol:g}: "
            f"{', '.join(wrong)}."
        )
    return 0


def describe(array: Array) -> dict[str, Any]:
    """Type, shape and statistics of an output; the five largest, where it looks like scores."""
    facts: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size == 0 or array.dtype.kind == "O":
        return facts
    values = array.astype(np.float64) if array.dtype.kind not in "iub" else array
    facts |= {"min": values.min(), "max": values.max(), "mean": values.mean(dtype=np.float64)}
    rows = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    if array.dtype.kind not in "iub" and len(rows) == 1 and rows.shape[1] >= 5:
        facts["top"] = [{"index": i, "value": value} for i, value in top(values)]
    return facts


def compare(
    outputs: Mapping[str, Array], expected: Mapping[str, Array], rtol: float, atol: float
) -> list[dict[str, Any]]:
    """How far outputs are from those of another device, output by output.

    :class:`~partita.model.compare.Difference` says what is compared how.

    Args:
        outputs: By name, what the device under test computed.
        expected: By name, what they should be; it may have more.
        rtol: Relative tolerance.
        atol: Absolute tolerance.

    Returns:
        One row for each output, as tables and JSON show it: ``error`` is in tolerances, ``ok``
        whether it is at most 1, ``max_abs`` the largest absolute difference.
    """
    rows = []
    for name, array in outputs.items():
        found = difference(array, expected[name], rtol, atol)
        rows.append(
            {
                "output": name,
                "max_abs": found.max_abs,
                "error": found.error,
                "ok": found.ok,
                "what": found.what,
            }
        )
    return rows


def save(path: Path, outputs: Mapping[str, Array]) -> None:
    """Writes the outputs as an ``.npz`` archive under their own names, whatever these are.

    Raises:
        OSError: The file cannot be written; half of it is no file.
    """
    with writing(path), path.open("wb") as file:
        _write(file, outputs)


def _check_stdout(as_json: bool) -> None:
    """Refuses to write an archive to a stdout that is closed, a terminal, or taken by JSON.

    Raises:
        PartitaError: It is.
    """
    if as_json:
        raise PartitaError("-o - and --json both write to stdout; name a file with -o FILE.npz.")
    if not hasattr(sys.stdout, "buffer"):
        raise PartitaError("-o - writes to stdout, which is closed; name a file with -o FILE.npz.")
    if sys.stdout.isatty():
        raise PartitaError(
            "-o - writes a binary archive (.npz), and stdout is a terminal; redirect it, or name "
            "a file with -o FILE.npz."
        )


def _write(file: BinaryIO, outputs: Mapping[str, Array]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in outputs.items():
            known = array if array.dtype.kind != "V" else array.astype(np.float32)  # e.g. bfloat16
            text = known.astype(str) if known.dtype.kind == "O" else known
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(text), allow_pickle=False)


def _print(result: Mapping[str, Any], out: Output) -> None:
    out.text(
        f"{result['model']} on {result['device']}: compiled in {result['compile_ms']:.0f} ms, "
        f"first inference in {result['infer_ms']:.1f} ms",
        "",
    )
    statistics = result["outputs"]
    rows = [
        [name, f["dtype"], f["shape"], *(_number(f.get(key)) for key in ("min", "max", "mean"))]
        for name, f in statistics.items()
    ]
    out.table(["output", "type", "shape", "min", "max", "mean"], rows)
    for name, facts in statistics.items():
        if "top" in facts:
            best = ", ".join(f"{item['index']} ({item['value']:.4g})" for item in facts["top"])
            out.text(f"largest in {name}: {best}")
    if result["answer"] is not None:
        right = result["answer"].correct
        verdict = " (as expected)" if right else f" (expected: {result['expected_answer']})"
        out.text("", f"answer: {result['answer'].text}{'' if right is None else verdict}")
    if result["explanation"] is not None:
        out.text("")
        out.explanation(result["explanation"])
    if result["differences"]:
        out.text("", f"compared with {result['compared_with']}:")
        rows = [
            [
                row["output"],
                _number(row["max_abs"]),
                _number(row["error"]),
                "ok" if row["ok"] else f"DIFFERS {row['what']}".strip(),
            ]
            for row in result["differences"]
        ]
        out.table(["output", "largest difference", "in tolerances", "verdict"], rows)
    if result["written"]:
        out.text("", f"written to {result['written']}")


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.6g}"
