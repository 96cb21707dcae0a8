"""Operators on images with channels last, in domain ``partita.nhwc``."""
