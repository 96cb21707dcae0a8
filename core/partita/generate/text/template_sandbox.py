"""Jinja in which templates of strangers are rendered: a sandbox with a budget.

Jinja's immutable sandbox gives a template no attribute that begins with ``_`` and nothing to
change. Left to it, a template can still compute for years or fill the memory, since loops nest and
texts double. Here every turn of a loop, every call and whatever makes a text or a list longer is
paid from a budget before it is done; there are no files to include, few filters, and few methods of
texts.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MOST_STEPS = 200_000
"""Turns of loops, calls and filters of one rendering."""

MOST_CHARACTERS = 8 * 1024 * 1024
"""Characters that one rendering may make, kept and written ones."""

MOST_SECONDS = 5.0
"""How long one rendering may take."""

_ENTRY = 16
"""Characters that a value in a list counts as."""

_LARGEST_INTEGER_BITS = 256
_DEEPEST_INDENT = 16

_FILTERS = (
    "abs capitalize count d default dictsort e escape first float groupby int items join last "
    "length list lower map max min reject rejectattr replace reverse round safe select selectattr "
    "sort string sum title trim unique upper urlencode"
)
_TEXT_METHODS = (
    "capitalize count endswith find index isalnum isalpha isdigit isspace islower isupper lower "
    "lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip "
    "split splitlines startswith strip title upper"
)
_ITEMS, _SIZED = "metered items", "sized"
"""Names of filters that no template can spell."""


class LimitError(TemplateError):
    """A template goes beyond its budget."""


class Budget:
    """What one rendering may still use."""

    def __init__(self) -> None:
        self.steps = MOST_STEPS
        self.characters = MOST_CHARACTERS
        self.end = time.monotonic() + MOST_SECONDS

    def step(self) -> None:
        """Pays for a turn of a loop, a call or a filter.

        Raises:
            LimitError: There were too many, or they took too long.
        """
        self.steps -= 1
        if self.steps < 0:
            raise LimitError(f"it takes more than {MOST_STEPS} steps")
        if time.monotonic() > self.end:
            raise LimitError(f"it takes more than {MOST_SECONDS:.0f} seconds")

    def write(self, count: int) -> None:
        """Pays for characters and entries.

        Raises:
            LimitError: There are more than `MOST_CHARACTERS`.
        """
        self.characters -= count
        if self.characters < 0:
            raise LimitError(f"it makes more than {MOST_CHARACTERS} characters")

    def weigh(self, *values: Any) -> None:
        """Pays for values as if they were written out; what lies in them twice counts twice."""
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            self.write(_ENTRY + (len(value) if isinstance(value, (str, bytes)) else 0))
            if isinstance(value, Namespace):
                value = object.__getattribute__(value, "_Namespace__attrs")
            if isinstance(value, Mapping):
                waiting.extend(value)
                waiting.extend(value.values())
            elif isinstance(value, (list, tuple, set, frozenset)):
                waiting.extend(value)


class _GenerationTag(Extension):
    """``{% generation %}``, with which templates mark answers for training."""

    tags = {"generation"}  # noqa: RUF012  # so Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of one chat template."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            finalize=self._written,
            cache_size=0,
        )
        self._budget: ContextVar[Budget] = ContextVar("budget")
        self._template_characters = 0
        own: dict[str, Callable[..., Any]] = {"tojson": _to_json, "indent": _indented}
        own |= {name: FILTERS[name] for name in _FILTERS.split()}
        self.filters = {name: self._metered(name, function) for name, function in own.items()}
        self.filters |= {_ITEMS: self._items, _SIZED: self._sized}
        kept = {name: self.globals[name] for name in ("dict", "namespace", "range")}
        self.globals.clear()
        self.globals.update(kept, raise_exception=_refuse, strftime_now=_now)

    @contextlib.contextmanager
    def limits(self) -> Iterator[None]:
        """A budget for one rendering, which is done meanwhile."""
        token = self._budget.set(Budget())
        try:
            yield
        finally:
            self._budget.reset(token)

    # ------------------------------------------------------------- what Jinja asks

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        self._template_characters = len(source)
        tree = super()._parse(source, name, filename)
        metered: nodes.Template = _Metering().visit(tree)
        return metered

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may read an attribute; numbers would make bytes of any length."""
        if isinstance(obj, (int, float, bytes)):
            return False
        if isinstance(obj, str) and attr not in _TEXT_METHODS.split():
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Leaves ``str.format``, which can ask for any width, to :meth:`is_safe_attribute`."""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Computes ``left operator right``, paid by the size of the result.

        Args:
            context: Jinja's, of the template.
            operator: As templates write it.
            left: The left operand.
            right: The right operand.

        Raises:
            LimitError: The result would be too large.
            SecurityError: The operator is for numbers, and an operand is none.
        """
        budget = self._budget.get()
        budget.step()
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            if operator == "**" and abs(right) > _LARGEST_INTEGER_BITS:
                raise LimitError("it raises to a high power")
        elif operator == "+":
            budget.weigh(left, right)
        elif operator == "*":
            (text, times) = (left, right) if isinstance(right, int) else (right, left)
            budget.write(len(text) * max(int(times), 0))
        else:
            raise SecurityError(f"'{operator}' is for numbers alone")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > _LARGEST_INTEGER_BITS:
            raise LimitError(f"it computes a number of more than {_LARGEST_INTEGER_BITS} bits")
        if operator == "*" and isinstance(result, (list, tuple)):
            budget.weigh(result)
        return result

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls what a template calls, paid by what it is given and may make of it.

        Args:
            context: Jinja's, of the template.
            function: What is called.
            args: What it is given.
            kwargs: What it is given by name.

        Raises:
            LimitError: The template has used up what it may compute or write.
        """
        budget = self._budget.get()
        budget.step()
        budget.weigh(args, kwargs)
        if isinstance(function, (Macro, BlockReference)):
            budget.write(self._template_characters)
        text = getattr(function, "__self__", None)
        if isinstance(text, str):
            budget.write(len(text))
            if function.__name__ == "replace":
                budget.write(_inserted(text, *args, **kwargs))
        return super().call(context, function, *args, **kwargs)

    # ------------------------------------------------- what the metered tree calls

    def _written(self, value: Any) -> Any:
        """Pays for what the template writes, before it becomes text."""
        if budget := self._budget.get(None):  # there is none while constants are folded
            budget.weigh(value)
        return value

    def _sized(self, value: Any) -> Any:
        """Pays for a list, tuple or dict that the template writes down, or texts to be joined."""
        self._budget.get().weigh(value)
        return value

    def _items(self, values: Any, characters: int) -> Iterator[Any]:
        """Pays for the turns of a loop, each with the template's own text in it."""
        budget = self._budget.get()
        for value in values:
            budget.step()
            budget.write(characters)
            yield value

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that is paid by what it is given; joining and replacing by what they make."""
        passed = hasattr(function, "jinja_pass_arg")

        def metered(*args: Any, **kwargs: Any) -> Any:
            budget = self._budget.get()
            budget.step()
            own = args[1:] if passed else args
            budget.weigh(own, kwargs)
            if name == "replace":
                budget.write(_inserted(str(own[0]), *own[1:], **kwargs))
            if name == "join":
                values = list(own[0])
                budget.weigh(values)
                separator = str(own[1]) if len(own) > 1 else str(kwargs.get("d", ""))
                budget.write(len(values) * len(separator))
                args = (*args[: len(args) - len(own)], values, *own[1:])
            result = function(*args, **kwargs)
            budget.weigh(result)
            return result

        if passed:
            metered.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]  # Jinja's mark
        return metered


class _Metering(NodeTransformer):
    """Puts what pays into a template's tree."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802  # Jinja names it so
        """Lets every turn of a loop be paid."""
        if node.recursive:
            raise TemplateSyntaxError("recursive loops are not rendered", node.lineno)
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _ITEMS, nodes.Const(written))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        """Lets texts be paid before they are joined."""
        self.generic_visit(node)
        parts = _filtered(nodes.List(node.nodes, lineno=node.lineno), _SIZED)
        return _filtered(parts, "join")

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Expr:  # noqa: N802
        """Lets what a list holds be paid: it may hold one large value often."""
        self.generic_visit(node)
        return _filtered(node, _SIZED)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        """The same, unless it names what a loop or an assignment gives values to."""
        if node.ctx != "load":
            return node
        self.generic_visit(node)
        return _filtered(node, _SIZED)


