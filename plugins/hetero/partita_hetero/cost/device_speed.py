"""How fast a device reads weights and multiplies with them: a short probe for each format.

A probe is a small model, compiled and run as any other: products one after another, each with a
matrix of its own. With one row it tells how fast weights are read, with many how fast they are
multiplied, and with tiny matrices what an operation takes beside that. Small products of one row,
which threads share out and wait for, have a probe of a decoder's own layers (`product_probe`), and
attention over a cache has one of its own (`attention_probe`). What was measured is kept in the
database of costs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import partita
from partita.contract.core_api import CoreAPI
from partita.contract.device_model import new_runner, offered_in_place
from partita.errors import PLUGIN_FAILURES, PlanError, in_words
from partita.tensors.tensor import HostTensor
from partita_hetero.cost.attention_probe import (
    PROBES,
    AttentionShape,
    AttentionSpeed,
    Caches,
    attention_model,
    speed_of_attention,
)
from partita_hetero.cost.database import Cost, Database
from partita_hetero.cost.machine_load import LoadWatch, MachineLoad
from partita_hetero.cost.product_probe import ProductChain, probe_model
from partita_hetero.cost.timing import Effort, median_of
from partita_hetero.cost.token_work import PLAIN, LayerProducts, Product, TokenWork, WeightFormat
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

LONG_SECONDS = 0.5
"""What the probe of many rows takes at least where one product is enough for further formats."""

MOST_CHAINS = 4
"""Kinds of layers whose products are measured."""

TINY_SIDE, TINY_PRODUCTS = 64, 16
"""Of the probe of nearly nothing."""

EFFORT = Effort(warm=2, least=3, most=25, seconds=0.3)
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
        rows: Seconds of products of one row, each in a chain of those of its layer.
    """

    read: Mapping[WeightFormat, float]
    multiply: Mapping[WeightFormat, float]
    op_seconds: float
    attention: AttentionSpeed | None = None
    busy: float = 0.0
    rows: Mapping[Product, float] = field(default_factory=dict)

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
        """Time for some work.

        Products that were measured take what they took, and attention what it takes besides. Of the
        other products each format is read or multiplied, whichever takes longer; so are caches.
        """
        weights, products = dict(work.weight_bytes), dict(work.products)
        ops, total = work.ops, 0.0
        for (product, rows), (number, nbytes) in work.matrices.items():
            if product in self.rows:
                total += number * self._measured_seconds(product, rows)
                weights[product.kind] -= nbytes
                products[product.kind] -= number * rows * product.elements
                ops -= number
        if self.attention is not None:
            total += work.attentions * self.attention.op_seconds
            ops -= work.attentions
        total += ops * self.op_seconds
        for kind in {*weights, *products}:
            known = kind if kind in self.read else PLAIN
            reading = weights.get(kind, 0.0) / self.read[known]
            total += max(reading, products.get(kind, 0.0) / self.multiply[known])
        cache = self.attention or AttentionSpeed(self.read[PLAIN], self.multiply[PLAIN])
        attending = work.attention_products / cache.multiply
        return total + max(work.cache_bytes / cache.read, attending)

    def _measured_seconds(self, product: Product, rows: int) -> float:
        """Time of a product of which one row was measured.

        Up to as many rows as the probe of many has, time grows evenly; from there on rows alone
        count.
        """
        one = self.rows[product]
        of_rows = product.elements / self.multiply.get(product.kind, self.multiply[PLAIN])
        if rows >= MANY_ROWS:
            return max(one, rows * of_rows)
        return one + max(0.0, MANY_ROWS * of_rows - one) * (rows - 1) / (MANY_ROWS - 1)


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


class DecoderSizes(NamedTuple):
    """What of a decoder decides which probes tell how fast it is.

    Attributes:
        formats: How its weights are stored.
        weight_bytes: How many there are.
        side: Of a square matrix as large as typical ones of them.
        layers: Products of a token in each kind of layer, those with most weights first.
        attention: The sizes of its attention, if that is one operation.
        context: Tokens that its cache holds.
        token_bytes: Weights that it reads for a token.
        chained: Formats that only products of its layers have.
    """

    formats: Collection[WeightFormat]
    weight_bytes: int
    side: int
    layers: Sequence[LayerProducts] = ()
    attention: AttentionShape | None = None
    context: int = 1
    token_bytes: int = 0
    chained: Collection[WeightFormat] = ()

    @property
    def read_bytes(self) -> int:
        """Weights of the probes of one row that tell how fast a format is read."""
        return next((size for size in READ_BYTES if size >= self.weight_bytes), READ_BYTES[-1])

    @property
    def held_bytes(self) -> int:
        """Weights, or caches, of probes that have the decoder's own sizes."""
        return min(self.token_bytes, READ_BYTES[-1])

    def read_in_chains(self, kind: WeightFormat, rows: Mapping[Product, float]) -> float | None:
        """Bytes of a format that a device reads a second; ``None`` if chains do not tell.

        Args:
            kind: The format.
            rows: Seconds of those products of a row that were measured in chains.
        """
        products = [one for layer in self.layers for group in layer for one in group]
        own = [one for one in products if one.kind == kind]
        if kind not in self.chained or not all(one in rows for one in own):
            return None
        return sum(one.nbytes for one in own) / sum(rows[one] for one in own)


