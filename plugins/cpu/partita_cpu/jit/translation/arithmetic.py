"""Arithmetic and comparisons of numbers, with the results that numba's have.

Integers are computed in 64 bits and wrap; quotients round down and are 0 where the divisor is.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from partita_cpu.jit.deferred_numba import ir
from partita_cpu.jit.translation import kinds
from partita_cpu.jit.translation.kinds import (
    Boolean,
    Float,
    Integer,
    Number,
    UntranslatableError,
    common_kind,
    joined,
)
from partita_cpu.jit.translation.values import (
    Value,
    cast,
    constant,
    integer,
    known,
    register_type,
)

_FOLDED: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}

_WHOLE = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
}

_REAL = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}

COMPARED: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


class Arithmetic:
    """Writes arithmetic.

    Args:
        builder: LLVM's builder, whose place others move.
        flags: Fast-math flags of what is computed in floats.
    """

    def __init__(self, builder: Any, flags: Sequence[str]) -> None:
        self._builder = builder
        self._flags = tuple(flags)

    def binary(self, kind: type[ast.operator], a: Value, b: Value) -> Value:
        """``a + b`` and the like.

        Raises:
            UntranslatableError: Kernels had better not compute that.
        """
        if not isinstance(a.kind, Number) or not isinstance(b.kind, Number):
            raise UntranslatableError(f"{kind.__name__} of {a.kind} and {b.kind}")
        if kind in (ast.LShift, ast.RShift):
            return self._shifted(kind, a, b)
        if kind is ast.Pow and a.kind == kinds.float64:
            left, right = known(a), known(b)
            if left is not None and right is not None:
                return constant(kinds.float64, float(left**right))
        if isinstance(a.kind, Boolean) and a.kind == b.kind and kind in _FOLDED:
            if kind in (ast.BitAnd, ast.BitOr, ast.BitXor):
                return Value(a.kind, (self._integer_operation(kind, a.number, b.number),))
            raise UntranslatableError(f"{kind.__name__} of truths")
        common = common_kind(a.kind, b.kind)
        if kind is ast.Div and isinstance(common, Integer):
            common = kinds.float64
        x, y = cast(self._builder, a, common), cast(self._builder, b, common)
        if isinstance(common, Float):
            if kind not in _REAL:
                raise UntranslatableError(f"{kind.__name__} of floats")
            made = getattr(self._builder, _REAL[kind])(x.number, y.number, flags=self._flags)
            return Value(common, (made,))
        return self._of_integers(kind, x, y)

    def _of_integers(self, kind: type[ast.operator], x: Value, y: Value) -> Value:
        left, right = known(x), known(y)
        divides = kind in (ast.FloorDiv, ast.Mod)
        constants = x.kind == kinds.int64 and left is not None and right is not None
        if constants and kind in _FOLDED and (right or not divides):
            folded = _FOLDED[kind](left, right)
            if -(2**63) <= folded < 2**63:
                return integer(folded)
        if divides:
            quotient, rest = self.divided(x, y)
            return quotient if kind is ast.FloorDiv else rest
        if kind not in _WHOLE:
            raise UntranslatableError(f"{kind.__name__} of integers")
        return Value(x.kind, (self._integer_operation(kind, x.number, y.number),))

    def _integer_operation(self, kind: type[ast.operator], x: Any, y: Any) -> Any:
        return getattr(self._builder, _WHOLE[kind])(x, y)

    def divided(self, x: Value, y: Value) -> tuple[Value, Value]:
        """Quotient, rounded down, and remainder of integers of one kind, of 64 bits."""
        b, divisor, kind = self._builder, known(y), x.kind
        if not isinstance(kind, Integer) or kind != y.kind:
            raise UntranslatableError(f"the quotient of {kind} and {y.kind}")
        zero, one = ir.Constant(ir.IntType(64), 0), ir.Constant(ir.IntType(64), 1)
        if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
            count = ir.Constant(ir.IntType(64), divisor.bit_length() - 1)
            down = (b.ashr if kind.signed else b.lshr)(x.number, count)
            rest = b.and_(x.number, ir.Constant(ir.IntType(64), divisor - 1))
            return Value(kind, (down,)), Value(kind, (rest,))
        refused = b.icmp_unsigned("==", y.number, zero)
        if not kind.signed:
            by = b.select(refused, one, y.number)
            quotient, rest = b.udiv(x.number, by), b.urem(x.number, by)
        else:
            by = y.number
            if divisor is None or divisor in (0, -1):
                # The least integer divided by -1 traps, as any one divided by 0 does.
                least = b.icmp_signed("==", x.number, ir.Constant(ir.IntType(64), -(2**63)))
                minus = b.icmp_signed("==", by, ir.Constant(ir.IntType(64), -1))
                refused = b.or_(refused, b.and_(least, minus))
                by = b.select(refused, one, by)
            quotient, rest = b.sdiv(x.number, by), b.srem(x.number, by)
            signs = b.icmp_signed("<", b.xor(by, rest), zero)
            over = b.and_(signs, b.icmp_signed("!=", rest, zero))
            quotient = b.select(over, b.sub(quotient, one), quotient)
            rest = b.select(over, b.add(rest, by), rest)
        if divisor is None or divisor in (0, -1):
            quotient, rest = b.select(refused, zero, quotient), b.select(refused, zero, rest)
        return Value(kind, (quotient,)), Value(kind, (rest,))

    def _shifted(self, kind: type[ast.operator], a: Value, b: Value) -> Value:
        if not isinstance(a.kind, Integer) or not isinstance(b.kind, Integer):
            raise UntranslatableError(f"{a.kind} shifted by {b.kind}")
        wide = kinds.int64 if a.kind.signed else kinds.uint64
        x, count = (cast(self._builder, value, wide) for value in (a, b))
        there, places = known(x), known(count)
        if there is not None and places is not None and wide is kinds.int64 and 0 <= places < 63:
            folded = there << places if kind is ast.LShift else there >> places
            if -(2**63) <= folded < 2**63:
                return integer(folded)
        right = self._builder.ashr if a.kind.signed else self._builder.lshr
        move = self._builder.shl if kind is ast.LShift else right
        return Value(wide, (move(x.number, count.number),))

    def unary(self, kind: type[ast.unaryop], a: Value) -> Value:
        """``-a``, ``~a`` and ``not a``.

        Raises:
            UntranslatableError: Kernels had better not compute that.
        """
        if kind is ast.Not:
            return Value(kinds.boolean, (self._builder.not_(self.truth(a)),))
        if isinstance(a.kind, Float) and kind is ast.USub:
            there = known(a)
            if there is not None:
                return constant(a.kind, -there)
            return Value(a.kind, (self._builder.fneg(a.number, flags=self._flags),))
        if not isinstance(a.kind, Integer) or not a.kind.signed:
            raise UntranslatableError(f"{kind.__name__} of {a.kind}")
        wide = cast(self._builder, a, kinds.int64)
        there = known(wide)
        if there is not None:
            return integer(-there if kind is ast.USub else ~there if kind is ast.Invert else there)
        if kind is ast.USub:
            return Value(kinds.int64, (self._builder.neg(wide.number),))
        if kind is ast.Invert:
            return Value(kinds.int64, (self._builder.not_(wide.number),))
        raise UntranslatableError(f"{kind.__name__} of {a.kind}")

    def truth(self, a: Value) -> Any:
        """Whether a number is not zero, as one bit.

        Raises:
            UntranslatableError: It is no number.
        """
        if not isinstance(a.kind, Number):
            raise UntranslatableError(f"the truth of {a.kind}")
        return cast(self._builder, a, kinds.boolean).number

    def compared(self, kind: type[ast.cmpop], a: Value, b: Value) -> Any:
        """Whether ``a < b`` and the like, as one bit.

        Raises:
            UntranslatableError: They are not compared so.
        """
        if kind not in COMPARED or not isinstance(a.kind, Number) or not isinstance(b.kind, Number):
            raise UntranslatableError(f"{kind.__name__} of {a.kind} and {b.kind}")
        sign, both = COMPARED[kind], a.kind == b.kind
        common = (
            kinds.uint8 if both and isinstance(a.kind, Boolean) else common_kind(a.kind, b.kind)
        )
        x, y = (cast(self._builder, value, common).number for value in (a, b))
        if not isinstance(common, Float):
            signed = isinstance(common, Integer) and common.signed
            return (self._builder.icmp_signed if signed else self._builder.icmp_unsigned)(
                sign, x, y
            )
        compare = self._builder.fcmp_unordered if sign == "!=" else self._builder.fcmp_ordered
        return compare(sign, x, y, flags=self._flags)

    def extreme(self, kind: type[ast.cmpop], values: Sequence[Value]) -> Value:
        """The largest or smallest of some numbers, the first one if there are several."""
        found = values[0]
        for value in values[1:]:
            common = joined(found.kind, value.kind)
            found, value = cast(self._builder, found, common), cast(self._builder, value, common)
            left, right = known(found), known(value)
            if left is not None and right is not None and isinstance(common, Integer):
                found = constant(common, (max if kind is ast.Gt else min)(left, right))
                continue
            better = self.compared(kind, value, found)
            chosen = self._builder.select(better, value.number, found.number)
            found = Value(common, (chosen,))
        return found

    def of_llvm(self, name: str, values: Sequence[Value]) -> Value:
        """What an intrinsic of LLVM makes of floats of one kind."""
        kind = values[0].kind
        if not isinstance(kind, Float):
            raise UntranslatableError(f"{name} of {kind}")
        llvm = register_type(kind)
        function = ir.FunctionType(llvm, [llvm] * len(values))
        called = self._builder.module.declare_intrinsic(name, [llvm], function)
        numbers = [value.number for value in values]
        return Value(kind, (self._builder.call(called, numbers, fastmath=self._flags),))

    def absolute(self, a: Value) -> Value:
        """``abs(a)``, of the kind of ``a``."""
        if isinstance(a.kind, Float):
            return self.of_llvm("llvm.fabs", [a])
        if not isinstance(a.kind, Integer) or not a.kind.signed:
            raise UntranslatableError(f"abs of {a.kind}")
        below = self._builder.icmp_signed("<", a.number, ir.Constant(a.number.type, 0))
        return Value(a.kind, (self._builder.select(below, self._builder.neg(a.number), a.number),))
