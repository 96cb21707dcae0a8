"""Loops on device CPU against onnxruntime: recurrent networks and decoders of converters.

    python benchmarks/loops.py [--rounds 7] [--threads 2] [case ...]

Random weights, one request, inputs set once. `tensorflow`: an LSTM in both directions of two levels
over 64 characters, each a Loop that all its weights are states of; `paddle`: a decoder of 400
tokens with attention, whose body writes the row of each token to its states and ends the loop by a
flag; `numbered`: the same sum over rows with a Gather by the iteration's number. Both engines run
in turns; prints the least wall time and the least processor time of each in milliseconds, the first
run's too, and the largest difference between the results.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper, parser

import partita

Array = np.ndarray[Any, Any]
Case = tuple[onnx.ModelProto, dict[str, Array]]

STEPS, UNITS, TOKENS, ROWS, WIDTH, CLASSES = 64, 400, 400, 96, 256, 30

LSTM = """
    {name}, h{name}, l{name}, n{name}, w{name}, r{name}, b{name}, all{name} =
        Loop (steps, , x{name}, start, start, zero, wx{name}, wr{name}, bias{name}) <body =
        b{name} (int64 i, bool go, float[64, 1, U] x, float[1, 400] h, float[1, 400] c, int64 at,
                 float[U, 1600] w, float[400, 1600] r, float[1600] b) =>
            (bool go2, float[64, 1, U] x2, float[1, 400] h2, float[1, 400] c2, int64 at2,
             float[U, 1600] w2, float[400, 1600] r2, float[1600] b2, float[1, 400] out) {{
            go2 = Identity(go)
            x2 = Identity(x)  w2 = Identity(w)  r2 = Identity(r)  b2 = Identity(b)
            one = Constant <value_int = 1> ()  at2 = Add(at, one)
            row = Gather(x, at)
            xw = MatMul(row, w)  hr = MatMul(h, r)  sum = Add(xw, hr)  gates = Add(sum, b)
            p, q, u, v = Split <axis = 1, num_outputs = 4> (gates)
            in = Sigmoid(p)  keep = Sigmoid(q)  new = Tanh(u)  shown = Sigmoid(v)
            kept = Mul(keep, c)  added = Mul(in, new)  c2 = Add(kept, added)
            size = Tanh(c2)  h2 = Mul(shown, size)  out = Identity(h2)
        }}>"""


def tensorflow() -> Case:
    """LSTMs forwards and backwards, twice."""
    rng = np.random.default_rng(0)
    weights: dict[str, Array] = {
        "steps": np.array(STEPS),
        "zero": np.array(0),
        "start": np.zeros((1, UNITS), np.float32),
        "table": rng.standard_normal((128, UNITS)).astype(np.float32),
        "ends": np.array([-1]),
        "stops": np.array([-STEPS - 1]),
        "first": np.array([0]),
        "back": np.array([-1]),
    }
    text = "xa = Gather(table, chars)  xb = Slice(xa, ends, stops, first, back)"
    for name, inputs in (("a", UNITS), ("b", UNITS), ("c", 2 * UNITS), ("d", 2 * UNITS)):
        for key, rows in (("wx", inputs), ("wr", UNITS)):
            matrix = rng.standard_normal((rows, 4 * UNITS)) * rows**-0.5
            weights[key + name] = matrix.astype(np.float32)
        weights["bias" + name] = np.zeros(4 * UNITS, np.float32)
        if name == "c":
            text += """
    turned = Slice(allb, ends, stops, first, back)
    xc = Concat <axis = 2> (alla, turned)  xd = Slice(xc, ends, stops, first, back)"""
        text += LSTM.format(name=name).replace("U]", f"{inputs}]").replace("[U,", f"[{inputs},")
    text += "\n    last = Slice(alld, ends, stops, first, back)  y = Add(allc, last)"
    model = _model(f"g (int64[64, 1] chars) => (float[64, 1, 400] y) {{ {text} }}", weights)
    return model, {"chars": rng.integers(0, 128, (STEPS, 1))}


def paddle() -> Case:
    """A cell with attention over 96 places, and a row of 400 for each token."""
    rng = np.random.default_rng(1)
    body = """
        end2 = Identity(end)
        seen2 = Identity(seen)  w2 = Identity(w)  r2 = Identity(r)  o2 = Identity(o)
        k2 = Identity(k)  v2 = Identity(v)
        one = Constant <value_ints = [1]> ()  at2 = Add(at, one)
        left = Less(at2, end)  go2 = Squeeze(left)
        keys = MatMul(seen, k)  query = MatMul(h, r)  both = Add(keys, query)  bent = Tanh(both)
        scores = MatMul(bent, v)  shares = Softmax <axis = 0> (scores)
        across = Transpose <perm = [1, 0]> (shares)  context = MatMul(across, seen)
        xw = MatMul(context, w)  mixed = Add(xw, query)  h2 = Tanh(mixed)
        row = MatMul(h2, o)
        zeros = Constant <value_ints = [0]> ()  lines = Shape(rows)
        limit = Gather(lines, zeros)  stop = Min(at2, limit)
        place = Slice(rows, at, stop, zeros, one)  form = Shape(place)  wide = Expand(row, form)
        from = Squeeze(at)  to = Squeeze(stop)  by = Squeeze(one)  number = Range(from, to, by)
        column = Constant <value_ints = [-1, 1]> ()  standing = Reshape(number, column)
        twos = Constant <value_ints = [2]> ()  tail = Slice(form, one, twos)
        times = Concat <axis = 0> (one, tail)  index = Tile(standing, times)
        rows2 = ScatterElements <axis = 0> (rows, index, wide)"""
    states = {
        "at": "int64[1]",
        "end": "int64[1]",
        "h": f"float[1, {WIDTH}]",
        "rows": f"float[{TOKENS}, {CLASSES}]",
        "seen": f"float[{ROWS}, {WIDTH}]",
        **dict.fromkeys("wrk", f"float[{WIDTH}, {WIDTH}]"),
        "o": f"float[{WIDTH}, {CLASSES}]",
        "v": f"float[{WIDTH}, 1]",
    }
    taken = ", ".join(f"{kind} {name}" for name, kind in states.items())
    left = ", ".join(f"{kind} {name}2" for name, kind in states.items())
    made = ", ".join(f"{name}_" for name in states)
    text = f"""g (float[{ROWS}, {WIDTH}] image) => (float[{TOKENS}, {CLASSES}] rows_) {{
        {made} = Loop ( , yes, first, tokens, hidden, empty, image, w0, r0, k0, o0, v0) <body =
            step (int64 i, bool go, {taken}) => (bool go2, {left}) {{ {body} }}> }}"""
    matrix = {"w0": WIDTH, "r0": WIDTH, "o0": CLASSES, "k0": WIDTH, "v0": 1}
    weights = {
        name: (rng.standard_normal((WIDTH, columns)) * WIDTH**-0.5).astype(np.float32)
        for name, columns in matrix.items()
    }
    others: dict[str, Array] = {
        "yes": np.array(True),
        "first": np.array([0]),
        "tokens": np.array([TOKENS]),
        "hidden": np.zeros((1, WIDTH), np.float32),
        "empty": np.zeros((TOKENS, CLASSES), np.float32),
    }
    return _model(text, weights | others), {
        "image": rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    }


def numbered() -> Case:
    """A weighted sum over rows."""
    rng = np.random.default_rng(2)
    text = f"""g (float[{TOKENS}, {WIDTH}] x) => (float[{WIDTH}] y) {{
        y = Loop (count, , start) <body = b (int64 i, bool go, float[{WIDTH}] s) =>
            (bool go2, float[{WIDTH}] t) {{
            go2 = Identity(go)  row = Gather(x, i)  both = Add(row, s)  t = Tanh(both)
        }}> }}"""
    weights = {"count": np.array(TOKENS), "start": np.zeros(WIDTH, np.float32)}
    return _model(text, weights), {"x": rng.standard_normal((TOKENS, WIDTH)).astype(np.float32)}


def _model(text: str, weights: dict[str, Array]) -> onnx.ModelProto:
    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>\n' + text)
    model.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    return model


CASES: dict[str, Callable[[], Case]] = {
    case.__name__: case for case in (tensorflow, paddle, numbered)
}


def timed(run: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall and processor time of a call in milliseconds, and its result."""
    wall, processor = time.perf_counter(), time.process_time()
    result = run()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - processor), result


