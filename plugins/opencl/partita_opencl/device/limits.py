"""What kernels must respect on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Limits:
    """What kernels must respect on a device.

    Attributes:
        group_items: Most work-items in a work-group.
        item_sizes: Most work-items per dimension of a group.
        local_bytes: Local memory of a group, at least.
        kernel_local_bytes: Local memory of a group that a kernel may declare.
        allocation_bytes: Largest single buffer.
        memory_bytes: All of the device's memory.
        alignment: Bytes that sub-buffers must be aligned to.
        compute_units: Groups that run at the same time, at least.
        is_cpu: Whether the device is a processor that also runs the host.
        is_nvidia: Whether its driver takes NVIDIA's inline PTX.
        matrix_units: Whether the processor has the matrix units that kernels know.
        warpgroups: Whether it multiplies by four warps together (wgmma).
        resident_groups: Groups of ``product_run.cl`` that are on the device at a time; 0: unknown.
    """

    group_items: int
    item_sizes: tuple[int, ...]
    local_bytes: int
    allocation_bytes: int
    memory_bytes: int
    alignment: int
    compute_units: int
    is_cpu: bool
    is_nvidia: bool = False
    matrix_units: bool = False
    kernel_local_bytes: int = 0
    warpgroups: bool = False
    resident_groups: int = 0

    def __post_init__(self) -> None:
        """What a kernel may declare is no less than what the device lists."""
        if self.kernel_local_bytes < self.local_bytes:
            object.__setattr__(self, "kernel_local_bytes", self.local_bytes)

    @property
    def hands_over(self) -> bool:
        """Whether a group can read what another one wrote: known of NVIDIA, not promised by 1.2.

        PoCL 5 makes code for such kernels that takes all sums for zeros.
        """
        return self.is_nvidia


def limits_of(handle: Any) -> Limits:
    """The limits of a ``pyopencl.Device``."""
    import pyopencl as cl

    is_nvidia = "NVIDIA" in handle.platform.name
    capability = handle.compute_capability_major_nv if is_nvidia else 0
    return Limits(
        group_items=handle.max_work_group_size,
        item_sizes=tuple(handle.max_work_item_sizes),
        local_bytes=handle.local_mem_size,
        allocation_bytes=handle.max_mem_alloc_size,
        memory_bytes=handle.global_mem_size,
        alignment=max(64, handle.mem_base_addr_align // 8),
        compute_units=handle.max_compute_units,
        is_cpu=bool(handle.type & cl.device_type.CPU),
        is_nvidia=is_nvidia,
        matrix_units=capability >= 8,
        # NVIDIA lists 48 KiB, whatever the processor has.
        kernel_local_bytes={8: 99, 9: 226}.get(capability, 0) << 10,
        warpgroups=capability == 9,
        resident_groups=handle.max_compute_units * {8: 1, 9: 3}.get(capability, 0),
    )
