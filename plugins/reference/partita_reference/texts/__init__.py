"""Operators of texts, and the regular expressions that one of them matches."""
