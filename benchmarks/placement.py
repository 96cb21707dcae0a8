"""How good placements are: published workloads beside their published results, and large graphs.

Usage::

    python benchmarks/placement.py DATA_FOLDER [--time-limit SECONDS] [--only TEXT] [--json FILE]

DATA_FOLDER holds ``latency-inputs`` and ``throughput-inputs`` of the workloads published with
"Efficient Algorithms for Device Placement of DNN Graph Operators" (Tarnawski et al., NeurIPS 2020),
repository msr-fiddle/dnn-partitioning. Our values are worked out again from the workload file, the
way the publication counts; the figures beside them come from the authors' programs. Lower is
better. A gap is the largest share by which a value can be above the optimum.

Loops are compiled before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from placement_data import published_latency, published_load, read
from placement_random import random_problem

from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.search.solve import solve
from partita_hetero.planner.simulation.plan import Objective, Plan

LATENCY = {
    # workload: greedy, best of the other methods that keep the memory limit
    "LayerGraphs/bert24": (100.219, 108.031),
    "LayerGraphs/gnmt": (268.5, 244.331),
    "LayerGraphs/resnet50": (4197.06, 1443.793),
    "LayerGraphs/inceptionv3": (2485.24, math.inf),
    "OperatorGraphs/bert_l-3": (416.204, 414.441),
    "OperatorGraphs/bert_l-6": (494.135, 444.020),
    "OperatorGraphs/bert_l-12": (867.839, math.inf),
    "OperatorGraphs/resnet50": (839.536, 1123.653),
}
THROUGHPUT = {
    # workload: optimum over contiguous splits (PipeDream's where that took too long), local search
    "LayerGraphs/bert24": (17.790, 17.778),
    "LayerGraphs/gnmt": (32.911, 31.783),
    "LayerGraphs/inceptionv3": (60.417, 54.040),
    "LayerGraphs/resnet50": (33.775, 35.889),
    "OperatorGraphs/bert_l-3": (27.919, 27.574),
    "OperatorGraphs/bert_l-6": (29.580, 39.990),
    "OperatorGraphs/resnet50": (124.349, math.inf),
    "OperatorGraphs/bert_l-12": (147.478, math.inf),
}
RANDOM = (
    # operations, devices, memory limits, launch cost
    (800, 2, False, 0.0),
    (800, 2, False, 30.0),
    (800, 2, True, 0.0),
    (10_000, 2, False, 0.0),
    (10_000, 4, True, 0.0),
)


@dataclass
class Row:
    """One line of the table."""

    work: str
    ours: float
    published: float
    ratio: float
    bound: float
    gap: float
    seconds: float
    method: str
    proof: str


def main() -> None:
    """Runs the workloads and prints a table for each kind."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each plan")
    parser.add_argument("--only", default="", help="only work whose name contains this")
    parser.add_argument("--json", type=Path, help="also write the rows to a file")
    arguments = parser.parse_args()
    _compile()
    tables = {
        "one sample, latency within memory limits (contiguous)": [
            lambda name=name: _latency(arguments, name) for name in _chosen(LATENCY, arguments)
        ],
        "throughput, contiguous (beside the optimum)": [
            lambda name=name: _throughput(arguments, name, True)
            for name in _chosen(THROUGHPUT, arguments)
        ],
        "throughput, any split (beside local search)": [
            lambda name=name: _throughput(arguments, name, False)
            for name in _chosen(THROUGHPUT, arguments)
        ],
        "random models run in sequence": [
            lambda case=case: _random(arguments, *case)
            for case in RANDOM
            if arguments.only in "random"
        ],
    }
    results = {}
    for title, jobs in tables.items():
        if jobs:
            results[title] = _table(title, jobs)
    if arguments.json:
        rows = {title: [asdict(row) for row in found] for title, found in results.items()}
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def _chosen(names: dict[str, tuple[float, float]], arguments: argparse.Namespace) -> list[str]:
    return [name for name in names if arguments.only in name]


def _compile() -> None:
    """Runs every method once, so that compiling is not counted."""
    for objective in ("LATENCY", "PARALLEL", "THROUGHPUT"):
        for contiguous in (False, True):
            for early in (False, True):
                problem = replace(random_problem(30, 3, limited=True), early_handover=early)
                solve(problem, objective, 0.5, contiguous)
    solve(random_problem(30, 2), "LATENCY", 0.5)


def _table(title: str, jobs: list) -> list[Row]:
    print(f"\n{title}")
    print(
        f"{'work':28} {'ours':>10} {'published':>10} {'ratio':>6} {'bound':>10} {'gap':>6} "
        f"{'s':>6}  found by / proven by"
    )
    rows = []
    for job in jobs:
        row = job()
        rows.append(row)
        print(
            f"{row.work:28} {row.ours:10.3f} {row.published:10.3f} {row.ratio:6.3f} "
            f"{row.bound:10.3f} {row.gap:6.1%} {row.seconds:6.2f}  {row.method} / {row.proof}",
            flush=True,
        )
    return rows


def _latency(arguments: argparse.Namespace, name: str) -> Row:
    path = arguments.folder / "latency-inputs" / f"{name}_inference.json"
    problem = read(path, latency=True)
    plan = solve(problem, "PARALLEL", arguments.time_limit, contiguous=True)
    return _row(name, plan, published_latency(path, _places(problem, plan)), min(LATENCY[name]))


def _throughput(arguments: argparse.Namespace, name: str, contiguous: bool) -> Row:
    path = arguments.folder / "throughput-inputs" / f"{name}_inference.json"
    problem = read(path, latency=False)
    plan = solve(problem, "THROUGHPUT", arguments.time_limit, contiguous)
    published = THROUGHPUT[name][0 if contiguous else 1]
    return _row(name, plan, published_load(path, _places(problem, plan)), published)


def _random(
    arguments: argparse.Namespace, count: int, devices: int, limited: bool, launch: float
) -> Row:
    problem = random_problem(count, devices, 1, limited, launch)
    limit = arguments.time_limit
    objective: Objective = "LATENCY"
    plan = solve(problem, objective, limit)
    extras = f"{', memory' if limited else ''}{', launches' if launch else ''}"
    return _row(f"{count} ops, {devices} devices{extras}", plan, plan.value_us, math.nan)


def _places(problem: Problem, plan: Plan) -> dict[str, int]:
    return {task.name: at for task, at in zip(problem.tasks, plan.assignment, strict=True)}


def _row(work: str, plan: Plan, ours: float, published: float) -> Row:
    gap = max(0.0, 1 - plan.bound_us / ours)
    ratio = ours / published if math.isfinite(published) else math.nan
    return Row(
        work, ours, published, ratio, plan.bound_us, gap, plan.seconds, plan.method, plan.proof
    )


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"\n{time.perf_counter() - start:.0f} s in all")
