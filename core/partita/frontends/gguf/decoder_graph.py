"""The decoder of a GGUF file as one graph, in the form in which onnxruntime-genai writes them.

Inputs are ``input_ids`` [batch, sequence], ``seqlens_k`` [batch] (each sequence's length after the
run, less one), ``total_sequence_length`` (the longest of these lengths), and per layer caches of
keys and values [batch, heads, context, head size]; outputs are ``logits`` and the caches as they
become. The caches are the model's variables: a request hands them on by itself.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import ModelFormatError
from partita.frontends.gguf import rotary
from partita.frontends.gguf.container import GgufFile
from partita.frontends.gguf.feed_forward import feed_forward
from partita.frontends.gguf.graph_writer import MICROSOFT, OPSET, Dims, GraphWriter
from partita.frontends.gguf.hyperparameters import Hyperparameters, RopeScaling, hyperparameters
from partita.frontends.gguf.latent_attention import LatentAttention
from partita.frontends.gguf.options import DecoderOptions
from partita.frontends.gguf.temperature import query_factors
from partita.frontends.gguf.weight_operators import embedding, linear, linear_parts, multiply
from partita.model.variables import METADATA_KEY, Variable, to_metadata
from partita.tensors.cache_rows import ATTRIBUTES, row_bytes

if TYPE_CHECKING:
    import onnx_ir as ir

DEFAULT_CONTEXT = 4096
"""Room of the caches where the caller names none and the model was made for more."""

_SINKS = 11
"""Place of the input of attention that has no value and takes a part of each softmax."""

METADATA_PREFIX = "gguf."
"""Before the keys of the file's metadata in the model's."""

_LONGEST_TEXT = 1 << 16
"""Of texts of the file's metadata that the model's repeats; a chat template is shorter."""


def build_decoder(file: GgufFile, options: DecoderOptions) -> ir.Model:
    """The model of a file.

    Raises:
        ModelFormatError: The file holds no decoder that is read, or the options do not fit it.
    """
    import onnx_ir as ir

    sizes = hyperparameters(file)
    decoder = _Decoder(GraphWriter(file), sizes, _context(file, sizes, options), options)
    graph = decoder.graph()
    for layer in range(sizes.layers, sizes.layers + sizes.unread_layers):
        decoder.writer.pass_over(f"blk.{layer}.")
    if unread := decoder.writer.unread():
        raise ModelFormatError(
            f"{file.origin} has a tensor '{unread[0]}' that decoders of '{sizes.name}' as they are "
            f"read here do not use ({len(unread)} such tensors)."
        )
    model = ir.Model(graph, ir_version=11, producer_name="GGUF")
    model.metadata_props.update(_metadata(file))
    model.metadata_props[METADATA_KEY] = to_metadata(decoder.variables)
    return model


def _context(file: GgufFile, sizes: Hyperparameters, options: DecoderOptions) -> int:
    """The room of the caches."""
    most = sizes.longest
    if options.context is None:
        return min(most, DEFAULT_CONTEXT)
    if not isinstance(options.context, Integral) or not 1 <= options.context <= most:
        raise ModelFormatError(
            f"{file.origin} is read with a context of {options.context!r} positions; 1 to {most} "
            "are possible."
        )
    return options.context


def _element_type(name: str) -> ir.DataType:
    """That of the caches."""
    import onnx_ir as ir

    kinds = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "int8": "INT8"}
    if name not in kinds:
        raise ModelFormatError(
            f"Caches of type {name!r} are not known; these are: {', '.join(kinds)}."
        )
    return ir.DataType[kinds[name]]


def _metadata(file: GgufFile) -> dict[str, str]:
    """The file's metadata but for arrays and very long texts."""
    return {
        METADATA_PREFIX + key: str(value)
        for key, value in file.metadata.items()
        if isinstance(value, (int, float))
        or (isinstance(value, str) and len(value) < _LONGEST_TEXT)
    }


