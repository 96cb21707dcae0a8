"""Pixels normalized in groups of channels, by kernels alone, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita.lowering import Activation, ActivationCode
from partita_cpu.jit import llvm_kernel
from partita_cpu.kernels.nhwc.group_normalization import pixel_end
from partita_cpu.llvm.images.group_normalization import normalization_name, sums_name
from partita_cpu.nhwc.channel_slice import ChannelSlice
from partita_cpu.nhwc.group_normalization import (
    GroupFactors,
    Moments,
    channel_moments,
    group_factors,
    normalize_pixels,
)

from ..conftest import Guarded
from ..gemm.test_native_storage import LEVELS, SENTINEL, loaded, stored
from ..networks.test_native_halves import besides
from .test_native_group_normalization import exact

ACTIVATED = {
    ActivationCode.NONE: lambda x: x,
    ActivationCode.CLIP: lambda x: np.clip(x, -0.5, 0.75),
    ActivationCode.LEAKY_RELU: lambda x: np.where(x < 0, -0.5 * x, x),
    ActivationCode.SILU: lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("level", LEVELS)
@examples(40)
@given(data=st.data())
def test_parts_of_images_of_both_types(level, data):
    """Nothing but results is written, and what lies beside the pixels is not read."""
    one_of, number = st.sampled_from, st.integers
    kinds = (False, True) if level.keeps_bfloat16 else (False,)
    half_in, half_out = data.draw(one_of(kinds)), data.draw(one_of(kinds))
    groups, within = data.draw(number(1, 12)), data.draw(number(1, 12))
    batch, pixels = data.draw(number(1, 3)), data.draw(number(1, 300))
    threads, beside = data.draw(number(1, 3)), data.draw(besides)
    code = data.draw(one_of(list(ACTIVATED)))
    channels, rng, guarded = groups * within, np.random.default_rng(pixels), Guarded()

    before_x, after_x, before_y, after_y = beside[:4]
    x = stored(rng.standard_normal((batch, pixels, before_x + channels + after_x)) + 3, half_in)
    scale, bias = rng.standard_normal((2, channels)).astype(np.float32)
    y = np.full((batch, pixels, before_y + channels + after_y), SENTINEL)
    y = guarded.array(stored(y, half_out))
    every = batch * channels
    singles = [guarded.array(np.zeros(every, np.float32)) for _ in range(4)]
    doubles = [np.zeros(every) for _ in range(2)]
    parts = guarded.array(np.zeros(2 * every, np.float32))
    moments = Moments(singles[0], *doubles, parts)
    factors = GroupFactors(*singles[1:], guarded.array(bias))
    known = llvm_kernel.addresses(level, "_normalized_pixels")
    sums, normalize = sums_name(half_in), normalization_name(half_in, half_out)
    sums, normalize = np.array([known[sums]]), np.array([known[normalize]])
    bounds = {ActivationCode.CLIP: (-0.5, 0.75), ActivationCode.LEAKY_RELU: (-0.5, 0.0)}
    activation = Activation(code, *bounds.get(code, (0.0, 0.0)))
    flat = guarded.array(x).reshape(-1), y.reshape(-1)
    place = ChannelSlice(channels, x.shape[2], before_x, y.shape[2], before_y)
    for tid in range(threads):
        channel_moments(flat[0], moments, sums, pixels, place, tid, threads)
    for tid in range(threads):
        group_factors(moments, scale, factors, groups, 1e-3, tid, threads)
    for tid in range(threads):
        end = pixel_end(level, activation, half_out)
        normalize_pixels(flat[0], factors, flat[1], normalize, pixels, place, end, tid, threads)

    part = np.asarray(loaded(x)[..., before_x : before_x + channels], np.float64)
    wanted = exact(part.swapaxes(1, 2)[..., None], groups, scale, bias)[..., 0]
    wanted, found = wanted.swapaxes(1, 2), loaded(y)
    there = slice(before_y, before_y + channels)
    # What is activated is rounded before and after, and no activation is steeper than 1.1.
    room = (9e-3 if half_out else 1e-5) * np.abs(wanted) + 1e-5
    assert (np.abs(found[..., there] - ACTIVATED[code](wanted)) <= room).all()
    found[..., there] = SENTINEL
    np.testing.assert_array_equal(found, SENTINEL)
    guarded.release()
