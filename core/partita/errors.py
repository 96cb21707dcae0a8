"""Every error that Partita raises, one class per line of this tree.

::

    PartitaError
    ├── ModelError                  a model cannot be read or used
    │   ├── ModelNotFoundError      (also FileNotFoundError)
    │   ├── ModelFormatError        (also ValueError) not ONNX, damaged, or not understood
    │   ├── TokenizerError          (also ValueError) its tokenizer or chat template cannot be used
    │   └── UnsupportedOpError      no device of the list supports an operation
    ├── DeviceError                 a device is not available
    │   ├── DeviceNotFoundError     (also LookupError) no such device; lists those that exist
    │   ├── DeviceUnavailableError  registered, but its plugin or driver did not load
    │   └── DeviceStringError       (also ValueError) "HETERO:GPU,,CPU"
    ├── PluginError                 a plugin violates the contract, or two claim one name
    ├── PropertyError               (also ValueError) unknown key, wrong type or range, read-only
    ├── PlanError                   (also ValueError) a cost table, pin or limit cannot be used
    │   └── InfeasiblePlanError     no placement meets the limits and pins; says what prevents it
    ├── CompileError                a device cannot compile a model
    │   └── OperandError            shapes or elements that an operation reads do not fit it
    ├── CostError                   (also ValueError) a table of costs is damaged or cannot be used
    ├── ReportError                 (also ValueError) a saved report is damaged or something else
    ├── BlobError                   (also ValueError) an exported model is damaged or foreign
    ├── InferError                  a request fails while it runs
    │   ├── InputError              (also ValueError) an input is wrong, or does not fit the model
    │   │   └── ContextLengthError  a prompt or an answer is longer than the context
    │   ├── DeviceMemoryError       (also MemoryError) not enough memory; names the sizes
    │   ├── InferCancelledError     the request was cancelled
    │   ├── BoundCallEndedError     a bound call no longer fits the elements of its inputs
    │   └── RequestBusyError        (also RuntimeError) the request is running already
    └── ZooError                    a zoo model cannot be fetched or is not what it should be

A message says what failed (names quoted), what was found or is allowed, and what to do.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from typing import TYPE_CHECKING

from partita.printable import printable
from partita.system.memory_limits import more_memory
from partita.system.threads.thread_limit import is_thread_refused, more_threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from partita.reason import Reason


class PartitaError(Exception):
    """The base class of all errors that Partita raises.

    Attributes:
        lines: Lines after the message, such as a list of operations or a compiler's log.
    """

    lines: tuple[str, ...] = ()

    def with_lines(self, lines: Iterable[str]) -> Self:
        """The same error, with lines after its message."""
        self.lines = tuple(lines)
        return self

    def __str__(self) -> str:
        """The message as one line, then its lines; control characters in names are escaped."""
        return "\n".join(map(printable, [super().__str__(), *self.lines]))


class ModelError(PartitaError):
    """A model cannot be read or used."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """The model's file does not exist."""


class ModelFormatError(ModelError, ValueError):
    """A file or buffer is in no known format, is damaged, or has unsupported content."""


class TokenizerError(ModelError, ValueError):
    """A language model's tokenizer or chat template is missing, damaged or unsupported."""


class UnsupportedOpError(ModelError):
    """No device of the list supports an operation of the model.

    Attributes:
        reasons: By operation the reason why a single device does not support it; devices that
            split models (HETERO) then give only these to others. Empty if unknown.
    """

    def __init__(self, message: str, reasons: Mapping[str, Reason] | None = None) -> None:
        super().__init__(message)
        self.reasons: Mapping[str, Reason] = {} if reasons is None else reasons


class DeviceError(PartitaError):
    """A device is not available."""


class DeviceNotFoundError(DeviceError, LookupError):
    """No plugin provides the device."""


class DeviceUnavailableError(DeviceError):
    """The device is known, but its plugin, dependency or driver did not load."""


class DeviceStringError(DeviceError, ValueError):
    """A device string does not follow ``NAME[.ID][:DEVICE,DEVICE...]``."""


class PluginError(PartitaError):
    """A plugin violates the contract, or two plugins claim one device name."""


PLUGIN_FAILURES = (Exception, SystemExit)
"""Exceptions of a plugin's code that count as its failure: ``sys.exit`` in a vendor's module must
not end the application. ``KeyboardInterrupt`` is the user's, and passes."""


class PropertyError(PartitaError, ValueError):
    """A property is unknown, has a wrong type or value, or cannot be written."""


class PlanError(PartitaError, ValueError):
    """A cost table, pin or limit of a placement is damaged or does not fit the model."""


class InfeasiblePlanError(PlanError):
    """No placement meets the limits and pins; the message names what prevents it."""


class CompileError(PartitaError):
    """A device cannot compile a model."""


class OperandError(CompileError):
    """The shapes or elements of what an operation reads do not fit it, or each other.

    Those of a model's constants are a fault of the model; where what a request gives the model has
    led to them, the request raises :class:`InputError`.
    """


class CostError(PartitaError, ValueError):
    """A table of costs is damaged or foreign, or the database of costs cannot be used."""


class ReportError(PartitaError, ValueError):
    """A saved report is damaged, or is something else."""


class BlobError(PartitaError, ValueError):
    """An exported model is damaged, of another version, or from another device."""


class InferError(PartitaError):
    """A request failed while it was running."""


class InputError(InferError, ValueError):
    """An input is wrong: its name, shape or dtype, or what an operation finds in it.

    An index is out of range, say, or shapes do not fit each other. It is the data's fault, not the
    device's: the same inputs fail again, others do not.
    """


INPUT_FAULTS = (InputError, OperandError)
"""What a device raises while it runs if the request's data is at fault: others do no better."""


