"""CACHE_DIR: found by all that a model depends on; what is damaged or foreign is replaced."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import stat

import numpy as np
import onnx
import pytest
from models import affine
from toy_device import ToyCompiled, ToyDevice, core_with

import partita
from partita.contract import identity
from partita.properties import cache_dir, loaded_from_cache
from partita.storage import model_cache

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


class KeepingDevice(ToyDevice):
    """A device whose compiled models keep an array, and which counts what it was given."""

    def __init__(self, **settings):
        super().__init__(compute=lambda x: [-x[:, :3]], **settings)  # as wide as the model's output
        self.compiles, self.restored = 0, []
        self.driver = "toy 1"

    def device_info(self, device_id):
        info = super().device_info(device_id)
        return partita.DeviceInfo(info.device, info.full_name, info.kind, driver=self.driver)

    def compile_model(self, model, properties):
        self.compiles += 1
        return KeepingCompiled(model, properties, self)

    def restore_model(self, model, properties, state):
        self.restored.append(state)
        return KeepingCompiled(model, properties, self)


class KeepingCompiled(ToyCompiled):
    def export_state(self):
        return {"kept": np.arange(100, dtype=np.float32)}


@pytest.fixture
def device():
    return KeepingDevice()


def compile_twice(device, tmp_path, between=lambda: None, **config):
    """Compiles with one Core, and again with another; whether the second came from the cache."""
    config = {"CACHE_DIR": str(tmp_path), **config}
    core_with(device).compile_model(affine(), "TOY", config)
    between()
    return core_with(device).compile_model(affine(), "TOY", config)


def test_the_second_compile_comes_from_the_cache_with_what_the_device_kept(device, tmp_path):
    second = compile_twice(device, tmp_path, LEVEL=3)
    assert second.get_property(loaded_from_cache) is True
    assert (device.compiles, len(device.restored)) == (1, 1)
    np.testing.assert_array_equal(device.restored[0]["kept"], np.arange(100, dtype=np.float32))
    assert second.get_property("LEVEL") == 3
    np.testing.assert_array_equal(second(np.ones((2, 4), np.float32))[0], -np.ones((2, 3)))
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".partita"
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_without_a_folder_nothing_is_kept_and_the_call_overrides_core(device, tmp_path):
    core = core_with(device)
    core.set_property(cache_dir(str(tmp_path)))
    assert core.get_property("CACHE_DIR") == str(tmp_path)
    first = core.compile_model(affine(), "TOY", {"CACHE_DIR": ""})
    assert first.get_property("LOADED_FROM_CACHE") is False
    assert not list(tmp_path.iterdir())
    core.compile_model(affine(), "TOY")
    core.compile_model(affine(), "TOY", {"CACHE_DIR": str(tmp_path / "other")})
    assert len(list(tmp_path.glob("*.partita"))) == 1
    assert len(list(tmp_path.glob("other/*.partita"))) == 1
    assert core.compile_model(affine(), "TOY").loaded_from_cache
    core.set_property("TOY", {"CACHE_DIR": ""})
    assert not core.compile_model(affine(), "TOY").loaded_from_cache


def test_any_source_of_a_model(device, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(affine(), path)
    core = core_with(device)
    core.set_property({"CACHE_DIR": str(tmp_path / "cache")})
    for source in (path, str(path), path.read_bytes(), affine(), core.read_model(path)):
        core.compile_model(source, "TOY")
        assert core.compile_model(source, "TOY").loaded_from_cache
    assert core.compile_model(path, "TOY").model.name == "affine"


def changed_weight():
    model = affine()
    raw = bytearray(model.graph.initializer[0].raw_data)
    raw[0] ^= 1
    model.graph.initializer[0].raw_data = bytes(raw)
    return model


def pinned(core):
    model = core.read_model(affine())
    model.ops[0].affinity = "TOY"
    return model


@pytest.mark.parametrize("as_model", [False, True])
def test_another_model_has_another_key(device, tmp_path, as_model):
    core = core_with(device)
    config = {"CACHE_DIR": str(tmp_path)}
    read = core.read_model if as_model else lambda proto: proto
    core.compile_model(read(affine()), "TOY", config)
    for other in (changed_weight(), pinned(core)):
        assert not core.compile_model(read(other), "TOY", config).loaded_from_cache
        assert core.compile_model(read(other), "TOY", config).loaded_from_cache


def test_a_changed_file_of_weights_has_another_key(device, tmp_path):
    path = tmp_path / "m.onnx"
    model = affine()
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    core = core_with(device)
    config = {"CACHE_DIR": str(tmp_path / "cache")}
    core.compile_model(path, "TOY", config)
    assert core.compile_model(path, "TOY", config).loaded_from_cache
    raw = bytearray((tmp_path / "w.bin").read_bytes())
    raw[0] ^= 1
    (tmp_path / "w.bin").write_bytes(raw)
    assert not core.compile_model(path, "TOY", config).loaded_from_cache


def test_a_file_that_is_replaced_while_it_is_compiled_is_not_cached(
    device, tmp_path, caplog, monkeypatch
):
    """What is compiled is the new one; under the old one's key it would be found for ever."""
    path, folder = tmp_path / "m.onnx", tmp_path / "cache"
    onnx.save(affine(), path)
    load = model_cache.ModelCache.load

    def replaced_after(cache, key):
        found = load(cache, key)
        onnx.save(changed_weight(), path)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(model_cache.ModelCache, "load", replaced_after)
        core_with(device).compile_model(str(path), "TOY", {"CACHE_DIR": str(folder)})
    assert f"The compiled model is not cached: '{path}' was replaced meanwhile" in caplog.text
    assert not folder.exists()


