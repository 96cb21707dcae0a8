"""Which processor there is, from files and calls like those of each system."""

from __future__ import annotations

import ctypes
import platform
import sys
from types import ModuleType

import pytest

from partita.system.processor_identity import (
    processor_family,
    processor_identity,
    processor_name,
)

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
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")

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
    assert processor_name(root(cpuinfo)) == name


def test_identities_on_linux_tell_processors_apart(root, tmp_path):
    found = [
        processor_identity(root(cpuinfo))
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
    assert processor_identity(root(EPYC)) == processor_identity(root(same))


def test_a_system_that_tells_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "freebsd14")
    assert processor_identity(tmp_path) == ""
    assert processor_name(tmp_path)


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
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    library = type("Library", (), {"sysctlbyname": Sysctl(answers)})
    monkeypatch.setattr(ctypes, "CDLL", lambda path: library)
    assert processor_name() == name
    assert bool(processor_identity()) == known
    assert not known or "3dd833da" in processor_identity()


@pytest.mark.parametrize(
    ("cpuinfo", "family"),
    [
        (EPYC, ("AuthenticAMD", 25)),
        (GRAVITON, ("", 0)),
        ("vendor_id: GenuineIntel\ncpu family: six\n", ("", 0)),
        ("", ("", 0)),
    ],
)
def test_families_of_processors_on_linux(root, cpuinfo, family):
    assert processor_family(root(cpuinfo)) == family


def test_families_of_processors_elsewhere(registry, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert processor_family() == ("", 0)
    registry["VendorIdentifier"] = "AuthenticAMD"
    registry["Identifier"] = "AMD64 Family"
    assert processor_family() == ("", 0)
    registry["Identifier"] = "AMD64 Family 25 Model 17 Stepping 1"
    assert processor_family() == ("AuthenticAMD", 25)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert processor_family() == ("", 0)


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
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    assert processor_name() == "AMD64"
    assert processor_identity() == ""
    registry["ProcessorNameString"] = "Intel(R) Core(TM) i7-1185G7 @ 3.00GHz "
    registry["Identifier"] = "Intel64 Family 6 Model 140 Stepping 1"
    assert processor_name() == "Intel(R) Core(TM) i7-1185G7 @ 3.00GHz"
    assert "Model 140" in processor_identity()
