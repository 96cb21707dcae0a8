"""Transformed (packed) weights: made once per compiled model, or taken from an exported one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from partita.lowering.memory_plan import ALIGNMENT
from partita.lowering.program import Array, Elements, Operand, Packed, may_wait, plain
from partita.storage.content_hash import array_fingerprint
from partita.system.large_pages import aligned_bytes
from partita.system.memory_map import give_back

_WORTH_KEEPING = 16 * 1024
"""Smaller results are computed as fast as they are looked up."""


class Form(NamedTuple):
    """What a transformation makes, stated before it is made.

    Kernels compute addresses from these sizes. What comes out of a file is used if it is of this
    form, and made anew if it is not.

    Attributes:
        dtype: Element type.
        shape: Sizes.
        or_shape: Sizes that it may have instead.
    """

    dtype: Any
    shape: tuple[int, ...]
    or_shape: tuple[int, ...] | None = None

    def fits(self, array: Array | Operand) -> bool:
        """Whether an array is of this form."""
        return array.shape in (tuple(self.shape), self.or_shape) and array.dtype == self.dtype


class Prepacked:
    """Results of transformations of constants.

    Args:
        restored: What :meth:`state` of an earlier compile of the same model returned. A result is
            found by the content of the constant and by the key of the transformation, and used if
            it is of the form that the transformation states.
        releasable: Whether what is made may leave the host's memory when a device has it: results
            are then :class:`~partita.lowering.Packed`.
    """

    def __init__(
        self, restored: Mapping[str, Array] | None = None, *, releasable: bool = False
    ) -> None:
        self._restored = restored or {}
        self._releasable = releasable
        self._again: dict[tuple[Elements, tuple[int, ...], Any], Operand] = {}
        self._made: dict[Any, tuple[Array, Operand]] = {}
        self._names: dict[Any, str] = {}
        self._stated: set[Any] = set()
        self._plain: weakref.WeakValueDictionary[Any, Array] = weakref.WeakValueDictionary()

    def operand(
        self,
        array: Array,
        key: Any,
        fn: Callable[[Array], Array],
        anywhere: bool = False,
        form: Form | None = None,
    ) -> Operand:
        """``fn(array)``, computed at the first call; the same operand for all programs.

        Args:
            array: A constant that lasts as long as the compiled model; its address is its name.
            key: Tells one transformation of it from another.
            fn: The transformation.
            anywhere: Whether ``fn`` takes elements at odd addresses too, which saves a copy.
            form: What it makes; ``None`` for what is made again in every process. Results that may
                leave the host's memory are made when the device asks for them then, one by one.

        Raises:
            RuntimeError: It made something else than was stated, now or under the same key before.
        """
        full_key = (array.ctypes.data, array.shape, array.strides, array.dtype, key)
        found = self._made.get(full_key)
        if found is not None:
            _require(key, found[1], form)
            return found[1]

        def make() -> Array:
            result = None if form is None else self.restore(array, full_key, form)
            if result is None:
                source = array if anywhere and may_wait(array) else plain(array)
                result = plain(np.asarray(fn(source)))
            _require(key, result, form)
            give_back(array)  # whoever asks has looked at it
            return result

        if self._releasable and form is not None and form.or_shape is None:
            made: Operand = Packed(form.shape, np.dtype(form.dtype), Elements(make))
        else:
            made = self._operand(make(), array)
        if form is not None:
            self._stated.add(full_key)
        # The source is kept beside the result: its address is the key.
        self._made[full_key] = (array, made)
        return made

    def plain(self, array: Array) -> Array:
        """A constant in the form that kernels take; a copy of a large one is all programs' own.

        Args:
            array: A constant that lasts as long as the compiled model; its address is its name.
        """
        if not may_wait(array):
            return plain(array)
        if array.flags.c_contiguous and array.ndim != 1:
            return self.plain(array.reshape(-1)).reshape(array.shape)
        key = array.ctypes.data, array.shape, array.strides, array.dtype
        found = self._plain.get(key)
        if found is None:
            found = self._plain[key] = plain(array)
            give_back(array)
        return found

    def packed_again(self, x: Packed, key: Any, fn: Callable[[Array], Array]) -> Operand:
        """What :meth:`operand` makes of what it has made, known by what it was made of.

        Args:
            x: What :meth:`operand` has made.
            key: Tells one transformation of it from another.
            fn: The transformation.
        """
        full_key = (x.elements, x.shape, key)
        found = self._again.get(full_key)
        if found is None:
            source = x.const
            found = self._again[full_key] = self._operand(plain(np.asarray(fn(source))), source)
        return found

    def _operand(self, result: Array, source: Array) -> Operand:
        """The operand of what was made, which may be the source itself."""
        if not self._releasable or np.may_share_memory(result, source):
            return Operand(result.shape, result.dtype, result, lasting=True)
        return Packed(result.shape, result.dtype, Elements(result))

    def state(self) -> dict[str, Array]:
        """Results that are worth keeping, by names that hold in other processes too."""
        return {
            self._name(source, full_key): made.const
            for full_key, (source, made) in list(self._made.items())
            if made.const is not None
            and made.nbytes >= _WORTH_KEEPING
            and full_key in self._stated
            and _can_be_named(full_key[-1])
        }

    def restore(self, array: Array, full_key: Any, form: Form) -> Array | None:
        """The transformed array that an exported model brought, if it has the right form.

        Args:
            array: What is transformed.
            full_key: Tells the transformation from all others of it.
            form: What the transformed array must be.

        Returns:
            The array; ``None`` where there is none of this form.
        """
        if not self._restored or array.dtype.hasobject or not _can_be_named(full_key[-1]):
            return None
        found = self._restored.get(self._name(array, full_key))
        if found is None or not form.fits(found):
            return None
        return plain(_aligned(found))

    def _name(self, array: Array, full_key: Any) -> str:
        of_source = full_key[:-1]
        if of_source not in self._names:
            self._names[of_source] = array_fingerprint(array)
        return f"{self._names[of_source]} {full_key[-1]!r}"


def _require(key: Any, made: Array | Operand, form: Form | None) -> None:
    if form is not None and not form.fits(made):
        raise RuntimeError(f"{key!r} made {made.dtype}{made.shape}, not {form}")


def _can_be_named(key: Any) -> bool:
    """Whether a key says the same in every process."""
    if isinstance(key, tuple):
        return all(map(_can_be_named, key))
    return key is None or isinstance(key, (str, int, float))


def _aligned(array: Array) -> Array:
    """The array, or a copy of it that starts at a cache line, as kernels like it."""
    if array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
