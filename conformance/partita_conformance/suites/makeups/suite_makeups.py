"""Suite ``makeups``: drawn models of all traits, each alone, and those that differ in one thing."""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from onnx import TensorProto, helper

from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.bench.promises import require_answer
from partita_conformance.draws.makeup.built import Built, built, fits
from partita_conformance.draws.makeup.names import STYLES
from partita_conformance.draws.makeup.traits import (
    PLAIN,
    TRAITS,
    Makeup,
    covering,
    deviations,
    drawn,
    neighbours,
)
from partita_conformance.judging.requirements import (
    ConformanceError,
    NotApplicableError,
    require,
    require_raises,
)
from partita_conformance.suites.contract.suite_properties import other_settings
from partita_conformance.suites.makeups.answers import answers_are_the_callers
from partita_conformance.suites.makeups.monitor import (
    Untouched,
    require_counters,
    require_facts,
    require_right,
)
from partita_conformance.suites.makeups.pool import Member, Pool
from partita_conformance.suites.makeups.settings import drawn_setting
from partita_conformance.suites.makeups.surroundings import undisturbed
from partita_conformance.suites.makeups.ways import WAYS, Order
from partita_conformance.suites.resources.collecting import of_new_objects

ANSWERS = "Whatever a plugin, a compiled model or a runner hands out may be changed by its caller"
_REFUSED = "What no device takes is refused by name, however its operations and values are called"
_MODELS, _GROUPS = 88, 4
_STEPS, _MEMBERS, _TRIED = 9, 5, 8


_IN_PARTS = "in parts beside REFERENCE"
_IN_A_BRANCH = {"the second step is": "in a branch", "constants are read": "by one step each"}
_OF_DATA = {"the first step": "a product", "the second step": "a sum", "elements": "float"}
_NEEDED: Mapping[str, Mapping[str, str]] = {
    "names in bodies": {**_IN_A_BRANCH, **_OF_DATA},
    "constants of bodies stand": {**_IN_A_BRANCH, **_OF_DATA},
    **dict.fromkeys(("constants are", "constants hold", "constants have"), _OF_DATA),
}
"""Where a difference in a trait counts."""


def makeup_checks() -> list[Check]:
    """The checks of drawn models, in groups."""
    summary = "Drawn models keep all promises, whatever their constants, names and forms: {0}"
    beside = "Models that differ in one thing stay themselves in whichever order they come: {0}"
    return [
        Check("makeups/answers", answers_are_the_callers, True, ANSWERS),
        Check("makeups/refused", _refused, False, _REFUSED),
        *(
            Check(f"makeups/alone/{n}", functools.partial(_alone, n), True, summary.format(n))
            for n in range(_GROUPS)
        ),
        *(
            Check(
                f"makeups/beside/{trait}",
                functools.partial(_beside, trait),
                True,
                beside.format(trait),
            )
            for trait in (*TRAITS, "settings", "devices")
        ),
    ]


@functools.cache
def _drawn() -> tuple[Makeup, ...]:
    return tuple(covering(_MODELS, 11, fits, {"it comes": tuple(WAYS)}))


def _alone(group: int, bench: Bench) -> None:
    tried = 0
    _examined_with_deviations(
        bench, {**PLAIN, "it comes": _IN_PARTS}, 0
    )  # what is to be set up for once is so now
    with of_new_objects(first=False), undisturbed():
        for place, makeup in enumerate(_drawn()[group::_GROUPS]):
            tried += _examined_with_deviations(bench, makeup, group + place * _GROUPS)
    if not tried:
        raise NotApplicableError("the device takes none of the models")


def _examined_with_deviations(bench: Bench, makeup: Makeup, number: int) -> bool:
    """Looks at a model, and says what is not plain about it where that fails."""
    way = makeup["it comes"]
    try:
        return examined(bench, built(makeup), way, number)
    except Exception as error:
        kind = "" if isinstance(error, ConformanceError) else f"{type(error).__name__}: "
        raise ConformanceError(f"A model ({deviations(makeup)}), {way}: {kind}{error}") from error


