"""Infer requests: checked inputs in, named results out, in the same thread or beside it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import InferCancelledError, InferError, InputError, PartitaError, RequestBusyError
from partita.model import Port, find_port
from partita.profiling import ProfilingInfo
from partita.tensor import HOST, HostTensor, Tensor
from partita.threads import LazyPool

if TYPE_CHECKING:
    from partita.compiled_model import CompiledModel

_log = logging.getLogger(__name__)
_pool = LazyPool("partita-infer", 64)

Array = np.ndarray[Any, Any]
Inputs = Mapping[Any, Any] | Sequence[Any] | Array | Tensor | None
"""Tensors by name, index or port; a list of them in order; one tensor; or none (those set before)."""


class InferResult(Mapping[Port, Array]):
    """The outputs of one request, as arrays; found by port, index or name.

    Iterating yields ports, as OpenVINO's result does.
    """

    __slots__ = ("_arrays", "_ports")

    def __init__(self, ports: tuple[Port, ...], arrays: Sequence[Array]) -> None:
        self._ports = ports
        self._arrays = arrays

    def __getitem__(self, key: Port | int | str) -> Array:
        if isinstance(key, Port):
            return self._arrays[key.index]
        if isinstance(key, str):
            for port, array in zip(self._ports, self._arrays, strict=True):
                if port.name == key:
                    return array
            raise KeyError(f"no output '{key}'; there are {[port.name for port in self._ports]}")
        return self._arrays[key]

    def __iter__(self) -> Iterator[Port]:
        return iter(self._ports)

    def __len__(self) -> int:
        return len(self._ports)

    def to_dict(self) -> dict[str, Array]:
        """Output name to array."""
        return {port.name: array for port, array in zip(self._ports, self._arrays, strict=True)}

    def to_tuple(self) -> tuple[Array, ...]:
        """The arrays in order."""
        return tuple(self._arrays)

    def names(self) -> tuple[str, ...]:
        """The outputs' names in order."""
        return tuple(port.name for port in self._ports)

    def __repr__(self) -> str:
        parts = (f"{p.name}: {a.dtype}{list(a.shape)}" for p, a in zip(self._ports, self._arrays, strict=True))
        return f"<InferResult {', '.join(parts)}>"


