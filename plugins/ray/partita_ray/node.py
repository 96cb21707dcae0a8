"""One node of the cluster, as this process sees it: its facts, its clock, processes on it."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from partita.contract.device_plugin import DeviceInfo
from partita.errors import DeviceUnavailableError, InferError
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.version import __version__
from partita_ray.node_actor import NodeActor, NodeFacts
from partita_ray.object_tensor import MEMORY, ObjectTensor
from partita_ray.remote_call import fetch

_log = logging.getLogger("partita.ray")

MOST_IDLE = 4
"""Processes without a model that a node keeps: a new one takes a second to start."""

PINGS = 8
"""Of how many looks at a node's clock the quickest counts."""

CLOCK_SECONDS = 60.0
"""How long a look at a node's clock counts: quartzes part by some microseconds per second."""


class Node:
    """A node and the processes that this one has there.

    Args:
        number: The device's id.
        node_id: Ray's name for the node.
        address: Its IP address.
        is_own: Whether this process runs on it.

    Attributes:
        number: The device's id.
        node_id: Ray's name for the node.
        address: Its IP address.
        is_own: Whether this process runs on it.
    """

    def __init__(self, number: int, node_id: str, address: str, is_own: bool) -> None:
        self.number = number
        self.node_id = node_id
        self.address = address
        self.is_own = is_own
        self._lock = InterruptSafeLock()
        self._idle: dict[int, list[Any]] = {}
        self._agent: Any = None
        self._facts: NodeFacts | None = None
        self._clock: tuple[float, float] | None = None

    @property
    def memory(self) -> str:
        """Id of its object store."""
        return f"{MEMORY}{self.number}"

    def named(self, device: str) -> str:
        """A device of the plugin on this node, for messages: ``"RAY.1 (10.0.0.3)"``."""
        return f"{device}.{self.number} ({self.address})"

    @property
    def agent(self) -> Any:
        """The process that answers questions; it starts with the first one."""
        with self._lock:
            if self._agent is None:
                self._agent = self._start(1, restarts=-1)
            return self._agent

    def facts(self, device: str) -> NodeFacts:
        """What the node says of itself; asked once.

        Raises:
            DeviceUnavailableError: It does not answer, or has another version of Partita.
        """
        if self._facts is None:
            where = self.named(device)
            facts: NodeFacts = fetch(
                f"{where}: describe the node", self.agent.facts.remote(), DeviceUnavailableError
            )
            if facts.version != __version__:
                raise DeviceUnavailableError(
                    f"{where} has Partita {facts.version}, this process {__version__}; install "
                    "one version on all nodes."
                )
            self._facts = facts
        return self._facts

    def info(self, device: str) -> DeviceInfo:
        """The node as a device.

        Raises:
            DeviceUnavailableError: As :meth:`facts`.
        """
        import ray

        facts = self.facts(device)
        inner = facts.info
        return DeviceInfo(
            f"{device}.{self.number}",
            f"Ray node {self.address} with {', '.join(facts.devices)}",
            kind=inner.kind,
            memory=self.memory,
            memory_bytes=inner.memory_bytes,
            driver=f"Ray {ray.__version__}; {inner.driver}",
            details={
                "node": self.address,
                "reached by": "shared memory" if self.is_own else "network",
                "device": inner.device,
                **inner.details,
            },
        )

    def take_process(self, requests: int) -> Any:
        """A process that holds no model, for one model.

        Args:
            requests: How many calls it makes at a time.
        """
        while True:
            with self._lock:
                idle = self._idle.get(requests)
                process = idle.pop() if idle else None
            if process is None:
                return self._start(requests)
            if _answers(process):
                return process

    def give_back(self, process: Any, requests: int) -> None:
        """Keeps a process for the next model, if there are not enough; else it ends."""
        import ray

        if not ray.is_initialized():  # a call would start a cluster
            return
        try:
            process.unload.remote()
        except Exception as error:  # noqa: BLE001  # Ray's own, if it is of an earlier cluster
            _log.info("a process on node %s is gone: %s", self.address, error)
            return
        with self._lock:
            idle = self._idle.setdefault(requests, [])
            if len(idle) < MOST_IDLE:
                idle.append(process)

    def bring(self, tensor: ObjectTensor | np.ndarray[Any, Any], device: str) -> ObjectTensor:
        """A tensor in the node's object store, wherever it comes from; returns when it is there.

        Raises:
            InferError: The node is gone, or has no room.
        """
        import ray

        source = tensor.held if isinstance(tensor, ObjectTensor) else tensor
        if self.is_own and not isinstance(tensor, ObjectTensor):
            ref = ray.put(source)
        else:
            ref = self.agent.hold.remote(source)
            ray.wait([ref], fetch_local=False)
        return ObjectTensor(ref, tensor.shape, tensor.dtype, f"{device}.{self.number}", self.memory)

    def clock_offset(self, device: str) -> float:
        """What to add to the node's clock to have this process's, in seconds.

        As NTP does: the answer is taken to be from the middle of the quickest of some questions.
        """
        known = self._clock
        if known is None or time.perf_counter() - known[0] > CLOCK_SECONDS:
            known = self._clock = time.perf_counter(), min(map(self._ping, [device] * PINGS))[1]
        return known[1]

    def _ping(self, device: str) -> tuple[float, float]:
        """How long a question took, and the offset by it."""
        start = time.perf_counter()
        there = fetch(
            f"{self.named(device)}: read the clock", self.agent.clock.remote(), InferError
        )
        end = time.perf_counter()
        return end - start, (start + end) / 2 - there

    def _start(self, requests: int, restarts: int = 0) -> Any:
        """A process on this node and on no other."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self.node_id, soft=False)
        made = ray.remote(NodeActor).options(
            num_cpus=0,
            max_concurrency=requests,
            max_restarts=restarts,
            scheduling_strategy=here,
        )
        return made.remote()


def _answers(process: Any) -> bool:
    """Whether a process still lives."""
    import ray

    try:
        ray.get(process.clock.remote())
    except ray.exceptions.RayError:
        return False
    return True
