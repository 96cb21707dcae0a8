"""Convolutions of one image that are added up are one convolution.

RepVGG, MobileOne and FastViT are trained with convolutions and batch normalizations side by side,
and a residual round them: ``a * x + b`` per channel is a convolution of one tap. Convolutions are
linear, so that their sum is one whose weights are sums of theirs. These are computed in float64
and rounded once, and only where that saves multiplications.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.lowering.fusion.norm import affine_rows
from partita.lowering.fusion.rewriting import (
    Rewriter,
    fusion_pass,
    is_float,
    origins,
    other_input,
    per_channel,
)
from partita.lowering.graph import Node, Value
from partita.lowering.program import Array

_MOST = 256
"""Nodes that a sum is made of; with more of them it stays a sum."""

_SUMS = ("Add", "Sub", "Mul")
_TERMS = ("Conv", "BatchNormalization")


@fusion_pass(85)
def fuse_branches(rewriter: Rewriter) -> None:
    """Adds up convolutions and batch normalizations of one image, and the image itself."""
    nodes = rewriter.nodes()
    if not any(node.kind in _SUMS for node in nodes):
        return
    forms: dict[Value, _Form] = {}
    for node in nodes:
        if node.kind in _TERMS and not rewriter.is_read_by(node.outputs[0], _SUMS):
            continue  # as most: nobody would ask for the form
        found = _form(node, forms)
        if found is not None and node.result is not None and len(found.nodes) <= _MOST:
            forms[node.result] = found
    gone: set[Node] = set()
    for node in reversed(nodes):  # the largest sums first
        result = node.result
        if node.kind in _SUMS and node not in gone and result in forms:
            gone |= _merge(rewriter, node, forms[result])


@dataclass(frozen=True)
class _Window:
    """How a convolution slides: what all terms of a sum must have alike, and its own window.

    Attributes:
        strides: Between output pixels.
        dilations: Between taps.
        kernel: Taps.
        begin: Padding in front.
        end: Padding behind.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    kernel: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def behind(self) -> tuple[int, ...]:
        """Elements from where an output pixel stands to behind its window."""
        spans = zip(self.kernel, self.dilations, self.begin, strict=True)
        return tuple((taps - 1) * gap + 1 - before for taps, gap, before in spans)

    @property
    def surplus(self) -> tuple[int, ...]:
        """How many more places a window has than there are elements: tells the output's size."""
        return tuple(after + 1 - more for after, more in zip(self.end, self.behind, strict=True))


@dataclass(frozen=True)
class _Convolution:
    """Weights, and how they slide.

    Attributes:
        weight: (outputs, channels of a group, taps ...).
        groups: Each connects its share of the channels with its share of the outputs.
        window: How it slides.
    """

    weight: Array
    groups: int
    window: _Window

    @property
    def is_pointwise(self) -> bool:
        """Whether each output element is a multiple of the input element in its place."""
        window = self.window
        alone = self.groups == self.weight.shape[0] and self.weight.shape[1] == 1
        ones = {*window.kernel, *window.strides} == {1}
        return alone and ones and not any(window.begin + window.end)


@dataclass(frozen=True)
class _Term:
    """A convolution times a factor for each output, or these factors alone for each channel.

    Attributes:
        factor: One for each output.
        convolution: What is multiplied by it; ``None`` for the image itself.
    """

    factor: Array
    convolution: _Convolution | None = None


@dataclass(frozen=True)
class _Form:
    """A sum of linear functions of one image: what some nodes compute.

    Attributes:
        source: The image.
        outputs: Channels of the sum.
        terms: Each of its terms, by the node that computes it; the image itself is under ``None``.
        bias: What is added to each output.
        nodes: What computes it all.
    """

    source: Value
    outputs: int
    terms: dict[Node | None, _Term]
    bias: Array
    nodes: tuple[Node, ...]


def _form(node: Node, forms: dict[Value, _Form]) -> _Form | None:
    """What a node computes as a sum of linear functions; ``None`` if it is nothing like that."""
    match node.kind:
        case "Conv":
            return _of_convolution(node)
        case "BatchNormalization":
            return _of_normalization(node)
        case "Add" | "Sub":
            return _of_sum(node, forms)
        case "Mul":
            return _of_product(node, forms)
    return None


