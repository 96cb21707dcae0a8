"""Suite ``members``: optional members of the contract, which say something in the right form."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import partita
from partita.contract.device_plugin import DecoderRequest
from partita.contract.execution import ExecutedStep, Execution, MemoryRange
from partita.contract.profiling import DeviceSpan
from partita.properties import writable
from partita.tensors.host import HOST
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import networks, samples
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import require
from partita_conformance.suites.feeding import host_tensors

_LATER_S = 1e-3
"""So much may the clock of a span be off."""


@check("members")
def absent_devices_have_reasons(bench: Bench) -> None:
    """unavailable_devices() names none of those that are there, each with a reason in words."""
    ids = [*bench.plugin.device_ids()]
    absent = bench.plugin.unavailable_devices()
    require(isinstance(absent, Mapping), f"unavailable_devices gives {type(absent).__name__}.")
    for name, reason in absent.items():
        ok = isinstance(name, str) and isinstance(reason, str) and reason.strip()
        require(ok, f"unavailable_devices names {name!r} for the reason {reason!r}.")
        require(name not in ids, f"'{name}' is among device_ids() and unavailable_devices().")


@check("members")
def identities_are_told_again(bench: Bench) -> None:
    """identity() is the same text each time, and another one for properties that are set."""
    plain = bench.plugin.identity(bench.properties())
    require(isinstance(plain, str) and plain, f"identity() gives {plain!r}, no text.")
    bench.compile(bench.sample("plain").proto)
    again = bench.plugin.identity(bench.properties())
    require(plain == again, f"identity() gives {plain!r}, and {again!r} after a compile.")
    other = bench.new_core().device_api.registry.plugin(bench.plugin.device_name)
    found = other.identity(bench.properties())
    require(plain == found, f"identity() gives {plain!r}, and {found!r} for another core.")


@check("members")
def decoders_get_properties_there_are(bench: Bench) -> None:
    """for_decoder() names properties that can be set, and leaves those that are set."""
    schema = bench.plugin.properties_type
    sizes = (None, 1, 7, 4096)
    for context, prompt, new in itertools.product(sizes, sizes[:3], sizes[:3]):
        request = DecoderRequest(context, prompt, new)
        given = bench.plugin.for_decoder(request, bench.properties())
        strange = set(given) - set(writable(schema))
        require(not strange, f"for_decoder gives {sorted(strange)}, which cannot be set.")
        made = bench.properties(**given)
        set_ones = bench.plugin.for_decoder(request, made)
        for name, value in set_ones.items():
            have = getattr(made, name)
            require(
                name not in given or value in (have, given[name]),
                f"for_decoder gives {name}={value!r}, which is set to {have!r}.",
            )


@check("members")
def compiled_models_tell_their_needs(bench: Bench) -> None:
    """scratch_bytes, takes_memory() and the number of requests are numbers and truths that stay."""
    info = bench.core.device_info(bench.device)
    for sample in (bench.sample("plain"), bench.sample("dynamic")):
        compiled = bench.compile(sample.proto)
        device_model = compiled.device_model
        first = (
            device_model.scratch_bytes,
            device_model.optimal_number_of_infer_requests,
            device_model.execution_devices,
        )
        require(isinstance(first[0], int) and first[0] >= 0, f"scratch_bytes is {first[0]!r}.")
        for memory in (info.memory, "host", "memory of nobody"):
            answer = device_model.takes_memory(memory)
            require(isinstance(answer, bool), f"takes_memory('{memory}') is {answer!r}.")
        require(
            device_model.takes_memory("host") or info.memory != "host",
            "Host tensors are not taken.",
        )
        require(
            not device_model.takes_memory("memory of nobody"),
            "It takes tensors of no known memory.",
        )
        for seed in (0, 1):
            compiled(sample.feeds(seed))
        again = (
            device_model.scratch_bytes,
            device_model.optimal_number_of_infer_requests,
            device_model.execution_devices,
        )
        require(first == again, f"After two runs {first} have become {again}.")


@check("members")
def facts_stay_and_are_the_callers(bench: Bench) -> None:
    """Properties of a compiled model stay over runs, and whatever a caller does to an answer."""
    sample = bench.sample("plain")
    compiled = bench.compile(sample.proto)
    names = ["NETWORK_NAME", "EXECUTION_DEVICES", "SUPPORTED_PROPERTIES"]
    names += writable(bench.plugin.properties_type)
    before = {name: copy.deepcopy(compiled.get_property(name)) for name in names}
    for name in names:
        answer = compiled.get_property(name)
        if isinstance(answer, (list, dict)):
            answer.clear()
    compiled(sample.feeds())
    bench.compile(bench.sample("pair").proto)
    for name, value in before.items():
        have = compiled.get_property(name)
        require(have == value, f"{name} was {value!r} and has become {have!r}.")
        require(type(have) is type(value), f"{name} has become a {type(have).__name__}.")


@check("members")
def host_arrays_are_apart(bench: Bench) -> None:
    """host_array() gives arrays of the shape and type that are asked for, each of its own."""
    compiled = bench.compile(bench.sample("plain").proto).device_model
    asked = [
        (shape, np.dtype(dtype))
        for shape in ((), (0, 3), (5,), (4, 6), (4, 6), (6, 4), (4, 6))
        for dtype in (np.float32, np.int64, np.bool_)
    ]
    arrays = [compiled.host_array(shape, dtype) for shape, dtype in asked]
    for number, (array, (shape, dtype)) in enumerate(zip(arrays, asked, strict=True)):
        what = f"host_array({shape}, {dtype})"
        require(isinstance(array, np.ndarray), f"{what} gives a {type(array).__name__}.")
        require(
            (array.shape, array.dtype) == (shape, dtype), f"{what} is {array.dtype}{array.shape}."
        )
        require(array.flags.c_contiguous and array.flags.writeable, f"{what} cannot be filled.")
        array[...] = number % 2 if dtype == np.bool_ else number
    for number, (array, (_, dtype)) in enumerate(zip(arrays, asked, strict=True)):
        due = np.full_like(array, number % 2 if dtype == np.bool_ else number)
        compare([array], [due], f"host array {number + 1}, after others were filled")


@check("members", values=True)
def allocated_tensors_are_apart(bench: Bench) -> None:
    """allocate() gives tensors of zeros for any input, each of its own, which outlive the model."""
    for kind in ("plain", "pair"):
        sample = bench.sample(kind)
        compiled = bench.compile(sample.proto).device_model
        feeds = sample.feeds(50)
        ports = [port for port in compiled.inputs for _ in range(2)]
        tensors = [compiled.allocate(port, feeds[port.name].shape) for port in ports]
        for number, (port, tensor) in enumerate(zip(ports, tensors, strict=True)):
            what = f"{sample.name}: allocate('{port.name}')"
            found = (tuple(tensor.shape), tensor.dtype)
            require(found == (feeds[port.name].shape, port.dtype), f"{what} gives {tensor!r}.")
            require(not tensor.numpy().any(), f"{what} is not zero.")
            tensor.copy_from(partita.HostTensor(feeds[port.name] + number))
        results = compiled.create_runner().run(tensors[::2])
        given = {port.name: feeds[port.name] + 2 * n for n, port in enumerate(ports[::2])}
        due = bench.expected(sample.proto, given)
        compare([t.numpy() for t in results], due, f"{sample.name} of allocated tensors")
        for port in ports:  # what is given back may be lent again, and holds zeros
            for _ in range(3):
                again = compiled.allocate(port, feeds[port.name].shape)
                held = np.array(again.numpy())
                require(not held.any(), f"{sample.name}: what was allocated again is not zero.")
                again.copy_from(partita.HostTensor(feeds[port.name]))
                del again
        del compiled, results
        for number, (port, tensor) in enumerate(zip(ports, tensors, strict=True)):
            what = f"{sample.name}: allocated tensor {number + 1}, after its model is gone"
            compare([tensor.numpy()], [feeds[port.name] + number], what)


@check("members", values=True)
def properties_of_pieces_compile(bench: Bench) -> None:
    """What piece_properties() and exported_properties() give can be set when one compiles again."""
    for sample in (bench.sample("plain"), *networks()[:2]):
        if bench.refusals(sample.proto):
            continue
        device_model = bench.compile(sample.proto, {"PERF_COUNT": True}).device_model
        for what in ("piece_properties", "exported_properties"):
            given: dict[str, Any] = getattr(device_model, what)()
            compiled = bench.compile(sample.proto, given)
            feeds = sample.feeds(51)
            due = bench.expected(sample.proto, feeds)
            compare(compiled(feeds).to_tuple(), due, f"{sample.name} with its {what}()")
            counts = compiled.get_property("PERF_COUNT")
            require(counts is True, f"{what}() of a model compiled with PERF_COUNT lacks that.")


@check("members")
def spans_lie_in_their_run(bench: Bench) -> None:
    """device_spans() names when parts of the last run began and ended, on which device."""
    for sample in (*samples("plain")[:2], *networks()):
        if bench.refusals(sample.proto):
            continue
        for count in (True, False):
            compiled = bench.compile(sample.proto, {"PERF_COUNT": count})
            request = compiled.create_infer_request()
            for turn in range(3):
                feeds = sample.feeds(turn)
                time.sleep(2 * _LATER_S)  # so that spans of the run before lie outside
                start = time.perf_counter()
                request.infer(feeds)
                end = time.perf_counter()
                for span in request.device_spans():
                    what = f"{sample.name}: span {span!r}"
                    require(isinstance(span, DeviceSpan), f"{what} is no DeviceSpan.")
                    require(span.device and span.name, f"{what} lacks a name.")
                    require(span.kind in ("compute", "transfer"), f"{what} is of no known kind.")
                    inside = start - _LATER_S <= span.start_s <= span.end_s <= end + _LATER_S
                    require(inside, f"{what} lies outside of the run, {start:.6f} to {end:.6f}.")


@check("members")
def executions_are_told(bench: Bench) -> None:
    """explain_execution() gives named steps, after runs and before the first one."""
    for sample in (*samples("plain")[:2], *networks()):
        if bench.refusals(sample.proto):
            continue
        compiled = bench.compile(sample.proto)
        runner = compiled.device_model.create_runner()
        for turn in range(3):
            execution = runner.explain_execution()
            require(
                isinstance(execution, Execution),
                f"explain_execution gives a {type(execution).__name__}.",
            )
            for step in execution.steps:
                ok = isinstance(step, ExecutedStep) and step.name and step.how
                require(ok, f"{sample.name}: a step is {step!r}.")
            for part, name, how in execution.rows():
                texts = isinstance(name, str) and isinstance(how, str)
                placed = texts and (part is None or part >= 0)
                require(placed, f"{sample.name}: a row is {part!r}, {name!r}, {how!r}.")
            runner.run(host_tensors(compiled, sample.feeds(turn)))
        runner.close()


@check("members")
def executions_are_of_the_last_run(bench: Bench) -> None:
    """Where explain_execution() says that results lie, those of the last run do, of any shape.

    A device whose results lie elsewhere, or that reports nothing after some runs, passes.
    """
    for sample in (*samples("dynamic"), *(one for one in networks() if one.sizes)):
        if bench.refusals(sample.proto):
            continue
        compiled = bench.compile(sample.proto)
        runner = compiled.device_model.create_runner()
        first_seen: dict[str, tuple[list[bool], int]] = {}
        kept = []  # so that no later results lie where some have lain
        for turn, rows in enumerate((3, 3, 5, 64, 2, 3)):
            results = runner.run(host_tensors(compiled, sample.feeds(turn, N=rows)))
            arrays = [tensor.numpy() for tensor in results if tensor.memory == HOST]
            kept.append(arrays)
            execution = runner.explain_execution()
            inside = [_is_in(array, _writes(execution)) for array in arrays]
            before = first_seen.setdefault(repr(execution), (inside, rows))
            require(
                before[0] == inside,
                f"{sample.name}: explain_execution() says the same after runs of {before[1]} and "
                f"of {rows} rows; that results lie where it says is {before[0]}, then {inside}.",
            )
        runner.close()


def _writes(execution: Execution) -> list[MemoryRange]:
    """Where steps write, those of submodels too."""
    own = [place for step in execution.steps for place in step.writes]
    return own + [place for one in execution.submodels.values() for place in _writes(one)]


def _is_in(array: np.ndarray[Any, Any], places: Sequence[MemoryRange]) -> bool:
    """Whether an array lies in one of these places."""
    first = array.__array_interface__["data"][0]
    return any(
        one.address <= first and first + array.nbytes <= one.address + one.nbytes for one in places
    )
