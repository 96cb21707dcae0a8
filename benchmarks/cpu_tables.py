"""The tables of `benchmarks/README.md`: device CPU beside three other engines, in one process.

    python benchmarks/cpu_tables.py [--threads 2] [--rounds 12] [--inductor] [--write] [model ...]

Models are named as for `cpu_peers`. The first table compares float32 with float32, each engine on
as many threads; the second one what each engine does if nothing is set. The second row of a table
says what arithmetic a column is. Engines take turns, each with its tensors set before; times are
medians of all calls in milliseconds. PyTorch runs channels last and with its own attention
(`torch_graph.py`), with --inductor compiled. An engine that is not installed is left out, and so is
one in the row of a network that it does not run. --write puts the tables into README.md, in
the place of those of the same processor.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from cpu_networks import BUILT, Feeds
from cpu_peers import Call, Results, largest_error, load, take_turns

import partita
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.jit.isa import isa

MODELS = (*BUILT, "zoo:minilm-l3", "zoo:ppocr-rec")
README = Path(__file__).with_name("README.md")
END = "<!-- end of cpu_tables.py -->"

ARITHMETIC = {
    Arithmetic.F32: "float32",
    Arithmetic.BF16X3: "long sums as 3 bfloat16 products, else float32",
    Arithmetic.BF16X6: "long sums as 6 bfloat16 products, else float32",
}
"""What Partita's kernels compute in."""


@dataclass(frozen=True)
class Contestant:
    """One engine, ready to run a network.

    Attributes:
        call: Runs it once.
        results: What it gave.
        arithmetic: What it says to compute in.
    """

    call: Call
    results: Results
    arithmetic: str


Make = Callable[[bytes, Feeds, int | None], Contestant]
"""Makes a contestant: model, feeds, and threads; ``None`` for all settings at their defaults."""


