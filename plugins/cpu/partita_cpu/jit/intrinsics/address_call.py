"""Calls through addresses, out of numba functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from partita_cpu.jit.deferred_numba import intrinsic, ir, register_jitable, types

_I64, _F32 = "int64", "float32"


@register_jitable
def address(array: Any) -> Any:
    """Where an array starts; signed, since numba makes floats of signed and unsigned together."""
    return np.int64(array.ctypes.data)


def unpacked(builder: Any, given: Any, count: int) -> list[Any]:
    """The items of a tuple: one value of numba's, a list of `partita_cpu.jit.translation`."""
    if isinstance(given, list):
        return given
    return [builder.extract_value(given, index) for index in range(count)]


def calling(*kinds: str, returns: str = "void") -> Any:
    """Makes a function of an address, and a tuple of what to call it with; by numba's types."""

    def typed(typing: Any, address: Any, arguments: Any) -> Any:
        given = types.Tuple([getattr(types, kind) for kind in kinds])
        result = getattr(types, returns)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values = unpacked(builder, args[1], len(kinds))
            nothing = result == types.void
            kind_of_result = ir.VoidType() if nothing else context.get_value_type(result)
            kind = ir.FunctionType(kind_of_result, [value.type for value in values])
            value = builder.call(builder.inttoptr(args[0], kind.as_pointer()), values)
            return context.get_dummy_value() if nothing else value

        return result(types.int64, given), generate

    return intrinsic(typed)


def calling_unit(*kinds: str) -> Any:
    """Makes one that calls a kernel which is compiled apart and returns nothing.

    Its address is `partita_cpu.jit.dispatch.unit_address`; a kernel that names it instead has it
    compiled wherever it is compiled itself.
    """

    def typed(typing: Any, address: Any, arguments: Any) -> Any:
        given = types.Tuple([getattr(types, kind) for kind in kinds])

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values = unpacked(builder, args[1], len(kinds))
            byte = ir.IntType(8).as_pointer()
            with builder.goto_entry_block():
                places = [builder.alloca(byte), builder.alloca(byte)]  # of a result and an error
            parameters = [value.type for value in (*places, *values)]
            kind = ir.FunctionType(ir.IntType(32), parameters)
            builder.call(builder.inttoptr(args[0], kind.as_pointer()), [*places, *values])
            return context.get_dummy_value()

        return types.void(types.int64, given), generate

    return intrinsic(typed)


call_activate_floats = calling_unit(_I64, _I64, _I64, _F32, _F32)
"""Calls `partita_cpu.scalar.activations.activate_floats`."""

call_tile = calling(*[_I64] * 16, _F32, _F32, _I64)
"""Calls a tile kernel; see `fma.PARAMETERS`."""

call_late_tile = calling(*[_I64] * 16, _F32, _F32, *[_I64] * 3)
"""Calls one that finishes another tile meanwhile; see `amx.LATE_PARAMETERS`."""

call_products = calling(*[_I64] * 11)
"""Calls products of a tile of attention; see `attend.PRODUCT_PARAMETERS`."""

call_scores = calling(*[_I64] * 7)
"""Calls scores of few queries; see `attend_few.SCORE_PARAMETERS`."""

call_sums = calling(*[_I64] * 8)
"""Calls sums of values for few queries; see `attend_few.SUM_PARAMETERS`."""

call_weigh = calling(_I64, _I64, _F32, _I64, returns=_F32)
"""Makes weights of scores and returns their sum; see `attention.weigh.PARAMETERS`."""

call_softmax = calling(*[_I64] * 6)
"""Calls the softmax of the scores of a tile; see `attend.SOFTMAX_PARAMETERS`."""

call_epilogue = calling(*[_I64] * 7, _F32, _F32, _I64)
"""Calls an epilogue: rows, then `epilogue.PARAMETERS`."""

call_activate = calling(*[_I64] * 4)
"""Applies an activation to rows of a result; see `activations.PARAMETERS`."""

call_activate_narrow = calling(*[_I64] * 6)
"""Finishes rows of a tile so that they end in bfloat16; see `activations.NARROW_PARAMETERS`."""

call_normalize = calling(*[_I64] * 6, "float64")
"""Normalizes rows so that they end in bfloat16; see `normalization.PARAMETERS`."""

call_normalize_eights = calling(*[_I64] * 10, "float64")
"""Normalizes short rows; see `normalization.EIGHTS_PARAMETERS`."""

call_normalize_tiles = calling(*[_I64] * 10, "float64", returns=_I64)
"""The same where results are laid out as tiles. Returns an int64."""

call_narrow = calling(*[_I64] * 5, returns=_I64)
"""Calls a conversion; see `bf16_split.PARAMETERS`. Returns an int64."""

call_narrow_rows = calling(*[_I64] * 8, returns=_I64)
"""Calls one of rows; see `bf16_split.ROWS_PARAMETERS`. Returns an int64."""

call_input_transform = calling(*[_I64] * 8)
"""Transforms the pixels of tiles; see `winograd.INPUT_PARAMETERS`."""

call_output_transform = calling(*[_I64] * 6, returns=_I64)
"""Makes results of the sums of tiles; see `winograd.OUTPUT_PARAMETERS`. Returns an int64."""

call_interleave = calling(*[_I64] * 5, returns=_I64)
"""Brings the channels of a picture together; see `planar_to_interleaved.PARAMETERS`.

Returns an int64.
"""

call_pack_tile = calling(*[_I64] * 5, returns=_I64)
"""Lays rows out as tiles; see `bf16_split.TILE_PARAMETERS`. Returns an int64."""

call_scale = calling(*[_I64] * 7, _F32, _F32, returns=_I64)
"""Calls a conversion that scales; see `bf16_split.SCALED`. Returns an int64."""