def device_speed(device: ProbedDevice, decoder: DecoderSizes) -> DeviceSpeed:
    """A device's speed for a decoder, measured unless the database knows.

    A format that the device does not take is left out; the plain one must be there, and is measured
    by itself, since it tells how fast memory is. A device with little room is measured by fewer and
    smaller matrices.

    Args:
        device: The device.
        decoder: What it is measured for.

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
    rows, meanwhile = row_seconds(device, decoder, op.seconds)
    busy = [op.busy, meanwhile]
    size, products = decoder.read_bytes, MANY_PRODUCTS
    side = min(SIDES, key=lambda one: abs(math.log2(one / max(decoder.side, 1))))
    for kind in sorted({PLAIN, *decoder.formats}, key=str):
        if not device.takes(kind):
            continue
        rate = None if kind == PLAIN else decoder.read_in_chains(kind, rows)
        if rate is None:
            count = -(-size // Product(kind, side, side).nbytes)
            reading = device.first_taken(kind, side, count, 1, READ_EFFORT)
            if reading is None:
                continue
            nbytes = reading.number * Product(kind, reading.side, reading.side).nbytes
            rate = nbytes / reading.beside(op.seconds)
            busy.append(reading.busy)
        many = device.first_taken(kind, MANY_SIDE, products, MANY_ROWS, EFFORT)
        if many is None:
            continue
        if many.seconds > LONG_SECONDS:
            products = 1
        multiplied = MANY_ROWS * many.side**2 * many.number
        read[kind], multiply[kind] = rate, multiplied / many.beside(op.seconds)
        busy.append(many.busy)
    if PLAIN not in read:
        raise PlanError(
            f"Device '{device.name}' cannot be measured: it runs no MatMul of {MANY_ROWS} rows of "
            "float32. Leave it out of the device list, or set HETERO_CONTEXT=0."
        )
    attending = None
    if decoder.attention is not None:
        attending, meanwhile = attention_speed(
            device, decoder.attention, decoder.held_bytes, decoder.context
        )
        busy.append(meanwhile)
    return DeviceSpeed(read, multiply, op.seconds, attending, max(busy), rows)


def row_seconds(
    device: ProbedDevice, decoder: DecoderSizes, op_seconds: float
) -> tuple[dict[Product, float], float]:
    """Seconds of products of one row, and how busy others kept the machine meanwhile.

    Products of layers that the device does not take as a chain are left out.
    """
    found: dict[Product, float] = {}
    busy = 0.0
    for layer in decoder.layers[:MOST_CHAINS]:
        repeats = ProductChain.of(layer, decoder.held_bytes).repeats
        while repeats:
            chain = ProductChain(layer, repeats)
            cost = device.known(str(chain), partial(_run_chain, device, chain))
            if cost is not None:
                whole = max(cost.seconds - chain.other_ops * op_seconds, cost.seconds / 10)
                found = {**chain.seconds(whole), **found}
                busy = max(busy, cost.busy)
                break
            repeats //= 4
    return found, busy


def _run_chain(device: ProbedDevice, chain: ProductChain) -> Timed | None:
    return device.run(chain.model(), READ_EFFORT)


def attention_speed(
    device: ProbedDevice, shape: AttentionShape, nbytes: int, context: int
) -> tuple[AttentionSpeed | None, float]:
    """How fast a device attends over caches, and how busy others kept the machine meanwhile.

    ``None`` if it runs none of the probes.

    Args:
        device: The device.
        shape: The sizes of the attention.
        nbytes: Of all caches, if the device has room for them.
        context: Tokens that the decoder's cache holds.
    """
    for caches in shape.caches(nbytes, context):
        costs = {probe: _attending(device, shape, probe, caches) for probe in PROBES}
        found = {probe: cost for probe, cost in costs.items() if cost is not None}
        if len(found) == len(PROBES):
            seconds = {probe: cost.seconds for probe, cost in found.items()}
            busy = max(cost.busy for cost in found.values())
            return speed_of_attention(shape, seconds, caches), busy
    return None, 0.0


def _attending(
    device: ProbedDevice, shape: AttentionShape, probe: str, caches: Caches
) -> Cost | None:
    layers, places = caches.layers_of(probe), caches.places
    work = f"attention in place, {probe}, {layers} caches of {places}: {shape}"
    return device.known(work, lambda: device.run(attention_model(shape, probe, caches)))


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


def _measured(core: CoreAPI, device: str, compiled: DeviceModel, effort: Effort) -> Timed:
    """A run, with what the device updates in place in memory of its own choice."""
    in_place = offered_in_place(compiled)
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
    runner = new_runner(compiled)
    try:
        results = runner.run(inputs, outputs)
        bound = runner.bind(inputs, results)

        def call() -> object:
            found = results
            if bound is None:
                found = runner.run(inputs, outputs)
            else:
                bound()
            read = (one for one, given in zip(found, outputs, strict=True) if given is None)
            return [one.numpy() for one in read]

        watch = LoadWatch()
        # The best would be a promise: where machines share their memory, it comes now and then.
        return Timed(median_of(call, effort)[0], watch.share())
    finally:
        runner.close()
