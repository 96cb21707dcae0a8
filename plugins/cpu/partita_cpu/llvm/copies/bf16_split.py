"""Copies of float32: as they are, or split into one to three bfloat16 parts that add up to them."""

from __future__ import annotations

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import (
    larger_magnitude,
    load_half,
    rounded_to_float16,
    store_pair_parts,
    store_parts,
)
from partita_cpu.llvm.masked import bounded, masked_load, masked_store

PARAMETERS = "ptr %x, i64 %n, ptr %to, i64 %low_plane, i64 %padded"
"""x: n floats. to: gets `padded` elements, zeros behind the n. low_plane: distance in bytes from
`to` to the second parts, and from these to the third ones."""

SCALED = f"{PARAMETERS}, ptr %factor, ptr %shift, float %low, float %high"
"""Of conversions with a factor and a summand for each of the n numbers, and bounds."""

ROWS_PARAMETERS = (
    "ptr %x, i64 %ldx, i64 %rows, i64 %n, ptr %to, i64 %ldto, i64 %low_plane, i64 %padded"
)
"""The same for rows of n floats at distances of ldx bytes, which go to distances of ldto bytes."""

TILE_PARAMETERS = "ptr %x, i64 %ldx, i64 %rows, i64 %n, ptr %to"
"""Of `pack_tile`. x: up to 16 rows of n floats at distances of ldx bytes. to: tiles of 16 rows
times 32 numbers, one for every 32 of the n, zeros behind them; rows that are missing are not
written."""

_MASK = "<32 x i1>"
_TILE_BYTES = 1024


def copy(name: str, lanes: int) -> Function:
    """Copies a run as it is; returns 0."""
    f = Function(name, PARAMETERS, "i64")
    whole = f.let("sdiv i64 %n, " + str(lanes))
    done = f.let(f"mul i64 {whole}, {lanes}")
    kind = f"<{lanes} x float>"

    def full(index: str, _: list[str]) -> list[str]:
        place = f.let(f"mul i64 {index}, {4 * lanes}")
        f.do(f"store {kind} {f.load(kind, f.at('%x', place))}, ptr {f.at('%to', place)}, align 4")
        return []

    f.loop(whole, [], full)
    rounds = f.let(f"add i64 {f.let(f'sub i64 %padded, {done}')}, {lanes - 1}")
    rounds = f.let(f"sdiv i64 {rounds}, {lanes}")
    lane_kind = f"<{lanes} x i32>"
    numbers = "<" + ", ".join(f"i32 {lane}" for lane in range(lanes)) + ">"

    def rest(index: str, _: list[str]) -> list[str]:
        first = f.let(f"add i64 {done}, {f.let(f'mul i64 {index}, {lanes}')}")
        masks = []
        for end in ("%n", "%padded"):
            left = f.let(f"trunc i64 {f.let(f'sub i64 {end}, {first}')} to i32")
            masks.append(f.let(f"icmp slt {lane_kind} {numbers}, {f.splat(lanes, 'i32', left)}"))
        place = f.let(f"shl i64 {first}, 2")
        x = masked_load(f, lanes, f.at("%x", place), masks[0])
        masked_store(f, lanes, x, f.at("%to", place), masks[1])
        return []

    f.loop(rounds, [], rest)
    f.do("ret i64 0")
    return f


def narrow(name: str, planes: int) -> Function:
    """Converts a run; returns the largest bit pattern of an absolute value among the floats.

    The pattern tells whether there was an infinity, a NaN or a number that rounds to infinity.

    Args:
        name: Its symbol.
        planes: In how many parts numbers are kept.
    """
    f = Function(name, PARAMETERS, "i64")
    return _Converter(f, 16, False, planes).function()


def narrow_rows(name: str, planes: int) -> Function:
    """Converts rows as `narrow` does a run; returns the largest pattern of them all."""
    return _Converter(Function(name, ROWS_PARAMETERS, "i64"), 16, False, planes).rows()


