"""The Ray cluster of this process, and its nodes by number."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from typing import Any

from partita.errors import DeviceUnavailableError
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_ray.model_parcel import WeightStore
from partita_ray.node import Node

ADDRESS = "RAY_ADDRESS"
"""Ray's own environment variable: where the cluster is."""

REACH_SECONDS = 5.0
"""How long to wait for an answer from a cluster."""

_HEAD = "node:__internal_head__"

_lock = InterruptSafeLock()
_present: Cluster | None = None


class Cluster:
    """The nodes of a cluster, and the weights that were sent to it.

    A node keeps its number as long as it lives. Who joins takes the lowest number that is free, so
    that a node that is replaced gives its number to the one that comes for it.

    Args:
        session: What tells this connection from a later one.

    Attributes:
        session: What tells this connection from a later one.
        weights: What is sent once.
    """

    def __init__(self, session: str) -> None:
        self.session = session
        self.weights = WeightStore()
        self._lock = InterruptSafeLock()
        self._nodes: dict[int, Node] = {}

    def last_known(self, device: str, device_id: str) -> Node:
        """The node of a device without asking Ray; it may be gone."""
        return self._nodes.get(int(device_id or 0)) or self.node(device, device_id)

    def nodes(self) -> list[Node]:
        """All that live now, by number."""
        import ray

        own = ray.get_runtime_context().get_node_id()
        alive = {one["NodeID"]: one for one in ray.nodes() if one["Alive"]}
        with self._lock:
            known = {node.node_id: node for node in self._nodes.values() if node.node_id in alive}
            self._nodes = {node.number: node for node in known.values()}
            for found in sorted(alive.values(), key=_order):
                if found["NodeID"] not in known:
                    number = next(i for i in range(len(alive) + 1) if i not in self._nodes)
                    address = str(found["NodeManagerAddress"])
                    node = Node(number, found["NodeID"], address, found["NodeID"] == own)
                    self._nodes[number] = node
            return [self._nodes[number] for number in sorted(self._nodes)]

    def node(self, device: str, device_id: str) -> Node:
        """The node of a device, as Ray knows it now.

        Raises:
            DeviceUnavailableError: It has left the cluster, and no other one has come for it.
        """
        number = int(device_id or 0)
        self.nodes()
        node = self._nodes.get(number)
        if node is not None:
            return node
        raise DeviceUnavailableError(
            f"Device '{device}.{number}' is gone: its node has left the cluster. Compile for "
            f"another one, or put others behind it: 'HETERO:{device}.{number},CPU'."
        )


def cluster() -> Cluster:
    """The cluster that this process belongs to; joins the one of RAY_ADDRESS if it is in none.

    Raises:
        DeviceUnavailableError: Ray is not installed, no cluster is named, or it cannot be joined.
    """
    global _present
    with _lock:
        ray = _connected()
        context = ray.get_runtime_context()
        session = f"{context.gcs_address} {context.get_job_id()}"
        if _present is None or _present.session != session:
            _present = Cluster(session)
        return _present


def _connected() -> Any:
    """Ray, as part of a cluster; not even imported where neither it nor an address is there."""
    if importlib.util.find_spec("ray") is None:
        raise DeviceUnavailableError('Ray is not installed; pip install "partita[ray]".')
    address = os.environ.get(ADDRESS, "")
    loaded = sys.modules.get("ray")
    if loaded is not None and loaded.is_initialized():
        return loaded
    if not address:
        raise DeviceUnavailableError(
            f"This process belongs to no Ray cluster: set {ADDRESS} to the address of one, to "
            "'auto' for one that runs on this machine, or to 'local' to have one started; or call "
            "ray.init() first."
        )
    if address.startswith("ray://"):
        raise DeviceUnavailableError(
            f"{ADDRESS} is '{address}': by Ray Client tensors cannot be read in place. Run on a "
            "node of the cluster, with 'auto'."
        )
    _check_reachable(address)
    import ray

    try:
        ray.init(address=address, log_to_driver=False)
    except Exception as error:
        raise DeviceUnavailableError(
            f"The Ray cluster at {ADDRESS}='{address}' cannot be joined: {error}"
        ) from error
    return ray


def _check_reachable(address: str) -> None:
    """Refuses an address at which nobody answers: Ray would end the process."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
    except OSError as error:
        raise DeviceUnavailableError(
            f"Nobody answers at {ADDRESS}='{address}': {error}. Start a node there by 'ray start "
            "--head', or set it to 'local' to have a cluster started on this machine."
        ) from error


def _order(node: dict[str, Any]) -> tuple[bool, str, str]:
    """The head first, then by address."""
    return _HEAD not in node["Resources"], str(node["NodeManagerAddress"]), str(node["NodeID"])
