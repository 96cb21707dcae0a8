"""Rotary embeddings against onnxruntime and ONNX' reference implementation."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from single_op import assert_same, check, model_of, normal, run_ours

from partita.errors import CompileError, InputError
from partita_reference.corrections import corrected_for


def tables(*shape, kind=np.float32):
    """Cosines and sines of some angles."""
    angles = normal(9, *shape)
    return [np.cos(angles).astype(kind), np.sin(angles).astype(kind)]


def check_reference(inputs, tolerance=1e-5, **arguments):
    """Agrees with REFERENCE, which has ONNX's own operator and ours for onnxruntime's."""
    model = model_of("RotaryEmbedding", inputs, **arguments)
    feeds = {f"x{place}": x for place, x in enumerate(inputs) if x is not None}
    expected = ReferenceEvaluator(model, new_ops=corrected_for(23)).run(None, feeds)
    found = run_ours("RotaryEmbedding", inputs, **arguments)
    assert_same(found[0], expected[0], tolerance, tolerance)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("shape", [(2, 5, 24), (2, 3, 5, 8)])
def test_onnx(shape, interleaved):
    arguments = {"opset": 23, "interleaved": interleaved}
    arguments |= {"num_heads": 3} if len(shape) == 3 else {}
    positions = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    check_reference([normal(1, *shape), *tables(11, 4), positions], **arguments)
    check_reference([normal(1, *shape), *tables(2, 5, 4)], **arguments)
    part = [normal(1, *shape), *tables(11, 3), positions]
    check_reference(part, rotary_embedding_dim=6, **arguments)
    check("RotaryEmbedding", [normal(1, *shape), *tables(11, 4), positions], **arguments)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("shape", [(2, 5, 24), (2, 3, 5, 8)])
@pytest.mark.parametrize("positions", [[4], [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]])
def test_onnxruntime(shape, interleaved, positions):
    inputs = [normal(1, *shape), np.array(positions), *tables(11, 4)]
    arguments = {"domain": "com.microsoft", "interleaved": interleaved}
    check("RotaryEmbedding", inputs, **arguments)
    check_reference(inputs, **arguments)
    inputs[2:] = tables(11, 2)
    part = {"rotary_embedding_dim": 4, "num_heads": 3}
    check("RotaryEmbedding", inputs, **arguments, **part)
    check_reference(inputs, **arguments, **part)


def test_float16():
    inputs = [normal(1, 2, 5, 24).astype(np.float16), np.array([2]), *tables(9, 4, kind=np.float16)]
    check_reference(inputs, 2e-3, domain="com.microsoft")


@pytest.mark.parametrize(
    ("positions", "wrong"),
    [([7], 11), ([-1], -1), ([2**63 - 1], 2**63 - 1), ([[0, 1, 2, 3, 11], [0] * 5], 11)],
)
def test_positions_beyond_the_tables(positions, wrong):
    inputs = [normal(1, 2, 5, 24), np.array(positions), *tables(11, 4)]
    with pytest.raises(InputError, match=f"position {wrong} is beyond .* positions 0 to 10"):
        run_ours("RotaryEmbedding", inputs, domain="com.microsoft")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": normal(1, 24)}, "3 or 4 dimensions"),
        ({"x": normal(1, 2, 5, 25)}, "do not fall into heads"),
        ({"positions": np.zeros((2, 4), np.int64)}, "position_ids is to be of shape"),
        ({"sines": normal(1, 11, 3)}, "table of sines is to be of shape"),
        ({"cosines": normal(1, 11)}, "table of cosines is to have 2 dimensions"),
        ({"num_heads": 5}, "do not fall into heads"),
        ({"rotary_embedding_dim": 6, "num_heads": 3}, "the tables have 4 angles"),
        ({"scale": 0.5}, "scale is 0.5; takes 1.0"),
        ({"is_packed_batching": 1}, "is_packed_batching is 1"),
    ],
)
def test_inputs_that_do_not_fit(change, words):
    given = dict(zip(("cosines", "sines"), tables(11, 4), strict=True))
    given |= {"x": normal(1, 2, 5, 24), "positions": np.zeros((2, 5), np.int64)}
    given |= {name: change.pop(name) for name in given if name in change}
    inputs = [given[name] for name in ("x", "positions", "cosines", "sines")]
    with pytest.raises(CompileError, match=words):
        run_ours("RotaryEmbedding", inputs, domain="com.microsoft", **change)
