"""Chains of a decoder's own products, and what a device's speed makes of their times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_decoders import SIZES, decoder

import partita
from partita_hetero.cost import device_speed, product_probe
from partita_hetero.cost.attention_probe import AttentionSpeed
from partita_hetero.cost.device_speed import MANY_ROWS, DecoderSizes, DeviceSpeed, Timed
from partita_hetero.cost.product_probe import ProductChain, probe_model
from partita_hetero.cost.token_work import (
    PLAIN,
    DecoderWork,
    EqualProducts,
    Product,
    TokenWork,
    WeightFormat,
)
from partita_hetero.partition.op_graph import OpGraph

Q4, Q4_ZEROS, F16 = WeightFormat(4, 32), WeightFormat(4, 32, True), WeightFormat(16)


def layer_of(kind, width=64, narrow=32, wide=160):
    """The products of a layer of a decoder such as Llama's."""
    down, up = Product(kind, wide, width), Product(kind, width, wide)
    square, side = Product(kind, width, width), Product(kind, width, narrow)
    return (square, side, side), (square,), (up, up), (down,)


@pytest.mark.parametrize(("weights", "kind"), [("q4", Q4), ("f16", F16), ("f32", PLAIN)])
def test_products_of_layers_are_those_of_the_decoder(weights, kind):
    model, sizes = decoder("tiny", weights, 64), SIZES["tiny"]
    op_graph = OpGraph.of(model)
    head = ((Product(kind, sizes.hidden, sizes.vocabulary),),)
    work = DecoderWork(model, op_graph, 64)
    assert work.layer_products() == [layer_of(kind), head]
    live = [op for op, constant in enumerate(op_graph.constant) if not constant]
    one, prompt = work.work(live, 1, 0), work.work(live, 5, 0)
    square = sizes.layers * layer_of(kind)[1][0].nbytes
    assert one.matrices[layer_of(kind)[1][0], 1] == (8, 2 * square)
    assert prompt.matrices[layer_of(kind)[1][0], 5] == (8, 2 * square)
    assert prompt.matrices[head[0][0], 1].number == 1  # the last position alone
    assert one.attentions == sizes.layers


@pytest.mark.parametrize("kind", [PLAIN, F16, Q4, Q4_ZEROS, WeightFormat(8, 32)])
def test_every_product_of_a_chain_is_computed(kind):
    repeats = 12
    model = ProductChain(layer_of(kind), repeats).model()
    compiled = partita.Core().compile_model(model, "CPU", {"PERF_COUNT": True})
    request = compiled.create_infer_request()
    found = request.infer({"x64": np.full((1, 1, 64), 0.5, np.float32)})
    # Numbers neither grow nor vanish; what nobody reads is summed up.
    for number, port in enumerate(compiled.outputs):
        assert 0.01 < np.abs(found[number]).mean() < (20 if port.shape[-1] == 32 else 2)
    run = [one for one in request.profiling_info if one.node_name.startswith("product")]
    made = [one for one in run if "cast" not in one.node_name]
    assert len(made) == 7 * repeats
    assert all(one.status.name == "EXECUTED" for one in made)


def test_operations_between_products_are_counted():
    chain = ProductChain(layer_of(PLAIN), 3)
    products = [op for op in chain.model().ops if op.op_type == "MatMul"]
    assert len(products) == 21
    assert chain.other_ops == len(chain.model().ops) - 21 == 3 * 5


