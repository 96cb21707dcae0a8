"""Memory limits per device: what has no room goes on, and what blocks a limit is named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita.contract.query import ReasonCode
from partita.errors import InfeasiblePlanError, PropertyError, UnsupportedOpError
from partita.frontends.reader import read_model
from partita_hetero.partition import partitioner
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.placement.by_priority import place
from partita_hetero.placement.memory_limits import MemoryModel, enforce

from ..fakes import FakeDevice, core_with
from ..graphs import devices_of, model_of, node, run

ONE = 100 * 100 * 4  # a matrix of weights
ROW = 100 * 4  # a row of values
ROWS = np.ones((1, 100), np.float32) / 100


def layers(count, shared=()):
    """Products with matrices of 40 kB each; those in ``shared`` use the first one's."""
    weights = [(f"w{i}", np.eye(100, dtype=np.float32)) for i in range(count)]
    nodes = [
        node("MatMul", ["x" if i == 0 else f"v{i - 1}", f"w{0 if i in shared else i}"], f"v{i}")
        for i in range(count)
    ]
    return model_of(nodes, [f"v{count - 1}"], initializers=weights, shape=(1, 100))


def placed(limits, proto=None, devices="HETERO:A,B", **config):
    core = core_with(FakeDevice("A"), FakeDevice("B"))
    config = {"HETERO_MEMORY_LIMITS": limits, **config}
    return run(core, proto or layers(4), devices, config=config, feeds={"x": ROWS})


def test_a_device_keeps_what_fits_and_the_rest_goes_on():
    compiled = placed({"A": 2 * ONE + 2 * ROW})
    assert list(devices_of(compiled).values()) == ["A", "A", "B", "B"]
    why = compiled.explain()["v2"]
    assert (why.reason.code, why.reason.detail) == (ReasonCode.MEMORY_LIMIT, "no room on A")
    assert why.refused["A"].code is ReasonCode.MEMORY_LIMIT
    assert why.refused["A"].detail == (
        "those before it take 78.1 KiB of weights and 800 B of values; the limit is 78.9 KiB"
    )


def test_a_device_is_not_given_more_than_the_memory_that_it_tells_of():
    core = core_with(FakeDevice("A", memory_bytes=2 * ONE + 2 * ROW), FakeDevice("B"))
    compiled = run(core, layers(4), "HETERO:A,B", config={}, feeds={"x": ROWS})
    assert list(devices_of(compiled).values()) == ["A", "A", "B", "B"]
    why = compiled.explain()["v2"]
    assert (why.reason.code, why.reason.detail) == (ReasonCode.MEMORY_LIMIT, "no room on A")
    assert why.refused["A"].detail.endswith("800 B of values; the limit is 78.9 KiB")
    answer = core.query_model(core.read_model(layers(4)), "HETERO:A,B")
    assert list(answer.values()) == ["A", "A", "B", "B"]
    assert str(answer.reasons["v2"]).startswith("FALLBACK: not A: MEMORY_LIMIT: those before it")
    with pytest.raises(UnsupportedOpError, match="A: MEMORY_LIMIT: those before it take"):
        core.compile_model(layers(4), "HETERO:A")


@pytest.mark.parametrize(("limit", "homes"), [(9 * ONE, "AAAA"), (ONE + 2 * ROW, "ABBB")])
def test_a_limit_stands_for_the_memory_that_a_device_tells_of(limit, homes):
    core = core_with(FakeDevice("A", memory_bytes=2 * ONE + 2 * ROW), FakeDevice("B"))
    config = {"HETERO_MEMORY_LIMITS": {"A": limit}}
    compiled = run(core, layers(4), "HETERO:A,B", config=config, feeds={"x": ROWS})
    assert "".join(devices_of(compiled).values()) == homes


def test_memory_that_holds_the_whole_model_is_not_looked_into(monkeypatch):
    core = core_with(FakeDevice("A", memory_bytes=4 * ONE + 5 * ROW), FakeDevice("B"))
    monkeypatch.delattr(MemoryModel, "use")
    compiled = run(core, layers(4), "HETERO:A,B", config={}, feeds={"x": ROWS})
    assert set(devices_of(compiled).values()) == {"A"}


def test_a_query_has_the_answer_of_a_compile():
    core, limits = core_with(FakeDevice("A"), FakeDevice("B")), {"A": 2 * ONE + 2 * ROW}
    model = core.read_model(layers(4))
    model.ops[3].affinity = "A"  # the answer may become affinities, so it is not made of them
    answer = core.query_model(model, "HETERO:A,B", {"HETERO_MEMORY_LIMITS": limits})
    assert list(answer.values()) == ["A", "A", "B", "B"]
    assert str(answer.reasons["v2"]).startswith("FALLBACK: not A: MEMORY_LIMIT: those before it")
    with pytest.raises(UnsupportedOpError, match="B: MEMORY_LIMIT: takes"):
        core.query_model(model, "HETERO:A,B", {"HETERO_MEMORY_LIMITS": {**limits, "B": 10}})


