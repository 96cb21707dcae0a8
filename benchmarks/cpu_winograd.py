"""Convolutions of 3 x 3 taps on device CPU: directly, and by Winograd's minimal filtering.

    python benchmarks/cpu_winograd.py [--threads 1] [--seconds 1] [--random 0]
        [--mode f32] [--errors] [CHANNELSxOUTPUTSxHEIGHTxWIDTH ...]

Without AMX the default mode takes tiles of 2 x 2 or 4 x 4 results where it expects to gain, and
EXECUTION_MODE_HINT=ACCURACY those of 2 x 2. Each shape is compiled as the default has it, directly
and with all kinds of tiles, which then take turns; --random draws so many shapes. With --mode bf16
direct products are of bfloat16, and one kind of tiles of 2 x 2 multiplies in bfloat16, too; then a
product of one tap comes before and one behind, so that images in between are in bfloat16. Prints
the least time of the convolution's step in microseconds for each, what the default chose, its gain
(1.00 where it is direct), and errors in parts of the largest value: in f32 against float64, in bf16
of the last product against direct sums in float32.

With --errors nothing is timed: prints for images and weights of many kinds how many times as far
off float64 as direct sums both tiles are, by largest errors: the median and the most of all kinds.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from cpu_networks import Builder

import partita
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.llvm.images.winograd import TAPS
from partita_cpu.winograd.tile_kind import TileKind
from partita_cpu.winograd.time_model import kind_for

SHAPES = (
    *("64x64x56x56", "128x128x28x28", "256x256x14x14", "512x512x7x7"),  # ResNet
    *("64x64x160x160", "128x128x80x80", "256x256x40x40", "512x512x20x20"),  # a detector
    *("64x64x224x224", "128x128x112x112", "256x256x56x56", "512x512x28x28"),  # VGG
    *("128x64x256x256", "512x256x64x64", "1024x512x32x32"),  # a U-Net
    *("128x32x56x56", "128x32x14x14", "16x64x55x55", "96x96x35x35", "24x24x160x160"),
)
ENDS = 16
"""Channels before and behind, with --mode bf16."""
DIRECT, SMALL, LARGE, PAIRS, DEFAULT = "direct", "2x2", "4x4", "2x2 bf16", "default"
KINDS = {
    "f32": {DIRECT: TileKind.DIRECT, SMALL: TileKind.SMALL, LARGE: TileKind.LARGE},
    "bf16": {
        DIRECT: TileKind.DIRECT,
        SMALL: TileKind.SMALL,
        LARGE: TileKind.LARGE,
        PAIRS: TileKind.SMALL_PAIRS,
    },
}
"""By mode: the ways of which times are printed."""

Shape = tuple[int, int, int, int]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Any]
"""Numbers of a kind."""


@contextmanager
def tiles_of(name: str) -> Iterator[list[TileKind]]:
    """Lets convolutions that are compiled meanwhile have tiles of one kind; yields which ones."""
    taken: list[TileKind] = []

    def kind(images: Images, *rest: Any) -> TileKind:
        if images.kernel != (TAPS, TAPS):
            return TileKind.DIRECT
        kinds = KINDS["bf16"]
        taken.append(kinds[name] if name in kinds else kind_for(images, *rest))
        return taken[-1]

    with mock.patch("partita_cpu.winograd.steps.kind_for", kind):
        yield taken


def made(name: str, model: bytes, config: dict[str, Any], x: Any) -> tuple[Any, TileKind]:
    """A request that has run once, and its tiles."""
    core = partita.Core()
    with tiles_of(name) as taken:
        request = core.compile_model(core.read_model(model), "CPU", config).create_infer_request()
        request.set_tensor("x", x)
        request.infer()
    return request, taken[-1] if taken else TileKind.DIRECT


def step_time(request: Any) -> float:
    """Microseconds of the convolution of 3 x 3 taps in the last run: the only or second one."""
    found = [info for info in request.get_profiling_info() if info.node_type == "Conv"]
    return float(found[len(found) // 2].real_time_us)


def sums_in_float64(x: Any, w: Any) -> Any:
    """The convolution, padded by one."""
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    height, width = x.shape[2:]
    total = np.zeros((1, w.shape[0], height, width))
    for i in range(3):
        for j in range(3):
            piece = wide[0, :, i : i + height, j : j + width].reshape(x.shape[1], -1)
            total += (w[:, :, i, j].astype(np.float64) @ piece).reshape(total.shape)
    return total


IMAGES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "positive": lambda rng, shape: np.maximum(rng.standard_normal(shape), 0),
    "shifted": lambda rng, shape: 100 + rng.standard_normal(shape),
    "whole numbers": lambda rng, shape: rng.integers(0, 256, shape),
    "channels of all sizes": lambda rng, shape: (
        rng.standard_normal(shape) * 10 ** rng.uniform(-3, 3, (1, shape[1], 1, 1))
    ),
    "pixels of all sizes": lambda rng, shape: (
        rng.standard_normal(shape) * 10 ** rng.uniform(-3, 3, shape)
    ),
    "cauchy": lambda rng, shape: rng.standard_cauchy(shape),
    "smooth": lambda rng, shape: rng.standard_normal(shape).cumsum(2).cumsum(3),
}
CENTRE = np.array([[0.01, 0.1, 0.01], [0.1, 1, 0.1], [0.01, 0.1, 0.01]])
WEIGHTS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "of all sizes": lambda rng, shape: rng.standard_normal(shape) * 10 ** rng.uniform(-3, 0, shape),
    "positive": lambda rng, shape: rng.uniform(0, 1, shape),
    "one in ten": lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.1),
    "large in the middle": lambda rng, shape: rng.standard_normal(shape) * CENTRE,
}


def errors_of(shape: Shape) -> str:
    """A line of the table of errors, over those of direct sums."""
    channels, outputs, height, width = shape
    rng, ratios = np.random.default_rng(0), []
    for image, weights in itertools.product(IMAGES.values(), WEIGHTS.values()):
        x = image(rng, (1, channels, height, width)).astype(np.float32)
        w = weights(rng, (outputs, channels, 3, 3)).astype(np.float32)
        b = Builder()
        y = b.add("Conv", "x", b.weight(w), pads=[1] * 4)
        model, _ = b.model((1, channels, height, width), y)
        wanted, found = sums_in_float64(x, w), []
        for name in KINDS["f32"]:
            request, _ = made(name, model, {}, x)
            found.append(np.abs(request.get_output_tensor(0).data - wanted).max())
        ratios.append(np.array(found[1:]) / found[0])
    cells = [f"{ratio:9.2f}" for of in (np.median, np.max) for ratio in of(ratios, axis=0)]
    return " ".join([f"{'x'.join(map(str, shape)):18}", *cells])


def network(shape: Shape, mode: str) -> tuple[bytes, Any]:
    """A model, and its input."""
    channels, outputs, height, width = shape
    b = Builder()
    x = "x" if mode == "f32" else b.add("Relu", b.conv("x", ENDS, channels, 1))
    y = b.add("Relu", b.conv(x, channels, outputs, 3))
    y = y if mode == "f32" else b.conv(y, outputs, ENDS, 1)
    model, feeds = b.model((1, channels if mode == "f32" else ENDS, height, width), y)
    return model, np.maximum(feeds["x"], 0)


def reference(shape: Shape, mode: str, model: bytes, x: Any) -> Any:
    """What the network computes."""
    if mode != "f32":
        request, _ = made(DIRECT, model, {"EXECUTION_MODE_HINT": "ACCURACY"}, x)
        return np.asarray(request.get_output_tensor(0).data)
    channels, outputs = shape[:2]
    rng = np.random.default_rng(0)
    w = rng.standard_normal((outputs, channels, 3, 3)).astype(np.float32) * (9 * channels) ** -0.5
    return np.maximum(sums_in_float64(x, w) + np.float32(0.01), 0)


def measure(shape: Shape, threads: int, seconds: float, mode: str) -> str:
    """A line of the table."""
    config: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "PERF_COUNT": True}
    config["INFERENCE_PRECISION_HINT"] = mode
    model, x = network(shape, mode)
    requests: dict[str, Any] = {}
    kinds = KINDS[mode]
    for name in (*kinds, DEFAULT):
        requests[name], kind = made(name, model, config, x)
    times: dict[str, list[float]] = {name: [] for name in requests}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[DIRECT]) < 5:
        for name, request in requests.items():
            request.infer()
            times[name].append(step_time(request))
    least = {name: min(found) for name, found in times.items()}
    wanted = reference(shape, mode, model, x)
    errors = {}
    for name in kinds:
        found = np.asarray(requests[name].get_output_tensor(0).data)
        errors[name] = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    chosen = next(name for name, its in kinds.items() if its is kind)
    name = "x".join(map(str, shape))
    cells = [f"{least[name]:9.1f}" for name in (*kinds, DEFAULT)]
    cells += [f"{chosen:>8}", f"{least[DIRECT] / least[DEFAULT]:5.2f}"]
    cells += [f"{errors[name]:8.1e}" for name in kinds]
    return " ".join([f"{name:18}", *cells])


def drawn(rng: np.random.Generator) -> Shape:
    """A shape of up to some 100 million multiplications."""
    while True:
        channels, outputs = (int(2 ** rng.uniform(2, 9.5)) for _ in range(2))
        height, width = (int(2 ** rng.uniform(1.5, 8)) for _ in range(2))
        if 1e5 < channels * outputs * height * width * 9 < 5e8:
            return channels, outputs, height, width


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", metavar="CHANNELSxOUTPUTSxHEIGHTxWIDTH")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--random", type=int, default=0, help="so many random shapes instead")
    parser.add_argument("--mode", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--errors", action="store_true")
    arguments = parser.parse_args()
    shapes: list[Any] = [tuple(map(int, text.split("x"))) for text in arguments.shapes or SHAPES]
    if arguments.random:
        rng = np.random.default_rng(1)
        shapes = [drawn(rng) for _ in range(arguments.random)]
    if arguments.errors:
        names = [f"{of} {name}" for of in ("median", "most") for name in (SMALL, LARGE)]
        print(" ".join([f"{'errors over direct':18}", *(f"{name:>9}" for name in names)]))
        for shape in shapes:
            print(errors_of(shape), flush=True)
        return
    columns = (*KINDS[arguments.mode], DEFAULT)
    print(" ".join([f"{'shape':18}", *(f"{name:>9}" for name in columns), f"{'chosen':>8} gain"]))
    for shape in shapes:
        print(measure(shape, arguments.threads, arguments.seconds, arguments.mode), flush=True)


if __name__ == "__main__":
    main()
