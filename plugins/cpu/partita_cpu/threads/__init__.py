"""Threads: the pool that walks call tables, teams for one step, and products by OpenBLAS."""
