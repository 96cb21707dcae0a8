"""A token of a decoder whose cache grows by Concat, as optimum writes it, beside onnxruntime.

    python benchmarks/growing_caches.py [--contexts 128 1024 4096] [--plain] [--processor]

The decoder is made at run time, with random weights: norms, rotary embedding, attention with
repeated heads of keys, and gated parts, spelled in operators of opset 17. Printed are medians of
milliseconds a token behind so many tokens: of Partita with buffers that have room, of Partita with
the model as it is written (``copies``), the same where each length has its program emitted anew
(``emitted``), and of onnxruntime, whose past and present stay in its own memory (IO binding). All
compute in float32 with two threads by default, in turns of a few tokens. With ``--plain`` no
Generator takes part: a request's results are handed back as they are (``handed back``), or copied
first as by default (``own``), and onnxruntime without IO binding stands beside (``run``).
``--processor`` takes processor time of all threads, which others on the machine disturb less.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.generate import decoder
from partita.lowering import specialize

Array = np.ndarray[Any, Any]

WORDS, TOKENS_OF_A_TURN = 4096, 6
WAYS = ("room", "copies", "emitted")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the decoder."""

    layers: int
    hidden: int = 512
    heads: int = 8
    kv_heads: int = 4
    size: int = 64
    intermediate: int = 1408


