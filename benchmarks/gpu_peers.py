"""Device OPENCL beside PyTorch on the same card, in one process, taking turns.

    python benchmarks/gpu_peers.py [--precisions f32,f16] [--batch 1] [--compile] [model ...]

Models: resnet50, mobilenetv2, encoder (four layers), bert (twelve), minilm (six smaller ones), gemm
(of 4096, float16; gemm32: of float32), all built here with random weights, and all names that
`partita benchmark` takes (light:squeezenet, zoo:ppocr-det, a path). PyTorch runs the same graph
with the same weights, channels last and with its own attention (`torch_graph.py`): eagerly,
replayed as a CUDA graph, and with --compile through inductor.
Inputs and outputs stay on the card, in tensors that each call has again, of PyTorch's graphs and
of Partita's bound calls. A call is timed from the first enqueue to the end on the host.
Prints medians in milliseconds, the ratio of the best of PyTorch to Partita, and Partita's error:
its Frobenius norm relative to that of what onnxruntime computes. For models that are not built
here, onnxruntime on all cores of the host is a peer, too; the only one where PyTorch lacks an
operator. Precisions: f32, f16, bf16, and bf16x3, whose peer is PyTorch's float32 without tf32.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from cpu_networks import BUILT, encoder
from cpu_peers import load
from onnx import helper, numpy_helper, shape_inference
from torch_graph import TorchGraph

import partita

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
Call = Callable[[], Any]
CALLS_PER_TURN = 10
UNKNOWN = float("nan")


def gemm(kind: type[np.floating[Any]] = np.float16, size: int = 4096) -> tuple[bytes, Feeds]:
    """A product of square matrices, one of them constant."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((size, size), np.float32).astype(kind) for _ in range(2))
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    ports = [helper.make_tensor_value_info(n, element, (size, size)) for n in "xy"]
    weight = numpy_helper.from_array(w * kind(size**-0.5), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "gemm", ports[:1], ports[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString(), {"x": x}


MODELS: dict[str, Callable[[], tuple[bytes, Feeds]]] = {
    **BUILT,
    "bert": lambda: encoder(layers=12),
    "minilm": lambda: encoder(layers=6, width=384),
    "gemm": gemm,
    "gemm32": lambda: gemm(np.float32),
}


def torch_calls(
    model: onnx.ModelProto, feeds: Feeds, precision: str, inductor: bool
) -> dict[str, Call]:
    """PyTorch's ways to run the model; a call ends when the card is done."""
    graph = TorchGraph(model, "cuda", precision)
    inputs = [graph.place(feeds[name]) for name in graph.inputs]
    calls = cuda_calls(graph, inputs)
    if inductor:
        calls["compile"] = warmed(_through_inductor(graph, inputs), inputs)
    return calls


def cuda_calls(function: Callable[..., Any], inputs: Sequence[Any]) -> dict[str, Call]:
    """A function of PyTorch run eagerly and, where it can be captured, replayed as a CUDA graph."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    calls = {"eager": warmed(function, inputs)}
    replay = torch.cuda.CUDAGraph()
    try:
        with torch.inference_mode(), torch.cuda.graph(replay):
            kept = function(*inputs)
    except RuntimeError:
        return calls
    calls["graph"] = _ended(replay.replay)
    calls["graph"].kept = kept  # type: ignore[attr-defined]  # outputs live as the graph does
    return calls


def warmed(function: Callable[..., Any], inputs: Sequence[Any]) -> Call:
    """A call of the function, which has run a few times on a stream of its own."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.inference_mode():
        for _ in range(3):
            function(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    return _ended(function, *inputs)


def _ended(function: Callable[..., Any], *given: Any) -> Call:
    """A call that ends when the card is done."""
    import torch

    def call() -> None:
        with torch.inference_mode():
            function(*given)
        torch.cuda.synchronize()

    return call


def _through_inductor(graph: TorchGraph, inputs: Sequence[Any]) -> Any:
    """The graph compiled as a whole: traced first, so that no Python stands between operators."""
    import torch
    from torch._inductor import config
    from torch.fx.experimental.proxy_tensor import make_fx

    config.freezing = True
    with torch.inference_mode():
        traced = make_fx(graph)(*inputs)
    return torch.compile(traced, mode="reduce-overhead", fullgraph=True)


def host_call(model: onnx.ModelProto, feeds: Feeds) -> tuple[Call, Array]:
    """A call of onnxruntime on the host's cores, and its first output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, feeds), session.run(None, feeds)[0]


def partita_call(
    model: onnx.ModelProto, feeds: Feeds, device: str, precision: str
) -> tuple[Call, Array]:
    """A call of Partita on tensors of the device, and its first output."""
    core = partita.Core()
    config = {"INFERENCE_PRECISION_HINT": precision}
    compiled = core.compile_model(core.read_model(model), device, config)
    runner = compiled.device_model.create_runner()
    inputs = [
        core.device_api.transfer_to(device, partita.HostTensor(np.asarray(feeds[port.name])))
        for port in compiled.inputs
    ]
    results = runner.run(inputs)
    call = runner.bind(inputs, results)
    if call is None:
        raise SystemExit(f"Device '{device}' does not bind the tensors of a call.")
    return call, results[0].numpy()


def take_turns(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Median milliseconds of a call of each."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            for _ in range(CALLS_PER_TURN):
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) * 1e3 for name, taken in times.items()}


def batched(model: onnx.ModelProto, feeds: Feeds, batch: int) -> Feeds:
    """Feeds of more images; the model's declared shapes follow."""
    if batch == 1:
        return feeds
    for port in (*model.graph.input, *model.graph.output):
        dims = port.type.tensor_type.shape.dim
        if dims and port.name in feeds:
            dims[0].dim_value = batch
        elif dims:
            port.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    for weight in model.graph.initializer:  # targets of Reshape
        array = numpy_helper.to_array(weight)
        if array.dtype == np.int64 and array.ndim == 1 and array.size > 1 and array[0] == 1:
            weight.CopyFrom(numpy_helper.from_array(np.array([0, *array[1:]]), weight.name))
    return {name: np.concatenate([array] * batch) for name, array in feeds.items()}


def measure(name: str, precision: str, options: argparse.Namespace) -> None:
    """Prints the line of a model in a precision."""
    serialized, feeds = MODELS[name]() if name in MODELS else load(name)
    model = onnx.load_from_string(serialized)
    feeds = batched(model, feeds, options.batch)
    host, reference = host_call(model, feeds)
    try:
        calls = torch_calls(shape_inference.infer_shapes(model), feeds, precision, options.compile)
    except KeyError:
        calls = {}
    if name not in MODELS or not calls:
        calls["host"] = host
    calls["partita"], result = partita_call(model, feeds, options.device, precision)
    taken = take_turns(calls, options.rounds)
    best = min(time for label, time in taken.items() if label != "partita")
    exact = reference.astype(np.float64)
    error = np.linalg.norm(result.astype(np.float64) - exact) / np.linalg.norm(exact)
    columns = [f"{taken.get(label, UNKNOWN):9.3f}" for label in _COLUMNS]
    print(f"{name:24} {precision:4}", *columns, f"{best / taken['partita']:7.2f} {error:9.1e}")


_COLUMNS = ("eager", "graph", "compile", "host", "partita")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the models named on the command line, or those built here."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument(
        "--precisions", default="f32", help="of f32, f16, bf16, bf16x3; separated by commas"
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--device", default="OPENCL")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile, too")
    options = parser.parse_args(arguments)
    print(
        f"{'ms, batch ' + str(options.batch):29}", *(f"{c:>9}" for c in _COLUMNS), "  ratio error"
    )
    for name in options.models:
        for precision in options.precisions.split(","):
            try:
                measure(name, precision, options)
            except partita.PartitaError as error:
                print(f"{name:24} {precision:4} {str(error).splitlines()[0][:120]}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
