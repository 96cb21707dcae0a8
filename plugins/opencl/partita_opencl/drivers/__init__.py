"""Drivers: which are installed, which passed their trial, and the programs that they built."""
