"""Settings of a server: its models, their limits, addresses, keys."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, model_validator

from partita.errors import PropertyError
from partita_serve.protocol.wrong_values import MOST_NAMES, in_words

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(ge=0)]
Size = Annotated[ByteSize, Field(ge=1)]


S = TypeVar("S", bound="_Settings")


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class QueueSettings(_Settings):
    """How requests for a model wait and are joined.

    Clients that load a model may set these, so each has a bound: none of them may take all threads
    or all memory.
    """

    max_batch_size: int = Field(
        0, ge=0, le=65_536, description="Rows that one run takes at most; 0 joins no requests."
    )
    max_queue_delay_us: int = Field(
        0,
        ge=0,
        le=60_000_000,
        description="Microseconds that a request waits for others to be joined with.",
    )
    max_queue_size: int = Field(
        128, ge=1, le=1_000_000, description="Requests that wait at most; others are refused (429)."
    )
    instances: int = Field(
        0, ge=0, le=256, description="Runs at the same time; 0 takes what keeps the device busy."
    )
    default_priority: int = Field(
        10,
        ge=1,
        le=1_000_000,
        description="Priority of requests that name none; lower numbers go first.",
    )
    default_timeout_us: int = Field(
        0,
        ge=0,
        le=86_400_000_000,
        description="Microseconds that a request may wait if it names no limit; 0 is for ever.",
    )
    max_sequences: int = Field(
        64,
        ge=1,
        le=65_536,
        description="Sequences of a model with state that may be open.",
    )
    sequence_idle_s: float = Field(
        60, ge=0, le=86_400, description="Seconds after which a sequence without requests is ended."
    )


class ModelSettings(QueueSettings):
    """How a model is compiled and served; ``config.toml`` beside its versions has the same keys."""

    device: str = Field("", description="E.g. 'HETERO:GPU,CPU'; empty for the default device.")
    properties: dict[str, Any] = Field(
        default_factory=dict, description="Properties to compile with."
    )
    versions: Positive = Field(1, description="How many of the newest versions are served.")


class ServerSettings(_Settings):
    """A whole server; the file of ``--config`` has the same keys."""

    models: dict[str, str] = Field(
        default_factory=dict, description="Models by name: a path, or zoo:NAME."
    )
    language_models: dict[str, str] = Field(
        default_factory=dict,
        description="Language models by name: a GGUF or ONNX file, a folder, or zoo:NAME.",
    )
    context: Positive | None = Field(
        None, description="Tokens of a prompt and its answer; by default the model's, up to 4096."
    )
    texts_at_once: Positive = Field(
        4, description="Texts that a language model generates at once; each takes cache."
    )
    max_texts_waiting: Count = Field(
        64, description="Texts that wait for a language model at most; others are refused (429)."
    )
    repository: Path | None = Field(
        None, description="A folder with NAME/VERSION/MODEL-FILE, each NAME with a config.toml."
    )
    defaults: ModelSettings = Field(
        default_factory=ModelSettings, description="For models that say nothing else."
    )
    reload_seconds: Seconds = Field(
        0, description="How often to look for changes in the repository; 0 for never."
    )
    allow_control: bool = Field(True, description="Let clients load and unload models.")
    host: str = Field("127.0.0.1", description="Address to listen at.")
    http_port: Port = Field(8000, description="Port of REST; 0 for any that is free.")
    grpc_port: Port = Field(8001, description="Port of gRPC; 0 for any that is free.")
    tls_certificate: Path | None = Field(None, description="Certificate chain (PEM).")
    tls_key: Path | None = Field(None, description="Its private key (PEM).")
    tls_client_ca: Path | None = Field(
        None, description="Authorities (PEM), one of which must have signed a client's certificate."
    )
    api_keys: Path | None = Field(
        None, description="A file with one key a line; requests then need one of them."
    )
    max_body: Size = Field(ByteSize(64 << 20), description="Bytes of one request.")
    max_buffered: Size = Field(
        ByteSize(1 << 30), description="Bytes of all requests that are held at once."
    )
    max_header: Size = Field(ByteSize(32 << 10), description="Bytes of a request's headers.")
    max_connections: Positive = Field(1024, description="Connections that are open at once.")
    read_timeout_s: Seconds = Field(
        30, description="Seconds that a client may take for its headers, and then for its body."
    )
    write_timeout_s: Seconds = Field(
        60, description="Seconds that a client may take to read an answer."
    )
    keep_alive_s: Seconds = Field(75, description="Seconds that a connection may be idle.")
    drain_seconds: Seconds = Field(
        1, description="Seconds between the signal to stop and the end of listening."
    )
    stop_seconds: Seconds = Field(
        25, description="Seconds that requests have to end after that, before they are given up."
    )

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together; give both")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        return self


def validated(kind: type[S], values: dict[str, Any], where: str) -> S:
    """Settings made of plain values.

    Args:
        kind: Which settings.
        values: By name.
        where: What they come from, for messages.

    Raises:
        PropertyError: A name is unknown, or a value cannot be.
    """
    if len(values) > MOST_NAMES:
        raise PropertyError(f"{where}: it has {len(values)} names; {MOST_NAMES} are read at most.")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise PropertyError(f"{where}: {in_words(error, kind)}.") from error


def read_toml(path: Path) -> dict[str, Any]:
    """The entries of a TOML file.

    Raises:
        PropertyError: It cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise PropertyError(f"'{path}' cannot be read: {error}.") from error
