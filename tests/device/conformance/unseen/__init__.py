"""Broken devices of people who had not read the kit's checks for them, a module a set."""
