"""A small random decoder: as ONNX in three forms, and in float64 without any cache."""

from __future__ import annotations

import numpy as np
from models import model_of, node, value, weight
from onnx import TensorProto, helper

VOCABULARY, WIDTH, HEADS, SIZE, LAYERS, LONGEST = 40, 16, 2, 8, 2, 64


def weights(seed=5):
    """Names to arrays; large enough that the most probable token differs from place to place."""
    draw = np.random.default_rng(seed).standard_normal
    found = {
        "embedding": draw((VOCABULARY, WIDTH)),
        "places": draw((LONGEST, WIDTH)),
        "head": draw((WIDTH, VOCABULARY)),
    }
    for layer in range(LAYERS):
        found |= {f"{layer}.{name}": draw((WIDTH, WIDTH)) / 4 for name in ("q", "k", "v", "o")}
    return {name: array.astype(np.float32) for name, array in found.items()}


def expected_logits(tokens, arrays):
    """Logits behind every token of one sequence, ``[tokens, vocabulary]``, in float64."""
    w = {name: array.astype(np.float64) for name, array in arrays.items()}
    count = len(tokens)
    x = w["embedding"][list(tokens)] + w["places"][:count]
    hidden = np.triu(np.full((count, count), -np.inf), 1)
    for layer in range(LAYERS):
        q, k, v = (
            (x @ w[f"{layer}.{name}"]).reshape(count, HEADS, SIZE).swapaxes(0, 1) for name in "qkv"
        )
        scores = q @ k.swapaxes(1, 2) / np.sqrt(SIZE) + hidden
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + (shares @ v).swapaxes(0, 1).reshape(count, WIDTH) @ w[f"{layer}.o"]
    return x @ w["head"]


def expected_tokens(prompt, count, arrays):
    """The ``count`` most probable tokens behind a prompt, one after the other."""
    tokens = [*prompt]
    for _ in range(count):
        tokens.append(int(expected_logits(tokens, arrays)[-1].argmax()))
    return tokens[len(prompt) :]


def growing(arrays, name="tiny"):
    """The same as optimum exports it: with a mask, positions, and a cache that grows."""
    int64 = TensorProto.INT64
    cache = ["batch", HEADS, "past", SIZE]
    inputs = [
        value("input_ids", ["batch", "sequence"], int64),
        value("attention_mask", ["batch", "total"], int64),
        value("position_ids", ["batch", "sequence"], int64),
    ]
    outputs = [value("logits", ["batch", "sequence", VOCABULARY])]
    constants = {
        "split": np.array([0, 0, HEADS, SIZE]),
        "merge": np.array([0, 0, WIDTH]),
        "scale": np.float32(SIZE**-0.5),
        "far": np.float32(-1e9),
        "one": np.int64(1),
        "axes": np.array([1, 2]),
        "zero": np.int64(0),
    }
    nodes = [
        node("Gather", ["embedding", "input_ids"], "words"),
        node("Gather", ["places", "position_ids"], "where"),
        node("Add", ["words", "where"], "x0"),
        # A key is seen if its place is not behind the query's and the mask has it.
        node("Shape", ["attention_mask"], "total", start=1, end=2),
        node("Shape", ["input_ids"], "count", start=1, end=2),
        node("Squeeze", ["total"], "all"),
        node("Squeeze", ["count"], "new"),
        node("Range", ["zero", "all", "one"], "keys"),
        node("Sub", ["all", "new"], "old"),
        node("Range", ["old", "all", "one"], "queries"),
        node("Unsqueeze", ["queries", "one"], "column"),
        node("LessOrEqual", ["keys", "column"], "causal"),
        node("Cast", ["attention_mask"], "there", to=TensorProto.BOOL),
        node("Unsqueeze", ["there", "axes"], "there4"),
        node("And", ["causal", "there4"], "seen"),
        node("Not", ["seen"], "unseen"),
        node("Cast", ["unseen"], "unseen_float", to=TensorProto.FLOAT),
        node("Mul", ["unseen_float", "far"], "bias"),
    ]
    for n in range(LAYERS):
        for part in "qkv":
            nodes += [
                node("MatMul", [f"x{n}", f"{n}.{part}"], f"{n}.{part}.flat"),
                node("Reshape", [f"{n}.{part}.flat", "split"], f"{n}.{part}.heads"),
                node("Transpose", [f"{n}.{part}.heads"], f"{n}.{part}.new", perm=[0, 2, 1, 3]),
            ]
        for part, kind in (("k", "key"), ("v", "value")):
            past, present = f"past_key_values.{n}.{kind}", f"present.{n}.{kind}"
            inputs.append(value(past, cache))
            outputs.append(value(present, ["batch", HEADS, "total", SIZE]))
            nodes.append(node("Concat", [past, f"{n}.{part}.new"], present, axis=2))
        nodes += [
            node("Transpose", [f"present.{n}.key"], f"{n}.turned", perm=[0, 1, 3, 2]),
            node("MatMul", [f"{n}.q.new", f"{n}.turned"], f"{n}.products"),
            node("Mul", [f"{n}.products", "scale"], f"{n}.scaled"),
            node("Add", [f"{n}.scaled", "bias"], f"{n}.scores"),
            node("Softmax", [f"{n}.scores"], f"{n}.shares", axis=-1),
            node("MatMul", [f"{n}.shares", f"present.{n}.value"], f"{n}.mixed"),
            node("Transpose", [f"{n}.mixed"], f"{n}.back", perm=[0, 2, 1, 3]),
            node("Reshape", [f"{n}.back", "merge"], f"{n}.joined"),
            node("MatMul", [f"{n}.joined", f"{n}.o"], f"{n}.out"),
            node("Add", [f"x{n}", f"{n}.out"], f"x{n + 1}"),
        ]
    nodes.append(node("MatMul", [f"x{LAYERS}", "head"], "logits"))
    held = [weight(key, array) for key, array in (arrays | constants).items()]
    return model_of(nodes, inputs, outputs, held, name=name)


