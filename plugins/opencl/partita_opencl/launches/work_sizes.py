"""How work is cut for a device: work-group sizes, and whether tiles go through local memory."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from partita.lowering.shapes.symbolic_size import Size, evaluated
from partita_opencl.device.limits import Limits
from partita_opencl.launches.steps import Sizes
from partita_opencl.properties import Tiling

_MOST_GROUPS = 65535
"""Groups in the second and third dimension that every driver takes; kernels loop over the rest."""

_TILE_ITEMS = 128
"""Items of a work-group that computes a matrix tile."""

_TILE_BYTES = 20 << 10
"""Local memory of such a group."""


_SHORT_ROW = 256
_SHORT_ITEMS = 32
"""Rows of at most so many elements are shared by this many items."""


_BUSY_ITEMS = 1024
"""Items of each compute unit that keep a GPU busy."""

_SIDE_BY_SIDE = 16
"""Columns of a work-group whose items share them: neighbours that are read at a time."""

_COLUMN_ITEMS = 1024
"""Items of such a group."""


class Form(enum.StrEnum):
    """How kernels are written: a driver that fails at one form may do another."""

    USUAL = "usual"
    PLAIN = "a * b + c in place of fma"
    NARROW = "a * b + c in place of fma, vectors of 8, small tiles"

    @property
    def options(self) -> dict[str, str | int | None]:
        """The kernels' macros."""
        plain: dict[str, str | int | None] = {} if self is Form.USUAL else {"PLAIN": None}
        return {**plain, "NARROW": None} if self is Form.NARROW else plain


