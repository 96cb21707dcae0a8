"""The planner: finds the best placement from costs, without touching a device.

- `problem`: what is to be solved: tasks with a cost on each device, the values between them, links,
  limits and pins.
- `arrays`: the same as flat arrays, over which compiled loops search. A unit is some tasks that are
  placed together; a block some units that depend on each other in a cycle.
- `search`: the methods (`search.solve` runs those that suit a problem); `chain` places a decoder's
  layers.
- `bounds`: lower bounds, by which a plan states how far from the optimum it may be.
- `simulation`: the cost model, by which every method's result is valued.
- `report`: a plan explained to people.

Objectives are the latency of one request with its steps in sequence (LATENCY) or side by side
(PARALLEL), and the THROUGHPUT of many requests.
"""
