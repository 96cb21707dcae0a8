"""Which Ifs are experts of a mixture."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

import partita
from partita.lowering import fuse, lower
from partita.lowering.fusion.mixture import compute_both_branches, expert_ifs

ONE_EXPERT = """<ir_version: 10, opset_import: ["" : 21]>
one (float[{x}] x, float[{share}] share, bool chosen) => (y) {{
    y = If (chosen) <
        then_branch = computed () => (result) {{
            gate = MatMul (x, g)
            up = MatMul (x, u)
            sigmoid = Sigmoid (gate)
            silu = Mul (gate, sigmoid)
            gated = Mul (silu, up)
            down = MatMul (gated, d)
            result = Mul (down, share)
        }},
        else_branch = left_out () => (nothing) {{ nothing = Mul (share, row) }}
    >
}}"""


def model_of(x, share, row):
    """One expert, whose share is an input as where a placement cuts it off from its choice."""
    proto = parser.parse_model(ONE_EXPERT.format(x=x, share=share))
    rng = np.random.default_rng(1)
    shapes = {"g": (4, 3), "u": (4, 3), "d": (3, 4)}
    weights = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    weights["row"] = np.zeros(row, np.float32)
    proto.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    return partita.Core().read_model(proto)


@pytest.mark.parametrize(
    ("x", "share", "row", "count"),
    [
        ("N, 4", "N, 1", 4, 1),
        ("2, N, 4", "2, N, 1", 4, 1),
        ("N, 4", "1, 1", 4, 0),  # nothing for all of them is one row, not one for each
        ("N, 4", "1", 4, 0),
        ("N, 4", "N, 4", 4, 0),
        ("N, 4", "N, 1", 1, 0),
    ],
)
def test_what_is_left_out_has_the_shape_of_a_result(x, share, row, count):
    graph = lower(model_of(x, share, row))
    assert len(expert_ifs(graph)) == count
    fuse(graph, accepts=lambda node: False)
    compute_both_branches(graph)
    assert any(node.kind == "If" for node in graph.nodes) == (count == 0)
