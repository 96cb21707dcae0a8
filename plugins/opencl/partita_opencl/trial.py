"""Whether a device's matrix units compute rightly with this driver: tried once, in a process apart.

A kernel with inline PTX may be refused, compute nonsense, or break the context for good; none of
this must reach the process that computes. The verdict is kept with the compiled programs.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import subprocess
import sys

import numpy as np

from partita.lowering import Array
from partita_opencl.devices import Device, find_device
from partita_opencl.programs import ProgramKey, cache_folder

_log = logging.getLogger(__name__)

_SECONDS = 120
_GOOD = "good"
_SHAPES = ((96, 200, 72), (33, 515, 41), (5, 2048, 16), (64, 64, 64))
"""Rows, depth and columns of the products tried: even and odd ones, with and without splits."""

_trying = False


def objection(device: Device) -> str:
    """Why the device's matrix units are not used; empty if they are."""
    return "" if _trying else _tried(device.id)


@functools.cache
def _tried(device_id: str) -> str:
    device = find_device(device_id)
    folder = cache_folder()
    source = ProgramKey("product_matrix.cl").source()
    digest = hashlib.sha256(f"{device.identity}\0{source}".encode()).hexdigest()
    file = None if folder is None else folder / f"{digest}.trial"
    try:
        if file is not None and file.read_text(encoding="utf-8") == _GOOD:
            return ""
    except OSError:
        pass  # not tried yet
    reason = _try(device_id)
    if reason:
        _log.warning("Device 'OPENCL.%s' computes without its matrix units: %s", device_id, reason)
    elif file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_GOOD, encoding="utf-8")
        except OSError as error:
            _log.info("The verdict on matrix units cannot be kept: %s", error)
    return reason


def _try(device_id: str) -> str:
    # Not by -m: that would make a second copy of this module, which knows of no trial going on.
    code = "import sys; from partita_opencl.trial import main; sys.exit(main(sys.argv[1]))"
    command = [sys.executable, "-c", code, device_id]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0 and done.stdout.strip().endswith(_GOOD):
        return ""
    last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
    return f"the trial ended with code {done.returncode}: {' '.join(last)}"


def main(device_id: str) -> int:
    """Computes small products on the device's matrix units; 0 if all are right."""
    global _trying
    _trying = True
    for rows, depth, columns in _SHAPES:
        error = max(_error(device_id, rows, depth, columns, constant=c) for c in (True, False))
        if not error < 2e-3:
            sys.stdout.write(f"a product of {rows} x {depth} x {columns} is off by {error:.2g}")
            return 1
    sys.stdout.write(_GOOD)
    return 0


def _error(device_id: str, rows: int, depth: int, columns: int, *, constant: bool) -> float:
    """Relative error of a product, as a convolution of constant weights or of two inputs."""
    from onnx import TensorProto, helper, numpy_helper

    import partita

    rng = np.random.default_rng(rows)
    a: Array = rng.standard_normal((rows, depth)).astype(np.float32)
    b: Array = rng.standard_normal((depth, columns)).astype(np.float32)
    kind, weights = TensorProto.FLOAT, []
    feeds = {"a": a, "b": b}
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    if constant:
        feeds = {"b": b.reshape(1, depth, columns)}
        weights = [numpy_helper.from_array(a.reshape(rows, depth, 1), "a")]
        node = helper.make_node("Conv", ["b", "a"], ["y"])
    ports = [helper.make_tensor_value_info(n, kind, x.shape) for n, x in feeds.items()]
    y = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([node], "trial", ports, [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    core = partita.Core()
    config = {"INFERENCE_PRECISION_HINT": "f16", "TILING": "LOCAL"}
    compiled = core.compile_model(core.read_model(model), f"OPENCL.{device_id}", config)
    request = compiled.create_infer_request()
    wanted = a.astype(np.float64) @ b
    request.infer(feeds)
    found = np.asarray(request.infer(feeds)[0]).reshape(wanted.shape)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
