"""Further checks of suites ``properties`` and ``query``: settings hold wherever they are used."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.errors import PartitaError, PropertyError
from partita.properties import is_read_only
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, beside, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import (
    ConformanceError,
    NotApplicableError,
    require,
    require_raises,
)
from partita_conformance.suites.contract.suite_properties import other_values, settable
from partita_conformance.suites.feeding import steps_taken

_NUMBERS = (0, 1, 2, 3, 4, 7, 9, 17, 100, 1000, 65_537, 2**31 - 1, 2**40)
"""Values of numbers: below, at and beyond what a driver may have room for."""
_FRACTIONS = (0.1, 1 / 3, 1e-9)
"""Values of fractions, of which float32 holds none."""
_COMPILED = 17
"""Numbers up to this one are compiled with too: more threads or requests cost more than time."""


def _numbers(bench: Bench) -> Iterator[tuple[str, Any]]:
    """Properties that are whole numbers or fractions, each with numbers that it may have."""
    for name, field in settable(bench):
        if field.annotation in (int, float):
            for number in (*_NUMBERS, *(_FRACTIONS if field.annotation is float else ())):
                yield name, field.annotation(number)


@check("properties")
def numbers_are_kept_or_refused(bench: Bench) -> None:
    """A number that a property is set to is read back as it is, or is refused: never another."""
    sample = bench.sample("plain")
    tried = 0
    for name, number in _numbers(bench):
        core = bench.new_core()
        before = core.get_property(bench.device, name)
        try:
            core.set_property(bench.device, {name: number})
        except PropertyError:
            have = core.get_property(bench.device, name)
            require(have == before, f"{name}={number} is refused, and {before} became {have}.")
            continue
        tried += 1
        have = core.get_property(bench.device, name)
        require(have == number, f"{name} was set to {number}; it reads {have}. Refuse it instead.")
        model = bench.read(sample.proto)
        answer = core.query_model(model, bench.device, bench.target.config)
        takes_all = all(op.name in answer for op in model.ops)  # a limit of memory may forbid it
        if number <= _COMPILED and takes_all:
            compiled = bench.compile(sample.proto, core=core)
            have = compiled.get_property(name)
            wish = any(name in note for note in compiled.explain().notes)
            require(
                have == number or (wish and name.endswith("_HINT")),
                f"{name} was set to {number}; the compiled model has {have}.",
            )
    if not tried:
        raise NotApplicableError("the device has no property that is a number")


_STEPS = (
    *(f"{op}(x)" for op in ("Abs", "Erf", "Exp", "LeakyRelu", "Sigmoid", "Softmax", "Tanh")),
    *("ReduceMean(x)", "Transpose(x)", "Add(x, w)", "Div(x, w)", "Clip(x, low, high)"),
    *("Gemm(x, v)", "MatMul(x, v)", "Gather <axis = 1> (x, places)", "Conv(image, kernel)"),
    *("MaxPool <kernel_shape = [2,2]> (image)", "LayerNormalization(x, row, row)"),
    *("BatchNormalization(image, c, c, c, c)", "GlobalAveragePool(image)"),
)
"""What most devices take, of each kind some: a driver may build each anew for every setting."""
_PORTS = ("float[2,3] x", "float[1,2,4,5] image")
_WEIGHTS = {
    "w": np.array([[0.5, 2, 1], [1.5, -1, 3]], np.float32),
    "v": np.array([[0.5, -1], [2, 1], [-0.5, 3]], np.float32),
    "row": np.array([0.5, 2, 1], np.float32),
    "low": np.array(-0.5, np.float32),
    "high": np.array(0.75, np.float32),
    "places": np.array([2, 0]),
    "kernel": np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 2, 2, 2),
    "c": np.array([1.5, 0.5], np.float32),
}


_TYPED = ("Neg(x)", "Abs(x)", "Add(x, x)", "Mul(x, x)", "Max(x, x)", "Identity(x)", "Transpose(x)")
_OF_FLOATS = ("Relu(x)", "Exp(x)", "Tanh(x)", "Softmax(x)", "MatMul(x, z)")
_ELEMENTS = ("double", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool", "string")


class _Asked(NamedTuple):
    """Operations that are asked about together.

    Attributes:
        what: What they have in common.
        steps: The operations.
        ports: Inputs.
        weights: Weights.
    """

    what: str
    steps: Sequence[str]
    ports: Sequence[str]
    weights: dict[str, Array]


def _groups() -> Iterator[_Asked]:
    """Operations of floats, of symbols, and of each other element type."""
    yield _Asked("float", _STEPS, _PORTS, _WEIGHTS)
    symbols = tuple(port.replace("2,3]", "N,3]").replace("[1,2", "[N,2") for port in _PORTS)
    yield _Asked("float of any number of rows", _STEPS, symbols, _WEIGHTS)
    for element in _ELEMENTS:
        numbers = element not in ("bool", "string")
        floats = numbers and "int" not in element
        steps = (*(_TYPED if numbers else _TYPED[-2:]), *(_OF_FLOATS if floats else ()))
        yield _Asked(element, steps, (f"{element}[2,3] x", f"{element}[3,2] z"), {})


@check("query", values=True)
def what_is_taken_compiles_under_every_setting(bench: Bench) -> None:
    """Whatever value a property has, what a query with it takes compiles with it and is right.

    Of each element type, and of shapes that are known and not.
    """
    tried = 0
    for asked in _groups():
        usual = steps_taken(bench, asked.steps, asked.ports, asked.weights)
        tried += len(usual)
        for name, field in settable(bench) if usual else ():
            for value in other_values(field):
                _compiles_with(bench, asked._replace(steps=usual), name, value)
    if not tried:
        raise NotApplicableError("the device takes none of the operations")


def _compiles_with(bench: Bench, asked: _Asked, name: str, value: Any) -> None:
    setting, what = {name: value}, f"with {name}={value!r}"
    taken = steps_taken(bench, asked.steps, asked.ports, asked.weights, setting)
    if not taken:
        return
    proto = beside(taken, asked.ports, asked.weights)
    try:
        compiled = bench.compile(proto, setting)
    except PartitaError as error:
        raise ConformanceError(
            f"{what} {', '.join(taken)} of {asked.what} are taken, and do not compile: {error}"
        ) from error
    if "PRECISION" in name or asked.what == "string":
        return
    feeds = Sample("", proto, {"N": 3}).feeds(61)
    try:
        due = bench.expected(proto, feeds)
    except PartitaError:
        return  # no judge has all of them in this type
    compare(compiled(feeds).to_tuple(), due, f"{asked.what} {what}")


_NARROW = {
    "a product": "y = MatMul(x, w)",
    "a product and what most devices compute in full": "a = MatMul(x, w) y = Softmax(a)",
    "a product of sums": "a = Add(x, x) b = MatMul(a, w) c = Exp(b) d = Sigmoid(c) y = Mul(d, c)",
    "a product that is turned": "a = MatMul(x, w) b = Transpose(a) c = Erf(b) y = Sub(b, c)",
    "a convolution": "a = Reshape(x, s) b = Conv(a, k) c = Tanh(b) y = Flatten(c)",
}
_HALVES = ("f16", "fp16", "float16", "bf16", "bfloat16")
"""Values of properties that say that one computes in half precision."""
_EXACT = 3e-6
"""Of the largest element: nothing that half precision has touched is so near to float32."""


@check("properties")
def narrow_precision_is_told_if_it_is_there(bench: Bench) -> None:
    """Who says of a model that it computes in half precision does not compute it all in float32.

    What a hint has come to is what the compiled model says.
    """
    names = [(n, f) for n, f in settable(bench) if "PRECISION" in n]
    weights: dict[str, Array] = {
        "w": np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8) ** 3,
        "k": np.linspace(-0.7, 0.9, 27, dtype=np.float32).reshape(3, 1, 3, 3),
        "s": np.array([1, 1, 8, 8]),
    }
    tried = 0
    for what, step in _NARROW.items():
        read = {n: a for n, a in weights.items() if f", {n})" in step}
        proto = parse(f"g (float[8,8] x) => (float y) {{ {step} }}", read)
        proto.graph.output[0].type.tensor_type.ClearField("shape")
        if bench.refusals(proto):
            continue
        feeds = Sample("", proto).feeds(62)
        (due,) = bench.expected(proto, feeds)
        for name, field in names:
            for value in other_values(field):
                if str(value).lower() not in _HALVES:
                    continue
                compiled = bench.compile(proto, {name: value})
                if compiled.get_property(name) != value:
                    continue
                tried += 1
                (have,) = compiled(feeds).to_tuple()
                off = float(np.abs(have - due).max() / np.abs(due).max())
                said = f"{name} of {what} reads {value!r}; results are float32's but for {off:.1e}."
                require(off > _EXACT, said)
    if not tried:
        raise NotApplicableError("the device says of no model that it computes in half precision")


_TEXTS = (
    "",
    "a",
    "A",
    " a b ",
    "a" * 300,
    "\u00e4\u2713",
    "a\u0308",
    "0",
    "yes",
    "a,b",
    "a=b",
    "{}",
)
"""Values of texts that one may take for others, or make others of."""


@check("properties")
def texts_are_kept_or_refused(bench: Bench) -> None:
    """A text that a property is set to is read back as it is, or is refused: never another."""
    names = [n for n, field in settable(bench) if field.annotation is str]
    core = bench.new_core()
    for name, text in itertools.product(names, _TEXTS):
        before = core.get_property(bench.device, name)
        try:
            core.set_property(bench.device, {name: text})
        except PropertyError:
            text = before
        have = core.get_property(bench.device, name)
        require(have == text, f"{name} was {before!r} and set to {text!r}; it reads {have!r}.")
    if not names:
        raise NotApplicableError("the device has no property that is a text")


_TRUTHS = {
    True: ("YES", "yes", "TRUE", "true", "1", 1),
    False: ("NO", "no", "FALSE", "false", "0", 0),
}


def _spellings(field: Any, default: Any) -> Iterator[tuple[Any, Any]]:
    """Values of a property, each with a way to write it, as far as they follow from its type."""
    annotation = field.annotation
    if not other_values(field, default):
        return
    if annotation is bool:
        for truth in (not default, default):
            yield from ((truth, text) for text in _TRUTHS[truth])
    for value in (*other_values(field, default), default):
        if isinstance(value, enum.Enum):
            yield value, value.value
        elif annotation is int:
            yield value, str(value)
        yield value, value


@check("properties")
def values_may_be_texts(bench: Bench) -> None:
    """Truths, numbers and choices may be given as texts, wherever properties are given."""
    sample = bench.sample("plain")
    read, core = bench.read(sample.proto), bench.new_core()
    blob = bench.compile(sample.proto).export_model() if _exports(bench, sample) else None
    for name, field in settable(bench):
        usual = core.get_property(bench.device, name)
        for value, text in _spellings(field, usual):
            what = f"{name}={text!r}"
            core.set_property(bench.device, {name: text})
            have = core.get_property(bench.device, name)
            same = have == value and type(have) is type(value)
            require(same, f"{what} was set; it reads {have!r}, not {value!r}.")
            core.set_property(bench.device, {name: usual})
            bench.core.query_model(read, bench.device, {**bench.target.config, name: text})
            made = {"compile": bench.compile(sample.proto, {name: text})}
            if blob is not None:
                made["import"] = bench.core.import_model(blob, bench.device, {name: text})
            for where, compiled in made.items():
                have = compiled.get_property(name)
                noted = any(name in note for note in compiled.explain().notes)
                same = have == value and type(have) is type(value)
                wish = noted and name.endswith("_HINT")
                require(same or wish, f"{what} was given to {where}, which has {have!r}.")


def _exports(bench: Bench, sample: Sample) -> bool:
    """Whether the device exports what it compiled."""
    try:
        bench.compile(sample.proto).export_model()
    except PartitaError:
        return False
    return True


_WRONG: dict[Any, tuple[Any, ...]] = {
    bool: ("maybe", "", 2, -1, [], None),
    int: ("1.5", 1.5, "", "many", [], None),
    float: ("much", "", [], None),
}


def _wrong(field: Any) -> Iterator[Any]:
    """Values that a property cannot have: of another kind, and beyond its bounds."""
    yield from _WRONG.get(field.annotation, ())
    for limit in field.metadata:
        for bound, step in (("ge", -999), ("gt", -999), ("le", 999), ("lt", 999)):
            if hasattr(limit, bound):
                yield getattr(limit, bound) + step


@check("properties")
def wrong_values_are_refused_everywhere(bench: Bench) -> None:
    """What a property cannot be is refused wherever it is given, also beside what it can be."""
    sample = bench.sample("plain")
    core, read = bench.new_core(), bench.read(sample.proto)
    blob = bench.compile(sample.proto).export_model() if _exports(bench, sample) else None
    usual = {name: core.get_property(bench.device, name) for name, _ in settable(bench)}
    bad = [(n, value) for n, field in settable(bench) for value in _wrong(field)]
    fields = bench.plugin.properties_type.model_fields
    bad += [(n, usual.get(n, 1)) for n in fields if is_read_only(bench.plugin.properties_type, n)]
    for name, value in (*bad, ("NO_SUCH_PROPERTY", 1), ("perf_count", True)):
        given = {"PERF_COUNT": not usual["PERF_COUNT"], name: value}
        actions = {
            "set_property": lambda given=given: core.set_property(bench.device, given),
            "query_model": lambda given=given: core.query_model(read, bench.device, given),
            "compile_model": lambda given=given: core.compile_model(read, bench.device, given),
            "import_model": lambda given=given: core.import_model(blob, bench.device, given),
        }
        for where, action in actions.items():
            if where != "import_model" or blob is not None:
                require_raises(PropertyError, action, f"{where} with {name}={value!r}")
    for name, value in usual.items():
        have = core.get_property(bench.device, name)
        require(have == value, f"What was refused has changed {name} from {value!r} to {have!r}.")


@check("properties", values=True)
def each_model_keeps_its_own(bench: Bench) -> None:
    """Of models with one setting each, all there at once, each has that and all else as usual."""
    sample = bench.sample("plain")
    usual, core = bench.compile(sample.proto), bench.new_core()
    names = [name for name, _ in settable(bench)]
    due = {name: usual.get_property(name) for name in names}
    names = [name for name in names if not isinstance(due[name], dict)]  # of other devices' facts
    made = []
    for name, field in settable(bench):
        for value in other_values(field):
            given = bench.compile(sample.proto, {name: value}, core)
            core.set_property(bench.device, {name: value})
            set_one = bench.compile(sample.proto, core=core)
            core.set_property(bench.device, {name: field.default})
            made += [(name, value, given), (name, value, set_one)]
            over = bench.compile(sample.proto, core=core)
            made.append((name, field.default, over))
    for name, value, compiled in (*made, ("", None, usual)):
        feeds = sample.feeds(62)
        if "PRECISION" not in name:
            what = f"{sample.name} with {name}={value!r} beside {len(made)} others"
            compare(compiled(feeds).to_tuple(), bench.expected(sample.proto, feeds), what)
        for other in names:
            have = compiled.get_property(other)
            if other == name:
                wish = name.endswith("_HINT")  # may come to something else
                require(have == value or wish, f"{name}={value!r} has become {have!r}.")
            elif not name.endswith("_HINT") and not other.endswith("_HINT"):
                said = f"Of a model with {name}={value!r}, {other} is {have!r}, not {due[other]!r}."
                require(have == due[other], said)
