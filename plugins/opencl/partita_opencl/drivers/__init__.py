"""Drivers: which are installed, which passed their trial, and the programs they built."""
