"""How many processors may be used: what a container's control groups say, and the affinity."""

from __future__ import annotations

import os
import sys

import pytest

from partita.system import processors
from partita.system.processors import allowed_processors, processor_quota, usable_processors

V2 = "31 24 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
V1 = "32 24 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:3 - cgroup cgroup rw,cpuacct,cpu"


@pytest.fixture
def machine(tmp_path):
    """Makes a root folder with the system's files: groups, mounts, and the groups' own files."""

    def machine(groups, mounts, **files):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in groups))
        (tmp_path / "proc/self/mountinfo").write_text("".join(f"{line}\n" for line in mounts))
        for name, content in files.items():
            path = tmp_path / "sys/fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content + "\n")
        return tmp_path

    return machine


@pytest.mark.parametrize(
    ("limit", "quota"),
    [
        ("200000 100000", 2.0),
        ("150000 100000", 1.5),
        ("5000 100000", 0.05),
        ("max 100000", None),
        ("100000", 1.0),
        ("nonsense 100000", None),
        ("200000 0", None),
        ("", None),
    ],
)
def test_a_quota_of_version_2(machine, limit, quota):
    root = machine(["0::/job"], [V2], **{"job/cpu.max": limit})
    assert processor_quota(root) == quota


def test_the_strictest_group_around_counts(machine):
    files = {
        "cpu.max": "max 100000",
        "a/cpu.max": "100000 50000",
        "a/b/cpu.max": "800000 100000",
        "a/b/c/cpu.max": "max 100000",
        "d/cpu.max": "10000 100000",
    }
    assert processor_quota(machine(["0::/a/b/c"], [V2], **files)) == 2.0


def test_what_changes_is_seen(machine):
    root = machine(["0::/a"], [V2], **{"a/cpu.max": "100000 50000", "b/cpu.max": "100000 20000"})
    assert processor_quota(root) == 2.0
    (root / "sys/fs/cgroup/a/cpu.max").write_text("100000 25000\n")
    assert processor_quota(root) == 4.0
    (root / "proc/self/cgroup").write_text("0::/b\n")
    assert processor_quota(root) == 5.0


def test_a_container_sees_its_own_group_at_the_mount(machine):
    assert processor_quota(machine(["0::/"], [V2], **{"cpu.max": "300000 100000"})) == 3.0


def test_a_quota_of_version_1(machine):
    groups = ["5:cpuset:/", "4:cpu,cpuacct:/docker/1f", "1:name=systemd:/"]
    files = {
        "cpu,cpuacct/docker/1f/cpu.cfs_quota_us": "250000",
        "cpu,cpuacct/docker/1f/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    assert processor_quota(machine(groups, [V1], **files)) == 2.5


def test_a_container_of_version_1_whose_path_is_that_of_the_host(machine):
    mount = V1.replace(" / ", " /docker/1f ", 1)
    files = {"cpu,cpuacct/cpu.cfs_quota_us": "100000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}
    for groups in (["4:cpu,cpuacct:/docker/1f"], ["4:cpu,cpuacct:/elsewhere"]):
        root = machine(groups, [mount], **files)
        assert processor_quota(root) == 1.0
        (root / "proc/self/cgroup").unlink()
        (root / "proc/self/mountinfo").unlink()
        (root / "proc/self").rmdir()


def test_both_versions_side_by_side(machine):
    unified = V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    files = {
        "unified/cpu.max": "400000 100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "300000",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    assert processor_quota(machine(["4:cpu,cpuacct:/", "0::/"], [V1, unified], **files)) == 3.0


def test_a_mount_with_blanks_in_its_name(machine):
    mount = V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/two\\040words")
    assert processor_quota(machine(["0::/"], [mount], **{"two words/cpu.max": "1000 1000"})) == 1


@pytest.mark.parametrize(
    ("groups", "mounts"),
    [([], []), (["0::/"], []), ([], [V2]), (["0::/../.."], [V2]), (["junk"], ["junk", "- a b c"])],
)
def test_no_quota_is_known(machine, groups, mounts):
    assert processor_quota(machine(groups, mounts)) is None


def test_no_files_at_all(tmp_path):
    assert processor_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("limit", "allowed", "count"),
    [
        ("50000 100000", 8, 1),
        ("100000 100000", 8, 1),
        ("150000 100000", 8, 2),
        ("6400000 100000", 8, 8),
        ("max 100000", 512, 512),
        ("max 100000", 1, 1),
    ],
)
def test_quota_and_affinity(machine, monkeypatch, limit, allowed, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    assert usable_processors(machine(["0::/"], [V2], **{"cpu.max": limit})) == count


def test_a_system_without_affinities(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert usable_processors(tmp_path) == 12
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_processors(tmp_path) == 1


@pytest.mark.parametrize(
    ("mask", "numbers"), [(0b1011, [0, 1, 3]), (1 << 63, [63]), (0, [0, 1, 2])]
)
def test_a_mask_of_windows(monkeypatch, mask, numbers):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(processors, "affinity_of_windows", lambda: mask)
    assert allowed_processors() == numbers


def test_this_system_is_asked_once_in_a_while(monkeypatch):
    asked = []
    monkeypatch.setattr(processors, "processor_quota", lambda: asked.append(1) or 2.0)
    monkeypatch.setattr(processors, "allowed_processors", lambda: [0, 1, 2, 3])
    now = -1e6  # which no clock says, so that nobody believes it afterwards
    monkeypatch.setattr(processors.time, "monotonic", lambda: now)
    assert [usable_processors() for _ in range(5)] == [2] * 5
    assert len(asked) == 1
    now += 1
    usable_processors()
    assert len(asked) == 2


def test_this_machine_has_some():
    assert 1 <= usable_processors() <= len(allowed_processors())
