"""Operators of ai.onnx.ml on device CPU, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita_cpu.kernels.classical import trees as trees_module
from partita_cpu.query import query

DOMAIN = "ai.onnx.ml"
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT", "BRANCH_GTE", "BRANCH_EQ", "BRANCH_NEQ"]
LIMITS = np.float32([-1.5, -0.0, 0.0, 1e-45, 0.5, 1.0, 3.25, np.inf])
WIDTH = 5


def model_of(op_type, inputs, outputs, version=3, **attributes):
    """A model of one operator; outputs by name to their element types."""
    value = helper.make_tensor_value_info
    kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items()}
    shapes = {name: ["rows", *x.shape[1:]] if x.ndim > 1 else None for name, x in inputs.items()}
    node = helper.make_node(op_type, [*inputs], [*outputs], domain=DOMAIN, **attributes)
    graph = helper.make_graph(
        [node],
        "classical",
        [value(name, kinds[name], shapes[name]) for name in inputs],
        [value(name, kind, None) for name, kind in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def check(proto, feeds, rtol=1e-6):
    """Device CPU takes the operator, and computes what onnxruntime does."""
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    compiled = partita.Core().compile_model(proto, "CPU")
    wanted = session.run(None, feeds)
    for found, want in zip(compiled(feeds).to_tuple(), wanted, strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_allclose(found, want, rtol, 1e-6)


def assert_refused(proto):
    """Device CPU leaves the operator to others."""
    assert query(partita.Core().read_model(proto), "CPU").reasons


def rows(rng, count, dtype=np.float32, missing=True):
    """Numbers near the limits of trees, and such as compare in odd ways."""
    choices = [*LIMITS, np.float32(2), -np.inf] + [np.nan] * missing
    return rng.choice(choices, (count, WIDTH)).astype(dtype)


def trees(rng, count, results, modes, kind, depth=4):
    """Attributes of trees that fork at random; leaves add to one or several results."""
    nodes = {name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes",
             "truenodeids", "falsenodeids", "missing_value_tracks_true")}  # fmt: skip
    leaves = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(count):
        waiting, number = [(0, 0)], 1
        while waiting:
            node, level = waiting.pop()
            forks = level < depth and rng.random() < 0.8
            entry = {"treeids": tree, "nodeids": node, "featureids": int(rng.integers(WIDTH)),
                     "values": float(rng.choice(LIMITS)), "truenodeids": number,
                     "modes": str(rng.choice(modes)) if forks else "LEAF",
                     "falsenodeids": number + 1,
                     "missing_value_tracks_true": int(rng.integers(2))}  # fmt: skip
            if forks:
                waiting += [(number, level + 1), (number + 1, level + 1)]
                number += 2
            else:
                entry |= {"truenodeids": 0, "falsenodeids": 0, "featureids": 0, "values": 0.0}
                for result in rng.permutation(results)[: 1 + rng.integers(results)]:
                    leaves["treeids"].append(tree)
                    leaves["nodeids"].append(node)
                    leaves["ids"].append(int(result))
                    leaves["weights"].append(float(np.float32(rng.standard_normal())))
            for name, item in entry.items():
                nodes[name].append(item)
    named = {f"nodes_{name}": items for name, items in nodes.items()}
    named |= {"n_targets": results} if kind == "target" else {}
    return named | {f"{kind}_{name}": items for name, items in leaves.items()}


@pytest.mark.parametrize("count", [1, 3, 200])
@pytest.mark.parametrize("mode", [*MODES, "all"])
def test_trees_of_every_rule_take_the_branches_that_onnxruntime_takes(mode, count):
    rng = np.random.default_rng(MODES.index(mode) if mode in MODES else 9)
    attributes = trees(rng, 20, 1, MODES if mode == "all" else [mode], "target")
    # Missing values are unequal to all numbers in onnxruntime, whatever a node says of them.
    feeds = {"x": rows(rng, count, missing=mode not in ("BRANCH_NEQ", "all"))}
    proto = model_of("TreeEnsembleRegressor", feeds, {"y": TensorProto.FLOAT}, **attributes)
    check(proto, feeds)


def test_a_missing_value_that_no_node_speaks_of_is_unequal_by_the_false_branch():
    nodes = {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3,
             "nodes_values": [1.0, 0, 0], "nodes_modes": ["BRANCH_NEQ", "LEAF", "LEAF"],
             "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0]}  # fmt: skip
    leaves = {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
              "target_weights": [1.0, 2.0], "n_targets": 1}  # fmt: skip
    feeds = {"x": np.float32([[np.nan], [1], [0]])}
    proto = model_of("TreeEnsembleRegressor", feeds, {"y": TensorProto.FLOAT}, **nodes, **leaves)
    found = [partita.Core().compile_model(proto, d)(feeds)["y"] for d in ("CPU", "REFERENCE")]
    assert found[0].ravel().tolist() == [2, 2, 1]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("function", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("results", [1, 3])
def test_trees_add_up_to_several_results(function, results):
    rng = np.random.default_rng(results)
    feeds = {"x": rows(rng, 33)}
    attributes = trees(rng, 12, results, MODES[:5], "target")
    proto = model_of(
        "TreeEnsembleRegressor",
        feeds,
        {"y": TensorProto.FLOAT},
        aggregate_function=function,
        base_values=[0.5, -1.0, 2.0][:results],
        **attributes,
    )
    check(proto, feeds)


def test_trees_of_float64_compare_in_float64():
    rng = np.random.default_rng(4)
    feeds = {"x": rows(rng, 50, np.float64) + 1e-12}
    attributes = trees(rng, 10, 2, MODES[:5], "target")
    for name in ("nodes_values", "target_weights"):
        numbers = np.array(attributes.pop(name), np.float64)
        attributes[f"{name}_as_tensor"] = numpy_helper.from_array(numbers, name)
    proto = model_of("TreeEnsembleRegressor", feeds, {"y": TensorProto.FLOAT}, **attributes)
    check(proto, feeds)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_trees_vote_for_classes(transform):
    rng = np.random.default_rng(5)
    feeds = {"x": rows(rng, 70)}
    outputs = {"y": TensorProto.INT64, "z": TensorProto.FLOAT}
    attributes = trees(rng, 15, 4, MODES[:5], "class") | {"base_values": [0.1, -0.2, 0.3, 0]}
    proto = model_of("TreeEnsembleClassifier", feeds, outputs, post_transform=transform,
                     classlabels_int64s=[3, 1, -7, 40], **attributes)  # fmt: skip
    check(proto, feeds)


@pytest.mark.parametrize(("transform", "base"), [("NONE", []), ("LOGISTIC", [0.25])])
def test_trees_vote_for_one_of_two_classes(transform, base):
    rng = np.random.default_rng(6)
    feeds = {"x": rows(rng, 70)}
    attributes = trees(rng, 15, 1, MODES[:5], "class")
    if transform == "NONE":
        attributes["class_weights"] = [abs(w) / 15 for w in attributes["class_weights"]]
    if base:
        attributes["base_values"] = base
    outputs = {"y": TensorProto.INT64, "z": TensorProto.FLOAT}
    proto = model_of("TreeEnsembleClassifier", feeds, outputs, post_transform=transform,
                     classlabels_int64s=[4, 9], **attributes)  # fmt: skip
    check(proto, feeds)


def test_trees_that_lead_in_circles_or_nowhere_are_refused():
    rng = np.random.default_rng(7)
    feeds = {"x": rows(rng, 3)}
    good = trees(rng, 2, 1, MODES, "target")
    outputs = {"y": TensorProto.FLOAT}
    fork = good["nodes_modes"].index(next(m for m in good["nodes_modes"] if m != "LEAF"))
    for name, number in (("truenodeids", 0), ("falsenodeids", 999), ("featureids", -1)):
        items = list(good[f"nodes_{name}"])
        items[fork] = number
        assert_refused(
            model_of("TreeEnsembleRegressor", feeds, outputs, **good | {f"nodes_{name}": items})
        )
    assert_refused(
        model_of(
            "TreeEnsembleRegressor",
            feeds,
            outputs,
            **good | {"target_ids": [2] * len(good["target_ids"])},
        )
    )


def test_tables_of_trees_are_made_once(monkeypatch):
    made = []
    original = trees_module.tables_of
    monkeypatch.setattr(trees_module, "tables_of", lambda *of: made.append(1) or original(*of))
    rng = np.random.default_rng(9)
    feeds = {"x": rows(rng, 3)}
    attributes = trees(rng, 3, 2, MODES, "target")
    proto = model_of("TreeEnsembleRegressor", feeds, {"y": TensorProto.FLOAT}, **attributes)
    compiled = partita.Core().compile_model(proto, "CPU")
    for count in (3, 5):
        compiled({"x": rows(rng, count)})
    assert len(made) == 1


@pytest.mark.parametrize("offset", [-(2**62), 2**40])
def test_nodes_of_trees_may_have_any_numbers(offset):
    rng = np.random.default_rng(10)
    feeds = {"x": rows(rng, 9)}
    plain = trees(rng, 4, 1, MODES[:5], "target")
    moved = {
        name: [n + offset for n in items] if name.endswith("nodeids") else items
        for name, items in plain.items()
    }
    found = [
        partita.Core().compile_model(
            model_of("TreeEnsembleRegressor", feeds, {"y": TensorProto.FLOAT}, **attributes), "CPU"
        )(feeds)["y"]
        for attributes in (plain, moved)
    ]
    np.testing.assert_array_equal(*found)


def test_trees_that_read_columns_which_are_not_there_are_an_error():
    feeds = {"x": np.zeros((2, WIDTH), np.float32)}
    attributes = trees(np.random.default_rng(8), 3, 1, MODES, "target")
    attributes["nodes_featureids"] = [
        9 if mode != "LEAF" else 0 for mode in attributes["nodes_modes"]
    ]
    proto = model_of("TreeEnsembleRegressor", feeds, {"y": TensorProto.FLOAT}, **attributes)
    with pytest.raises(partita.PartitaError, match="reads 10 columns"):
        partita.Core().compile_model(proto, "CPU")(feeds)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_a_linear_classifier_scores_rows(transform):
    rng = np.random.default_rng(10)
    feeds = {"x": rng.standard_normal((9, 37)).astype(np.float32)}
    outputs = {"y": TensorProto.INT64, "z": TensorProto.FLOAT}
    proto = model_of("LinearClassifier", feeds, outputs, post_transform=transform,
                     coefficients=rng.standard_normal(3 * 37).astype(np.float32).tolist(),
                     intercepts=[0.5, -0.5, 0.0], classlabels_ints=[2, 0, 5])  # fmt: skip
    check(proto, feeds, 1e-5)


def test_a_linear_regressor_sums_rows():
    rng = np.random.default_rng(11)
    feeds = {"x": rng.standard_normal((9, 37)).astype(np.float32)}
    proto = model_of("LinearRegressor", feeds, {"y": TensorProto.FLOAT}, targets=2,
                     coefficients=rng.standard_normal(2 * 37).astype(np.float32).tolist(),
                     intercepts=[0.5, -0.5])  # fmt: skip
    check(proto, feeds, 1e-5)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("Scaler", {"offset": [1.0, 2, 3, 4], "scale": [0.5, 1, 2, 3]}),
        ("Normalizer", {"norm": "L1"}),
        ("Normalizer", {"norm": "L2"}),
        ("Imputer", {"imputed_value_floats": [9.0], "replaced_value_float": float("nan")}),
        ("Imputer", {"imputed_value_floats": [9.0, 8, 7, 6], "replaced_value_float": 2.0}),
        ("Binarizer", {"threshold": 0.25}),
    ],
)
def test_features_of_rows(op_type, attributes):
    x = np.random.default_rng(12).standard_normal((6, 4)).astype(np.float32)
    x[1] = 2
    if op_type == "Imputer":
        x[3, 1:3] = np.nan
    proto = model_of(op_type, {"x": x}, {"y": TensorProto.FLOAT}, **attributes)
    check(proto, {"x": x})


def test_a_row_is_divided_by_its_largest_absolute_number():
    # onnxruntime takes the largest number, and would leave this row's signs turned.
    x = np.float32([[-4, 1, 2], [0, 0, 0]])
    proto = model_of("Normalizer", {"x": x}, {"y": TensorProto.FLOAT}, norm="MAX")
    found = partita.Core().compile_model(proto, "CPU")({"x": x})["y"]
    np.testing.assert_array_equal(found, np.float32([[-1, 0.25, 0.5], [0, 0, 0]]))


def test_integers_are_filled_in():
    x = np.array([[1, 0], [0, 5]])
    proto = model_of("Imputer", {"x": x}, {"y": TensorProto.INT64},
                     imputed_value_int64s=[7, 8], replaced_value_int64=0)  # fmt: skip
    check(proto, {"x": x})


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (4,)])
def test_columns_are_picked(shape):
    x = np.random.default_rng(13).standard_normal(shape).astype(np.float32)
    feeds = {"x": x, "i": np.array([3, 0, 3])}
    check(model_of("ArrayFeatureExtractor", feeds, {"y": TensorProto.FLOAT}), feeds)


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize(
    ("x", "attributes", "kind"),
    [
        (np.array([3, 1, 9, -2]),
         {"keys_int64s": [9, 1, 3], "values_floats": [0.5, 1.5, 2.5]}, TensorProto.FLOAT),
        (np.array([3, 1, 9, -2]),
         {"keys_int64s": [9, 1, 3], "values_int64s": [5, 6, 7], "default_int64": 8},
         TensorProto.INT64),
        (np.float32([0.5, np.nan, 2.5, -1]),
         {"keys_floats": [2.5, float("nan"), 0.5], "values_floats": [1.0, 2.0, 3.0],
          "default_float": 4.0}, TensorProto.FLOAT),
        (np.float32([0.5, np.nan]), {"keys_floats": [0.5], "values_int64s": [1]},
         TensorProto.INT64),
    ],
)  # fmt: skip
def test_labels_are_looked_up(x, attributes, kind, version):
    check(model_of("LabelEncoder", {"x": x}, {"y": kind}, version, **attributes), {"x": x})


def test_labels_that_are_texts_are_left_to_others():
    x = np.array([1, 2])
    attributes = {"keys_int64s": [1, 2], "values_strings": ["a", "b"]}
    assert_refused(model_of("LabelEncoder", {"x": x}, {"y": TensorProto.STRING}, 2, **attributes))


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("op_type", ["TreeEnsembleClassifier", "LinearClassifier"])
def test_classes_are_computed_where_there_are_no_texts(op_type, version):
    rng = np.random.default_rng(14)
    texts = ["no", "yes", "yes", "perhaps"]
    feeds = {"x": rows(rng, 40, missing=False).clip(-9, 9)}
    if op_type == "LinearClassifier":
        attributes = {"coefficients": rng.standard_normal(4 * WIDTH).astype(np.float32).tolist(),
                      "intercepts": [0.0, 1, 2, 3]}  # fmt: skip
    else:
        attributes = trees(rng, 15, 4, MODES[:5], "class")
    outputs = {"y": TensorProto.STRING, "z": TensorProto.FLOAT}
    proto = model_of(op_type, feeds, outputs, version, classlabels_strings=texts, **attributes)
    proto.graph.node[0].name = "votes"
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    model = partita.Core().read_model(proto)
    assert [op.op_type for op in model.ops] == [op_type, "LabelEncoder"]
    devices = partita.Core().query_model(model, "HETERO:CPU,REFERENCE")
    assert devices == {"votes": "CPU", "votes_labels": "REFERENCE"}
    found = partita.Core().compile_model(proto, "HETERO:CPU,REFERENCE")(feeds)
    assert found["y"].tolist() == wanted[0].tolist()
    np.testing.assert_allclose(found["z"], wanted[1], 1e-5, 1e-6)
    assert len(proto.graph.node) == 1  # the caller's stays as it was


INTEGERS = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")


def ensemble(rng, count, results, dtype=np.float32, rules=5, depth=4):
    """Attributes of a TreeEnsemble that forks at random; both branches of a node may end alike."""
    nodes = {name: [] for name in (*INTEGERS, "modes", "splits", "missing_value_tracks_true")}
    targets, weights, roots = [], [], []

    def leaf():
        targets.append(int(rng.integers(results)))
        weights.append(rng.standard_normal())
        return len(targets) - 1

    def fork(level):
        place = len(nodes["modes"])
        entry = {
            "featureids": rng.integers(WIDTH),
            "modes": rng.integers(rules),
            "splits": rng.choice(LIMITS),
            "missing_value_tracks_true": rng.integers(2),
        }
        for name in nodes:
            nodes[name].append(entry.get(name, 0))
        for branch in ("true", "false"):
            ends = level == depth or rng.random() < 0.2
            nodes[f"{branch}leafs"][place] = int(ends)
            nodes[f"{branch}nodeids"][place] = leaf() if ends else fork(level + 1)
        return place

    for _ in range(count):
        roots.append(fork(0))
    # A tree of one leaf is a node whose branches both lead there.
    for name in nodes:
        nodes[name].append({"trueleafs": 1, "falseleafs": 1}.get(name, 0))
    end = leaf()
    nodes["truenodeids"][-1] = nodes["falsenodeids"][-1] = end
    roots.append(len(nodes["modes"]) - 1)
    tensor = numpy_helper.from_array
    return {
        **{f"nodes_{name}": [int(n) for n in nodes[name]] for name in INTEGERS},
        "nodes_missing_value_tracks_true": [int(n) for n in nodes["missing_value_tracks_true"]],
        "nodes_modes": tensor(np.array(nodes["modes"], np.uint8), "modes"),
        "nodes_splits": tensor(np.array(nodes["splits"], dtype), "splits"),
        "leaf_weights": tensor(np.array(weights, dtype), "weights"),
        "leaf_targetids": targets,
        "tree_roots": roots,
        "n_targets": results,
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", range(4))
@pytest.mark.parametrize("count", [1, 40])
def test_ensembles_of_opset_5(count, function, dtype):
    rng = np.random.default_rng(function)
    feeds = {"x": rows(rng, count, dtype)}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto = model_of("TreeEnsemble", feeds, {"y": kind}, 5, aggregate_function=function,
                     **ensemble(rng, 12, 3, dtype))  # fmt: skip
    check(proto, feeds)


@pytest.mark.parametrize(
    "changed",
    [
        {"post_transform": 1},
        {"tree_roots": [10_000]},
        {"leaf_targetids": [-1] * 9},
        {"n_targets": 1},
        {"nodes_truenodeids": [0]},
    ],
)
def test_ensembles_whose_attributes_do_not_belong_together_are_refused(changed):
    rng = np.random.default_rng(4)
    attributes = ensemble(rng, 3, 3) | changed
    assert_refused(
        model_of("TreeEnsemble", {"x": rows(rng, 2)}, {"y": TensorProto.FLOAT}, 5, **attributes)
    )


def test_members_of_sets_are_left_to_others():
    rng = np.random.default_rng(5)
    attributes = ensemble(rng, 3, 3)
    modes = np.full(len(attributes["nodes_featureids"]), 6, np.uint8)
    attributes |= {"nodes_modes": numpy_helper.from_array(modes, "modes")}
    assert_refused(
        model_of("TreeEnsemble", {"x": rows(rng, 2)}, {"y": TensorProto.FLOAT}, 5, **attributes)
    )
