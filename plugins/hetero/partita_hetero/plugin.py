"""Entry point of device HETERO; everything heavy is imported when a model comes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import partita
from partita.contract.command_option import CommandOption
from partita.contract.core_api import CoreAPI
from partita.contract.device_plugin import DecoderRequest, DeviceInfo, DevicePlugin
from partita.properties.deferred import deferred_properties

if TYPE_CHECKING:
    from partita.properties import DeviceProperties
    from partita_hetero.placement.device_list import DeviceList


class HeteroPlugin(DevicePlugin):
    """A device made of other devices, which it knows only through the core that it is handed."""

    device_name = "HETERO"
    is_default = True
    splits_models = True
    properties_type: ClassVar[type[DeviceProperties]] = deferred_properties(
        "partita_hetero.properties:HeteroProperties"
    )

    def __init__(self, core: CoreAPI) -> None:
        self._core = core

    def device_info(self, device_id: str) -> DeviceInfo:
        """Describes HETERO; asks no other device."""
        return DeviceInfo(
            self.device_name,
            "One model over several devices",
            kind="virtual",
            driver=f"partita {partita.__version__}",
        )

    def query_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.QueryResult:
        """The first device of the list that takes each operation, or that it is pinned to."""
        from partita_hetero.compile.placer import Placer
        from partita_hetero.partition.decoder_layers import cache_inputs

        devices = self._devices(properties)
        if devices.properties.HETERO_CONTEXT and cache_inputs(model):
            from partita_hetero.tuning.decoders.decoder_plan import plan_model

            return plan_model(model, devices).query_result(model, devices)
        return Placer(model, devices, heeds_affinities=False).query()

    def compile_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.DeviceModel:
        """Places, cuts, compiles and joins."""
        from partita_hetero.compile.pipeline import Compilation
        from partita_hetero.device_model import HeteroModel
        from partita_hetero.tuning.tuner import tune

        devices = self._devices(properties)
        return HeteroModel(Compilation(model, devices, tune))

    def import_model(
        self, blob: bytes | memoryview, properties: DeviceProperties
    ) -> partita.DeviceModel:
        """Restores the placement and, where devices kept something, what they had computed."""
        from partita_hetero.device_model import HeteroModel
        from partita_hetero.export import restore
        from partita_hetero.tuning.tuner import tune

        found = restore(blob, properties, self.device_name, self._devices, tune)
        return HeteroModel(*found)

    def identity(self, properties: DeviceProperties) -> str:
        """All that the devices' compiled models depend on too, and files that properties name."""
        from partita.storage.model_cache import files_content

        devices = self._devices(properties)
        named = devices.properties
        identities = [self._core.identity(name, devices.config(name)) for name in devices.names]
        files = files_content(named.HETERO_PLACEMENT_LOCK, named.HETERO_SAMPLE_INPUTS)
        return json.dumps([super().identity(properties), devices.names, identities, files])

    def for_decoder(
        self, request: DecoderRequest, properties: DeviceProperties
    ) -> Mapping[str, Any]:
        """Its sizes; whole layers are placed by memory unless the application chose a schedule."""
        chosen = properties.model_fields_set
        sizes = {
            "HETERO_CONTEXT": None if "HETERO_SCHEDULE" in chosen else request.context,
            "HETERO_PROMPT_TOKENS": request.prompt,
            "HETERO_NEW_TOKENS": request.new,
            "HETERO_CHUNK_TOKENS": request.chunk,
        }
        return {k: size for k, size in sizes.items() if size is not None and k not in chosen}

    def _devices(self, properties: DeviceProperties) -> DeviceList:
        from partita_hetero.placement.device_list import DeviceList
        from partita_hetero.properties import HeteroProperties

        if not isinstance(properties, HeteroProperties):
            raise TypeError(f"HETERO takes HeteroProperties, not {type(properties).__name__}.")
        return DeviceList(self._core, self.device_name, properties)


@partita.hookimpl
def device_plugins(core: CoreAPI) -> Iterable[DevicePlugin]:
    """Registers HETERO."""
    return [HeteroPlugin(core)]


@partita.hookimpl
def command_modules() -> Iterable[str]:
    """Registers ``partita plan`` and ``partita report``."""
    return ["partita_hetero.cli.plan", "partita_hetero.cli.report"]


@partita.hookimpl
def command_options() -> Iterable[CommandOption]:
    """Registers ``--pin``, ``--lock`` and ``--memory``."""
    from partita_hetero.options.command_options import LOCK, MEMORY, PIN

    return [PIN, LOCK, MEMORY]