def test_a_query_says_why_what_computes_nothing_went_along():
    nodes = [node("MatMul", ["x", "w"], "a"), node("Identity", ["a"], "b"), node("Exp", ["b"], "c")]
    proto = model_of(
        nodes, ["c"], initializers=[("w", np.eye(100, dtype=np.float32))], shape=(1, 100)
    )
    core, limits = core_with(FakeDevice("A"), FakeDevice("B")), {"A": 100}
    answer = core.query_model(
        core.read_model(proto), "HETERO:A,B", {"HETERO_MEMORY_LIMITS": limits}
    )
    assert list(answer.values()) == ["B", "B", "B"]
    assert all(answer.reasons[name].detail for name in answer)


def test_one_byte_less_is_one_operation_less():
    compiled = placed({"A": 2 * ONE + 2 * ROW - 1})
    assert list(devices_of(compiled).values()) == ["A", "B", "B", "B"]


def test_weights_that_are_read_twice_count_once():
    compiled = placed({"A": 2 * ONE + 2 * ROW}, layers(4, shared=(1, 2)))
    assert list(devices_of(compiled).values()) == ["A", "A", "A", "A"]


def test_an_operation_that_never_fits_does_not_take_the_others_along():
    weights = [("small", np.eye(100, dtype=np.float32)), ("large", np.ones((100, 900), np.float32))]
    nodes = [
        node("MatMul", ["x", "small"], "a"),
        node("MatMul", ["a", "large"], "b"),
        node("MatMul", ["x", "small"], "c"),
    ]
    proto = model_of(nodes, ["b", "c"], initializers=weights, shape=(1, 100))
    compiled = placed({"A": ONE + 10 * ROW}, proto)
    assert devices_of(compiled) == {"a": "A", "b": "B", "c": "A"}
    assert "alone; the limit is" in compiled.explain()["b"].refused["A"].detail


def test_limits_as_text_and_by_any_name():
    compiled = placed("A=82kB,B=1GiB")
    assert list(devices_of(compiled).values()) == ["A", "A", "B", "B"]
    with pytest.raises(PropertyError, match=r"MEMORY_LIMITS.*could not parse value and unit"):
        placed({"A": "much"})
    with pytest.raises(PropertyError, match="HETERO_MEMORY_LIMITS names 'NPU': There is no device"):
        placed({"NPU": "1GiB"})


def test_limits_that_nothing_keeps_name_what_blocks_them():
    with pytest.raises(UnsupportedOpError) as caught:
        placed({"A": 2 * ONE, "B": 2 * ONE})
    message = str(caught.value)
    assert "No device takes 2 of 4 operations" in message
    assert "'v2' (MatMul): A: MEMORY_LIMIT: those before it take" in message
    assert "B: MEMORY_LIMIT: " in message


def test_what_is_pinned_stays_or_is_named():
    compiled = placed({"A": 2 * ONE}, HETERO_PINS=["v3=A"])
    assert list(devices_of(compiled).values()) == ["B", "B", "B", "A"]
    with pytest.raises(InfeasiblePlanError) as caught:
        placed({"A": 2 * ONE}, HETERO_PINS=["type:MatMul=A"])
    assert str(caught.value) == (
        "What is pinned to 'A' needs 156.2 KiB of weights and 800 B of values, more than its limit "
        "of 78.1 KiB; most of all 'v0', which takes 39.8 KiB. Raise the limit or drop the pin."
    )


def test_values_of_unknown_size_are_told(caplog):
    proto = model_of([node("Exp", ["x"], "y")], ["y"], shape=("n", 3))
    core = core_with(FakeDevice("A"), FakeDevice("B"))
    compiled = core.compile_model(proto, "HETERO:A,B", {"HETERO_MEMORY_LIMITS": {"A": "1kB"}})
    note = (
        "Memory limits count 1 values by their known dimensions alone, since their shapes are not "
        "fixed, 'y' first; a run may need more."
    )
    assert list(compiled.explain().notes) == [note]
    assert note in caplog.text
    assert not core.compile_model(proto, "HETERO:A,B").explain().notes
    strict = {"HETERO_MEMORY_LIMITS": {"A": "1kB"}, "STRICT": True}
    with pytest.raises(InfeasiblePlanError) as caught:
        core.compile_model(proto, "HETERO:A,B", strict)
    assert str(caught.value) == (
        f"{note} Fix the shapes of the inputs with model.reshape(...), or set STRICT=NO."
    )
    strict["HETERO_MEMORY_LIMITS"] = {}
    assert set(devices_of(core.compile_model(proto, "HETERO:A,B", strict)).values()) == {"A"}


def test_of_unknown_sizes_the_known_dimensions_count():
    core = core_with(FakeDevice("A"), FakeDevice("B"))
    wide = model_of([node("Exp", ["x"], "y")], ["y"], shape=("n", 1000))
    for limit, device in ((8000, "A"), (7999, "B")):
        compiled = core.compile_model(wide, "HETERO:A,B", {"HETERO_MEMORY_LIMITS": {"A": limit}})
        assert devices_of(compiled) == {"y": device}


MADE = 100 * 1000 * 4
"""Bytes of a matrix of float32 that an operation on constants makes."""


