"""What authors of device plugins write and are handed: the public names of ``partita.contract``."""

from partita.contract.bound_call import BoundCall
from partita.contract.call_queue import CallQueue
from partita.contract.command_option import CommandOption
from partita.contract.core_api import CoreAPI
from partita.contract.device_model import DeviceModel
from partita.contract.device_plugin import (
    API_VERSION,
    DecoderRequest,
    DeviceInfo,
    DevicePlugin,
)
from partita.contract.execution import ExecutedStep, Execution, MemoryRange
from partita.contract.profiling import DeviceSpan, ProfilingInfo
from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.contract.runner import Runner
from partita.properties.deferred import deferred_properties

__all__ = [
    "API_VERSION",
    "BoundCall",
    "CallQueue",
    "CommandOption",
    "CoreAPI",
    "DecoderRequest",
    "DeviceInfo",
    "DeviceModel",
    "DevicePlugin",
    "DeviceSpan",
    "ExecutedStep",
    "Execution",
    "MemoryRange",
    "ProfilingInfo",
    "QueryResult",
    "Reason",
    "ReasonCode",
    "Runner",
    "deferred_properties",
]
