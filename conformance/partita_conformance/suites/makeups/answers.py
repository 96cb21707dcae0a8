"""Objects that a device returns belong to the caller: changing one must not change later ones."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import partita
from partita.contract.device_plugin import DecoderRequest
from partita_conformance.bench.bench import Bench
from partita_conformance.draws.makeup.built import built
from partita_conformance.draws.makeup.traits import PLAIN, deviations
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.makeups.monitor import require_right

_NUMBERS = {**PLAIN, "elements": "float", "the second step": "times a matrix", "sizes": "3,3"}


def answers_are_the_callers(bench: Bench) -> None:
    """Whatever a plugin, a compiled model or a runner hands out may be changed by its caller."""
    made = built(_NUMBERS)
    if bench.refusals(made.proto):
        made = built({**PLAIN, "the first step": "rectified", "the second step": "rectified"})
    if bench.refusals(made.proto):
        raise NotApplicableError("the device takes none of the models")
    compiled = bench.compile(made.proto, {"PERF_COUNT": True})
    request = compiled.create_infer_request()
    feeds, _ = made.cases[0]
    request.infer(feeds)
    runner = compiled.device_model.create_runner()
    runner.run([partita.HostTensor(feeds[port.name].copy()) for port in compiled.inputs])
    for name, ask in _questions(bench, made.proto, compiled, runner):
        first = ask()
        kept = _plain(first)
        require(_alike(kept, _plain(ask())), f"{name} gives another answer when asked again.")
        _spoil(first)
        now = _plain(ask())
        said = f"{name} gives {now!r:.200} once a caller changed an answer; before {kept!r:.200}."
        require(_alike(kept, now), said)
    require_right(compiled, made, f"{deviations(made.makeup)}, behind answers that were changed")


def _questions(
    bench: Bench, proto: Any, compiled: partita.CompiledModel, runner: partita.Runner
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each question that can be asked twice, by its name."""
    plugin, properties, own = bench.plugin, bench.properties(), compiled.device_model
    model = bench.read(proto)
    yield "device_ids()", plugin.device_ids
    yield "unavailable_devices()", plugin.unavailable_devices
    yield "device_info()", lambda: plugin.device_info(bench.device_id)
    yield "identity()", lambda: plugin.identity(properties)
    yield "query_model()", lambda: plugin.query_model(model, properties)
    request = DecoderRequest(64, 8, 8)
    yield "for_decoder()", lambda: plugin.for_decoder(request, properties)
    yield "can_share()", lambda: [plugin.can_share("host"), plugin.can_share("nobody:0")]
    for name in ("execution_devices", "optimal_number_of_infer_requests", "scratch_bytes"):
        yield name, functools.partial(getattr, own, name)
    for name in (
        *("in_place_outputs", "layouts", "extra_properties", "export_state", "facts"),
        *("piece_properties", "exported_properties", "explain"),
    ):
        yield f"{name}()", getattr(own, name)
    for name in compiled.get_property("SUPPORTED_PROPERTIES"):
        yield f"get_property({name!r})", functools.partial(compiled.get_property, name)
    yield "profiling_info()", runner.profiling_info
    yield (
        "the names of ports",
        lambda: [p.describe() for p in (*compiled.inputs, *compiled.outputs)],
    )


def _plain(answer: Any) -> Any:
    """A copy of an answer that nothing of the device can change."""
    if isinstance(answer, np.ndarray):
        return answer.copy()
    if isinstance(answer, Mapping):
        more = {"reasons": _plain(answer.reasons)} if hasattr(answer, "reasons") else {}
        return {**{key: _plain(value) for key, value in answer.items()}, **more}
    if isinstance(answer, (list, tuple)):
        return [_plain(one) for one in answer]
    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        return {f.name: _plain(getattr(answer, f.name)) for f in dataclasses.fields(answer)}
    try:
        return copy.copy(answer)
    except TypeError:
        return answer


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other, equal_nan=False)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def _spoil(answer: Any) -> None:
    """Changes all that can be changed of an answer, as its caller may."""
    if isinstance(answer, np.ndarray):
        if answer.flags.writeable and answer.dtype.kind in "fiub":
            answer[...] = 1
        return
    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        for field in dataclasses.fields(answer):
            _spoil(getattr(answer, field.name))
        return
    if isinstance(answer, Mapping) and hasattr(answer, "reasons"):
        _spoil(answer.reasons)
    parts = answer.values() if isinstance(answer, Mapping) else answer
    if isinstance(answer, (Mapping, list, tuple, set)):
        for part in list(parts):
            _spoil(part)
        try:
            if isinstance(answer, list):
                answer.append("spoiled")
            elif isinstance(answer, (dict, set)):
                answer.clear()
                answer.update({"SPOILED": "by a caller"})
        except (TypeError, AttributeError):
            return  # nobody can change it
