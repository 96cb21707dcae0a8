"""Parts of the conformance kit that need no device: expectations, comparison, report, draws."""

from __future__ import annotations

import codecs
import json
import re
import subprocess
import sys
from dataclasses import replace
from fnmatch import fnmatchcase
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx
import pytest

from partita_conformance import pytest_plugin
from partita_conformance.bench.bench import Answers, Bench, Target
from partita_conformance.bench.checks import Check, names_of
from partita_conformance.draws.casts import casts
from partita_conformance.draws.operators import GENERATORS, draw, model_of
from partita_conformance.draws.vary import typed
from partita_conformance.expectations import Expectations, ExpectationsError
from partita_conformance.inputs.models import networks, parse, samples
from partita_conformance.inputs.node_cases import node_cases
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import (
    ConformanceError,
    DeclinedError,
    NotApplicableError,
    require_raises,
)
from partita_conformance.reports.report import as_data, write
from partita_conformance.runs.collect import Selection, collect
from partita_conformance.runs.running import (
    DECLINED,
    FAILED,
    PASSED,
    SKIPPED,
    UNSUPPORTED,
    XFAILED,
    XPASSED,
    Outcome,
    attempt,
    run_expected,
)
from partita_conformance.suites.numerics.suite_hetero import sandwich
from partita_conformance.suites.numerics.suite_operators import operator_checks


def load(tmp_path, text):
    (tmp_path / "e.toml").write_text(text)
    return Expectations.load(tmp_path / "e.toml")


# ------------------------------------------------------------------- expectations


def test_patterns_find_their_reason(tmp_path):
    expectations = load(tmp_path, '[unsupported]\n"a/*" = "never"\n[xfail]\n"b/x?" = "not yet"')
    assert expectations.find("a/b/c") == ("unsupported", "never")
    assert expectations.find("b/x1") == ("xfail", "not yet")
    assert expectations.find("b/x12") is None


def test_reasons_are_utf8_whatever_the_locale_and_editor(tmp_path):
    (tmp_path / "e.toml").write_bytes(codecs.BOM_UTF8 + '[xfail]\r\n"a" = "\u00fc"\r\n'.encode())
    assert Expectations.load(tmp_path / "e.toml").find("a") == ("xfail", "\u00fc")


def test_entry_without_reason_is_refused(tmp_path):
    with pytest.raises(ExpectationsError, match=re.escape("'a/*' of [xfail]")):
        load(tmp_path, '[xfail]\n"a/*" = ""')


def test_unknown_table_is_refused(tmp_path):
    with pytest.raises(ExpectationsError, match=re.escape("'skip'")):
        load(tmp_path, '[skip]\n"a" = "b"')


def test_broken_and_missing_files_are_refused(tmp_path):
    with pytest.raises(ExpectationsError, match="no TOML"):
        load(tmp_path, "[xfail")
    with pytest.raises(ExpectationsError, match="Cannot read"):
        Expectations.load(tmp_path / "nothing.toml")


def test_pattern_that_matches_nothing_is_an_error():
    expectations = Expectations({"a/*": "x"}, {"c/*": "y"})
    with pytest.raises(ExpectationsError, match=re.escape("'c/*'")):
        expectations.require_matches(["a/1", "b/1"])
    expectations.require_matches(["a/1", "c/1"])


class Runner:
    """Makes checks without a device."""

    def run(self, check):
        status, detail = attempt(check, None)
        return Outcome(check, status, detail)

    def close(self):
        pass


def passing(bench):
    pass


def failing(bench):
    raise ConformanceError("wrong")


def test_statuses_follow_expectations():
    def declining(bench):
        raise DeclinedError("no Conv")

    def skipping(bench):
        raise NotApplicableError("no memory")

    def crashing(bench):
        raise KeyError("oops")

    checks = [
        Check("s/pass", passing),
        Check("s/fail", failing),
        Check("s/decline", declining),
        Check("s/skip", skipping),
        Check("s/error", crashing),
        Check("x/pass", passing),
        Check("x/fail", failing),
        Check("x/decline", declining),
        Check("u/fail", failing),
    ]
    expectations = Expectations({"u/*": "for good"}, {"x/*": "for now"})
    runner = Runner()
    outcomes = {c.name: run_expected(c, runner, expectations) for c in checks}
    assert {name: o.status for name, o in outcomes.items()} == {
        "s/pass": PASSED,
        "s/fail": FAILED,
        "s/decline": DECLINED,
        "s/skip": SKIPPED,
        "s/error": FAILED,
        "x/pass": XPASSED,
        "x/fail": XFAILED,
        "x/decline": DECLINED,
        "u/fail": UNSUPPORTED,
    }
    assert {name for name, o in outcomes.items() if o.bad} == {"s/fail", "s/error", "x/pass"}
    assert "KeyError" in outcomes["s/error"].detail
    assert "for now" in outcomes["x/fail"].detail


