"""Finding what generating takes: the model, its tokenizer, and how long a text it was made for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.core import Core
from partita.errors import ModelNotFoundError, TokenizerError, raised_as
from partita.frontends.onnx.external_data import beside
from partita.generate import weight_traffic
from partita.generate.text import gguf_tokenizer, tokenizer
from partita.generate.text.tokenizer import Tokenizer, read_json
from partita.model.model import Model
from partita.zoo.naming import resolve
from partita.zoo.store import Store

_ONNX_NAMES = ("model.onnx", "decoder_model_merged.onnx", "onnx/model.onnx")
_IR_NAME = "openvino_model.xml"
"""Where a decoder lies in a folder without ``genai_config.json``."""


@dataclass(frozen=True)
class ModelSource:
    """A model for generating and what lies beside it.

    Attributes:
        path: The model's file.
        read: Reads it, with room for so many tokens; by default for as many as its reader takes.
        tokenizer: Makes its tokenizer.
        longest: Tokens of the longest text that the model was made for; ``None`` if nobody says.
        weight_bytes: Bytes of the weights that each token reads; ``None`` for those of the model.
    """

    path: Path
    read: Callable[[Core, int | None], Model]
    tokenizer: Callable[[], Tokenizer]
    longest: int | None
    weight_bytes: int | None = None


def find(source: str | os.PathLike[str], store: Store | None = None) -> ModelSource:
    """What a path or name stands for, fetched where it is a model of the zoo that is not here.

    Args:
        source: A GGUF file; an ONNX file or OpenVINO IR with ``tokenizer.json`` beside it; a folder
            of these; or ``zoo:NAME``.
        store: Where models of the zoo are kept; ``None`` for the usual place.

    Raises:
        ModelNotFoundError: There is no model.
        ZooError: The zoo has no such model, or it cannot be fetched.
    """
    named = resolve(os.fspath(source), store).source
    if not isinstance(named, Path):
        raise ModelNotFoundError(
            f"'{source}' is not a language model; give a GGUF, ONNX or IR file."
        )
    if named.is_dir():
        named = _in_folder(named)
    return _gguf(named) if _is_gguf(named) else _beside_tokenizer(named)


def _is_gguf(path: Path) -> bool:
    """Whether a file is one by its name or its first bytes: stores of models have other names."""
    from partita.frontends.gguf import MAGIC

    if path.suffix.lower() == ".gguf" or not path.is_file():
        return path.suffix.lower() == ".gguf"
    with raised_as(ModelNotFoundError, f"'{path}' cannot be read"), path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _gguf(path: Path) -> ModelSource:
    from partita.frontends.gguf import DecoderOptions, longest_context, open_file

    file = open_file(path)
    return ModelSource(
        path,
        lambda core, context: core.read_model(path, decoder=DecoderOptions(context=context)),
        lambda: gguf_tokenizer.from_metadata(file.metadata, file.origin),
        longest_context(file),
        weight_traffic.of_gguf(file),
    )


def _beside_tokenizer(path: Path) -> ModelSource:
    folder = path.parent
    if not (folder / "tokenizer.json").is_file() and (folder.parent / "tokenizer.json").is_file():
        folder = folder.parent  # optimum puts models into a folder 'onnx'
    genai = _entries(read_json(folder / "genai_config.json").get("model"))
    config = read_json(folder / "config.json")
    longest = genai.get("context_length", config.get("max_position_embeddings"))
    ends = genai.get("eos_token_id", config.get("eos_token_id", []))
    end_tokens = [
        token for token in (ends if isinstance(ends, list) else [ends]) if token is not None
    ]
    if not all(map(_is_count, [*end_tokens, longest or 0])):
        raise TokenizerError(
            f"'genai_config.json' or 'config.json' in '{folder}' has the end tokens {ends!r} and "
            f"the context {longest!r}; both must be whole numbers of at least 0."
        )
    return ModelSource(
        path,
        lambda core, context: core.read_model(path),
        lambda: tokenizer.from_folder(folder, end_tokens),
        longest,
    )


def _in_folder(folder: Path) -> Path:
    """The model in a folder."""
    decoder = _entries(
        _entries(read_json(folder / "genai_config.json").get("model")).get("decoder")
    )
    names = [*_ONNX_NAMES, _IR_NAME]
    if "filename" in decoder:
        names = [_checked_name(folder / "genai_config.json", str(decoder["filename"]))]
    found = [folder / name for name in names if (folder / name).is_file()]
    found += sorted(folder.glob("*.gguf"))
    if not found:
        raise ModelNotFoundError(
            f"There is no model in '{folder}': looked for {', '.join(names)} and *.gguf."
        )
    return found[0]


def _checked_name(config: Path, name: str) -> str:
    """The name of a model that its configuration gives: a stranger's, as the model is.

    Raises:
        ModelNotFoundError: No file can have that name, or it lies outside of the folder.
    """
    try:
        # Of names that no file can have, Path.is_file says nothing since Python 3.14.
        with suppress(FileNotFoundError, NotADirectoryError):
            (config.parent / name).stat()
        target = beside(config, name)
    except (ValueError, OSError, RuntimeError) as error:
        raise ModelNotFoundError(f"'{config}' names a model that cannot be: {error}") from error
    if target is None:
        raise ModelNotFoundError(
            f"'{config}' names the model '{name}', which is outside of the folder. Put the file "
            "beside it."
        )
    return name


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _entries(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
