"""Decoders over several devices: memory, balance, pins, locks, and compiles that do as planned."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from random_decoders import SIZES, decoder

import partita
from partita.cli.main import main
from partita.contract.query import ReasonCode
from partita.errors import CompileError, ContextLengthError, InfeasiblePlanError, PlanError
from partita_hetero.cost import attention_probe, product_probe
from partita_hetero.cost import device_speed as probes
from partita_hetero.cost.attention_probe import AttentionShape, AttentionSpeed, speed_of_attention
from partita_hetero.cost.database import Database
from partita_hetero.cost.machine_load import MachineLoad
from partita_hetero.cost.token_work import PLAIN, TokenWork, WeightFormat
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.placement import lock_file
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.properties import HeteroProperties
from partita_hetero.tuning.decoders import decoder_plan
from partita_hetero.tuning.decoders.decoder_chain import DecoderDevice
from partita_hetero.tuning.decoders.planned_decoder import layer_range
from tests.gguf_files import decoder_metadata, decoder_tensors, write_gguf

from ..fakes import FakeDevice, core_with
from ..graphs import CHAIN
from ..paced import PacedTwins
from ..virtual_time import install
from .planned_decoders import (
    CONTEXT,
    FAST,
    LAUNCH,
    Q4,
    SLOW,
    homes,
    planned,
    share,
    told_speeds,
)

TINY = SIZES["tiny"]
NORM_BYTES = 2 * TINY.hidden * 4
CACHE_BYTES = 2 * TINY.kv_heads * CONTEXT * TINY.head_size * 4
PRODUCTS = TINY.hidden * (2 * 64 + 2 * 32 + 3 * TINY.intermediate)
LAYER_BYTES = PRODUCTS * 5 // 8 + NORM_BYTES + CACHE_BYTES


@pytest.fixture
def core(monkeypatch, tmp_path):
    """Devices A and B (fast, with memories of their own) and C (slow, in host memory)."""
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(decoder_plan, "describe_devices", told_speeds)
    return core_with(
        FakeDevice("A", memory="a", kind="gpu"),
        FakeDevice("B", memory="b", kind="gpu"),
        FakeDevice("C", kind="cpu"),
    )


def limit_for(core, model, layers):
    """A limit that has room for so many layers, and not for one more."""
    free = share(planned(core, model).plan, "A")
    return free.workspace_bytes + layers * LAYER_BYTES + 1000


def test_a_limit_counts_weights_cache_and_workspace(core):
    model = decoder("tiny", "q4")
    limit = limit_for(core, model, 2)
    plan = planned(core, model, HETERO_MEMORY_LIMITS={"A": limit}).plan
    fast, slow = share(plan, "A"), share(plan, "C")
    assert len([name for name in fast.layers if name.startswith("layer")]) == 2
    assert fast.layers == ("layer 0", "layer 1")
    first_norm = NORM_BYTES // 2
    assert fast.weight_bytes == 2 * (LAYER_BYTES - CACHE_BYTES) + first_norm
    assert fast.cache_bytes == 2 * CACHE_BYTES
    assert fast.total_bytes <= limit
    assert slow.cache_bytes == 2 * CACHE_BYTES
    assert plan.gap == 0


def test_a_longer_context_leaves_room_for_fewer_layers(core):
    model = decoder("tiny", "q4")
    limit = limit_for(core, model, 3)
    short = planned(core, model, HETERO_MEMORY_LIMITS={"A": limit}).plan
    long = planned(core, model, context=4 * CONTEXT, HETERO_MEMORY_LIMITS={"A": limit}).plan
    assert len(share(long, "A").layers) < len(share(short, "A").layers)
    assert share(long, "A").total_bytes <= limit
    assert long.decode < short.decode


def test_without_limits_the_fast_device_has_everything(core):
    plan = planned(core, decoder("tiny", "q4")).plan
    assert set(homes(plan).values()) == {"A"}
    rivals = {one.name: one.decode for one in plan.others}
    assert rivals["only A"] == plan.decode
    assert rivals["only C"] < plan.decode


def test_tokens_a_second_are_those_of_the_bytes(core):
    plan = planned(core, decoder("tiny", "q4"), "C").plan
    products = 4 * PRODUCTS + TINY.hidden * TINY.vocabulary
    rows = TINY.hidden * 5 / 8
    norms = 4 * NORM_BYTES + TINY.hidden * 4
    nbytes = products * 5 / 8 + rows + norms + 4 * CACHE_BYTES
    ops = len(decoder("tiny", "q4").ops)
    last = 8  # the index of the last position
    seconds = (nbytes + last) / 1e10 + ops * 1e-6 + LAUNCH
    assert plan.decode == pytest.approx(1 / seconds, rel=1e-3)


def test_two_equal_devices_are_balanced_for_a_pipeline_of_requests(core):
    properties = {"PERFORMANCE_HINT": "THROUGHPUT"}
    plan = planned(core, decoder("tiny", "q4"), "A,B", **properties).plan
    layers = [sum(n.startswith("layer") for n in one.layers) for one in plan.devices]
    assert layers == [2, 2]
    assert plan.gap == 0
    alone = planned(core, decoder("tiny", "q4"), "A", **properties).plan
    assert plan.decode > 1.3 * alone.decode


@pytest.fixture
def twins(core):
    """Devices T.0 and T.1 of one plugin beside the others."""
    members = (FakeDevice("T", memory=memory, kind="gpu") for memory in ("t", "u"))
    core.register_plugin(PacedTwins("T", *members))
    return core


MANY = {"PERFORMANCE_HINT": "THROUGHPUT"}


def test_two_devices_that_compute_alike_have_the_whole_decoder_each(twins):
    model = decoder("tiny", "q4")
    plan = planned(twins, model, "T.0,T.1", **MANY).plan
    alone = planned(twins, model, "T.0", **MANY).plan
    assert plan.replicas == ["T.0", "T.1"]
    assert plan.decode == pytest.approx(2 * alone.decode)
    assert plan.prefill == pytest.approx(2 * alone.prefill)
    assert plan.bandwidth_decode == pytest.approx(2 * alone.bandwidth_decode)
    assert plan.request_us == pytest.approx(alone.request_us / 2)
    assert set(homes(plan).values()) == {"T.0 or T.1"}
    assert {layer.reason.code for layer in plan.layers} == {ReasonCode.REPLICATED}
    for name in ("T.0", "T.1"):
        told = share(plan, name)
        assert told.layers == share(alone, "T.0").layers
        assert told.total_bytes == share(alone, "T.0").total_bytes
    assert plan.line().startswith("whole on each of T.0, T.1: T.0 embedding")


def test_replicas_need_room_on_each_device(twins):
    model = decoder("tiny", "q4")
    needed = share(planned(twins, model, "T.0", **MANY).plan, "T.0").total_bytes
    for limit, replicas in ((needed, ["T.0", "T.1"]), (needed - 1, ())):
        limits = {"HETERO_MEMORY_LIMITS": {"T.1": limit}}
        plan = planned(twins, model, "T.0,T.1", **limits, **MANY).plan
        assert list(plan.replicas) == list(replicas)


@pytest.mark.parametrize(
    ("priorities", "properties"),
    [("T.0,T.1", {}), ("A,B", MANY), ("T.0,T.1", {**MANY, "HETERO_PINS": "re:layers.0=T.1"})],
)
def test_one_request_other_plugins_and_pins_have_no_replicas(twins, priorities, properties):
    assert not planned(twins, decoder("tiny", "q4"), priorities, **properties).plan.replicas


def test_a_compile_has_the_replicas_and_so_has_a_lock(twins, tmp_path):
    model = decoder("tiny", "f32", context=CONTEXT)
    both, settings = "HETERO:T.0,T.1", {"HETERO_CONTEXT": CONTEXT, **MANY}
    compiled = twins.compile_model(model, both, settings)
    explained = compiled.explain()
    assert explained.decision.chosen == "replicas on T.0, T.1"
    assert explained.replicas == pytest.approx({"T.0": 0.5, "T.1": 0.5})
    assert {op.where for op in explained.ops if op.subgraph} == {"T.0 or T.1"}
    assert len(explained.subgraph_devices) == 1
    path = tmp_path / "plan.toml"
    found = planned(twins, model, "T.0,T.1", **MANY)
    found.lock(model, {}).save(path)
    locked = twins.compile_model(model, both, {"HETERO_PLACEMENT_LOCK": str(path)}).explain()
    assert locked.replicas == explained.replicas


def test_one_request_stays_on_one_of_two_equal_devices(core):
    plan = planned(core, decoder("tiny", "q4"), "A,B").plan
    assert len(set(homes(plan).values())) == 1


def test_experts_are_pinned_apart_from_their_layers(core):
    model = decoder("tiny-mixture", "q4")
    found = planned(core, model, HETERO_PINS="re:experts=C")
    for layer in found.plan.layers:
        assert layer.device == "A"
        assert layer.experts == ("C" if layer.layer.startswith("layer") else "")
    ops = model.ops
    for op, (device, reason) in found.device_of.items():
        pinned = "experts" in ops[op].name
        assert device == ("C" if pinned else "A")
        assert not pinned or reason.code == ReasonCode.PINNED


def test_a_device_that_has_experts_alone_is_named_with_them(core):
    plan = planned(core, decoder("tiny-mixture", "q4"), HETERO_PINS="re:experts=C").plan
    assert share(plan, "A").has == "embedding, layers 0-3, head"
    assert share(plan, "C").has == "parts of layers 0-3"
    assert ", C parts of layers 0-3 (" in plan.line()
    assert share(planned(core, decoder("tiny", "q4")).plan, "C").has == ""


def test_bandwidth_is_that_of_the_device_that_has_the_experts(core):
    model = decoder("tiny-mixture", "q4")
    fast = planned(core, model).plan
    slow = planned(core, model, HETERO_PINS="re:experts=C").plan
    used = 4 * 2 * 2 * TINY.hidden * TINY.intermediate * 4  # two experts in each of four layers
    more = 1 / slow.bandwidth_decode - 1 / fast.bandwidth_decode
    assert more == pytest.approx(used / 1e10 - used / 1e12, rel=0.05)


def test_experts_leave_first_where_memory_is_short(core):
    model = decoder("tiny-mixture", "q4")
    free = share(planned(core, model).plan, "A")
    experts = 4 * 4 * 2 * TINY.hidden * TINY.intermediate * 4
    plan = planned(core, model, HETERO_MEMORY_LIMITS={"A": free.total_bytes - experts + 1000}).plan
    assert all(layer.device == "A" for layer in plan.layers if layer.layer.startswith("layer"))
    assert {layer.experts for layer in plan.layers if layer.layer.startswith("layer")} == {"C"}


def test_a_pin_on_a_device_that_refuses_is_an_error(core):
    core.register_plugin(FakeDevice("D", refuses=["GroupQueryAttention"]))
    with pytest.raises(InfeasiblePlanError, match=r"attn=D.*cannot be kept.*GroupQuery"):
        planned(core, decoder("tiny", "q4"), "A,D", HETERO_PINS="re:attn=D")


def test_layers_go_to_devices_that_take_all_of_them(core):
    core.register_plugin(FakeDevice("D", refuses=["GroupQueryAttention"]))
    plan = planned(core, decoder("tiny", "q4"), "D,C").plan
    for layer in plan.layers:
        if layer.layer.startswith("layer"):
            assert layer.device == "C"
            assert "not D" in str(layer.reason)
            assert "GroupQueryAttention" in str(layer.reason)
    with pytest.raises(PlanError, match=r"takes layer 0 as a whole: D: .*GroupQ"):
        planned(core, decoder("tiny", "q4"), "D")


def test_what_does_not_fit_says_by_how_much_and_what_would(core):
    model = decoder("tiny", "q4")
    one = share(planned(core, model, context=CONTEXT).plan, "A")
    limits = {"A": one.total_bytes // 2, "C": one.total_bytes}
    with pytest.raises(InfeasiblePlanError) as error:
        planned(core, model, context=100 * CONTEXT, HETERO_MEMORY_LIMITS=limits)
    said = str(error.value)
    assert "a cache for 6400 tokens" in said
    assert re.search(r"[\d.]+ [KM]iB are lacking", said)
    fits = int(re.search(r"A context of (\d+) tokens would fit", said)[1])
    assert planned(core, model, context=fits, HETERO_MEMORY_LIMITS=limits).plan.gap < 1
    with pytest.raises(InfeasiblePlanError):
        planned(core, model, context=fits + max(2, fits // 30), HETERO_MEMORY_LIMITS=limits)


def test_where_no_context_fits_it_is_said(core):
    limits = {"A": 1000, "C": 1000}
    with pytest.raises(InfeasiblePlanError, match="Not even 16 tokens of context would fit"):
        planned(core, decoder("tiny", "q4"), HETERO_MEMORY_LIMITS=limits)


def test_a_model_without_a_cache_is_no_decoder(core):
    with pytest.raises(PlanError, match="is not a decoder"):
        planned(core, core.read_model(CHAIN))
    compiled = core.compile_model(CHAIN, "HETERO:A,C", {"HETERO_CONTEXT": CONTEXT})
    assert any("is for decoders" in note for note in compiled.explain().notes)


def test_every_reason_tells_what_decides(core):
    model = decoder("tiny", "q4")
    limits = {"A": limit_for(core, model, 2)}
    plan = planned(core, model, HETERO_MEMORY_LIMITS=limits).plan
    for layer in plan.layers:
        if layer.device == "A":
            assert layer.reason.code == ReasonCode.CHEAPER_BY
            assert layer.extra_us > 0
        else:
            assert layer.reason.code == ReasonCode.MEMORY_LIMIT
            assert layer.change == "a higher limit for A"


def test_a_compile_does_as_planned_and_says_why(core):
    model = decoder("tiny", "f32", context=CONTEXT)
    settings = {"HETERO_CONTEXT": CONTEXT, "HETERO_MEMORY_LIMITS": {"A": 600_000}}
    found = planned(core, model, HETERO_MEMORY_LIMITS={"A": 600_000})
    assert {"A", "C"} == set(homes(found.plan).values())
    asked = core.query_model(model, "HETERO:A,C", settings)
    explained = core.compile_model(model, "HETERO:A,C", settings).explain()
    ops = model.ops
    for op, (device, reason) in found.device_of.items():
        assert explained[ops[op].name].device == device
        assert explained[ops[op].name].reason == reason
        assert asked[ops[op].name] == device
    assert len(explained.subgraph_devices) == 1 + sum(
        one.device != two.device
        for one, two in zip(found.plan.layers, found.plan.layers[1:], strict=False)
    )
    assert found.plan.line() in explained.decision.notes


def test_a_compile_refuses_a_request_without_room(core):
    model = decoder("tiny", "f32", context=CONTEXT)
    settings = {"HETERO_CONTEXT": CONTEXT, "HETERO_PROMPT_TOKENS": CONTEXT}
    for ask in (core.query_model, core.compile_model):
        with pytest.raises(ContextLengthError, match="64 tokens and 1 new ones do not fit"):
            ask(model, "HETERO:A,C", settings)


def test_a_lock_brings_the_same_placement_back(core, tmp_path):
    model = decoder("tiny", "f32", context=CONTEXT)
    found = planned(core, model, HETERO_MEMORY_LIMITS={"A": 600_000})
    path = tmp_path / "plan.toml"
    found.lock(model, {"A": "1", "C": ""}).save(path)
    lock = lock_file.load(path)
    assert lock.plan["context"] == CONTEXT
    again = planned(core, model, HETERO_PLACEMENT_LOCK=str(path))
    assert homes(again.plan) == homes(found.plan)
    for settings in ({}, {"HETERO_CONTEXT": CONTEXT}):
        config = {"HETERO_PLACEMENT_LOCK": str(path), **settings}
        explained = core.compile_model(model, "HETERO:A,C", config).explain()
        ops = model.ops
        assert all(
            explained[ops[op].name].device == device for op, (device, _) in found.device_of.items()
        )


@pytest.fixture
def command(core, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("partita_hetero.cli.plan.Core", lambda: core)
    path = tmp_path / "decoder.onnx"
    decoder("tiny", "q4").save(path)

    def run(*argv):
        code = main(["plan", str(path), *map(str, argv)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_command_shows_at_a_terminal_what_takes_the_time(command, monkeypatch):
    monkeypatch.setattr("partita.progress.sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    code, _, err = command("-d", "HETERO:A,C")
    assert code == 0
    assert "measuring A, C and planning" in err


def test_the_command_prints_speeds_memory_and_layers(command, tmp_path):
    lock = tmp_path / "plan.toml"
    limit = ["--memory", "A=200KiB", "--context", CONTEXT]
    code, out, err = command("-d", "HETERO:A,C", *limit, "--lock", lock)
    assert code == 0, err
    for said in ("tokens/s with 64 tokens in the cache", "above the optimum", "only C", "limit"):
        assert said in out
    assert lock_file.load(lock).plan["objective"] == "LATENCY"
    code, out, err = command("-d", "HETERO:A,C", *limit, "--json")
    assert code == 0, err
    data = json.loads(out)
    assert data["devices"][0]["limit_bytes"] == 200 << 10
    assert data["request"] == {"context": 64, "prompt": 512, "new": 128, "longest_run": 128}
    assert {layer["layer"] for layer in data["layers"]} >= {"embedding", "layer 3", "head"}
    code, out, err = command("-d", "HETERO:A,C", *limit, "--explain", "--chunk", 24)
    assert "layer 3" in out
    assert "in chunks of 24" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--memory", "A=1KiB", "--memory", "C=1KiB"], "does not fit with a cache for 4096 tokens"),
        (["--objective", "PARALLEL"], "Layers of a decoder wait for each other"),
        (["--gantt", "plan.html"], "--gantt is for models that are run to be planned"),
        (["--shape", "1x16"], "not for decoders: say with --context how many tokens"),
        (
            ["--context", 64, "--prompt-tokens", 65],
            "A prompt of 65 tokens and 1 new ones do not fit into the context of 64 tokens; sho",
        ),
        (["--context", 64, "--prompt-tokens", 60, "--new-tokens", 5], "at most 4 new tokens fit."),
        (["--context", 64, "--new-tokens", 64], "at most 63 new tokens fit."),
        (["--context", 64, "--property", "HETERO_PROMPT_TOKENS=65"], "A prompt of 65 tokens"),
        (["--property", "HETERO_CONTEXT=64", "--prompt-tokens", 65], "the context of 64 tokens"),
    ],
)
def test_the_command_refuses_what_cannot_be(command, options, said):
    code, _, err = command("-d", "HETERO:A,C", *options)
    assert code != 0
    assert said in err


def test_the_command_says_how_long_a_context_may_be(command, tmp_path):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    request = ("-d", "HETERO:A,C", "--prompt-tokens", 65)
    code, _, err = command(*request, "--context", 64)
    assert code == 1
    assert "the model takes a context of up to 512." in err
    code, out, err = command(*request, "--context", 66, "--new-tokens", 1, "--json")
    assert code == 0, err
    assert json.loads(out)["request"]["prompt"] == 65


# --------------------------------------------------------------------------------- probes


@pytest.fixture
def probe(monkeypatch, tmp_path):
    """Measures a device with probes of few bytes; the device's runs are counted."""
    monkeypatch.setattr(probes, "READ_BYTES", (1 << 16, 1 << 17))
    monkeypatch.setattr(probes, "SIDES", (32, 64))
    monkeypatch.setattr(probes, "MANY_SIDE", 64)
    monkeypatch.setattr(probes, "MANY_ROWS", 4)

    def measure(device, formats=(), nbytes=1000, side=64):
        devices = DeviceList(
            core_with(device).device_api,
            "HETERO",
            HeteroProperties(MULTI_DEVICE_PRIORITIES=device.device_name),
        )
        with Database(tmp_path / "costs.sqlite3") as database:
            name = device.device_name
            probed = probes.ProbedDevice(devices, name, "key", database, MachineLoad())
            return probes.device_speed(probed, probes.DecoderSizes(set(formats), nbytes, side))

    return measure


