"""Decoders whose embedding and head share a table: what a plan counts, and what limits decide."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.cli.main import main
from partita_hetero.cost.device_speed import DecoderSizes
from partita_hetero.cost.weight_readers import WeightReaders
from partita_hetero.partition.decoder_layers import decoder_layers
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.planner.chain.problem import excess, use_of
from partita_hetero.tuning.decoders import decoder_plan
from partita_hetero.tuning.decoders.decoder_chain import ChainBuilder, TokenRequest
from partita_hetero.tuning.decoders.decoder_reasons import whole_request
from tests.gguf_files import decoder_metadata, decoder_tensors, write_gguf

from ..fakes import FakeDevice, core_with
from .planned_decoders import CONTEXT, planned, share, told_speeds

VOCABULARY = 512


@pytest.fixture
def core(monkeypatch, tmp_path):
    """Devices A (fast, with a memory of its own), C and D (slow, in host memory)."""
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(decoder_plan, "describe_devices", told_speeds)
    return core_with(
        FakeDevice("A", memory="a", kind="gpu"),
        FakeDevice("C", kind="cpu"),
        FakeDevice("D", kind="cpu"),
    )


@pytest.fixture
def read(core, tmp_path):
    """Reads a decoder of three layers, tied or not, with weights of a kind."""

    def read(kind="Q8_0", tied=True):
        metadata = decoder_metadata(block_count=3)
        tensors = decoder_tensors(metadata, kind, vocabulary=VOCABULARY, tied=tied)
        path = tmp_path / f"{kind}-{tied}.gguf"
        write_gguf(path, metadata, tensors)
        return core.read_model(path, decoder=partita.DecoderOptions(context=CONTEXT))

    return read


HIDDEN = decoder_metadata()["llama.embedding_length"]
TABLE = {"Q8_0": VOCABULARY * HIDDEN * 9 // 8, "F16": VOCABULARY * HIDDEN * 2}


@pytest.mark.parametrize("kind", TABLE)
def test_on_one_device_a_tied_table_counts_once(core, read, kind):
    tied, apart = (planned(core, read(kind, one), "C").plan for one in (True, False))
    assert share(apart, "C").total_bytes - share(tied, "C").total_bytes == TABLE[kind]
    assert [(one.layers, one.nbytes, one.devices) for one in tied.tied] == [
        (["embedding", "head"], TABLE[kind], ["C"])
    ]
    assert not apart.tied


def test_in_a_memory_of_its_own_a_table_in_two_forms_counts_twice(core, read):
    for kind, devices in (("Q8_0", ["A"]), ("F16", ["A", "A"])):
        plan = planned(core, read(kind), "A").plan
        assert [one.devices for one in plan.tied] == [devices]
        apart = planned(core, read(kind, tied=False), "A").plan
        once = TABLE[kind] if len(devices) == 1 else 0
        assert share(apart, "A").total_bytes - share(plan, "A").total_bytes == once


def test_a_limit_that_holds_the_table_once_is_enough(core, read):
    model = read()
    needed = share(planned(core, model, "C").plan, "C").total_bytes
    plan = planned(core, model, "C", HETERO_MEMORY_LIMITS={"C": needed}).plan
    assert share(plan, "C").total_bytes == needed
    with pytest.raises(partita.PartitaError, match="does not fit"):
        planned(core, model, "C", HETERO_MEMORY_LIMITS={"C": needed - 1})


def test_where_embedding_and_head_are_apart_both_devices_hold_the_table(core, read):
    plan = planned(core, read(), "A,C", HETERO_PINS="token_embd=C").plan
    assert [one.devices for one in plan.tied] == [["C", "A"]]
    text = "embedding and head share 144.0 KiB of weights, held once on C and once on A"
    assert [str(one) for one in plan.tied] == [text]


def test_a_device_of_its_own_memory_holds_it_in_each_of_two_submodels(core, read):
    pins = ["re:blk.*=C", "token_embd=A", "logits=A"]
    plan = planned(core, read(), "A,C", HETERO_PINS=pins).plan
    assert [layer.device for layer in plan.layers] == ["A", "C", "C", "C", "A"]
    assert [one.devices for one in plan.tied] == [["A", "A"]]
    assert str(plan.tied[0]).endswith("held twice on A")
    swapped = ["re:blk.*=A", "token_embd=C", "logits=C"]
    plan = planned(core, read(), "A,C", HETERO_PINS=swapped).plan
    assert [one.devices for one in plan.tied] == [["C"]]


@pytest.mark.parametrize("kind", TABLE)
@pytest.mark.parametrize("share_of_all", [0.35, 0.5, 0.65, 0.8, 0.9])
def test_a_plan_is_the_best_of_all_placements_that_keep_the_limits(core, read, kind, share_of_all):
    model = read(kind)
    limit = int(share_of_all * share(planned(core, model, "A").plan, "A").total_bytes)
    limits = {"A": limit, "C": share(planned(core, model, "C").plan, "C").total_bytes}
    found = planned(core, model, "A,C,D", HETERO_MEMORY_LIMITS=limits).plan
    placer = decoder_plan.Placer(
        model, decoder_plan.DeviceList(core.device_api, "HETERO", properties("A,C,D", limits))
    )
    devices = told_speeds(placer.devices, ["A", "C", "D"], DecoderSizes(set(), 0, 0))
    request = TokenRequest(CONTEXT, longest_run=found.request.longest_run)
    chain = whole_request(ChainBuilder(placer, devices, request, {}).build(), request)
    uses = [use_of(chain, choice) for choice in itertools.product(range(3), repeat=5)]
    fitting = [use.value("LATENCY") for use in uses if not excess(chain, use)]
    assert found.request_us == pytest.approx(min(fitting))
    assert found.gap == 0
    for one in found.devices:
        assert one.limit_bytes is None or one.total_bytes <= one.limit_bytes


def properties(names, limits):
    return decoder_plan.HeteroProperties(
        MULTI_DEVICE_PRIORITIES=names, HETERO_CONTEXT=CONTEXT, HETERO_MEMORY_LIMITS=limits
    )


def test_the_command_says_what_is_shared(core, read, tmp_path, monkeypatch, capsys):
    read()
    monkeypatch.setattr("partita_hetero.cli.plan.Core", lambda: core)
    command = ["plan", str(tmp_path / "Q8_0-True.gguf"), "-d", "HETERO:A,C", "--context", "64"]
    assert main(command) == 0
    assert (
        "embedding and head share 144.0 KiB of weights, held once on A" in capsys.readouterr().out
    )
    assert main([*command, "--json"]) == 0
    tied = json.loads(capsys.readouterr().out)["tied"]
    assert tied == [{"layers": ["embedding", "head"], "nbytes": TABLE["Q8_0"], "devices": ["A"]}]


def layered(share_matrix):
    """Three layers of one product, all with one matrix or each with its own, behind a cache."""
    rng = np.random.default_rng(0)
    nodes, weights, names = [], [], []
    stream = "x"
    for n in range(3):
        name = "w" if share_matrix else f"w{n}"
        if name not in names:
            names.append(name)
            weights.append(numpy_helper.from_array(rng.random((16, 16), np.float32), name))
        past = f"past_key_values.{n}.key"
        nodes += [
            helper.make_node("MatMul", [stream, name], [f"p{n}"], f"p{n}"),
            helper.make_node("Concat", [past, f"p{n}"], [f"present.{n}.key"], f"c{n}", axis=1),
            helper.make_node("ReduceMean", [f"present.{n}.key"], [f"m{n}"], f"m{n}", axes=[1]),
            helper.make_node("Add", [stream, f"m{n}"], [f"s{n}"], f"s{n}"),
        ]
        stream = f"s{n}"

    def info(name, dims):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    pasts = [info(f"past_key_values.{n}.key", [1, "past", 16]) for n in range(3)]
    presents = [info(f"present.{n}.key", [1, "total", 16]) for n in range(3)]
    graph = helper.make_graph(
        nodes, "g", [info("x", [1, 1, 16]), *pasts], [info(stream, [1, 1, 16]), *presents], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_matrix_of_all_layers_is_held_once_and_read_by_each(core):
    for shared in (False, True):
        model = core.read_model(layered(shared))
        op_graph = OpGraph.of(model)
        layers = decoder_layers(model, op_graph)
        readers = WeightReaders(op_graph, layers)
        stored = readers.stored_bytes(op for layer in layers for op in layer.ops)
        assert stored + readers.shared_bytes == (1 if shared else 3) * 16 * 16 * 4
        products = [op for op, node in enumerate(op_graph.nodes) if node.op_type == "MatMul"]
        assert [readers.read_bytes(op) for op in products] == [16 * 16 * 4] * 3
