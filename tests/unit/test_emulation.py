"""The script that runs tests on emulated processors: what it starts, chooses and refuses."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "emulation"

spec = importlib.util.spec_from_file_location("emulation_run", HERE / "run.py")
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)

EMULATOR = """#!/usr/bin/env bash
# Says which processor it was asked for, and lets this machine's run the rest.
echo "$2" >> {log}
echo "warning: TCG doesn't support requested feature: CPUID.01H:ECX.pcid [bit 17]" >&2
if [ "$3" = -0 ]; then exec -a "$4" "${{@:5}}"; fi
exec "${{@:3}}"
"""


@pytest.fixture(autouse=True)
def linux(monkeypatch):
    monkeypatch.setattr(run.platform, "system", lambda: "Linux")


def test_children_of_an_emulated_python_are_emulated(tmp_path, monkeypatch, capfd):
    emulator, log = tmp_path / "qemu", tmp_path / "log"
    emulator.write_text(EMULATOR.format(log=log))
    emulator.chmod(0o755)
    monkeypatch.setattr(run, "find_qemu", lambda machine, folder: emulator)
    monkeypatch.setattr(run.platform, "machine", lambda: "x86_64")
    python = run.Python("haswell", tmp_path)
    python.prepare()
    log.unlink()
    child = "import sys; print(sys.executable)"
    code = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', '{child}']))"
    assert python.run("-c", code) == 0
    assert capfd.readouterr().out.strip() == str(tmp_path / "haswell" / "bin" / "python")
    assert log.read_text().split() == ["Haswell,-pcid"] * 2
    log.unlink()
    python.run(
        "-m", "partita_cpu.runtime.compile_worker", "9999", "1", "[]"
    )  # ends: there is no such socket
    assert not log.exists()
    assert python.run("-c", "import partita_cpu, sys; sys.exit(3)") == 3


FOREIGN = """
import sys
import compiler

compiler.compile_for({
    "machine": "aarch64",
    "triple": "aarch64-unknown-linux-gnu",
    "cpu": "generic",
    "features": "",
    "folder": "foreign",
})

from partita_cpu.jit import codegen, disk_cache, kernel_definition, llvm_kernel
from partita_cpu.kernels.reduction.softmax import softmax_rows
from partita_cpu.llvm.levels import NEON

assert disk_cache.machine() == "foreign"
signature = tuple(map(kernel_definition.type_of, ("<f4 1", "<f4 1", *["int"] * 4)))
code, _ = codegen.object_of(softmax_rows, signature)
print(int.from_bytes(code[18:20], "little"))
print(int.from_bytes(llvm_kernel.object_code("", llvm_kernel.level_machine(NEON))[18:20], "little"))
"""


def test_kernels_are_compiled_for_another_processor():
    """Both kinds of kernels: 183 is ELF's number of 64-bit ARM."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    command = [sys.executable, "-c", FOREIGN]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["183", "183"], done.stderr


def test_the_project_is_found_as_an_installed_one(tmp_path):
    run.write_entry_points(tmp_path)
    (found,) = importlib.metadata.distributions(path=[str(tmp_path)])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (found.name, found.version) == (project["name"], project["version"])
    plugins = {e.name: e.value for e in found.entry_points if e.group == "partita"}
    assert plugins == project["entry-points"]["partita"]
    for entry in found.entry_points:
        package = entry.value.partition(".")[0]
        assert any((ROOT / folder / package).exists() for folder in run.FOLDERS), entry


def test_what_is_chosen_and_left_out_exists():
    chosen = tomllib.loads((HERE / "selection.toml").read_text())
    tests = [*chosen["short"]["tests"], *(one["test"] for one in chosen["left_out"])]
    for test in tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text()
        assert f"def {name.partition('[')[0]}(" in text if name else "def test_" in text, test
    for one in chosen["left_out"]:
        assert one["why"]
        assert set(one.get("processors", [])) <= set(run.PROCESSORS)


def test_arguments_behind_marks_are_not_its_own():
    assert run.split_arguments(["arm64", "--", "-x"]) == (["arm64"], ["-x"])
    assert run.split_arguments(["arm64", "--command", "-c", "pass"]) == (
        ["arm64", "--command"],
        ["-c", "pass"],
    )
    assert run.split_arguments(["arm64", "--full"]) == (["arm64", "--full"], [])


def test_tests_are_named_before_and_behind_options(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(run.Python, "prepare", lambda self: None)
    monkeypatch.setattr(
        run, "run_tests", lambda python, tests, *rest: ran.append((python.name, tests))
    )
    assert run.main(["haswell", "--folder", str(tmp_path), __file__]) == 0
    assert ran == [("haswell", [__file__])]


def test_another_system_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(run.platform, "system", lambda: "Darwin")
    assert run.main(["haswell"]) == 2
    assert "qemu-user emulates programs of Linux; this is Darwin" in capsys.readouterr().out


def test_what_is_neither_test_nor_processor_is_refused(capsys):
    assert run.main(["pentium"]) == 2
    said = capsys.readouterr().out
    assert "'pentium' is neither a file nor a processor (nehalem, haswell," in said


def test_a_python_that_cannot_judge_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    assert run.main(["haswell"]) == 2
    assert f"onnxruntime judges, and {sys.executable} does not have it" in capsys.readouterr().out


def test_a_python_of_another_architecture_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(run.platform, "machine", lambda: "aarch64")
    assert run.main(["haswell", "--folder", str(tmp_path)]) == 2
    said = capsys.readouterr().out
    assert "'haswell' runs this machine's Python, which is aarch64" in said


def test_a_system_without_debians_tools_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(run.shutil, "which", lambda name: None)
    with pytest.raises(run.EmulationError, match="apt-get and dpkg fetch what is needed"):
        run.Foreign("aarch64", tmp_path).prepare()


def test_a_command_that_fails_is_named(tmp_path):
    with pytest.raises(run.EmulationError, match=r"this failed: false \[some\]"):
        run.run_machine("false", "[some]")


def test_an_emulator_that_cannot_run_it_says_why(tmp_path):
    broken = tmp_path / "qemu"
    broken.write_text("#!/bin/sh\necho unknown CPU >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(run.EmulationError, match="as Pentium: unknown CPU"):
        run.run_model(broken, "Pentium", Path(sys.executable), [])
