"""HETERO_SCHEDULE=COST on real models: how well it foresees, and whether it ever loses.

    python benchmarks/placement_models.py [--parts predict guard inception] [--models NAME ...]

``predict``: predicted over measured latency of what COST keeps, once before anything but single
operations was timed, and once after each submodel was. ``guard``: COST against each single device
and against placement by priority, for three device lists, in turns. ``inception``: Inception v3 on
two CPU plugins of one thread each, PARALLEL and COST, against the better single one. Costs are
measured anew: the script begins with an empty database in a temporary folder.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from inception_v3 import inception_v3
from models import Case, cases

import partita
from partita_hetero.cost import database
from partita_hetero.planner.arrays.problem_arrays import flatten
from partita_hetero.planner.bounds.lower_bounds import critical_path
from partita_hetero.tuning.scheduler import Scheduler
from partita_hetero.tuning.sized_model import sized_models

COST = {"HETERO_SCHEDULE": "COST"}
PREDICTED = (
    *("zoo:ppocr-det", "zoo:ppocr-rec", "zoo:ppocr-cls", "zoo:pplcnet-orientation"),
    *("zoo:picodet-layout", "zoo:magika", "zoo:minilm-l3", "zoo:basic-pitch"),
    *("light:squeezenet", "light:resnet50", "light:inception_v1", "light:densenet121"),
)
LISTS = ("OPENCL,CPU", "CPU,OPENCL", "CPU,CPU2")
SECONDS, TURN_SECONDS = 1.5, 0.005
NOISE = 1.03


def new_core() -> partita.Core:
    """A Core with the CPU plugin a second time."""
    core = partita.Core()
    core.register_plugin("partita_cpu", "CPU2")
    return core


def read(core: partita.Core, case: Case) -> partita.Model:
    """The model, with the shapes of its input."""
    model = core.read_model(case.path)
    return model.reshape({name: array.shape for name, array in case.feeds.items()})


def take_turn(call: Callable[[], object]) -> float:
    """Median milliseconds of calls one after another, for a while.

    So that the threads and caches of whoever had the turn before do not count.
    """
    times: list[float] = []
    start = end = time.perf_counter()
    while not times or end - start < TURN_SECONDS:
        begin = time.perf_counter()
        call()
        end = time.perf_counter()
        times.append((end - begin) * 1e3)
    return statistics.median(times)


def in_turns(
    calls: dict[str, Callable[[], object]], seconds: float = SECONDS
) -> dict[str, list[float]]:
    """Milliseconds of each call, by rounds; those far behind in three rounds drop out.

    Each round has an order of its own.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    racing = list(calls)
    for call in calls.values():
        call()
        call()
    order = random.Random(0)
    start = time.perf_counter()
    rounds = 0
    while rounds < 11 or time.perf_counter() - start < seconds:
        order.shuffle(racing)
        for name in racing:
            times[name].append(take_turn(calls[name]))
        rounds += 1
        if rounds == 3:
            best = min(map(statistics.median, times.values()))
            racing = [name for name in racing if min(times[name]) < 2 * best]
    return times


def medians_of(times: dict[str, list[float]]) -> dict[str, float]:
    """Median milliseconds of each call."""
    return {name: statistics.median(taken) for name, taken in times.items()}


def ratio_in_rounds(times: dict[str, list[float]], name: str) -> float:
    """How a call compares with each other one, in the median of the rounds; the worst of these."""
    return max(
        statistics.median(a / b for a, b in zip(times[name], taken, strict=False))
        for other, taken in times.items()
        if other != name
    )


def infer(compiled: partita.CompiledModel, feeds: dict[str, Any]) -> Callable[[], object]:
    """A call that runs one request again and again."""
    request = compiled.create_infer_request()
    return lambda: request.infer(feeds, share_outputs=True)


def measure_prediction(models: Sequence[str]) -> None:
    """Predicted over measured latency, of every placement that was tried."""
    print("predict: HETERO:OPENCL,CPU; latency in ms of what was kept, predicted over measured")
    errors, first_errors = [], []
    for case in cases(models or PREDICTED):
        core = new_core()
        compiled = core.compile_model(read(core, case), "HETERO:OPENCL,CPU", COST)
        decision = compiled.explain().decision
        kept = decision[decision.chosen]
        median = medians_of(in_turns({"kept": infer(compiled, case.feeds)}))["kept"]
        ratio = kept.predicted_us / 1e3 / median
        errors.append(abs(math.log(ratio)))
        line = f"  {case.name:<24} {median:8.3f} measured  {ratio:6.3f} kept '{kept.name}'"
        if kept.foreseen_us is not None:
            first = kept.foreseen_us / 1e3 / median
            first_errors.append(abs(math.log(first)))
            line += f"  ({first:.3f} before its submodels were timed)"
        print(line, flush=True)
    print(
        f"  off by a factor of {math.exp(statistics.median(errors)):.3f} in the median, "
        f"{math.exp(max(errors)):.3f} at most, over {len(errors)} models"
    )