def test_properties_drivers_and_code_belong_to_the_key(device, tmp_path, monkeypatch):
    config = {"CACHE_DIR": str(tmp_path)}

    def loaded(**more):
        compiled = core_with(device).compile_model(affine(), "TOY", {**config, **more})
        return compiled.loaded_from_cache

    assert [loaded(), loaded(), loaded(LEVEL=2), loaded(LEVEL=2)] == [False, True, False, True]
    device.driver = "toy 2"
    assert [loaded(), loaded()] == [False, True]
    monkeypatch.setattr(model_cache, "code_stamp", lambda package: "changed")
    assert [loaded(), loaded()] == [False, True]


def test_state_of_other_code_drivers_or_properties_is_not_handed_to_a_device(device, monkeypatch):
    core = core_with(device)
    blob = core.compile_model(affine(), "TOY").export_model()
    core.import_model(blob, "TOY")
    assert list(device.restored[-1]) == ["kept"]
    core.import_model(blob, "TOY", {"LEVEL": 2})
    assert not device.restored[-1]
    device.driver = "toy 2"
    core.import_model(blob, "TOY")
    assert not device.restored[-1]
    device.driver = "toy 1"
    monkeypatch.setattr(identity, "code_stamp", lambda package: "changed")
    core.import_model(blob, "TOY")
    assert not device.restored[-1]


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path):
    path.write_bytes(b"")


def nonsense(path):
    path.write_bytes(b"nonsense" * 100)


def of_another_model(path):
    data = path.read_bytes()
    path.write_bytes(b"0" * 64 + data[64:])


def of_another_device(path):
    core = core_with(ToyDevice("OTHER"))
    path.write_bytes(path.name[:64].encode() + core.compile_model(affine(), "OTHER").export_model())


