"""Which matrices of 16 bits stay so in memory: that goes by what caches hold of all of them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.lowering import lower
from partita.system.cache_sizes import CacheSizes
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.precision_policy import STORED_ELEMENTS, PrecisionPolicy
from partita_cpu.gemm.product_steps import FEW_ELEMENTS, stored_elements
from partita_cpu.llvm.levels import PORTABLE
from partita_cpu.machine_model import VARIABLE, MachineModel

SIZE = 300  # 90,000 elements, 360,000 bytes as float32
CACHES = CacheSizes(32 << 10, 512 << 10, 0)  # of a core; two hold a megabyte


def chain(matrices, repeats=1, read_by_rows=0, in_branches=False):
    """Products one behind another by so many matrices, each of them so many times."""
    rng = np.random.default_rng(0)
    constants = {
        f"w{n}": (rng.standard_normal((SIZE, SIZE)) / 20).astype(np.float16)
        for n in range(matrices)
    }
    nodes, x = [], "x"
    for n in range(matrices * repeats):
        nodes.append(helper.make_node("Cast", [f"w{n % matrices}"], [f"c{n}"], to=1))
        nodes.append(helper.make_node("MatMul", [x, f"c{n}"], [f"y{n}"], f"product{n}"))
        x = f"y{n}"
    if read_by_rows:
        constants["table"] = np.ones((read_by_rows, SIZE), np.float16)
        nodes += [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("Cast", ["rows"], ["wide"], to=1),
            helper.make_node("Add", [x, "wide"], ["sum"]),
        ]
        constants["ids"], x = np.array([0], np.int64), "sum"
    told = [helper.make_tensor_value_info("x", 1, (1, SIZE))]
    if in_branches:
        made = [helper.make_tensor_value_info(x, 1, (1, SIZE))]
        other = [helper.make_node("Identity", ["x"], ["z"])]
        same = [helper.make_tensor_value_info("z", 1, (1, SIZE))]
        branches = {
            "then_branch": helper.make_graph(nodes, "then", [], made),
            "else_branch": helper.make_graph(other, "else", [], same),
        }
        nodes, x = [helper.make_node("If", ["flag"], ["out"], **branches)], "out"
        told.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, ()))
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    made = [helper.make_tensor_value_info(x, 1, (1, SIZE))]
    graph = helper.make_graph(nodes, "chain", told, made, weights)
    opsets = [helper.make_opsetid("", 21)]
    return partita.Core().read_model(
        helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"matrices": 2}, STORED_ELEMENTS),
        ({"matrices": 3}, FEW_ELEMENTS),
        ({"matrices": 2, "repeats": 2}, STORED_ELEMENTS),
        ({"matrices": 2, "read_by_rows": 4000}, STORED_ELEMENTS),
        ({"matrices": 3, "in_branches": True}, FEW_ELEMENTS),
    ],
)
def test_matrices_are_counted_once_wherever_products_read_them(options, expected):
    policy = PrecisionPolicy(MachineModel(PORTABLE, 2, CACHES), Arithmetic.F32, 1)
    assert stored_elements(policy, lower(chain(**options))) == expected


def test_a_third_level_is_counted():
    machine = MachineModel(PORTABLE, 2, CACHES._replace(l3=2 << 20))
    policy = PrecisionPolicy(machine, Arithmetic.F32, 1)
    assert stored_elements(policy, lower(chain(11))) == STORED_ELEMENTS
    assert stored_elements(policy, lower(chain(12))) == FEW_ELEMENTS


@pytest.mark.parametrize(("matrices", "stays"), [(1, False), (200, True)])
def test_products_read_what_stays(monkeypatch, level, matrices, stays):
    monkeypatch.setenv(VARIABLE, "32K/512K")
    model = chain(matrices)
    x = np.random.default_rng(1).standard_normal((1, SIZE)).astype(np.float32)
    compiled = partita.Core().compile_model(model, "CPU", {"PERF_COUNT": True})
    request = compiled.create_infer_request()
    request.infer({"x": x})
    steps = request.get_profiling_info()
    kinds = {step.exec_type for step in steps if step.node_name.startswith("product")}
    assert all(kind.endswith("_by_f16") is stays for kind in kinds)
    kept = compiled.device_model.export_state().values()
    assert stays is not any(a.dtype == np.float32 and a.size >= SIZE * SIZE for a in kept)
