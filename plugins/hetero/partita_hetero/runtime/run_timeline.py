"""Start and end of each step of a request's last run, and the devices' own counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from partita.contract.profiling import DeviceSpan, ProfilingInfo
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.transfer_plan import PermuteStep, RunStep
from partita_hetero.planner.simulation.timeline import Span, Timeline


class RunTimeline:
    """The times of one request, of its last run.

    Args:
        assembly: What the request runs.
    """

    def __init__(self, assembly: Assembly) -> None:
        self._steps = assembly.plan.steps
        self._device_of = {submodel.number: submodel.device for submodel in assembly.submodels}
        self._times = [(0.0, 0.0)] * len(self._steps)
        self._nbytes = [0] * len(self._steps)

    def note(self, index: int, start_s: float, end_s: float, nbytes: int) -> None:
        """Takes when a step began and ended, and how much it copied if it is a Permute.

        Args:
            index: Number of the step.
            start_s: When it began, by the clock of the process.
            end_s: When it ended.
            nbytes: What it copied; 0 if it runs a submodel.
        """
        self._times[index] = start_s * 1e6, end_s * 1e6
        self._nbytes[index] = nbytes

    def submodel_seconds(self) -> dict[int, float]:
        """How long each submodel took."""
        return {
            step.submodel: (end - start) * 1e-6
            for step, (start, end) in zip(self._steps, self._times, strict=True)
            if isinstance(step, RunStep)
        }

    def device_spans(self) -> tuple[DeviceSpan, ...]:
        """When each step that was run began and ended, by the clock of the process."""
        spans = []
        for step, (start, end) in zip(self._steps, self._times, strict=True):
            if not end:
                continue
            if isinstance(step, RunStep):
                device = self._device_of[step.submodel]
                name, kind = f"subgraph{step.submodel}", "compute"
            else:
                device, name, kind = step.device, step.name, "transfer"
            spans.append(DeviceSpan(device, name, start * 1e-6, end * 1e-6, kind))
        return tuple(spans)

    def timeline(self, name: str = "measured") -> Timeline:
        """When each step began and ended, from the start of the run."""
        first = min((start for start, _ in self._times), default=0.0)
        spans = []
        for index, step in enumerate(self._steps):
            start, end = (time - first for time in self._times[index])
            if isinstance(step, RunStep):
                device = self._device_of[step.submodel]
                spans.append(Span(device, f"subgraph{step.submodel}", start, end))
            else:
                nbytes = self._nbytes[index]
                spans.append(Span(step.device, step.name, start, end, "transfer", nbytes))
        return Timeline(tuple(spans), name)

    def permute_info(self, index: int, step: PermuteStep) -> ProfilingInfo:
        """The counter of a Permute step."""
        start, end = self._times[index]
        took_us = end - start
        return ProfilingInfo(
            step.name, "Permute", step.kind, real_time_us=took_us, cpu_time_us=took_us
        )


def profiling_info(
    assembly: Assembly,
    counters: Mapping[int, Sequence[ProfilingInfo]],
    times: RunTimeline | None,
) -> Sequence[ProfilingInfo]:
    """Counters in the order of the steps.

    Args:
        assembly: What ran.
        counters: What the device of each submodel has counted, by the submodel's number.
        times: Those of Permute steps, if they were noted.
    """
    infos: list[ProfilingInfo] = []
    for index, step in enumerate(assembly.plan.steps):
        if not isinstance(step, RunStep):
            if times is not None:
                infos.append(times.permute_info(index, step))
            continue
        for number, info in enumerate(counters[step.submodel], 1):
            name = f"subgraph{step.submodel}: {number}. {info.node_name}"
            infos.append(replace(info, node_name=name))
    return infos
