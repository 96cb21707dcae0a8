"""The private cache folder: what others could have written is neither entered nor read."""

import errno
import logging
import os
import re
import stat
import sys
import time

import pytest

from partita.storage import cache_folder as module
from partita.storage.cache_folder import (
    cache_folder,
    is_private,
    keep_private,
    make_private,
    mark_used,
    open_private,
    prune,
    read_private,
    write_private,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
OTHER = 12345


@pytest.fixture
def root(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "warned_of", set())
    return tmp_path / "cache"


@pytest.fixture
def give_away(monkeypatch):
    """Lets a file belong to another user."""

    def give(path):
        if os.geteuid() == 0:
            os.chown(path, OTHER, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: OTHER)

    return give


def warned(caplog):
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_for_its_user_alone(root, caplog):
    before = os.umask(0)
    try:
        folder = cache_folder("cpu/machine")
    finally:
        os.umask(before)
    assert folder == root / "cpu" / "machine"
    assert [mode(path) for path in (root, root / "cpu", folder)] == [0o700] * 3
    assert cache_folder("cpu/machine") == folder
    assert warned(caplog) == []


def test_set_to_nothing_nothing_is_kept(root, monkeypatch, caplog):
    monkeypatch.setenv("PARTITA_CACHE_DIR", "")
    assert cache_folder("cpu") is None
    assert warned(caplog) == []


def test_by_default_it_is_in_the_cache_folder_of_the_user(root, monkeypatch, tmp_path):
    monkeypatch.delenv("PARTITA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder("cpu") == tmp_path / "xdg" / "partita" / "cpu"


@pytest.mark.parametrize("part", ["cpu", "cpu/machine"])
@pytest.mark.parametrize("bits", [0o777, 0o720, 0o1777])
def test_a_folder_that_others_may_write_to_is_not_used(root, part, bits, caplog):
    (root / "cpu" / "machine").mkdir(parents=True)
    (root / part).chmod(bits)
    assert cache_folder("cpu/machine") is None
    assert cache_folder("cpu/machine") is None
    (message,) = warned(caplog)  # once
    assert f"Nothing is kept in '{root}/cpu/machine': others may write to it" in message
    assert f"mode is {bits:o}" in message
    assert "'chmod go-w'" in message
    assert "PARTITA_CACHE_DIR" in message
    (root / part).chmod(0o700)
    assert cache_folder("cpu/machine") == root / "cpu" / "machine"


@pytest.mark.parametrize("bits", [0o777, 0o720])
def test_the_cache_folder_itself_is_one_of_this_user_alone(root, bits, caplog):
    (root / "cpu").mkdir(parents=True, mode=0o700)
    root.chmod(bits)
    assert cache_folder("cpu") is None
    assert f"others may write to it (its mode is {bits:o}" in warned(caplog)[0]
    root.chmod(0o1777)  # like /tmp: nobody renames or removes what is not theirs
    assert cache_folder("cpu") == root / "cpu"


def test_the_cache_folder_is_not_another_users(root, give_away, caplog):
    (root / "cpu").mkdir(parents=True, mode=0o700)
    give_away(root)
    assert cache_folder("cpu") is None
    assert "it belongs to another user" in warned(caplog)[0]


@pytest.mark.parametrize("change", ["mode", "link"])
def test_a_folder_that_changed_is_looked_at_again(root, change, tmp_path):
    folder = cache_folder("cpu")
    if change == "mode":
        folder.chmod(0o777)
    else:
        folder.rename(tmp_path / "moved")
        folder.symlink_to(tmp_path / "moved")
    assert cache_folder("cpu") is None


def test_a_folder_of_another_user_is_not_used(root, give_away, caplog):
    (root / "cpu").mkdir(parents=True)
    give_away(root / "cpu")
    assert cache_folder("cpu") is None
    assert "it belongs to another user" in warned(caplog)[0]


def test_no_link_is_followed_below_the_cache_folder(root, tmp_path, caplog):
    root.mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (root / "cpu").symlink_to(tmp_path / "elsewhere")
    assert cache_folder("cpu") is None
    assert "it is no folder" in warned(caplog)[0]


def test_own_links_above_it_are_followed(root, tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to(tmp_path / "disk" / ".." / "disk")
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "one" / "cache"))
    assert cache_folder("cpu") == tmp_path / "disk" / "cache" / "cpu"


def test_links_of_others_are_not(root, tmp_path, give_away, caplog):
    (tmp_path / "disk").mkdir()
    root.symlink_to(tmp_path / "disk")
    give_away(root)
    assert cache_folder("cpu") is None
    assert f"'{root}' is a link of user" in warned(caplog)[0]
    assert list((tmp_path / "disk").iterdir()) == []


def test_links_in_a_circle(root, caplog):
    root.symlink_to(root)
    assert cache_folder("cpu") is None
    assert "too many links" in warned(caplog)[0]


def test_a_folder_that_cannot_be_made(root, caplog):
    root.write_text("in the way")
    assert cache_folder("cpu") is None
    assert cache_folder("numba") is None
    (message,) = warned(caplog)  # once, whatever shall be kept there
    assert f"Nothing is kept in '{root}': it is no folder" in message


def test_files_come_back_whole_and_private(root):
    path = cache_folder("cpu") / "file"
    before = os.umask(0)
    try:
        write_private(path, b"one ", memoryview(b"two"))
    finally:
        os.umask(before)
    assert read_private(path) == b"one two"
    assert mode(path) == 0o600
    assert is_private(path)
    assert [one.name for one in path.parent.iterdir()] == ["file"]


def test_a_file_that_is_not_there(root, caplog):
    assert read_private(cache_folder("cpu") / "file") is None
    assert not is_private(root / "cpu" / "file")
    assert warned(caplog) == []


def link(path, away):
    path.symlink_to(away)


def fifo(path, away):
    os.mkfifo(path)


def folder(path, away):
    path.mkdir()


def writable(path, away):
    path.write_bytes(b"others'")
    path.chmod(0o660)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (link, "symbolic links"),
        (fifo, "it is no regular file"),
        (folder, "it is no regular file"),
        (writable, "others may write to it (its mode is 660"),
    ],
)
def test_other_things_are_not_read(root, tmp_path, make, why, caplog):
    (tmp_path / "away").write_bytes(b"content")
    path = cache_folder("cpu") / "file"
    make(path, tmp_path / "away")
    assert read_private(path) is None
    assert read_private(path) is None
    assert not is_private(path)
    (message,) = warned(caplog)
    assert f"'{path}' is not read:" in message
    if make is not link:
        assert why in message
    if make is not folder:
        write_private(path, b"mine")
        assert read_private(path) == b"mine"
        assert (tmp_path / "away").read_bytes() == b"content"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="devices are Linux's")
