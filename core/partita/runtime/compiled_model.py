"""What ``compile_model`` returns, and what a plugin author subclasses for it."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.contract.explanation import Explanation
from partita.contract.profiling import ProfilingInfo
from partita.errors import BoundCallEndedError, PropertyError
from partita.model.model import Model, Port, find_port
from partita.storage import exported_model
from partita.storage.model_cache import stamp
from partita.tensors.tensor import HOST, Tensor

if TYPE_CHECKING:
    import numpy as np

    from partita.properties import DeviceProperties
    from partita.runtime.infer_request import InferRequest
    from partita.runtime.infer_result import InferResult
    from partita.tensors.layout import Layout


Array = np.ndarray[Any, Any]


class BoundCall(abc.ABC):
    """A run whose tensors stay the same, so that there is nothing to look at before it starts."""

    @abc.abstractmethod
    def __call__(self) -> None:
        """(required) Computes the outputs anew from what the inputs hold now.

        Raises:
            BoundCallEndedError: An output now has another shape; the caller is to run instead.
            InferError: The device could not compute them.
        """

    def rebind(self, inputs: Sequence[Tensor]) -> bool:
        """(optional) Reads other inputs of the same shapes from now on (defaults to: cannot).

        Args:
            inputs: One tensor per input port; some may be those that it reads already.

        Returns:
            Whether it does; if not, it still reads those that it was made for.
        """
        return False


class Runner(abc.ABC):
    """One request's private state on a device: its buffers and what it binds to them.

    ``run`` is never called concurrently on one runner; runners of one compiled model do run
    concurrently. A runner frees what it holds in :meth:`close` or when it is collected.
    """

    @abc.abstractmethod
    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """(required) Computes the outputs.

        Args:
            inputs: One tensor per input port, in order, of the port's dtype and a shape it allows:
                C-contiguous host tensors, or tensors of a memory that the plugin can share.
                They may be read-only, must not be written, nor read after the call.
            outputs: Where given and not ``None``, a tensor of the right shape and dtype that the
                runner should write to and return; it may decline and return its own.

        Returns:
            One tensor per output port. Those that the runner owns are valid until its next run.

        Raises:
            InferError: The device could not compute them.
        """

    def bind(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        scratch: np.ndarray[Any, Any] | None = None,
    ) -> BoundCall | None:
        """(optional) Runs on these tensors, again and again (defaults to ``None``: only by run).

        HETERO asks for it where a submodel reads and writes tensors that it has planned, and
        requests where tensors of the same shapes come again: elements change and memory does not.
        Each call must write to exactly these outputs. It is never called beside :meth:`run`,
        but may be in turns with it. Inputs hold the elements of the run before, so that a call can
        be made for those that decide a shape; it must look at each call whether they are the same.

        Args:
            inputs: One tensor per input port.
            outputs: One tensor per output port.
            scratch: If given, at least :attr:`CompiledModel.scratch_bytes` bytes that calls may
                use while they run, for what they do not keep; others use them between calls.
        """
        return None

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """(optional) Counters of the last run, if PERF_COUNT is set (defaults to none)."""
        return ()

    def cancel(self) -> None:  # noqa: B027  # optional
        """(optional) Asks a running ``run`` to stop soon (defaults to letting it finish).

        Called from another thread; must have no effect on later runs.
        """

    def close(self) -> None:  # noqa: B027  # optional
        """(optional) Frees what the runner holds (defaults to nothing)."""


def run_into(runner: Runner, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """For bound calls that do not fit: runs, and copies what comes out to the bound outputs.

    Raises:
        BoundCallEndedError: An output has another shape than the tensor that it is bound to.
        InferError: The device could not compute them.
    """
    for result, output in zip(runner.run(inputs), outputs, strict=True):
        if result.shape != output.shape:
            raise BoundCallEndedError(
                f"An output has shape {list(result.shape)} now; it was bound as "
                f"{list(output.shape)}."
            )
        np.copyto(output.numpy(), result.numpy())


class CompiledModel(abc.ABC):
    """A model that a device is ready to run. Subclasses implement :meth:`create_runner`.

    Args:
        model: What was compiled; its ports become those of the compiled model.
        properties: The validated properties it was compiled with.
        device: The device's name, e.g. ``"CPU"`` or ``"OPENCL.0"``.
    """

    def __init__(self, model: Model, properties: DeviceProperties, device: str) -> None:
        self.model = model
        self.properties = properties
        self.device = device
        self.inputs: tuple[Port, ...] = model.inputs
        self.outputs: tuple[Port, ...] = model.outputs
        self.loaded_from_cache = False
        self.made_by: Callable[[], str] = str  # what the plugin's identity says; set by Core
        self._of_thread = threading.local()

    @abc.abstractmethod
    def create_runner(self) -> Runner:
        """(required) Makes the private state of one request. Called from several threads."""

    @property
    def execution_devices(self) -> list[str]:
        """(optional) The devices that take part (defaults to the one)."""
        return [self.device]

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """(optional) How many requests keep the device busy (defaults to 1)."""
        return 1

    @property
    def scratch_bytes(self) -> int:
        """(optional) Host memory that bound calls can borrow while they run (defaults to none).

        Submodels that run one after another then work in the same memory.
        """
        return 0

    def takes_memory(self, memory: str) -> bool:
        """(optional) Whether requests take input tensors of a memory as they are.

        Tensors of other memories are brought to the host first (defaults to the host alone). A
        runner that takes tensors of its own memory must bear that one of its own outputs comes in.
        """
        return memory == HOST

    def layouts(self) -> Mapping[Port, Sequence[Layout]]:
        """(optional) Other layouts that ports could have at less cost (defaults to none).

        A device that computes with channels last, or in a narrower type than its ports have, names
        here what it would take and give without converting, best first. Asked by HETERO, which lets
        two submodels exchange a tensor in a layout that both name.
        """
        return {}

    def with_layouts(self, layouts: Mapping[Port, Layout]) -> CompiledModel:
        """(optional) The same model with ports in layouts out of those that :meth:`layouts` names.

        Its runners take and return tensors whose ``layout`` is the one given here for their port
        (outputs that they are handed have it as well), and plain ones for all other ports. Shapes
        and dtypes of ports stay as they are.
        """
        raise NotImplementedError(f"{type(self).__name__} names layouts and takes none.")

    def extra_properties(self) -> dict[str, Any]:
        """(optional) Read-only properties of this compiled model beyond the usual ones."""
        return {}

    def explain(self) -> Explanation:
        """(optional) Where every operation runs and why (defaults to all on the one device)."""
        return Explanation.single_device(self.model, self.device)

    def export_state(self) -> Mapping[str, Array]:
        """(optional) Arrays that took long to compute, by name (defaults to none).

        They are stored with the model when it is exported or cached, and handed to
        :meth:`partita.DevicePlugin.restore_model`.
        """
        return {}

    def piece_properties(self) -> dict[str, Any]:
        """(optional) Properties that let a piece of this model compute as it does in the whole.

        The piece's operations carry their devices as affinities (defaults to the model's own).
        """
        return self.exported_properties()

    def export_model(self) -> bytes:
        """(optional) Everything that ``Core.import_model`` needs (defaults to what it knows).

        That is the model, its properties, :meth:`export_state`, and of what code, device and
        driver that is.

        Raises:
            BlobError: The model is too large for one protobuf (2 GiB).
        """
        return exported_model.pack(
            device=self.device.partition(".")[0],
            header={"properties": self.exported_properties(), "made_by": stamp(self.made_by())},
            model=self.model,
            arrays=self.export_state(),
        )

    def exported_properties(self) -> dict[str, Any]:
        """The properties that belong to the model wherever it is imported."""
        return self.properties.model_dump(mode="json", exclude_unset=True, exclude={"CACHE_DIR"})

    def get_property(self, name: str) -> Any:
        """A setting that the model was compiled with, or a fact about it.

        Raises:
            PropertyError: Unknown name; the message lists the known ones.
        """
        facts = self._facts()
        if name in facts:
            return facts[name]
        if name in type(self.properties).model_fields:
            return getattr(self.properties, name)
        known = ", ".join([*facts, *type(self.properties).model_fields])
        raise PropertyError(
            f"Compiled model '{self.model.name}' has no property '{name}'; it has {known}."
        )

    def _facts(self) -> dict[str, Any]:
        facts = {
            "NETWORK_NAME": self.model.name,
            "LOADED_FROM_CACHE": self.loaded_from_cache,
            "EXECUTION_DEVICES": self.execution_devices,
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": self.optimal_number_of_infer_requests,
            **self.extra_properties(),
        }
        names = [*facts, "SUPPORTED_PROPERTIES", *type(self.properties).model_fields]
        facts["SUPPORTED_PROPERTIES"] = dict.fromkeys(names, "RO")
        return facts

    def input(self, key: int | str | Port = 0) -> Port:
        """The input port of an index, name or port of the model."""
        return find_port(self.inputs, key, f"Compiled model '{self.model.name}'")

    def output(self, key: int | str | Port = 0) -> Port:
        """The output port of an index, name or port of the model."""
        return find_port(self.outputs, key, f"Compiled model '{self.model.name}'")

    def create_infer_request(self) -> InferRequest:
        """A new request; requests are independent of one another and can run at the same time."""
        from partita.runtime.infer_request import InferRequest

        return InferRequest(self)

    def infer_new_request(self, inputs: Any = None) -> InferResult:
        """Infers once with a request made for it; results are copies."""
        return self.create_infer_request().infer(inputs)

    def __call__(
        self, inputs: Any = None, share_inputs: bool = True, share_outputs: bool = False
    ) -> InferResult:
        """Infers with a request that is kept for such calls; each thread has its own.

        Args:
            inputs: As :meth:`partita.runtime.infer_request.InferRequest.infer` takes them.
            share_inputs: Accepted for OpenVINO's sake.
            share_outputs: Return views that the next call overwrites, instead of copies.
        """
        request: InferRequest | None = getattr(self._of_thread, "request", None)
        if request is None:
            request = self._of_thread.request = self.create_infer_request()
        return request.infer(inputs, share_inputs, share_outputs)

    def __repr__(self) -> str:
        return f"<CompiledModel {self.model.name!r} on {self.device}>"
