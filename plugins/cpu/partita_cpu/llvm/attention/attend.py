"""Attention of a tile of queries to a block of keys: scores, their softmax, sums of values.

Scores of the tile stay in the nearest cache from one kernel to the next. Where products are of
pairs of bfloat16, the softmax leaves its powers as these.
"""

from __future__ import annotations

from collections.abc import Callable

from partita_cpu.llvm.activations import Formulas
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import rounded_pair, store_pair_parts, store_parts
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.tiles.fma import UNROLL, VECTORS, Factors, Products

PRODUCT_PARAMETERS = (
    "ptr %a, i64 %lda, i64 %depth, ptr %b, i64 %step, i64 %blocks, ptr %y, i64 %ldy, "
    "ptr %shares, i64 %further_a, i64 %further_b"
)
"""a: the first row; lda: bytes to the next one. depth: length of a row, in pairs where these are
multiplied. b: the first packed block of columns, (depth, columns of a tile); step: bytes to the
next one; blocks: how many. y: the first row of the result, which has all columns of all blocks;
ldy: bytes to the next one. shares: null, or for each row a factor: y begins with what it had, times
the factor. further_a, further_b: bytes from the parts of elements to their next ones, for kernels
that multiply sums of several."""

SOFTMAX_PARAMETERS = "ptr %scores, i64 %line, i64 %rows, i64 %columns, ptr %seen, ptr %state"
"""scores: of a tile; line: bytes from one query's to the next one's. columns: all, rounded up to
`TOGETHER` vectors. seen: int32, for each query the first key that counts, behind `state_rows` of
them for each how many do. state: for as many queries the largest score so far, then for each the
sum of the softmax, then for each the share of what was added up before in what comes to it."""

STATES = 3
"""Numbers that a query has from block to block."""

TOGETHER = 2
"""Vectors of scores that are computed side by side."""

_NOTHING = "0xFFF0000000000000"
"""LLVM's spelling of the score of a key that is not seen: minus infinity."""


def functions(level: Level) -> list[Function]:
    """All kernels of a level."""
    made = _functions_of(level, "", Factors.FLOATS)
    if level.tiles:
        for planes in (1, 2):
            end = f"{TILED}{planes}"
            made.append(online_softmax(f"online_softmax{end}", TILE_ROWS, level.lanes, planes))
    return made + _functions_of(level, PAIRED, Factors.PAIRS) if in_pairs(level) else made


PAIRED = "_pairs"
"""Behind the names of kernels for pairs of bfloat16."""

TILED = "_tiles"
"""Behind the names of kernels that go with AMX; then comes in how many bfloat16 a factor is."""

TILE_ROWS = 32
"""Most queries of a tile of AMX."""


def in_pairs(level: Level) -> bool:
    """Whether there are kernels for pairs of bfloat16 by vectors.

    Processors with tiles multiply them by these, and by vectors no faster than floats.
    """
    return level.dots_bfloat16 and not level.tiles


def _functions_of(level: Level, end: str, factors: Factors) -> list[Function]:
    rows, lanes = range(1, level.rows + 1), level.lanes
    made = [products(f"products{end}_{count}", count, lanes, factors) for count in rows]
    planes = int(factors is Factors.PAIRS)
    return [*made, online_softmax(f"online_softmax{end}", level.rows, lanes, planes)]


