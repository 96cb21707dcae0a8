"""The simplest server of a model: onnxruntime behind one route of Starlette, for serve_latency.py.

    python benchmarks/serve_peer.py model.onnx

It reads the binary form of the Open Inference Protocol, so that it is sent the same bytes.
"""

from __future__ import annotations

import json
import os
import socket
import sys

import numpy as np
import onnxruntime
import uvicorn
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def main() -> None:
    """Serves the model that the command line names."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(sys.argv[1], options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    async def infer(request: Request) -> Response:
        body = await request.body()
        size = int(request.headers["inference-header-content-length"])
        (told,) = json.loads(body[:size])["inputs"]
        array = np.frombuffer(body, np.float32, offset=size).reshape(told["shape"])
        results = await to_thread.run_sync(session.run, names, {told["name"]: array})
        outputs = [
            {
                "name": name,
                "datatype": "FP32",
                "shape": result.shape,
                "parameters": {"binary_data_size": result.nbytes},
            }
            for name, result in zip(names, results, strict=True)
        ]
        head = json.dumps({"model_name": "m", "model_version": "1", "outputs": outputs}).encode()
        return Response(
            head + b"".join(result.tobytes() for result in results),
            headers={"inference-header-content-length": str(len(head))},
        )

    bound = socket.create_server(("127.0.0.1", 0))
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(json.dumps({"http": f"http://127.0.0.1:{bound.getsockname()[1]}"}), flush=True)
    app = Starlette(routes=[Route("/infer", infer, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([bound])


if __name__ == "__main__":
    main()
