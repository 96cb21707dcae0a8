"""ONNX graphs run by PyTorch, as somebody who writes for PyTorch would have them.

Images and filters lie channels last; attention, gelu and linear layers are PyTorch's own functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]


class TorchGraph:
    """An ONNX graph of a few operators, run by PyTorch.

    Args:
        model: The graph.
        device: PyTorch's device.
        precision: ``f32``, ``f16`` or ``bf16``: of weights, inputs and all between.

    Raises:
        KeyError: An operator is not known here.
    """

    def __init__(self, model: onnx.ModelProto, device: str, precision: str = "f32") -> None:
        import torch

        self.torch, self.device = torch, device
        kinds = {"f16": torch.float16, "bf16": torch.bfloat16}
        self.dtype = kinds.get(precision, torch.float32)
        constants = _constants(model)
        self.weights = {w.name: self.place(numpy_helper.to_array(w)) for w in constants}
        self.steps = []
        for node in in_pytorchs_words(model, {w.name: w for w in constants}):
            if node.output[0] in self.weights:
                continue
            attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            self.steps.append((getattr(self, _METHODS[node.op_type]), node, attrs))
        self.inputs = [p.name for p in model.graph.input if p.name not in self.weights]
        self.outputs = [p.name for p in model.graph.output]

    def place(self, array: Array) -> Any:
        """The array on the device, images and filters channels last; integers stay on the host."""
        tensor = self.torch.from_numpy(np.array(array))
        if not tensor.is_floating_point():
            return tensor  # shapes, which Python reads
        dtype = tensor.dtype if tensor.dtype == self.torch.float16 else self.dtype
        tensor = tensor.to(self.device, dtype)
        if tensor.ndim == 4:
            return tensor.contiguous(memory_format=self.torch.channels_last)
        if tensor.ndim == 5:
            return tensor.contiguous(memory_format=self.torch.channels_last_3d)
        return tensor

    def __call__(self, *inputs: Any) -> Any:
        values = {**self.weights, **dict(zip(self.inputs, inputs, strict=True))}
        for method, node, attrs in self.steps:
            given = [values[name] if name else None for name in node.input]
            values[node.output[0]] = method(node.op_type, attrs, *given)
        return [values[name] for name in self.outputs]

    def simple(self, op: str, attrs: Any, *x: Any) -> Any:
        t, f = self.torch, self.torch.nn.functional
        if op in ("Add", "Sum"):
            return sum(x[1:], start=x[0])
        functions: dict[str, Callable[..., Any]] = {
            "Relu": t.relu,
            "Mul": t.mul,
            "Div": t.div,
            "MatMul": t.matmul,
            "Erf": t.erf,
            "Gelu": f.gelu,
            "Linear": lambda y, w, b: f.linear(y, w.T, b),
            "Sigmoid": t.sigmoid,
            "HardSwish": f.hardswish,
            "Dropout": lambda y, *_: y,
            "Identity": lambda y: y,
            "GlobalAveragePool": lambda y: y.mean((2, 3), keepdim=True),
        }
        return functions[op](*x)

    def conv(self, op: str, attrs: Any, x: Any, w: Any, b: Any = None) -> Any:
        x, pads = self._padded(x, attrs)
        strides, dilations = attrs.get("strides", 1), attrs.get("dilations", 1)
        method = getattr(self.torch.nn.functional, f"conv{x.ndim - 2}d")
        return method(x, w, b, strides, pads, dilations, attrs.get("group", 1))

    def pool(self, op: str, attrs: Any, x: Any) -> Any:
        f = self.torch.nn.functional
        fill = float("-inf") if op == "MaxPool" else 0.0
        x, pads = self._padded(x, attrs, fill)
        size, strides = attrs["kernel_shape"], attrs.get("strides", [1, 1])
        ceil = bool(attrs.get("ceil_mode", 0))
        if op == "MaxPool":
            return f.max_pool2d(x, size, strides, pads, 1, ceil)
        counted = bool(attrs.get("count_include_pad", 0))
        return f.avg_pool2d(x, size, strides, pads, ceil, counted)

    def _padded(self, x: Any, attrs: Any, fill: float = 0.0) -> tuple[Any, list[int]]:
        """PyTorch pads both ends alike; what is not alike is padded first."""
        rank = x.ndim - 2
        pads = attrs.get("pads", [0] * 2 * rank)
        before, after = pads[:rank], pads[rank:]
        if before == after:
            return x, before
        both = [pad for axis in reversed(range(rank)) for pad in (before[axis], after[axis])]
        return self.torch.nn.functional.pad(x, both, value=fill), [0] * rank

    def gemm(self, op: str, attrs: Any, a: Any, b: Any, c: Any = None) -> Any:
        a = a.T if attrs.get("transA", 0) else a
        b = b.T if attrs.get("transB", 0) else b
        return a @ b if c is None else self.torch.addmm(c, a, b)

    def norm(self, op: str, attrs: Any, x: Any, *given: Any) -> Any:
        f, epsilon = self.torch.nn.functional, attrs.get("epsilon", 1e-5)
        if op == "LayerNormalization":
            return f.layer_norm(x, x.shape[-1:], *given, eps=epsilon)
        scale, bias, mean, variance = given
        return f.batch_norm(x, mean, variance, scale, bias, eps=epsilon)

    def lrn(self, op: str, attrs: Any, x: Any) -> Any:
        local = self.torch.nn.functional.local_response_norm
        return local(
            x,
            attrs["size"],
            attrs.get("alpha", 1e-4),
            attrs.get("beta", 0.75),
            attrs.get("bias", 1),
        )

    def shape(self, op: str, attrs: Any, x: Any, *given: Any) -> Any:
        if op == "Reshape":
            sizes = [x.shape[i] if n == 0 else n for i, n in enumerate(given[0].tolist())]
            return x.reshape(sizes)
        if op == "Transpose":
            return x.permute(attrs["perm"])
        if op == "Concat":
            return self.torch.cat((x, *given), attrs["axis"])
        if op == "Unsqueeze":
            axes = attrs["axes"] if "axes" in attrs else given[0].tolist()
            for axis in sorted(axes):
                x = x.unsqueeze(axis)
            return x
        return x.flatten(attrs.get("axis", 1))

    def softmax(self, op: str, attrs: Any, x: Any) -> Any:
        return self.torch.softmax(x, attrs.get("axis", -1 if x.ndim == 2 else 1))

    def hard_sigmoid(self, op: str, attrs: Any, x: Any) -> Any:
        return self.torch.clamp(x * attrs.get("alpha", 0.2) + attrs.get("beta", 0.5), 0, 1)

    def attention(self, op: str, attrs: Any, q: Any, k: Any, v: Any) -> Any:
        attend = self.torch.nn.functional.scaled_dot_product_attention
        return attend(q, k.transpose(-1, -2), v, scale=attrs["scale"])

    def clip(self, op: str, attrs: Any, x: Any, low: Any = None, high: Any = None) -> Any:
        return self.torch.clamp(x, low, high)


def in_pytorchs_words(
    model: onnx.ModelProto, constants: dict[str, onnx.TensorProto]
) -> list[onnx.NodeProto]:
    """The nodes, with what PyTorch has a function for as one node: attention, gelu, linear layers.

    Attention is ``softmax(q @ k * scale) @ v`` with k transposed already, as exporters write it.
    """
    made = {node.output[0]: node for node in model.graph.node}
    readers = Counter(name for node in model.graph.node for name in node.input)

    def number(name: str) -> float | None:
        found = constants.get(name)
        array = None if found is None else numpy_helper.to_array(found)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def chain(node: onnx.NodeProto | None, *op_types: str) -> list[onnx.NodeProto] | None:
        """A node and those before it by their first inputs, if nothing else reads them."""
        nodes: list[onnx.NodeProto] = []
        for op_type in op_types:
            if node is None or node.op_type != op_type:
                return None
            if nodes and readers[node.output[0]] != 1:
                return None
            nodes.append(node)
            node = made.get(node.input[0])
        return nodes

    def replaced(node: onnx.NodeProto) -> tuple[onnx.NodeProto, list[onnx.NodeProto]] | None:
        if found := chain(node, "MatMul", "Softmax", "Mul", "MatMul"):
            _, _, scaled, scores = found
            scale = number(scaled.input[1])
            if scale is not None:
                new = helper.make_node(
                    "Attention", [*scores.input, node.input[1]], node.output, scale=scale
                )
                return new, found
        if (found := chain(node, "Mul", "Mul")) and number(node.input[1]) == 0.5:
            x, gate = found[1].input
            rest = chain(made.get(gate), "Add", "Erf", "Div")
            if rest and rest[2].input[0] == x:
                return helper.make_node("Gelu", [x], node.output), found + rest
        if (found := chain(node, "Add", "MatMul")) and node.input[1] in constants:
            product = found[1]
            bias = constants[node.input[1]]
            if product.input[1] in constants and len(bias.dims) == 1:
                new = helper.make_node("Linear", [*product.input, node.input[1]], node.output)
                return new, found
        return None

    gone: set[str] = set()
    new: dict[str, onnx.NodeProto] = {}
    for node in model.graph.node:
        if found := replaced(node):
            new[node.output[0]] = found[0]
            gone.update(old.output[0] for old in found[1] if old is not node)
    return [
        new.get(node.output[0], node) for node in model.graph.node if node.output[0] not in gone
    ]


_METHODS = {
    **dict.fromkeys(("Add", "Sum", "Relu", "Mul", "Div", "MatMul", "Erf", "Sigmoid"), "simple"),
    **dict.fromkeys(("HardSwish", "Dropout", "Identity", "GlobalAveragePool"), "simple"),
    **dict.fromkeys(("MaxPool", "AveragePool"), "pool"),
    **dict.fromkeys(("LayerNormalization", "BatchNormalization"), "norm"),
    **dict.fromkeys(("Reshape", "Transpose", "Concat", "Unsqueeze", "Flatten"), "shape"),
    "Conv": "conv",
    "Gemm": "gemm",
    "LRN": "lrn",
    "Softmax": "softmax",
    "Gelu": "simple",
    "Linear": "simple",
    "Attention": "attention",
    "HardSigmoid": "hard_sigmoid",
    "Clip": "clip",
}


def _constants(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Initializers, and what nodes of shapes alone make, as the light topologies' weights."""
    found = {w.name: w for w in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape":
            shape = numpy_helper.to_array(found[node.input[0]])
            fill = [numpy_helper.to_array(a.t) for a in node.attribute if a.name == "value"]
            value = fill[0].reshape(-1)[0] if fill else np.float32(0)
            array = np.full(shape, value)
            found[node.output[0]] = numpy_helper.from_array(array, node.output[0])
    return list(found.values())