def _of_convolution(node: Node) -> _Form | None:
    x, weight, bias = node.inputs[0], node.inputs[1], node.input(2)
    if x is None or weight is None or weight.const is None or not is_float(weight.const):
        return None
    w = weight.const
    row = np.zeros(w.shape[:1]) if bias is None else _float64(bias)
    window = _window_of(node, w.shape[2:])
    if row is None or row.shape != w.shape[:1] or window is None or not w.size:
        return None
    convolution = _Convolution(w, int(node.attrs.get("group", 1)), window)
    term = _Term(np.ones(w.shape[0]), convolution)
    if convolution.is_pointwise:
        term = _Term(w.reshape(-1).astype(np.float64))
    return _Form(x, w.shape[0], {node: term}, row, (node,))


def _window_of(node: Node, kernel: tuple[int, ...]) -> _Window | None:
    """A convolution's window, if its padding does not depend on the input's size."""
    rank, attrs = len(kernel), node.attrs
    if not rank or attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    strides = tuple(attrs.get("strides") or (1,) * rank)
    dilations = tuple(attrs.get("dilations") or (1,) * rank)
    pads = tuple(attrs.get("pads") or (0,) * (2 * rank))
    if attrs.get("auto_pad") == "VALID":
        pads = (0,) * (2 * rank)
    if (len(strides), len(dilations), len(pads)) != (rank, rank, 2 * rank) or min(pads) < 0:
        return None
    return _Window(strides, dilations, tuple(kernel), pads[:rank], pads[rank:])


def _of_normalization(node: Node) -> _Form | None:
    """A batch normalization by constants: a factor and a summand per channel."""
    x, rows = node.inputs[0], affine_rows(node)
    if x is None or any(node.outputs[1:]) or rows is None or node.version < 9:
        return None
    factor, summand = rows
    return _Form(x, factor.size, {node: _Term(factor)}, summand, (node,))


def _of_sum(node: Node, forms: dict[Value, _Form]) -> _Form | None:
    """Sums and differences of two forms of one image, of a form and the image, or a constant."""
    first, second = node.inputs
    if first is None or second is None:
        return None
    a, b = forms.get(first), forms.get(second)
    if a is not None and second.const is not None:
        return _shifted(node, a, first, second.const)
    if b is not None and first.const is not None:
        added = _shifted(node, b, second, first.const)
        return added if node.kind == "Add" else None
    if a is None or b is None or a.source is not b.source:
        if b is not None and first is b.source:
            a = _image(b)
        elif a is not None and second is a.source:
            b = _image(a)
    if a is None or b is None or a.source is not b.source or a.outputs != b.outputs:
        return None
    sign = 1.0 if node.kind == "Add" else -1.0
    terms = dict(a.terms)
    for key, term in b.terms.items():
        before = terms.get(key)
        factor = sign * term.factor + (0 if before is None else before.factor)
        terms[key] = replace(term, factor=factor)
    nodes = dict.fromkeys((*a.nodes, *b.nodes, node))
    return _Form(a.source, a.outputs, terms, a.bias + sign * b.bias, tuple(nodes))


def _image(form: _Form) -> _Form:
    """The image that a form is one of, as a form."""
    ones = np.ones(form.outputs)
    return _Form(form.source, form.outputs, {None: _Term(ones)}, 0 * ones, ())


def _shifted(node: Node, form: _Form, value: Value, const: Array) -> _Form | None:
    row = per_channel(const, form.outputs, value)
    if row is None:
        return None
    bias = form.bias + (row if node.kind == "Add" else -row)
    return replace(form, bias=bias, nodes=(*form.nodes, node))


def _of_product(node: Node, forms: dict[Value, _Form]) -> _Form | None:
    """A form times constants, one for each channel."""
    for value in node.inputs:
        other = other_input(node, value)
        form = None if value is None else forms.get(value)
        if form is None or value is None or other is None or other.const is None:
            continue
        row = per_channel(other.const, form.outputs, value)
        if row is None:
            return None
        terms = {key: replace(term, factor=row * term.factor) for key, term in form.terms.items()}
        return _Form(form.source, form.outputs, terms, row * form.bias, (*form.nodes, node))
    return None


def _float64(value: Value | None) -> Array | None:
    """A constant of floats."""
    if value is None or value.const is None or not is_float(value.const):
        return None
    return value.const.astype(np.float64)