call_combine = calling(*[_I64] * 8)
"""Adds or multiplies rows of two tensors; see `elementwise_rows.PARAMETERS`."""

call_channel_sums = calling(*[_I64] * 7)
"""Adds up pixels; see `images.group_normalization.SUM_PARAMETERS`."""

call_normalize_pixels = calling(*[_I64] * 10, *[_F32] * 3)
"""Normalizes pixels; see `images.group_normalization.PARAMETERS`."""

call_window = calling(*[_I64] * 12, _F32, _F32, _I64)
"""Calls a window kernel; see `sliding_window.PARAMETERS`."""

call_bytes = calling(*[_I64] * 7)
"""Calls a kernel for products of bytes on AMX; see `amx_int8.PARAMETERS`."""

call_dots = calling(*[_I64] * 8)
"""Calls one in vectors; see `dot_int8.PARAMETERS`."""

call_dot_levels = calling(*[_I64] * 11)
"""Calls one whose sums become levels; see `dot_levels.PARAMETERS`."""

call_prepare_end = calling(*[_I64] * 6, _F32, _I64, _I64)
"""Prepares it; see `dot_levels.PREPARE_PARAMETERS`."""

call_blocks = calling(*[_I64] * 15)
"""Calls one for weights quantized in blocks; see `dot_blocks.PARAMETERS`."""

call_unpacked = calling(*[_I64] * 15)
"""Calls one for such weights that were unpacked; see `dot_unpacked.PARAMETERS`."""

call_unpack_words = calling(*[_I64] * 10, _F32)
"""Unpacks them; see `unpack_words.PARAMETERS`."""

call_groups = calling(*[_I64] * 7, returns=_I64)
"""Makes groups of floats int8 or int16; see `quantized_groups.PARAMETERS`. Returns an int64."""

call_unpack = calling(*[_I64] * 5, _F32, _I64)
"""Unpacks such weights; see `unpack_blocks.PARAMETERS`."""

call_gate_tiles = calling(*[_I64] * 5, returns=_I64)
"""Finishes two tiles of sums; see `gate_tiles.PARAMETERS`. Returns an int64."""

call_finish_bytes = calling(*[_I64] * 7, _F32, _I64, _I64, _F32, _F32, _I64)
"""Finishes a tile of it; see `epilogue_int8.PARAMETERS`."""

call_add_bytes = calling(*[_I64] * 7, *[_F32] * 6)
"""Adds levels; see `add_int8.PARAMETERS`."""

call_add_by_factors = calling(*[_I64] * 4, *[_F32] * 4, _I64)
"""Adds levels; see `add_int8.FACTORS_PARAMETERS`."""

call_look_up = calling(*[_I64] * 4)
"""Looks up bytes in a table; see `byte_table.PARAMETERS`."""

call_runs = calling(*[_I64] * 7)
"""Copies runs of bytes; see `strided_copy.PARAMETERS`."""

call_depthwise_bytes = calling(*[_I64] * 13, _F32, _F32, _F32, _I64)
"""Calls a depthwise convolution of bytes; see `depthwise_pixels_int8.PARAMETERS`."""

call_depthwise_quads = calling(*[_I64] * 12, _F32, _F32, _I64)
"""The same by fours of taps; see `depthwise_quads.PARAMETERS`."""

call_largest_bytes = calling(*[_I64] * 9)
"""Calls the maxima of bytes; see `max_int8.PARAMETERS`."""

call_copy_flushed = calling(*[_I64] * 6)
"""Copies rows of floats without subnormal ones; see `flushed_rows.PARAMETERS`."""

call_transpose = calling(*[_I64] * 4)
"""Calls a kernel that turns a block; see `transpose_block.PARAMETERS`."""

call_depthwise_rows = calling(*[_I64] * 12, _F32, _F32, _I64)
"""Calls a depthwise convolution; see `depthwise_rows.PARAMETERS`."""

call_depthwise_pixels = calling(*[_I64] * 18, _F32, _F32, _I64, returns=_I64)
"""The same on images as they lie; see `depthwise_pixels.PARAMETERS`. Returns an int64."""

call_pack_pixels = calling(*[_I64] * 6)
"""Lays out a row for it; see `depthwise_rows.PACK_PARAMETERS`."""

call_plain = calling(_I64)
"""Calls a kernel that takes one address, or nothing."""


call_convert = calling(_I64, _I64, _I64)
"""Makes floats of float16 or float16 of floats; see `fp16_weights.CONVERT_PARAMETERS`."""

call_round = calling(_I64, _I64)
"""Rounds floats where they lie; see `fp16_weights.ROUND_PARAMETERS`."""


def _float_bits(typing: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.int64), generate


float_bits: Any = intrinsic(_float_bits)
"""The float32 with these bits."""


def _float_at(typing: Any, address: Any) -> Any:
    return types.float32(types.int64), _load(ir.FloatType)


def _half_at(typing: Any, address: Any) -> Any:
    return types.uint16(types.int64), _load(lambda: ir.IntType(16))


def _load(kind: Callable[[], Any]) -> Any:
    """What reads an element at an address that need not be a multiple of its size."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], ir.PointerType(kind()))
        return builder.load(place, align=1)

    return generate


float_at: Any = intrinsic(_float_at)
"""The float32 at an address, any one."""

half_at: Any = intrinsic(_half_at)
"""The bits of the 16-bit number at an address, any one."""


def _prefetch(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        called = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        read, nearest, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(called, [builder.inttoptr(args[0], pointer), read, nearest, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


prefetch: Any = intrinsic(_prefetch)
"""Asks for the line of the cache at an address, any one, to be read soon."""
