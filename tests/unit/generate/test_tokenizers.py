"""Tokenizers out of GGUF metadata and folders, compared with `tokenizers`' own files and a plain
implementation of SentencePiece's merging."""

import itertools
import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tiny_gguf import byte_letters
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

from partita.errors import InputError, TokenizerError
from partita.generate.text.gguf_tokenizer import from_metadata
from partita.generate.text.pre_tokenizers import WORD_CUTS
from partita.generate.text.tokenizer import from_folder

CORPUS = [
    "The capital of France is Paris. It's the 1st of 12 places, isn't it?",
    "def f(x):\n    return x**2  # comment\n\n\nprint(f(1234567890))",
    "na\u00efve caf\u00e9, \u65e5\u672c\u8a9e\u306e, \u041f\u0440\u0438\u0432\u0435\u0442",
    "  spaces   and\ttabs\r\nWE'LL don'T \u00bd \u00b2 a\u00a0b \U0001f389\U0001f389",
] * 3
TEXTS = [*CORPUS[:4], "", " ", "\n\n", "\x00", "<s>Hi</s>", "unseen: \u0939\u093f \u2603 zzzq"]
SPACE = "\u2581"

# What Hugging Face's own files say for these models, written with their package.
SPLITS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    ),
    "qwen2": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                tokenizers.Regex(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                "isolated",
            ),
            pre_tokenizers.ByteLevel(False, use_regex=False),
        ]
    ),
    "llama-bpe": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                tokenizers.Regex(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                "isolated",
            ),
            pre_tokenizers.ByteLevel(False, use_regex=False),
        ]
    ),
}


def trained(name):
    """A byte-level tokenizer of the package itself, trained on the corpus."""
    engine = tokenizers.Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    engine.pre_tokenizer = SPLITS[name]
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(CORPUS, trainer)
    return engine


def byte_pair_metadata(engine, name):
    """What a GGUF file would say of such a tokenizer."""
    model = json.loads(engine.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3, 3] + [1] * (len(tokens) - 2), np.int32),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
    }


@pytest.fixture(scope="module", params=SPLITS)
def pair(request):
    engine = trained(request.param)
    return engine, from_metadata(byte_pair_metadata(engine, request.param), "'m.gguf'")


def test_byte_pairs_are_those_of_the_package_itself(pair):
    engine, own = pair
    for text in TEXTS:
        assert own.encode(text) == engine.encode(text).ids
        assert own.decode(own.encode(text)) == engine.decode(engine.encode(text).ids)


@given(st.text(max_size=40))
def test_any_text_comes_back(text):
    own = ROUND_TRIP
    tokens = own.encode(text)
    assert own.decode(tokens) == text.replace("<s>", "").replace("</s>", "")
    stream = own.stream()
    assert "".join(map(stream.push, tokens)) + stream.flush() == own.decode(tokens)


ROUND_TRIP = from_metadata(byte_pair_metadata(trained("smollm"), "smollm"), "'m.gguf'")


def test_bytes_that_are_no_utf8_are_no_text():
    with pytest.raises(InputError, match=r"at place 3 it has '\\udce9', half of a character"):
        ROUND_TRIP.encode(b"caf\xe9".decode("utf-8", "surrogateescape"))


def test_special_tokens_are_known_by_name_and_say_nothing():
    assert ROUND_TRIP.encode("<s>a</s>")[::2] == [0, 1]
    assert ROUND_TRIP.decode([0, 1]) == ""
    assert ROUND_TRIP.end_tokens == {1}


@pytest.mark.parametrize("name", WORD_CUTS)
def test_every_way_to_cut_words_keeps_the_text(name):
    engine = trained("gpt-2")
    own = from_metadata(byte_pair_metadata(engine, name), "'m.gguf'")
    for text in CORPUS:
        assert own.decode(own.encode(text)) == text


