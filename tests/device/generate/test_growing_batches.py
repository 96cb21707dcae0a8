"""Texts of several lengths on a cache that grows: each as onnxruntime continues it alone."""

from __future__ import annotations

import numpy as np
import pytest
from growing_decoder import WORDS, Form, decoder
from growing_judge import Judge

from partita.generate import Generator

FORMS = {
    "positions": Form(),
    "window": Form(mask="window"),
    "distances": Form(heads=4, kv_heads=4, mask="distances"),
    "no positions": Form(positions=False),
}
NEW = 6


def continued(proto, form, prompt):
    """The likeliest tokens behind a prompt, one after the other."""
    judge, everyone = Judge(proto, form, 1), np.ones(1, bool)
    tokens, read, found = np.array([prompt]), 0, []
    for _ in range(NEW):
        logits = judge.run(tokens, np.array([read]), everyone)
        read += tokens.shape[1]
        tokens = logits.argmax(-1)[:, None]
        found.append(int(tokens[0, 0]))
    return found


@pytest.mark.parametrize("chunk", [8, 64])
@pytest.mark.parametrize("form", FORMS)
def test_texts_beside_longer_ones_are_as_if_alone(core, form, chunk):
    proto = decoder(FORMS[form])
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, WORDS, count).tolist() for count in (3, 20, 9, 9, 3)]
    model = core.read_model(proto.SerializeToString())
    generator = Generator(model, "CPU", 40, batch=3, chunk=chunk, core=core)
    found: list[list[int]] = [[] for _ in prompts]
    for piece in generator.generate_batch(prompts, max_new_tokens=NEW):
        found[piece.sequence].append(piece.token)
    assert found == [continued(proto, FORMS[form], prompt) for prompt in prompts]
