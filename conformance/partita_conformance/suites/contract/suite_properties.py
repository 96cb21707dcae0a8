"""Suite ``properties``: typed, checked, and each where it was set."""

from __future__ import annotations

import enum
import itertools
import math
import re
import statistics
import time
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np
import pydantic

import partita
from partita.errors import PropertyError
from partita.properties import is_read_only, writable
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require, require_raises

_FREE = {"DEVICE_ID", "MULTI_DEVICE_PRIORITIES"}
"""Writable properties whose value decides about more than themselves."""


def _fields(bench: Bench) -> dict[str, Any]:
    return dict(bench.plugin.properties_type.model_fields)


_DECLARED = object()


def other_values(field: Any, default: Any = _DECLARED) -> list[Any]:
    """Further values that a field may have, as far as they follow from its type and multiples.

    Args:
        field: Of pydantic's.
        default: The value; the field's default if it is left out.
    """
    annotation = field.annotation
    if default is _DECLARED:
        default = field.default
    if annotation is bool:
        return [not default]
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return [member for member in annotation if member != default]
    if typing.get_origin(annotation) is typing.Literal:
        return [value for value in typing.get_args(annotation) if value != default]
    if annotation is int:
        return [default + _step(field)]
    return []


def _step(field: Any) -> int:
    """From one value of a whole number to the next one."""
    steps = [known.multiple_of for known in field.metadata if hasattr(known, "multiple_of")]
    return math.lcm(*map(int, steps))


def settable(bench: Bench) -> Iterator[tuple[str, Any]]:
    """Each property that can be set, but for those that choose the device, and its field."""
    for name in writable(bench.plugin.properties_type):
        if name not in _FREE:
            yield name, bench.plugin.properties_type.model_fields[name]


def other_settings(bench: Bench) -> Iterator[tuple[str, Any]]:
    """Each property that can be set, but for those that choose the device, and other values."""
    for name, field in settable(bench):
        for value in other_values(field):
            yield name, value


@check("properties")
def are_declared_well(bench: Bench) -> None:
    """Names are upper case, each has a description, defaults are valid, instances are frozen."""
    schema = bench.plugin.properties_type
    for name, field in _fields(bench).items():
        require(name == name.upper(), f"Property '{name}' is not upper case.")
        require(field.description, f"Property '{name}' has no description.")
    made = schema()
    require(schema.model_config.get("frozen"), "The properties are not frozen.")
    require_raises(
        pydantic.ValidationError,
        lambda: setattr(made, "PERF_COUNT", True),
        "Writing to a properties object",
    )


@check("properties")
def unknown_names_are_refused(bench: Bench) -> None:
    """A name that the device does not have raises PropertyError, wherever it is given."""
    core, sample = bench.new_core(), bench.sample("plain")
    for what, action in {
        "set_property": lambda: core.set_property(bench.device, {"NO_SUCH_PROPERTY": 1}),
        "get_property": lambda: core.get_property(bench.device, "NO_SUCH_PROPERTY"),
        "compile_model": lambda: bench.compile(sample.proto, {"NO_SUCH_PROPERTY": 1}),
        "compiled.get_property": lambda: bench.compile(sample.proto).get_property("NO_SUCH"),
    }.items():
        require_raises(PropertyError, action, f"{what} with an unknown property")


@check("properties")
def wrong_values_are_refused(bench: Bench) -> None:
    """A value that a property cannot have raises PropertyError and changes nothing."""
    core = bench.new_core()
    for name in writable(bench.plugin.properties_type):
        annotation = bench.plugin.properties_type.model_fields[name].annotation
        if annotation in (str, Any):
            continue
        before = core.get_property(bench.device, name)
        require_raises(
            PropertyError,
            lambda name=name: core.set_property(bench.device, {name: "no such value"}),  # type: ignore[misc]  # mypy cannot type defaults of lambdas
            f"Setting {name} to 'no such value'",
        )
        after = core.get_property(bench.device, name)
        require(before == after, f"A refused value changed {name} from {before!r} to {after!r}.")


