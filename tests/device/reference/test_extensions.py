"""Operators of an application's own, in Python, alone and with their rules for types."""

from __future__ import annotations

import numpy as np
import pytest
from models import model_of, node, value
from onnx import TensorProto, helper

import partita as ov
from partita.errors import InferError, ModelError, UnsupportedOpError

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def swirl(x, angle=1.0):
    return x + np.float32(angle) * np.flip(x, -1)


def swirled(x, angle):
    """The same, element by element."""
    return np.array([[row[i] + angle * row[-1 - i] for i in range(len(row))] for row in x])


SWIRL = ov.CustomOperator("Swirl", "my.ops", swirl, infer=lambda x, **_: x)


def of_own(nodes, inputs, outputs, domain="my.ops"):
    model = model_of(nodes, inputs, outputs)
    model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def one(op_type="Swirl", domain="my.ops", outputs=("y",), shape=("N", 3), **attributes):
    """A model that is one operation of an application's own."""
    made = node(op_type, ["x"], list(outputs), "own", domain=domain, **attributes)
    return of_own([made], [value("x", shape)], list(outputs), domain)


def compiled(extension, model, device="REFERENCE"):
    core = ov.Core()
    core.add_extension(extension)
    return core.compile_model(model, device)


# ----------------------------------------------------------------------- functions


def test_a_function_computes_an_operator_alone():
    made = compiled(SWIRL, one(angle=0.5))
    np.testing.assert_array_equal(made(X)["y"], swirled(X, 0.5))
    assert made.output().partial_shape == ov.PartialShape([-1, 3])
    assert "swirl computes it, in Python" in made.explain()["own"].why
    assert set(made.explain()["own"].refused) == set()


def test_attributes_of_all_kinds_are_handed_in_and_inputs_may_be_left_out():
    seen = {}

    def collect(x, left_out, *, table, names, factor, sizes):
        seen.update(left_out=left_out, table=table, names=names, factor=factor, sizes=sizes)
        return x, x.sum(dtype=np.float32)

    attributes = {
        "table": helper.make_tensor("t", TensorProto.INT64, [2], [3, 4]),
        "names": ["a", "b"],
        "factor": 0.5,
        "sizes": [1, 2],
    }
    made = node("Collect", ["x", ""], ["y", "z"], "own", domain="my.ops", **attributes)
    operator = ov.CustomOperator(
        "Collect", "my.ops", collect, infer=lambda x, _, **__: [x, (np.float32, [])]
    )
    result = compiled(operator, of_own([made], [value("x", [2, 3])], ["y", "z"]))(X)
    np.testing.assert_array_equal(result["z"], np.float32(-3 + 6))
    assert seen["left_out"] is None
    assert (seen["names"], seen["factor"], seen["sizes"]) == (["a", "b"], 0.5, [1, 2])
    np.testing.assert_array_equal(seen["table"], [3, 4])


def test_shapes_are_inferred_behind_rules_and_again_for_other_inputs():
    nodes = [
        node("Pairs", ["x"], "a", "first", domain="my.ops"),
        node("Transpose", ["a"], "b", "turn", perm=[1, 0]),
        node("Pairs", ["b"], "c", "second", domain="my.ops"),
        node("Shape", ["c"], "y", "shape"),
    ]
    core = ov.Core()
    core.add_extension(
        ov.CustomOperator(
            "Pairs",
            "my.ops",
            lambda x: np.concatenate([x, x]),
            infer=lambda x: (x.dtype, [2 * x.shape[0], *x.shape[1:]]),
        )
    )
    model = core.read_model(of_own(nodes, [value("x", [2, 3])], ["y", "c"]))
    assert model.output("c").shape == (6, 4)
    assert model.output("c").dtype == np.float32
    model.reshape([5, 3])
    assert model.output("c").shape == (6, 10)
    found = core.compile_model(model, "REFERENCE")(np.ones((5, 3), np.float32))
    np.testing.assert_array_equal(found["y"], [6, 10])


def test_a_model_that_was_read_before_learns_its_operators():
    core = ov.Core()
    model = core.read_model(one())
    assert model.output().dtype == np.float32  # the model claims so
    assert core.query_model(model, "REFERENCE") == {}
    core.add_extension([SWIRL])
    assert core.query_model(model, "REFERENCE") == {"own": "REFERENCE"}
    np.testing.assert_array_equal(core.compile_model(model, "REFERENCE")(X)["y"], swirled(X, 1.0))


def test_operators_in_bodies_are_computed():
    body = helper.make_graph(
        [node("Swirl", ["x"], "inner", "own", domain="my.ops")], "body", [], [value("inner", None)]
    )
    other = helper.make_graph([node("Neg", ["x"], "n", "neg")], "other", [], [value("n", None)])
    chosen = node("If", ["c"], "y", "if", then_branch=body, else_branch=other)
    inputs = [value("x", [2, 3]), value("c", [], TensorProto.BOOL)]
    made = compiled(SWIRL, of_own([chosen], inputs, [value("y", [2, 3])]))
    np.testing.assert_array_equal(made({"x": X, "c": np.array(True)})["y"], swirled(X, 1.0))
    np.testing.assert_array_equal(made({"x": X, "c": np.array(False)})["y"], -X)


# ----------------------------------------------------------------------- classes


