"""How large caches are, from files and calls like those of each system."""

from __future__ import annotations

import ctypes
import os
import sys

import pytest

from partita.system import cache_sizes as module
from partita.system.cache_sizes import ASSUMED, CacheSizes, cache_sizes


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A system that lists caches: (level, type, size, who shares it)."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(module, "allowed_processors", lambda: [2, 3])

    def root(siblings, *caches):
        processor = tmp_path / "sys/devices/system/cpu/cpu2"
        (processor / "topology").mkdir(parents=True)
        (processor / "topology/thread_siblings_list").write_text(f"{siblings}\n")
        for number, told in enumerate(caches):
            folder = processor / f"cache/index{number}"
            folder.mkdir(parents=True)
            for name, text in zip(("level", "type", "size", "shared_cpu_list"), told, strict=True):
                (folder / name).write_text(f"{text}\n")
        return tmp_path

    return root


HASWELL = [
    ("1", "Data", "32K", "2,6"),
    ("1", "Instruction", "64K", "2,6"),
    ("2", "Unified", "256K", "2,6"),
    ("3", "Unified", "8192K", "0-7"),
]
CLUSTER = [("1", "Data", "64K", "2"), ("2", "Unified", "2M", "0-3")]


@pytest.mark.parametrize(
    ("siblings", "caches", "sizes"),
    [
        ("2,6", HASWELL, (32 << 10, 256 << 10, 2 << 20)),  # four cores share the last one
        ("2", CLUSTER, (64 << 10, 512 << 10, 0)),
        ("2", [("1", "Data", "48K", "2")], (48 << 10, ASSUMED.l2, 0)),
        ("", [("1", "Data", "48K", ""), ("2", "Unified", "?", "")], (48 << 10, ASSUMED.l2, 0)),
    ],
)
def test_what_linux_lists(root, siblings, caches, sizes):
    assert cache_sizes(root(siblings, *caches)) == sizes


def test_what_the_c_library_tells_where_nothing_is_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "confstr_names", {"CS_GNU_LIBC_VERSION": 2}, raising=False)
    monkeypatch.setattr(os, "confstr", None, raising=False)
    told = {188: 48 << 10, 191: 1 << 20, 194: -1}
    monkeypatch.setattr(os, "sysconf", told.__getitem__, raising=False)
    assert cache_sizes(tmp_path) == CacheSizes(48 << 10, 1 << 20, 0)
    told.update({188: 0, 191: 0})  # 64-bit ARM
    assert cache_sizes(tmp_path) == ASSUMED


def test_systems_that_tell_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr(os, "confstr", raising=False)
    assert cache_sizes(tmp_path) == ASSUMED


@pytest.mark.parametrize(
    ("answers", "sizes"),
    [
        (
            {"perflevel0.l1dcachesize": 128 << 10, "perflevel0.l2cachesize": 12 << 20}
            | {"perflevel0.cpusperl2": 4, "l1dcachesize": 64 << 10, "physicalcpu": 8},
            (128 << 10, 3 << 20, 0),
        ),
        (
            {"l1dcachesize": 32 << 10, "l2cachesize": 256 << 10}
            | {"l3cachesize": 16 << 20, "physicalcpu": 8},
            (32 << 10, 256 << 10, 2 << 20),
        ),
        ({}, ASSUMED),
    ],
)
def test_what_macos_answers(answers, sizes, monkeypatch):
    def sysctlbyname(name, room, size, *_):
        value = answers.get(name.decode().removeprefix("hw."))
        if value is None:
            return -1
        if room is None:
            size._obj.value = 8
        else:
            room[:8] = value.to_bytes(8, "little")
        return 0

    monkeypatch.setattr(sys, "platform", "darwin")
    library = type("Library", (), {"sysctlbyname": staticmethod(sysctlbyname)})
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    assert cache_sizes() == sizes


def test_this_machine():
    sizes = cache_sizes()
    assert 4 << 10 <= sizes.l1d <= 1 << 20
    assert 64 << 10 <= sizes.l2 <= 1 << 28
