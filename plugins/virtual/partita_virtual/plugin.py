"""Entry point of devices AUTO, MULTI and BATCH; what they do is imported when a model comes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import partita
from partita.contract.core_api import CoreAPI
from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.properties.deferred import deferred_properties

if TYPE_CHECKING:
    from partita.properties import DeviceProperties
    from partita_virtual.members import Members


class VirtualPlugin(DevicePlugin):
    """Base of devices that run whole models on others, which they know through the core alone."""

    summary: ClassVar[str]

    def __init__(self, core: CoreAPI) -> None:
        self._core = core

    def device_info(self, device_id: str) -> DeviceInfo:
        """Describes the device; asks no other one."""
        driver = f"partita {partita.__version__}"
        return DeviceInfo(self.device_name, self.summary, kind="virtual", driver=driver)

    def query_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.QueryResult:
        """What that device of the list takes which takes most of the model."""
        return self._members(properties).query(model)

    def compile_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.DeviceModel:
        """Compiles the model for devices of the list."""
        return self.restore_model(model, properties, {})

    def identity(self, properties: DeviceProperties) -> str:
        """All that the devices' compiled models depend on too."""
        return json.dumps([super().identity(properties), self._members(properties).identities()])

    def _members(self, properties: DeviceProperties) -> Members:
        from partita_virtual.members import Members

        return Members(self._core, self.device_name, properties)


class AutoPlugin(VirtualPlugin):
    """The device of a list that takes a model and computes it fastest."""

    device_name = "AUTO"
    summary = "The best device for a model"
    properties_type: ClassVar[type[DeviceProperties]] = deferred_properties(
        "partita_virtual.properties:AutoProperties"
    )

    def restore_model(
        self, model: partita.Model, properties: DeviceProperties, state: Mapping[str, Any]
    ) -> partita.DeviceModel:
        """Compiles for the device that is ready first; others follow beside the requests."""
        from partita_virtual.auto.device_model import AutoModel

        return AutoModel(model, self._members(properties), state)


class MultiPlugin(VirtualPlugin):
    """All devices of a list: each request runs on one that is free."""

    device_name = "MULTI"
    summary = "Requests over several devices"
    properties_type: ClassVar[type[DeviceProperties]] = deferred_properties(
        "partita_virtual.properties:MultiProperties"
    )

    def restore_model(
        self, model: partita.Model, properties: DeviceProperties, state: Mapping[str, Any]
    ) -> partita.DeviceModel:
        """Compiles for every device that takes the model."""
        from partita_virtual.multi.device_model import MultiModel

        return MultiModel(model, self._members(properties), state)


class BatchPlugin(VirtualPlugin):
    """One device, which computes several requests in one run."""

    device_name = "BATCH"
    summary = "Requests gathered into batches"
    properties_type: ClassVar[type[DeviceProperties]] = deferred_properties(
        "partita_virtual.properties:BatchProperties"
    )

    def restore_model(
        self, model: partita.Model, properties: DeviceProperties, state: Mapping[str, Any]
    ) -> partita.DeviceModel:
        """Compiles the model, and the model of several requests at once."""
        from partita_virtual.batch.device_model import BatchModel

        return BatchModel(model, self._members(properties), state)


@partita.hookimpl
def device_plugins(core: CoreAPI) -> Iterable[DevicePlugin]:
    """Registers the three devices."""
    return [AutoPlugin(core), MultiPlugin(core), BatchPlugin(core)]
