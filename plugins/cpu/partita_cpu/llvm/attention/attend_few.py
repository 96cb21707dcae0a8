"""Attention of few queries to keys and values as they lie in a cache: scores, sums of values.

What is read of the cache is widened once for all queries of a kernel. Products of a query with four
keys are added up in four vectors, whose lanes are added up across by shuffles: of as many keys as a
vector has lanes, scores are one vector, without a sum of lanes for each.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from partita_cpu.llvm import activations, epilogue, half_vectors, masked
from partita_cpu.llvm.attention import attend
from partita_cpu.llvm.attention.attend import online_softmax
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.masked import column_masks, masked_load, masked_store

SCORE_PARAMETERS = "ptr %q, i64 %size, ptr %keys, i64 %step, i64 %count, ptr %scores, i64 %line"
"""q: the first of the kernel's queries, one behind another, of size floats each. keys: the first of
count rows, at least one; step: bytes to the next one. scores: where those of the first query go,
rounded up to whole vectors; line: bytes to those of the next one."""

SUM_PARAMETERS = (
    "ptr %weights, i64 %line, i64 %count, ptr %values, i64 %step, i64 %size, ptr %y, ptr %shares"
)
"""weights: of the first query for count rows, which lie in whole vectors; line: bytes to those of
the next one. values: the first row, of size elements; step: bytes to the next one. y: the first
query's result, of size floats, behind which others lie. shares: for each query a factor: y begins
with what it had, times the factor."""

SOFTMAX_ROWS = 16
"""Most queries of the softmax that is compiled with these kernels."""

_KEYS = 4
"""Whose products are added up side by side."""

_AHEAD = 4096
"""Bytes between what is read and what is asked for: processors that foresee lines do so within a
page, and the next page's address has to be found first."""

_LINE = 64
"""Bytes that are asked for at a time."""


class Elements(enum.Enum):
    """Of what a row of a cache consists; the value ends the name of the part of its kernels."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"  # codes, and the row's scale as a float behind a multiple of four of them

    @property
    def bytes(self) -> int:
        """Of an element."""
        return {Elements.FLOAT32: 4, Elements.INT8: 1}.get(self, 2)


def part_of(elements: Elements) -> str:
    """The part of the kernels for such caches."""
    return f"_cache_{elements.value}"


PARTS = {part_of(elements): elements for elements in Elements}
"""Of the kernels, by name."""


def most_queries(level: Level) -> int:
    """Queries of a kernel at most: so many as leave all sums in registers."""
    return 2 if level.lanes == masked.AVX2_LANES else 4


def functions(level: Level, elements: Elements) -> list[Function]:
    """The kernels of a level for caches of such elements."""
    counts, lanes = range(1, most_queries(level) + 1), level.lanes
    made = [_Scores(f"scores_{rows}", rows, lanes, elements).function() for rows in counts]
    made += [_Sums(f"sums_{rows}", rows, lanes, elements).function() for rows in counts]
    return [*made, online_softmax("online_softmax", SOFTMAX_ROWS, lanes)]


class _Rows:
    """Writes what reads rows of a cache.

    Args:
        f: The kernel; its parameters ``%step``, ``%size`` and ``%count`` tell of the rows.
        lanes: Floats of a vector.
        elements: Of the cache.
    """

    def __init__(self, f: Function, lanes: int, elements: Elements) -> None:
        self._f, self._lanes, self._elements = f, lanes, elements
        self._last = f.let("sub i64 %count, 1")
        if elements is Elements.INT8:
            self._scales_at = f.let(f"and i64 {f.let('add i64 %size, 3')}, -4")
            self._steps = self._splat(f.let("trunc i64 %step to i32"))
            self._lasts = self._splat(f.let(f"trunc i64 {self._last} to i32"))

    def vector(self, row: str, place: str | int, mask: str | None) -> str:
        """Floats of a row from one on, counted by elements; lanes outside of the mask are 0."""
        f, lanes, kind = self._f, self._lanes, self._elements
        at = f.at(row, f.let(f"mul i64 {place}, {kind.bytes}"))
        if kind is Elements.FLOAT32:
            return masked_load(f, lanes, at, mask)
        if kind is not Elements.INT8:
            half = half_vectors.FLOAT16 if kind is Elements.FLOAT16 else half_vectors.BFLOAT
            return half_vectors.load_half(f, lanes, at, mask, half)
        codes, m = f"<{lanes} x i8>", f"<{lanes} x i1>"
        if mask is None:
            found = f.load(codes, at, 1)
        else:
            call = f"call {codes} @llvm.masked.load.v{lanes}i8.p0"
            found = f.let(f"{call}(ptr {at}, i32 1, {m} {mask}, {codes} zeroinitializer)")
        wide = f.let(f"sext {codes} {found} to <{lanes} x i32>")
        return f.let(f"sitofp <{lanes} x i32> {wide} to <{lanes} x float>")

    def within(self, number: str) -> str:
        """A number of a row, or the last one's if it is beyond."""
        return self._f.let(f"call i64 @llvm.smin.i64(i64 {number}, i64 {self._last})")

    def scaled(self, rows: str, first: str, values: Sequence[str]) -> list[str]:
        """Vectors with a number for each row from one on, times the rows' scales if they have some.

        What is beyond the last row is multiplied with its scale.
        """
        if self._elements is not Elements.INT8:
            return list(values)
        f, lanes = self._f, self._lanes
        ints, v = f"<{lanes} x i32>", f"<{lanes} x float>"
        numbers = f"<{', '.join(f'i32 {i}' for i in range(lanes))}>"
        numbers = f.let(f"add {ints} {self._splat(f.let(f'trunc i64 {first} to i32'))}, {numbers}")
        name = f"@llvm.smin.v{lanes}i32"
        numbers = f.let(f"call {ints} {name}({ints} {numbers}, {ints} {self._lasts})")
        offsets = f.let(f"mul {ints} {numbers}, {self._steps}")
        start = f.at(rows, self._scales_at)
        places = f.let(f"getelementptr i8, ptr {start}, {ints} {offsets}")
        every = f"<{lanes} x i1> splat (i1 true)"
        gather = f"call {v} @llvm.masked.gather.v{lanes}f32.v{lanes}p0"
        found = f.let(f"{gather}(<{lanes} x ptr> {places}, i32 1, {every}, {v} zeroinitializer)")
        return [f.let(f"fmul {v} {value}, {found}") for value in values]

    def _splat(self, value: str) -> str:
        return self._f.splat(self._lanes, "i32", value)


