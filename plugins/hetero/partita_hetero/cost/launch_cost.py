"""Launch cost: the time of starting a submodel, measured on one that computes next to nothing."""

from __future__ import annotations

import logging

import numpy as np

import partita
from partita.contract.core_api import CoreAPI
from partita.contract.device_model import new_runner
from partita.errors import PLUGIN_FAILURES, in_words
from partita.tensors.tensor import HostTensor
from partita_hetero.cost.database import Cost, Database
from partita_hetero.cost.machine_load import LoadWatch, MachineLoad
from partita_hetero.cost.timing import Effort, median_of
from partita_hetero.placement.device_list import DeviceList

_log = logging.getLogger("partita.hetero")

EFFORT = Effort(warm=3, least=5, most=101, seconds=0.1)

WORK = "launch"
"""Its signature."""

CANDIDATES = ("Relu", "Neg", "Identity", "Sigmoid", "Exp")
"""Operators that nearly every device takes one of."""


def launch_cost(
    devices: DeviceList, device: str, key: str, database: Database, load: MachineLoad
) -> Cost | None:
    """What a launch takes; ``None`` if the device runs none of the tiny models.

    Args:
        devices: Of the compile at hand.
        device: The device.
        key: Its key in the database.
        database: Where costs are kept.
        load: How busy the machine is.
    """
    known = database.costs(key, [WORK]).get(WORK)
    found = load.best(known, lambda: _measured(devices, device, key))
    if found is not None and found is not known:
        database.add_costs([found])
    return found


def _measured(devices: DeviceList, device: str, key: str) -> Cost | None:
    for op_type in CANDIDATES:
        model = _tiny(op_type)
        try:
            if len(devices.ask(model, device)) != 1:
                continue
            compiled = devices.core.compile_model(model, device, devices.config(device))
            watch = LoadWatch()
            seconds, samples = _measure(devices.core, device, compiled)
        except PLUGIN_FAILURES as error:  # whatever a broken device raises
            _log.info("%s does not run one %s: %s", device, op_type, in_words(error))
            continue
        label = f"one {op_type}"
        return Cost(key, WORK, seconds, samples, "measured", label, watch.share())
    return None


def _measure(core: CoreAPI, device: str, compiled: partita.DeviceModel) -> tuple[float, int]:
    tensor: partita.Tensor = HostTensor(np.zeros(1, np.float32))
    if not core.can_share(device, tensor.memory):
        tensor = core.transfer_to(device, tensor)
    runner = new_runner(compiled)
    try:
        return median_of(lambda: runner.run([tensor]), EFFORT)
    finally:
        runner.close()


def _tiny(op_type: str) -> partita.Model:
    from onnx import TensorProto, helper

    from partita.frontends.reader import read_model

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"])], "tiny", [x], [y])
    imports = [helper.make_opsetid("", 17)]
    return read_model(helper.make_model(graph, opset_imports=imports, ir_version=8))
