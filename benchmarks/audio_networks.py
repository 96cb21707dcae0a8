"""What networks of speech compute first, as built graphs, for benchmarks: any length of audio."""

from __future__ import annotations

import numpy as np
from cpu_networks import Builder, Feeds, with_symbols

RATE = 16000
"""Samples a second."""


def front_end(bands: int = 80, length: int = 400, step: int = 160) -> tuple[bytes, Feeds]:
    """Logarithms of power in bands, as Whisper takes them, without filling up to half a minute.

    Args:
        bands: How many there are, each of a few frequencies.
        length: Samples of a frame.
        step: Samples from one frame to the next.
    """
    b = Builder()
    half = length // 2
    pads = b.weight(np.array([0, half, 0, half]))
    window = b.weight((0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)).astype("f4"))
    frames = b.add("STFT", b.add("Pad", "x", pads, mode="reflect"), b.weight(step), window)
    places = [b.weight(np.array([n])) for n in (0, -1, 1)]
    power = b.add("ReduceSumSquare", b.add("Slice", frames, *places), axes=[-1], keepdims=0)
    centres = np.linspace(0, half, bands + 2)[1:-1]
    width = half / (bands + 1)
    weights = np.maximum(0, 1 - np.abs(np.arange(half + 1)[:, None] - centres) / width)
    mel = b.add("MatMul", power, b.weight((weights / width).astype(np.float32)))
    logs = b.add("Log", b.add("Clip", mel, b.weight(np.float32(1e-10))))
    least = b.add("Sub", b.add("ReduceMax", logs, keepdims=1), b.weight(np.float32(18)))
    features = b.add("Transpose", b.add("Max", logs, least), perm=[0, 2, 1])
    model, feeds = b.model((1, 4 * RATE), features)
    return with_symbols(model, {1: "samples"}), feeds
