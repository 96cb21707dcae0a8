"""Tokens a second of Partita and of other engines, on the same weights, in turns.

    python benchmarks/generate_peers.py MODEL.gguf [--prompt 512] [--new 64] [--rounds 5]
    python benchmarks/generate_peers.py --random 1.5B [--kind Q4_0]

A turn is a prompt, then tokens one after another, each the likeliest: all engines read the prompt
but its last token, then make ``--new`` tokens (onnxruntime-genai and OpenVINO count the last one of
the prompt with it). Printed are medians of tokens a second of both phases, the bandwidth that
decoding comes to (bytes of weights that a token reads, times tokens a second), and how many of the
first tokens are those of the engine in the first row: of a random prompt many tokens are about
equally likely, so that arithmetic decides. Processor time of the prompt and of a token is printed,
too, which others on the machine disturb less, of one thread least. Engines:
Partita by its exact products, in bfloat16 (``partita-bf16``), with rows of prompts and caches in
int8 (``partita-int8``), and with both; llama.cpp (npm's node-llama-cpp) and OpenVINO GenAI on the
same file; onnxruntime and onnxruntime-genai on what Partita makes of it, saved as ONNX. OpenVINO
computes in bfloat16 by default where the processor multiplies that, with rows and caches in int8
where weights are in blocks; ``openvino-f32`` is told not to. The column of the arithmetic says what
each one was asked for; compare those that were asked for the same. What is not installed is left
out, and a line says so; README.md beside this script says how to install it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from generate_options import chunk_of, model_file, model_parser
from random_decoders import work_of_a_token

import partita

CacheType = Literal["float32", "int8"]

PAUSE = 0.2
PEER_SCRIPT = Path(__file__).resolve().with_name("llama_cpp_peer.mjs")


@dataclass(frozen=True)
class Turn:
    """One turn of one engine.

    Attributes:
        prefill_s: Seconds of the prompt.
        decode_s: Seconds of the tokens after it.
        tokens: These.
        prefill_cpu_s: Processor time of the prompt in seconds.
        decode_cpu_s: Likewise of the tokens after it.
    """

    prefill_s: float
    decode_s: float
    tokens: Sequence[int]
    prefill_cpu_s: float
    decode_cpu_s: float


class Engine(Protocol):
    """One contestant."""

    name: str
    arithmetic: str

    def turn(self, prompt: Sequence[int], count: int) -> Turn:
        """Reads a prompt and generates."""


@dataclass
class Setting:
    """What all engines get.

    Attributes:
        path: The GGUF file.
        model: What Partita makes of it.
        context: Tokens that caches hold.
        threads: Of each engine.
        folder: For files that engines need.
        device: Of Partita.
        config: Properties of Partita.
        chunk: Tokens of a prompt that Partita reads in one run.
    """

    path: Path
    model: partita.Model
    context: int
    threads: int
    folder: Path
    device: str = "CPU"
    config: dict[str, Any] = field(default_factory=dict)
    chunk: int = 512

    @property
    def number(self) -> Callable[[str], int]:
        """Numbers of the file's metadata, by the end of their names."""
        metadata = self.model.metadata
        architecture = metadata["gguf.general.architecture"]
        return lambda key: int(metadata[f"gguf.{architecture}.{key}"])

    def saved(self) -> Path:
        """The model as ONNX."""
        path = self.folder / "plain" / "model.onnx"
        if not path.exists():
            path.parent.mkdir()
            self.model.save(path)
        return path


class StepEngine:
    """An engine that is handed tokens and returns logits of the last one.

    Attributes:
        chunk: Tokens of a prompt that one run reads at most.
    """

    chunk = 512

    def step(self, ids: Sequence[int], past: int) -> int:
        """The likeliest token after some tokens that follow so many others."""
        raise NotImplementedError

    def turn(self, prompt: Sequence[int], count: int) -> Turn:
        """Reads a prompt and generates."""
        start, cpu = time.perf_counter(), time.process_time()
        for begin in range(0, len(prompt) - 1, self.chunk):
            self.step(prompt[begin : min(begin + self.chunk, len(prompt) - 1)], begin)
        filled, middle = time.perf_counter(), time.process_time()
        tokens = [prompt[-1]]
        for number in range(count):
            tokens.append(self.step(tokens[-1:], len(prompt) - 1 + number))
        spent = middle - cpu, time.process_time() - middle
        return Turn(filled - start, time.perf_counter() - filled, tokens[1:], *spent)


