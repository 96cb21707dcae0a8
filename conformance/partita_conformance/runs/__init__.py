"""Which checks make up a run, and the processes that they run in."""
