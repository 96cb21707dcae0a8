"""The page of one placement, or of two side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources

from partita.cli.output import plain
from partita.pages.page import build_page
from partita_hetero.planner.simulation.timeline import chrome_trace
from partita_hetero.reports.record import PlacementRecord


def placement_page(records: Sequence[PlacementRecord]) -> str:
    """A page that needs nothing from elsewhere.

    Args:
        records: One placement, or two to compare; of one model, or of two that share operations.
    """
    title = " and ".join(dict.fromkeys(f"{one.model} on {one.device}" for one in records))
    runs = [
        replace(timeline, name=f"{record.device}, {timeline.name}")
        for record in records
        for timeline in record.timelines
    ]
    data = {"placements": plain(list(records)), "trace": json.dumps(chrome_trace(runs))}
    own = resources.files("partita_hetero.reports") / "assets"
    return build_page(title, own, "placement", data)
