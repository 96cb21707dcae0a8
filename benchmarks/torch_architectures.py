"""PyTorch architectures with random weights: converted, and compiled, beside eager.

    python benchmarks/torch_architectures.py [PATTERN ...] [-d DEVICE] [--seconds 300]
    python benchmarks/torch_architectures.py --export FOLDER [PATTERN ...]

Architectures of torchvision, timm and transformers, each in a process of its own. Converted models
and the back-end `partita` of `torch.compile` agree if the largest difference of every output is
under 1e-3 of its largest value; the back-end must also have run every graph that was captured.
With --export they are written as ONNX files instead, networks that no kernel was fitted to: for
`cpu_peers.py --default FOLDER/*.onnx`.
Needs `pip install "partita[torch]" torchvision timm transformers`, torchvision and PyTorch of one
index: the wheel for CUDA does not import beside a PyTorch without.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 1e-3

TORCHVISION = (
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 "
    "maxvit_t mnasnet1_0 mobilenet_v2 mobilenet_v3_small regnet_y_400mf resnet18 resnet50 "
    "resnext50_32x4d shufflenet_v2_x1_0 squeezenet1_1 swin_t swin_v2_t vgg11_bn vit_b_32 "
    "lraspp_mobilenet_v3_large deeplabv3_mobilenet_v3_large fcn_resnet50 r3d_18 mc3_18"
)
TIMM = (
    "convmixer_768_32 coat_lite_tiny deit_tiny_patch16_224 edgenext_xx_small efficientvit_b0 "
    "fastvit_t8 ghostnet_100 hrnet_w18_small levit_128s mixer_s32_224 mobileone_s0 mobilevit_xxs "
    "nfnet_l0 pit_ti_224 poolformer_s12 repvgg_a0 tinynet_e xcit_nano_12_p16_224"
)
TRANSFORMERS = {
    "albert": {"embedding_size": 32, "hidden_size": 64, "intermediate_size": 128},
    "bart": {"d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_layers": 2,
             "decoder_layers": 2},
    "bert": {},
    "deberta-v2": {},
    "distilbert": {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4},
    "electra": {"embedding_size": 32},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4},
    "gpt_neox": {},
    "llama": {"num_key_value_heads": 2},
    "mistral": {"num_key_value_heads": 2, "head_dim": 16},
    "mpnet": {},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16},
    "roberta": {},
    "segformer": {},
    "t5": {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16},
    "vit": {"image_size": 32, "patch_size": 8},
    "wav2vec2": {},
    "whisper": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
                "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                "encoder_ffn_dim": 128, "decoder_ffn_dim": 128},
}  # fmt: skip
"""Model type to what its configuration has beside the small sizes that all take."""

FULL_SIZE = (
    "bert clip_vision_model convnextv2 detr distilbert rt_detr segformer t5 vit wav2vec2 whisper"
)
"""Model types in the sizes that transformers configures by default; of two parts the encoder."""

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 200,
}


def main() -> None:
    """Prints a row per architecture and the sums."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("patterns", nargs="*", help="only names that hold one of these")
    parser.add_argument("-d", "--device", default="CPU")
    parser.add_argument("--seconds", type=float, default=300, help="limit for one architecture")
    parser.add_argument("--export", metavar="FOLDER", type=Path, help="write ONNX files there")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(verdict(options.one, options.device)))
        return
    chosen = [
        name
        for name in names()
        if not options.patterns or any(re.search(p, name) for p in options.patterns)
    ]
    if options.export:
        for name in chosen:
            print(exported(name, options.export), flush=True)
        return
    versions = (f"{p} {version(p)}" for p in ("torch", "torchvision", "timm", "transformers"))
    print(f"{platform.processor() or platform.machine()}; {', '.join(versions)}; {options.device}")
    print(f"{'architecture':44} {'ops':>5} {'convert_model':>24} {'torch.compile':>24}")
    rows = []
    for name in chosen:
        rows.append(row := in_process(name, options))
        print(f"{name:44} {row['ops']:5} {row['convert'][:60]:>24} {row['compile'][:60]:>24}",
              flush=True)  # fmt: skip
    for kind in ("convert", "compile"):
        print(f"{kind}: {sum(row[kind].startswith('agrees') for row in rows)} of {len(rows)} agree")