MERGES = "1 2|12 3|123 4|a b|_ ab|! !|$ $|ab !!|_ !!|a 1|_ _|= !|_ 12|! $"
CUT_TEXT = "1234 12 ab!!ab a1a1  =!\n\n !!1234567\nab!\n"


@pytest.mark.parametrize(
    ("name", "llama_cpp"),  # what npm's node-llama-cpp 3.22.1 makes of it; _ is a space, $ a line
    [
        ("gpt-2", "1234|_12|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|1234|5|6|7|$|ab|!|$"),
        ("trillion", "1234|_12|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|1234|5|6|7|$|ab|!|$"),
        ("minerva-7b", "1|2|3|4|_|1|2|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|1|2|3|4|5|6|7|$|ab|!|$"),
        ("smaug-bpe", "123|4|_|12|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|123|4|5|6|7|$|ab|!$"),
        ("pixtral", "123|4|_|12|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|123|4|5|6|7|$|ab|!$"),
        ("megrez", "1|2|3|4|_|1|2|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|1|2|3|4|5|6|7|$|ab|!$"),
        ("seed-coder", "1|2|3|4|_|1|2|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|1|2|3|4|5|6|7|$|ab|!|$"),
        (
            "deepseek-coder",
            "1|2|3|4|_|1|2|_ab|!!|ab|_|a|1|a|1|__|=|!|$|$|_!!|1|2|3|4|5|6|7|$|ab|!|$",
        ),
        ("falcon", "123|4|_12|_ab|!!|ab|_|a|1|a|1|__|=!|$$|_|!!|123|4|5|6|7|$|ab|!|$"),
        ("superbpe", "1|2|3|4|_|12|_ab|!!|ab|_|a|1|a|1|__|=!|$$|_!!|1|2|3|4|5|6|7|$|ab|!$"),
        ("deepseek-v3", "123|4|_|12|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|123|4|5|6|7|$|ab|!$"),
        ("deepseek-llm", "1234|_|12|_ab|!!|ab|_|a|1|a|1|_|_|=!|$|$|_!!|1234|5|6|7|$|ab|!|$"),
        ("qwen35", "1|2|3|4|_|1|2|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|1|2|3|4|5|6|7|$|ab|!$"),
        ("bailingmoe", "1|2|3|4|_|1|2|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|1|2|3|4|5|6|7|$|ab|!$"),
        ("bloom", "1234|_12|_ab|!!|ab|_|a1|a1|_|_|=|!|$$|_!!|1234|5|6|7|$|ab|!$"),
        ("viking", "1|2|3|4|_|1|2|_ab|!!|ab|_|a|1|a|1|_|_|=|!|$$|_!!|1|2|3|4|5|6|7|$|ab|!$"),
        ("tiny_aya", "1|2|3|4|_|12|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|1|2|3|4|5|6|7|$|ab|!$"),
        ("exaone", "1|2|3|4|_|1|2|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|1|2|3|4|5|6|7|$|ab|!|$"),
        ("exaone4", "1234|_12|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|1234|5|6|7|$|ab|!|$"),
        ("glm4", "123|4|_|12|_ab|!!|ab|_|a|1|a|1|_|_|=!|$$|_!!|123|4|5|6|7|$|ab|!$"),
        ("default", "123|4|_|12|_ab|!!|ab|_|a|1|a|1|__|=!|$$|_|!!|123|4|5|6|7|$|ab|!|$"),
        (None, "123|4|_|12|_ab|!!|ab|_|a|1|a|1|__|=!|$$|_|!!|123|4|5|6|7|$|ab|!|$"),
    ],
)
def test_words_are_cut_where_llama_cpp_cuts_them(caplog, name, llama_cpp):
    letters = str.maketrans("_$", "\u0120\u010a")
    merges, due = (text.translate(letters).split("|") for text in (MERGES, llama_cpp))
    tokens = [*byte_letters(), *(merge.replace(" ", "") for merge in merges)]
    metadata = {"model": "gpt2", "tokens": tokens, "merges": merges}
    metadata |= {} if name is None else {"pre": name}
    own = from_metadata({f"tokenizer.ggml.{k}": v for k, v in metadata.items()}, "'m.gguf'")
    assert [tokens[number] for number in own.encode(CUT_TEXT)] == due
    assert ("does not say how its vocabulary cuts words" in caplog.text) == (name is None)


