"""Attention, and small fused operators of transformers.

Without a cache: `attention` has the operators, `attention_rows` what they compute. With one, of
which a part is valid: `group_query` and `valid_keys` have the operators, `new_heads` and
`cache_append` bring new tokens into the cache, `cache_spans` says which of its places hold keys,
and `cache_steps` chooses what attends to them: `prefill` for many queries, `cache_decode` for few,
`cache_attention` where a level has no kernels for it; the last two share `cache_blocks`.
"""
