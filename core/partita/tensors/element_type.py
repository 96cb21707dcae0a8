"""Element types by OpenVINO's names, which stand for numpy's wherever numpy asks for one."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_NUMPY = {
    "boolean": "bool",
    "string": "object",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0": "float8_e8m0fnu",
    "f4e2m1": "float4_e2m1fn",
    "c64": "complex64",
    "c128": "complex128",
    **{f"{kind[0]}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (2, 4)},
    **{f"{kind[0]}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
"""To numpy's names, or those of ``ml_dtypes``."""

_NAMES = {numpy: name for name, numpy in _NUMPY.items()}


_QUANTIZED = ("i4", "i8", "i32", "u8", "nf4")
"""Whole numbers that operators on quantized tensors take, as OpenVINO counts them."""


class Type(enum.Enum):
    """An element type; ``dynamic`` is one that is not known.

    Equal to numpy's type of the same elements and to its own name, so that ``port.element_type ==
    Type.f32``, ``== np.float32`` and ``== "f32"`` are all true. numpy takes one wherever it takes a
    dtype.

    Example:
        >>> import numpy as np
        >>> Type(np.float32) is Type.f32, Type.i64 == np.int64, np.zeros(2, Type.u8).dtype
        (True, True, dtype('uint8'))
    """

    boolean = "boolean"
    string = "string"
    bf16 = "bf16"
    f16 = "f16"
    f32 = "f32"
    f64 = "f64"
    f8e4m3 = "f8e4m3"
    f8e5m2 = "f8e5m2"
    f8e4m3fnuz = "f8e4m3fnuz"
    f8e5m2fnuz = "f8e5m2fnuz"
    f8e8m0 = "f8e8m0"
    f4e2m1 = "f4e2m1"
    c64 = "c64"
    c128 = "c128"
    nf4 = "nf4"
    i2 = "i2"
    i4 = "i4"
    i8 = "i8"
    i16 = "i16"
    i32 = "i32"
    i64 = "i64"
    u1 = "u1"
    u2 = "u2"
    u3 = "u3"
    u4 = "u4"
    u6 = "u6"
    u8 = "u8"
    u16 = "u16"
    u32 = "u32"
    u64 = "u64"
    dynamic = "dynamic"

    @classmethod
    def _missing_(cls, value: object) -> Type | None:
        """The type of a numpy type, as ``Type(np.float32)``; ``None`` stands for ``dynamic``."""
        import numpy as np

        if value is None:
            return cls.dynamic
        try:
            name = _NAMES.get(np.dtype(value).name)  # type: ignore[call-overload]  # or it fails
        except TypeError:
            return None
        return None if name is None else cls(name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type.

        Raises:
            AttributeError: numpy has none: it is ``dynamic``, or has elements of 1, 3 or 6 bits.
        """
        import numpy as np

        name = _NUMPY.get(self.value)
        if name is None:
            why = "is not known, so" if self is Type.dynamic else "has no bytes of its own:"
            raise AttributeError(f"the element type '{self.value}' {why} numpy has none for it")
        try:
            return np.dtype(name)
        except TypeError:
            import ml_dtypes

            found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
            return found

    def to_dtype(self) -> np.dtype[Any]:
        """The numpy type (OpenVINO's spelling)."""
        return self.dtype

    @property
    def type_name(self) -> str:
        """The name, as ``"f32"``."""
        return self.value

    def get_type_name(self) -> str:
        """The name (OpenVINO's spelling)."""
        return self.value

    def to_string(self) -> str:
        """The name (OpenVINO's spelling)."""
        return self.value

    @property
    def bitwidth(self) -> int:
        """Bits of an element, 0 if it is not known."""
        if self is Type.dynamic:
            return 0
        if self in (Type.boolean, Type.string):
            return 8 * self.size
        digits = self.value.removeprefix("bf").lstrip("cfinu")
        return int(digits.partition("e")[0])

    def get_bitwidth(self) -> int:
        """Bits of an element (OpenVINO's spelling)."""
        return self.bitwidth

    @property
    def size(self) -> int:
        """Bytes of an element in memory, at least one; 0 if it is not known."""
        if self is Type.dynamic:
            return 0
        return self.dtype.itemsize if self.value in _NUMPY else 1

    def get_size(self) -> int:
        """Bytes of an element in memory (OpenVINO's spelling)."""
        return self.size

    def is_dynamic(self) -> bool:
        """Whether it is not known."""
        return self is Type.dynamic

    def is_static(self) -> bool:
        """Whether it is known."""
        return self is not Type.dynamic

    @property
    def real(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.value[0] == "f" or self is Type.bf16

    def is_real(self) -> bool:
        """Whether elements are floating-point numbers (OpenVINO's spelling)."""
        return self.real

    @property
    def integral(self) -> bool:
        """Whether elements are whole numbers or truth values."""
        return self.integral_number or self is Type.boolean

    def is_integral(self) -> bool:
        """Whether elements are whole numbers or truth values (OpenVINO's spelling)."""
        return self.integral

    @property
    def integral_number(self) -> bool:
        """Whether elements are whole numbers."""
        return self.value[0] in "iu"

    def is_integral_number(self) -> bool:
        """Whether elements are whole numbers (OpenVINO's spelling)."""
        return self.integral_number

    @property
    def signed(self) -> bool:
        """Whether elements can be negative."""
        return self.value[0] == "i" or self.real or self is Type.nf4

    def is_signed(self) -> bool:
        """Whether elements can be negative (OpenVINO's spelling)."""
        return self.signed

    @property
    def quantized(self) -> bool:
        """Whether elements usually stand for numbers that a scale belongs to."""
        return self.value[:2] in ("f4", "f8") or self.value in _QUANTIZED

    def is_quantized(self) -> bool:
        """Whether a scale usually belongs to elements (OpenVINO's spelling)."""
        return self.quantized

    def compatible(self, other: Type) -> bool:
        """Whether both are the same, or one is not known."""
        return self is other or Type.dynamic in (self, other)

    def merge(self, other: Type) -> Type | None:
        """What is known of a type that is both; ``None`` if they contradict each other."""
        if not self.compatible(other):
            return None
        return other if self is Type.dynamic else self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Type):
            return self is other
        if isinstance(other, str):
            return self.value == other
        try:
            return Type(other) is self
        except ValueError:
            return False

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return self.value


def integral_limits(kind: Type) -> tuple[int, int]:
    """The least and the largest whole number of an integral type; a truth value is 0 or 1."""
    if kind is Type.boolean:
        return 0, 1
    lowest = -(1 << (kind.bitwidth - 1)) if kind.signed else 0
    return lowest, lowest + (1 << kind.bitwidth) - 1