def test_failures_of_draws_are_known_by_what_is_drawn(tmp_path):
    def cropping(bench):
        raise ConformanceError("Resize {'mode': 'crop'} of [2]: wrong")

    text = "[drawn]\n\"r/* where *'crop'*\" = 'crops nothing'"
    checks = [Check("r/0", cropping), Check("r/1", passing), Check("r/2", failing)]
    checks.append(Check("s/0", cropping))
    outcomes = [run_expected(one, Runner(), load(tmp_path, text)) for one in checks]
    assert [o.status for o in outcomes] == [XFAILED, PASSED, FAILED, FAILED]
    assert "crops nothing" in outcomes[0].detail
    with pytest.raises(ExpectationsError, match=re.escape("'q/*'")):
        load(tmp_path, "[drawn]\n\"q/* where *\" = 'why'").require_matches(["r/0"])
    for wrong in ("[drawn]\n'r/*' = 'why'", "[xfail]\n'r/* where *' = 'why'"):
        with pytest.raises(ExpectationsError, match=r"keys of \[drawn\], and of no other table"):
            load(tmp_path, wrong)


# --------------------------------------------------------------------- comparison


def test_equal_values_agree():
    special = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    compare([special], [special.copy()], "x")
    compare([np.array(["a"], object)], [np.array(["a"])], "x")
    compare([[np.zeros(2)], None], [[np.zeros(2)], None], "x")
    compare([np.zeros((0, 3))], [np.zeros((0, 3))], "x")


@pytest.mark.parametrize(
    ("have", "want", "message"),
    [
        (np.zeros(3), np.zeros(2), "shape"),
        (np.zeros(3), np.zeros(3, np.float32), "dtype"),
        (np.array([0.0, 2.0]), np.array([0.0, 1.0]), r"at \[1\]"),
        (np.array([np.inf]), np.array([np.nan]), "1 of 1"),
        (np.array([2**60 + 1]), np.array([2**60]), "1 of 1"),
        (np.array([7], np.uint8), np.array([8], np.uint8), "1 of 1"),
        (np.array([1.5], ml_dtypes.bfloat16), np.array([1.25], ml_dtypes.bfloat16), "1 of 1"),
        (np.array(True), np.array(False), "1 of 1"),
        (None, np.zeros(1), "expected"),
        (np.zeros(1), [np.zeros(1)], "sequence"),
    ],
)
def test_differences_are_found(have, want, message):
    with pytest.raises(ConformanceError, match=message):
        compare([have], [want], "x")


def test_number_of_outputs_matters():
    with pytest.raises(ConformanceError, match="1 values; expected 2"):
        compare([np.zeros(1)], [np.zeros(1)] * 2, "x")


def test_random_outputs_are_compared_by_form():
    compare([np.ones(3)], [np.zeros(3)], "x", form_only=True)
    with pytest.raises(ConformanceError, match="shape"):
        compare([np.ones(2)], [np.zeros(3)], "x", form_only=True)


def test_rounding_of_sums_is_allowed_and_more_is_not():
    want = np.array([100.0, 0.0], np.float32)
    compare([want + np.float32(1e-3)], [want], "x")
    with pytest.raises(ConformanceError):
        compare([want + np.float32(1e-1)], [want], "x")


@pytest.mark.parametrize(
    ("name", "steps", "status"),
    [
        ("attention_4d_causal_fp16_expanded", 2, PASSED),
        ("attention_4d_causal_fp16_expanded", 3, FAILED),
        ("attention_4d_causal_fp16", 2, FAILED),
        ("celu_float16", 2, FAILED),
    ],
)
def test_stored_answers_of_many_operations_in_half_precision_are_two_steps_wide(
    name, steps, status
):
    known = node_cases()[name]
    ((inputs, _),) = known.runs
    due = [np.ones(3, np.float16)]
    (made,) = operator_checks({name: replace(known, runs=[(inputs, due)])})
    off = [np.full(3, 1 + steps * 2.0**-10, np.float16)]

    class Off:
        inputs = ()

        def __call__(self, feeds):
            return SimpleNamespace(to_tuple=lambda: off)

    bench = SimpleNamespace(decline_unless_taken=lambda proto: None, compile=lambda proto: Off())
    assert attempt(made, bench)[0] == status


def test_what_must_raise_is_told_apart():
    def fine():
        return None

    def other():
        raise KeyError("k")

    with pytest.raises(ConformanceError, match="raised nothing"):
        require_raises(ValueError, fine, "f")
    with pytest.raises(ConformanceError, match="KeyError"):
        require_raises(ValueError, other, "f")
    assert isinstance(require_raises((KeyError, ValueError), other, "f"), KeyError)


