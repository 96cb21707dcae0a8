"""``partita demo``: a real model on all devices of this machine, in one command."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita import Core, Explanation, Model, ReasonCode
from partita.cli import workload
from partita.cli.arguments import Commands, add_command
from partita.cli.commands.benchmark import RunLength, measure_sync
from partita.cli.output import Output
from partita.devices.device_string import parse
from partita.errors import PartitaError, ZooError
from partita.tensors.tensor import HOST
from partita.zoo import builtin, entries
from partita.zoo.naming import Named, resolve
from partita.zoo.sample import Answer, Sample
from partita.zoo.store import Store

DEFAULT_MODEL = "zoo:ppocr-rec"
_WHY_DEFAULT = "chosen because a person can check its answer at a glance"
_OFFLINE_MODEL = "builtin:digits"
RUNS_S = 1.0
_TIMES = ("compile_ms", "first_ms", "median_ms")


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "demo",
        run,
        "runs a real model split over the devices of this machine, and shows what ran where",
        ["partita demo", "partita demo --model magika", "partita demo -d HETERO:GPU,CPU"],
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="a model of 'partita zoo list' (default: ppocr-rec; built-in if offline)",
    )
    parser.add_argument(
        "-d",
        "--device",
        metavar="DEVICE",
        help="default: all devices together, accelerators first",
    )


@dataclass(frozen=True)
class Trial:
    """The model on one device.

    Attributes:
        device: As it was asked for.
        answer: What the model said.
        explanation: What ran where.
        compile_ms: Compiling.
        first_ms: The first inference.
        median_ms: The usual one.
    """

    device: str
    answer: Answer
    explanation: Explanation
    compile_ms: float
    first_ms: float
    median_ms: float

    @property
    def verdict(self) -> str:
        """Whether the answer is right, in words."""
        return "as expected" if self.answer.correct else "WRONG"


def run(args: argparse.Namespace, out: Output) -> int:
    """Runs the demo."""
    core = Core()
    device = args.device or best_device(core)
    core.resolve_device(device)
    named, why = _choose(args.model, out)
    if named.sample is None:
        raise ZooError(f"'{named.name}' has no natural input; take a model of 'partita zoo list'.")
    sample = named.sample()
    model = core.read_model(named.source).reshape(sample.shapes)
    trial = try_device(core, model, sample, device, out)
    alone = [
        try_device(core, model, sample, part, out) for part in _able_alone(core, model, device)
    ]
    result = {
        "model": named.name,
        "why": why,
        "input": sample.description,
        "expected": sample.expected,
        "answer": trial.answer.text,
        "correct": trial.answer.correct,
        "device": device,
        "placement": placement(trial.explanation),
        "summary": trial.explanation.summary(),
        "notes": trial.explanation.notes,
        "timing": [
            {
                "device": t.device,
                "answer": t.verdict,
                "compile_ms": t.compile_ms,
                "first_ms": t.first_ms,
                "median_ms": t.median_ms,
            }
            for t in (trial, *alone)
        ],
    }
    if args.json:
        out.json(result)
    else:
        _print(result, trial.verdict, out)
    if not trial.answer.correct:
        raise PartitaError(f"the model should have answered: {sample.expected}")
    return 0


def _print(result: Mapping[str, Any], verdict: str, out: Output) -> None:
    out.facts(
        {
            "model": f"{result['model']} ({result['why']})",
            "input": result["input"],
            "answer": f"{result['answer']} - {verdict}",
            "device": result["device"],
        }
    )
    out.text("")
    out.table(
        ["ops", "device", "types", "why there"],
        [[g["count"], g["device"], g["types"], g["why"]] for g in result["placement"]],
    )
    out.text("", result["summary"], *result["notes"], "")
    out.table(
        ["milliseconds", "compile", "first run", "median", "answer"],
        [
            [t["device"], *(f"{t[key]:.2f}" for key in _TIMES), t["answer"]]
            for t in result["timing"]
        ],
    )


def try_device(core: Core, model: Model, sample: Sample, device: str, out: Output) -> Trial:
    """Compiles, asks, and times a model on a device.

    Args:
        core: Compiles the model.
        model: The model.
        sample: A natural input, and what makes an answer of the model's outputs.
        device: A device string.
        out: Shows how far it is.
    """
    compiled, compile_ms = workload.compile_for(core, model, device, {}, out)
    request = compiled.create_infer_request()
    first = measure_sync(request, sample.feeds, RunLength(1), lambda done: None)
    answer = sample.answer(lambda feeds: workload.infer(request, feeds))
    with out.progress(f"measuring {device}", RUNS_S) as advance:
        timing = measure_sync(request, sample.feeds, RunLength(seconds=RUNS_S), advance)
    return Trial(
        device,
        answer,
        compiled.explain(),
        compile_ms,
        first.latencies_ms[0],
        timing.summary()["median_ms"],
    )


def _able_alone(core: Core, model: Model, device: str) -> list[str]:
    """The devices of a list that take the whole model, without the reference, which is slow."""
    return [
        part
        for part in parse(device).priorities or ()
        if core.device_info(part).kind != "reference"
        and len(core.query_model(model, part)) == len(model.ops)
    ]


def best_device(core: Core) -> str:
    """All devices of this machine together: accelerators, then CPUs, then references.

    Of one kind, devices with a memory of their own come before those that compute in the host's:
    a device behind a driver is what people want to see used.
    """
    order = ("gpu", "accelerator", "cpu", "reference")
    infos = {device: core.device_info(device) for device in core.available_devices}

    def rank(device: str) -> tuple[int, bool, str]:
        info = infos[device]
        return (
            order.index(info.kind) if info.kind in order else 1,
            info.memory == HOST,
            device,
        )

    parts = sorted((d for d, info in infos.items() if info.kind != "virtual"), key=rank)
    return core.device_api.registry.over(parts) or parts[0]


def placement(explanation: Explanation) -> list[dict[str, Any]]:
    """Operations of equal device and reason counted, with their operators, most frequent first."""
    groups: dict[tuple[str, str], Counter[str]] = {}
    for op in explanation.ops:
        if op.reason.code is ReasonCode.CONSTANT:
            key = ("any", "constant: computed once, when the model is compiled")
        elif op.refused:
            key = (op.device, "; ".join(f"not {d}: {r.code}" for d, r in op.refused.items()))
        else:
            key = (op.device, str(op.reason))
        groups.setdefault(key, Counter())[op.op_type] += 1
    ordered = sorted(groups.items(), key=lambda group: -group[1].total())
    return [
        {"count": types.total(), "device": device, "types": _some(types), "why": why}
        for (device, why), types in ordered
    ]


def _some(types: Counter[str], most: int = 4) -> str:
    shown = [f"{count} {op_type}" for op_type, count in types.most_common(most)]
    more = len(types) - most
    return ", ".join(shown) + (f" and {more} other types" if more > 0 else "")


def _choose(wanted: str | None, out: Output) -> tuple[Named, str]:
    """The model of the demo, and why it is that one."""
    store = Store(notify=out.note)
    if wanted is not None:
        prefixes = {"zoo": entries(), "builtin": builtin.names()}
        for prefix, known in prefixes.items():
            if wanted in known and not Path(wanted).exists():
                wanted = f"{prefix}:{wanted}"
        return resolve(wanted, store), "as you asked"
    try:
        return resolve(DEFAULT_MODEL, store), _WHY_DEFAULT
    except ZooError as error:
        out.note(f"{error} Running the built-in model '{_OFFLINE_MODEL}' instead.")
        return resolve(_OFFLINE_MODEL), "built in; the default could not be fetched"
