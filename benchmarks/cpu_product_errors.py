"""How exact products of device CPU are by arithmetic and depth: fits its error model, checks it.

    python benchmarks/cpu_product_errors.py [--fit model ...] [--check model ...]

Models are named as for `cpu_peers`. Of every convolution and product by constant weights, some rows
are computed in float64 and in each arithmetic, from what onnxruntime gives the operation in its
network. bfloat16 is emulated with numpy, rounded to nearest even and added up in float32, so that
the script runs on any processor. An error is the largest one in parts of the largest result.

Prints for each arithmetic ``error = unit * depth ** power`` as it fits the first networks; then how
the errors of each network's products lie to what device CPU predicts: the median, the least and the
largest ratio. In the last column so do the quotients of the errors of three products and of
float32's own, by which the device chooses.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
from cpu_networks import Feeds
from cpu_peers import load
from onnx import numpy_helper

from partita.cli.output import format_table
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.error_model import excess, predicted_error

Array = np.ndarray[Any, Any]

FIT = ("resnet50", "encoder", "zoo:ppocr-det")
CHECK = ("mobilenetv2", "pp_lcnet", "squeezenet", "zoo:ppocr-rec", "zoo:minilm-l3")
ROWS = 96
"""Of a product that are looked at, drawn at random."""

ARITHMETICS = (
    Arithmetic.F32,
    Arithmetic.BF16X6,
    Arithmetic.BF16X3,
    Arithmetic.BF16,
    Arithmetic.F16,
)

PARTS = {
    Arithmetic.BF16: ((0, 0),),
    Arithmetic.BF16X3: ((0, 1), (0, 0), (1, 0)),
    Arithmetic.BF16X6: ((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0)),
}
"""Which parts of the right side meet which of the left one, in the order of the kernels."""


class Product(NamedTuple):
    """Some rows of one operation: (rows, depth) by (depth, columns)."""

    rows: Array
    weights: Array

    @property
    def depth(self) -> int:
        """Terms of a sum."""
        return int(self.weights.shape[0])


def to_bfloat16(x: Array) -> Array:
    """float32 numbers rounded to bfloat16, as float32."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits += 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))
    return (bits & np.uint64(0xFFFF0000)).astype(np.uint32).view(np.float32)


def parts_of(x: Array, count: int) -> list[Array]:
    """Numbers as sums of so many bfloat16."""
    parts: list[Array] = []
    for _ in range(count):
        parts.append(to_bfloat16(x))
        x = x - parts[-1]
    return parts


def computed(product: Product, arithmetic: Arithmetic) -> Array:
    """The product as an arithmetic computes it."""
    x, w = product.rows, product.weights
    if arithmetic is Arithmetic.F32:
        return np.asarray(x @ w)
    if arithmetic is Arithmetic.F16:
        return np.asarray(
            x.astype(np.float16).astype(np.float32) @ w.astype(np.float16).astype(np.float32)
        )
    xs, ws = parts_of(x, arithmetic.planes), parts_of(w, arithmetic.planes)
    total = np.zeros((len(x), w.shape[1]), np.float32)
    for of_w, of_x in PARTS[arithmetic]:
        total += xs[of_x] @ ws[of_w]
    return total


def error_of(product: Product, arithmetic: Arithmetic) -> float:
    """The largest error, in parts of the largest result."""
    exact = product.rows.astype(np.float64) @ product.weights
    largest = np.abs(exact).max(initial=0)
    return float(np.abs(computed(product, arithmetic) - exact).max(initial=0) / max(largest, 1e-30))


def products_of(name: str) -> Iterator[Product]:
    """Rows of all products of a network by constant weights, with what they read there."""
    model, feeds = load(name)
    proto = onnx.load_from_string(model)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    nodes = [
        node
        for node in proto.graph.node
        if node.op_type in ("Conv", "MatMul", "Gemm") and node.input[1] in constants
    ]
    tensors = values_of(proto, {node.input[0] for node in nodes} - constants.keys(), feeds)
    rng = np.random.default_rng(0)
    for node in nodes:
        if node.input[0] not in tensors:
            continue
        x, w = tensors[node.input[0]], constants[node.input[1]]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        rows_of = convolution_rows if node.op_type == "Conv" else matrix_rows
        product = rows_of(rng, x, w, attributes)
        if product is not None and np.abs(product.rows).max(initial=0) > 0:
            yield product