def test_a_text_begins_with_a_token_where_the_file_or_the_kind_says_so():
    metadata = byte_pair_metadata(trained("llama-bpe"), "llama-bpe")
    assert from_metadata(metadata, "x").encode("a")[0] != 0
    metadata["tokenizer.ggml.add_bos_token"] = True
    assert from_metadata(metadata, "x").encode("a")[0] == 0
    assert from_metadata(metadata, "x").encode("a", formatted=True)[0] != 0
    del metadata["tokenizer.ggml.add_bos_token"]
    assert from_metadata(metadata, "x").encode("a")[0] == 0


# ------------------------------------------------------------------------- SentencePiece


def pieces():
    """A SentencePiece vocabulary with bytes, its scores falling with the rank of a merge."""
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    trainer = trainers.BpeTrainer(vocab_size=220, show_progress=False)
    engine.train_from_iterator(CORPUS, trainer)
    model = json.loads(engine.to_str())["model"]
    words = sorted(model["vocab"], key=model["vocab"].get)
    base = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*base, *words],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.scores": [0.0] * len(base) + [-float(rank) for rank in range(len(words))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def merged_by_score(text, metadata):
    """SentencePiece's byte pairs as its paper has them: again and again the pair of best score."""
    numbers = {token: n for n, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    scores = metadata["tokenizer.ggml.scores"]
    parts = list((SPACE + text).replace(" ", SPACE)) if text else []
    while True:
        found = [
            (-scores[numbers[left + right]], place)
            for place, (left, right) in enumerate(itertools.pairwise(parts))
            if left + right in numbers
        ]
        if not found:
            break
        place = min(found)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [
        number
        for part in parts
        for number in (
            [numbers[part]]
            if part in numbers
            else [numbers[f"<0x{byte:02X}>"] for byte in part.encode()]
        )
    ]


@pytest.mark.parametrize("text", [text for text in TEXTS if "<s>" not in text and text])
def test_sentence_pieces_merge_by_score(text):
    metadata = pieces()
    own = from_metadata(metadata, "'m.gguf'")
    assert own.encode(text) == [1, *merged_by_score(text, metadata)]
    assert own.decode(own.encode(text)) == text


def test_without_a_space_in_front_none_is_taken_away():
    metadata = pieces() | {"tokenizer.ggml.add_space_prefix": False}
    own = from_metadata(metadata, "'m.gguf'")
    assert own.decode(own.encode(" a b")) == " a b"
    assert SPACE not in metadata["tokenizer.ggml.tokens"][own.encode("a b")[1]]


def test_runs_of_spaces_that_the_makers_added_come_about_by_merging():
    metadata = pieces()
    metadata["tokenizer.ggml.tokens"] += [SPACE * 2, SPACE * 3]
    metadata["tokenizer.ggml.token_type"] += [4, 4]
    metadata["tokenizer.ggml.scores"] += [0.0, 0.0]
    own = from_metadata(metadata, "'m.gguf'")
    text = "a  b    c"
    assert own.encode(text) == [1, *merged_by_score(text, metadata)]
    assert len(metadata["tokenizer.ggml.tokens"]) - 2 in own.encode(text)
    assert own.decode(own.encode(text)) == text


def test_the_token_for_all_else_is_known_by_its_name():
    metadata = pieces()
    own = from_metadata(metadata, "'m.gguf'")
    parts = [merged_by_score(part, metadata) for part in ("a", "b")]
    assert own.encode("a<unk>b") == [1, *parts[0], 0, *parts[1]]  # as llama.cpp has it


PIECES = from_metadata(pieces(), "'m.gguf'")


@given(
    st.text(st.one_of(st.sampled_from("ab \u65e5\u00e9\U0001f389"), st.characters(codec="utf-8")))
)
def test_characters_that_are_bytes_come_out_whole_behind_each_other(text):
    tokens = PIECES.encode(text)
    stream = PIECES.stream()
    pieces = [stream.push(token) for token in tokens]
    assert "".join(pieces) + stream.flush() == PIECES.decode(tokens)


def test_a_wrong_byte_does_not_spoil_the_characters_behind_it():
    stream = PIECES.stream()
    wrong, party = 3 + 0x89, [3 + byte for byte in "\U0001f389".encode()]
    pieces = [stream.push(token) for token in (wrong, *party, *party)]
    assert "".join(pieces) + stream.flush() == "\ufffd\U0001f389\U0001f389"


@pytest.mark.parametrize(
    ("text", "word"),
    [("the cat", " sat"), ("\U0001f389", " sat"), ("</s>", "sat"), ("", "sat")],
)
def test_a_space_between_a_text_and_what_continues_it_is_told(text, word):
    stream = PIECES.stream(PIECES.encode(text))
    added = PIECES.encode("sat")[1:]  # begins with a space, as words do
    assert "".join(map(stream.push, added)) == word


@pytest.mark.parametrize("kind", [1, 3, 4])
def test_ends_of_answers_are_those_of_llama_cpp_whatever_their_kind(kind):
    # What node-llama-cpp 3.22.1 takes for an end.
    ends = ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>"]
    ends += ["<end_of_turn>", "<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]", "<eos>", "[EOS]"]
    ends += ["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
    others = ["<|user|>", "<|fim_prefix|>", "<|message|>"]
    metadata = pieces()
    first = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.tokens"] += [*ends, *others]
    metadata["tokenizer.ggml.token_type"] += [kind] * len([*ends, *others])
    metadata["tokenizer.ggml.scores"] += [0.0] * len([*ends, *others])
    own = from_metadata(metadata, "'m.gguf'")
    assert own.end_tokens == {2, *range(first, first + len(ends))}
    assert own.encode("<|im_end|>", formatted=True) == [first]
    assert own.decode([first, first + 1]) == ""


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "a vocabulary of kind 'bert'; known are gpt2, llama"),
        ({"tokenizer.ggml.model": None}, "has no vocabulary; known are"),
        ({"tokenizer.ggml.model": np.arange(2)}, r"a vocabulary of kind array\(\[0, 1\]\); known"),
        ({"tokenizer.ggml.pre": "klingon"}, "cuts words as 'klingon' does, which is not known"),
        ({"tokenizer.ggml.pre": [3]}, r"cuts words as \[3\] does, which is not known"),
        ({"tokenizer.ggml.merges": ["a"]}, "'a' is not a pair of tokens"),
        ({"tokenizer.ggml.merges": ["a zzzz"]}, "is damaged"),
        ({"tokenizer.ggml.merges": [f"a {'<s>' * 300}"]}, "makes what is longer than all tokens"),
        ({"tokenizer.ggml.merges": ["</s> </s>"]}, "is damaged"),
        ({"tokenizer.ggml.token_type": [1]}, "kinds of 1"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "its eos token 1000000 is none of its"),
        ({"tokenizer.chat_template": "{% for %}"}, "chat template of 'm.gguf' does not parse"),
    ],
)
def test_damaged_vocabularies_are_refused(change, message):
    metadata = byte_pair_metadata(trained("smollm"), "smollm") | change
    with pytest.raises(TokenizerError, match=message):
        from_metadata(metadata, "'m.gguf'")


