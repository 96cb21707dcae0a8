"""Placements by measurement: profiles, trials, races, the accuracy budget.

With `HETERO_SCHEDULE=COST`, `scheduler` has costs measured (`profiler`), asks the planner for
plans, and runs candidates for real (`contest`, `trial_run`), whose times correct the costs; those
that are left run in turns (`race`), and the fastest is kept (`chosen_placement`). `decoders` places
language models without running them, `accuracy` keeps outputs within a budget.
"""
