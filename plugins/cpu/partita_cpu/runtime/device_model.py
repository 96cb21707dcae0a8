"""Compiled models and runners of device CPU."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from partita import (
    BoundCall,
    DeviceModel,
    Explanation,
    HostTensor,
    Model,
    Port,
    ProfilingInfo,
    Runner,
    Tensor,
)
from partita.contract.call_queue import CallQueue
from partita.contract.execution import Execution
from partita.contract.profiling import Status
from partita.errors import CompileError, PartitaError
from partita.lowering import (
    Array,
    Graph,
    Prepacked,
    Program,
    Specializer,
    Target,
    lower,
    made_ahead,
)
from partita.lowering.kernel_table import in_place_outputs
from partita.lowering.memory_plan import ALIGNMENT
from partita.properties import DeviceProperties
from partita.system.host_memory import give_back_freed
from partita.system.memory_map import give_back_all
from partita.tensors.layout import MemoryLayout
from partita.tensors.layout_tensor import LaidOutTensor, stored_as
from partita_cpu.gemm.precision_policy import choose
from partita_cpu.gemm.product_steps import stored_elements
from partita_cpu.jit.dispatch import available
from partita_cpu.kernels.movement.expected_sizes import emit_expected
from partita_cpu.kernels.movement.strided_copy import copied
from partita_cpu.kernels.operator_table import TABLE, emitter_for
from partita_cpu.passes.nhwc import REORDERS
from partita_cpu.passes.pipeline import prepare, refine
from partita_cpu.passes.port_layouts import ports_to_lay_out, with_layouts
from partita_cpu.properties import CpuProperties
from partita_cpu.query import verdict
from partita_cpu.runtime.bound_call import CpuBoundCall, ValueBoundCall, failure
from partita_cpu.runtime.bound_program import Times
from partita_cpu.runtime.call_layout import CallLayout
from partita_cpu.runtime.first_kernels import begin
from partita_cpu.runtime.graph_runner import Cancellation, GraphRunner
from partita_cpu.runtime.kernel_loading import load_kernels
from partita_cpu.runtime.size_evaluator import evaluator_of
from partita_cpu.threads.call_queue import NativeCallQueue
from partita_cpu.threads.openblas import use_threads
from partita_cpu.threads.step_team import Team, team_of

_TOKENS = (7, 2, 1, 512, 8, 16)
"""Of runs that a decoder is made ready for: two to learn what varies, one, many, and some.

