"""The Open Inference Protocol, version 2, without a transport: records, types, errors."""
