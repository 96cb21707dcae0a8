"""The OpenCL devices of this process: found once, each with one context that all models share."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from partita.contract.device_plugin import DeviceInfo
from partita.errors import DeviceNotFoundError, DeviceUnavailableError, advised
from partita.system.memory_limits import more_memory
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.system.threads.made_once import made_once
from partita.tensors.tensor import HOST
from partita_opencl import native_loops
from partita_opencl.cuda import trial
from partita_opencl.cuda.cuda_device import CudaSide, opened
from partita_opencl.device.buffer_pool import BufferPool, raw
from partita_opencl.device.host_memory import works_in_host_memory
from partita_opencl.device.limits import limits_of
from partita_opencl.device.run_turns import Turns
from partita_opencl.drivers import cuda_trial, driver_trial, installed_drivers
from partita_opencl.drivers.cuda_trial import CudaTrialResult
from partita_opencl.drivers.driver_trial import Tried
from partita_opencl.drivers.fork_guard import note_drivers, refuse_after_fork
from partita_opencl.drivers.installed_drivers import Driver
from partita_opencl.drivers.processor_name import POCL
from partita_opencl.drivers.program_cache import ProgramCache

_log = logging.getLogger(__name__)

CURE = "pip install 'partita[opencl]'"
"""The command that brings pyopencl and, on Linux x86-64, a driver for the CPU."""

EXTRA_BUILD_FLAGS = "POCL_EXTRA_BUILD_FLAGS"
"""Environment variable of the options that PoCL adds to those of every build."""


class Device:
    """One OpenCL device.

    Attributes:
        id: Its number among all devices, as text.
        memory: Memory id of its buffers.
        handle: The ``pyopencl.Device``.
        limits: What kernels must respect.
        turns: Of runs with kernels whose groups must all be on the device at a time.
        driver: The installed driver that it came with.
    """

    def __init__(self, number: int, handle: Any, driver: Driver) -> None:
        self.id = str(number)
        self.memory = f"opencl:{number}"
        self.handle = handle
        self.limits = limits_of(handle)
        self.driver = driver
        self.turns = Turns()
        self._lock = InterruptSafeLock()
        self._cuda_lock = InterruptSafeLock()
        self._cuda: tuple[CudaSide | None] | None = None
        self._context: Any = None
        self._queues: dict[str, Any] = {}
        self._pool: BufferPool | None = None
        self._programs: ProgramCache | None = None

    @property
    def kind(self) -> str:
        """``"gpu"``, ``"cpu"`` or ``"accelerator"``."""
        import pyopencl as cl

        kinds = ((cl.device_type.GPU, "gpu"), (cl.device_type.CPU, "cpu"))
        return next((name for bit, name in kinds if self.handle.type & bit), "accelerator")

    @functools.cached_property
    def shares_host(self) -> bool:
        """Whether kernels work on host arrays in place."""
        if not (self.limits.is_cpu and self.handle.host_unified_memory):
            return False
        return works_in_host_memory(self.context, self.handle, f"OPENCL.{self.id}")

    @property
    def identity(self) -> str:
        """Device, driver and platform with versions: what makes a compiled program reusable."""
        platform = self.handle.platform
        parts = (platform.name, platform.version, self.handle.name, self.handle.version)
        forms = filter(None, (self.driver.form, os.environ.get(EXTRA_BUILD_FLAGS)))
        return "|".join((*parts, self.handle.driver_version, *forms))

    @property
    def context(self) -> Any:
        """The context, made on first use and left at exit.

        PoCL ends the process when a context is released in which a build has failed, and other
        drivers when their own threads are gone first: so no context is released.

        Raises:
            DeviceUnavailableError: The driver refuses, or this process was forked after its use.
        """
        import pyopencl as cl

        refuse_after_fork()
        with self._lock:
            if self._context is None:
                try:
                    self._context = _new_context(self.handle)
                except cl.Error as error:
                    held = "OUT_OF_HOST_MEMORY" in str(error)  # NVIDIA's words for the card's, too
                    raise DeviceUnavailableError(
                        f"Device 'OPENCL.{self.id}' ({self.handle.name}) cannot be opened: {error}."
                        + " Other programs may hold its memory, or the host's." * held
                    ) from error
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._context))
            return self._context

    @property
    def transfers(self) -> Any:
        """A queue for uploads that belong to no request."""
        return self._queue("uploads")

    @property
    def downloads(self) -> Any:
        """A queue for downloads; another one, since devices copy both ways at the same time."""
        return self._queue("downloads")

    def _queue(self, name: str) -> Any:
        import pyopencl as cl

        context = self.context
        with self._lock:
            if name not in self._queues:
                self._queues[name] = cl.CommandQueue(context, self.handle)
            return self._queues[name]

    @property
    def cuda(self) -> CudaSide | None:
        """The same device for CUDA's driver, where that launches kernels in less time."""
        context = self.context
        with self._cuda_lock:
            if self._cuda is None:
                self._cuda = (opened(self.handle, context, *self._cuda_options()),)
            return self._cuda[0]

    def _cuda_options(self) -> CudaTrialResult:
        """What was tried of CUDA; nothing in processes that try for their parent."""
        is_nvidias = self.handle.platform.name == trial.PLATFORM
        if not is_nvidias or driver_trial.has_adopted():
            return CudaTrialResult()
        return cuda_trial.of_cuda(self.driver)

    def write(self, buffer: Any, array: np.ndarray[Any, Any], start: int = 0) -> None:
        """Copies a contiguous array's bytes into a buffer, from a byte on; waits for the end.

        Raises:
            pyopencl.Error: The copy failed.
            CudaError: The copy failed.
        """
        import pyopencl as cl

        if self.cuda is None or not self.cuda.write(buffer, array, start):
            cl.enqueue_copy(self.transfers, buffer, raw(array), dst_offset=start)

    def read(self, array: np.ndarray[Any, Any], buffer: Any, start: int = 0) -> None:
        """Copies a buffer's bytes from a byte on into a contiguous array; waits for the end.

        Raises:
            pyopencl.Error: The copy failed.
            CudaError: The copy failed.
        """
        import pyopencl as cl

        if self.cuda is None or not self.cuda.read(array, buffer, start):
            cl.enqueue_copy(self.downloads, raw(array), buffer, src_offset=start)

    @property
    def pool(self) -> BufferPool:
        """Memory that requests share one after another."""
        context, cuda = self.context, self.cuda
        with self._lock:
            if self._pool is None:
                self._pool = BufferPool(context, self.limits, f"OPENCL.{self.id}", cuda)
            return self._pool

    def open(self) -> None:
        """Makes ready what a first request needs, in a thread beside those that compile for it."""
        _ = self.pool
        native_loops.prepare()

    @property
    def programs(self) -> ProgramCache:
        """The compiled programs."""
        context = self.context
        with self._lock:
            if self._programs is None:
                # PoCL has a cache of its own. Asked for a binary, it compiles each kernel of the
                # file once more, for groups of any size: five times the time of building it.
                on_disk = self.handle.platform.name != POCL
                self._programs = ProgramCache(
                    context,
                    self.handle,
                    self.identity,
                    on_disk=on_disk,
                    header=self.driver.header,
                )
            return self._programs

    def info(self, plugin_name: str) -> DeviceInfo:
        """The description for ``partita devices``."""
        platform = self.handle.platform
        form = f" ({self.driver.form})" if self.driver.form else ""
        return DeviceInfo(
            f"{plugin_name}.{self.id}",
            self.handle.name.strip(),
            kind=self.kind,
            memory=HOST if self.shares_host else self.memory,
            memory_bytes=self.limits.memory_bytes,
            driver=f"{platform.name.strip()} {self.handle.driver_version.strip()}{form}",
            details={
                "version": self.handle.version.strip(),
                "vendor": self.handle.vendor.strip(),
                "compute units": str(self.limits.compute_units),
                "largest buffer": f"{self.limits.allocation_bytes / 2**20:.0f} MiB",
                "local memory": f"{self.limits.local_bytes / 2**10:.0f} KiB",
            },
        )