def values_of(proto: onnx.ModelProto, names: set[str], feeds: Feeds) -> dict[str, Array]:
    """What onnxruntime computes for some values of a network."""
    import onnxruntime

    inside = sorted(names - {port.name for port in proto.graph.input})
    known = {port.name for port in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in inside if n not in known)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return {**feeds, **dict(zip(inside, session.run(inside, feeds), strict=True))}


def matrix_rows(rng: Any, x: Array, w: Array, attrs: dict[str, Any]) -> Product | None:
    """Some rows of the product of matrices."""
    if w.ndim != 2 or x.dtype != np.float32:
        return None
    w = w.T if attrs.get("transB") else w
    rows = x.reshape(-1, w.shape[0]) if not attrs.get("transA") else x.T
    return Product(rows[rng.permutation(len(rows))[:ROWS]], np.ascontiguousarray(w))


def convolution_rows(rng: Any, x: Array, w: Array, attrs: dict[str, Any]) -> Product | None:
    """Some windows of a convolution of images in one group, as rows."""
    if attrs.get("group", 1) != 1 or x.ndim != 4:
        return None
    kernel, stride = w.shape[2:], attrs.get("strides", [1, 1])
    dilation, pads = attrs.get("dilations", [1, 1]), attrs.get("pads", [0] * 4)
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    outs = [
        (size - (k - 1) * d - 1) // s + 1
        for size, k, d, s in zip(x.shape[2:], kernel, dilation, stride, strict=True)
    ]
    rows = []
    for index in rng.permutation(len(x) * outs[0] * outs[1])[:ROWS]:
        image, place = divmod(int(index), outs[0] * outs[1])
        top, left = (n * s for n, s in zip(divmod(place, outs[1]), stride, strict=True))
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        lines = slice(top, top + reach[0], dilation[0])
        rows.append(x[image, :, lines, left : left + reach[1] : dilation[1]].reshape(-1))
    return Product(np.stack(rows), np.ascontiguousarray(w.reshape(len(w), -1).T))


def errors_of(name: str) -> tuple[Array, Array]:
    """Depths of a network's products, and their errors by `ARITHMETICS`, a row for each."""
    found = [
        (product.depth, [error_of(product, arithmetic) for arithmetic in ARITHMETICS])
        for product in products_of(name)
    ]
    depths, errors = zip(*found, strict=True)
    return np.array(depths, np.float64), np.maximum(errors, 1e-12)


def fitted(depths: Array, errors: Array) -> tuple[float, float]:
    """Unit and power with the least squares of the logarithm."""
    power, unit = np.polyfit(np.log(depths), np.log(errors), 1)
    return float(np.exp(unit)), float(power)


def spread(ratios: Array) -> str:
    """The median of some ratios, and the least and the largest one."""
    return f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"


def main() -> None:
    """Fits and checks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fit", nargs="*", default=FIT)
    parser.add_argument("--check", nargs="*", default=CHECK)
    arguments = parser.parse_args()
    found = {name: errors_of(name) for name in (*arguments.fit, *arguments.check)}
    depths, errors = (
        np.concatenate([found[name][part] for name in arguments.fit]) for part in (0, 1)
    )
    fits = [fitted(depths, column) for column in errors.T]
    rows: list[list[object]] = [
        [arithmetic.name, f"{unit:.2e}", f"{power:.3f}"]
        for arithmetic, (unit, power) in zip(ARITHMETICS, fits, strict=True)
    ]
    print("\n".join(format_table(["arithmetic", "unit", "power"], rows)), flush=True)
    rows = []
    for name, (depths, errors) in found.items():
        line = [
            spread(column / [predicted_error(arithmetic, int(depth)) for depth in depths])
            for arithmetic, column in zip(ARITHMETICS, errors.T, strict=True)
        ]
        many = errors[:, ARITHMETICS.index(Arithmetic.BF16X3)] / errors[:, 0]
        line.append(spread(many / [excess(Arithmetic.BF16X3, int(depth)) for depth in depths]))
        rows.append([name, "fitted" if name in arguments.fit else "checked", *line])
    columns = ["network", "", *(arithmetic.name for arithmetic in ARITHMETICS), "excess of BF16X3"]
    print("\n".join(format_table(columns, rows)))


if __name__ == "__main__":
    main()
