"""Entry points are read once, and again as soon as something is installed."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

import partita
from partita.devices.entry_points import plugin_entries


@pytest.fixture
def reads(monkeypatch, tmp_path):
    """Counts how often the packages are read; ``tmp_path`` is where some may be installed.

    Nothing is looked for in the working directory, where other programs may write meanwhile.
    """
    elsewhere = [path for path in sys.path if Path(path).resolve() != Path.cwd()]
    monkeypatch.setattr(sys, "path", elsewhere)
    monkeypatch.syspath_prepend(tmp_path)
    real, groups = metadata.entry_points, []

    def counted(group):
        groups.append(group)
        return real(group=group)

    monkeypatch.setattr(metadata, "entry_points", counted)
    return groups


def install(folder):
    about = folder / "partita_newdev-1.5.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: partita-newdev\nVersion: 1.5\n")
    (about / "entry_points.txt").write_text("[partita]\nnewdev = newdev_plugin\n")


def test_packages_are_read_once_for_all_cores(reads):
    first, second = partita.Core(), partita.Core()
    assert first.available_devices == second.available_devices
    assert reads == ["partita"]


def test_what_is_installed_or_removed_meanwhile_is_seen(reads, tmp_path):
    before = plugin_entries()
    install(tmp_path)
    (new,) = set(plugin_entries()) - set(before)
    assert new.entry.value == "newdev_plugin"
    assert (new.distribution, new.release) == ("partita-newdev", "partita-newdev 1.5")
    for file in (tmp_path / "partita_newdev-1.5.dist-info").iterdir():
        file.unlink()
    (tmp_path / "partita_newdev-1.5.dist-info").rmdir()
    assert plugin_entries() == before


def test_another_path_is_looked_into(reads, tmp_path, monkeypatch):
    before = plugin_entries()
    other = tmp_path / "other"
    other.mkdir()
    install(other)
    monkeypatch.syspath_prepend(other)
    assert len(plugin_entries()) == len(before) + 1