def _new_context(handle: Any) -> Any:
    """A context, made while other threads of Python go on.

    pyopencl's constructor has them wait: for a fifth of a second with NVIDIA's driver, and for as
    long as other processes open the card.

    Raises:
        pyopencl.Error: The driver refuses.
    """
    import pyopencl as cl

    try:
        create = installed_drivers.opencl_library().clCreateContext
    except (AttributeError, OSError):
        return cl.Context([handle])
    pointer = ctypes.c_void_p
    create.restype, create.argtypes = pointer, (pointer, ctypes.c_uint, *[pointer] * 4)
    devices = (pointer * 1)(handle.int_ptr)
    made = create(None, 1, ctypes.addressof(devices), None, None, None)
    # What refused says why to pyopencl.
    return cl.Context.from_int_ptr(made, False) if made else cl.Context([handle])


def find_device(device_id: str) -> Device:
    """The device of an id; ``""`` is the first one.

    Raises:
        DeviceUnavailableError: There are no OpenCL devices.
        DeviceNotFoundError: There is none of this id.
    """
    devices = all_devices()
    if not device_id:
        return devices[0]
    for device in devices:
        if device.id == device_id:
            return device
    known = ", ".join(f"'OPENCL.{device.id}'" for device in devices)
    raise DeviceNotFoundError(f"There is no device 'OPENCL.{device_id}'; there are {known}.")


