"""Every model under random affinities: how many compile, how many agree with onnxruntime.

    python benchmarks/affinities.py [--seeds 20] [--devices CPU CPU2 OPENCL]
        [--models zoo:magika light:resnet50 wheel:silero-vad-half] [--results FILE] [--seconds N]
        [--share 0/2]

Each operation is pinned to a device drawn by chance; CPU2 is the CPU plugin registered a second
time. A pin on a device that refuses the operation moves to the next one (counted from explain()).
A placement is right if it agrees with onnxruntime (graph optimizations off; rtol 1e-3, atol 1e-4),
or, counted apart, with the same model without pins: in models that quantize while they run a
difference of 1e-7 can flip a byte, cut or not.
All 24 models take hours. With ``--results`` every placement is appended to a file as one JSON line
and those that are there already are not run again, so that the work can be done in pieces
(``--seconds``) and by several processes (``--share``); the table is made of the file.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from agreement import disagreement
from models import Case, cases, session, wheel_cases

import partita

DEVICES = ["CPU", "CPU2", "OPENCL"]


def main() -> int:
    """Runs what is missing and prints a line per model; the exit code is 1 if anything fails."""
    options = _options()
    logging.getLogger("partita.hetero").setLevel(logging.ERROR)  # moved pins are expected here
    logging.getLogger("partita_hetero").setLevel(logging.ERROR)
    rows = _read(options.results)
    done = {(row["model"], row["seed"], row["devices"]) for row in rows}
    devices = ",".join(options.devices)
    number, of = map(int, options.share.split("/"))
    end = time.monotonic() + options.seconds
    for case in _cases(options.models):
        seeds = [
            seed
            for seed in range(options.seeds)
            if seed % of == number and (case.name, seed, devices) not in done
        ]
        for row in _run(case, seeds, devices, end):
            rows.append(row)
            if options.results:
                with options.results.open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
            if row["wrong"]:
                print(f"  {case.name} seed {row['seed']}: {row['wrong']}", flush=True)
    return _table([row for row in rows if row["devices"] == devices], options.seeds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--devices", nargs="*", default=DEVICES)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--results", type=Path, help="file of JSON lines, read and appended to")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing later")
    parser.add_argument("--share", default="0/1", help="K/N: only seeds that are K modulo N")
    return parser.parse_args()


def _cases(names: list[str]) -> Iterator[Case]:
    """The models of these names; all 24 if there are none."""
    others = [name for name in names if not name.startswith("wheel:")]
    wheels = [name for name in names if name.startswith("wheel:")]
    if not names:
        return chain(wheel_cases(), cases())
    return chain(wheel_cases(wheels) if wheels else (), cases(others) if others else ())


def _run(case: Case, seeds: list[int], devices: str, end: float) -> Iterator[dict[str, Any]]:
    """One row per seed, as long as there is time."""
    if not seeds or time.monotonic() > end:
        return
    core = partita.Core()
    if "CPU2" in devices.split(","):
        core.register_plugin("partita_cpu", "CPU2")
    want = session(case.path).run(None, case.feeds)
    whole = _uncut(core, case, devices)
    model = core.read_model(case.path)
    for seed in seeds:
        if time.monotonic() > end:
            return
        rng = random.Random(seed)
        for op in model.ops:
            op.affinity = rng.choice(devices.split(","))
        row = {"model": case.name, "seed": seed, "devices": devices, "peer": "onnxruntime"}
        row |= {"subgraphs": 0, "moved": 0}
        start = time.perf_counter()
        wrong = ""
        try:
            compiled = core.compile_model(model, f"HETERO:{devices}")
            request = compiled.create_infer_request()
            for _ in range(2):  # the second run reuses every buffer of the first
                got = request.infer(case.feeds).to_tuple()
                off = disagreement(got, want)
                if off and not disagreement(got, whole):
                    row["peer"], off = "uncut", ""
                wrong = wrong or off
            why = compiled.explain()
            row["subgraphs"] = len(why.subgraph_devices)
            row["moved"] = sum(op.reason.code is partita.ReasonCode.FALLBACK for op in why.ops)
            wrong = wrong or "; ".join(why.notes)  # a device that failed and was replaced
        except partita.PartitaError as error:
            wrong = f"{type(error).__name__}: {error}"
        yield row | {"wrong": wrong, "seconds": round(time.perf_counter() - start, 2)}


def _uncut(core: partita.Core, case: Case, devices: str) -> Any:
    """The model as few pieces as there can be, on the first device that takes each operation."""
    return core.compile_model(case.path, f"HETERO:{devices}")(case.feeds).to_tuple()


def _read(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _table(rows: list[dict[str, Any]], seeds: int) -> int:
    """Prints a line per model; returns 1 if a placement failed."""
    good = 0
    names = list(dict.fromkeys(row["model"] for row in rows))
    for name in names:
        own = [row for row in rows if row["model"] == name]
        fine = [row for row in own if not row["wrong"]]
        parts = [row["subgraphs"] for row in fine]
        uncut = sum(row["peer"] == "uncut" for row in fine)
        good += len(fine)
        print(
            f"{name:<24} {len(fine)} of {len(own)} compile and agree"
            f"{f' ({uncut} with the uncut model only)' if uncut else ''}; "
            f"{min(parts, default=0)} to {max(parts, default=0)} subgraphs; "
            f"{sum(row['moved'] for row in fine)} pins moved; "
            f"{sum(row['seconds'] for row in own):.0f} s",
            flush=True,
        )
    print(f"{good} of {len(rows)} placements of {len(names)} models, {seeds} seeds asked")
    return int(good < len(rows))


if __name__ == "__main__":
    sys.exit(main())
