"""Random small models that need no network: what cuts go wrong on, in any order.

Images, products, reductions, broadcasts, shapes that are computed from shapes, and sizes that come
as inputs and decide what is viewed, repeated or picked. The same number makes the same model.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
KINDS = {"f": TensorProto.FLOAT, "i": TensorProto.INT64}
SYMBOL = 3
"""What the symbol N stands for in the inputs."""


def random_model(seed: int) -> tuple[ModelProto, list[dict[str, Array]]]:
    """A model, and inputs for three runs; sizes that are inputs differ from run to run."""
    return _Model(seed).build()


class _Model:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"model {seed}")
        self.values = np.random.default_rng(seed)
        self.seed = seed
        self.nodes: list[Any] = []
        self.weights: dict[str, Array] = {}
        self.floats: list[tuple[str, Shape]] = []
        self.fed: dict[str, list[Array]] = {}
        self.inputs: list[Any] = []
        self.symbolic = self.rng.random() < 0.3

    def build(self) -> tuple[ModelProto, list[dict[str, Array]]]:
        rows = SYMBOL if self.symbolic else self.rng.choice([1, 2, 4])
        for name, shape in (("x", (rows, 4, 6, 6)), ("m", (rows, 8)), ("v", (8,))):
            dims = ["N", *shape[1:]] if self.symbolic and name != "v" else shape
            self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
            self.fed[name] = [
                self.values.standard_normal(shape).astype(np.float32) for _ in range(3)
            ]
            self.floats.append((name, shape))
        for _ in range(self.rng.randint(8, 30)):
            self.rng.choice(_MAKERS)(self)
        self._sized()
        read = {name for node in self.nodes for name in node.input}
        outputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * len(shape))
            for name, shape in self.floats[3:]
            if name not in read  # so that all operations are needed
        ]
        graph = helper.make_graph(
            self.nodes,
            f"random{self.seed}",
            self.inputs,
            outputs,
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return model, [{name: given[i] for name, given in self.fed.items()} for i in range(3)]

    # ------------------------------------------------------------------------ parts

    def add(self, op_type: str, inputs: list[str], count: int = 1, **attributes: Any) -> list[str]:
        names = [f"{op_type.lower()}{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(op_type, inputs, names, names[0], **attributes))
        return names

    def one(self, op_type: str, inputs: list[str], **attributes: Any) -> str:
        return self.add(op_type, inputs, **attributes)[0]

    def weight(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def noise(self, *shape: int) -> str:
        return self.weight(self.values.standard_normal(shape).astype(np.float32) * np.float32(0.3))

    def pick(self, rank: int | None = None) -> tuple[str, Shape]:
        """A value, one of the last ones rather than of the first."""
        found = [one for one in self.floats if rank is None or len(one[1]) == rank]
        return self.rng.choice(found[-6:]) if self.rng.random() < 0.8 else self.rng.choice(found)

    def keep(self, name: str, shape: Shape) -> None:
        self.floats.append((name, shape))

    def unary(self) -> None:
        name, shape = self.pick()
        ops = ("Relu", "Neg", "Abs", "Tanh", "Sigmoid", "Erf", "Identity", "Softplus", "LeakyRelu")
        self.keep(self.one(self.rng.choice(ops), [name]), shape)

    def binary(self) -> None:
        name, shape = self.pick()
        same = [other for other, due in self.floats if due == shape]
        other = self.rng.choice([*same, self.noise(*shape[-1:])])
        op_type = self.rng.choice(("Add", "Sub", "Mul", "Max", "Min"))
        self.keep(self.one("Tanh", [self.one(op_type, [name, other])]), shape)

    def chosen(self) -> None:
        name, shape = self.pick()
        larger = self.one("Greater", [name, self.noise(*shape[-1:])])
        self.keep(self.one("Where", [larger, name, self.noise(1)]), shape)

    def product(self) -> None:
        name, shape = self.pick()
        width = self.rng.choice((5, 8, 16))
        self.keep(self.one("MatMul", [name, self.noise(shape[-1], width)]), (*shape[:-1], width))

    def window(self) -> None:
        name, shape = self.pick(4)
        made = self.rng.choice((4, 6))
        kernel = self.noise(made, shape[1], 3, 3)
        convolved = self.one("Conv", [name, kernel, self.noise(made)], pads=[1, 1, 1, 1])
        shape = (shape[0], made, *shape[2:])
        if self.rng.random() < 0.5:
            pool = self.rng.choice(("MaxPool", "AveragePool"))
            convolved = self.one(pool, [convolved], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        self.keep(convolved, shape)

    def normalized(self) -> None:
        name, shape = self.pick()
        if self.rng.random() < 0.5:
            self.keep(self.one("Softmax", [name], axis=-1), shape)
            return
        scale, bias = self.noise(shape[-1]), self.noise(shape[-1])
        self.keep(self.one("LayerNormalization", [name, scale, bias], axis=-1), shape)

    def turned(self) -> None:
        name, shape = self.pick()
        order = self.rng.sample(range(1, len(shape)), len(shape) - 1)
        order = [0, *order] if len(shape) > 1 else [0]
        self.keep(self.one("Transpose", [name], perm=order), tuple(shape[axis] for axis in order))

    def reduced(self) -> None:
        name, shape = self.pick()
        op_type = self.rng.choice(("ReduceMean", "ReduceMax", "ReduceMin"))
        self.keep(self.one(op_type, [name], axes=[-1], keepdims=1), (*shape[:-1], 1))

    def joined(self) -> None:
        name, shape = self.pick()
        same = [other for other, due in self.floats if due[:-1] == shape[:-1]]
        others = self.rng.sample(same, min(len(same), self.rng.randint(1, 3)))
        widths = [dict(self.floats)[other][-1] for other in others]
        self.keep(
            self.one("Concat", [name, *others], axis=-1), (*shape[:-1], shape[-1] + sum(widths))
        )

    def parted(self) -> None:
        name, shape = self.pick()
        if shape[-1] < 2:
            return
        first = self.rng.randint(1, shape[-1] - 1)
        sizes = [first, shape[-1] - first]
        parts = self.add("Split", [name, self.weight(np.array(sizes))], 2, axis=-1)
        for part, size in zip(parts, sizes, strict=True):
            self.keep(part, (*shape[:-1], size))

    def flattened(self) -> None:
        """A view whose shape is computed from the value's own shape."""
        name, shape = self.pick()
        first = self.one("Gather", [self.one("Shape", [name]), self.weight(np.array([0]))])
        dims = self.one("Concat", [first, self.weight(np.array([-1]))], axis=0)
        self.keep(self.one("Reshape", [name, dims]), (shape[0], int(np.prod(shape[1:]))))

    def filled(self) -> None:
        name, shape = self.pick()
        made = self.one("ConstantOfShape", [self.one("Shape", [name])])
        self.keep(self.one("Add", [made, name]), shape)

    def picked(self) -> None:
        name, shape = self.pick()
        best = self.one("ArgMax", [name], axis=-1, keepdims=1)
        best = self.one("GatherElements", [name, best], axis=-1)
        self.keep(best, (*shape[:-1], 1))

    def _sized(self) -> None:
        """Sizes that come as inputs, cross, and decide a shape inside; a large sum takes room."""
        for number, op_type in enumerate(self.rng.sample(sorted(_SIZED), 2)):
            given = f"n{number}"
            sizes = _SIZED[op_type]
            self.inputs.append(
                helper.make_tensor_value_info(given, TensorProto.INT32, [len(sizes[0])])
            )
            self.fed[given] = [np.array(size, np.int32) for size in sizes]
            size = self.one("Cast", [self.one("Identity", [given])], to=TensorProto.INT64)
            table = self.one("Tanh", [self.one("Mul", ["v", self.noise(8, 8)])])
            row = self.one("Gather", [table, self.weight(np.array([0]))])
            if op_type == "Range":
                parts = [
                    self.one("Gather", [size, self.weight(np.array(i))], axis=0) for i in range(3)
                ]
                made = self.one("Cast", [self.one("Range", parts)], to=TensorProto.FLOAT)
            elif op_type == "TopK":
                made = self.add("TopK", [table, size], 2)[0]
            else:
                made = self.one(op_type, [row if op_type == "Expand" else table, size])
            total = self.one("ReduceSum", [made], keepdims=0)
            name, shape = self.pick()
            self.keep(self.one("Sigmoid", [self.one("Add", [name, total])]), shape)


_MAKERS = [
    *(_Model.unary, _Model.binary, _Model.binary, _Model.chosen, _Model.product, _Model.window),
    *(_Model.window, _Model.normalized, _Model.turned, _Model.reduced, _Model.joined),
    *(_Model.parted, _Model.flattened, _Model.filled, _Model.picked),
]
_SIZED = {
    "Reshape": [[4, 16], [2, 32], [64, 1]],
    "Expand": [[4, 8], [8, 8], [2, 8]],
    "Tile": [[1, 2], [3, 1], [2, 2]],
    "TopK": [[3], [8], [1]],
    "Range": [[0, 9, 2], [4, 5, 1], [-3, 40, 7]],
}
"""Operator to the sizes that it is given in each run."""
