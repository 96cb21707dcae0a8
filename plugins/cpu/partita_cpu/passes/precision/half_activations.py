"""Chooses which activations stay in 16 bits between steps, where products compute in 16 bits.

Works on graphs with channels last. An image is kept so if who makes it can and all who read it can:
a convolution rounds its input anyhow, so that nothing is lost but what lies between (sums, pooled
means). Attribute ``half`` of its node says so. Likewise rows that only products of matrices read,
by vectors; what reads or makes them so gets domain `ROWS`. Residual sums of rows stay in float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from partita.lowering import ActivationCode, Graph, Node, Value
from partita.lowering.nhwc.conversion import DOMAIN, Shapes
from partita.model.model import is_static
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.fused_activation import bounds_of, has_kernel, needs_pass
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.kernels.attention.heads_in_place import HEADS
from partita_cpu.kernels.linalg.rounded_rows import ROWS
from partita_cpu.kernels.nhwc.placement import SLICES
from partita_cpu.llvm import activations
from partita_cpu.nhwc.attention import attention_arithmetic
from partita_cpu.nhwc.attention_table import HeadSizes

_CONV = f"{DOMAIN}::Conv"
_TRANSPOSED = frozenset(f"{domain}::ConvTranspose" for domain in (DOMAIN, SLICES))
_OF_ROWS = frozenset(
    f"{domain}{name}"
    for domain in ("", "partita::")
    for name in ("MatMul", "LayerNormalization", "Gelu")
)
_ATTENTION = f"{HEADS}::Attention"
_OF_SLICES = frozenset(f"{SLICES}::{name}" for name in ("Conv", "SummedConv"))
_PAIRS = (f"{DOMAIN}::Add", f"{DOMAIN}::Mul")
_GROUPS = f"{DOMAIN}::GroupNormalization"
_SAME = frozenset(
    f"{DOMAIN}::{name}"
    for name in ("MaxPool", "AveragePool", "ScaleShift", "ShuffleChannels", "Gate", "Resize")
) | frozenset(f"{SLICES}::{name}" for name in ("MaxPool", "AveragePool", "Join"))
_VIEWS = frozenset({"Identity", "Reshape", "Transpose"})
_MEANS = frozenset({f"{DOMAIN}::GlobalAveragePool", f"{DOMAIN}::GlobalMaxPool"})


def keep_halves(graph: Graph, shapes: Shapes, policy: PrecisionPolicy) -> None:
    """Marks the nodes whose results are kept in bfloat16 or float16.

    In float16 only products know them; AVX2 and NEON have no masks for 16-bit numbers.
    """
    if policy.arithmetic is Arithmetic.BF16 and policy.level.keeps_bfloat16:
        partial = functools.partial
        rows = _Rows(shapes, policy)
        _Halves(graph, partial(_can_write, policy, rows), partial(_can_read, policy, rows)).run()
    elif policy.arithmetic is Arithmetic.F16 and policy.level.masks_halves:
        _Halves(graph, _writes_float16, _reads_float16).run()


class _Halves:
    def __init__(
        self,
        graph: Graph,
        can_write: Callable[[Node], bool],
        can_read: Callable[[Node, int], bool],
    ) -> None:
        self._graph = graph
        # Some nodes hold their result in the type of their input, and back.
        self._tied = [pair for node in graph.nodes for pair in _ties(node)]
        self._half = {
            node.result for node in graph.nodes if node.result is not None and can_write(node)
        } - set(graph.outputs)
        for node in graph.nodes:
            for position, value in enumerate(node.inputs):
                if value in self._half and not can_read(node, position):
                    self._half.discard(value)
            for body in node.graphs():
                self._half -= set(body.captures())

    def run(self) -> None:
        changed = True
        while changed:
            before = len(self._half)
            for one, other in self._tied:
                if (one in self._half) != (other in self._half):
                    self._half -= {one, other}
            changed = len(self._half) < before
        self._graph.nodes = [self._marked(node) for node in self._graph.nodes]

    def _marked(self, node: Node) -> Node:
        attrs = {"half": True} if node.result in self._half else {}
        if node.kind in _OF_ROWS and (attrs or self._half.intersection(node.reads())):
            return node.like(attrs=attrs, domain=ROWS)
        return node.like(attrs=attrs) if attrs else node


class _Rows:
    """Which operators of rows have forms that read or write bfloat16.

    Args:
        shapes: Of all values that nodes compute.
        policy: How native kernels compute.
    """

    def __init__(self, shapes: Shapes, policy: PrecisionPolicy) -> None:
        self._shapes = shapes
        self._policy = policy

    def can_write(self, node: Node) -> bool:
        """Whether the result may be in bfloat16."""
        if node.op_type == "Gelu":
            return True
        if node.op_type == "LayerNormalization":
            return self._is_plain_norm(node)
        return self._is_product(node) and node.input(3) is None

    def can_read(self, node: Node, position: int) -> bool:
        """Whether an input may be."""
        if node.op_type == "Gelu":
            return True
        return node.op_type == "MatMul" and position == 0 and self._is_product(node)

    def _is_product(self, node: Node) -> bool:
        """Whether a product is one by a constant matrix that `ROWS` has."""
        x, w, bias, residual = (node.input(n) for n in range(4))
        if x is None or w is None or w.const is None or x.const is not None:
            return False
        if w.const.ndim != 2 or w.const.dtype != np.float32 or x.dtype != np.float32:
            return False
        shape, (depth, columns) = self._shapes.get(x), w.const.shape
        if shape is None or len(shape) < 2 or shape[-1] != depth or not math.prod(shape):
            return False
        if any(v is not None and v.dtype != np.float32 for v in (bias, residual)):
            return False
        if bias is not None and (bias.const is None or bias.const.size != columns):
            return False
        if residual is not None and self._shapes.get(residual) != (*shape[:-1], columns):
            return False
        return bool(columns) and not self._policy.rounds_to_infinity(w.const)

    def _is_plain_norm(self, node: Node) -> bool:
        """Whether a normalization of floats yields rows alone, of as many elements as factors."""
        x, scale, bias = (node.input(n) for n in range(3))
        if x is None or scale is None or any(output is not None for output in node.outputs[1:]):
            return False
        shape, axis = self._shape_of(x), int(node.attrs.get("axis", -1))
        if shape is None or x.dtype != np.float32 or not math.prod(shape):
            return False
        row = shape[axis:]
        given = [value for value in (scale, bias) if value is not None]
        return all(v.dtype == np.float32 and self._shape_of(v) == row for v in given)

    def _shape_of(self, value: Value) -> tuple[int, ...] | None:
        """By the graph's shapes; images with channels last, which are new, know their own."""
        known = self._shapes.get(value) if value.const is None else value.const.shape
        return value.shape if known is None and is_static(value.shape) else known