def test_a_probe_measures_once_and_the_database_knows_then(probe):
    device = FakeDevice("F")
    speed = probe(device, [WeightFormat(16)])
    assert set(speed.read) == {PLAIN, WeightFormat(16)}
    assert all(rate > 0 for rate in (*speed.read.values(), *speed.multiply.values()))
    runs = device.runs
    assert runs > 0
    again = FakeDevice("F")
    assert probe(again, [WeightFormat(16)]) == speed
    assert again.runs == 0


def test_a_slower_device_reads_fewer_bytes_a_second(probe, monkeypatch):
    install(monkeypatch)
    # Runs take a millisecond, whatever they do: 64 KiB in each.
    rate = probe(FakeDevice("F", delay_s=0.001)).read[PLAIN]
    assert rate == pytest.approx((1 << 16) / 0.001, rel=0.01)


@pytest.mark.parametrize(("delay", "further"), [(1e-3, probes.MANY_PRODUCTS), (1.0, 1)])
def test_a_slow_device_multiplies_one_matrix_of_each_further_format(
    probe, monkeypatch, delay, further
):
    install(monkeypatch)
    device = FakeDevice("F", delay_s=delay)
    probe(device, [Q4, WeightFormat(8, 32)])
    many = [model for model in device.compiled if model.inputs[0].shape[0] == probes.MANY_ROWS]
    assert [len(model.ops) for model in many] == [probes.MANY_PRODUCTS, further, further]


