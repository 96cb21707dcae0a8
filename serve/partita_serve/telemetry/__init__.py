"""Telemetry of a running server: metrics and traces."""
