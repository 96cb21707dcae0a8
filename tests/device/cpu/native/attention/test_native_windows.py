"""Attention over windows and parts of one product, as exporters spell it, in one step."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_levels import float_levels
from judge import onnxruntime_results

from ..networks.test_native_layout import Net, check, compiled
from ..networks.test_native_passes import steps_of

BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}
WINDOWS, HEADS, ROWS, SIZE = 6, 2, 33, 8
WIDTH = HEADS * SIZE


@pytest.fixture(params=float_levels(), autouse=True)
def level(request, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", request.param.name.lower())
    return request.param


class Windows(Net):
    """A graph of rows of windows, in which attention is spelled out."""

    def __init__(self):
        super().__init__(WINDOWS, ROWS, WIDTH)

    def product(self, x="x", columns=3 * WIDTH):
        w = self.rng.standard_normal((WIDTH, columns)).astype(np.float32) / 4
        y = self.add("MatMul", x, self.const(values=w.astype(np.float32)))
        return self.add("Add", y, self.const(columns))

    def whole(self, *numbers):
        return self.const(values=np.array(numbers))

    def shaped(self, x, *shape):
        return self.add("Reshape", x, self.whole(*shape))

    def gathered(self, *lead):
        """Queries, keys and values by one transposition."""
        lead = lead or (WINDOWS,)
        x = self.shaped(self.product(), *lead, ROWS, 3, HEADS, SIZE)
        n = len(lead)
        x = self.add("Transpose", x, perm=[n + 1, *range(n), n + 2, n, n + 3])
        return [self.add("Gather", x, self.const(values=np.array(i)), axis=0) for i in (0, -2, 2)]

    def split(self, *lead):
        """Those by a split, each transposed."""
        x, third = self.shaped(self.product(), *lead, ROWS, 3 * WIDTH), self.whole(*[WIDTH] * 3)
        names = [f"{x}_{i}" for i in range(3)]
        self.add("Split", x, third, axis=-1)
        del self.nodes[-1].output[:]
        self.nodes[-1].output.extend(names)
        return [self.with_heads(name, *lead) for name in names]

    def sliced(self, *lead):
        """Those by slices."""
        x = self.shaped(self.product(), *lead, ROWS, 3 * WIDTH)
        ranges = ((0, WIDTH), (WIDTH, -WIDTH), (-WIDTH, 2**40))
        parts = [self.add("Slice", x, *(self.whole(n) for n in (*r, -1))) for r in ranges]
        return [self.with_heads(part, *lead) for part in parts]

    def with_heads(self, x, *lead):
        n = len(lead)
        x = self.shaped(x, *lead, ROWS, HEADS, SIZE)
        return self.add("Transpose", x, perm=[*range(n), n + 1, n, n + 2])

    def turned(self, x, rank):
        return self.add("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])

    def mixed(self, scores, v, rank, einsum=False):
        p = self.add("Softmax", scores, axis=-1)
        y = self.add("Einsum", p, v, equation="bwhij,bwhjd->bwhid") if einsum else None
        y = self.add("MatMul", p, v) if y is None else y
        y = self.add("Transpose", y, perm=[*range(rank - 3), rank - 2, rank - 3, rank - 1])
        return self.product(self.shaped(y, WINDOWS, ROWS, WIDTH), WIDTH)

    def half(self):
        return self.const(values=np.float32(0.5))

    def of_windows(self, count=3):
        """A mask that closes keys of some windows."""
        closed = self.rng.random((1, count, 1, ROWS, ROWS)) < 0.2
        return self.const(values=np.where(closed, -100, 0).astype(np.float32))

    def normal(self, x):
        norm = self.add("ReduceL2", x, axes=[-1], keepdims=1)
        least = self.add("Clip", norm, self.const(values=np.float32(0.3)))
        return self.add("Div", x, least)


def joined(net, y, level, *, precision, expected=True):
    """Compares with onnxruntime, and says that attention was one step where it can be."""
    config = BF16 if precision == "bf16" else {"EXECUTION_MODE_HINT": "ACCURACY"}
    check(net, y, config=config, tolerance=4e-2 if config is BF16 else 1e-5)
    steps = steps_of(net, y, **config)
    is_joined = level.native and expected
    assert ("attend_heads" in steps) == is_joined
    assert ("copy_nd" in steps) == (not is_joined)
    if is_joined and config is BF16 and level.keeps_bfloat16:
        assert result_of_attention(net, y).dtype == (np.float32 if level.tiles else np.uint16)


def result_of_attention(net, y):
    """What attention writes in bfloat16, behind the six things that it reads."""
    device = compiled(net.model(y), **BF16)
    specs = [(port.shape, port.dtype) for port in device.inputs]
    steps = device.device_model.specializer.program(specs, None).steps
    (result,) = (step.args[6] for step in steps if step.fn.__name__ == "attend_heads")
    return result


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_shifted_windows(level, precision, count):
    """As Swin Transformer has them: a term for each place, and one for windows beside batches."""
    net = Windows()
    q, k, v = net.gathered()
    scores = net.add("MatMul", net.add("Mul", q, net.half()), net.turned(k, 4))
    scores = net.add("Add", scores, net.const(1, HEADS, ROWS, ROWS))
    scores = net.shaped(scores, WINDOWS // count, count, HEADS, ROWS, ROWS)
    scores = net.add("Add", scores, net.of_windows(count))
    y = net.mixed(net.shaped(scores, WINDOWS, HEADS, ROWS, ROWS), v, 4)
    joined(net, y, level, precision=precision)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_scaled_cosines(level, precision):
    """As the second version has them: queries and keys of length 1, and a factor for each head."""
    net = Windows()
    q, k, v = net.gathered()
    scores = net.add("MatMul", net.normal(q), net.turned(net.normal(k), 4))
    scores = net.add("Mul", scores, net.const(values=np.float32([5, 0.7]).reshape(2, 1, 1)))
    scores = net.add("Add", net.const(1, HEADS, ROWS, ROWS), scores)
    joined(net, net.mixed(scores, v, 4), level, precision=precision)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("form", [Windows.split, Windows.sliced, Windows.gathered])
def test_windows_beside_batches(level, precision, form):
    """As MaxViT has them: products by Einsum of five axes."""
    net = Windows()
    q, k, v = form(net, 2, 3)
    k = net.add("Mul", k, net.half())
    scores = net.add("Einsum", q, k, equation="B G H I D, B G H J D -> B G H I J")
    scores = net.add("Add", scores, net.const(HEADS, ROWS, ROWS))
    joined(net, net.mixed(scores, v, 5, einsum=True), level, precision=precision)


def test_lengths_of_parts_of_rows_are_computed_apart(level):
    """Rows divided by their lengths before heads are told apart."""
    net = Windows()
    x = net.normal(net.product(columns=WIDTH))
    q, k, v = (net.with_heads(net.normal(net.product(x, WIDTH)), WINDOWS) for _ in range(3))
    scores = net.add("MatMul", q, net.turned(k, 4))
    check(net, net.mixed(scores, v, 4), config={"EXECUTION_MODE_HINT": "ACCURACY"}, tolerance=1e-5)


@pytest.mark.parametrize("shape", [(2, 1, 1, ROWS, ROWS), (2, 1, HEADS, 1, 1), (1, 3, 1, 1, ROWS)])
def test_masks_that_repeat_for_batches_or_windows(level, shape):
    net = Windows()
    q, k, v = net.split(2, 3)
    scores = net.add("Add", net.add("MatMul", q, net.turned(k, 5)), net.const(*shape))
    y = net.mixed(scores, v, 5)
    check(net, y, config={"EXECUTION_MODE_HINT": "ACCURACY"}, tolerance=1e-5)
    can = level.native and shape[0] == 1
    assert ("attend_heads" in steps_of(net, y, EXECUTION_MODE_HINT="ACCURACY")) == can


def test_what_others_read_is_computed_too(level):
    """Scores and queries that are read elsewhere."""
    net = Windows()
    q, k, v = net.split(WINDOWS)
    scores = net.add("MatMul", q, net.turned(k, 4))
    shown = net.add("ReduceMax", scores, axes=[-1], keepdims=1)
    y = net.mixed(scores, v, 4)
    check(
        net,
        y,
        shown,
        net.add("Relu", q),
        config={"EXECUTION_MODE_HINT": "ACCURACY"},
        tolerance=1e-5,
    )


def test_numbers_of_windows_that_vary(level):
    """Programs for sizes that were not met before follow from those for others."""
    net = Windows()
    net.shape = ("windows", ROWS, WIDTH)
    x = net.shaped(net.product(), -1, ROWS, 3, HEADS, SIZE)
    x = net.add("Transpose", x, perm=[2, 0, 3, 1, 4])
    parts = [net.add("Gather", x, net.const(values=np.array(i)), axis=0) for i in range(3)]
    scores = net.add("MatMul", net.normal(parts[0]), net.turned(net.normal(parts[1]), 4))
    scores = net.add("Add", scores, net.const(1, HEADS, ROWS, ROWS))
    y = net.add(
        "Transpose", net.add("MatMul", net.add("Softmax", scores), parts[2]), perm=[0, 2, 1, 3]
    )
    model = net.model(net.shaped(y, -1, ROWS, WIDTH))
    request = compiled(model, EXECUTION_MODE_HINT="ACCURACY").create_infer_request()
    for count in (2, 5, 1, 3, 2, 7):
        feeds = {"x": net.rng.standard_normal((count, ROWS, WIDTH)).astype(np.float32)}
        (wanted,) = onnxruntime_results(model, feeds)
        found = np.asarray(request.infer(feeds)[0])
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_another_order_of_letters_is_no_product(level):
    net = Windows()
    q, k, v = net.split(2, 3)
    scores = net.add("Einsum", q, k, equation="bwhid,bwhjd->bwhji")
    check(net, net.mixed(scores, v, 5), config={"EXECUTION_MODE_HINT": "ACCURACY"}, tolerance=1e-5)