@dataclass(frozen=True)
class Tuning:
    """Choices for one device.

    Attributes:
        limits: What the device can do.
        local_tiles: Whether kernels are cut for many small processors that share local memory, as
            those of a GPU, rather than for a few large ones.
        row_items: Items that share one row in reductions; a power of two.
        width: Elements per item of contiguous element-wise kernels.
        half: Whether what is float32 in the model is float16 in memory.
        bfloat: Whether halves, which all that is not a kernel takes for float16, are bfloat16.
        triples: Whether products of float32 may be three of bfloat16.
        matrix_units: Whether products of float16 go to the device's matrix units.
        warpgroups: Whether these may be used by four warps together.
        copy_engine: Whether tiles for these may be brought by the copy engine.
        resident_groups: Groups of a kernel that are on the device at a time, so that they may wait
            for one another; 0 if they must not.
        device: Identity of device and driver, by which measured choices are found.
        form: How kernels are written.
    """

    limits: Limits
    local_tiles: bool
    row_items: int
    width: int
    half: bool = False
    bfloat: bool = False
    triples: bool = False
    matrix_units: bool = False
    warpgroups: bool = False
    copy_engine: bool = False
    resident_groups: int = 0
    device: str = ""
    form: Form = Form.USUAL

    @classmethod
    def of(cls, limits: Limits, tiling: Tiling = Tiling.AUTO, *, half: bool = False) -> Tuning:
        """The choices for a device, or those that a user asks for where the device can."""
        able = limits.group_items >= _TILE_ITEMS and limits.local_bytes >= _TILE_BYTES
        wanted = not limits.is_cpu if tiling is Tiling.AUTO else tiling is Tiling.LOCAL
        most = _power_of_two_up_to(min(limits.group_items, limits.item_sizes[0]))
        return cls(
            limits=limits,
            local_tiles=able and wanted,
            row_items=min(256 if able and wanted else 16, most),
            width=4 if able and wanted else 1,
            half=half,
            matrix_units=able and wanted and limits.matrix_units,
            warpgroups=able and wanted and limits.warpgroups,
            copy_engine=able and wanted and limits.warpgroups,
            resident_groups=limits.resident_groups if able and wanted else 0,
        )

    @property
    def half_kind(self) -> str:
        """What instructions call the type of halves."""
        return "bf16" if self.bfloat else "f16"

    @property
    def stored_type(self) -> np.dtype[Any]:
        """What halves are in memory, whatever they are taken for elsewhere."""
        return np.dtype(ml_dtypes.bfloat16 if self.bfloat else np.float16)

    @property
    def half_range(self) -> tuple[float, float]:
        """The least and the largest positive number of halves."""
        return (2.0**-133, 2.0**128 - 2.0**120) if self.bfloat else (2.0**-24, 65504.0)

    def flat(self, count: int) -> Sizes:
        """At least ``count`` items in one dimension."""
        local = _power_of_two_up_to(min(256, self.limits.group_items, self.limits.item_sizes[0]))
        return (_up(count, local),), (local,)

    def grid(self, x: int, y: int = 1, z: int = 1) -> Sizes:
        """Items for all of x; for y and z as many as allowed, kernels step over the rest."""
        return evaluated(Tuning._grid, self, x, y, z)  # type: ignore[no-any-return]

    def _grid(self, x: int, y: int, z: int) -> Sizes:
        most = _power_of_two_up_to(min(256, self.limits.group_items))
        if not self.local_tiles:
            # Few distinct sizes: the driver compiles each kernel anew for each of them.
            wide, high = (64, 1) if x >= 24 else (8, 8)
        else:
            wide = max(1, min(128, _power_of_two_from(x)))
            high = max(1, min(most // wide, _power_of_two_from(y)))
        wide, high = min(wide, most), min(high, max(1, most // wide))
        wide = min(wide, self.limits.item_sizes[0])
        high = min(high, self.limits.item_sizes[1])
        return (
            (_up(x, wide), _up(min(y, _MOST_GROUPS * high), high), min(z, _MOST_GROUPS)),
            (wide, high, 1),
        )

    def items_for(self, length: int) -> int:
        """Items that share a row of so many elements: few for short rows. A power of two."""
        return min(self.row_items, _SHORT_ITEMS) if length <= _SHORT_ROW else self.row_items

    def columns_of_group(self, columns: int, inner: int, depth: int) -> tuple[int, int]:
        """How a work-group is cut where what lies along a column is joined.

        Few columns would leave a GPU idle, so that items share each of them.

        Args:
            columns: Of all.
            inner: Neighbours among them.
            depth: Elements of a column.

        Returns:
            Columns of a group, and items that share one: powers of two.
        """
        most = min(self.limits.group_items, self.limits.item_sizes[0])
        wide, items = _power_of_two_up_to(min(256, most)), 1
        wanted = _BUSY_ITEMS * self.limits.compute_units
        if not self.local_tiles or 2 * columns > wanted:
            return wide, items
        wide = 1
        while wide < _SIDE_BY_SIDE and wide < inner:
            wide *= 2
        most = min(_COLUMN_ITEMS, self.limits.group_items) // wide
        most = min(most, self.limits.item_sizes[1])
        while 2 * items <= most and 2 * items * columns <= wanted and 8 * items <= depth:
            items *= 2
        return wide, items

    def column_groups(self, columns: int, wide: int, items: int) -> Sizes:
        """Groups of ``wide`` columns, each of which ``items`` share."""
        return (_up(columns, wide), items), (wide, items)

    def fits(self, wide: int, high: int) -> bool:
        """Whether a tiling by local memory is wanted and the device takes groups of this size."""
        sizes = self.limits.item_sizes
        enough = wide * high <= self.limits.group_items and wide <= sizes[0] and high <= sizes[1]
        return self.local_tiles and enough

    def groups(self, count: int, items: int) -> Sizes:
        """``count`` work-groups of ``items`` items in one dimension."""
        return (count * items,), (items,)


def has_items(sizes: Sizes) -> bool:
    """Whether a launch has any; whatever stands for others decides so for them."""
    if isinstance(sizes, Size):
        return bool(evaluated(has_items, sizes))
    return 0 not in sizes[0]


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _power_of_two_up_to(value: int) -> int:
    return 1 << (max(1, value).bit_length() - 1)


def _power_of_two_from(value: int) -> int:
    return 1 << (max(1, value) - 1).bit_length()
