"""What plugin authors start from conforms: the page about it, the template, the example plugins."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from models import model_of, node, value, weight
from sampling import THOROUGH

import partita
from partita.cli.commands.new_plugin import write_plugin
from partita.cli.main import build_parser, main
from partita.errors import PluginError, UnsupportedOpError
from partita_conformance.bench.bench import Target
from partita_conformance.bench.checks import names_of
from partita_conformance.expectations import Expectations
from partita_conformance.runs.collect import Selection, collect
from partita_conformance.runs.running import PASSED, InProcess, run_expected

ROOT = Path(__file__).parents[3]
FORM = ("plugin/*", "properties/*", "query/*", "compiled/*", "request/*", "async/*", "blob/*")
FORM += ("threads/*", "memory/*", "faults/*", "random/*/0", "hetero/network/*/0")


def conforms(device, plugin, expectations=None):
    """The share of the kit's checks of its form that a device passes, and none fails.

    A gate makes the first of three each; tests in a fresh environment make others.
    """
    checks = collect(Selection(FORM))[:: 1 if THOROUGH else 3]
    runner = InProcess(Target(device, plugin))
    outcomes = [run_expected(c, runner, expectations or Expectations()) for c in checks]
    assert {o.check.name: o.detail for o in outcomes if o.bad} == {}
    return sum(o.status == PASSED for o in outcomes) / len(checks)


@pytest.fixture
def importable(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("partita_newdev")]:
        del sys.modules[name]


def blocks(language):
    """The blocks of code of one language on the page about plugins."""
    page = (ROOT / "docs" / "writing-a-plugin.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def test_every_block_of_the_page_is_tested_here():
    tested = [*blocks("python"), *blocks("toml"), *blocks("sh")]
    assert len(blocks("[a-z]*")) == len(tested) > 5


def test_code_of_the_page_is_a_plugin_that_conforms(importable):
    (importable / "page_plugin.py").write_text("\n\n".join(blocks("python")))
    assert conforms("MYDEV", "page_plugin:MyDevice") > 0.17


def test_a_model_that_is_not_taken_whole_is_told_with_what_to_do(importable):
    (importable / "page_plugin.py").write_text("\n\n".join(blocks("python")))
    model = model_of([node("Erf", ["x"], "y")], [value("x", [2])], [value("y", [2])])
    core = Target("MYDEV", "page_plugin:MyDevice").open()
    with pytest.raises(UnsupportedOpError, match=r"take 1 of 1 [^\n]*\n.*'HETERO:MYDEV,"):
        core.compile_model(model, "MYDEV")


def test_expectations_of_the_page_are_read(tmp_path):
    entry_point, expected = blocks("toml")
    assert tomllib.loads(entry_point)["project"]["entry-points"]["partita"]
    (tmp_path / "e.toml").write_text(expected)
    expectations = Expectations.load(tmp_path / "e.toml")
    expectations.require_matches(names_of(collect(Selection(("blob/*", "random/*")))))
    assert expectations.find("blob/comes_back")[0] == "unsupported"
    assert expectations.find("random/Conv/3")[0] == "xfail"


def test_commands_of_the_page_are_understood():
    commands = [shlex.split(line, comments=True) for line in "".join(blocks("sh")).splitlines()]
    own = [words[1:] for words in commands if words[0] == "partita"]
    assert [build_parser().parse_args(words).command for words in own] == [
        "new-plugin",
        "devices",
        "conformance",
        "conformance",
    ]
    rest = {" ".join(words) for words in commands if words[0] != "partita"}
    assert rest == {  # tests/network and test_kit_commands.py run these
        "pip install -e partita-mydev[test]",
        "pip install partita[conformance]",
        "pytest --pyargs partita_conformance --device MYDEV",
    }


def test_template_is_a_plugin_that_conforms(importable):
    folder, files = write_plugin("newdev", importable / "made")
    assert all((folder / name).read_text() for name in files)
    assert not re.search(r"@\w+@", "".join((folder / name).read_text() for name in files))
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["partita"] == {"newdev": "partita_newdev.plugin"}
    sys.path.insert(0, str(folder))
    try:
        assert conforms("NEWDEV", "partita_newdev.plugin:NewdevPlugin") > 0.18
    finally:
        sys.path.remove(str(folder))


def test_tests_of_the_template_hold_when_a_kernel_is_added(tmp_path):
    folder, _ = write_plugin("newdev", tmp_path)
    about = tmp_path / "site" / "partita_newdev-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: partita-newdev\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text("[partita]\nnewdev = partita_newdev.plugin\n")
    kernels = folder / "partita_newdev" / "kernels.py"
    source = kernels.read_text()
    path = os.pathsep.join([str(folder), str(about.parent), os.environ.get("PYTHONPATH", "")])
    for added in ("", '    "Tanh": np.tanh,\n'):
        kernels.write_text(source.replace('    "Add": np.add,\n', f'    "Add": np.add,\n{added}'))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "4 passed" in done.stdout, done.stdout


def test_template_is_formatted_and_typed_as_this_repository(tmp_path):
    folder, files = write_plugin("two_words", tmp_path)
    for name in files:
        if name.endswith(".py"):
            compile((folder / name).read_text(), name, "exec")
    assert "class TwoWordsPlugin" in (folder / "partita_two_words" / "plugin.py").read_text()


def test_command_writes_the_plugin(tmp_path, capsys):
    assert main(["new-plugin", "newdev", "--into", str(tmp_path)]) == 0
    assert "partita conformance -d NEWDEV" in capsys.readouterr().out
    assert (tmp_path / "partita-newdev" / "tests" / "test_device.py").exists()


def test_bad_names_and_taken_folders_are_refused(tmp_path):
    with pytest.raises(PluginError, match="small letters"):
        write_plugin("My-Dev", tmp_path)
    for name in ("cpu", "opencl", "hetero", "reference", "gpu"):
        with pytest.raises(PluginError, match=f"'{name}' is taken"):
            write_plugin(name, tmp_path)
    write_plugin("newdev", tmp_path)
    with pytest.raises(PluginError, match="exists already"):
        write_plugin("newdev", tmp_path)


@pytest.mark.parametrize(
    ("device", "folder", "module", "plugin"),
    [("ORT", "partita-onnxruntime", "partita_onnxruntime", "OrtPlugin")],
)
def test_example_plugin_conforms(device, folder, module, plugin, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / folder))
    source = (ROOT / "examples" / folder / f"{module}.py").read_text()
    assert len(source.splitlines()) <= 100
    expectations = Expectations.load(ROOT / "examples" / folder / "expectations.toml")
    assert conforms(device, f"{module}:{plugin}", expectations) > 0.5


def test_examples_mix_with_other_devices(monkeypatch):
    from partita_conformance.inputs.models import networks

    monkeypatch.syspath_prepend(str(ROOT / "examples" / "partita-onnxruntime"))
    core = partita.Core()
    core.register_plugin(__import__("partita_onnxruntime").OrtPlugin())
    sample = networks()[0]
    model = core.read_model(sample.proto)
    for i, op in enumerate(model.ops):
        op.affinity = "ORT" if i % 2 else "CPU"
    mixed = core.compile_model(model, "HETERO:ORT,CPU")(sample.feeds())
    alone = core.compile_model(sample.proto, "REFERENCE")(sample.feeds())
    for have, want in zip(mixed.to_tuple(), alone.to_tuple(), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-3)


@pytest.fixture
def residual_sum():
    """Two images that enter, and what the second half of a residual block makes of their sum."""
    weights = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32)
    return model_of(
        [
            node("Add", ["a", "b"], "sum"),
            node("Relu", ["sum"], "x"),
            node("Conv", ["x", "w"], "c", pads=[1, 1, 1, 1]),
            node("Add", ["c", "x"], "d"),
            node("Relu", ["d"], "y"),
        ],
        [value(name, [1, 16, 9, 7]) for name in "ab"],
        [value("y", [1, 16, 9, 7])],
        [weight("w", weights)],
    )


def test_example_changes_the_order_of_an_image_once(monkeypatch, tmp_path, residual_sum):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "partita-onnxruntime"))
    has_blocks = platform.machine().lower() in {"x86_64", "amd64"}
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    plugin, loaded = __import__("partita_onnxruntime"), []
    load = plugin.load
    monkeypatch.setattr(plugin, "load", lambda given, how: loaded.append(given) or load(given, how))
    core = partita.Core()
    core.register_plugin(plugin.OrtPlugin())
    rng = np.random.default_rng(1)
    feeds = {name: rng.standard_normal((1, 16, 9, 7)).astype(np.float32) for name in "ab"}
    feeds["a"].flat[:2] = np.inf, np.nan
    have, want = (
        core.compile_model(residual_sum, device)(feeds).to_tuple()[0]
        for device in ("ORT", "REFERENCE")
    )
    np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)
    types = [node.op_type for node in onnx.ModelProto.FromString(loaded[-1]).graph.node]
    assert types == ["Add", "Relu", "AveragePool", "Conv", "Add", "Relu"]
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(loaded[-1], options, providers=["CPUExecutionProvider"])
    ran = [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]
    if has_blocks:
        assert ran.count("ReorderInput") == ran.count("ReorderOutput") == 1


LOWEST, HIGHEST = (weight(name, np.float32(limit)) for name, limit in (("lo", 0), ("hi", 6)))
ONES = weight("w", np.ones((16, 16, 1, 1), np.float32))
STRAIGHT = [node("Clip", ["x", "lo", "hi"], "c"), node("Conv", ["c", "w"], "y")]
JOINED = [node("Conv", ["x", "w"], "c"), node("Concat", ["x", "c"], "y", axis=1)]


@pytest.mark.parametrize(
    ("nodes", "machine", "windows"),
    [(STRAIGHT, "x86_64", 0), (JOINED, "x86_64", 1), (JOINED, "arm64", 0)],
)
def test_example_leaves_images_alone_that_are_read_in_one_order(
    monkeypatch, nodes, machine, windows
):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "partita-onnxruntime"))
    monkeypatch.setattr(platform, "machine", lambda: machine)
    given = model_of(nodes, [value("x", [1, 16, 4, 4])], ["y"], [LOWEST, HIGHEST, ONES])
    model = onnx.ModelProto.FromString(given.SerializeToString())
    changed = __import__("partita_onnxruntime_images").reorder_once(model)
    types = [node.op_type for node in changed.graph.node]
    assert types == ["AveragePool"] * windows + [node.op_type for node in nodes]
