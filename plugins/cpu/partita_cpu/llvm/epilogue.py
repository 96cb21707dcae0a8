"""The epilogue of tile kernels: bias, residual, bounds and a gate, then stores to the output.

Tile kernels end with it, so that sums go from registers to where they belong. Where a tile does not
lie in the output as it is (rows between image rows, activations that bounds do not express), or
sums go on later, they go to a scratch tile instead.
"""

from __future__ import annotations

from collections.abc import Callable

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import load_half, store_half, store_pair
from partita_cpu.llvm.masked import bounded, column_masks, masked_load, masked_store

PARAMETERS = (
    "ptr %tile, ptr %bias, ptr %residual, ptr %y, i64 %ldy, i64 %columns, float %low, "
    "float %high, i64 %gate"
)
"""tile: where sums go if y is null, row by row; AMX keeps them there in any case. bias: one number
per column. residual: like y, or null. y: the first row of the output; ldy: bytes between rows.
columns: how many of the tile's exist. low, high: bounds. gate: see `gated`.
"""

VECTORS = 2


class Finish:
    """Writes the end of a tile kernel.

    Args:
        f: The kernel.
        lanes: Floats of a vector.
        half: LLVM's name of the 16-bit type of output and residual, or "" for float32.
        vectors: Of a row. A tile of fewer than `VECTORS` has no columns beyond them.
    """

    def __init__(self, f: Function, lanes: int, half: str = "", vectors: int = VECTORS) -> None:
        self._f = f
        self._lanes = lanes
        self._half = half
        self._vectors = vectors
        self._vector = f"<{lanes} x float>"
        self._bytes = (2 if half else 4) * lanes
        self._y, self._residual = "%y", "%residual"

    def goes_to(self, y: str, residual: str) -> None:
        """Where rows go and what is added to them, if not to the parameters of these names."""
        self._y, self._residual = y, residual

    def fetch(self, rows: int) -> None:
        """Asks for the lines that the tile ends in, and for those of the residual, if they exist.

        They lie apart, row by row, where no processor foresees them; the sums take long enough for
        them to arrive.
        """
        f = self._f

        def row(_: str, at: list[str]) -> list[str]:
            for line in range(0, self._bytes * self._vectors, 64):
                f.do(prefetch(f.at(at[0], line), 3))
            return [f.at(at[0], "%ldy")]

        for pointer in (self._y, self._residual):
            present = f.let(f"icmp ne ptr {pointer}, null")
            count = f.let(f"select i1 {present}, i64 {rows}, i64 0")
            f.loop(count, [("ptr", pointer)], row)

    def whole_tile(self, sums: list[str]) -> None:
        """Finishes sums that lie in registers, row by row."""
        f, v, across = self._f, self._vector, self._vectors
        # Each number is made where it is used: AVX2 has few registers to keep it in.
        for i in range(across):
            bias = self._bias(i)
            for place in range(i, len(sums), across):
                sums[place] = f.let(f"fadd {v} {sums[place]}, {bias}")
        present = f.let(f"icmp ne ptr {self._residual}, null")
        sums = self._maybe(present, sums, self._add_residuals)
        sums = self._maybe(self._has_bounds(), sums, self._bounded)
        sums = gated(f, self._lanes, sums)
        masks = self._masks()
        to = self._y
        for row in range(len(sums) // across):
            to = f.at(to, "%ldy") if row else to
            self._store(sums[across * row : across * (row + 1)], to, masks)

    def stored_tile(self, rows: str) -> None:
        """Finishes `rows` rows of sums that lie in the scratch tile."""
        f, v, lanes = self._f, self._vector, self._lanes
        bias, masks = [self._bias(i) for i in range(VECTORS)], self._masks()

        def each_row(residual: bool, gate: bool) -> None:
            def row(index: str, _: list[str]) -> list[str]:
                source = f.at("%tile", f.let(f"mul i64 {index}, {4 * lanes * VECTORS}"))
                place = f.let(f"mul i64 {index}, %ldy")
                values = []
                for i in range(VECTORS):
                    x = f.load(v, f.at(source, 4 * lanes * i))
                    x = f.let(f"fadd {v} {x}, {bias[i]}")
                    if residual:
                        at = f.at(f.at("%residual", place), self._bytes * i)
                        x = f.let(f"fadd {v} {x}, {self._load(at, masks[i])}")
                    values.append(x)
                values = self._bounded(values)
                values = scaled(f, lanes, hard_swish(f, lanes, values)) if gate else values
                self._store(values, f.at("%y", place), masks)
                return []

            f.loop(rows, [], row)

        alone = f.let("icmp eq ptr %residual, null")
        plain = f.let("icmp eq i64 %gate, 0")

        def variants(residual: bool) -> None:
            f.either(plain, lambda: each_row(residual, False), lambda: each_row(residual, True))

        f.either(alone, lambda: variants(False), lambda: variants(True))

    def begin_rows(self) -> None:
        """Reads what rows have in common that `next_rows` finishes."""
        f, lanes = self._f, self._lanes
        self._row_bias, self._row_masks = [self._bias(i) for i in range(VECTORS)], self._masks()
        self._row_bounds = f.splat(lanes, "float", "%low"), f.splat(lanes, "float", "%high")
        self._pair_mask = column_masks(f, "%columns", 2 * lanes, 1)[0] if self._half else ""
        added = f.let("icmp ne ptr %residual, null")
        gated = f.let("icmp ne i64 %gate, 0")
        truths = added, self._has_bounds(), gated
        self._row_rounds = [f.let(f"zext i1 {truth} to i64") for truth in truths]

    def next_rows(self, count: str, places: list[str]) -> list[str]:
        """Finishes some rows of stored sums; a few at a time between other instructions.

        Args:
            count: How many.
            places: Where the sums, the residual and the output of the first one lie.

        Returns:
            The places of the row behind the last one.
        """
        f, v, lanes = self._f, self._vector, self._lanes
        added, limited, gated = self._row_rounds
        low, high = self._row_bounds

        def row(_: str, at: list[str]) -> list[str]:
            sums, residual, y = at
            values = [
                f.let(f"fadd {v} {f.load(v, f.at(sums, 4 * lanes * i))}, {bias}")
                for i, bias in enumerate(self._row_bias)
            ]

            def add(_: str, inner: list[str]) -> list[str]:
                found = []
                for i, x in enumerate(inner):
                    other = self._load(f.at(residual, self._bytes * i), self._row_masks[i])
                    found.append(f.let(f"fadd {v} {x}, {other}"))
                return found

            def gate(_: str, inner: list[str]) -> list[str]:
                return scaled(f, lanes, hard_swish(f, lanes, inner))

            def limit(_: str, inner: list[str]) -> list[str]:
                return [bounded(f, v, x, low, high, lanes) for x in inner]

            for rounds, change in ((added, add), (limited, limit), (gated, gate)):
                values = f.loop(rounds, [(v, x) for x in values], change)
            if self._half:
                store_pair(f, values, y, self._pair_mask)
            else:
                self._store(values, y, self._row_masks)
            return [f.at(sums, 4 * lanes * VECTORS), f.at(residual, "%ldy"), f.at(y, "%ldy")]

        return f.loop(count, [("ptr", place) for place in places], row)

    def _bias(self, i: int) -> str:
        return self._f.load(self._vector, self._f.at("%bias", 4 * self._lanes * i))

    def _masks(self) -> list[str]:
        return column_masks(self._f, "%columns", self._lanes, self._vectors)

    def _has_bounds(self) -> str:
        """Whether a bound is finite."""
        f = self._f
        below = f.let("fcmp ogt float %low, 0xFFF0000000000000")
        return f.let(f"or i1 {below}, {f.let('fcmp olt float %high, 0x7FF0000000000000')}")

    def _bounded(self, values: list[str]) -> list[str]:
        return within_bounds(self._f, self._lanes, values)

    def _maybe(
        self, condition: str, values: list[str], change: Callable[[list[str]], list[str]]
    ) -> list[str]:
        """The values, changed if the condition holds: a loop of one round, or none."""
        f = self._f
        rounds = f.let(f"zext i1 {condition} to i64")
        carried = [(self._vector, x) for x in values]
        return f.loop(rounds, carried, lambda _, inner: change(inner))

    def _add_residuals(self, sums: list[str]) -> list[str]:
        f, at, found = self._f, self._residual, []
        masks = self._masks()
        for place, x in enumerate(sums):
            if place and place % self._vectors == 0:
                at = f.at(at, "%ldy")
            i = place % self._vectors
            r = self._load(f.at(at, self._bytes * i), masks[i])
            found.append(f.let(f"fadd {self._vector} {x}, {r}"))
        return found

    def _load(self, at: str, mask: str) -> str:
        if not self._half:
            return masked_load(self._f, self._lanes, at, mask)
        return load_half(self._f, self._lanes, at, mask, self._half)

    def _store(self, values: list[str], to: str, masks: list[str]) -> None:
        for i, x in enumerate(values):
            at = self._f.at(to, self._bytes * i)
            if self._half:
                store_half(self._f, self._lanes, x, at, masks[i], self._half)
            else:
                masked_store(self._f, self._lanes, x, at, masks[i])


def within_bounds(f: Function, lanes: int, values: list[str]) -> list[str]:
    """The values between the parameters ``%low`` and ``%high``."""
    v = f"<{lanes} x float>"
    low, high = (f.splat(lanes, "float", name) for name in ("%low", "%high"))
    return [bounded(f, v, x, low, high, lanes) for x in values]


def gated(f: Function, lanes: int, values: list[str]) -> list[str]:
    """What the parameter ``%gate`` says: nothing (0), `hard_swish` (1), or that and `scaled`.

    Args:
        f: The function that is written; it has `PARAMETERS`.
        lanes: Floats of a vector.
        values: Names of vectors.

    Returns:
        Names of as many vectors.
    """
    kind = f"<{lanes} x float>"
    rounds = f.let(f"zext i1 {f.let('icmp ne i64 %gate, 0')} to i64")
    carried = [(kind, x) for x in values]
    values = f.loop(rounds, carried, lambda _, inner: hard_swish(f, lanes, inner))
    return scaled(f, lanes, values)


def hard_swish(f: Function, lanes: int, values: list[str]) -> list[str]:
    """``x * max(0, min(1, x / 6 + 0.5))``."""
    v = f"<{lanes} x float>"
    slope, half, zero, one = (
        f.splat(lanes, "float", text) for text in ("0x3FC5555560000000", "5.0e-1", "0.0", "1.0")
    )
    found = []
    for x in values:
        sigmoid = f.fma(lanes, x, slope, half)
        found.append(f.let(f"fmul {v} {x}, {bounded(f, v, sigmoid, zero, one, lanes)}"))
    return found


def scaled(f: Function, lanes: int, values: list[str]) -> list[str]:
    """``factor * x + summand`` if the parameter ``%gate`` is more than 1.

    Its lower half is the factor, its upper half the summand, as float32.
    """
    v = f"<{lanes} x float>"

    def body(_: str, inner: list[str]) -> list[str]:
        words = ("%gate", f.let("lshr i64 %gate, 32"))
        bits = (f.let(f"trunc i64 {word} to i32") for word in words)
        factor, summand = (
            f.splat(lanes, "float", f.let(f"bitcast i32 {bit} to float")) for bit in bits
        )
        return [f.let(f"fadd {v} {f.let(f'fmul {v} {x}, {factor}')}, {summand}") for x in inner]

    rounds = f.let(f"zext i1 {f.let('icmp ugt i64 %gate, 1')} to i64")
    return f.loop(rounds, [(v, x) for x in values], body)


def epilogue(name: str, lanes: int, half: str = "") -> Function:
    """Finishes rows of a tile that was stored: `rows`, then `PARAMETERS`."""
    f = Function(name, f"i64 %rows, {PARAMETERS}")
    Finish(f, lanes, half).stored_tile("%rows")
    f.do("ret void")
    return f


def prefetch(pointer: str, level: int = 2) -> str:
    """Asks for a line in the second-level cache, or in the first (3).

    Args:
        pointer: Name of the address.
        level: LLVM's number of the cache: 2, or 3 for the first level.

    Returns:
        The instruction, as text.
    """
    return f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 {level}, i32 1)"


PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)\n"
"""What `prefetch` calls."""
