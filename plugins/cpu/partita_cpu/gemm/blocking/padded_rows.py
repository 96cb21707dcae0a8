"""Results of products whose rows lie apart, so that the next product reads them where they are.

Rows that lie a multiple of 4 KiB apart, as those of 1,024 or 3,072 floats do, push one another out
of the nearest cache where a tile has more of them than a set has lines: products copy such a matrix
first. Where the only reader of a result is a product, it is written with a gap behind each row.
"""

from __future__ import annotations

from partita.lowering import Builder, Operand
from partita_cpu.gemm.blocking.left_matrix import SET_LINES
from partita_cpu.machine_model import LINE_BYTES, SET_BYTES, MachineModel

_PADDED = "padded rows"


def padded_pitch(machine: MachineModel, columns: int) -> int:
    """Floats from one row of a result to the next if it should have gaps, else 0."""
    collide = machine.tile_rows > SET_LINES and 4 * columns % SET_BYTES == 0
    return columns + LINE_BYTES // 4 if collide else 0


def note_padded(b: Builder, x: Operand, padded: Operand) -> None:
    """Notes that a matrix is there with gaps behind its rows alone; it must not be read itself."""
    b.once(x, _PADDED, lambda: padded)


def padded_rows(b: Builder, x: Operand) -> Operand | None:
    """The same matrix with gaps [rows, pitch], if `note_padded` has noted that."""
    found = b.once(x, _PADDED, lambda: x)
    return None if found is x else found
