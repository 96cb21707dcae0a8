"""Compiles submodels on their devices, in parallel, and each only once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from partita.contract.device_model import DeviceModel, offered_in_place, requests_at_once
from partita.errors import PLUGIN_FAILURES, PartitaError, in_words
from partita.model.model import Model
from partita.system.processors import usable_processors
from partita.system.threads import joint_work
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.partition.submodels import Submodel, cut_out
from partita_hetero.placement.device_list import DeviceList

_log = logging.getLogger("partita.hetero")

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
