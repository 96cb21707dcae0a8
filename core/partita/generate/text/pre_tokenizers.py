"""How byte-pair vocabularies of GGUF files cut a text into words before pairs are merged.

GGUF names the way in ``tokenizer.ggml.pre``. The patterns are those that the models' own tokenizers
publish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partita.errors import TokenizerError

if TYPE_CHECKING:
    import tokenizers.pre_tokenizers

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SIGNS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SIGNS_AND_SPACES}"
_QWEN_2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SIGNS_AND_SPACES}"
_SEED_CODER = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SIGNS_AND_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT_4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_SIGNS_AND_PATHS}"
)
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}|{_SIGNS_AND_PATHS}"
)
_DEEPSEEK_CODER = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}",
)
_DIGITS_BY_THREE = r"\p{N}{1,3}"
_MARKED_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_3 = (_DIGITS_BY_THREE, "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _MARKED_WORDS)
# Letters of a case but those of scripts and signs that DeepSeek's list of ranges leaves out.
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c8a}"
    r"\x{2d00}-\x{2d2d}\x{a790}-\x{a7fa}\x{ab30}-\x{ab68}\x{10570}-\x{105bc}"
    r"\x{10d50}-\x{10d85}\x{16e40}-\x{16e7f}\x{1d400}-\x{1d7cb}\x{1df00}-\x{1df2a}]]"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?{_CASED}+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
)
_SUPERBPE = (r"\p{N}+", r"(?=(\d{3})+(?!\d))")
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT_2, "[0-9][0-9][0-9]")
_QWEN_3_5 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_TINY_AYA = (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT_4O)
# Of no model: what llama.cpp does where a file does not say.
_DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    _GPT_2,
    r"\p{N}+",
    "[0-9][0-9][0-9]",
)


@dataclass(frozen=True, slots=True)
class WordCut:
    """A way to cut a text into words.

    Attributes:
        patterns: What a word is, and what parts of these are, one after another; empty for the
            pattern of GPT-2.
        single_digits: Whether every digit is a word of its own, before anything else.
        whole_words: Whether a word that is a token is taken as it is, its pairs unmerged.
        begins: Whether a text begins with the token for that, unless the file says otherwise.
    """

    patterns: tuple[str, ...] = ()
    single_digits: bool = False
    whole_words: bool = False
    begins: bool = False

    def pre_tokenizer(self) -> tokenizers.pre_tokenizers.PreTokenizer:
        """The same for the package ``tokenizers``."""
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

        return Sequence(
            [
                *([Digits(individual_digits=True)] if self.single_digits else []),
                *(Split(Regex(pattern), "isolated") for pattern in self.patterns),
                ByteLevel(add_prefix_space=False, use_regex=not self.patterns),
            ]
        )


_GPT_2_CUT = WordCut()
_DIGITS_CUT = WordCut(single_digits=True)
_LLAMA_3_CUT = WordCut((_LLAMA_3,), whole_words=True, begins=True)
_SMAUG_CUT = WordCut((_LLAMA_3,))
_QWEN_2_CUT = WordCut((_QWEN_2,))
_GPT_4O_CUT = WordCut((_GPT_4O,))
_DEEPSEEK_3_CUT = WordCut(_DEEPSEEK_3)
_BAILING_CUT = WordCut((_BAILING,))
_BLOOM_CUT = WordCut((_BLOOM,))

WORD_CUTS = {
    "gpt-2": _GPT_2_CUT,
    "gpt2": _GPT_2_CUT,
    "olmo": _GPT_2_CUT,
    "mpt": _GPT_2_CUT,
    "phi-2": _GPT_2_CUT,
    "a.x-4.0": _GPT_2_CUT,
    "mellum": _GPT_2_CUT,
    "trillion": _GPT_2_CUT,
    "jais": _GPT_2_CUT,
    "exaone4": _GPT_2_CUT,
    "gigachat": _GPT_2_CUT,
    "granite-docling": _GPT_2_CUT,
    "smollm": _DIGITS_CUT,
    "starcoder": _DIGITS_CUT,
    "refact": _DIGITS_CUT,
    "command-r": _DIGITS_CUT,
    "codeshell": _DIGITS_CUT,
    "minerva-7b": _DIGITS_CUT,
    "exaone": _DIGITS_CUT,
    "mellum2": _DIGITS_CUT,
    "llama3": _LLAMA_3_CUT,
    "llama-v3": _LLAMA_3_CUT,
    "llama-bpe": _LLAMA_3_CUT,
    "falcon3": _LLAMA_3_CUT,
    "falcon-h1": _LLAMA_3_CUT,
    "lfm2": _LLAMA_3_CUT,
    "midm-2.0": _LLAMA_3_CUT,
    "pixtral": _LLAMA_3_CUT,
    "qwen2": _QWEN_2_CUT,
    "deepseek-r1-qwen": _QWEN_2_CUT,
    "stablelm2": _QWEN_2_CUT,
    "kormo": _QWEN_2_CUT,
    "megrez": _QWEN_2_CUT,
    "hunyuan": _QWEN_2_CUT,
    "solar-open": _QWEN_2_CUT,
    "grok-2": _QWEN_2_CUT,
    "qwen35": WordCut((_QWEN_3_5,)),
    "seed-coder": WordCut((_SEED_CODER,)),
    "smaug-bpe": _SMAUG_CUT,
    "dbrx": _SMAUG_CUT,
    "glm4": _SMAUG_CUT,
    "chatglm-bpe": _SMAUG_CUT,
    "deepseek-llm": WordCut(_DEEPSEEK_LLM),
    "deepseek-v3": _DEEPSEEK_3_CUT,
    "hunyuan-dense": _DEEPSEEK_3_CUT,
    "joyai-llm": _DEEPSEEK_3_CUT,
    "deepseek-coder": WordCut(_DEEPSEEK_CODER),
    "falcon": WordCut(_FALCON),
    "superbpe": WordCut(_SUPERBPE),
    "bailingmoe": _BAILING_CUT,
    "bailingmoe2": _BAILING_CUT,
    "llada-moe": _BAILING_CUT,
    "bloom": _BLOOM_CUT,
    "gpt3-finnish": _BLOOM_CUT,
    "poro-chat": _BLOOM_CUT,
    "viking": WordCut((_BLOOM, r"\p{N}")),
    "tiny_aya": WordCut(_TINY_AYA),
    "gpt-4o": _GPT_4O_CUT,
    "llama4": _GPT_4O_CUT,
    "kanana2": _GPT_4O_CUT,
    "minimax-m2": _GPT_4O_CUT,
    "tekken": WordCut((_TEKKEN,), whole_words=True, begins=True),
    "default": WordCut(_DEFAULT),
}
"""``tokenizer.ggml.pre`` to what it stands for."""


def word_cut(name: object, origin: str) -> WordCut:
    """How text is cut into words before it is tokenized, by the name that GGUF files have for it.

    Args:
        name: ``tokenizer.ggml.pre`` of the file, whatever that holds.
        origin: The file, for the error.

    Raises:
        TokenizerError: It is not known; lists those that are.
    """
    if not isinstance(name, str) or name not in WORD_CUTS:
        raise TokenizerError(
            f"{origin} cuts words as {name!r} does, which is not known; known are "
            f"{', '.join(WORD_CUTS)}. Give tokens instead of text."
        )
    return WORD_CUTS[name]