def test_a_larger_model_is_told_by_a_larger_probe(probe):
    device = FakeDevice("F")
    probe(device)
    runs = device.runs
    probe(device, nbytes=1 << 16)
    assert device.runs == runs
    probe(device, nbytes=1 << 30)
    assert device.runs > runs
    matrices = [sum(op.op_type == "MatMul" for op in model.ops) for model in device.compiled]
    assert matrices[-1] == (1 << 17) // (64 * 64 * 4)


def test_a_probe_has_matrices_next_to_those_of_the_model(probe):
    for side, expected in ((40, 32), (50, 64)):  # each is measured on its own
        device = FakeDevice("F")
        probe(device, nbytes=1 << 30, side=side)
        counts = [sum(op.op_type == "MatMul" for op in model.ops) for model in device.compiled]
        assert max(counts) == (1 << 17) // (expected * expected * 4)


@pytest.mark.parametrize(
    "kind", [PLAIN, WeightFormat(16), Q4, WeightFormat(4, 32, True), WeightFormat(8, 32)]
)
def test_numbers_neither_grow_nor_vanish_in_a_probe(kind):
    # Infinities, and numbers next to zero, take other ways through kernels than those of models.
    model = product_probe.probe_model(kind, 256, 48, 2)
    compiled = partita.Core().compile_model(model, "CPU")
    found = compiled({"x": np.full((2, 256), 0.5, np.float32)})[0]
    assert 0.01 < np.abs(found).mean() < 10


