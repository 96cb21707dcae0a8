"""Waits for what nodes compute, and tells their errors apart: the model's, the node's, Ray's."""

from __future__ import annotations

from typing import Any

from partita.errors import DeviceMemoryError, PartitaError


def fetch(what: str, results: Any, error: type[PartitaError]) -> Any:
    """The results of calls, in this process; what is large is read in place and not to be changed.

    Args:
        what: What is being done and where, for messages: ``"RAY.1 (10.0.0.3): infer"``.
        results: One reference, or a list of them.
        error: What is raised if the node, and not the model, is to blame.

    Raises:
        PartitaError: Of ``error``'s type if the node or the connection to it is gone or the call
            failed for a reason of Ray's; otherwise what the node's device raised.
        DeviceMemoryError: The object store has no room.
    """
    import ray
    from ray import exceptions

    try:
        return ray.get(results)
    except exceptions.RayTaskError as failure:
        cause = failure.cause
        if isinstance(cause, PartitaError):
            raise cause from failure
        raise error(f"{what} failed: {type(cause).__name__}: {_first_line(cause)}") from failure
    except exceptions.ObjectStoreFullError as failure:
        raise DeviceMemoryError(
            f"{what}: Ray's object store is full; start the node with a larger "
            "--object-store-memory, or have fewer requests in flight."
        ) from failure
    except exceptions.ObjectLostError as failure:
        raise error(
            f"{what}: a tensor that it reads is lost, as its node has left the cluster."
        ) from failure
    except exceptions.RayActorError as failure:
        raise error(
            f"{what}: the process on the node has died or the node has left the cluster: "
            f"{_first_line(failure)}"
        ) from failure
    except exceptions.RayError as failure:
        raise error(f"{what}: {type(failure).__name__}: {_first_line(failure)}") from failure


def _first_line(error: BaseException) -> str:
    """What a message begins with: Ray's go on for a page."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else ""
