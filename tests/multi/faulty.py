"""A device that computes some operations wrongly: alone, only when fused, or only for long sums."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from partita.errors import InferError
from partita.frontends.reader import read_model

from .fakes import FakeCompiled, FakeDevice, FakeRunner


class FaultyDevice(FakeDevice):
    """Multiplies the results of some operations.

    Args:
        name: Device name.
        wrong: Operator to the factor of its results.
        fused: Pair of operators to a factor: the second one's results are wrong if it is the only
            reader of the first one's, and these are no output.
        dies_on: Operators that make every run raise.
    """

    def __init__(self, name, wrong=None, fused=None, dies_on=(), **more):
        super().__init__(name, **more)
        self.wrong, self.fused, self.dies_on = wrong or {}, fused or {}, set(dies_on)

    def compile_model(self, model, properties):
        super().compile_model(model, properties)  # notes what it was given
        proto = model.to_onnx()
        spoil(proto.graph, self.wrong, self.fused)
        spoilt = read_model(proto)
        compiled = FaultyCompiled(spoilt, properties, self.device_name, self)
        compiled.dies = any(op.op_type in self.dies_on for op in model.ops)
        return compiled


class FaultyCompiled(FakeCompiled):
    def create_runner(self):
        return FaultyRunner(self)


class FaultyRunner(FakeRunner):
    def __init__(self, compiled):
        super().__init__(compiled)
        self.dies = compiled.dies

    def run(self, inputs, outputs=None):
        if self.dies:
            raise InferError("the driver gave up")
        return super().run(inputs, outputs)


def spoil(graph, wrong, fused):
    """Adds a Mul behind each operation that is to be wrong."""
    outputs = {info.name for info in graph.output}
    makers = {name: n for n in graph.node for name in n.output}
    readers = [name for n in graph.node for name in n.input]
    nodes = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                spoil(attribute.g, wrong, fused)
        factor = wrong.get(node.op_type)
        for name in node.input:
            maker = makers.get(name)
            pair = (maker.op_type, node.op_type) if maker is not None else None
            if pair in fused and name not in outputs and readers.count(name) == 1:
                factor = fused[pair]
        nodes.append(node)
        if factor is not None:
            true = node.output[0]
            node.output[0] = f"{true}__true"
            one = numpy_helper.from_array(np.float32(factor), f"{true}__factor")
            constant = helper.make_node("Constant", [], [f"{true}__f"], value=one)
            multiply = helper.make_node("Mul", [f"{true}__true", f"{true}__f"], [true])
            nodes += [constant, multiply]
    copy = onnx.GraphProto()
    copy.CopyFrom(graph)
    del copy.node[:]
    copy.node.extend(nodes)
    graph.CopyFrom(copy)
