"""Properties of device AUTO by name."""

from __future__ import annotations

import enum

from partita.properties.names import Property

device_bind_buffer = Property("DEVICE_BIND_BUFFER")
devices_utilization_threshold = Property("DEVICES_UTILIZATION_THRESHOLD")
enable_runtime_fallback = Property("ENABLE_RUNTIME_FALLBACK")
enable_startup_fallback = Property("ENABLE_STARTUP_FALLBACK")
low_power_device = Property("LOW_POWER_DEVICE")
perf_curve_table = Property("PERF_CURVE_TABLE")
schedule_policy = Property("SCHEDULE_POLICY")


class SchedulePolicy(enum.StrEnum):
    """Which device gets the next request."""

    ROUND_ROBIN = "ROUND_ROBIN"
    DEVICE_PRIORITY = "DEVICE_PRIORITY"
    DEFAULT = "DEVICE_PRIORITY"