def _feeds(ids: Sequence[int], past: int) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "input_ids": np.array([ids], np.int64),
        "seqlens_k": np.array([past + len(ids) - 1], np.int32),
        "total_sequence_length": np.array(past + len(ids), np.int32),
    }


class Partita(StepEngine):
    """This framework: one request, its caches updated in place.

    Args:
        setting: What all engines get.
        group: Numbers of a row of a prompt that share a scale in int8; 0 for exact products.
        cache_type: Elements of the caches.
        precision: What float32 is computed in: itself, or halves of either kind.
    """

    def __init__(
        self,
        setting: Setting,
        group: int = 0,
        cache_type: CacheType = "float32",
        precision: str = "f32",
    ) -> None:
        config = dict(setting.config)
        if precision != "f32":
            config["INFERENCE_PRECISION_HINT"] = precision
        if group:
            config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = group
        core = partita.Core()
        if core.accepts_property(setting.device, "INFERENCE_NUM_THREADS"):
            config["INFERENCE_NUM_THREADS"] = setting.threads
        self.name = f"Partita {partita.__version__} on {setting.device}, {precision}"
        blocks = f"int8 in groups of {group}" if group else "16 bits"
        self.name += ", int8" if group else ""
        self.arithmetic = (
            f"{precision}; rows that meet weights in blocks in {blocks}; {cache_type} caches"
        )
        if core.accepts_property(setting.device, "HETERO_CONTEXT"):
            config["HETERO_CONTEXT"] = setting.context
        model = decoder_of(setting.path, setting.context, cache_type)
        compiled = core.compile_model(model, setting.device, config)
        decision = compiled.explain().decision
        for note in decision.notes if decision else ():
            print(f"planned: {note}", flush=True)
        self._request = compiled.create_infer_request()
        self.chunk = setting.chunk

    def step(self, ids: Sequence[int], past: int) -> int:
        """The likeliest token after some tokens that follow so many others."""
        results = self._request.infer(_feeds(ids, past), share_outputs=True)
        return int(np.argmax(results["logits"]))


class OnnxRuntime(StepEngine):
    """onnxruntime on the saved model; past and present are the same memory."""

    def __init__(self, setting: Setting) -> None:
        import onnxruntime

        self.name = f"onnxruntime {onnxruntime.__version__}"
        self.arithmetic = "float32, accuracy_level 0"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = setting.threads
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(setting.saved(), options, providers=providers)
        self._binding = self._session.io_binding()
        self._binding.bind_output("logits")  # the first that is bound comes first
        for variable in setting.model.variables:
            shape = setting.model.input(variable.read).shape or ()
            dims = [dim if isinstance(dim, int) else 1 for dim in shape]
            cache = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(dims, np.float32))
            self._binding.bind_ortvalue_input(variable.read, cache)
            self._binding.bind_ortvalue_output(variable.written, cache)

    def step(self, ids: Sequence[int], past: int) -> int:
        """The likeliest token after some tokens that follow so many others."""
        for name, array in _feeds(ids, past).items():
            self._binding.bind_cpu_input(name, array)
        self._binding.bind_output("logits")
        self._session.run_with_iobinding(self._binding)
        return int(np.argmax(self._binding.get_outputs()[0].numpy()))


class OnnxRuntimeGenai:
    """onnxruntime-genai on the saved model, with lengths told by an attention mask."""

    def __init__(self, setting: Setting) -> None:
        import onnxruntime_genai

        self.name = f"onnxruntime-genai {version('onnxruntime-genai')}"
        self.arithmetic = "float32, accuracy_level 0"
        self._genai, self._context = onnxruntime_genai, setting.context
        self._model = onnxruntime_genai.Model(str(_genai_folder(setting)))

    def turn(self, prompt: Sequence[int], count: int) -> Turn:
        """Reads a prompt and generates."""
        params = self._genai.GeneratorParams(self._model)
        length = len(prompt) + count
        params.set_search_options(max_length=self._context, min_length=length + 1, do_sample=False)
        generator = self._genai.Generator(self._model, params)
        start, cpu = time.perf_counter(), time.process_time()
        generator.append_tokens(np.array([prompt], np.int32))
        generator.generate_next_token()
        filled, middle = time.perf_counter(), time.process_time()
        for _ in range(count):
            generator.generate_next_token()
        end, spent = time.perf_counter(), (middle - cpu, time.process_time() - middle)
        tokens = [int(token) for token in generator.get_sequence(0)[len(prompt) :]]
        return Turn(filled - start, end - filled, tokens[:count], *spent)