def fixed(arrays, masked=True):
    """The same with GroupQueryAttention, which writes into a cache of fixed capacity.

    Args:
        arrays: The weights.
        masked: Whether lengths are computed from a mask, as onnxruntime-genai writes it, or fed.
    """
    int64, int32 = TensorProto.INT64, TensorProto.INT32
    sequence = ["batch", "sequence"]
    inputs = [value("input_ids", sequence, int64), value("position_ids", sequence, int64)]
    outputs = [value("logits", ["batch", "sequence", VOCABULARY])]
    constants, nodes = {}, []
    if masked:
        inputs.append(value("attention_mask", ["batch", "total"], int64))
        constants = {"one": np.array([1], np.int64), "second": np.int64(1)}
        nodes = [
            node("ReduceSum", ["attention_mask", "one"], "valid", keepdims=0),
            node("Sub", ["valid", "one"], "last"),
            node("Cast", ["last"], "seqlens_k", to=int32),
            node("Shape", ["attention_mask"], "shape"),
            node("Gather", ["shape", "second"], "places_there"),
            node("Cast", ["places_there"], "total_sequence_length", to=int32),
        ]
    else:
        inputs.append(value("seqlens_k", ["batch"], int32))
        inputs.append(value("total_sequence_length", [], int32))
    nodes += [
        node("Gather", ["embedding", "input_ids"], "words"),
        node("Gather", ["places", "position_ids"], "where"),
        node("Add", ["words", "where"], "x0"),
    ]
    for n in range(LAYERS):
        nodes += [node("MatMul", [f"x{n}", f"{n}.{part}"], f"{n}.{part}.new") for part in "qkv"]
        kinds = ("key", "value")
        past = [f"past_key_values.{n}.{kind}" for kind in kinds]
        present = [f"present.{n}.{kind}" for kind in kinds]
        inputs += [value(name, ["batch", HEADS, "past", SIZE]) for name in past]
        outputs += [value(name, ["batch", HEADS, "held", SIZE]) for name in present]
        operands = [f"{n}.{part}.new" for part in "qkv"]
        nodes += [
            node(
                "GroupQueryAttention",
                [*operands, *past, "seqlens_k", "total_sequence_length"],
                [f"{n}.mixed", *present],
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=HEADS,
            ),
            node("MatMul", [f"{n}.mixed", f"{n}.o"], f"{n}.out"),
            node("Add", [f"x{n}", f"{n}.out"], f"x{n + 1}"),
        ]
    nodes.append(node("MatMul", [f"x{LAYERS}", "head"], "logits"))
    held = [weight(key, array) for key, array in (arrays | constants).items()]
    model = model_of(nodes, inputs, outputs, held, name="tiny")
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model
