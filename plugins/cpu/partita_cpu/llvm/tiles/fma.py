"""Tile kernels in vectors: broadcast a, times a row of packed b, added up by fused multiply-add.

A tile has 1 to 14 rows and two vectors of columns (32 with AVX-512, 16 with AVX2 and then at most 6
rows). The last column of tiles may need one vector alone. With 14 rows, 28 of the 32 registers hold
accumulators; the rest hold two vectors of b and one element of a. More rows make LLVM spill.

In bfloat16 an element is a pair of neighbours along k, as wide as a float: one instruction adds
both products to an accumulator.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial

from partita_cpu.llvm import epilogue, half_vectors
from partita_cpu.llvm.function import Function

PARAMETERS = (
    "ptr %a, i64 %lda, ptr %taps, i64 %ntaps, i64 %depth, ptr %b, i64 %low_plane, i64 %rows, "
    f"ptr %start, ptr %ahead, {epilogue.PARAMETERS}"
)
"""Of every tile kernel, whatever it computes in.

a: the first row; the others follow at distances of lda bytes. taps: byte offsets from a, one per
piece of a row; depth: length of a piece. b: the packed block of weights, piece after piece.
low_plane: distance in bytes from a to the second parts of its elements, for kernels that split
them; bytes of a step along k, for others of AMX; for those here, from a to the rows that are needed
next, which are brought to the second-level cache, or 0. rows: how many rows count, for kernels that
take any number; those here compute as many tiles below one another as have so many rows, with start
null and y not, each of which begins an eighth of b further on in ahead. start: sums to begin with,
as a tile, or null. ahead: what is needed next of b; a quarter as much of it is fetched as is read,
by AMX half as much. The rest is that of `epilogue.PARAMETERS`.
"""

VECTORS = epilogue.VECTORS
UNROLL = 4
"""Steps along k in a round of a loop, as far as there are so many."""

_STRETCH = 8
"""Groups of steps between which lines are fetched, for tiles of one row; more rows take longer."""

_LEAST_STRETCH = 2
"""The same for tiles of many rows. More lines at a time would fill the buffers of the first-level
cache, which the weights that are multiplied meanwhile come through."""

_GROUP = 3

_SUMS = 8
"""Sums that fill the time until an instruction's result is there, two instructions at a time."""

_DOT_PAIRS = {
    4: "@llvm.aarch64.neon.bfdot.v4f32.v8bf16",
    16: "@llvm.x86.avx512bf16.dpbf16ps.512",
}
"""What multiplies pairs of bfloat16 and adds both products up, by floats of a vector."""


class Factors(enum.Enum):
    """What a and b are."""

    FLOATS = enum.auto()
    FLOAT16 = enum.auto()  # b is, and widened in registers; a is float32
    BFLOAT16 = enum.auto()  # the same
    PAIRS = enum.auto()  # of bfloat16; depth counts pairs


_WIDENED = {Factors.FLOAT16: half_vectors.FLOAT16, Factors.BFLOAT16: half_vectors.BFLOAT}


def fma_tile(
    name: str,
    rows: int,
    lanes: int,
    factors: Factors = Factors.FLOATS,
    half: str = "",
    vectors: int = VECTORS,
) -> Function:
    """``tile[r, :] = sum over taps t and k of a[r, taps[t] + k] * b[t, k, :]``.

    Args:
        name: Its symbol.
        rows: Of the tile.
        lanes: Floats of a vector.
        factors: What is multiplied.
        half: As `epilogue.Finish` takes it.
        vectors: How many of the columns of packed b and of the tile's rows are computed.
    """
    return _FmaTile(name, rows, lanes, factors, half, vectors).function()


