"""RegexFullMatch of device REFERENCE beside onnxruntime, whose engine is RE2 itself."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import partita

TEXTS = ["", "a", "b", "ab", "abc", "aab", "K1", "k", "a b", "a\nb", "x@y", "a.b", "]", "-", "_"]
TEXTS += [
    "\u00e9",
    "\u00c9",
    "\u017f",
    "\u212a",
    "A",
    "AB",
    "aaaa",
    "b\n",
    "\t",
    "1",
    "12",
    "{",
    "a{,2}",
]

PATTERNS = [
    *("[[:alpha:]]+", "[[:^digit:]x]*", "[[:word:]@]+", r"\w+@\w+", r"\d+", r"\s", r"\W", r"\D*"),
    *(
        "(a|ab)(c|bcd)?",
        "a*",
        "a+b",
        "a?b",
        "a{2}b",
        "a{1,3}b?",
        "a{0,}",
        "a{,2}",
        "(a*)*",
        "(|a)+",
    ),
    *(".", ".*", "(?s).*", "(?m)^a$\nb", "(?m)a$.*", "^a$", r"\Aab\z", r"a\b.*", r"\B.*", r"a\Bb"),
    *("(?i)k", "(?i)[a-c]+", "(?i)[^k]", "(?i:a)B", "(?i)a(?-i)b", "(?i)s", r"(?i)\W", "(?U)a+"),
    *("[]]", "[^]]", "[a-]", "[-a]", r"[\]]", r"[\da-c]+", r"\x41", r"\x{e9}", r"\101", r"\Qa.b\E"),
    *(
        r"\pL+",
        r"\p{Lu}",
        r"\PN",
        r"\p{^L}",
        r"a\.b",
        "(?P<n>a)(?<m>b)",
        "(?:ab|c)*",
        "{",
        "a|",
        "",
    ),
]

WRONG = [
    *(
        "(",
        ")",
        "[a",
        "*a",
        "a**",
        "a*+",
        "a{2}{3}",
        "(?=a)",
        "(?<!a)",
        r"\1",
        r"\Z",
        "[z-a]",
        "a{3,2}",
    ),
    *(
        "[[:foo:]]",
        r"\p{Foo}",
        "a{1001}",
        "(a{100}){100}",
        "(?x)a",
        "\\",
        r"\8",
    ),
]


def of_pattern(pattern):
    graph = helper.make_graph(
        [helper.make_node("RegexFullMatch", ["x"], ["y"], "match", pattern=pattern)],
        "texts",
        [helper.make_tensor_value_info("x", TensorProto.STRING, [None])],
        [helper.make_tensor_value_info("y", TensorProto.BOOL, [None])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def agree(pattern):
    proto, x = of_pattern(pattern), np.array(TEXTS, object)
    (due,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    (found,) = partita.Core().compile_model(proto, "REFERENCE")({"x": x}).to_tuple()
    pairs = zip(TEXTS, found.tolist(), due.tolist(), strict=True)
    assert not [text for text, have, want in pairs if have != want], pattern


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_read_as_re2_reads_them(pattern):
    agree(pattern)


def test_patterns_of_patterns():
    """Drawn: two or three of the patterns behind each other, beside each other or repeated."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        parts = [f"(?:{PATTERNS[rng.integers(len(PATTERNS))]})" for _ in range(rng.integers(2, 4))]
        parts = [part + ("", "*", "?", "{2}", "|")[rng.integers(5)] for part in parts]
        agree("".join(parts))


@pytest.mark.parametrize("pattern", WRONG)
def test_what_re2_refuses_is_refused(pattern):
    proto = of_pattern(pattern)
    with pytest.raises(Exception, match=r"(?i)regex|invalid|pattern"):
        onnxruntime.InferenceSession(proto.SerializeToString())
    reasons = partita.Core().query_model(proto, "REFERENCE").reasons
    assert "the pattern" in str(reasons["match"])
    assert "is not taken: " in str(reasons["match"])


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"\p{Greek}", "p names Greek, which is not a category here"),
        (r"a\C", "C is nothing that RE2 knows and that is taken here"),
        ("(" * 1500 + ")" * 1500, "more than 1000 groups are within each other"),
        ("((a{30}b){30})c{1000}" * 20, "it takes more than 16384 steps"),
    ],
)
def test_what_re2_has_and_is_not_taken_is_named(pattern, why):
    reasons = partita.Core().query_model(of_pattern(pattern), "REFERENCE").reasons
    assert why in str(reasons["match"])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", "(a*)*b", "a?" * 200 + "a" * 200 + "b"])
def test_hostile_patterns_do_not_go_back(pattern):
    """Python's own engine takes a step for each of 2**200 ways."""
    compiled = partita.Core().compile_model(of_pattern(pattern), "REFERENCE")
    found = compiled({"x": np.array(["a" * 200, "a" * 200 + "b"], object)})[0]
    assert found.tolist() == [False, True]


@pytest.mark.timeout(60)
def test_long_texts_of_large_patterns_are_refused():
    compiled = partita.Core().compile_model(of_pattern("(a|a?){1000}.*" * 2), "REFERENCE")
    with pytest.raises(
        partita.errors.InferError, match="takes more than 2097152 steps of a pattern"
    ):
        compiled({"x": np.array(["a" * 100_000], object)})
