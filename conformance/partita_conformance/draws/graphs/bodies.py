"""Random models of branches, loops, scans, sequences and recurrences, and of what reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from partita_conformance.draws.draw import Array, Rng, floats, one_of
from partita_conformance.draws.graphs.pairs import rng_of
from partita_conformance.inputs.models import Sample, parse

_UNARY = ("Neg", "Abs", "Exp", "Log", "Sqrt", "Relu", "Sigmoid", "Reciprocal", "Identity")
_TAME = ("Neg", "Abs", "Relu", "Sigmoid", "Softplus", "Identity")
_BINARY = ("Add", "Sub", "Mul", "Max")
_NUMBERS: Mapping[str, Array] = {
    **{f"c{n}": np.array(n, np.int64) for n in range(4)},
    **{f"m{n}": np.array(-n, np.int64) for n in (1, 2)},
    **{f"r{n}": np.array([n], np.int64) for n in range(4)},
    "last": np.array([-1], np.int64),
    "near": np.array([-(2**40)], np.int64),
    "far": np.array([2**40], np.int64),
    "uneven": np.array([1, 3, 2], np.int64),
    "truth": np.array(True),
}
"""Constants that the models read, by the names that they have there."""


def _steps(rng: Rng, name: str, source: str, ops: Sequence[str], last: str) -> str:
    """One to three operations in a row, each on the one before or on it and the source."""
    count = int(rng.integers(1, 4))
    text, before = "", source
    for number in range(count):
        made = last if number == count - 1 else f"{name}{number}"
        if rng.random() < 0.3:
            pair = [before, source][:: int(rng.choice([1, -1]))]
            text += f" {made} = {one_of(rng, *_BINARY)}({', '.join(pair)})"
        else:
            text += f" {made} = {one_of(rng, *ops)}({before})"
        before = made
    return text


def _branch(rng: Rng, n: int) -> str:
    """If, whose branches compute what need have no answer where the other one is taken."""
    sides = []
    for word in "pq":
        read = one_of(rng, "x", "z", f"a{n}")
        sides.append(_steps(rng, f"{word}{n}_", read, _UNARY, f"{word}{n}"))
    if rng.random() < 0.25:  # alike, but for what they read
        sides[1] = sides[0].replace("(x", "(w").replace("(z", "(x").replace("(w", "(z")
        sides[1] = sides[1].replace(f"p{n}", f"q{n}")
    condition = one_of(rng, "t", "u")
    return (
        f" a{n} = {one_of(rng, *_UNARY)}({one_of(rng, 'x', 'z')}) y{n} = If ({condition})"
        f" <then_branch = g{n} () => (float[2,3] p{n}) {{{sides[0]} }},"
        f" else_branch = h{n} () => (float[2,3] q{n}) {{{sides[1]} }}>"
    )


def _loop(rng: Rng, n: int) -> str:
    """Loop of up to three values, which change places, or are read before, behind, or nowhere."""
    count = int(rng.integers(1, 4))
    starts = [one_of(rng, "x", "z", f"a{n}", f"a{n}") for _ in range(count)]
    inner = [f"s{n}_{i}" for i in range(count)]
    body, ends = "", []
    for i in range(count):
        end = f"e{n}_{i}"
        read = one_of(rng, *inner)
        other = one_of(rng, *inner, "x", f"a{n}")
        how = int(rng.integers(4))
        if how == 0:
            body += f" {end} = Identity({read})"
        elif how == 1:
            body += f" {end} = {one_of(rng, *_TAME)}({read})"
        else:
            body += f" {end} = {one_of(rng, 'Add', 'Sub', 'Max')}({read}, {other})"
        ends.append(end)
    outer = [f"o{n}_{i}" for i in range(count)]
    kept = one_of(rng, *range(count))
    unread = one_of(rng, *[i for i in range(count) if i != kept], None)
    names = ["" if i == unread and i < count - 1 else name for i, name in enumerate(outer)]
    types = [f"float[2,3] {name}" for name in inner]
    gives = [f"float[2,3] {name}" for name in ends]
    behind = one_of(rng, f"a{n}", starts[kept], "x")
    return (
        f" a{n} = {one_of(rng, *_TAME)}(x)"
        f" {', '.join(names)} = Loop (k, {one_of(rng, 'truth', 't')},"
        f" {', '.join(starts)}) <body = g{n} (int64 i{n}, bool b{n}, {', '.join(types)})"
        f" => (bool d{n}, {', '.join(gives)}) {{ d{n} = Identity(b{n}){body} }}>"
        f" y{n} = {one_of(rng, 'Sub', 'Add', 'Mul')}(o{n}_{kept}, {behind})"
    )


def _scan(rng: Rng, n: int) -> str:
    """Scan along either axis, in either direction, whose body works along the axis left to it."""
    along, out = (int(v) for v in rng.integers(2, size=2))
    given = (
        [f"num_scan_inputs = 1, scan_input_axes = [{along}]"] if along else ["num_scan_inputs = 1"]
    )
    if out:
        given.append("scan_output_axes = [1]")
    for side in ("input", "output"):
        if rng.random() < 0.4:
            given.append(f"scan_{side}_directions = [1]")
    step = one_of(
        rng,
        "Softmax <axis = 0> ({})",
        "LogSoftmax <axis = -1> ({})",
        "CumSum({}, c0)",
        "Transpose({})",
        "Neg({})",
        "Slice({}, last, near, r0, last)",
        "Sub({}, v)",
    ).format(f"f{n}")
    state = rng.random() < 0.5
    head, tail, carried = "", "", ""
    if state:
        head, tail = f"float[4] s{n}, ", f"float[4] u{n}, "
        carried = f" u{n} = {one_of(rng, 'Add', 'Sub', 'Max')}(s{n}, e{n})"
    reads = one_of(rng, f"e{n}", f"s{n}" if state else f"e{n}")
    outer = f"o{n}, y{n}" if state and rng.random() < 0.5 else f", y{n}" if state else f"y{n}"
    return (
        f" {outer} = Scan <{', '.join(given)}, body = g{n} ({head}float[4] e{n})"
        f" => ({tail}float[4] w{n}) {{{carried} f{n} = {one_of(rng, *_TAME)}({reads})"
        f" w{n} = {step} }}> ({'v, ' if state else ''}m)"
    )


def _sequence(rng: Rng, n: int) -> str:
    """A sequence that is made, changed once or twice, and read at a place."""
    text = one_of(
        rng,
        f" s{n}_0 = SequenceConstruct(x, z)",
        f" s{n}_0 = SequenceConstruct(x, z, a)",
        f" s{n}_0 = SplitToSequence <axis = 0> (both, c2)",
        f" s{n}_0 = SplitToSequence <axis = 0> (both, parts)",
    )
    places = ("c0", "c1", "m1", "m2")
    place = one_of(rng, *places)
    changes = int(rng.integers(1, 4))
    for number in range(changes):
        new = one_of(rng, "x", "a", "z", "b")
        text += f" s{n}_{number + 1} = " + one_of(
            rng,
            f"SequenceInsert(s{n}_{number}, {new}, {place})",
            f"SequenceInsert(s{n}_{number}, {new})",
            f"SequenceInsert(s{n}_{number}, {new}, {one_of(rng, *places)})",
            *([f"SequenceErase(s{n}_{number}, {place})"] if number == 1 else []),
        )
    source = one_of(rng, f"s{n}_{changes}", f"s{n}_{changes}", f"s{n}_{changes - 1}")
    end = one_of(
        rng,
        f"SequenceAt({source}, {place})",
        f"SequenceAt({source}, {place})",
        f"SequenceAt({source}, {one_of(rng, *places)})",
        f"ConcatFromSequence <axis = 0> ({source})",
    )
    return f"{text} y{n} = {end}"


_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _recurrent(rng: Rng, n: int) -> str:
    """A recurrence in any direction, with lengths or without, and what reads all its steps."""
    op = one_of(rng, *_GATES)
    direction = one_of(rng, "forward", "reverse", "bidirectional")
    kind = "b" if direction == "bidirectional" else "f"
    inputs = ["j", f"{op}{kind}w", f"{op}{kind}r", "''", *(["l"] if rng.random() < 0.5 else [])]
    while inputs[-1] == "''":
        inputs.pop()
    outputs = one_of(rng, f"o{n}", f"o{n}", f"o{n}, h{n}")
    read = one_of(
        rng,
        f"Gather <axis = 0> (o{n}, m1)",
        f"Gather <axis = 0> (o{n}, c0)",
        f"Slice(o{n}, last, far, r0)",
        f"Slice(o{n}, r0, r1, r0)",
        f"Gather <axis = 1> (o{n}, m1)",
        f"ReduceMax <axes = [0]> (o{n})",
        f"Transpose <perm = [0,2,1,3]> (o{n})",
        f"Sub(o{n}, h{n})" if "h" in outputs else f"Neg(o{n})",
    )
    given = f'hidden_size = 2, direction = "{direction}"'
    return f" {outputs} = {op} <{given}> ({', '.join(inputs)}) y{n} = {read}"


class Family:
    """Models of one kind.

    Args:
        ports: Inputs, in ONNX's text.
        before: Operations ahead of the drawn ones.
        make: Draws operations that end in ``y`` and a number.
        count: How many stand in one model.
    """

    def __init__(
        self, ports: str, make: Callable[[Rng, int], str], count: int, before: str = ""
    ) -> None:
        self.ports, self.make, self.count, self.before = ports, make, count, before


FAMILIES: Mapping[str, Family] = {
    "branches": Family("float[2,3] x, float[2,3] z, bool t, bool u", _branch, 12),
    "loops": Family("float[2,3] x, float[2,3] z, int64 k, bool t", _loop, 12),
    "scans": Family("float[4,4] m, float[4] v", _scan, 16),
    "sequences": Family(
        "float[2,3] x, float[2,3] z, float[6,3] both",
        _sequence,
        24,
        " a = Neg(x) b = Exp(z) parts = Identity(uneven)",
    ),
    "recurrences": Family("float[3,2,4] j, int32[2] l", _recurrent, 16),
}
_SPECIAL = (0.0, -1.0, 2.0, np.inf, -np.inf, 0.5)


def drawn(family: str, number: int) -> Sample:
    """The model of a family and number."""
    kind = FAMILIES[family]
    rng = rng_of("bodies", family, number)
    lines = kind.before + "".join(kind.make(rng, n) for n in range(kind.count))
    words = set("".join(c if c.isalnum() else " " for c in lines).split())
    weights = {name: array for name, array in _NUMBERS.items() if name in words}
    for op, gates in _GATES.items():
        for letter, sides in (("f", 1), ("b", 2)):
            for part, width in (("w", 4), ("r", 2)):
                if f"{op}{letter}{part}" in words:
                    weights[f"{op}{letter}{part}"] = floats(rng, [sides, gates * 2, width])
    outputs = ", ".join(f"float[] y{n}" for n in range(kind.count))
    text = f"bodies ({kind.ports}) => ({outputs}) {{{lines} }}".replace("''", "")
    proto = parse(text, weights)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return Sample(f"{family} {number}", proto)


def turns(sample: Sample) -> Iterator[dict[str, Array]]:
    """Inputs for runs of one request: each choice both ways, with special numbers where allowed."""
    for number in range(4):
        feeds = sample.feeds(number)
        for name, array in feeds.items():
            if name in ("t", "u"):
                feeds[name] = np.array(bool(number >> (name == "u") & 1))
            elif name == "k":
                feeds[name] = np.array(3 - number)
            elif name == "l":
                feeds[name] = np.array([3, 1 + number % 3], np.int32)
            elif "u" in feeds and array.dtype.kind == "f":
                feeds[name] = np.resize(
                    np.roll(np.array(_SPECIAL, array.dtype), number), array.shape
                )
        yield feeds
