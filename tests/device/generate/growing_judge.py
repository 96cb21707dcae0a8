"""What onnxruntime makes of a decoder whose caches grow, and what it is asked."""

from __future__ import annotations

import numpy as np
import onnxruntime
from growing_decoder import LAYERS, WORDS

NAMES = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
"""Of the caches."""


class Judge:
    """onnxruntime, which is handed past and present."""

    def __init__(self, proto, form, batch):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.names = [port.name for port in self.session.get_inputs()]
        kind = np.float16 if form.half else np.float32
        self.caches = {n: np.zeros((batch, form.kv_heads, 0, form.size), kind) for n in NAMES}
        self.mask = np.zeros((batch, 0), np.int64)

    def run(self, tokens, lengths, taking_part):
        count = tokens.shape[1]
        mask = np.concatenate([self.mask, np.ones_like(tokens)], axis=1)
        feeds = {
            "input_ids": tokens,
            "attention_mask": mask,
            "position_ids": lengths[:, None] + np.arange(count),
        }
        feeds = {name: array for name, array in feeds.items() if name in self.names}
        feeds |= {f"past_key_values.{name}": cache for name, cache in self.caches.items()}
        logits, *caches = self.session.run(None, feeds)
        self.caches = dict(zip(NAMES, caches, strict=True))
        mask[~taking_part, -count:] = 0
        self.mask = mask
        return logits[:, -1]


def runs(batch, seed=0):
    """Prompts in parts, tokens one by one, then rows that wait."""
    rng = np.random.default_rng(seed)
    lengths = np.zeros(batch, np.int64)
    everyone = np.ones(batch, bool)
    for count, taking_part in [
        *((count, everyone) for count in (1, 7, 1, 1, 1, 30, 1, 1, 2)),
        *((1, np.arange(batch) != 1) for _ in range(3)),
        (300, everyone),
        *((1, everyone) for _ in range(5)),
    ]:
        yield rng.integers(0, WORDS, (batch, count)), lengths.copy(), taking_part
        lengths[taking_part] += count