@pytest.mark.parametrize("made_by", ["ConstantOfShape", "Cast"])
def test_what_is_made_of_constants_counts_as_weights(made_by):
    given = {
        "ConstantOfShape": np.array([100, 1000]),
        "Cast": np.ones((100, 1000), np.float16),
    }[made_by]
    nodes = [
        node(made_by, ["w"], "made", **({"to": 1} if made_by == "Cast" else {})),
        node("MatMul", ["x", "made"], "y"),
    ]
    proto = model_of(nodes, ["y"], initializers=[("w", given)], shape=(1, 100))
    fits = MADE + ROW + 4000  # x and y
    for limit, device in ((fits, "A"), (fits - 1, "B")):
        compiled = placed({"A": limit}, proto)
        assert devices_of(compiled)["y"] == device
    assert "alone; the limit is" in compiled.explain()["y"].refused["A"].detail


def test_a_constant_that_is_an_output_counts_once():
    nodes = [node("ConstantOfShape", ["w"], "made"), node("MatMul", ["x", "made"], "y")]
    proto = model_of(
        nodes, ["y", "made"], initializers=[("w", np.array([100, 1000]))], shape=(1, 100)
    )
    assert set(devices_of(placed({"A": MADE + ROW + 4000 + 16}, proto)).values()) == {"A"}


def test_plans_count_what_is_made_of_constants(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    nodes = [node("ConstantOfShape", ["w"], "made"), node("MatMul", ["x", "made"], "y")]
    proto = model_of(nodes, ["y"], initializers=[("w", np.array([100, 1000]))], shape=(1, 100))
    compiled = placed({"A": MADE}, proto, HETERO_SCHEDULE="COST")
    assert devices_of(compiled)["y"] == "B"


def test_limits_hold_where_times_decide_and_soft_pins_give_way(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    compiled = placed(
        {"A": 2 * ONE + 2 * ROW}, HETERO_SCHEDULE="COST", HETERO_PINS=["type:MatMul=A?"]
    )
    homes = list(devices_of(compiled).values())
    assert 0 < homes.count("A") <= 2


@st.composite
def cases(draw):
    """Random models of additions, with limits for two of three devices."""
    count = draw(st.integers(1, 12))
    sources = [
        sorted({draw(st.integers(-1, i - 1)), draw(st.integers(-1, i - 1))}) for i in range(count)
    ]
    weights = [draw(st.integers(0, 3)) for _ in range(count)]
    nodes = []
    for i, (reads, weight) in enumerate(zip(sources, weights, strict=True)):
        names = ["x" if r < 0 else f"v{r}" for r in reads]
        nodes.append(node("Sum", [*names, *([f"w{weight}"] if weight else [])], f"v{i}"))
    arrays = [(f"w{k}", np.zeros((2, 3 * 10**k), np.float32)[:, :3].copy()) for k in range(1, 4)]
    proto = model_of(nodes, [f"v{count - 1}", "v0"][: 1 + (count > 1)], initializers=arrays)
    limits = {name: draw(st.integers(0, 500)) for name in ("A", "B")}
    return proto, limits, draw(st.sampled_from(["LATENCY", "PARALLEL"]))


def held(op_graph, sizes, weights, placement, device):
    """Counts by hand: every submodel in turn, an operation at a time; what is live, and weights."""
    parts = partitioner.partition(op_graph.preds, op_graph.succs, placement.device)
    order = [(part.device, op) for part in parts for op in part.ops]
    step_of = {op: step for step, (_, op) in enumerate(order)}
    most = 0
    for step, _ in enumerate(order):
        live = 0
        for name, size in sizes.items():
            source = op_graph.producer.get(name)
            uses = [step_of[op] for op in step_of if name in op_graph.reads[op]]
            here = [s for s in uses if order[s][0] == device]
            made = source in step_of and order[step_of[source]][0] == device
            if not here and not made:
                continue
            start = step_of[source] if made else min(here)
            end = max([start, *here])
            live += size * (start <= step <= end)
        most = max(most, live)
    mine = [op for op, place in enumerate(placement.device) if place == device]
    return most + sum({k: v for op in mine for k, v in weights[op].items()}.values())


@examples(60)
@given(cases())
def test_random_placements_keep_their_limits(case):
    proto, limits, objective = case
    model = read_model(proto)
    op_graph = OpGraph.of(model)
    sizes = dict.fromkeys(["x", *op_graph.producer], 24)
    counter = MemoryModel(op_graph, sizes, lambda device: device == "B", objective)
    everything = core_with(FakeDevice("A")).query_model(model, "A")

    def placed_under(excluded):
        return place(op_graph, list("ABC"), {}, lambda d: everything, bool, excluded, False)

    found = enforce(counter, limits, lambda op, device: False, op_graph.names(), placed_under)
    weights = counter.weights
    for device, limit in limits.items():
        mine = [op for op, home in enumerate(found.device) if home == device]
        if mine:
            assert counter.use(device, found.device).total <= limit
            if objective == "LATENCY":
                assert held(op_graph, sizes, weights, found, device) <= limit