class Products:
    """Writes what adds up the products of a tile, step by step along k.

    Args:
        f: The kernel; its parameter ``%lda`` is the distance of rows of a, in bytes.
        rows: Of the tile.
        lanes: Floats of a vector.
        factors: What is multiplied.
        vectors: How many of the columns of packed b and of the tile's rows are computed.
    """

    def __init__(
        self,
        f: Function,
        rows: int,
        lanes: int,
        factors: Factors = Factors.FLOATS,
        vectors: int = VECTORS,
    ) -> None:
        self._f = f
        self._rows = rows
        self._lanes = lanes
        self.vector = f"<{lanes} x float>"
        self._factors = factors
        self.width = (2 if factors in _WIDENED else 4) * lanes
        """Bytes of a vector of b."""
        # Few rows leave registers idle and wait for one another: let several sums run side by side.
        # As many whatever is computed of the columns: what is equal in two of them stays equal.
        wanted = -(-_SUMS // (rows * VECTORS))
        self._sets = next(sets for sets in (1, 2, UNROLL) if sets >= min(wanted, UNROLL))
        self._vectors = vectors
        twice = f.let("shl i64 %lda, 1")
        self._thrice = f.let("add i64 %lda, " + twice)
        self._strides = (None, "%lda", twice)

    @property
    def sums(self) -> int:
        """Vectors that are carried along, of which several may belong to one place of the tile."""
        return self._rows * self._vectors * self._sets

    def pointers(self, a: str) -> list[str]:
        """What is carried along to find the rows of a."""
        found = [a]
        for _ in range(1, -(-self._rows // _GROUP)):
            found.append(self._f.at(found[-1], self._thrice))
        return found

    def fetch_rows(self, pointers: list[str], distance: str, nbytes: int) -> None:
        """Asks for so many bytes of each row at a distance from the rows that pointers find."""
        f = self._f
        for row in range(self._rows):
            group, within = divmod(row, _GROUP)
            stride = self._strides[within]
            base = f.at(pointers[group], distance)
            base = base if stride is None else f.at(base, stride)
            for line in range(0, nbytes, 64):
                f.do(epilogue.prefetch(f.at(base, line)))

    def steps(self, values: list[str], count: int) -> list[str]:
        """`count` steps along k: values are b, the row pointers, the sums."""
        f, groups = self._f, -(-self._rows // _GROUP)
        b, pointers, sums = values[0], values[1 : 1 + groups], values[1 + groups :]
        for k in range(count):
            columns = [
                self._load(f.at(b, self.width * (VECTORS * k + v))) for v in range(self._vectors)
            ]
            chosen = k % self._sets * self._rows * self._vectors
            for row in range(self._rows):
                group, within = divmod(row, _GROUP)
                stride = self._strides[within]
                base = pointers[group] if stride is None else f.at(pointers[group], stride)
                element = self._broadcast(f.at(base, 4 * k))
                for v in range(self._vectors):
                    place = chosen + row * self._vectors + v
                    sums[place] = self._fma(element, columns[v], sums[place])
        forward = [f.at(b, self.width * VECTORS * count)]
        forward += [f.at(pointer, 4 * count) for pointer in pointers]
        return forward + sums

    def added(self, sums: list[str]) -> list[str]:
        """One sum per place of the tile."""
        f, per_set = self._f, self._rows * self._vectors
        totals = sums[:per_set]
        for place in range(per_set):
            for other in range(1, self._sets):
                beside = sums[other * per_set + place]
                totals[place] = f.let(f"fadd {self.vector} {totals[place]}, {beside}")
        return totals

    def _broadcast(self, pointer: str) -> str:
        """An element of a in all places of a vector."""
        f, lanes = self._f, self._lanes
        if self._factors is not Factors.PAIRS:
            return f.splat(lanes, "float", f.load("float", pointer))
        pairs = f.splat(lanes, "i32", f.load("i32", pointer, 2))
        return f.let(f"bitcast <{lanes} x i32> {pairs} to {pairs_of(lanes)}")

    def _load(self, pointer: str) -> str:
        """A vector of b."""
        if self._factors is Factors.PAIRS:
            return self._f.load(pairs_of(self._lanes), pointer)
        if self._factors is Factors.FLOATS:
            return self._f.load(self.vector, pointer)
        return half_vectors.load_half(self._f, self._lanes, pointer, None, _WIDENED[self._factors])

    def _fma(self, a: str, b: str, c: str) -> str:
        if self._factors is Factors.PAIRS:
            return multiply_pairs(self._f, self._lanes, a, b, c)
        return self._f.fma(self._lanes, a, b, c)


class TileEnds:
    """Writes where the sums of a tile in registers come from, and where they go.

    Args:
        f: The kernel, of `PARAMETERS`; asks for the lines that the tile ends in.
        rows: Of the tile.
        lanes: Floats of a vector.
        half: As `epilogue.Finish` takes it.
        vectors: How many of the columns are computed.
    """

    def __init__(
        self, f: Function, rows: int, lanes: int, half: str, vectors: int = VECTORS
    ) -> None:
        self._f = f
        self._rows = rows
        self._lanes = lanes
        self._vectors = vectors
        self._end = epilogue.Finish(f, lanes, half, vectors)

    def each_tile(self, step_ahead: str | int, sums: Callable[[str, str], list[str]]) -> None:
        """Writes the kernel: a tile, or several below one another.

        Args:
            step_ahead: Bytes from what a tile asks for to what the next one does.
            sums: Writes the sums of a tile, from where its rows of a and what it asks for begin.
        """
        f = self._f
        tiles = f.let(f"udiv i64 %rows, {self._rows}")
        down, below = (f.let(f"mul i64 {pitch}, {self._rows}") for pitch in ("%lda", "%ldy"))
        alone = f.let("icmp eq ptr %residual, null")
        beside = f.let(f"select i1 {alone}, i64 0, i64 {below}")

        def tile(_: str, at: list[str]) -> list[str]:
            a, ahead, y, residual = at
            self._end.goes_to(y, residual)
            self._end.fetch(self._rows)
            self._finish(sums(a, ahead), y)
            steps = down, step_ahead, below, beside
            return [f.at(place, step) for place, step in zip(at, steps, strict=True)]

        places = ("%a", "%ahead", "%y", "%residual")
        f.loop(tiles, [("ptr", place) for place in places], tile)
        f.do("ret void")

    def begin(self, sums: int) -> list[str]:
        """So many zeros, of which those of the tile are the sums to go on from if there are any."""
        f, v = self._f, f"<{self._lanes} x float>"

        def load(_: str, values: list[str]) -> list[str]:
            places = [f.at("%start", self._place(n)) for n in range(self._rows * self._vectors)]
            return [f.load(v, place) for place in places] + values[len(places) :]

        rounds = f.let(f"zext i1 {f.let('icmp ne ptr %start, null')} to i64")
        return f.loop(rounds, [(v, "zeroinitializer")] * sums, load)

    def _finish(self, sums: list[str], y: str) -> None:
        """The tile is stored as it is, or finished where it belongs."""
        f = self._f
        unfinished = f.let(f"icmp eq ptr {y}, null")
        f.either(unfinished, lambda: self._store(sums), lambda: self._end.whole_tile(sums))

    def _store(self, sums: list[str]) -> None:
        f = self._f
        for place, total in enumerate(sums):
            at = f.at("%tile", self._place(place))
            f.do(f"store <{self._lanes} x float> {total}, ptr {at}, align 4")

    def _place(self, number: int) -> int:
        """Where a vector of sums lies in a tile in memory."""
        row, v = divmod(number, self._vectors)
        return 4 * self._lanes * (row * VECTORS + v)


class _FmaTile:
    """Writes one kernel."""

    def __init__(
        self, name: str, rows: int, lanes: int, factors: Factors, half: str, vectors: int
    ) -> None:
        self._f = Function(name, PARAMETERS)
        self._rows = rows
        self._lanes = lanes
        self._half = half
        self._factors = factors
        self._vectors = vectors

    def function(self) -> Function:
        f = self._f
        ends = TileEnds(f, self._rows, self._lanes, self._half, self._vectors)
        products = Products(f, self._rows, self._lanes, self._factors, self._vectors)
        width, groups = products.width, max(_LEAST_STRETCH, _STRETCH // self._rows)
        quads = f.let("lshr i64 %depth, 2")
        rest = f.let("and i64 %depth, 3")
        begun = f.let(f"add i64 {quads}, {groups - 1}")
        stretches = f.let(f"udiv i64 {begun}, {groups}")
        rows_ahead = f.let("icmp ne i64 %low_plane, 0")

        def tap(index: str, carried: list[str], a: str) -> list[str]:
            offset = f.load("i64", f.let(f"getelementptr i64, ptr %taps, i64 {index}"), 8)
            pointers = products.pointers(f.at(a, offset))
            state = [("ptr", p) for p in (carried[0], *pointers)]
            state += [(products.vector, s) for s in carried[2:]]

            def quad(_: str, values: list[str]) -> list[str]:
                return products.steps(values, UNROLL)

            def fetch(_: str, at: list[str]) -> list[str]:
                for line in range(0, groups * VECTORS * width, 64):
                    f.do(epilogue.prefetch(f.at(at[0], line)))
                return [f.at(at[0], groups * VECTORS * width)]

            def stretch(number: str, values: list[str]) -> list[str]:
                left = f.let(f"sub i64 {quads}, {f.let(f'mul i64 {number}, {groups}')}")
                whole = f.let(f"icmp sge i64 {left}, {groups}")
                count = f.let(f"select i1 {whole}, i64 {groups}, i64 {left}")
                # Between loops: in the inner one LLVM would spill sums for it.
                rounds = f.let(f"zext i1 {whole} to i64")
                further = f.loop(rounds, [("ptr", values[0])], fetch)
                also = f.let(f"and i1 {whole}, {rows_ahead}")

                def fetch_rows(_: str, __: list[str]) -> list[str]:
                    at = values[2 : 2 + len(pointers)]
                    products.fetch_rows(at, "%low_plane", 4 * groups * UNROLL)
                    return []

                f.loop(f.let(f"zext i1 {also} to i64"), [], fetch_rows)
                inner = [(kind, v) for (kind, _), v in zip(state, values[1:], strict=True)]
                return [*further, *f.loop(count, inner, quad)]

            ahead, *after = f.loop(stretches, [("ptr", carried[1]), *state], stretch)
            kinds = [kind for kind, _ in state]
            state = list(zip(kinds, after, strict=True))
            after = f.loop(rest, state, lambda _, values: products.steps(values, 1))
            return [after[0], ahead, *after[1 + len(pointers) :]]

        def sums(a: str, ahead: str) -> list[str]:
            begin = [(products.vector, x) for x in ends.begin(products.sums)]
            state = [("ptr", "%b"), ("ptr", ahead), *begin]
            return products.added(f.loop("%ntaps", state, partial(tap, a=a))[2:])

        read = f.let(f"mul i64 %ntaps, {f.let(f'mul i64 %depth, {VECTORS * width}')}")
        ends.each_tile(f.let(f"lshr i64 {read}, 3"), sums)
        return f


def row_pointers(f: Function, a: str, rows: int) -> list[str]:
    """Where each row of a begins: few pointers, from which the others are one or two strides on."""
    twice = f.let("shl i64 %lda, 1")
    thrice = f.let("add i64 %lda, " + twice)
    found: list[str] = []
    for row in range(rows):
        group, within = divmod(row, _GROUP)
        if within == 0:
            found.append(f.at(found[-_GROUP], thrice) if group else a)
        else:
            found.append(f.at(found[group * _GROUP], (None, "%lda", twice)[within] or 0))
    return found


def pairs_of(lanes: int) -> str:
    """LLVM's type of a vector of pairs of bfloat16, as large as one of so many floats."""
    return f"<{2 * lanes} x bfloat>"


def multiply_pairs(f: Function, lanes: int, a: str, b: str, c: str) -> str:
    """Vectors ``a * b + c``: pairs of bfloat16, both of whose products are added to a float32.

    Args:
        f: The function, in which `pair_declarations` are known.
        lanes: Floats of a vector.
        a: Name of a vector of pairs: one factor.
        b: Name of a vector of pairs: the other factor.
        c: Name of a vector of floats: what is added.

    Returns:
        The result's name.
    """
    v, pairs = f"<{lanes} x float>", pairs_of(lanes)
    return f.let(f"call {v} {_DOT_PAIRS[lanes]}({v} {c}, {pairs} {b}, {pairs} {a})")


def declarations(lanes: int) -> str:
    """What the kernels call."""
    v = f"<{lanes} x float>"
    return f"declare {v} @llvm.fma.v{lanes}f32({v}, {v}, {v})\n"


def pair_declarations(lanes: int) -> str:
    """What those of `Factors.PAIRS` and `multiply_pairs` call."""
    v, pairs = f"<{lanes} x float>", pairs_of(lanes)
    return f"declare {v} {_DOT_PAIRS[lanes]}({v}, {pairs}, {pairs})\n"
