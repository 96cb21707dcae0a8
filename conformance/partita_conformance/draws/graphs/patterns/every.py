"""All patterns."""

from __future__ import annotations

from collections.abc import Mapping

from partita_conformance.draws.graphs.patterns import (
    arithmetic,
    attention,
    codes,
    gates,
    moves,
    norms,
    products,
    shapes,
    views,
    windows,
)
from partita_conformance.draws.graphs.patterns.pattern import Pattern

PATTERNS: Mapping[str, Pattern] = {
    **norms.PATTERNS,
    **gates.PATTERNS,
    **attention.PATTERNS,
    **codes.PATTERNS,
    **shapes.PATTERNS,
    **views.PATTERNS,
    **windows.PATTERNS,
    **arithmetic.PATTERNS,
    **moves.PATTERNS,
    **products.PATTERNS,
}
"""Names of patterns to them."""
