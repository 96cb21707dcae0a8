"""Passes the expected size of a decoder's requests to devices that place operations by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.contract.device_plugin import DecoderRequest
from partita.core import Core


def with_request_size(
    core: Core, device: str, properties: Mapping[str, Any], request: DecoderRequest
) -> dict[str, Any]:
    """Properties to compile a decoder with; what the application has set stays as it is.

    Args:
        core: Knows the devices, and what was set on them.
        device: For which the decoder is compiled.
        properties: What the application compiles with.
        request: How large the requests will be.

    Raises:
        PropertyError: A property is wrong.
    """
    plugin, known = core.device_api.target(device, properties)
    return {**properties, **plugin.for_decoder(request, known)}