def scale(name: str, lanes: int, half_in: bool, planes: int) -> Function:
    """``min(max(x * factor + shift, low), high)`` of a run of elements, see `SCALED`.

    See `SCALED`. The result is kept in so many parts of bfloat16; 0 for a float32.

    Args:
        name: Of the function.
        lanes: Elements of a vector.
        half_in: Whether it reads bfloat16; it reads float32 otherwise.
        planes: In how many bfloat16 a result is kept; 0 for a float32.

    Returns:
        The function, which returns what one of `narrow` does.
    """
    f = Function(name, SCALED, "i64")
    return _Converter(f, lanes, half_in, planes, scaled=True).function()


def widen(name: str) -> Function:
    """Makes float32 of a run of bfloat16; returns what `narrow` returns."""
    return _Converter(Function(name, PARAMETERS, "i64"), 16, True, planes=0).function()


class _Converter:
    """Writes a kernel that brings a run of numbers into another form."""

    def __init__(
        self,
        f: Function,
        lanes: int,
        half_in: bool,
        planes: int,
        scaled: bool = False,
    ) -> None:
        self._f, self._lanes, self._scaled = f, lanes, scaled
        self._half_in, self._planes = half_in, planes
        self._floats, self._ints = f"<{lanes} x float>", f"<{lanes} x i32>"
        self._x, self._to = "%x", "%to"

    def function(self) -> Function:
        """Of one run."""
        return self._returned(self._run("%x", "%to", "zeroinitializer"))

    def rows(self) -> Function:
        """Of `narrow_rows`."""
        f = self._f

        def row(_: str, values: list[str]) -> list[str]:
            x, to, largest = values
            largest = self._run(x, to, largest)
            return [f.at(x, "%ldx"), f.at(to, "%ldto"), largest]

        state = [("ptr", "%x"), ("ptr", "%to"), (self._ints, "zeroinitializer")]
        return self._returned(f.loop("%rows", state, row)[2])

    def _returned(self, largest: str) -> Function:
        """Ends the kernel with the largest of all lanes."""
        f, lanes, ints = self._f, self._lanes, self._ints
        found = f.let(f"call i32 @llvm.vector.reduce.umax.v{lanes}i32({ints} {largest})")
        f.do(f"ret i64 {f.let(f'zext i32 {found} to i64')}")
        return f

    def _run(self, x: str, to: str, largest: str) -> str:
        """Converts a run; returns the larger of the patterns in it and those found before."""
        f, lanes, ints = self._f, self._lanes, self._ints
        self._x, self._to = x, to
        rounds = f.let(f"udiv i64 {f.let(f'add i64 %padded, {lanes - 1}')}, {lanes}")
        # Masks take longer than most of what is done to a vector.
        done = f.let(f"udiv i64 %n, {lanes}")
        if self._planes > 1:
            pairs = f.let("udiv i64 %n, 32")
            largest = f.loop(pairs, [(ints, largest)], self._whole_pair)[0]
            done = f.let(f"mul i64 {pairs}, 2")
        else:
            largest = f.loop(done, [(ints, largest)], self._whole_piece)[0]
        rounds = f.let(f"sub i64 {rounds}, {done}")

        def piece(index: str, values: list[str]) -> list[str]:
            return self._piece(f.let(f"add i64 {index}, {done}"), values)

        return f.loop(rounds, [(ints, largest)], piece)[0]

    def laid(self, float16: bool) -> Function:
        """Of `pack_tile`: tile by tile, so that memory is written in order."""
        f, ints = self._f, self._ints
        tiles = f.let(f"udiv i64 {f.let('add i64 %n, 31')}, 32")

        def tile(index: str, outer: list[str]) -> list[str]:
            first = f.let(f"mul i64 {index}, 32")
            pieces = [f.let(f"add i64 {first}, {16 * i}") for i in range(2)]
            masks = [self._mask(piece, "%n") for piece in pieces]
            source = f.at("%x", f.let(f"mul i64 {first}, 4"))
            target = f.at("%to", f.let(f"mul i64 {index}, {self._planes * _TILE_BYTES}"))

            def row(number: str, values: list[str]) -> list[str]:
                largest = values[0]
                place = f.at(source, f.let(f"mul i64 {number}, %ldx"))
                to = f.at(target, f.let(f"mul i64 {number}, 64"))
                pair = [masked_load(f, 16, f.at(place, 64 * i), masks[i]) for i in range(2)]
                pair = [rounded_to_float16(f, 16, x) if float16 else x for x in pair]
                for i, x in enumerate(pair):
                    largest = larger_magnitude(f, self._lanes, largest, x)
                    if self._planes == 1:
                        store_parts(f, 16, x, f.at(to, 32 * i), None, 1, _TILE_BYTES)
                if self._planes > 1:
                    store_pair_parts(f, pair, to, self._planes, _TILE_BYTES)
                return [largest]

            return f.loop("%rows", [(ints, outer[0])], row)

        return self._returned(f.loop(tiles, [(ints, "zeroinitializer")], tile)[0])

    def _piece(self, index: str, values: list[str]) -> list[str]:
        f, lanes = self._f, self._lanes
        first = f.let(f"mul i64 {index}, {lanes}")
        inside, writable = self._mask(first, "%n"), self._mask(first, "%padded")
        at = f.at(self._x, f.let(f"mul i64 {first}, {2 if self._half_in else 4}"))
        load = load_half if self._half_in else masked_load
        x = load(f, lanes, at, inside)
        if self._scaled:
            x = self._scale(x, f.let(f"shl i64 {first}, 2"), inside)
        to = f.at(self._to, f.let(f"mul i64 {first}, {2 if self._planes else 4}"))
        if not self._planes:
            masked_store(f, lanes, x, to, writable)
        else:
            store_parts(f, lanes, x, to, writable, self._planes)
        return [larger_magnitude(f, self._lanes, values[0], x)]

    def _whole_piece(self, index: str, values: list[str]) -> list[str]:
        """A vector that is there as a whole."""
        f, lanes = self._f, self._lanes
        first = f.let(f"mul i64 {index}, {lanes}")
        at = f.at(self._x, f.let(f"mul i64 {first}, {2 if self._half_in else 4}"))
        x = (load_half if self._half_in else masked_load)(f, lanes, at, None)
        if self._scaled:
            x = self._scale(x, f.let(f"shl i64 {first}, 2"), None)
        to = f.at(self._to, f.let(f"mul i64 {first}, {2 if self._planes else 4}"))
        if self._planes:
            store_parts(f, lanes, x, to, None, self._planes)
        else:
            f.do(f"store {self._floats} {x}, ptr {to}, align 4")
        return [larger_magnitude(f, self._lanes, values[0], x)]

    def _whole_pair(self, index: str, values: list[str]) -> list[str]:
        """Two vectors of 16 that are there as wholes, in several parts."""
        f, width = self._f, 2 if self._half_in else 4
        first = f.let(f"mul i64 {index}, 32")
        at, number = f.at(self._x, f.let(f"mul i64 {first}, {width}")), f.let(f"shl i64 {first}, 2")
        largest, pair = values[0], []
        for i in range(2):
            place = f.at(at, 16 * width * i)
            x = (load_half if self._half_in else masked_load)(f, 16, place, None)
            if self._scaled:
                x = self._scale(x, f.let(f"add i64 {number}, {64 * i}"), None)
            largest = larger_magnitude(f, self._lanes, largest, x)
            pair.append(x)
        store_pair_parts(f, pair, f.at(self._to, f.let(f"mul i64 {first}, 2")), self._planes)
        return [largest]

    def _mask(self, first: str, end: str) -> str:
        f, lanes = self._f, self._lanes
        numbers = "<" + ", ".join(f"i32 {lane}" for lane in range(lanes)) + ">"
        left = f.let(f"trunc i64 {f.let(f'sub i64 {end}, {first}')} to i32")
        return f.let(f"icmp slt {self._ints} {numbers}, {f.splat(lanes, 'i32', left)}")

    def _scale(self, x: str, place: str, inside: str | None) -> str:
        """Scaled; zero where there are no numbers, since bounds could make something else of it.

        Without a mask there are some everywhere.
        """
        f, lanes, v = self._f, self._lanes, self._floats
        numbers = (f.at(name, place) for name in ("%factor", "%shift"))
        factor, shift = (masked_load(f, lanes, at, inside) for at in numbers)
        x = f.fma(lanes, x, factor, shift)
        low, high = f.splat(lanes, "float", "%low"), f.splat(lanes, "float", "%high")
        x = bounded(f, v, x, low, high, lanes)
        if inside is None:
            return x
        return f.let(f"select <{lanes} x i1> {inside}, {v} {x}, {v} zeroinitializer")


