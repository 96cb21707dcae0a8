"""The tensor: what an application hands in, what crosses between submodels, what comes back."""

from __future__ import annotations

import abc
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.host import HOST as HOST

if TYPE_CHECKING:
    from partita.layout import Layout


class Tensor(abc.ABC):
    """An n-dimensional array in some device's memory.

    Attributes:
        shape: Dimensions, outermost first.
        dtype: Element type as numpy dtype (bfloat16 and float8 types come from ``ml_dtypes``).
        device: Name of the device that made it, e.g. ``"OPENCL.0"``; ``"CPU"`` for host tensors.
        memory: Id of the memory that it lies in; tensors of equal memory id can be read in place
            by every device that answers ``can_share`` for that id. ``"host"`` is host memory.

    Called itself, ``Tensor(array)`` makes a host tensor of a copy, and
    ``Tensor(array, shared_memory=True)`` one of the array itself, as OpenVINO's does.
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
    def element_type(self) -> np.dtype[Any]:
        """The element type (OpenVINO's spelling)."""
        return self.dtype

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

    __slots__ = ("_array", "device", "dtype", "memory", "shape")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self.device = "CPU"
        self.memory = HOST

    def numpy(self) -> np.ndarray[Any, Any]:
        """The array itself."""
        return self._array


class _NewTensor(HostTensor):
    """What ``Tensor(...)`` makes; the one tensor that copies what it is given."""

    __slots__ = ()

    def __init__(self, array: Any, shared_memory: bool = False) -> None:
        super().__init__(np.asarray(array) if shared_memory else np.array(array, order="C"))
