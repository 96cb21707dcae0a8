"""Compiled models from a plugin and a model: compiled, loaded from the cache, or imported."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from partita.contract.device_plugin import DevicePlugin
from partita.contract.identity import stamp
from partita.errors import BlobError, PartitaError, PropertyError
from partita.frontends.model_file import require_whole_files
from partita.frontends.reader import read_model
from partita.model.inference.shape_inference import infer_shapes
from partita.model.model import Model
from partita.properties.schema import validate
from partita.properties.values import normalize
from partita.runtime.compiled_model import CompiledModel
from partita.runtime.plugin_core import compile_with, identity_with
from partita.storage import exported_model
from partita.storage.model_cache import ModelCache, key_of

if TYPE_CHECKING:
    from partita.extensions import Extensions
    from partita.properties import DeviceProperties

_log = logging.getLogger("partita")


def compile_or_load(
    plugin: DevicePlugin,
    properties: DeviceProperties,
    source: Any,
    cache_folder: str,
    extensions: Extensions | None = None,
) -> CompiledModel:
    """Compiles a model, or loads it from the cache.

    The cache key of a file is its content before the compile, and is computed again after it: a
    model that another process has replaced meanwhile is not stored.

    Args:
        plugin: The device's plugin.
        properties: Complete and checked.
        source: A ``Model``, of which a copy is compiled, or whatever ``Core.read_model`` takes.
        cache_folder: ``CACHE_DIR``; empty for none.
        extensions: Operators of the application's own that the model may hold.
    """
    if not cache_folder:
        return _compile(plugin, properties, source, extensions)
    cache = ModelCache(cache_folder)
    key = key_of(identity_with(plugin, properties), source)
    try:
        found = cache.load(key)
        if found is not None:
            return load_exported(plugin, properties, found, extensions, from_cache=True)
    except PartitaError as error:
        _log.warning("A cached model cannot be used, and the model is compiled again: %s", error)
    fresh = _compile(plugin, properties, source, extensions)
    is_file = isinstance(source, (str, os.PathLike))
    if is_file and key_of(identity_with(plugin, properties), source) != key:
        _log.warning("The compiled model is not cached: '%s' was replaced meanwhile.", source)
        return fresh
    try:
        cache.store(key, fresh.export_model())
    except PartitaError as error:
        _log.warning("The compiled model is not cached: %s", error)
    return fresh


def _compile(
    plugin: DevicePlugin,
    properties: DeviceProperties,
    source: Any,
    extensions: Extensions | None,
) -> CompiledModel:
    if isinstance(source, Model):
        require_whole_files(source)
        own = source.clone()
    else:
        own = read_model(source, extensions=extensions)
    if extensions is not None and extensions.attach(own.ir.graph):
        infer_shapes(own.ir)
    made = compile_with(plugin, own.name, lambda: plugin.compile_model(own, properties))
    return CompiledModel(made, lambda: identity_with(plugin, properties))


def load_exported(
    plugin: DevicePlugin,
    properties: DeviceProperties,
    data: Any,
    extensions: Extensions | None = None,
    from_cache: bool = False,
) -> CompiledModel:
    """Loads what :meth:`CompiledModel.export_model` wrote.

    Args:
        plugin: The device's plugin.
        properties: Complete and checked; those of the file count where these are not set.
        data: The file's bytes.
        extensions: Operators of the application's own that the model may hold.
        from_cache: Whether they come out of ``CACHE_DIR``.

    Raises:
        BlobError: Not a blob, damaged, of another version or device.
    """
    if type(plugin).import_model is not DevicePlugin.import_model:
        made = compile_with(plugin, "", lambda: plugin.import_model(data, properties))
        return CompiledModel(made, lambda: identity_with(plugin, properties), from_cache)
    blob = exported_model.unpack(data, plugin.device_name)
    header, model = blob.header, blob.model
    if extensions is not None:
        extensions.attach(model.ir.graph)
    try:
        stored = validate(plugin.properties_type, normalize(header.get("properties")), "The blob")
    except PropertyError as error:
        raise BlobError(f"The exported model does not fit its device: {error}") from error
    merged = validate(
        plugin.properties_type, properties.model_dump(exclude_unset=True), "The blob", stored
    )
    same = header.get("made_by") == stamp(identity_with(plugin, merged))
    state = blob.arrays if same else {}
    made = compile_with(plugin, model.name, lambda: plugin.restore_model(model, merged, state))
    return CompiledModel(made, lambda: identity_with(plugin, merged), from_cache)
