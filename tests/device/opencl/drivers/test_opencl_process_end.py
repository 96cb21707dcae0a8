"""A process that ends while its daemon threads run requests ends as any other."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys, threading, time
import numpy as np
import partita
from onnx import parser

model = parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[64,64] x) => (float[64,64] y)'
    '{ a = MatMul (x, x) b = Relu (a) c = MatMul (b, x) y = Relu (c) }'
)
threads = []
def at_the_end():
    for thread in threads:
        thread.join(60)
    print("main", compiled(x)[0].shape)
atexit.register(at_the_end)
compiled = partita.Core().compile_model(model, sys.argv[1])
x = np.zeros((64, 64), np.float32)
begun = threading.Barrier(4)

def work():
    request = compiled.create_infer_request()
    request.infer(x)
    begun.wait()
    try:
        while True:
            request.infer(x)
    except partita.errors.InferError as error:
        sys.stdout.write(f"{error}\\n")  # at once, other than print's two pieces

threads += [threading.Thread(target=work, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
begun.wait()
time.sleep(0.2)
"""


@pytest.mark.parametrize("device", ["OPENCL", "HETERO:OPENCL,CPU"])
def test_runs_of_daemon_threads_end_before_the_process_does(device):
    """Python before 3.14 unwinds such threads, which pyopencl turned into an abort.

    No device has failed by that, so that HETERO gives nothing to another one.
    """
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "main (64, 64)" in lines
    assert lines.count("The process ends; nothing can be started any more.") == 3
    assert "failed" not in done.stderr
