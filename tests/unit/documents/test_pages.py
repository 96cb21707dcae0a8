"""Pages for readers: their code runs, their commands, paths and links are there."""

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from tflite_files import write_tiny_tflite
from tiny_gguf import write_tiny_gguf

from partita.cli.main import build_parser

ROOT = Path(__file__).parents[3]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
}
LANGUAGES = {"", "mermaid", "python", "sh", "toml"}
FOLDERS = r"(?:core|plugins|serve|conformance|tests|benchmarks|docs|examples|\.ci|\.github)"
BEFORE = {"README.md": "import numpy as np\nx = np.ones((2, 3), np.float32)\n"}
"""What a page's code takes for granted."""


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def prose(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "tooling" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_language_that_is_tested(page):
    fences = re.findall(r"^```(.*)$", PAGES[page], re.MULTILINE)
    assert set(fences[::2]) <= LANGUAGES
    assert len(fences) % 2 == 0


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if blocks(text, "python")])
def test_python_runs(page, tmp_path):
    shape = TensorProto.FLOAT, [2, 3]
    ports = [[helper.make_tensor_value_info(name, *shape)] for name in ("input", "y")]
    node = helper.make_node("Softmax", ["input"], ["y"], name="s")
    graph = helper.make_graph([node], "g", *ports)
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=opset), tmp_path / "model.onnx")
    write_tiny_gguf(tmp_path / "model.gguf")
    write_tiny_tflite(tmp_path / "model.tflite")
    code = BEFORE.get(page, "") + "\n".join(blocks(PAGES[page], "python"))
    for device in ("GPU", "OPENCL"):  # not every machine has these
        code = code.replace(f"HETERO:{device},CPU", "HETERO:CPU,REFERENCE")
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def commands(text):
    """Commands of ``partita`` in blocks of shell, as words."""
    for line in "".join(blocks(text, "sh")).splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while words and re.fullmatch(r"\w+=.*", words[0]):
            del words[0]
        if words[:1] == ["partita"]:
            yield words[1:]


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if [*commands(text)]])
def test_commands_are_understood(page):
    parser = build_parser()
    for words in commands(PAGES[page]):
        assert parser.parse_args(words).command == words[0]


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_prose_exist(page, capsys):
    for name in {*re.findall(r"`partita ([a-z-]+)", prose(PAGES[page]))}:
        with pytest.raises(SystemExit, match=r"^0$"):
            build_parser().parse_args([name, "--help"])


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if blocks(text, "toml")])
def test_toml_is_read(page):
    assert all(map(tomllib.loads, blocks(PAGES[page], "toml")))


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page):
    named = re.findall(rf"`(?:python )?({FOLDERS}/[\w./-]+?)(?: [^`]*)?`", PAGES[page])
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", prose(PAGES[page]))
    assert [t for t in targets if not (ROOT / page).parent.joinpath(t).exists()] == []


def test_scripts_that_print_the_numbers_exist():
    named = re.findall(r"`(\w+\.py)\b", PAGES["docs/performance-log.md"])
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "benchmarks" / name).exists()] == []


def test_table_of_folders_is_that_of_the_tree():
    text = PAGES["docs/architecture.md"]
    assert tool("folders").page(text) == text, "run: python docs/tooling/folders.py"


def test_decisions_are_numbered_and_listed():
    index = PAGES["docs/adr/index.md"]
    names = sorted(path.name for path in ROOT.glob("docs/adr/0*.md"))
    assert [int(name[:4]) for name in names] == [*range(1, len(names) + 1)]
    for number, name in enumerate(names, 1):
        title, *rest = PAGES[f"docs/adr/{name}"].split("\n")
        assert f"| [{number}]({name}) | {title.removeprefix(f'# {number}. ')} |" in index
        assert [line for line in rest if line.startswith("#")] == [
            *("## Context", "## Decision", "## Cost", "## Where")
        ]
