"""The epilogue of gated products: one product is activated and multiplied by the other.

Columns of both alternate in tiles of sums: 16 of the gate, and 16 of what it is multiplied by. The
result is packed as tiles of bfloat16 for the next product, see `bf16_split.pack_tile`: 32 of its
columns, of two tiles of sums, are a step of that product.
"""

from __future__ import annotations

from partita.lowering import ActivationCode
from partita_cpu.llvm.activations import Formulas
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import larger_magnitude, rounded_pair, store_pair_parts
from partita_cpu.llvm.masked import column_masks

PARAMETERS = "ptr %sums, ptr %bias, i64 %rows, i64 %columns, ptr %to"
"""sums: two tiles of 32 rows, of which up to 16 are read. bias: 64 numbers, as many as both tiles
have columns. columns: how many of the result's 32 exist; the others become zeros. to: a tile of the
result, further parts behind it; rows that are missing are not written."""

GATES = {
    ActivationCode.SILU: "silu",
    ActivationCode.GELU: "gelu",
    ActivationCode.GELU_TANH: "gelu_tanh",
}
"""Activations that there are kernels for."""

PLANES = (1, 2)
"""In how many parts results are kept."""

_SUMS_BYTES = 4096
_TILE_BYTES = 1024
_TOGETHER = 2
"""Rows whose vectors are computed side by side."""

_FLOATS, _INTS, _MASK = "<16 x float>", "<16 x i32>", "<16 x i1>"


def functions() -> list[Function]:
    """All of them."""
    return [
        gate_tiles(kernel_name(code, planes), code, planes) for code in GATES for planes in PLANES
    ]


def kernel_name(code: ActivationCode, planes: int) -> str:
    """The symbol of one."""
    return f"gate_tiles_{GATES[code]}_{planes}"


def gate_tiles(name: str, code: ActivationCode, planes: int) -> Function:
    """``activation(sums + bias) * (sums + bias)`` as tiles; returns what `narrow` returns."""
    f = Function(name, PARAMETERS, "i64")
    formulas = Formulas(f, 16, rounded=planes == 1)
    bias = [f.load(_FLOATS, f.at("%bias", 64 * i)) for i in range(4)]
    masks = column_masks(f, "%columns", 16, 2)

    def together(count: int, start: list[str]) -> list[str]:
        def body(_: str, carried: list[str]) -> list[str]:
            sums, to, largest = carried
            gates, others = [], []
            for row in range(count):
                for i in range(2):
                    at = _SUMS_BYTES * i + 128 * row
                    pair = [f.load(_FLOATS, f.at(sums, at + 64 * j)) for j in range(2)]
                    pair = [
                        f.let(f"fadd {_FLOATS} {x}, {bias[2 * i + j]}") for j, x in enumerate(pair)
                    ]
                    gates.append(pair[0])
                    others.append(pair[1])
            made = formulas.activated(code, gates)
            found = [f.let(f"fmul {_FLOATS} {x}, {y}") for x, y in zip(made, others, strict=True)]
            found = [_existing(f, x, masks[place % 2]) for place, x in enumerate(found)]
            for x in found:
                largest = larger_magnitude(f, 16, largest, x)
            for row in range(count):
                _store(f, found[2 * row : 2 * row + 2], f.at(to, 64 * row), planes)
            return [f.at(sums, 128 * count), f.at(to, 64 * count), largest]

        rounds = "udiv" if count > 1 else "urem"
        kinds = ("ptr", "ptr", _INTS)
        return f.loop(
            f.let(f"{rounds} i64 %rows, {_TOGETHER}"), list(zip(kinds, start, strict=True)), body
        )

    largest = together(1, together(_TOGETHER, ["%sums", "%to", "zeroinitializer"]))[2]
    found = f.let(f"call i32 @llvm.vector.reduce.umax.v16i32({_INTS} {largest})")
    f.do(f"ret i64 {f.let(f'zext i32 {found} to i64')}")
    return f


def _existing(f: Function, x: str, mask: str) -> str:
    """A vector with zeros where columns are missing."""
    return f.let(f"select {_MASK} {mask}, {_FLOATS} {x}, {_FLOATS} zeroinitializer")


def _store(f: Function, pair: list[str], to: str, planes: int) -> None:
    if planes > 1:
        store_pair_parts(f, pair, to, planes, _TILE_BYTES)
        return
    f.do(f"store <32 x bfloat> {rounded_pair(f, *pair)}, ptr {to}, align 2")