def test_pieces_of_any_length_do_not_take_any_time():
    metadata = pieces()
    metadata["tokenizer.ggml.tokens"][-1] = "a" * 10**7
    with pytest.raises(TokenizerError, match="a token has 10000000 characters; 1024 are allowed"):
        from_metadata(metadata, "'m.gguf'")


def test_pieces_of_pieces_do_not_take_gigabytes():
    metadata = pieces()
    metadata["tokenizer.ggml.tokens"] = [c * n for c in "abcd" for n in range(1, 1024)]
    metadata["tokenizer.ggml.token_type"] = [1] * 4092
    metadata["tokenizer.ggml.scores"] = [0.0] * 4092
    with pytest.raises(TokenizerError, match="its 4092 tokens are longer than those of any voca"):
        from_metadata(metadata, "'m.gguf'")


@pytest.mark.parametrize(
    ("kind", "lacking"), [("gpt2", "tokens"), ("gpt2", "merges"), ("llama", "scores")]
)
def test_metadata_without_a_part_of_the_vocabulary_are_refused(kind, lacking):
    metadata = pieces() if kind == "llama" else byte_pair_metadata(trained("smollm"), "smollm")
    del metadata[f"tokenizer.ggml.{lacking}"]
    with pytest.raises(TokenizerError, match=rf"has no 'tokenizer\.ggml\.{lacking}'; convert"):
        from_metadata(metadata, "'m.gguf'")


