"""An operator is added to OPENCL as the documents say: by an emitter and a kernel."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import partita_opencl

PAGE = Path(__file__).parents[4] / "docs" / "adding-things.md"

USE_THE_OPERATOR = """
import numpy as np
from onnx import parser

import partita

MODEL = '''
<ir_version: 9, opset_import: ["" : 20, "com.example" : 1]>
g (TYPE[N,3] x) => (TYPE[N,3] y) { h = Neg(x) y = com.example.Double(h) }
'''
core = partita.Core()
floats, whole = (parser.parse_model(MODEL.replace("TYPE", name)) for name in ("float", "int64"))
refused = core.query_model(whole, "OPENCL").reasons
assert [reason.code.name for reason in refused.values()] == ["UNSUPPORTED_DTYPE"], refused
x = np.arange(600, dtype=np.float32).reshape(200, 3)
for precision in ("f32", "f16"):
    compiled = core.compile_model(floats, "OPENCL", {"INFERENCE_PRECISION_HINT": precision})
    for rows in (200, 1):
        np.testing.assert_array_equal(compiled([x[:rows]])["y"], -2 * x[:rows])
"""


def test_an_emitter_and_a_kernel_are_enough_for_an_operator(tmp_path):
    blocks = re.findall(r"^```\w*\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (emitter,) = (block for block in blocks if "partita_opencl.emitters" in block)
    (kernel,) = (block for block in blocks if "__kernel" in block)
    ignored = shutil.ignore_patterns("__pycache__")
    package = tmp_path / "partita_opencl"
    shutil.copytree(Path(partita_opencl.__file__).parent, package, ignore=ignored)
    (package / "emitters" / "double.py").write_text(emitter)
    (package / "cl" / "double.cl").write_text(kernel)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", USE_THE_OPERATOR],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
