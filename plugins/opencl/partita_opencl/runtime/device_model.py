"""Compiled models of the OPENCL devices."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from partita import DeviceModel, Model, Port, Runner, Tensor
from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.errors import CompileError, DeviceMemoryError
from partita.lowering import (
    Array,
    Graph,
    Node,
    Operand,
    Prepacked,
    Program,
    Specializer,
    Step,
    Target,
    fuse,
    fuse_for_shapes,
    lower,
    made_ahead,
)
from partita.lowering.fusion.attention import fuse_attention
from partita.lowering.fusion.mixture import compute_both_branches
from partita.lowering.fusion.rewriting import Rewriter
from partita.lowering.fusion.stored_weights import fold_and_fuse
from partita.lowering.kernel_table import in_place_outputs
from partita.lowering.nhwc.conversion import Shapes
from partita.lowering.program import Spec
from partita.lowering.recently_used import RecentlyUsed
from partita.system.threads import joint_work
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.tensors.layout import MemoryLayout
from partita_opencl.device.device import Device, find_device
from partita_opencl.device.device_tensor import device_zeros
from partita_opencl.device.host_buffers import copied_array
from partita_opencl.drivers.program_cache import ProgramKey
from partita_opencl.emitters.operator_table import TABLE, emitter_for, family_of
from partita_opencl.launches.steps import Chain, Launch
from partita_opencl.launches.work_sizes import Form, Tuning
from partita_opencl.passes.attention_places import attend_in_place
from partita_opencl.passes.decoder_fusion import fuse_decoder
from partita_opencl.passes.half_precision import (
    HALF,
    compute_in_half,
    half_ports,
    reads_stored,
    take_stored,
)
from partita_opencl.passes.nhwc import channels_last
from partita_opencl.passes.stream_fusion import Merger
from partita_opencl.passes.wide_quotients import compute_quotients_wide
from partita_opencl.properties import OpenClProperties, Precision
from partita_opencl.query import expanded_refusals, takes
from partita_opencl.runtime import block_run, elementwise_fusion, persistent_kernel
from partita_opencl.runtime.execution_plan import Constants, Plan, Slots
from partita_opencl.runtime.host_folding import fold
from partita_opencl.runtime.runner import OpenClRunner
from partita_opencl.trials.device_trials import DeviceTrials
from partita_opencl.trials.failed_operations import keep_failures
from partita_opencl.trials.kernel_trial import Fitness, fitness, mode_of, objections
from partita_opencl.trials.matrix_unit_checks import Units
from partita_opencl.trials.needed_parts import parts_for, parts_launched
from partita_opencl.trials.rehearsal import LaunchError

_log = logging.getLogger(__name__)


_REQUESTS_AT_ONCE = 6
"""ResNet-50 in float32 on an H100: three in flight are 2,060 a second, six 2,660
(``gpu_pipeline.py --jobs 3``); small kernels of one request leave most of a card idle."""


class OpenClModel(DeviceModel):
    """A model lowered, folded and fused; each set of shapes gets a plan when it occurs.

    Raises:
        UnsupportedOpError: An operation is not taken.
        CompileError: The model is too large for the device.
        DeviceUnavailableError: The device cannot be opened.
    """

    def __init__(self, model: Model, properties: OpenClProperties, device: str) -> None:
        super().__init__(model, properties, device)
        self.target: Device = find_device(properties.DEVICE_ID)
        self._least_form = Form.USUAL
        self._most_kept_bytes = properties.SHAPE_CACHE_BYTES
        self._recommended_requests = properties.recommended_requests(
            1 if self.target.limits.is_cpu else _REQUESTS_AT_ONCE
        )
        self.fuse_chains = properties.FUSE_ELEMENTWISE
        with joint_work.workers(1) as pool:  # trials of units beside those of families
            graph = lower(model)
            own_halves = any(v.dtype == HALF for n in graph.nodes for v in n.outputs if v)
            precision = properties.INFERENCE_PRECISION_HINT
            half = precision in (Precision.F16, Precision.BF16)
            triples = precision is Precision.BF16X3
            tuning = Tuning.of(self.target.limits, properties.TILING, half=half)
            bfloat = precision is Precision.BF16 and not own_halves
            identity = self.target.identity
            self.tuning = replace(tuning, device=identity, bfloat=bfloat, triples=triples)
            self.objection = ""
            halves = half or own_halves
            self._mode = mode_of(self.target, properties, graph)
            trials = DeviceTrials(self.target, properties)
            bfloats = precision in (Precision.BF16, Precision.BF16X3)
            needed = parts_for(graph, self.target.limits, bfloat=bfloats)
            tried = (
                pool.submit(_tried, self.tuning, self.target, needed) if halves or triples else None
            )
            reasons = expanded_refusals(graph, trials)
        if tried is not None:
            self.tuning, self.objection = tried.result()
        self._tried_programs: set[ProgramKey] = set()
        if not halves or properties.PERF_COUNT:
            # Of a kernel that computes many operations, no clock shows how long each takes.
            self.tuning = replace(self.tuning, resident_groups=0)
        self._merger = Merger() if half and self.tuning.matrix_units else None
        answer = QueryResult.of(device, {op.name: reasons.get(op.name) for op in model.ops})
        answer.require_all(model)
        self._refines = halves and self.tuning.matrix_units
        toolkit = self._toolkit()
        fold_and_fuse(
            graph,
            toolkit,
            lambda: fuse(graph, accepts=self._accepts),
            lambda array: reads_stored(self.tuning, array),
        )
        compute_both_branches(graph)
        if half:
            take_stored(graph, self.tuning)
        fuse_decoder(graph, self._accepts, halves=half and self.tuning.matrix_units)
        self._half = half
        self._graph = graph
        self._in_place = in_place_outputs(graph, self.inputs, self.outputs, TABLE.in_place)
        self.laid_out: Mapping[Port, MemoryLayout] = {}
        self.specializer = self._specializer(toolkit)
        self._weights = Constants(self.target)
        self.plans = self._no_plans()
        self._lock = InterruptSafeLock()
        self._prepare()

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """Several where host and device work side by side, and kernels of several requests do."""
        return self._recommended_requests

    @property
    def shape_cache_bytes(self) -> int:
        """What each request may keep for shapes that it has seen."""
        return self._most_kept_bytes

    def in_place_outputs(self) -> Mapping[int, int]:
        """Caches that an operator writes new rows to."""
        return dict(self._in_place)

    def allocate(self, port: Port, shape: tuple[int, ...]) -> Tensor:
        """Memory of the device; of the host where the device works in that."""
        if self.target.shares_host or port.dtype is None:
            return super().allocate(port, shape)
        return device_zeros(shape, port.dtype, self.target, self.device.partition(".")[0])

    def host_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Page-locked memory, where the device does not work in the host's."""
        return copied_array(self.target, shape, dtype)

    def layouts(self) -> Mapping[Port, Sequence[MemoryLayout]]:
        """Halves, where the model is computed in them."""
        return (
            half_ports(self._graph, self.inputs, self.outputs, self._in_place)
            if self._half and not self.tuning.bfloat
            else {}
        )

    def with_layouts(self, layouts: Mapping[Port, MemoryLayout]) -> OpenClModel:
        """The same with halves at some ports; weights are shared."""
        other = copy.copy(self)
        DeviceModel.__init__(other, self.model, self.properties, self.device)
        other.laid_out = dict(layouts)
        other.specializer = other._specializer(self.specializer.target)
        other.plans = other._no_plans()
        other._lock = InterruptSafeLock()
        other._prepare()
        return other

    def _toolkit(self) -> Target:
        """How the graph becomes launches on this device."""
        self.tuning = replace(self.tuning, form=self._fitness("elementwise").form)
        return Target(
            emitter_for(self.tuning, self.device, self._fitness),
            allow_split=False,
            fold=fold,
            refine=self._refine if self._refines else None,
            most_kept_bytes=self._most_kept_bytes,
            arrange=Slots.of,
            complete=self._launches,
            arena=False,
            prepacked=Prepacked(releasable=True),
        )

    def _launches(self, steps: Sequence[Step], outputs: Collection[Operand]) -> list[Step]:
        """What is launched: chains fused, products of runs joined.

        Raises:
            CompileError: There are element-wise steps, and the device does not compute such.
        """
        self._require_chains(steps)
        tuning, kept = self.tuning, set(outputs)
        if self.fuse_chains:
            steps = elementwise_fusion.fuse(steps, kept)
        launches = [elementwise_fusion.launch(step, tuning) for step in steps]
        if tuning.resident_groups:
            launches = persistent_kernel.join(launches, kept, tuning)
            launches = block_run.join(launches, tuning)
        return [_final(step) for step in launches]

    def _specializer(self, toolkit: Target) -> Specializer:
        """Programs of the graph in the precision that was asked for."""
        graph = self._graph
        if self._half:
            graph = graph.copy()
            compute_in_half(
                graph,
                [port.index for port in self.laid_out if port.is_input],
                [port.index for port in self.laid_out if not port.is_input],
                self._in_place,
            )
            if not self.tuning.bfloat:  # whose range is that of float32
                compute_quotients_wide(graph)
        return Specializer(graph, toolkit)

    @property
    def graph(self) -> Graph:
        """What the model was lowered to, with the casts of agreed layouts."""
        return self.specializer.graph

    def create_runner(self) -> Runner:
        """A runner with a queue and kernels of its own."""
        return OpenClRunner(self)

    def plan(self, specs: Sequence[Spec], value: Callable[[int], Array]) -> Plan:
        """The plan for some inputs; made once, kept for the shapes used last.

        Where the driver fails at a launch, kernels are written in other ways.

        Args:
            specs: Shapes and element types of the inputs.
            value: Gives the elements of an input that shapes depend on.

        Raises:
            UnsupportedOpError: The driver fails at operations of the model in all ways.
            LaunchError: It fails at what is no operation of the model, as a cast.
            CompileError: Matrix units fail that nothing in the graph told of before fusion.
        """
        failing: Mapping[str, str] = {}
        while True:
            specializer = self.specializer
            program = specializer.program(specs, value)
            try:
                return self._plan(program)
            except LaunchError as error:
                # What one way fails at and another does not, has a way.
                both = error.reasons.keys() & failing.keys()
                failing = {name: error.reasons[name] for name in both or error.reasons}
                with self._lock:
                    if self.specializer is specializer and not self._step_back(failing):
                        self._refuse(error, failing)
                        raise
            except _UnitsError as error:
                if Units.MATRIX in error.wrong:  # which fusion has counted on
                    raise CompileError(
                        f"Device '{self.device}' computes wrongly what fusion made of model "
                        f"'{self.model.name}': {error}. Compile it again, for other kernels."
                    ) from error
                with self._lock:
                    if self.specializer is specializer:
                        self.tuning, why = _without(self.tuning, error.wrong)
                        self.objection = self.objection or why
                        self._start_again()

    def _plan(self, program: Program) -> Plan:
        with self._lock:
            # A plan holds its program, so that no other program can have the same id.
            found = self.plans.get(id(program))
            if found is None:
                further = self._trial_of_units(program)
                found = Plan(program, self.target, self._weights, further)
                self.plans.add(id(program), found)
            return found

    def _trial_of_units(self, program: Program) -> Callable[[], None] | None:
        """What has those units tried that a program's launches use, if some are not known."""
        programs = {Plan.launch(step).program for step in program.steps} - self._tried_programs
        used = [units for units, is_used in _used_units(self.tuning).items() if is_used]
        if not programs or not used:
            return None
        needed = parts_launched(programs, self.target.limits)
        wanted = {units: needed[units] for units in used if units in needed}
        if not wanted:
            self._tried_programs |= programs
            return None

        def trial() -> None:
            reasons = objections(self.target, wanted)
            wrong = {units: reasons[units] for units in wanted if reasons[units]}
            if wrong:
                raise _UnitsError(wrong)
            self._tried_programs |= programs

        return trial

    def _no_plans(self) -> RecentlyUsed[int, Plan]:
        """What keeps plans of shapes seen before, by their programs."""
        return RecentlyUsed(self._most_kept_bytes, lambda plan: plan.kept_bytes)

    def _step_back(self, failing: Mapping[str, str]) -> bool:
        """Lets kernels be written in another way from now on; whether there is one."""
        forms = list(Form)
        later = forms[forms.index(self._least_form) + 1 :]
        if self.fuse_chains:
            self.fuse_chains, instead = False, "a kernel per operation"
        elif later:
            self._least_form = instead = later[0]
        else:
            return False
        names = ", ".join(f"'{name}'" for name in list(failing)[:5])
        text = "Model '%s' is computed with %s, since the driver fails at %s as usual: %s"
        _log.warning(text, self.model.name, instead, names, next(iter(failing.values())))
        self._start_again()
        return True

    def _refuse(self, error: LaunchError, failing: Mapping[str, str]) -> None:
        """Raises if there are operations of the model among those that the driver fails at.

        The next query of a model knows them.
        """
        lasting = [one for one in error.failures if one.lasts and one.names <= failing.keys()]
        keep_failures(self.target, self._mode, lower(self.model, for_query=True), lasting)
        reasons = {name: Reason(ReasonCode.DRIVER_FAULT, why) for name, why in failing.items()}
        answers = {op.name: reasons.get(op.name) for op in self.model.ops}
        QueryResult.of(self.device, answers).require_all(self.model)

    def _fitness(self, family: str) -> Fitness:
        """What the device can do with a family of kernels."""
        found = fitness(self.target, self._mode, [family])[family]
        forms = list(Form)
        return replace(found, form=max(found.form, self._least_form, key=forms.index))

    def _require_chains(self, steps: Sequence[Step]) -> None:
        """Raises if there are element-wise steps and the device does not compute such."""
        reason = self._fitness("elementwise").reason
        if reason and any(isinstance(step.fn, Chain) for step in steps):
            raise CompileError(
                f"Model '{self.model.name}' has element-wise steps, which device '{self.device}' "
                f"does not compute: {reason}. Run it on another device."
            )

    def stop_waiting(self) -> None:
        """From now on, no kernel's groups wait for one another."""
        _log.warning(
            "Device '%s' did not hold all groups of a kernel at a time; model '%s' is computed "
            "by a kernel per operation from now on.",
            self.device,
            self.model.name,
        )
        with self._lock:
            self.tuning = replace(self.tuning, resident_groups=0)
            self._start_again()

    def _start_again(self) -> None:
        """Lets other kernels be made from now on, of weights in other forms."""
        self.specializer = self._specializer(self._toolkit())
        self._weights = Constants(self.target)
        self.plans.clear()

    def _refine(self, graph: Graph, shapes: Shapes) -> None:
        """What is done to the graph when its shapes are known."""
        fuse_for_shapes(graph, shapes, self._accepts)
        if self._merger is not None:
            rewriter = Rewriter(graph, self._accepts, shapes)
            fuse_attention(rewriter)  # whose factor may have been made of shapes
            rewriter.finish()
            self._merger.run(graph, shapes, self._accepts)
            attend_in_place(graph, shapes)
        channels_last(graph, shapes, narrowed=self.tuning.half)

    def _accepts(self, node: Node) -> bool:
        """Whether there is a kernel for a node that fusion is about to make."""
        if node.kind == "partita::Attention" and self._merger is None:
            return False
        entry = TABLE.find(node.domain, node.op_type, node.version)
        return (
            takes(node) and entry is not None and not self._fitness(family_of(node, entry)).reason
        )

    def _prepare(self) -> None:
        """Plans and builds now, if the shapes are known now."""
        try:
            made_ahead(self.inputs, self.laid_out, self.plan)
        except DeviceMemoryError as error:
            raise CompileError(f"Model '{self.model.name}' is too large: {error}") from error


