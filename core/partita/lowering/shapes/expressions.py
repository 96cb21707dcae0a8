"""The trace behind symbolic sizes: integer expressions, and decisions that guard them.

Expressions are in single assignment form, known by their index. Equal linear forms are one
expression, and comparisons with constants are kept as bounds of the expression's atom.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Self

from partita.lowering.shapes.linear_form import (
    ANY,
    SWAPPED,
    Bounds,
    LinearForm,
    Operator,
    bounds_of,
    combined,
    scaled,
    within,
)
from partita.lowering.shapes.size_arithmetic import (
    Evaluator,
    Numbers,
    Outcome,
    SizeArithmetic,
    Step,
)


class Expressions:
    """Expressions in the order in which they were made, and decisions between them.

    Equal expressions are one where :class:`LinearForm` tells: what a convolution with padding
    makes of a size is that size, and needs no step and no decision.

    Attributes:
        evaluator: Computes arithmetic of sizes; ``None`` if Python does.
        varied: Whether other sizes of the graph, or of the class, have decided otherwise, so that
            ways that few sizes take are worth being recorded, too.
    """

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._steps: list[Step] = []
        self._arithmetic: SizeArithmetic | None = None  # of the steps, once they have ended
        self._first = 0  # place that is computed here, not before a fork
        self.evaluator: Evaluator | None = None
        self._places: dict[Any, int] = {}
        self._forms: list[LinearForm | None] = []
        self._factors: dict[int, tuple[int, ...]] = {}
        self._quotients: dict[int, tuple[LinearForm, int]] = {}
        self._bounds: dict[int, Bounds] = {}
        self._checks: dict[int, int] = {}
        self._inputs: list[int] = []
        self._decided: set[Any] = set()
        self._asked: set[int] = set()
        self._closed = self._pruned = False
        self.varied = False

    def fork(self, values: Numbers) -> Self:
        """A recording that goes on where this one ended.

        Args:
            values: What :meth:`repeat` has returned for the sizes at hand.
        """
        other = type(self)()
        other._values = values.listed()
        other._first = len(values)
        other.evaluator = self.evaluator
        other._places = dict(self._places)
        other._forms = list(self._forms)
        other._factors = dict(self._factors)
        other._quotients = dict(self._quotients)
        other._bounds = dict(self._bounds)
        other._decided = set(self._decided)
        other._inputs = list(self._inputs)
        other.varied = self.varied
        return other

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self._values)

    def close(self, for_good: bool = False) -> None:
        """Ends the recording: what is computed or decided later would not be repeated.

        A size that is still used then raises RuntimeError.

        Args:
            for_good: Nothing is going to be forked off it: what tells that an expression or a
                decision was met before is dropped, and so is what no decision and nobody who asked
                for its place needs.
        """
        self._closed = True
        if for_good and not self._pruned:
            self._prune()
            self._places, self._decided, self._forms = {}, set(), []
            self._factors, self._quotients, self._bounds = {}, {}, {}

    def _prune(self) -> None:
        """Leaves decisions and what they need, and behind these what else is asked for.

        Decisions by arithmetic alone come before those that call functions: sizes of which they
        come out otherwise shall cost little.
        """
        dear, needed, rest = self._dear(), set[int](), self._steps
        kept: list[Step] = []
        for round_ in range(3):
            chosen: list[Step] = []
            others: list[Step] = []
            for step in reversed(rest):
                place, _, left, right, _ = step
                is_decision = place < 0 and (round_ > 0 or dear.isdisjoint((left, right)))
                is_needed = is_decision or place in needed
                (chosen if is_needed else others).append(step)
                if is_needed:
                    needed.update(left if right < 0 else (left, right))
            kept += chosen[::-1]
            rest = others[::-1]
            if round_ == 1:
                needed.update(self._asked)
        self._steps = kept
        self._pruned = True

    def _dear(self) -> set[int]:
        """The places of what functions return, and of what is computed of that."""
        dear: set[int] = set()
        for place, _, left, right, _ in self._steps:
            if place >= 0 and (right < 0 or left in dear or right in dear):
                dear.add(place)
        return dear

    def ask_for(self, place: int) -> int:
        """The place, whose value :meth:`repeat` computes from now on in any case.

        Raises:
            RuntimeError: The recording has ended for good, and the value is not computed.
        """
        if place not in self._asked:
            if self._pruned:
                raise RuntimeError("A symbolic size is asked for after its recording has ended.")
            self._asked.add(place)
        return place

    def _result(self, fn: Operator, left: int, right: int) -> int:
        """The place of ``fn`` of two others: of the simplest expression for it that is known."""
        x, z = self._forms[left], self._forms[right]
        if x is None or z is None:
            return self._step(fn, left, right)
        form = combined(fn, x, z)
        if form is not None:
            return self._linear(form)
        if fn is operator.mul:
            if x.offset or z.offset:
                return self._step(fn, left, right)
            factors = [*self._factors.get(x.atom, (x.atom,)), *self._factors.get(z.atom, (z.atom,))]
            return self._linear(LinearForm(x.factor * z.factor, self._product(factors), 0))
        if fn is operator.add or fn is operator.sub:
            offset = fn(x.offset, z.offset)
            left, right = (self._linear(form._replace(offset=0)) for form in (x, z))
            return self._linear(LinearForm(1, self._step(fn, left, right), offset))
        if fn is operator.floordiv and x.factor and z.factor and not x.offset and not z.offset:
            found = self._cancelled(x, z)
            if found is not None:
                return found
        if z.factor or z.offset <= 0:
            return self._step(fn, left, right)
        whole, offset = divmod(x.offset, z.offset)
        rest = x._replace(offset=offset)
        found = self._step(fn, self._linear(rest), right)
        if fn is operator.mod:
            return found
        self._quotients.setdefault(found, (rest, z.offset))
        return self._linear(LinearForm(1, found, whole))

    def _cancelled(self, x: LinearForm, z: LinearForm) -> int | None:
        """The place of a quotient of products without the factors of both; ``None`` if it has more.

        What a Reshape to (n, h, w, -1) leaves of n * h * w pixels is their channels, for any sizes.
        """
        left, right = ([*self._factors.get(form.atom, (form.atom,))] for form in (x, z))
        for factor in right:
            if factor not in left:
                return None
            left.remove(factor)
        if x.factor % z.factor or any(self._equals(factor, 0) for factor in right):
            return None
        factor = x.factor // z.factor
        if not left:
            return self._constant(factor)
        return self._linear(LinearForm(factor, self._product(left), 0))

    def _product(self, factors: Sequence[int]) -> int:
        """The place of a product of atoms, multiplied in their order."""
        factors = sorted(factors)
        found = factors[0]
        for count, factor in enumerate(factors[1:], 2):
            found = self._step(operator.mul, found, factor)
            self._factors.setdefault(found, tuple(factors[:count]))
        return found

    def _linear(self, form: LinearForm) -> int:
        """The place of a linear form, whose atom has one."""
        if not form.factor:
            return self._constant(form.offset)
        if form.factor == 1 and not form.offset:
            return form.atom
        found = self._places.get(form)
        if found is None:
            if form.offset:
                fn: Operator = operator.add
                left, right = self._linear(form._replace(offset=0)), self._constant(form.offset)
            else:
                fn, left, right = operator.mul, form.atom, self._constant(form.factor)
            found = self._place(form, fn(self._values[left], self._values[right]), form)
            self._steps.append((found, fn, left, right, None))
        return found

    def _step(self, fn: Operator, left: int, right: int) -> int:
        """The place of an expression that is no linear form of another one."""
        if fn in (operator.add, operator.mul) and right < left:
            left, right = right, left
        key = "step", fn, left, right
        found = self._places.get(key)
        if found is None:
            self._require_open()
            value = fn(self._values[left], self._values[right])
            x, z = self._forms[left], self._forms[right]
            if x is None or z is None or type(value) is not int:
                found = self._place(key, value, None)
            else:
                bounds = bounds_of(fn, self._bounds_of(x), self._bounds_of(z))
                found = self._new_atom(key, value, bounds)
            self._steps.append((found, fn, left, right, None))
        return found

    def _decide(self, fn: Operator, left: int, right: int) -> Any:
        outcome = fn(self._values[left], self._values[right])
        key = fn, left, right
        if key not in self._decided:
            self._decided.add(key)
            self._steps.append((-1, fn, left, right, outcome))
        return outcome

    def _unify(self, one: LinearForm, other: LinearForm) -> None:
        """Computes by one atom what was of two, since two forms of them were decided to be equal.

        Sizes of several inputs, such as their batch, are one from then on.
        """
        if one.atom > other.atom:
            one, other = other, one
        if one.factor != other.factor or (one.offset - other.offset) % one.factor:
            return
        self._replace(other.atom, one.atom, (one.offset - other.offset) // one.factor)

    def _replace(self, gone: int, atom: int, apart: int) -> None:
        """Writes forms of one atom as forms of another one, than which it is more by a number."""
        if gone == atom or gone in self._quotients:  # whose bounds are those of what is divided
            return
        for place, form in enumerate(self._forms):
            if form is not None and form.factor and form.atom == gone:
                self._forms[place] = LinearForm(
                    form.factor, atom, form.factor * apart + form.offset
                )
        if atom not in self._quotients:
            low, high = self._bounds[gone]
            mine = self._bounds[atom]
            self._bounds[atom] = Bounds(max(mine.low, low - apart), min(mine.high, high - apart))
        products = [(place, all_) for place, all_ in self._factors.items() if gone in all_]
        for place, factors in products if apart == 0 else []:
            same = self._product([atom if factor == gone else factor for factor in factors])
            self._replace(max(place, same), min(place, same), 0)

    def _compare(self, fn: Operator, factor: int, atom: int, number: int) -> bool:
        """Decides ``fn(factor * atom, number)``."""
        if not factor:
            return bool(fn(0, number))
        if factor < 0:
            fn, factor, number = SWAPPED[fn], -factor, -number
        if fn is operator.eq or fn is operator.ne:
            whole, rest = divmod(number, factor)
            return (not rest and self._equals(atom, whole)) is (fn is operator.eq)
        if fn is operator.lt or fn is operator.ge:
            return self._is_below(atom, -(-number // factor)) is (fn is operator.lt)
        return self._is_below(atom, number // factor + 1) is (fn is operator.le)

    def _is_below(self, atom: int, number: int) -> bool:
        """Decides whether an atom is less than a number; of a quotient, by what is divided."""
        quotient = self._quotients.get(atom)
        if quotient is not None:
            form, divisor = quotient
            return self._compare(
                operator.lt, form.factor, form.atom, number * divisor - form.offset
            )
        low, high = self._bounds[atom]
        if high < number or low >= number:
            return high < number
        outcome: bool = self._values[atom] < number
        self._bounds[atom] = bounds = Bounds(low, number - 1) if outcome else Bounds(number, high)
        check = self._checks.get(atom)
        if check is None:
            check = self._checks[atom] = len(self._values)
            self._values.append(bounds)
            self._forms.append(None)
            self._steps.append((-1, within, atom, check, True))
        self._values[check] = bounds
        return outcome

    def _equals(self, atom: int, number: int) -> bool:
        """Decides whether an atom is a number."""
        value, bounds = self._values[atom], self._bounds_of(LinearForm(1, atom, 0))
        if value == number or number in bounds:
            return not self._is_below(atom, number) and self._is_below(atom, number + 1)
        if within(number, bounds):
            self._decide(operator.eq, atom, self._constant(number))
        return False

    def _bounds_of(self, form: LinearForm) -> Bounds:
        """The least and the most that decisions so far leave."""
        if form.factor and form.atom in self._quotients:
            inner, divisor = self._quotients[form.atom]
            divided = bounds_of(operator.floordiv, self._bounds_of(inner), Bounds(divisor, divisor))
            return scaled(form, divided)
        return scaled(form, self._bounds[form.atom] if form.factor else ANY)

    def repeat(self, sizes: Sequence[int]) -> Numbers | None:
        """The values of all expressions for other sizes, or ``None`` if they decide otherwise."""
        return self._values_for(None, dict(zip(self._inputs, sizes, strict=True)))

    def go_on(self, before: Numbers) -> Numbers | None:
        """Of a fork: the same, from what :meth:`repeat` of the recording before it returned."""
        return self._values_for(before, {})

    def _values_for(self, before: Numbers | None, given: Mapping[int, int]) -> Numbers | None:
        """The values by the device's evaluator, or by Python where that cannot compute them."""
        if self.evaluator is not None and self._closed:
            if self._arithmetic is None:
                self._arithmetic = SizeArithmetic(
                    self._steps, self._values, self._first, self.evaluator
                )
            found = self._arithmetic.numbers(before, given)
            if found is not Outcome.TOO_LARGE:
                return found if isinstance(found, Numbers) else None
        known = [] if before is None else before.listed()
        values = [*known, *self._values[len(known) :]]
        for place, size in given.items():
            values[place] = size
        return Numbers.of(values) if self._take(values) else None

    def _take(self, values: list[Any]) -> bool:
        """Takes the steps; whether all decisions come out as before."""
        try:
            for place, fn, left, right, outcome in self._steps:
                if place < 0:
                    if fn(values[left], values[right]) != outcome:
                        return False
                elif right < 0:
                    values[place] = fn(*[values[n] for n in left])
                else:
                    values[place] = fn(values[left], values[right])
        except ZeroDivisionError:
            return False
        return True

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("A symbolic size is used after its recording has ended.")

    def _constant(self, x: Any) -> int:
        """The place of a number, or of something else that is the same for all sizes."""
        key = "constant", type(x), x
        found = self._places.get(key)
        if found is None:
            form = LinearForm(0, -1, x) if type(x) is int else None
            found = self._place(key, x, form)
        return found

    def _new_atom(self, key: Any, value: int, bounds: Bounds) -> int:
        place = self._place(key, value, LinearForm(1, len(self._values), 0))
        self._bounds.setdefault(place, bounds)
        return place

    def _place(self, key: Any, value: Any, form: LinearForm | None) -> int:
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = len(self._values)
            self._values.append(value)
            self._forms.append(form)
        return found