def test_a_chain_has_the_bytes_of_the_decoder_and_no_more_products_than_are_allowed():
    layer = layer_of(Q4)
    own = sum(product.nbytes for group in layer for product in group)
    assert ProductChain.of(layer, 10 * own).repeats == 10
    assert ProductChain.of(layer, own // 3).repeats == 1
    assert ProductChain.of(layer, 10**12).repeats == product_probe.MOST_PRODUCTS // 7


def test_of_a_huge_matrix_some_columns_are_measured(monkeypatch):
    monkeypatch.setattr(product_probe, "LARGEST", 64 * 100)
    head = Product(Q4, 64, 1000)
    chain = ProductChain.of(((head,),), 4 * head.nbytes)
    assert chain.repeats == 40
    products = [node for node in chain.model().ir.graph if node.op_type == "MatMulNBits"]
    assert [node.attributes["N"].as_int() for node in products] == 40 * [100]
    assert chain.seconds(40.0)[head] == pytest.approx(10.0)


def test_a_product_takes_its_share_of_the_chain():
    layer = layer_of(Q4)
    found = ProductChain(layer, 5).seconds(50.0)
    assert sum(found[product] for group in layer for product in group) == pytest.approx(10.0)
    assert found[layer[2][0]] == pytest.approx(2.5 * found[layer[1][0]])


SPEED = DeviceSpeed({PLAIN: 1e9, Q4: 1e9}, {PLAIN: 1e9, Q4: 1e9}, 1e-6)


def test_products_of_one_row_take_what_was_measured():
    known, other = Product(Q4, 64, 64), Product(Q4, 64, 32)
    work = TokenWork(
        {Q4: 2 * known.nbytes + other.nbytes},
        {Q4: 2 * 64 * 64 + 64 * 32},
        ops=5,
        matrices={
            (known, 1): EqualProducts(2, 2 * known.nbytes),
            (other, 1): EqualProducts(1, other.nbytes),
        },
    )
    plain = SPEED.seconds(work)
    assert plain == pytest.approx((2 * 64 * 64 + 64 * 32) / 1e9 + 5e-6)
    measured = replace(SPEED, rows={known: 1e-3}).seconds(work)
    assert measured == pytest.approx(2e-3 + 64 * 32 / 1e9 + 3e-6)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (1, 1e-4),
        ((MANY_ROWS + 1) // 2, 1e-4),
        (MANY_ROWS, MANY_ROWS * 4096 / 1e9),
        (10**4, 4.096e-2),
    ],
)
def test_few_rows_lie_between_one_and_many(rows, expected):
    product = Product(Q4, 64, 64)
    many = MANY_ROWS * product.elements / 1e9
    work = TokenWork(
        {Q4: product.nbytes},
        {Q4: rows * product.elements},
        ops=1,
        matrices={(product, rows): EqualProducts(1, product.nbytes)},
    )
    found = replace(SPEED, rows={product: 1e-4}).seconds(work)
    if 1 < rows < MANY_ROWS:
        expected = 1e-4 + (many - 1e-4) * (rows - 1) / (MANY_ROWS - 1)
    assert found == pytest.approx(expected)


def test_attention_takes_time_over_an_empty_cache_too():
    work = TokenWork(ops=10, attentions=4)
    assert SPEED.seconds(work) == pytest.approx(1e-5)
    attending = replace(SPEED, attention=AttentionSpeed(1e9, 1e9, 5e-6))
    assert attending.seconds(work) == pytest.approx(6e-6 + 4 * 5e-6)


class Room:
    """A device that knows what probes of so many products take."""

    def __init__(self, most):
        self.most, self.asked = most, []

    def known(self, work, measure):
        self.asked.append(work)
        repeats = int(work.split("layer, ")[1].split(" times")[0])
        return Timed(1e-2 * repeats, 0.25) if repeats <= self.most else None


def test_a_device_with_little_room_is_measured_by_fewer_layers():
    layer = layer_of(Q4)
    own = sum(product.nbytes for group in layer for product in group)
    sizes = DecoderSizes({Q4}, 0, 0, [layer], token_bytes=32 * own)
    roomy, small, none = (
        device_speed.row_seconds(Room(most), sizes, 1e-4) for most in (1000, 8, 0)
    )
    assert small == roomy
    seconds, busy = roomy
    whole = sum(seconds[product] for group in layer for product in group)
    assert whole == pytest.approx(1e-2 - 5e-4)  # five operations stand between the products
    assert busy == 0.25
    assert none == ({}, 0.0)


@pytest.mark.parametrize("kind", [PLAIN, WeightFormat(16), Q4, WeightFormat(8, 32)])
def test_each_matrix_of_a_probe_has_numbers_of_its_own(kind):
    graph = probe_model(kind, 1024, 3, 1).ir.graph
    name = "q" if kind.block else "w"
    matrices = [graph.initializers[f"{name}{number}"].const_value.numpy() for number in range(3)]
    rows = np.concatenate([matrix.reshape(len(matrix), -1) for matrix in matrices])
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_formats_that_chains_tell_need_no_probe_of_their_own():
    layer = layer_of(Q4)
    products = [product for group in layer for product in group]
    rows = {product: 1e-6 * product.nbytes for product in products}
    sizes = DecoderSizes({Q4}, 0, 0, [layer], chained={Q4})
    assert sizes.read_in_chains(Q4, rows) == pytest.approx(1e6)
    assert sizes._replace(chained=()).read_in_chains(Q4, rows) is None
    assert sizes.read_in_chains(Q4, dict.fromkeys(products[:1], 1.0)) is None


@pytest.mark.parametrize(("others", "expected"), [(0, {Q4}), (100, set())])
def test_formats_that_other_operations_read_are_not_told_by_chains(others, expected):
    product = Product(Q4, 64, 64)
    matrices = {(product, 1): EqualProducts(3, 3 * product.nbytes)}
    work = TokenWork({Q4: 3 * product.nbytes + others, PLAIN: 5}, matrices=matrices)
    assert work.formats_in_matrices == expected