def test_a_format_that_a_device_refuses_is_left_out(probe):
    speed = probe(FakeDevice("F", refuses=["MatMulNBits"]), [Q4])
    assert set(speed.read) == {PLAIN}


def test_a_device_without_products_cannot_be_measured(probe):
    with pytest.raises(PlanError, match="'F' cannot be measured: it runs no MatMul"):
        probe(FakeDevice("F", refuses=["MatMul"]))


class Small(FakeDevice):
    """Has room for weights of so many bytes: what needs more is refused, or fails to compile."""

    def __init__(self, room, knows=True, rows=1000):
        super().__init__("F")
        self.room, self.knows, self.rows = room, knows, rows

    def query_model(self, model, properties):
        why = partita.Reason(partita.ReasonCode.MEMORY_LIMIT, f"takes {self.room} bytes")
        lacking = (self.knows and self.need(model) > self.room) or (
            model.inputs[0].shape[0] > self.rows
        )
        return partita.QueryResult.of("F", {op.name: why if lacking else None for op in model.ops})

    def compile_model(self, model, properties):
        if self.need(model) > self.room:
            raise CompileError("out of memory")
        return super().compile_model(model, properties)

    @staticmethod
    def need(model):
        return sum(weight.const_value.nbytes for weight in model.ir.graph.initializers.values())


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("matrices", [1, 5])
def test_a_device_with_little_room_is_measured_by_less(probe, monkeypatch, knows, matrices):
    monkeypatch.setattr(probes, "TINY_SIDE", 16)
    speed = probe(device := Small(matrices * 64 * 64 * 4, knows), [Q4], nbytes=1 << 30)
    assert set(speed.read) == {PLAIN, Q4}
    assert all(0 < rate < np.inf for rate in (*speed.read.values(), *speed.multiply.values()))
    fitting = [device.need(model) for model in device.compiled]
    assert max(fitting) >= device.room // 4


