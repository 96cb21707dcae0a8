"""Expressions: names, operators, items, and choices between two values."""

from __future__ import annotations

import ast
import builtins
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

from partita_cpu.jit.deferred_numba import ir
from partita_cpu.jit.translation import arrays, kinds
from partita_cpu.jit.translation.arithmetic import Arithmetic
from partita_cpu.jit.translation.calls import Calls, FunctionCalls
from partita_cpu.jit.translation.kinds import (
    Array,
    Number,
    Static,
    Tuple,
    UntranslatableError,
    joined,
)
from partita_cpu.jit.translation.names import Locals
from partita_cpu.jit.translation.values import (
    Value,
    cast,
    integer,
    items_of,
    known,
    of_python,
    register_type,
    tuple_of,
)


class Expressions:
    """Translates the expressions of one function.

    Args:
        functions: Those of the module, to call others.
        python: The function.
        builder: LLVM's builder.
        names: The local names.
        flags: Fast-math flags.
    """

    def __init__(
        self,
        functions: FunctionCalls,
        python: Any,
        builder: Any,
        names: Locals,
        flags: Sequence[str],
    ) -> None:
        self.arithmetic = Arithmetic(builder, flags)
        self._calls = Calls(functions, builder, self.arithmetic)
        self._builder = builder
        self._names = names
        self._locals = frozenset(python.__code__.co_varnames + python.__code__.co_cellvars)
        cells = python.__closure__ or ()
        self._free = dict(zip(python.__code__.co_freevars, cells, strict=True))
        self._globals = python.__globals__

    def value(self, node: ast.expr) -> Value:
        """The value of an expression.

        Raises:
            UntranslatableError: It is not taken.
        """
        take = _EXPRESSIONS.get(type(node))
        if take is None:
            raise UntranslatableError(f"expression '{ast.unparse(node)[:60]}'")
        return take(self, node)

    def truth(self, node: ast.expr) -> Any:
        """Whether an expression is true, as one bit."""
        if isinstance(node, ast.BoolOp):
            return self._one_after_another(node)
        return self.arithmetic.truth(self.value(node))

    def room(self, kind: Number) -> Any:
        """Room for a number on the function's stack."""
        with self._builder.goto_entry_block():
            return self._builder.alloca(register_type(kind))

    def range_of(self, node: ast.expr) -> tuple[Value, Value, Value]:
        """Start, stop and step of a loop over integers of 64 bits.

        Raises:
            UntranslatableError: It is a loop over something else.
        """
        if not isinstance(node, ast.Call) or node.keywords:
            raise UntranslatableError(f"a loop over '{ast.unparse(node)[:60]}'")
        called = self.value(node.func).kind
        given = self._all(node.args)
        if called != Static(range) or not 1 <= len(given) <= 3:
            raise UntranslatableError(f"a loop over '{ast.unparse(node)[:60]}'")
        kind = given[0].kind
        if kind not in (kinds.int64, kinds.uint64) or any(value.kind != kind for value in given):
            raise UntranslatableError("a range of integers that are not of 64 bits")
        zero, one = (cast(self._builder, integer(number), kind) for number in (0, 1))
        start, stop = (zero, given[0]) if len(given) == 1 else given[:2]
        step = given[2] if len(given) == 3 else one
        if known(step) == 0:
            raise UntranslatableError("a range with steps of 0")
        return start, stop, step

    def indices(self, node: ast.expr) -> list[Any]:
        """What an item is found by: numbers, and bounds of slices."""
        if isinstance(node, ast.Slice):
            if node.step is not None:
                raise UntranslatableError("a slice with a step")
            return [
                tuple(None if end is None else self.value(end) for end in (node.lower, node.upper))
            ]
        if isinstance(node, ast.Tuple):
            return [index for part in node.elts for index in self.indices(part)]
        value = self.value(node)
        return items_of(value) if isinstance(value.kind, Tuple) else [value]

    def _all(self, nodes: Sequence[ast.expr]) -> list[Value]:
        values: list[Value] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                values += items_of(self.value(node.value))
            else:
                values.append(self.value(node))
        return values

    def _constant(self, node: ast.Constant) -> Value:
        return of_python(node.value)

    def _name(self, node: ast.Name) -> Value:
        name = node.id
        if name in self._locals:
            return self._names.read(self._builder, name)
        if name in self._free:
            return of_python(self._free[name].cell_contents)
        if name in self._globals:
            return of_python(self._globals[name])
        if hasattr(builtins, name):
            return of_python(getattr(builtins, name))
        raise UntranslatableError(f"name '{name}', which is not defined")

    def _attribute(self, node: ast.Attribute) -> Value:
        if ast.unparse(node).endswith(".ctypes.data"):
            array = self.value(node.value.value)  # type: ignore[attr-defined]  # one more of them
            if isinstance(array.kind, Array):
                return arrays.attribute(self._builder, array, "ctypes.data")
        owner = self.value(node.value)
        kind = owner.kind
        if isinstance(kind, Array):
            return arrays.attribute(self._builder, owner, node.attr)
        if isinstance(kind, Tuple) and kind.record is not None:
            fields: Sequence[str] = kind.record._fields  # type: ignore[attr-defined]
            if node.attr in fields:
                return items_of(owner)[fields.index(node.attr)]
        if isinstance(kind, Static):
            if isinstance(kind.value, types.ModuleType) and hasattr(kind.value, node.attr):
                return of_python(getattr(kind.value, node.attr))
            if isinstance(kind.value, Number) and node.attr == "type":
                return owner
        raise UntranslatableError(f"attribute '{ast.unparse(node)}'")

    def _item(self, node: ast.Subscript) -> Value:
        owner = self.value(node.value)
        if isinstance(owner.kind, Array):
            return arrays.load(self._builder, owner, self.indices(node.slice))
        items = items_of(owner)
        at = known(self.value(node.slice)) if not isinstance(node.slice, ast.Slice) else None
        if at is None or not -len(items) <= at < len(items):
            raise UntranslatableError(f"item '{ast.unparse(node)}' of a tuple")
        return items[int(at)]

    def _tuple(self, node: ast.Tuple) -> Value:
        return tuple_of(self._all(node.elts))

    def _binary(self, node: ast.BinOp) -> Value:
        left = self.value(node.left)
        return self.arithmetic.binary(type(node.op), left, self.value(node.right))

    def _unary(self, node: ast.UnaryOp) -> Value:
        return self.arithmetic.unary(type(node.op), self.value(node.operand))

    def _compare(self, node: ast.Compare) -> Value:
        left = self.value(node.left)
        if isinstance(node.ops[0], (ast.In, ast.NotIn)) and len(node.ops) == 1:
            return self._within(node, left)
        pairs = [*zip(node.ops, node.comparators, strict=True)]

        def compare(at: int) -> Any:
            nonlocal left
            kind, right = pairs[at]
            before, left = left, self.value(right)
            return self.arithmetic.compared(type(kind), before, left)

        return Value(kinds.boolean, (self._until(len(pairs), compare, stop_at=False),))

    def _within(self, node: ast.Compare, value: Value) -> Value:
        """Whether a number is one of a tuple."""
        items = items_of(self.value(node.comparators[0]))
        found = functools.reduce(
            self._builder.or_,
            (self.arithmetic.compared(ast.Eq, value, item) for item in items),
            ir.Constant(ir.IntType(1), 0),
        )
        if isinstance(node.ops[0], ast.NotIn):
            found = self._builder.not_(found)
        return Value(kinds.boolean, (found,))

    def _one_after_another(self, node: ast.BoolOp) -> Any:
        def check(at: int) -> Any:
            return self.truth(node.values[at])

        return self._until(len(node.values), check, stop_at=isinstance(node.op, ast.Or))

    def _until(self, count: int, check: Callable[[int], Any], stop_at: bool) -> Any:
        """Makes checks until one gives `stop_at`; whether one did, or all gave the other."""
        found = check(0)
        if count == 1:
            return found
        behind = self._builder.append_basic_block("known")
        bit = ir.IntType(1)
        ends = []
        for at in range(1, count):
            following = self._builder.append_basic_block("check")
            ends.append(self._builder.block)
            ways = (behind, following) if stop_at else (following, behind)
            self._builder.cbranch(found, *ways)
            self._builder.position_at_end(following)
            found = check(at)
        last = self._builder.block
        self._builder.branch(behind)
        self._builder.position_at_end(behind)
        result = self._builder.phi(bit)
        for end in ends:
            result.add_incoming(ir.Constant(bit, int(stop_at)), end)
        result.add_incoming(found, last)
        return result

    def _both(self, node: ast.BoolOp) -> Value:
        """The last value that was looked at, as Python has it."""
        behind = self._builder.append_basic_block("known")
        values, ends = [], []
        for part in node.values:
            value = self.value(part)
            values.append(value)
            ends.append(self._builder.block)
            if part is not node.values[-1]:
                following = self._builder.append_basic_block("check")
                stops = isinstance(node.op, ast.Or)
                ways = (behind, following) if stops else (following, behind)
                # What it is when it ends here is cast below, before this branch.
                self._builder.cbranch(self.arithmetic.truth(value), *ways)
                self._builder.position_at_end(following)
            else:
                self._builder.branch(behind)
        return self._one_of(values, ends, behind)

    def _choice(self, node: ast.IfExp) -> Value:
        condition = self.truth(node.test)
        if isinstance(condition, ir.Constant):
            return self.value(node.body if condition.constant else node.orelse)
        yes, no, behind = map(self._builder.append_basic_block, ("yes", "no", "on"))
        self._builder.cbranch(condition, yes, no)
        values, ends = [], []
        for block, part in ((yes, node.body), (no, node.orelse)):
            self._builder.position_at_end(block)
            values.append(self.value(part))
            ends.append(self._builder.block)
            self._builder.branch(behind)
        return self._one_of(values, ends, behind)

    def _one_of(self, values: Sequence[Value], ends: Sequence[Any], behind: Any) -> Value:
        """The value that comes from the end of one of some blocks, which all go on behind them."""
        common = functools.reduce(_common, (value.kind for value in values))
        arrived = []
        for value, end in zip(values, ends, strict=True):
            self._builder.position_before(end.terminator)
            arrived.append(cast(self._builder, value, common))
        self._builder.position_at_end(behind)
        parts = []
        for possible in zip(*(value.parts for value in arrived), strict=True):
            phi = self._builder.phi(possible[0].type)
            for part, end in zip(possible, ends, strict=True):
                phi.add_incoming(part, end)
            parts.append(phi)
        return Value(common, tuple(parts))

    def _call(self, node: ast.Call) -> Value:
        called = self.value(node.func)
        if any(keyword.arg is None for keyword in node.keywords):
            raise UntranslatableError(f"call '{ast.unparse(node)[:60]}'")
        named = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
        if not isinstance(called.kind, Static):
            raise UntranslatableError(f"call '{ast.unparse(node)[:60]}'")
        return self._calls.call(called.kind.value, self._all(node.args), named)


def _common(a: Any, b: Any) -> Any:
    alike = isinstance(a, Tuple) and isinstance(b, Tuple) and a.record is b.record
    if alike and len(a.items) == len(b.items):
        both = zip(a.items, b.items, strict=True)
        return Tuple([_common(one, other) for one, other in both], a.record)
    return joined(a, b)


_EXPRESSIONS: dict[type[ast.expr], Callable[[Expressions, Any], Value]] = {
    ast.Constant: Expressions._constant,
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.Subscript: Expressions._item,
    ast.Tuple: Expressions._tuple,
    ast.BinOp: Expressions._binary,
    ast.UnaryOp: Expressions._unary,
    ast.Compare: Expressions._compare,
    ast.BoolOp: Expressions._both,
    ast.IfExp: Expressions._choice,
    ast.Call: Expressions._call,
}
