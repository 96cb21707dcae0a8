"""Folders of models: what is found in them, and what is refused."""

import asyncio
import codecs
import gc

import pytest

from partita import Core
from partita.errors import ModelError, PropertyError
from partita_serve.models.model_folder import look_into
from partita_serve.models.repository import Repository
from partita_serve.protocol.errors import NotFound
from partita_serve.settings import ModelSettings, ServerSettings, read_toml, validated


def put(folder, path, text="x"):
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def look(folder, **defaults):
    return look_into(folder, ModelSettings(**defaults))


def test_the_newest_versions_are_found_by_number(tmp_path):
    for version in (1, 2, 10):
        put(tmp_path, f"m/{version}/model.onnx")
    put(tmp_path, "m/draft/model.onnx")
    put(tmp_path, "m/01/model.onnx")
    assert list(look(tmp_path)["m"].sources) == ["10"]
    put(tmp_path, "m/config.toml", "versions = 2\nmax_batch_size = 4\n")
    entry = look(tmp_path, device="CPU")["m"]
    assert list(entry.sources) == ["2", "10"]
    source = entry.sources["10"]
    assert source.source == str(tmp_path / "m" / "10" / "model.onnx")
    assert (source.settings.max_batch_size, source.settings.device) == (4, "CPU")


def test_files_beside_the_model_belong_to_it(tmp_path):
    put(tmp_path, "m/1/model.xml")
    before = look(tmp_path)["m"].fingerprints["1"]
    assert look(tmp_path)["m"].fingerprints["1"] == before
    put(tmp_path, "m/1/model.bin")
    after = look(tmp_path)["m"].fingerprints["1"]
    assert after != before
    put(tmp_path, "m/config.toml", "instances = 1")
    assert look(tmp_path)["m"].fingerprints["1"] != after


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"m/readme": ""}, "has no version: put its file into 'm/1/'"),
        ({"m/1/notes.txt": ""}, "needs one model file .* there is none"),
        ({"m/1/a.onnx": "", "m/1/b.xml": ""}, "there is 'a.onnx', 'b.xml'"),
        ({"m/1/a.onnx": "", "m/config.toml": "bach = 1"}, "'bach' is unknown; there are max_batch"),
        ({"m/1/a.onnx": "", "m/config.toml": "versions = 0"}, "'versions': .*greater than"),
        ({"m/1/a.onnx": "", "m/config.toml": "="}, "config.toml' cannot be read"),
    ],
)
def test_what_cannot_be_served_says_why(tmp_path, files, said):
    for path, text in files.items():
        put(tmp_path, path, text)
    entry = look(tmp_path)["m"]
    assert not entry.sources
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(entry.failure)


def test_versions_that_are_links_in_circles_are_refused_alone(tmp_path):
    """Up to Python 3.12 they raise an error of a kind of their own, which ended the watch."""
    put(tmp_path, "sound/1/model.onnx")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "1").symlink_to("1")
    found = look(tmp_path)
    assert found["sound"].sources
    assert not found["m"].sources
    assert "of model 'm' needs one model" in found["m"].failure or "loop" in found["m"].failure


def test_names_that_nobody_serves_leave_nothing_behind():
    async def scenario():
        repository = Repository(Core(), ServerSettings(models={"one": "builtin:sine"}), ())

        async def ask(count):
            for number in range(count):
                with pytest.raises(NotFound):
                    await repository.load(f"nobody{number}")
                with pytest.raises(NotFound):
                    await repository.unload(f"nobody{number}")
            gc.collect()
            return sum(type(one) is asyncio.Lock for one in gc.get_objects())  # may be dead proxies

        assert await ask(1) == await ask(20)

    asyncio.run(scenario())


def test_names_that_no_address_holds_are_left_out(tmp_path):
    for name in (".hidden", "a b", "-x", "ok"):
        put(tmp_path, f"{name}/1/model.onnx")
    put(tmp_path, "file.onnx")
    assert list(look(tmp_path)) == ["ok"]


def test_links_do_not_lead_out_of_the_folder(tmp_path):
    folder, outside = tmp_path / "models", tmp_path / "outside"
    put(outside, "1/secret.onnx")
    put(folder, "in/1/model.onnx")
    (folder / "all").symlink_to(outside)
    assert list(look(folder)) == ["in"]
    (folder / "in" / "2").symlink_to(outside / "1")
    assert "'in/2' is a link that leaves the model folder" in look(folder)["in"].failure
    (folder / "in" / "2").unlink()
    (folder / "in" / "1" / "weights.bin").symlink_to(outside / "1" / "secret.onnx")
    assert "'in/1/weights.bin' is a link" in look(folder)["in"].failure
    (folder / "in" / "1" / "weights.bin").unlink()
    (folder / "in" / "2").symlink_to(folder / "in" / "1")
    assert list(look(folder)["in"].sources) == ["2"]


def test_a_folder_that_is_not_there_says_so(tmp_path):
    with pytest.raises(ModelError, match=r"folder '.*nowhere' cannot be read"):
        look(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"http_port": 70000}, "'http_port': .*65535"),
        ({"tls_key": "k.pem"}, "tls_certificate and tls_key go together"),
        ({"tls_client_ca": "ca.pem"}, "tls_client_ca needs"),
        ({"defaults": {"divice": "CPU"}}, "'defaults.divice' is unknown"),
        ({"max_body": "lots"}, "max_body"),
        ({"max_body": 0}, "'max_body': .*greater than or equal to 1"),
        ({"max_buffered": "0KiB"}, "'max_buffered': .*greater than or equal to 1"),
        ({"max_header": 0}, "'max_header': .*greater than or equal to 1"),
    ],
)
def test_wrong_settings_are_named(values, said):
    with pytest.raises(PropertyError, match=f"^The settings: .*{said}"):
        validated(ServerSettings, values, "The settings")


def test_sizes_are_read_with_units():
    assert validated(ServerSettings, {"max_body": "2MiB"}, "").max_body == 2 << 20


def test_a_settings_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(PropertyError, match=r"'.*no.toml' cannot be read"):
        read_toml(tmp_path / "no.toml")


def test_a_settings_file_may_be_edited_on_windows(tmp_path):
    (tmp_path / "a.toml").write_bytes(codecs.BOM_UTF8 + 'a = "\u00fc"\r\n[b]\r\n'.encode())
    assert read_toml(tmp_path / "a.toml") == {"a": "\u00fc", "b": {}}
