"""The planner: finds the best placement from costs, without touching a device."""
