"""Random models of attention, and of the rotation of its heads."""

from __future__ import annotations

import numpy as np

from partita_conformance.draws.draw import Array, Draw, Rng, floats, integers, one_of


def attention(rng: Rng) -> Draw:
    """Draws Attention: heads that share keys, masks of truth values or numbers, a cache."""
    heads = one_of(rng, 2, 4)
    q, k, v = (floats(rng, [2, h, n, 4]) for h, n in ((heads, 3), (2, 5), (2, 5)))
    given = {
        "is_causal": int(rng.integers(2)),
        "softcap": one_of(rng, 0.0, 0.7),
        "scale": one_of(rng, 0.4, 1.5),
    }
    if rng.random() < 0.3:  # heads side by side in the last dimension
        q, k, v = (
            np.ascontiguousarray(a.swapaxes(1, 2)).reshape(2, a.shape[2], -1) for a in (q, k, v)
        )
        given |= {"q_num_heads": heads, "kv_num_heads": 2}
    inputs: list[Array | None] = [q, k, v]
    if rng.random() < 0.4:
        shape, total = one_of(rng, (), (heads,), (2, 1)), one_of(rng, 5, 7)
        mask = rng.random([*shape, 3, total]) < 0.7
        mask[..., 0] = True  # no row is masked out altogether
        inputs.append(mask if rng.random() < 0.5 else floats(rng, mask.shape))
        if total == 7:
            inputs += [floats(rng, [2, 2, 2, 4]) for _ in range(2)]
            return Draw(inputs, given, outputs=3, opset=23)
    return Draw(inputs, given, opset=23)


def rotary(rng: Rng) -> Draw:
    """Draws RotaryEmbedding."""
    x, given = floats(rng, [2, 3, 4, 8]), {"interleaved": int(rng.integers(2))}
    turned = one_of(rng, 8, 4)
    if turned == 4:
        given["rotary_embedding_dim"] = 4
    if rng.random() < 0.3:
        x, given["num_heads"] = floats(rng, [2, 4, 24]), 3
    if rng.random() < 0.4:  # rows of the tables by the position of each token
        tables = [floats(rng, [9, turned // 2]) for _ in range(2)]
        given["rotary_embedding_dim"] = turned
        return Draw([x, *tables, integers(rng, 0, 9, 2, 4)], given, opset=23)
    tables = [floats(rng, [2, 4, turned // 2]) for _ in range(2)]
    return Draw([x, *tables], given, opset=23)
