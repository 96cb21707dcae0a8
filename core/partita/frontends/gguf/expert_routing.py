"""Which experts each token chooses, and their shares in what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.gguf.graph_writer import Dims, GraphWriter
from partita.frontends.gguf.hyperparameters import Routing
from partita.frontends.gguf.weight_operators import linear

if TYPE_CHECKING:
    import onnx_ir as ir


def choose_experts(
    writer: GraphWriter, routing: Routing, normal: ir.Value, block: str
) -> tuple[list[ir.Value], list[ir.Value]]:
    """The share of each expert in each token, and whether any token chose the expert.

    Args:
        writer: Writes the operations.
        routing: How tokens choose.
        normal: The normalized stream [batch, sequence, hidden].
        block: The block's name, e.g. ``"blk.0"``.
    """
    import onnx_ir as ir

    name, count = f"{block}.experts", routing.experts
    hidden = int(writer.dims(normal)[-1])
    scores = linear(writer, normal, f"{block}.ffn_gate_inp", count, hidden)
    everywhere = writer.dims(scores)
    if routing.scores == "softmax":
        scores = writer.apply("Softmax", [scores], f"{name}.softmax", everywhere, axis=-1)
    elif routing.scores == "sigmoid":
        scores = writer.apply("Sigmoid", [scores], f"{name}.sigmoid", everywhere)
    wishes = _of_groups(writer, routing, _wishes(writer, routing, scores, block), name)
    few = (*everywhere[:-1], routing.used)
    best = writer.value(f"{name}.best", few)
    places = writer.value(f"{name}.places", few, ir.DataType.INT64)
    number = writer.constant("experts_used", np.array([routing.used], np.int64))
    writer.write("TopK", [wishes, number], [best, places], axis=-1)
    if wishes is not scores:
        best = writer.apply("GatherElements", [scores, places], f"{name}.scores", few, axis=-1)
    of_best = _shares(writer, routing, best, name)
    dims = writer.value(f"{name}.shape", (len(everywhere),), ir.DataType.INT64)
    writer.write("Shape", [scores], [dims])
    zeros = writer.apply("ConstantOfShape", [dims], f"{name}.zeros", everywhere)
    spread = [zeros, places, of_best]
    shares = writer.apply("ScatterElements", spread, f"{name}.shares", everywhere, axis=-1)
    axes = writer.constant("token_axes", np.array([0, 1], np.int64))
    most = writer.apply("ReduceMax", [shares, axes], f"{name}.most", (count,), keepdims=0)
    chosen = writer.value(f"{name}.chosen", (count,), ir.DataType.BOOL)
    nothing = writer.constant("no_share", np.array(0, np.float32))
    writer.write("Greater", [most, nothing], [chosen])
    return writer.split(shares, count), writer.split(chosen, count)


def _wishes(writer: GraphWriter, routing: Routing, scores: ir.Value, block: str) -> ir.Value:
    """Scores with what the file adds to them for the choice alone, which evens out the experts."""
    bias = f"{block}.exp_probs_b.bias"
    if not writer.has(bias):
        return scores
    added = writer.vector(bias, routing.experts)
    return writer.apply("Add", [scores, added], f"{block}.experts.wishes", writer.dims(scores))


def _of_groups(writer: GraphWriter, routing: Routing, wishes: ir.Value, name: str) -> ir.Value:
    """Wishes where those of groups that a token does not choose are below all others.

    A group is worth its largest wish, where scores are those of a softmax, or its two largest:
    DeepSeek-V2 chooses so, and DeepSeek-V3.
    """
    import onnx_ir as ir

    groups, used = routing.groups, routing.groups_used
    if used == groups:
        return wishes
    shape = writer.dims(wishes)
    each = routing.experts // groups
    apart: Dims = (*shape[:-1], groups, each)
    cut = writer.constant("sizes_groups", np.array([0, 0, groups, each], np.int64))
    joined = writer.constant("sizes_experts", np.array([0, 0, groups * each], np.int64))
    parts = writer.apply("Reshape", [wishes, cut], f"{name}.groups", apart)
    count = min(each, 1 if routing.scores == "softmax" else 2)
    tops = writer.value(f"{name}.tops", (*apart[:-1], count))
    number = writer.constant("wishes_of_group", np.array([count], np.int64))
    places = writer.value(f"{name}.top_places", (*apart[:-1], count), ir.DataType.INT64)
    writer.write("TopK", [parts, number], [tops, places], axis=-1)
    last = writer.constant("last_axis", np.array([-1], np.int64))
    worth = writer.apply("ReduceSum", [tops, last], f"{name}.worth", apart[:-1], keepdims=0)
    few = (*shape[:-1], used)
    best = writer.value(f"{name}.best_groups", few)
    chosen = writer.value(f"{name}.chosen_groups", few, ir.DataType.INT64)
    most = writer.constant("groups_used", np.array([used], np.int64))
    writer.write("TopK", [worth, most], [best, chosen], axis=-1)
    nothing = writer.constant("no_share", np.array(0, np.float32))
    none = writer.apply("Mul", [worth, nothing], f"{name}.no_group", apart[:-1])
    one = writer.constant("one", np.array(1, np.float32))
    zeros = writer.apply("Mul", [best, nothing], f"{name}.no_groups", few)
    ones = writer.apply("Add", [zeros, one], f"{name}.one_groups", few)
    marks = writer.apply(
        "ScatterElements", [none, chosen, ones], f"{name}.marks", apart[:-1], axis=-1
    )
    columns = writer.apply("Unsqueeze", [marks, last], f"{name}.columns", (*apart[:-1], 1))
    is_open = writer.value(f"{name}.open", (*apart[:-1], 1), ir.DataType.BOOL)
    writer.write("Greater", [columns, nothing], [is_open])
    below = writer.constant("below_all", np.array(np.finfo(np.float32).min, np.float32))
    kept = writer.apply("Where", [is_open, parts, below], f"{name}.of_groups", apart)
    return writer.apply("Reshape", [kept, joined], f"{name}.in_groups", shape)


def _shares(writer: GraphWriter, routing: Routing, best: ir.Value, name: str) -> ir.Value:
    """Shares of chosen experts, by their scores."""
    few = writer.dims(best)
    if routing.scores == "softmax of chosen":
        best = writer.apply("Softmax", [best], f"{name}.softmax", few, axis=-1)
    if routing.is_normalized:
        last = writer.constant("last_axis", np.array([-1], np.int64))
        single = (*few[:-1], 1)
        total = writer.apply("ReduceSum", [best, last], f"{name}.total", single, keepdims=1)
        least = writer.constant("least_total", np.array(1e-20, np.float32))
        total = writer.apply("Add", [total, least], f"{name}.divisor", single)
        best = writer.apply("Div", [best, total], f"{name}.parts", few)
    if routing.scale == 1.0:
        return best
    scale = writer.constant("expert_scale", np.array(routing.scale, np.float32))
    return writer.apply("Mul", [best, scale], f"{name}.scaled", few)
