"""Runs as a picture: a row for each device in a colour of its own, time to the right; one SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from partita.printable import html_text
from partita_hetero.planner.simulation.timeline import Kind, Span, Timeline

_LEFT, _RIGHT, _TOP = 120, 20, 26
_LANE, _GAP, _HEAD, _AXIS = 22, 6, 24, 26
_COLOURS = (
    *("#2563a8", "#a64400", "#2f7d32", "#8e2f8a"),
    *("#85600a", "#0f766e", "#b3261e", "#5b5f66"),
)
"""Of devices, in order, as on the page."""

_OPACITY: dict[Kind, float] = {"compute": 1.0, "transfer": 0.55, "launch": 0.3}
_LETTER = 6.2
"""Pixels that a letter of a label takes, about."""


def to_svg(timelines: Sequence[Timeline], width: int = 1100) -> str:
    """The runs below one another on one time axis.

    Hovering over a span tells its name, its times, and how much was moved. Spans of one device that
    overlap get lanes of their own.

    Args:
        timelines: For example a predicted run and a measured one.
        width: Of the chart in pixels.
    """
    end = max((timeline.latency_us for timeline in timelines), default=0.0) or 1.0
    scale = (width - _LEFT - _RIGHT) / end
    devices = dict.fromkeys(device for timeline in timelines for device in timeline.rows)
    colour = {device: _COLOURS[i % len(_COLOURS)] for i, device in enumerate(devices)}
    body: list[str] = []
    y = _TOP
    for timeline in timelines:
        label = f"{timeline.name or 'run'}: {_time(timeline.latency_us, end)}"
        body.append(f'<text x="4" y="{y + 16}" class="run">{html_text(label)}</text>')
        y += _HEAD
        for device in timeline.rows:
            lanes = _lanes([span for span in timeline.spans if span.device == device])
            height = max(1, len(lanes)) * _LANE
            body.append(f'<text x="12" y="{y + 15}">{html_text(device)}</text>')
            body.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width - _LEFT - _RIGHT}" height="{height}" '
                'class="row"/>'
            )
            for lane, spans in enumerate(lanes):
                top = y + lane * _LANE
                body += [_bar(span, top, scale, end, colour[device]) for span in spans]
            y += height + _GAP
    lines = [_tick(at, scale, y, end) for at in _ticks(end)]
    keys = [
        f'<rect x="{_LEFT + 90 * i}" y="6" width="12" height="12" opacity="{opacity}"/>'
        f'<text x="{_LEFT + 90 * i + 16}" y="16">{kind}</text>'
        for i, (kind, opacity) in enumerate(_OPACITY.items())
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y + _AXIS}" '
            'font-family="sans-serif" font-size="12">',
            "<style>.row{fill:#f4f4f4}.run{font-weight:bold}.name{fill:#fff;font-size:10px;"
            "pointer-events:none}.tick{stroke:#ccc;stroke-dasharray:2 3}</style>",
            *keys,
            *lines,
            *body,
            "</svg>",
        ]
    )


def _lanes(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans in as few rows as hold them without overlap."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda one: (one.start_us, one.end_us)):
        for lane in lanes:
            if lane[-1].end_us <= span.start_us + 1e-9:
                lane.append(span)
                break
        else:
            lanes.append([span])
    return lanes


def _bar(span: Span, y: float, scale: float, end: float, colour: str) -> str:
    x, width = _LEFT + span.start_us * scale, max(0.4, span.duration_us * scale)
    moved = f", {span.nbytes:,} bytes" if span.nbytes else ""
    tip = (
        f"{span.name} ({span.kind}): {_time(span.duration_us, end)} from "
        f"{_time(span.start_us, end)}{moved}"
    )
    text = span.name if len(span.name) * _LETTER + 4 < width else ""
    label = (
        f'<text x="{x + 3:.2f}" y="{y + 14}" class="name">{html_text(text)}</text>' if text else ""
    )
    return (
        f'<rect x="{x:.2f}" y="{y + 1}" width="{width:.2f}" height="{_LANE - 2}" '
        f'fill="{colour}" opacity="{_OPACITY[span.kind]}"><title>{html_text(tip)}</title></rect>'
        f"{label}"
    )


def _ticks(end: float) -> list[float]:
    """Round times, at most twelve of them."""
    step = 10 ** math.floor(math.log10(end))
    step *= next(factor for factor in (0.1, 0.2, 0.5, 1.0) if end / (step * factor) <= 12)
    return [step * i for i in range(int(end / step) + 1)]


def _tick(at: float, scale: float, bottom: float, end: float) -> str:
    x = _LEFT + at * scale
    return (
        f'<line x1="{x:.2f}" y1="{_TOP}" x2="{x:.2f}" y2="{bottom}" class="tick"/>'
        f'<text x="{x:.2f}" y="{bottom + 14}" text-anchor="middle">{_time(at, end)}</text>'
    )


def _time(us: float, end: float) -> str:
    """A time in the unit that suits the whole run."""
    if end >= 1e6:
        return f"{us / 1e6:.4g} s"
    return f"{us / 1e3:.4g} ms" if end >= 1e3 else f"{us:.4g} us"
