"""Devices RAY.0, RAY.1, ...: devices on the nodes of a Ray cluster, and models in Ray's libraries.

Nothing here imports ray before a node is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.deferred import deferred_attributes

if TYPE_CHECKING:
    from partita_ray.batch_predictor import BatchPredictor as BatchPredictor
    from partita_ray.serve_deployment import model_app as model_app

__all__ = ["BatchPredictor", "model_app"]

if not TYPE_CHECKING:
    __getattr__ = deferred_attributes(
        __name__,
        {
            "BatchPredictor": "partita_ray.batch_predictor",
            "model_app": "partita_ray.serve_deployment",
        },
    )