def names() -> Iterator[str]:
    """Library and architecture."""
    yield from (f"torchvision/{name}" for name in TORCHVISION.split())
    yield from (f"timm/{name}" for name in TIMM.split())
    yield from (f"transformers/{name}" for name in TRANSFORMERS)
    yield from (f"full_size/{name}" for name in FULL_SIZE.split())


def in_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The verdict of a process of its own, which may crash or hang."""
    command = [sys.executable, __file__, "--one", name, "-d", options.device]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=options.seconds, check=False
        )
        found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"ops": 0, "convert": f"over {options.seconds:.0f} s", "compile": "not run"}
    except (IndexError, json.JSONDecodeError):
        last = ended.stderr.strip().splitlines()[-1:]
        return {"ops": 0, "convert": f"ended: {''.join(last)}", "compile": "not run"}
    return found


def exported(name: str, folder: Path) -> Path:
    """The file that an architecture was written to, by PyTorch's exporter."""
    import torch

    module, inputs = prepared(name)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace('/', '_')}.onnx"
    with torch.no_grad():
        torch.onnx.export(module, tuple(inputs.values()), path, external_data=False, verbose=False)
    return path


def verdict(name: str, device: str) -> dict[str, Any]:
    """How both ways compare with eager."""
    import torch

    import partita

    torch.set_num_threads(2)
    module, inputs = prepared(name)
    found: dict[str, Any] = {"ops": 0, "convert": "", "compile": ""}
    with torch.no_grad():
        expected = leaves(module(**inputs))

        def converted() -> list[Any]:
            model = partita.convert_model(module, example_input=inputs)
            found["ops"] = len(model.ops)
            compiled = partita.compile_model(model, device)
            ports = compiled.inputs
            arrays = {port.name: inputs[port.name].numpy() for port in ports}
            return list(compiled(arrays).to_tuple())

        found["convert"] = judged(converted, expected)
        found["compile"] = judged(lambda: through_dynamo(module, inputs, device), expected)
    return found


def prepared(name: str) -> tuple[Any, dict[str, Any]]:
    """The module and its inputs, the same whenever it is called."""
    import torch

    torch.manual_seed(0)
    module, inputs = made(name)
    calibrate(module, inputs)
    return module.eval(), inputs


def calibrate(module: Any, inputs: dict[str, Any]) -> None:
    """Lets batch normalization keep the statistics of noise: by others signals fade or explode.

    And draws weights that begin as zeros, which would hide all before them.
    """
    import torch

    for weight in module.parameters():
        if weight.ndim > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.02)
    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
    if norms:
        module.train()
        with torch.no_grad():
            module(**{key: torch.randn(4, *value.shape[1:]) for key, value in inputs.items()})


def through_dynamo(module: Any, inputs: dict[str, Any], device: str) -> list[Any]:
    """What `torch.compile` computes; graphs that PyTorch runs itself are an error."""
    import torch

    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener = Listener(logging.WARNING)
    logging.getLogger("partita").addHandler(listener)
    fast = torch.compile(module, backend="partita", options={"device": device})
    results = leaves(fast(**inputs))
    if said:
        raise RuntimeError(said[0])
    return results


def judged(run: Callable[[], list[Any]], expected: list[Any]) -> str:
    """`agrees` with the largest relative difference and the seconds it took, or what is wrong."""
    start = time.perf_counter()
    try:
        results = run()
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the verdict)
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    took = time.perf_counter() - start
    if len(results) != len(expected):
        return f"{len(results)} results, not {len(expected)}"
    worst = 0.0
    for one, other in zip(results, expected, strict=True):
        if np.shape(one) != np.shape(other):
            return f"shape {np.shape(one)}, not {np.shape(other)}"
        a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
        if not np.isfinite(b).all():
            return "eager is not finite"
        most = float(np.abs(b).max(initial=0))
        gap = float(np.nan_to_num(np.abs(a - b), nan=np.inf).max(initial=0))
        worst = max(worst, gap / (most or 1.0))
    kind = "agrees" if worst < TOLERANCE else "differs"
    return f"{kind} {worst:.0e} {took:5.1f} s"


