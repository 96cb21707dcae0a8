"""A model on Ray Serve, for ``serve run``; its arguments are the model, device and replicas.

serve run examples.deploy.ray_serve:app model=model.onnx device=CPU replicas=4
"""

from pathlib import Path
from typing import Any

from partita_ray import model_app


def app(arguments: dict[str, str]) -> Any:
    """The application that Ray Serve runs."""
    model = Path(arguments["model"]).resolve()  # the same place on each node
    replicas = int(arguments.get("replicas", "1"))
    return model_app(str(model), arguments.get("device"), num_replicas=replicas)
