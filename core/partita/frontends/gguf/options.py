"""What the caller decides about a decoder that a file of weights becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """How a GGUF file becomes a model.

    Attributes:
        context: Positions that its caches of keys and values have room for; by default those of
            the model, but at most 4096.
        all_logits: Compute logits of all positions of ``input_ids``, not of the last alone.
        cache_type: Element type of the caches, ``"float32"``, ``"float16"``, ``"bfloat16"``, or
            ``"int8"`` with a scale for each head and token (:mod:`partita.tensors.cache_rows`).
    """

    context: int | None = None
    all_logits: bool = False
    cache_type: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
