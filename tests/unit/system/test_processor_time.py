"""What processes have computed, by files like those of Linux."""

import os

import pytest

from partita.system.processor_time import group_seconds

pytestmark = pytest.mark.skipif(not hasattr(os, "sysconf"), reason="ticks are POSIX's")


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
    ticks = os.sysconf("SC_CLK_TCK")
    assert group_seconds(5, tmp_path) == 316 / ticks
    assert group_seconds(4, tmp_path) == 0


def test_a_system_without_such_files_tells_nothing(tmp_path):
    assert group_seconds(5, tmp_path) is None