class Writer:
    """Writes the graph, node by node."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(0)

    def op(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Adds an operation; the name of its result."""
        output = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], **attributes))
        return output

    def const(self, array: Any) -> str:
        """Adds a constant; its name."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def matrix(self, rows: int, columns: int) -> str:
        """Adds random weights that keep the size of what they multiply."""
        numbers = self.rng.standard_normal((rows, columns), np.float32)
        return self.const(numbers / np.float32(rows**0.5))

    def size_of(self, x: str, axis: int) -> str:
        """One size of a tensor, as a scalar."""
        return self.op("Gather", self.op("Shape", x), self.const(np.array(axis)), axis=0)

    def norm(self, x: str) -> str:
        """A root-mean-square norm."""
        square = self.op("ReduceMean", self.op("Pow", x, self.const(np.float32(2))), axes=[-1])
        root = self.op("Sqrt", self.op("Add", square, self.const(np.float32(1e-6))))
        scale = self.const(np.ones(self.sizes.hidden, np.float32))
        return self.op("Mul", self.op("Div", x, root), scale)

    def turned(self, x: str, cosines: str, sines: str) -> str:
        """Heads turned by the angles of their positions."""
        half, axis = self.sizes.size // 2, self.const(np.array([3]))
        ends = (self.const(np.array([n])) for n in (0, half, half, self.sizes.size))
        start, middle, again, end = ends
        first = self.op("Slice", x, start, middle, axis)
        second = self.op("Neg", self.op("Slice", x, again, end, axis))
        swapped = self.op("Concat", second, first, axis=-1)
        return self.op("Add", self.op("Mul", x, cosines), self.op("Mul", swapped, sines))

    def heads_of(self, x: str, count: int) -> str:
        """A product, as (batch, heads, tokens, size)."""
        product = self.op("MatMul", x, self.matrix(self.sizes.hidden, count * self.sizes.size))
        shape = self.const(np.array([0, 0, count, self.sizes.size]))
        return self.op("Transpose", self.op("Reshape", product, shape), perm=[0, 2, 1, 3])

    def repeated(self, x: str) -> str:
        """Heads of keys, each as often as heads of queries read it."""
        sizes, zero = self.sizes, self.const(np.array([0]))
        batch, length = (self.op("Unsqueeze", self.size_of(x, axis), zero) for axis in (0, 2))
        numbers = (sizes.kv_heads, sizes.heads // sizes.kv_heads, sizes.heads, sizes.size)
        kv_heads, group, heads, size = (self.const(np.array([n])) for n in numbers)
        wide = self.op("Concat", batch, kv_heads, group, length, size, axis=0)
        apart = self.op("Expand", self.op("Unsqueeze", x, self.const(np.array([2]))), wide)
        return self.op("Reshape", apart, self.op("Concat", batch, heads, length, size, axis=0))

    def mask(self) -> str:
        """0 where a token sees a key, and the least number elsewhere."""
        past = self.size_of("past_key_values.0.key", 2)
        total = self.op("Add", past, self.size_of("input_ids", 1))
        zero, one, axis = (self.const(np.array(n)) for n in (0, 1, [1]))
        column = self.op("Unsqueeze", self.op("Range", past, total, one), axis)
        causal = self.op("LessOrEqual", self.op("Range", zero, total, one), column)
        there = self.op("Cast", "attention_mask", to=TensorProto.BOOL)
        seen = self.op("And", causal, self.op("Unsqueeze", there, self.const(np.array([1, 2]))))
        numbers = (np.float32(0), np.finfo(np.float32).min)
        return self.op("Where", seen, *map(self.const, numbers))

    def angles(self) -> tuple[str, str]:
        """Cosines and sines for all tokens."""
        size, axis = self.sizes.size, self.const(np.array([1]))
        steps = 1e4 ** (-np.arange(0, size, 2, dtype=np.float32) / size)
        places = self.op("Unsqueeze", "position_ids", self.const(np.array([2])))
        turns = self.op("Mul", self.op("Cast", places, to=TensorProto.FLOAT), self.const(steps))
        both = self.op("Unsqueeze", self.op("Concat", turns, turns, axis=-1), axis)
        return self.op("Cos", both), self.op("Sin", both)

    def layer(self, number: int, x: str, mask: str, angles: tuple[str, str]) -> str:
        """Attention and a gated part."""
        sizes, before = self.sizes, self.norm(x)
        q = self.turned(self.heads_of(before, sizes.heads), *angles)
        k = self.turned(self.heads_of(before, sizes.kv_heads), *angles)
        v = self.heads_of(before, sizes.kv_heads)
        keys, values = (
            self.repeated(
                self.op(
                    "Concat",
                    f"past_key_values.{number}.{kind}",
                    new,
                    output=f"present.{number}.{kind}",
                    axis=-2,
                )
            )
            for kind, new in (("key", k), ("value", v))
        )
        products = self.op("MatMul", q, self.op("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", products, self.const(np.float32(sizes.size**-0.5)))
        shares = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        mixed = self.op("Transpose", self.op("MatMul", shares, values), perm=[0, 2, 1, 3])
        width = sizes.heads * sizes.size
        joined = self.op("Reshape", mixed, self.const(np.array([0, 0, width])))
        x = self.op("Add", x, self.op("MatMul", joined, self.matrix(width, sizes.hidden)))
        before = self.norm(x)
        gate, up = (
            self.op("MatMul", before, self.matrix(sizes.hidden, sizes.intermediate))
            for _ in range(2)
        )
        gated = self.op("Mul", self.op("Mul", gate, self.op("Sigmoid", gate)), up)
        down = self.op("MatMul", gated, self.matrix(sizes.intermediate, sizes.hidden))
        return self.op("Add", x, down)

    def model(self) -> onnx.ModelProto:
        """The decoder."""
        mask, angles = self.mask(), self.angles()
        x = self.op("Gather", self.matrix(WORDS, self.sizes.hidden), "input_ids")
        for number in range(self.sizes.layers):
            x = self.layer(number, x, mask, angles)
        self.op("MatMul", self.norm(x), self.matrix(self.sizes.hidden, WORDS), output="logits")
        of, rows = helper.make_tensor_value_info, ["batch", "tokens"]
        names = ("input_ids", rows), ("attention_mask", ["batch", "all"]), ("position_ids", rows)
        inputs = [of(name, TensorProto.INT64, shape) for name, shape in names]
        outputs = [of("logits", TensorProto.FLOAT, [*rows, WORDS])]
        for number in range(self.sizes.layers):
            for kind in ("key", "value"):
                heads, size = self.sizes.kv_heads, self.sizes.size
                for name, ports, length in (
                    ("past_key_values", inputs, "past"),
                    ("present", outputs, "past + tokens"),
                ):
                    shape = ["batch", heads, length, size]
                    ports.append(of(f"{name}.{number}.{kind}", TensorProto.FLOAT, shape))
        graph = helper.make_graph(self.nodes, "growing", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


Step = Callable[[Array, int], Array]
"""Reads tokens behind so many; their logits."""


def partita_step(proto: onnx.ModelProto, threads: int, context: int, way: str) -> Step:
    """Partita, with buffers that have room or with the model as it is; see above."""
    core = partita.Core()
    as_it_is = mock.patch.object(decoder, "give_room", lambda core, device, model, *rest: model)
    with contextlib.nullcontext() if way == "room" else as_it_is:
        model = decoder.prepare(core.read_model(proto), 1, context, core, "CPU")
    classes = 0 if way == "emitted" else specialize.CLASSES
    with mock.patch.object(specialize, "CLASSES", classes):
        compiled = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads})
    running = decoder.Decoder(compiled)

    def step(tokens: Array, before: int) -> Array:
        return running.run(tokens, np.array([before]), np.ones(1, bool))

    return step


def feeds_of(tokens: Array, before: int) -> dict[str, Array]:
    """What goes into the decoder besides caches."""
    count = tokens.shape[1]
    return {
        "input_ids": tokens,
        "attention_mask": np.ones((1, before + count), np.int64),
        "position_ids": before + np.arange(count)[None],
    }


def plain_step(proto: onnx.ModelProto, threads: int, share: bool) -> Step:
    """A request of Partita; what it makes is handed back."""
    core = partita.Core()
    model = core.read_model(proto)
    compiled = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads})
    request = compiled.create_infer_request()
    return _handing_back(proto, lambda feeds: request.infer(feeds, share_outputs=share))


def run_step(proto: onnx.ModelProto, threads: int) -> Step:
    """A session of onnxruntime, without IO binding."""
    session = onnxruntime_session(proto, threads)
    names = [port.name for port in session.get_outputs()]
    return _handing_back(
        proto, lambda feeds: dict(zip(names, session.run(None, feeds), strict=True))
    )


def _handing_back(proto: onnx.ModelProto, run: Callable[[dict[str, Array]], Any]) -> Step:
    """Hands ``present`` back as ``past_key_values``."""
    pasts = [port for port in proto.graph.input if port.name.startswith("past")]
    sizes = [[dim.dim_value for dim in port.type.tensor_type.shape.dim] for port in pasts]
    held = {
        port.name: np.zeros((1, heads, 0, size), np.float32)
        for port, (_, heads, _, size) in zip(pasts, sizes, strict=True)
    }

    def step(tokens: Array, before: int) -> Array:
        results = run({**feeds_of(tokens, before), **held})
        for name in held:
            held[name] = results[name.replace("past_key_values", "present")]
        return np.array(results["logits"][:, -1])

    return step


def onnxruntime_session(proto: onnx.ModelProto, threads: int) -> Any:
    """A session of onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def onnxruntime_step(proto: onnx.ModelProto, threads: int, layers: int) -> Step:
    """onnxruntime; what it makes stays in its memory and is bound again."""
    import onnxruntime

    session = onnxruntime_session(proto, threads)
    names = [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
    sizes = next(port.shape for port in session.get_inputs() if port.name.startswith("past"))
    empty = np.zeros((1, sizes[1], 0, sizes[3]), np.float32)
    held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(empty) for name in names}

    def step(tokens: Array, before: int) -> Array:
        binding = session.io_binding()
        for name, array in feeds_of(tokens, before).items():
            binding.bind_cpu_input(name, array)
        for name, cache in held.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", cache)
        binding.bind_output("logits")
        for name in names:
            binding.bind_output(f"present.{name}")
        session.run_with_iobinding(binding)
        logits, *caches = binding.get_outputs()
        held.update(zip(names, caches, strict=True))
        return np.asarray(logits.numpy()[:, -1])

    return step