def _genai_folder(setting: Setting) -> Path:
    """The saved model with an attention mask as its input, and what genai must know of it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    folder = setting.folder / "genai"
    folder.mkdir()
    model = onnx.load(setting.saved(), load_external_data=False)
    for file in setting.saved().parent.glob("*.data"):
        (folder / file.name).symlink_to(file)
    graph = model.graph
    for port in [p for p in graph.input if p.name in ("seqlens_k", "total_sequence_length")]:
        graph.input.remove(port)
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"])
    graph.input.insert(1, mask)
    constants = {"mask.axis": [1], "mask.one": [1]}
    graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in constants.items()
    )
    graph.initializer.append(numpy_helper.from_array(np.array(1, np.int64), "mask.second"))
    made = [
        ("ReduceSum", ["attention_mask", "mask.axis"], "mask.sum", {"keepdims": 0}),
        ("Sub", ["mask.sum", "mask.one"], "mask.last", {}),
        ("Cast", ["mask.last"], "seqlens_k", {"to": TensorProto.INT32}),
        ("Shape", ["attention_mask"], "mask.shape", {}),
        ("Gather", ["mask.shape", "mask.second"], "mask.total", {"axis": 0}),
        ("Cast", ["mask.total"], "total_sequence_length", {"to": TensorProto.INT32}),
    ]
    for place, (kind, inputs, output, attributes) in enumerate(made):
        graph.node.insert(place, helper.make_node(kind, inputs, [output], **attributes))
    onnx.save(model, folder / "model.onnx")
    (folder / "genai_config.json").write_text(json.dumps(_genai_config(setting)), encoding="utf-8")
    return folder


def _genai_config(setting: Setting) -> dict[str, Any]:
    number = setting.number
    heads = number("attention.head_count")
    vocabulary = (setting.model.output("logits").shape or (0,))[-1]
    decoder = {
        "filename": "model.onnx",
        "session_options": {"intra_op_num_threads": setting.threads, "provider_options": []},
        "head_size": number("embedding_length") // heads,
        "hidden_size": number("embedding_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": number("block_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    return {
        "model": {
            "type": "llama",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "vocab_size": vocabulary,
            "context_length": setting.context,
            "decoder": decoder,
        },
        "search": {"max_length": setting.context, "past_present_share_buffer": True},
    }


class OpenvinoGenai:
    """OpenVINO GenAI on the GGUF file; times are its own.

    Args:
        setting: What all engines get.
        precision: What it is told to compute in; nothing for its default.
    """

    def __init__(self, setting: Setting, precision: str = "") -> None:
        import openvino_genai

        self.name = f"openvino-genai {version('openvino-genai')}{precision and ', '}{precision}"
        self.arithmetic = _openvino_arithmetic(precision)
        self._genai = openvino_genai
        hint = {"INFERENCE_PRECISION_HINT": precision} if precision else {}
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # turns are of one prompt
        self._pipeline = openvino_genai.LLMPipeline(
            str(setting.path),
            "CPU",
            scheduler_config=scheduler,
            INFERENCE_NUM_THREADS=setting.threads,
            **hint,
        )

    def turn(self, prompt: Sequence[int], count: int) -> Turn:
        """Reads a prompt and generates."""
        import openvino

        config = self._genai.GenerationConfig(
            max_new_tokens=count + 1, ignore_eos=True, do_sample=False
        )
        ids = openvino.Tensor(np.array([prompt], np.int64))
        clock = _first_token_clock(self._genai)
        result = self._pipeline.generate(ids, config, clock)
        metrics = result.perf_metrics
        decode = metrics.get_tpot().mean / 1e3 * count
        spent = clock.cpu_s, time.process_time() - clock.start - clock.cpu_s
        tokens = list(result.tokens[0])[:count]
        return Turn(metrics.get_ttft().mean / 1e3, decode, tokens, *spent)


def _openvino_arithmetic(precision: str) -> str:
    """What OpenVINO computes in where it is told a precision, or nothing."""
    import openvino

    core = openvino.Core()
    hint, group, cache = (
        core.get_property("CPU", name)
        for name in (
            "INFERENCE_PRECISION_HINT",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE",
            "KV_CACHE_PRECISION",
        )
    )
    return (
        f"{precision or hint.to_string()}; rows that meet weights in blocks in int8 in groups of "
        f"{group}; {cache.to_string()} caches"
    )


def _first_token_clock(genai: Any) -> Any:
    """A streamer of OpenVINO GenAI: `cpu_s` is processor time from now to the first token."""

    class Clock(genai.StreamerBase):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.cpu_s = time.process_time(), 0.0

        def write(self, tokens: Any) -> Any:
            self.cpu_s = self.cpu_s or time.process_time() - self.start
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            """Nothing is kept."""

    return Clock()


class LlamaCpp:
    """llama.cpp as npm's node-llama-cpp ships it, in a process of its own.

    Raises:
        ModuleNotFoundError: The folder has no node-llama-cpp, or there is no node.
    """

    def __init__(self, setting: Setting) -> None:
        folder = Path(os.environ.get("NODE_LLAMA_CPP", "."))
        package = folder / "node_modules" / "node-llama-cpp" / "package.json"
        if not package.exists():
            raise ModuleNotFoundError(f"no node-llama-cpp in {folder} (set NODE_LLAMA_CPP)")
        self.name = f"llama.cpp (node-llama-cpp {json.loads(package.read_text())['version']})"
        self.arithmetic = "8-bit activations"
        numbers = [str(setting.context), str(setting.threads)]
        command = ["node", str(PEER_SCRIPT), str(setting.path.resolve()), *numbers]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, text=True)
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("node has no pipes")
        self._process, self._asked, self._answers = process, process.stdin, process.stdout
        self._answer("ready")

    def end(self) -> None:
        """Lets the process end, and waits for that."""
        self._asked.close()
        self._process.wait()

    def turn(self, prompt: Sequence[int], count: int) -> Turn:
        """Reads a prompt and generates."""
        answer = self.ask("prefill", prompt=list(prompt), count=count)
        spent = answer["prefillCpu"], answer["decodeCpu"]
        return Turn(answer["prefill"], answer["decode"], answer["tokens"], *spent)

    def ask(self, key: str, **question: Any) -> dict[str, Any]:
        """What the process answers, which holds a key, to a question that its script describes."""
        self._asked.write(json.dumps(question) + "\n")
        self._asked.flush()
        return self._answer(key)

    def _answer(self, key: str) -> dict[str, Any]:
        """The next line that holds a key; others are the engine's log."""
        for line in self._answers:
            if line.startswith("{"):
                answer = dict(json.loads(line))
                if key in answer:
                    return answer
        raise RuntimeError("node-llama-cpp ended; see its output above")


