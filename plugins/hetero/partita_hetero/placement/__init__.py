"""Placement: priorities, pins, locks, limits, and the reasons for each decision.

`by_priority` asks the devices of `device_list` in order. `constraints` (affinities, pins, the lock
file) and `memory_limits` restrict them, `data_movement` keeps operations that compute nothing
beside their neighbours, and `explanation_rows` says why each operation is where it is.
"""
