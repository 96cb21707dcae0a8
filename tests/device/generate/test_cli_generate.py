"""``partita generate`` on device CPU with a small decoder whose tokens are words."""

import importlib.util
import io
import json
import signal
import subprocess
import sys

import pytest
import tiny_decoder as tiny
from tiny_text import WORDS, text_of, write_model

import partita
from partita.cli.main import main
from partita.generate import Generator
from partita.generate.continuous_batch import ContinuousBatch

WEIGHTS = tiny.weights()
PROMPT, TOKENS = "w3 w1 w4", [3, 1, 4]


def behind_prompt(tokens):
    """The same where a text goes on, so that a space comes before it."""
    return f" {text_of(tokens)}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model as onnxruntime-genai writes it."""
    path = tmp_path_factory.mktemp("model")
    template = "{% for m in messages %}{{ 'w7 ' if m.role == 'user' }}{{ m.content }} {% endfor %}"
    write_model(path, WEIGHTS, template)
    return path


@pytest.fixture
def cli(folder, capsys, monkeypatch):
    """Runs the command on the folder; returns exit code, stdout and stderr."""

    def run(*options, stdin=""):
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = main(["generate", str(folder), "-d", "CPU", *map(str, options)])
        return code, *capsys.readouterr()

    return run


def test_text_goes_to_stdout_and_the_summary_to_stderr(cli):
    code, out, err = cli("--prompt", PROMPT, "--max-new-tokens", 6)
    assert code == 0
    assert out == behind_prompt(tiny.expected_tokens(TOKENS, 6, WEIGHTS)) + "\n"
    speed, traffic, placement = err.splitlines()
    assert "prompt: 3 tokens, " in speed
    assert "generated: 5 tokens, " in speed
    assert "threads read this machine's memory (measured just now" in traffic
    assert placement.startswith("partita: note: tiny: CPU ")


def test_the_prompt_may_come_from_stdin(cli):
    _, out, _ = cli("--max-new-tokens", 4, stdin=PROMPT)
    assert out == behind_prompt(tiny.expected_tokens(TOKENS, 4, WEIGHTS)) + "\n"


def test_json_has_text_tokens_speed_and_placement(cli):
    _, out, err = cli("--prompt", PROMPT, "--json", "--context", 8)
    data = json.loads(out)
    expected = tiny.expected_tokens(TOKENS, 5, WEIGHTS)
    [answer] = data["answers"]
    assert answer["tokens"] == expected
    assert answer["text"] == behind_prompt(expected)
    assert answer["finish"] == "context"
    assert data["prefill"]["tokens"] == 3
    assert data["decode"]["tokens"] == 4
    read = data["decode"]["bytes_per_second"] * data["decode"]["seconds"]
    assert read == pytest.approx(data["decode"]["bytes"])
    assert data["memory_bandwidth"]["bytes_per_second"] > 1e8
    assert data["placement"].startswith("tiny: CPU ")
    assert err == ""


def test_bytes_per_token_are_those_of_weights_and_cache(cli):
    _, out, _ = cli("--prompt", PROMPT, "--json", "--max-new-tokens", 2)
    read_whole = sum(array.nbytes for name, array in WEIGHTS.items() if name[0] in "01h")
    read_whole += 8  # the 1 with which lengths are computed
    caches = 3 * tiny.LAYERS * 2 * tiny.HEADS * tiny.SIZE * 4
    assert json.loads(out)["decode"]["bytes"] == read_whole + caches


