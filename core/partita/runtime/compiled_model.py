"""Compiled models as applications hold them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, final

from partita.contract.device_model import DeviceModel
from partita.runtime.compiled_facts import CompiledFacts
from partita.runtime.infer_request import InferRequest
from partita.runtime.infer_result import InferResult
from partita.runtime.variable_state import VariableState


@final
class CompiledModel(CompiledFacts):
    """A model that is ready to run; ``compile_model`` and ``import_model`` return it.

    Args:
        device_model: The plugin's half of the compiled model.
        made_by: Returns the identity of code, device and driver, for exported files.
        loaded_from_cache: Whether it was loaded from ``CACHE_DIR``.

    Attributes:
        model: The model that was compiled.
        properties: The validated properties that it was compiled with.
        device: The device's name, e.g. ``"CPU"`` or ``"OPENCL.0"``.
        inputs: Its input ports, in order.
        outputs: Its output ports, in order.
        device_model: The plugin's half of the compiled model.
        loaded_from_cache: Whether it was loaded from ``CACHE_DIR``.
    """

    def __init__(
        self,
        device_model: DeviceModel,
        made_by: Callable[[], str] = str,
        loaded_from_cache: bool = False,
    ) -> None:
        super().__init__(device_model, made_by, loaded_from_cache)
        self._of_thread = threading.local()

    def create_infer_request(
        self, share_state_with: InferRequest | None = None, state_rows: int | None = None
    ) -> InferRequest:
        """Creates a request; requests are independent and can run at the same time.

        Args:
            share_state_with: A request of this model with which the new one shares its state; the
                two then run one after the other.
            state_rows: The new request has so many rows of that state, along the first axis of each
                variable, and so takes inputs of so many: the first ones, until
                :meth:`~partita.InferRequest.select_state_rows` says others. For models whose batch
                is open, after a run or a value has decided it.

        Raises:
            InputError: There are not so many rows.
            InferError: The device does not update state in place, so that it cannot be shared; or
                not in the host's memory, which is needed for a part of it.
        """
        return InferRequest(self, share_state_with, state_rows)

    def infer_new_request(self, inputs: Any = None) -> InferResult:
        """Infers once with a new request; results are copies.

        Args:
            inputs: As for :meth:`partita.InferRequest.infer`.

        Raises:
            InferError: As :meth:`partita.InferRequest.infer`.
        """
        return self.create_infer_request().infer(inputs)

    def query_state(self) -> list[VariableState]:
        """The variables of the request that this thread's calls use."""
        return self._request().query_state()

    def reset_state(self) -> None:
        """Resets the variables of this thread's calls to their initial values."""
        self._request().reset_state()

    def release_memory(self) -> None:
        """Frees the requests that are kept for calls, with their memory; later calls create others.

        Requests that the application created are not affected.
        """
        self._of_thread = threading.local()

    def _request(self) -> InferRequest:
        """The request that is kept for this thread's calls."""
        request: InferRequest | None = getattr(self._of_thread, "request", None)
        if request is None:
            request = self._of_thread.request = self.create_infer_request()
        return request

    def __call__(
        self,
        inputs: Any = None,
        share_inputs: bool = True,
        share_outputs: bool = False,
        *,
        decode_strings: bool = True,
    ) -> InferResult:
        """Infers with a request that is kept for such calls, one per thread.

        Args:
            inputs: As for :meth:`partita.InferRequest.infer`; those that are left out are the ones
                of this thread's last call.
            share_inputs: Accepted for OpenVINO's sake.
            share_outputs: Return views that the next call overwrites, instead of copies.
            decode_strings: Return strings as ``str``, not as UTF-8 encoded ``bytes``.

        Raises:
            InferError: As :meth:`partita.InferRequest.infer`.
        """
        request: InferRequest | None = getattr(self._of_thread, "request", None)
        if request is None:
            request = self._request()
        result = request.infer(inputs, share_inputs, share_outputs)
        return result if decode_strings else result.encoded()
