"""Wheels made on the spot, and a stand-in for pip that hands them out."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

from partita.zoo.manifest import Entry, Member


def member(path, content):
    return Member(path, len(content), hashlib.sha256(content).hexdigest())


def entry_for(name, content, path="thing/model.onnx", files=None, package="thing"):
    return Entry(
        name=name,
        title="A thing",
        task="does things",
        package=package,
        version="1.0",
        model=member(path, content),
        download=100,
        licence="MIT",
        source="https://example.org",
        input="x",
        answer="y",
        files=files or {},
    )


def write_wheel(folder, contents, package="thing"):
    """A wheel that pip takes for one: contents by path, and the metadata that it must have."""
    info = f"{package}-1.0.dist-info"
    files = {
        **contents,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    path = Path(folder) / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


class FakePip:
    """Puts wheels into the folder that ``--dest`` names; remembers what it was asked for."""

    def __init__(self, contents=None, returncode=0, stderr="", wheels=1):
        self.contents = contents or {}
        self.returncode = returncode
        self.stderr = stderr
        self.wheels = wheels
        self.requirements = []

    def __call__(self, arguments, folder):
        assert folder.is_dir()
        assert not list(folder.iterdir())  # nothing there can pose as a module
        assert arguments[0] == "download"
        assert {"--no-deps", "--only-binary=:all:"} <= set(arguments)
        self.requirements.append(arguments[-1])
        (dest,) = (a.removeprefix("--dest=") for a in arguments if a.startswith("--dest="))
        if self.returncode == 0 and self.wheels:
            write_wheel(dest, self.contents, arguments[-1].partition("==")[0])
        return subprocess.CompletedProcess(arguments, self.returncode, "", self.stderr)
