"""The planner: what each task costs where, and which placement is best. It touches no device."""
