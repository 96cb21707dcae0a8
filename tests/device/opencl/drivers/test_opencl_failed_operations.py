"""What one launch fails at is refused where its operations stand side by side, and nowhere else."""

import onnx.parser
import pytest

from partita.lowering import lower_proto
from partita.storage import cache_folder
from partita_opencl.device.device import find_device
from partita_opencl.properties import Precision
from partita_opencl.trials import failed_operations
from partita_opencl.trials.kernel_trial import Mode
from partita_opencl.trials.rehearsal import Failure

MODE = Mode(local_tiles=False, precision=Precision.F32)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(cache_folder.CACHE_VARIABLE, str(tmp_path / "cache"))


def graph_of(lines, inputs="float[2,3] x", outputs="float[2,3] y"):
    """A graph whose operations are called by what they write."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {{ {lines} }}'
    )
    model = onnx.shape_inference.infer_shapes(model)
    for node in model.graph.node:
        node.name = node.output[0]
    return lower_proto(model)


def fails(graph, *names):
    """Keeps that one launch which computes some operations fails."""
    failure = Failure(frozenset(names), "wrong", lasts=True)
    failed_operations.keep_failures(find_device(""), MODE, graph, [failure])


def refused(graph):
    """The names of the operations that are refused."""
    found = failed_operations.known_failures(find_device(""), MODE, graph)
    assert set(found.values()) <= {"wrong"}
    return set(found)


PAIR = "a = Exp (x) y = Relu (a)"


def test_operations_of_one_launch_are_refused_together():
    pair = graph_of(PAIR)
    fails(pair, "a", "y", "a cast")
    assert refused(pair) == {"a", "y"}
    assert not refused(graph_of("y = Relu (x)"))
    assert not refused(graph_of("y = Exp (x)"))


def test_they_are_taken_where_others_stand_between_them():
    fails(graph_of(PAIR), "a", "y")
    assert not refused(
        graph_of("a = Exp (x) b = MatMul (a, w) y = Relu (b)", "float[2,3] x, float[3,3] w")
    )
    both = "float[2,3] x, float[2,3] z", "float[2,3] y, float[2,3] v"
    assert not refused(graph_of("y = Exp (x) v = Relu (z)", *both))


def test_of_several_places_those_are_refused_where_they_stand_together():
    fails(graph_of(PAIR), "a", "y")
    longer = graph_of("a = Exp (x) b = Relu (a) c = Sin (b) d = Relu (c) e = Cos (d) y = Exp (e)")
    assert refused(longer) == {"a", "b"}


def test_each_operation_counts_as_often_as_the_launch_has_it():
    fails(graph_of("a = Exp (x) y = Exp (a)"), "a", "y")
    assert not refused(graph_of("y = Exp (x)"))
    assert not refused(graph_of("a = Exp (x) b = Sin (a) y = Exp (b)"))
    assert refused(graph_of("a = Sin (x) b = Exp (a) y = Exp (b)")) == {"b", "y"}


def test_what_only_views_stand_between_is_refused_as_it_stood():
    """A launch computes the outer operations; the one between them takes none."""
    through = "a = Exp (x) b = Identity (a) y = Relu (b)"
    fails(graph_of(through), "a", "y")
    assert refused(graph_of(through)) == {"a", "y"}
    assert not refused(graph_of(PAIR))
    assert not refused(graph_of("a = Exp (x) b = Sin (a) y = Relu (b)"))


def test_products_of_the_same_rows_stand_side_by_side():
    wide = "float[2,3] x, float[3,3] w, float[3,3] v", "float[2,3] y, float[2,3] z"
    products = graph_of("y = MatMul (x, w) z = MatMul (x, v)", *wide)
    fails(products, "y", "z")
    assert refused(products) == {"y", "z"}
    apart = graph_of("y = MatMul (x, w) a = Exp (x) z = MatMul (a, v)", *wide)
    assert not refused(apart)


def test_nothing_is_kept_of_what_has_nothing_in_common():
    both = "float[2,3] x, float[2,3] z", "float[2,3] y, float[2,3] v"
    apart = graph_of("y = Exp (x) v = Relu (z)", *both)
    fails(apart, "y", "v")
    assert not refused(apart)
    assert not list(cache_folder.cache_folder("opencl/verdicts").iterdir())
