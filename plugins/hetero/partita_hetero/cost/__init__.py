"""Costs: measured on the devices, kept on disk, estimated where nothing was measured."""
