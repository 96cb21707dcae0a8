"""The manifest: what ships is sound, and what is unsafe is refused."""

import pytest

from partita.errors import ZooError
from partita.zoo.manifest import Member, entries, entry, parse

DIGEST = "0" * 64

TABLE = f"""
[models.thing]
title = "A thing"
task = "does things"
package = "thing"
version = "1.0"
member = "thing/model.onnx"
size = 3
sha256 = "{DIGEST}"
download = 100
licence = "MIT"
source = "https://example.org"
input = "x"
answer = "y"
"""


def test_what_ships_is_complete():
    assert len(entries()) == 12
    for name, found in entries().items():
        assert found.name == name
        assert found.model.path.endswith((".onnx", ".gguf"))
        assert found.requirement == f"{found.package}=={found.version}"
        assert found.source.startswith("https://")
        assert found.licence in ("Apache-2.0", "MIT")
        assert found.download > 0
        assert all(vars_ for vars_ in (found.title, found.task, found.input, found.answer))


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ZooError, match=r"no model 'magica'.* mean 'magika'.*It has ppocr-det, "):
        entry("magica")


@pytest.mark.parametrize(
    "path", ["../model.onnx", "a/../../model.onnx", "/etc/model.onnx", "a\\..\\model.onnx", "model"]
)
def test_a_member_outside_the_wheel_is_refused(path):
    with pytest.raises(ZooError, match="a member is a relative path"):
        Member(path, 3, DIGEST)


@pytest.mark.parametrize(("size", "digest"), [(0, DIGEST), (3, "abc"), (3, DIGEST.upper() + "A")])
def test_a_member_needs_size_and_digest(size, digest):
    with pytest.raises(ZooError, match="no proper size and sha256"):
        Member("a/model.onnx", size, digest)


def test_a_manifest_is_read():
    found = parse(TABLE)["thing"]
    assert found.model == Member("thing/model.onnx", 3, DIGEST)
    assert found.files == {}


def test_the_name_becomes_a_file_name_and_so_must_be_plain():
    with pytest.raises(ZooError, match="calls a model"):
        parse(TABLE.replace("models.thing", 'models."../thing"'))


@pytest.mark.parametrize(
    "text", ["", "[models", TABLE.replace("size = 3\n", ""), TABLE + "colour = 'red'\n"]
)
def test_a_damaged_manifest_is_named_as_such(text):
    with pytest.raises(ZooError, match="manifest is damaged"):
        parse(text)
