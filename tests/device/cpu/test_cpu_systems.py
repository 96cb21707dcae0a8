"""What each operating system's module tells, from files and calls like those of that system."""

from __future__ import annotations

import ctypes
import platform
import sys

import pytest

from partita_cpu.jit import disk_cache
from partita_cpu.jit.intrinsics.atomics import emit_pause
from partita_cpu.system import linux, macos, portable, this_system, windows


def test_calls_by_machine():
    assert linux.calls_of("x86_64") == (202, 24, 203, 204, 98)
    assert linux.calls_of("aarch64") == linux.calls_of("riscv64") == (98, 124, 122, 123, 165)
    assert linux.calls_of("i686") is None


@pytest.mark.parametrize(
    ("platform_name", "module"),
    [("linux", linux), ("darwin", macos), ("win32", windows), ("freebsd14", portable)],
)
def test_the_module_of_a_system(monkeypatch, platform_name, module):
    monkeypatch.setattr(sys, "platform", platform_name)
    this_system.cache_clear()
    try:
        assert this_system() is module
    finally:
        monkeypatch.undo()
        this_system.cache_clear()


def test_macos_says_that_it_cannot_pin():
    assert not macos.pins_threads
    with pytest.raises(OSError, match="cannot keep a thread on processor 3"):
        macos.pin(3)


def test_pinning_on_windows(monkeypatch):
    masks = []

    class Call:
        restype = argtypes = None

        def __init__(self, act):
            self.act = act

        def __call__(self, *args):
            return self.act(*args)

    class Kernel:
        GetCurrentThread = Call(lambda: 7)
        SetThreadAffinityMask = Call(lambda thread, mask: masks.append((thread, mask)) or mask < 16)

    monkeypatch.setattr(ctypes, "WinDLL", lambda name: Kernel, raising=False)
    windows.pin(3)
    assert masks == [(7, 8)]
    for processor in (5, 64):
        with pytest.raises(
            OSError, match=f"does not let this thread stay on processor {processor}"
        ):
            windows.pin(processor)


def test_a_folder_for_each_processor_where_the_system_tells_nothing(monkeypatch):
    """Of machines that share a home folder none may load another one's code."""
    from llvmlite import binding

    monkeypatch.setattr(disk_cache, "processor_identity", lambda: "")
    names = set()
    for machine, name, features in (
        ("x86_64", "znver3", {"avx2": True}),
        ("x86_64", "znver4", {"avx2": True, "avx512f": True}),
        ("x86_64", "znver4", {"avx2": True, "avx512f": False}),
        ("aarch64", "generic", {"neon": True}),
    ):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(binding, "get_host_cpu_name", lambda name=name: name)
        monkeypatch.setattr(binding, "get_host_cpu_features", lambda features=features: features)
        disk_cache.machine.cache_clear()
        disk_cache.processor_name.cache_clear()
        try:
            names.add(disk_cache.machine())
            assert not disk_cache.knows_processor()
        finally:
            disk_cache.machine.cache_clear()
            disk_cache.processor_name.cache_clear()
    assert len(names) == 4


@pytest.mark.parametrize(
    ("machine", "triple", "instruction"),
    [
        ("x86_64", "x86_64-unknown-linux-gnu", "pause"),
        ("AMD64", "x86_64-pc-windows-msvc", "pause"),
        ("aarch64", "aarch64-unknown-linux-gnu", "isb"),
        ("arm64", "arm64-apple-macosx", "isb"),
        ("riscv64", "x86_64-unknown-linux-gnu", ""),
    ],
)
def test_what_a_waiting_loop_does(machine, triple, instruction):
    from llvmlite import binding, ir

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "wait")
    builder = ir.IRBuilder(function.append_basic_block())
    emit_pause(builder, machine)
    builder.ret_void()
    target = binding.Target.from_triple(triple).create_target_machine()
    written = target.emit_assembly(binding.parse_assembly(str(module)))
    assert instruction in written
    assert instruction or "pause" not in written
