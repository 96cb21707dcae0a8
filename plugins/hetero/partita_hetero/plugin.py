"""Entry point of device HETERO; everything heavy is imported when a model comes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import partita
from partita.plugin import CoreAPI, DeviceInfo, DevicePlugin
from partita_hetero.properties import HeteroProperties

if TYPE_CHECKING:
    from partita.properties import DeviceProperties
    from partita_hetero.devices import DeviceList


class HeteroPlugin(DevicePlugin):
    """A device made of other devices, which it knows only through the core that it is handed."""

    device_name = "HETERO"
    properties_type = HeteroProperties

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
        """The first device of the list that takes each operation; pins are ignored."""
        return self._devices(properties).query(model)

    def compile_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.CompiledModel:
        """Places, cuts, compiles and joins."""
        from partita_hetero.compilation import Compilation
        from partita_hetero.compiled import HeteroCompiledModel

        return HeteroCompiledModel(Compilation(model, self._devices(properties)))

    def import_model(self, blob: bytes, properties: DeviceProperties) -> partita.CompiledModel:
        """Compiles an exported model with the placement that it had."""
        from partita import blob as blobs
        from partita.errors import BlobError, PropertyError
        from partita.properties import validate
        from partita_hetero.compilation import Compilation
        from partita_hetero.compiled import HeteroCompiledModel

        header, model = blobs.unpack(blob, self.device_name)
        stored, placement = header.get("properties"), header.get("placement")
        if not isinstance(stored, dict) or not isinstance(placement, dict):
            raise BlobError("The exported model's header lacks its properties or its placement.")
        try:
            base = validate(HeteroProperties, stored, "The exported model")
        except PropertyError as error:
            raise BlobError(f"The exported model's properties are damaged: {error}") from error
        merged = validate(
            HeteroProperties, properties.model_dump(exclude_unset=True), "The exported model", base
        )
        pins = {str(name): str(device) for name, device in placement.items()}
        return HeteroCompiledModel(Compilation(model, self._devices(merged), pins))

    def _devices(self, properties: DeviceProperties) -> DeviceList:
        from partita_hetero.devices import DeviceList

        if not isinstance(properties, HeteroProperties):
            raise TypeError(f"HETERO takes HeteroProperties, not {type(properties).__name__}.")
        return DeviceList(self._core, self.device_name, properties)


@partita.hookimpl
def device_plugins(core: CoreAPI) -> Iterable[DevicePlugin]:
    """Registers HETERO."""
    return [HeteroPlugin(core)]


@partita.hookimpl
def command_modules() -> Iterable[str]:
    """Registers ``partita plan``."""
    return ["partita_hetero.cli.plan"]
