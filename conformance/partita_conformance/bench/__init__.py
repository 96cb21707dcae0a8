"""The test bench: the device under test, and the registry of checks."""