class Swirl(ov.Op):
    class_type_info = ov.DiscreteTypeInfo("Swirl", "extension")

    def __init__(self, inputs=None):
        super().__init__(self, inputs)
        self.attributes = {"angle": 1.0}

    def validate_and_infer_types(self):
        shape = self.get_input_partial_shape(0)
        self.set_output_type(0, self.get_input_element_type(0), shape)

    def visit_attributes(self, visitor):
        visitor.on_attributes(self.attributes)
        return True

    def evaluate(self, outputs, inputs):
        outputs[0].shape = inputs[0].shape
        outputs[0].data[:] = swirl(inputs[0].data, self.attributes["angle"])
        return True


@pytest.mark.parametrize("extension", [Swirl, ov.OpExtension(Swirl)])
@pytest.mark.parametrize("domain", ["my.ops", "others"])
def test_a_class_as_openvino_has_them_computes_an_operator_of_any_domain(extension, domain):
    made = compiled(extension, one(domain=domain, angle=0.25))
    np.testing.assert_array_equal(made(X)["y"], swirled(X, 0.25))


def test_a_class_may_say_its_domain():
    class Mine(Swirl):
        domain = "my.ops"

    np.testing.assert_array_equal(compiled(Mine, one())(X)["y"], swirled(X, 1.0))
    with pytest.raises(UnsupportedOpError):
        compiled(Mine, one(domain="others"))


def test_a_class_that_says_no_fails():
    class No(Swirl):
        def evaluate(self, outputs, inputs):
            return False

    with pytest.raises(InferError, match=r"'Swirl', which computes operation 'own'.*False"):
        compiled(No, one())(X)


# ----------------------------------------------------------------------- errors


def test_an_operator_that_nobody_has_is_told_where_to_go():
    with pytest.raises(UnsupportedOpError) as caught:
        ov.Core().compile_model(one(), "REFERENCE")
    assert "No operators of ONNX: 'my.ops::Swirl'. Core.add_extension takes" in str(caught.value)
    with pytest.raises(UnsupportedOpError) as caught:
        compiled(SWIRL, one(), "CPU")
    assert "add_extension" not in str(caught.value)
    assert "'HETERO:CPU,REFERENCE'" in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (lambda x: x[:, :2], r"returned float32\[2,2\] as output 0; its rule says float32\[\?,3\]"),
        (lambda x: x.astype(np.float64), r"returned float64\[2,3\] as output 0"),
        (lambda x: x[0], r"returned float32\[3\] as output 0"),
        (lambda x: (), "returned 0 outputs; expected 1"),
    ],
)
def test_results_that_are_not_as_the_rule_says_are_refused(returned, shown):
    made = compiled(ov.CustomOperator("Swirl", "my.ops", returned, infer=lambda x: x), one())
    with pytest.raises(InferError, match=shown):
        made(X)


def test_what_a_function_raises_names_the_operation_and_its_inputs():
    def fails(x):
        raise KeyError("table")

    made = compiled(ov.CustomOperator("Swirl", "my.ops", fails, infer=lambda x: x), one())
    what = (
        r"operator 'my.ops::Swirl', which computes operation 'own', failed for inputs "
        r"float32\[2,3\]: KeyError: 'table'"
    )
    with pytest.raises(InferError, match=what) as caught:
        made(X)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("infer", "shown"),
    [
        (lambda x: x.nothing, "AttributeError"),
        (lambda x: (np.float32, ["N", -3]), "failed"),
        (lambda x: 3, "expected a dtype and a shape; found 3"),
        (lambda x: [], "declares 0 outputs; the operation has 1"),
    ],
)
def test_rules_that_fail_are_blamed(infer, shown):
    core = ov.Core()
    core.add_extension(ov.CustomOperator("Swirl", "my.ops", swirl, infer=infer))
    with pytest.raises(ModelError, match=f"The rule of operator 'my.ops::Swirl'.*'own'.*{shown}"):
        core.read_model(one())


def test_without_a_rule_the_model_has_to_tell_types():
    nodes = [node("Swirl", ["x"], "a", "own", domain="my.ops"), node("Neg", ["a"], "y", "neg")]
    model = of_own(nodes, [value("x", [2, 3])], ["y"])
    operator = ov.CustomOperator("Swirl", "my.ops", swirl)
    with pytest.raises(UnsupportedOpError, match=r"element type of 'a'; give operator"):
        compiled(operator, model)
    model.graph.value_info.append(value("a", [2, 3]))
    np.testing.assert_array_equal(compiled(operator, model)(X)["y"], -swirled(X, 1.0))


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: ov.CustomOperator("Relu", "", swirl), "ONNX's own operator"),
        (lambda: ov.CustomOperator("Swirl", "partita.cpu", swirl), "is Partita's"),
        (lambda: ov.CustomOperator("", "my.ops", swirl), "has a name"),
        (lambda: ov.CustomOperator("Swirl", "my.ops", 3), "3 cannot be"),
        (lambda: ov.OpExtension(ov.Op), "a subclass of partita.Op"),
        (lambda: ov.OpExtension(type("Empty", (ov.Op,), {})), "Empty needs a method validate"),
        (lambda: Swirl([1]), "takes no inputs"),
        (lambda: ov.Core().add_extension("lib.so"), "libraries of operators are not loaded"),
        (lambda: ov.Core().add_extension(3), "a subclass of partita.Op; found 3"),
    ],
)
def test_what_is_no_operator_is_refused(make, shown):
    with pytest.raises(ModelError, match=shown):
        make()