Tensors of all numbers of tokens that one program serves lie as they fit best for the first one.
"""


class CpuModel(DeviceModel):
    """A model lowered, folded and fused; programs for its shapes are made when they occur.

    Args:
        model: All of whose operations the device takes.
        properties: Validated properties.
        device: The name under which the device is registered.
        state: What :meth:`export_state` returned for the same model.

    Raises:
        UnsupportedOpError: An operation is not taken.
        CompileError: An operation cannot be computed for the model's shapes.
    """

    def __init__(
        self,
        model: Model,
        properties: DeviceProperties,
        device: str,
        state: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(model, properties, device)
        if not isinstance(properties, CpuProperties):
            raise CompileError(f"Device {device} needs CpuProperties, not {type(properties)}.")
        graph = lower(model)
        verdict(model, device, graph).require_all(model)
        self.streams = properties.streams
        self._threads = max(1, properties.threads // self.streams)
        self._pinned = properties.ENABLE_CPU_PINNING
        self._teams = {0: team_of(self._threads, 0)}  # by stream; that of the first packs weights
        policy = choose(properties, self._threads)
        policy = replace(policy, stored_elements=stored_elements(policy, graph))
        begin(policy, graph)
        target = Target(
            emitter_for,
            refine=functools.partial(refine, policy),
            options=policy,
            prepacked=Prepacked(state),
            most_kept_bytes=properties.SHAPE_CACHE_BYTES,
            arrange=_arrange if available() else None,
            evaluator=evaluator_of if available() else None,
            copy=copied,
            settle=policy.waiting.finish,
            expect=emit_expected,
        )
        self._rounded = prepare(graph, target, policy)
        self.specializer = Specializer(graph, target)
        self._in_place = in_place_outputs(graph, self.inputs, self.outputs, TABLE.in_place)
        self.laid_out: Mapping[Port, MemoryLayout] = {}
        self._arena_bytes = 0
        self._next_stream = itertools.count()
        self._prepare()
        give_back_all()
        give_back_freed()

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """One per stream."""
        return self.streams

    @property
    def scratch_bytes(self) -> int:
        """The arena with room to align it, if shapes are known."""
        return self._arena_bytes + ALIGNMENT

    def extra_properties(self) -> dict[str, Any]:
        """What hints for arithmetic come to on this machine, and why if that is something else.

        An exported model keeps the hints themselves; they are read again where it is imported.
        """
        policy = self.specializer.target.options
        return {
            "INFERENCE_PRECISION_HINT": "bf16" if self._rounded else policy.precision,
            "INFERENCE_PRECISION_NOTE": self._precision_note(),
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": policy.group,
            "DYNAMIC_QUANTIZATION_NOTE": policy.group_note,
        }

    def explain(self) -> Explanation:
        """All on this device; what of the properties it cannot do, and what they cost."""
        policy = self.specializer.target.options
        notes = [note for note in (self._precision_note(), policy.group_note) if note]
        return replace(super().explain(), notes=notes)

    def _precision_note(self) -> str:
        """Why it is not the arithmetic that properties request; empty if it is."""
        shortfall: str = self.specializer.target.options.shortfall
        if not self._rounded:
            return shortfall
        rounded = f"Matrices rounded to bfloat16, since products wait for them: {self._rounded}."
        return f"{shortfall} {rounded}"

    def in_place_outputs(self) -> Mapping[int, int]:
        """Caches that an operator writes new rows to."""
        return dict(self._in_place)

    def layouts(self) -> Mapping[Port, Sequence[MemoryLayout]]:
        """Channels last, for images that steps read or write so."""
        if not self.specializer.target.options.native:
            return {}
        return ports_to_lay_out(self.specializer, self.inputs, self.outputs)

    def with_layouts(self, layouts: Mapping[Port, MemoryLayout]) -> CpuModel:
        """The same with images as they are computed; weights are shared."""
        other = copy.copy(self)
        DeviceModel.__init__(other, self.model, self.properties, self.device)
        other.laid_out = dict(layouts)
        moved = {(port.is_input, port.index) for port in layouts}
        other._in_place = {
            made: given
            for made, given in self._in_place.items()
            if not moved & {(False, made), (True, given)}
        }
        other.specializer = with_layouts(self.specializer, layouts)
        other._prepare()
        return other

    def export_state(self) -> Mapping[str, Array]:
        """Weights in the order in which kernels read them; packing is most of compiling."""
        return self.specializer.target.prepacked.state()

    def create_runner(self) -> Runner:
        """A runner; runners take turns among the streams' threads."""
        stream = next(self._next_stream) % self.streams
        team = self._teams[stream] = team_of(self._threads, stream, self._pinned)
        return CpuRunner(self, team)

    def create_call_queue(self, requests: int) -> CallQueue | None:
        """Threads that make calls without Python between, where a stream is one thread."""
        if self._threads > 1 or not available():
            return None
        return NativeCallQueue(requests, self.streams)

    def _prepare(self) -> None:
        """Makes the program and loads its kernels now, if the shapes are known now.

        Of a decoder, whose runs take one token or many, programs are recorded for a few numbers of
        tokens: those of others are filled in when they come.
        """
        make = self.specializer.program
        program = made_ahead(self.inputs, self.laid_out, make)
        if program is not None:
            self._arena_bytes = program.arena_bytes
            load_kernels(program)
        elif self._in_place:
            with contextlib.suppress(CompileError):  # as the run that needs it will say
                for sizes in self._usual_sizes():
                    made_ahead(self.inputs, self.laid_out, make, sizes)
                    self.specializer.programs.clear()  # what is recorded makes them again

    def _usual_sizes(self) -> Iterator[Mapping[str, int]]:
        """Sizes of a decoder's runs, by symbol: of one sequence, with few or many tokens.

        None if more varies than the number of tokens and that of sequences, which is the first
        dimension of caches.
        """
        caches = [self.inputs[index].shape or () for index in self._in_place.values()]
        sequences = {shape[0] for shape in caches if shape and isinstance(shape[0], str)}
        dims = [dim for port in self.inputs for dim in port.shape or ()]
        varying = {dim for dim in dims if isinstance(dim, str)} - sequences
        if len(varying) == 1 and None not in dims:
            (tokens,) = varying
            for count in _TOKENS:
                yield {**dict.fromkeys(sequences, 1), tokens: count}


def _arrange(program: Program) -> CallLayout:
    """The layout of calls of all programs that are recorded with this one."""
    return CallLayout(program, walks=True)