def test_a_device_that_takes_one_row_cannot_be_measured(probe):
    with pytest.raises(PlanError, match="'F' cannot be measured: it runs no MatMul of 4 rows"):
        probe(Small(1 << 30, rows=1))


ATTENTION, CACHES = AttentionShape(4, 2, 16, 32), attention_probe.Caches(3, 1024)


def test_attention_is_told_by_probes_of_its_own_sizes(monkeypatch, tmp_path):
    monkeypatch.setattr(probes, "READ_BYTES", (1 << 16,))
    monkeypatch.setattr(probes, "SIDES", (32, 64))
    monkeypatch.setattr(probes, "MANY_SIDE", 64)
    core = partita.Core()
    properties = HeteroProperties(MULTI_DEVICE_PRIORITIES="CPU")
    devices = DeviceList(core.device_api, "HETERO", properties)
    with Database(tmp_path / "costs.sqlite3") as database:
        probed = probes.ProbedDevice(devices, "CPU", "key", database, MachineLoad())
        sizes = probes.DecoderSizes(set(), 1000, 64, attention=ATTENTION)
        speed = probes.device_speed(probed, sizes)
        assert speed.attention.read > 0
        assert speed.attention.multiply > 0
        assert speed.attention.op_seconds > 0
        assert probes.device_speed(probed, sizes) == speed  # nothing is measured again
        without = sizes._replace(attention=None)
        assert probes.device_speed(probed, without).attention is None