def test_stop_words_and_sampling(cli):
    greedy = tiny.expected_tokens(TOKENS, 12, WEIGHTS)
    stop = WORDS[greedy[4]]
    _, out, _ = cli("--prompt", PROMPT, "--stop", f" {stop}", "--json", "--max-new-tokens", 12)
    answer = json.loads(out)["answers"][0]
    assert (answer["text"], answer["finish"]) == (
        behind_prompt(greedy[: greedy.index(greedy[4])]),
        "stop",
    )
    options = ["--prompt", PROMPT, "--temperature", 2, "--max-new-tokens", 12, "--top-p", 0.99]
    drawn = [cli(*options, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_conversation_repeats_what_was_said(cli):
    _, out, _ = cli("--chat", "--max-new-tokens", 3, stdin="w5\n\nw6 w2\n")
    first = tiny.expected_tokens([7, 5], 3, WEIGHTS)
    second = tiny.expected_tokens([7, 5, *first, 7, 6, 2], 3, WEIGHTS)
    assert out == f"{text_of(first)}\n{text_of(second)}\n"
    _, out, _ = cli("--chat", "--max-new-tokens", 3, "--prompt", "w5", "--system", "w9")
    assert out == text_of(tiny.expected_tokens([9, 7, 5], 3, WEIGHTS)) + "\n"


@pytest.mark.parametrize(
    ("prompt", "options", "told"),
    [
        ("", (), "The prompt has no tokens"),
        ("w1 " * 48, (), "A prompt of 48 tokens and 1 new ones do not fit into the context of 48"),
        ("w1 w2", ("--context", 4, "--max-new-tokens", 3), "at most 2 new tokens fit"),
    ],
)
def test_a_prompt_without_room_is_refused_before_the_model_is_compiled(
    cli, monkeypatch, prompt, options, told
):
    compiled = []
    monkeypatch.setattr(partita.Core, "compile_model", lambda *_, **__: compiled.append(None))
    for form in ((), ("--json",)):
        code, out, err = cli("--prompt", prompt, *options, *form)
        assert (code, compiled) == (1, [])
        assert told in err
        assert "interrupted" not in out


def test_an_error_in_the_middle_of_a_conversation_is_told_in_json(cli):
    code, out, err = cli("--chat", "--json", "--max-new-tokens", 3, stdin="w5\n" + "w6 " * 48)
    first, second = json.loads(out)["answers"]
    assert (code, first["finish"], first["error"]) == (1, "length", None)
    assert (second["finish"], second["tokens"]) == ("error", [])
    assert "do not fit into the context" in second["error"]
    assert second["error"] in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", "w1 " * 48], "A prompt of 48 tokens and 1 new ones do not fit into the con"),
        (["--prompt", "w1", "--context", "49"], "made for texts of up to 48 tokens, and a context"),
        (["--prompt", ""], "The prompt has no tokens"),
        (["--prompt", "w1", "--temperature", "-1"], "temperature=-1.0 is out of range"),
        (["--prompt", "w1", "--system", "w2"], "--system is for conversations; add --chat"),
    ],
)
def test_what_cannot_be_done_is_one_line(cli, options, message):
    code, out, err = cli(*options)
    assert code == 1
    errors = [line for line in err.splitlines() if line.startswith("partita: error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert out.strip() == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", PROMPT, "--top-k", "-1"], "top_k=-1 is out of range; it is a whole number"),
        (["--prompt", PROMPT, "--stop", ""], "A stop word is empty"),
        ([], "Standard input is closed, and there is no prompt; give --prompt."),
        (["--chat"], "Standard input is closed, and there is no prompt; give --prompt."),
    ],
)
def test_what_is_asked_wrongly_is_told_before_the_model_is_read(
    folder, capsys, monkeypatch, options, message
):
    monkeypatch.setattr("partita.core.Core.read_model", lambda *_, **__: pytest.fail("it was read"))
    monkeypatch.setattr("sys.stdin", None)  # as Python has it where descriptor 0 is closed
    assert main(["generate", str(folder), "-d", "CPU", *options]) == 1
    assert message in capsys.readouterr().err


def test_a_folder_without_a_model_says_what_was_looked_for(tmp_path, capsys):
    assert main(["generate", str(tmp_path), "-d", "CPU", "--prompt", "x"]) == 1
    assert "looked for model.onnx, decoder_model_merged.onnx" in capsys.readouterr().err