ENGINES: dict[str, Callable[[Setting], Engine]] = {
    "partita": Partita,
    "partita-bf16": functools.partial(Partita, precision="bf16"),
    "partita-f16": functools.partial(Partita, precision="f16"),
    "partita-int8": functools.partial(Partita, group=32, cache_type="int8"),
    "partita-int8-bf16": functools.partial(Partita, group=32, cache_type="int8", precision="bf16"),
    "llama.cpp": LlamaCpp,
    "onnxruntime": OnnxRuntime,
    "genai": OnnxRuntimeGenai,
    "openvino": OpenvinoGenai,
    "openvino-f32": functools.partial(OpenvinoGenai, precision="f32"),
}


def started(names: Sequence[str], setting: Setting) -> list[Engine]:
    """The engines that can be had; a line for each of the others."""
    found: list[Engine] = []
    for name in names:
        try:
            found.append(ENGINES[name](setting))
        except (ModuleNotFoundError, FileNotFoundError, PackageNotFoundError) as error:
            print(f"left out: {name}, which is not installed ({error})", flush=True)
        except Exception as error:  # noqa: BLE001  # whatever an engine makes of a file
            first = str(error).strip().splitlines()[0] if str(error).strip() else ""
            print(f"left out: {name}, which fails: {type(error).__name__}: {first}", flush=True)
    return found