def _can_write(policy: PrecisionPolicy, rows: _Rows, node: Node) -> bool:
    if node.kind in _PAIRS or _moves(node):
        return True
    if node.kind == _ATTENTION:
        return attention_arithmetic(policy, HeadSizes(*node.attrs["sizes"])).in_bfloat16
    if node.kind in _OF_ROWS:
        return not policy.level.tiles and rows.can_write(node)
    if node.kind in _SAME or _is_concat(node):
        act = bounds_of(node.attrs.get("activation"))[2]
        return not act.code
    activation = node.attrs.get("activation")
    if node.kind == _GROUPS:
        rest = bounds_of(activation)[2]
        return rest.code in (ActivationCode.NONE, ActivationCode.LEAKY_RELU) or (
            rest.code in activations.KERNELS
        )
    if node.kind in _TRANSPOSED:
        return _is_narrow_product(policy, node) and not needs_pass(activation)
    if node.kind != _CONV and node.kind not in _OF_SLICES:
        return False
    if _is_depthwise(node):
        is_alone = node.kind == _CONV and node.input(3) is None
        return not needs_pass(activation) or (is_alone and has_kernel(activation))
    # Residuals are added in 16 bits only where that is the last thing but bounds and a gate.
    return _is_narrow_product(policy, node) and (
        not needs_pass(activation) or node.input(3) is None
    )


def _can_read(policy: PrecisionPolicy, rows: _Rows, node: Node, position: int) -> bool:
    if node.kind in _OF_ROWS:
        return not policy.level.tiles and rows.can_read(node, position)
    if node.kind in _SAME or node.kind in _MEANS or node.kind == _GROUPS or _moves(node):
        return position == 0
    if node.kind in _PAIRS or _is_concat(node):
        return True
    if node.kind in _TRANSPOSED:
        return _is_narrow_product(policy, node) and position == 0
    if node.kind != _CONV and node.kind not in _OF_SLICES:
        return False
    if _is_depthwise(node):
        return position == 0
    if position == 0 and node.attrs.get("planar"):
        return False  # channels of a picture are brought together in float32
    return _is_narrow_product(policy, node) and position in (0, 3)


def _writes_float16(node: Node) -> bool:
    if not _reads_float16(node, 0):
        return False
    return not needs_pass(node.attrs.get("activation")) or node.input(3) is None


def _reads_float16(node: Node, position: int) -> bool:
    w = node.input(1)
    constant = node.kind == _CONV and w is not None and w.const is not None
    scaled = node.input(4) is not None
    return constant and not _is_depthwise(node) and not scaled and position in (0, 3)


def _ties(node: Node) -> list[tuple[Value | None, Value | None]]:
    output = node.result
    convolves = node.kind == _CONV or node.kind in _OF_SLICES
    if (
        node.kind in _SAME
        or _moves(node)
        or node.op_type == "Gelu"
        or (convolves and _is_depthwise(node))
    ):
        return [(node.inputs[0], output)]
    if node.kind in _PAIRS or _is_concat(node):
        return [(value, output) for value in node.inputs]
    if convolves and node.input(3) is not None:
        return [(node.inputs[3], output)]
    return []


def _moves(node: Node) -> bool:
    """Whether it takes elements of its input, of any type."""
    return node.kind == "Slice" or node.kind in _VIEWS


def _is_concat(node: Node) -> bool:
    return node.kind == "Concat" and node.attrs.get("axis") == 3


def _is_narrow_product(policy: PrecisionPolicy, node: Node) -> bool:
    w = node.input(1)
    return w is not None and w.const is not None and not policy.rounds_to_infinity(w.const)


def _is_depthwise(node: Node) -> bool:
    w, x, groups = node.input(1), node.inputs[0], int(node.attrs.get("group", 1))
    if w is None or w.const is None or x is None:
        return False
    outputs, inputs = w.const.shape[:2]
    return bool(1 < groups == outputs and inputs == 1)