def test_probes_of_attention_compute_attention():
    for probe in attention_probe.PROBES:
        rows, total = CACHES.tokens_of(probe)
        model = attention_probe.attention_model(ATTENTION, probe, CACHES)
        x = np.random.default_rng(1).standard_normal((1, rows, 8 * 16)).astype(np.float32)
        caches = {port.name: np.full(port.shape, 0.1, np.float32) for port in model.inputs[1:]}
        core = partita.Core()
        in_place = core.device_api.compile_model(model, "CPU", {}).in_place_outputs()
        assert sorted(in_place.values()) == list(range(1, len(model.inputs)))
        found = core.compile_model(model, "CPU")({"x": x, **caches})
        values = x[0, :, 6 * 16 :].reshape(rows, 2, 16).astype(np.float64)
        past = np.full((total - rows, 2, 16), np.float32(0.1), np.float64)
        keys = np.concatenate([past, x[0, :, 4 * 16 : 6 * 16].reshape(rows, 2, 16)])
        values = np.concatenate([past, values])
        scores = x[0, -1, :16].astype(np.float64) @ keys[:, 0].T / 4
        shares = np.exp(scores - scores.max())
        expected = shares / shares.sum() @ values[:, 0]
        for number in range(CACHES.layers_of(probe)):
            np.testing.assert_allclose(found[number][0, -1, :16], expected, atol=1e-5)


