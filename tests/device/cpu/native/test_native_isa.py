"""Levels of instruction sets, and kernels on disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from partita.errors import CompileError, PropertyError
from partita_cpu.native import isa as isa_module
from partita_cpu.native import objects
from partita_cpu.native.ir import module
from partita_cpu.native.isa import REQUIRED, Isa, detected, isa

LEVELS = [level for level in Isa if Isa.PORTABLE < level <= detected()]


def test_the_levels_grow():
    assert REQUIRED[Isa.AVX2] < REQUIRED[Isa.AVX512] < REQUIRED[Isa.AMX]


@pytest.mark.parametrize("level", list(Isa))
def test_the_environment_caps_the_level(monkeypatch, level):
    monkeypatch.setenv(isa_module.VARIABLE, level.label.upper())
    assert isa() == min(level, detected())


def test_an_unknown_level_is_an_error(monkeypatch):
    monkeypatch.setenv(isa_module.VARIABLE, "sse9")
    with pytest.raises(PropertyError, match=r"'sse9'; choose one of portable, avx2, avx512, amx"):
        isa()


def test_portable_loads_no_compiler():
    code = (
        "import sys; from partita_cpu.native.isa import isa; isa(); "
        "sys.exit('llvmlite' in sys.modules)"
    )
    environment = {**os.environ, isa_module.VARIABLE: "portable"}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
    )


def test_no_kernels_for_a_missing_level(monkeypatch):
    with pytest.raises(CompileError, match="no native kernels of level portable"):
        objects.addresses(Isa.PORTABLE)


@pytest.mark.parametrize("level", LEVELS)
def test_every_kernel_has_an_address(level):
    found = objects.addresses(level)
    assert set(found) == {function.name for function in module.functions(level)}
    assert all(found.values())


@pytest.mark.parametrize("level", LEVELS)
def test_sums_stay_in_registers(level):
    from llvmlite import binding

    machine = objects._machine(binding, level)
    assembly = machine.emit_assembly(binding.parse_assembly(module.text(level)))
    for name in re.findall(r"^(fma_\d+):", assembly, re.MULTILINE):
        body = assembly.partition(f"\n{name}:")[2].partition(".Lfunc_end")[0]
        loops = [
            block for block in re.split(r"^\.LBB", body, flags=re.MULTILINE) if "fmadd" in block
        ]
        assert loops
        for block in loops:
            assert not re.search(r"[yz]mm\d+, -?\d*\(%rsp\)", block), name


class Machine:
    """Counts compilations."""

    def __init__(self, level):
        from llvmlite import binding

        objects.addresses(level)
        self._real = objects._machine(binding, level)
        self.compiled = 0

    def emit_object(self, parsed):
        self.compiled += 1
        return self._real.emit_object(parsed)


@pytest.mark.parametrize("level", LEVELS[:1])
def test_compiled_once_and_kept(level, tmp_path):
    machine = Machine(level)
    first = objects.object_code(level, machine, tmp_path)
    assert objects.object_code(level, machine, tmp_path) == first
    assert machine.compiled == 1
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == [level.label]


@pytest.mark.parametrize("level", LEVELS[:1])
@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_file_is_made_anew(level, damage, tmp_path):
    machine = Machine(level)
    code = objects.object_code(level, machine, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    assert objects.object_code(level, machine, tmp_path) == code
    assert machine.compiled == 2
    assert path.read_bytes() == whole


@pytest.mark.parametrize("level", LEVELS[:1])
def test_a_folder_that_cannot_be_written_does_no_harm(level, tmp_path):
    (tmp_path / "file").write_text("")
    assert objects.object_code(level, Machine(level), tmp_path / "file" / "below")


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv(objects.CACHE_VARIABLE, str(tmp_path))
    assert objects.cache_folder() == tmp_path / "cpu"
    monkeypatch.delenv(objects.CACHE_VARIABLE)
    assert objects.cache_folder().name == "cpu"


@pytest.mark.skipif(not LEVELS, reason="needs x86-64 with AVX2")
def test_processes_that_start_together(tmp_path):
    code = (
        "from partita_cpu.native import objects\n"
        "from partita_cpu.native.isa import Isa\n"
        "assert objects.addresses(Isa.AVX2)"
    )
    environment = {**os.environ, objects.CACHE_VARIABLE: str(tmp_path)}
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, env=environment) for _ in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert len(list((tmp_path / "cpu").iterdir())) == 1
