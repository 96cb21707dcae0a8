"""A small model with its inputs, and its outputs as they are to be: what a driver is tried by."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from partita.lowering import Array

OPSET = 24

MICROSOFT = "com.microsoft"

Family = Callable[["Sample"], None]
"""Fills a model in."""


class FamilyChecks(dict[str, Family]):
    """By the name of a family of kernels the function that fills its model in."""

    def family(self, fill: Family) -> Family:
        """Enters a function by its name, without the underscore in front."""
        self[fill.__name__.strip("_")] = fill
        return fill


class Sample:
    """A model of a family with its inputs, and its outputs as they are to be."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.feeds: dict[str, Array] = {}
        self.weights: dict[str, Array] = {}
        self.expected: dict[str, Array] = {}
        self.random = np.random.default_rng(0)
        self._names = (f"y{n}" for n in itertools.count())

    def numbers(self, *shape: int) -> Array:
        """Numbers of both signs that float16 and bfloat16 hold, in float32."""
        steps: Array = self.random.integers(-64, 65, shape)
        return (steps / 32.0).astype(np.float32)

    def feed(self, name: str, array: Array) -> Array:
        """Adds an input of the model; returns it in float64."""
        self.feeds[name] = array
        return array.astype(np.float64)

    def weight(self, name: str, array: Array) -> Array:
        """Adds a constant of the model; returns it in float64."""
        self.weights[name] = array
        return array.astype(np.float64)

    def step(self, op_type: str, inputs: str, output: str, **attrs: Any) -> None:
        """Adds an operation; inputs are separated by blanks, and so are outputs."""
        from onnx import helper

        names = inputs.split(" "), output.split(" ")
        self.nodes.append(helper.make_node(op_type, *names, output, **attrs))

    def check(self, op_type: str, inputs: str, expected: Array, **attrs: Any) -> None:
        """Adds an operation whose result is an output."""
        name = next(self._names)
        self.step(op_type, inputs, name, **attrs)
        self.expected[name] = expected

    def model(self) -> Any:
        """The ONNX model."""
        from onnx import helper, numpy_helper

        ports = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in self.feeds.items()
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.expected]
        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, "trial", ports, outputs, weights)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def keep(self, number: int) -> None:
        """Leaves only one of the outputs, by its number, and what that one needs."""
        (name,) = list(self.expected)[number : number + 1]
        self.expected = {name: self.expected[name]}
        needed = {name}
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                kept.append(node)
                needed.update(node.input)
        self.nodes = kept[::-1]
        self.feeds = {name: x for name, x in self.feeds.items() if name in needed}
        self.weights = {name: x for name, x in self.weights.items() if name in needed}

    def error(self, found: Mapping[str, Array]) -> float:
        """The largest relative error of an output; infinite for one of a wrong shape."""
        return max(_distance(found[name], expected) for name, expected in self.expected.items())


def _distance(found: Array, expected: Array) -> float:
    if found.shape != expected.shape:
        return np.inf
    difference = float(np.linalg.norm(found.astype(np.float64) - expected))
    return difference / max(float(np.linalg.norm(expected)), 1e-30)
