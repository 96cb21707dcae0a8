"""Docstrings as Markdown: roles such as ``:class:`X` `` become code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(?:class|func|meth|attr|data|mod|exc|obj):`[~!]?([^`]+)`")


class Roles(Extension):
    """A griffe extension, called once for each object that is documented."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Changes the docstring of one object."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
