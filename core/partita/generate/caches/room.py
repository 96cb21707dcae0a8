"""Replaces caches that grow by Concat with buffers of fixed capacity for new tokens.

Decoders as optimum exports them, and those of OpenVINO with state, join past and new keys in every
run, and read what came out: a copy of the whole cache for each token. Where nothing but attention
reads it, as two products with a softmax between them, the same is ``GroupQueryAttention`` over a
buffer, which a device updates in place and of which it reads the valid part. Which keys a token
sees is left to the mask that the model computes, so that results are the same whatever it is; but a
token that it keeps from every key by infinities is 0, not NaN.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.generate.caches.attention_sites import (
    HEADS_BEHIND,
    CacheGrowth,
    Site,
    UnusualCacheError,
    growths,
    maker,
    number,
    permutes,
    repeated,
    sites,
)
from partita.generate.caches.graph_edits import GraphWriter, drop_unused, let_read
from partita.generate.caches.whole_masks import with_whole_mask
from partita.model.model import Model, value_shape
from partita.model.variables import METADATA_KEY, Variable, to_metadata

if TYPE_CHECKING:
    import onnx_ir as ir

    from partita.core import Core

_log = logging.getLogger(__name__)

ROOM_KEY = "partita.caches_with_room"
"""The entry of a model's metadata that says for how many tokens its caches have room at first."""

_MICROSOFT, _ATTENTION = "com.microsoft", "GroupQueryAttention"
ROOM_SIZE = "cache_room"
"""The size of caches along the axis of tokens."""


def give_room(
    core: Core, device: str, model: Model, caches: Sequence[Variable], axis: int, room: int
) -> Model:
    """A decoder whose caches are buffers with room, where the model and the device allow it.

    Args:
        core: Where the device is.
        device: Where the decoder is going to run.
        model: A decoder whose caches grow.
        caches: What its runs read and write.
        axis: The axis along which they grow.
        room: Tokens that they are to have room for at first.

    Returns:
        What :func:`with_room` makes, with a mask of one length where that can be
        (:mod:`partita.generate.caches.whole_masks`); the model itself where its caches stay as they
        are, which a line of the log tells, with the reason.
    """
    try:
        made = with_room(model, caches, axis, room)
        _require_same_devices(core, device, model, made)
    except UnusualCacheError as reason:
        _log.warning("Caches of '%s' are copied for each token: %s.", model.name, reason)
        return model
    try:
        return with_whole_mask(made, ROOM_SIZE)
    except UnusualCacheError as reason:
        _log.info("Calls of '%s' are made ready for each length: %s.", model.name, reason)
        return made


def with_room(model: Model, caches: Sequence[Variable], axis: int, room: int) -> Model:
    """A copy of a decoder whose caches are buffers with room.

    It has the inputs ``seqlens_k`` and ``total_sequence_length`` of ``GroupQueryAttention``, and
    its ``attention_mask`` is as long as all tokens, the new ones included.

    Args:
        model: A decoder whose caches grow; weights are shared.
        caches: What its runs read and write.
        axis: The axis along which they grow.
        room: Tokens that they are to have room for at first; whoever runs the model gives them it.

    Raises:
        UnusualCacheError: A cache is read otherwise than by an attention that is known here.
    """
    made = model.clone()
    _Rewriting(made.ir.graph, caches, axis).run()
    made.ir.metadata_props[METADATA_KEY] = to_metadata(caches)
    made.ir.metadata_props[ROOM_KEY] = str(room)
    return made.reshape({})


def _require_same_devices(core: Core, device: str, model: Model, rewritten: Model) -> None:
    """Looks whether the attentions of a rewritten model run where those of the model do.

    Raises:
        UnusualCacheError: They do not, as where a device lacks the operator.
    """
    before, after = (core.query_model(one, device) for one in (model, rewritten))
    for op in rewritten.ops:
        if op.op_type == _ATTENTION and after.get(op.name) != before.get(op.name):
            raise UnusualCacheError(
                f"'{op.name}' would not run on {before.get(op.name)}: {after.reasons.get(op.name)}"
            )


