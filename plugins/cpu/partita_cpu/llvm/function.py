"""A writer of one LLVM function: each method appends an instruction or a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Function:
    """A function under construction.

    Args:
        name: Its symbol.
        parameters: Types and names, as in ``"ptr %a, i64 %n"``.
        returns: Type of the result.
    """

    def __init__(self, name: str, parameters: str, returns: str = "void") -> None:
        self.name = name
        self._head = f"define {returns} @{name}({parameters}) nounwind"
        self._lines = ["entry:"]
        self._block = "entry"
        self._count = 0

    def let(self, expression: str) -> str:
        """Appends an instruction with a result; returns the result's name."""
        result = self._fresh("%v")
        self._lines.append(f"  {result} = {expression}")
        return result

    def do(self, instruction: str) -> None:
        """Appends an instruction without a result."""
        self._lines.append(f"  {instruction}")

    def text(self, attributes: str = "") -> str:
        """The finished function, with more attributes if need be."""
        return "\n".join((f"{self._head} {attributes} {{", *self._lines, "}", ""))

    def at(self, pointer: str, offset: str | int) -> str:
        """A pointer so many bytes on."""
        return self.let(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def load(self, kind: str, pointer: str, align: int = 4) -> str:
        """A value read from memory."""
        return self.let(f"load {kind}, ptr {pointer}, align {align}")

    def splat(self, lanes: int, kind: str, value: str) -> str:
        """A vector with one value in all lanes."""
        vector = f"<{lanes} x {kind}>"
        one = self.let(f"insertelement {vector} poison, {kind} {value}, i32 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.let(f"shufflevector {vector} {one}, {vector} poison, {zeros}")

    def fma(self, lanes: int, a: str, b: str, c: str) -> str:
        """Vectors of float32 ``a * b + c``, rounded once.

        Args:
            lanes: Elements of each vector.
            a: Name of a vector: one factor.
            b: Name of a vector: the other factor.
            c: Name of a vector: what is added.

        Returns:
            The result's name.
        """
        v = f"<{lanes} x float>"
        return self.let(f"call {v} @llvm.fma.v{lanes}f32({v} {a}, {v} {b}, {v} {c})")

    def loop(
        self,
        count: str,
        carried: Sequence[tuple[str, str]],
        body: Callable[[str, list[str]], Sequence[str]],
    ) -> list[str]:
        """Repeats a body; the test comes first, so that it may run zero times.

        Args:
            count: How often, an i64.
            carried: (type, first value) of what changes from round to round.
            body: Called with the index and the values of this round; returns those of the next.

        Returns:
            The values after the last round.
        """
        head, inside, after = (self._fresh(name) for name in ("head", "body", "after"))
        before = self._block
        self._branch(head)
        place = len(self._lines)
        index = self._fresh("%i")
        values = [self._fresh("%c") for _ in carried]
        more = self.let(f"icmp slt i64 {index}, {count}")
        self.do(f"br i1 {more}, label %{inside}, label %{after}")
        self._start(inside)
        following = body(index, values)
        step = self.let(f"add i64 {index}, 1")
        latch = self._block
        self._branch_to(head)
        phis = [f"  {index} = phi i64 [0, %{before}], [{step}, %{latch}]"]
        for (kind, first), value, new in zip(carried, values, following, strict=True):
            phis.append(f"  {value} = phi {kind} [{first}, %{before}], [{new}, %{latch}]")
        self._lines[place:place] = phis
        self._start(after)
        return values

    def either(self, condition: str, yes: Callable[[], None], no: Callable[[], None]) -> None:
        """Runs one of two bodies."""
        then, other, after = (self._fresh(name) for name in ("then", "other", "after"))
        self.do(f"br i1 {condition}, label %{then}, label %{other}")
        for label, body in ((then, yes), (other, no)):
            self._start(label)
            body()
            self._branch_to(after)
        self._start(after)

    def _branch(self, label: str) -> None:
        self._branch_to(label)
        self._start(label)

    def _branch_to(self, label: str) -> None:
        self.do(f"br label %{label}")

    def _start(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._block = label

    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"
