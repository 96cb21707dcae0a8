"""How fast a device reads weights and multiplies with them: a short probe for each format.

A probe is a small model, compiled and run as any other: products one after another, each with a
matrix of its own. With one row it tells how fast weights are read, with many how fast they are
multiplied, and with tiny matrices what an operation takes beside that. Attention over a cache has
a probe of its own (`attention_probe`). What was measured is kept in the database of costs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import partita
from partita.contract.core_api import CoreAPI
from partita.errors import PLUGIN_FAILURES, PlanError, in_words
from partita.tensors.tensor import HostTensor
from partita_hetero.cost.attention_probe import (
    PROBES,
    AttentionShape,
    AttentionSpeed,
    attention_model,
    speed_of_attention,
)
from partita_hetero.cost.database import Cost, Database
from partita_hetero.cost.machine_load import LoadWatch, MachineLoad
from partita_hetero.cost.timing import Effort, median_of
from partita_hetero.cost.token_work import PLAIN, TokenWork, WeightFormat
from partita_hetero.placement.device_list import DeviceList

if TYPE_CHECKING:
    from partita.contract.device_model import DeviceModel
    from partita.model.model import Model

_log = logging.getLogger("partita.hetero")

READ_BYTES = (64 << 20, 96 << 20, 128 << 20, 192 << 20, 512 << 20)
"""Weights of the probe of one row: as many as the model has, since caches of processors may hold
those of small models, but no more than the last."""

SIDES = (512, 1024, 2048, 4096)
"""Of its matrices: the one next to those of the model. Threads wait for one another at the end of
each product, which takes a larger part of a small one."""

MANY_ROWS, MANY_SIDE, MANY_PRODUCTS = 256, 2048, 4
"""Of the probe of many rows."""

TINY_SIDE, TINY_PRODUCTS = 64, 16
"""Of the probe of nearly nothing."""

EFFORT = Effort(warm=2, least=7, most=25, seconds=0.5)
READ_EFFORT = Effort(warm=2, least=7, most=1000, seconds=1.0, least_seconds=1.0)
TINY_EFFORT = Effort(warm=5, least=200, most=200)


@dataclass(frozen=True)
class DeviceSpeed:
    """What a device can do.

    Attributes:
        read: By format: bytes of weights that it reads a second.
        multiply: By format: multiplications with weights a second, for many rows.
        op_seconds: What an operation takes besides.
        attention: How fast attention over a cache is; ``None`` for as fast as products without a
            matrix of weights, and their reading.
        busy: The share of the processors that others used at most while it was measured.
    """

    read: Mapping[WeightFormat, float]
    multiply: Mapping[WeightFormat, float]
    op_seconds: float
    attention: AttentionSpeed | None = None
    busy: float = 0.0

    def reading_seconds(self, work: TokenWork) -> float:
        """Time to read all that some work reads, each at the fastest that a probe read it."""
        cache = self.attention.read if self.attention else self.bandwidth
        weights = work.bytes_read - work.cache_bytes
        return weights / self.bandwidth + work.cache_bytes / max(cache, self.bandwidth)

    @property
    def bandwidth(self) -> float:
        """Bytes a second, of the format that is read fastest."""
        return max(self.read.values())

    def seconds(self, work: TokenWork) -> float:
        """Time for some work: each format is read or multiplied, whichever takes longer."""
        formats = {*work.weight_bytes, *work.products}
        total = work.ops * self.op_seconds
        for kind in formats:
            known = kind if kind in self.read else PLAIN
            reading = work.weight_bytes.get(kind, 0.0) / self.read[known]
            total += max(reading, work.products.get(kind, 0.0) / self.multiply[known])
        cache = self.attention or AttentionSpeed(self.read[PLAIN], self.multiply[PLAIN])
        attending = work.attention_products / cache.multiply
        return total + max(work.cache_bytes / cache.read, attending)


class _Products(NamedTuple):
    """Products one after another, each with a square matrix of its own, and how long they took.

    Attributes:
        side: Of the matrices.
        number: How many.
        seconds: What all took.
        busy: The share of the processors that others used meanwhile.
    """

    side: int
    number: int
    seconds: float
    busy: float

    def beside(self, op_seconds: float) -> float:
        """Seconds without what operations take besides; at least a tenth of all."""
        return max(self.seconds - self.number * op_seconds, self.seconds / 10)


class Timed(NamedTuple):
    """What a probe told.

    Attributes:
        seconds: Of a run.
        busy: The share of the processors that others used meanwhile.
    """

    seconds: float
    busy: float


class ProbedDevice(NamedTuple):
    """A device on which probes run, and where their times are kept.

    Attributes:
        devices: Of the compile at hand.
        name: The device.
        key: Its key in the database.
        database: Where costs are kept.
        load: How busy the machine is.
    """

    devices: DeviceList
    name: str
    key: str
    database: Database
    load: MachineLoad

    def takes(self, kind: WeightFormat) -> bool:
        """Whether the device takes products with weights of a format at all, if they are few."""
        model = probe_model(kind, max(TINY_SIDE, kind.block), 1, 1)
        try:
            return len(self.devices.ask(model, self.name)) == len(model.ops)
        except PLUGIN_FAILURES as error:  # whatever a broken device raises
            _log.info("%s cannot be asked about a probe: %s", self.name, in_words(error))
            return False

    def known(self, work: str, measure: Callable[[], Timed | None]) -> Cost | None:
        """What a probe tells; what a device does not take is asked again each time."""
        label = f"decoder probe: {work}"

        def measured() -> Cost | None:
            timed = measure()
            if timed is None:
                return None
            return Cost(self.key, label, timed.seconds, 1, "measured", work, timed.busy)

        known = self.database.costs(self.key, [label]).get(label)
        found = self.load.best(known, measured)
        if found is not None and found is not known:
            self.database.add_costs([found])
        return found

    def run(self, model: Model, effort: Effort = EFFORT) -> Timed | None:
        """Seconds of a run; ``None`` if the device does not take the model."""
        core = self.devices.core
        try:
            if len(self.devices.ask(model, self.name)) != len(model.ops):
                return None
            compiled = core.compile_model(model, self.name, self.devices.config(self.name))
            return _measured(core, self.name, compiled, effort)
        except PLUGIN_FAILURES as error:  # whatever a broken device raises
            _log.info("%s does not run a probe: %s", self.name, in_words(error))
            return None

    def op_seconds(self) -> Timed | None:
        """Seconds of an operation in a row of operations, without what a run takes by itself."""
        many = self.run(probe_model(PLAIN, TINY_SIDE, TINY_PRODUCTS, 1), TINY_EFFORT)
        few = self.run(probe_model(PLAIN, TINY_SIDE, 1, 1), TINY_EFFORT)
        if many is None or few is None:
            return None
        seconds = max(0.0, many.seconds - few.seconds) / (TINY_PRODUCTS - 1)
        return Timed(seconds, max(many.busy, few.busy))

    def first_taken(
        self, kind: WeightFormat, side: int, count: int, rows: int, effort: Effort
    ) -> _Products | None:
        """The largest products that the device has room for; ``None`` if it takes none at all.

        Args:
            kind: How weights are stored.
            side: Of the largest square matrix to try.
            count: How many of that to try.
            rows: Of the input.
            effort: How long to measure.
        """
        for one, matrices in _ever_less(side, count, max(TINY_SIDE, kind.block)):
            found = self._products(kind, one, matrices, rows, effort)
            if found is not None:
                return _Products(one, matrices, found.seconds, found.busy)
        return None

    def _products(
        self, kind: WeightFormat, side: int, count: int, rows: int, effort: Effort
    ) -> Cost | None:
        work = f"{rows} rows of {kind} by {count} of {side}"
        return self.known(work, lambda: self.run(probe_model(kind, side, count, rows), effort))


def device_speed(
    device: ProbedDevice,
    formats: set[WeightFormat],
    weight_bytes: int,
    side: int,
    attention: AttentionShape | None = None,
) -> DeviceSpeed:
    """A device's speed for some formats of weights, measured unless the database knows.

    A format that the device does not take is left out; the plain one must be there. A device with
    little room is measured by fewer and smaller matrices.

    Args:
        device: The device.
        formats: How the weights of a model are stored.
        weight_bytes: How many there are.
        side: Of a square matrix as large as typical ones of them.
        attention: The sizes of the model's attention, if it is one operation.

    Raises:
        PlanError: The device does not even multiply a few matrices of float32.
    """
    op = device.known(_WORK_OP, device.op_seconds)
    if op is None:
        raise PlanError(
            f"Device '{device.name}' cannot be measured: it runs no MatMul of float32. Leave it "
            "out of the device list, or set HETERO_CONTEXT=0."
        )
    read: dict[WeightFormat, float] = {}
    multiply: dict[WeightFormat, float] = {}
    busy = [op.busy]
    size = next((size for size in READ_BYTES if size >= weight_bytes), READ_BYTES[-1])
    side = min(SIDES, key=lambda one: abs(math.log2(one / max(side, 1))))
    for kind in sorted({PLAIN, *formats}, key=str):
        if not device.takes(kind):
            continue
        count = -(-size // _matrix_bytes(kind, side))
        reading = device.first_taken(kind, side, count, 1, READ_EFFORT)
        many = device.first_taken(kind, MANY_SIDE, MANY_PRODUCTS, MANY_ROWS, EFFORT)
        if reading is None or many is None:
            continue
        nbytes = reading.number * _matrix_bytes(kind, reading.side)
        products = MANY_ROWS * many.side**2 * many.number
        read[kind] = nbytes / reading.beside(op.seconds)
        multiply[kind] = products / many.beside(op.seconds)
        busy += [reading.busy, many.busy]
    if PLAIN not in read:
        raise PlanError(
            f"Device '{device.name}' cannot be measured: it runs no MatMul of {MANY_ROWS} rows of "
            "float32. Leave it out of the device list, or set HETERO_CONTEXT=0."
        )
    attending = None
    if attention is not None:
        attending, meanwhile = attention_speed(device, attention, size)
        busy.append(meanwhile)
    return DeviceSpeed(read, multiply, op.seconds, attending, max(busy))


def attention_speed(
    device: ProbedDevice, shape: AttentionShape, nbytes: int
) -> tuple[AttentionSpeed | None, float]:
    """How fast a device attends over caches, and how busy others kept the machine meanwhile.

    ``None`` if it runs none of the probes.

    Args:
        device: The device.
        shape: The sizes of the attention.
        nbytes: Of all caches, if the device has room for them.
    """
    for places in shape.places(nbytes):
        found = {
            probe: device.known(
                f"attention in place, {probe}, caches of {places}: {shape}",
                partial(device.run, attention_model(shape, probe, places)),
            )
            for probe in PROBES
        }
        costs = {probe: cost for probe, cost in found.items() if cost is not None}
        if len(costs) == len(PROBES):
            seconds = {probe: cost.seconds for probe, cost in costs.items()}
            busy = max(cost.busy for cost in costs.values())
            return speed_of_attention(shape, seconds, places), busy
    return None, 0.0


def _ever_less(side: int, count: int, least: int) -> Iterator[tuple[int, int]]:
    """Sides and numbers of square matrices, from those given down to a single small one."""
    yield side, count
    while count > 1:
        count = -(-count // 4)
        yield side, count
    while side > least:
        side //= 2
        yield side, 1


_WORK_OP = "operation of nearly nothing"


def _matrix_bytes(kind: WeightFormat, side: int) -> int:
    scales = 4 * side**2 // kind.block * (2 if kind.has_zeros else 1) if kind.block else 0
    return side**2 * kind.bits // 8 + scales


def _measured(core: CoreAPI, device: str, compiled: DeviceModel, effort: Effort) -> Timed:
    """A run, with what the device updates in place in memory of its own choice."""
    in_place = compiled.in_place_outputs()
    inputs: list[partita.Tensor] = []
    for port in compiled.inputs:
        shape = tuple(dim for dim in port.shape or () if isinstance(dim, int))
        if port.index in in_place.values():
            kept = compiled.allocate(port, shape)
            kept.clear()  # memory that nobody has written to may be one page of zeros
            inputs.append(kept)
        else:
            tensor = HostTensor(np.full(shape, 0.5, port.dtype))
            shared = core.can_share(device, tensor.memory)
            inputs.append(tensor if shared else core.transfer_to(device, tensor))
    outputs = [
        inputs[in_place[port.index]] if port.index in in_place else None
        for port in compiled.outputs
    ]
    runner = compiled.create_runner()
    try:

        def call() -> object:
            results = runner.run(inputs, outputs)
            read = (one for one, given in zip(results, outputs, strict=True) if given is None)
            return [one.numpy() for one in read]

        watch = LoadWatch()
        # The best would be a promise: where machines share their memory, it comes now and then.
        return Timed(median_of(call, effort)[0], watch.share())
    finally:
        runner.close()


def probe_model(kind: WeightFormat, side: int, count: int, rows: int) -> Model:
    """A model of products one after another, each with weights of its own.

    Args:
        kind: How weights are stored.
        side: Rows and columns of each matrix of weights.
        count: How many products.
        rows: Rows of the input, float32 (rows, side), and of the output.
    """
    import onnx_ir as ir

    from partita.frontends.reader import read_model

    first = ir.Value(name="x", shape=ir.Shape([rows, side]), type=ir.TensorType(ir.DataType.FLOAT))
    value, nodes, weights = first, [], []
    for number in range(count):
        made = _matrix(kind, side, number)
        weights += made
        node = _product(kind, side, value, made, f"product{number}")
        nodes += node
        value = node[-1].outputs[0]
        value.name = f"y{number}"
        value.shape, value.dtype = ir.Shape([rows, side]), ir.DataType.FLOAT
    imports = {"": 21, "com.microsoft": 1}
    graph = ir.Graph(
        [first], [value], nodes=nodes, initializers=weights, opset_imports=imports, name="probe"
    )
    return read_model(ir.Model(graph, ir_version=10))


def _matrix(kind: WeightFormat, side: int, number: int) -> list[Any]:
    """Weights as initializers, which are made when a device compiles them."""
    import onnx_ir as ir

    def lazy(name: str, dtype: ir.DataType, shape: list[int], make: Any) -> ir.Value:
        def made() -> ir.TensorProtocol:
            return ir.Tensor(make(shape).astype(dtype.numpy(), copy=False), name=name)

        tensor = ir.LazyTensor(made, dtype, ir.Shape(shape), name=name)
        kept = ir.TensorType(dtype)
        return ir.Value(name=name, shape=ir.Shape(shape), type=kept, const_value=tensor)

    random = np.random.default_rng(number)
    if not kind.block:
        dtype = ir.DataType.FLOAT if kind.bits == 32 else ir.DataType.FLOAT16
        deviation = np.float32(side**-0.5)
        return [
            lazy(
                f"w{number}",
                dtype,
                [side, side],
                lambda shape: random.standard_normal(shape, np.float32) * deviation,
            )
        ]
    blocks = side // kind.block
    largest = (1 << kind.bits) - 1
    scale = np.float16(12**0.5 / ((largest**2 - 1) ** 0.5 * side**0.5))

    def quants(shape: list[int]) -> Any:
        """Symmetric about the zero point: what passes would grow from product to product else."""
        low, high = random.integers(1, largest + 1, (2, *shape), np.uint8)
        return low if kind.bits == 8 else low | high << 4

    packed = [side, blocks, kind.block * kind.bits // 8]
    middle = float(1 << (kind.bits - 1))
    zeros = lazy(
        f"z{number}", ir.DataType.FLOAT, [side, blocks], lambda shape: np.full(shape, middle)
    )
    return [
        lazy(
            f"q{number}",
            ir.DataType.UINT8,
            packed,
            quants,
        ),
        lazy(
            f"s{number}",
            ir.DataType.FLOAT,
            [side * blocks],
            lambda shape: np.full(shape, scale),
        ),
        *([zeros] if kind.has_zeros else []),
    ]


def _product(kind: WeightFormat, side: int, value: Any, weights: list[Any], name: str) -> list[Any]:
    """The operations of one product, the product last."""
    import onnx_ir as ir

    if kind.block:
        attributes = {"K": side, "N": side, "bits": kind.bits, "block_size": kind.block}
        inputs = [value, *weights]
        return [ir.node("MatMulNBits", inputs, attributes, domain="com.microsoft", name=name)]
    if kind.bits == 32:
        return [ir.node("MatMul", [value, *weights], name=name)]
    cast = ir.node("Cast", weights, {"to": int(ir.DataType.FLOAT)}, name=f"{name}/cast")
    cast.outputs[0].name = f"{name}/weights"
    return [cast, ir.node("MatMul", [value, cast.outputs[0]], name=name)]