def writable_by_all(path):
    path.chmod(0o666)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "cut short"),
        (flip, "its checksum does not match"),
        (empty, "cannot be read"),
        (nonsense, "holds another model or is damaged"),
        (of_another_model, "holds another model or is damaged"),
        (of_another_device, "exported from device 'OTHER', not from 'TOY'"),
        *([(writable_by_all, "others may write to it")] if os.name == "posix" else []),
    ],
)
def test_what_is_damaged_or_foreign_is_compiled_again_and_replaced(
    device, tmp_path, caplog, damage, said
):
    caplog.set_level(logging.WARNING, "partita")
    second = compile_twice(device, tmp_path, lambda: damage(next(tmp_path.iterdir())))
    assert not second.loaded_from_cache
    assert "A cached model cannot be used, and the model is compiled again" in caplog.text
    assert said in caplog.text
    assert (
        core_with(device)
        .compile_model(affine(), "TOY", {"CACHE_DIR": str(tmp_path)})
        .loaded_from_cache
    )


def test_a_file_that_is_cut_short_in_use_does_no_harm(device, tmp_path):
    """It was mapped: whoever touched what had been cut off was ended by the system."""
    second = compile_twice(device, tmp_path)
    (file,) = tmp_path.iterdir()
    with file.open("r+b") as stream:
        stream.truncate(0)
    (kept,) = [state["kept"] for state in device.restored]
    np.testing.assert_array_equal(kept, np.arange(100, dtype=np.float32))
    assert kept.ctypes.data % 64 == 0
    assert not kept.flags.writeable
    assert second.loaded_from_cache


@pytest.mark.skipif(os.name != "posix", reason="FIFOs are POSIX's")
@pytest.mark.timeout(30)
@pytest.mark.parametrize("where", ["absolute", "above", "link", "fifo"])
def test_the_cache_reads_no_files_elsewhere(device, tmp_path, where):
    """It read whatever a model named as its weights before anybody looked where that lies."""
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(tmp_path / "fifo")
    names = {"absolute": str(tmp_path / "fifo"), "above": "../fifo", "link": "in", "fifo": "own"}
    (folder / "in").symlink_to(tmp_path / "fifo")
    os.mkfifo(folder / "own")
    proto = affine()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=names[where])
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(partita.errors.ModelError, match=r"outside the model's|pipe or device"):
        core_with(device).compile_model(
            folder / "m.onnx", "TOY", {"CACHE_DIR": str(tmp_path / "cache")}
        )


@pytest.mark.parametrize("name", ["file/cache", "\0"])
def test_a_folder_that_cannot_be_made_is_a_warning(device, tmp_path, caplog, name):
    (tmp_path / "file").write_text("in the way")
    second = compile_twice(device, tmp_path / name)
    assert not second.loaded_from_cache
    assert "The compiled model is not cached in" in caplog.text
    assert "Fix that, or set CACHE_DIR to another folder." in caplog.text


def test_a_full_disk_is_a_warning_and_leaves_nothing(device, tmp_path, caplog, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(model_cache.Path, "replace", full)
    assert not compile_twice(device, tmp_path).loaded_from_cache
    assert "No space left" in caplog.text
    assert not list(tmp_path.iterdir())


def test_a_model_too_large_for_a_blob_is_a_warning(device, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("partita.model.model.PROTOBUF_BYTES", 59)
    assert not compile_twice(device, tmp_path).loaded_from_cache
    assert "cannot be exported: it has" in caplog.text


def compile_in_a_process(folder, gate, results):
    core = core_with(KeepingDevice())
    gate.wait(600)
    compiled = core.compile_model(affine(), "TOY", {"CACHE_DIR": folder})
    results.put(compiled(np.ones((2, 4), np.float32))[0].sum())


def test_several_processes_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(4), context.Queue()
    workers = [
        context.Process(target=compile_in_a_process, args=(str(tmp_path), gate, results))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=600) for _ in workers] == [-6.0] * 4
    for worker in workers:
        worker.join(600)
    assert len(list(tmp_path.iterdir())) == 1, "one file, nothing temporary"
    assert (
        core_with(KeepingDevice())
        .compile_model(affine(), "TOY", {"CACHE_DIR": str(tmp_path)})
        .loaded_from_cache
    )
