"""HETERO_SCHEDULE=COST where input shapes vary, on devices whose speed is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
from models import model_of, node, value

import partita
from partita.errors import BlobError, PropertyError
from partita.storage import exported_model

from ..fakes import core_with, evaluate
from ..paced import PacedDevice
from ..virtual_time import install

TYPES = ["Atan", "Sinh", "Tan", "Asinh"]  # none of these is ever grouped with another one
CHAIN = model_of(
    [node(t, [f"v{i}"], f"v{i + 1}", t.lower()) for i, t in enumerate(TYPES)],
    [value("v0", ["rows", 3])],
    ["v4"],
)
LATENCY, PER_ELEMENT = 1e-3, 1e-5
"""A takes so long for each element, B as long for any tensor: they are equal at 100 elements."""

SMALL, LARGE = "v0=2x3", "v0=1024x3"
ON_A, ON_B = dict.fromkeys(TYPES, "A"), dict.fromkeys(TYPES, "B")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    install(monkeypatch)
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    return tmp_path


def pair(**options):
    return (
        PacedDevice("A", per_element=dict.fromkeys(TYPES, PER_ELEMENT), **options),
        PacedDevice("B", dict.fromkeys(TYPES, LATENCY), **options),
    )


def compile_for(devices, shapes=(), proto=CHAIN, **config):
    config = {"HETERO_SCHEDULE": "COST", "HETERO_SAMPLE_SHAPES": shapes, **config}
    return core_with(*devices).compile_model(proto, "HETERO:A,B", config)


def placed(explanation):
    return {op.op_type: op.device for op in explanation.ops}


def check(compiled, rows):
    x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
    np.testing.assert_allclose(compiled({"v0": x})[0], evaluate(CHAIN, {"v0": x})[0], rtol=1e-5)


@pytest.mark.parametrize(("shapes", "wanted"), [(SMALL, ON_A), (LARGE, ON_B)])
@pytest.mark.parametrize("counts", [False, True])
def test_the_plan_is_for_the_sizes_that_are_named(shapes, wanted, counts):
    compiled = compile_for(pair(counts=counts), shapes)
    why = compiled.explain()
    assert placed(why) == wanted
    assert why.planned_for == shapes
    assert why.near == {}
    assert why.decision.notes == [f"Measured at {shapes}."]
    assert f"planned for inputs near {shapes}" in str(why)
    for rows in (1, 2, 50, 3000):
        check(compiled, rows)


def test_sizes_are_made_up_where_none_are_named():
    (note,) = compile_for(pair()).explain().decision.notes
    assert note == (
        "Measured at v0=1x3, sizes that are assumed: name those of requests with "
        "HETERO_SAMPLE_SHAPES."
    )


def test_each_size_has_a_plan_of_its_own_if_that_is_faster():
    devices = pair()
    compiled = compile_for(devices, f"{SMALL}; {LARGE}", STRICT=True)
    why = compiled.explain()
    assert placed(why) == ON_A
    assert {shapes: placed(one) for shapes, one in why.near.items()} == {LARGE: ON_B}
    assert why.near[LARGE].decision.chosen == "only B"
    assert f"planned for inputs near {LARGE}" in str(why)
    assert compiled.get_property("EXECUTION_DEVICES") == ["A", "B"]
    a, b = devices
    a.runs = b.runs = 0
    request = compiled.create_infer_request()
    # Equally near to both samples are 45 rows.
    for rows, runs in ((1, (1, 0)), (44, (2, 0)), (46, (2, 1)), (3000, (2, 2)), (3, (3, 2))):
        x = np.full((rows, 3), 0.5, np.float32)
        np.testing.assert_allclose(
            request.infer({"v0": x})[0], evaluate(CHAIN, {"v0": x})[0], rtol=1e-5
        )
        assert (a.runs, b.runs) == runs


def test_sizes_that_agree_share_what_was_compiled():
    devices = pair()
    shapes = [{"v0": (1, 3)}, {"v0": (2, 3)}, {"v0": (4, 3)}]
    compiled = compile_for(devices, shapes)
    assert compiled.explain().planned_for == "v0=1x3; v0=2x3; v0=4x3"
    assert compiled.explain().near == {}
    whole = [model for model in devices[0].compiled if len(model.ops) == len(TYPES)]
    assert len(whole) == 2  # one of them with counters


def test_what_is_there_stays_unless_something_is_surely_faster():
    times, nearly = dict.fromkeys(TYPES, 1e-5), dict.fromkeys(TYPES, 0.995 * PER_ELEMENT)
    devices = pair()[0], PacedDevice("B", times, per_element=nearly)
    compiled = compile_for(devices, f"{SMALL}; {LARGE}")
    assert placed(compiled.explain()) == ON_A
    assert compiled.explain().near == {}
    compiled = compile_for(devices, LARGE)
    assert placed(compiled.explain()) == ON_B


def test_a_second_compile_measures_nothing():
    shapes = f"{SMALL}; {LARGE}"
    first = compile_for(pair(), shapes).explain()
    a, b = pair()
    second = compile_for((a, b), shapes).explain()
    assert (a.runs, b.runs) == (0, 0)
    assert placed(second) == placed(first)
    assert placed(second.near[LARGE]) == ON_B
    assert second.near[LARGE].decision.from_database


def test_a_model_that_is_exported_keeps_its_plans():
    compiled = compile_for(pair(), f"{SMALL}; {LARGE}")
    devices = pair()
    restored = core_with(*devices).import_model(compiled.export_model(), "HETERO:A,B")
    before, after = compiled.explain(), restored.explain()
    assert after.planned_for == before.planned_for
    assert after.near.keys() == before.near.keys()
    assert placed(after.near[LARGE]) == ON_B
    assert after.near[LARGE].decision == before.near[LARGE].decision
    check(restored, 2)
    check(restored, 2000)
    assert (devices[0].runs, devices[1].runs) == (1, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda placements: placements[1].update(planned_for=[]),
        lambda placements: placements[1].update(planned_for=[[[2, 3, 4]]]),
        lambda placements: placements[0].update(planned_for=[[[2, 3], [2, 3]]]),
        lambda placements: placements[0].update(planned_for=[[["a", 3]]]),
        lambda placements: placements[1].pop("planned_for"),
    ],
)
def test_exported_plans_that_do_not_fit_the_model_are_refused(change):
    core = core_with(*pair())
    compiled = core.compile_model(
        CHAIN,
        "HETERO:A,B",
        {"HETERO_SCHEDULE": "COST", "HETERO_SAMPLE_SHAPES": f"{SMALL}; {LARGE}"},
    )
    content = exported_model.unpack(compiled.export_model(), "HETERO")
    header = json.loads(json.dumps(content.header))
    change(header["placements"])
    with pytest.raises(BlobError, match="placement is damaged"):
        core.import_model(exported_model.pack("HETERO", header, content.model), "HETERO")


def test_a_device_that_fails_loses_its_part_at_every_size():
    a, b = pair()
    compiled = compile_for((a, b), f"{SMALL}; {LARGE}")
    b.fails_on = set(TYPES)
    check(compiled, 2000)
    check(compiled, 2)
    assert placed(compiled.explain()) == ON_A
    assert compiled.explain().near == {}
    assert any("failed to run" in note for note in compiled.explain().notes)
    check(compiled, 2000)


def test_samples_bring_their_own_sizes(tmp_path):
    path = tmp_path / "samples.npz"
    np.savez(path, v0=np.ones((1024, 3), np.float32))
    compiled = compile_for(pair(), HETERO_SAMPLE_INPUTS=path)
    assert compiled.explain().planned_for == LARGE
    assert placed(compiled.explain()) == ON_B
    with pytest.raises(PropertyError, match="have shapes of their own"):
        compile_for(pair(), SMALL, HETERO_SAMPLE_INPUTS=path)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ("v0=2", r"Input 'v0' takes float32\[rows, 3\]; found 2\."),
        ("v0=2x4", r"Input 'v0' takes float32\[rows, 3\]; found 2x4\."),
        ("w=2x3", r"has no input 'w'; it has 'v0'"),
        ("2x3", r"'2x3' is not a list of shapes; write e\.g\. ids=1x128"),
        ("v0=0x3", "greater than 0"),
    ],
)
def test_shapes_that_do_not_fit_are_an_error(shapes, message):
    with pytest.raises(PropertyError, match=message):
        compile_for(pair(), shapes)


def test_symbols_tell_the_shapes_of_inputs_that_are_left_out():
    proto = model_of(
        [node("Mul", ["x", "y"], "z", "mul"), node("Atan", ["z"], "w", "atan")],
        [value("x", ["batch", "length"]), value("y", ["batch", "length"])],
        ["w"],
    )
    compiled = compile_for(pair(), "y=4x7", proto)
    assert compiled.explain().planned_for == "x=4x7,y=4x7"


def test_inputs_of_unknown_rank_go_by_priority_and_say_so(caplog):
    model = core_with(*pair()).read_model(CHAIN)
    model.ir.graph.inputs[0].shape = None
    a, b = pair()
    compiled = core_with(a, b).compile_model(model, "HETERO:A,B", {"HETERO_SCHEDULE": "COST"})
    decision = compiled.explain().decision
    assert decision.chosen == "priority"
    assert decision.notes == [
        "COST needs to know how many axes input 'v0' has: placed by priority. Tell it with "
        "model.reshape(...) before compiling."
    ]
    assert decision.notes[0] in caplog.text
    assert (a.runs, b.runs) == (0, 0)


def test_properties_tell_of_the_shapes():
    core = partita.Core()
    core.set_property("HETERO", {"HETERO_SAMPLE_SHAPES": "ids=1x16; ids=4x128,mask=4x128"})
    assert core.get_property("HETERO", "HETERO_SAMPLE_SHAPES") == (
        {"ids": (1, 16)},
        {"ids": (4, 128), "mask": (4, 128)},
    )
