"""Models in Ray Serve: an application whose replicas each hold a compiled model."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

import partita
from partita.errors import DeviceUnavailableError


class ModelReplica:
    """One replica: a compiled model, called by handle with arrays by input name.

    Args:
        model: What ``Core.read_model`` takes; a path must exist on every node.
        device: As for ``Core.compile_model``; ``None`` for the node's default.
        config: Properties.
    """

    def __init__(
        self, model: Any, device: str | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        self._compiled = partita.Core().compile_model(model, device, config)
        self._of_thread = threading.local()

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Outputs by name. Each thread that Ray Serve calls on keeps a request."""
        request = getattr(self._of_thread, "request", None)
        if request is None:
            request = self._of_thread.request = self._compiled.create_infer_request()
        return {port.name: array for port, array in request.infer(dict(inputs)).items()}

    def explain(self) -> dict[str, object]:
        """Where every operation runs and why, as plain data."""
        return self._compiled.explain().to_dict()


def model_app(
    model: Any,
    device: str | None = None,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """An application for ``ray.serve.run``.

    That returns a handle, which is called with arrays by input name::

        handle = ray.serve.run(model_app("model.onnx", "HETERO:GPU,CPU", num_replicas=4))
        outputs = handle.remote({"x": array}).result()

    Args:
        model: What ``Core.read_model`` takes; a path must exist on every node.
        device: As for ``Core.compile_model``; ``None`` for the node's default.
        config: Properties.
        options: Those of ``ray.serve.deployment``: ``num_replicas``, ``autoscaling_config``, ...

    Raises:
        DeviceUnavailableError: Ray Serve is not installed.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise DeviceUnavailableError(
            f'Ray Serve is not installed ({error}); pip install "partita[ray]".'
        ) from error
    return serve.deployment(ModelReplica).options(**options).bind(model, device, config)