def test_rates_of_attention_follow_from_the_seconds_of_probes():
    seconds = {"of one": 1.0, "of one behind many": 3.0, "of many": 5.0, "of one alone": 0.1}
    layers, places = caches = attention_probe.Caches(19, 2048)
    speed = speed_of_attention(ATTENTION, seconds, caches)
    rows, few = attention_probe.ROWS, attention_probe.ROWS_LAYERS
    assert speed.read == layers * 2 * 2 * 16 * 4 * (places - 1) / 2
    started = 0.1 + (few - 1) * 0.05
    assert speed.multiply == pytest.approx(few * 2 * 4 * 16 * rows**2 / 2 / (5 - started))
    assert speed.op_seconds == pytest.approx(0.05)


def test_caches_of_probes_are_as_large_as_the_weights_of_the_decoder():
    assert next(ATTENTION.caches(1 << 20, 9000)) == (16, 1024)
    for nbytes in (64 << 20, 512 << 20):
        largest, *smaller = ATTENTION.caches(nbytes, 1 << 20)
        assert largest.layers == 16
        assert smaller[-1] == (16, 1024)
        caches = attention_probe.attention_model(ATTENTION, "of one", largest).inputs[1:]
        assert 0.99 * nbytes <= sum(4 * np.prod(port.shape) for port in caches) <= nbytes


@pytest.mark.parametrize(
    ("context", "caches"), [(900, (64, 1024)), (2047, (64, 2048)), (4096, (32, 4096))]
)
def test_caches_of_probes_are_no_longer_than_that_of_the_decoder(context, caches):
    assert next(ATTENTION.caches(32 * 4096 * 256, context)) == caches


def test_a_device_without_room_for_large_caches_is_measured_by_small_ones(probe_attention):
    assert probe_attention(1 << 30) > probe_attention(5 << 20) >= 1024
    assert probe_attention(0) is None