def pack_tile(name: str, planes: int, float16: bool = False) -> Function:
    """Lays rows out as tiles of bfloat16 that AMX loads whole; returns what `narrow` returns.

    Lower halves, if there are any, follow behind each tile. With `float16`, numbers are rounded to
    it first.
    """
    return _Converter(Function(name, TILE_PARAMETERS, "i64"), 16, False, planes).laid(float16)


def copy_halves(name: str) -> Function:
    """Copies a run of bfloat16; returns what `narrow` returns."""
    f = Function(name, PARAMETERS, "i64")
    kind, mask = "<32 x i16>", "<32 x i1>"
    numbers = "<" + ", ".join(f"i32 {lane}" for lane in range(32)) + ">"
    done = f.let("lshr i64 %n, 5")
    rounds = f.let(f"sub i64 {f.let('lshr i64 ' + f.let('add i64 %padded, 31') + ', 5')}, {done}")

    def larger(largest: str, x: str) -> str:
        size = f.let(f"and {kind} {x}, {f.splat(32, 'i16', '32767')}")
        return f.let(f"call {kind} @llvm.umax.v32i16({kind} {largest}, {kind} {size})")

    def whole(index: str, values: list[str]) -> list[str]:
        place = f.let(f"shl i64 {index}, 6")
        x = f.load(kind, f.at("%x", place), 2)
        f.do(f"store {kind} {x}, ptr {f.at('%to', place)}, align 2")
        return [larger(values[0], x)]

    def piece(index: str, values: list[str]) -> list[str]:
        first = f.let(f"shl i64 {f.let(f'add i64 {index}, {done}')}, 5")
        masks = []
        for end in ("%n", "%padded"):
            left = f.let(f"trunc i64 {f.let(f'sub i64 {end}, {first}')} to i32")
            masks.append(f.let(f"icmp slt <32 x i32> {numbers}, {f.splat(32, 'i32', left)}"))
        place = f.let(f"shl i64 {first}, 1")
        load = f"call {kind} @llvm.masked.load.v32i16.p0(ptr {f.at('%x', place)}, i32 2, "
        x = f.let(f"{load}{mask} {masks[0]}, {kind} zeroinitializer)")
        to = f.at("%to", place)
        name = "@llvm.masked.store.v32i16.p0"
        f.do(f"call void {name}({kind} {x}, ptr {to}, i32 2, {mask} {masks[1]})")
        return [larger(values[0], x)]

    largest = f.loop(done, [(kind, "zeroinitializer")], whole)[0]
    largest = f.loop(rounds, [(kind, largest)], piece)[0]
    found = f.let(f"call i16 @llvm.vector.reduce.umax.v32i16({kind} {largest})")
    f.do(f"ret i64 {f.let('shl i64 ' + f.let(f'zext i16 {found} to i64') + ', 16')}")
    return f


def declarations(lanes: int) -> str:
    """What conversions call, beyond those of `masked`, `fma` and `finish`."""
    ints = f"<{lanes} x i32>"
    return (
        f"declare {ints} @llvm.umax.v{lanes}i32({ints}, {ints})\n"
        f"declare i32 @llvm.vector.reduce.umax.v{lanes}i32({ints})\n"
    )


def half_declarations() -> str:
    """What `copy_halves` calls."""
    kind = "<32 x i16>"
    return (
        f"declare {kind} @llvm.umax.v32i16({kind}, {kind})\n"
        f"declare i16 @llvm.vector.reduce.umax.v32i16({kind})\n"
        f"declare {kind} @llvm.masked.load.v32i16.p0(ptr, i32 immarg, {_MASK}, {kind})\n"
        f"declare void @llvm.masked.store.v32i16.p0({kind}, ptr, i32 immarg, {_MASK})\n"
    )