@check("properties")
def read_only_ones_stay(bench: Bench) -> None:
    """Setting a read-only property raises PropertyError; reading it works."""
    names = [n for n in _fields(bench) if is_read_only(bench.plugin.properties_type, n)]
    if not names:
        raise NotApplicableError("the device has no read-only property")
    for name in names:
        value = bench.core.get_property(bench.device, name)
        require_raises(
            PropertyError,
            lambda name=name, value=value: bench.new_core().set_property(  # type: ignore[misc]  # see above
                bench.device, {name: value}
            ),
            f"Setting read-only {name}",
        )


@check("properties")
def are_listed(bench: Bench) -> None:
    """SUPPORTED_PROPERTIES names every property, and each one listed can be read."""
    compiled = bench.compile(bench.sample("plain").proto)
    for where, get in {
        "the device": lambda name: bench.core.get_property(bench.device, name),
        "the compiled model": compiled.get_property,
    }.items():
        listed = get("SUPPORTED_PROPERTIES")
        kinds = isinstance(listed, dict) and {*listed.values()} <= {"RO", "RW"}
        require(kinds, f"SUPPORTED_PROPERTIES of {where} is {listed!r}; it says RO or RW of each.")
        missing = set(_fields(bench)) - set(listed)
        require(not missing, f"SUPPORTED_PROPERTIES of {where} lacks {sorted(missing)}.")
        for name in listed:
            get(name)


@check("properties")
def set_ones_reach_the_compiled_model(bench: Bench) -> None:
    """What set_property sets, a model compiled later has; another core does not.

    A hint may come to something else, if :meth:`~partita.CompiledModel.explain` notes why.
    """
    sample = bench.sample("plain")
    for name in writable(bench.plugin.properties_type):
        if name in _FREE:
            continue
        field = bench.plugin.properties_type.model_fields[name]
        default = bench.core.get_property(bench.device, name)
        for value in other_values(field, default):
            core = bench.new_core()
            core.set_property(bench.device, {name: value})
            compiled = bench.compile(sample.proto, core=core)
            have = compiled.get_property(name)
            wish = name.endswith("_HINT") and any(name in x for x in compiled.explain().notes)
            require(
                have == value or wish,
                f"{name} was set to {value!r}; the compiled model has {have!r}"
                f"{', and explain() has no note of it' if name.endswith('_HINT') else ''}.",
            )
            other = bench.compile(sample.proto, core=bench.new_core()).get_property(name)
            require(other == default, f"{name} set on one core shows on another: {other!r}.")


@check("properties")
def of_one_compile_stay_there(bench: Bench) -> None:
    """A property given to one compile overrides set_property there and nowhere else."""
    core, sample = bench.new_core(), bench.sample("plain")
    core.set_property(bench.device, {"PERF_COUNT": False})
    with_it = bench.compile(sample.proto, {"PERF_COUNT": "YES"}, core)
    without = bench.compile(sample.proto, core=core)
    require(with_it.get_property("PERF_COUNT") is True, "PERF_COUNT given to compile is lost.")
    require(without.get_property("PERF_COUNT") is False, "PERF_COUNT leaks to the next compile.")
    with_it(sample.feeds())
    require(with_it.get_property("PERF_COUNT") is True, "Another compile changed PERF_COUNT.")


@check("properties")
def models_count_each_for_itself(bench: Bench) -> None:
    """Counters come of models compiled with PERF_COUNT, and of those alone, whichever was last."""
    sample = bench.sample("plain")
    alone = bench.compile(sample.proto, {"PERF_COUNT": True}).create_infer_request()
    alone.infer(sample.feeds())
    if not list(alone.get_profiling_info()):
        raise NotApplicableError("the device has no counters")
    for turn in ((True, False), (False, True), (True, False, True, False)):
        requests = [
            bench.compile(sample.proto, {"PERF_COUNT": count}).create_infer_request()
            for count in turn
        ]
        for count, request in zip(turn, requests, strict=True):
            request.infer(sample.feeds())
            have = len(list(request.get_profiling_info()))
            require(
                bool(have) == count,
                f"A model compiled with PERF_COUNT={count} has {have} counters beside others, "
                f"compiled with {turn}.",
            )


