"""Translators, by what the operators do; each module enters its own into the table when imported."""
