"""Tables of kernels of CPU and OPENCL, beside ONNX's definitions."""

import onnx
import pytest
from onnx.defs import OpSchema

from partita_cpu.kernels.operator_table import TABLE as CPU

pytest.importorskip("pyopencl")
from partita_opencl.emitters.operator_table import TABLE as OPENCL

REPEATED = OpSchema.FormalParameterOption.Variadic
FEW = 12
"""An input of fewer types than this is of certain ones, as indices; data may be of almost all."""


def entries(table):
    table.load()
    for (domain, op_type), rows in table.entries.items():
        if domain == "" and onnx.defs.has(op_type):
            yield from rows


@pytest.mark.parametrize("table", [CPU, OPENCL], ids=["CPU", "OPENCL"])
def test_inputs_that_onnx_restricts_are_restricted(table):
    """Models need not tell types, and onnx's inference does not look at all of them."""
    unlimited = []
    for entry in entries(table):
        version = min(entry.until or 99, onnx.defs.onnx_opset_version())
        schema = onnx.defs.get_schema(entry.op_type, version, "")
        for place, given in enumerate(schema.inputs[: entry.arity[1]]):
            certain = len(given.types) < FEW and given.option != REPEATED
            if certain and entry.allowed(place) is None:
                unlimited.append(f"{entry.op_type} {given.name}")
    assert not unlimited