# ------------------------------------------------------------------ checks, models


def test_names_of_checks_are_unique_and_explained():
    checks = collect(Selection(("[!o]*",)))
    names = names_of(checks)
    assert len(set(names)) == len(names)
    assert all(check.summary for check in checks)
    assert {check.suite for check in checks} >= {"plugin", "query", "random", "hetero"}


def test_selection_saves_the_node_cases(monkeypatch):
    monkeypatch.setattr("partita_conformance.runs.collect.node_cases", pytest.fail)
    assert names_of(collect(Selection(("plugin/*",))))
    assert not Selection(("request/*",)).may_take("operators")
    assert Selection(("oper*/conv*",)).may_take("operators")
    assert not Selection(("[!o]*", "operator_*")).may_take("operators")
    assert Selection(("o*s/[ab]*",)).may_take("operators")
    assert Selection(("request/*", "operators/*_relu")).may_take("operators")
    assert Selection().may_take("operators")


def test_a_pattern_selects_what_it_matches_of_all_checks():
    names = [check.name for check in collect(Selection(("[!o]*",)))]
    patterns = [
        "random/Relu/*",
        "*/Add/0",
        "h*r/*/1",
        "[lm]*/a*",
        "value?/?onv/*",
        "types*",
        "[!a-z]*",
    ]
    for pattern in patterns:
        found = [check.name for check in collect(Selection((pattern,)))]
        assert found == [name for name in names if fnmatchcase(name, pattern)]


@pytest.mark.parametrize("kind", ["plain", "dynamic", "pair", "outputs", "large"])
def test_samples_are_valid(kind):
    for sample in samples(kind):
        onnx.checker.check_model(sample.proto, full_check=True)
        again = sample.feeds(1)
        for name, array in sample.feeds(1).items():
            np.testing.assert_array_equal(array, again[name])


def test_networks_are_valid():
    for network in networks():
        onnx.checker.check_model(network.proto, full_check=True)
        assert len(network.proto.graph.node) >= 5


@pytest.mark.parametrize("op", GENERATORS)
def test_draws_are_valid_and_the_same_each_time(op):
    for number in range(3):
        first, feeds = model_of(op, draw(op, number))
        onnx.checker.check_model(first, full_check=True)
        second, again = model_of(op, draw(op, number))
        assert first == second
        assert all(feeds[name].tobytes() == again[name].tobytes() for name in feeds)


def test_sandwich_keeps_the_model_valid():
    proto, _ = model_of("Split", draw("Split", 1))
    wrapped = onnx.shape_inference.infer_shapes(sandwich(proto))
    onnx.checker.check_model(wrapped, full_check=True)
    kinds = [node.op_type for node in wrapped.graph.node]
    assert kinds[0] == "Identity"
    assert kinds[-1] == "Identity"
    assert kinds.count("Split") == 1


# ------------------------------------------------------------------------- report


def test_report_holds_every_check(tmp_path):
    checks = [Check("s/a", passing, op="Conv", dtype="float"), Check("s/b", failing)]
    outcomes = [*map(Runner().run, checks)]
    outcomes[1] = Outcome(checks[1], FAILED, "ends a </script> early")
    data = as_data(Target("REFERENCE"), outcomes, 1.25)
    json_file, page = write(tmp_path / "out", data)
    stored = json.loads(json_file.read_text())
    assert stored["schema"] == 1
    assert stored["counts"] == {"passed": 1, "failed": 1}
    assert stored["checks"][0] == {
        "name": "s/a",
        "suite": "s",
        "status": "passed",
        "detail": "",
        "seconds": 0.0,
        "summary": "",
        "op": "Conv",
        "dtype": "float",
    }
    assert {"device", "about", "versions", "machine", "finished", "seconds"} <= set(stored)
    text = page.read_text()
    assert text.count("</script>") == text.count("<script ")
    assert not re.search(r'(src|href)="?http', text)
    literals = re.findall(r'<script type="application/json" [^>]*>(.*?)</script>', text, re.DOTALL)
    assert stored in map(json.loads, literals)


def test_pytest_tells_what_was_taken_and_never_tried():
    lines = []
    reporter = SimpleNamespace(section=lines.append, write_line=lines.append)
    outcomes = [
        Outcome(Check("types/Relu/float/0", id, op="Relu", dtype="float"), PASSED),
        Outcome(Check("types/Relu/int8/0", id, op="Relu", dtype="int8"), SKIPPED),
        Outcome(Check("values/Abs/int8", id, op="Abs", dtype="int8"), DECLINED),
    ]
    session = SimpleNamespace(outcomes=outcomes, target=Target("TOY"))
    config = SimpleNamespace(stash={pytest_plugin.SESSION_KEY: session})
    pytest_plugin.pytest_terminal_summary(reporter, config)
    assert lines == [
        "conformance of TOY",
        "taken, never tried: 1 of 2 operators and types: Relu int8",
        "conforms (1 of 3 checks of operators tried, 33%)",
    ]
    pytest_plugin.pytest_terminal_summary(reporter, SimpleNamespace(stash={}))
    assert len(lines) == 3