class ContextLengthError(InputError):
    """A prompt, an answer or the requested context is longer than the capacity of the cache."""


class DeviceMemoryError(InferError, MemoryError):
    """There is not enough memory for a tensor; the message names the sizes."""


class InferCancelledError(InferError):
    """The request was cancelled before it ended."""


class BoundCallEndedError(InferError):
    """The inputs have elements for which an output has another shape than it was bound to."""


class RequestBusyError(InferError, RuntimeError):
    """The request is running; wait for it or use another one."""


class ZooError(PartitaError):
    """A zoo model cannot be fetched, or is not the file that the manifest names."""


@contextlib.contextmanager
def raised_as(
    kind: type[PartitaError], what: str, passing: type[Exception] = PartitaError
) -> Iterator[None]:
    """Converts whatever a plugin's code raises in the block to an error of Partita.

    What a plugin makes of a ``KeyboardInterrupt`` is the interrupt itself: who asked it would take
    an error for a refusal, and go on with another device.

    Args:
        kind: The error to raise.
        what: What failed; the message continues with the original one.
        passing: Errors that are not converted.

    Raises:
        KeyboardInterrupt: What was raised comes of one in the block.
    """
    before = sys.exc_info()[1]
    try:
        yield
    except PLUGIN_FAILURES as error:
        since = itertools.takewhile(lambda one: one is not before, causes(error, meanwhile=True))
        if any(isinstance(one, KeyboardInterrupt) for one in since):
            raise KeyboardInterrupt from error
        if isinstance(error, passing) and message_of(error):
            raise
        raise kind(f"{what}: {in_words(error)}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an application's own interruption, or a plugin's panic
        error.add_note(what)
        raise


def causes(error: BaseException, meanwhile: bool = False) -> Iterator[BaseException]:
    """An error, the one that it was raised from, and so on to what went wrong first.

    Each one once: errors of plugins and other packages may name each other, or themselves.

    Args:
        error: What was raised last.
        meanwhile: Whether what was being handled then counts, too, where no cause is named.
    """
    known: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in known:
        known.add(id(following))
        yield following
        handled = following.__context__ if meanwhile else None
        following = handled if following.__cause__ is None else following.__cause__


def first_cause(error: BaseException) -> str:
    """The type and message of what went wrong first, where others wrap errors once per step."""
    *_, first = causes(error)
    return f"{type(first).__name__}: {first}"


def in_words(error: BaseException) -> str:
    """The message of an error; with the type in front if it is none of Partita's.

    Example:
        >>> in_words(InferError("Input 'x' is missing.")), in_words(MemoryError())
        ("Input 'x' is missing.", 'MemoryError')
    """
    message = message_of(error)
    if message is None:
        return f"{type(error).__name__}, whose message cannot be told"
    if isinstance(error, PartitaError) and message:
        return message
    advice = ""
    if is_thread_refused(error):
        advice = more_threads()
    elif isinstance(error, MemoryError) or _is_unmapped(error):
        advice = more_memory()
    message = message.removesuffix(".") if advice else message
    return advised(f"{type(error).__name__}: {message}".removesuffix(": "), advice)


_UNMAPPED = ("failed to map segment", "annot allocate memory")
"""What the system's loader says where a library does not fit a process."""


def _is_unmapped(error: BaseException) -> bool:
    """Whether a library could not be loaded for want of memory; packages hide that one deep."""
    if not isinstance(error, (OSError, ImportError)):
        return False
    messages = [message_of(one) or "" for one in causes(error, meanwhile=True)]
    return any(words in message for message in messages for words in _UNMAPPED)


def advised(fault: str, advice: str) -> str:
    """What went wrong, and behind it what to do about it, if anything is to be said of that."""
    return f"{fault}; {advice}" if advice else fault


def wrong_answer(
    device: str, member: str, found: object, expected: str, kind: type[PartitaError] = PluginError
) -> PartitaError:
    """What is raised where a plugin answers with something else than is expected.

    Args:
        device: Who answered.
        member: What was asked.
        found: The answer; printed by :func:`shown`.
        expected: What it should have answered, for the message.
        kind: The error.

    Example:
        >>> wrong_answer("TOY", "explain", None, "an Explanation").args[0]
        "Device 'TOY' answered explain with NoneType; expected an Explanation. Tell its author."
    """
    return kind(
        f"Device '{device}' answered {member} with {shown(found)}; expected {expected}. "
        "Tell its author."
    )


_FEW = 8
_SHORT = 40


def shown(found: object) -> str:
    """What a plugin gave, for a message: plain and short things as they are written, else the type.

    What a plugin's own class writes may have no end, or raise.

    Example:
        >>> shown([0, "a"]), shown(10**9999), shown(int)
        ("[0, 'a']", 'int', 'class int')
    """
    parts: Sequence[object] = (found,)
    if isinstance(found, (list, tuple)) and type(found) in (list, tuple):
        parts = found
    if len(parts) <= _FEW and all(_is_short(part) for part in parts):
        return repr(found)
    if isinstance(found, type):
        return f"class {found.__name__[:_SHORT]}"
    return type(found).__name__[:_SHORT]


def _is_short(found: object) -> bool:
    """Whether something is a number or a text that is soon written."""
    if isinstance(found, str):
        return type(found) is str and len(found) <= _SHORT
    if isinstance(found, int):
        return type(found) in (int, bool) and -(10**_SHORT) < found < 10**_SHORT
    return type(found) is float


def message_of(error: BaseException) -> str | None:
    """The message of an error; ``None`` if its ``__str__`` fails."""
    try:
        return str(error)
    except PLUGIN_FAILURES:
        return None
