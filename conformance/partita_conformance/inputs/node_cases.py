"""ONNX's own node cases, as the kit runs them; they are made anew, which takes seconds."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
_RANDOM |= {"RandomUniformLike"}


@dataclass(frozen=True)
class NodeCase:
    """One of ONNX's node cases.

    Attributes:
        name: Without ``test_``.
        model: The serialized model.
        runs: Pairs of inputs and expected outputs.
        rtol: Relative tolerance that ONNX gives.
        atol: Absolute tolerance that ONNX gives.
        op: The operator it is about.
        dtype: Element type of the first input (or output).
        form_only: Whether the outputs are random, so that only shape and dtype are compared.
        values: Whether an output of zeros would be wrong.
    """

    name: str
    model: bytes
    runs: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float
    op: str
    dtype: str
    form_only: bool
    values: bool

    def proto(self) -> onnx.ModelProto:
        """The model."""
        model = onnx.ModelProto()
        model.ParseFromString(self.model)
        return model


@functools.cache
def node_cases() -> dict[str, NodeCase]:
    """All node cases by name, in ONNX's order. The first call takes seconds."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they divide by zero as they are made, on purpose
        loaded = load_model_tests(kind="node")
    cases = [_node_case(case) for case in loaded]
    return {case.name: case for case in cases}


def _node_case(case: Any) -> NodeCase:
    nodes = case.model.graph.node
    name = case.name.removeprefix("test_")
    runs = [
        ([_value(item) for item in inputs], [_value(item) for item in outputs])
        for inputs, outputs in case.data_sets
    ]
    random = any(node.op_type in _RANDOM for node in nodes) or (
        name.startswith("training_dropout") and "zero_ratio" not in name
    )
    return NodeCase(
        name,
        case.model.SerializeToString(),
        runs,
        case.rtol,
        case.atol,
        nodes[0].op_type if len(nodes) == 1 else _operator_of(name, nodes),
        _dtype(case.model),
        random,
        not random and any(_has_more_than_zeros(outputs) for _, outputs in runs),
    )


def _operator_of(name: str, nodes: Any) -> str:
    """Of a case of several nodes: the one that its name has, else the last one's operator."""
    flat = name.replace("_", "")
    fitting = [node.op_type for node in nodes if node.op_type.lower() in flat]
    return str(max(fitting, key=len)) if fitting else str(nodes[-1].op_type)


def _dtype(model: onnx.ModelProto) -> str:
    for value in (*model.graph.input, *model.graph.output):
        element = value.type.tensor_type.elem_type
        if element:
            return str(helper.tensor_dtype_to_string(element).rpartition(".")[2].lower())
    return "sequence"


def _value(item: Any) -> Any:
    """A value as worker processes read it from a file: scalars are arrays too."""
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    return np.asarray(item) if isinstance(item, np.generic) else item


def _has_more_than_zeros(value: Any) -> bool:
    if value is None or isinstance(value, list):
        return any(_has_more_than_zeros(item) for item in value or ())
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        return any(array.ravel())  # an empty text is the zero of texts
    return bool(np.any(array.astype(bool)))