def test_a_question_that_gets_two_answers_is_a_failure():
    bench = Bench(Target("REFERENCE"))
    proto, _ = model_of("Relu", draw("Relu", 0))
    assert bench.refusals(proto) == []
    bench.require_the_same_answer(proto, set())
    with pytest.raises(ConformanceError, match="another answer to a question asked before"):
        bench.require_the_same_answer(proto, {"relu"})


def test_casts_stay_within_what_onnx_says():
    for word, drawn in casts("Cast", "double"):
        (x,), target = drawn.inputs, onnx.helper.tensor_dtype_to_np_dtype(drawn.attributes["to"])
        if target.kind in "iu":
            assert (np.trunc(x.astype(np.longdouble)) >= np.iinfo(target).min).all(), word
            assert (np.trunc(x.astype(np.longdouble)) <= np.iinfo(target).max).all(), word
        elif not word.startswith("beside ties"):
            assert np.isinf(x).any()


@pytest.mark.parametrize("element", ["int32", "int64", "string"])
def test_what_is_looked_up_has_the_type_of_what_it_is_looked_up_in(element):
    is_text = element == "string"
    for seed in range(20):
        drawn = GENERATORS["TfIdfVectorizer"](np.random.default_rng(seed))
        drawn = typed("TfIdfVectorizer", drawn, element)
        pools = {name for name in drawn.attributes if name.startswith("pool")}
        assert pools == {"pool_strings" if is_text else "pool_int64s"}
        assert set(drawn.inputs[0].reshape(-1).tolist()) & set(drawn.attributes[pools.pop()])


def test_answers_of_sequences_are_known_by_what_is_in_them():
    bench = Bench(Target("REFERENCE"))
    proto = parse("g (seq(float[1]) s) => (int64 n) { n = SequenceLength(s) }")
    box = np.empty((), object)
    box[()] = [np.zeros(1, np.float32)]
    assert bench.expected(proto, {"s": box})[0] == 1
    box[()].append(np.zeros(1, np.float32))  # the same list, where it lay
    assert bench.expected(proto, {"s": box})[0] == 2


def test_the_kit_starts_without_what_it_seldom_needs():
    code = (
        "import sys; from partita_conformance.bench.bench import Target; "
        "from partita_conformance.runs import collect; "
        "from partita_conformance.draws.cover import order; "
        "Target('GOOD', 'partita_reference.evaluator:ReferenceModel').presence(); "
        "print('sympy.core' in sys.modules, order.cache_info().currsize)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "0"], done.stdout


@pytest.mark.parametrize(("share", "status"), [(-2, FAILED), (0, PASSED), (1, PASSED), (3, FAILED)])
def test_attention_of_halves_is_right_if_it_is_near_onnxs_answer_or_the_exact_one(share, status):
    case = node_cases()["attention_4d_causal_fp16"]
    ((inputs, (due,)),) = case.runs
    q, k, v = (array.astype(np.float64) for array in inputs)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1])
    powers = np.where(np.tril(np.ones(scores.shape[-2:])), np.exp(scores), 0.0)
    exact = powers / powers.sum(-1, keepdims=True) @ v
    answer = (exact + share * (due - exact)).astype(np.float16)

    class Computed:
        inputs = ()

        def __call__(self, _):
            return SimpleNamespace(to_tuple=lambda: (answer,))

    bench = SimpleNamespace(decline_unless_taken=lambda _: None, compile=lambda _: Computed())
    (check,) = operator_checks({case.name: case})
    assert attempt(check, bench)[0] == status


def test_right_answers_are_kept_until_they_are_too_large_together(monkeypatch):
    monkeypatch.setattr(Answers, "MOST_BYTES", 1000)
    answers, array = Answers(), np.zeros(100, np.float32)
    answers.add(b"one", [array])
    answers.add(b"two", [[array], None])
    assert answers.get(b"one")[0] is array
    assert answers.get(b"two")[0][0] is array
    answers.add(b"three", [array])
    assert answers.get(b"one") is answers.get(b"two") is None
    assert answers.get(b"three")[0] is array


def test_right_answers_are_kept_until_they_are_too_many(monkeypatch):
    monkeypatch.setattr(Answers, "MOST", 2)
    answers = Answers()
    for key in (b"one", b"two", b"three"):
        answers.add(key, [])
    assert [answers.get(key) for key in (b"one", b"two", b"three")] == [None, None, []]
