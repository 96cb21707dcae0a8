"""What the inputs and outputs of a decoder are for, known by their names.

Decoders come as onnxruntime-genai, Hugging Face's optimum and Partita's own reader of GGUF write
them; they differ in which inputs they have and in whether the cache of keys and values has a fixed
capacity or grows with every run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partita.errors import ModelFormatError
from partita.generate.caches.cache_types import place_bytes
from partita.generate.caches.room import ROOM_KEY
from partita.generate.caches.whole_masks import WHOLE_MASK_KEY
from partita.model.model import Model, Port
from partita.model.variables import Variable

_PAST = re.compile(r"past(?:_key_values)?[._](\d+)[._](?:decoder[._])?(key|value)s?")
_PRESENT = re.compile(r"present(?:_key_values)?[._](\d+)[._](?:decoder[._])?(key|value)s?")

_FED = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "seqlens_k",
    "total_sequence_length",
    "cache_position",
    "beam_idx",
    "use_cache_branch",
)
"""Inputs besides the cache that can be fed."""

SEQUENCES_KEY = "partita.sequences"
"""The entry of a model's metadata that says how many sequences it is for, where its batch is open
so that a run may take fewer of them."""

SEQUENCE_AXIS = 2
"""The axis of a cache, ``[batch, heads, sequence, head size]``, along which it is written."""


@dataclass(frozen=True)
class DecoderPorts:
    """The ports of a decoder.

    Attributes:
        inputs: Every input that is fed each run, by name.
        caches: What is read and what is written, for every key and value.
        cache_inputs: The inputs that are read, by name.
        logits: The output that scores tokens.
        is_fixed: Whether past and present have one shape, the capacity, and runs write at the
            valid length; if not, each run returns a longer cache.
        room: Tokens that the buffers begin with room for, if caches grow in such, as
            :mod:`partita.generate.caches.room` makes them.
        has_whole_mask: Whether the mask is as long as these buffers.
        sequences: How many it is for, where a run may take fewer of them.
    """

    inputs: dict[str, Port]
    caches: tuple[Variable, ...]
    cache_inputs: dict[str, Port]
    logits: str
    is_fixed: bool
    room: int | None = None
    has_whole_mask: bool = False
    sequences: int | None = None

    @classmethod
    def of(cls, model: Model) -> DecoderPorts:
        """The ports of a model.

        Raises:
            ModelFormatError: It is no decoder with a cache, or has inputs that are not known; says
                which.
        """
        known = [port for port in model.inputs if port.name in _FED]
        caches = model.variables or _paired(model.inputs, model.outputs)
        by_name = {port.name: port for port in model.inputs}
        read = {one.read: by_name[one.read] for one in caches}
        flags = {one.begun for one in caches}
        outputs = [port.name for port in model.outputs]
        foreign = [n for n in by_name if n not in read and n not in _FED and n not in flags]
        missing = [
            what
            for what, there in (
                ("input 'input_ids'", "input_ids" in by_name),
                ("output 'logits'", "logits" in outputs),
                ("pairs of inputs 'past_key_values.N.key' and outputs 'present.N.key'", caches),
            )
            if not there
        ]
        if missing or foreign:
            faults = [f"it lacks {' and '.join(missing)}"] if missing else []
            faults += [f"what its input '{name}' wants is not known" for name in foreign[:3]]
            raise ModelFormatError(
                f"Model '{model.name}' is not a decoder that text can be generated with: "
                f"{'; '.join(faults)}. Export it with a cache, as onnxruntime-genai or optimum do."
            )
        room, sequences = (model.metadata.get(key) for key in (ROOM_KEY, SEQUENCES_KEY))
        return cls(
            {p.name: p for p in known},
            caches,
            read,
            "logits",
            is_fixed=room is None and _is_fixed(model, caches),
            room=None if room is None else int(room),
            has_whole_mask=WHOLE_MASK_KEY in model.metadata,
            sequences=None if sequences is None else int(sequences),
        )

    @property
    def capacity(self) -> int | None:
        """Tokens that a cache of fixed capacity has room for; ``None`` while that is open."""
        if not self.is_fixed:
            return None
        sizes = {(port.shape or ())[SEQUENCE_AXIS] for port in self.cache_inputs.values()}
        found = sizes.pop()
        return found if isinstance(found, int) and not sizes else None

    @property
    def batch(self) -> int | None:
        """Sequences that the caches hold; ``None`` while that is open."""
        found = (self.inputs["input_ids"].shape or (None,))[0]
        return found if isinstance(found, int) else self.sequences

    def cache_bytes(self, batch: int, context: int, cache_type: str | None = None) -> int:
        """Bytes of all keys and values of so many sequences of so many tokens.

        Args:
            batch: Sequences.
            context: Tokens of each.
            cache_type: Their type, if it is to be another one than the model's.
        """
        total = 0
        for port in self.cache_inputs.values():
            _, heads, _, size = port.shape or (0, 0, 0, 0)
            if isinstance(heads, int) and isinstance(size, int) and port.dtype is not None:
                row = size * np.dtype(port.dtype).itemsize
                row = row if cache_type is None else place_bytes(size, cache_type)
                total += batch * heads * context * row
        return total


def _paired(inputs: Sequence[Port], outputs: Sequence[Port]) -> tuple[Variable, ...]:
    """Past and present of the same layer, by their names."""
    present = {
        match.groups(): port.name
        for port in outputs
        if (match := _PRESENT.fullmatch(port.name)) is not None
    }
    return tuple(
        Variable(port.name, port.name, present[match.groups()])
        for port in inputs
        if (match := _PAST.fullmatch(port.name)) is not None and match.groups() in present
    )


def _is_fixed(model: Model, caches: Sequence[Variable]) -> bool:
    """Whether runs write into a cache of fixed capacity.

    GroupQueryAttention can where past and present have one shape, TensorScatter always does.
    """
    if any(op.op_type in ("GroupQueryAttention", "TensorScatter") for op in model.ops):
        return True
    inputs = {port.name: port.shape for port in model.inputs}
    outputs = {port.name: port.shape for port in model.outputs}
    shapes = [(inputs[one.read], outputs[one.written]) for one in caches]
    return all(
        past is not None
        and present is not None
        and past[SEQUENCE_AXIS] is not None
        and past[SEQUENCE_AXIS] == present[SEQUENCE_AXIS]
        for past, present in shapes
    )
