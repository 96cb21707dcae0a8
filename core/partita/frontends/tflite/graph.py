"""The walk over the operators of a TFLite file that makes an ONNX graph of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from partita.errors import ModelFormatError
from partita.frontends.operation_site import blamed_on
from partita.frontends.tflite import translators
from partita.frontends.tflite.cancelled_transposes import cancel_transposes
from partita.frontends.tflite.document import Document
from partita.frontends.tflite.one_runtime import CODE_KEY, INDEX_KEY, PRODUCER
from partita.frontends.tflite.subgraph import Operator, Signature, Subgraph, Tensor
from partita.frontends.tflite.translator import Site, has_complex, translator_of
from partita.frontends.tflite.weights import COMPLEX64, constant, element_type
from partita.frontends.value_names import TakenNames
from partita.model.port import Port
from partita.model.value_uses import values_read
from partita.model.variables import METADATA_KEY, Variable, to_metadata
from partita.system.modules import import_modules

if TYPE_CHECKING:
    import onnx_ir as ir

OPSET = 23
"""The ONNX opset in which the graph is written."""

SIGNATURES_KEY = "partita.tflite.signatures"
"""The entry of a model's metadata that lists the signatures of its file."""

_DEEPEST = 32
"""Subgraphs that call one another that are followed."""

MOST_OPERATIONS = 1_000_000
"""Operations and entries of subgraphs that are followed, once for each time that one is called."""

_PLUMBING = frozenset(
    {
        "Transpose",
        "Reshape",
        "Cast",
        "QuantizeLinear",
        "DequantizeLinear",
        "Identity",
        "Relu",
        "Clip",
    }
)
"""Operations around the one that an operator is about, and that is called after it."""


def build_model(document: Document, signature: str | None) -> ir.Model:
    """The model of a file.

    Args:
        document: The file.
        signature: Which of its signatures; ``None`` for the first subgraph.

    Returns:
        A model of opset 23. Operations, inputs and outputs are called after tensors; those of a
        signature have its names.

    Raises:
        ModelFormatError: It does not hang together, or has operators that are not known.
    """
    import onnx_ir as ir

    import_modules(translators)
    chosen = _signature(document, signature)
    _refuse_unknown(document)
    try:
        scope = GraphScope(document)
        graph = scope.model_graph(chosen)
    except ModelFormatError as error:
        raise ModelFormatError(f"{document.origin}: {error}") from error
    _note_names(document, chosen.subgraph, graph)
    model = ir.Model(graph, ir_version=11, producer_name=PRODUCER)
    if scope.variables:
        model.metadata_props[METADATA_KEY] = to_metadata(scope.variables)
    if document.signatures:
        listed = {
            name: {"inputs": list(one.inputs), "outputs": list(one.outputs)}
            for name, one in document.signatures.items()
        }
        model.metadata_props[SIGNATURES_KEY] = json.dumps(listed)
    return model


def _signature(document: Document, name: str | None) -> Signature:
    """The signature of that name, or the first subgraph as one without names."""
    if name is None:
        return Signature(0, {}, {})
    known = document.signatures
    if name not in known:
        listed = ", ".join(f"'{one}'" for one in known) or "none"
        raise ModelFormatError(
            f"{document.origin} has no signature '{name}'; it has {listed}. Leave 'signature' out "
            "for the file's first subgraph."
        )
    return known[name]


def _note_names(document: Document, place: int, graph: ir.Graph) -> None:
    """Lets inputs and outputs be found by the names of tensors and by those of signatures."""
    subgraph = document.subgraphs[place]
    signatures = [one for one in document.signatures.values() if one.subgraph == place]
    ends = (
        (graph.inputs, tuple(dict.fromkeys(subgraph.inputs)), [one.inputs for one in signatures]),
        (graph.outputs, subgraph.outputs, [one.outputs for one in signatures]),
    )
    for values, places, named in ends:
        names: dict[int, set[str]] = {at: {subgraph.tensors[at].label} for at in places}
        for one in named:
            for name, tensor in one.items():
                names[tensor].add(name)
        for index, (value, at) in enumerate(zip(values, places, strict=False)):
            if more := names[at] - {value.name}:
                Port.of(index, value, values is graph.inputs).add_names(more)


