"""Pages that lie above `docs`, README among them; links to them become links to pages.

In the repository all links are plain relative paths, so that they work there too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "benchmarks/README.md": "benchmarks.md",
}


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that lie above ``docs``; called by mkdocs."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        docs = "../" * name.count("/") + "docs/"
        text = (ROOT / name).read_text(encoding="utf-8").replace(f"]({docs}", "](")
        text = re.sub(r"\[([^\]]+)\]\(LICENSE\)", r"\1", text)
        files.append(File.generated(config, page, content=_to_pages(text, "")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links out of ``docs`` into links to those pages; called by mkdocs."""
    return _to_pages(markdown, "../" * (page.file.src_uri.count("/") + 1))


def _to_pages(text: str, up: str) -> str:
    for name, page in PAGES.items():
        text = text.replace(f"]({up}{name}", f"]({up.removesuffix('../')}{page}")
    return text
