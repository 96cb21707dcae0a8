"""Images with channels last: moves convolutions and what lies between them to NHWC.

One walk over a graph whose shapes are known. Convolutions always compute with channels last;
pooling, element-wise operators, Concat and the like follow where what they read is there already. A
value changes its layout only where an operator that stayed behind, or a caller, wants it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from partita.lowering import Graph, Node, Value
from partita.lowering.fusion.epilogue import activation_of

DOMAIN = "partita.nhwc"

Shapes = Mapping[Value, tuple[int, ...]]

_TO_LAST = (0, 2, 3, 1)

ELEMENTWISE = frozenset(
    {
        *("Relu", "Clip", "LeakyRelu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Elu"),
        *("Gelu", "Mish", "Softplus", "Softsign", "Selu", "Celu", "PRelu", "ThresholdedRelu"),
        *("partita::Silu", "partita::HardSwish", "partita::HardSigmoid", "partita::Gelu"),
        *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean"),
        *("Abs", "Neg", "Exp", "Log", "Sqrt", "Erf", "Floor", "Ceil", "Round", "Reciprocal"),
        "Sign",
    }
)
"""Operators that compute element by element, by numpy's broadcasting rules."""


def channels_last(graph: Graph, shapes: Shapes) -> None:
    """Rewrites a graph's nodes; values that callers see stay as they are.

    Args:
        graph: Changed in place; its nodes are not, new ones take their places.
        shapes: Of all values that nodes compute.
    """
    _Walk(graph, shapes).run()


