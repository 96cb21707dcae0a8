"""Files that are cut short, damaged or made to do harm."""

import random
import struct
import tracemalloc

import numpy as np
import pytest
from gguf_files import Stored, decoder_metadata, decoder_tensors, gguf_bytes, stored, text, typed

from partita import Core
from partita.errors import ModelFormatError
from partita.frontends.gguf import GgufFile

HUGE = (1 << 64) - 1


def opened(data):
    return GgufFile(memoryview(data), "the test's file")


def refusal(data):
    with pytest.raises(ModelFormatError) as caught:
        opened(data)
    return str(caught.value)


def header(tensors=0, pairs=0, version=3, magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, tensors, pairs)


def entry(name="w", sizes=(4,), kind=0, offset=0, rank=None):
    """What the table says about a tensor; sizes as the file lists them."""
    rank = len(sizes) if rank is None else rank
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", rank, *sizes, kind, offset)


def pair(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def one_tensor(table, body=bytes(64)):
    head = header(tensors=1) + table
    return head + bytes(-len(head) % 32) + body


def one_pair(content):
    return header(pairs=1) + content


def test_what_a_file_holds():
    numbers = stored("F32", np.arange(6).reshape(2, 3))
    nested = [[1, 2], [3]]
    metadata = {"n": 3, "r": 0.5, "b": True, "t": "é", "a": [1, 2], "s": ["x", ""], "n2": nested}
    file = opened(gguf_bytes(metadata, {"w": numbers, "v": stored("F16", np.ones(4))}))
    held = file.metadata
    assert (held["n"], held["r"], held["b"], held["t"]) == (3, 0.5, True, "é")
    assert held["a"].tolist() == [1, 2]
    assert list(held["s"]) == ["x", ""] and held["s"][-1] == "" and held["s"][:1] == ["x"]
    assert [inner.tolist() for inner in held["n2"]] == nested
    np.testing.assert_array_equal(file.tensors["w"].blocks(), np.arange(6).reshape(2, 3))
    assert file.tensors["v"].shape == (4,)


def test_texts_take_their_places_in_the_file_alone():
    count = 20_000
    data = gguf_bytes({"s": [f"{n}" for n in range(count)]}, {})
    tracemalloc.start()
    held = opened(data).metadata["s"]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 24 * count
    assert held[count - 1] == f"{count - 1}"


def test_version_two_is_read_as_well():
    assert opened(gguf_bytes({"n": 1}, {}, version=2)).metadata["n"] == 1


def test_every_type_of_number():
    kinds = {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }
    data = header(pairs=2 * len(kinds))
    for kind, code in kinds.items():
        data += pair(f"n{kind}", kind, struct.pack(f"<{code}", 1))
        data += pair(f"a{kind}", 9, struct.pack(f"<IQ2{code}", kind, 2, 1, 0))
    held = opened(data).metadata
    assert [held[f"n{kind}"] for kind in kinds] == [1] * len(kinds)
    assert held["n7"] is True
    assert [held[f"a{kind}"].tolist() for kind in kinds] == [[1, 0]] * len(kinds)


def test_texts_that_are_no_utf8_are_kept_as_bytes():
    held = opened(gguf_bytes({"t": b"\xff", "s": [b"\xc3", "b"]}, {})).metadata
    assert held["t"] == "\ufffd"
    assert held["s"][0] == "\ufffd" and held["s"].raw(0) == b"\xc3"


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "the file's first word (4 bytes) goes beyond its end"),
        (b"GGML" + bytes(20), "does not start with b'GGUF'"),
        (header(version=1), "of version 1; versions 2 and 3 are read"),
        (header(version=4), "of version 4"),
        (header(version=3 << 24), "big-endian machines"),
        (header(tensors=HUGE), f"claims {HUGE} tensors"),
        (header(pairs=HUGE), f"claims {HUGE} metadata entries"),
        (header(pairs=1), "claims 1 metadata entries, more than the file has room for"),
    ],
)
def test_headers(data, part):
    assert part in refusal(data)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (pair("k", 13, b"\0"), "'k' is of type 13, which GGUF does not have"),
        (pair("k", 4, b"\0"), "'k' (4 bytes) goes beyond its end"),
        (pair("k", 8, struct.pack("<Q", HUGE)), f"the text of 'k' ({HUGE} bytes)"),
        (struct.pack("<Q", HUGE) + bytes(8), f"a key of the metadata has {HUGE} bytes"),
        (struct.pack("<Q", 60000) + bytes(8), "a key of the metadata (60000 bytes)"),
        (pair(b"\xff", 4, bytes(4)), "a key of the metadata is no UTF-8: b'\\xff'"),
        (pair("k", 9, struct.pack("<IQ", 4, HUGE)), f"claims {HUGE} elements of 'k'"),
        (pair("k", 9, struct.pack("<IQ", 4, 2) + bytes(4)), "claims 2 elements of 'k'"),
        (pair("k", 9, struct.pack("<IQ", 99, 1)), "of type 99"),
        (pair("k", 9, struct.pack("<IQ", 8, HUGE)), f"claims {HUGE} texts of 'k'"),
        (pair("k", 9, struct.pack("<IQQ", 8, 1, HUGE)), "the texts of 'k' end beyond"),
        (pair("k", 9, struct.pack("<IQQQ", 8, 2, 8, 0)), "the texts of 'k' end beyond"),
        (pair("k", 9, struct.pack("<IQ", 9, HUGE)), f"claims {HUGE} arrays in 'k'"),
        (pair("k", 9, struct.pack("<IQ", 9, 1) * 9), "arrays in 'k' lie deeper than 4"),
        (pair("k", 9, struct.pack("<IQ", 9, 70000) + bytes(12 * 70000)), "claims 70000 arrays in"),
    ],
)
def test_metadata(content, part):
    assert part in refusal(one_pair(content))


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (header(tensors=200_000) + bytes(32 * 200_000), "200000 tensors, and no more than 131072 "),
        (header(pairs=70_000) + bytes(13 * 70_000), "claims 70000 metadata entries, and no more"),
    ],
    ids=["tensors", "entries"],
)
def test_more_than_any_model_has(data, part):
    assert part in refusal(data)