def leaves(result: Any) -> list[Any]:
    """The tensors of a result, in order."""
    import torch
    from torch.utils import _pytree as pytree

    found = pytree.tree_leaves(result)
    return [leaf.numpy() for leaf in found if isinstance(leaf, torch.Tensor)]


def made(name: str) -> tuple[Any, dict[str, Any]]:
    """A module with random weights, and inputs by name."""
    library, _, kind = name.partition("/")
    makers = {
        "torchvision": of_torchvision,
        "timm": of_timm,
        "transformers": of_transformers,
        "full_size": of_full_size,
    }
    return makers[library](kind)


def of_torchvision(kind: str) -> tuple[Any, dict[str, Any]]:
    """A network of torchvision."""
    import torch
    import torchvision.models as zoo

    extra = {"init_weights": False} if kind in ("googlenet", "inception_v3") else {}
    if "_mobilenet_v3_large" in kind or kind.startswith("fcn"):
        extra = {"weights_backbone": None, "num_classes": 5}
    module = zoo.get_model(kind, weights=None, **extra)
    shape = (1, 3, 8, 64, 64) if kind.endswith("3_18") or kind == "r3d_18" else (1, 3, 224, 224)
    shape = (1, 3, 299, 299) if kind == "inception_v3" else shape
    return module, {first_argument(module): torch.randn(shape)}


def of_timm(kind: str) -> tuple[Any, dict[str, Any]]:
    """A network of timm."""
    import timm
    import torch

    module = timm.create_model(kind, pretrained=False)
    size = module.default_cfg["input_size"]
    return module, {first_argument(module): torch.randn(1, *size)}


def of_transformers(kind: str) -> tuple[Any, dict[str, Any]]:
    """A model of transformers, small."""
    import torch
    from transformers import AutoConfig, AutoModel

    sizes = {} if kind == "segformer" else SMALL | TRANSFORMERS[kind]  # it has a list for each
    config = AutoConfig.for_model(kind, **sizes)
    config.use_cache = False
    module = AutoModel.from_config(config)
    ids = torch.randint(5, 190, (1, 24))
    if kind in ("segformer", "vit"):
        size = 32 if kind == "vit" else 64
        return module, {"pixel_values": torch.randn(1, 3, size, size)}
    if kind == "wav2vec2":
        return module, {"input_values": torch.randn(1, 4000)}
    if kind == "whisper":
        return module, {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": ids[:, :8]}
    if kind in ("bart", "t5"):
        return module, {"input_ids": ids, "decoder_input_ids": ids[:, :8]}
    return module, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def of_full_size(kind: str) -> tuple[Any, dict[str, Any]]:
    """A model of transformers as its default configuration has it, random weights.

    It reads 128 tokens, a picture, 3 s of sound, or the 30 s that Whisper's encoder takes.
    """
    import torch
    from transformers import AutoConfig, AutoModel, T5EncoderModel

    config = AutoConfig.for_model(kind)
    if kind == "t5":
        return T5EncoderModel(config), {"input_ids": torch.randint(5, 30000, (1, 128))}
    module = AutoModel.from_config(config)
    if kind == "whisper":
        return module.encoder, {"input_features": torch.randn(1, 80, 3000)}
    if kind == "wav2vec2":
        return module, {"input_values": torch.randn(1, 48000)}
    if kind in ("bert", "distilbert"):
        ids = torch.randint(5, 30000, (1, 128))
        return module, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    size = {"detr": 480, "rt_detr": 640, "segformer": 512}.get(kind, 224)
    return module, {"pixel_values": torch.randn(1, 3, size, size)}


def first_argument(module: Any) -> str:
    """The name of the first argument of `forward`."""
    import inspect

    return next(iter(inspect.signature(module.forward).parameters))


if __name__ == "__main__":
    main()
