"""Which whole models the kit cuts, and when it cannot say what is right for one."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from partita.zoo import Sample
from partita.zoo.naming import Named
from partita_conformance.bench.bench import Bench, Target
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import ConformanceError, NotApplicableError
from partita_conformance.runs.collect import model_names
from partita_conformance.suites.numerics import suite_hetero
from partita_conformance.suites.numerics.suite_hetero import BUILTIN, hetero_checks


def test_models_are_named_or_those_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    assert model_names(["zoo", "light:squeezenet"]) == ("light:squeezenet",)
    monkeypatch.setattr("partita.zoo.store.Store.cached", lambda self, name: name == "magika")
    assert model_names(["zoo", "zoo:silero-vad"]) == ("zoo:magika", "zoo:silero-vad")
    checks = {check.name for check in hetero_checks(2, ["zoo:magika"])}
    wanted = {f"hetero/model/{name}/{seed}" for name in (*BUILTIN, "zoo:magika") for seed in (0, 1)}
    assert {name for name in checks if name.startswith("hetero/model")} == wanted


def odd_model():
    """A model that REFERENCE does not take, with an input."""
    node = helper.make_node("Transmogrify", ["x"], ["y"], domain="com.nobody")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.nobody", 1)]
    graph = helper.make_graph([node], "odd", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    feeds = {"x": np.zeros(2, np.float32)}
    return Named("odd.onnx", model, lambda: Sample("zeros", "nothing", feeds, lambda infer: None))


@pytest.mark.parametrize(
    ("name", "message"), [("light:squeezenet", "no natural input"), ("odd.onnx", "Transmogrify")]
)
def test_models_with_nothing_to_compare_are_skipped(name, message, monkeypatch):
    if name == "odd.onnx":
        monkeypatch.setattr(suite_hetero, "resolve", lambda name: odd_model())
    check = next(c for c in hetero_checks(1, [name]) if c.name.endswith(f"{name}/0"))
    with pytest.raises(NotApplicableError, match=message):
        check.run(Bench(Target("CPU")))


def test_whole_models_may_round_more():
    want = [np.array([0.2, 1.0], np.float32)]
    have = [want[0] + np.float32(2.8e-4)]
    compare(have, want, "a model", of_largest=1e-4)
    with pytest.raises(ConformanceError):
        compare(have, want, "an operator")
