"""Performance counters."""

from __future__ import annotations

from datetime import timedelta

from partita.contract.profiling import ProfilingInfo, Status, format_counters, total_us

INFOS = [
    ProfilingInfo("subgraph1: 1. conv", "Conv", "direct", real_time_us=1290.4, cpu_time_us=129.0),
    ProfilingInfo("relu", "Relu", "fused", Status.OPTIMIZED_OUT),
    ProfilingInfo("unused", "Exp", status=Status.NOT_RUN),
]


def test_the_lines_of_openvinos_samples():
    assert format_counters(iter(INFOS)).splitlines() == [
        "subgraph1: 1. conv:EXECUTED       layerType: Conv               realTime: 1290      "
        "cpu: 129       execType: direct",
        "relu:OPTIMIZED_OUT  layerType: Relu               realTime: 0         "
        "cpu: 0         execType: fused",
        "unused:NOT_RUN        layerType: Exp                realTime: 0         "
        "cpu: 0         execType:",
        "Total time: 1290 microseconds",
    ]


def test_without_counters():
    assert format_counters([]) == "Total time: 0 microseconds"
    assert total_us([]) == 0


def test_times_in_openvinos_spelling():
    assert INFOS[0].cpu_time == timedelta(microseconds=129)
    assert INFOS[0].real_time / timedelta(milliseconds=1) == 1.29
    assert INFOS[1].status == "OPTIMIZED_OUT"
    assert total_us(INFOS) == 1290.4