@pytest.fixture
def probe_attention(monkeypatch, tmp_path):
    """Places of the caches by which a device with so much room is measured."""
    asked = []

    def run(device, model, effort=None):
        places = model.inputs[1].shape[2]
        asked.append(places)
        nbytes = sum(4 * int(np.prod(port.shape)) for port in model.inputs[1:])
        return probes.Timed(1e-3, 0.0) if nbytes <= room[-1] else None

    room = []
    monkeypatch.setattr(probes.ProbedDevice, "run", run)

    def measure(nbytes):
        room.append(nbytes)
        with Database(tmp_path / f"{nbytes}.sqlite3") as database:
            device = probes.ProbedDevice(None, "F", "key", database, MachineLoad())
            speed, _ = probes.attention_speed(device, ATTENTION, 64 << 20, 1 << 20)
        return None if speed is None else asked[-1]

    return measure


def test_attention_counts_by_its_own_speed():
    work = TokenWork({}, {}, cache_bytes=1e6, attention_products=1e6)
    assert FAST.seconds(work) == pytest.approx(1e6 / 1e12)
    slow = replace(FAST, attention=AttentionSpeed(1e9, 1e7))
    assert slow.seconds(work) == pytest.approx(1e6 / 1e7)


def test_bandwidth_alone_allows_no_less_than_is_predicted():
    cache = AttentionSpeed(4e12, 1e15)  # a small one, which lies in a processor's caches
    for speed in (FAST, replace(FAST, attention=cache)):
        work = TokenWork({Q4: 1e6, PLAIN: 1e6}, {}, cache_bytes=1e7)
        assert speed.reading_seconds(work) <= speed.seconds(work)
    assert FAST.reading_seconds(work) == pytest.approx(1.2e-5)
    assert speed.reading_seconds(work) == pytest.approx(2e-6 + 2.5e-6)


def test_the_sizes_of_attention_are_those_of_the_model():
    model = decoder("tiny", "q4")
    shape = AttentionShape.of(model, OpGraph.of(model))
    assert shape == AttentionShape(TINY.heads, TINY.kv_heads, TINY.head_size, 32)


def test_ranges_of_layers_are_short():
    assert layer_range(["layer 3"]) == "layer 3"
    assert layer_range(["head"]) == "head"
    assert layer_range([]) == ""


# ------------------------------------------------------------------------------- on devices


def test_a_decoder_in_two_parts_makes_the_tokens_of_one_device(monkeypatch, tmp_path):
    monkeypatch.setattr(decoder_plan, "describe_devices", told_speeds_of_processors)
    metadata = decoder_metadata(block_count=4)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, metadata, decoder_tensors(metadata, "Q8_0"))
    core = partita.Core()
    core.register_plugin("partita_cpu", "CPU2")
    model = core.read_model(path, decoder=partita.DecoderOptions(context=CONTEXT))
    shapes = {port.name: (1, *port.shape[1:]) for port in model.inputs if port.shape}
    model.reshape(shapes)
    limits = {"CPU2": share(planned(core, model, "CPU2,CPU").plan, "CPU2").total_bytes * 2 // 3}
    settings = {"HETERO_CONTEXT": CONTEXT, "HETERO_MEMORY_LIMITS": limits, "STRICT": True}
    whole = core.compile_model(model, "CPU")
    parts = core.compile_model(model, "HETERO:CPU2,CPU", settings)
    assert set(parts.explain().ops_per_device) == {"CPU2", "CPU"}
    assert greedy(parts, [5, 9, 33], 12) == greedy(whole, [5, 9, 33], 12)


def told_speeds_of_processors(devices, names, decoder):
    limits = devices.memory_limits
    speeds = {"CPU2": FAST, "CPU": SLOW}
    return [DecoderDevice(name, speeds[name], limits.get(name)) for name in names]


def greedy(compiled, prompt, count):
    """The likeliest tokens after a prompt, by a request that keeps the cache."""
    request = compiled.create_infer_request()
    tokens, past = list(prompt), 0
    for _ in range(count):
        ids = tokens[past:]
        feeds = {
            "input_ids": np.array([ids], np.int64),
            "seqlens_k": np.array([len(tokens) - 1], np.int32),
            "total_sequence_length": np.array(len(tokens), np.int32),
        }
        past = len(tokens)
        tokens.append(int(np.argmax(request.infer(feeds)["logits"])))
    return tokens[len(prompt) :]
