"""What a device raises in a request, as an error that names the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from partita.errors import (
    CompileError,
    DeviceMemoryError,
    InferError,
    InputError,
    OperandError,
    PartitaError,
    in_words,
    message_of,
)

if TYPE_CHECKING:
    from partita.runtime.binding.input_tensors import InputTensors
    from partita.runtime.compiled_facts import CompiledFacts


def raise_naming_device(
    error: BaseException, compiled: CompiledFacts, inputs: InputTensors
) -> NoReturn:
    """Raises what a device raised: Partita's errors as they are, others as one with its name.

    Args:
        error: What the device raised.
        compiled: The request's model.
        inputs: The request's inputs, whose sizes a compile error is explained by.

    Raises:
        InputError: The shapes or elements of the inputs do not fit the model.
        InferError: Always, or another error of Partita's that the device raised.
        DeviceMemoryError: The device has no memory left.
    """
    if isinstance(error, CompileError):  # of a program for what this request holds
        kind = InputError if isinstance(error, OperandError) else InferError
        raise kind(
            f"Device '{compiled.device}' cannot compute these inputs: "
            f"{in_words(error)}{inputs.unequal_sizes()}"
        ) from error
    if isinstance(error, PartitaError) and message_of(error):
        raise error
    below = compiled.computing_devices
    whose = f"'{compiled.device}' of {' and '.join(below)}" if below else f"'{compiled.device}'"
    if isinstance(error, MemoryError):
        reason = in_words(error).removeprefix("MemoryError: ")
        raise DeviceMemoryError(f"Device {whose} has no room to run: {reason}") from error
    raise InferError(
        f"Device {whose} failed on model '{compiled.model.name}': {in_words(error)}"
    ) from error
