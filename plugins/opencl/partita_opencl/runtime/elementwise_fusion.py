"""Fusion of element-wise chains, and the generator that turns a chain into a kernel launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from partita.lowering import Operand, Step
from partita.lowering.shapes.symbolic_size import Size, evaluated
from partita_opencl.drivers.program_cache import ProgramKey
from partita_opencl.launches.emitter_kit import ctype_of, i64, ints, is_computed, is_half, longs
from partita_opencl.launches.steps import Chain, Launch, Line
from partita_opencl.launches.work_sizes import Tuning

_MOST_INPUTS = 8
_MOST_LINES = 24
_MOST_DIMS = 8


def fuse(steps: Sequence[Step], kept: set[Operand]) -> list[Step]:
    """Merges each chain into the one chain that reads its result, where the sizes are equal.

    Args:
        steps: The program's steps.
        kept: Operands that are needed beyond the steps (outputs).
    """
    fused = _fuse_once(steps, kept)
    # A tensor of two readers has one when these have become one chain: once more then.
    while len(fused) < len(steps):
        steps, fused = fused, _fuse_once(fused, kept)
    return fused


def _fuse_once(steps: Sequence[Step], kept: set[Operand]) -> list[Step]:
    mentions: dict[Operand, int] = {}
    for step in steps:
        for root in {arg.root for arg in step.args if isinstance(arg, Operand)}:
            mentions[root] = mentions.get(root, 0) + 1
    result: list[Step | None] = []
    writer: dict[Operand, int] = {}  # result of a chain that may still be merged -> its place
    for step in steps:
        if isinstance(step.fn, Chain):
            merged: Step | None = step
            while merged is not None:
                step = merged
                merged = _merge_one(step, result, writer, mentions)
            out = step.args[0]
            # Two mentions are the step that writes it and the one that reads it.
            if mentions[out] == 2 and out not in kept:
                writer[out] = len(result)
        result.append(step)
    return [step for step in result if step is not None]


def _merge_one(
    step: Step,
    result: list[Step | None],
    writer: dict[Operand, int],
    mentions: dict[Operand, int],
) -> Step | None:
    """The step with one of its producers merged into it, or ``None`` if there is none left."""
    for source in step.args[1:]:
        place = writer.get(source) if isinstance(source, Operand) else None
        producer = None if place is None else result[place]
        merged = None if producer is None else _merge(producer, step, source)
        if merged is not None and place is not None:
            result[place] = None
            del writer[source]
            return merged
    return None


def _merge(producer: Step, reader: Step, link: Operand) -> Step | None:
    """One chain for both, or ``None`` if it would be too long or the shapes differ."""
    first, second = producer.fn, reader.fn
    out = reader.args[0]
    if not isinstance(first, Chain) or not isinstance(second, Chain) or link.size != out.size:
        return None
    arguments: list[Any] = []
    ctypes: list[str] = []

    def place(value: Any, ctype: str) -> int:
        for index, known in enumerate(arguments):
            if known is value:
                return index
        arguments.append(value)
        ctypes.append(ctype)
        return len(arguments) - 1

    before = [place(v, c) for v, c in zip(producer.args[1:], first.ctypes, strict=True)]
    offset = len(first.lines)
    after = [
        ~(offset - 1) if value is link else place(value, ctype)
        for value, ctype in zip(reader.args[1:], second.ctypes, strict=True)
    ]
    if len(arguments) > _MOST_INPUTS or offset + len(second.lines) > _MOST_LINES:
        return None
    lines = [_moved(line, before, 0) for line in first.lines]
    lines += [_moved(line, after, offset) for line in second.lines]
    op = replace(
        reader.op, origins=tuple(dict.fromkeys((*producer.op.origins, *reader.op.origins)))
    )
    producer.op.exec_type = "fused"
    return replace(reader, fn=Chain(tuple(ctypes), tuple(lines)), args=(out, *arguments), op=op)


def _moved(line: Line, arguments: Sequence[int], offset: int) -> Line:
    """The line with its operands renumbered."""
    operands = tuple(arguments[n] if n >= 0 else ~(~n + offset) for n in line.operands)
    return replace(line, operands=operands)


def launch(step: Step, tuning: Tuning) -> Step:
    """The step with its chain replaced by a kernel launch."""
    chain = step.fn
    if not isinstance(chain, Chain):
        return step
    out, *inputs = step.args
    parts = _Parts(chain, out, tuning)
    sizes_and_steps = _collapse(out.shape, [x for x in inputs if parts.is_wide(x)])
    grid = sizes_and_steps is not None
    for position, x in enumerate(inputs):
        parts.add(position, x)
    options: tuple[tuple[str, str | int | None], ...]
    if sizes_and_steps is not None:
        dims, steps = sizes_and_steps
        outer = math.prod(dims[2:])
        count = 2 if len(dims) <= 2 else 3 if len(dims) == 3 else _MOST_DIMS
        options = (("GRID", None), ("DIMS", count))
        sizes = tuning.grid(dims[0], dims[1], outer)
        padded = [*dims, *(1,) * (_MOST_DIMS - len(dims))]
        head: list[Any] = [ints(*padded), i64(outer)]
        widths = iter(steps)
    else:
        width = tuning.width if out.size >= 4 else 1
        options = (("WIDTH", width),)
        sizes = tuning.flat(-(-out.size // width))
        head, widths = [i64(out.size)], iter(())
    if any(isinstance(x, Operand) and is_half(x.dtype) for x in step.args):
        options += (("HALF", None),)
        options += (("BFLOAT", None),) if tuning.bfloat else ()
        options += (("NVIDIA", None),) if tuning.limits.is_nvidia else ()
    options += tuple(tuning.form.options.items())
    arguments: list[Any] = []
    for x in inputs:
        if parts.is_wide(x):
            arguments += [x, longs(*next(widths))]
        else:
            arguments.append(_scalar(x, tuning))
    key = ProgramKey("chain.cl", options, parts.text(grid))
    fn = Launch(key, "chain_grid" if grid else "chain_flat", sizes)
    return replace(step, fn=fn, args=(out, *head, *arguments))


def _scalar(x: Any, tuning: Tuning) -> Any:
    """A constant of one element becomes a kernel argument by value."""
    if isinstance(x, Operand) and x.size == 1 and x.const is not None:
        element = x.const.reshape(-1)[:1]
        if type(element[0]) is Size:
            return evaluated(x.dtype.type, element[0])
        if is_half(x.dtype) and tuning.bfloat:
            return (element.view(np.uint16).astype(np.uint32) << 16).view(np.float32)[0]
        if is_half(x.dtype):
            return np.float32(element[0])
        return element[0] if is_computed(x.dtype) else element.view(f"u{x.dtype.itemsize}")[0]
    return x


def _is_beyond(bounds: tuple[float, float], value: Any) -> bool:
    """Whether halves make 0 of a number that is none, as an epsilon, or infinity, as of masks.

    Where float32 is computed in halves, what is computed with it is then stored as the nearest half
    that is neither: a sum of nothing and an epsilon still divides, and rows of which everything is
    masked have a softmax.
    """
    if not isinstance(value, np.float32) or value == 0 or not np.isfinite(value):
        return False
    return not bounds[0] <= abs(value) <= bounds[1]


class _Parts:
    """The generated part of ``chain.cl``."""

    def __init__(self, chain: Chain, out: Operand, tuning: Tuning) -> None:
        self._chain = chain
        self._tuning = tuning
        self._out = out
        self._parameters: list[str] = []
        self._values: list[str] = []
        self._quads: list[str] = []
        self._quad: list[str] = []
        self._bases: list[str] = []
        self._advance: list[str] = []
        self._beyond = False  # whether a constant is none of half precision's numbers

    def is_wide(self, x: Any) -> bool:
        """Whether an input is a buffer that repeats along some dimensions of the output."""
        return isinstance(x, Operand) and x.size not in (1, self._out.size)

    def add(self, n: int, x: Any) -> None:
        """Declares input ``n`` and how its element is found."""
        ctype = self._chain.ctypes[n]
        value = _scalar(x, self._tuning)
        if not isinstance(value, Operand):
            self._beyond |= _is_beyond(self._tuning.half_range, value)
            self._parameters.append(f"const {ctype} x{n}")
            self._values.append(f"x{n}")
            self._quad.append(f"x{n}")
            return
        half = is_half(value.dtype)
        self._parameters.append(f"__global const {'half' if half else ctype}* restrict x{n}")
        element = f"GET_HALF(x{n}, {{}})" if half else f"x{n}[{{}}]"
        if self.is_wide(x):
            self._parameters.append(f"const long8 k{n}")
            self._bases.append(f"long b{n} = c0 * k{n}.s0;")
            self._advance.append(f"b{n} += (c) * k{n}.s##n;")
            self._values.append(element.format(f"b{n} + c1 * k{n}.s1"))
        elif x.size == 1 and self._out.size != 1:
            self._values.append(element.format(0))
            self._quad.append(element.format(0))
        else:
            self._values.append(element.format("i"))
            four = (
                f"GET_HALF4(x{n}, item * 4)" if half else f"((__global const {ctype}4*)x{n})[item]"
            )
            self._quads.append(f"const {ctype}4 q{n} = {four};")
            self._quad.append(f"q{n}.s")

    def text(self, grid: bool) -> str:
        """All definitions."""
        chain = self._chain
        lines = [
            *_stores(self._out),
            f"#define PARAMETERS {''.join(', ' + p for p in self._parameters)}",
            f"#define VALUES {', '.join(self._values)}",
        ]
        if grid:
            lines.append(f"#define BASES {' '.join(self._bases)}")
            lines.append(f"#define ADVANCE(n, c) {' '.join(self._advance)}")
        else:
            quad = ", ".join(f"{q[:-1]}s" if q.endswith(".s") else q for q in self._quad)
            lines.append(f"#define QUADS {' '.join(self._quads)}")
            lines.append(f"#define QUAD(s) {quad}")
        given = ", ".join(f"const {ctype} v{n}" for n, ctype in enumerate(chain.ctypes))
        lines.append(f"{chain.lines[-1].ctype} chain({given}) {{")
        for number, line in enumerate(chain.lines):
            names = [f"v{n}" if n >= 0 else f"t{~n}" for n in line.operands]
            lines.append(f"  const {line.ctype} t{number} = {line.template.format(*names)};")
        result = f"t{len(chain.lines) - 1}"
        if self._beyond and self._tuning.half and is_half(self._out.dtype):
            least, most = (float(bound).hex() for bound in self._tuning.half_range)
            result = f"held_between({least}f, {most}f, {result})"
        lines.append(f"  return {result};\n}}")
        return "\n".join(lines)


def _stores(out: Operand) -> list[str]:
    """The definitions of how results are stored."""
    ctype = ctype_of(out.dtype)
    if is_half(out.dtype):
        one, four = "PUT_HALF(y, i, v)", "PUT_HALF4(y, (i) * 4, ((float4)(a, b, c, d)))"
        return [
            "#define OUT half",
            f"#define STORE(i, v) {one}",
            f"#define STORE4(i, a, b, c, d) {four}",
        ]
    four = f"((__global {ctype}4*)y)[i] = ({ctype}4)(a, b, c, d)"
    return [
        f"#define OUT {ctype}",
        "#define STORE(i, v) y[i] = (v)",
        f"#define STORE4(i, a, b, c, d) {four}",
    ]


def _collapse(
    shape: tuple[int, ...], wide: Sequence[Operand]
) -> tuple[list[int], list[list[int]]] | None:
    """Fewest dimensions, innermost first, in which all broadcast inputs are strided.

    Returns:
        Sizes (at least two) and, per input, steps padded to eight; ``None`` without inputs.
    """
    if not wide:
        return None
    columns = [(size, _strides(shape, x)) for size, x in ((shape, x) for x in wide)]
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in wide]
    for dim in range(len(shape) - 1, -1, -1):
        size = shape[dim]
        if size == 1:
            continue
        here = [strides[dim] for _, strides in columns]
        if sizes and all(s[-1] * sizes[-1] == h for s, h in zip(steps, here, strict=True)):
            sizes[-1] *= size
            continue
        sizes.append(size)
        for known, step in zip(steps, here, strict=True):
            known.append(step)
    while len(sizes) < 2:
        sizes.append(1)
        for known in steps:
            known.append(0)
    return sizes, [[*known, *(0,) * (_MOST_DIMS - len(known))] for known in steps]


def _strides(shape: tuple[int, ...], x: Operand) -> list[int]:
    """Element strides of ``x`` broadcast to ``shape``."""
    dims = (1,) * (len(shape) - x.ndim) + x.shape
    strides = [0] * len(shape)
    step = 1
    for dim in range(len(shape) - 1, -1, -1):
        strides[dim] = 0 if dims[dim] == 1 else step
        step *= dims[dim]
    return strides