def decoder_of(path: Path, context: int, cache_type: CacheType = "float32") -> partita.Model:
    """A decoder with a batch of 1, in all inputs that have one."""
    options = partita.DecoderOptions(context=context, cache_type=cache_type)
    model = partita.Core().read_model(path, decoder=options)
    shapes = {port.name: port.shape for port in model.inputs if port.shape}
    return model.reshape({name: (1, *shape[1:]) for name, shape in shapes.items()})


def bytes_of_a_token(setting: Setting) -> float:
    """Weights that one token reads, as the model stores them."""
    return sum(work_of_a_token(setting.model, setting.context, 0).weight_bytes.values())


def turns_of(
    engines: Sequence[Engine], prompt: Sequence[int], count: int, rounds: int
) -> dict[str, list[Turn]]:
    """So many turns of each engine by its name, which makes so many tokens in each."""
    turns: dict[str, list[Turn]] = {engine.name: [] for engine in engines}
    for number in range(rounds + 1):
        for engine in engines:
            time.sleep(PAUSE)
            turn = engine.turn(prompt, count)
            if number:  # the first is for warming up
                turns[engine.name].append(turn)
    return turns


def random_prompt(model: partita.Model, count: int) -> list[int]:
    """So many tokens of a decoder's vocabulary."""
    vocabulary = int((model.output("logits").shape or (1000,))[-1] or 1000)
    return np.random.default_rng(0).integers(100, vocabulary - 100, count).tolist()


def run(engines: Sequence[Engine], prompt: Sequence[int], args: argparse.Namespace) -> None:
    """Turns, and a row for each engine."""
    turns = turns_of(engines, prompt, args.new, args.rounds)
    judge = turns[engines[0].name][0]
    print(
        "| engine | arithmetic | prefill/s | prefill, processor s | decode/s | token, processor ms "
        "| decode, GB/s | tokens as the first |"
    )
    print("| --- " * 8 + "|")
    for engine in engines:
        own = turns[engine.name]
        prefill = (len(prompt) - 1) / statistics.median(turn.prefill_s for turn in own)
        decode = args.new / statistics.median(turn.decode_s for turn in own)
        same = f"{_agreeing(own[0].tokens, judge.tokens)} of {args.new}"
        cpu = statistics.median(turn.prefill_cpu_s for turn in own)
        token = 1e3 * statistics.median(turn.decode_cpu_s for turn in own) / args.new
        speed = f"{prefill:.1f} | {cpu:.2f} | {decode:.2f}"
        speed += f" | {token:.2f} | {decode * args.bytes_read / 1e9:.2f}"
        print(f"| {engine.name} | {engine.arithmetic} | {speed} | {same} |", flush=True)


def _agreeing(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens are the same before the first that is not."""
    pairs = zip(tokens, others, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(others)))


def main() -> None:
    """Reads the arguments, starts the engines and prints the table."""
    parser = model_parser(__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--new", type=int, default=64, help="tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", help="limits of devices, where Partita's is HETERO: GPU=2GiB")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    args = parser.parse_args()
    with model_file(args) as (path, folder):
        model = decoder_of(path, args.context)
        config = {"HETERO_MEMORY_LIMITS": args.memory} if args.memory else {}
        where = (folder, args.device, config, chunk_of(args, model))
        setting = Setting(path, model, args.context, args.threads, *where)
        args.bytes_read = bytes_of_a_token(setting)
        print(
            f"{path.name}: {path.stat().st_size / 1e6:.0f} MB, {args.bytes_read / 1e6:.0f} MB of "
            f"weights for a token; prompt of {args.prompt}, {args.new} new, {args.threads} threads "
            f"each; {_processor()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n",
            flush=True,
        )
        run(started(args.engines, setting), random_prompt(model, args.prompt), args)


def _processor() -> str:
    """Name of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


if __name__ == "__main__":
    main()
