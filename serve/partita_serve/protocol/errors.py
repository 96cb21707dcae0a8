"""Errors that are sent to clients, with their codes in HTTP and gRPC.

::

    ServingError
    ├── InvalidRequest      400  INVALID_ARGUMENT     the request is wrong; the same again fails
    ├── Unauthorized        401  UNAUTHENTICATED      no key, or an unknown one
    ├── NotFound            404  NOT_FOUND            no such model, version or page
    ├── TooLarge            413  RESOURCE_EXHAUSTED   more bytes than the server takes
    ├── Overloaded          429  RESOURCE_EXHAUSTED   the queue is full; try again later
    ├── Cancelled           499  CANCELLED            the client has gone, or takes it back
    ├── InternalError       500  INTERNAL             a device failed
    ├── NotSupported        501  UNIMPLEMENTED        of the protocol, but not done here
    ├── Unavailable         503  UNAVAILABLE          the model or server is not ready
    └── DeadlineExceeded    504  DEADLINE_EXCEEDED    the request's time was over before its turn
"""

from __future__ import annotations

from typing import ClassVar

from partita.errors import DeviceMemoryError, InputError, PartitaError

_LONGEST = 2000
"""Letters of a message: gRPC's header has room for some thousands, and requests quote clients."""


class ServingError(PartitaError):
    """The root of all errors that are sent to clients; long messages are cut.

    Attributes:
        http_status: Status of the HTTP response.
        grpc_code: Name of the member of ``grpc.StatusCode``.
    """

    http_status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= _LONGEST else f"{message[:_LONGEST]}...")


class InvalidRequest(ServingError):  # noqa: N818  # the protocol's word for it
    """The request is wrong; sent again it fails again."""

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"


class Unauthorized(ServingError):  # noqa: N818
    """The request has no key, or one that the server does not know."""

    http_status = 401
    grpc_code = "UNAUTHENTICATED"


class NotFound(ServingError):  # noqa: N818
    """There is no such model, version or page."""

    http_status = 404
    grpc_code = "NOT_FOUND"


class TooLarge(ServingError):  # noqa: N818
    """The request has more bytes than the server takes."""

    http_status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class Overloaded(ServingError):  # noqa: N818
    """More requests wait than the server lets wait; the client may try again later."""

    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"


class Cancelled(ServingError):  # noqa: N818
    """The client has gone before its answer, or does not want it any more."""

    http_status = 499
    grpc_code = "CANCELLED"


class InternalError(ServingError):
    """A device or the server failed."""


class NotSupported(ServingError):  # noqa: N818
    """The protocol has it, this server does not."""

    http_status = 501
    grpc_code = "UNIMPLEMENTED"


class Unavailable(ServingError):  # noqa: N818
    """The model or the server is not ready: being loaded, unloaded or stopped."""

    http_status = 503
    grpc_code = "UNAVAILABLE"


class DeadlineExceeded(ServingError):  # noqa: N818
    """The time that the client gave the request was over before its turn came."""

    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"


def serving_error(error: Exception) -> ServingError:
    """An error of the framework as clients see it.

    Args:
        error: What inference raised. What is no ``PartitaError`` is a fault of the server, of
            which clients get the type alone.
    """
    if isinstance(error, ServingError):
        return error
    if isinstance(error, DeviceMemoryError):
        return Overloaded(str(error))
    if isinstance(error, InputError):
        return InvalidRequest(str(error))
    if isinstance(error, PartitaError):
        return InternalError(str(error))
    return InternalError(f"The server failed ({type(error).__name__}); its log says why.")