@pytest.mark.parametrize("text", ["$A", "$B:1", "a b", "begin", "", "$"])
def test_the_token_that_begins_a_text_may_look_like_anything(text):
    metadata = pieces()
    metadata["tokenizer.ggml.tokens"][1] = text
    assert from_metadata(metadata, "'m.gguf'").encode("ab") == PIECES.encode("ab")


def test_a_tokenizer_that_gives_up_is_an_error(folder):
    path, engine = folder
    engine.post_processor = processors.TemplateProcessing(single="$A $B")
    engine.save(str(path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=r"The tokenizer of '.*' is damaged: PanicException"):
        from_folder(path).encode("text")


def test_a_vocabulary_without_a_chat_template_says_so():
    with pytest.raises(TokenizerError, match=r"There is no chat template with 'm\.gguf'"):
        ROUND_TRIP.chat_prompt([{"role": "user", "content": "Hi"}])


# -------------------------------------------------------------------------------- folders


@pytest.fixture
def folder(tmp_path):
    engine = trained("smollm")
    engine.add_special_tokens([AddedToken("<end>", special=True)])
    engine.save(str(tmp_path / "tokenizer.json"))
    return tmp_path, engine


def test_a_folder_has_the_tokenizer_and_its_template(folder):
    path, engine = folder
    config = {
        "eos_token": {"content": "</s>"},
        "bos_token": "<s>",
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    own = from_folder(path, [402])
    for text in TEXTS:
        assert own.encode(text) == engine.encode(text).ids
    assert own.end_tokens == {1, 402}
    assert own.chat_prompt([{"role": "user", "content": "Hi"}]) == "<s>Hi"
    (path / "chat_template.jinja").write_text("own {{ eos_token }}")
    assert from_folder(path).chat_prompt([]) == "own </s>"


def test_of_several_templates_the_default_one_is_taken(folder):
    path, _ = folder
    named = [5, {"name": ["default"], "template": "none"}, {"name": "default", "template": "own"}]
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert from_folder(path).chat_prompt([]) == "own"


def test_damaged_folders_are_refused(folder, tmp_path):
    path, _ = folder
    (path / "chat_template.jinja").write_bytes(b"{{ 1 }}\xff")
    with pytest.raises(
        TokenizerError, match=r"chat_template.jinja' is not a chat template that can"
    ):
        from_folder(path)
    (path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(TokenizerError, match=r"tokenizer_config.json' is no JSON .* holds a list"):
        from_folder(path)
    (path / "tokenizer.json").write_text("{}")
    with pytest.raises(
        TokenizerError, match=r"tokenizer.json' is not a tokenizer that can be read"
    ):
        from_folder(path)
    (path / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"There is no 'tokenizer.json' in"):
        from_folder(path)