def test_devices_are_not_read():
    with pytest.raises(OSError, match="it is no regular file"):
        open_private(module.Path("/dev/zero"))


def test_a_file_of_another_user_is_not_read(root, give_away, caplog):
    path = cache_folder("cpu") / "file"
    write_private(path, b"content")
    give_away(path)
    assert read_private(path) is None
    assert not is_private(path)
    assert "belongs to another user" in warned(caplog)[0]


def test_a_write_that_fails_leaves_nothing(root, monkeypatch):
    path = cache_folder("cpu") / "file"

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_private(path, b"content")
    assert list(path.parent.iterdir()) == []


def dated(folder, ages):
    """Files that were used some days ago."""
    now = time.time()
    for name, days in ages.items():
        (folder / name).write_text(name)
        os.utime(folder / name, (now, now - days * 86_400))


def test_of_too_many_files_those_go_that_were_used_longest_ago(tmp_path):
    dated(tmp_path, {"a": 4, "b": 9, "c": 2, "d": 7, "e": 3})
    (tmp_path / "below").mkdir()
    os.utime(tmp_path / "below", (0, 0))
    prune(tmp_path, 5)
    assert len(list(tmp_path.iterdir())) == 6
    prune(tmp_path, 4)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c", "e", "below"}


def test_files_in_use_stay(tmp_path):
    dated(tmp_path, {"a": 4, "b": 9, "c": 2})
    mark_used(tmp_path / "b")
    mark_used(tmp_path / "missing")
    prune(tmp_path, 2)
    assert {path.name for path in tmp_path.iterdir()} == {"b", "c"}


def test_files_that_another_process_deletes_meanwhile(tmp_path, monkeypatch):
    dated(tmp_path, {"a": 4, "b": 9, "c": 2})
    lstat = type(tmp_path).lstat

    def gone(path):
        path.unlink(missing_ok=True)
        return lstat(path)

    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "lstat", gone)
        prune(tmp_path, 2)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def full(monkeypatch):
    """The disk is full."""

    def no_room(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.tempfile, "mkstemp", no_room)


def test_a_full_disk_costs_time_alone_and_is_told_once(root, full, caplog):
    folder = cache_folder("cpu")
    assert not keep_private(folder / "one", b"content")
    assert not keep_private(folder / "two", b"content")
    (message,) = warned(caplog)
    assert f"Nothing more is kept in '{folder}': No space left on device." in message
    assert "PARTITA_CACHE_DIR" in message


def test_machine_code_and_verdicts_that_cannot_be_kept_are_told(root, full, caplog):
    from partita_cpu.jit import disk_cache
    from partita_opencl.drivers import verdicts

    disk_cache.write("name", "key", b"content")
    verdict = verdicts.Verdict()
    assert verdicts.write("a driver", (), verdict) is verdict
    of_code, of_verdicts = warned(caplog)
    assert f"in '{root}/cpu/" in of_code
    assert f"in '{root}/opencl/verdicts'" in of_verdicts


def test_folders_on_the_way_are_private_too(tmp_path):
    make_private(tmp_path / "one" / "two")
    assert mode(tmp_path / "one") == mode(tmp_path / "one" / "two") == 0o700


def test_all_that_is_kept_lies_below_the_one_folder(root):
    from partita.zoo import store
    from partita_cpu.jit import disk_cache
    from partita_hetero.cost import database
    from partita_opencl.drivers import program_cache

    kept = [store.zoo_folder(), database.cost_folder(), program_cache.program_folder()]
    assert [folder.name for folder in kept] == ["zoo", "hetero", "opencl"]
    disk_cache.write("name", "key", b"content")
    (file,) = (root / "cpu").glob("*/name-*")
    assert {folder.parent for folder in (*kept, file.parent.parent)} == {root}


def test_no_other_module_asks_where_caches_belong():
    tree = module.Path(__file__).parents[3]
    packages = [tree / "core", tree / "plugins", tree / "conformance"]
    asks = re.compile(r"platformdirs|XDG_CACHE_HOME|environ\W+get\W+PARTITA_CACHE_DIR|user_cache")
    found = {
        path.relative_to(tree).as_posix()
        for package in packages
        for path in package.rglob("*.py")
        if asks.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"core/partita/storage/cache_folder.py"}
