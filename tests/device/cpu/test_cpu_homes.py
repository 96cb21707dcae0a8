"""Homes in which nothing can be kept: device CPU works, and says once why it starts slowly."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

COMPUTE = """
    import numpy as np
    from onnx import TensorProto, helper
    import partita

    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 512]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ports[:1], ports[1:])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    core = partita.Core()
    x = np.linspace(-3, 3, 64 * 512, dtype=np.float32).reshape(64, 512)
    for device in ("CPU", "HETERO:CPU,REFERENCE"):
        compiled = core.compile_model(model, device, {"INFERENCE_NUM_THREADS": 2})
        for _ in range(3):
            np.testing.assert_array_equal(compiled({"x": x})[0], np.maximum(x, 0))
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", ["portable", ""])
@pytest.mark.parametrize("home", ["a file", "below /proc"])
def test_a_home_where_nothing_can_be_kept(tmp_path, level, home):
    """The administrator may write where modes forbid it; below /proc nobody makes a folder."""
    place = "/proc/absent/home"
    if home == "a file":
        (tmp_path / "home").touch()
        place = str(tmp_path / "home")
    kept = "PARTITA_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"
    environment = {name: value for name, value in os.environ.items() if name not in kept}
    environment |= {"HOME": place, "PARTITA_CPU_ISA": level}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(COMPUTE)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    (said,) = run.stderr.splitlines()
    assert said.startswith(f"Nothing is kept in '{place}")
    assert "Fix that, or set PARTITA_CACHE_DIR to another folder." in said
