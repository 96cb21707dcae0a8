"""RotaryEmbedding of device OPENCL against onnxruntime."""

import numpy as np
import pytest

import partita

from ..comparison import check_single, compiled, floats, integers, single

MICROSOFT = {"domain": "com.microsoft"}


def tables(rows, size, kind=np.float32):
    angles = floats(rows, size // 2, seed=5)
    return np.cos(angles).astype(kind), np.sin(angles).astype(kind)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 4 * 16), (2, 4, 3, 16)])
@pytest.mark.parametrize("positions", ["each", "first"])
def test_onnxruntimes_operator(shape, positions, interleaved):
    ids = integers(2, 3, low=0, high=20) if positions == "each" else np.array([5])
    inputs = [floats(*shape), ids, *tables(20, 16)]
    attrs = {"interleaved": interleaved, "num_heads": 4, **MICROSOFT}
    check_single("RotaryEmbedding", inputs, attrs, constant=[2, 3])


def test_a_part_of_each_head():
    inputs = [floats(1, 5, 2 * 24), integers(1, 5, low=0, high=9), *tables(9, 16)]
    attrs = {"num_heads": 2, "rotary_embedding_dim": 16, **MICROSOFT}
    check_single("RotaryEmbedding", inputs, attrs, constant=[2, 3])


def test_halves():
    inputs = [floats(1, 2, 16).astype(np.float16), np.array([1]), *tables(9, 16, np.float16)]
    check_single("RotaryEmbedding", inputs, MICROSOFT, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 4 * 16), (2, 4, 3, 16)])
def test_the_standards_operator(shape, ids):
    cosines, sines = tables(20 if ids else 6, 16)
    inputs = [floats(*shape), cosines, sines, integers(2, 3, low=0, high=20)]
    if not ids:
        inputs = [inputs[0], *(table.reshape(2, 3, 8) for table in (cosines, sines))]
    check_single("RotaryEmbedding", inputs, {"num_heads": 4}, opset=23)


@pytest.mark.parametrize("position", [-1, 9])
def test_positions_beyond_the_tables(position):
    inputs = [floats(1, 1, 16), np.array([[position]]), *tables(9, 16)]
    model, feeds = single("RotaryEmbedding", inputs, MICROSOFT, constant=[2, 3])
    with pytest.raises(partita.PartitaError, match="RotaryEmbedding"):
        compiled(model).infer_new_request(feeds)


@pytest.mark.parametrize(
    ("shape", "rows", "size"), [((1, 2, 17), (1, 2), 16), ((1, 2, 16), (1, 3), 16)]
)
def test_what_does_not_fit(shape, rows, size):
    inputs = [floats(*shape), integers(*rows, low=0, high=5), *tables(9, size)]
    model, feeds = single("RotaryEmbedding", inputs, MICROSOFT, constant=[2, 3])
    with pytest.raises(partita.PartitaError, match="RotaryEmbedding"):
        compiled(model).infer_new_request(feeds)
