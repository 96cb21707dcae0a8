"""StringNormalizer, StringSplit and TfIdfVectorizer of device REFERENCE, as ONNX describes them."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import partita

TEXTS = ["Monday", "monday", "a Monday", "", "A", "\u00e9t\u00e9"]


@pytest.mark.parametrize(
    ("given", "due"),
    [
        ({}, TEXTS),
        ({"stopwords": ["monday"]}, ["a Monday", "", "A", "\u00e9t\u00e9"]),
        (
            {"stopwords": ["monday"], "is_case_sensitive": 1},
            ["Monday", "a Monday", "", "A", "\u00e9t\u00e9"],
        ),
        (
            {"stopwords": ["MONDAY", "a"], "case_change_action": "UPPER"},
            ["A MONDAY", "", "\u00c9T\u00c9"],
        ),
        ({"stopwords": [t.lower() for t in TEXTS]}, [""]),
    ],
)
@pytest.mark.parametrize("rows", [False, True])
def test_string_normalizer(given, due, rows):
    x = np.array([TEXTS] if rows else TEXTS, object)
    value = helper.make_tensor_value_info("x", TensorProto.STRING, x.shape)
    result = helper.make_tensor_value_info("y", TensorProto.STRING, [1, None] if rows else [None])
    node = helper.make_node("StringNormalizer", ["x"], ["y"], **given)
    graph = helper.make_graph([node], "texts", [value], [result])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=8)
    (found,) = partita.Core().compile_model(proto, "REFERENCE")({"x": x}).to_tuple()
    assert found.tolist() == ([due] if rows else due)


@pytest.mark.parametrize(
    ("given", "due"),
    [
        ({}, ["a,", "b,c"]),
        ({"delimiter": ","}, ["a", "  b", "c"]),
        ({"maxsplit": 1}, ["a,", "b,c"]),
    ],
)
def test_a_text_without_dimensions_is_split(given, due):
    value = helper.make_tensor_value_info("x", TensorProto.STRING, [])
    results = [
        helper.make_tensor_value_info("y", TensorProto.STRING, [None]),
        helper.make_tensor_value_info("z", TensorProto.INT64, []),
    ]
    node = helper.make_node("StringSplit", ["x"], ["y", "z"], **given)
    graph = helper.make_graph([node], "text", [value], results)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    x = np.array("a,  b,c", object)
    parts, count = partita.Core().compile_model(proto, "REFERENCE")({"x": x}).to_tuple()
    assert parts.tolist() == due
    assert count.shape == ()
    assert count == len(due)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(
    "given",
    [{}, {"weights": [0.5, 2.0, 1.5]}, {"weights": [0.5, 2.0, 1.5], "ngram_indexes": [2, 0, 1]}],
)
def test_vectorizer(mode, given):
    node = helper.make_node(
        "TfIdfVectorizer",
        ["x"],
        ["y"],
        mode=mode,
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=1,
        ngram_counts=[0, 2],
        pool_int64s=[2, 3, 2, 4],
        **{"ngram_indexes": [0, 1, 2], **given},
    )
    x = np.array([2, 3, 2, 2, 4], np.int64)
    value = helper.make_tensor_value_info("x", TensorProto.INT64, [5])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    graph = helper.make_graph([node], "words", [value], [result])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=8)
    (due,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    (found,) = partita.Core().compile_model(proto, "REFERENCE")({"x": x}).to_tuple()
    np.testing.assert_array_equal(found, due)