def with_onnxruntime(model: bytes, feeds: Feeds, threads: int | None) -> Contestant:
    """onnxruntime, which knows no other arithmetic for float32 on x86-64."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    results = session.run(None, feeds)
    return Contestant(lambda: session.run_with_iobinding(binding), results, "float32")


def with_openvino(model: bytes, feeds: Feeds, threads: int | None) -> Contestant:
    """OpenVINO, in the precision that it says it infers in."""
    import openvino

    config: dict[str, Any] = {}
    if threads is not None:
        config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        config["PERFORMANCE_HINT"] = "LATENCY"
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", config)
    request = compiled.create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, openvino.Tensor(array))
    request.infer()
    results = [np.array(tensor.data) for tensor in request.output_tensors]
    precision = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    return Contestant(request.infer, results, {"f32": "float32", "bf16": "bfloat16"}[precision])


def with_torch(inductor: bool) -> Make:
    """PyTorch, operator by operator or compiled."""

    def make(model: bytes, feeds: Feeds, threads: int | None) -> Contestant:
        import torch
        from torch_graph import TorchGraph

        torch.set_num_threads(threads or default_torch_threads())
        graph: Any = TorchGraph(onnx.load_from_string(model), "cpu")
        inputs = [graph.place(feeds[name]) for name in graph.inputs]
        with torch.inference_mode():
            if inductor:
                from torch._inductor import config
                from torch.fx.experimental.proxy_tensor import make_fx

                config.freezing = True
                graph = torch.compile(make_fx(graph)(*inputs), fullgraph=True)
            results = [output.numpy() for output in graph(*inputs)]

        def call() -> None:
            with torch.inference_mode():
                graph(*inputs)

        exact = torch.get_float32_matmul_precision() == "highest"
        return Contestant(call, results, "float32" if exact else "float32, products less exact")

    return make


def default_torch_threads() -> int:
    """How many threads PyTorch takes if it is told nothing; asked before anything is set."""
    import torch

    if not _torch_threads:
        _torch_threads.append(torch.get_num_threads())
    return _torch_threads[0]


_torch_threads: list[int] = []


def with_partita(model: bytes, feeds: Feeds, threads: int | None) -> Contestant:
    """Device CPU, in the arithmetic that its kernels were chosen for."""
    config: dict[str, Any] = {}
    if threads is not None:
        config = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": threads}
    core = partita.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", config)
    request = compiled.create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, partita.Tensor(array))
    request.infer()
    results = [np.array(tensor.data) for tensor in request.output_tensors]
    choice = compiled.device_model.specializer.target.options  # type: ignore[attr-defined]  # CPU's
    return Contestant(request.infer, results, ARITHMETIC[choice.arithmetic])


def engines(inductor: bool) -> dict[str, Make]:
    """What is installed, Partita last."""
    peers: dict[str, tuple[str, Make]] = {
        "onnxruntime": ("onnxruntime", with_onnxruntime),
        "OpenVINO": ("openvino", with_openvino),
        "PyTorch": ("torch", with_torch(False)),
    }
    if inductor:
        peers["PyTorch, compiled"] = ("torch", with_torch(True))
    found = {name: make for name, (module, make) in peers.items() if util.find_spec(module)}
    return {**found, "Partita": with_partita}


@dataclass(frozen=True)
class Row:
    """One network.

    Attributes:
        model: Its name.
        times: Engine to milliseconds.
        error: Of Partita: the largest of its outputs against onnxruntime's float32, in parts of
            each output's largest value.
        arithmetic: Engine to what it computed in.
    """

    model: str
    times: dict[str, float]
    error: float
    arithmetic: dict[str, str]

    @property
    def ratio(self) -> float:
        """How many times as fast as the fastest other engine Partita is."""
        others = [time for name, time in self.times.items() if name != "Partita"]
        return min(others, default=math.nan) / self.times["Partita"]


def measure(name: str, made_by: dict[str, Make], threads: int | None, rounds: int) -> Row:
    """Runs a network by all engines that can."""
    model, feeds = load(name)
    exact = with_onnxruntime(model, feeds, threads).results
    made = {}
    for engine, make in made_by.items():
        try:
            made[engine] = make(model, feeds, threads)
        except (KeyError, RuntimeError) as error:  # an operator that it lacks
            print(f"{engine} does not run {name}: {str(error).splitlines()[0][:100]}", flush=True)
    times = take_turns({engine: one.call for engine, one in made.items()}, rounds)
    return Row(
        name,
        times,
        largest_error(made["Partita"].results, exact),
        {engine: one.arithmetic for engine, one in made.items()},
    )


def table(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """The lines of a table in Markdown."""
    said = {name: {row.arithmetic[name] for row in rows if name in row.times} for name in names}
    heads = [
        "network",
        *(f"{name} ms" for name in names),
        "times as fast as the fastest other",
        "error",
    ]
    lines = [heads, ["---"] * len(heads)]
    lines.append(["*arithmetic*", *(" or ".join(sorted(said[name])) for name in names), "", ""])
    for row in rows:
        times = [f"{row.times[name]:.2f}" if name in row.times else "-" for name in names]
        lines.append([row.model, *times, f"{row.ratio:.2f}", f"{row.error:.0e}"])
    mean = statistics.geometric_mean(row.ratio for row in rows)
    lines.append(["*geometric mean*", *[""] * len(names), f"{mean:.2f}", ""])
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def circumstances(threads: int, load: float) -> str:
    """Where, when and of what the tables are."""
    packages = {"onnxruntime": "onnxruntime", "OpenVINO": "openvino", "PyTorch": "torch"}
    versions = [
        f"{name} {metadata.version(package)}"
        for name, package in packages.items()
        if util.find_spec(package)
    ]
    info = partita.Core().device_info("CPU")
    busy = f"**The machine was busy (load {load:.1f}): the ratios are rough.**"
    return (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {info.full_name}, "
        f"{os.cpu_count()} processors, {platform.system()}; Partita {partita.__version__}, "
        f"{', '.join(versions)}; {threads} threads each in the first table. "
        + (busy if load > 0.5 else "The machine had nothing else to do.")
    )


def report(rows_of: dict[str, list[Row]], names: Sequence[str], where: str) -> str:
    """Both tables with what is to be known about them."""
    parts = [where]
    for title, rows in rows_of.items():
        parts += [f"### {title}", "\n".join(table(rows, names))]
    return "\n\n".join(parts)


def write(text: str, processor: str) -> None:
    """Puts the tables in the place of those of this processor, or behind those of others."""
    begin = f"<!-- cpu_tables.py: {processor}, {isa().name} -->"
    told = README.read_text(encoding="utf-8")
    if begin not in told:
        before, _, after = told.rpartition(END)
        told = f"{before}{END}\n\n{begin}{END}{after}"
    before, _, rest = told.partition(begin)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{begin}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Measures, prints, and writes if it shall."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--inductor", action="store_true", help="PyTorch compiled as well")
    parser.add_argument("--write", action="store_true", help="into benchmarks/README.md")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    made_by = engines(arguments.inductor)
    if "PyTorch" in made_by:
        default_torch_threads()
    rows_of: dict[str, list[Row]] = {}
    for title, threads in (
        (f"float32 against float32, {arguments.threads} threads each", arguments.threads),
        ("Default settings against default settings", None),
    ):
        print(title, flush=True)
        rows_of[title] = []
        for name in arguments.models:
            row = measure(name, made_by, threads, arguments.rounds)
            rows_of[title].append(row)
            print(f"  {name}: {row.ratio:.2f}", row.times, row.arithmetic, flush=True)
    text = report(rows_of, list(made_by), circumstances(arguments.threads, load))
    print(text)
    if arguments.write:
        write(text, partita.Core().device_info("CPU").full_name)


if __name__ == "__main__":
    main()
