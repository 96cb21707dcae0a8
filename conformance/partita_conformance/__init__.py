"""A conformance kit for device plugins: a device that passes works in every application.

Run it on an installed device, from anywhere::

    partita conformance -d MYDEV --expectations mydev.toml --report out/
    pytest --pyargs partita_conformance --device MYDEV

Both run the same checks. A device that is absent skips, one that breaks when it is created fails.
The kit knows devices only through ``partita``; the answers to compare with come from ONNX's own
test cases and from device REFERENCE.
"""

from __future__ import annotations

__all__: list[str] = []
