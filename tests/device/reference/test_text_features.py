"""What scikit-learn's text pipelines become, on device REFERENCE, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.errors import UnsupportedOpError

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
TEXTS = [
    "the quick brown fox",
    "",
    "a, lazy  dog; a",
    "9 lives_of 1 cat",
    "...",
    "\u00e9t\u00e9 is a",
]


def model_of(domain, op_type, x, kind, version=3, **attributes):
    value = helper.make_tensor_value_info
    node = helper.make_node(op_type, ["x"], ["y"], domain=domain, **attributes)
    texts = x.dtype == object
    element = TensorProto.STRING if texts else helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs, outputs = [value("x", element, x.shape)], [value("y", kind, None)]
    graph = helper.make_graph([node], "texts", inputs, outputs)
    opsets = [helper.make_opsetid("", 17)]
    opsets += [helper.make_opsetid(domain, version)] if domain else []
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def check(x, proto, device="REFERENCE"):
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0]
    (found,) = partita.Core().compile_model(proto, device)({"x": x}).to_tuple()
    assert found.shape == wanted.shape
    if wanted.dtype == object:
        assert found.tolist() == wanted.tolist()
    else:
        np.testing.assert_allclose(found, wanted, 1e-6)


@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        *(("[a-zA-Z0-9_]+", 1), ("[a-zA-Z0-9_]+", 3), (r"\w+", 2), ("[^ ]+", 1), ("[^ ]+", 9)),
        *((".", 1), ("[[:alpha:]]", 1)),  # of single characters onnxruntime takes no other length
    ],
)
@pytest.mark.parametrize("shape", [(6,), (3, 2)])
def test_texts_are_cut_into_tokens(pattern, mark, least, shape):
    x = np.array(TEXTS, object).reshape(shape)
    check(x, model_of("com.microsoft", "Tokenizer", x, TensorProto.STRING, 1, tokenexp=pattern,
                      mark=mark, mincharnum=least, pad_value="#"))  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [{"separators": [" "]}, {"tokenexp": "a|b"}, {"tokenexp": "ab+"}, {"tokenexp": "("}, {}],
)
def test_other_patterns_are_refused(given):
    x = np.array(TEXTS, object)
    proto = model_of("com.microsoft", "Tokenizer", x, TensorProto.STRING, 1, mark=0,
                     mincharnum=1, pad_value="#", **given)  # fmt: skip
    with pytest.raises(UnsupportedOpError, match="tokenexp"):
        partita.Core().compile_model(proto, "REFERENCE")


@pytest.mark.parametrize("seed", range(40))
def test_n_grams_are_counted(seed):
    rng = np.random.default_rng(seed)
    longest, texts = int(rng.integers(1, 4)), bool(rng.integers(2))
    tokens = WORDS if texts else list(range(len(WORDS)))
    grams = [
        sorted({tuple(rng.integers(len(tokens), size=n)) for _ in range(rng.integers(1, 9))})
        for n in range(1, longest + 1)
    ]
    counts = np.cumsum([0, *(len(of) * n for n, of in enumerate(grams, 1))])[:-1].tolist()
    total = sum(map(len, grams))
    least = int(rng.integers(1, longest + 1))
    attributes = {
        "mode": str(rng.choice(["TF", "IDF", "TFIDF"])),
        "min_gram_length": least,
        "max_gram_length": int(rng.integers(least, longest + 1)),
        "max_skip_count": int(rng.integers(3)),
        "ngram_counts": counts,
        "ngram_indexes": rng.permutation(total).tolist(),
        "weights": rng.uniform(0.5, 2, total).astype(np.float32).tolist(),
        "pool_strings" if texts else "pool_int64s": [
            tokens[n] for of in grams for g in of for n in g
        ],
    }
    if rng.integers(3) == 0:
        del attributes["weights"]
    shape = (7,) if rng.integers(3) == 0 else (4, 7)
    places = rng.integers(len(tokens) + 1, size=shape)
    x = np.array([*tokens, "else" if texts else 99], object if texts else np.int64)[places]
    check(x, model_of("", "TfIdfVectorizer", x, TensorProto.FLOAT, **attributes))


@pytest.mark.parametrize("default", [{}, {"default_int64": 9, "default_string": "other"}])
@pytest.mark.parametrize("texts", [False, True])
def test_categories_are_mapped(texts, default):
    x = np.array(["b", "z", "a"], object) if texts else np.array([[2], [1], [7]])
    kind = TensorProto.INT64 if texts else TensorProto.STRING
    check(x, model_of("ai.onnx.ml", "CategoryMapper", x, kind, 1, cats_strings=["a", "b"],
                      cats_int64s=[1, 2], **default))  # fmt: skip


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3, 1)])
def test_texts_become_columns(shape):
    x = np.array(["b", "z", "a"], object).reshape(shape)
    check(x, model_of("ai.onnx.ml", "OneHotEncoder", x, TensorProto.FLOAT, 1,
                      cats_strings=["a", "b", "c"], zeros=1))  # fmt: skip


@pytest.mark.parametrize("device", ["CPU", "REFERENCE"])
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_integers_become_columns(shape, device):
    x = np.array([5, -3, 8, 2**40]).reshape(shape)
    check(x, model_of("ai.onnx.ml", "OneHotEncoder", x, TensorProto.FLOAT, 1,
                      cats_int64s=[8, 2**40, -3], zeros=1), device)  # fmt: skip


@pytest.mark.parametrize("device", ["CPU", "REFERENCE"])
def test_what_is_of_no_category_is_an_error_unless_it_may_be(device):
    x = np.array([8, 4])
    proto = model_of("ai.onnx.ml", "OneHotEncoder", x, TensorProto.FLOAT, 1, cats_int64s=[8, 1],
                     zeros=0)  # fmt: skip
    compiled = partita.Core().compile_model(proto, device)
    with pytest.raises(partita.PartitaError, match="4 is none of"):
        compiled({"x": x})
    assert compiled({"x": x[:1].repeat(2)})["y"].tolist() == [[1, 0], [1, 0]]


def test_types_behind_tokens_are_known():
    """A device without texts leaves what reads them to another."""
    x = np.array([["a b", "c"], ["d e f", ""]], object)
    proto = model_of("com.microsoft", "Tokenizer", x, TensorProto.STRING, 1, tokenexp="[a-z]+",
                     mark=0, mincharnum=1, pad_value="#")  # fmt: skip
    proto.graph.node.append(helper.make_node("Flatten", ["y"], ["z"], name="flat"))
    proto.graph.output[0].name = "z"
    model = partita.Core().read_model(proto)
    assert partita.Core().query_model(model, "HETERO:CPU,REFERENCE")["flat"] == "REFERENCE"
    found = partita.Core().compile_model(proto, "HETERO:CPU,REFERENCE")({"x": x})["z"]
    assert found.tolist() == [["a", "b", "#", "c", "#", "#"], ["d", "e", "f", "#", "#", "#"]]


LABELS = {"strings": ["a", "b", ""], "int64s": [3, -1, 2**40], "floats": [0.5, -0.0, float("nan")]}
SOUGHT = {
    "strings": np.array(["b", "z", "", "a"], object),
    "int64s": np.array([2**40, 7, 3, -1]),
    "floats": np.float32([0.5, 0.0, np.nan, 9]),
}
TYPES = {"strings": TensorProto.STRING, "int64s": TensorProto.INT64, "floats": TensorProto.FLOAT}
DEFAULTS = {"strings": "other", "int64s": 9, "floats": 1.5}


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("values", LABELS)
@pytest.mark.parametrize("keys", LABELS)
def test_labels_of_every_pair_of_types(keys, values, version, told):
    x, default = SOUGHT[keys], {f"default_{values.removesuffix('s')}": DEFAULTS[values]}
    attributes = {f"keys_{keys}": LABELS[keys], f"values_{values}": LABELS[values]}
    attributes |= default if told else {}
    check(x, model_of("ai.onnx.ml", "LabelEncoder", x, TYPES[values], version, **attributes))


@pytest.mark.parametrize("keys", [["a", "b"], [1, 2], [1.0, 2.0]])
@pytest.mark.parametrize("values", [["u", "v"], [5, 6]])
def test_labels_that_are_tensors(keys, values):
    arrays = [np.array(a, object if isinstance(a[0], str) else None) for a in (keys, values)]
    tensors = {
        name: numpy_helper.from_array(array, name)
        for name, array in zip(("keys_tensor", "values_tensor"), arrays, strict=True)
    }
    default = numpy_helper.from_array(arrays[1][:1], "default")
    x = np.array([keys[1], "z" if isinstance(keys[0], str) else 9], arrays[0].dtype)
    kind = TensorProto.STRING if isinstance(values[0], str) else TensorProto.INT64
    check(x, model_of("ai.onnx.ml", "LabelEncoder", x, kind, 4, default_tensor=default, **tensors))


@pytest.mark.parametrize("default", [{}, {"default_string": "?", "default_int64": 5}])
@pytest.mark.parametrize("texts", [False, True])
def test_labels_of_opset_1_are_places(texts, default):
    x = np.array(["b", "z"], object) if texts else np.array([1, 9])
    kind = TensorProto.INT64 if texts else TensorProto.STRING
    check(x, model_of("ai.onnx.ml", "LabelEncoder", x, kind, 1, classes_strings=["a", "b"],
                      **default))  # fmt: skip