def test_an_interrupted_text_is_shown_as_far_as_it_came(cli, monkeypatch):
    steps = 0
    make_step = ContinuousBatch.step

    def step(batch):
        nonlocal steps
        steps += 1
        if steps > 3:
            raise KeyboardInterrupt
        make_step(batch)

    monkeypatch.setattr(ContinuousBatch, "step", step)
    code, out, err = cli("--prompt", PROMPT)
    assert code == 130
    assert out == behind_prompt(tiny.expected_tokens(TOKENS, 2, WEIGHTS)) + "\n"
    assert "generated: 1 tokens" in err
    assert err.endswith("partita: interrupted\n")


def test_an_interrupt_leaves_what_came_so_far_and_the_summary(folder):
    command = [sys.executable, "-m", "partita", "generate", str(folder), "-d", "CPU", "--chat"]
    process = subprocess.Popen(
        [*command, "--max-new-tokens", "3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdin.write("w5\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    process.send_signal(signal.SIGINT)  # it waits for the next line
    rest, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert answer == text_of(tiny.expected_tokens([7, 5], 3, WEIGHTS)) + "\n"
    assert rest == ""
    assert "generated: 2 tokens" in err
    assert err.endswith("partita: interrupted\n")


@pytest.mark.parametrize("package", ["tokenizers", "jinja2"])
@pytest.mark.parametrize("options", [["--prompt", PROMPT], ["--chat"]])
def test_a_missing_package_is_told_before_the_model_is_read(cli, monkeypatch, package, options):
    hide(monkeypatch, package)
    monkeypatch.setattr("partita.core.Core.read_model", lambda *_, **__: pytest.fail("it was read"))
    code, out, err = cli(*options)
    assert code == 1
    assert f"Package '{package}' is not installed" in err
    assert 'pip install "partita[generate]"' in err
    assert out == ""


def test_a_missing_package_is_told_before_the_model_is_fetched(monkeypatch, capsys):
    hide(monkeypatch, "tokenizers")
    fetch = "partita.zoo.store.Store.ensure"
    monkeypatch.setattr(fetch, lambda *_, **__: pytest.fail("it was fetched"))
    assert main(["generate", "zoo:smollm2", "-d", "CPU", "--prompt", PROMPT]) == 1
    assert "Package 'tokenizers' is not installed" in capsys.readouterr().err


def test_a_conversation_without_a_template_is_refused_before_the_model_is_read(
    cli, folder, monkeypatch
):
    config = folder / "tokenizer_config.json"
    text = config.read_text()
    monkeypatch.setattr("partita.core.Core.read_model", lambda *_, **__: pytest.fail("it was read"))
    config.write_text("{}")
    try:
        code, _, err = cli("--chat")
    finally:
        config.write_text(text)
    assert code == 1
    assert "There is no chat template with" in err


def test_an_application_is_warned_of_missing_packages_before_the_model_is_read(
    folder, monkeypatch, caplog
):
    hide(monkeypatch, "tokenizers")
    warned = []
    read = partita.Core.read_model

    def note(*args, **kwargs):
        warned.append(caplog.text)
        return read(*args, **kwargs)

    monkeypatch.setattr("partita.core.Core.read_model", note)
    generator = Generator(folder, "CPU")
    said = "Prompts must be tokens, since 'tokenizers' is not installed: pip install"
    assert said in warned[0]
    pieces = generator.generate(TOKENS, max_new_tokens=3)
    assert [piece.token for piece in pieces] == tiny.expected_tokens(TOKENS, 3, WEIGHTS)


def hide(monkeypatch, package):
    """Lets a package seem not to be installed."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "partita.generate.text.packages.importlib.util.find_spec",
        lambda name, *rest: None if name == package else find_spec(name, *rest),
    )
