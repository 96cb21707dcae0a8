"""Attention spelled out is found in its spellings, and nothing else is taken for it."""

import numpy as np
import pytest
from onnx import numpy_helper, parser, shape_inference

from partita.lowering import fuse, lower_proto

QKV = """
    qt = Transpose <perm = [0, 2, 1, 3]> (q)
    kt = Transpose <perm = [0, 2, 3, 1]> (k)
    vt = Transpose <perm = [0, 2, 1, 3]> (v)
"""
TWO_STEPS = QKV.replace(
    "kt = Transpose <perm = [0, 2, 3, 1]> (k)",
    "kh = Transpose <perm = [0, 2, 1, 3]> (k) kt = Transpose <perm = [0, 1, 3, 2]> (kh)",
)
BACK = "t = MatMul(p, vt) y = Transpose <perm = [0, 2, 1, 3]> (t)"


CONSTANTS = {
    "half": np.float32(0.5),
    "two": np.float32([2]),
    "zero": np.float32(0),
    "row": np.array([-1, 7, 4]),
    "back": np.array([3, 2, 4, 7]),
}


def fused(nodes, opset=17, extra_output="", batches="B", keys="T"):
    text = f"""<ir_version: 8, opset_import: ["": {opset}]>
    g (float[{batches}, 5, 2, 4] q, float[{batches}, {keys}, 2, 4] k,
       float[{batches}, {keys}, 2, 3] v, float[{batches}, 1, 1, {keys}] mask)
    => (float[{batches}, 5, 2, 3] y{extra_output}) {{ {nodes} }}"""
    model = parser.parse_model(text)
    for name, array in CONSTANTS.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    graph = lower_proto(shape_inference.infer_shapes(model))
    fuse(graph)
    return graph


@pytest.mark.parametrize(
    ("nodes", "scale", "masked"),
    [
        ("s = MatMul(qt, kt) p = Softmax(s)", 1.0, False),
        ("s = MatMul(qt, kt) m = Mul(s, half) p = Softmax <axis = 3> (m)", 0.5, False),
        ("s = MatMul(qt, kt) m = Mul(half, s) a = Add(m, mask) p = Softmax(a)", 0.5, True),
        ("s = MatMul(qt, kt) m = Div(s, two) a = Add(mask, m) p = Softmax(a)", 0.5, True),
        ("s = MatMul(qt, kt) a = Add(s, mask) p = Softmax <axis = -1> (a)", 1.0, True),
    ],
)
@pytest.mark.parametrize("heads", [QKV, TWO_STEPS])
def test_spellings(nodes, scale, masked, heads):
    graph = fused(heads + nodes + BACK)
    (node,) = graph.nodes
    assert (node.domain, node.op_type, node.attrs["scale"]) == ("partita", "Attention", scale)
    wanted = ["q", "k", "v", "mask"] if masked else ["q", "k", "v"]
    assert [value.name for value in node.inputs] == wanted
    assert [value.name for value in node.outputs] == ["y"]


MATRICES = QKV.replace(
    "kt = Transpose <perm = [0, 2, 3, 1]> (k)",
    """kh = Transpose <perm = [0, 2, 1, 3]> (k) kr = Reshape(kh, row)
    kx = Transpose <perm = [0, 2, 1]> (kr) kt = Reshape(kx, back)""",
)


def test_heads_that_stay_before_the_sequence():
    nodes = QKV.replace("qt = Transpose <perm = [0, 2, 1, 3]> (q)", "qt = Relu(q)")
    nodes = nodes.replace("[0, 2, 3, 1]> (k)", "[0, 1, 3, 2]> (k)")
    graph = fused(nodes + "s = MatMul(qt, kt) p = Softmax(s) t = MatMul(p, vt) y = Relu(t)")
    assert [node.kind for node in graph.nodes] == ["Relu", "partita::Attention", "Relu"]
    assert graph.nodes[1].attrs["heads_first"] == [True, True, False, True]


def test_pytorch_spells_factors_matrices_and_nan():
    nodes = """qs = Mul(qt, half) ks = Mul(kt, two) s = MatMul(qs, ks) a = Add(s, mask)
    p = Softmax(a) n = IsNaN(p) w = Where(n, zero, p) t = MatMul(w, vt)
    y = Transpose <perm = [0, 2, 1, 3]> (t)"""
    (node,) = fused(MATRICES + nodes, batches=3, keys=7).nodes
    assert [value.name for value in node.inputs] == ["q", "k", "v", "mask"]
    assert node.attrs == {"scale": 1.0, "nan_is_zero": 1}


@pytest.mark.parametrize(("others", "is_fused"), [("", True), (", float[6, 4, 7] kx", False)])
def test_keys_of_batches_and_heads_in_a_row(others, is_fused):
    """They are laid out by heads first where nobody else reads them as they are."""
    nodes = MATRICES.replace("kr = Reshape(kh, row)", "ko = Reshape(kh, row) kr = Relu(ko)")
    graph = fused(
        nodes + "s = MatMul(qt, kt) p = Softmax(s)" + BACK,
        extra_output=others,
        batches=3,
        keys=7,
    )
    kinds = [node.kind for node in graph.nodes]
    assert (kinds[-1] == "partita::Attention") == is_fused
    if is_fused:
        assert kinds == ["Transpose", "Reshape", "Relu", "Reshape", "partita::Attention"]
        k = graph.nodes[-1].inputs[1]
        assert k.shape == (3, 2, 7, 4)
        assert graph.nodes[-1].attrs["heads_first"] == [False, True, False, False]


def test_a_transposition_that_others_read_stays():
    graph = fused(
        QKV + "s = MatMul(qt, kt) p = Softmax(s)" + BACK, extra_output=", float[B, 2, 5, 4] qt"
    )
    assert [node.kind for node in graph.nodes] == ["Transpose", "partita::Attention"]


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        (QKV + "s = MatMul(qt, kt) p = Softmax <axis = 2> (s)" + BACK, 17),
        (QKV + "s = MatMul(qt, kt) p = Softmax(s)" + BACK, 12),  # the default axis was 1
        (QKV + "s = MatMul(qt, kt) m = Div(half, s) p = Softmax(m)" + BACK, 17),
        (
            QKV.replace("[0, 2, 3, 1]> (k)", "[0, 3, 2, 1]> (k)")
            + "s = MatMul(qt, kt) p = Softmax(s)"
            + BACK,
            17,
        ),
        (QKV + "s = MatMul(qt, kt) p = LogSoftmax(s)" + BACK, 17),
        (
            QKV + "s = MatMul(qt, kt) p = Softmax(s) r = Relu(p) t = MatMul(r, vt)"
            " y = Transpose <perm = [0, 2, 1, 3]> (t)",
            17,
        ),
    ],
)
def test_what_only_looks_like_it_stays(nodes, opset):
    assert all(node.op_type != "Attention" for node in fused(nodes, opset).nodes)


def test_scores_that_are_an_output_stay():
    nodes = QKV + "s = MatMul(qt, kt) p = Softmax(s)" + BACK
    graph = fused(nodes, extra_output=", float[B, 2, 5, T] p")
    assert "Softmax" in [node.kind for node in graph.nodes]
