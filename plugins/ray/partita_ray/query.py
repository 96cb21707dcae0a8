"""Which operations a node takes: its device is asked there."""

from __future__ import annotations

from partita.contract.query import QueryResult
from partita.errors import DeviceUnavailableError
from partita.model.model import Model
from partita_ray.cluster import Cluster
from partita_ray.node import Node
from partita_ray.properties import RayProperties
from partita_ray.remote_call import fetch


def query(
    model: Model, properties: RayProperties, plugin: str, cluster: Cluster, node: Node
) -> QueryResult:
    """The answer of the node's device, in the name of the node.

    Args:
        model: What is asked about.
        properties: Which device of the node is asked.
        plugin: The plugin's device name.
        cluster: Knows which weights are there already.
        node: Who is asked.

    Raises:
        DeviceUnavailableError: The node is gone.
    """
    parcel = cluster.weights.pack(model)
    asked = node.agent.query.remote(parcel, properties.RAY_DEVICE, properties.for_node)
    what = f"{node.named(plugin)}: ask about '{model.name}'"
    answer: QueryResult = fetch(what, asked, DeviceUnavailableError)
    name = f"{plugin}.{node.number}"
    return QueryResult(name, dict.fromkeys(answer, name), dict(answer.reasons))
