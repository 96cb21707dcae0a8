"""Properties of devices AUTO, MULTI and BATCH, with OpenVINO's names and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from partita.devices.device_string import ListEntry
from partita.devices.list_properties import ListProperties
from partita.errors import DeviceStringError
from partita.properties.hint import PerformanceMode


class VirtualProperties(ListProperties):
    """What the three have in common."""

    allows_counts: ClassVar[bool] = False
    """Whether entries of the list may have a number in parentheses."""

    allows_exclusions: ClassVar[bool] = False
    """Whether entries of the list may have a minus before them."""

    def check_entries(self, own_name: str, entries: Sequence[ListEntry]) -> None:
        """Refuses entries of the list that mean nothing to this device.

        Raises:
            DeviceStringError: There are some.
        """
        for entry in entries:
            if entry.count is not None and not self.allows_counts:
                raise DeviceStringError(
                    f"{own_name} takes no number behind a device; write '{entry.device}' instead "
                    f"of '{entry.device}({entry.count})'."
                )
            if entry.is_excluded and not self.allows_exclusions:
                raise DeviceStringError(
                    f"{own_name} takes no device away: list those that are meant, without "
                    f"'-{entry.device}'."
                )

    def passed_on(self) -> dict[str, Any]:
        """Settings of its own that devices of the list get, too, if they have them."""
        return {"PERF_COUNT": True} if self.PERF_COUNT else {}


class AutoProperties(VirtualProperties):
    """What an application can set on AUTO."""

    allows_exclusions = True

    PERFORMANCE_HINT: PerformanceMode = Field(
        PerformanceMode.LATENCY,
        description="What counts as fast: one request, many at a time, or many over all devices "
        "together (CUMULATIVE_THROUGHPUT). Passed to the devices too, if it is set.",
    )
    PERFORMANCE_HINT_NUM_REQUESTS: int = Field(
        0, ge=0, description="Most requests that there are at a time; 0: not known."
    )
    AUTO_SCHEDULE: Literal["SPEED", "PRIORITY"] = Field(
        "SPEED",
        description="SPEED: the fastest device of the list, as measured. PRIORITY: the first of "
        "the list that takes the model, as OpenVINO has it.",
    )
    ENABLE_STARTUP_FALLBACK: bool = Field(
        True,
        description="Answer requests on a CPU of the list while other devices compile; NO: "
        "compiling ends when the choice is made.",
    )
    ENABLE_RUNTIME_FALLBACK: bool = Field(
        True, description="Repeat a request on another device if its device fails."
    )
    SCHEDULE_POLICY: Literal["DEVICE_PRIORITY", "ROUND_ROBIN"] = Field(
        "DEVICE_PRIORITY", description="As for MULTI; counts with CUMULATIVE_THROUGHPUT."
    )
    ALLOW_AUTO_BATCHING: bool = Field(
        True, description="Try batches on GPUs, if PERFORMANCE_HINT is THROUGHPUT."
    )
    AUTO_BATCH_TIMEOUT: int = Field(
        1000, ge=0, description="Milliseconds that a request waits for others of its batch."
    )

    def passed_on(self) -> dict[str, Any]:
        """The hint too, if it is set; what only this device knows of it means throughput."""
        passed = super().passed_on()
        if "PERFORMANCE_HINT" in self.model_fields_set:
            passed["PERFORMANCE_HINT"] = self.PERFORMANCE_HINT.removeprefix("CUMULATIVE_")
        for key in ("SCHEDULE_POLICY", "AUTO_BATCH_TIMEOUT", "PERFORMANCE_HINT_NUM_REQUESTS"):
            if key in self.model_fields_set:
                passed[key] = getattr(self, key)
        return passed


class MultiProperties(VirtualProperties):
    """What an application can set on MULTI."""

    allows_counts = True

    PERFORMANCE_HINT: PerformanceMode = Field(
        PerformanceMode.THROUGHPUT, description="Passed to the devices."
    )
    ENABLE_RUNTIME_FALLBACK: bool = Field(
        True, description="Repeat a request on another device if its device fails."
    )
    SCHEDULE_POLICY: Literal["DEVICE_PRIORITY", "ROUND_ROBIN"] = Field(
        "DEVICE_PRIORITY",
        description="Which free device gets a request: the first of the list, or each in turn.",
    )

    def passed_on(self) -> dict[str, Any]:
        """The hint too."""
        return {**super().passed_on(), "PERFORMANCE_HINT": self.PERFORMANCE_HINT.value}


class BatchProperties(VirtualProperties):
    """What an application can set on BATCH."""

    allows_counts = True

    PERFORMANCE_HINT: PerformanceMode = Field(
        PerformanceMode.THROUGHPUT, description="Passed to the device, if it is set."
    )
    PERFORMANCE_HINT_NUM_REQUESTS: int = Field(
        0, ge=0, description="Most requests that there are at a time; no batch is larger. 0: any."
    )
    AUTO_BATCH_TIMEOUT: int = Field(
        1000,
        ge=0,
        description="Milliseconds that a request waits for others of its batch; then those that "
        "have come run one by one.",
    )

    def passed_on(self) -> dict[str, Any]:
        """The hint too, if it is set."""
        passed = super().passed_on()
        if "PERFORMANCE_HINT" in self.model_fields_set:
            passed["PERFORMANCE_HINT"] = self.PERFORMANCE_HINT.value
        return passed
