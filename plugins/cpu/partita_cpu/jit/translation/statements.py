"""The body of a function, statement by statement."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita_cpu.jit.deferred_numba import ir
from partita_cpu.jit.translation import arrays, kinds
from partita_cpu.jit.translation.calls import FunctionCalls
from partita_cpu.jit.translation.expressions import Expressions
from partita_cpu.jit.translation.kinds import Array, UntranslatableError
from partita_cpu.jit.translation.names import Locals, Names
from partita_cpu.jit.translation.source import definition_of
from partita_cpu.jit.translation.values import (
    NOTHING,
    Value,
    items_of,
    known,
    part_types,
    word,
)


@dataclass
class _Loop:
    """The innermost loop.

    Attributes:
        following: The block of the next turn.
        behind: The block behind the loop.
        turns: The names at the ends of turns.
        exits: The names where the loop is left.
    """

    following: Any
    behind: Any
    turns: list[Names] = field(default_factory=list)
    exits: list[Names] = field(default_factory=list)


class Body:
    """Translates one function.

    Args:
        functions: Those of the module, to call others.
        python: The function.
        llvm: LLVM's, without a block.
        flags: Fast-math flags.
        status: Where 1 is written if the function raises an error; nowhere if it may not.
    """

    def __init__(
        self,
        functions: FunctionCalls,
        python: Any,
        llvm: Any,
        flags: Sequence[str],
        status: Any = None,
    ) -> None:
        self._status = status
        self._definition = definition_of(python)
        self._builder = ir.IRBuilder(llvm.append_basic_block("entry"))
        self._names = Locals()
        self._expressions = Expressions(functions, python, self._builder, self._names, flags)
        self._loops: list[_Loop] = []
        self._returned: Any = None

    def translate(self, given: Sequence[Value]) -> Any:
        """Writes the function for its arguments; returns the kind of its result.

        Raises:
            UntranslatableError: Something in it is not taken.
        """
        own = self._definition.args
        parameters = [*own.posonlyargs, *own.args]
        if own.vararg or own.kwarg or own.kwonlyargs or len(parameters) != len(given):
            raise UntranslatableError(f"the parameters of function {self._definition.name}")
        for parameter, value in zip(parameters, given, strict=True):
            self._names.set(self._builder, parameter.arg, value)
        first = self._builder.append_basic_block("body")
        self._builder.branch(first)  # what comes before it is room on the stack
        self._builder.position_at_end(first)
        self._all(self._definition.body)
        if self._live():
            self._give(NOTHING)
        return kinds.void if self._returned is None else self._returned

    def _live(self) -> bool:
        return not self._builder.block.is_terminated

    def _all(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if not self._live():
                return
            take = _STATEMENTS.get(type(statement))
            if take is None:
                raise UntranslatableError(f"statement '{ast.unparse(statement)[:60]}'")
            take(self, statement)

    def _nothing(self, node: ast.stmt) -> None:
        pass

    def _expression(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self._expressions.value(node.value)

    def _assign(self, node: ast.Assign) -> None:
        value = self._expressions.value(node.value)
        for target in node.targets:
            self._set(target, value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._set(node.target, self._expressions.value(node.value))

    def _set(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._names.set(self._builder, target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = items_of(value)
            if len(items) != len(target.elts):
                raise UntranslatableError(f"{len(items)} values for {len(target.elts)} names")
            for part, item in zip(target.elts, items, strict=True):
                self._set(part, item)
        elif isinstance(target, ast.Subscript):
            array = self._array(target)
            arrays.store(self._builder, array, self._expressions.indices(target.slice), value)
        else:
            raise UntranslatableError(f"setting '{ast.unparse(target)}'")

    def _array(self, target: ast.Subscript) -> Value:
        array = self._expressions.value(target.value)
        if not isinstance(array.kind, Array):
            raise UntranslatableError(f"setting an item of {array.kind}")
        return array

    def _change(self, node: ast.AugAssign) -> None:
        binary = self._expressions.arithmetic.binary
        if isinstance(node.target, ast.Subscript):
            array = self._array(node.target)
            indices = self._expressions.indices(node.target.slice)
            before = arrays.load(self._builder, array, indices)
            after = binary(type(node.op), before, self._expressions.value(node.value))
            arrays.store(self._builder, array, indices, after)
        elif isinstance(node.target, ast.Name):
            before = self._names.read(self._builder, node.target.id)
            after = binary(type(node.op), before, self._expressions.value(node.value))
            self._names.set(self._builder, node.target.id, after)
        else:
            raise UntranslatableError(f"changing '{ast.unparse(node.target)}'")

    def _return(self, node: ast.Return) -> None:
        self._give(NOTHING if node.value is None else self._expressions.value(node.value))

    def _give(self, value: Value) -> None:
        if self._returned is None:
            self._returned = value.kind
        elif self._returned != value.kind:
            raise UntranslatableError(f"a result that is {self._returned} or {value.kind}")
        if not value.parts:
            self._builder.ret_void()
        elif len(value.parts) == 1:
            self._builder.ret(value.parts[0])
        else:
            kind = ir.LiteralStructType(part_types(value.kind))
            result = ir.Constant(kind, ir.Undefined)
            for number, part in enumerate(value.parts):
                result = self._builder.insert_value(result, part, number)
            self._builder.ret(result)

    def _raise(self, node: ast.Raise) -> None:
        """Ends with a status; who called explains the error, since its message is lost."""
        if self._status is None:
            raise UntranslatableError(f"'{ast.unparse(node)}' in a function that a kernel calls")
        self._builder.store(ir.Constant(ir.IntType(32), 1), self._status)
        self._give(NOTHING)

    def _if(self, node: ast.If) -> None:
        condition = self._expressions.truth(node.test)
        if isinstance(condition, ir.Constant):
            self._all(node.body if condition.constant else node.orelse)
            return
        before = dict(self._names.current)
        yes, no, behind = (self._builder.append_basic_block(name) for name in ("yes", "no", "on"))
        self._builder.cbranch(condition, yes, no)
        ways: list[Names] = []
        for block, statements in ((yes, node.body), (no, node.orelse)):
            self._builder.position_at_end(block)
            self._names.current = dict(before)
            self._all(statements)
            if self._live():
                ways.append(self._names.current)
                self._builder.branch(behind)
        self._go_on(behind, ways)

    def _go_on(self, block: Any, ways: Sequence[Names]) -> None:
        """Goes on in a block that so many ways lead to."""
        self._builder.position_at_end(block)
        self._names.meet(ways)
        if not ways:
            self._builder.unreachable()

    def _while(self, node: ast.While) -> None:
        def enter(inside: Any, behind: Any) -> bool:
            condition = self._expressions.truth(node.test)
            self._builder.cbranch(condition, inside, behind)
            return not (isinstance(condition, ir.Constant) and condition.constant)

        self._loop(node, enter, lambda: None)

    def _for(self, node: ast.For) -> None:
        if not isinstance(node.iter, ast.Call):
            self._each(node, items_of(self._expressions.value(node.iter)))
            return
        start, stop, step = self._expressions.range_of(node.iter)
        counter = self._expressions.room(start.kind)
        self._builder.store(start.number, counter)
        by = known(step)
        signed = start.kind == kinds.int64

        def enter(inside: Any, behind: Any) -> bool:
            at = self._builder.load(counter)
            compare = self._builder.icmp_signed if signed else self._builder.icmp_unsigned
            up = compare("<", at, stop.number)
            if by is None:
                rising = self._builder.icmp_signed(">", step.number, word(0))
                more = self._builder.select(rising, up, compare(">", at, stop.number))
            else:
                more = up if by > 0 else compare(">", at, stop.number)
            self._builder.cbranch(more, inside, behind)
            self._builder.position_at_end(inside)
            self._set(node.target, Value(start.kind, (at,)))
            return True

        def following() -> None:
            flags = ("nsw",) if signed and by in (1, -1) else ()
            at = self._builder.load(counter)
            self._builder.store(self._builder.add(at, step.number, flags=flags), counter)

        self._loop(node, enter, following)

    def _each(self, node: ast.For, items: Sequence[Value]) -> None:
        """A loop over a tuple: its body once for each item."""
        if node.orelse:
            raise UntranslatableError("a loop with 'else'")
        behind = self._builder.append_basic_block("behind")
        exits: list[Names] = []
        for item in items:
            loop = _Loop(self._builder.append_basic_block("next"), behind, exits=exits)
            self._set(node.target, item)
            self._loops.append(loop)
            self._all(node.body)
            self._loops.pop()
            if self._live():
                loop.turns.append(dict(self._names.current))
                self._builder.branch(loop.following)
            self._go_on(loop.following, loop.turns)
            if not self._live():
                break
        else:
            exits.append(dict(self._names.current))
            self._builder.branch(behind)
        self._go_on(behind, exits)

    def _loop(
        self,
        node: ast.For | ast.While,
        enter: Callable[[Any, Any], bool],
        following: Callable[[], None],
    ) -> None:
        """A loop.

        Args:
            node: The loop.
            enter: Goes to the first of two blocks for another turn, else to the second one; tells
                whether it ever does the latter.
            following: What is done between turns.
        """
        if node.orelse:
            raise UntranslatableError("a loop with 'else'")
        names = ("again", "inside", "next", "behind")
        again, inside, turn, behind = map(self._builder.append_basic_block, names)
        before = dict(self._names.current)
        reads = Locals.counted(before)
        self._builder.branch(again)
        self._builder.position_at_end(again)
        ends = enter(inside, behind)
        loop = _Loop(turn, behind)
        if ends:
            loop.exits.append(dict(before))
        self._loops.append(loop)
        self._builder.position_at_end(inside)
        self._all(node.body)
        self._loops.pop()
        if self._live():
            loop.turns.append(dict(self._names.current))
            self._builder.branch(turn)
        self._builder.position_at_end(turn)
        if loop.turns:
            following()
            self._builder.branch(again)
            self._names.loop(loop.turns, before, reads)
        else:
            self._builder.unreachable()
        self._go_on(behind, [*loop.exits, *(loop.turns if ends else ())])

    def _break(self, node: ast.Break) -> None:
        self._loops[-1].exits.append(dict(self._names.current))
        self._builder.branch(self._loops[-1].behind)

    def _continue(self, node: ast.Continue) -> None:
        self._loops[-1].turns.append(dict(self._names.current))
        self._builder.branch(self._loops[-1].following)


_STATEMENTS: dict[type[ast.stmt], Callable[[Body, Any], None]] = {
    ast.Pass: Body._nothing,
    ast.Expr: Body._expression,
    ast.Assign: Body._assign,
    ast.AnnAssign: Body._annotated,
    ast.AugAssign: Body._change,
    ast.Return: Body._return,
    ast.Raise: Body._raise,
    ast.If: Body._if,
    ast.While: Body._while,
    ast.For: Body._for,
    ast.Break: Body._break,
    ast.Continue: Body._continue,
}
