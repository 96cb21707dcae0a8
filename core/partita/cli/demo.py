"""``partita demo``: a real model on all devices of this machine, in one command."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from partita import Core, Explanation, ReasonCode
from partita.cli import workload
from partita.cli.arguments import Commands, add_command
from partita.cli.benchmark import measure_sync
from partita.cli.output import Output
from partita.errors import PartitaError, ZooError
from partita.tensor import HOST
from partita.zoo import builtin, entries
from partita.zoo.naming import Named, resolve
from partita.zoo.store import Store

DEFAULT_MODEL = "zoo:ppocr-rec"
_WHY_DEFAULT = "chosen because a person can check its answer at a glance"
_OFFLINE_MODEL = "builtin:digits"
_RUNS_S = 1.0


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
        help="default: HETERO over all devices, accelerators first",
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Runs the demo."""
    core = Core()
    device = args.device or best_device(core)
    core.resolve_device(device)
    named, why = _choose(args.model, out)
    if named.sample is None:
        raise ZooError(f"'{named.name}' has no natural input; take a model of 'partita zoo list'.")
    sample = named.sample()
    model = core.read_model(named.source).reshape({**sample.shapes})
    compiled, compile_ms = workload.compile_for(core, model, device, {}, out)
    request = compiled.create_infer_request()
    timing_first = measure_sync(request, sample.feeds, 1, None, lambda done: None)
    answer = sample.answer(lambda feeds: workload.infer(request, feeds))
    with out.progress("measuring", _RUNS_S) as advance:
        timing = measure_sync(request, sample.feeds, None, _RUNS_S, advance)
    explanation = compiled.explain()
    groups = placement(explanation)
    median_ms = timing.summary()["median_ms"]
    first_ms = timing_first.latencies_ms[0]
    if args.json:
        out.json(
            {
                "model": named.name,
                "why": why,
                "input": sample.description,
                "expected": sample.expected,
                "answer": answer.text,
                "correct": answer.correct,
                "device": device,
                "placement": {"summary": explanation.summary(), "groups": groups},
                "compile_ms": compile_ms,
                "first_ms": first_ms,
                "median_ms": median_ms,
                "inferences": len(timing.latencies_ms),
            }
        )
    else:
        out.facts(
            {
                "model": f"{named.name} ({why})",
                "input": sample.description,
                "device": device,
                "answer": f"{answer.text} - {'as expected' if answer.correct else 'WRONG'}",
            }
        )
        out.text("")
        out.table(
            ["ops", "device", "types", "why there"],
            [[g["count"], g["device"], g["types"], g["why"]] for g in groups],
        )
        out.text("", explanation.summary(), *explanation.notes, "")
        out.text(
            f"compiled in {compile_ms:.0f} ms, first inference {first_ms:.1f} ms, median "
            f"{median_ms:.2f} ms of {len(timing.latencies_ms)}"
        )
    if not answer.correct:
        raise PartitaError(f"the model should have answered: {sample.expected}")
    return 0


def best_device(core: Core) -> str:
    """HETERO over all devices of this machine: accelerators, then CPUs, then references.

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
    if "HETERO" in infos:
        return f"HETERO:{','.join(parts)}"
    return parts[0]


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