def _final(step: Step) -> Step:
    """A launch without what passes look for: made for other sizes, it would be made in vain."""
    launch = step.fn
    if not isinstance(launch, Launch) or launch.product is None:
        return step
    return replace(step, fn=replace(launch, product=None))


class _UnitsError(Exception):
    """Units compute wrongly that a plan's launches use.

    Attributes:
        wrong: By the units what is wrong with them.
    """

    def __init__(self, wrong: Mapping[Units, str]) -> None:
        super().__init__("; ".join(wrong.values()))
        self.wrong = wrong


def _tried(tuning: Tuning, device: Device, parts: Sequence[int]) -> tuple[Tuning, str]:
    """The tuning without those units that do not compute rightly, and why they do not.

    Matrix units are tried now, as fusion depends on them; of the others it is what is known so far,
    as each launch tries those that it uses.

    Args:
        tuning: With all that the device has.
        device: The device.
        parts: Of the trial of matrix units those that are needed.
    """
    used = [units for units, is_used in _used_units(tuning).items() if is_used]
    wanted = {units: parts if units is Units.MATRIX else () for units in used}
    return _without(tuning, objections(device, wanted))


def _used_units(tuning: Tuning) -> dict[Units, bool]:
    """Which units launches may use."""
    return {
        Units.MATRIX: tuning.matrix_units,
        Units.WARPGROUP: tuning.matrix_units and tuning.warpgroups,
        Units.COPY_ENGINE: tuning.matrix_units and tuning.warpgroups and tuning.copy_engine,
        Units.RESIDENT: tuning.matrix_units and tuning.resident_groups > 0,
    }


def _without(tuning: Tuning, wrong: Mapping[Units, str]) -> tuple[Tuning, str]:
    """The tuning without units with which something is wrong, and what that is."""
    good = {units for units, used in _used_units(tuning).items() if used and not wrong.get(units)}
    matrix = Units.MATRIX in good
    warpgroups = matrix and Units.WARPGROUP in good
    tuning = replace(
        tuning,
        matrix_units=matrix,
        warpgroups=warpgroups,
        copy_engine=warpgroups and Units.COPY_ENGINE in good,
        resident_groups=tuning.resident_groups if matrix and Units.RESIDENT in good else 0,
    )
    kinds = (Units.MATRIX, Units.WARPGROUP, Units.COPY_ENGINE)
    return tuning, next((wrong[units] for units in kinds if wrong.get(units)), "")
