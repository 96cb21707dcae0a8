"""The bench that holds the device under test, and the register of checks."""