class InferRequest:
    """One inference at a time on a compiled model, with buffers of its own.

    Make it with :meth:`CompiledModel.create_infer_request`. Requests are independent; use one per
    thread, or an :class:`AsyncInferQueue`.
    """

    def __init__(self, compiled: CompiledModel) -> None:
        self.compiled_model = compiled
        self._ports = compiled.inputs
        self._outputs = compiled.outputs
        self._names = {port.name: port.index for port in self._ports}
        self._runner = compiled.create_runner()
        self._tensors: list[Tensor | None] = [None] * len(self._ports)
        self._results: Sequence[Tensor] | None = None
        self._busy = threading.Lock()
        self._future: Future[None] | None = None
        self._cancelled = False
        self._callback: Callable[[Any], None] | None = None
        self._userdata: Any = None
        self._latency_s = 0.0

    # ----------------------------------------------------------------- synchronous

    def infer(
        self, inputs: Inputs = None, share_inputs: bool = True, share_outputs: bool = False
    ) -> InferResult:
        """Computes the outputs and returns them.

        Args:
            inputs: Arrays (anything with ``__array__``), lists or tensors, by name, index or port,
                or in order. Contiguous arrays of the right type are read in place.
            share_inputs: Accepted for OpenVINO's sake; inputs are only read while this call runs.
            share_outputs: Return views of the request's buffers, which its next run overwrites,
                instead of copies.

        Raises:
            InputError: A wrong name, dtype or shape, or a missing input; says what is expected.
            RequestBusyError: The request is running asynchronously.
            InferError: A device failed.
        """
        self._acquire()
        try:
            if inputs is not None:
                self._bind(inputs, copy=False)
            self._run()
            return self._collect(copy=not share_outputs)
        finally:
            self._busy.release()

    # ---------------------------------------------------------------- asynchronous

    def start_async(
        self, inputs: Inputs = None, userdata: Any = None, share_inputs: bool = False
    ) -> None:
        """Starts to compute the outputs on another thread; :meth:`wait` ends it.

        Args:
            inputs: As for :meth:`infer`.
            userdata: Handed to the callback.
            share_inputs: Read the arrays in place (they must not change until the end) instead of
                copying them first.

        Raises:
            InputError: As for :meth:`infer`.
            RequestBusyError: The request is running already.
        """
        self._acquire()
        try:
            if inputs is not None:
                self._bind(inputs, copy=not share_inputs)
            if userdata is not None:
                self._userdata = userdata
            self._cancelled = False
            self._future = _pool.submit(self._work)
        except BaseException:
            self._busy.release()
            raise

    def _work(self) -> None:
        try:
            self._run()
        finally:
            self._busy.release()
            if self._callback is not None:
                self._callback(self._userdata)

    def wait(self) -> None:
        """Waits for the end of the asynchronous run; returns at once if there is none.

        Raises:
            InferError: What the run or the callback raised.
            InferCancelledError: The run was cancelled.
        """
        if self._future is not None:
            self._outcome(None)

    def wait_for(self, timeout: float) -> bool:
        """Waits at most ``timeout`` milliseconds; returns whether the run has ended."""
        if self._future is None:
            return True
        try:
            self._outcome(timeout / 1000)
        except FutureTimeoutError:
            return False
        return True

    def _outcome(self, timeout_s: float | None) -> None:
        future = self._future
        if future is None:
            return
        try:
            future.result(timeout_s)
        except CancelledError as error:
            raise InferCancelledError(f"The request on {self.compiled_model!r} was cancelled.") from error

    def cancel(self) -> None:
        """Asks the asynchronous run to stop; :meth:`wait` then raises ``InferCancelledError``."""
        future = self._future
        if future is None or future.done():
            return
        self._cancelled = True
        if future.cancel():
            self._busy.release()
        else:
            self._runner.cancel()

    def set_callback(self, callback: Callable[[Any], None] | None, userdata: Any = None) -> None:
        """Sets what is called as ``callback(userdata)`` after each asynchronous run.

        It runs on the thread that computed, after the request is free again, also if the run
        failed; what it raises, :meth:`wait` raises.
        """
        self._callback = callback
        self._userdata = userdata

    # --------------------------------------------------------------------- tensors

    def set_tensor(self, key: int | str | Port, tensor: Any) -> None:
        """Sets one input, kept until it is replaced; not copied if it is contiguous."""
        index = self._index(key)
        self._tensors[index] = _as_tensor(self._ports[index], tensor, copy=False)

    set_input_tensor = set_tensor

    def get_tensor(self, key: int | str | Port) -> Tensor:
        """The tensor of an input (as set) or output (of the last run)."""
        name = key.name if isinstance(key, Port) else key
        if isinstance(name, str) and name in self._names:
            return self.get_input_tensor(self._names[name])
        port = find_port(self._outputs, name, f"{self.compiled_model!r}")
        return self.get_output_tensor(port.index)

    def get_input_tensor(self, index: int = 0) -> Tensor:
        """The tensor of an input, made of zeros where none was set and the shape is known."""
        port = find_port(self._ports, index, f"{self.compiled_model!r}")
        tensor = self._tensors[port.index]
        if tensor is None:
            if not port.is_static or port.dtype is None:
                raise InputError(f"Input '{port.name}' ({port.describe()}) was not set yet.")
            tensor = HostTensor(np.zeros(port.shape, port.dtype))  # type: ignore[arg-type]  # static
            self._tensors[port.index] = tensor
        return tensor

    def get_output_tensor(self, index: int = 0) -> Tensor:
        """The tensor of an output of the last run; the next run overwrites it."""
        port = find_port(self._outputs, index, f"{self.compiled_model!r}")
        if self._results is None:
            raise InferError(f"Output '{port.name}' is not there yet: the request has not run.")
        return self._results[port.index]

    @property
    def input_tensors(self) -> list[Tensor]:
        """All input tensors in order."""
        return [self.get_input_tensor(port.index) for port in self._ports]

    @property
    def output_tensors(self) -> list[Tensor]:
        """All output tensors of the last run in order."""
        return [self.get_output_tensor(port.index) for port in self._outputs]

    @property
    def results(self) -> InferResult:
        """The outputs of the last run, not copied: the next run overwrites them."""
        self.get_output_tensor(0)
        return self._collect(copy=False)

    @property
    def userdata(self) -> Any:
        """What was handed to ``start_async`` or ``set_callback``."""
        return self._userdata

    @property
    def latency(self) -> float:
        """Duration of the last run in milliseconds."""
        return self._latency_s * 1e3

    def get_profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of the last run; empty unless PERF_COUNT is set."""
        return self._runner.profiling_info()

    @property
    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of the last run (OpenVINO's spelling)."""
        return self.get_profiling_info()

    # -------------------------------------------------------------------- internals

    def _acquire(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise RequestBusyError(
                "The request is running; wait() for it, or use another request for this call."
            )

    def _run(self) -> None:
        tensors = self._tensors
        for index, tensor in enumerate(tensors):
            if tensor is None:
                port = self._ports[index]
                raise InputError(f"Input '{port.name}' ({port.describe()}) is missing.")
        start = time.perf_counter()
        try:
            self._results = self._runner.run(tensors)  # type: ignore[arg-type]  # none is None
        except PartitaError:
            raise
        except Exception as error:
            raise InferError(
                f"Device '{self.compiled_model.device}' failed on model "
                f"'{self.compiled_model.model.name}': {type(error).__name__}: {error}"
            ) from error
        self._latency_s = time.perf_counter() - start
        if self._cancelled:
            self._cancelled = False
            raise InferCancelledError(f"The request on {self.compiled_model!r} was cancelled.")

    def _collect(self, copy: bool) -> InferResult:
        results = self._results or ()
        arrays = [
            np.array(tensor.numpy()) if copy and tensor.memory == HOST else tensor.numpy()
            for tensor in results
        ]
        return InferResult(self._outputs, arrays)

    def _bind(self, inputs: Inputs, copy: bool) -> None:
        if isinstance(inputs, Mapping):
            pairs: Iterable[tuple[int, Any]] = [(self._index(key), x) for key, x in inputs.items()]
        elif isinstance(inputs, (list, tuple)):
            if len(inputs) > len(self._ports):
                raise InputError(
                    f"{self.compiled_model!r} takes {len(self._ports)} inputs ({self._expected()}); "
                    f"{len(inputs)} were given."
                )
            pairs = enumerate(inputs)
        elif len(self._ports) == 1:
            pairs = [(0, inputs)]
        else:
            raise InputError(
                f"{self.compiled_model!r} takes {len(self._ports)} inputs ({self._expected()}); "
                "give a dict of name to array."
            )
        for index, tensor in pairs:
            self._tensors[index] = _as_tensor(self._ports[index], tensor, copy)

    def _index(self, key: Any) -> int:
        if isinstance(key, str):
            index = self._names.get(key)
            if index is not None:
                return index
        elif isinstance(key, Port):
            return self._index(key.name)
        elif isinstance(key, int) and -len(self._ports) <= key < len(self._ports):
            return key
        raise InputError(
            f"{self.compiled_model!r} has no input {key!r}; it takes {self._expected()}."
        )

    def _expected(self) -> str:
        return ", ".join(f"'{port.name}' {port.describe()}" for port in self._ports) or "none"


def _as_tensor(port: Port, data: Any, copy: bool) -> Tensor:
    """Checks one input against its port; makes it a contiguous host tensor unless it is a tensor."""
    if isinstance(data, Tensor):
        _check(port, data.dtype, data.shape)
        return data
    array = data if type(data) is np.ndarray else _as_array(port, data)
    if array.dtype != port.dtype:
        array = _matching_dtype(port, array)
    _check(port, array.dtype, array.shape)
    if copy:
        array = np.array(array, order="C")
    elif not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return HostTensor(array)


def _as_array(port: Port, data: Any) -> Array:
    if hasattr(data, "__array__"):
        return np.asarray(data)
    if hasattr(data, "__dlpack__"):
        return np.from_dlpack(data)
    try:
        return np.asarray(data, dtype=port.dtype)  # lists and numbers have no type of their own
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"Input '{port.name}' takes {port.describe()}; {type(data).__name__} cannot be made "
            f"one: {error}"
        ) from error


