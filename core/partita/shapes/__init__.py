"""Shapes as OpenVINO's scripts write them: dimensions with bounds, and names of dimensions."""
