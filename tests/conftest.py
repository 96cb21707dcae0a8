"""Fixtures for all tests."""

from __future__ import annotations

import pytest

import partita


@pytest.fixture
def core():
    """A Core of its own, so that properties set in one test do not reach another."""
    return partita.Core()
