"""Resize and Upsample: the last two dimensions in one kernel, others one after another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partita.lowering import Array, Node, Operand
from partita.query import Reason, ReasonCode
from partita_opencl.kit import Argument, Kit, f32, i64, ints, raw_ctype
from partita_opencl.resampling import NEAREST_MODES, TRANSFORMATIONS, Sampling
from partita_opencl.table import FLOATS, INDICES, MOVED, operator


def _resize_check(node: Node) -> Reason | None:
    attrs, x = node.attrs, node.input(0)
    mode = attrs.get("mode", "nearest")
    wrong = ""
    if attrs.get("antialias", 0):
        wrong = "antialias 1; takes 0"
    elif mode not in ("nearest", "linear", "cubic"):
        wrong = f"mode {mode!r}"
    elif attrs.get("coordinate_transformation_mode", "half_pixel") not in TRANSFORMATIONS:
        wrong = f"coordinate_transformation_mode {attrs['coordinate_transformation_mode']!r}"
    elif attrs.get("nearest_mode", "floor") not in NEAREST_MODES:
        wrong = f"nearest_mode {attrs['nearest_mode']!r}"
    if wrong:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, wrong)
    if mode != "nearest" and x is not None and x.dtype is not None and x.dtype not in FLOATS:
        return Reason(
            ReasonCode.UNSUPPORTED_DTYPE, f"input 0 is {x.dtype}; mode {mode!r} takes float32"
        )
    return None


@operator(
    "Resize",
    types={0: MOVED, 1: FLOATS, 2: FLOATS, 3: INDICES},
    values=(1, 2, 3),
    since=11,
    check=_resize_check,
)
def resize(
    k: Kit,
    node: Node,
    x: Operand,
    roi: Operand | None = None,
    scales: Operand | None = None,
    sizes: Operand | None = None,
) -> Operand:
    """Resampling by nearest, linear or cubic interpolation."""
    attrs = node.attrs
    axes = [axis % x.ndim for axis in attrs.get("axes") or range(x.ndim)]
    transformation = attrs.get("coordinate_transformation_mode", "half_pixel")
    region = np.array([0.0] * len(axes) + [1.0] * len(axes), np.float32)
    if transformation == "tf_crop_and_resize" and roi is not None:
        region = k.value(roi)
    if sizes is not None and sizes.size:
        factors, outs = _by_sizes(
            [x.shape[axis] for axis in axes],
            k.value(sizes).tolist(),
            attrs.get("keep_aspect_ratio_policy", "stretch"),
        )
    else:
        given = np.ones(len(axes), np.float32) if scales is None else k.value(scales)
        factors = [float(s) for s in given]
        outs = [
            math.floor(np.float32(x.shape[axis]) * np.float32(s))
            for axis, s in zip(axes, given, strict=True)
        ]
    samplings: dict[int, Sampling] = {}
    for n, axis in enumerate(axes):
        sampling = Sampling(
            x.shape[axis],
            outs[n],
            factors[n],
            transformation,
            float(region[n]),
            float(region[n + len(axes)]),
        )
        identity = sampling.size == sampling.out and factors[n] == 1.0
        if not identity or transformation == "tf_crop_and_resize":
            samplings[axis] = sampling
    return _resample(k, node, x, samplings, attrs.get("nearest_mode", "round_prefer_floor"))


def _by_sizes(
    sizes: Sequence[int], wanted: Sequence[int], policy: str
) -> tuple[list[float], list[int]]:
    """Scales and output sizes where the model gives sizes."""
    ratios = [float(np.float32(w) / np.float32(s)) for w, s in zip(wanted, sizes, strict=True)]
    if policy == "stretch":
        return ratios, [int(w) for w in wanted]
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [ratio] * len(sizes), [math.floor(np.float32(ratio) * s + 0.5) for s in sizes]


@operator(
    "Resize", types={0: MOVED, 1: FLOATS}, values=(1,), since=10, until=10, check=_resize_check
)
@operator(
    "Upsample", types={0: MOVED, 1: FLOATS}, values=(1,), since=9, until=9, check=_resize_check
)
def resize_by_scales(k: Kit, node: Node, x: Operand, scales: Operand) -> Operand:
    """Resampling as it was before coordinate transformations had names."""
    return _resize_simply(k, node, x, [float(s) for s in k.value(scales)])


@operator("Upsample", types=MOVED, since=7, until=8, check=_resize_check)
def upsample_by_attribute(k: Kit, node: Node, x: Operand) -> Operand:
    """Resampling by scales from an attribute."""
    return _resize_simply(k, node, x, [float(s) for s in node.attrs["scales"]])


def _resize_simply(k: Kit, node: Node, x: Operand, scales: Sequence[float]) -> Operand:
    samplings = {
        axis: Sampling(size, math.floor(np.float32(size) * np.float32(scale)), scale, "asymmetric")
        for axis, (size, scale) in enumerate(zip(x.shape, scales, strict=True))
        if scale != 1.0
    }
    return _resample(k, node, x, samplings, "simple")


def _resample(
    k: Kit, node: Node, x: Operand, samplings: dict[int, Sampling], nearest_mode: str
) -> Operand:
    """Resamples the outer dimensions one by one, then the last two together."""
    for axis, sampling in samplings.items():
        if axis < x.ndim - 2:
            inner = math.prod(x.shape[axis + 1 :])
            x = _planes(k, node, x, axis, sampling, _same(inner), nearest_mode)
    last = x.ndim - 1
    if last in samplings or last - 1 in samplings:
        columns = samplings.get(last) or _same(x.shape[last])
        rows = samplings.get(last - 1) or _same(x.shape[last - 1] if x.ndim > 1 else 1)
        x = _planes(k, node, x, max(0, last - 1), rows, columns, nearest_mode)
    return x


def _same(size: int) -> Sampling:
    return Sampling(size, size, 1.0, "asymmetric")


def _planes(
    k: Kit, node: Node, x: Operand, axis: int, rows: Sampling, columns: Sampling, nearest_mode: str
) -> Operand:
    """Records one resampling of (planes, rows, columns)."""
    attrs = node.attrs
    inner = x.shape[axis + 1 :] if axis < x.ndim - 2 else (columns.out,)
    shape = (*x.shape[:axis], rows.out, *inner) if x.ndim > 1 else (columns.out,)
    y = k.empty(shape, x.dtype)
    if not y.size:
        return y
    planes = math.prod(x.shape[:axis]) if x.ndim > 1 else 1
    size = ints(columns.size, rows.size, columns.out, rows.out)
    sizes = k.tuning.grid(columns.out, planes * rows.out)
    outside = float(attrs.get("extrapolation_value", 0.0))
    if attrs.get("mode", "nearest") == "nearest":
        fill = k.constant(np.full(1, outside, x.dtype))
        places = [k.constant(_pick(s, nearest_mode)) for s in (rows, columns)]
        arguments: tuple[Argument, ...] = (x, y, *places, fill, size, i64(planes))
        k.launch("resize.cl", "resize", sizes, *arguments, T=raw_ctype(x.dtype), PICK=None)
        return y
    tables = [_table(s, node) for s in (rows, columns)]
    k.launch(
        "resize.cl",
        "resize",
        sizes,
        x,
        y,
        *(k.constant(places) for places, _ in tables),
        *(k.constant(weights) for _, weights in tables),
        f32(outside),
        size,
        i64(planes),
        T="float",
        ROW_TAPS=tables[0][0].shape[1],
        COLUMN_TAPS=tables[1][0].shape[1],
    )
    return y


def _is_same(sampling: Sampling) -> bool:
    return sampling == _same(sampling.size)


def _pick(sampling: Sampling, nearest_mode: str) -> Array:
    return sampling.nearest("floor" if _is_same(sampling) else nearest_mode)


def _table(sampling: Sampling, node: Node) -> tuple[Array, Array]:
    if _is_same(sampling):
        places = np.arange(sampling.size, dtype=np.int32)[:, None]
        return places, np.ones((sampling.size, 1), np.float32)
    if node.attrs.get("mode") == "linear":
        return sampling.linear()
    a = float(node.attrs.get("cubic_coeff_a", -0.75))
    return sampling.cubic(a, bool(node.attrs.get("exclude_outside", 0)))
