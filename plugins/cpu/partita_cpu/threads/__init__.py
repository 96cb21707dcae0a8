"""Threads: the pool that walks call tables, teams for one step, and those of OpenBLAS."""