def all_devices() -> tuple[Device, ...]:
    """The devices in the platforms' order; asked of the drivers once per process.

    Raises:
        DeviceUnavailableError: pyopencl is missing, no driver offers a device, or this process was
            forked after drivers were used.
    """
    refuse_after_fork()
    devices, failures = search_devices()
    if devices:
        return devices
    causes = "; ".join(why.rstrip(".") for why in failures.values()) or "no platform lists a device"
    raise DeviceUnavailableError(
        f"There is no OpenCL device: {causes}. Install the vendor's OpenCL driver, or get one for "
        f"the CPU with: {CURE}"
    )


def unavailable() -> Mapping[str, str]:
    """Drivers, platforms and devices that cannot be used, with the reason and what to do."""
    return search_devices()[1]


@made_once  # models of one device share its context
def search_devices() -> tuple[tuple[Device, ...], Mapping[str, str]]:
    """All devices, and what went wrong on the way; a broken driver costs only its own devices."""
    try:
        import pyopencl as cl
    except (ImportError, OSError) as error:
        raise DeviceUnavailableError(
            f"pyopencl cannot be imported ({error}). Install it with: {CURE}"
        ) from error
    tried = driver_trial.tried()
    failures = {f"OpenCL driver {t.driver.name}": t.explanation for t in tried if t.verdict.reason}
    good = [one for one in tried if one.verdict.good]
    if not good:
        if not failures:
            failures["OpenCL"] = "no OpenCL driver is installed"
        return (), failures
    note_drivers()
    try:
        platforms = installed_drivers.platforms([one.driver for one in good])
    except (cl.Error, OSError) as error:
        why = advised(f"the OpenCL loader finds no platform ({error})", more_memory())
        return (), {**failures, "OpenCL": why}
    failures |= _missing(good, platforms)
    devices: list[Device] = []
    found: list[tuple[bool, int, Driver, Sequence[Any]]] = []
    for platform in platforms:
        owner = _owner(platform, good)
        if owner is None:
            failures[f"OpenCL platform {platform.name}"] = (
                f"platform '{platform.name}' was loaded by other code of this process, and its "
                "driver has passed no trial"
            )
            continue
        try:
            handles = platform.get_devices()
        except cl.Error as error:
            why = f"platform '{platform.name}' fails ({error})"
            failures[f"OpenCL platform {platform.name}"] = why
            continue
        no_gpu = not any(handle.type & cl.device_type.GPU for handle in handles)
        found.append((no_gpu, good.index(owner), owner.driver, handles))
    for _, _, driver, handles in sorted(found, key=lambda one: one[:2]):
        for handle in handles:
            try:
                device = Device(len(devices), handle, driver)
            except cl.Error as error:
                name = handle.platform.name
                failures[f"OpenCL device {len(devices)} of {name}"] = (
                    f"a device of platform '{name}' fails ({error})"
                )
            else:
                devices.append(device)
    return tuple(devices), failures


def _missing(good: Sequence[Tried], platforms: Sequence[Any]) -> dict[str, str]:
    """Drivers that passed their trial and of which no platform was loaded all the same."""
    there = {_version(platform) for platform in platforms}
    found = {}
    for one in good:
        versions = one.verdict.facts.get("versions", ())
        if one.driver.binary and versions and there.isdisjoint(versions):
            why = (
                f"the driver of '{one.driver.origin}' passed its trial, but lists no platform in "
                "this process: its file was changed since, or other code of this process has "
                "loaded OpenCL without it. Start the process again"
            )
            _log.warning("OpenCL driver '%s' is missing: %s.", one.driver.name, why)
            found[f"OpenCL driver {one.driver.name}"] = why
    return found


def _version(platform: Any) -> str:
    return " ".join(platform.version.split())


def _owner(platform: Any, good: Sequence[Tried]) -> Tried | None:
    """The driver whose platform this is."""
    version = _version(platform)
    for one in good:
        if not one.driver.binary or version in one.verdict.facts.get("versions", ()):
            return one
    return None
