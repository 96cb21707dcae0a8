"""Reads decoders whose last weight ends a file, behind which nobody may touch memory.

``python file_ends.py KIND ...`` tells each case before it runs; one that reads beyond ends it.
"""

import ctypes
import mmap
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf_files import decoder_metadata, decoder_tensors, gguf_bytes

import partita
from partita.frontends import model_file

PAGE = mmap.PAGESIZE
VOCABULARY = 112
"""So many rows of any kind of block are a number of GGUF's units of 32 bytes."""
LAST = ("token_embd.weight", "output.weight", "blk.1.attn_v.weight", "blk.1.ffn_down.weight")


def guarded_map(path):
    """A file as memory of whole pages, between pages that nobody may touch."""
    nbytes = path.stat().st_size
    assert nbytes % PAGE == 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = libc.mmap(None, nbytes + 2 * PAGE, 0, flags, -1, 0) + PAGE
    fixed = 0x10
    with path.open("rb") as file:
        rights = mmap.PROT_READ
        made = libc.mmap(start, nbytes, rights, mmap.MAP_PRIVATE | fixed, file.fileno(), 0)
    assert made == start
    return memoryview((ctypes.c_char * nbytes).from_address(start)).cast("B")


def file_with_last(kind, last):
    """The bytes of a file of whole pages that a weight ends."""
    sizes = {"embedding_length": 256, "feed_forward_length": 768}
    metadata = decoder_metadata(**sizes) | {"general.description": ""}
    tensors = decoder_tensors(metadata, kind, vocabulary=VOCABULARY, tied=last != "output.weight")
    tensors[last] = tensors.pop(last)
    metadata["general.description"] = " " * (-len(gguf_bytes(metadata, tensors)) % PAGE)
    data = gguf_bytes(metadata, tensors)
    assert len(data) % PAGE == 0
    assert data.endswith(tensors[last].data)
    return data


def logits(data, folder):
    """Of a prompt of many tokens, of a few, and of single ones behind it."""
    path = Path(folder) / "model.gguf"
    path.write_bytes(data)
    model = partita.Core().read_model(path)
    fixed = {"batch": 1}
    model.reshape({p.name: [fixed.get(d, d) for d in p.shape] for p in model.inputs})
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    found, total = [], 0
    for new in (40, 1, 3, 1):
        total += new
        request.infer(
            {
                "input_ids": (np.arange(new)[None] * 7 + total) % VOCABULARY,
                "seqlens_k": np.array([total - 1], np.int32),
                "total_sequence_length": np.array(total, np.int32),
            }
        )
        found.append(np.array(request.results["logits"]))
    return found


def main(kinds):
    usual = model_file.map_file
    for kind in kinds:
        for last in LAST:
            sys.stdout.write(f"{kind} {last}\n")
            sys.stdout.flush()
            data = file_with_last(kind, last)
            with tempfile.TemporaryDirectory() as folder:
                model_file.map_file = usual
                expected = logits(data, folder)
                model_file.map_file = guarded_map
                for got, want in zip(logits(data, folder), expected, strict=True):
                    np.testing.assert_array_equal(got, want)


if __name__ == "__main__":
    main(sys.argv[1:])