def _matching_dtype(port: Port, array: Array) -> Array:
    """Accepts other byte orders and numpy's fixed-width strings; leaves the rest to the check."""
    if port.dtype == np.dtype(object) and array.dtype.kind in "US":
        return array.astype(object)
    if port.dtype is not None and array.dtype.newbyteorder("=") == port.dtype:
        return array.astype(port.dtype)
    return array


def _check(port: Port, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    fits = port.dtype is None or dtype == port.dtype
    if fits and port.shape is not None:
        fits = len(shape) == len(port.shape)
        if fits:
            for have, want in zip(shape, port.shape, strict=True):
                if have != want and isinstance(want, int):
                    fits = False
    if not fits:
        dims = ", ".join(map(str, shape))
        raise InputError(
            f"Input '{port.name}' takes {port.describe()}; found {dtype}[{dims}]."
            + (f" Convert it with .astype({str(port.dtype)!r})." if port.dtype not in (None, dtype) else "")
        )


class AsyncInferQueue:
    """A pool of requests: ``start_async`` takes a free one and waits if there is none.

    Args:
        compiled_model: What to run.
        jobs: Number of requests; 0 takes ``OPTIMAL_NUMBER_OF_INFER_REQUESTS``.
    """

    def __init__(self, compiled_model: CompiledModel, jobs: int = 0) -> None:
        count = jobs or compiled_model.optimal_number_of_infer_requests
        if count < 1:
            raise InferError(f"A queue needs at least one request; {jobs} were asked for.")
        self._requests = [compiled_model.create_infer_request() for _ in range(count)]
        self._idle = list(range(count))
        self._changed = threading.Condition()
        self._callback: Callable[[InferRequest, Any], None] | None = None
        self._errors: list[BaseException] = []

    def set_callback(self, callback: Callable[[InferRequest, Any], None]) -> None:
        """Sets what is called as ``callback(request, userdata)`` after each successful run."""
        self._callback = callback

    def start_async(self, inputs: Inputs = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Starts a run on a free request; waits for one if all are busy."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._idle))
            index = self._idle.pop(0)
        request = self._requests[index]
        try:
            request._acquire()
            try:
                if inputs is not None:
                    request._bind(inputs, copy=not share_inputs)
                request._userdata = userdata
                request._future = _pool.submit(self._work, index)
            except BaseException:
                request._busy.release()
                raise
        except BaseException:
            self._release(index)
            raise

    def _work(self, index: int) -> None:
        request = self._requests[index]
        try:
            try:
                request._run()
            finally:
                request._busy.release()
            if self._callback is not None:
                self._callback(request, request._userdata)
        except Exception as error:  # noqa: BLE001  # kept for wait_all, which raises it
            with self._changed:
                self._errors.append(error)
        finally:
            self._release(index)

    def _release(self, index: int) -> None:
        with self._changed:
            self._idle.append(index)
            self._changed.notify_all()

    def wait_all(self) -> None:
        """Waits for all runs.

        Raises:
            InferError: What the first failed run or callback raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._idle) == len(self._requests))
            errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def is_ready(self) -> bool:
        """Whether a request is free."""
        with self._changed:
            return bool(self._idle)

    def get_idle_request_id(self) -> int:
        """Index of the request that the next ``start_async`` takes; waits for one."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._idle))
            return self._idle[0]

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[InferRequest]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> InferRequest:
        return self._requests[index]
