"""Arrays over memory that is known by its address, for numba functions."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from partita_cpu.jit.deferred_numba import intrinsic, types


def _array_at(kind: str) -> Any:
    """Makes a function of an address and a number of elements."""

    def typed(typing: Any, address: Any, count: Any) -> Any:
        array = types.Array(getattr(types, kind), 1, "C")

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            make = getattr(context, "array_at", None) or functools.partial(_of_numba, context)
            return make(builder, array, *args)

        return array(types.int64, types.int64), generate

    return intrinsic(typed)


def _of_numba(context: Any, builder: Any, array: Any, address: Any, count: Any) -> Any:
    """Numba's value of an array."""
    made = context.make_array(array)(context, builder)
    itemsize = context.get_constant(types.intp, array.dtype.bitwidth // 8)
    arrayobj: Any = importlib.import_module("numba.np.arrayobj")
    arrayobj.populate_array(
        made,
        data=builder.inttoptr(address, made.data.type),
        shape=[count],
        strides=[itemsize],
        itemsize=itemsize,
        meminfo=None,
    )
    return made._getvalue()


floats_at = _array_at("float32")
"""An array of float32."""

sizes_at = _array_at("int32")
"""An array of int32."""

shorts_at = _array_at("uint16")
"""An array of uint16."""

integers_at = _array_at("int64")
"""An array of int64."""
