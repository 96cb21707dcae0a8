"""Compiles submodels on their devices, in parallel, and each only once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from partita.contract.device_model import DeviceModel, offered_in_place, requests_at_once
from partita.errors import PLUGIN_FAILURES, PartitaError, in_words
from partita.model.inference.guessed_shapes import example_shapes
from partita.model.model import Model
from partita.model.port import note_example
from partita.system.processors import usable_processors
from partita.system.threads import joint_work
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.partition.submodels import Submodel, cut_out
from partita_hetero.placement.device_list import DeviceList

_log = logging.getLogger("partita.hetero")

_IMAGE_AXES = 4

SPARE_SUBMODELS = 64
"""So many compiled submodels are kept that no assembly uses, for failures that come back."""


class SubmodelCompiler:
    """Compiles submodels of one model.

    Attributes:
        states: Device to what its compiled submodels had exported, while a model is restored.
    """

    def __init__(self, model: Model, op_graph: OpGraph, devices: DeviceList) -> None:
        self._model, self._op_graph, self._devices = model, op_graph, devices
        self.compiled_before: dict[Any, DeviceModel] = {}
        self._memories: dict[str, str] = {}
        self.states: Mapping[str, Mapping[str, Any]] = {}
        self._examples: Mapping[str, tuple[int, ...]] | None = None

    def compile(
        self, submodels: Sequence[Submodel], counted: bool
    ) -> list[tuple[Submodel, PartitaError]]:
        """Compiles what is not done yet, side by side; returns what failed.

        Args:
            submodels: The submodels.
            counted: Let devices measure every operation.
        """
        waiting = [
            submodel
            for submodel in submodels
            if (submodel.key, counted) not in self.compiled_before
        ]
        models = [cut_out(self._model, self._op_graph, submodel) for submodel in waiting]
        for model in models:
            self._note_examples(model)

        def compile_one(index: int) -> PartitaError | None:
            try:
                self.compiled_before[waiting[index].key, counted] = self._compile(
                    waiting[index], models[index], counted
                )
            except PartitaError as error:
                return error
            return None

        if len(waiting) <= 1:
            errors = [compile_one(index) for index in range(len(waiting))]
        else:
            workers = min(len(waiting), usable_processors())
            with joint_work.workers(workers, "partita-compile") as pool:
                errors = list(pool.map(compile_one, range(len(waiting))))
        return [(p, e) for p, e in zip(waiting, errors, strict=True) if e is not None]

    def compiled(self, submodels: Sequence[Submodel], counted: bool) -> list[DeviceModel]:
        """The compiled model of each, after :meth:`compile`."""
        return [self.compiled_before[submodel.key, counted] for submodel in submodels]

    def memory_of(self, device: str) -> str:
        """The memory that a device's outputs lie in, once something was compiled for it."""
        return self._memories[device]

    def can_share(self, device: str, memory: str) -> bool:
        """Whether a device reads a memory; one that fails to answer is given copies."""
        try:
            return self._devices.core.can_share(device, memory)
        except PLUGIN_FAILURES as error:  # whatever a broken plugin raises
            _log.warning("%s cannot say what it shares: %s", device, in_words(error))
            return False

    def forget_device(self, device: str) -> None:
        """Forgets what was compiled for a device, whose properties have changed."""
        kept = {key: done for key, done in self.compiled_before.items() if key[0][0] != device}
        self.compiled_before = kept

    def forget_old(self, submodels: Sequence[Submodel]) -> None:
        """Bounds what failures leave behind; submodels in use are held by their assembly."""
        for submodel in submodels:
            self.compiled_before[submodel.key, False] = self.compiled_before.pop(
                (submodel.key, False)
            )
        for key in list(self.compiled_before)[: -2 * len(submodels) - SPARE_SUBMODELS]:
            del self.compiled_before[key]

    def _note_examples(self, model: Model) -> None:
        """Notes shapes of a submodel's inputs that fit each other, for trials of its device.

        Of images alone, whose device may try in which layout it takes them: those of a pyramid are
        of different sizes, and the submodel does not say which are double the others.
        """
        images = [x for x in model.inputs if x.shape is not None and len(x.shape) == _IMAGE_AXES]
        if model is self._model or all(port.is_static for port in images):
            return
        if self._examples is None:
            self._examples = example_shapes(self._model)
        for port in model.inputs:
            shape = self._examples.get(port.name)
            if shape is not None and port.value is not None:
                note_example(port.value, shape)

    def _compile(self, submodel: Submodel, model: Model, counted: bool) -> DeviceModel:
        core, device = self._devices.core, submodel.device
        if device not in self._memories:  # asking takes some devices a millisecond
            self._memories[device] = core.device_info(device).memory
        config = self._devices.config(device)
        if counted:
            config["PERF_COUNT"] = True
        state = self.states.get(device)
        if state:
            compiled = core.restore_model(model, device, config, state)
        else:
            compiled = core.compile_model(model, device, config)
        offered_in_place(compiled)  # where an answer is wrong, another device can take over here
        requests_at_once(compiled)
        return compiled