class _Walk:
    def __init__(self, graph: Graph, shapes: Shapes) -> None:
        self._graph = graph
        self._shapes = shapes
        self._uses = graph.uses()
        self._outputs = set(graph.outputs)
        self._last: dict[Value, Value] = {}
        self._pending: set[Value] = set()  # computed with channels last only
        self._taken: set[Node] = set()
        self._nodes: list[Node] = []
        self._rules: dict[str, Callable[[Node], bool]] = {
            "Conv": self._conv,
            "partita::Conv": self._conv,
            "ConvTranspose": self._conv_transpose,
            "partita::ConvTranspose": self._conv_transpose,
            "Resize": self._resize,
            "MaxPool": self._window,
            "AveragePool": self._window,
            "GlobalAveragePool": self._follow_renamed,
            "GlobalMaxPool": self._follow_renamed,
            "BatchNormalization": self._batch_normalization,
            "Concat": self._concat,
            **dict.fromkeys(ELEMENTWISE, self._elementwise),
        }

    def run(self) -> None:
        for node in self._graph.nodes:
            if node in self._taken:
                continue
            rule = self._rules.get(node.kind)
            if rule is None or not self._is_image(node.outputs[0]) or not rule(node):
                for value in node.reads():
                    self._bring_back(value, node)
                self._nodes.append(node)
        for value in self._graph.outputs:
            self._bring_back(value, None)
        self._graph.nodes = self._nodes

    def _conv(self, node: Node) -> bool:
        x, w = node.inputs[0], node.inputs[1]
        bias, residual = node.input(2), node.input(3)
        if not self._is_image(x) or x is None or w is None or w.const is None:
            return False
        if w.const.ndim != 4 or w.const.dtype != np.float32 or not w.const.size:
            return False
        if bias is not None and (bias.const is None or bias.const.ndim != 1):
            return False
        groups = int(node.attrs.get("group", 1))
        depthwise = 1 < groups == w.const.shape[0] == w.const.shape[0] // w.const.shape[1]
        if groups > 1 and not depthwise and w.const.shape[1] < 4:
            return False
        if residual is not None and (depthwise or not self._is_image(residual)):
            return False
        inputs = [*self._widened(node, x, w), bias]
        if residual is not None:
            inputs.append(self._bring(residual, node))
        self._replace(node, inputs, "Conv", DOMAIN)
        return True

    def _conv_transpose(self, node: Node) -> bool:
        """Those whose windows touch but do not overlap; others stay behind."""
        x, w, bias = node.inputs[0], node.inputs[1], node.input(2)
        if x is None or not self._is_image(x) or w is None or w.const is None:
            return False
        attrs = node.attrs
        moved = (*attrs.get("pads", ()), *attrs.get("output_padding", ()))
        plain = not any(moved) and "output_shape" not in attrs
        if w.const.ndim != 4 or w.const.dtype != np.float32 or not w.const.size or not plain:
            return False
        touches = list(attrs.get("strides") or [1, 1]) == list(w.const.shape[2:])
        simple = attrs.get("group", 1) == 1 and set(attrs.get("dilations") or [1]) == {1}
        if not touches or not simple or attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return False
        if node.input(3) is not None or (bias is not None and bias.const is None):
            return False
        self._replace(node, [self._bring(x, node), w, bias], "ConvTranspose", DOMAIN)
        return True

    def _resize(self, node: Node) -> bool:
        """The operator takes any axes, so that only its numbers per axis change places."""
        x = node.inputs[0]
        if x is None or not self._is_last(x) or node.version < 11 or "axes" in node.attrs:
            return False
        if node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
            return False
        inputs: list[Value | None] = [None, None]
        for value in node.inputs[2:]:
            if value is None or (value.const is not None and value.const.size == 0):
                inputs.append(None)
            elif value.const is None or value.const.shape != (4,):
                return False
            else:
                inputs.append(Value.constant(value.const[list(_TO_LAST)], value.name))
        inputs[0] = self._bring(x, node)
        self._replace(node, inputs, node.op_type, node.domain)
        return True

    def _widened(self, node: Node, x: Value, w: Value) -> tuple[Value, Value]:
        """Input and weights of a convolution; the three channels of a picture become four.

        Then whole rows of the kernel are runs of a length that vectors and tiles take well.
        """
        taps = 1 if w.const is None else w.const.shape[3]
        if x in self._last or w.const is None or w.const.shape[1] != 3 or taps == 1:
            return self._bring(x, node), w
        wide = Value(f"{x.name}:nhwc4", np.dtype(np.float32))
        self._nodes.append(self._reorder("ToChannelsLast", x, wide, node))
        self._nodes[-1].attrs["channels"] = 4
        return wide, Value.constant(np.pad(w.const, ((0, 0), (0, 1), (0, 0), (0, 0))), w.name)

    def _window(self, node: Node) -> bool:
        if not self._is_image(node.inputs[0]) or any(node.outputs[1:]):
            return False
        return self._follow_renamed(node)

    def _follow_renamed(self, node: Node) -> bool:
        x = node.inputs[0]
        if x is None or not self._is_last(x):
            return False
        self._replace(node, [self._bring(x, node)], node.op_type, DOMAIN)
        return True

    def _batch_normalization(self, node: Node) -> bool:
        x = node.inputs[0]
        parts = [value.const for value in node.inputs[1:5] if value is not None]
        if x is None or not self._is_last(x) or any(node.outputs[1:]) or len(parts) != 4:
            return False
        arrays = [part.astype(np.float64) for part in parts if part is not None]
        if len(arrays) != 4 or node.attrs.get("training_mode") or node.version < 9:
            return False
        scale, offset, mean, variance = arrays
        factor = scale / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
        numbers = [factor, offset - mean * factor]
        inputs: list[Value | None] = [self._bring(x, node)]
        inputs += [Value.constant(row.astype(np.float32)) for row in numbers]
        last, activation = node, None
        users = self._uses.get(node.outputs[0], []) if node.outputs[0] is not None else []
        if len(users) == 1 and node.outputs[0] not in self._outputs:
            activation = activation_of(users[0])
            if activation is not None and users[0].inputs[0] is node.outputs[0]:
                last = users[0]
                self._taken.add(last)
        origins = node.origins if last is node else (*node.origins, *last.origins)
        attrs = {"activation": activation if last is not node else None}
        self._append(node, inputs, last.outputs[0], "ScaleShift", DOMAIN, attrs, origins)
        return True

    def _concat(self, node: Node) -> bool:
        rank_axis = int(node.attrs.get("axis", 1)) % 4
        if not all(self._is_image(value) for value in node.inputs):
            return False
        there = sum(self._is_last(value) for value in node.inputs)
        if 2 * there < len(node.inputs) or not there:
            return False
        inputs = [self._bring(value, node) for value in node.inputs if value is not None]
        attrs = {**node.attrs, "axis": _TO_LAST.index(rank_axis)}
        self._append(node, inputs, node.outputs[0], node.op_type, node.domain, attrs, node.origins)
        return True

    def _elementwise(self, node: Node) -> bool:
        there = others = 0
        for value in node.inputs:
            if value is None or value.const is not None:
                if value is not None and value.const is not None and value.const.ndim > 4:
                    return False
                continue
            if self._is_last(value):
                there += 1
            elif self._is_image(value):
                others += 1
            elif self._shape(value) != ():
                return False
        if not there or others > there:
            return False
        inputs = [None if value is None else self._beside(value, node) for value in node.inputs]
        self._replace(node, inputs, node.op_type, node.domain)
        return True

    def _beside(self, value: Value, node: Node) -> Value:
        """An element-wise operator's input as it must be for channels last."""
        if value.const is None:
            return self._bring(value, node) if self._shape(value) != () else value
        if value.const.ndim == 0:
            return value
        four = value.const.reshape((1,) * (4 - value.const.ndim) + value.const.shape)
        return Value.constant(np.ascontiguousarray(four.transpose(_TO_LAST)), value.name)

    def _replace(
        self, node: Node, inputs: list[Value | None] | list[Value], op_type: str, domain: str
    ) -> None:
        self._append(node, inputs, node.outputs[0], op_type, domain, node.attrs, node.origins)

    def _append(
        self,
        node: Node,
        inputs: list[Value | None] | list[Value],
        output: Value | None,
        op_type: str,
        domain: str,
        attrs: Mapping[str, object],
        origins: tuple[str, ...],
    ) -> None:
        if output is None:
            return
        twin = Value(f"{output.name}:nhwc", np.dtype(np.float32))
        self._last[output] = twin
        self._pending.add(output)
        self._nodes.append(
            Node(
                op_type,
                inputs,
                [twin],
                attrs,
                domain=domain,
                version=node.version,
                name=node.name,
                origins=origins,
            )
        )

    def _bring(self, value: Value, node: Node) -> Value:
        """The value with channels last, reordered if nobody computes it so."""
        twin = self._last.get(value)
        if twin is None:
            twin = self._last[value] = Value(f"{value.name}:nhwc", np.dtype(np.float32))
            self._nodes.append(self._reorder("ToChannelsLast", value, twin, node))
        return twin

    def _bring_back(self, value: Value, node: Node | None) -> None:
        """Makes sure that the value itself is computed."""
        if value in self._pending:
            self._pending.remove(value)
            owner = node or value.producer
            self._nodes.append(self._reorder("ToChannelsFirst", self._last[value], value, owner))

    @staticmethod
    def _reorder(op_type: str, source: Value, target: Value, owner: Node | None) -> Node:
        name = owner.name if owner is not None else target.name
        origins = owner.origins if owner is not None else ()
        return Node(
            op_type, [source], [target], domain=DOMAIN, name=f"{name}/layout", origins=origins
        )

    def _is_last(self, value: Value | None) -> bool:
        return value in self._last

    def _is_image(self, value: Value | None) -> bool:
        if value is None or (value.dtype is not None and value.dtype != np.float32):
            return False
        shape = self._shape(value)
        return value.const is None and shape is not None and len(shape) == 4

    def _shape(self, value: Value) -> tuple[int, ...] | None:
        return self._shapes.get(value)
