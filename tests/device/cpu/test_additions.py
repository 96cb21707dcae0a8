"""One file is enough for an operator of device CPU, and for a property.

Each is tried in a process of its own: what is registered once stays registered.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

KERNEL = """
from partita_cpu.jit.kernel import jit
from partita_cpu.kernels.operator_table import FLOATS, kernel


@jit
def triple_kernel(x, y, tid, nt):
    n = x.size
    for i in range(n * tid // nt, n * (tid + 1) // nt):
        y[i] = 3 * x[i]


@kernel("Triple", domain="com.example", dtypes=FLOATS)
def triple(b, node, x):
    y = b.empty(x.shape, x.dtype)
    b.call(triple_kernel, b.flat(x), b.flat(y))
    return y
"""

USE_THE_OPERATOR = """
import sys

import numpy as np
from onnx import parser

import partita
import partita_cpu.kernels

partita_cpu.kernels.__path__.append(sys.argv[1])
MODEL = '''
<ir_version: 9, opset_import: ["" : 20, "com.example" : 1]>
g (TYPE[N,3] x) => (TYPE[N,3] y) { h = Neg(x) y = com.example.Triple(h) }
'''
core = partita.Core()
floats, whole = (parser.parse_model(MODEL.replace("TYPE", name)) for name in ("float", "int64"))
assert set(core.query_model(floats, "CPU").values()) == {"CPU"}
refused = core.query_model(whole, "CPU").reasons
assert [reason.code.name for reason in refused.values()] == ["UNSUPPORTED_DTYPE"], refused
x = np.arange(6, dtype=np.float32).reshape(2, 3)
compiled = core.compile_model(floats, "CPU")
np.testing.assert_array_equal(compiled([x])["y"], -3 * x)
np.testing.assert_array_equal(compiled([x[:1]])["y"], -3 * x[:1])
"""

FIELD = '    TURBO: int = Field(1, ge=0, le=9, description="How fast.")\n'

USE_THE_PROPERTY = """
import importlib.util
import sys

spec = importlib.util.spec_from_file_location("partita_cpu.properties", sys.argv[1])
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

import partita
from partita.errors import PropertyError
from partita.zoo import builtin

core = partita.Core()
assert core.get_property("CPU", "SUPPORTED_PROPERTIES")["TURBO"] == "RW"
core.set_property("CPU", {"TURBO": "7"})
assert core.get_property("CPU", "TURBO") == 7
try:
    core.set_property("CPU", {"TURBO": 10})
except PropertyError as error:
    assert "TURBO" in str(error)
else:
    raise AssertionError("10 is no value of TURBO")
digits = builtin.model("digits")
compiled = core.compile_model(digits, "HETERO:CPU", {"DEVICE_PROPERTIES": {"CPU": {"TURBO": 3}}})
assert compiled.device_model.assembly.compiled[0].get_property("TURBO") == 3
assert core.compile_model(digits, "CPU").get_property("TURBO") == 7
"""


def run(script, argument):
    done = subprocess.run(
        [sys.executable, "-c", script, str(argument)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_file_is_enough_for_an_operator(tmp_path):
    (tmp_path / "triple.py").write_text(KERNEL)
    run(USE_THE_OPERATOR, tmp_path)


def test_a_field_is_enough_for_a_property(tmp_path):
    source = resources.files("partita_cpu").joinpath("properties.py").read_text()
    head, tail = source.split("    INFERENCE_PRECISION_HINT:", 1)
    changed = tmp_path / "properties.py"
    changed.write_text(f"{head}{FIELD}    INFERENCE_PRECISION_HINT:{tail}")
    run(USE_THE_PROPERTY, changed)
