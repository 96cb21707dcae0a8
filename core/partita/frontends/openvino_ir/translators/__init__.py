"""Translators, by what the layers do; each module enters its own into the table when imported."""