def measure(name: str, rounds: int, threads: int) -> str:
    """A row of the table."""
    model, feeds = CASES[name]()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    config = {"INFERENCE_NUM_THREADS": threads, "EXECUTION_MODE_HINT": "ACCURACY"}
    request = partita.Core().compile_model(model, "CPU", config).create_infer_request()
    runs: list[Callable[[], Any]] = [
        lambda: session.run(None, feeds),
        lambda: list(request.infer(feeds).values()),
    ]
    firsts, walls, processors, results = [], [], [], []
    for run in runs:
        wall, _, result = timed(run)
        firsts.append(wall)
        results.append([array.copy() for array in result])
    for run in runs * 2:
        run()
    turns = [[timed(run)[:2] for run in runs] for _ in range(rounds)]
    for engine in range(2):
        walls.append(min(turn[engine][0] for turn in turns))
        processors.append(min(turn[engine][1] for turn in turns))
    off = max(np.abs(a - b).max() for a, b in zip(*results, strict=True))
    return (
        f"| {name} | {firsts[1]:.0f} / {firsts[0]:.0f} | {walls[1]:.1f} / {walls[0]:.1f} | "
        f"{processors[1]:.1f} / {processors[0]:.1f} | {off:.1e} |"
    )


def main() -> None:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("cases", nargs="*", metavar="case", help=", ".join(CASES))
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--threads", type=int, default=2)
    args = options.parse_args()
    print("| case | first run, ms: Partita / onnxruntime | wall, ms | processor, ms | differ by |")
    print("| --- | --- | --- | --- | --- |")
    for name in args.cases or CASES:
        print(measure(name, args.rounds, args.threads), flush=True)


if __name__ == "__main__":
    main()
