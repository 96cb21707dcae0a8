"""What a device's matrix units must compute rightly with its driver, in models of small products.

A kernel with inline PTX may be refused, compute nonsense, or break the context for good. What warps
do together (wgmma) is checked apart from what a warp does alone, and so are tiles that the copy
engine brings (TMA): a driver may take one of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_opencl.device.device import find_device
from partita_opencl.device.limits import Limits
from partita_opencl.trials import own_device
from partita_opencl.trials.recurrent_checks import lstm_step
from partita_opencl.tuning import product_tiles

_SHAPES = ((96, 200, 72), (33, 515, 41), (5, 2048, 16), (64, 64, 64))
"""Rows, depth and columns of the products tried: even and odd ones, with and without splits."""

_TOLERANCE = 2e-3
"""Largest relative errors of results."""

_TOLERANCES = {"f16": _TOLERANCE, "bf16": 8 * _TOLERANCE}
"""The same by what is computed in: rounding errors of bfloat16 are eight times as large."""

_TILES = product_tiles.STREAM_TILES
"""The tiles that are tried: all of them, also while a trial leaves products only one."""

FILES = (
    *("product_matrix.cl", "product_stream.cl", "product_run.cl", "product_bulk.cl"),
    *("tensor_map.cl", "attention.cl", "attention_tiles.cl", "cache_tokens.cl"),
    *("cache_prompt.cl", "cache_halves.cl", "waiting.cl", "streaming.cl", "warp_units.cl"),
    *("block_run.cl", "block_weights.cl", "block_columns.cl", "block_tiles.cl", "block_rows.cl"),
    *("tile_sums.cl", "handed_halves.cl", "tiled_weights.cl", "copy_engine.cl"),
    *("product_loads.cl", "product_place.cl", "product_arguments.cl", "hand_over.cl"),
    *("recurrent_units.cl", "recurrent_gates.cl", "recurrent_step.cl"),
)
"""The sources that a verdict depends on."""


class Units(enum.StrEnum):
    """What is tried: products of a warp, of four together, tiles for these, groups that wait."""

    MATRIX = "matrix units"
    WARPGROUP = "warpgroups"
    COPY_ENGINE = "copy engine"
    RESIDENT = "groups that wait for one another"


class Use(enum.Enum):
    """What only some graphs, or some launches, do with units."""

    BFLOAT = enum.auto()
    NORMALIZED = enum.auto()
    ATTENTION = enum.auto()
    PROMPTS = enum.auto()
    RECURRENT = enum.auto()
    BLOCKS = enum.auto()
    RUNS = enum.auto()


class Part(NamedTuple):
    """A part of a trial.

    Attributes:
        fault: What is wrong, on a device of an id; empty if nothing is.
        use: What it tries alone; ``None`` for what all do.
        tile: The tile that it tries, if it tries one.
    """

    fault: Callable[[str], str]
    use: Use | None = None
    tile: product_tiles.StreamTile | None = None


def parts(units: Units, limits: Limits) -> int:
    """In how many parts some units are tried, so that processes can share them."""
    return len(trial_parts(units, limits))


def fault(device_id: str, units: Units, part: int) -> str:
    """What units compute wrongly, in words; empty if all is right.

    Changes which tiles products use while it runs, in a process that has no other work.

    Args:
        device_id: The device.
        units: What is tried.
        part: Which part of the trial, from 0 to :func:`parts`.
    """
    try:
        return trial_parts(units, find_device(device_id).limits)[part].fault(device_id)
    finally:
        product_tiles.STREAM_TILES = _TILES


def trial_parts(units: Units, limits: Limits) -> list[Part]:
    """A trial's parts: products by a tile each, and what else there is to try."""
    match units:
        case Units.RESIDENT:
            return [
                Part(_run_fault, Use.RUNS),
                Part(_block_run_fault, Use.BLOCKS),
                Part(partial(_recurrent_fault, 256), Use.RECURRENT),
            ]
        case Units.COPY_ENGINE:
            bulk = [tile for tile in _TILES if tile.bulk]
            return [
                *(Part(partial(_copy_engine_fault, tile), None, tile) for tile in bulk),
                Part(_tiles_fault, Use.BLOCKS),
            ]
        case Units.WARPGROUP:
            wide = [tile for tile in _TILES if tile.warpgroup and not tile.bulk]
            return [part for tile in wide for part in _products(tile)]
        case Units.MATRIX:
            narrow = [tile for tile in _TILES if not tile.warpgroup]
            if limits.is_cpu:
                del narrow[1:]  # tests only: it takes another one
            mixed = [
                Part(partial(_product_fault, narrow[0], *shape, constant=False))
                for shape in _SHAPES
            ]
            return [
                *mixed,
                # Residuals, results of float32 and odd rows are tried by the first tile at least.
                _products(narrow[0])[0]._replace(use=None),
                *_products(narrow[0])[1:],
                *(part for tile in narrow[1:] for part in _products(tile)),
                Part(_attention_fault, Use.ATTENTION),
                Part(_prompt_fault, Use.PROMPTS),
                Part(partial(_recurrent_fault, 40), Use.RECURRENT),
            ]


