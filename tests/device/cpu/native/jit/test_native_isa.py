"""Levels of instruction sets, and kernels on disk."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from partita.cli.main import main
from partita.errors import CompileError, DeviceUnavailableError, PropertyError
from partita_cpu.jit import isa as isa_module
from partita_cpu.jit import llvm_kernel
from partita_cpu.jit.isa import available, detected, isa
from partita_cpu.llvm import module
from partita_cpu.llvm.levels import (
    AARCH64,
    AMX,
    AVX2,
    AVX2_VNNI,
    AVX512,
    AVX512_BF16,
    AVX512_VNNI,
    CHAINS,
    EVERY,
    PORTABLE,
    X86_64,
)

LEVELS = list(available()[1:])
X86 = CHAINS[X86_64]


@pytest.fixture
def machine(monkeypatch):
    """Makes this machine one of an architecture with some of LLVM's features."""

    def pretend(architecture, features, tiles=False):
        isa_module.available.cache_clear()
        monkeypatch.setattr(isa_module, "architecture", lambda: architecture)
        monkeypatch.setattr(isa_module, "host_features", lambda: frozenset(features))
        monkeypatch.setattr(isa_module, "tiles_granted", lambda: tiles)

    yield pretend
    isa_module.available.cache_clear()


def test_the_page_on_levels_tells_what_each_computes():
    page = Path(__file__).parents[5] / "docs/adr/0022-instruction-set-levels.md"
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+) \| (.+) \| (.+) \|$", page.read_text(), re.M)
    told = {name: tuple(cell != "–" for cell in cells) for name, *cells in rows}
    assert told == {
        name: (level.dots_bytes, level.dots_bfloat16, level.keeps_bfloat16)
        for name, level in EVERY.items()
    }


def test_wider_levels_have_all_that_narrower_ones_have():
    wide = [level for level in X86 if level.lanes == 16]
    assert [level.name for level in wide] == ["avx512", "avx512_vnni", "avx512_bf16", "amx"]
    assert all(a.features < b.features for a, b in itertools.pairwise([AVX2, *wide]))
    assert AVX2.features < AVX2_VNNI.features
    arm = CHAINS[AARCH64][1:]
    assert all(a.features < b.features for a, b in itertools.pairwise(arm))


@pytest.mark.parametrize(
    ("present", "tiles", "found"),
    [
        (set(), False, "portable"),
        (AVX2.features - {"f16c"}, False, "portable"),
        (AVX2.features, False, "avx2"),
        (AVX2_VNNI.features, False, "avx2_vnni"),  # Alder Lake
        (AVX512.features, False, "avx512"),  # Skylake-server
        (AVX512_VNNI.features, False, "avx512_vnni"),  # Ice Lake
        (AVX512_BF16.features, False, "avx512_bf16"),  # Zen 4
        (AVX512_BF16.features | {"avxvnni"}, False, "avx512_bf16"),  # Zen 5
        (AMX.features | {"avxvnni"}, True, "amx"),
        (AMX.features | {"avxvnni"}, False, "avx512_bf16"),  # the system keeps the tiles
        (AMX.features - {"avx512bf16"}, True, "avx512_vnni"),
    ],
)
def test_a_processor_has_the_last_level_whose_features_are_there(machine, present, tiles, found):
    machine(X86_64, present | {"sse2", "bmi2"}, tiles)
    assert detected().name == found


@pytest.mark.parametrize("level", CHAINS[AARCH64], ids=str)
def test_arm_finds_a_level_and_those_before_it(machine, level):
    machine(AARCH64, level.features)
    chain = list(CHAINS[AARCH64])
    assert list(available()) == chain[: chain.index(level) + 1]


@pytest.mark.parametrize(
    ("first", "second", "level"),
    [
        (0x8FB, 0, "neon"),  # Cortex-A57
        (0x119FFB, 0, "neon_dotprod"),  # Neoverse N1
        (0x119FFB, 1 << 13, "neon_i8mm"),
        (0xECFFFFFB, 0x7F877FFF, "neon_bf16"),  # all that qemu knows
        (0x119FFB, 1 << 14, "neon_dotprod"),  # bf16 without i8mm
        (0xFFFFD, 0, "portable"),
    ],
)
def test_what_linux_tells_of_arm(first, second, level):
    """Numbers are those that Linux tells on such processors, or made from them."""
    found = isa_module.arm_features({16: first, 26: second})
    assert [one.name for one in CHAINS[AARCH64] if one.features <= found][-1] == level


