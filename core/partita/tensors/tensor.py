"""Tensors: the inputs and outputs of requests, and the values that cross between submodels."""

from __future__ import annotations

import abc
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.errors import InferError, InputError
from partita.shapes.shape import Shape, Strides
from partita.tensors.array_forms import (
    PACKED_TYPES,
    array_of_port,
    array_of_texts,
    array_seen_as,
    checked_dtype,
    checked_sizes,
    decoded_text,
    unpacked_array,
)
from partita.tensors.element_type import Type
from partita.tensors.host import HOST as HOST
from partita.tensors.layout import MemoryLayout


class Tensor(abc.ABC):
    """An n-dimensional array in some device's memory.

    Attributes:
        shape: Dimensions, outermost first.
        dtype: Element type as numpy dtype (bfloat16 and float8 types come from ``ml_dtypes``).
        device: Name of the device that owns its memory, e.g. ``"OPENCL.0"``; ``"host"`` for host
            tensors, which no device owns.
        memory: Id of its memory; every device whose ``can_share`` accepts the id reads the tensor
            in place. ``"host"`` is host memory.

    The constructor creates host tensors, as OpenVINO's does:

    - ``Tensor(array)`` copies an array, or what another library gives by DLPack from the host's
      memory; ``Tensor(array, shared_memory=True)`` shares its memory.
    - ``Tensor(array, shape, type)`` views an array's bytes with another shape and type.
    - ``Tensor(type, shape)`` has zeros; ``Tensor(port)`` has zeros of a port's type and shape.
    - ``Tensor(port, array)`` views an array's bytes with a port's type and shape.
    - ``Tensor(tensor, begin, end)`` is a region of interest of a host tensor, in the same memory.

    Elements of less than a byte are unpacked from an array of ``uint8`` with several per byte, the
    first in the lowest bits. A type is a :class:`partita.Type` or a numpy dtype.
    """

    __slots__ = ()

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: str
    memory: str
    layout: MemoryLayout | None = None
    """The memory layout, if two devices have agreed on one; ``None`` for C order."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Tensor:
        """An instance of the class; for ``Tensor`` itself, a host tensor."""
        return object.__new__(_NewTensor if cls is Tensor else cls)

    @abc.abstractmethod
    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a C-contiguous host array.

        A host tensor returns its own memory, any other tensor a copy.
        """

    def stored(self) -> np.ndarray[Any, Any]:
        """The elements on the host, in the order and type of :attr:`layout`."""
        return self.numpy()

    def copy_to(self, target: Tensor) -> None:
        """Writes the elements to a host tensor of the same dtype and layout, and sets its shape.

        Raises:
            InputError: The target has another dtype.
        """
        if target.shape != self.shape and isinstance(target, HostTensor):
            target.set_shape(self.shape)
        if target.dtype != self.dtype:
            raise InputError(f"{self!r} cannot be copied to {target!r}: other elements.")
        np.copyto(target.stored(), self.stored(), casting="no")

    def copy_from(self, source: Tensor) -> None:
        """Copies the elements of a tensor of the same shape, dtype and layout, in any memory.

        Raises:
            InferError: This tensor is in memory that the host cannot write.
        """
        raise InferError(f"{self!r} cannot be written by the host.")

    def clear(self) -> None:
        """Sets all elements to zero.

        Raises:
            InferError: As :meth:`copy_from`.
        """
        self.copy_from(HostTensor(np.zeros(self.shape, self.dtype)))

    @property
    def data(self) -> np.ndarray[Any, Any]:
        """The elements on the host (OpenVINO's spelling of :meth:`numpy`)."""
        return self.numpy()

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def element_type(self) -> Type:
        """The element type by OpenVINO's name."""
        return Type(self.dtype)

    def get_element_type(self) -> Type:
        """The element type (OpenVINO's spelling of :attr:`element_type`)."""
        return self.element_type

    def get_shape(self) -> Shape:
        """The dimensions (OpenVINO's spelling of :attr:`shape`)."""
        return Shape(self.shape)

    @property
    def byte_size(self) -> int:
        """Size of the elements in bytes (OpenVINO's spelling of :attr:`nbytes`)."""
        return self.nbytes

    def get_byte_size(self) -> int:
        """Size of the elements in bytes (OpenVINO's spelling of :attr:`nbytes`)."""
        return self.nbytes

    def get_size(self) -> int:
        """Number of elements (OpenVINO's spelling of :attr:`size`)."""
        return self.size

    @property
    def strides(self) -> Strides:
        """Bytes between neighbouring elements, by axis."""
        return Strides(self.numpy().strides)

    def get_strides(self) -> Strides:
        """Bytes between neighbouring elements, by axis (OpenVINO's spelling)."""
        return self.strides

    def is_continuous(self) -> bool:
        """Whether the elements are contiguous in memory; those of a region may not be."""
        return bool(self.numpy().flags.c_contiguous)

    @property
    def str_data(self) -> np.ndarray[Any, Any]:
        """The elements of a string tensor, as a copy; assigning replaces them.

        Raises:
            InputError: It is no string tensor.
        """
        texts = [decoded_text(one) for one in self._texts().flat]
        return np.array(texts, np.str_).reshape(self.shape)

    @str_data.setter
    def str_data(self, texts: Any) -> None:
        self._texts()
        self.copy_from(HostTensor(array_of_texts(np.asarray(texts))))

    @property
    def bytes_data(self) -> np.ndarray[Any, Any]:
        """The elements of a string tensor in UTF-8, as a copy; assigning replaces them."""
        return np.char.encode(self.str_data, "utf-8")

    @bytes_data.setter
    def bytes_data(self, texts: Any) -> None:
        self.str_data = texts

    def _texts(self) -> np.ndarray[Any, Any]:
        if not self.dtype.hasobject:
            raise InputError(f"{self!r} holds no texts; its elements are in 'data'.")
        return self.numpy()

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.numpy().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numpy().__dlpack_device__()

    def __repr__(self) -> str:
        dims = ", ".join(map(str, self.shape))
        return f"<Tensor {self.dtype}[{dims}] on {self.device}>"