class _Scores:
    """Writes ``scores[r, j] = sum over k of q[r, k] * keys[j, k]``, times the key's scale."""

    def __init__(self, name: str, rows: int, lanes: int, elements: Elements) -> None:
        f = self._f = Function(name, SCORE_PARAMETERS)
        self._rows, self._lanes = rows, lanes
        self._vector = f"<{lanes} x float>"
        self._keys = _Rows(f, lanes, elements)
        self._whole, self._some, self._mask = _vectors_of_row(f, lanes)
        queries = ["%q"]
        for _ in range(1, rows):
            queries.append(f.at(queries[-1], f.let("shl i64 %size, 2")))
        self._queries = queries
        four = f.let(f"mul i64 %step, {_KEYS}")
        self._lines = f.let(f"udiv i64 {f.let(f'add i64 {four}, {_LINE - 1}')}, {_LINE}")

    def function(self) -> Function:
        f, lanes = self._f, self._lanes
        vectors = f.let(f"udiv i64 {f.let(f'add i64 %count, {lanes - 1}')}, {lanes}")

        def several(index: str, carried: list[str]) -> list[str]:
            first = f.let(f"mul i64 {index}, {lanes}")
            parts: list[list[str]] = [[] for _ in range(self._rows)]
            for key in range(0, lanes, _KEYS):
                found = self._products(f.let(f"add i64 {first}, {key}") if key else first)
                for row, sums in enumerate(parts):
                    sums.append(self._in_quads(found[_KEYS * row : _KEYS * (row + 1)]))
            totals = [self._across(sums) for sums in parts]
            to = carried[0]
            for row, total in enumerate(self._keys.scaled("%keys", first, totals)):
                to = f.at(to, "%line") if row else to
                f.do(f"store {self._vector} {total}, ptr {to}, align 4")
            return [f.at(carried[0], 4 * lanes)]

        f.loop(vectors, [("ptr", "%scores")], several)
        f.do("ret void")
        return f

    def _products(self, first: str) -> list[str]:
        """Of each query with four keys from one on: vectors whose lanes are to be added up."""
        f, v = self._f, self._vector
        keys = []
        for key in range(_KEYS):
            number = self._keys.within(f.let(f"add i64 {first}, {key}") if key else first)
            keys.append(f.at("%keys", f.let(f"mul i64 {number}, %step")))
        f.loop(self._lines, [("ptr", f.at(keys[0], _AHEAD))], self._fetch)

        def step(mask: str | None) -> Callable[[str, list[str]], list[str]]:
            def body(_: str, carried: list[str]) -> list[str]:
                place, *sums = carried
                columns = [self._keys.vector(key, place, mask) for key in keys]
                at = f.let(f"shl i64 {place}, 2")
                found = []
                for row, query in enumerate(self._queries):
                    x = masked_load(f, self._lanes, f.at(query, at), mask)
                    beside = sums[_KEYS * row : _KEYS * (row + 1)]
                    pairs = zip(columns, beside, strict=True)
                    found += [f.fma(self._lanes, x, y, total) for y, total in pairs]
                return [f.let(f"add i64 {place}, {self._lanes}"), *found]

            return body

        state = [("i64", "0"), *[(v, "zeroinitializer")] * _KEYS * self._rows]
        for rounds, mask in ((self._whole, None), (self._some, self._mask)):
            found = f.loop(rounds, state, step(mask))
            state = [(kind, x) for (kind, _), x in zip(state, found, strict=True)]
        return [x for _, x in state[1:]]

    def _fetch(self, _: str, places: list[str]) -> list[str]:
        """Asks for a line."""
        self._f.do(epilogue.prefetch(places[0], 3))
        return [self._f.at(places[0], _LINE)]

    def _in_quads(self, sums: Sequence[str]) -> str:
        """Of four vectors one with what each four of their lanes come to, one behind another."""
        lanes = self._lanes
        quads = range(0, lanes, _KEYS)
        dealt = [x for i in quads for x in (i, lanes + i, i + 1, lanes + i + 1)]
        beside = [x for i in quads for x in (i, i + 1, lanes + i, lanes + i + 1)]
        pairs = zip(sums[::2], sums[1::2], strict=True)
        first, second = (self._added(a, b, dealt, 2) for a, b in pairs)
        return self._added(first, second, beside, 2)

    def _across(self, vectors: list[str]) -> str:
        """The sums of all quads of each vector, side by side."""
        run = self._lanes
        while len(vectors) > 1:
            half = run // 2
            low = [first + i for first in range(0, 2 * self._lanes, run) for i in range(half)]
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [self._added(a, b, low, half) for a, b in pairs]
            run = half
        return vectors[0]

    def _added(self, a: str, b: str, low: Sequence[int], apart: int) -> str:
        """Some lanes of two vectors, those of the second numbered on, plus those so far behind."""
        v, parts = self._vector, []
        for places in (low, [place + apart for place in low]):
            mask = ", ".join(f"i32 {place}" for place in places)
            kind = f"<{self._lanes} x i32> <{mask}>"
            parts.append(self._f.let(f"shufflevector {v} {a}, {v} {b}, {kind}"))
        return self._f.let(f"fadd {v} {parts[0]}, {parts[1]}")