def _run_fault(device_id: str) -> str:
    error = _run_error(device_id)
    return "" if error < _TOLERANCE else f"a run of products is off by {error:.2g}"


def _tiles_fault(device_id: str) -> str:
    error = max(_block_run_error(device_id, (520,), rows) for rows in (1, 20))
    return "" if error < _TOLERANCE else f"a product of rows by 4 bits is off by {error:.2g}"


def _block_run_fault(device_id: str) -> str:
    error = _block_run_error(device_id, (520, 4608, 96, 40))
    return "" if error < _TOLERANCE else f"a run of products of few rows is off by {error:.2g}"


def _attention_fault(device_id: str) -> str:
    error = _attention_error(device_id)
    return "" if error < _TOLERANCE else f"attention is off by {error:.2g}"


def _prompt_fault(device_id: str) -> str:
    error = _prompt_error(device_id)
    return "" if error < _TOLERANCE else f"attention of a prompt is off by {error:.2g}"


def _recurrent_fault(hidden: int, device_id: str) -> str:
    error = _recurrent_error(device_id, hidden)
    return "" if error < _TOLERANCE else f"an LSTM of {hidden} elements is off by {error:.2g}"


def _products(tile: product_tiles.StreamTile) -> list[Part]:
    """The parts that try a tile: the shapes take it whole, in part, and with sums cut in parts."""
    bfloat = partial(_product_fault, tile, *_SHAPES[0], precision="bf16")
    return [
        Part(partial(_normalized_fault, tile), Use.NORMALIZED, tile),
        *(Part(partial(_product_fault, tile, *shape), None, tile) for shape in _SHAPES),
        Part(bfloat, Use.BFLOAT, tile),
    ]


def _product_fault(
    tile: product_tiles.StreamTile,
    rows: int,
    depth: int,
    columns: int,
    device_id: str,
    *,
    precision: str = "f16",
    constant: bool = True,
) -> str:
    """What is wrong with a product by a tile; empty if nothing is.

    Args:
        tile: The only one that the product may take from now on, in this process.
        rows: Of the result.
        depth: Terms of a sum.
        columns: Of the result.
        device_id: The device.
        precision: Of the factors: ``"f16"`` or ``"bf16"``.
        constant: Whether the right side is a constant.
    """
    product_tiles.STREAM_TILES = (tile,)
    error = error_of(device_id, rows, depth, columns, precision, constant=constant)
    if error < _TOLERANCES[precision]:
        return ""
    return f"a product of {rows} x {depth} x {columns} in {precision} is off by {error:.2g}"


def _normalized_fault(tile: product_tiles.StreamTile, device_id: str) -> str:
    product_tiles.STREAM_TILES = (tile,)
    error = _normalized_error(device_id)
    return "" if error < _TOLERANCE else f"a normalized product is off by {error:.2g}"


def _copy_engine_fault(tile: product_tiles.StreamTile, device_id: str) -> str:
    others = replace(product_tiles.STREAM_TILES[0], start=1e9)  # not for the copy engine
    product_tiles.STREAM_TILES = (tile, others)
    error = product_error(device_id)
    if error < _TOLERANCE:
        return ""
    return f"a product by {tile.high} x {tile.wide} is off by {error:.2g}"


