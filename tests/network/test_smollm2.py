"""SmolLM2 out of its wheel on PyPI: its tokens are llama.cpp's, its answers those of float64."""

import numpy as np
import pytest
from llm_reference import ReferenceDecoder

from partita import Core, zoo
from partita.cli.main import main
from partita.frontends.gguf import open_file
from partita.generate import Generator

pytestmark = pytest.mark.timeout(900)  # they run beside others, which leave them part of a core

# What llama.cpp (npm's node-llama-cpp 3.22.1) makes of texts, special tokens known by name.
LLAMA_CPP = [
    ("The capital of France is", [504, 3575, 282, 4649, 314]),
    (
        "na\xefve caf\xe9 \u2014 \xdcn\xefc\xf6d\xe9",
        [3546, 46494, 37366, 1841, 5549, 246, 94, 25972, 83, 7466, 84, 2756],
    ),
    (
        "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
        [23274, 115, 40993, 179, 120, 248, 26453, 11100, 224, 10391, 251, 10391, 134, 11100, 226],
    ),
    ("\U0001f389 e\u0301 \u2603", [10813, 232, 227, 297, 151, 219, 4636, 242, 221]),
    ("Hello, world! It's 2024", [19556, 28, 905, 17, 657, 506, 216, 34, 32, 34, 36]),
    (
        "def f(x):\n    return x**2  # comment\n\n\n",
        [1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 216, 907, 5189, 16506],
    ),
    ("   leading and   multiple   spaces ", [256, 2899, 284, 256, 2701, 256, 5600, 216]),
    ("tabs\tand\r\nnewlines\n\n", [100, 7366, 197, 397, 201, 198, 2241, 5110, 1116]),
    ("<|im_start|>user\nHi<|im_end|>\n", [1, 4093, 198, 26843, 2, 198]),
    ("Don't won't I'LL we'd", [8084, 982, 3763, 982, 339, 23, 16421, 392, 6737]),
    ("1234567890 0x1F", [33, 34, 35, 36, 37, 38, 39, 40, 41, 32, 216, 32, 104, 33, 54]),
    (
        "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440",
        [155, 249, 46879, 16464, 32547, 41337, 7872, 9175],
    ),
    ("a\xa0b\u3000c", [81, 15442, 82, 12109, 218, 83]),
    ("\xbd \xb2 \u2167", [16738, 216, 19133, 216, 173, 223, 117]),
    (
        "x" * 50 + " \n \n",
        [31069] * 12 + [10969, 3717, 3717],
    ),
    ("\x00\x01", [190, 191]),
]


@pytest.fixture(scope="module")
def path():
    return zoo.path("smollm2")


@pytest.fixture(scope="module")
def generator(path):
    return Generator(path, "CPU", 512)


@pytest.mark.parametrize(("text", "tokens"), LLAMA_CPP)
def test_tokens_are_llama_cpps(generator, text, tokens):
    tokenizer = generator.tokenizer
    assert tokenizer.encode(text) == tokens
    shown = text.replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert tokenizer.decode(tokens) == shown
    stream = tokenizer.stream()
    assert "".join(map(stream.push, tokens)) + stream.flush() == shown


def numbers(tensor):
    """Elements in float64, of the types that the file has."""
    if tensor.format.name == "F32":
        return np.frombuffer(tensor.data, np.float32).astype(np.float64).reshape(tensor.shape)
    if tensor.format.name == "Q8_0":
        blocks = np.frombuffer(tensor.data, [("scale", np.float16), ("quants", np.int8, 32)])
        return (blocks["scale"][:, None].astype(np.float64) * blocks["quants"]).reshape(
            tensor.shape
        )
    assert tensor.format.name == "Q4_1"
    record = [("scale", np.float16), ("least", np.float16), ("quants", np.uint8, 16)]
    blocks = np.frombuffer(tensor.data, record)
    quants = np.concatenate([blocks["quants"] & 15, blocks["quants"] >> 4], axis=1)
    scale, least = (blocks[name][:, None].astype(np.float64) for name in ("scale", "least"))
    return (scale * quants + least).reshape(tensor.shape)


def test_greedy_tokens_are_those_of_float64(path, generator):
    file = open_file(path)
    weights = {name: numbers(tensor) for name, tensor in file.tensors.items()}
    reference = ReferenceDecoder(dict(file.metadata), weights)
    prompt = generator.tokenizer.encode("Once upon a time")
    pieces = [*generator.generate(prompt, max_new_tokens=24)]
    assert [piece.token for piece in pieces] == reference.greedy(prompt, 24)


def test_the_zoo_s_answer(path):
    sample = zoo.sample("smollm2")
    core = Core()
    compiled = core.compile_model(core.read_model(path).reshape(sample.shapes), "CPU")
    assert sample.answer(lambda feeds: compiled(dict(feeds)).to_dict()).correct


def test_the_command(path, capsys):
    options = ["-d", "CPU", "--prompt", "The capital of France is", "--max-new-tokens", "2"]
    assert main(["generate", "zoo:smollm2", *options]) == 0
    assert capsys.readouterr().out == " Paris.\n"
