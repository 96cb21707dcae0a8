"""Export, import and CACHE_DIR of whole HETERO models: no device is asked, nothing packed again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.errors import BlobError, DeviceError
from partita.storage import exported_model
from partita_cpu.jit.isa import isa
from partita_hetero.placement.lock_file import Lock, graph_digest

from ..fakes import FakeDevice, core_with, evaluate
from ..graphs import CHAIN, X, devices_of, run


def devices():
    return FakeDevice("A", refuses=["Exp"]), FakeDevice("B", memory="b")


def test_the_cache_restores_placement_and_reasons_without_asking(tmp_path):
    config = {"CACHE_DIR": str(tmp_path), "HETERO_EXECUTOR": "DATAFLOW"}
    first = run(core_with(*devices()), CHAIN, "HETERO:A,B", config=config)
    a, b = devices()
    second = run(core_with(a, b), CHAIN, "HETERO:A,B", config=config)
    assert second.get_property("LOADED_FROM_CACHE") is True
    assert first.get_property("LOADED_FROM_CACHE") is False
    assert (a.queries, b.queries) == (0, 0)
    assert second.explain().to_json() == first.explain().to_json()
    assert second.get_property("HETERO_EXECUTOR") == "DATAFLOW"
    assert [p.CACHE_DIR for p in a.seen_properties] == ["", ""]
    assert len(list(tmp_path.iterdir())) == 1, "the submodels are in the one file"


def test_core_s_cache_keeps_whole_models_only(tmp_path):
    core = core_with(*devices())
    core.set_property({"CACHE_DIR": str(tmp_path)})
    run(core, CHAIN, "HETERO:A,B")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("device", "config"),
    [
        ("HETERO:B,A", {}),
        ("HETERO:A,B,REFERENCE", {}),
        ("HETERO:A,B", {"STRICT": True}),
        ("HETERO:A,B", {"FLAVOUR": "sour"}),
        ("HETERO:A,B", {"DEVICE_PROPERTIES": {"B": {"FLAVOUR": "sour"}}}),
    ],
)
def test_devices_and_their_properties_belong_to_the_key(tmp_path, device, config):
    cached = {"CACHE_DIR": str(tmp_path)}
    core = core_with(*devices())
    core.compile_model(CHAIN, "HETERO:A,B", cached)
    assert not core.compile_model(CHAIN, device, {**config, **cached}).loaded_from_cache
    assert core.compile_model(CHAIN, device, {**config, **cached}).loaded_from_cache


def test_the_content_of_a_lock_file_belongs_to_the_key(tmp_path):
    core = core_with(*devices())
    lock = tmp_path / "m.lock"
    config = {"CACHE_DIR": str(tmp_path / "cache"), "HETERO_PLACEMENT_LOCK": str(lock)}
    ops = {"a": "A", "b": "B", "c": "B", "d": "A"}
    model = core.read_model(CHAIN)
    Lock("m", graph_digest(model), {"A": "", "B": ""}, ops).save(lock)
    assert not core.compile_model(CHAIN, "HETERO:A,B", config).loaded_from_cache
    assert core.compile_model(CHAIN, "HETERO:A,B", config).loaded_from_cache
    lock.write_text(lock.read_text() + "# edited\n")
    assert not core.compile_model(CHAIN, "HETERO:A,B", config).loaded_from_cache


def test_pins_and_overrides_come_back_from_the_cache(tmp_path):
    config = {"CACHE_DIR": str(tmp_path), "HETERO_PINS": ["a=B", "type:Abs=B?"]}
    for loaded in (False, True):
        compiled = run(core_with(*devices()), CHAIN, "HETERO:A,B", config=config)
        assert compiled.loaded_from_cache is loaded
        assert devices_of(compiled) == {"a": "B", "b": "B", "c": "A", "d": "B"}


def test_properties_set_for_a_device_belong_to_the_key(tmp_path):
    cached = {"CACHE_DIR": str(tmp_path)}
    core = core_with(*devices())
    core.compile_model(CHAIN, "HETERO:A,B", cached)
    core.set_property("B", {"FLAVOUR": "sour"})
    assert not core.compile_model(CHAIN, "HETERO:A,B", cached).loaded_from_cache


def test_a_restored_model_still_survives_a_failure(tmp_path):
    cached = {"CACHE_DIR": str(tmp_path)}
    core_with(*devices()).compile_model(CHAIN, "HETERO:A,B", cached)
    a, b = devices()
    a.fails_at_run = [1]
    compiled = run(core_with(a, b), CHAIN, "HETERO:A,B", config=cached)
    assert compiled.loaded_from_cache
    assert devices_of(compiled)["a"] == "B"
    assert "A claimed 1 operations" in compiled.explain().notes[0]


def test_a_device_that_cannot_compile_any_more_loses_its_part(tmp_path):
    first = core_with(*devices()).compile_model(CHAIN, "HETERO:A,B")
    a, b = FakeDevice("A", refuses=["Exp"], breaks_on=["Neg"]), FakeDevice("B")
    compiled = core_with(a, b).import_model(first.export_model(), "HETERO")
    assert devices_of(compiled) == {"a": "A", "b": "B", "c": "B", "d": "B"}
    np.testing.assert_allclose(compiled({"x": X})[0], evaluate(CHAIN, {"x": X})[0], rtol=1e-6)


def test_import_needs_the_devices_of_the_placement():
    data = core_with(*devices()).compile_model(CHAIN, "HETERO:A,B").export_model()
    with pytest.raises(DeviceError, match="'A'"):
        core_with().import_model(data, "HETERO")


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.pop(),
        lambda rows: rows[0].pop("device"),
        lambda rows: rows[0].update(name="other"),
        lambda rows: rows[0].update(reason=["NO_SUCH_CODE", ""]),
        lambda rows: rows[0].update(refused=3),
        lambda rows: rows.append(3),
    ],
)
def test_a_placement_that_does_not_fit_the_model_is_refused(change):
    core = core_with(*devices())
    content = exported_model.unpack(
        core.compile_model(CHAIN, "HETERO:A,B").export_model(), "HETERO"
    )
    header = json.loads(json.dumps(content.header))
    change(header["placements"][0]["operations"])
    with pytest.raises(BlobError, match="placement is damaged"):
        core.import_model(exported_model.pack("HETERO", header, content.model), "HETERO")


def convolutions(channels=64, count=4):
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for index in range(count):
        w = rng.standard_normal((channels, channels, 3, 3), dtype=np.float32) * np.float32(0.05)
        weights.append(numpy_helper.from_array(w, f"w{index}"))
        nodes.append(
            helper.make_node(
                "Conv", [last, f"w{index}"], [f"c{index}"], pads=[1] * 4, name=f"c{index}"
            )
        )
        last = f"c{index}"
    shape = [1, channels, 8, 8]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", last)]
    graph = helper.make_graph(nodes, "convolutions", info[:1], info[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU,CPU2"])
def test_cpu_takes_packed_weights_from_the_cache(tmp_path, monkeypatch, device):
    from partita.lowering import Prepacked

    proto = convolutions()
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 64, 8, 8), dtype=np.float32)}
    want = evaluate(proto, feeds)[0]
    config = {"CACHE_DIR": str(tmp_path)}

    def compile_and_check():
        core = partita.Core()
        core.register_plugin("partita_cpu", "CPU2")
        model = core.read_model(proto)
        for index, op in enumerate(model.ops):
            op.affinity = ("CPU", "CPU2")[index % 2]
        compiled = core.compile_model(model, device, config)
        np.testing.assert_allclose(compiled(feeds)[0], want, rtol=1e-4, atol=1e-4)
        return compiled

    assert not compile_and_check().loaded_from_cache
    packed = []
    restore = Prepacked.restore

    def watched(self, array, key, form):
        found = restore(self, array, key, form)
        if array.nbytes > 100_000:
            packed.append(found is not None)
        return found

    monkeypatch.setattr(Prepacked, "restore", watched)
    assert compile_and_check().loaded_from_cache
    assert bool(packed) == isa().native, "portable kernels take weights as they are"
    assert all(packed), "every large weight was found"
