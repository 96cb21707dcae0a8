"""What the metadata of a GGUF file says about its decoder, checked before anything is built."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from partita.errors import ModelFormatError
from partita.frontends.gguf.architectures import ARCHITECTURES, Architecture
from partita.frontends.gguf.container import GgufFile

_LARGEST = 1 << 24
"""No size in the metadata of a real model exceeds this."""

_LARGEST_HEAD = 1 << 12
"""Nor has one heads of more elements: tables of rotary angles have a row of so many a position."""

_MOST_PARTS = 1 << 12
"""Nor so many experts, or heads that have products of their own: each is some operations."""

_HIGHEST = 1e12
"""Neither does any other number this; bases of rotary frequencies come closest."""

_LEAST_BASE = 2.0
"""Of a series of rotary frequencies that falls."""

_FACTORS = (2.0**-20, 2.0**20)
"""Smallest and largest factor by which frequencies may be stretched."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How a model's rotary frequencies were stretched for longer contexts.

    Attributes:
        kind: ``"none"``, ``"linear"``, ``"yarn"`` or ``"longrope"``.
        factor: By how much.
        original_context: The context before, which yarn asks for, and up to which longrope divides
            frequencies by other numbers than beyond.
        magnitude: By what cosines and sines are multiplied, besides what yarn does to them.
        yarn_magnitude: What yarn does to them.
        fast: Turns within the original context beyond which yarn keeps a frequency.
        slow: Turns below which it stretches one by the whole factor.
        truncated: It begins and ends to stretch at whole pairs.
    """

    kind: str = "none"
    factor: float = 1.0
    original_context: int = 0
    magnitude: float = 1.0
    yarn_magnitude: float = 1.0
    fast: float = 32.0
    slow: float = 1.0
    truncated: bool = True


@dataclass(frozen=True, slots=True)
class Temperature:
    """How products of queries and keys grow with the query's position.

    They are multiplied by ``1 + scale * log(1 + floor(position / step))``.

    Attributes:
        scale: 0 if they do not grow.
        step: Positions.
    """

    scale: float = 0.0
    step: int = 1


Scores = Literal["softmax of chosen", "softmax", "sigmoid"]


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens choose experts.

    Attributes:
        experts: Sets of weights of each feed-forward part that tokens choose from; 0 if there is
            one for all.
        used: How many of them a token chooses.
        scores: What becomes of scores: the softmax of those of chosen experts, of all, or each
            one's sigmoid.
        is_normalized: Shares are divided by their sum.
        scale: What shares are multiplied by.
        groups: Experts side by side, of which a token chooses some first; 1 for no groups.
        groups_used: How many a token chooses.
        first: The first layer that has experts.
        every: Every so many layers, the last of them, one has experts.
    """

    experts: int = 0
    used: int = 0
    scores: Scores = "softmax of chosen"
    is_normalized: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    first: int = 0
    every: int = 1

    def is_mixture(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.experts > 0 and layer >= self.first and (layer + 1) % self.every == 0


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Sizes of attention whose keys and values are products of one short vector for each token.

    Attributes:
        rank: Of the vector, without the elements that are turned by the position.
        query_rank: The same of queries; 0 if these are products of the stream.
        plain: Elements of a head of queries that are not turned.
        value: Elements of a head of values.
    """

    rank: int
    query_rank: int
    plain: int
    value: int


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Sizes and constants of a decoder.

    Attributes:
        name: The architecture's name.
        architecture: What it has in common with others of its name.
        layers: Number of blocks.
        unread_layers: Blocks behind these that guess more tokens than one, which is not done here.
        hidden: Size of the residual stream.
        heads: Heads of queries.
        kv_heads: Heads of keys and values.
        head_size: Elements of a head.
        rotated: Elements of a head that rotary embedding turns, the first ones.
        context: Most positions that the model was made for.
        epsilon: Of all normalizations.
        rope_base: Base of the rotary frequencies.
        rope_scaling: How they were stretched.
        window: Positions that a layer with a window attends to; 0 if there is none.
        global_every: Every so many layers, the last of them, one has no window; or for each layer
            whether it has one. 0 where the architecture does not tell.
        attention_scale: Factor of products of queries and keys.
        attention_softcap: Bound of these products by tanh; 0 for none.
        logit_softcap: The same for logits.
        routing: How tokens choose experts.
        latent: Sizes of attention of its kind; ``None`` where keys and values are of the stream.
        temperature: How attention becomes sharper with the position.
        local_rope_base: Base of the rotary frequencies in layers with a window; 0 if they turn as
            all others do.
        embedding_scale: What embeddings are multiplied by.
        residual_scale: What is multiplied by that before it is added to the residual stream.
        logit_scale: What logits are multiplied by.
    """

    name: str
    architecture: Architecture
    layers: int
    unread_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    rotated: int
    context: int
    epsilon: float
    rope_base: float
    rope_scaling: RopeScaling
    window: int
    global_every: int | tuple[bool, ...]
    attention_scale: float
    attention_softcap: float
    logit_softcap: float
    routing: Routing
    latent: LatentSizes | None
    temperature: Temperature
    local_rope_base: float
    embedding_scale: float
    residual_scale: float
    logit_scale: float

    @property
    def longest(self) -> int:
        """Positions that can be computed: a window of unknown layers is the end for all."""
        if self.window and not self.global_every:
            return min(self.context, self.window)
        return self.context

    def is_local(self, layer: int) -> bool:
        """Whether a layer attends to a window only."""
        every = self.global_every
        if not self.window:
            return False
        if isinstance(every, tuple):
            return every[layer]
        return every > 0 and layer % every < every - 1

    def is_rotated(self, layer: int) -> bool:
        """Whether a layer turns queries and keys by their positions."""
        every = self.architecture.unrotated_every
        if self.architecture.rotates_windows:
            return self.is_local(layer) or not self.window
        return not every or (layer + 1) % every > 0


def hyperparameters(file: GgufFile) -> Hyperparameters:
    """Reads them.

    Raises:
        ModelFormatError: The architecture is not known, or an entry is missing or makes no sense.
    """
    name = file.metadata.get("general.architecture")
    architecture = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None or not isinstance(name, str):
        raise ModelFormatError(
            f"{file.origin} holds a model of architecture {name!r}, which is not read; these are: "
            f"{', '.join(ARCHITECTURES)}."
        )
    entries = _Entries(file, name)
    hidden, heads = entries.size("embedding_length"), entries.size("attention.head_count")
    kv_heads = entries.size("attention.head_count_kv", heads)
    layers, unread = _layers(entries)
    head_size = entries.size("attention.key_length", hidden // heads)
    rotated = entries.size("rope.dimension_count", head_size)
    if heads % kv_heads or head_size % 2:
        raise entries.error(
            f"{heads} heads of {head_size} elements do not share {kv_heads} heads of keys"
        )
    if head_size > _LARGEST_HEAD:
        raise entries.error(f"heads have {head_size} elements; {_LARGEST_HEAD} are read at most")
    latent = _latent(entries, rotated, head_size, kv_heads) if architecture.latent else None
    if latent is None and entries.size("attention.value_length", head_size) != head_size:
        raise entries.error("values of another size than keys are not read")
    if rotated % 2 or rotated > head_size:
        raise entries.error(
            f"rotary embedding turns {rotated} elements of heads of {head_size}; expected pairs"
        )
    _require_plain_sections(entries, architecture, rotated)
    if not entries.flag("attention.causal", True):
        raise entries.error(
            "attention is not causal ('attention.causal'), so the model embeds texts instead of "
            "continuing them; only decoders are read"
        )
    scaling = _rope_scaling(entries, architecture)
    return Hyperparameters(
        name=name,
        architecture=architecture,
        layers=layers,
        unread_layers=unread,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        rotated=rotated,
        context=entries.size("context_length"),
        epsilon=entries.real(
            "attention.layer_norm_epsilon"
            if architecture.centered
            else "attention.layer_norm_rms_epsilon",
            most=1.0,
        ),
        rope_base=entries.real("rope.freq_base", 10000.0, _LEAST_BASE),
        rope_scaling=scaling,
        window=entries.size("attention.sliding_window", architecture.window, least=0),
        global_every=_global_every(entries, architecture, layers),
        attention_scale=(
            _attention_scale(entries, head_size, hidden // heads, layers)
            if latent is None
            else _yarn_sharpness(entries, scaling) / math.sqrt(latent.plain + rotated)
        ),
        attention_softcap=entries.real("attn_logit_softcapping", architecture.attention_softcap),
        logit_softcap=entries.real("final_logit_softcapping", architecture.logit_softcap),
        routing=_routing(entries, architecture, layers),
        latent=latent,
        temperature=_temperature(entries, scaling),
        local_rope_base=_local_rope_base(entries, architecture),
        embedding_scale=_embedding_scale(entries, architecture, hidden),
        residual_scale=_multiplier(entries, architecture, "residual_scale"),
        logit_scale=_logit_scale(entries, architecture),
    )


def _local_rope_base(entries: _Entries, architecture: Architecture) -> float:
    base = architecture.local_rope_base
    if architecture.stretches_global:
        base = entries.real("rope.freq_base", 10000.0, _LEAST_BASE)
    return entries.real("rope.freq_base_swa", base, _LEAST_BASE) if base else 0.0


def _embedding_scale(entries: _Entries, architecture: Architecture, hidden: int) -> float:
    if architecture.scales_embedding:
        return math.sqrt(hidden)
    return _multiplier(entries, architecture, "embedding_scale")


def _multiplier(entries: _Entries, architecture: Architecture, key: str) -> float:
    """A factor of the file; 1 where the architecture has none, or the file says 0 for that."""
    if not architecture.multipliers:
        return 1.0
    return entries.real(key, 1.0, 0.0, _FACTORS[1]) or 1.0


def _logit_scale(entries: _Entries, architecture: Architecture) -> float:
    if architecture.logit_factor:
        return entries.real("logit_scale", 1.0, 0.0, _FACTORS[1]) or 1.0
    return 1 / _multiplier(entries, architecture, "logit_scale")


def _global_every(
    entries: _Entries, architecture: Architecture, layers: int
) -> int | tuple[bool, ...]:
    """Which layers have no window, as the file says it if it does."""
    if architecture.window_everywhere:
        return (True,) * layers
    if not architecture.global_every:
        return 0
    key = "attention.sliding_window_pattern"
    flags = entries.flags(key)
    if flags is None:
        return entries.size(key, architecture.global_every)
    if len(flags) != layers:
        raise entries.error(f"'{key}' is for {len(flags)} layers; the model has {layers}")
    return flags


def _layers(entries: _Entries) -> tuple[int, int]:
    """Blocks of the decoder, and those behind them that guess further tokens."""
    blocks, unread = entries.size("block_count"), entries.size("nextn_predict_layers", 0)
    if unread >= blocks:
        raise entries.error(f"{unread} of {blocks} blocks guess further tokens; none is left")
    return blocks - unread, unread


def _require_plain_sections(entries: _Entries, architecture: Architecture, rotated: int) -> None:
    """Refuses parts of heads that are turned by anything but the position of a text's token."""
    sections = entries.numbers("rope.dimension_sections")
    if sections is None or not sections.any():
        return
    if not architecture.reads_sections:
        raise entries.error(
            "rotary embedding by time and place ('rope.dimension_sections') is not read"
        )
    if sections.min() < 0 or sections[:3].sum() != rotated // 2 or sections[3:].any():
        raise entries.error(
            f"'rope.dimension_sections' are {_shown(sections.tolist())}; expected three that "
            f"share {rotated // 2} pairs"
        )


_GATING: dict[int, Scores] = {1: "softmax", 2: "sigmoid", 3: "softmax of chosen"}
"""What files number so."""

_SOFTMAX_BY_DEFAULT = ("deepseek", "deepseek2")
"""Architectures of which older files do not say what becomes of scores."""


def _routing(entries: _Entries, architecture: Architecture, layers: int) -> Routing:
    """How many experts there are, and how a token chooses among them."""
    experts = entries.size("expert_count", 0)
    if not experts:
        return Routing()
    if experts > _MOST_PARTS:
        raise entries.error(f"there are {experts} experts; {_MOST_PARTS} are read at most")
    used = entries.size("expert_used_count")
    if used > experts:
        raise entries.error(f"{used} of {experts} experts cannot be used")
    shared = entries.size("expert_shared_count", 0)
    if shared and architecture.shared_expert == "none":
        raise entries.error("experts that all tokens share are not read")
    first = entries.size("leading_dense_block_count", 0)
    if first > layers:
        raise entries.error(f"{first} of {layers} layers cannot be without experts")
    routing = Routing(
        experts, used, first=first, every=entries.size("interleave_moe_layer_step", 1)
    )
    if architecture.shares == "by file":
        return _routing_of_file(entries, routing)
    if entries.size("expert_gating_func", 1) not in (1, 3):
        raise entries.error("experts that are not chosen by softmax are not read")
    if entries.real("expert_weights_scale", 0.0) not in (0.0, 1.0):
        raise entries.error("experts of which the sum is scaled are not read")
    if architecture.shares == "of chosen":
        return routing
    normalized = architecture.shares == "of all, normalized"
    return dataclasses.replace(routing, scores="softmax", is_normalized=normalized)


def _routing_of_file(entries: _Entries, routing: Routing) -> Routing:
    """What the file says about scores, shares and groups; shares of MiniMax add up to 1."""
    gating = entries.size("expert_gating_func", int(entries.prefix in _SOFTMAX_BY_DEFAULT))
    if gating not in _GATING:
        raise entries.error(f"'expert_gating_func' is {gating}; 1, 2 and 3 are read")
    groups = entries.size("expert_group_count", 0) or 1
    groups_used = entries.size("expert_group_used_count", 0) or groups
    if routing.experts % groups or groups_used > groups:
        raise entries.error(
            f"{routing.experts} experts are not of {groups} groups, of which a token chooses "
            f"{groups_used}"
        )
    if routing.used > routing.experts // groups * groups_used:
        raise entries.error(
            f"{routing.used} experts cannot be chosen among {groups_used} of {groups} groups of "
            f"{routing.experts}"
        )
    return dataclasses.replace(
        routing,
        scores=_GATING[gating],
        is_normalized=entries.flag("expert_weights_norm", entries.prefix == "minimax-m2"),
        scale=entries.real("expert_weights_scale", 0.0, 0.0, _FACTORS[1]) or 1.0,
        groups=groups,
        groups_used=groups_used,
    )


def _latent(entries: _Entries, rotated: int, head_size: int, kv_heads: int) -> LatentSizes:
    """Sizes of attention by short vectors, which are one head of keys for all of queries."""
    rank, query_rank = (
        entries.size("attention.kv_lora_rank"),
        entries.size("attention.q_lora_rank", 0),
    )
    key = entries.size("attention.key_length_mla", 0)
    value = entries.size("attention.value_length_mla", 0)
    if not key or not value:
        raise entries.error(
            "it has no 'attention.key_length_mla' and 'attention.value_length_mla': files of this "
            "architecture from before April 2025 are not read; convert the model again by llama.cpp"
        )
    if entries.size("attention.head_count") > _MOST_PARTS:
        raise entries.error(f"there are more than {_MOST_PARTS} heads")
    if kv_heads != 1 or head_size != rank + rotated or key <= rotated:
        raise entries.error(
            f"heads of {key} elements, of which {rotated} are turned, and vectors of {rank} do not "
            f"make {kv_heads} heads of {head_size}"
        )
    return LatentSizes(rank, query_rank, key - rotated, value)


def _temperature(entries: _Entries, scaling: RopeScaling) -> Temperature:
    """How attention becomes sharper; of Mistral's files behind each original context."""
    scale = entries.real("attention.temperature_scale", 0.0)
    length = entries.size("attention.temperature_length", 0)
    return Temperature(scale, length or scaling.original_context)


def _attention_scale(entries: _Entries, head_size: int, share: int, layers: int) -> float:
    """One over the root of a head's size; Gemma's models of 27 billion take the hidden share."""
    largest = {"gemma2": 46, "gemma3": 62}.get(entries.prefix) == layers
    return entries.real("attention.scale", 1 / math.sqrt(share if largest else head_size))


def _rope_scaling(entries: _Entries, architecture: Architecture) -> RopeScaling:
    kind = entries.text("rope.scaling.type", "")
    linear = entries.real("rope.scale_linear", 1.0, *_FACTORS)
    factor = entries.real("rope.scaling.factor", linear, *_FACTORS)
    kind = kind or ("linear" if factor != 1.0 else "none")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise entries.error(
            f"'rope.scaling.type' is '{kind}', which is not read; none, linear, yarn and longrope "
            "are"
        )
    return RopeScaling(
        kind,
        factor,
        entries.size("rope.scaling.original_context_length", entries.size("context_length")),
        entries.real("rope.scaling.attn_factor", 1.0, *_FACTORS),
        _yarn_magnitude(entries, architecture, factor),
        entries.real("rope.scaling.yarn_beta_fast", 32.0, *_FACTORS),
        entries.real("rope.scaling.yarn_beta_slow", 1.0, *_FACTORS),
        not architecture.untruncated_yarn,
    )


def _yarn_magnitude(entries: _Entries, architecture: Architecture, factor: float) -> float:
    """What yarn multiplies cosines and sines by.

    Files that name a multiplier of the logarithm scale products of queries and keys by its square
    instead (:func:`_yarn_sharpness`), or not at all.
    """
    multiplier = entries.real("rope.scaling.yarn_log_multiplier", 0.0)
    if multiplier and architecture.latent:
        return 1.0
    return _of_logarithm(factor, 1.0) / _of_logarithm(factor, multiplier)


def _yarn_sharpness(entries: _Entries, scaling: RopeScaling) -> float:
    """What products of queries and keys of short vectors are multiplied by.

    Their rotary part is not turned by larger cosines and sines but scaled with all other elements.
    The converter writes a tenth of the multiplier.
    """
    if scaling.kind != "yarn":
        return 1.0
    multiplier = entries.real("rope.scaling.yarn_log_multiplier", 0.0) * 10
    return _of_logarithm(scaling.factor, multiplier) ** 2


def _of_logarithm(factor: float, multiplier: float) -> float:
    """What yarn makes of a factor, by https://arxiv.org/abs/2309.00071."""
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0


class _Entries:
    """The entries of the metadata that start with the architecture's name."""

    def __init__(self, file: GgufFile, prefix: str) -> None:
        self._file = file
        self.prefix = prefix

    def error(self, fault: str) -> ModelFormatError:
        """A refusal."""
        return ModelFormatError(f"{self._file.origin}, a model of '{self.prefix}': {fault}.")

    def _find(self, key: str, default: Any) -> Any:
        found = self._file.metadata.get(f"{self.prefix}.{key}", default)
        if found is None:
            raise self.error(f"metadata '{self.prefix}.{key}' is missing")
        return found

    def size(self, key: str, default: int | None = None, least: int | None = None) -> int:
        """A whole number; unless ``least`` is given, 0 only where that is the default."""
        found = self._find(key, default)
        if isinstance(found, np.ndarray) and found.size and (found == found[0]).all():
            found = found[0].item()  # one number for each layer, and all agree
        if least is None:
            least = 0 if default == 0 else 1
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= _LARGEST:
            raise self.error(
                f"'{key}' is {_shown(found)}; expected a number from {least} to {_LARGEST}"
            )
        return found

    def real(
        self, key: str, default: float | None = None, least: float = 0.0, most: float = _HIGHEST
    ) -> float:
        """A number within bounds."""
        found = self._find(key, default)
        number = isinstance(found, (int, float)) and not isinstance(found, bool)
        if not number or not least <= found <= most:
            raise self.error(
                f"'{key}' is {_shown(found)}; expected a number from {least:g} to {most:g}"
            )
        return float(found)

    def flag(self, key: str, default: bool) -> bool:
        """Whether something holds."""
        found = self._find(key, default)
        if not isinstance(found, bool):
            raise self.error(f"'{key}' is {_shown(found)}; expected true or false")
        return found

    def flags(self, key: str) -> tuple[bool, ...] | None:
        """For each layer whether something holds; ``None`` where there is no array of that."""
        found = self._file.metadata.get(f"{self.prefix}.{key}")
        if not isinstance(found, np.ndarray) or found.dtype != np.bool_:
            return None
        return tuple(found.tolist())

    def numbers(self, key: str) -> np.ndarray[Any, Any] | None:
        """An array of whole numbers; ``None`` where there is no such entry."""
        found = self._file.metadata.get(f"{self.prefix}.{key}")
        if found is None:
            return None
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu":
            raise self.error(f"'{key}' is {_shown(found)}; expected an array of whole numbers")
        return found.astype(np.int64)

    def text(self, key: str, default: str) -> str:
        """A text."""
        found = self._find(key, default)
        if not isinstance(found, str):
            raise self.error(f"'{key}' is {_shown(found)}; expected a text")
        return found


def _shown(value: object) -> str:
    return repr(value)[:60]