def _an_array(given: Any) -> np.ndarray[Any, Any]:
    """The array for a host tensor; numpy's scalars, which its functions may return, become one."""
    if isinstance(given, np.ndarray):
        return given
    if isinstance(given, np.generic):
        return np.asarray(given)
    kind = type(given).__name__
    raise TypeError(f"A HostTensor holds a numpy array, not {kind}: see numpy.asarray().")


_new = object.__new__


class HostTensor(Tensor):
    """A tensor in host memory: a numpy array, not copied.

    Args:
        array: The elements; not copied, so writing to it changes the tensor. A numpy scalar becomes
            an array.

    Raises:
        TypeError: It is not an array.
    """

    __slots__ = ("_array", "_shape", "dtype")

    _shape: tuple[int, ...]
    device = HOST
    memory = HOST

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        if type(array) is not np.ndarray:
            array = _an_array(array)
        self._array = array
        self._shape = array.shape
        self.dtype = array.dtype

    @staticmethod
    def of(array: np.ndarray[Any, Any]) -> HostTensor:
        """The tensor of an array; in half the time that the constructor takes.

        Args:
            array: A numpy array, of no class of its own.
        """
        tensor = _new(HostTensor)
        tensor._array = array
        tensor._shape = array.shape
        tensor.dtype = array.dtype
        return tensor

    @classmethod
    def seen_as(
        cls, array: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> HostTensor:
        """A tensor of an array that had this shape and dtype when the application passed it.

        Args:
            array: The array, which the tensor keeps.
            shape: Its shape when it was passed.
            dtype: Its type when it was passed.
        """
        tensor = HostTensor(array)
        tensor._shape, tensor.dtype = shape, dtype
        return tensor

    def numpy(self) -> np.ndarray[Any, Any]:
        """The array itself."""
        return self._array

    def copy_from(self, source: Tensor | np.ndarray[Any, Any]) -> None:
        """Copies the elements, and the shape, of a tensor or array of the same dtype.

        Raises:
            InputError: It has another dtype.
        """
        (source if isinstance(source, Tensor) else HostTensor(source)).copy_to(self)

    def clear(self) -> None:
        """Sets all elements to zero."""
        self._array.fill(0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, outermost first, of the array when it was passed.

        Assigning reshapes the tensor: it keeps its elements if their number is the same, and has
        zeros in memory of its own otherwise.

        Raises:
            InputError: The value is no sequence of sizes.
        """
        return self._shape

    @shape.setter
    def shape(self, dims: Sequence[int]) -> None:
        self.set_shape(dims)

    def set_shape(self, dims: Sequence[int]) -> None:
        """Sets :attr:`shape` (OpenVINO's spelling)."""
        sizes = checked_sizes(dims)
        if math.prod(sizes) == self._array.size:
            self._array = np.ascontiguousarray(self._array).reshape(sizes)
        else:
            self._array = np.zeros(sizes, self.dtype)
        self._shape = sizes


def tensor_from_file(path: str | os.PathLike[str]) -> Tensor:
    """A tensor of a file's bytes, ``uint8[size of the file]``.

    Raises:
        OSError: The file cannot be read.
    """
    return HostTensor(np.fromfile(path, np.uint8))


class _NewTensor(HostTensor):
    """The class of ``Tensor(...)``, whose constructor may copy, unlike those of other tensors."""

    __slots__ = ()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(_elements(*_in_order(given, named)))


_NAMES = (
    ("array", "shared_memory"),
    ("array", "shape", "type"),
    ("type", "shape"),
    ("port", "array"),
    ("other", "begin", "end"),
)
"""The arguments of the constructor, in all forms."""


def _in_order(given: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """Positional and named arguments of the constructor, in order."""
    for names in _NAMES:
        behind = names[len(given) :]
        if len(given) <= len(names) and set(named) <= set(behind):
            rest = [named[name] for name in behind if name in named]
            if list(behind[: len(rest)]) == [name for name in behind if name in named]:
                return [*given, *rest]
    forms = "; ".join(f"Tensor({', '.join(names)})" for names in _NAMES)
    found = ", ".join([*(type(one).__name__ for one in given), *(f"{name}=" for name in named)])
    raise InputError(f"A tensor is made by {forms}; found Tensor({found}).")


def _elements(first: Any = None, second: Any = False, third: Any = None) -> np.ndarray[Any, Any]:
    """The array of a new tensor."""
    if hasattr(first, "get_partial_shape") and hasattr(first, "get_element_type"):
        return array_of_port(first, None if second is False else second)
    if isinstance(first, (type, Type, np.dtype)):
        if second is False:
            raise InputError(f"A tensor of {first!r} needs a shape: Tensor(type, shape).")
        return np.zeros(checked_sizes(second), checked_dtype(first))
    if isinstance(first, Tensor) and third is not None:
        return _part(first, checked_sizes(second), checked_sizes(third))
    if not isinstance(second, (bool, np.bool_)):
        if third is None and isinstance(first, np.ndarray):
            third = first.dtype
        if third is None or not isinstance(first, np.ndarray):
            raise InputError(
                "Tensor takes an array and whether to share its memory, or a type and a shape; "
                f"found {type(first).__name__} and {second!r}."
            )
        if isinstance(third, Type) and third in PACKED_TYPES:
            return unpacked_array(first, checked_sizes(second), third)
        return array_seen_as(first, checked_sizes(second), checked_dtype(third))
    try:
        if hasattr(first, "__dlpack__") and not hasattr(first, "__array__"):
            first = np.from_dlpack(first)
        held = np.asarray(first) if second else np.array(first, order="C")
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(f"{type(first).__name__} cannot be made a tensor: {error}") from error
    return array_of_texts(held) if held.dtype.kind in "OUST" else held


def _part(whole: Tensor, begin: tuple[int, ...], end: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A view of a region of a host tensor."""
    if whole.memory != HOST:
        raise InputError(f"{whole!r} is not in host memory, so no part of it can be taken.")
    inside = len(begin) == len(end) == len(whole.shape) and all(
        low <= high <= size for low, high, size in zip(begin, end, whole.shape, strict=True)
    )
    if not inside:
        raise InputError(f"{whole!r} has no part from {list(begin)} to {list(end)}.")
    return whole.numpy()[tuple(map(slice, begin, end))]
