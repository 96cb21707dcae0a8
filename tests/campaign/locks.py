"""Placement locks that were changed, and files that are none."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from partita_hetero.placement import lock_file as locks

_PIECES = (
    *("[", "]", "{", "}", "=", ".", '"', "'", '"""', "'''", "#", "\n", "\\", "\\u0000", "\x00"),
    *("1e999", "nan", "-", "9" * 400, "1979-05-27T07:32:00Z", "a.b.c", "[[ops]]", "[ops.x]", "\r"),
    *("\ud7ff", "\u202e", "\x1b[2J", "true", "version = 1", 'format = "partita-placement"'),
)


def case(seed):
    """Reads one lock; its comparison and its text must do as well."""
    rng = np.random.default_rng(seed)
    text = whole(rng)
    for _ in range(rng.integers(0, 12)):
        place = int(rng.integers(len(text) + 1))
        piece = _PIECES[rng.integers(len(_PIECES))]
        match rng.integers(4):
            case 0:
                text = text[:place] + piece + text[place:]
            case 1:
                text = text[:place] + text[place + int(rng.integers(1, 20)) :]
            case 2:
                text = text[:place] + piece * int(rng.integers(1, 3000)) + text[place:]
            case _:
                text = text[:place] + text[place // 2 :]
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    if data and rng.random() < 0.2:
        data[rng.integers(len(data))] = rng.integers(256)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.toml"
        path.write_bytes(bytes(data))
        yield f"{len(data)} bytes"
        lock = locks.load(path)
        lock.save(path)
        locks.load(path)


def whole(rng):
    """A lock as it is written."""
    ops = {f"layer.{i}/conv": ("GPU.0", "CPU")[i % 2] for i in range(int(rng.integers(1, 40)))}
    devices = {"GPU.0": "driver 1", "CPU": "numba"}
    plan = {"objective": "latency", "optimum": True, "microseconds": 12.5}
    return locks.Lock("net", "0123", devices, ops, dict.fromkeys(ops, "Conv"), plan).text()
