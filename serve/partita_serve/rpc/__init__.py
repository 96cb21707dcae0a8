"""The protocol over gRPC: messages and the service."""
