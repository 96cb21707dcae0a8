"""How many tokens of a prompt one run reads follows from widths, weights and cache."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from partita import Core
from partita.model.prompt_chunk import PROGRAM_BYTES, chunk_tokens

HIDDEN, INTERMEDIATE = 8, 40
VALUES = 4 * (HIDDEN + 4 * INTERMEDIATE)
"""Bytes of a token where most live: the stream, both halves, a half's Sigmoid and their product."""


def gated(rows=("batch", "sequence"), last_row=True):
    """A gated part of a decoder behind its stream, and logits of one token or of all."""
    nodes = [
        helper.make_node("MatMul", ["x", "wide"], ["gate"]),
        helper.make_node("MatMul", ["x", "wide"], ["up"]),
        helper.make_node("Sigmoid", ["gate"], ["sigmoid"]),
        helper.make_node("Mul", ["gate", "sigmoid"], ["silu"]),
        helper.make_node("Mul", ["silu", "up"], ["gated"]),
        helper.make_node("MatMul", ["gated", "narrow"], ["down"]),
        helper.make_node("Add", ["x", "down"], ["sum"]),
        helper.make_node("Gather", ["sum", "end"], ["last"], axis=1),
        helper.make_node("MatMul", ["last" if last_row else "sum", "head"], ["logits"]),
    ]
    sizes = {
        "wide": (HIDDEN, INTERMEDIATE),
        "narrow": (INTERMEDIATE, HIDDEN),
        "head": (HIDDEN, 999),
    }
    weights = [
        *(numpy_helper.from_array(np.ones(size, np.float32), name) for name, size in sizes.items()),
        numpy_helper.from_array(np.array([-1]), "end"),
    ]
    first = helper.make_node("Neg", ["x0"], ["x"])
    graph = helper.make_graph(
        [first, *nodes],
        "decoder",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [*rows, HIDDEN])],
        [helper.make_empty_tensor_value_info("logits")],
        weights,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return Core().read_model(proto.SerializeToString())


def held(values_bytes):
    """Bytes of weights and cache, a tenth of which has room for such values."""
    return 10 * (values_bytes + PROGRAM_BYTES)


@pytest.mark.parametrize("chunk", [512, 256])
def test_as_many_tokens_as_have_room_in_a_tenth(chunk):
    model = gated()
    assert chunk_tokens(model, held(chunk * VALUES) + 10) == chunk
    assert chunk_tokens(model, held(chunk * VALUES) - 10) == chunk // 2


def test_never_more_than_512_and_never_fewer_than_128():
    assert chunk_tokens(gated(), 10**15) == 512
    assert chunk_tokens(gated(), 1) == 128


def test_sequences_that_are_read_together_share_the_room():
    assert chunk_tokens(gated((4, "sequence")), held(4 * 256 * VALUES) + 10) == 256
    assert chunk_tokens(gated((4, "sequence")), held(4 * 256 * VALUES) - 10) == 128


def test_logits_of_all_tokens_count():
    room = held(256 * 4 * (HIDDEN + 999)) + 10
    assert chunk_tokens(gated(last_row=False), room) == 256
    assert chunk_tokens(gated(last_row=False), room - 20) == 128
    assert chunk_tokens(gated(), room) == 512
