"""Every error that Partita raises, one class per line of this tree.

::

    PartitaError
    ├── ModelError                  a model cannot be read or used
    │   ├── ModelNotFoundError      (also FileNotFoundError)
    │   ├── ModelFormatError        (also ValueError) not ONNX, damaged, or not understood
    │   ├── TokenizerError          (also ValueError) its tokenizer or chat template cannot be used
    │   └── UnsupportedOpError      no device of the list takes an operation
    ├── DeviceError                 a device cannot be had
    │   ├── DeviceNotFoundError     (also LookupError) no such device; lists those there are
    │   ├── DeviceUnavailableError  registered, but its plugin or driver did not load
    │   └── DeviceStringError       (also ValueError) "HETERO:GPU,,CPU"
    ├── PluginError                 a plugin breaks the contract, or two claim one name
    ├── PropertyError               (also ValueError) unknown key, wrong type or range, read-only
    ├── PlanError                   (also ValueError) a cost table, pin or limit cannot be used
    │   └── InfeasiblePlanError     no placement keeps the limits and pins; says what blocks it
    ├── CompileError                a device cannot compile what it was given
    ├── CostError                   (also ValueError) a table of costs is damaged or cannot be used
    ├── ReportError                 (also ValueError) a saved report is damaged or something else
    ├── BlobError                   (also ValueError) an exported model is damaged or foreign
    ├── InferError                  a request fails while it runs
    │   ├── InputError              (also ValueError) wrong name, shape or dtype of an input
    │   │   └── ContextLengthError  a prompt or an answer is longer than the context
    │   ├── DeviceMemoryError       (also MemoryError) the device has no room; names the sizes
    │   ├── InferCancelledError     the request was cancelled
    │   ├── BoundCallEndedError    a bound call no longer fits what the inputs hold; run instead
    │   └── RequestBusyError        (also RuntimeError) the request is running already
    └── ZooError                    a zoo model cannot be fetched or is not what it should be

A message says what failed (names quoted), what was found or is allowed, and what to do.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from partita.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Self

    from partita.reason import Reason


class PartitaError(Exception):
    """The root of all errors that Partita raises on purpose.

    Attributes:
        lines: What follows the message, a line each: a list of operations, a compiler's log.
    """

    lines: tuple[str, ...] = ()

    def with_lines(self, lines: Iterable[str]) -> Self:
        """The same error, with lines behind its message."""
        self.lines = tuple(lines)
        return self

    def __str__(self) -> str:
        """The message as one line, then its lines; what would act in names is spelled out."""
        return "\n".join(map(printable, [super().__str__(), *self.lines]))


class ModelError(PartitaError):
    """A model cannot be read or used."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """The model's file does not exist."""


class ModelFormatError(ModelError, ValueError):
    """The input is not an ONNX model, is damaged, or is beyond what is understood."""


class TokenizerError(ModelError, ValueError):
    """A language model's tokenizer or chat template is missing, damaged or not understood."""


class UnsupportedOpError(ModelError):
    """No device of the list takes an operation of the model.

    Attributes:
        reasons: Why, by the names of operations that a single device refuses; devices that split
            models (HETERO) give those alone to others. Empty if it is not told so.
    """

    def __init__(self, message: str, reasons: Mapping[str, Reason] | None = None) -> None:
        super().__init__(message)
        self.reasons: Mapping[str, Reason] = {} if reasons is None else reasons


class DeviceError(PartitaError):
    """A device cannot be had."""


class DeviceNotFoundError(DeviceError, LookupError):
    """No plugin provides the device."""


class DeviceUnavailableError(DeviceError):
    """The device is known, but its plugin, dependency or driver did not load."""


class DeviceStringError(DeviceError, ValueError):
    """A device string does not follow ``NAME[.ID][:DEVICE,DEVICE...]``."""


class PluginError(PartitaError):
    """A plugin breaks the contract, or two plugins claim one device name."""


PLUGIN_FAILURES = (Exception, SystemExit)
"""What a plugin's code may raise and is its own failure: ``sys.exit`` of a vendor's module ends no
application. An interrupt is the user's, and passes."""


class PropertyError(PartitaError, ValueError):
    """A property is unknown, has a wrong type or value, or cannot be written."""


class PlanError(PartitaError, ValueError):
    """A cost table, pin or limit of a placement is damaged or does not fit the model."""


class InfeasiblePlanError(PlanError):
    """No placement keeps the limits and pins; the message names what blocks it."""


class CompileError(PartitaError):
    """A device cannot compile the model that it was given."""


class CostError(PartitaError, ValueError):
    """A table of costs is damaged or foreign, or the database of costs cannot be used."""


class ReportError(PartitaError, ValueError):
    """A saved report is damaged, or is something else."""


class BlobError(PartitaError, ValueError):
    """An exported model is damaged, of another version, or from another device."""


class InferError(PartitaError):
    """A request failed while it was running."""


class InputError(InferError, ValueError):
    """An input has a wrong name, shape or dtype."""


class ContextLengthError(InputError):
    """A prompt, an answer or the context asked for is longer than what there is room for."""


class DeviceMemoryError(InferError, MemoryError):
    """The device has no room for a tensor; the message names the sizes."""


class InferCancelledError(InferError):
    """The request was cancelled before it ended."""


class BoundCallEndedError(InferError):
    """The inputs hold elements for which an output has another shape than it was bound to."""


class RequestBusyError(InferError, RuntimeError):
    """The request is running; wait for it or use another one."""


class ZooError(PartitaError):
    """A zoo model cannot be fetched, or is not the file that the manifest names."""


@contextlib.contextmanager
def raised_as(
    kind: type[PartitaError], what: str, passing: type[PartitaError] = PartitaError
) -> Iterator[None]:
    """Raises what others' code raises, whatever it is, as an error of Partita.

    Args:
        kind: The error.
        what: What failed; the message goes on with the original one.
        passing: Errors that are raised as they are.
    """
    try:
        yield
    except passing as error:
        if message_of(error) is None:  # nobody could tell it
            raise kind(f"{what}: {in_words(error)}") from error
        raise
    except PLUGIN_FAILURES as error:
        raise kind(f"{what}: {in_words(error)}") from error


def in_words(error: BaseException) -> str:
    """What an error says: the message of one of Partita's, the type as well of any other.

    Example:
        >>> in_words(InferError("Input 'x' is missing.")), in_words(MemoryError())
        ("Input 'x' is missing.", 'MemoryError')
    """
    told = message_of(error)
    if told is None:
        return f"{type(error).__name__}, whose message cannot be told"
    if isinstance(error, PartitaError):
        return told
    return f"{type(error).__name__}: {told}".removesuffix(": ")


def message_of(error: BaseException) -> str | None:
    """What an error says; ``None`` if its ``__str__`` fails."""
    try:
        return str(error)
    except PLUGIN_FAILURES:
        return None
