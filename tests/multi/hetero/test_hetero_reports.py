"""What HETERO tells: .dot files, explanations, exports, counters, requests."""

from __future__ import annotations

import numpy as np
import pytest

import partita
from partita.errors import PropertyError

from ..fakes import FakeDevice, core_with, evaluate
from ..graphs import CHAIN, X, devices_of, model_of, run


def test_dot_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    core = core_with(FakeDevice("A", refuses=["Exp"]), FakeDevice("B"))
    core.compile_model(CHAIN, "HETERO:A,B", {"HETERO_DUMP_GRAPH_DOT": True})
    affinity = (tmp_path / "hetero_affinity_m.dot").read_text()
    subgraphs = (tmp_path / "hetero_subgraphs_m.dot").read_text()
    assert affinity.startswith("digraph affinity {")
    assert "op0 -> op1;" in affinity
    assert 'label="b\\nExp\\nB, subgraph 2"' in affinity
    assert "s1 -> s2" in subgraphs
    assert "inputs -> s1" in subgraphs
    assert "-> outputs" in subgraphs


@pytest.mark.parametrize("variable", ["PARTITA_HETERO_DUMP_GRAPH_DOT", "OPENVINO_HETERO_VISUALIZE"])
@pytest.mark.parametrize(
    ("text", "files"),
    [("1", 2), ("YES", 2), ("true", 2), ("On", 2), *((no, 0) for no in ("0", "NO", "false", ""))],
)
def test_dot_files_by_environment(tmp_path, monkeypatch, variable, text, files):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, text)
    core_with(FakeDevice("A")).compile_model(CHAIN, "HETERO:A")
    assert len(list(tmp_path.glob("hetero_*_m.dot"))) == files


def test_a_variable_that_says_neither_yes_nor_no(monkeypatch):
    monkeypatch.setenv("OPENVINO_HETERO_VISUALIZE", "perhaps")
    core = core_with(FakeDevice("A"))
    with pytest.raises(PropertyError, match="OPENVINO_HETERO_VISUALIZE is 'perhaps'; write YES"):
        core.compile_model(CHAIN, "HETERO:A")


def test_explanation_as_table_and_json():
    import json

    core = core_with(FakeDevice("A", refuses=["Exp"]), FakeDevice("B"))
    why = core.compile_model(CHAIN, "HETERO:A,B").explain()
    assert "not A: UNSUPPORTED_OP: no Exp" in str(why)
    data = json.loads(why.to_json())
    assert data["ops"][1]["device"] == "B"
    assert data["summary"] == why.summary()


def test_export_and_import_keep_the_placement():
    core = core_with(FakeDevice("A"), FakeDevice("B"))
    compiled = run(core, CHAIN, "HETERO:A,B", pins={"b": "B"})
    restored = core.import_model(compiled.export_model(), "HETERO")
    assert devices_of(restored) == devices_of(compiled)
    np.testing.assert_allclose(restored({"x": X})[0], compiled({"x": X})[0])


def test_requests_of_one_compiled_model_are_independent():
    core = core_with(FakeDevice("A", delay_s=0.01), FakeDevice("B", delay_s=0.01))
    compiled = run(core, CHAIN, "HETERO:A,B", pins={"b": "B"})
    assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 2
    queue = partita.AsyncInferQueue(compiled)
    assert len(queue) == 2
    found = {}
    queue.set_callback(lambda request, key: found.__setitem__(key, request.results[0].copy()))
    for key in range(12):
        queue.start_async({"x": X * key}, key)
    queue.wait_all()
    for key in range(12):
        np.testing.assert_allclose(
            found[key], evaluate(CHAIN, {"x": X * np.float32(key)})[0], rtol=1e-6
        )


def test_dynamic_shapes_cross():
    proto = model_of(CHAIN.graph.node, ["d"], shape=("n", 3))
    core = core_with(FakeDevice("A"), FakeDevice("B", memory="b"))
    compiled = run(core, proto, "HETERO:A,B", pins={"b": "B"})
    for rows in (1, 5, 0, 2):
        x = np.ones((rows, 3), np.float32)
        np.testing.assert_allclose(compiled({"x": x})[0], evaluate(proto, {"x": x})[0])


def test_a_blob_with_foreign_properties_is_refused():
    from partita.errors import BlobError
    from partita.storage import exported_model

    core = core_with(FakeDevice("A"))
    forged = exported_model.pack(
        device="HETERO",
        header={"properties": {"COLOUR": "red"}, "placements": [{}]},
        model=core.read_model(CHAIN),
    )
    with pytest.raises(BlobError, match=r"properties are damaged.*COLOUR"):
        core.import_model(forged, "HETERO")
