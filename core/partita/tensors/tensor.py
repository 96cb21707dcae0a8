"""The tensor: what an application hands in, what crosses between submodels, what comes back."""

from __future__ import annotations

import abc
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.errors import InferError, InputError
from partita.tensors.element_type import Type
from partita.tensors.host import HOST as HOST
from partita.tensors.layout import Layout


class Tensor(abc.ABC):
    """An n-dimensional array in some device's memory.

    Attributes:
        shape: Dimensions, outermost first.
        dtype: Element type as numpy dtype (bfloat16 and float8 types come from ``ml_dtypes``).
        device: Name of the device whose memory it lies in, e.g. ``"OPENCL.0"``; ``"host"`` for host
            tensors, which belong to none.
        memory: Id of the memory that it lies in; tensors of equal memory id can be read in place
            by every device that answers ``can_share`` for that id. ``"host"`` is host memory.

    Called itself, ``Tensor(array)`` makes a host tensor of a copy,
    ``Tensor(array, shared_memory=True)`` one of the array itself, and ``Tensor(type, shape)`` one
    of zeros, as OpenVINO's does; the type is a :class:`partita.Type` or one of numpy's.
    """

    __slots__ = ()

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: str
    memory: str
    layout: Layout | None = None
    """How the elements lie, where two devices have agreed to something else than C order."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Tensor:
        """An instance of the class; of the class ``Tensor`` itself, a host tensor."""
        return object.__new__(_NewTensor if cls is Tensor else cls)

    @abc.abstractmethod
    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a C-contiguous host array.

        A host tensor returns its own memory, any other tensor a copy.
        """

    def stored(self) -> np.ndarray[Any, Any]:
        """The elements on the host, in the order and type that :attr:`layout` names."""
        return self.numpy()

    def copy_to(self, target: Tensor) -> None:
        """Writes the elements to a host tensor of the same shape, type and layout."""
        np.copyto(target.stored(), self.stored(), casting="no")

    def copy_from(self, source: Tensor) -> None:
        """Takes the elements of a tensor of the same shape, type and layout, wherever it lies.

        Raises:
            InferError: It lies in memory that the host cannot write.
        """
        raise InferError(f"{self!r} cannot be written by the host.")

    def clear(self) -> None:
        """Makes all elements zero.

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

    def get_shape(self) -> tuple[int, ...]:
        """The dimensions (OpenVINO's spelling of :attr:`shape`)."""
        return self.shape

    @property
    def byte_size(self) -> int:
        """Size of the elements in bytes (OpenVINO's spelling of :attr:`nbytes`)."""
        return self.nbytes

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


class HostTensor(Tensor):
    """A tensor in host memory: a numpy array, not copied.

    Args:
        array: The elements; kept as it is, so writing to it changes the tensor.
    """

    __slots__ = ("_array", "_shape", "device", "dtype", "memory")

    _shape: tuple[int, ...]

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        self._shape = array.shape
        self.dtype = array.dtype
        self.device = HOST
        self.memory = HOST

    @classmethod
    def seen_as(
        cls, array: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> HostTensor:
        """The tensor of an array that had this shape and type when it was handed in."""
        tensor = HostTensor(array)
        tensor._shape, tensor.dtype = shape, dtype
        return tensor

    def numpy(self) -> np.ndarray[Any, Any]:
        """The array itself."""
        return self._array

    def copy_from(self, source: Tensor) -> None:
        """Takes the elements of a tensor of the same shape and type, wherever it lies."""
        source.copy_to(self)

    def clear(self) -> None:
        """Makes all elements zero."""
        self._array.fill(0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, outermost first, of the array when it was handed in.

        Set to others, the tensor has them from then on: with the same elements if there are as
        many, and otherwise with zeros in memory of its own.

        Raises:
            InputError: They are no dimensions.
        """
        return self._shape

    @shape.setter
    def shape(self, dims: Sequence[int]) -> None:
        self.set_shape(dims)

    def set_shape(self, dims: Sequence[int]) -> None:
        """Sets :attr:`shape` (OpenVINO's spelling)."""
        sizes = _sizes(dims)
        if math.prod(sizes) == self._array.size:
            self._array = np.ascontiguousarray(self._array).reshape(sizes)
        else:
            self._array = np.zeros(sizes, self.dtype)
        self._shape = sizes


class _NewTensor(HostTensor):
    """What ``Tensor(...)`` makes; the one tensor that copies what it is given."""

    __slots__ = ()

    def __init__(self, array: Any, shared_memory: Any = False, *, shape: Any = None) -> None:
        if isinstance(array, (type, Type, np.dtype)):
            dims = shared_memory if shape is None else shape
            if dims is False:
                raise InputError(f"A tensor of {array!r} needs a shape: Tensor(type, shape).")
            super().__init__(np.zeros(_sizes(dims), _dtype(array)))
            return
        if not isinstance(shared_memory, (bool, np.bool_)) or shape is not None:
            raise InputError(
                "Tensor takes an array and whether to share its memory, or a type and a shape; "
                f"found {type(array).__name__} and {shared_memory if shape is None else shape!r}."
            )
        held = np.asarray(array) if shared_memory else np.array(array, order="C")
        if held.dtype.hasobject and not all(isinstance(x, (str, bytes)) for x in held.flat):
            raise InputError(f"A tensor holds numbers, truth values or texts; found {array!r}.")
        super().__init__(held)


def _sizes(dims: Any) -> tuple[int, ...]:
    """Dimensions that were handed in."""
    try:
        sizes = tuple(operator.index(dim) for dim in dims)
    except TypeError as error:
        raise InputError(f"A shape is a sequence of whole numbers; found {dims!r}.") from error
    if min(sizes, default=0) < 0:
        raise InputError(f"A shape has no negative dimensions; found {list(sizes)}.")
    return sizes


def _dtype(kind: Any) -> np.dtype[Any]:
    """The numpy type of what stands for one."""
    try:
        found: np.dtype[Any] = np.dtype(kind)
    except TypeError as error:
        raise InputError(f"{kind!r} is no element type of a tensor.") from error
    return found
