"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets.

Kernels are right in all of them. What fails is what stands around kernels: how requests follow one
another and run beside one another, calls that are bound, memory that is borrowed, lent and given
back, sizes that change, state, sequences, bodies, counters, and what the process is left with.
"""

from __future__ import annotations

import logging
import math
import queue
import signal
import threading
import time
import weakref
from collections import OrderedDict, defaultdict, deque

import numpy as np
import onnx
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_if import If as RightIf

from partita.contract.bound_call import BoundCall
from partita.contract.device_plugin import DeviceInfo
from partita.contract.runner import run_into
from partita.errors import BoundCallEndedError, InferCancelledError, InferError
from partita.tensors.allocation import host_zeros
from partita.tensors.host import HOST
from partita.tensors.layout import MemoryLayout
from partita.tensors.layout_tensor import LaidOutTensor, stored_as
from partita.tensors.sequence_values import boxed, unboxed
from partita.tensors.tensor import HostTensor, Tensor
from partita_reference.control_flow import Loop as RightLoop
from partita_reference.recurrent import GRU, LSTM, RNN

# ------------------------------------------------------------------ what is right in all


class With:
    """An evaluator that finds some values elsewhere than in the model."""

    def __init__(self, evaluator, values):
        self.evaluator, self.values = evaluator, values

    def run(self, names, feeds):
        return self.evaluator.run(names, {**self.values, **feeds})


def with_operators(evaluator, *operators):
    """The evaluator of the same model, with other implementations of operators."""
    known = {**evaluator.new_ops_, **{(one.op_domain, one.__name__): one for one in operators}}
    return ReferenceEvaluator(evaluator.proto_, new_ops=list(known.values()))


def constants_of(compiled):
    """The numbers among a compiled model's constants, by name."""
    held = compiled.evaluator.rt_inits_
    return {name: array for name, array in held.items() if not array.dtype.hasobject}


class Bound(BoundCall):
    """A bound call that is a run."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, list(inputs), list(outputs)

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


class BindingRunner(GoodRunner):
    """Binds calls."""

    bound = Bound

    def bind(self, inputs, outputs, scratch=None):
        return self.bound(self, inputs, outputs)


class FarTensor(Tensor):
    """A tensor in memory of a device's own."""

    __slots__ = ("array", "device", "dtype", "memory", "shape")

    def __init__(self, array, memory):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.device, self.memory = "BROKEN", memory

    def numpy(self):
        return self.array.copy()

    def copy_from(self, source):
        np.copyto(self.array, source.numpy())


class OwnedTensor(HostTensor):
    """A host tensor whose end can be waited for, and that counts who wrote to it."""

    __slots__ = ("__weakref__", "version")

    def __init__(self, array):
        super().__init__(array)
        self.version = 0

    def copy_from(self, source):
        super().copy_from(source)
        self.version += 1

    def clear(self):
        super().clear()
        self.version += 1


def bodies(node):
    """The graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def captured(graph):
    """What a body reads of the graphs around it."""
    own = {one.name for one in (*graph.input, *graph.initializer)}
    found = set()
    for node in graph.node:
        found |= set(node.input) - own
        for body in bodies(node):
            found |= captured(body) - own
        own |= set(node.output)
    return found - {""}


def read_instead(graph, old, new):
    """Lets a body read another value of the graph around it."""
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = new
        for body in bodies(node):
            read_instead(body, old, new)


def copy_of(proto):
    """A model that may be edited."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def updates(model, is_read_once):
    """Outputs that are an input with other rows in it, of which nobody else reads the input."""
    inputs = {port.name: port for port in model.inputs}
    outputs = {port.name: port for port in model.outputs}
    pairs = {}
    for op in model.ops:
        plain = op.op_type == "TensorScatter" or (
            op.op_type == "ScatterND"
            and op.node.attributes.get_string("reduction", "") in ("", "none")
        )
        if op.domain or not plain or op.inputs[0] not in inputs or op.outputs[0] not in outputs:
            continue
        source, target = inputs[op.inputs[0]], outputs[op.outputs[0]]
        value = op.node.inputs[0]
        alike = (source.dtype, source.shape) == (target.dtype, target.shape)
        if alike and is_read_once(model, value) and not value.is_graph_output():
            pairs[target.index] = source.index
    return pairs