def products(name: str, rows: int, lanes: int, factors: Factors = Factors.FLOATS) -> Function:
    """``y[r, :] = share[r] * y[r, :] + sum over k of a[r, k] * b[k, :]``.

    Args:
        name: Its symbol.
        rows: Of the tile.
        lanes: Floats of a vector.
        factors: What is multiplied: floats, or pairs of bfloat16.
    """
    f = Function(name, PRODUCT_PARAMETERS)
    made = Products(f, rows, lanes, factors)
    v = made.vector
    pointers = [("ptr", p) for p in made.pointers("%a")]
    quads = f.let(f"udiv i64 %depth, {UNROLL}")
    left = f.let(f"urem i64 %depth, {UNROLL}")
    going_on = f.let(f"zext i1 {f.let('icmp ne ptr %shares, null')} to i64")

    def places(y: str) -> list[str]:
        found = []
        for row in range(rows):
            y = f.at(y, "%ldy") if row else y
            found += [f.at(y, 4 * lanes * i) for i in range(VECTORS)]
        return found

    def block(_: str, carried: list[str]) -> list[str]:
        b, y = carried

        def load(_: str, values: list[str]) -> list[str]:
            begun = []
            for number, place in enumerate(places(y)):
                share = f.load("float", f.at("%shares", 4 * (number // VECTORS)))
                factor = f.splat(lanes, "float", share)
                begun.append(f.let(f"fmul {v} {f.load(v, place)}, {factor}"))
            return begun + values[len(begun) :]

        sums = f.loop(going_on, [(v, "zeroinitializer")] * made.sums, load)
        state = [("ptr", b), *pointers, *((v, x) for x in sums)]
        kinds = [kind for kind, _ in state]
        found = f.loop(quads, state, lambda _, values: made.steps(values, UNROLL))
        state = list(zip(kinds, found, strict=True))
        found = f.loop(left, state, lambda _, values: made.steps(values, 1))
        totals = made.added(found[1 + len(pointers) :])
        for total, place in zip(totals, places(y), strict=True):
            f.do(f"store {v} {total}, ptr {place}, align 4")
        return [f.at(b, "%step"), f.at(y, 4 * lanes * VECTORS)]

    f.loop("%blocks", [("ptr", "%b"), ("ptr", "%y")], block)
    f.do("ret void")
    return f


def state_rows(rows: int, lanes: int) -> int:
    """Queries of a tile, rounded up to whole vectors."""
    return -(-rows // lanes) * lanes


def online_softmax(name: str, rows: int, lanes: int, planes: int = 0) -> Function:
    """``exp(score - the largest one so far)``, 0 for keys that are not seen; the state goes on.

    A NaN makes the sum NaN. Where all scores so far are minus infinity all results are 0.

    Args:
        name: Its symbol.
        rows: Most queries of a tile.
        lanes: Floats of a vector.
        planes: 1 if powers become bfloat16, side by side from the start of their query's scores; 2
            if they become sums of two. Then they lie behind the scores of so many rows, line by
            line, and their second parts in the second half of a line. What is added up is not
            rounded.
    """
    return _Softmax(name, rows, lanes, planes).function()


_Several = Callable[[list[str], list[str], list[str | None], list[str]], list[str]]
"""Takes where some vectors of scores are, and where their powers come to be, which lanes count
(``None``: all), and what is carried along."""


class _Softmax:
    """Writes the kernel."""

    def __init__(self, name: str, rows: int, lanes: int, planes: int) -> None:
        f = self._f = Function(name, SOFTMAX_PARAMETERS)
        self._lanes, self._planes = lanes, planes
        self._behind = f.let(f"mul i64 %line, {rows}") if planes > 1 else ""
        self._half_line = f.let("lshr i64 %line, 1")
        self._apart = 4 * state_rows(rows, lanes)
        self._formulas = Formulas(f, lanes)
        self._of_powers = Formulas(f, lanes, rounded=planes == 1)
        self._vector, self._ints = f"<{lanes} x float>", f"<{lanes} x i32>"
        self._mask = f"<{lanes} x i1>"
        self._rounds = f.let(
            f"udiv i64 {f.let(f'add i64 %columns, {TOGETHER * lanes - 1}')}, {TOGETHER * lanes}"
        )

    def function(self) -> Function:
        f = self._f
        tops, sums, shares = (f.at("%state", self._apart * i) for i in range(STATES))
        starts = [("ptr", at) for at in ("%scores", "%seen", shares)]
        f.loop("%rows", starts, lambda _, at: self._largest(*at))
        for at in range(0, self._apart, 4 * self._lanes):
            self._settle(*(f.at(place, at) for place in (tops, sums, shares)))
        starts = [("ptr", at) for at in ("%scores", "%seen", tops, sums)]
        f.loop("%rows", starts, lambda _, at: self._powers(*at))
        f.do("ret void")
        return f

    def _largest(self, scores: str, seen: str, found: str) -> list[str]:
        """Writes the largest score of a query that counts."""
        f, v = self._f, self._vector
        nothing = f.splat(self._lanes, "float", _NOTHING)

        def several(
            places: list[str], _: list[str], masks: list[str | None], tops: list[str]
        ) -> list[str]:
            larger = []
            for place, mask, top in zip(places, masks, tops, strict=True):
                x = self._chosen(mask, f.load(v, place), nothing)
                larger.append(self._larger(x, top))
            return larger

        top, *others = self._along(scores, seen, nothing, several)
        for other in others:
            top = self._larger(other, top)
        distance = self._lanes // 2
        while distance:  # LLVM would compare one lane after another
            order = ", ".join(f"i32 {lane ^ distance}" for lane in range(self._lanes))
            swapped = f"shufflevector {v} {top}, {v} poison, <{self._lanes} x i32> <{order}>"
            top, distance = self._larger(f.let(swapped), top), distance // 2
        first = f.let(f"extractelement {v} {top}, i32 0")
        f.do(f"store float {first}, ptr {found}, align 4")
        return [f.at(scores, "%line"), f.at(seen, 4), f.at(found, 4)]

    def _settle(self, tops: str, sums: str, shares: str) -> None:
        """Brings the state of some queries to their new largest scores, found in `shares`."""
        f, v = self._f, self._vector
        before = f.load(v, tops)
        top = self._larger(f.load(v, shares), before)
        f.do(f"store {v} {top}, ptr {tops}, align 4")
        less = f.let(f"fsub {v} {before}, {self._base(top)}")
        [share] = self._formulas.exp_below_zero([less])
        f.do(f"store {v} {share}, ptr {shares}, align 4")
        kept = f.let(f"fmul {v} {f.load(v, sums)}, {share}")
        f.do(f"store {v} {kept}, ptr {sums}, align 4")

    def _powers(self, scores: str, seen: str, top: str, total: str) -> list[str]:
        """Makes powers of the scores of a query, and adds them to its sum."""
        f, v, zero = self._f, self._vector, "zeroinitializer"
        base = self._base(f.splat(self._lanes, "float", f.load("float", top)))

        def several(
            places: list[str], targets: list[str], masks: list[str | None], sums: list[str]
        ) -> list[str]:
            less = [f.let(f"fsub {v} {f.load(v, place)}, {base}") for place in places]
            powers = self._of_powers.exp_below_zero(less)
            counted = [self._chosen(mask, x, zero) for mask, x in zip(masks, powers, strict=True)]
            self._store(counted, targets)
            return [f.let(f"fadd {v} {x}, {y}") for x, y in zip(sums, counted, strict=True)]

        one, *others = self._along(scores, seen, zero, several)
        for other in others:
            one = f.let(f"fadd {v} {one}, {other}")
        known = f.load("float", total)
        name = f"@llvm.vector.reduce.fadd.v{self._lanes}f32"
        added = f.let(f"call reassoc float {name}(float {known}, {v} {one})")
        f.do(f"store float {added}, ptr {total}, align 4")
        return [f.at(scores, "%line"), *(f.at(place, 4) for place in (seen, top, total))]

    def _store(self, powers: list[str], targets: list[str]) -> None:
        """Writes some vectors of powers, which lie side by side."""
        f = self._f
        if self._planes and self._lanes == 16:
            for i in range(0, TOGETHER, 2):
                pair = powers[i : i + 2]
                if self._planes > 1:
                    store_pair_parts(f, pair, targets[i], self._planes, self._half_line)
                else:
                    both = rounded_pair(f, *pair)
                    f.do(f"store <32 x bfloat> {both}, ptr {targets[i]}, align 2")
            return
        for x, target in zip(powers, targets, strict=True):
            if self._planes:
                store_parts(f, self._lanes, x, target, None, self._planes, self._half_line)
            else:
                f.do(f"store {self._vector} {x}, ptr {target}, align 4")

    def _along(
        self,
        scores: str,
        seen: str,
        begin: str,
        several: _Several,
    ) -> list[str]:
        """Goes along the scores of a query, some vectors at a time, each with one of `begin`.

        Those of which all lanes count come first, without masks, if the first key of all counts.
        """
        f, v, ints, lanes = self._f, self._vector, self._ints, self._lanes
        together, size = TOGETHER * lanes, 2 if self._planes else 4
        begun, length = (f.load("i32", place) for place in (seen, f.at(seen, self._apart)))
        first, count = f.splat(lanes, "i32", begun), f.splat(lanes, "i32", length)
        powers = f.at(scores, self._behind) if self._behind else scores
        from_start = f.let(f"icmp eq i32 {begun}, 0")
        whole = f.let(f"zext i32 {f.let(f'udiv i32 {length}, {together}')} to i64")
        whole = f.let(f"select i1 {from_start}, i64 {whole}, i64 0")

        def forward(at: str, to: str) -> list[str]:
            return [f.at(at, 4 * together), f.at(to, size * together)]

        def places(at: str, to: str) -> tuple[list[str], list[str]]:
            both = (at, 4 * lanes), (to, size * lanes)
            ones, others = ([f.at(x, y * i) for i in range(TOGETHER)] for x, y in both)
            return ones, others

        def all_lanes(_: str, carried: list[str]) -> list[str]:
            at, to, *values = carried
            return [*forward(at, to), *several(*places(at, to), [None] * TOGETHER, values)]

        def some_lanes(_: str, carried: list[str]) -> list[str]:
            at, to, numbers, *values = carried
            masks: list[str | None] = []
            for _i in range(TOGETHER):  # by one comparison: what is below 0 is large without sign
                masks.append(f.let(f"icmp ult {ints} {numbers}, {count}"))
                numbers = f.let(f"add {ints} {numbers}, {f.splat(lanes, 'i32', str(lanes))}")
            return [*forward(at, to), numbers, *several(*places(at, to), masks, values)]

        state = [("ptr", scores), ("ptr", powers), *[(v, begin)] * TOGETHER]
        at, to, *values = f.loop(whole, state, all_lanes)
        done = f.let(f"trunc i64 {f.let(f'mul i64 {whole}, {together}')} to i32")
        first = f.let(f"sub {ints} {first}, {f.splat(lanes, 'i32', done)}")
        numbers = f.let(f"sub {ints} <{', '.join(f'i32 {i}' for i in range(lanes))}>, {first}")
        state = [("ptr", at), ("ptr", to), (ints, numbers), *((v, x) for x in values)]
        return f.loop(f.let(f"sub i64 {self._rounds}, {whole}"), state, some_lanes)[3:]

    def _base(self, top: str) -> str:
        """What is taken from scores: minus infinity less itself would be no number."""
        f, v, zero = self._f, self._vector, "zeroinitializer"
        nothing = f.splat(self._lanes, "float", _NOTHING)
        return self._chosen(f.let(f"fcmp oeq {v} {top}, {nothing}"), zero, top)

    def _larger(self, x: str, other: str) -> str:
        """The larger ones of two vectors; the other one where x is NaN."""
        return self._chosen(self._f.let(f"fcmp ogt {self._vector} {x}, {other}"), x, other)

    def _chosen(self, mask: str | None, yes: str, no: str) -> str:
        """Lanes of one vector where a mask is set, or without one; others are of another."""
        if mask is None:
            return yes
        v = self._vector
        return self._f.let(f"select {self._mask} {mask}, {v} {yes}, {v} {no}")


def declarations(lanes: int) -> str:
    """What the kernels call, beyond those of `tiles.fma` and `activations`."""
    v = f"<{lanes} x float>"
    return f"declare float @llvm.vector.reduce.fadd.v{lanes}f32(float, {v})\n"
