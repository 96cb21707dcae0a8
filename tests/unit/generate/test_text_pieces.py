"""Stop words across pieces, and characters whose bytes come one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InputError
from partita.generate.text.stop_words import StopWords
from partita.generate.text.text_stream import TextStream


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4)), st.data())
def test_a_text_ends_before_the_first_stop_word_however_it_is_cut(text, words, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    stop = StopWords(words)
    passed = ""
    for piece in pieces:
        passed += stop.push(piece)
    if not stop.found:
        passed += stop.flush()
    # Found as soon as one is complete: of the words that end first, the one that begins first.
    ends = [text.find(word) + len(word) for word in words if word in text]
    assert stop.found == bool(ends)
    if not ends:
        assert passed == text
    else:
        assert text.startswith(passed)
        assert not any(word in passed for word in words)
        assert any(text[len(passed) :].startswith(word) for word in words)


def test_no_more_is_held_back_than_may_begin_a_stop_word():
    stop = StopWords(["\n\nUser:", "###"])
    assert stop.push("One\n") == "One"
    assert stop.push("\nUs") == ""
    assert stop.push("ual ##") == "\n\nUsual "
    assert stop.push("# more") == ""
    assert stop.found
    assert stop.push("later") == ""


def test_empty_stop_words_are_refused():
    with pytest.raises(InputError, match="A stop word is empty"):
        StopWords(["a", ""])


def test_stop_words_are_texts():
    with pytest.raises(InputError, match="A stop word is 5; they are texts"):
        StopWords(["a", 5])


def decode(tokens):
    """Each token is a byte, 256 a special one that says nothing."""
    return bytes(token for token in tokens if token < 256).decode("utf-8", errors="replace")


@given(st.text(max_size=12))
def test_bytes_come_out_as_the_characters_they_make(text):
    stream = TextStream(decode)
    pieces = [stream.push(byte) for byte in text.encode()]
    assert "".join(pieces) + stream.flush() == text
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


@given(
    st.lists(st.one_of(st.integers(0, 256), st.sampled_from(list("e\u20ac\U0001f389".encode()))))
)
def test_no_byte_is_lost_whatever_comes(tokens):
    stream = TextStream(decode)
    found = "".join([stream.push(token) for token in tokens]) + stream.flush()
    assert found == decode(tokens)


def test_an_incomplete_character_is_held_back_until_the_end():
    stream = TextStream(decode)
    euro = "\u20ac".encode()
    assert [stream.push(byte) for byte in (97, *euro)] == ["a", "", "", "\u20ac"]
    assert stream.push(euro[0]) == ""
    assert stream.flush() == "\ufffd"


def test_what_a_token_means_may_depend_on_whether_it_is_first():
    words = ["\u2581Hello", "\u2581wide", "\u2581world", ""]

    def decode_pieces(tokens):
        return "".join(words[token] for token in tokens).replace("\u2581", " ").removeprefix(" ")

    stream = TextStream(decode_pieces)
    assert [stream.push(token) for token in (0, 1, 3, 2)] == ["Hello", " wide", "", " world"]


@pytest.mark.parametrize(("byte", "most"), [(97, 2), (0x89, 65)])
def test_a_window_of_tokens_is_decoded_not_all(byte, most):
    longest = 0

    def counted(tokens):
        nonlocal longest
        longest = max(longest, len(tokens))
        return decode(tokens)

    stream = TextStream(counted)
    text = "".join(stream.push(byte) for _ in range(500)) + stream.flush()
    assert text == decode([byte] * 500)
    assert longest <= most
