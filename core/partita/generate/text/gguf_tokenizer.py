"""The tokenizer that a GGUF file carries in its metadata, built with package ``tokenizers``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from partita.errors import TokenizerError, raised_as
from partita.generate.text.chat_template import ChatTemplate
from partita.generate.text.packages import require, surviving
from partita.generate.text.pre_tokenizers import word_cut
from partita.generate.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

_log = logging.getLogger(__name__)

Metadata = Mapping[str, Any]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
"""Kinds in ``tokenizer.ggml.token_type``."""

_ENDS = frozenset(
    (
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<|end|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<eos>",
        "[EOS]",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
    )
)
"""Tokens that end an answer in one model or another, whatever ``eos_token_id`` says.

Behind the last three another file would begin, in models that fill in code. All are control tokens
even where a file has another kind for them, as in llama.cpp.
"""

_LONGEST_PIECE = 1024
"""Characters of a piece; each is tried as the place where two others meet."""

_MOST_CUT = 1 << 27
"""Characters of what pieces are cut into, one cut after another; some 20 million in real ones."""

_SPACE = "\u2581"
"""SentencePiece's sign for a space."""


def from_metadata(metadata: Metadata, origin: str) -> Tokenizer:
    """The tokenizer of a GGUF file.

    Args:
        metadata: The file's, by key.
        origin: What messages call the file.

    Raises:
        TokenizerError: The file has none, one of a kind that is not known, or a damaged one; or a
            package is missing.
    """
    require("tokenizers", "a tokenizer")
    kind = metadata.get("tokenizer.ggml.model")
    builders = {"gpt2": _byte_pairs, "llama": _sentence_pieces}
    if not isinstance(kind, str) or kind not in builders:
        found = "no vocabulary" if kind is None else f"a vocabulary of kind {repr(kind)[:60]}"
        raise TokenizerError(
            f"{origin} has {found}; known are {', '.join(builders)}. Give tokens instead of text."
        )
    what = f"The vocabulary of {origin} is damaged"
    with surviving(origin), raised_as(TokenizerError, what, TokenizerError):
        tokens = [*_entry(metadata, "tokens")]
        kinds = [int(k) for k in metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))]
        if len(kinds) != len(tokens):
            raise ValueError(f"it has {len(tokens)} tokens and kinds of {len(kinds)}")
        named = [number for number, text in enumerate(tokens) if text in _ENDS]
        for number in named:
            kinds[number] = _CONTROL
        engine, begins = builders[kind](metadata, tokens, kinds, origin)
        _add_special(engine, tokens, kinds)
        special = _special_tokens(metadata, tokens)
        if metadata.get("tokenizer.ggml.add_bos_token", begins) and "bos" in special:
            _begin_with(engine, tokens[special["bos"]], special["bos"])
    names = {f"{name}_token": tokens[number] for name, number in special.items()}
    source = metadata.get("tokenizer.chat_template")
    template = ChatTemplate(source, origin, names) if isinstance(source, str) else None
    ends = [number for name, number in special.items() if name in ("eos", "eot", "eom")]
    return Tokenizer(engine, [*ends, *named], template, origin)


def _byte_pairs(
    metadata: Metadata, tokens: Sequence[str], kinds: Sequence[int], origin: str
) -> tuple[tokenizers.Tokenizer, bool]:
    """Byte-level byte pairs (Radford et al. 2019), and whether a text begins with a token."""
    import tokenizers
    from tokenizers import decoders, models

    way = metadata.get("tokenizer.ggml.pre")
    if way is None:
        _log.warning(
            "%s does not say how its vocabulary cuts words ('tokenizer.ggml.pre'), so that the "
            "model may answer worse than it could; convert it once more with a newer llama.cpp.",
            origin,
        )
    cut = word_cut("default" if way is None else way, origin)
    longest = max(map(len, tokens), default=0)
    merges = [_pair(merge, longest) for merge in _entry(metadata, "merges")]
    model = models.BPE(_vocabulary(tokens), merges, ignore_merges=cut.whole_words)
    engine = tokenizers.Tokenizer(model)
    engine.pre_tokenizer = cut.pre_tokenizer()
    engine.decoder = decoders.ByteLevel()
    return engine, cut.begins


