"""The device that a trial compiles for: this package's, whichever plugins the environment finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import partita

_PLUGIN = "partita_opencl.plugin"
_NAME = "TRIED"
"""What the device is called here; Core may have found the plugin under its own name, or not."""


def compile_model(model: Any, device_id: str, config: Mapping[str, Any]) -> partita.CompiledModel:
    """A model compiled for a device.

    Args:
        model: An ONNX model.
        device_id: The device's id, as ``"0"``.
        config: Its properties.
    """
    core = partita.Core()
    core.register_plugin(_PLUGIN, _NAME)
    return core.compile_model(core.read_model(model), f"{_NAME}.{device_id}", dict(config))