class CpuRunner(Runner):
    """One request: arenas, outputs and counters.

    Attributes:
        graph: Runs the model's graph.
    """

    def __init__(self, compiled: CpuModel, team: Team) -> None:
        self._times: Times | None = [] if compiled.properties.PERF_COUNT else None
        most_bytes = compiled.specializer.target.most_kept_bytes
        self._cancellation = Cancellation()
        self.graph = GraphRunner(
            compiled.specializer,
            team,
            self._times,
            most_bytes,
            self._cancellation,
            compiled.in_place_outputs(),
        )
        self._threads = team.size
        self._ops = [(op.name, op.op_type) for op in compiled.model.ops]
        self._laid_out = bool(compiled.laid_out)
        self._ports_in = [compiled.laid_out.get(port) for port in compiled.inputs]
        self._ports_out = [(port.dtype, compiled.laid_out.get(port)) for port in compiled.outputs]

    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """Computes the outputs, in the given tensors where they are of this memory and fit."""
        self._cancellation.requested = False
        if self._times is not None:
            self._times.clear()
        use_threads(self._threads)
        if self._laid_out:
            arrays = [
                stored_as(tensor, layout)
                for tensor, layout in zip(inputs, self._ports_in, strict=True)
            ]
        else:
            arrays = [tensor.numpy() for tensor in inputs]
        targets = None if outputs is None else [_target(tensor) for tensor in outputs]
        try:
            # Where all are None, as HETERO's are where sizes vary, results stay where they were.
            wanted = targets if targets and any(x is not None for x in targets) else None
            results = self.graph.run(arrays, wanted)
        except PartitaError:
            raise
        except Exception as error:
            raise failure(error) from error
        made = [
            HostTensor.of(array)
            if layout is None
            else LaidOutTensor(array, dtype or array.dtype, layout)
            for array, (dtype, layout) in zip(results, self._ports_out, strict=True)
        ]
        if outputs is None or wanted is None:
            return made
        return [
            given if given is not None and array is target else tensor
            for tensor, array, given, target in zip(made, results, outputs, wanted, strict=True)
        ]

    def bind(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        scratch: Array | None = None,
    ) -> BoundCall | None:
        """The calls of a run on these tensors, if a run is nothing more."""
        arrays = [
            stored_as(tensor, layout) for tensor, layout in zip(inputs, self._ports_in, strict=True)
        ]
        targets = [array for tensor in outputs if (array := _target(tensor)) is not None]
        if len(targets) != len(outputs):
            return None
        bound = self.graph.bind(arrays, targets, scratch)
        segments = None if bound is None else bound.segments()
        if bound is None or not segments:
            return None

        def rebind(inputs: Sequence[Tensor]) -> bool:
            ports = zip(inputs, self._ports_in, strict=True)
            return bound.rebind([stored_as(tensor, layout) for tensor, layout in ports])

        call = CpuBoundCall(segments, self._threads, rebind)
        values = [arrays[index] for index in self.graph.value_inputs]
        return ValueBoundCall(call, values, self, inputs, outputs) if values else call

    def leave_results(self) -> bool:
        """Leaves the outputs of the last run to who has them."""
        self.graph.leave_results()
        return True

    def cancel(self) -> None:
        """Ends a run before the next iteration of a Loop or Scan; steps between are short."""
        self._cancellation.requested = True

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """One record per operation of the model, in its order, then the changes of layout."""
        if self._times is None:
            return ()
        ops = [*self._ops]
        known = {name for name, _ in ops}
        real: dict[str, int] = {}
        cpu: dict[str, int] = {}
        kinds: dict[str, str] = {}
        covers: dict[str, dict[str, None]] = {}
        for op, real_ns, cpu_ns in self._times:
            name = next((n for n in (op.name, *op.origins) if n in known), "")
            if op.op_type in REORDERS and op.exec_type != "view":
                name = f"permute {op.name}"
                if name not in known:
                    known.add(name)
                    ops.append((name, "Permute"))
            real[name] = real.get(name, 0) + real_ns
            cpu[name] = cpu.get(name, 0) + cpu_ns
            others = (n for n in op.origins if n in known and n != name)
            covers.setdefault(name, {}).update(dict.fromkeys(others))
            own = op.name == name and op.exec_type != "view"
            if op.exec_type != "constant" and (own or kinds.get(name, "view") == "view"):
                kinds[name] = op.exec_type
        return [
            ProfilingInfo(
                node_name=name,
                node_type=kind,
                exec_type=kinds[name],
                status=Status.EXECUTED,
                real_time_us=real[name] / 1e3,
                cpu_time_us=cpu[name] / 1e3,
                covers=tuple(covers[name]),
            )
            if name in kinds
            else ProfilingInfo(name, kind, status=Status.OPTIMIZED_OUT)
            for name, kind in ops
        ]

    def explain_execution(self) -> Execution:
        """The kernels of the last run, in order."""
        return Execution(self.graph.explain())

    def close(self) -> None:
        """Frees arenas and outputs."""
        self.graph.close()


def _target(tensor: Tensor | None) -> Array | None:
    """The memory of an output tensor, if steps can write to it."""
    if tensor is not None and isinstance(tensor, (HostTensor, LaidOutTensor)):
        array = tensor.stored()
        return array if array.flags.carray else None
    return None


def run_graph(
    graph: Graph, feeds: Mapping[str, Array] | Sequence[Array], threads: int = 1
) -> list[Array]:
    """Computes a lowered graph once; for tests of single operators.

    Args:
        graph: The graph, as :func:`partita.lowering.lower_proto` makes it.
        feeds: Inputs by name or in order.
        threads: Threads that large steps are shared among.
    """
    if isinstance(feeds, Mapping):
        feeds = [np.asarray(feeds[value.name]) for value in graph.inputs]
    runner = GraphRunner(Specializer(graph, Target(emitter_for)), Team(threads))
    return [array.copy() for array in runner.run(feeds)]