def _merge(rewriter: Rewriter, root: Node, form: _Form) -> set[Node]:
    """Puts one convolution in the place of a sum, if that is less work; the nodes it replaces."""
    slid = [term.convolution for term in form.terms.values() if term.convolution is not None]
    if len(form.terms) < 2 or not slid or root.outputs[0] is None:
        return set()
    window, first = _around([convolution.window for convolution in slid]), slid[0]
    if window is None or not _fits(form, slid, window):
        return set()
    # A factor per channel costs nothing, so it is added up even if others read that product too.
    scaled = {node for node in form.nodes if node.kind == "BatchNormalization"}
    group = set(form.nodes) - scaled
    if not rewriter.inner(group, root.outputs[0]):
        return set()
    group |= {node for node in scaled if rewriter.inner({*group, node}, root.outputs[0])}
    dtype = first.weight.dtype
    weights, bias = _weights(form, first, window), form.bias.astype(dtype)
    inputs = [form.source, Value.constant(weights), Value.constant(bias)]
    attrs = {
        "group": first.groups,
        "kernel_shape": list(window.kernel),
        "strides": list(window.strides),
        "dilations": list(window.dilations),
        "pads": [*window.begin, *window.end],
    }
    nodes = [node for node in form.nodes if node in group]
    version = next(node.version for node in nodes if node.kind == "Conv")
    names = origins(nodes)
    merged = Node(
        "Conv", inputs, root.outputs[:1], attrs, version=version, name=root.name, origins=names
    )
    return group if rewriter.replace(nodes, merged) else set()


def _around(windows: Sequence[_Window]) -> _Window | None:
    """The smallest window round all; ``None`` if they do not slide alike over the same places."""
    first = windows[0]
    for other in windows[1:]:
        alike = (first.strides, first.dilations) == (other.strides, other.dilations)
        if not alike or first.surplus != other.surplus:
            return None
        begins = zip(first.begin, other.begin, first.dilations, strict=True)
        if any((a - b) % gap for a, b, gap in begins):
            return None
    begin = tuple(map(max, zip(*(window.begin for window in windows), strict=True)))
    behind = tuple(map(max, zip(*(window.behind for window in windows), strict=True)))
    taps = tuple(
        (before + after - 1) // gap + 1
        for before, after, gap in zip(begin, behind, first.dilations, strict=True)
    )
    end = tuple(more + after - 1 for more, after in zip(first.surplus, behind, strict=True))
    return replace(first, kernel=taps, begin=begin, end=end)


def _fits(form: _Form, slid: Sequence[_Convolution], window: _Window) -> bool:
    """Whether the terms are of one kind, and their sum takes no more multiplications than they."""
    kinds = {(term.groups, *term.weight.shape[:2], term.weight.dtype) for term in slid}
    taps = sum(math.prod(term.window.kernel) for term in slid)
    if len(kinds) > 1 or math.prod(window.kernel) > taps:
        return False
    if len(slid) == len(form.terms):
        return True
    # The image itself lies under one tap of every window.
    groups, outputs, channels, _ = kinds.pop()
    same_size = set(window.strides) == {1} and set(window.surplus) == {0}
    under = all(pad % gap == 0 for pad, gap in zip(window.begin, window.dilations, strict=True))
    return same_size and under and outputs == groups * channels


def _weights(form: _Form, first: _Convolution, window: _Window) -> Array:
    """Those of all terms, added up where their taps are; shaped as those of one of them."""
    channels = first.weight.shape[1]
    total = np.zeros((form.outputs, channels, *window.kernel))
    outputs, column = np.arange(form.outputs), (-1,) + (1,) * (total.ndim - 1)
    for term in form.terms.values():
        if term.convolution is None:
            middle = (pad // gap for pad, gap in zip(window.begin, window.dilations, strict=True))
            total[(outputs, outputs % channels, *middle)] += term.factor
            continue
        own = term.convolution.window
        pads = zip(window.begin, own.begin, window.dilations, strict=True)
        starts = [(pad - less) // gap for pad, less, gap in pads]
        places = (slice(n, n + taps) for n, taps in zip(starts, own.kernel, strict=True))
        weight = term.convolution.weight * term.factor.reshape(column)
        total[(slice(None), slice(None), *places)] += weight
    return total.astype(first.weight.dtype)
