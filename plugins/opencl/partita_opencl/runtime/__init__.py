"""Compiled models, execution plans, and the requests that run them."""
