"""Ways of obtaining a compiled model (compile, import, cache), which must all agree."""

from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx

import partita
from partita.errors import PartitaError
from partita_conformance.bench.bench import REFERENCE, Bench
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.blobs import exported
from partita_conformance.suites.makeups.settings import unknown_model

Made = Iterator[partita.CompiledModel]


@dataclass
class Order:
    """What is to be compiled.

    Attributes:
        bench: The device.
        proto: The model.
        settings: Properties.
        core: The core that compiles.
    """

    bench: Bench
    proto: onnx.ModelProto = field(repr=False)
    settings: Mapping[str, Any]
    core: partita.Core = field(repr=False)

    @property
    def config(self) -> dict[str, Any]:
        """The settings, and those of the run."""
        return {**self.bench.target.config, **self.settings}

    def compile(self, source: Any = None, **more: Any) -> partita.CompiledModel:
        """Compiles the model, or another form of it."""
        model = self.bench.read(self.proto) if source is None else source
        return self.core.compile_model(model, self.bench.device, {**self.config, **more})


def _once(order: Order) -> Made:
    yield order.compile()


def _twice(order: Order) -> Made:
    model = order.bench.read(order.proto)
    first = order.compile(model)
    yield order.compile(model)
    yield first


def _after_it_went(order: Order) -> Made:
    compiled = order.compile()
    del compiled
    gc.collect(0)
    yield order.compile()


def _imported(order: Order) -> Made:
    first = order.compile()
    blob = exported(first)
    core = order.bench.new_core()  # nothing that was set there counts instead of the blob's
    yield core.import_model(memoryview(blob), order.bench.device)
    yield first


def _imported_again(order: Order) -> Made:
    blob = exported(order.compile())
    second = exported(order.core.import_model(blob, order.bench.device))
    core = order.bench.new_core()
    yield core.import_model(second, order.bench.device, order.config)


def _cached(order: Order) -> Made:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield order.compile(CACHE_DIR=folder)
        yield order.compile(CACHE_DIR=folder)
        yield order.bench.new_core().compile_model(
            order.bench.read(order.proto), order.bench.device, {**order.config, "CACHE_DIR": folder}
        )


def _of_bytes(order: Order) -> Made:
    content = order.proto.SerializeToString()
    yield order.compile(content)
    proto = onnx.ModelProto.FromString(content)
    compiled = order.compile(proto)
    proto.Clear()
    yield compiled


def _by_another_core(order: Order) -> Made:
    core = order.bench.new_core()
    compiled = core.compile_model(order.bench.read(order.proto), order.bench.device, order.config)
    del core
    yield compiled


def _set_before(order: Order) -> Made:
    core = order.bench.new_core()
    usual = {name: core.get_property(order.bench.device, name) for name in order.settings}
    core.set_property(order.bench.device, dict(order.settings))
    model = order.bench.read(order.proto)
    compiled = core.compile_model(model, order.bench.device, order.bench.target.config)
    core.set_property(order.bench.device, usual)
    yield compiled


def _by_the_plugin(order: Order) -> Made:
    properties = order.bench.properties(**order.config)
    given = properties.model_dump(), set(properties.model_fields_set)
    model = order.bench.read(order.proto)
    compiled = partita.CompiledModel(order.bench.plugin.compile_model(model, properties))
    same = given == (properties.model_dump(), set(properties.model_fields_set))
    require(same, "compile_model of the plugin changed the properties that it was given.")
    yield compiled


def _behind_failures(order: Order) -> Made:
    unknown = unknown_model()
    for _ in range(2):
        try:
            order.core.compile_model(unknown, order.bench.device, order.config)
        except PartitaError:
            continue
    yield order.compile()


def _on_a_thread(order: Order) -> Made:
    made: list[Any] = []

    def work() -> None:
        try:
            made.append(order.compile())
        except Exception as error:  # noqa: BLE001  # raised again below
            made.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(made[0], Exception):
        raise made[0]
    yield made[0]


def _without_the_model(order: Order) -> Made:
    model = order.bench.read(order.proto)
    compiled = order.compile(model)
    for value in model.ir.graph.initializers.values():
        value.const_value = None
    for node in model.ir.graph:
        node.attributes.clear()
        node.name = "changed"
    yield compiled


def _beside_others(order: Order) -> Made:
    if order.bench.is_virtual or order.bench.plugin.device_name == REFERENCE:
        raise NotApplicableError("it is not a device to cut models for")
    model = order.bench.read(order.proto)
    for place, op in enumerate(model.ops):
        op.affinity = order.bench.device if place % 2 else REFERENCE
    yield order.core.compile_model(model, f"HETERO:{order.bench.device},{REFERENCE}")


WAYS: Mapping[str, Callable[[Order], Made]] = {
    "compiled": _once,
    "compiled twice": _twice,
    "compiled after it went": _after_it_went,
    "imported": _imported,
    "imported, exported and imported": _imported_again,
    "out of CACHE_DIR": _cached,
    "of bytes and a protobuf": _of_bytes,
    "by another core": _by_another_core,
    "with what was set before": _set_before,
    "by the plugin itself": _by_the_plugin,
    "behind compiles that failed": _behind_failures,
    "on a thread that is gone": _on_a_thread,
    "while its model was changed": _without_the_model,
    "in parts beside REFERENCE": _beside_others,
}
"""Ways by what they are called."""
