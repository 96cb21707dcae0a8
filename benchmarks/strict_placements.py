"""Random placements with STRICT: every answer right, and no recovery that could hide a fault.

    python benchmarks/strict_placements.py [--placements 1000] [--first 0] [--models random:3 ...]
        [--devices CPU CPU2 REFERENCE ORT] [--results FILE] [--seconds N] [--share 0/2]

24 models that need no network: two of the zoo's built-in ones, four topologies that onnx carries,
and eighteen random ones (``random_models.py``). Each operation is pinned to a device that claims
it, drawn by chance: anew for each operation, or in stretches of some. Executors too. One request
answers four times, with inputs (and sizes that are inputs) that change from run to run, so that the
first run, bound calls and new sizes are all seen. CPU2 is the CPU plugin registered a second time,
ORT the example plugin. With STRICT a device that claims an operation and fails to compile or to run
it is an error; one that is left out, a note or a reason of failure in explain() is counted as well.
Right is what onnxruntime says of the whole model (rtol 1e-3, atol 1e-4). With ``--results`` each
placement is appended to a file as a JSON line, and those that are there are not run again.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from agreement import Array, disagreement
from random_models import random_model

import partita
from partita.zoo import naming

DEVICES = ["CPU", "CPU2", "REFERENCE", "ORT"]
EXECUTORS = ["LINEAR", "DATAFLOW", "PARALLEL"]
SLOW = 100_000
"""Elements of an input above which a model is rarely drawn, and REFERENCE rarely within it."""
MODELS = [
    *(f"random:{number}" for number in range(18)),
    *("builtin:digits", "builtin:pitch"),
    *("light:squeezenet", "light:shufflenet", "light:resnet50", "light:densenet121"),
]
ORT_PLUGIN = Path(__file__).parents[1] / "examples" / "partita-onnxruntime"


@dataclass(frozen=True)
class Subject:
    """A model with inputs of several runs, and what onnxruntime answers.

    Attributes:
        name: As the command line takes it.
        source: What ``Core.read_model`` takes.
        feeds: Inputs of each run.
        want: Outputs of each run.
        large: Whether it takes long on a slow device.
    """

    name: str
    source: Any
    feeds: Sequence[dict[str, Array]]
    want: Sequence[Sequence[Array]]
    large: bool


def core_of(devices: Sequence[str]) -> partita.Core:
    """A core with the devices that are not there by themselves."""
    core = partita.Core()
    if "CPU2" in devices:
        core.register_plugin("partita_cpu", "CPU2")
    if "ORT" in devices and "ORT" not in core.available_devices:
        sys.path.append(str(ORT_PLUGIN))
        from partita_onnxruntime import OrtPlugin

        core.register_plugin(OrtPlugin())
    return core


def subject(name: str) -> Subject:
    """A model by its name."""
    prefix, _, rest = name.partition(":")
    if prefix == "random":
        source, feeds = random_model(int(rest))
    else:
        named = naming.resolve(name)
        source = named.source
        first = dict(named.sample().feeds) if named.sample else _noise(source)
        feeds = [first, {key: _other(array) for key, array in first.items()}, first]
    session = _session(source)
    want = [session.run(None, feed) for feed in feeds]
    large = max(array.size for array in feeds[0].values()) > SLOW
    return Subject(name, source, feeds, want, large)


def _noise(source: Any) -> dict[str, Array]:
    port = partita.Core().read_model(source).inputs[0]
    rng = np.random.default_rng(0)
    return {port.name: rng.standard_normal(port.shape, dtype=np.float32)}


def _other(array: Array) -> Array:
    return array * array.dtype.type(0.5) if array.dtype.kind == "f" else array


def _session(source: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    given = str(source) if isinstance(source, Path) else source.SerializeToString()
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def claims(core: partita.Core, model: partita.Model, devices: Sequence[str]) -> list[list[str]]:
    """By operation, the devices that claim it."""
    answers = {device: dict(core.query_model(model, device)) for device in devices}
    return [[d for d in devices if op.name in answers[d]] for op in model.ops]


def draw(
    rng: random.Random, claimed: Sequence[Sequence[str]], large: bool
) -> tuple[list[str], str]:
    """A device per operation out of those that claim it, and how it was drawn."""
    stay = rng.choice((0.9, 0.97) if large else (0.0, 0.5, 0.9))
    chosen: list[str] = []
    for devices in claimed:
        if chosen and chosen[-1] in devices and rng.random() < stay:
            chosen.append(chosen[-1])
            continue
        quick = [device for device in devices if device != "REFERENCE"]
        rare = large and quick and rng.random() < 0.95
        chosen.append(rng.choice(quick if rare else list(devices)))
    return chosen, f"stay {stay}"


def play(
    core: partita.Core,
    what: Subject,
    model: partita.Model,
    chosen: Sequence[str],
    executor: str,
) -> dict[str, Any]:
    """Compiles and runs one placement; ``wrong`` says what is, if anything."""
    for op, device in zip(model.ops, chosen, strict=True):
        op.affinity = device
    row: dict[str, Any] = {"subgraphs": 0, "recovered": 0, "wrong": ""}
    devices = ",".join(dict.fromkeys([*chosen]))
    try:
        compiled = core.compile_model(
            model, f"HETERO:{devices}", {"STRICT": "YES", "HETERO_EXECUTOR": executor}
        )
        request = compiled.create_infer_request()
        for run in (0, 0, 1, 2):
            got = request.infer(what.feeds[run]).to_tuple()
            off = disagreement(got, what.want[run])
            row["wrong"] = row["wrong"] or (off and f"inputs {run}: {off}")
        why = compiled.explain()
        row["subgraphs"] = len(why.subgraph_devices)
        recovered = recoveries(compiled, why, chosen)
        row["recovered"] = len(recovered)
        row["wrong"] = row["wrong"] or "; ".join(recovered)
    except Exception as error:  # noqa: BLE001  # whatever it is, it must not be
        row["wrong"] = f"{type(error).__name__}: {error}"
    return row


def recoveries(compiled: Any, why: Any, chosen: Sequence[str]) -> list[str]:
    """Signs that a device has failed and another one taken its work."""
    failed = {partita.ReasonCode.RUN_FAILED, partita.ReasonCode.COMPILE_FAILED}
    found = list(why.notes)
    found += [
        f"{device} failed {count} times" for device, count in compiled.device_model.failures.items()
    ]
    for op, device in zip(why.ops, chosen, strict=True):
        codes = {reason.code for reason in op.refused.values()} & failed
        moved = op.device not in (device, "-")  # what nothing needs runs nowhere
        if codes or moved:
            found.append(f"'{op.name}' is on {op.device}, not on {device}: {op.refused}")
    return found


def campaign(
    names: Sequence[str],
    devices: Sequence[str],
    placements: Sequence[int],
    done: set[tuple[str, int]] = frozenset(),  # type: ignore[assignment]  # never changed
    end: float = float("inf"),
) -> Iterator[dict[str, Any]]:
    """One row per placement; models take turns, large ones a tenth of the others' turns."""
    core = core_of(devices)
    known: dict[str, tuple[Subject, Any, list[list[str]]]] = {}
    for number in placements:
        if time.monotonic() > end:
            return
        name = model_of(names, number)
        if (name, number) in done:
            continue
        if name not in known:
            what = subject(name)
            model = core.read_model(what.source)
            known[name] = what, model, claims(core, model, devices)
        what, model, claimed = known[name]
        rng = random.Random(f"{name} {number}")
        chosen, how = draw(rng, claimed, what.large)
        executor = rng.choice(EXECUTORS)
        start = time.perf_counter()
        row = {"model": name, "number": number, "devices": devices, "how": how}
        row |= {"executor": executor, **play(core, what, model, chosen, executor)}
        yield row | {"seconds": round(time.perf_counter() - start, 2)}


