"""Draws that are large in one way: long, deep, or with sums of many terms."""
