"""Recent activity of a server: latencies, and the last runs of each model."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from partita_serve.protocol.errors import NotFound, ServingError
from partita_serve.protocol.observer import BatchRun
from partita_serve.protocol.records import InferenceRequest

LATENCIES = 1000
"""Answers of a model that are remembered."""

RUNS = 60
"""Runs of all models that are remembered."""


@dataclass
class ModelActivity:
    """What a model did.

    Attributes:
        answered: Requests that were answered.
        failed: Requests that were not.
        microseconds: What the last answers took.
    """

    answered: int = 0
    failed: int = 0
    microseconds: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES))

    def percentiles(self, *shares: float) -> Sequence[float]:
        """Microseconds under which these percentages of the last answers were."""
        found: list[float] = np.percentile(self.microseconds, shares).tolist()
        return found


class Activity:
    """An observer that remembers the last while.

    Attributes:
        models: Model to what it did; only models that the server had.
        runs: The last runs on devices, oldest first.
        started: When the server began, in seconds since 1970.
    """

    def __init__(self) -> None:
        self.models: dict[str, ModelActivity] = {}
        self.runs: deque[BatchRun] = deque(maxlen=RUNS)
        self.started = time.time()

    def request_started(self, request: InferenceRequest) -> None:
        """Waits for the answer."""

    def request_finished(
        self, request: InferenceRequest, elapsed_ns: int, error: ServingError | None
    ) -> None:
        """Remembers what an answer took."""
        if isinstance(error, NotFound):
            return  # a stranger's name
        model = self.models.setdefault(request.model, ModelActivity())
        if error is None:
            model.answered += 1
            model.microseconds.append(elapsed_ns * 1e-3)
        else:
            model.failed += 1

    def batch_run(self, run: BatchRun) -> None:
        """Remembers a run."""
        self.runs.append(run)

    def refused(self, model: str, error: ServingError) -> None:
        """Leaves it to the end of the request."""
