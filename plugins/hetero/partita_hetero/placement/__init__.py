"""Which device takes what: priorities, pins, locks, limits, and the reasons."""
