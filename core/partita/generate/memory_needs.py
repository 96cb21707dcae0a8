"""Checks that a model and its cache fit a device's memory, before either is allocated."""

from __future__ import annotations

from partita.core import Core
from partita.errors import DeviceMemoryError
from partita.system.host_memory import available_memory
from partita.tensors.host import HOST


def check_memory(
    core: Core, device: str, weight_bytes: int, sequence_bytes: int, context: int
) -> None:
    """Refuses a context for whose keys and values a device has no room.

    Devices that are made of others place what fits where by themselves, and are not asked.

    Args:
        core: Knows the devices.
        device: The one that all is for.
        weight_bytes: Bytes of the weights.
        sequence_bytes: Bytes of the keys and values of one token of all sequences.
        context: Tokens of each sequence.

    Raises:
        DeviceMemoryError: It says how much is missing, and what would fit.
    """
    info = core.device_info(device.partition(":")[0])
    room = info.memory_bytes
    if room is None and info.memory == HOST and info.kind != "virtual":
        room = available_memory()
    missing = weight_bytes + sequence_bytes * context - (room or 0)
    if room is None or missing <= 0:
        return
    fitting = max(room - weight_bytes, 0) // sequence_bytes
    advice = f"a context of {fitting} would" if fitting else "no context would"
    raise DeviceMemoryError(
        f"Device '{device}' has {room / 1e6:.0f} MB, which is {missing / 1e6:.0f} MB too little: "
        f"the weights take {weight_bytes / 1e6:.0f} MB, keys and values of {context} tokens "
        f"{sequence_bytes * context / 1e6:.0f} MB; {advice} fit."
    )
