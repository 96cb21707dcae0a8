"""The models of a server: loaded, replaced and unloaded while requests go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from partita import Core
from partita.errors import PartitaError
from partita_serve.models.loading import ModelSource, load
from partita_serve.models.model_folder import Fingerprint, FolderEntry, look_into
from partita_serve.models.served_model import ServedModel
from partita_serve.protocol.errors import (
    InvalidRequest,
    NotFound,
    ServingError,
    Unavailable,
    serving_error,
)
from partita_serve.protocol.observer import Observer
from partita_serve.protocol.records import InferenceRequest
from partita_serve.settings import ModelSettings, QueueSettings, ServerSettings, validated

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Version:
    """What is known of one version of a model.

    Attributes:
        state: ``"READY"``, ``"LOADING"``, ``"UNLOADING"`` or ``"UNAVAILABLE"``.
        reason: Why it is not ready, or why a newer state of its files is not served.
        served: What answers requests.
        fingerprint: Of the files that it was loaded from.
        retiring: What answered before, and still has requests or open sequences.
    """

    state: str = "UNAVAILABLE"
    reason: str = ""
    served: ServedModel | None = None
    fingerprint: Fingerprint | None = None
    retiring: list[ServedModel] = field(default_factory=list)


class Repository:
    """The models by name and version.

    To be used on the event loop; models are read and compiled on threads.

    Args:
        core: Reads and compiles.
        settings: Which models, and how.
        observers: Notified of runs.
    """

    def __init__(self, core: Core, settings: ServerSettings, observers: Sequence[Observer]) -> None:
        self._core = core
        self._settings = settings
        self._observers = observers
        self._models: dict[str, dict[str, _Version]] = {}
        # Each as long as somebody holds it: clients may name any number of models.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._retirements: set[asyncio.Task[None]] = set()

    # -------------------------------------------------------------------- requests

    def find(self, name: str, version: str = "") -> ServedModel:
        """The model that answers.

        Args:
            name: Its name.
            version: Its version; empty for the newest that is ready.

        Raises:
            NotFound: There is no such model or version.
            Unavailable: It is not ready.
        """
        versions = self._models.get(name)
        if versions is None:
            known = ", ".join(f"'{one}'" for one in self._models) or "none"
            raise NotFound(f"There is no model '{name}'; there are {known}.")
        if version:
            found = versions.get(version)
            if found is None:
                raise NotFound(
                    f"Model '{name}' has no version '{version}'; it has {', '.join(versions)}."
                )
            if found.served is None:
                raise Unavailable(_not_ready(name, version, found))
            return found.served
        ready = [one.served for one in versions.values() if one.served is not None]
        if not ready:
            number, newest = list(versions.items())[-1] if versions else ("", _Version())
            raise Unavailable(_not_ready(name, number, newest))
        return max(ready, key=lambda served: int(served.version))

    def find_for(self, request: InferenceRequest) -> ServedModel:
        """The model that answers a request: for one of an open sequence, where that is open.

        Raises:
            NotFound: There is no such model or version.
            Unavailable: It is not ready.
        """
        if "sequence_id" in request.parameters:
            for version, one in self._models.get(request.model, {}).items():
                if request.version in ("", version):
                    for served in one.retiring:
                        if served.holds(request):
                            return served
        return self.find(request.model, request.version)

    def versions(self, name: str) -> list[str]:
        """The versions of a model that are ready, the oldest first."""
        ready = [v for v, one in self._models.get(name, {}).items() if one.served is not None]
        return sorted(ready, key=int)

    def index(self, ready: bool = False) -> list[dict[str, Any]]:
        """All models with their states, as the protocol lists them."""
        return [
            {"name": name, "version": version, "state": one.state, "reason": one.reason}
            for name, versions in self._models.items()
            for version, one in versions.items()
            if not ready or one.state == "READY"
        ]

    def all_served(self) -> list[ServedModel]:
        """Everything that answers requests."""
        return [
            one.served
            for versions in self._models.values()
            for one in versions.values()
            if one.served is not None
        ]

    # --------------------------------------------------------------------- loading

    async def load_all(self) -> None:
        """Loads every model that the settings name and that lies in the folder.

        A model of the folder that cannot be loaded is in the index with the reason.

        Raises:
            PartitaError: One that the settings name cannot be loaded, or the folder not be read.
        """
        for name in self._settings.models:
            await self.load(name)
        for name in await asyncio.to_thread(self._folder):
            if name not in self._models:
                try:
                    await self.load(name)
                except ServingError as error:
                    _log.warning("%s", error)

    async def load(self, name: str, config: Mapping[str, Any] | None = None) -> None:
        """Loads a model, or loads it anew; what answered until then answers until that is done.

        Args:
            name: One that the settings name, or of the folder.
            config: Settings of its queue that replace those of its file until it is loaded again.

        Raises:
            NotFound: There is no such model.
            InvalidRequest: The settings cannot be.
            ServingError: It cannot be loaded; what answered goes on.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):
            entry = await asyncio.to_thread(self._entry, name)
            if entry is None:
                raise NotFound(
                    f"There is no model '{name}' in the model folder, nor on the command line."
                )
            versions = self._models.setdefault(name, {})
            if entry.failure:
                self._note_failure(versions, entry.failure)
                raise InvalidRequest(entry.failure)
            sources = {v: _with(source, config) for v, source in entry.sources.items()}
            for version, source in sources.items():
                await self._load(versions, source, entry.fingerprints.get(version))
            for version in set(versions) - set(sources):
                self._retire(versions, version)

    async def unload(self, name: str) -> None:
        """Takes a model out; requests that it has are answered.

        Raises:
            NotFound: There is no such model.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):
            versions = self._models.get(name)
            if versions is None:
                raise NotFound(f"There is no model '{name}' that could be unloaded.")
            for version in list(versions):
                self._retire(versions, version, "it was unloaded")

    async def watch(self) -> None:
        """Loads what changes in the folder, for ever."""
        seen: dict[str, FolderEntry] = {}
        while True:
            await asyncio.sleep(self._settings.reload_seconds)
            before = seen
            try:
                seen = await asyncio.to_thread(self._folder)
            except PartitaError as error:
                _log.warning("%s", error)
                continue
            for name, entry in seen.items():
                # What differs from the last look is still being written.
                if entry == before.get(name) and self._has_changed(name, entry):
                    await self._reload(name)
            for name in before.keys() - seen.keys():
                if name in self._models:
                    _log.info("Model '%s' was removed from the folder.", name)
                    await self.unload(name)
                    del self._models[name]

    async def close(self) -> None:
        """Waits for all requests, but not longer than the settings say; ends all sequences."""
        for versions in self._models.values():
            for version, one in list(versions.items()):
                self._retire(versions, version, "the server stops")
                for served in one.retiring:
                    served.end_sequences()
        if self._retirements:
            _, left = await asyncio.wait(self._retirements, timeout=self._settings.stop_seconds)
            if left:
                _log.warning("%d models still have requests, which are given up.", len(left))

    async def _reload(self, name: str) -> None:
        try:
            await self.load(name)
        except PartitaError as error:
            _log.warning("Model '%s' was not reloaded: %s", name, error)
        else:
            _log.info("Model '%s' has changed and was reloaded.", name)

    async def _load(
        self, versions: dict[str, _Version], source: ModelSource, fingerprint: Fingerprint | None
    ) -> None:
        one = versions.setdefault(source.version, _Version())
        one.fingerprint = fingerprint
        if one.served is None:
            one.state, one.reason = "LOADING", ""
        try:
            served = ServedModel(await asyncio.to_thread(load, self._core, source), self._observers)
        except Exception as error:  # what a broken file raises must not end the server
            refusal = serving_error(error)
            if not isinstance(error, PartitaError):
                _log.exception("Model '%s' cannot be loaded.", source.name)
            one.reason = str(refusal)
            if one.served is None:
                one.state = "UNAVAILABLE"
            raise refusal from error
        before, one.served = one.served, served
        one.state, one.reason = "READY", ""
        if before is not None:
            self._let_end(one, before)

    def _retire(self, versions: dict[str, _Version], version: str, reason: str = "") -> None:
        """Takes a version out; without a reason it leaves the index once nothing of it runs."""
        one = versions[version]
        served, one.served = one.served, None
        one.state, one.reason = "UNAVAILABLE", reason
        if served is None:
            if not reason:
                del versions[version]
            return
        one.state = "UNLOADING"
        self._let_end(one, served, None if reason else lambda: versions.pop(version, None))

    def _let_end(
        self, one: _Version, served: ServedModel, gone: Callable[[], object] | None = None
    ) -> None:
        """Lets requests and sequences end on what answers no new ones."""
        one.retiring.append(served)

        async def end() -> None:
            await served.retire()
            one.retiring.remove(served)
            if one.served is None and not one.retiring:
                one.state = "UNAVAILABLE"
                if gone is not None:
                    gone()

        task = asyncio.create_task(end())
        self._retirements.add(task)
        task.add_done_callback(self._retirements.discard)

    def _note_failure(self, versions: dict[str, _Version], failure: str) -> None:
        for one in versions.values():
            one.reason = failure
        if not versions:
            versions["1"] = _Version(reason=failure)

    # ---------------------------------------------------------------------- folder

    def _folder(self) -> dict[str, FolderEntry]:
        """What lies in the folder, but for names that the settings give to other models."""
        if self._settings.repository is None:
            return {}
        found = look_into(self._settings.repository, self._settings.defaults)
        return {name: one for name, one in found.items() if name not in self._settings.models}

    def _entry(self, name: str) -> FolderEntry | None:
        source = self._settings.models.get(name)
        if source is None:
            return self._folder().get(name)
        return FolderEntry({"1": ModelSource(name, "1", source, self._settings.defaults)}, {})

    def _has_changed(self, name: str, entry: FolderEntry) -> bool:
        versions = self._models.get(name)
        if versions is None or entry.failure:
            return versions is None or any(v.reason != entry.failure for v in versions.values())
        return {v: one.fingerprint for v, one in versions.items()} != entry.fingerprints


def _not_ready(name: str, version: str, found: _Version) -> str:
    which = f"Model '{name}', version {version}," if version else f"Model '{name}'"
    return f"{which} is not ready ({found.state}){': ' if found.reason else '.'}{found.reason}"


def _with(source: ModelSource, config: Mapping[str, Any] | None) -> ModelSource:
    """A source with settings that a client sent."""
    if not config:
        return source
    try:
        validated(QueueSettings, dict(config), f"The configuration sent for model '{source.name}'")
    except PartitaError as error:
        raise InvalidRequest(str(error)) from error
    settings = ModelSettings.model_validate({**source.settings.model_dump(), **config})
    return ModelSource(source.name, source.version, source.source, settings, source.folder)
