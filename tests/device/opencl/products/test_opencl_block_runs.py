"""Products of few rows between two attentions as one kernel, whose groups wait for one another."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper

from partita.errors import InputError
from partita_opencl.device.device import find_device
from partita_opencl.runtime import device_model
from partita_opencl.trials.matrix_unit_checks import Units, fault, parts

from ..comparison import build, compiled, expected, floats, integers
from ..networks.test_opencl_decoder_fusion import Decoder


@pytest.fixture(autouse=True)
def joined(monkeypatch):
    """A processor's device holds one group for certain, and no weights lie in tiles."""
    device = find_device("")
    if not device.limits.is_nvidia:
        limits = replace(device.limits, matrix_units=True, resident_groups=1)
        monkeypatch.setattr(device, "limits", limits)
    apart = {Units.COPY_ENGINE: "weights would lie in tiles"}
    monkeypatch.setattr(
        device_model, "objections", lambda _, wanted: {one: apart.get(one, "") for one in wanted}
    )


F16 = {"INFERENCE_PRECISION_HINT": "f16", "TILING": "LOCAL"}


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_layers_of_a_token(tmp_path, kind):
    decoder = Decoder(tmp_path, kind, **F16)
    decoder.check(4e-3)
    kernels = [kernel for kernel in decoder.kernels() if kernel.startswith(("block", "cache_att"))]
    run, head = ["cache_attention", "block_run"], kernels[-1:]
    # Queries, keys and values of the first layer, then a run for each, the last one with the head.
    assert kernels == ["block_product", *run * 2] or kernels == ["block_product", *run * 2, *head]


def test_what_kernels_report_beside_groups_that_wait(tmp_path):
    decoder = Decoder(tmp_path, "Q4_0", **F16)
    assert decoder.logits([1]).size and "block_run" in decoder.kernels()
    decoder.length = 1000  # more than the cache holds
    with pytest.raises(InputError, match=r"total_sequence_length is 1001; .* 1 to 64"):
        decoder.logits([1])
    decoder.length = 0
    decoder.check(4e-3)


@pytest.mark.parametrize("architecture", ["qwen2", "gemma2"])
def test_architectures(tmp_path, architecture):
    Decoder(tmp_path, "Q4_1", architecture, **F16).check(6e-3)


def chain(rows, sizes, bits=4, bias=False, zeros=False, block=32, halves=False):
    """A model of products one after another, and what feeds it.

    Args:
        rows: Of the first tensor.
        sizes: Its columns, and those of each product.
        bits: Of a weight.
        bias: Whether something is added to columns.
        zeros: Whether each block has a zero of its own, in 4 bits.
        block: Weights that share a scale.
        halves: Whether float16 holds the scales.
    """
    nodes, weights = [], []
    for number, (depth, columns) in enumerate(itertools.pairwise(sizes)):
        blocks = -(-depth // block)
        data = integers(columns, blocks, block * bits // 8, low=0, high=256, dtype=np.uint8)
        scales = floats(columns, blocks, seed=number) * np.float32(2.0 ** (1 - bits) * depth**-0.5)
        if halves:
            scales = scales.astype(np.float16).astype(np.float32)
        arrays = {f"w{number}.data": data, f"w{number}.scales": scales}
        if zeros:
            pairs = (columns, -(-blocks // 2))
            arrays[f"w{number}.zeros"] = integers(*pairs, low=0, high=256, dtype=np.uint8)
        found = [numpy_helper.from_array(x, name) for name, x in arrays.items()]
        attrs = {"K": depth, "N": columns, "bits": bits, "block_size": block}
        names = [f"y{number}", *(array.name for array in found)]
        if bias:
            found.append(numpy_helper.from_array(floats(columns, seed=5), f"b{number}"))
            names += ["", "", f"b{number}"]
        nodes.append(
            helper.make_node(
                "MatMulNBits", names, [f"y{number + 1}"], domain="com.microsoft", **attrs
            )
        )
        weights += found
    feeds = {"y0": floats(rows, sizes[0])}
    return build(nodes, feeds, [f"y{len(nodes)}"], weights), feeds


@pytest.mark.parametrize(
    ("sizes", "rows", "bits", "bias"),
    [
        ((64, 96, 41), 1, 4, True),
        ((64, 32, 608, 96, 7), 2, 8, False),
        ((4256, 96, 32, 32, 32, 65), 1, 4, False),
        ((64, 64, 64), 4, 4, True),
    ],
)
def test_products_in_a_row(sizes, rows, bits, bias):
    model, feeds = chain(rows, sizes, bits, bias)
    request = compiled(model, **F16).create_infer_request()
    (wanted,) = expected(model, feeds)
    for _ in range(3):
        (found,) = request.infer(feeds).to_tuple()
        assert np.abs(found - wanted).max() <= 6e-3 * np.abs(wanted).max()
    assert "block_run" in [step.how for step in request.explain_execution().steps]


def test_depths_that_are_no_eights_stay_apart():
    model, feeds = chain(1, (64, 41, 64))
    request = compiled(model, **F16).create_infer_request()
    request.infer(feeds)
    assert "block_run" not in [step.how for step in request.explain_execution().steps]


def test_trial_finds_no_fault():
    device = find_device("")
    assert not fault(device.id, Units.RESIDENT, parts(Units.RESIDENT, device.limits) - 1)
