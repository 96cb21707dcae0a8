"""What each operating system's module tells, from files and calls like those of that system."""

from __future__ import annotations

import ctypes
import platform
import sys
from types import ModuleType

import pytest

from partita_cpu.jit import disk_cache
from partita_cpu.jit.intrinsics.atomics import emit_pause
from partita_cpu.system import linux, macos, portable, this_system, windows

EPYC = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7J13 64-Core Processor
stepping\t: 1
cpu MHz\t\t: 2445.406
flags\t\t: fpu vme avx2 fma

processor\t: 1
vendor_id\t: AuthenticAMD
flags\t\t: fpu
"""
GRAVITON = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd asimddp i8mm bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: {part}
CPU revision\t: 1

processor\t: 1
"""
POWER = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 2.1GHz\nrevision\t: 2.3\n"


@pytest.fixture
def root(tmp_path):
    def root(cpuinfo):
        (tmp_path / "proc").mkdir(exist_ok=True)
        (tmp_path / "proc/cpuinfo").write_text(cpuinfo)
        return tmp_path

    return root


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (EPYC, "AMD EPYC 7J13 64-Core Processor"),
        (GRAVITON.format(part="0xd40"), "ARM Neoverse V1"),
        (GRAVITON.format(part="0xfff"), "box processor, implementer 0x41, part 0xfff"),
        ("processor: 0\nmodel name: ARMv7 rev 4\nCPU part: 0xd03\n", "ARMv7 rev 4"),
        (POWER, "POWER9, altivec supported"),
        ("processor: 0\ncpu: 0\n", "box"),
        ("", "box"),
    ],
)
def test_names_of_processors_on_linux(root, monkeypatch, cpuinfo, name):
    monkeypatch.setattr(platform, "machine", lambda: "box")
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert linux.processor_name(root(cpuinfo)) == name


def test_identities_on_linux_tell_processors_apart(root, tmp_path):
    found = [
        linux.processor_identity(root(cpuinfo))
        for cpuinfo in (
            EPYC,
            EPYC.replace("avx2", "avx2 avx512f", 1),
            GRAVITON.format(part="0xd40"),
            GRAVITON.format(part="0xd4f"),
            GRAVITON.format(part="0xd40").replace(" bf16", ""),
            POWER,
        )
    ]
    assert len(set(found)) == len(found)
    assert all(found)


def test_an_identity_does_not_change_with_the_clock(root):
    same = EPYC.replace("2445.406", "3500.1").replace("flags\t\t: fpu\n", "flags\t\t: none\n")
    assert linux.processor_identity(root(EPYC)) == linux.processor_identity(root(same))


def test_linux_without_proc(tmp_path):
    assert linux.processor_identity(tmp_path) == ""
    assert linux.processor_name(tmp_path)


def test_what_a_group_of_processes_has_computed(tmp_path):
    for pid, name, group, times in (
        (7, "python3", 5, "10 2 300 0"),
        (8, "a) 1 5 (b", 5, "4 0 0 0"),
        (9, "python3", 6, "900 0 0 0"),
    ):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        rest = f"S 1 {group} {group} 0 -1 4194560 1 2 3 4 {times} 20 0 1 0 55"
        (folder / "stat").write_text(f"{pid} ({name}) {rest}\n")
    assert linux.processor_time(5, tmp_path) == 316
    assert linux.processor_time(4, tmp_path) == 0


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


class Sysctl:
    """``sysctlbyname`` of macOS, with answers of our own."""

    def __init__(self, answers):
        self.answers = answers

    def __call__(self, name, room, size, new, new_size):
        value = self.answers.get(name.decode())
        if value is None:
            return -1
        if room is not None:
            ctypes.memmove(room, value, len(value))
        size._obj.value = len(value)
        return 0


@pytest.mark.parametrize(
    ("answers", "name", "known"),
    [
        (
            {
                "machdep.cpu.brand_string": b"Apple M2 Pro\0",
                "hw.cpufamily": (0xDA33D83D).to_bytes(4, "little"),
            },
            "Apple M2 Pro",
            True,
        ),
        ({}, "arm64", False),
    ],
)
def test_processors_of_macos(monkeypatch, answers, name, known):
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    library = type("Library", (), {"sysctlbyname": Sysctl(answers)})
    monkeypatch.setattr(ctypes, "CDLL", lambda path: library)
    assert macos.processor_name() == name
    assert bool(macos.processor_identity()) == known
    assert not known or "3dd833da" in macos.processor_identity()


def test_macos_says_that_it_cannot_pin():
    assert not macos.pins_threads
    with pytest.raises(OSError, match="cannot keep a thread on processor 3"):
        macos.pin(3)


@pytest.fixture
def registry(monkeypatch):
    """The registry of Windows, with values of our own."""
    values = {}

    class Key:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    def query(key, name):
        if name not in values:
            raise FileNotFoundError(name)
        return values[name], 1

    module = ModuleType("winreg")
    module.HKEY_LOCAL_MACHINE, module.OpenKey, module.QueryValueEx = 1, lambda *_: Key(), query
    monkeypatch.setitem(sys.modules, "winreg", module)
    return values


def test_processors_of_windows(registry, monkeypatch):
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    assert windows.processor_name() == "AMD64"
    assert windows.processor_identity() == ""
    registry["ProcessorNameString"] = "Intel(R) Core(TM) i7-1185G7 @ 3.00GHz "
    registry["Identifier"] = "Intel64 Family 6 Model 140 Stepping 1"
    assert windows.processor_name() == "Intel(R) Core(TM) i7-1185G7 @ 3.00GHz"
    assert "Model 140" in windows.processor_identity()


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

    monkeypatch.setattr(disk_cache, "this_system", lambda: portable)
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
        disk_cache._processor.cache_clear()
        try:
            names.add(disk_cache.machine())
            assert not disk_cache.knows_processor()
        finally:
            disk_cache.machine.cache_clear()
            disk_cache._processor.cache_clear()
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
