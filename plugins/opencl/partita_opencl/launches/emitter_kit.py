"""What an emitter of this plugin gets in hand: the builder, the device's tuning, launches."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.shapes.symbolic_size import evaluated
from partita.system.array_conversion import converted
from partita_opencl.drivers.program_cache import ProgramKey
from partita_opencl.launches.steps import (
    Chain,
    Counters,
    Fault,
    Launch,
    Line,
    Sizes,
    StallFlag,
    TensorMapBuffer,
)
from partita_opencl.launches.work_sizes import Tuning, has_items
from partita_opencl.tuning.database import C, choose

Options = tuple[tuple[str, str | int | None], ...]
"""Macros with their values."""

Argument = Operand | np.generic | Array | Fault | StallFlag | Counters | TensorMapBuffer
"""What a step takes: an operand, a scalar, or a small array for an OpenCL vector."""


class Kit:
    """Records launches for one device.

    Attributes:
        builder: The toolkit's builder.
        tuning: How work is cut for the device.
    """

    def __init__(self, builder: Builder, tuning: Tuning) -> None:
        self.builder = builder
        self.tuning = tuning

    @property
    def version(self) -> int:
        """Opset version of the node being emitted."""
        return self.builder.version

    def empty(self, shape: Iterable[int], dtype: Any) -> Operand:
        """A new intermediate tensor."""
        return self.builder.empty(shape, dtype)

    def view(self, x: Operand, shape: Iterable[int]) -> Operand:
        """The same memory with other dimensions."""
        return self.builder.view(x, shape)

    def value(self, x: Operand) -> Array:
        """The elements of a tensor whose value the emitter needs now."""
        return self.builder.value(x)

    def constant(self, array: Any) -> Operand:
        """A tensor of elements known now."""
        return self.builder.constant(array)

    def choose(self, key: str, ranked: Sequence[C]) -> C:
        """One of several ways to compute the node: measured to be the fastest, or the first."""
        return choose(self.tuning.device, self.builder.node.name, key, ranked)

    def halves(self, array: Array) -> Array:
        """An array as halves in memory: float16, or bfloat16 in its place.

        What is larger than the largest half becomes infinite, as hardware converts.
        """
        return converted(self.numbers(array), self.tuning.stored_type).view(np.float16)

    def numbers(self, array: Array) -> Array:
        """An array as the numbers that it holds: halves may be bfloat16."""
        return array.view(self.tuning.stored_type) if is_half(array.dtype) else array

    def launch(
        self,
        file: str,
        kernel: str,
        sizes: Sizes,
        *args: Argument,
        **options: Any,
    ) -> None:
        """Records a kernel call, unless it has no items.

        Args:
            file: The ``.cl`` file.
            kernel: The kernel's name.
            sizes: Global and local size.
            args: Its arguments.
            options: As for :meth:`launch_generated`.
        """
        self.launch_generated("", file, kernel, sizes, *args, **options)

    def launch_copy(
        self,
        file: str,
        kernel: str,
        sizes: Sizes,
        *args: Argument,
        **options: str | int | None,
    ) -> None:
        """Records a copy from the first argument to the second, to where the elements lie there.

        It is left out where a run has one buffer for both.

        Args:
            file: The ``.cl`` file.
            kernel: The kernel's name.
            sizes: Global and local size.
            args: Its arguments; the first is read, the second is written.
            options: Macros of the kernel.
        """
        if has_items(sizes):
            launch = Launch(self._program("", file, args, options), kernel, sizes, None, (0, 1))
            self.builder.call_numpy(launch, *args, exec_type=kernel)

    def launch_generated(
        self,
        generated: str,
        file: str,
        kernel: str,
        sizes: Sizes,
        *args: Argument | StallFlag | None,
        product: object = None,
        chosen: Any = (),
        **options: Any,
    ) -> None:
        """Records a call of a kernel of whose file a part is generated; see :class:`Launch`.

        Args:
            generated: The part; it may stand for others.
            file: The file.
            kernel: The kernel's name.
            sizes: Global and local size.
            args: Its arguments.
            product: What is computed, for passes that look for certain kernels.
            chosen: Macros that depend on sizes; where these stand for others, one
                :func:`~partita.lowering.shapes.symbolic_size.evaluated` for all macros, so that
                other ones are no decision.
            options: The other macros.
        """
        if has_items(sizes):
            launch = Launch(
                self._program(generated, file, args, options, chosen), kernel, sizes, product
            )
            self.builder.call_numpy(launch, *args, exec_type=kernel)

    def _program(
        self,
        generated: str,
        file: str,
        args: Sequence[Argument | StallFlag | None],
        options: dict[str, str | int | None],
        chosen: Options = (),
    ) -> ProgramKey:
        """The program of a kernel, with the options that its operands ask for."""
        if any(isinstance(arg, Operand) and is_half(arg.dtype) for arg in args):
            options["HALF"] = None
            if self.tuning.bfloat:
                options["BFLOAT"] = None
            if self.tuning.limits.is_nvidia:
                options["NVIDIA"] = None
        options.update(self.tuning.form.options)
        program: ProgramKey = evaluated(
            _program_of, file, tuple(options.items()), generated, chosen
        )  # or what stands for several
        return program

    def chain(self, out: Operand, lines: Sequence[Line], *inputs: Operand | np.generic) -> None:
        """Records an element-wise computation, which may be fused with its neighbours."""
        if out.size:
            step = Chain(tuple(ctype_of(x.dtype) for x in inputs), tuple(lines))
            self.builder.call_numpy(step, out, *inputs, exec_type="chain")


_CTYPES = {
    "bool": "uchar",
    "uint8": "uchar",
    "int8": "char",
    "uint16": "ushort",
    "int16": "short",
    "uint32": "uint",
    "int32": "int",
    "uint64": "ulong",
    "int64": "long",
    "float16": "float",
    "float32": "float",
}
_SIZED = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}


@functools.cache
def ctype_of(dtype: np.dtype[Any]) -> str:
    """The OpenCL C type of elements in registers; types without arithmetic go by their size."""
    return _CTYPES.get(dtype.name) or _SIZED[dtype.itemsize]


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether elements are float16 in memory, which are float32 in registers."""
    return dtype.char == "e"


def is_computed(dtype: np.dtype[Any]) -> bool:
    """Whether kernels compute with elements of the type, rather than only moving them."""
    return dtype.name in _CTYPES


def raw_ctype(dtype: np.dtype[Any]) -> str:
    """The unsigned OpenCL C type of the element's size, for kernels that only move elements."""
    return _SIZED[dtype.itemsize]


def _program_of(file: str, options: Options, generated: str, chosen: Options) -> ProgramKey:
    return ProgramKey(file, (*options, *chosen), generated)


def i32(value: Any) -> Any:
    """An ``int`` argument, which may stand for others, as a size may."""
    return evaluated(np.int32, value)


def i64(value: Any) -> Any:
    """A ``long`` argument."""
    return evaluated(np.int64, value)


def f32(value: Any) -> Any:
    """A ``float`` argument."""
    return evaluated(np.float32, value)


def ints(*values: int) -> Any:
    """An ``int2``, ``int4`` or ``int8`` argument."""
    return evaluated(_ints, *values)


def longs(*values: int) -> Any:
    """A ``long8`` argument."""
    return evaluated(_longs, *values)


def _ints(*values: int) -> Array:
    return np.array(values, np.int32)


def _longs(*values: int) -> Array:
    return np.array(values, np.int64)
