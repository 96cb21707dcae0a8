"""The judge in a process of its own says what the judge in this process says."""

from __future__ import annotations

import sys

import judge
import numpy as np
import pytest
from onnx import parser


def model_of(text):
    return parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>\n' + text)


@pytest.fixture
def other():
    process = judge.Judge(sys.executable)
    yield process
    process.close()


def assert_equal(found, wanted):
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, two in zip(found, wanted, strict=True):
            assert_equal(one, two)
    elif wanted is None:
        assert found is None
    else:
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "text",
    [
        "m (float[2, 3] x) => (float[2, 3] y, int64[2] z) { y = Neg(x)\n z = Shape(x) }",
        "m (float[2, 3] x) => (float16[2, 3] y, bool[2, 3] z)"
        " { y = Cast<to = 10>(x)\n z = IsNaN(x) }",
        "m (float[2, 3] x) => (string[2, 3] y) { y = Cast<to = 8>(x) }",
        "m (float[2, 3] x) => (seq(float[1, 3]) y) { y = SplitToSequence<axis = 0>(x) }",
        "m (float[2, 3] x) => (float[0, 3] y)"
        " { a = Constant<value_ints = [0]>()\n b = Constant<value_ints = [0]>()\n"
        " y = Slice(x, a, b) }",
    ],
)
def test_it_says_the_same(other, monkeypatch, text):
    monkeypatch.delenv(judge.VARIABLE, raising=False)
    model = model_of(text)
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5}
    for optimized in (False, True):
        found = other.ask(model.SerializeToString(), feeds, optimized)
        assert_equal(found, judge.onnxruntime_results(model, feeds, optimized=optimized))


def test_it_tells_what_failed_and_goes_on(other):
    good = model_of("m (float[2] x) => (float[2] y) { y = Neg(x) }").SerializeToString()
    feeds = {"x": np.ones(2, np.float32)}
    with pytest.raises(judge.JudgeError, match="x"):
        other.ask(good, {}, False)
    (found,) = other.ask(good, feeds, False)
    np.testing.assert_array_equal(found, -feeds["x"])


def test_it_is_asked_where_the_environment_names_it(monkeypatch):
    asked = []

    class Asked:
        def ask(self, model, feeds, optimized):
            asked.append((model, dict(feeds), optimized))
            return ["said"]

    monkeypatch.setenv(judge.VARIABLE, "some python")
    monkeypatch.setattr(judge, "other_runtime", Asked)
    assert judge.onnxruntime_results(b"a model", {"x": 1}) == ["said"]
    assert asked == [(b"a model", {"x": 1}, False)]
