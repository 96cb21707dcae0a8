"""Further checks of ``members``, ``properties``, ``compiled``: reports of runs and models."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import onnx

import partita
from partita.contract.device_plugin import DecoderRequest
from partita.contract.profiling import ProfilingInfo
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Sample, networks, samples
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.contract.suite_ports import NAMES
from partita_conformance.suites.contract.suite_properties import (
    of_a_submodel,
    other_settings,
    other_values,
    settable,
)
from partita_conformance.suites.feeding import host_tensors


def _models(bench: Bench) -> Iterator[Sample]:
    """Models of one operation and of many that the device takes, and one of odd names."""
    for sample in (*samples("plain")[:2], *networks(), *samples("dynamic")[:1]):
        if not bench.refusals(sample.proto):
            yield sample
            named = onnx.ModelProto()
            named.CopyFrom(sample.proto)
            for node, name in zip(named.graph.node, NAMES, strict=False):
                node.name = name
            yield Sample(f"{sample.name} of odd names", named, sample.sizes)


@check("properties")
def counters_are_whole_and_the_callers(bench: Bench) -> None:
    """Each counter is of one operation, said once, in all its fields; answers are the caller's.

    Those of changes of layout or type that a device makes between operations are of type Permute.
    """
    reported = 0
    for sample in _models(bench):
        compiled = bench.compile(sample.proto, {"PERF_COUNT": "YES"})
        request = compiled.create_infer_request()
        names = {op.name for op in bench.read(sample.proto).ops}
        for turn in range(2):
            request.infer(sample.feeds(turn))
            infos = list(request.get_profiling_info())
            reported += len(infos)
            _require_whole(infos, names, sample.name)
            given = request.runner.profiling_info()
            if isinstance(given, list):
                given.clear()
            again = [info.node_name for info in request.get_profiling_info()]
            said = f"{sample.name}: counters are gone when a caller has cleared those it was given."
            require(again == [info.node_name for info in infos], said)
    if not reported:
        raise NotApplicableError("the device has no counters")


def _require_whole(infos: list[ProfilingInfo], names: set[str], what: str) -> None:
    seen: set[str] = set()
    for info in infos:
        texts = isinstance(info.node_type, str) and isinstance(info.exec_type, str)
        said = f"{what}: counter {info!r} lacks a type, or its types are not texts."
        require(texts and bool(info.node_type), said)
        status = isinstance(info.status, ProfilingInfo.Status)
        require(status, f"{what}: the status of counter '{info.node_name}' is {info.status!r}.")
        idle = info.status == ProfilingInfo.NOT_RUN and info.real_time_us > 0
        require(not idle, f"{what}: '{info.node_name}' was not run, for {info.real_time_us} us.")
        known = of_a_submodel(info.node_name)
        for name in () if info.node_type == "Permute" else (known, *info.covers):
            require(name in names, f"{what}: a counter is about '{name}', not of {names}.")
        require(known not in seen, f"{what}: operation '{known}' has two counters.")
        seen.add(known)
    own = [info for info in infos if info.node_type != "Permute"]
    covered = [name for info in own for name in info.covers]
    require(len(set(covered)) == len(covered), f"{what}: {covered} are covered more than once.")


@check("compiled")
def explanations_are_in_order(bench: Bench) -> None:
    """explain() places each operation once, in the model's order, with its operator and a device.

    So it does after runs.
    """
    for sample in _models(bench):
        compiled = bench.compile(sample.proto)
        due = [(op.name, op.op_type) for op in bench.read(sample.proto).ops]
        devices = set(compiled.get_property("EXECUTION_DEVICES"))
        for turn in range(2):
            explanation = compiled.explain()
            have = [(op.name, op.op_type) for op in explanation.ops]
            require(have == due, f"explain() of '{sample.name}' has {have}, not {due}.")
            require(
                explanation.model == compiled.model.name,
                f"explain() is of model '{explanation.model}'.",
            )
            strange = {op.device for op in explanation.ops} - devices
            own = bench.is_virtual or not strange
            require(own, f"explain() of '{sample.name}' names {strange}; it runs on {devices}.")
            compiled(sample.feeds(turn))


@check("members")
def what_is_told_does_not_add_up(bench: Bench) -> None:
    """Steps and spans are those of the last run, as many after each run like it."""
    for sample in _models(bench):
        compiled = bench.compile(sample.proto, {"PERF_COUNT": True}).device_model
        runner = compiled.create_runner()
        inputs = host_tensors(compiled, sample.feeds(3))
        counts = []
        for _ in range(6):
            runner.run(inputs)
            execution = runner.explain_execution()
            counts.append(
                (len(execution.steps), len(list(execution.rows())), len(runner.device_spans()))
            )
        runner.close()
        grows = any(
            all(later > sooner for sooner, later in itertools.pairwise(column))
            for column in zip(*counts, strict=True)
        )
        said = f"{sample.name}: numbers of steps, rows and spans grow from run to run: {counts}."
        require(not grows, said)


@check("members")
def decoders_leave_what_is_set(bench: Bench) -> None:
    """for_decoder() leaves each property that the application has set, to whatever value."""
    for name, field in settable(bench):
        for value in (*other_values(field), field.default):
            made = bench.properties(**{name: value})
            for request in (
                DecoderRequest(),
                DecoderRequest(4096, 512, 128, 64),
                DecoderRequest(1),
            ):
                given = bench.plugin.for_decoder(request, made)
                have = given.get(name, value)
                require(have == value, f"for_decoder sets {name}={have!r}, which is {value!r}.")
                again = bench.plugin.for_decoder(request, made)
                require(given == again, f"for_decoder gave {given!r}, then {again!r}.")


@check("properties", values=True)
def settings_go_together(bench: Bench) -> None:
    """Any two settings hold in one model; with PERF_COUNT among them, counters come."""
    sample = bench.sample("plain")
    feeds = sample.feeds(74)
    due = bench.expected(sample.proto, feeds)
    alone = bench.compile(sample.proto, {"PERF_COUNT": True}).create_infer_request()
    alone.infer(feeds)
    counts = bool(list(alone.get_profiling_info()))
    for one, other in itertools.combinations(other_settings(bench), 2):
        given: dict[str, Any] = dict((one, other))
        if len(given) < 2:
            continue
        compiled = bench.compile(sample.proto, given)
        for name, value in given.items():
            have = compiled.get_property(name)
            wish = name.endswith("_HINT")  # may come to something else
            require(have == value or wish, f"With {given}, {name} is {have!r}.")
        request = compiled.create_infer_request()
        result = request.infer(feeds).to_tuple()
        if not any("PRECISION" in name for name in given):
            compare(result, due, f"{sample.name} with {given}")
        if given.get("PERF_COUNT"):
            have = bool(list(request.get_profiling_info()))
            require(have == counts, f"With {given} there are{'' if have else ' no'} counters.")


@check("compiled", values=True)
def models_are_compiled_as_they_are_now(bench: Bench) -> None:
    """What is compiled has the shapes that the model has been given, and heeds no affinity."""
    sample = bench.sample("dynamic")
    for rows in (7, 1):
        model = bench.read(sample.proto)
        model.reshape({0: [rows, *(model.input(0).shape or ())[1:]]})
        for number, op in enumerate(model.ops):
            op.affinity = ("SOMEWHERE", "CPU", bench.device)[number % 3]
        feeds = sample.feeds(75, N=rows)
        due = bench.expected(sample.proto, feeds)
        compiled = partita.CompiledModel(bench.plugin.compile_model(model, bench.properties()))
        whole = bench.core.compile_model(model, bench.device, bench.target.config)
        for made in (compiled, whole):
            shapes = [port.shape for port in made.inputs], [port.shape for port in model.inputs]
            require(shapes[0] == shapes[1], f"Reshaped to {shapes[1]}, it takes {shapes[0]}.")
            shapes = [port.shape for port in made.outputs], [port.shape for port in model.outputs]
            require(shapes[0] == shapes[1], f"Reshaped to give {shapes[1]}, it gives {shapes[0]}.")
            compare(made(feeds).to_tuple(), due, f"{sample.name}, reshaped to {rows} rows")


@check("plugin", values=True)
def each_device_has_its_own_settings(bench: Bench) -> None:
    """Of several devices each computes rightly, and has what was set for it, and no other."""
    plugin, sample = bench.plugin, bench.sample("plain")
    names = [f"{plugin.device_name}.{one}" for one in plugin.device_ids()]
    if len(names) < 2:
        raise NotApplicableError("there is one device")
    core = bench.new_core()
    core.set_property(names[-1], {"PERF_COUNT": True})
    feeds = sample.feeds(76)
    due = bench.expected(sample.proto, feeds)
    identities = set()
    for name, device_id in zip(names, plugin.device_ids(), strict=True):
        model = bench.read(sample.proto)
        answer = core.query_model(model, name, bench.target.config)
        require(len(answer) == len(model.ops), f"'{name}' takes less than '{bench.device}'.")
        by_property = {**bench.target.config, "DEVICE_ID": device_id}
        for device, config in ((name, bench.target.config), (plugin.device_name, by_property)):
            compiled = core.compile_model(model, device, config)
            have = compiled.get_property("EXECUTION_DEVICES")
            require(have == [name], f"Compiled for '{device}' with {config}, it runs on {have}.")
            compare(compiled(feeds).to_tuple(), due, f"{sample.name} on {name}")
        compiled = core.compile_model(model, name, bench.target.config)
        counts = compiled.get_property("PERF_COUNT")
        require(
            counts == (name == names[-1]), f"PERF_COUNT of '{names[-1]}' is '{name}'s {counts}."
        )
        identities.add(plugin.identity(plugin.properties_type(DEVICE_ID=device_id)))
        info = core.device_info(name)
        require(info.device == name, f"'{name}' describes itself as '{info.device}'.")
    require(len(identities) == len(names), "Devices of one kind have one identity.")
