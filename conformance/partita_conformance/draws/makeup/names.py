"""Names of values and of graphs, in the styles that programs stumble over."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_SIGNS = "./:- _"
_ODD = (
    *(" ", "'", '"', "%s", "{0}", "\\", "<b>", "\t", "a\nb", "$HOME", "../x", "#", "*", "?"),
    *("[0]", "&amp;", "0x1", "-1", "1e5", ";", "|", "`", "@", "~", "=", ",", "(", ")"),
)
_INTERNAL = (
    *("output", "input", "x", "output_0", "input_0", "self", "None", "const_0", "value_0"),
    *("node_0", "True", "graph", "results", "arg0", "0", "tmp", "Identity_0", "constant", "y"),
    *("__init__", "shape", "name", "data", "weights", "buffer_0", "t0", "v_0", "lambda"),
)


def _capitals(number: int) -> str:
    return "".join(c.upper() if number >> i & 1 else c for i, c in enumerate("abcdefgh"))


def _composed(number: int) -> str:
    return ("e\u0301" if number % 2 else "\u00e9") * (number // 2 + 1)


def _collide(number: int) -> str:
    return f"a{_SIGNS[number % 6]}b" + "c" * (number // 6)


def _of(words: tuple[str, ...], more: str) -> Callable[[int], str]:
    return lambda number: words[number] if number < len(words) else f"{more}{number}"


STYLES: Mapping[str, Callable[[int], str]] = {
    "short": lambda number: f"v{number}",
    "numbers": str,
    "of other scripts": lambda number: "\u6743\u91cd" + "\u2713" * (number % 3) + f"\u00df{number}",
    "composed or not": _composed,
    "collide as identifiers": _collide,
    "in capitals or not": _capitals,
    "long, other at the end": lambda number: f"{'layer.' * 50}{number}",
    "long, other at the beginning": lambda number: f"{number}{'.layer' * 50}",
    "like internal ones": _of(_INTERNAL, "tmp_"),
    "odd": _of(_ODD, "odd "),
    "backwards": lambda number: f"z{999 - number}",
    "numbered texts": lambda number: f"x:{number}",
    "beginnings of each other": lambda number: "a" * (number + 1),
}
"""Style to the name of a number; each number has another one."""

GRAPHS: Mapping[str, str] = {
    "g": "g",
    "none": "",
    "a path": "../models/a b.onnx",
    "long": "network." * 60,
    "of other scripts": "\u6a21\u578b \u00e4\u2713",
    "main_graph": "main_graph",
}