class _Sums:
    """Writes ``y[r, :] = shares[r] * y[r, :] + sum over j of weights[r, j] * values[j, :]``.

    Weights are multiplied with the scales of rows first, where they lie.
    """

    def __init__(self, name: str, rows: int, lanes: int, elements: Elements) -> None:
        f = self._f = Function(name, SUM_PARAMETERS)
        self._rows, self._lanes, self._elements = rows, lanes, elements
        self._vector = f"<{lanes} x float>"
        self._values = _Rows(f, lanes, elements)
        self._pitch = f.let("shl i64 %size, 2")

    def function(self) -> Function:
        f, lanes = self._f, self._lanes
        if self._elements is Elements.INT8:
            vectors = f.let(f"udiv i64 {f.let(f'add i64 %count, {lanes - 1}')}, {lanes}")
            f.loop(vectors, [("ptr", "%weights")], self._scale)
        whole, some, mask = _vectors_of_row(f, lanes)
        wide = _REGISTERS[lanes] // self._rows
        widths = [width for width in (8, 4, 2, 1) if width <= wide]
        rounds = [f.let(f"udiv i64 {whole}, {widths[0]}")]
        for width in widths[1:]:
            bit = f.let(f"and i64 {whole}, {width}")
            rounds.append(f.let(f"udiv i64 {bit}, {width}"))
        place = "0"
        for width, count in zip(widths, rounds, strict=True):
            (place,) = f.loop(count, [("i64", place)], self._columns(width, None))
        f.loop(some, [("i64", place)], self._columns(1, mask))
        f.do("ret void")
        return f

    def _scale(self, index: str, carried: list[str]) -> list[str]:
        """Multiplies a vector of each query's weights with scales."""
        f, places = self._f, [carried[0]]
        for _ in range(1, self._rows):
            places.append(f.at(places[-1], "%line"))
        weights = [f.load(self._vector, place) for place in places]
        first = f.let(f"mul i64 {index}, {self._lanes}")
        for place, x in zip(places, self._values.scaled("%values", first, weights), strict=True):
            f.do(f"store {self._vector} {x}, ptr {place}, align 4")
        return [f.at(carried[0], 4 * self._lanes)]

    def _columns(self, width: int, mask: str | None) -> Callable[[str, list[str]], list[str]]:
        """So many vectors of all results, or the lanes of a mask of one."""
        f, v, lanes = self._f, self._vector, self._lanes

        def body(_: str, carried: list[str]) -> list[str]:
            column = carried[0]
            y, begun, places = f.at("%y", f.let(f"shl i64 {column}, 2")), [], []
            for row in range(self._rows):
                y = f.at(y, self._pitch) if row else y
                share = f.splat(lanes, "float", f.load("float", f.at("%shares", 4 * row)))
                for i in range(width):
                    places.append(f.at(y, 4 * lanes * i))
                    before = masked_load(f, lanes, places[-1], mask)
                    begun.append(f.let(f"fmul {v} {before}, {share}"))

            def key(_: str, carried: list[str]) -> list[str]:
                weight, value, *sums = carried
                later = f.at(value, f.let(f"mul i64 {column}, {self._elements.bytes}"))
                for i in range(0, width * lanes * self._elements.bytes, _LINE):
                    f.do(epilogue.prefetch(f.at(later, _AHEAD + i), 3))
                numbers = [
                    f.let(f"add i64 {column}, {lanes * i}") if i else column for i in range(width)
                ]
                columns = [self._values.vector(value, number, mask) for number in numbers]
                found, at = [], weight
                for row in range(self._rows):
                    at = f.at(at, "%line") if row else at
                    factor = f.splat(lanes, "float", f.load("float", at))
                    beside = sums[width * row : width * (row + 1)]
                    pairs = zip(columns, beside, strict=True)
                    found += [f.fma(lanes, factor, x, total) for x, total in pairs]
                return [f.at(weight, 4), f.at(value, "%step"), *found]

            state = [("ptr", "%weights"), ("ptr", "%values"), *((v, x) for x in begun)]
            _, _, *sums = f.loop("%count", state, key)
            for total, place in zip(sums, places, strict=True):
                masked_store(f, lanes, total, place, mask)
            return [f.let(f"add i64 {column}, {width * lanes}")]

        return body