def _refuse_unknown(document: Document) -> None:
    unknown: dict[str, str] = {}
    for graph in document.subgraphs:
        for operator in graph.operators:
            if translator_of(operator, graph.tensors) is None:
                kind = "custom operator " if operator.is_custom else ""
                what = " of complex numbers" if has_complex(operator, graph.tensors) else ""
                unknown.setdefault(operator.code + what, f"{kind}{operator.label}{what}")
    if unknown:
        raise ModelFormatError(
            f"{document.origin} has operators that are not known: " + "; ".join(unknown.values())
        )


_MISFIT = "its tensors or options do not fit it"


class GraphScope:
    """A graph that is being made: the model's own, or that of a body.

    Args:
        document: The file.
        outer: The scope around this one.

    Attributes:
        document: The file.
        depth: Number of subgraphs that called one another down to this one.
        variables: What the model keeps from run to run, once the graph is made.
    """

    def __init__(self, document: Document, outer: GraphScope | None = None) -> None:
        self.document = document
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.variables: list[Variable] = []
        self._outer = outer
        self._nodes: list[ir.Node] = []
        self._constants: list[ir.Value] = []
        self._dims: dict[ir.Value, tuple[int, ...]] = {} if outer is None else dict(outer._dims)
        self._names: TakenNames = TakenNames() if outer is None else outer._names
        self._written: list[int] = [0] if outer is None else outer._written
        self._once: dict[object, ir.Value] = {}
        self._held: dict[str, list[ir.Value]] = {}
        self._initial: dict[str, ir.Value] = {}
        self._assigned: dict[str, ir.Value] = {}
        self._site: str = "" if outer is None else outer._site

    # ------------------------------------------------------------------ the model

    def model_graph(self, signature: Signature) -> ir.Graph:
        """The graph of a whole model."""
        graph = self.document.subgraphs[signature.subgraph]
        for tensor in (graph.tensors[place] for place in graph.outputs):
            if tensor.type == COMPLEX64:
                raise ModelFormatError(f"it returns {tensor}, which holds complex numbers")
        names = {place: name for name, place in signature.inputs.items()}
        places = dict.fromkeys(graph.inputs)
        inputs = {place: self._input(graph.tensors[place], names.get(place)) for place in places}
        targets = {place: name for name, place in signature.outputs.items()}
        kept = {
            place: self.fresh(targets.get(place) or graph.tensors[place].label)
            for place in dict.fromkeys(graph.outputs)
            if place not in inputs
        }
        results = self._follow(graph, dict(inputs), kept)
        values: dict[ir.Value, None] = {}
        for place in graph.outputs:
            name = kept.pop(place, None)
            label = targets.get(place) or f"{graph.tensors[place].label}/output"
            values[self._output(results[place], values, name or self.fresh(label))] = None
        if not values:
            raise ModelFormatError(f"'{graph.name}' returns nothing")
        for name, (held, *begun) in self._held.items():
            after = self._assigned.get(name, held)
            written = self._output(after, values, self.fresh(f"{name}/next"))
            values[written] = None
            self.variables.append(Variable(name, *(str(v.name) for v in (held, written, *begun))))
        handed_on = [value for values in self._held.values() for value in values]
        return self.graph([*inputs.values(), *handed_on], list(values), graph.name)

    def _input(self, tensor: Tensor, name: str | None) -> ir.Value:
        return self._given(tensor, self.fresh(name or tensor.label))

    def _given(self, tensor: Tensor, name: str) -> ir.Value:
        import onnx_ir as ir

        value = ir.Value(
            name=name,
            type=ir.TensorType(element_type(tensor.type, tensor)),
            shape=ir.Shape([dim if dim >= 0 else None for dim in tensor.dims]),
        )
        self._dims[value] = tensor.dims
        return value

    def _output(self, value: ir.Value, others: Container[ir.Value], name: str) -> ir.Value:
        """The value under a name as an output, or a copy where it cannot be one."""
        if value.producer() is not None and value not in others:
            value.name = name
            return value
        copy = self.write("Identity", [value], {}, 1)[0]
        copy.name = name
        return copy

    # ------------------------------------------------------------------ the walk

    def called(self, place: int, inputs: Sequence[ir.Value]) -> list[ir.Value]:
        """Writes the operators of a subgraph here; returns what it returns."""
        graph = self._subgraph(place)
        if len(inputs) != len(graph.inputs):
            raise ModelFormatError(
                f"'{graph.name}' takes {len(graph.inputs)} tensors and is given {len(inputs)}"
            )
        if self.depth >= _DEEPEST:
            raise ModelFormatError(f"subgraphs call one another deeper than {_DEEPEST}")
        self._count(graph.entries)
        self.depth += 1
        results = self._follow(graph, dict(zip(graph.inputs, inputs, strict=True)), {})
        self.depth -= 1
        return [results[place] for place in graph.outputs]

    def _subgraph(self, place: int) -> Subgraph:
        if not 0 <= place < len(self.document.subgraphs):
            raise ModelFormatError(f"subgraph {place} is called, which is not there")
        return self.document.subgraphs[place]

    def _follow(
        self, graph: Subgraph, values: dict[int, ir.Value], kept: Mapping[int, str]
    ) -> dict[int, ir.Value]:
        """Translates all operators; returns the values of the outputs, by their places."""
        for operator in graph.operators:
            site = self._site
            with blamed_on(operator, _MISFIT, TypeError, struct.error):
                self._translate(operator, graph, values, kept)
            self._site = site
        return {place: self._read(graph, values, place, "the end") for place in graph.outputs}

    def _translate(
        self,
        operator: Operator,
        graph: Subgraph,
        values: dict[int, ir.Value],
        kept: Mapping[int, str],
    ) -> None:
        import onnx_ir as ir

        inputs = [
            None if place < 0 else self._read(graph, values, place, operator)
            for place in operator.inputs
        ]
        targets = [None if place < 0 else graph.tensors[place] for place in operator.outputs]
        self._site = site = targets[0].label if targets and targets[0] else operator.code
        start = len(self._nodes)
        translate = translator_of(operator, graph.tensors)
        if translate is None:
            raise ModelFormatError("it is not known")
        found = translate(Site(operator, graph.tensors, inputs, self))
        outputs = [found] if isinstance(found, ir.Value) else list(found)
        fresh = self._nodes[start:]
        self._name_fresh(operator, site, fresh)
        own = {value for node in fresh for value in node.outputs}
        for place, tensor, value in zip(operator.outputs, targets, outputs, strict=False):
            if tensor is None:
                continue
            is_complex = tensor.type == COMPLEX64
            if value in own and value.name is None:
                value.name = kept.get(place) or self.fresh(tensor.label)
                value.type = ir.TensorType(
                    ir.DataType.FLOAT if is_complex else element_type(tensor.type, tensor)
                )
            self._dims.setdefault(value, (*tensor.dims, 2) if is_complex else tensor.dims)
            values[place] = value
        for node in fresh:
            for value in node.outputs:
                if value.name is None:
                    value.name = self.fresh(node.name or site)

    def _name_fresh(self, operator: Operator, site: str, fresh: Sequence[ir.Node]) -> None:
        """Calls the operation that an operator is about after its tensor, others by their type."""
        main = [node for node in fresh if node.op_type not in _PLUMBING] or list(fresh)
        if main:
            main[-1].name = site
        for node in fresh:
            node.metadata_props.setdefault(CODE_KEY, operator.code)
            node.metadata_props.setdefault(INDEX_KEY, str(operator.index))

    def _read(
        self, graph: Subgraph, values: dict[int, ir.Value], place: int, reader: object
    ) -> ir.Value:
        if place in values:
            return values[place]
        tensor = graph.tensors[place]
        if tensor.data is not None:
            values[place] = self.initializer(constant(tensor), tensor.label)
        elif tensor.is_variable:
            values[place] = self.state(tensor.label, tensor)
        else:
            raise ModelFormatError(f"{reader} reads {tensor}, which nothing has computed")
        return values[place]

    # ------------------------------------------------------------------ for translators

    def write(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: int,
    ) -> list[ir.Value]:
        """Writes an operation, as :meth:`translator.Scope.write` says."""
        import onnx_ir as ir

        self._count(1)
        node = ir.node(
            op_type,
            inputs,
            attributes,
            num_outputs=outputs,
            name=f"{self._site}/{op_type}",
        )
        self._nodes.append(node)
        return list(node.outputs)

    def _count(self, steps: int) -> None:
        """Counts what is done: each subgraph that calls the next one twice doubles it."""
        self._written[0] += steps
        if self._written[0] > MOST_OPERATIONS:
            raise ModelFormatError(f"subgraphs become more than {MOST_OPERATIONS:,} operations")

    def initializer(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Writes a constant."""
        import onnx_ir as ir

        shape = tuple(int(dim) for dim in tensor.shape.numpy())
        value = ir.Value(
            name=self.fresh(name),
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(shape),
            const_value=tensor,
        )
        self._constants.append(value)
        self._dims[value] = shape
        return value

    def once(self, key: object, make: Callable[[], ir.Value]) -> ir.Value:
        """A value that is written when it is asked for first."""
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]

    def fresh(self, name: str) -> str:
        """The name, or one like it that is not taken."""
        return self._names.fresh(name)

    def body(self) -> GraphScope:
        """The scope of a body."""
        if self.depth >= _DEEPEST:
            raise ModelFormatError(f"subgraphs call one another deeper than {_DEEPEST}")
        return GraphScope(self.document, self)

    def given(self, place: int) -> list[ir.Value]:
        """Fresh values for what a subgraph is given."""
        graph = self._subgraph(place)
        return [
            self._given(graph.tensors[i], self.fresh(graph.tensors[i].label)) for i in graph.inputs
        ]

    def graph(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], name: str) -> ir.Graph:
        """The graph that was written, without transposes that cancel."""
        import onnx_ir as ir

        results: dict[ir.Value, None] = {}
        own = {value for node in self._nodes for value in node.outputs}
        for value in outputs:
            if value not in own or value in results:
                copy = self.write("Identity", [value], {}, 1)[0]
                copy.name = self.fresh(f"{value.name}/returned")
                value = copy
            results[value] = None
        nodes, returned = cancel_transposes(self._nodes, list(results), self._dims, self)
        read = {value for node in nodes for value in values_read(node)} | set(returned)
        return ir.Graph(
            inputs,
            returned,
            nodes=nodes,
            initializers=[value for value in self._constants if value in read],
            opset_imports={"": OPSET},
            name=name,
        )

    # ------------------------------------------------------------------ variables

    def state(self, name: str, tensor: Tensor, is_assigned: bool = True) -> ir.Value:
        """What a variable is in this run: what it became, or was, or begins with.

        Args:
            name: Of the variable.
            tensor: What tells its type and sizes.
            is_assigned: Whether the model assigns it; one that it does not is a constant.
        """
        if self._outer is not None:
            return self._outer.state(name, tensor, is_assigned)
        if name in self._assigned:
            return self._assigned[name]
        initial = self._initial.get(name)
        if initial is not None and not is_assigned:
            return initial
        return self.once(("variable", name), lambda: self._state_input(name, tensor, initial))

    def _state_input(self, name: str, tensor: Tensor, initial: ir.Value | None) -> ir.Value:
        import onnx_ir as ir

        if min(tensor.dims, default=0) < 0:
            raise ModelFormatError(f"variable '{name}' has the sizes {list(tensor.dims)}")
        held = self._given(tensor, self.fresh(name))
        self._held[name] = [held]
        if initial is None:
            return held
        begun = ir.Value(
            name=self.fresh(f"{name}/begun"),
            type=ir.TensorType(ir.DataType.BOOL),
            shape=ir.Shape([]),
        )
        self._held[name].append(begun)
        return self.write("Where", [begun, held, initial], {}, 1)[0]

    def assign(self, name: str, value: ir.Value) -> None:
        """Says what a variable becomes."""
        if self._outer is not None:
            raise ModelFormatError(f"variable '{name}' is assigned inside of a body")
        self._assigned[name] = value

    def call_once(self, place: int) -> None:
        """Takes what a subgraph assigns as what variables begin with."""
        if self._outer is not None:
            raise ModelFormatError("CALL_ONCE is inside a body")
        before, self._assigned = self._assigned, {}
        self.called(place, [])
        self._initial |= self._assigned
        self._assigned = before
