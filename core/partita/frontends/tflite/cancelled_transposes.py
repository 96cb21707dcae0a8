"""Transposes that cancel: a walk that lets operations work on what lies before a Transpose.

TFLite's images have channels last, ONNX's first, so that every convolution is written between two
transposes. The walk takes each Transpose away and remembers what it would have done; operations
that can, such as sums and activations, take their inputs from before it, with axes renamed, and
pass the memory on. Where two meet they cancel; where an operation cannot go along, the Transpose
is written there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from partita.frontends.tflite.axis_order import (
    Perm,
    inverse,
    moves_only_ones,
    resolved_sizes,
    with_axes,
    without_axes,
)
from partita.frontends.tflite.weights import transposed
from partita.model.op_traits import Trait, having
from partita.model.value_uses import captures, values_read

if TYPE_CHECKING:
    import onnx_ir as ir

Dims = MutableMapping["ir.Value", tuple[int, ...]]
_FEW = 64
"""Elements of constants that list axes or sizes."""

_ELEMENTWISE = having(Trait.ELEMENTWISE) | {
    "And",
    "Cast",
    "Cos",
    "DequantizeLinear",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Mod",
    "Not",
    "Or",
    "QuantizeLinear",
    "Sin",
    "Where",
}
_REDUCTIONS = frozenset(
    f"Reduce{kind}" for kind in ("Max", "Mean", "Min", "Prod", "Sum", "SumSquare", "L2")
)
_ONE_AXIS = frozenset({"Concat", "LogSoftmax", "Softmax", "Split"})


class Names(Protocol):
    """What gives names and takes constants."""

    def fresh(self, name: str) -> str:
        """The name, or one like it that is not taken."""

    def initializer(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Writes a constant."""


def cancel_transposes(
    nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], dims: Dims, names: Names
) -> tuple[list[ir.Node], list[ir.Value]]:
    """The nodes and outputs of a graph with as few transposes as the walk leaves.

    Args:
        nodes: In order; they are rewired or replaced.
        outputs: The graph's; others of their names may take their places.
        dims: Sizes of values as far as they are known; -1 is unknown.
        names: For new values.
    """
    walk = _Walk(dims, names, outputs)
    for node in nodes:
        walk.take(node)
    results = [walk.bring(value) for value in outputs]
    return _without_dead(walk.nodes, results), results