def examined(bench: Bench, made: Built, way: str, number: int) -> bool:
    """Looks at all that must hold of a model, whichever way it comes about.

    Args:
        bench: The device.
        made: The model.
        way: One of :data:`WAYS`.
        number: Which settings it has.

    Returns:
        Whether the device takes it.

    Raises:
        ConformanceError: Something does not hold.
    """
    settings = drawn_setting(bench, number)
    model = bench.read(made.proto)
    untouched = Untouched(model)
    config = {**bench.target.config, **settings}
    answer = bench.core.query_model(model, bench.device, config)
    untouched.require("query_model")
    require(config == {**bench.target.config, **settings}, "query_model changed its settings.")
    require_answer(model, answer, bench.plugin.device_name, bench.is_virtual)
    properties = bench.properties(**config)
    given = properties.model_dump(), set(properties.model_fields_set)
    direct = bench.plugin.query_model(model, properties)
    untouched.require("query_model of the plugin")
    require(
        given == (properties.model_dump(), set(properties.model_fields_set)),
        "query_model of the plugin changed the properties that it was given.",
    )
    same = (set(answer), set(answer.reasons)) == (set(direct), set(direct.reasons))
    require(same, f"query_model says {direct} of the plugin, and {answer} through Core.")
    refused = [op for op in model.ops if op.name not in answer]
    if refused:
        _require_refusal(bench, made, refused, settings)
        return False
    order = Order(bench, made.proto, settings, bench.core)
    try:
        for place, compiled in enumerate(WAYS[way](order)):
            if way != _IN_PARTS:
                require_facts(bench, model, compiled, settings)
            require_right(compiled, made, f"model {place + 1} that came")
    except NotApplicableError:
        return True
    compiled = order.compile(model, PERF_COUNT=True)
    untouched.require("compile_model")
    request = compiled.create_infer_request()
    request.infer(made.cases[0][0])
    require_counters(request, model)
    return True


def _require_refusal(
    bench: Bench, made: Built, refused: list[Any], settings: Mapping[str, Any]
) -> None:
    """What is refused does not compile, and the error says what it is about."""
    config = {**bench.target.config, **settings}
    error = require_raises(
        PartitaError,
        lambda: bench.core.compile_model(bench.read(made.proto), bench.device, config),
        "compile_model of what query_model refuses",
    )
    text = str(error)
    ok = any(op.op_type in text or (op.name and op.name in text) for op in refused)
    require(ok, f"The error of a compile names none of {[op.op_type for op in refused]}: {text}")


def _refused(bench: Bench) -> None:
    for style, named in STYLES.items():
        for number in range(4):
            name, value = named(number), named(number + 4)
            node = helper.make_node("Transmogrify", ["x"], [value], name, domain="com.nobody")
            ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", value)]
            graph = helper.make_graph([node], "g", ports[:1], ports[1:])
            imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.nobody", 1)]
            proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
            model = bench.read(proto)
            what = f"an operation called {name!r} ({style})"
            answer = bench.core.query_model(model, bench.device, bench.target.config)
            require_answer(model, answer, bench.plugin.device_name, bench.is_virtual)
            require(not answer, f"query_model takes {what}, which nobody has.")
            properties = bench.properties(**bench.target.config)
            ways: dict[str, Callable[[], object]] = {
                "Core": functools.partial(bench.core.compile_model, model, bench.device),
                "the plugin": functools.partial(
                    bench.plugin.compile_model, model.clone(), properties
                ),
            }
            for who, compile_it in ways.items():
                error = require_raises(PartitaError, compile_it, f"{who}, given {what},")
                require(str(error).strip(), f"{who}, given {what}, says nothing.")


def _beside(trait: str, bench: Bench) -> None:
    base, members = _family(bench, trait)
    if len(members) < 2:
        raise NotApplicableError("the device takes no two models that differ in that alone")
    with (
        of_new_objects(first=False),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    ):
        try:
            Pool(bench, members, len(trait), folder).go(_STEPS)
        except ConformanceError as error:
            said = f"Models that differ in {trait} alone ({deviations(base)}): {error}"
            raise ConformanceError(said) from error


def _family(bench: Bench, trait: str) -> tuple[Makeup, list[Member]]:
    """Models that differ in one thing, as many as it takes, and what they share."""
    rng = random.Random(trait)  # noqa: S311  # the same models each time
    best: tuple[Makeup, list[Member]] = {}, []
    for _ in range(_TRIED):
        base = {**drawn(rng, fits, 0.2), **_NEEDED.get(trait, {})}
        if not fits(base):
            continue
        if bench.refusals(built(base).proto):
            continue
        if trait == "settings":
            return base, _of_settings(bench, base)
        if trait == "devices":
            return base, _of_devices(bench, base)
        near = neighbours(base, trait, fits)
        rng.shuffle(near)
        distinct = {
            built(one).proto.SerializeToString(deterministic=True): one for one in (base, *near)
        }
        members = [
            Member(one[trait], built(one))
            for one in [*distinct.values()][: 2 * _MEMBERS]
            if not bench.refusals(built(one).proto)
        ][:_MEMBERS]
        if len(members) > len(best[1]):
            best = base, members
        if len(members) == min(_MEMBERS, len(TRAITS[trait])):
            break
    return best


def _of_settings(bench: Bench, base: Makeup) -> list[Member]:
    values = [(n, v) for n, v in other_settings(bench) if "PRECISION" not in n]
    random.Random(5).shuffle(values)  # noqa: S311  # the same each time
    some = [{}, *({name: value} for name, value in values[: _MEMBERS + 1])]
    return [Member(str(one), built(base), one) for one in some]


def _of_devices(bench: Bench, base: Makeup) -> list[Member]:
    ids = bench.plugin.device_ids()
    names = [f"{bench.plugin.device_name}.{one}" for one in ids if one]
    return [Member(name, built(base), {}, name) for name in names]
