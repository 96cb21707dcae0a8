"""What `partita plan` writes and prints of a plan that it has made."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partita.cli.output import Output
from partita.system.written_file import writing
from partita_hetero.options.byte_sizes import format_bytes
from partita_hetero.options.pins import PinRule

if TYPE_CHECKING:
    from partita.contract.explanation import Candidate
    from partita.model.model import Model
    from partita_hetero.placement.device_list import DeviceList
    from partita_hetero.planner.problem.problem import Problem
    from partita_hetero.planner.report.summary import PlanSummary
    from partita_hetero.tuning.plan_report import Planned


@dataclass(frozen=True)
class Setting:
    """What is planned for.

    Attributes:
        model: The model, if it is at hand.
        devices: The devices, if they are.
    """

    model: Model | None = None
    devices: DeviceList | None = None

    def drivers(self, problem: Problem) -> dict[str, str]:
        """Device to its driver, where known."""
        from partita_hetero.placement.constraints import driver_of

        if self.devices is None:
            return {}
        names = (device.name for device in problem.devices)
        return {name: driver_of(self.devices, name) for name in names}

    def respelled(self, rule: PinRule) -> PinRule:
        """A pin with its device named as in the device list."""
        from partita_hetero.placement.constraints import Spelling

        if self.devices is None:
            return rule
        name = Spelling(self.devices).of(rule.device, f"The pin '{rule}'")
        return rule.model_copy(update={"device": name})


def write_plan(args: argparse.Namespace, setting: Setting, planned: Planned, out: Output) -> None:
    """Writes the files that options name: costs, a lock file, a chart, a trace.

    Args:
        args: The options of the command.
        setting: The model and the devices, as far as they are at hand.
        planned: The plan.
        out: Where each written file is noted.

    Raises:
        OSError: A file cannot be written; it is named.
    """
    from partita_hetero.planner.problem import problem_file

    if args.save_costs:
        problem_file.save(planned.problem.with_pins(()), args.save_costs)
        out.note(f"wrote {args.save_costs}")
    if args.write_lock:
        planned.lock(setting.model, setting.drivers(planned.problem)).save(args.write_lock)
        out.note(f"wrote {args.write_lock}")
    if args.gantt:
        from partita_hetero.reports.gantt import to_svg
        from partita_hetero.reports.placement_page import placement_page
        from partita_hetero.reports.plan_record import plan_record

        svg = args.gantt.suffix.lower() == ".svg"
        record = plan_record(planned.problem, planned.plan, planned.why, planned.summary)
        page = to_svg([planned.plan.timeline]) if svg else placement_page([record])
        with writing(args.gantt):
            args.gantt.write_text(page, encoding="utf-8")
        out.note(f"wrote {args.gantt}")
    if args.trace:
        trace = planned.plan.timeline.to_chrome_trace()
        with writing(args.trace):
            args.trace.write_text(json.dumps(trace), encoding="utf-8")
        out.note(f"wrote {args.trace}")


def print_plan(summary: PlanSummary, explain: bool, out: Output) -> None:
    """Prints a plan: its submodels, its devices, other placements, and facts about the search.

    Args:
        summary: The plan.
        explain: Whether to print also why each task is where it is.
        out: Where to print.
    """
    if explain:
        _print_tasks(summary, out)
        out.text("")
    _print_submodels(summary, out)
    out.text("")
    _print_devices(summary, out)
    out.text("")
    _print_rivals(summary, out)
    if summary.raced:
        out.text("")
        _print_race(summary, out)
    out.text("")
    out.facts(_facts(summary))
    for note in summary.notes:
        out.text(note)


def _print_tasks(summary: PlanSummary, out: Output) -> None:
    out.table(
        ["task", "device", "us", "why", "what would change it"],
        [
            [one.task, one.device, _number(one.us), str(one.reason), one.change]
            for one in summary.tasks
        ],
    )


def _print_submodels(summary: PlanSummary, out: Output) -> None:
    out.table(
        ["submodel", "device", "ops", "us", "from", "to"],
        [
            [one.number, one.device, one.ops, _number(one.us), one.first, one.last]
            for one in summary.parts
        ],
    )


def _print_devices(summary: PlanSummary, out: Output) -> None:
    out.table(
        ["device", "ops", "busy", "us", "weights", "peak memory", "limit"],
        [
            [
                use.device,
                use.ops,
                f"{use.share:.0%}",
                _number(use.load_us),
                format_bytes(use.weight_bytes),
                format_bytes(use.peak_bytes),
                "" if use.limit_bytes is None else format_bytes(use.limit_bytes),
            ]
            for use in summary.devices
        ],
    )


def _print_rivals(summary: PlanSummary, out: Output) -> None:
    """Other placements, by the same costs."""
    rows = [["this plan", _number(summary.value_us), ""]]
    rows += [
        [rival.name, "", rival.obstacle]
        if rival.value_us is None
        else [rival.name, _number(rival.value_us), _ratio(rival.value_us, summary.value_us)]
        for rival in summary.rivals
    ]
    out.table(["placement by the table of costs", "us", ""], rows)


def _print_race(summary: PlanSummary, out: Output) -> None:
    """Placements that were run, and how long they took."""
    out.table(
        ["placement that was run", "submodels", "us", "+-", "foreseen", ""],
        [
            [
                one.name,
                one.submodels,
                "" if one.measured_us is None else _number(one.measured_us),
                "" if one.spread_us is None else _number(one.spread_us),
                "" if one.foreseen_us is None else _number(one.foreseen_us),
                one.failure or ("kept" if _is_kept(one, summary) else ""),
            ]
            for one in summary.raced
        ],
    )


def _facts(summary: PlanSummary) -> dict[str, str]:
    """What is printed below the tables: about the whole plan, and how it was found."""
    facts = {
        "model": summary.model,
        "objective": f"{summary.objective} {_number(summary.value_us)} us by the table of costs",
        "latency": f"{_number(summary.latency_us)} us by the table of costs",
        "bound": f"{_number(summary.bound_us)} us, of the table: this placement is at most "
        f"{summary.gap:.1%} above its optimum" + (f" ({summary.proof})" if summary.proof else ""),
        "found by": f"{summary.method} in {summary.seconds:.2f} s"
        + (", before the search was through" if summary.cut else ""),
        "moved": f"{format_bytes(summary.bytes_moved)} in {summary.transfers} transfers",
    }
    if summary.estimated:
        facts["estimated"] = f"{summary.estimated} of {len(summary.tasks)} tasks"
    if summary.measured_us is not None:
        noise = "" if summary.spread_us is None else f" +- {_number(summary.spread_us)}"
        facts["measured"] = f"{_number(summary.measured_us)} us{noise}: '{summary.kept}' is kept"
    return facts


def _is_kept(one: Candidate, summary: PlanSummary) -> bool:
    return (one.name, one.measured_us) == (summary.kept, summary.measured_us)


def _ratio(rival: float, ours: float) -> str:
    return f"{rival / ours:.2f} times as long" if ours else ""


def _number(us: float) -> str:
    return f"{us:,.1f}"