@pytest.mark.parametrize(
    ("kind", "inner", "count", "part"),
    [
        (8, b"", 1_100_000, "claims 1100000 texts of 'b', and no more than 997152 are read"),
        (9, struct.pack("<IQ", 0, 0), 40_000, "claims 40000 arrays in 'b', and no more than 25536"),
    ],
    ids=["texts", "arrays"],
)
def test_arrays_that_are_too_many_together(kind, inner, count, part):
    content = struct.pack("<IQ", kind, count) + (inner or bytes(8)) * count
    assert part in refusal(header(pairs=2) + pair("a", 9, content) + pair("b", 9, content))


def test_keys_and_tensors_of_one_name():
    assert "names 'k' twice" in refusal(header(pairs=2) + 2 * pair("k", 4, bytes(4)))
    table = entry(offset=0) + entry(offset=32)
    assert "two tensors 'w'" in refusal(header(2) + table + bytes(200))


@pytest.mark.parametrize(
    ("table", "part"),
    [
        (entry(rank=0), "tensor 'w' has 0 dimensions"),
        (entry(sizes=(1,) * 5), "tensor 'w' has 5 dimensions"),
        (entry(rank=HUGE >> 32), "has 4294967295 dimensions"),
        (entry(sizes=(0, 4)), "tensor 'w' has the shape [4, 0]"),
        (entry(sizes=(1 << 62, 8)), "tensor 'w' has the shape"),
        (entry(sizes=(1 << 32, 1 << 32)), "tensor 'w' has the shape"),
        (entry(sizes=(33,), kind=2), "rows of 33 elements, no multiple of the 32 of Q4_0"),
        (entry(kind=21), "of type IQ3_S, which is not read; these are: F32, F16, Q4_0, Q4_1, "),
        (entry(kind=1 << 31), "of type number 2147483648"),
        (entry(offset=1), "lies at offset 1, alignment 32"),
        (entry(offset=1 << 63), "lies at offset 9223372036854775808"),
        (entry(sizes=(17,)), "tensor 'w' ends at byte 132: the file is cut short"),
        (entry(offset=64), "the file is cut short"),
        (entry(name=b"\xfe"), "the name of a tensor is no UTF-8"),
    ],
)
def test_tables_of_tensors(table, part):
    assert part in refusal(one_tensor(table))


def test_tensors_that_overlap():
    table = entry("a", (16,)) + entry("b", (4,), offset=32)
    assert "tensors 'a' and 'b' overlap" in refusal(header(2) + table + bytes(200))


@pytest.mark.parametrize("value", [0, 3, 1 << 21, True, "32", 32.0, [32]])
def test_alignments(value):
    data = header(pairs=1) + text("general.alignment") + typed(value)
    assert "general.alignment" in refusal(data)


def test_another_alignment():
    tensors = {"a": stored("F32", np.ones(3)), "b": stored("F32", np.full(2, 7))}
    file = opened(gguf_bytes({"general.alignment": 64}, tensors, alignment=64))
    np.testing.assert_array_equal(file.tensors["b"].blocks(), [7, 7])


def small_file():
    metadata = decoder_metadata(block_count=1) | {"tokenizer.ggml.tokens": ["a", "b"]}
    return gguf_bytes(metadata, decoder_tensors(metadata, "Q4_K", vocabulary=4))


def test_every_cut_is_noticed():
    data = small_file()
    start = data.rindex(b"ffn_norm.weight")
    cuts = [*range(start + 60), *range(start + 60, len(data), 997), len(data) - 32]
    for length in cuts:
        refusal(data[:length])


def test_damaged_bytes_raise_model_errors_and_nothing_else():
    data, rng = small_file(), random.Random(1)
    head = data.rindex(b"ffn_norm.weight") + 60
    refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(head)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        try:
            Core().read_model(bytes(damaged))
        except ModelFormatError:
            refused += 1
    assert refused > 150


def test_a_tensor_longer_than_its_elements_is_not_read_beyond():
    content = Stored("Q8_0", (1, 32), bytes(34))
    assert opened(gguf_bytes({}, {"w": content})).tensors["w"].data.nbytes == 34
