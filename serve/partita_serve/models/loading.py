"""Loading: from a model's source to a compiled model that has run once."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partita import CompiledModel, Core, Model, Port
from partita.errors import ModelError, PartitaError, PropertyError
from partita.model.synthetic_inputs import synthetic_inputs
from partita.storage.temporary_folder import TemporaryFolder
from partita.zoo.naming import resolve
from partita_serve.protocol.datatypes import datatype_of
from partita_serve.settings import ModelSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What one version of a model is loaded from.

    Attributes:
        name: The model's name.
        version: Its version.
        source: A path, or ``zoo:NAME``.
        settings: How it is served.
        folder: What is copied before it is read, so that nobody can change the files of a model
            that runs; ``None`` if the file is read where it is.
    """

    name: str
    version: str
    source: str
    settings: ModelSettings
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to run.

    Attributes:
        source: What it was made of.
        compiled: The model.
        inputs: The inputs that clients give; those of the model's state are not among them.
        outputs: The outputs that clients get.
        files: Closing it removes the copy of the model's files.
    """

    source: ModelSource
    compiled: CompiledModel
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    files: contextlib.ExitStack


def load(core: Core, source: ModelSource) -> LoadedModel:
    """Reads and compiles a model, and runs it once, so that its first client does not wait.

    Raises:
        PartitaError: It cannot be read or compiled, not be joined to batches as it is to be, or has
            element types that the protocol has no name for.
    """
    with contextlib.ExitStack() as opened:
        path = source.source
        if source.folder is not None:
            kept = TemporaryFolder("partita-serve-")
            opened.callback(kept.remove)
            _COPIES.add(kept)
            opened.callback(_COPIES.discard, kept)
            copy = kept.path / source.version
            shutil.copytree(source.folder, copy)
            path = str(copy / Path(path).name)
        compiled = _compiled(core, source, path)
        state = {
            name
            for variable in compiled.model.variables
            for name in (variable.read, variable.begun, variable.written)
        }
        inputs = [port for port in compiled.inputs if port.name not in state]
        outputs = [port for port in compiled.outputs if port.name not in state]
        for port in (*inputs, *outputs):
            datatype_of(port.dtype)
        loaded = LoadedModel(source, compiled, inputs, outputs, opened.pop_all())
    _warm_up(loaded)
    return loaded


_COPIES: set[TemporaryFolder] = set()
"""Folders with copies of models' files."""


def remove_copies() -> None:
    """Removes all copies of models' files; for a process that ends without closing its models."""
    for folder in list(_COPIES):
        folder.remove()


def _compiled(core: Core, source: ModelSource, path: str) -> CompiledModel:
    model = core.read_model(resolve(path).source)
    settings = source.settings
    if settings.max_batch_size:
        _open_batch_axis(source.name, model)
    return core.compile_model(model, settings.device or None, settings.properties)


_MOST_MADE_UP = 1 << 24
"""Elements of an input that is made up at most."""


def _open_batch_axis(name: str, model: Model) -> None:
    """Sees to it that the first axis of every port can grow, or says why it cannot."""
    if model.variables:
        raise PropertyError(
            f"Model '{name}' keeps state, so that requests for it cannot be joined; leave "
            "max_batch_size at 0."
        )
    fixed = {p.name: p for p in model.inputs if not p.shape or isinstance(p.shape[0], int)}
    if fixed and all(port.shape and port.shape[0] == 1 for port in fixed.values()):
        try:
            model.reshape({key: ["batch", *(p.shape or ())[1:]] for key, p in fixed.items()})
        except ModelError as error:
            raise PropertyError(
                f"Model '{name}' takes one row, and cannot be made to take more ({error}); leave "
                "max_batch_size at 0."
            ) from error
    ports = [*model.inputs, *model.outputs]
    for port in ports:
        if port.shape is not None and (not port.shape or isinstance(port.shape[0], int)):
            raise PropertyError(
                f"Requests for model '{name}' cannot be joined: the first axis of '{port.name}' "
                f"({port.describe()}) does not vary; leave max_batch_size at 0."
            )


def _warm_up(loaded: LoadedModel) -> None:
    """Runs the model at the sizes that are known, so that kernels and programs are made."""
    settings = loaded.source.settings
    for rows in {1, settings.max_batch_size or 1}:
        shapes: dict[str, tuple[int, ...]] = {}
        for port in loaded.inputs:
            dims = port.shape or ()
            varies = [i for i, dim in enumerate(dims) if not isinstance(dim, int)]
            if port.shape is None or varies not in ([], [0]):
                return  # nobody knows the sizes that clients will send
            shapes[port.name] = tuple(dim if isinstance(dim, int) else rows for dim in dims)
        if any(math.prod(shape) > _MOST_MADE_UP for shape in shapes.values()):
            return  # who sends as much may wait
        try:
            made = synthetic_inputs(loaded.compiled.model, np.random.default_rng(0), loaded.inputs)
            feeds = {
                name: np.ascontiguousarray(np.broadcast_to(made[name], shape))
                for name, shape in shapes.items()
            }
            loaded.compiled.infer_new_request(feeds)
        except (PartitaError, ValueError) as error:
            # Made-up numbers need not be what a model takes; a client's may be.
            _log.info(
                "Model '%s' was not run before its first request: %s", loaded.source.name, error
            )
            return
