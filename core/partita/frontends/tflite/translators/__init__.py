"""Translators, by what operators do; each module enters its own into the table when imported."""
