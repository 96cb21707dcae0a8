"""Entry points for a checkout that nobody has installed, so that child processes find plugins."""

from __future__ import annotations

import contextlib
import os
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

_PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@contextlib.contextmanager
def entry_points_of_the_checkout():
    """Puts what ``pip install -e`` would write into ``PYTHONPATH``, if nothing is installed."""
    if metadata.entry_points(group="partita"):
        yield
        return
    project = tomllib.loads(_PROJECT.read_text())["project"]
    before = os.environ.get("PYTHONPATH", "")
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / f"{project['name']}-{project['version']}.dist-info"
        told.mkdir()
        head = {"Metadata-Version": "2.1", "Name": project["name"], "Version": project["version"]}
        (told / "METADATA").write_text("".join(f"{k}: {v}\n" for k, v in head.items()))
        entries = project["entry-points"]["partita"].items()
        lines = "".join(f"{name} = {module}\n" for name, module in entries)
        (told / "entry_points.txt").write_text(f"[partita]\n{lines}")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [before, folder]))
        try:
            yield
        finally:
            os.environ["PYTHONPATH"] = before
