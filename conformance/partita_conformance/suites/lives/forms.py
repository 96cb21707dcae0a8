"""The models of suite ``lives``: two of each form, with the same ports and names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx

import partita
from partita.model.variables import METADATA_KEY, Variable, to_metadata
from partita.tensors.sequence_values import boxed
from partita_conformance.inputs.models import Array, parse

Special = Callable[[np.random.Generator, Mapping[str, int]], Array]
"""Makes the array of one port for some sizes of symbols."""


@dataclass(frozen=True)
class Form:
    """Two models of the same ports.

    Attributes:
        name: What messages call it.
        protos: The models.
        moves: Whether results hold elements of the inputs, at most with the other sign, so that
            any number may be among them.
        most: Of bytes in one input.
        special: By port what makes its arrays, where any numbers will not do.
        impossible: Sizes for which the models cannot be computed, if there are any.
        wrong: By port what makes arrays with which the models cannot be computed.
        counts: The port that says how often something is done, if there is one.
        alike: Whether all symbols are to have one size.
    """

    name: str
    protos: tuple[onnx.ModelProto, onnx.ModelProto] = field(repr=False)
    moves: bool = False
    most: int = 1 << 21
    special: Mapping[str, Special] = field(default_factory=dict)
    impossible: Mapping[str, int] | None = None
    alike: bool = False
    wrong: Mapping[str, Special] = field(default_factory=dict)
    counts: str = ""

    @property
    def has_state(self) -> bool:
        """Whether the models keep a variable from run to run."""
        return bool(self.protos[0].metadata_props)

    def symbols(self, ports: Sequence[partita.Port]) -> list[str]:
        """Names of sizes that may be any."""
        return sorted({str(d) for p in ports for d in p.shape or () if not isinstance(d, int)})

    def array(
        self,
        port: partita.Port,
        sizes: Mapping[str, int],
        rng: np.random.Generator,
        values: str,
        of_code: Sequence[int],
    ) -> Array:
        """An input of some sizes.

        Args:
            port: Which one.
            sizes: Of symbols.
            rng: Which numbers.
            values: A level of dimension ``values``.
            of_code: Numbers that the device's code holds.
        """
        if port.name in self.special:
            if port.name == self.counts and values == "of its code":
                known = [n for n in of_code if n <= _MOST_TURNS] or [7]
                return np.array(known[-1] + 1, port.dtype)
            return self.special[port.name](rng, sizes)
        shape = tuple(d if isinstance(d, int) else sizes[str(d)] for d in port.shape or ())
        return _numbers(np.dtype(port.dtype), shape, rng, values, self.moves, of_code)


_TEXTS = (
    "",
    "a",
    "two words",
    "ends in nul\0",
    " ",
    "\u00e4\u2713 \U0001f600",
    "x" * 70,
    "1.5",
    "nul\0nul",
)
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-3, 60000.0)


def _numbers(
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    rng: np.random.Generator,
    values: str,
    any_number: bool,
    of_code: Sequence[int],
) -> Array:
    """Numbers of a type; texts of other lengths.

    Args:
        dtype: The type.
        shape: The shape.
        rng: The source of chance.
        values: Which: "zeros", "special" or "of its code"; any other word for small ones.
        any_number: Whether all numbers of the type may be among them, infinity and NaN too.
        of_code: Integers that the code of the device holds.
    """
    count = int(np.prod(shape, dtype=int))
    if dtype.hasobject:
        chosen = [_TEXTS[i] for i in rng.integers(0, len(_TEXTS), count)]
        return np.array([*chosen, None], object)[:-1].reshape(shape)
    if values == "zeros" and dtype.kind not in "iub":
        return np.asarray(rng.choice((0.0, -0.0), shape), dtype)
    if values == "zeros":
        return np.zeros(shape, dtype)
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    low = 0 if dtype.kind == "u" else -60
    array = np.asarray(rng.integers(low, 60, shape), dtype)
    of_floats = dtype.kind == "f" or dtype == ml_dtypes.bfloat16
    if of_floats:
        array = np.asarray(array / np.asarray(8, dtype), dtype)
    if values == "of its code" and of_code and count:
        some = rng.integers(0, count, max(1, count // 3))
        numbers = np.asarray([n for n in of_code if n < 120] or [1])
        array.reshape(-1)[some] = rng.choice(numbers, some.size).astype(dtype)
    if values == "special" and any_number and count:
        some = rng.integers(0, count, max(1, count // 3))
        ends = [] if of_floats else [np.iinfo(dtype).min, np.iinfo(dtype).max]
        numbers = np.asarray(_SPECIAL if of_floats else ends, dtype)
        array.reshape(-1)[some] = numbers[rng.integers(0, numbers.size, some.size)]
    return array


def _floats(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _two(text: str, *ops: Sequence[str], weights: Any = None) -> Any:
    """A text with one operator and with another, or with other weights."""
    made = []
    for number in range(2):
        given = {name: of(number) for name, of in (weights or {}).items()}
        made.append(parse(text.format(*(of[number] for of in ops)), given))
    return tuple(made)


def _at(most: str) -> Special:
    def make(rng: np.random.Generator, sizes: Mapping[str, int]) -> Array:
        return np.asarray(rng.integers(0, max(1, sizes[most]), (4 if sizes[most] else 0,)))

    return make


def _box(value: Any) -> Array:
    return np.asarray(boxed(value))


def _parts(rng: np.random.Generator, sizes: Mapping[str, int]) -> Array:
    count = int(rng.integers(0, 5))
    return _box([np.float32(rng.integers(-9, 9, (2, 3))) for _ in range(count)])


def _perhaps(rng: np.random.Generator, sizes: Mapping[str, int]) -> Array:
    return _box(np.float32(rng.integers(-9, 9, (2, 3))) if rng.integers(2) else None)


def _whole(rng: np.random.Generator, sizes: Mapping[str, int]) -> Array:
    count = sizes["N"]
    turned = bool(count and rng.integers(2))  # a zero of another place than the input's is none
    return np.array((1, count) if turned else (count, 1), np.int64)


def _turns(rng: np.random.Generator, sizes: Mapping[str, int]) -> Array:
    return np.array(int(rng.integers(0, 4)), np.int64)


_MOST_TURNS = 1100


def _of_variables(text: str, ops: Sequence[str]) -> Any:
    """Two models that keep a variable."""
    made = _two(text, ops)
    for proto in made:
        entry = proto.metadata_props.add()
        entry.key, entry.value = METADATA_KEY, to_metadata([Variable("v", "past", "present")])
    return made


_SIGNS, _SUMS = ("Neg", "Abs"), ("Sub", "Max")


def _of_floats() -> Iterator[Form]:
    """Layers, elements and tensors of one type."""
    yield Form(
        "a layer",
        _two(
            "g (float[N,8] x) => (float[N,5] y) {{ a = MatMul(x, w) b = Add(a, c) y = Relu(b) }}",
            weights={"w": lambda n: _floats(n + 1, 8, 5), "c": lambda n: _floats(n + 3, 5)},
        ),
    )
    yield Form(
        "a layer of known sizes",
        _two(
            "g (float[4,8] x) => (float[4,5] y, float[4,8] z)"
            " {{ a = MatMul(x, w) y = Add(a, c) z = Neg(x) }}",
            weights={"w": lambda n: _floats(n + 5, 8, 5), "c": lambda n: _floats(n + 7, 5)},
        ),
    )
    yield Form(
        "one tensor as it is",
        _two("g (float[N] x) => (float[N] y, float[N] z) {{ y = Identity(x) z = {}(x) }}", _SIGNS),
        moves=True,
    )
    yield Form(
        "an element by itself",
        _two("g (float[N] x) => (float[N] y) {{ y = {}(x) }}", _SIGNS),
        moves=True,
    )
    yield Form(
        "known sizes",
        _two("g (float[3,7] x) => (float[7,3] y) {{ a = Transpose(x) y = {}(a) }}", _SIGNS),
        moves=True,
    )
    yield Form(
        "two tensors joined",
        _two(
            "g (float[N] a, float[M] b) => (float[K] y, float[N] z)"
            " {{ y = Concat <axis = 0> (a, b) z = {}(a) }}",
            _SIGNS,
        ),
        moves=True,
    )
    yield Form(
        "two tensors of one size",
        _two("g (float[N,3] a, float[N,3] b) => (float[N,3] y) {{ y = {}(a, b) }}", _SUMS),
    )
    yield Form(
        "a sum of any sizes",
        _two(
            "g (float[N] a, float[M] b) => (float[N] z, float[K] y) {{ z = Neg(a) y = {}(a, b) }}",
            ("Add", "Mul"),
        ),
        impossible={"N": 3, "M": 4},
        alike=True,
    )
    yield Form(
        "a scalar beside a tensor",
        _two(
            "g (float s, int64 t, float[N] x) => (float[N] y, int64 u, float v)"
            " {{ y = {}(x, s) u = Neg(t) v = Identity(s) }}",
            _SUMS,
        ),
    )


def _of_types() -> Iterator[Form]:
    """Each element type, and several in one model."""
    yield Form(
        "bytes and truths",
        _two(
            "g (uint8[N] x, bool[N] w) => (uint8[N] y, bool[N] v)"
            " {{ y = Identity(x) a = {}(w) v = Not(a) }}",
            ("Identity", "Not"),
        ),
        moves=True,
    )
    for element in ("float16", "double", "bfloat16", "int8"):
        text = (
            f"g ({element}[2,N] x) => ({element}[N,2] y, {element}[2,N] z)"
            " {{ y = Transpose(x) z = {}(x) }}"
        )
        yield Form(f"a tensor of {element}", _two(text, _SIGNS), moves=element != "int8")
    yield Form(
        "integers of two widths",
        _two(
            "g (int64[N,2] a, int32[N] b) => (int64[N,2] y, int32[N] z)"
            " {{ y = Neg(a) z = {}(b, b) }}",
            ("Add", "Mul"),
        ),
    )
    yield Form(
        "texts",
        _two(
            "g (string[N] x, float[N] a) => (string[N] y, float[N] z)"
            " {{ y = Identity(x) z = {}(a) }}",
            _SIGNS,
        ),
        most=1 << 12,
    )


def _of_bodies() -> Iterator[Form]:
    """Bodies, and values that decide shapes and places."""
    yield Form(
        "branches",
        _two(
            "g (bool w, float[N] x) => (float[N] y) {{ y = If (w) <then_branch = t () =>"
            " (float[N] p) {{ p = {}(x) }}, else_branch = e () => (float[N] q)"
            " {{ q = Identity(x) }}> }}",
            _SIGNS,
        ),
    )
    yield Form(
        "a loop",
        _two(
            "g (int64 n, bool go, float[N] x) => (float[N] y)"
            " {{ y = Loop <body = body (int64 i, bool c, float[N] s) => (bool d, float[N] t)"
            " {{ d = Identity(c) t = {}(s, x) }}> (n, go, x) }}",
            ("Add", "Sub"),
        ),
        special={"n": _turns},
        counts="n",
        most=1 << 16,
    )
    yield Form(
        "a shape that is given",
        _two(
            "g (float[N] x, int64[2] s) => (float[A,B] y) {{ a = {}(x) y = Reshape(a, s) }}", _SIGNS
        ),
        special={"s": _whole},
        wrong={"s": lambda rng, sizes: np.array([3, sizes["N"] + 5], np.int64)},
        moves=True,
    )
    yield Form(
        "as many as there are",
        _two("g (float[N] x) => (int64[1,K] y, float[N] z) {{ y = NonZero(x) z = {}(x) }}", _SIGNS),
    )
    yield Form(
        "places",
        _two(
            "g (float[N,3] x, int64[M] i) => (float[M,3] y) {{ a = Gather(x, i) y = {}(a) }}",
            _SIGNS,
        ),
        special={"i": _at("N")},
        moves=True,
    )


def _of_sequences() -> Iterator[Form]:
    """What is no tensor."""
    yield Form(
        "a sequence as it is",
        _two(
            "g (seq(float[2,3]) s, float[N] x) => (seq(float[2,3]) y, int64 n, float[N] z)"
            " {{ y = Identity(s) n = SequenceLength(s) z = {}(x) }}",
            _SIGNS,
        ),
        special={"s": _parts},
    )
    yield Form(
        "a sequence",
        _two(
            "g (seq(float[2,3]) s, float[2,3] x) => (seq(float[2,3]) y, float[2,3] z)"
            " {{ y = SequenceInsert(s, x) z = {}(x) }}",
            _SIGNS,
        ),
        special={"s": _parts},
    )
    yield Form(
        "an optional",
        _two(
            "g (optional(float[2,3]) o, float[N] x) => (optional(float[2,3]) y, bool h,"
            " float[N] z) {{ y = Identity(o) h = OptionalHasElement(o) z = {}(x) }}",
            _SIGNS,
        ),
        special={"o": _perhaps},
    )


def _of_ports() -> Iterator[Form]:
    """Rows, images, and ports of all kinds."""
    yield Form(
        "rows",
        _two(
            "g (float[N,M] x) => (float[N,M] y, float[N] m)"
            " {{ y = Softmax <axis = {}> (x) m = ReduceMax <axes = [1], keepdims = 0> (x) }}",
            ("1", "0"),
        ),
        most=1 << 19,
    )
    yield Form(
        "an image",
        _two(
            "g (float[N,2,6,6] x) => (float[N,3,6,6] y)"
            " {{ a = Conv <pads = [1,1,1,1]> (x, w) y = Relu(a) }}",
            weights={"w": lambda n: _floats(n + 9, 3, 2, 3, 3)},
        ),
        most=1 << 16,
    )
    yield Form(
        "constants and what nobody reads",
        _two(
            "g (float[3] x, float[N] unread) => (float[3] x, float[3] w, float[3] z, float[3] y)"
            " {{ z = {}(w) y = Add(x, w) }}",
            _SIGNS,
            weights={"w": lambda n: _floats(n + 11, 3)},
        ),
    )
    yield Form(
        "no inputs",
        _two(
            "g () => (float[3] y, float[3] z) {{ y = {}(w) z = Exp(w) }}",
            _SIGNS,
            weights={"w": lambda n: _floats(n + 13, 3)},
        ),
    )
    nine = range(9)
    yield Form(
        "many ports",
        _two(
            f"g ({', '.join(f'float[N] x{n}' for n in nine)}) =>"
            f" ({', '.join(f'float[N] y{n}' for n in nine)})"
            f" {{{{ {' '.join(f'y{n} = {{0}}(x{8 - n})' for n in nine)} }}}}",
            _SIGNS,
        ),
        moves=True,
        most=1 << 15,
    )
    text = "g (float[2,3] x, float[2,3] past) => (float[2,3] y, float[2,3] present)"
    yield Form(
        "a variable",
        _of_variables(text + " {{ present = {}(past, x) y = Neg(present) }}", ("Add", "Max")),
    )


def forms() -> Iterator[Form]:
    """All of them; a device may take some only."""
    for some in (_of_floats, _of_types, _of_bodies, _of_sequences, _of_ports):
        yield from some()