def model_of(names: Sequence[str], number: int) -> str:
    """Which model a placement is of."""
    large = [name for name in names if name.startswith("light:")]
    small = [name for name in names if name not in large]
    if not small or (large and number % 20 == 19):
        return large[number // 20 % len(large)]
    return small[(number - number // 20) % len(small)]


def main() -> int:
    """Prints what is wrong and a line per model; the exit code is 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--devices", nargs="*", default=DEVICES)
    parser.add_argument("--placements", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--results", type=Path, help="file of JSON lines, read and appended to")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing later")
    parser.add_argument("--share", default="0/1", help="K/N: only numbers that are K modulo N")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = []
    if options.results and options.results.exists():
        rows = [json.loads(line) for line in options.results.read_text().splitlines()]
    part, of = map(int, options.share.split("/"))
    last = options.first + options.placements
    numbers = [n for n in range(options.first, last) if n % of == part]
    done = {(row["model"], row["number"]) for row in rows}
    end = time.monotonic() + options.seconds
    for row in campaign(options.models, options.devices, numbers, done, end):
        rows.append(row)
        if options.results:
            with options.results.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
        if row["wrong"]:
            print(
                f"  {row['model']} {row['number']} ({row['executor']}): {row['wrong']}", flush=True
            )
    return _table(rows)


def _table(rows: Sequence[dict[str, Any]]) -> int:
    for name in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == name]
        parts = [row["subgraphs"] for row in own if not row["wrong"]]
        print(
            f"{name:<20} {len(parts)} of {len(own)} agree; {min(parts, default=0)} to "
            f"{max(parts, default=0)} subgraphs; {sum(row['seconds'] for row in own):.0f} s"
        )
    wrong = sum(bool(row["wrong"]) for row in rows)
    executors = Counter(row["executor"] for row in rows)
    models = len({row["model"] for row in rows})
    print(
        f"{len(rows) - wrong} of {len(rows)} placements of {models} models "
        f"agree; {sum(row['recovered'] for row in rows)} recoveries; "
        + ", ".join(f"{count} {name}" for name, count in executors.items())
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
