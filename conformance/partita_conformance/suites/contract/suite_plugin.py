"""Suite ``plugin``: what the plugin says of itself, and how tensors reach its memory."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

import ml_dtypes
import numpy as np

import partita
from partita.contract.device_plugin import DecoderRequest
from partita.devices.device_string import is_device_name
from partita.errors import DeviceError, PartitaError
from partita.tensors.host import HOST
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import networks, parse, stranger
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import (
    ConformanceError,
    NotApplicableError,
    require,
    require_raises,
)

_KINDS = ("cpu", "gpu", "accelerator", "virtual", "reference")


@check("plugin")
def names_itself(bench: Bench) -> None:
    """The device name is capitals, digits and '_', and the interface version is this one."""
    plugin = bench.plugin
    require(is_device_name(plugin.device_name), f"device_name is {plugin.device_name!r}.")
    require(
        plugin.api_version == partita.API_VERSION,
        f"api_version is {plugin.api_version}; this Partita has {partita.API_VERSION}.",
    )


@check("plugin")
def lists_its_devices(bench: Bench) -> None:
    """device_ids() gives unique strings, the same ones each time."""
    answers = [list(bench.plugin.device_ids()) for _ in range(5)]
    first = answers[0]
    require(first, "device_ids() is empty; raise DeviceUnavailableError with the reason instead.")
    require(all(isinstance(one, str) for one in first), f"device_ids() gives {first!r}.")
    require(len(set(first)) == len(first), f"device_ids() repeats ids: {first!r}.")
    for later in answers[1:]:
        require(first == later, f"device_ids() gave {first!r}, then {later!r}.")


def _facts(bench: Bench) -> dict[str, Any]:
    """All that the plugin says of itself and its devices."""
    plugin = bench.plugin
    ids = [*plugin.device_ids()]
    facts: dict[str, Any] = {"device_ids()": ids, "aliases": dict(plugin.aliases)}
    facts["unavailable_devices()"] = dict(plugin.unavailable_devices())
    facts |= {f"device_info({one!r})": plugin.device_info(one) for one in ids}
    facts["identity()"] = plugin.identity(bench.properties())
    memories = ("host", bench.core.device_info(bench.device).memory, "memory of nobody")
    facts |= {f"can_share({m!r})": plugin.can_share(m, bench.device_id) for m in memories}
    facts["for_decoder()"] = dict(plugin.for_decoder(DecoderRequest(64, 8, 8), bench.properties()))
    names = [*plugin.properties_type.model_fields, "AVAILABLE_DEVICES", "SUPPORTED_PROPERTIES"]
    facts |= {name: bench.core.get_property(bench.device, name) for name in names}
    for network in networks()[2:4]:
        answer = bench.core.query_model(bench.read(network.proto), bench.device)
        facts[f"query_model of '{network.name}'"] = dict(answer), set(answer.reasons)
    return facts


def _busy(bench: Bench) -> Iterator[tuple[str, Any]]:
    """Things that happen, one after another, and what is held meanwhile."""
    sample = bench.sample("plain")
    held = [bench.compile(sample.proto) for _ in range(3)]
    yield "three models were compiled", held
    requests = [compiled.create_infer_request() for compiled in held]
    for request in requests:
        request.infer(sample.feeds(1))
    yield "their requests ran", requests
    large = parse(_LARGE, {"w": np.ones((1024, 1024), np.float32)})
    if not bench.refusals(large):
        yield "a model of four mebibytes was compiled", bench.compile(large)
    with contextlib.suppress(PartitaError):
        bench.core.compile_model(stranger(), bench.device)
    with contextlib.suppress(PartitaError):
        requests[0].infer({name: array[:1] for name, array in sample.feeds(1).items()})
    yield "a compile and a run failed", None
    other = bench.new_core()
    other.set_property(bench.device, {"PERF_COUNT": True})
    yield "another core had a property set", bench.compile(sample.proto, core=other)
    held.clear()
    requests.clear()
    gc.collect()
    yield "all models were gone", None


_LARGE = "g (float[1,1024] x) => (float[1024,1024] y) { y = Add(x, w) }"


@check("plugin")
def what_it_says_of_itself_stays(bench: Bench) -> None:
    """Ids and their order, descriptions, defaults: the same whatever is compiled, runs or fails."""
    first, kept = _facts(bench), []
    for what, held in _busy(bench):
        kept.append(held)
        if held is None:
            kept.clear()
        with ThreadPoolExecutor(1) as pool:
            later = {
                "there": _facts(bench),
                "on another thread": pool.submit(_facts, bench).result(),
            }
        for where, facts in later.items():
            for name, value in first.items():
                said = f"{name} was {value!r}; {where}, after {what}, it is {facts[name]!r}."
                require(facts[name] == value, said)


@check("plugin")
def says_things_of_the_right_kind(bench: Bench) -> None:
    """Flags are truths, aliases are device names for kinds that there are, details are texts."""
    plugin = bench.plugin
    for flag in ("is_default", "splits_models", "leaves_models_alone", "is_reference"):
        require(isinstance(getattr(plugin, flag), bool), f"{flag} is {getattr(plugin, flag)!r}.")
    for alias, kind in plugin.aliases.items():
        require(is_device_name(alias), f"The alias {alias!r} is not a device name.")
        require(kind in _KINDS, f"The alias '{alias}' is for kind {kind!r}, which is none.")
    for one in plugin.device_ids():
        info = plugin.device_info(one)
        for name, text in {"driver": info.driver, **info.details}.items():
            ok = isinstance(name, str) and isinstance(text, str)
            require(ok, f"device_info({one!r}) says {text!r} of {name!r}; both are texts.")
        whole = info.memory_bytes is None or type(info.memory_bytes) is int
        require(whole, f"memory_bytes is {info.memory_bytes!r}; it is a whole number or None.")
        if one:
            named = f"{plugin.device_name}.{one}"
            have = bench.core.resolve_device(named)
            require(have == named, f"The device string '{named}' is read as '{have}'.")


@check("plugin")
def each_device_is_one_of_its_own(bench: Bench) -> None:
    """What is compiled for a device by its id runs on that one, and says so.

    All are listed and described as ever while models and requests are there on some or all of them,
    by a plugin that nothing has used before too.
    """
    core, sample = bench.new_core(), bench.sample("plain")
    plugin = core.device_api.registry.plugin(bench.plugin.device_name)
    ids = list(plugin.device_ids())
    infos = [plugin.device_info(one) for one in ids]
    held = []
    for device_id in ids:
        name = f"{plugin.device_name}.{device_id}" if len(ids) > 1 else bench.device
        compiled = core.compile_model(bench.read(sample.proto), name, bench.target.config)
        have = compiled.get_property("EXECUTION_DEVICES")
        own = len(ids) == 1 or have == [name]
        require(own, f"What is compiled for '{name}' says that it runs on {have}.")
        held.append((compiled, compiled.create_infer_request()))
        held[-1][1].infer(sample.feeds())
        for where in (plugin, core.device_api.registry.plugin(plugin.device_name)):
            now = list(where.device_ids())
            said = f"device_ids() was {ids}; while a model is there on '{name}', it is {now}."
            require(now == ids, said)
            again = [where.device_info(one) for one in ids]
            require(again == infos, f"device_info() was {infos}; with that model, {again}.")


@check("plugin", values=True)
def tensors_go_from_device_to_device(bench: Bench) -> None:
    """What lies on one device of a kind, another one reads or brings over, as it can_share says."""
    plugin, sample = bench.plugin, bench.sample("plain")
    ids = list(plugin.device_ids())
    if len(ids) < 2:
        raise NotApplicableError("there is one device")
    feeds = sample.feeds(5)
    due = bench.expected(sample.proto, feeds)
    for here, there in itertools.permutations(ids, 2):
        device = f"{plugin.device_name}.{there}"
        model = bench.read(sample.proto)
        compiled = bench.core.compile_model(model, device, bench.target.config).device_model
        # Others lie on both, not as many on the one as on the other.
        arrays = [np.full((3, 3), number, np.float32) for number in range(7)]
        beside = [_brought(bench, array, here) for array in arrays[:5]]
        beside += [_brought(bench, array, there) for array in arrays[5:]]
        inputs = [_brought(bench, feeds[port.name], here) for port in compiled.inputs]
        reached = [
            tensor if plugin.can_share(tensor.memory, there) else plugin.transfer_to(tensor, there)
            for tensor in inputs
        ]
        what = f"{sample.name} on '{device}', of tensors from '{plugin.device_name}.{here}'"
        try:
            results = compiled.create_runner().run(reached)
        except Exception as error:
            raise ConformanceError(f"{what}: {type(error).__name__} ({error}).") from error
        compare([tensor.numpy() for tensor in results], due, what)
        compare([tensor.numpy() for tensor in inputs], list(feeds.values()), f"{what}, afterwards")
        compare([tensor.numpy() for tensor in beside], arrays, f"tensors beside {what}")


def _brought(bench: Bench, array: Any, device_id: str) -> partita.Tensor:
    return bench.plugin.transfer_to(partita.HostTensor(array), device_id)


@check("plugin")
def describes_its_devices(bench: Bench) -> None:
    """device_info() names each device as device strings do, with a known kind and a memory."""
    plugin = bench.plugin
    for device_id in plugin.device_ids():
        info = plugin.device_info(device_id)
        require(
            isinstance(info, partita.DeviceInfo),
            f"device_info({device_id!r}) gives {type(info).__name__}, not DeviceInfo.",
        )
        due = f"{plugin.device_name}.{device_id}" if device_id else plugin.device_name
        require(info.device == due, f"device_info names the device '{info.device}', not '{due}'.")
        require(info.full_name.strip(), "full_name is empty.")
        require(info.kind in _KINDS, f"kind is '{info.kind}'; it is one of {', '.join(_KINDS)}.")
        require(info.memory and isinstance(info.memory, str), f"memory is {info.memory!r}.")
        require(
            info.memory_bytes is None or info.memory_bytes > 0,
            f"memory_bytes is {info.memory_bytes}; use None where there is no limit.",
        )
        again = plugin.device_info(device_id)
        require(info == again, f"device_info gave {info}, then {again}.")


@check("plugin")
def refuses_a_device_that_is_not_there(bench: Bench) -> None:
    """An id that the device does not have is refused."""
    device = f"{bench.plugin.device_name}.no-such-id"
    require_raises(DeviceError, lambda: bench.core.device_info(device), f"Device '{device}'")


_NEARLY = ("{0} of others", "{0}:99", "not {0}", "")
"""Names that are nearly that of a memory."""


@check("plugin")
def reads_its_own_memory(bench: Bench) -> None:
    """can_share() answers with a bool, and yes for the memory that device_info names."""
    memory = bench.core.device_info(bench.device).memory
    answer = bench.plugin.can_share(memory, bench.device_id)
    require(isinstance(answer, bool), f"can_share gives {answer!r}, not a bool.")
    require(answer, f"can_share('{memory}') is False, though the device's tensors lie there.")
    info = {bench.core.device_info(name).memory for name in bench.core.available_devices}
    for name in ("memory of nobody", *(n.format(memory) for n in _NEARLY), "hostess", "host:7"):
        strange = bench.plugin.can_share(name, bench.device_id)
        known = name in info
        require(known or strange is False, f"can_share({name!r}) is {strange!r}; nobody has that.")


@check("plugin", values=False)
def takes_tensors_into_its_memory(bench: Bench) -> None:
    """transfer_to() keeps shape, dtype and elements, for every type and size."""
    info = bench.core.device_info(bench.device)
    dtypes = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8, np.bool_]
    for dtype, shape in itertools.product(dtypes, [(), (0, 3), (5,), (2, 3, 4)]):
        array = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2 + 1).astype(dtype)
        tensor = bench.plugin.transfer_to(partita.HostTensor(array), bench.device_id)
        what = f"transfer_to of {array.dtype}{list(shape)}"
        require(isinstance(tensor, partita.Tensor), f"{what} gives {type(tensor).__name__}.")
        require(
            bench.plugin.can_share(tensor.memory, bench.device_id),
            f"{what} gives a tensor in '{tensor.memory}', which can_share refuses.",
        )
        require(
            tensor.memory in (info.memory, "host"),
            f"{what} gives a tensor in '{tensor.memory}'; device_info says '{info.memory}'.",
        )
        require(tuple(tensor.shape) == shape, f"{what} has shape {tensor.shape}.")
        require(tensor.dtype == array.dtype, f"{what} has dtype {tensor.dtype}.")
        compare([tensor.numpy()], [array], what)


@check("plugin")
def transferred_tensors_last(bench: Bench) -> None:
    """What was transferred stays as it is when others of its shape and type are transferred.

    A device that has memory of its own has read an array when transfer_to() is over: the next
    numbers may be written to it, before anybody reads the tensor or after.
    """
    arrays = [np.full((3, 4), number, np.float32) for number in range(3)]
    tensors = [_brought(bench, array, bench.device_id) for array in arrays]
    compare([tensor.numpy() for tensor in tensors], arrays, "tensors transferred one by one")
    for shape in ((3, 4), (1,), (512, 600)):
        source = np.empty(shape, np.float32)
        for turn in range(6):
            source[...] = turn
            tensor = _brought(bench, source, bench.device_id)
            if tensor.memory == HOST:  # it may be the array as it lies
                return
            if turn % 2:
                tensor.numpy()
            source[...] = 77
            what = f"a tensor on the device, float32{list(shape)}, after its array was written to"
            compare([tensor.numpy()], [np.full(shape, turn, np.float32)], what)


@check("plugin")
def is_cheap_to_find(bench: Bench) -> None:
    """Its entry point names a module of the group 'partita' that can be imported again."""
    if bench.target.plugin:
        raise NotApplicableError("the plugin was given by --plugin, not by an entry point")
    for entry in metadata.entry_points(group="partita"):
        if importlib.import_module(entry.module).__name__ == type(bench.plugin).__module__:
            return
    raise NotApplicableError("the plugin's class is defined outside its entry-point module")


@check("plugin")
def takes_something(bench: Bench) -> None:
    """The device takes at least one of the small sample models."""
    try:
        bench.sample("plain")
    except NotApplicableError as error:
        raise ConformanceError(str(error)) from error
