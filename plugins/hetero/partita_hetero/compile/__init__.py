"""Compiling a placement to an executable: submodels, layouts, transfers."""
