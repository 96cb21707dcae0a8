"""What the metadata of a GGUF file says about its decoder, checked before anything is built."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.errors import ModelFormatError
from partita.frontends.gguf.architectures import ARCHITECTURES, Architecture
from partita.frontends.gguf.container import GgufFile

_LARGEST = 1 << 24
"""No size in the metadata of a real model exceeds this."""

_LARGEST_HEAD = 1 << 12
"""Nor has one heads of more elements: tables of rotary angles have a row of so many a position."""

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
    """

    kind: str = "none"
    factor: float = 1.0
    original_context: int = 0
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Sizes and constants of a decoder.

    Attributes:
        name: The architecture's name.
        architecture: What it has in common with others of its name.
        layers: Number of blocks.
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
        experts: Sets of weights of each feed-forward part that tokens choose from; 0 if there is
            one for all.
        experts_used: How many of them a token chooses.
        local_rope_base: Base of the rotary frequencies in layers with a window; 0 if they turn as
            all others do.
        embedding_scale: What embeddings are multiplied by.
        residual_scale: What is multiplied by that before it is added to the residual stream.
        logit_scale: What logits are multiplied by.
    """

    name: str
    architecture: Architecture
    layers: int
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
    experts: int
    experts_used: int
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
            return self.is_local(layer)
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
    layers = entries.size("block_count")
    experts, used = _experts(entries)
    head_size = entries.size("attention.key_length", hidden // heads)
    rotated = entries.size("rope.dimension_count", head_size)
    if heads % kv_heads or head_size % 2:
        raise entries.error(
            f"{heads} heads of {head_size} elements do not share {kv_heads} heads of keys"
        )
    if head_size > _LARGEST_HEAD:
        raise entries.error(f"heads have {head_size} elements; {_LARGEST_HEAD} are read at most")
    if entries.size("attention.value_length", head_size) != head_size:
        raise entries.error("values of another size than keys are not read")
    if rotated % 2 or rotated > head_size:
        raise entries.error(
            f"rotary embedding turns {rotated} elements of heads of {head_size}; expected pairs"
        )
    sections = file.metadata.get(f"{name}.rope.dimension_sections")
    if isinstance(sections, np.ndarray) and sections.any():
        raise entries.error(
            "rotary embedding by time and place ('rope.dimension_sections') is not read"
        )
    if not entries.flag("attention.causal", True):
        raise entries.error(
            "attention is not causal ('attention.causal'), so the model embeds texts instead of "
            "continuing them; only decoders are read"
        )
    return Hyperparameters(
        name=name,
        architecture=architecture,
        layers=layers,
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
        rope_scaling=_rope_scaling(entries),
        window=entries.size("attention.sliding_window", architecture.window, least=0),
        global_every=_global_every(entries, architecture, layers),
        attention_scale=_attention_scale(entries, head_size, hidden // heads, layers),
        attention_softcap=entries.real("attn_logit_softcapping", architecture.attention_softcap),
        logit_softcap=entries.real("final_logit_softcapping", architecture.logit_softcap),
        experts=experts,
        experts_used=used,
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


def _experts(entries: _Entries) -> tuple[int, int]:
    """How many experts there are, and how many of them a token chooses."""
    experts = entries.size("expert_count", 0)
    if not experts:
        return 0, 0
    used = entries.size("expert_used_count")
    if used > experts:
        raise entries.error(f"{used} of {experts} experts cannot be used")
    if entries.size("expert_shared_count", 0) or entries.size("expert_gating_func", 1) != 1:
        raise entries.error(
            "experts that all tokens share, or that are not chosen by softmax, are not read"
        )
    if entries.real("expert_weights_scale", 0.0) not in (0.0, 1.0):
        raise entries.error("experts of which the sum is scaled are not read")
    return experts, used


def _attention_scale(entries: _Entries, head_size: int, share: int, layers: int) -> float:
    """One over the root of a head's size; Gemma's models of 27 billion take the hidden share."""
    largest = {"gemma2": 46, "gemma3": 62}.get(entries.prefix) == layers
    return entries.real("attention.scale", 1 / math.sqrt(share if largest else head_size))


def _rope_scaling(entries: _Entries) -> RopeScaling:
    kind = entries.text("rope.scaling.type", "")
    linear = entries.real("rope.scale_linear", 1.0, *_FACTORS)
    factor = entries.real("rope.scaling.factor", linear, *_FACTORS)
    kind = kind or ("linear" if factor != 1.0 else "none")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise entries.error(
            f"'rope.scaling.type' is '{kind}', which is not read; none, linear, yarn and longrope "
            "are"
        )
    original = entries.size("rope.scaling.original_context_length", entries.size("context_length"))
    magnitude = entries.real("rope.scaling.attn_factor", 1.0, *_FACTORS)
    return RopeScaling(kind, factor, original, magnitude)


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

    def text(self, key: str, default: str) -> str:
        """A text."""
        found = self._find(key, default)
        if not isinstance(found, str):
            raise self.error(f"'{key}' is {_shown(found)}; expected a text")
        return found


def _shown(value: object) -> str:
    return repr(value)[:60]