def compile_all(case: Case, listed: str) -> dict[str, partita.CompiledModel]:
    """The model by COST, on each device that takes it, and by priority."""
    core = new_core()
    compiled = {"COST": core.compile_model(read(core, case), f"HETERO:{listed}", COST)}
    for device in listed.split(","):
        try:
            compiled[device] = core.compile_model(read(core, case), device)
        except partita.PartitaError:
            continue  # it does not take the whole model
    compiled["priority"] = core.compile_model(read(core, case), f"HETERO:{listed}")
    return compiled


def measure_guard(models: Sequence[str]) -> None:
    """COST over single devices and priority.

    What is slower is compiled and measured three times, and the median counts: one model compiled
    twice differs by some per cent with where its weights come to lie.
    """
    print("guard: latency in ms, in turns; last column: COST over each other one, by rounds, worst")
    ratios: list[float] = []
    for case in cases(models):
        for listed in LISTS:
            found: list[float] = []
            while len(found) < 3 and (not found or found[0] > NOISE):
                compiled = compile_all(case, listed)
                times = in_turns({name: infer(one, case.feeds) for name, one in compiled.items()})
                found.append(ratio_in_rounds(times, "COST"))
            ratios.append(statistics.median(found))
            shown = "  ".join(f"{name} {median:.3f}" for name, median in medians_of(times).items())
            kept = compiled["COST"].explain().decision.chosen
            measured = " ".join(f"{ratio:.3f}" for ratio in found)
            flag = "" if ratios[-1] <= NOISE else "  SLOWER"
            print(f"  {case.name:<24} {listed:<11} {shown}  '{kept}' {measured}{flag}", flush=True)
    slower = sum(ratio > NOISE for ratio in ratios)
    print(
        f"  {len(ratios)} cases: median {statistics.median(ratios):.3f}, worst {max(ratios):.3f}; "
        f"{slower} slower by more than 3 %"
    )


def measure_inception(models: Sequence[str]) -> None:
    """Two devices of one thread each over one of them."""
    core = new_core()
    for device in ("CPU", "CPU2"):
        core.set_property(device, {"INFERENCE_NUM_THREADS": 1})
    proto = inception_v3()
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 299, 299), np.float32)}
    start = time.perf_counter()
    config = {**COST, "HETERO_EXECUTOR": "PARALLEL"}
    both = core.compile_model(proto, "HETERO:CPU,CPU2", config)
    compile_s = time.perf_counter() - start
    calls = {"both": infer(both, feeds)}
    for device in ("CPU", "CPU2"):
        calls[device] = infer(core.compile_model(proto, device), feeds)
    medians = medians_of(in_turns(calls, 10.0))
    best = min(medians["CPU"], medians["CPU2"])
    print(
        f"inception: Inception v3, CPU {medians['CPU']:.2f} ms, CPU2 {medians['CPU2']:.2f} ms, "
        f"both {medians['both']:.2f} ms: {best / medians['both']:.3f} times as fast "
        f"(compiled in {compile_s:.1f} s)"
    )
    explanation = both.explain()
    print("  " + explanation.summary())
    for line in explanation.decision.lines():
        print("  " + line)
    compilation = both.device_model.compilation
    problem = Scheduler(compilation, sized_models(compilation)[0], {}, []).problem()
    longest = critical_path(flatten(problem)) / 1e3
    total = min(sum(task.costs[d].us or 0.0 for task in problem.tasks) for d in (0, 1)) / 1e3
    print(
        f"  the longest path takes {longest:.2f} of {total:.2f} ms, so that no placement is more "
        f"than {total / longest:.2f} times as fast"
    )


PARTS: dict[str, Callable[[Sequence[str]], None]] = {
    "predict": measure_prediction,
    "guard": measure_guard,
    "inception": measure_inception,
}


def main() -> None:
    """Runs the chosen measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--models", nargs="*", default=[])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database.cost_folder = lambda: Path(folder)
        for name in arguments.parts:
            PARTS[name](arguments.models)


if __name__ == "__main__":
    main()
