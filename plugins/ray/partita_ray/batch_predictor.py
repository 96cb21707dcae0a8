"""Models in Ray Data: what ``Dataset.map_batches`` makes on each of its workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import partita
from partita.errors import InputError

Batch = dict[str, Any]


class BatchPredictor:
    """Runs a model on batches; compiled once per worker.

    The model's inputs are columns of the batch, and its outputs are added as columns of their
    names. Columns that the model does not read pass through::

        dataset.map_batches(
            BatchPredictor,
            fn_constructor_args=("model.onnx",),
            fn_constructor_kwargs={"device": "CPU", "columns": {"image": "pixels"}},
            batch_size=32,
            compute=ray.data.ActorPoolStrategy(size=4),
        )

    Args:
        model: What ``Core.read_model`` takes; a path must exist on every node.
        device: As for ``Core.compile_model``; ``None`` for the worker's default.
        config: Properties.
        columns: Input name to the column that it is read from, where the names differ.
    """

    def __init__(
        self,
        model: Any,
        device: str | None = None,
        config: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        compiled = partita.Core().compile_model(model, device, config)
        self._request = compiled.create_infer_request()
        named = columns or {}
        self._columns = {port: named.get(port.name, port.name) for port in compiled.inputs}

    def __call__(self, batch: Batch) -> Batch:
        """The batch with the model's outputs.

        Raises:
            InputError: A column that the model reads is missing.
        """
        feeds = {}
        for port, column in self._columns.items():
            if column not in batch:
                raise InputError(
                    f"Input '{port.name}' is to come from column '{column}', which the batch has "
                    f"not; it has {', '.join(map(repr, batch))}. Name another one by 'columns'."
                )
            feeds[port.name] = np.ascontiguousarray(batch[column], dtype=port.dtype)
        results = self._request.infer(feeds)
        return {**batch, **{port.name: array for port, array in results.items()}}