def error_of(
    device_id: str,
    rows: int,
    depth: int,
    columns: int,
    precision: str = "f16",
    *,
    constant: bool = True,
) -> float:
    """Relative error of a product, as a convolution of constant weights or of two inputs.

    Args:
        device_id: The device.
        rows: Of the product.
        depth: Terms of each sum.
        columns: Of the product.
        precision: As ``INFERENCE_PRECISION_HINT``.
        constant: Whether to compute it as a convolution of constant weights.
    """
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(rows)
    a: Array = rng.standard_normal((rows, depth)).astype(np.float32)
    b: Array = rng.standard_normal((depth, columns)).astype(np.float32)
    weights = []
    feeds = {"a": a, "b": b}
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    if constant:
        feeds = {"b": b.reshape(1, depth, columns, 1)}
        weights = [numpy_helper.from_array(a.reshape(rows, depth, 1, 1), "a")]
        node = helper.make_node("Conv", ["b", "a"], ["y"])
    wanted = a.astype(np.float64) @ b
    return _compare(device_id, [node], feeds, weights, wanted, precision=precision)


def _run_error(device_id: str) -> float:
    """Relative error of nine convolutions, two of them beside others; the worst of runs."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(2)
    x: Array = rng.standard_normal((1, 64, 20, 20)).astype(np.float32)
    nodes, weights = [], []

    def conv(source: str, channels: int, filters: int, size: int, target: str) -> None:
        w = rng.standard_normal((filters, channels, size, size)) * (channels * size**2) ** -0.5
        weights.append(numpy_helper.from_array(w.astype(np.float32), f"w{target}"))
        pads = [size // 2] * 4
        nodes.append(helper.make_node("Conv", [source, f"w{target}"], [target], pads=pads))

    source, channels, wide = "x", 64, {"x": x.astype(np.float64)}
    for block in "pq":
        one, three, four, short = (f"{block}{i}" for i in range(4))
        conv(source, channels, 64, 1, one)
        conv(one, 64, 128, 3, three)
        conv(three, 128, 256, 1, four)
        conv(source, channels, 256, 1, short)
        nodes.append(helper.make_node("Add", [four, short], [f"s{block}"]))
        nodes.append(helper.make_node("Relu", [f"s{block}"], [block]))
        source, channels = block, 256
    conv(source, 256, 72, 3, "y")
    arrays = {w.name: numpy_helper.to_array(w).astype(np.float64) for w in weights}
    for node in nodes:
        target = node.output[0]
        if node.op_type == "Conv":
            wide[target] = _convolved(wide[node.input[0]], arrays[f"w{target}"])
        elif node.op_type == "Add":
            wide[target] = wide[node.input[0]] + wide[node.input[1]]
        else:
            wide[target] = np.maximum(wide[node.input[0]], 0.0)
    return _compare(device_id, nodes, {"x": x}, weights, wide["y"], runs=30)


def _convolved(x: Array, w: Array) -> Array:
    """A convolution that keeps the size of the image."""
    pad = w.shape[2] // 2
    image = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(image, w.shape[2:], (2, 3))
    result: Array = np.einsum("ncyxij,fcij->nfyx", windows, w, optimize=True)
    return result


def _normalized_error(device_id: str) -> float:
    """Relative error of 40 rows multiplied, normalized, and multiplied again, with residuals."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(1)
    x, r = (rng.standard_normal((40, n)).astype(np.float32) for n in (192, 72))
    arrays = {"scale": rng.standard_normal(192), "shift": rng.standard_normal(192)}
    arrays["w"] = rng.standard_normal((192, 72)) * 192**-0.5
    arrays["first"] = rng.standard_normal((192, 192)) * 192**-0.5
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("LayerNormalization", ["a", "scale", "shift"], ["n"]),
        helper.make_node("MatMul", ["n", "w"], ["p"]),
        helper.make_node("Transpose", ["n"], ["t"]),
        helper.make_node("Slice", ["t", "from", "to"], ["part"]),
        helper.make_node("Transpose", ["part"], ["back"]),
        helper.make_node("Sum", ["p", "r", "back"], ["y"]),
    ]
    weights = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in arrays.items()]
    weights += [numpy_helper.from_array(np.array([v]), n) for n, v in (("from", 0), ("to", 72))]
    wide = x.astype(np.float64) @ arrays["first"]
    normal = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    normal = normal * arrays["scale"] + arrays["shift"]
    wanted = normal @ arrays["w"] + r + normal[:, :72]
    return _compare(device_id, nodes, {"x": x, "r": r}, weights, wanted)


