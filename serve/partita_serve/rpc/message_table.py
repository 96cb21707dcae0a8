"""The messages of the Open Inference Protocol over gRPC: names, numbers and types of their fields.

The numbers are those of KServe's and Triton's protocol. Only what this server reads or writes is
here: fields that a client sends beyond that are unknown to it and skipped, as protobuf prescribes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Field(NamedTuple):
    """A field of a message.

    Attributes:
        number: By which it is known on the wire.
        type: A scalar, a message or an enumeration of this table, perhaps after ``repeated`` or
            ``map`` (from texts to the type).
        choice: The group of which only one field is set.
    """

    number: int
    type: str
    choice: str = ""


_NAMED = {"name": Field(1, "string"), "version": Field(2, "string")}
_TENSOR = {
    "name": Field(1, "string"),
    "datatype": Field(2, "string"),
    "shape": Field(3, "repeated int64"),
}
_MODEL = {
    "model_name": Field(1, "string"),
    "model_version": Field(2, "string"),
    "id": Field(3, "string"),
    "parameters": Field(4, "map InferParameter"),
}
_CHANGED_MODEL = {
    "repository_name": Field(1, "string"),
    "model_name": Field(2, "string"),
    "parameters": Field(3, "map ModelRepositoryParameter"),
}

ENUMS: Mapping[str, tuple[str, ...]] = {
    "ServingStatus": ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"),
    "DataType": (
        *("TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"),
        *("TYPE_INT8", "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32"),
        *("TYPE_FP64", "TYPE_STRING", "TYPE_BF16"),
    ),
}
"""Enumerations: their values, from 0."""

MESSAGES: Mapping[str, Mapping[str, Field]] = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {"live": Field(1, "bool")},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {"ready": Field(1, "bool")},
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": {"ready": Field(1, "bool")},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {**_NAMED, "extensions": Field(3, "repeated string")},
    "ModelMetadataRequest": _NAMED,
    "ModelMetadataResponse": {
        "name": Field(1, "string"),
        "versions": Field(2, "repeated string"),
        "platform": Field(3, "string"),
        "inputs": Field(4, "repeated TensorMetadata"),
        "outputs": Field(5, "repeated TensorMetadata"),
    },
    "TensorMetadata": _TENSOR,
    # Inference
    "InferParameter": {
        "bool_param": Field(1, "bool", "parameter_choice"),
        "int64_param": Field(2, "int64", "parameter_choice"),
        "string_param": Field(3, "string", "parameter_choice"),
        "double_param": Field(4, "double", "parameter_choice"),
        "uint64_param": Field(5, "uint64", "parameter_choice"),
    },
    "InferTensorContents": {
        "bool_contents": Field(1, "repeated bool"),
        "int_contents": Field(2, "repeated int32"),
        "int64_contents": Field(3, "repeated int64"),
        "uint_contents": Field(4, "repeated uint32"),
        "uint64_contents": Field(5, "repeated uint64"),
        "fp32_contents": Field(6, "repeated float"),
        "fp64_contents": Field(7, "repeated double"),
        "bytes_contents": Field(8, "repeated bytes"),
    },
    "InferInputTensor": {
        **_TENSOR,
        "parameters": Field(4, "map InferParameter"),
        "contents": Field(5, "InferTensorContents"),
    },
    "InferRequestedOutputTensor": {
        "name": Field(1, "string"),
        "parameters": Field(2, "map InferParameter"),
    },
    "ModelInferRequest": {
        **_MODEL,
        "inputs": Field(5, "repeated InferInputTensor"),
        "outputs": Field(6, "repeated InferRequestedOutputTensor"),
        "raw_input_contents": Field(7, "repeated bytes"),
    },
    "InferOutputTensor": {
        **_TENSOR,
        "parameters": Field(4, "map InferParameter"),
        "contents": Field(5, "InferTensorContents"),
    },
    "ModelInferResponse": {
        **_MODEL,
        "outputs": Field(5, "repeated InferOutputTensor"),
        "raw_output_contents": Field(6, "repeated bytes"),
    },
    "ModelStreamInferResponse": {
        "error_message": Field(1, "string"),
        "infer_response": Field(2, "ModelInferResponse"),
    },
    # Configuration
    "ModelConfigRequest": _NAMED,
    "ModelConfigResponse": {"config": Field(1, "ModelConfig")},
    "ModelConfig": {
        "name": Field(1, "string"),
        "platform": Field(2, "string"),
        "version_policy": Field(3, "ModelVersionPolicy"),
        "max_batch_size": Field(4, "int32"),
        "input": Field(5, "repeated ModelInput"),
        "output": Field(6, "repeated ModelOutput"),
        "dynamic_batching": Field(11, "ModelDynamicBatching", "scheduling_choice"),
        "sequence_batching": Field(13, "ModelSequenceBatching", "scheduling_choice"),
        "parameters": Field(14, "map ModelParameter"),
        "backend": Field(17, "string"),
    },
    "ModelVersionPolicy": {"latest": Field(1, "NewestVersions", "policy_choice")},
    "NewestVersions": {"num_versions": Field(1, "uint32")},
    "ModelInput": {
        "name": Field(1, "string"),
        "data_type": Field(2, "DataType"),
        "dims": Field(4, "repeated int64"),
        "optional": Field(8, "bool"),
    },
    "ModelOutput": {
        "name": Field(1, "string"),
        "data_type": Field(2, "DataType"),
        "dims": Field(3, "repeated int64"),
    },
    "ModelDynamicBatching": {
        "max_queue_delay_microseconds": Field(2, "uint64"),
        "priority_levels": Field(4, "uint64"),
        "default_priority_level": Field(5, "uint64"),
        "default_queue_policy": Field(6, "ModelQueuePolicy"),
    },
    "ModelQueuePolicy": {
        "default_timeout_microseconds": Field(2, "uint64"),
        "allow_timeout_override": Field(3, "bool"),
        "max_queue_size": Field(4, "uint32"),
    },
    "ModelSequenceBatching": {"max_sequence_idle_microseconds": Field(1, "uint64")},
    "ModelParameter": {"string_value": Field(1, "string")},
    # Statistics
    "ModelStatisticsRequest": _NAMED,
    "ModelStatisticsResponse": {"model_stats": Field(1, "repeated ModelStatistics")},
    "ModelStatistics": {
        **_NAMED,
        "last_inference": Field(3, "uint64"),
        "inference_count": Field(4, "uint64"),
        "execution_count": Field(5, "uint64"),
        "inference_stats": Field(6, "InferStatistics"),
        "batch_stats": Field(7, "repeated InferBatchStatistics"),
    },
    "StatisticDuration": {"count": Field(1, "uint64"), "ns": Field(2, "uint64")},
    "InferStatistics": {
        "success": Field(1, "StatisticDuration"),
        "fail": Field(2, "StatisticDuration"),
        "queue": Field(3, "StatisticDuration"),
        "compute_input": Field(4, "StatisticDuration"),
        "compute_infer": Field(5, "StatisticDuration"),
        "compute_output": Field(6, "StatisticDuration"),
        "cache_hit": Field(7, "StatisticDuration"),
        "cache_miss": Field(8, "StatisticDuration"),
    },
    "InferBatchStatistics": {
        "batch_size": Field(1, "uint64"),
        "compute_input": Field(2, "StatisticDuration"),
        "compute_infer": Field(3, "StatisticDuration"),
        "compute_output": Field(4, "StatisticDuration"),
    },
    # Repository
    "ModelRepositoryParameter": {
        "bool_param": Field(1, "bool", "parameter_choice"),
        "int64_param": Field(2, "int64", "parameter_choice"),
        "string_param": Field(3, "string", "parameter_choice"),
        "bytes_param": Field(4, "bytes", "parameter_choice"),
    },
    "RepositoryIndexRequest": {
        "repository_name": Field(1, "string"),
        "ready": Field(2, "bool"),
    },
    "RepositoryIndexResponse": {"models": Field(1, "repeated ModelIndex")},
    "ModelIndex": {
        **_NAMED,
        "state": Field(3, "string"),
        "reason": Field(4, "string"),
    },
    "RepositoryModelLoadRequest": _CHANGED_MODEL,
    "RepositoryModelLoadResponse": {},
    "RepositoryModelUnloadRequest": _CHANGED_MODEL,
    "RepositoryModelUnloadResponse": {},
    # Health, as grpc.health.v1 has it
    "HealthCheckRequest": {"service": Field(1, "string")},
    "HealthCheckResponse": {"status": Field(1, "ServingStatus")},
}
"""Messages: the names of their fields, and the fields."""