def measured(
    engines: dict[str, Step],
    context: int,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Milliseconds of a token behind a context, by engine.

    Raises:
        AssertionError: Engines disagree.
    """
    rng, before = np.random.default_rng(1), 0
    while before < context:
        count = min(256, context - before)
        tokens = rng.integers(0, WORDS, (1, count))
        for step in engines.values():
            step(tokens, before)
        before += count
    times: dict[str, list[float]] = {name: [] for name in engines}
    for round_ in range(rounds + 1):
        tokens = rng.integers(0, WORDS, (TOKENS_OF_A_TURN, 1, 1))
        logits = {}
        for name, step in engines.items():
            for place, token in enumerate(tokens):
                start = clock()
                logits[name] = step(token, before + place)
                if round_:
                    times[name].append(1e3 * (clock() - start))
        for found in logits.values():
            np.testing.assert_allclose(found, logits["onnxruntime"], rtol=1e-3, atol=1e-3)
        before += TOKENS_OF_A_TURN
    return {name: statistics.median(one) for name, one in times.items()}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 1024, 4096])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--processor", action="store_true")
    args = parser.parse_args()
    proto = Writer(Sizes(args.layers)).model()
    names = [*(("handed back", "own", "run") if args.plain else WAYS), "onnxruntime"]
    print("context", *(f"{name:>12}" for name in names), "  ms a token")
    for context in args.contexts:
        if args.plain:
            shares = {"handed back": True, "own": False}
            engines = {name: plain_step(proto, args.threads, s) for name, s in shares.items()}
            engines["run"] = run_step(proto, args.threads)
        else:
            engines = {way: partita_step(proto, args.threads, context + 64, way) for way in WAYS}
        engines["onnxruntime"] = onnxruntime_step(proto, args.threads, args.layers)
        clock = time.process_time if args.processor else time.perf_counter
        found = measured(engines, context, args.rounds, clock)
        print(f"{context:>7}", *(f"{found[name]:>12.2f}" for name in names), flush=True)


if __name__ == "__main__":
    main()