@check("properties", values=True)
def do_not_change_results(bench: Bench) -> None:
    """Whatever threads, streams or hints are set, the numbers stay right, in the second run too.

    Also those of results that have their input's shape and would be others if computed of it.
    """
    models = [bench.sample("plain"), bench.sample("outputs"), *_changing(bench)]
    for name, sample in itertools.product(writable(bench.plugin.properties_type), models):
        if name in _FREE or "PRECISION" in name:
            continue
        field = bench.plugin.properties_type.model_fields[name]
        for value in other_values(field):
            request = bench.compile(sample.proto, {name: value}).create_infer_request()
            for seed in (0, 1):
                feeds = sample.feeds(seed)
                result, due = request.infer(feeds).to_tuple(), bench.expected(sample.proto, feeds)
                compare(result, due, f"{sample.name} with {name}={value!r}")


def _changing(bench: Bench) -> list[Sample]:
    """A model that the device takes whose result is like its input, and changes if made again."""
    texts = [f"g (float[4,6] x) => (float[4,6] y) {{ y = {op}(x) }}" for op in ("Neg", "Exp")]
    texts.append("g (float[4,6] x) => (float[4,6] y) { y = Add(x, x) }")
    found = (Sample("a result like its input", parse(text)) for text in texts)
    return [sample for sample in found if not bench.refusals(sample.proto)][:1]


def of_a_submodel(name: str) -> str:
    """The name of an operation, without HETERO's ``subgraph0: 1. `` before it."""
    return re.sub(r"^subgraph\d+: \d+\. ", "", name)


@check("properties")
def counters_come_when_asked_for(bench: Bench) -> None:
    """With PERF_COUNT, counters (if any) are well formed; without, there are none."""
    sample = bench.sample("plain")
    silent = bench.compile(sample.proto).create_infer_request()
    silent.infer(sample.feeds())
    require(not list(silent.get_profiling_info()), "There are counters without PERF_COUNT.")
    request = bench.compile(sample.proto, {"PERF_COUNT": True}).create_infer_request()
    list(request.get_profiling_info())  # of no run yet: any counters, and no error
    start = time.perf_counter()
    request.infer(sample.feeds())
    most_us = 3e6 * (time.perf_counter() - start) + 1000  # clocks differ
    infos = list(request.get_profiling_info())
    names = {op.name for op in bench.read(sample.proto).ops}
    for info in infos:
        require(isinstance(info, partita.ProfilingInfo), f"A counter is a {type(info).__name__}.")
        require(info.node_name, "A counter has no node_name.")
        for name in (of_a_submodel(info.node_name), *info.covers):
            known = name in names
            require(known, f"A counter is about '{name}', which is not an operation of the model.")
        require(
            info.cpu_time_us >= 0 and 0 <= info.real_time_us <= most_us,
            f"Counter '{info.node_name}' has times {info.real_time_us} and {info.cpu_time_us} us; "
            f"the whole run took less than {most_us:.0f} us.",
        )
    request.infer(sample.feeds())
    again = list(request.get_profiling_info())
    require(
        len(again) == len(infos),
        f"There are {len(infos)} counters after one run, {len(again)} after two: they add up.",
    )


_LONG = "encoder/block_{}/attention/self/query/" + "projection_" * 20
_NAMES = (f"{_LONG}/MatMul", f"{_LONG}/Add", "a name; with 'marks', \u00e4\u2713", "1", "x.y/z_w")
"""Names of operations, of which some begin alike, or hold what is in no identifier."""


@check("properties")
def counters_name_operations_in_full(bench: Bench) -> None:
    """Counters name operations by their whole names, however long these are."""
    sample = bench.sample("plain")
    proto = type(sample.proto)()
    proto.CopyFrom(sample.proto)
    reported = 0
    for turn in range(len(_NAMES)):
        for place, node in enumerate(proto.graph.node):
            node.name = _NAMES[(turn + place) % len(_NAMES)].format(place)
        request = bench.compile(proto, {"PERF_COUNT": True}).create_infer_request()
        request.infer(sample.feeds())
        infos = list(request.get_profiling_info())
        reported += len(infos)
        names = {op.name for op in bench.read(proto).ops}
        for info in infos:
            for name in (of_a_submodel(info.node_name), *info.covers):
                require(name in names, f"A counter is about '{name}'; operations are {names}.")
    if not reported:
        raise NotApplicableError("the device has no counters")


