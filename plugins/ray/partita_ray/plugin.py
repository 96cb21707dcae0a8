"""Entry point of devices RAY[.n]; ray is imported where a cluster is named and devices listed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

import partita
from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.contract.query import QueryResult
from partita.properties.deferred import deferred_properties

if TYPE_CHECKING:
    from partita.properties import DeviceProperties
    from partita.tensors.tensor import Tensor
    from partita_ray.properties import RayProperties


class RayPlugin(DevicePlugin):
    """Every node of the Ray cluster that this process belongs to, the head first."""

    device_name = "RAY"
    properties_type: ClassVar[type[DeviceProperties]] = deferred_properties(
        "partita_ray.properties:RayProperties"
    )

    def device_ids(self) -> Sequence[str]:
        """Ids ``"0"``, ``"1"``, ...; joins the cluster of RAY_ADDRESS, if that is set.

        Raises:
            DeviceUnavailableError: Ray is missing, no cluster is named, or it cannot be joined.
        """
        from partita_ray.cluster import cluster

        return [str(node.number) for node in cluster().nodes()]

    def device_info(self, device_id: str) -> DeviceInfo:
        """The node's device where none is named, and how the node is reached."""
        from partita_ray.cluster import cluster

        return cluster().node(self.device_name, device_id).info(self.device_name)

    def query_model(self, model: partita.Model, properties: DeviceProperties) -> QueryResult:
        """Takes what the node's device takes, which is asked."""
        from partita_ray.cluster import cluster
        from partita_ray.query import query

        known, there = cast("RayProperties", properties), cluster()
        node = there.node(self.device_name, properties.DEVICE_ID)
        return query(model, known, self.device_name, there, node)

    def compile_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.DeviceModel:
        """Compiles in a process of its own on the node; weights that are there are not sent."""
        from partita_ray.cluster import cluster
        from partita_ray.device_model import RayModel

        known, there = cast("RayProperties", properties), cluster()
        node = there.node(self.device_name, properties.DEVICE_ID)
        return RayModel(model, known, self.device_name, there, node)

    def can_share(self, memory: str, device_id: str = "") -> bool:
        """Tensors of all nodes: Ray brings them to the one that reads them."""
        from partita_ray.object_tensor import MEMORY

        return memory.startswith(MEMORY)

    def transfer_to(self, tensor: Tensor, device_id: str = "") -> Tensor:
        """Brings a tensor to the node; one that lies there is returned as it is."""
        from partita_ray.cluster import cluster
        from partita_ray.object_tensor import ObjectTensor

        node = cluster().last_known(self.device_name, device_id)
        if not isinstance(tensor, ObjectTensor):
            return node.bring(tensor.numpy(), self.device_name)
        return tensor if tensor.memory == node.memory else node.bring(tensor, self.device_name)


@partita.hookimpl
def device_plugins() -> Iterable[DevicePlugin]:
    """Registers RAY."""
    return [RayPlugin()]
