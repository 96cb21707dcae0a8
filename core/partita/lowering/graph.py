"""The lowered graph: plain, mutable nodes and values that back-ends rewrite, walk and compile."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from partita.errors import CompileError

Dim = int | str | None


class Value:
    """What an edge carries: one tensor.

    Attributes:
        name: The ONNX name; ``""`` for values that passes make.
        dtype: Element type, or ``None`` where it is not known before run time; ``object`` for
            strings, and for what is no tensor but a sequence or an optional.
        shape: Dimensions (numbers, symbols, ``None``), or ``None`` where the rank is unknown.
        const: The elements of a constant, else ``None``. Never write to it: models share it.
        producer: The node that computes it; ``None`` for inputs and constants.
    """

    __slots__ = ("const", "dtype", "name", "producer", "shape")

    def __init__(
        self,
        name: str = "",
        dtype: np.dtype[Any] | None = None,
        shape: tuple[Dim, ...] | None = None,
        const: np.ndarray[Any, Any] | None = None,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.const = const
        self.producer: Node | None = None

    @classmethod
    def constant(cls, array: np.ndarray[Any, Any], name: str = "") -> Value:
        """A constant value; keeps the array."""
        return cls(name, array.dtype, array.shape, array)

    def like(self, name: str = "") -> Value:
        """A new value of the same type and shape, without producer."""
        return Value(name, self.dtype, self.shape)

    def __repr__(self) -> str:
        kind = "const " if self.const is not None else ""
        return f"<Value {self.name!r} {kind}{self.dtype} {self.shape}>"


class Node:
    """One operation.

    Attributes:
        op_type: The operator.
        domain: Its domain; ``""`` is ONNX's own, ``"partita"`` holds what fusion makes.
        version: The opset version of the domain that the model imports.
        inputs: Values read; ``None`` where an optional input is left out.
        outputs: Values written; ``None`` where an optional output is left out.
        kind: Operator with domain: ``"Relu"``, ``"partita::Conv"``.
        attrs: Attributes: numbers, strings and lists of them as they are, tensors as arrays,
            graphs as :class:`Graph`. No graph comes or goes once the node is made.
        name: Name for messages and profiles.
        origins: Names of the model's operations that this node computes; inside the body of an
            If, Loop or Scan the name of that operation.
    """

    __slots__ = (
        "__weakref__",
        "_graphs",
        "_model_kind",
        "attrs",
        "domain",
        "inputs",
        "kind",
        "name",
        "op_type",
        "origins",
        "outputs",
        "version",
    )

    def __init__(
        self,
        op_type: str,
        inputs: Iterable[Value | None],
        outputs: Iterable[Value | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        version: int = 1,
        name: str = "",
        origins: tuple[str, ...] | None = None,
    ) -> None:
        self.op_type = op_type
        self.domain = domain
        self.kind = f"{domain}::{op_type}" if domain else op_type
        self.version = version
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.attrs = dict(attrs or {})
        # Each pass asks for them, and hardly a node has some.
        self._graphs = tuple([attr for attr in self.attrs.values() if type(attr) is Graph])
        self.name = name
        self.origins = (name,) if origins is None else origins
        self._model_kind = ""
        for value in self.outputs:
            if value is not None:
                value.producer = self

    @property
    def result(self) -> Value | None:
        """The first output; ``None`` if it is left out, or there is none, as of a Loop."""
        return self.outputs[0] if self.outputs else None

    @classmethod
    def link(cls, source: Value, target: Value, owner: Node) -> Node:
        """An Identity that stands for ``owner`` in one program and leaves ``target.producer``.

        Args:
            source: What is read.
            target: What is written.
            owner: The node that profiles show in its place.
        """
        producer = target.producer
        node = cls("Identity", [source], [target], name=owner.name, origins=())
        target.producer = producer
        return node

    def like(
        self,
        inputs: Iterable[Value | None] | None = None,
        outputs: Iterable[Value | None] | None = None,
        attrs: Mapping[str, Any] | None = None,
        origins: tuple[str, ...] | None = None,
        domain: str | None = None,
    ) -> Node:
        """A node of the same operator, name and version.

        Args:
            inputs: What it reads; ``None``: what this one does.
            outputs: What it writes; ``None``: what this one does.
            attrs: Attributes that it has besides this one's, or with other values.
            origins: What it computes; ``None``: what this one does.
            domain: That of the operator; ``None``: this one's.
        """
        return Node(
            self.op_type,
            self.inputs if inputs is None else inputs,
            self.outputs if outputs is None else outputs,
            {**self.attrs, **(attrs or {})},
            domain=self.domain if domain is None else domain,
            version=self.version,
            name=self.name,
            origins=self.origins if origins is None else origins,
        )

    def step(
        self,
        op_type: str,
        inputs: Iterable[Value | None],
        output: Value | None,
        attrs: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        name: str = "",
    ) -> Node:
        """A node that computes what this one does, or a part of that, by another operator.

        Args:
            op_type: The operator.
            inputs: What it reads.
            output: What it writes.
            attrs: Its attributes.
            domain: That of the operator.
            name: Its name; empty: this one's.
        """
        return Node(
            op_type,
            inputs,
            [output],
            attrs,
            domain=domain,
            version=self.version,
            name=name or self.name,
            origins=self.origins,
        )

    def number(self, name: str, default: float) -> float:
        """A float attribute, or its default as ONNX keeps it: in float32, as all of them."""
        value: float = self.attrs.get(name, np.float32(default))
        return float(value)

    @property
    def model_kind(self) -> str:
        """The :attr:`kind` that the operation of this name has in the model, for messages."""
        return self._model_kind or self.kind

    def stand_for(self, nodes: Iterable[Node]) -> None:
        """Takes over from the one of this name how the model writes it."""
        for node in nodes:
            if node.name == self.name:
                self._model_kind = node.model_kind

    def graphs(self) -> tuple[Graph, ...]:
        """The graphs among the attributes (bodies of If, Loop and Scan)."""
        return self._graphs

    def reads(self) -> list[Value]:
        """All values needed to run the node: its inputs and what its bodies capture."""
        values = [value for value in self.inputs if value is not None]
        for graph in self._graphs:
            values += graph.captures()
        return values

    def input(self, index: int) -> Value | None:
        """An input by position; ``None`` if it is left out or beyond the last one."""
        return self.inputs[index] if index < len(self.inputs) else None

    def __repr__(self) -> str:
        return f"<Node {self.name!r} {self.kind}>"


class Graph:
    """Nodes in topological order between inputs and outputs.

    Attributes:
        name: The graph's name.
        inputs: Values given by the caller.
        outputs: Values handed to the caller; may be inputs or constants, or repeat.
        nodes: The operations in topological order.
    """

    def __init__(
        self,
        inputs: Iterable[Value],
        outputs: Iterable[Value],
        nodes: Iterable[Node],
        name: str = "",
    ) -> None:
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.nodes = list(nodes)
        self.name = name

    def copy(self, known: Mapping[Value, Value] | None = None) -> Graph:
        """The same graph over values of its own, those of bodies included; constants are shared.

        Args:
            known: For values of enclosing graphs, what takes their place.
        """
        new = dict(known or {})

        def value_for(old: Value | None) -> Value | None:
            if old is None or old.const is not None:
                return old
            if old not in new:
                new[old] = old.like(old.name)
            return new[old]

        inputs = [value_for(value) for value in self.inputs]
        nodes = []
        for node in self.nodes:
            reads = [value_for(value) for value in node.inputs]
            bodies = {
                key: attr.copy(new) for key, attr in node.attrs.items() if isinstance(attr, Graph)
            }
            nodes.append(node.like(reads, [value_for(value) for value in node.outputs], bodies))
        outputs = [value_for(value) for value in self.outputs]
        return Graph(
            [value for value in inputs if value is not None],
            [value for value in outputs if value is not None],
            nodes,
            self.name,
        )

    def captures(self) -> list[Value]:
        """Values of enclosing graphs that this graph reads (constants not counted), in order."""
        defined = set(self.inputs)
        found: dict[Value, None] = {}
        for node in self.nodes:
            for value in node.reads():
                if value not in defined and value.const is None:
                    found[value] = None
            defined.update(v for v in node.outputs if v is not None)
        for value in self.outputs:
            if value not in defined and value.const is None:
                found[value] = None
        return list(found)

    def uses(self) -> dict[Value, list[Node]]:
        """For every value that is read, the nodes that read it (once per reading)."""
        uses: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.reads():
                users = uses.get(value)
                if users is None:
                    uses[value] = [node]
                else:
                    users.append(node)
        return uses

    def prune(self) -> None:
        """Drops outputs that nobody reads, and nodes without any output left; bodies included.

        Nodes that lose some of their outputs are replaced, and those that are dropped stay as they
        are: another graph, of which this one was made for certain shapes, may hold them too.
        """
        used: set[Value | None] = set(self.outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            left = [value if value in used else None for value in node.outputs]
            if used.isdisjoint(left):
                continue
            if left != node.outputs:
                lesser = node.like(outputs=left)
                lesser.stand_for([node])
                node = lesser
            for graph in node.graphs():
                graph.prune()
            used.update(node.reads())
            kept.append(node)
        self.nodes = kept[::-1]

    def drop_unread(self, candidates: Collection[Node]) -> set[Node]:
        """Drops those of some nodes whose results nobody reads; no node is changed.

        Args:
            candidates: The nodes.

        Returns:
            Those that are gone.
        """
        used: set[Value | None] = set(self.outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if node not in candidates or not used.isdisjoint(node.outputs):
                used.update(node.reads())
                kept.append(node)
        self.nodes = kept[::-1]
        return set(candidates).difference(kept)

    def all_nodes(self) -> Iterator[Node]:
        """All nodes, those of nested graphs after the node that holds them."""
        for node in self.nodes:
            yield node
            for graph in node.graphs():
                yield from graph.all_nodes()

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}: {len(self.nodes)} nodes>"


def taken_branch(node: Node, condition: np.ndarray[Any, Any] | None) -> Graph:
    """The branch that an If takes.

    Raises:
        CompileError: The condition is none of one element.
    """
    if condition is None or condition.size != 1:
        found = "is left out" if condition is None else f"has {condition.size} elements"
        raise CompileError(f"The condition of If '{node.name}' {found}; it takes one element.")
    branch: Graph = node.attrs["then_branch" if condition.reshape(-1)[0] else "else_branch"]
    return branch
