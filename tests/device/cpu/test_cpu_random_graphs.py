"""Random graphs of everything that is fused, viewed, folded and shared, against onnxruntime.

Each graph is a random walk that keeps a pool of tensors of one image shape and one of a row shape.
Some values are outputs as well, so that fusion and the memory plan meet all kinds of uses.
"""

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper

import partita

CHANNELS = 4
SIZE = (5, 6)


class Builder:
    """Grows a graph by random operations."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes = []
        self.weights = []
        self.images = ["x"]
        self.rows = ["r"]
        self.count = 0

    def name(self, prefix):
        self.count += 1
        return f"{prefix}{self.count}"

    def weight(self, *shape, scale=0.4, positive=False, array=None):
        if array is None:
            array = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        array = np.abs(array) + 0.5 if positive else array
        name = self.name("w")
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op_type, *inputs, **attrs):
        output = self.name("t")
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], **attrs))
        return output

    def pick(self, pool):
        # Mostly the latest value, as in real models, else any.
        if self.rng.random() < 0.6:
            return pool[-1]
        return pool[self.rng.integers(len(pool))]

    def grow_image(self):
        x = self.pick(self.images)
        match self.rng.integers(12):
            case 0:
                group = int(self.rng.choice([1, 2, CHANNELS]))
                w = self.weight(CHANNELS, CHANNELS // group, 3, 3)
                bias = [self.weight(CHANNELS)] if self.rng.random() < 0.5 else []
                y = self.add("Conv", x, w, *bias, pads=[1, 1, 1, 1], group=group)
            case 1:
                y = self.add("Conv", x, self.weight(CHANNELS, CHANNELS, 1, 1))
            case 2:
                stats = [self.weight(CHANNELS) for _ in range(3)]
                y = self.add("BatchNormalization", x, *stats, self.weight(CHANNELS, positive=True))
            case 3:
                y = self.add(str(self.rng.choice(["Relu", "Tanh", "HardSwish", "Sigmoid"])), x)
            case 4:
                y = self.add(str(self.rng.choice(["Add", "Sub"])), x, self.pick(self.images))
            case 5:
                y = self.add("Mul", x, self.add("Sigmoid", x))
            case 6:
                y = self.add("Mul", x, self.weight(CHANNELS, 1, 1))
            case 7:
                shape = self.weight(array=np.array([-1, CHANNELS, SIZE[1], SIZE[0]]))
                y = self.add("Transpose", self.add("Reshape", x, shape), perm=[0, 1, 3, 2])
            case 8:
                pads = self.weight(array=np.array([0, 0, 1, 1, 0, 0, 1, 1]))
                w = self.weight(CHANNELS, CHANNELS, 3, 3)
                y = self.add("Conv", self.add("Pad", x, pads), w)
            case 9:
                low, high = (self.weight(array=np.float32(v)) for v in (-0.5, 2.0))
                y = self.add("Clip", x, low, high)
            case 10:
                mean = self.add("GlobalAveragePool", x)
                gate = self.add(
                    "Sigmoid", self.add("Conv", mean, self.weight(CHANNELS, CHANNELS, 1, 1))
                )
                y = self.add("Mul", x, gate)
            case _:
                y = self.add("Identity", x)
        self.images.append(y)

    def grow_row(self):
        x = self.pick(self.rows)
        match self.rng.integers(7):
            case 0:
                y = self.add("MatMul", x, self.weight(8, 8))
                y = self.add("Add", y, self.weight(8))
            case 1:
                attrs = {"transB": int(self.rng.integers(2)), "alpha": 0.5, "beta": 2.0}
                y = self.add("Gemm", x, self.weight(8, 8), self.weight(1, 8), **attrs)
            case 2:
                y = self.add("LayerNormalization", x, self.weight(8), self.weight(8), epsilon=1e-3)
            case 3:
                y = self.add("Softmax", x)
            case 4:
                y = self.add("Add", x, self.pick(self.rows))
            case 5:
                half = self.weight(array=np.float32(0.5))
                one = self.weight(array=np.float32(1))
                root = self.weight(array=np.float32(2**0.5))
                erf = self.add("Add", self.add("Erf", self.add("Div", x, root)), one)
                y = self.add("Mul", self.add("Mul", x, erf), half)
            case _:
                y = self.add("Relu", x)
        self.rows.append(y)

    def model(self):
        for _ in range(12):
            self.grow_image()
            self.grow_row()
        every = self.images + self.rows
        chosen = {self.images[-1], self.rows[-1]}
        chosen |= {str(name) for name in self.rng.choice(every, 4)}
        image, row = ["N", CHANNELS, *SIZE], ["N", 8]
        graph = helper.make_graph(
            self.nodes,
            "random",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, image),
                helper.make_tensor_value_info("r", TensorProto.FLOAT, row),
            ],
            [
                helper.make_tensor_value_info(
                    name, TensorProto.FLOAT, image if name in self.images else row
                )
                for name in sorted(chosen)
            ],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("seed", range(60))
def test_a_random_graph_computes_what_onnxruntime_computes(seed):
    builder = Builder(seed)
    model = builder.model()
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    for batch in (2, 1):
        feeds = {
            "x": builder.rng.standard_normal((batch, CHANNELS, *SIZE)).astype(np.float32),
            "r": builder.rng.standard_normal((batch, 8)).astype(np.float32),
        }
        wanted = onnxruntime_results(model, feeds)
        found = request.infer(feeds).to_tuple()
        for mine, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine, want, rtol=1e-3, atol=1e-4)