@pytest.mark.parametrize(
    ("cap", "without_avxvnni", "with_it"),
    [
        ("portable", "portable", "portable"),
        ("avx2", "avx2", "avx2"),
        ("avx2_vnni", "avx2", "avx2_vnni"),
        ("avx512", "avx512", "avx512"),
        ("avx512_vnni", "avx512_vnni", "avx512_vnni"),
        ("avx512_bf16", "avx512_bf16", "avx512_bf16"),
        ("amx", "avx512_bf16", "avx512_bf16"),
        ("", "avx512_bf16", "avx512_bf16"),
    ],
)
def test_the_environment_caps_the_level(machine, monkeypatch, cap, without_avxvnni, with_it):
    monkeypatch.setenv(isa_module.VARIABLE, cap.upper())
    machine(X86_64, AVX512_BF16.features)
    assert isa().name == without_avxvnni
    machine(X86_64, AVX512_BF16.features | {"avxvnni"})
    assert isa().name == with_it


@pytest.mark.parametrize("level", available(), ids=str)
def test_every_level_of_this_machine_can_be_asked_for(monkeypatch, level):
    monkeypatch.setenv(isa_module.VARIABLE, level.name)
    assert isa() is level


def test_an_unknown_level_is_an_error(machine, monkeypatch):
    monkeypatch.setenv(isa_module.VARIABLE, "sse9")
    machine(X86_64, ())
    names = "portable, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16, amx"
    with pytest.raises(PropertyError, match=rf"'sse9'; choose one of {names}\."):
        isa()
    machine(AARCH64, ())
    with pytest.raises(PropertyError, match=r"one of portable, neon, neon_dotprod, neon_i8mm, neo"):
        isa()


def test_a_level_of_another_architecture_is_an_error(machine, monkeypatch):
    machine(AARCH64, ())
    monkeypatch.setenv(isa_module.VARIABLE, "avx2")
    with pytest.raises(PropertyError, match="'avx2', a level of x86_64; choose one of portable"):
        isa()


def test_devices_name_the_level(monkeypatch, capsys):
    monkeypatch.setenv(isa_module.VARIABLE, "portable")
    assert main(["devices", "--json"]) == 0
    portable = json.loads(capsys.readouterr().out)["devices"]["CPU"]
    assert portable["details"]["level"] == "portable"
    assert portable["driver"].startswith("portable kernels, numba ")
    monkeypatch.delenv(isa_module.VARIABLE)
    assert main(["devices"]) == 0
    assert f"{detected().name} kernels" in capsys.readouterr().out


def test_levels_are_kept_apart_on_disk():
    jobs = [llvm_kernel.level_job(level).file for level in X86[1:]]
    assert len(set(jobs)) == len(jobs)


def test_portable_loads_no_compiler():
    code = (
        "import sys; from partita_cpu.jit.isa import isa; isa(); "
        "sys.exit('llvmlite' in sys.modules)"
    )
    environment = {**os.environ, isa_module.VARIABLE: "portable"}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
    )


def test_no_kernels_for_a_missing_level(monkeypatch):
    with pytest.raises(CompileError, match="no native kernels of level portable"):
        llvm_kernel.addresses(PORTABLE)


@pytest.mark.parametrize("level", LEVELS)
def test_every_kernel_has_an_address(level):
    found = llvm_kernel.addresses(level)
    assert set(found) == {function.name for function in module.functions(level)}
    assert all(found.values())


def test_a_library_that_cannot_be_loaded_is_named(monkeypatch):
    monkeypatch.setattr(isa_module.disk_cache, "knows_processor", lambda: False)
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.raises(DeviceUnavailableError, match="LLVM, which compiles kernels, cannot be loa"):
        isa_module.host_features.__wrapped__()
