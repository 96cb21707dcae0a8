"""Draws that are large one way or another: long, deep, with sums of many terms."""
