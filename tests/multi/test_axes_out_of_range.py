"""Axes that a tensor does not have are refused by every device, for each operator with axes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnx import defs, helper

import partita
from partita_conformance.draws.operators import GENERATORS, draw

NAMES = {"axis", "axes", "batch_axis", "time_axis", "scan_input_axes", "scan_output_axes"}
LONGER = {"Flatten", "OneHot", "Scan", "Unsqueeze"}
"""Operators that name axes of their result, or the end of all axes."""
FAR = 9


def named_axes(op_type, drawn):
    """Attributes and places of inputs that name axes in a draw."""
    schema = defs.get_schema(op_type, drawn.opset, drawn.domain)
    inputs = [formal.name for formal in schema.inputs][: len(drawn.inputs)]
    places = [n for n, name in enumerate(inputs) if name in NAMES]
    return [a for a in schema.attributes if a in NAMES], [
        n for n in places if drawn.inputs[n] is not None and drawn.inputs[n].size
    ]


def with_axis(drawn, where, axis):
    """The draw with its first axis changed."""
    if isinstance(where, str):
        given = drawn.attributes.get(where)
        plural = isinstance(given, list) or (given is None and "axes" in where)
        changed = [axis, *(given or [])[1:]] if plural else axis
        return dataclasses.replace(drawn, attributes={**drawn.attributes, where: changed})
    inputs = list(drawn.inputs)
    inputs[where] = inputs[where].copy()
    inputs[where].flat[0] = axis
    return dataclasses.replace(drawn, inputs=inputs)


def is_without_axis(op_type, drawn):
    """Whether one scale stands for the whole tensor, of which no axis is looked at."""
    return op_type in ("QuantizeLinear", "DequantizeLinear") and drawn.inputs[1].size == 1


def model_of(op_type, drawn, shaped):
    """The model of a draw, whose inputs have shapes or not, and what it is fed."""
    names = ["" if array is None else f"in{n}" for n, array in enumerate(drawn.inputs)]
    outputs = [f"out{n}" for n in range(drawn.outputs)]
    feeds = {name: x for name, x in zip(names, drawn.inputs, strict=True) if name}
    graph = helper.make_graph(
        [helper.make_node(op_type, names, outputs, domain=drawn.domain, **drawn.attributes)],
        "axes",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape if shaped else None
            )
            for name, x in feeds.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    opsets = [helper.make_opsetid("", drawn.opset)]
    opsets += [helper.make_opsetid(drawn.domain, 1)] if drawn.domain else []
    version = max(8, helper.find_min_ir_version_for(opsets, ignore_unknown=True))
    return helper.make_model(graph, opset_imports=opsets, ir_version=version), feeds


def wrong_models(op_type):
    """Models that name an axis which is not there, with what it was set to."""
    seen = set()
    for number in range(6):
        drawn = draw(op_type, number)
        first = next((x for x in drawn.inputs if x is not None), None)
        if first is None or not defs.has(op_type, drawn.domain):
            continue
        attributes, places = named_axes(op_type, drawn)
        for where in (*attributes, *places):
            kind = where, first.ndim, drawn.opset, type(drawn.attributes.get(where))
            if kind in seen or is_without_axis(op_type, drawn):
                continue
            seen.add(kind)
            near = () if op_type in LONGER else (first.ndim, -first.ndim - 1)
            for axis in (*near, FAR, -FAR):
                for shaped in (True, False):
                    told = f"{where}={axis} of {first.ndim}, shapes {shaped}"
                    yield told, *model_of(op_type, with_axis(drawn, where, axis), shaped)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["CPU", "OPENCL", "REFERENCE"])
@pytest.mark.parametrize("op_type", sorted(GENERATORS))
def test_an_axis_that_is_not_there_is_refused(op_type, device):
    core = partita.Core()
    for told, proto, feeds in wrong_models(op_type):
        try:
            results = core.compile_model(proto, device)(feeds).to_tuple()
        except partita.PartitaError:
            continue
        pytest.fail(f"{told}: {[np.shape(result) for result in results]}")


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("op_type", ["Gather", "GatherElements", "LpNormalization", "TopK"])
def test_reference_knows_that_a_scalar_has_no_axis(op_type, axis):
    x = np.float32(3)
    inputs = {"LpNormalization": [x], "TopK": [x, np.array([1])]}.get(op_type, [x, np.array(0)])
    drawn = dataclasses.replace(
        draw(op_type, 0), inputs=[np.asarray(i) for i in inputs], attributes={"axis": axis}
    )
    proto, feeds = model_of(op_type, drawn, False)
    with pytest.raises(partita.errors.InputError, match=f"axis {axis} is out of range for 0"):
        partita.Core().compile_model(proto, "REFERENCE")(feeds)