class _Walk:
    def __init__(self, dims: Dims, names: Names, outputs: Sequence[ir.Value]) -> None:
        self.nodes: list[ir.Node] = []
        self._outputs = frozenset(outputs)
        self._dims = dims
        self._names = names
        self._before: dict[ir.Value, tuple[ir.Value, Perm]] = {}
        self._written: dict[tuple[ir.Value, Perm], ir.Value] = {}
        self._rules: Mapping[str, Callable[[ir.Node], bool]] = {
            "Transpose": self._transpose,
            "Reshape": self._reshape,
            "Pad": self._pad,
            "Slice": self._slice,
            "Squeeze": self._squeeze,
            "Unsqueeze": self._unsqueeze,
            "ArgMax": self._reduced_by_attribute,
            "ArgMin": self._reduced_by_attribute,
            **dict.fromkeys(_ELEMENTWISE, self._elementwise),
            **dict.fromkeys(_REDUCTIONS, self._reduction),
            **dict.fromkeys(_ONE_AXIS, self._one_axis),
        }

    def take(self, node: ir.Node) -> None:
        """Takes the next node: as it is, or in another order of axes."""
        for captured in captures(node):
            self.bring(captured)
        for index, value in enumerate(node.inputs):
            source, perm = self._source(value)
            if source is not None and perm == tuple(range(len(perm))):
                node.replace_input_with(index, source)
        if node.op_type == "Pad" and node.domain == "":
            self._permute_what_is_padded(node)
        known = any(value in self._before for value in node.inputs)
        rule = self._rules.get(node.op_type) if node.domain == "" else None
        if rule is not None and (known or node.op_type == "Transpose") and rule(node):
            return
        for value in node.inputs:
            if value is not None:
                self.bring(value)
        self.nodes.append(node)
        if node.op_type in _ELEMENTWISE:
            self._dims.setdefault(node.outputs[0], self._broadcast(node) or ())
            if not self._dims[node.outputs[0]]:
                del self._dims[node.outputs[0]]

    def bring(self, value: ir.Value) -> ir.Value:
        """Makes sure that a value itself is computed; returns what holds it."""
        import onnx_ir as ir

        key = self._before.get(value)
        if key is None or self._written.get(key) is value:
            return value
        if key not in self._written:
            source, perm = key
            node = self._layout_node(value, source, perm)
            producer = value.producer()
            if producer is not None:
                node.metadata_props.update(producer.metadata_props)
            self.nodes.append(node)
            out = node.outputs[0]
            out.name, out.type = value.name, value.type
            self._written[key] = out
            self._before[out] = key
            if value in self._dims:
                self._dims[out] = self._dims[value]
        ir.convenience.replace_all_uses_with(value, self._written[key])
        return self._written[key]

    def _layout_node(self, value: ir.Value, source: ir.Value, perm: Perm) -> ir.Node:
        """What computes a value from what lies before a transposition."""
        import onnx_ir as ir

        sizes, name = self._dims.get(source), f"{value.name}/layout"
        if perm == tuple(range(len(perm))):
            return ir.node("Identity", [source], name=name)
        if sizes is not None and moves_only_ones(sizes, perm):
            target = np.array([sizes[axis] for axis in perm], np.int64)
            shape = self._names.initializer(ir.Tensor(target), f"{value.name}/shape")
            return ir.node("Reshape", [source, shape], name=name)
        return ir.node("Transpose", [source], {"perm": list(perm)}, name=name)

    def _source(self, value: ir.Value | None) -> tuple[ir.Value | None, Perm]:
        """What lies before a value, and how it is transposed; ``None`` if nothing is known."""
        return (None, ()) if value is None else self._before.get(value, (None, ()))

    def _broadcast(self, node: ir.Node) -> tuple[int, ...] | None:
        """The sizes of an element-wise operation's result, if those of all inputs are known."""
        sizes = [self._dims.get(value) for value in node.inputs if value is not None]
        known = [one for one in sizes if one is not None]
        if len(known) < len(sizes):
            return None
        rank = max((len(one) for one in known), default=0)
        filled = [(1,) * (rank - len(one)) + one for one in known]
        return tuple(-1 if -1 in column else max(column) for column in zip(*filled, strict=True))

    # ------------------------------------------------------------------ rules

    def _transpose(self, node: ir.Node) -> bool:
        value = node.inputs[0]
        if value is None or "perm" not in node.attributes:
            return False
        perm = tuple(node.attributes["perm"].as_ints())
        source, before = self._source(value)
        if source is None:
            source = value
        else:
            perm = tuple(before[axis] for axis in perm)
        out = node.outputs[0]
        _drop(node)
        self._before[out] = (source, perm)
        sizes, own = self._dims.get(source), self._dims.get(out)
        if sizes is not None and len(sizes) == len(perm):
            self._dims[out] = tuple(sizes[axis] for axis in perm)
        elif own is not None and len(own) == len(perm):
            self._dims[source] = tuple(own[place] for place in np.argsort(perm))
        return True

    def _elementwise(self, node: ir.Node) -> bool:
        """Inputs in one order of axes; constants are permuted the other way."""
        found = [self._before[value] for value in node.inputs if value in self._before]
        perm = found[0][1]
        if any(other != perm for _, other in found) or "axis" in node.attributes:
            return False
        inputs: list[ir.Value | None] = []
        for value in node.inputs:
            beside = None if value is None else self._beside(value, perm, len(found))
            if beside is None and value is not None:
                return False
            inputs.append(beside)
        self._again(node, inputs, {}, perm, self._broadcast(node))
        return True

    def _beside(self, value: ir.Value, perm: Perm, others: int) -> ir.Value | None:
        """An input of an element-wise operation as it must be before the transposition."""
        if value in self._before:
            return self._before[value][0]
        sizes = self._dims.get(value)
        if sizes is None or len(sizes) > len(perm):
            return None
        if all(size == 1 for size in sizes) and len(sizes) <= 1:
            return value
        cheap = others > 1 or moves_only_ones(sizes, inverse(perm))
        if value.const_value is None and (len(sizes) != len(perm) or not cheap):
            return None
        return self._permuted(value, perm)

    def _permuted(self, value: ir.Value, perm: Perm) -> ir.Value:
        """A value transposed the other way, filled up with axes of size one in front."""
        import onnx_ir as ir

        rank, sizes = len(perm), self._dims[value]
        back = inverse(perm)
        if value.const_value is not None:
            array = value.const_value.numpy()
            tensor = ir.Tensor(array.reshape((1,) * (rank - array.ndim) + array.shape))
            return self._names.initializer(transposed(tensor, back), f"{value.name}/turned")
        out = ir.Value(name=self._names.fresh(f"{value.name}/turned"))
        self._before[out] = (value, back)
        self._dims[out] = tuple(sizes[axis] for axis in back)
        return self.bring(out)

    def _one_axis(self, node: ir.Node) -> bool:
        """An operation along an axis that an attribute names."""
        count = 1 if node.op_type == "Split" else len(node.inputs)
        values = [value for value in node.inputs[:count] if value is not None]
        perms = {self._before[value][1] for value in values if value in self._before}
        there = sum(value in self._before for value in values)
        if len(perms) != 1 or 2 * there <= count:
            return False
        (perm,) = perms
        sizes = [self._dims.get(value) for value in values if value not in self._before]
        if any(one is None or len(one) != len(perm) for one in sizes):
            return False
        inputs: list[ir.Value | None] = [
            self._before[value][0] if value in self._before else self._permuted(value, perm)
            for value in values
        ]
        axis = perm[_axis(node, perm)]
        self._again(node, [*inputs, *node.inputs[count:]], {"axis": axis}, perm)
        return True

    def _reduction(self, node: ir.Node) -> bool:
        """Axes are renamed; where they vanish, what is left may be in order by itself."""
        source, perm = self._source(node.inputs[0])
        axes = _small(node, 1)
        if source is None or axes is None or not len(axes):
            return False
        gone = {perm[int(axis) % len(perm)] for axis in axes}
        inputs = [source, self._constant(sorted(gone), node)]
        self._again(node, inputs, {}, perm if _keeps(node) else without_axes(perm, gone))
        return True

    def _reduced_by_attribute(self, node: ir.Node) -> bool:
        source, perm = self._source(node.inputs[0])
        axis = perm[_axis(node, perm)]
        after = perm if _keeps(node) else without_axes(perm, {axis})
        self._again(node, [source], {"axis": axis}, after)
        return True

    def _pad(self, node: ir.Node) -> bool:
        source, perm = self._source(node.inputs[0])
        pads = _small(node, 1)
        if source is None or pads is None or len(pads) != 2 * len(perm) or len(node.inputs) > 3:
            return False
        both = pads.reshape(2, -1)[:, np.argsort(perm)]
        inputs = [source, self._constant(both.reshape(-1), node), *node.inputs[2:]]
        self._again(node, inputs, {}, perm)
        return True

    def _permute_what_is_padded(self, node: ir.Node) -> None:
        """Transposes what a Pad reads if all that it makes is transposed afterwards.

        A convolution behind both then takes the padding as its own.
        """
        import onnx_ir as ir

        value, uses = node.inputs[0], [use.node for use in node.outputs[0].uses()]
        if value is None or value in self._before or value not in self._dims:
            return
        if len(uses) != 1 or uses[0].op_type != "Transpose" or "perm" not in uses[0].attributes:
            return
        perm = tuple(uses[0].attributes["perm"].as_ints())
        pads = _small(node, 1)
        if pads is None or len(pads) != 2 * len(perm) or len(node.inputs) > 3:
            return
        if node.outputs[0] in self._outputs or len(self._dims[value]) != len(perm):
            return
        back = inverse(perm)
        same = ir.Value(name=self._names.fresh(f"{value.name}/first"))
        self._before[same] = (self._permuted(value, back), back)
        self._dims[same] = self._dims[value]
        node.replace_input_with(0, same)

    def _slice(self, node: ir.Node) -> bool:
        """Only the axes have other names; starts, ends and steps go with them."""
        source, perm = self._source(node.inputs[0])
        axes = _small(node, 3)
        if source is None or axes is None:
            return False
        renamed = self._constant([perm[int(axis) % len(perm)] for axis in axes], node)
        self._again(node, [source, *node.inputs[1:3], renamed, *node.inputs[4:]], {}, perm)
        return True

    def _squeeze(self, node: ir.Node) -> bool:
        source, perm = self._source(node.inputs[0])
        axes = _small(node, 1)
        if source is None or axes is None:
            return False
        gone = {perm[int(axis) % len(perm)] for axis in axes}
        self._again(
            node, [source, self._constant(sorted(gone), node)], {}, without_axes(perm, gone)
        )
        return True

    def _unsqueeze(self, node: ir.Node) -> bool:
        """New axes stand at the same places before and behind the transposition."""
        source, perm = self._source(node.inputs[0])
        axes = _small(node, 1)
        if source is None or axes is None:
            return False
        rank = len(perm) + len(axes)
        new = {int(axis) % rank for axis in axes}
        self._again(node, [source, self._constant(sorted(new), node)], {}, with_axes(perm, new))
        return True

    def _reshape(self, node: ir.Node) -> bool:
        """A Reshape does not see axes of size one change places, and may only add or drop such."""
        value = node.inputs[0]
        source, perm = self._source(value)
        target = _small(node, 1)
        if source is None or value is None or source not in self._dims or value not in self._dims:
            return False
        if target is None or 0 in target:  # a zero names an axis by its place
            return False
        if moves_only_ones(self._dims[source], perm):
            node.replace_input_with(0, source)
            self.nodes.append(node)
            return True
        sizes, wanted = self._dims[value], resolved_sizes(target.tolist(), self._dims[value])
        if [size for size in sizes if size != 1] != [size for size in wanted if size != 1]:
            return False
        gone = {perm[axis] for axis, size in enumerate(sizes) if size == 1}
        after = with_axes(
            without_axes(perm, gone), {axis for axis, size in enumerate(wanted) if size == 1}
        )
        inputs = [source, self._constant([wanted[place] for place in np.argsort(after)], node)]
        self._again(node, inputs, {}, after)
        return True

    # ------------------------------------------------------------------ writing

    def _again(
        self,
        node: ir.Node,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, int],
        perm: Perm,
        sizes: tuple[int, ...] | None = None,
    ) -> None:
        """The node on other inputs; its outputs are what transposing the new ones would give."""
        import onnx_ir as ir

        given = [value for key, value in node.attributes.items() if key not in attributes]
        again = ir.Node(
            "",
            node.op_type,
            inputs,
            [*given, *(ir.AttrInt64(key, value) for key, value in attributes.items())],
            num_outputs=len(node.outputs),
            name=node.name,
            metadata_props=dict(node.metadata_props),
        )
        self.nodes.append(again)
        for old, new in zip(node.outputs, again.outputs, strict=True):
            new.type = old.type
            new.name = self._names.fresh(f"{old.name}/first")
            self._before[old] = (new, perm)
            known = self._dims.get(old, sizes)
            if known is not None and len(known) == len(perm):
                self._dims[old] = known
                self._dims[new] = tuple(known[place] for place in np.argsort(perm))
        _drop(node)

    def _constant(self, numbers: Any, node: ir.Node) -> ir.Value:
        import onnx_ir as ir

        tensor = ir.Tensor(np.asarray(numbers, np.int64))
        return self._names.initializer(tensor, f"{node.name}/first")


def _drop(node: ir.Node) -> None:
    """Takes a node out of what its inputs know as their readers."""
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)


def _keeps(node: ir.Node) -> bool:
    """Whether a reduction keeps its axes, with size one."""
    found = node.attributes.get("keepdims")
    return found is None or bool(found.as_int())


def _axis(node: ir.Node, perm: Perm) -> int:
    found = node.attributes.get("axis")
    default = -1 if node.op_type in ("Softmax", "LogSoftmax") else 0
    return int((default if found is None else found.as_int()) % len(perm))


def _small(node: ir.Node, index: int) -> np.ndarray[Any, Any] | None:
    """A short constant at an input."""
    value = node.inputs[index] if index < len(node.inputs) else None
    held = None if value is None else value.const_value
    return None if held is None or held.size > _FEW else held.numpy().reshape(-1)


def _without_dead(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]) -> list[ir.Node]:
    """The nodes that something reads."""
    wanted = set(outputs)
    alive: list[ir.Node] = []
    for node in reversed(nodes):
        if any(value in wanted for value in node.outputs):
            wanted.update(values_read(node))
            alive.append(node)
        else:
            _drop(node)
    return alive[::-1]
