"""Requirements of checks, and the errors in which a check ends."""

from __future__ import annotations

from collections.abc import Callable


class ConformanceError(AssertionError):
    """The device does not do what the contract asks."""


class NotApplicableError(Exception):
    """The check cannot be made on this device; the message says why."""


class DeclinedError(Exception):
    """The device says that it does not take an operation of the check, which is its right."""


def require(condition: object, message: str) -> None:
    """Fails the check unless the condition holds.

    Raises:
        ConformanceError: With the message.
    """
    if not condition:
        raise ConformanceError(message)


def require_raises(
    errors: type[BaseException] | tuple[type[BaseException], ...],
    action: Callable[[], object],
    what: str,
) -> BaseException:
    """Fails the check unless the action raises one of the errors; returns what it raised.

    Raises:
        ConformanceError: It raised nothing, or something else.
    """
    names = " or ".join(e.__name__ for e in (errors if isinstance(errors, tuple) else (errors,)))
    try:
        action()
    except errors as error:
        return error
    except Exception as error:
        raise ConformanceError(
            f"{what} must raise {names}; it raised {type(error).__name__}: {error}"
        ) from error
    raise ConformanceError(f"{what} must raise {names}; it raised nothing.")