class _Decoder:
    """Writes one decoder."""

    def __init__(
        self, writer: GraphWriter, sizes: Hyperparameters, context: int, options: DecoderOptions
    ) -> None:
        import onnx_ir as ir

        self.writer = writer
        self.variables: list[Variable] = []
        self._sizes = sizes
        self._context = context
        self._all_logits = options.all_logits
        self._cache_type = _element_type(options.cache_type)
        self._is_quantized = self._cache_type == ir.DataType.INT8
        self._caches: list[ir.Value] = []
        self._after: list[ir.Value] = []
        self._tables: dict[bool, list[ir.Value]] = {}
        self._factors: ir.Value | None = None
        int32 = ir.DataType.INT32
        self._ids = writer.value("input_ids", ("batch", "sequence"), ir.DataType.INT64)
        self._lengths = writer.value("seqlens_k", ["batch"], int32)
        self._total = writer.value("total_sequence_length", [], int32)
        self._stream = ("batch", "sequence", sizes.hidden)

    def graph(self) -> ir.Graph:
        """All of it."""
        import onnx_ir as ir

        logits = self._logits(self._blocks(self._embedding()))
        return ir.Graph(
            [self._ids, self._lengths, self._total, *self._caches],
            [logits, *self._after],
            nodes=self.writer.nodes,
            initializers=self.writer.initializers,
            opset_imports={"": OPSET, MICROSOFT: 1},
            name=self._sizes.name,
        )

    def _vocabulary(self) -> int:
        return self.writer.rows_of("token_embd.weight", self._sizes.hidden)

    def _embedding(self) -> ir.Value:
        sizes = self._sizes
        found = embedding(self.writer, self._ids, "token_embd", self._vocabulary(), sizes.hidden)
        return self._multiplied(found, sizes.embedding_scale, "embedding_scale")

    def _multiplied(self, value: ir.Value, factor: float, scale: str) -> ir.Value:
        """The value times a factor, which is an initializer of that name; as it is for 1."""
        if factor == 1.0:
            return value
        writer, name = self.writer, f"{value.name}.multiplied"
        constant = writer.constant(scale, np.array(factor, np.float32))
        return writer.apply("Mul", [value, constant], name, writer.dims(value))

    def _blocks(self, stream: ir.Value) -> ir.Value:
        """All blocks and the last normalization."""
        sizes = self._sizes
        normal = stream
        if not sizes.architecture.normalizes_results:
            normal = self._normal(stream, "blk.0.attn_norm")
        for layer in range(sizes.layers):
            name = f"blk.{layer}"
            last = layer + 1 == sizes.layers
            follower = "output_norm" if last else f"blk.{layer + 1}.attn_norm"
            attended = self._attention(self._second_normal(normal, stream, name), layer)
            if sizes.architecture.feed_forward_norm != "post_attention_norm":
                attended = self._post_normal(attended, f"{name}.post_attention_norm")
            attended = self._multiplied(attended, sizes.residual_scale, "residual_scale")
            if self._is_parallel(name):
                stream = self._sum(stream, attended, f"{name}.attn_sum")
            else:
                before = f"{name}.{sizes.architecture.feed_forward_norm}"
                normal, stream = self._add_and_normal(stream, attended, before)
            fed = feed_forward(self.writer, sizes, normal, layer)
            fed = self._post_normal(fed, f"{name}.post_ffw_norm")
            fed = self._multiplied(fed, sizes.residual_scale, "residual_scale")
            normal, stream = self._add_and_normal(stream, fed, follower, last)
        return normal

    def _is_parallel(self, block: str) -> bool:
        """Whether both halves of a block read the same; of StableLM the file tells."""
        if self._sizes.name == "stablelm":
            return not self.writer.has(f"{block}.ffn_norm.weight")
        return self._sizes.architecture.parallel

    def _second_normal(self, normal: ir.Value, stream: ir.Value, block: str) -> ir.Value:
        """What attention reads where the file has a normalization for it alone, as Falcon 40B."""
        name = f"{block}.attn_norm_2"
        if self._sizes.architecture.parallel and self.writer.has(f"{name}.weight"):
            return self._normal(stream, name)
        return normal

    def _sum(self, stream: ir.Value, added: ir.Value, name: str) -> ir.Value:
        return self.writer.apply("Add", [stream, added], name, self._stream)

    def _attention(self, normal: ir.Value, layer: int) -> ir.Value:
        """Projections, rotation, the cache and attention of one layer."""
        sizes, writer, name = self._sizes, self.writer, f"blk.{layer}"
        width = sizes.heads * sizes.head_size
        latent = None
        if sizes.latent is not None:
            latent = LatentAttention(writer, sizes, sizes.latent, name)
            query, key, value = latent.inputs(normal)
        else:
            query, key, value = self._projections(normal, name)
            query = self._head_normal(query, f"{name}.attn_q_norm", sizes.heads)
            key = self._head_normal(key, f"{name}.attn_k_norm", sizes.kv_heads)
        query = self._sharpened(query)
        past, present = self._cache(layer)
        result = writer.value(f"{name}.attention", ("batch", "sequence", width))
        local = sizes.is_local(layer)
        inputs: list[ir.Value | None] = [query, key, value, *past, self._lengths, self._total]
        attributes: dict[str, Any] = {**ATTRIBUTES} if self._is_quantized else {}
        if sizes.is_rotated(layer):
            inputs += self._rotation(local)
            interleaved = int(sizes.architecture.rotary_interleaved)
            attributes |= {"do_rotary": 1, "rotary_interleaved": interleaved}
        if writer.has(f"{name}.attn_sinks.weight"):
            inputs += [None] * (_SINKS - len(inputs))
            inputs.append(writer.vector(f"{name}.attn_sinks.weight", sizes.heads))
        if sizes.attention_softcap:
            attributes["softcap"] = sizes.attention_softcap
        if local:
            attributes["local_window_size"] = sizes.window
        writer.write(
            "GroupQueryAttention",
            inputs,
            [result, *present],
            MICROSOFT,
            num_heads=sizes.heads,
            kv_num_heads=sizes.kv_heads,
            scale=sizes.attention_scale,
            **attributes,
        )
        if latent is not None:
            return latent.output(result)
        return linear(writer, result, f"{name}.attn_output", sizes.hidden, width)

    def _sharpened(self, query: ir.Value) -> ir.Value:
        """Queries that grow with their positions, where a cache holds some that do."""
        temperature = self._sizes.temperature
        if not temperature.scale or self._context <= temperature.step:
            return query
        if self._factors is None:
            inputs = self._ids, self._lengths
            self._factors = query_factors(self.writer, temperature, *inputs)
        name = f"{query.name}.sharpened"
        return self.writer.apply("Mul", [query, self._factors], name, self.writer.dims(query))

    def _projections(self, normal: ir.Value, name: str) -> list[ir.Value]:
        """Queries, keys and values of a layer, whose weights may lie in one tensor."""
        sizes, writer = self._sizes, self.writer
        width, narrow = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
        parts = {f"{name}.attn_q": width, f"{name}.attn_k": narrow, f"{name}.attn_v": narrow}
        if writer.has(f"{name}.attn_qkv.weight"):
            return linear_parts(writer, normal, f"{name}.attn_qkv", parts, sizes.hidden)
        return [linear(writer, normal, part, rows, sizes.hidden) for part, rows in parts.items()]

    def _cache(self, layer: int) -> tuple[list[ir.Value], list[ir.Value]]:
        """What a layer's keys and values were, and what they become."""
        sizes = self._sizes
        row = row_bytes(sizes.head_size) if self._is_quantized else sizes.head_size
        shape = ("batch", sizes.kv_heads, self._context, row)
        past, present = [], []
        for part in ("key", "value"):
            before, after = f"past_key_values.{layer}.{part}", f"present.{layer}.{part}"
            past.append(self.writer.value(before, shape, self._cache_type))
            present.append(self.writer.value(after, shape, self._cache_type))
            self.variables.append(Variable(f"{layer}.{part}", before, after))
        self._caches += past
        self._after += present
        return past, present

    def _rotation(self, local: bool) -> list[ir.Value]:
        """Tables of cosines and sines, those of layers with a window perhaps of another base."""
        local = local and self._sizes.local_rope_base > 0
        if local not in self._tables:
            self._tables[local] = self._rotary_tables(local)
        return self._tables[local]

    def _rotary_tables(self, local: bool) -> list[ir.Value]:
        sizes, writer = self._sizes, self.writer
        base, scaling, name = sizes.rope_base, sizes.rope_scaling, ""
        if local:
            base, name = sizes.local_rope_base, "local_"
            stretched = sizes.architecture.stretches_global
            scaling = RopeScaling(magnitude=1.0 if stretched else scaling.magnitude)
        turns = rotary.frequencies(sizes.rotated, base, scaling, self._divisors())
        tables = rotary.RotaryTables(turns, self._context, scaling)
        return [
            writer.constant(f"{name}cos_cache", tables.tensor("cos")),
            writer.constant(f"{name}sin_cache", tables.tensor("sin")),
        ]

    def _divisors(self) -> np.ndarray[Any, Any] | None:
        """By what the file divides each frequency, if it does."""
        given = self._numbers_of_pairs("rope_freqs.weight")
        shorter = self._numbers_of_pairs("rope_factors_short.weight")
        longer = self._numbers_of_pairs("rope_factors_long.weight")
        if given is not None:
            return given
        return longer if self._context > self._sizes.rope_scaling.original_context else shorter

    def _numbers_of_pairs(self, name: str) -> np.ndarray[Any, Any] | None:
        """A number for each pair of elements that is turned, if the file has the tensor."""
        writer = self.writer
        if not writer.has(name):
            return None
        divisors = writer.numbers(name, self._sizes.rotated // 2)
        if not ((divisors > 0) & (divisors < np.inf)).all():
            raise ModelFormatError(
                f"{writer.origin}: tensor '{name}' holds numbers that no frequency can be divided "
                "by."
            )
        return divisors

    def _logits(self, normal: ir.Value) -> ir.Value:
        """The product with the last weight, which may be that of the embedding."""
        sizes, writer = self._sizes, self.writer
        if not self._all_logits:
            normal = self._last_position(normal)
        weight = "output.weight" if writer.has("output.weight") else "token_embd.weight"
        capped = sizes.logit_softcap
        rows = self._vocabulary()
        tensor = writer.tensor(weight, [rows, sizes.hidden])
        shape = ("batch", "sequence" if self._all_logits else 1, rows)
        added = writer.vector("output.bias", rows) if writer.has("output.bias") else None
        is_whole = not capped and sizes.logit_scale == 1.0
        name = "logits" if is_whole else "logits.product"
        found = multiply(writer, normal, tensor, name, added)
        if is_whole:
            return found
        if not capped:
            scale = writer.constant("logit_scale", np.array(sizes.logit_scale, np.float32))
            return writer.apply("Mul", [found, scale], "logits", shape)
        bound = writer.constant("logit_softcap", np.array(capped, np.float32))
        parts = writer.apply("Div", [found, bound], "logits.parts", shape)
        turned = writer.apply("Tanh", [parts], "logits.tanh", shape)
        return writer.apply("Mul", [turned, bound], "logits", shape)

    def _last_position(self, normal: ir.Value) -> ir.Value:
        last = self.writer.constant("last_index", np.array([-1], np.int64))
        shape = ("batch", 1, self._sizes.hidden)
        return self.writer.apply("Gather", [normal, last], "last_position", shape, axis=1)

    # ------------------------------------------------------------------- normalizations

    def _normal(self, value: ir.Value, name: str) -> ir.Value:
        gamma = self.writer.vector(f"{name}.weight", self._sizes.hidden)
        bias = f"{name}.bias"
        added = self.writer.vector(bias, self._sizes.hidden) if self.writer.has(bias) else None
        return self._normalised(value, gamma, name, self._stream, added)

    def _normalised(
        self,
        value: ir.Value,
        gamma: ir.Value,
        name: str,
        shape: Dims,
        added: ir.Value | None = None,
    ) -> ir.Value:
        """The value normalized along its last dimension, times gamma, and a bias added."""
        centered = self._sizes.architecture.centered
        operator = "LayerNormalization" if centered else "SimplifiedLayerNormalization"
        inputs = [value, gamma] if added is None else [value, gamma, added]
        epsilon = self._sizes.epsilon
        return self.writer.apply(operator, inputs, name, shape, epsilon=epsilon, axis=-1)

    def _post_normal(self, value: ir.Value, name: str) -> ir.Value:
        """What a block adds, normalized where the file has a weight for that."""
        return self._normal(value, name) if self.writer.has(f"{name}.weight") else value

    def _add_and_normal(
        self, stream: ir.Value, added: ir.Value, name: str, last: bool = False
    ) -> tuple[ir.Value, ir.Value]:
        """The sum, normalized and as it is; twice as it is where blocks read it so."""
        writer = self.writer
        if self._sizes.architecture.normalizes_results and not last:
            total = self._sum(stream, added, f"{name}.sum")
            return total, total
        if self._sizes.architecture.centered:
            total = self._sum(stream, added, f"{name}.sum")
            return self._normal(total, name), total
        normal = writer.value(name, self._stream)
        total = writer.value(f"{name}.sum", self._stream)
        gamma = writer.vector(f"{name}.weight", self._sizes.hidden)
        writer.write(
            "SkipSimplifiedLayerNormalization",
            [stream, added, gamma],
            [normal] if last else [normal, None, None, total],
            MICROSOFT,
            epsilon=self._sizes.epsilon,
        )
        return normal, total

    def _head_normal(self, value: ir.Value, name: str, heads: int) -> ir.Value:
        """Queries or keys with each head normalized, where the file has a weight for that."""
        writer, size = self.writer, self._sizes.head_size
        if not writer.has(f"{name}.weight"):
            return value
        if size != heads * size == writer.shape_of(f"{name}.weight")[0]:
            gamma = writer.vector(f"{name}.weight", heads * size)
            return self._normalised(value, gamma, name, writer.dims(value))
        apart = ("batch", "sequence", heads, size)
        to_heads = writer.constant(f"sizes_{heads}_heads", np.array([0, 0, heads, size], np.int64))
        joined = writer.constant(f"sizes_{heads}_joined", np.array([0, 0, heads * size], np.int64))
        cut = writer.apply("Reshape", [value, to_heads], f"{name}.heads", apart)
        gamma = writer.vector(f"{name}.weight", size)
        normal = self._normalised(cut, gamma, name, apart)
        return writer.apply(
            "Reshape", [normal, joined], f"{name}.joined", ("batch", "sequence", heads * size)
        )
