"""Matrices of weights quantized in blocks, and what they mean in float64."""

from __future__ import annotations

import numpy as np


class Weights:
    """A matrix of weights, and what it means in float64."""

    def __init__(self, seed, terms, columns, size, bits, zeros=None, halves=True):
        rng = np.random.default_rng(seed)
        self.sizes = {"K": terms, "N": columns, "block_size": size, "bits": bits}
        blocks = -(-terms // size)
        self.packed = rng.integers(0, 256, (columns, blocks, size * bits // 8)).astype(np.uint8)
        scales = rng.uniform(0.01, 0.1, (columns, blocks)).astype(np.float32)
        self.scales = scales.astype(np.float16).astype(np.float32) if halves else scales
        self.zeros = self._zeros(rng, zeros, columns, blocks, bits)

    def _zeros(self, rng, kind, columns, blocks, bits):
        packed = columns, -(-blocks * bits // 8)
        match kind:
            case "bytes":
                return rng.integers(0, 256, packed).astype(np.uint8)
            case "equal":
                return np.full(packed, 0x66, np.uint8)
            case "floats":
                return rng.uniform(0, 15, (columns, blocks)).astype(np.float32)
            case "minimum":  # as formats have it that keep a scale and the smallest number
                least = rng.uniform(0, 1, (columns, blocks)).astype(np.float16)
                return least.astype(np.float32) / self.scales
        return None

    @property
    def inputs(self):
        return [self.packed, self.scales] + ([] if self.zeros is None else [self.zeros])

    def matrix(self):
        """The weights, (terms, columns), in float64."""
        columns, blocks = self.scales.shape
        bits, terms = self.sizes["bits"], self.sizes["K"]
        levels = unpacked(self.packed, bits).reshape(columns, blocks, -1).astype(np.float64)
        zeros = np.full((columns, blocks), 1 << (bits - 1))
        if self.zeros is not None and self.zeros.dtype == np.uint8:
            zeros = unpacked(self.zeros, bits)[:, :blocks]
        elif self.zeros is not None:
            zeros = self.zeros.astype(np.float64)
        real = (levels - zeros[..., None]) * self.scales.astype(np.float64)[..., None]
        return real.reshape(columns, -1)[:, :terms].T


def unpacked(array, bits):
    """Numbers in bytes, the lowest bits first; the last axis grows."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((array[..., None] >> shifts) & ((1 << bits) - 1)).reshape(*array.shape[:-1], -1)