def _sentence_pieces(
    metadata: Metadata, tokens: Sequence[str], kinds: Sequence[int], origin: str
) -> tuple[tokenizers.Tokenizer, bool]:
    """SentencePiece's byte pairs, what no token spells as bytes; a text begins with a token."""
    import tokenizers
    from tokenizers import decoders, models, normalizers

    scores = [float(score) for score in _entry(metadata, "scores")]
    if len(scores) != len(tokens):
        raise ValueError(f"it has {len(tokens)} tokens and scores of {len(scores)}")
    model = models.BPE(
        _vocabulary(tokens),
        _merges_by_score(tokens, scores),
        unk_token=next((tokens[n] for n, kind in enumerate(kinds) if kind == _UNKNOWN), None),
        fuse_unk=True,
        byte_fallback=True,
    )
    engine = tokenizers.Tokenizer(model)
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    before = [normalizers.Prepend(_SPACE)] if prefix else []
    engine.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", _SPACE)])
    after = [decoders.Strip(" ", 1, 0)] if prefix else []
    engine.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    return engine, True


def _entry(metadata: Metadata, name: str) -> Any:
    key = f"tokenizer.ggml.{name}"
    if key not in metadata:
        raise ValueError(f"it has no '{key}'; convert the model once more, or give tokens")
    return metadata[key]


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    return {text: number for number, text in enumerate(tokens)}


def _pair(merge: str, longest: int) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not left or not space or not right or " " in right:
        raise ValueError(f"{merge!r} is not a pair of tokens")
    if len(left) + len(right) > longest:  # package tokenizers gives up on these, loudly
        raise ValueError(f"{repr(merge)[:60]} makes what is longer than all tokens")
    return left, right


def _merges_by_score(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Pairs in the order in which SentencePiece merges them: the best score of the result first.

    Tokens of all kinds come about so, as in llama.cpp: runs of spaces are often the makers' own.

    Raises:
        ValueError: Pieces are longer than those of any real vocabulary.
    """
    longest = max(map(len, tokens), default=0)
    if longest > _LONGEST_PIECE:
        raise ValueError(f"a token has {longest} characters; {_LONGEST_PIECE} are allowed")
    if sum(len(text) ** 2 for text in tokens) > _MOST_CUT:
        raise ValueError(f"its {len(tokens)} tokens are longer than those of any vocabulary")
    known = set(tokens)
    order = sorted(range(len(tokens)), key=lambda number: -scores[number])
    return [
        (text[:cut], text[cut:])
        for text in (tokens[number] for number in order)
        for cut in range(1, len(text))
        if text[:cut] in known and text[cut:] in known
    ]


def _add_special(engine: tokenizers.Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Lets control tokens, the one for all else, and the makers' own be known by their names."""
    from tokenizers import AddedToken

    named = [(text, kind) for text, kind in zip(tokens, kinds, strict=True) if text]
    marks = (_CONTROL, _UNKNOWN)
    control = [AddedToken(t, special=True, normalized=False) for t, k in named if k in marks]
    defined = [AddedToken(t, normalized=False) for t, k in named if k == _USER_DEFINED]
    engine.add_special_tokens(control)
    engine.add_tokens(defined)


def _special_tokens(metadata: Metadata, tokens: Sequence[str]) -> dict[str, int]:
    """``"bos"``, ``"eos"`` and others to their numbers."""
    names = {"bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom"}
    names |= {"unknown": "unk", "padding": "pad"}
    found = {}
    for key, name in names.items():
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if number is None:
            continue
        if not 0 <= int(number) < len(tokens):
            raise ValueError(f"its {key} token {number} is none of its {len(tokens)}")
        found[name] = int(number)
    return found


def _begin_with(engine: tokenizers.Tokenizer, text: str, number: int) -> None:
    from tokenizers.processors import TemplateProcessing

    # The token has a name of its own here: in a text of any kind signs of templates may occur.
    begin = {"id": "begin", "ids": [number], "tokens": [text]}
    engine.post_processor = TemplateProcessing(single="begin $A", special_tokens=[begin])