_MOST_SHARE = 1.5
"""Of a run's time, what operations that wait for each other may say at most."""
_LEAST_SHARE = 0.002
"""Of a run's time, what its counters say together at least: most of it may be crossing, or waiting;
in another unit they would say a thousandth of it at most."""


@check("properties")
def counters_are_in_microseconds(bench: Bench) -> None:
    """Times of operations one after another are a good part of a run's time, and not more than it.

    A thousandth of it means another unit, twice as much a time that counts for several.
    """
    text = "g (float[512,512] x) => (float[512,512] y) {{ a = {0}(x{1}) b = {0}(a{1}) y = Neg(b) }}"
    weight = {"w": np.full((512, 512), 0.002, np.float32)}
    ops = (("MatMul", ", w"), ("Tanh", ""), ("Exp", ""), ("Relu", ""))
    models = ((op, parse(text.format(op, more), weight if more else {})) for op, more in ops)
    _, proto = next(bench.taken(models))
    request = bench.compile(proto, {"PERF_COUNT": True}).create_infer_request()
    feeds = Sample("", proto).feeds()
    shares = []
    for _ in range(9):
        start = time.perf_counter()
        request.infer(feeds)
        whole = 1e6 * (time.perf_counter() - start)
        shares.append(sum(info.real_time_us for info in request.get_profiling_info()) / whole)
    if not list(request.get_profiling_info()):
        raise NotApplicableError("the device has no counters")
    require(
        max(shares) >= _LEAST_SHARE,
        f"Counters say {max(shares):.5f} of the time that a run takes; they are in microseconds.",
    )
    middle = statistics.median(shares)  # a run may be put aside outside of what the device counts
    require(
        middle <= _MOST_SHARE,
        f"Operations one after another took {middle:.2f} of the time that their run takes.",
    )


_RUNS = 24
"""So many times of runs do not grow each by chance."""


@check("properties")
def counters_are_of_the_last_run_of_their_request(bench: Bench) -> None:
    """Times do not add up from run to run, and other requests' runs do not change them."""
    sample = bench.sample("dynamic")
    compiled = bench.compile(sample.proto, {"PERF_COUNT": True})
    own, other = compiled.create_infer_request(), compiled.create_infer_request()
    own.infer(sample.feeds(N=2))
    before = list(own.get_profiling_info())
    if not before:
        raise NotApplicableError("the device has no counters")
    for rows in (300, 7):
        other.infer(sample.feeds(N=rows))
        require(
            list(own.get_profiling_info()) == before,
            "Counters of a request change when another one runs.",
        )
    times = []
    for _ in range(_RUNS):
        own.infer(sample.feeds(N=2))
        times.append(sum(info.real_time_us for info in own.get_profiling_info()))
    own.infer(sample.feeds(N=50_000))
    times.append(sum(info.real_time_us for info in own.get_profiling_info()))
    plausible = len(set(times)) > 1 or not any(times)
    require(plausible, f"Times of {len(times)} runs, small and large, are all {times[0]} us.")
    grows = all(later > sooner for sooner, later in itertools.pairwise(times))
    require(not grows, f"Times of {_RUNS} runs grow from each to the next: they add up.")


@check("properties")
def counters_come_of_every_run(bench: Bench) -> None:
    """Counters are there, of the same operations, after any number of runs, awaited or not."""
    sample = bench.sample("plain")
    compiled = bench.compile(sample.proto, {"PERF_COUNT": True})
    request, feeds = compiled.create_infer_request(), sample.feeds()
    request.infer(feeds)
    first = [info.node_name for info in request.get_profiling_info()]
    if not first:
        raise NotApplicableError("the device has no counters")
    for turn in range(10):
        if turn % 3 == 2:
            request.start_async(feeds)
            request.wait()
        else:
            request.infer(feeds)
        infos = list(request.get_profiling_info())
        have = [info.node_name for info in infos]
        require(have == first, f"Counters are of {first} at first, of {have} in run {turn + 2}.")
        said = f"All times are 0 in run {turn + 2}."
        require(any(info.real_time_us > 0 for info in infos), said)
