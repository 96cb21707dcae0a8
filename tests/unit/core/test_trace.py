"""Traces of requests: one axis, a row for each device, more where spans overlap."""

import json

from partita.plugin import DeviceSpan
from partita.trace import chrome_trace

FIRST = [
    DeviceSpan("GPU", "subgraph1", 100.0, 100.002),
    DeviceSpan("CPU", "permute v", 100.002, 100.003, "transfer"),
    DeviceSpan("CPU", "subgraph2", 100.003, 100.005),
]
SECOND = [DeviceSpan("GPU", "subgraph1", 99.999, 100.0005)]


def spans_of(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def labels_of(trace, what):
    found = (event for event in trace["traceEvents"] if event["name"] == what)
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in found}


def test_runs_are_processes_and_devices_threads_on_one_axis():
    trace = json.loads(json.dumps(chrome_trace({"one": FIRST, "two": SECOND})))
    assert labels_of(trace, "process_name") == {(0, 0): "one", (1, 0): "two"}
    assert labels_of(trace, "thread_name") == {(0, 0): "GPU", (0, 1): "CPU", (1, 0): "GPU"}
    told = [(e["pid"], e["tid"], e["name"], round(e["ts"]), round(e["dur"]), e["cat"])
            for e in spans_of(trace)]  # fmt: skip
    assert told == [
        (0, 0, "subgraph1", 1000, 2000, "compute"),
        (0, 1, "permute v", 3000, 1000, "transfer"),
        (0, 1, "subgraph2", 4000, 2000, "compute"),
        (1, 0, "subgraph1", 0, 1500, "compute"),
    ]


def test_spans_of_a_device_that_overlap_have_rows_of_their_own():
    trace = chrome_trace({"both": FIRST + SECOND})
    assert labels_of(trace, "thread_name") == {(0, 0): "GPU", (0, 1): "GPU", (0, 2): "CPU"}


def test_nothing_ran():
    assert chrome_trace({})["traceEvents"] == []
    assert spans_of(chrome_trace({"idle": ()})) == []