def _filtered(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _inserted(text: str, old: Any = "", new: Any = "", *rest: Any, **named: Any) -> int:
    """Characters that replacing puts in."""
    old, new = str(named.get("old", old)), str(named.get("new", new))
    return text.count(old) * len(new)


def _to_json(value: Any, indent: int | None = None, **named: Any) -> str:
    """JSON as prompts hold it: nothing is escaped for HTML."""
    if indent is not None and not 0 <= int(indent) <= _DEEPEST_INDENT:
        raise LimitError(f"it indents by more than {_DEEPEST_INDENT}")
    known = {
        name: named[name] for name in ("ensure_ascii", "separators", "sort_keys") if name in named
    }
    return json.dumps(value, indent=indent, **{"ensure_ascii": False, **known})


def _indented(text: str, width: int = 4, first: bool = False, blank: bool = False) -> str:
    """Lines with spaces in front."""
    if not 0 <= int(width) <= _DEEPEST_INDENT:
        raise LimitError(f"it indents by more than {_DEEPEST_INDENT}")
    lines: Iterable[tuple[int, str]] = enumerate(str(text).split("\n"))
    return "\n".join(
        " " * int(width) + line if (line or blank) and (number or first) else line
        for number, line in lines
    )


def _refuse(message: str) -> None:
    raise TemplateError(str(message))


def _now(pattern: str) -> str:
    if len(pattern) > 100:
        raise LimitError("it formats a date with a long pattern")
    return datetime.datetime.now().astimezone().strftime(pattern)
