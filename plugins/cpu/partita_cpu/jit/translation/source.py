"""The syntax of a function, from the file that it was defined in."""

from __future__ import annotations

import ast
import functools
import linecache
import types
from collections.abc import Iterator

from partita_cpu.jit.translation.kinds import UntranslatableError


def definition_of(function: types.FunctionType) -> ast.FunctionDef:
    """The definition of a function; not to be changed.

    Raises:
        UntranslatableError: Its source is not at hand.
    """
    code = function.__code__
    found = _definitions(code.co_filename).get((code.co_name, code.co_firstlineno))
    if found is None:
        raise UntranslatableError(f"no source of function {function.__qualname__}")
    return found


@functools.cache
def _definitions(file: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """All definitions in a file by name and first line, which is that of the first decorator."""
    found: dict[tuple[str, int], ast.FunctionDef] = {}
    for node in _statements(ast.parse("".join(linecache.getlines(file)))):
        if isinstance(node, ast.FunctionDef):
            lines = [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]
            found[node.name, min(lines)] = node
    return found


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements within a node; expressions, which are most of a file, hold none."""
    for field in _BLOCKS:
        for inner in getattr(node, field, ()):
            yield inner
            yield from _statements(inner)


_BLOCKS = "body", "orelse", "finalbody", "handlers", "cases"