_REGISTERS = {4: 16, 8: 8, 16: 16}
"""Sums that are kept at a time, by floats of a vector; others are for what they are made of."""


def _vectors_of_row(f: Function, lanes: int) -> tuple[str, str, str]:
    """Whole vectors of the parameter ``%size``, whether there is a part of one, and its mask."""
    left = f.let(f"urem i64 %size, {lanes}")
    some = f.let(f"zext i1 {f.let(f'icmp ne i64 {left}, 0')} to i64")
    mask = column_masks(f, left, lanes, 1)[0]
    return f.let(f"udiv i64 %size, {lanes}"), some, mask


def declarations(lanes: int) -> str:
    """What the kernels call, beyond those of `masked` and `tiles.fma`."""
    v, ints, m = (f"<{lanes} x {kind}>" for kind in ("float", "i32", "i1"))
    shorts, codes, places = (f"<{lanes} x {kind}>" for kind in ("i16", "i8", "ptr"))
    return (
        "declare i64 @llvm.smin.i64(i64, i64)\n"
        f"declare {ints} @llvm.smin.v{lanes}i32({ints}, {ints})\n"
        f"declare {codes} @llvm.masked.load.v{lanes}i8.p0(ptr, i32 immarg, {m}, {codes})\n"
        f"declare {shorts} @llvm.masked.load.v{lanes}i16.p0(ptr, i32 immarg, {m}, {shorts})\n"
        f"declare {v} @llvm.masked.gather.v{lanes}f32.v{lanes}p0({places}, i32 immarg, {m}, {v})\n"
        + activations.declarations(lanes)
        + attend.declarations(lanes)
    )