def product_error(device_id: str, rows: int = 9001) -> float:
    """Relative error of products with and without residuals, of halves and of float32.

    By default, groups compute several tiles each.
    """
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(3)
    shapes = {"first": (72, 264), "second": (264, 264), "short": (264, 16), "third": (264, 264)}
    arrays = {n: rng.standard_normal(s) * s[0] ** -0.5 for n, s in shapes.items()}
    arrays |= {"last": arrays["short"][::-1], "scale": np.ones(264), "shift": np.zeros(264)}
    x: Array = rng.standard_normal((rows, 72)).astype(np.float32)
    nodes = [
        helper.make_node(kind, inputs, [output])
        for kind, inputs, output in (
            ("MatMul", ["x", "first"], "a"),
            ("Relu", ["a"], "b"),
            ("MatMul", ["b", "second"], "c"),
            ("Add", ["c", "b"], "d"),
            ("Relu", ["d"], "e"),
            ("LayerNormalization", ["e", "scale", "shift"], "f"),
            ("MatMul", ["f", "short"], "g"),
            ("MatMul", ["b", "third"], "h"),
            ("Add", ["h", "f"], "i"),
            ("LayerNormalization", ["i", "scale", "shift"], "j"),
            ("MatMul", ["j", "last"], "k"),
            ("Mul", ["k", "g"], "y"),
        )
    ]
    weights = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in arrays.items()]

    def normal(v: Array) -> Array:
        result: Array = (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-5)
        return result

    b = np.maximum(x.astype(np.float64) @ arrays["first"], 0.0)
    e = np.maximum(b @ arrays["second"] + b, 0.0)
    j = normal(b @ arrays["third"] + normal(e))
    wanted = (j @ arrays["last"]) * (normal(e) @ arrays["short"])
    return _compare(device_id, nodes, {"x": x}, weights, wanted)


