"""Asking an engine about single operations: what it is handed, how often, and what is concluded."""

from __future__ import annotations

import onnx
import pytest
from models import model_of, value
from onnx import parser

import partita
from partita.contract.engine_probe import Probe
from partita.contract.query import ReasonCode
from partita.errors import CompileError

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x, bool c) => (float[2,3] y) <float[3] w = {1, 2, 3}> {
  a = Mul(x, w)
  b = Mul(x, w)
  d = Tanh(a)
  e = Cast <to = 11> (b)
  f = Cast <to = 1> (e)
  h = If (c) <
    then_branch = t () => (u) { u = Identity(d) },
    else_branch = s () => (v) { v = Neg(d) }
  >
  y = Add(h, f)
}
"""


class Engine:
    """Loads models of any operator but Tanh, and keeps what it was handed."""

    def __init__(self):
        self.loaded = []

    def load(self, proto):
        model = onnx.load_from_string(proto)
        self.loaded.append([node.op_type for node in model.graph.node])
        onnx.checker.check_model(model)
        if "Tanh" in self.loaded[-1]:
            raise CompileError("no Tanh")


def ask(engine, wrong=()):
    model = partita.Core().read_model(parser.parse_model(MODEL))
    return Probe(engine.load, {"FLOAT", "BOOL"}, wrong).query(model, "ENGINE")


def test_answers():
    answer = ask(Engine())
    assert sorted(answer) == ["Add_0", "Mul_0", "Mul_1"]
    assert set(answer.values()) == {"ENGINE"}
    reasons = {name: (reason.code, reason.detail) for name, reason in answer.reasons.items()}
    assert reasons == {
        "Tanh_0": (ReasonCode.UNSUPPORTED_OP, "no Tanh"),
        "Cast_0": (ReasonCode.UNSUPPORTED_DTYPE, "DOUBLE; takes BOOL, FLOAT"),
        "Cast_1": (ReasonCode.UNSUPPORTED_DTYPE, "DOUBLE; takes BOOL, FLOAT"),
        "If_0": (ReasonCode.UNSUPPORTED_ATTRIBUTE, "has a body, which cannot stand alone"),
    }


def test_outputs_that_are_left_out_need_no_type():
    """As decoders leave out the mean and the variance of a normalization."""
    node = onnx.helper.make_node(
        "SkipSimplifiedLayerNormalization",
        ["x", "y", "scale"],
        ["normalized", "", "", "sum"],
        "norm",
        domain="com.microsoft",
    )
    named = {name: value(name, ["n", 4]) for name in ("x", "y", "normalized", "sum")}
    model = model_of(
        [node],
        [named["x"], named["y"], value("scale", [4])],
        [named["normalized"], named["sum"]],
    )
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    loaded = []
    probe = Probe(loaded.append, {"FLOAT"})
    assert not probe.query(partita.Core().read_model(model), "ENGINE").reasons
    assert len(loaded) == 1


def test_operators_that_are_computed_otherwise():
    engine = Engine()
    answer = ask(engine, wrong={"Mul"})
    assert answer.reasons["Mul_0"].detail == "computes Mul otherwise than ONNX"
    assert ["Mul"] not in engine.loaded


def test_each_operation_is_loaded_alone_and_once():
    engine = Engine()
    model = partita.Core().read_model(parser.parse_model(MODEL))
    probe = Probe(engine.load, {"FLOAT", "BOOL"})
    first = probe.query(model, "ENGINE")
    assert all(len(nodes) == 1 for nodes in engine.loaded)
    before = len(engine.loaded)
    assert probe.query(model, "ENGINE").reasons == first.reasons
    assert len(engine.loaded) == before


def test_only_so_many_answers_are_remembered(monkeypatch):
    monkeypatch.setattr("partita.contract.engine_probe.MOST_ANSWERS", 1)
    engine = Engine()
    model = partita.Core().read_model(parser.parse_model(MODEL))
    probe = Probe(engine.load, {"FLOAT", "BOOL"})
    probe.query(model, "ENGINE")
    before = len(engine.loaded)
    probe.query(model, "ENGINE")
    assert len(engine.loaded) > before


def test_other_errors_of_an_engine_pass():
    def load(proto):
        raise ZeroDivisionError

    model = partita.Core().read_model(parser.parse_model(MODEL))
    with pytest.raises(ZeroDivisionError):
        Probe(load, {"FLOAT"}).query(model, "ENGINE")
