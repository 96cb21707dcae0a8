"""The database of costs: several processes, damage, other drivers."""

from __future__ import annotations

import multiprocessing
import resource
import sqlite3
import stat

import pytest

from partita.errors import CostError
from partita_hetero.cost import database as module
from partita_hetero.cost.database import Cost, Database, LinkCost, cost_folder, device_key

GPU = {"device": "A100", "driver": "535.1", "plugin": "partita 0.1.0", "properties": "{}"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "inner" / "costs.sqlite3"


def cost(device, work, seconds=1e-3, how="measured"):
    return Cost(device, work, seconds, 5, how, "Conv")


def test_what_is_written_is_read_again(path):
    with Database(path) as database:
        key = database.add_device(GPU)
        database.add_costs([cost(key, "a", 1e-3), cost(key, "b", 2e-3)])
        database.add_costs([cost(key, "a", 3e-3, "profiled")])
        database.add_link(LinkCost("host", key, 1e-5, 1e-9))
        database.add_decision("m", {"chosen": "plan"})
    with Database(path) as database:
        assert database.costs(key, ["a", "b", "c"]) == {
            "a": cost(key, "a", 3e-3, "profiled"),
            "b": cost(key, "b", 2e-3),
        }
        assert database.link("host", key) == LinkCost("host", key, 1e-5, 1e-9)
        assert database.link(key, "host") is None
        assert database.decision("m") == {"chosen": "plan"}
        assert database.decision("n") is None


def test_more_work_than_one_statement_takes(path):
    with Database(path) as database:
        database.add_costs([cost("d", str(i), i) for i in range(1200)])
        found = database.costs("d", map(str, range(1200)))
    assert [found[str(i)].seconds for i in range(1200)] == list(range(1200))


def test_another_driver_is_another_device(path):
    with Database(path) as database:
        old = database.add_device(GPU)
        database.add_costs([cost(old, "a")])
        new = database.add_device({**GPU, "driver": "550.2"})
        assert new != old
        assert database.costs(new, ["a"]) == {}
        assert database.costs(database.add_device(dict(reversed(GPU.items()))), ["a"])


def test_only_the_owner_may_read(path):
    with Database(path) as database:
        database.add_costs([cost("d", "a")])
        files = list(path.parent.iterdir())
        assert len(files) > 1  # the write-ahead log beside it
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def _write_many(path, number):
    with Database(path) as database:
        for i in range(30):
            database.add_costs([cost("d", f"{number}-{i}"), cost("d", "same", number)])


def test_processes_write_at_the_same_time(path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write_many, args=(path, n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    with Database(path) as database:
        works = [f"{n}-{i}" for n in range(3) for i in range(30)]
        assert set(database.costs("d", works)) == set(works)
        assert database.costs("d", ["same"])["same"].seconds in (0, 1, 2)


def test_a_file_that_is_no_database_is_set_aside(path, caplog):
    path.parent.mkdir()
    path.write_bytes(b"This is no database. " * 500)
    with Database(path) as database:
        database.add_costs([cost("d", "a")])
        assert database.costs("d", ["a"])
    assert "cannot be used" in caplog.text
    assert "measured again" in caplog.text
    aside = [file for file in path.parent.iterdir() if "damaged" in file.name]
    assert len(aside) == 1
    assert aside[0].read_bytes().startswith(b"This is no database.")


def test_pages_that_are_damaged_are_found_when_they_are_read(path, caplog):
    with Database(path) as database:
        database.add_costs([cost("d", f"{i:040}") for i in range(3000)])
    content = bytearray(path.read_bytes())
    content[4096 * 4 :] = b"\xff" * (len(content) - 4096 * 4)
    path.write_bytes(content)
    with Database(path) as database:
        found = database.costs("d", [f"{i:040}" for i in range(3000)])
        assert len(found) < 3000
        database.add_costs([cost("d", "a")])
        assert database.costs("d", ["a"])
    assert "measured again" in caplog.text


def test_a_file_of_another_version_is_set_aside(path, caplog):
    with Database(path) as database:
        database.add_costs([cost("d", "a")])
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with Database(path) as database:
        assert database.costs("d", ["a"]) == {}
    assert f"version 99; this Partita writes {module.VERSION}" in caplog.text


def test_without_a_folder_costs_stay_in_memory(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with Database(tmp_path / "file" / "costs.sqlite3") as database:
        database.add_costs([cost("d", "a")])
        assert database.costs("d", ["a"])
    assert "only in memory" in caplog.text


def test_on_a_full_disk_costs_stay_in_memory(path, caplog):
    with Database(path) as database:
        database.add_costs([cost("d", "a")])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))  # a write beyond it fails
        try:
            database.add_costs([cost("d", "b")])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert set(database.costs("d", ["a", "b"])) == {"a", "b"}
        database.add_costs([cost("d", "c")])
    assert "only in memory" in caplog.text
    with Database(path) as database:
        assert set(database.costs("d", ["a", "b", "c"])) == {"a"}


def test_a_database_that_stays_locked_is_an_error(path, monkeypatch):
    with Database(path):
        pass
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.05)
    with Database(path) as database:
        with pytest.raises(CostError, match="cannot be used: database is locked"):
            database.add_costs([cost("d", "a")])
        other.rollback()
        other.close()
        database.add_costs([cost("d", "a")])


def test_a_new_file_that_stays_locked_is_an_error(path, monkeypatch):
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.05)
    with pytest.raises(CostError, match=r"cannot be opened: .* Delete it, or set PARTITA_CACHE"):
        Database(path)
    other.close()


def test_the_older_half_goes_when_there_are_too_many(path, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 10)
    with Database(path) as database:
        for i in range(11):
            database.add_costs([cost("d", str(i))])
        assert set(database.costs("d", map(str, range(11)))) == {"6", "7", "8", "9", "10"}


def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    assert cost_folder() == tmp_path / "hetero"
    monkeypatch.delenv("PARTITA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cost_folder() == tmp_path / "xdg" / "partita" / "hetero"


def test_the_key_hangs_on_every_property():
    assert device_key(GPU) != device_key({**GPU, "properties": '{"INFERENCE_PRECISION_HINT": 1}'})