class _Rewriting:
    """Rewrites one graph, or raises `UnusualCacheError` half-way.

    Args:
        graph: Changed in place.
        caches: Its caches.
        axis: The axis along which they grow.
    """

    def __init__(self, graph: ir.Graph, caches: Sequence[Variable], axis: int) -> None:
        self._graph = graph
        if any(cache.begun for cache in caches):
            raise UnusualCacheError("a run computes what a cache begins with")
        self._growths = growths(graph, caches, axis)
        self._sites = sites(graph, self._growths)
        self._first = graph[0]
        self._write = GraphWriter(graph, "cache_room")
        self._biases: dict[Any, ir.Value] = {}

    def run(self) -> None:
        """Rewrites all attentions, and what asks for the lengths of caches.

        Raises:
            UnusualCacheError: A cache is read by others than its attention. The graph is half
                changed then, and of no use.
        """
        self._inputs = self._with_lengths()
        tokens, mask = (
            self._write.emit(self._first, "Shape", self._inputs[name])
            for name in ("input_ids", "attention_mask")
        )
        zero, one = self._write.const([0]), self._write.const([1])
        self._batch = self._write.emit(self._first, "Gather", tokens, zero, axis=0)
        self._new = self._write.emit(self._first, "Gather", tokens, one, axis=0)
        self._total = self._write.emit(self._first, "Gather", mask, one, axis=0)
        self._before = self._write.emit(self._first, "Sub", self._total, self._new)
        for site in self._sites:
            self._replace(site)
        drop_unused(self._graph)
        for growth in self._growths.values():
            users = [use.node.name for use in growth.present.uses()]
            if users or len(growth.past.uses()) != 1:
                raise UnusualCacheError(f"'{growth.past.name}' is read by others too: {users[:3]}")
        self._graph.opset_imports.setdefault(_MICROSOFT, 1)

    def _with_lengths(self) -> dict[str | None, ir.Value]:
        """The inputs, with those that the operator and the shapes of caches take."""
        import onnx_ir as ir

        inputs = {value.name: value for value in self._graph.inputs}
        batch = (value_shape(inputs["input_ids"]) or ("batch",))[0]
        for name, kind, shape in (
            ("attention_mask", ir.DataType.INT64, [batch, "total_tokens"]),
            ("seqlens_k", ir.DataType.INT32, [batch]),
            ("total_sequence_length", ir.DataType.INT32, []),
        ):
            if name not in inputs:
                added = ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape(shape))
                inputs[name] = added
                self._graph.inputs.append(added)
        return inputs

    def _replace(self, site: Site) -> None:
        """Lets all who read the result of an attention read that of the operator."""
        import onnx_ir as ir

        mix, (result,) = site.mix, site.mix.outputs
        query, scale = self._scaled(site)
        inputs = [self._merged(mix, x) for x in (query, site.keys.new, site.values.new)]
        inputs += [site.keys.past, site.values.past]
        inputs += [self._inputs[name] for name in ("seqlens_k", "total_sequence_length")]
        node = ir.node(
            _ATTENTION,
            [*inputs, None, None, None, self._bias(site)],
            {
                "num_heads": site.heads,
                "kv_num_heads": site.keys.heads,
                "scale": scale,
                "causal": 0,
            },
            domain=_MICROSOFT,
            num_outputs=3,
            name=mix.name,
        )
        mix.name = f"{mix.name}/product"
        self._graph.insert_before(mix, node)
        made, *presents = node.outputs
        made.name = f"{node.name}/heads"
        apart = self._write.emit(
            mix, "Reshape", made, self._write.const([0, 0, site.heads, site.keys.size])
        )
        readers = [use.node for use in result.uses()]
        if len(readers) == 1 and permutes(readers[0], HEADS_BEHIND):
            let_read(readers[0].outputs[0], apart)
        else:
            let_read(result, self._write.emit(mix, "Transpose", apart, perm=HEADS_BEHIND))
        for growth, present in zip((site.keys, site.values), presents, strict=True):
            self._give_room(growth, present, site.heads)

    def _give_room(self, growth: CacheGrowth, present: ir.Value, heads: int) -> None:
        """Makes past and present one buffer; who asks for their shapes gets those of tokens."""
        import onnx_ir as ir

        past, old = growth.past, growth.present
        self._tell_shape(past, [growth.heads, self._before, growth.size])
        for value in repeated(growth):
            self._tell_shape(value, [heads, self._total, growth.size])
        self._tell_shape(old, [growth.heads, self._total, growth.size])
        shape = [(value_shape(past) or (None,))[0], growth.heads, ROOM_SIZE, growth.size]
        past.shape, present.shape, present.type = ir.Shape(shape), ir.Shape(shape), past.type
        present.name, old.name = old.name, f"{old.name}/joined"
        for place, value in enumerate(self._graph.outputs):
            if value is old:
                self._graph.outputs[place] = present

    def _tell_shape(self, value: ir.Value, dims: Sequence[Any]) -> None:
        """Answers whoever asks for the shape of (batch, *dims)."""
        parts = [self._batch, *(self._write.const([n]) if isinstance(n, int) else n for n in dims)]
        for node in [use.node for use in value.uses()]:
            if node.op_type == "Shape" and not node.domain:
                given = (node.attributes.get(name) for name in ("start", "end"))
                start, end = (None if one is None else one.as_int() for one in given)
                wanted = parts[start:end]
                if wanted:
                    shape = self._write.emit(self._first, "Concat", *wanted, axis=0)
                    let_read(node.outputs[0], shape)

    def _scaled(self, site: Site) -> tuple[ir.Value, float]:
        """Queries, and the factor of the scores; one that is no constant goes to the queries."""
        query, scale = site.query, 1.0
        for kind, factor in site.factors:
            known = number(factor)
            if known:
                scale = scale / known if kind == "Div" else scale * known
            else:
                query = self._write.emit(site.mix, kind, query, factor)
        return query, scale

    def _merged(self, before: ir.Node, x: ir.Value) -> ir.Value:
        """(batch, heads, tokens, size) as (batch, tokens, features)."""
        node = maker(x, "Transpose")
        if node is not None and permutes(node, HEADS_BEHIND) and node.inputs[0] is not None:
            by_token = node.inputs[0]
        else:
            by_token = self._write.emit(before, "Transpose", x, perm=HEADS_BEHIND)
        return self._write.emit(before, "Reshape", by_token, self._write.const([0, 0, -1]))

    def _bias(self, site: Site) -> ir.Value | None:
        """What is added to scores, with a row for each token and a number for each key."""
        terms, kind = [*site.biases], site.query.dtype
        if not terms and not site.replaced:
            return None
        if kind is None:
            raise UnusualCacheError(f"the type of '{site.query.name}' is not known")
        key = *site.biases, *site.replaced, kind
        if key in self._biases:
            return self._biases[key]
        for condition, far in site.replaced:
            zero = self._write.const(np.zeros((), None if far.dtype is None else far.dtype.numpy()))
            terms.append(self._write.emit(site.mix, "Where", condition, zero, far))
        total, *others = (self._write.emit(site.mix, "Cast", x, to=kind.value) for x in terms)
        for other in others:
            total = self._write.emit(site.mix, "Add", total, other)
        ones = self._write.const([1, 1])
        shape = self._write.emit(site.mix, "Concat", ones, self._new, self._total, axis=0)
        self._biases[key] = self._write.emit(site.mix, "Expand", total, shape)
        return self._biases[key]
