"""What a plugin author writes and is handed: the public names of :mod:`partita.contract`."""

from partita.contract.device_plugin import API_VERSION, CoreAPI, DeviceInfo, DevicePlugin
from partita.properties.deferred import deferred_properties

__all__ = ["API_VERSION", "CoreAPI", "DeviceInfo", "DevicePlugin", "deferred_properties"]