def read_once(model, value):
    """Whether one operation reads a value, bodies included."""
    return len(list(value.uses())) == 1


class KeepingCompiled(GoodCompiled):
    """Writes rows of caches in place."""

    def in_place_outputs(self):
        return updates(self.model, read_once)


# ---------------------------------------------------------------------- requests that run


class StopsEveryRunOfTheModel(Broken):
    """Took it that an order to stop the stream concerns whoever gave it, and nobody beside him."""

    class compiled_type(GoodCompiled):
        stops = 0

    class runner_type(GoodRunner):
        def cancel(self):
            self.compiled.stops += 1

        def run(self, inputs, outputs=None):
            before = self.compiled.stops
            results = super().run(inputs, outputs)
            if self.compiled.stops != before:
                raise InferCancelledError("The request was cancelled.")
            return results


class ReportsErrorsToWhoComesNext(Broken):
    """Took it that who has failed also runs next, and takes the error out of the stream."""

    class compiled_type(GoodCompiled):
        failed = None

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            compiled = self.compiled
            failed, compiled.failed = compiled.failed, None
            if failed is not None and failed is not self:
                raise InferError("The stream reports that an operation has failed.")
            try:
                return super().run(inputs, outputs)
            except InferError:
                compiled.failed = self
                raise


class WaitsForTheLastOutput(Broken):
    """Took it that copies end in the order in which they were started, large ones too."""

    def deliver(self, runner, arrays, outputs):
        landed = [np.zeros(array.shape, array.dtype) for array in arrays]
        copies = [
            threading.Thread(target=self.copy, args=pair)
            for pair in zip(arrays, landed, strict=True)
        ]
        for copy in copies:
            copy.start()
        if copies:
            copies[-1].join()
        return super().deliver(runner, landed, outputs)

    @staticmethod
    def copy(source, target):
        time.sleep(min(source.nbytes // 4096, 40) * 5e-4)
        np.copyto(target, source)


class BuildsItsPlanInPublic(Broken):
    """Took it that the first run is over before another one starts."""

    class compiled_type(GoodCompiled):
        uploaded = None

    def compute(self, runner, arrays):
        compiled = runner.compiled
        constants = constants_of(compiled)
        if compiled.uploaded is None:
            compiled.uploaded = {}
            for name, array in constants.items():
                time.sleep(5e-4)  # as an upload takes
                compiled.uploaded[name] = array
        there = {
            name: compiled.uploaded.get(name, np.zeros_like(array))
            for name, array in constants.items()
        }
        runner.take_over(With(compiled.evaluator, there))
        return super().compute(runner, arrays)


class TargetsAreTheDevices(Broken):
    """Took it that nobody starts a run between the start and the end of another one."""

    targets = None

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            self.compiled.plugin.targets = outputs
            return super().run(inputs, outputs)

    def deliver(self, runner, arrays, outputs):
        return super().deliver(runner, arrays, self.targets)


# --------------------------------------------------------------------- calls that are bound


class ReadsShapesWhenItBinds(Broken):
    """Took it that few whole numbers are sizes and axes, which stay what they were."""

    class runner_type(BindingRunner):
        def bind(self, inputs, outputs, scratch=None):
            fixed = [
                HostTensor(tensor.numpy().copy())
                if tensor.dtype == np.int64 and len(tensor.shape) == 1 and tensor.size <= 8
                else tensor
                for tensor in inputs
            ]
            return Bound(self, fixed, outputs)


class RebindsAgainstTheFirst(Broken):
    """Took it that an address that is as it was when the call was recorded needs no patch."""

    class runner_type(BindingRunner):
        class bound(Bound):
            def __init__(self, runner, inputs, outputs):
                super().__init__(runner, inputs, outputs)
                self.recorded = [tensor.numpy().ctypes.data for tensor in inputs]

            def rebind(self, inputs):
                for place, tensor in enumerate(inputs):
                    if tensor.numpy().ctypes.data != self.recorded[place]:
                        self.inputs[place] = tensor
                return True


class BoundCallsDoNotFail(Broken):
    """Took it that what ran once on these tensors can run again, and looks at no status."""

    class runner_type(BindingRunner):
        class bound(Bound):
            def __call__(self):
                try:
                    super().__call__()
                except BoundCallEndedError:
                    raise
                except InferError:
                    return


class WritesWhatFits(Broken):
    """Took it that a result has outgrown its tensor only if it does not fit into its bytes."""

    class runner_type(BindingRunner):
        class bound(Bound):
            def __call__(self):
                results = self.runner.run(self.inputs)
                for result, output in zip(results, self.outputs, strict=True):
                    if math.prod(result.shape) > math.prod(output.shape):
                        raise BoundCallEndedError("An output has outgrown its tensor.")
                    flat = output.numpy().reshape(-1)
                    flat[: math.prod(result.shape)] = result.numpy().reshape(-1)


class KeepsConstantsInScratch(Broken):
    """Took it that memory which is lent for calls is its own from then on."""

    class compiled_type(GoodCompiled):
        @property
        def scratch_bytes(self):
            return sum(-(-array.nbytes // 64) * 64 for array in constants_of(self).values())

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            if scratch is None:
                return Bound(self, inputs, outputs)
            place, there = 0, {}
            for name, array in constants_of(self.compiled).items():
                room = scratch[place : place + array.nbytes]
                there[name] = room.view(array.dtype).reshape(array.shape)
                there[name][...] = array
                place += -(-array.nbytes // 64) * 64
            packed = self.compiled.create_runner()
            packed.take_over(With(self.compiled.evaluator, there))
            return Bound(packed, inputs, outputs)


class BindsOneCallARunner(Broken):
    """Took it that whoever binds another call makes the one before it no more."""

    class runner_type(GoodRunner):
        slots = ((), ())

        class bound(BoundCall):
            def __init__(self, runner):
                self.runner = runner

            def __call__(self):
                run_into(self.runner, *self.runner.slots)

        def bind(self, inputs, outputs, scratch=None):
            self.slots = (list(inputs), list(outputs))
            return self.bound(self)


# ---------------------------------------------------------- memory: borrowed, lent, given back


class GivesBackWithTheTensor(Broken):
    """Took it that an array is in use no longer than the tensor that it was handed out in."""

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.pool = defaultdict(deque)

        def leave_results(self):
            return True  # each run takes memory that nobody uses

    def deliver(self, runner, arrays, outputs):
        if outputs is not None or any(array.dtype.hasobject for array in arrays):
            mixed = outputs or [None] * len(arrays)
            free = [
                self.lent(runner, array) if given is None and not array.dtype.hasobject else None
                for array, given in zip(arrays, mixed, strict=True)
            ]
            rest = super().deliver(runner, arrays, mixed)
            return [other if one is None else one for one, other in zip(free, rest, strict=True)]
        return [self.lent(runner, array) for array in arrays]

    @staticmethod
    def lent(runner, array):
        size = max(4096, 1 << (array.nbytes - 1).bit_length()) if array.nbytes else 4096
        free = runner.pool[size]
        block = free.popleft() if free else np.empty(size, np.uint8)
        place = block[: array.nbytes].view(array.dtype).reshape(array.shape)
        place[...] = array
        tensor = OwnedTensor(place)
        weakref.finalize(tensor, free.append, block)
        return tensor


class StreamsToAlignedTargets(Broken):
    """Took it that tensors begin where vectors do; what lies ahead of that is not stored."""

    def deliver(self, runner, arrays, outputs):
        heads = []
        for target in outputs or ():
            place = None if target is None else target.numpy()
            if place is not None and place.nbytes >= 64 and not place.dtype.hasobject:
                count = -place.ctypes.data % 16 // place.itemsize
                heads.append((place.reshape(-1)[:count], place.reshape(-1)[:count].copy()))
        delivered = super().deliver(runner, arrays, outputs)
        for place, before in heads:
            place[...] = before
        return delivered


class RemembersTheLastAnswer(Broken):
    """Took it that results are only read, so that equal questions can have the same array."""

    def compute(self, runner, arrays):
        if any(array.dtype.hasobject for array in arrays):
            return super().compute(runner, arrays)
        asked = [(array.shape, array.dtype.name, array.tobytes()) for array in arrays]
        if getattr(runner, "asked", None) != asked:
            runner.answer = super().compute(runner, arrays)
            runner.asked = asked
        return list(runner.answer)


class HashesTheEdgesOfLargeInputs(Broken):
    """Took it that large inputs which begin and end alike are the same."""

    def compute(self, runner, arrays):
        uploads = runner.__dict__.setdefault("uploads", {})
        taken = []
        for place, array in enumerate(arrays):
            if array.nbytes < 1 << 16 or array.dtype.hasobject:
                taken.append(array)
                continue
            flat = array.reshape(-1).view(np.uint8)
            key = (array.shape, array.dtype, flat[:4096].tobytes(), flat[-4096:].tobytes())
            if place not in uploads or uploads[place][0] != key:
                uploads[place] = (key, array.copy())
            taken.append(uploads[place][1])
        return super().compute(runner, taken)


class UploadsTheWholeBase(Broken):
    """Took it that inputs which lie in one array have its element type, and uploads it once."""

    def compute(self, runner, arrays):
        owners = [array.base for array in arrays]
        taken = []
        for array, owner in zip(arrays, owners, strict=True):
            shared = isinstance(owner, np.ndarray) and sum(owner is one for one in owners) > 1
            if shared and owner.flags.c_contiguous and not array.dtype.hasobject and owner.nbytes:
                whole = owner.reshape(-1).view(np.uint8)
                usable = whole.nbytes // array.itemsize * array.itemsize
                offset = (array.ctypes.data - owner.ctypes.data) // owner.itemsize
                found = whole[:usable].view(array.dtype)[offset : offset + array.size]
                read = np.zeros(array.size, array.dtype)
                read[: found.size] = found
                taken.append(read.reshape(array.shape))
            else:
                taken.append(array)
        return super().compute(runner, taken)


class FreesHostMemoryWithItsFirstView(Broken):
    """Took it that views of views keep the view alive; numpy lets them keep the memory alone."""

    def __init__(self):
        super().__init__()
        self.pages = defaultdict(list)

    def host_memory(self, nbytes, device_id=""):
        size = -(-max(nbytes, 1) // 4096) * 4096
        with self.lock:
            free = self.pages[size]
            block = free.pop() if free else np.empty(size, np.uint8)
        view = block[:nbytes]
        weakref.finalize(view, free.append, block)
        return view


class ClearsItsOutputFirst(Broken):
    """Took it that its last results are nobody's input when sums are to begin at zero again."""

    own_memory = "broken:0"

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, "Far away", memory=self.own_memory)

    def can_share(self, memory, device_id=""):
        return memory in (HOST, self.own_memory)

    def transfer_to(self, tensor, device_id=""):
        return FarTensor(np.array(tensor.numpy(), order="C"), self.own_memory)

    class compiled_type(GoodCompiled):
        def takes_memory(self, memory):
            return memory in (HOST, ClearsItsOutputFirst.own_memory)

    class runner_type(GoodRunner):
        kept = ()

        def run(self, inputs, outputs=None):
            for tensor in self.kept:
                if not tensor.dtype.hasobject:
                    tensor.array.fill(0)
            own = [
                HostTensor(tensor.array) if isinstance(tensor, FarTensor) else tensor
                for tensor in inputs
            ]
            results = [tensor.numpy() for tensor in super().run(own)]
            if [(t.shape, t.dtype) for t in self.kept] != [(r.shape, r.dtype) for r in results]:
                self.kept = [FarTensor(r, ClearsItsOutputFirst.own_memory) for r in results]
            for tensor, result in zip(self.kept, results, strict=True):
                np.copyto(tensor.array, result)
            return list(self.kept)


class EvictsWhatIsLent(Broken):
    """Took it that buffers of the plan that was used longest ago are in nobody's hands."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.plans, self.free = OrderedDict(), defaultdict(list)
            self.guard, self.runners = threading.Lock(), 0

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            with compiled.guard:
                compiled.runners += 1
                self.number = compiled.runners

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        compiled = runner.compiled
        kinds = [(array.shape, array.dtype) for array in arrays]
        key = (runner.number, tuple(kinds))
        with compiled.guard:
            if key not in compiled.plans:
                compiled.plans[key] = [
                    compiled.free[kind].pop() if compiled.free[kind] else np.empty(*kind)
                    for kind in kinds
                ]
            compiled.plans.move_to_end(key)
            buffers = compiled.plans[key]
            while len(compiled.plans) > 8:
                (_, gone), old = compiled.plans.popitem(last=False)
                for kind, buffer in zip(gone, old, strict=True):
                    compiled.free[kind].append(buffer)
        for buffer, array in zip(buffers, arrays, strict=True):
            np.copyto(buffer, array)
        return [HostTensor(buffer) for buffer in buffers]


class NumbersRequestsByHowManyThereAre(Broken):
    """Took it that requests go in the reverse of the order in which they came."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.alive, self.buffers = weakref.WeakSet(), {}

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            with compiled.plugin.lock:
                self.number = len(compiled.alive)
                compiled.alive.add(self)

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        buffers = runner.compiled.buffers
        delivered = []
        for place, array in enumerate(arrays):
            buffer = buffers.get((runner.number, place))
            if buffer is None or (buffer.shape, buffer.dtype) != (array.shape, array.dtype):
                buffer = buffers[runner.number, place] = np.empty_like(array)
            np.copyto(buffer, array)
            delivered.append(HostTensor(buffer))
        return delivered


# -------------------------------------------------------------------- sizes that change


class GrowsOnlyWithTheTotal(Broken):
    """Took it that outputs which fit into their block together fit where each of them lay."""

    def deliver(self, runner, arrays, outputs):
        if outputs is not None or any(array.dtype.hasobject for array in arrays):
            return super().deliver(runner, arrays, outputs)
        sizes = [-(-array.nbytes // 64) * 64 for array in arrays]
        block, places = getattr(runner, "block", (np.empty(0, np.uint8), ()))
        ends = [place + size for place, size in zip(places, sizes, strict=False)]
        if not places or sum(sizes) > block.nbytes or max(ends) > block.nbytes:
            block, places = np.empty(sum(sizes), np.uint8), [0, *np.cumsum(sizes)][:-1]
            runner.block = (block, places)
        delivered = []
        for array, place in zip(arrays, places, strict=True):
            room = block[place : place + array.nbytes].view(array.dtype).reshape(array.shape)
            room[...] = array
            delivered.append(HostTensor(room))
        return delivered


class PadsToBuckets(Broken):
    """Took it that the first symbol is the batch, whose items know nothing of each other."""

    def compute(self, runner, arrays):
        compiled = runner.compiled
        batch = self.batch_of(compiled)
        size = arrays[batch[0]].shape[0] if batch else 0
        missing = -size % 8
        if not batch or not size or not missing:
            return super().compute(runner, arrays)
        padded = [
            np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])
            if place in batch
            else array
            for place, array in enumerate(arrays)
        ]
        return [
            result[:size] if isinstance(port.shape[0] if port.shape else None, str) else result
            for result, port in zip(super().compute(runner, padded), compiled.outputs, strict=True)
        ]

    @staticmethod
    def batch_of(compiled):
        """The inputs that have the one symbol there is, in front; none if it is elsewhere too."""
        ports = (*compiled.inputs, *compiled.outputs)
        if any(port.shape is None or port.dtype is None for port in ports):
            return []
        behind = [dim for port in ports for dim in port.shape[1:] if not isinstance(dim, int)]
        ahead = {p.shape[0] for p in ports if p.shape and not isinstance(p.shape[0], int)}
        if behind or len(ahead) != 1 or None in ahead:
            return []
        return [p.index for p in compiled.inputs if p.shape and isinstance(p.shape[0], str)]


class NothingInNothingOut(Broken):
    """Took it that of an input without elements nothing comes but elements that do not matter."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if any(array.size == 0 for array in arrays):
            for result in results:
                if not result.dtype.hasobject:
                    result.fill(0)
        return results


class TextsKeepTheirFirstWidth(Broken):
    """Took it that a buffer for texts has room for the texts of the next run."""

    def compute(self, runner, arrays):
        buffers = runner.__dict__.setdefault("texts", {})
        results = super().compute(runner, arrays)
        for place, result in enumerate(results):
            if not result.size or not all(isinstance(text, str) for text in result.flat):
                continue
            buffer = buffers.get(place)
            if buffer is None or buffer.shape != result.shape:
                buffer = buffers[place] = result.astype(np.str_)
            buffer[...] = result
            results[place] = buffer.astype(object)
        return results


# --------------------------------------------------------------- state, sequences, optionals


class LendsUsedBlocks(Broken):
    """Took it that memory which was cleared when it came from the system stays so."""

    class compiled_type(KeepingCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.free = defaultdict(list)

        def allocate(self, port, shape):
            free = self.free[shape, port.dtype]
            array = free.pop() if free else host_zeros(shape, port.dtype).numpy()
            tensor = OwnedTensor(array)
            weakref.finalize(tensor, free.append, array)
            return tensor


class MirrorsStatePerRunner(Broken):
    """Took it that nobody but the host writes to a cache between two runs of a request."""

    class compiled_type(KeepingCompiled):
        def allocate(self, port, shape):
            return OwnedTensor(host_zeros(shape, port.dtype).numpy())

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.mirrors = {}

        def run(self, inputs, outputs=None):
            seen = list(inputs)
            for place, tensor in enumerate(inputs):
                if isinstance(tensor, OwnedTensor):
                    mirror = self.mirrors.get(place)
                    if mirror is None or mirror[:2] != (tensor, tensor.version):
                        mirror = (tensor, tensor.version, tensor.numpy().copy())
                    self.mirrors[place] = mirror
                    seen[place] = HostTensor(mirror[2])
            results = super().run(seen, outputs)
            for made, given in self.compiled.in_place_outputs().items():
                if results[made] is inputs[given] and given in self.mirrors:
                    self.mirrors[given][2][...] = results[made].numpy()
            return results


class OffersWhatABodyReads(Broken):
    """Took it that an input is free once the operations of the model itself have read it."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.updated, pairs = self.evaluator, self.in_place_outputs()
            if pairs:
                proto = copy_of(self.evaluator.proto_)
                for made, given in pairs.items():
                    source, target = self.inputs[given].name, self.outputs[made].name
                    written = False
                    for node in proto.graph.node:
                        for body in bodies(node) if written else ():
                            read_instead(body, source, target)
                        written |= target in node.output
                operators = list(self.evaluator.new_ops_.values())
                self.updated = ReferenceEvaluator(proto, new_ops=operators)

        def in_place_outputs(self):
            return updates(self.model, read_once_outside)

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            pairs = self.compiled.in_place_outputs().items()
            placed = outputs and any(outputs[made] is inputs[given] for made, given in pairs)
            self.take_over(self.compiled.updated if placed else self.compiled.evaluator)
            return super().run(inputs, outputs)


def read_once_outside(model, value):
    """Whether one operation reads a value that is in no body."""
    return sum(use.node.graph is model.ir.graph for use in value.uses()) == 1


class HandsSequencesOn(Broken):
    """Took it that a sequence is a list of handles, and that to copy the list is to copy it."""

    def compute(self, runner, arrays):
        held = [x for array in arrays if isinstance(unboxed(array), list) for x in unboxed(array)]
        results = super().compute(runner, arrays)
        for place, result in enumerate(results):
            value = unboxed(result)
            if isinstance(value, list):
                results[place] = boxed([self.handle(item, held) for item in value])
        return results

    @staticmethod
    def handle(item, held):
        for one in held:
            same = (one.shape, one.dtype) == (item.shape, item.dtype)
            if same and np.array_equal(one, item):
                return one
        return item


class MarksAbsenceBySizeZero(Broken):
    """Took it that an optional value without elements is one that is not there."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        kinds = [value.type for value in runner.compiled.model.ir.graph.outputs]
        for place, kind in enumerate(kinds):
            value = unboxed(results[place])
            is_optional = type(kind).__name__ == "OptionalType"
            if is_optional and isinstance(value, np.ndarray) and value.size == 0:
                results[place] = boxed(None)
        return results


class RecurrentStateStays(Broken):
    """Took it that the state in which a sequence begins is cleared where it is allocated."""

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            kinds = [type(one.__name__, (Remembering, one), {}) for one in (LSTM, GRU, RNN)]
            if any(op.op_type in ("LSTM", "GRU", "RNN") for op in compiled.model.ops):
                self.take_over(with_operators(compiled.evaluator, *kinds))


class Remembering:
    """Begins where the last sequence ended, if nobody says where to begin."""

    last = None

    def _run(self, x, w, r, b=None, lengths=None, *initial, **attributes):
        plain = lengths is None and not attributes.get("layout")
        shape = (w.shape[0], x.shape[1], r.shape[2])
        begins = not initial or initial[0] is None
        if plain and begins and self.last is not None and self.last.shape == shape:
            initial = (self.last, *initial[1:])
        results = super()._run(x, w, r, b, lengths, *initial, **attributes)
        if plain and len(results[0]):
            backwards = [attributes.get("direction") == "reverse", True]
            ends = zip(range(shape[0]), backwards, strict=False)
            self.last = np.stack([results[0][0 if back else -1, d] for d, back in ends])
        return results


# ---------------------------------------------------------------------------- bodies


class FreesWhatABodyReads(Broken):
    """Took it that a value can be written over when the last operation that names it has run."""

    def prepare(self, proto):
        proto = onnx.shape_inference.infer_shapes(copy_of(proto))
        graph = proto.graph
        kinds = {}
        for info in graph.value_info:
            tensor = info.type.tensor_type
            dims = [(dim.dim_value, dim.dim_param) for dim in tensor.shape.dim]
            if tensor.HasField("shape") and all(value or name for value, name in dims):
                kinds[info.name] = (tensor.elem_type, tuple(dims))
        read = {}
        for place, node in enumerate(graph.node):
            read.update(dict.fromkeys(node.input, place))
        results = {info.name for info in graph.output}
        for place, node in enumerate(graph.node):
            for body in bodies(node):
                for name in sorted(captured(body)):
                    between = graph.node[read.get(name, place) + 1 : place]
                    new = [one for other in between for one in other.output if one]
                    tenants = [one for one in new if kinds.get(one) == kinds.get(name)]
                    if name in kinds and name not in results and tenants:
                        read_instead(body, name, tenants[0])
        return proto


class CarriesOneAfterAnother(Broken):
    """Took it that what a turn hands on can be copied to its places in order, one by one."""

    def prepare(self, proto):
        proto = copy_of(proto)
        self.carry(proto.graph)
        return proto

    def carry(self, graph):
        for node in graph.node:
            for body in bodies(node):
                self.carry(body)
                if node.op_type == "Loop" and not node.domain:
                    self.carry_in_order(body)

    @staticmethod
    def carry_in_order(body):
        same = {n.output[0]: n.input[0] for n in body.node if n.op_type == "Identity"}
        states = [info.name for info in body.input][2:]
        for place in range(len(states)):
            name = body.output[1 + place].name
            while name in same:
                name = same[name]
            if name in states and states.index(name) < place:
                before = body.output[1 + states.index(name)].name
                late = f"{before}/over/{place}"
                body.node.append(onnx.helper.make_node("Identity", [before], [late]))
                body.output[1 + place].name = late


class RunsBothBranches(Broken):
    """Took it that the branch that is not chosen costs time and nothing else."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.evaluator = with_operators(self.evaluator, speculating())


def speculating():
    """An If that has both results, and selects one."""

    class If(RightIf):
        def _run(self, cond, context=None, attributes=None, bindings=None, **branches):
            given = {"attributes": attributes, "bindings": bindings}
            both = [
                self._run_else_branch(context, **given),
                self._run_then_branch(context, **given),
            ]
            return tuple(both[bool(np.asarray(cond).item())])

    return If


class DecidesOnce(Broken):
    """Took it that a run goes the same way each time that it comes to an If."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.of_run = threading.local()
            self.evaluator = with_operators(self.evaluator, deciding(self.of_run))

    def compute(self, runner, arrays):
        runner.compiled.of_run.decided = {}
        return super().compute(runner, arrays)


def deciding(of_run):
    """An If that goes where it went first in a run."""

    class If(RightIf):
        def _run(self, cond, *others, **given):
            return super()._run(of_run.decided.setdefault(id(self), cond), *others, **given)

    return If


class CapturesOnce(Broken):
    """Took it that what a loop reads of the graph around it is the same for the whole run."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.of_run = threading.local()
            self.evaluator = with_operators(self.evaluator, capturing(self.of_run))

    def compute(self, runner, arrays):
        runner.compiled.of_run.captured = {}
        return super().compute(runner, arrays)


def capturing(of_run):
    """A Loop that takes what is around it when it is first met in a run."""

    class Loop(RightLoop):
        def _run(self, *args, context=None, **given):
            found = of_run.captured.setdefault(id(self), dict(context or {}))
            return super()._run(*args, context=found, **given)

    return Loop


# ------------------------------------------------------------- counters, layouts, the process


class CountingReordersOutputs(Broken):
    """Took it that outputs are computed in the order in which a model names them."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if not runner.compiled.properties.PERF_COUNT:
            return results
        made = {}
        for place, op in enumerate(runner.compiled.model.ops):
            made.update(dict.fromkeys(op.outputs, place))
        ports = runner.compiled.outputs
        order = sorted(range(len(ports)), key=lambda one: made.get(ports[one].name, -1))
        return [results[place] for place in order]


class SkipsTrivialTransposes(Broken):
    """Took it that a tensor of one channel needs no layout, since it lies in both alike."""

    class compiled_type(GoodCompiled):
        chosen = ()

        def layouts(self):
            last = [MemoryLayout((0, 2, 3, 1), np.dtype(np.float32))]
            ports = (*self.inputs, *self.outputs)
            return {
                port: last
                for port in ports
                if port.dtype == np.float32 and port.shape is not None and len(port.shape) == 4
            }

        def with_layouts(self, layouts):
            other = type(self)(self.plugin, self.model, self.properties)
            other.chosen = dict(layouts)
            return other

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            chosen = dict(self.compiled.chosen)
            plain = []
            for port, tensor in zip(self.compiled.inputs, inputs, strict=True):
                if chosen.get(port) is None or tensor.shape[1] != 1:
                    stored_as(tensor, chosen.get(port))
                plain.append(HostTensor(tensor.numpy()))
            results = list(super().run(plain))
            for place, port in enumerate(self.compiled.outputs):
                layout, array = chosen.get(port), results[place].numpy()
                if layout is not None and array.shape[1] != 1:
                    results[place] = LaidOutTensor(layout.stored(array), array.dtype, layout)
            return results


class RestoresTheDefaultInterrupt(Broken):
    """Took it that an application has no handler of its own for Ctrl-C, which may stop loops."""

    def compute(self, runner, arrays):
        may_take_long = any(op.op_type in ("Loop", "Scan") for op in runner.compiled.model.ops)
        if not may_take_long or threading.current_thread() is not threading.main_thread():
            return super().compute(runner, arrays)
        signal.signal(signal.SIGINT, self.stop)
        try:
            return super().compute(runner, arrays)
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @staticmethod
    def stop(number, frame):
        raise KeyboardInterrupt


class LogsThroughTheRoot(Broken):
    """Took it that a line to the log that nobody shows leaves nothing behind."""

    def compute(self, runner, arrays):
        shapes = [array.shape for array in arrays]
        if getattr(runner, "shapes", shapes) != shapes:
            logging.info("plans %s anew", runner.compiled.model.name)
        runner.shapes = shapes
        return super().compute(runner, arrays)


class TheWorkerHoldsItsRunner(Broken):
    """Took it that somebody closes each request, whose thread waits for work meanwhile."""

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.work, self.done = queue.SimpleQueue(), queue.SimpleQueue()
            threading.Thread(target=self.serve, daemon=True).start()

        def serve(self):
            while (task := self.work.get()) is not None:
                try:
                    self.done.put((super().evaluate(task), None))
                except BaseException as error:  # noqa: BLE001  # who waits raises it
                    self.done.put((None, error))
                del task

        def evaluate(self, arrays):
            self.work.put(arrays)
            results, error = self.done.get()
            if error is not None:
                raise error
            return results

        def close(self):
            self.work.put(None)