def _block_run_error(device_id: str, sizes: Sequence[int], rows: int = 1) -> float:
    """Relative error of rows by matrices of 4 bits, one after another; the worst of runs.

    Args:
        device_id: The device.
        sizes: Columns of the matrices.
        rows: How many.
    """
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(3)
    x: Array = rng.standard_normal((rows, 2048)).astype(np.float32)
    nodes, weights, wide = [], [], x.astype(np.float64)
    for number, columns in enumerate(sizes):
        depth = wide.shape[1]
        blocks = -(-depth // 32)
        data: Array = rng.integers(0, 256, (columns, blocks, 16), np.uint8)
        scales: Array = (rng.uniform(0.1, 0.3, (columns, blocks)) * depth**-0.5).astype(np.float32)
        arrays = {f"data{number}": data, f"scales{number}": scales}
        weights += [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        attrs = {"K": depth, "N": columns, "bits": 4, "block_size": 32, "domain": "com.microsoft"}
        last = number == len(sizes) - 1
        ends = ["x" if number == 0 else f"x{number}", "y" if last else f"x{number + 1}"]
        nodes.append(helper.make_node("MatMulNBits", [ends[0], *arrays], ends[1:], **attrs))
        numbers = np.stack([data & 15, data >> 4], -1).reshape(columns, blocks, 32) - 8.0
        matrix = (numbers * scales[..., None]).reshape(columns, -1)[:, :depth]
        wide = wide @ matrix.T
    return _compare(device_id, nodes, {"x": x}, weights, wide, runs=30)


def _attention_error(device_id: str) -> float:
    """Relative error of attention over two heads of 24 elements, by 70 keys with a mask."""
    from onnx import helper

    rng = np.random.default_rng(0)
    shapes = {"q": (1, 40, 2, 24), "k": (1, 70, 2, 24), "v": (1, 70, 2, 24), "m": (1, 1, 40, 70)}
    feeds: dict[str, Array] = {n: rng.standard_normal(s).astype("f4") for n, s in shapes.items()}
    nodes = [
        helper.make_node("Transpose", ["q"], ["heads"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["k"], ["turned"], perm=[0, 2, 3, 1]),
        helper.make_node("Transpose", ["v"], ["values"], perm=[0, 2, 1, 3]),
        helper.make_node("MatMul", ["heads", "turned"], ["s"]),
        helper.make_node("Add", ["s", "m"], ["a"]),
        helper.make_node("Softmax", ["a"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "values"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["y"], perm=[0, 2, 1, 3]),
    ]
    wide = {name: array.astype(np.float64) for name, array in feeds.items()}
    q, keys, values = (wide[name].swapaxes(1, 2) for name in "qkv")
    scores = np.exp(q @ keys.swapaxes(2, 3) + wide["m"])
    wanted = (scores / scores.sum(-1, keepdims=True) @ values).swapaxes(1, 2)
    return _compare(device_id, nodes, feeds, [], wanted)


def _prompt_error(device_id: str) -> float:
    """Relative error of attention of 100 tokens over 190 keys, by two heads to each of keys."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    tokens, keys, heads, size = 100, 190, 36, 24
    width = heads * size
    shapes: dict[str, tuple[int, ...]]
    shapes = {"q": (1, tokens, 2 * width), "k": (1, tokens, width), "v": (1, tokens, width)}
    shapes |= {"past_key": (1, heads, 200, size), "past_value": (1, heads, 200, size)}
    feeds: dict[str, Array] = {n: rng.standard_normal(s).astype("f4") for n, s in shapes.items()}
    q, k, v, past_key, past_value = (feeds[name].astype(np.float64) for name in shapes)
    joined = [
        np.concatenate(
            [past[0, :, : keys - tokens], new.reshape(tokens, heads, size).swapaxes(0, 1)], 1
        )
        for past, new in ((past_key, k), (past_value, v))
    ]
    queries = q.reshape(tokens, heads, 2, size).transpose(1, 2, 0, 3)
    scores = queries @ joined[0][:, None].swapaxes(2, 3) / np.sqrt(size)
    scores[..., np.arange(keys) > np.arange(keys - tokens, keys)[:, None]] = -np.inf
    powers = np.exp(scores)
    y = powers / powers.sum(-1, keepdims=True) @ joined[1][:, None]
    counts = {"lengths": np.array([keys - 1], np.int32), "total": np.array(keys, np.int32)}
    weights = [numpy_helper.from_array(count, name) for name, count in counts.items()]
    node = helper.make_node(
        "GroupQueryAttention",
        [*feeds, *counts],
        ["y", "present_key", "present_value"],
        domain="com.microsoft",
        num_heads=2 * heads,
        kv_num_heads=heads,
    )
    wanted = y.transpose(2, 0, 1, 3).reshape(1, tokens, -1)
    return _compare(device_id, [node], feeds, weights, wanted)


def _recurrent_error(device_id: str, hidden: int) -> float:
    """Relative error of an LSTM over two sequences, both ways; the worst of runs."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(4)
    x: Array = rng.standard_normal((9, 2, 24)).astype(np.float32)
    shapes = {"w": (2, 4 * hidden, 24), "r": (2, 4 * hidden, hidden), "b": (2, 8 * hidden)}
    arrays: dict[str, Array] = {n: rng.standard_normal(s) / 8 for n, s in shapes.items()}
    weights = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in arrays.items()]
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional"}
    node = helper.make_node("LSTM", ["x", *shapes], ["y"], **attrs)
    wanted = np.empty((9, 2, 2, hidden))
    for way, steps in enumerate((range(9), reversed(range(9)))):
        w, r, b = (arrays[name][way] for name in "wrb")
        h = c = np.zeros((2, hidden))
        for step in steps:
            own = x[step].astype(np.float64) @ w.T + b[: 4 * hidden]
            h, c = lstm_step(own, h, c, r, b[4 * hidden :])
            wanted[step, way] = h
    return _compare(device_id, [node], {"x": x}, weights, wanted, runs=10)


def _compare(
    device_id: str,
    nodes: list[Any],
    feeds: dict[str, Array],
    weights: list[Any],
    wanted: Array,
    runs: int = 2,
    precision: str = "f16",
) -> float:
    """Relative error of a model's result; the largest one of several runs.

    Args:
        device_id: The device.
        nodes: The model's, whose result is ``"y"``.
        feeds: Inputs of float32, by name.
        weights: Initializers.
        wanted: The right result; that of the model has as many elements.
        runs: How many.
        precision: What the device computes with.
    """
    from onnx import TensorProto, helper

    kind = TensorProto.FLOAT
    ports = [helper.make_tensor_value_info(n, kind, x.shape) for n, x in feeds.items()]
    y = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph(nodes, "trial", ports, [y], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    config = {"INFERENCE_PRECISION_HINT": precision, "TILING": "LOCAL"}
    compiled = own_device.compile_model(model, device_id, config)
    request = compiled.create_infer_request()
    found = [np.array(request.infer(feeds)[0]).reshape(wanted.shape) for _ in range(runs)]
    return float(max(np.linalg.norm(x - wanted) for x in found) / np.linalg.norm(wanted))
