"""``partita serve``: models behind the Open Inference Protocol."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.cli.arguments import (
    Commands,
    add_command,
    add_device,
    add_device_options,
    positive_int,
    properties_of,
)
from partita.cli.output import Output
from partita.errors import PartitaError, PropertyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partita_serve.lifecycle import Addresses
    from partita_serve.server import ModelServer
    from partita_serve.settings import ServerSettings

_OF_SERVER = {
    "repository": ("FOLDER", "serve the models of NAME/VERSION/MODEL-FILE below it"),
    "host": ("ADDRESS", "listen there (127.0.0.1; 0.0.0.0 for other machines)"),
    "http_port": ("PORT", "of REST (8000; 0 for any that is free)"),
    "grpc_port": ("PORT", "of gRPC (8001; 0 for any that is free)"),
    "reload_seconds": ("S", "look so often for changes in the repository (0: never)"),
    "tls_certificate": ("FILE", "certificate chain (PEM); clients must then use TLS"),
    "tls_key": ("FILE", "its private key (PEM)"),
    "tls_client_ca": ("FILE", "authorities (PEM) that clients' certificates must be signed by"),
    "api_keys": ("FILE", "keys, one a line, of which requests need one"),
    "max_body": ("SIZE", "bytes that a request may have (64MiB)"),
    "context": ("N", "tokens that a language model's prompt and answer have together at most"),
    "texts_at_once": ("N", "texts that a language model generates at once (4)"),
    "drain_seconds": ("S", "after the signal to stop, go on listening so long (1)"),
}
_OF_MODELS = {
    "max_batch_size": ("N", "join requests to runs of at most so many rows (0: never)"),
    "max_queue_delay_us": ("US", "let a request wait so long for others to be joined with (0)"),
    "max_queue_size": ("N", "refuse requests when so many wait (128)"),
    "instances": ("N", "runs at the same time (0: as many as keep the device busy)"),
}
"""Fields of the settings that have options of their own; the others are set by ``--config``."""


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "serve",
        run,
        "serves models by the Open Inference Protocol, over REST and gRPC",
        [
            "partita serve model.onnx -d HETERO:GPU,CPU",
            "partita serve ocr=zoo:ppocr-rec --max-batch-size 8 --max-queue-delay-us 500",
            "partita serve --language-model chat=model.gguf -d CPU",
            "partita serve --repository models --ray 4 --no-control",
            "partita serve --repository models --reload-seconds 5 --api-keys keys.txt",
        ],
    )
    parser.add_argument(
        "models",
        metavar="[NAME=]MODEL",
        nargs="*",
        help="a model file or zoo:NAME, and the name that clients call it by (default: the file's)",
    )
    add_device(parser)
    add_device_options(parser)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE.toml",
        help="all settings, also those without an option; options are stronger",
    )
    for name, (metavar, text) in (*_OF_SERVER.items(), *_OF_MODELS.items()):
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)
    parser.add_argument(
        "--language-model",
        metavar="[NAME=]MODEL",
        action="append",
        default=[],
        help="also answer OpenAI's API with it: a GGUF or ONNX file, a folder, or zoo:NAME",
    )
    parser.add_argument(
        "--ray",
        type=positive_int,
        metavar="REPLICAS",
        help="so many servers on the Ray cluster of RAY_ADDRESS, behind one address; REST only",
    )
    parser.add_argument(
        "--no-control", action="store_true", help="let no client load and unload models"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Serves until the process is asked to end."""
    try:
        from partita_serve import lifecycle, replicas
    except ModuleNotFoundError as error:
        raise PartitaError(
            f"Serving needs the package '{error.name}': pip install \"partita[serve]\""
        ) from error

    def ready(addresses: Addresses, server: ModelServer) -> None:
        _tell(out, addresses, server)

    def ready_on_ray(address: str) -> None:
        out.json({"http": address}) if out.as_json else out.text(f"REST at {address}")
        out.flush()

    settings, given_up = settings_of(args), 0
    if args.ray:
        replicas.run(settings, args.ray, ready_on_ray)
    else:
        given_up = lifecycle.run(settings, ready)
    what = (
        f"given up after stop_seconds ({settings.stop_seconds:g}), requests of {given_up} clients"
    )
    out.note(f"{what if given_up else 'all requests are answered'}; the server has ended")
    return 0


def settings_of(args: argparse.Namespace) -> ServerSettings:
    """What the command line and its file say.

    Raises:
        PropertyError: A setting is unknown or cannot be, or there is nothing to serve.
    """
    from partita_serve.settings import ServerSettings, read_toml, validated

    values: dict[str, Any] = {} if args.config is None else read_toml(args.config)
    values |= {name: getattr(args, name) for name in _OF_SERVER if getattr(args, name) is not None}
    models = {name: getattr(args, name) for name in _OF_MODELS if getattr(args, name) is not None}
    if args.device:
        models["device"] = args.device
    properties = properties_of(args)
    if properties:
        models["properties"] = properties
    for name, table, more in (
        ("defaults", values.get("defaults", {}), models),
        ("models", values.get("models", {}), _by_name(args.models)),
        (
            "language_models",
            values.get("language_models", {}),
            _by_name(args.language_model),
        ),
    ):
        if isinstance(table, dict):
            values[name] = table | more
    if args.no_control:
        values["allow_control"] = False
    where = "The settings" if args.config is None else f"The settings of '{args.config}'"
    settings = validated(ServerSettings, values, where)
    if not (settings.models or settings.language_models or settings.repository):
        raise PropertyError(
            "There is nothing to serve: name a model, a folder of models by --repository, or a "
            "language model by --language-model."
        )
    return settings


def _by_name(texts: Sequence[str]) -> dict[str, str]:
    """Where models are, by their names.

    Raises:
        PropertyError: Two have one name.
    """
    found: dict[str, str] = {}
    for name, source in map(_named, texts):
        before = found.setdefault(name, source)
        if before != source:
            raise PropertyError(
                f"'{before}' and '{source}' would both be served as '{name}'; give one another "
                f"name, e.g. '{name}_2={source}'."
            )
    return found


def _named(text: str) -> tuple[str, str]:
    """The name of a model and where it is.

    Example:
        >>> _named("ocr=zoo:ppocr-rec"), _named("models/resnet 50.onnx")
        (('ocr', 'zoo:ppocr-rec'), ('resnet_50', 'models/resnet 50.onnx'))
    """
    name, equals, source = text.partition("=")
    if equals and re.fullmatch(r"[\w.-]+", name, re.ASCII):
        return name, source
    last = Path(text.rpartition(":")[2] if ":" in text else text)
    return re.sub(r"[^A-Za-z0-9._-]", "_", last.stem), text


def _tell(out: Output, addresses: Addresses, server: ModelServer) -> None:
    index = server.repository_index()
    if out.as_json:
        out.json({"http": addresses.http, "grpc": addresses.grpc, "models": index})
    else:
        out.text(f"REST and OpenAI's API at {addresses.http}, gRPC at {addresses.grpc}")
        ready = [f"'{one['name']}' (version {one['version']})" for one in index]
        ready += [f"'{name}' (texts)" for name in server.settings.language_models]
        out.text(f"serving {', '.join(ready) or 'no model yet'}")
    out.flush()
