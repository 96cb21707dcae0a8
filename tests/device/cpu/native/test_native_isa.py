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

    machine = objects.level_machine(level)
    assembly = machine.emit_assembly(binding.parse_assembly(module.text(level)))
    for name in re.findall(r"^(fma_\d+):", assembly, re.MULTILINE):
        body = assembly.partition(f"\n{name}:")[2].partition(".Lfunc_end")[0]
        loops = [
            block for block in re.split(r"^\.LBB", body, flags=re.MULTILINE) if "fmadd" in block
        ]
        assert loops
        for block in loops:
            assert not re.search(r"[yz]mm\d+, -?\d*\(%rsp\)", block), name
