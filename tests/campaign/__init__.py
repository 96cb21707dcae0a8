"""Hostile models, operators, tensors, blobs, locks and IRs, by the hundred thousand.

``python -m tests.campaign --cases 200000`` runs them in child processes with limits of memory and
time; see `tests.campaign.__main__`.
"""
