"""Launch cost: the time of starting a submodel, measured on one that computes next to nothing."""

from __future__ import annotations

import logging

import numpy as np

import partita
from partita.contract.core_api import CoreAPI
from partita.errors import PLUGIN_FAILURES, in_words
from partita.tensors.tensor import HostTensor
from partita_hetero.cost.database import Cost, Database
from partita_hetero.cost.timing import Effort, median_of
from partita_hetero.placement.device_list import DeviceList

_log = logging.getLogger("partita.hetero")

EFFORT = Effort(warm=3, least=5, most=101, seconds=0.1)

WORK = "launch"
"""Its signature."""

CANDIDATES = ("Relu", "Neg", "Identity", "Sigmoid", "Exp")
"""Operators that nearly every device takes one of."""


def launch_cost(devices: DeviceList, device: str, key: str, database: Database) -> float | None:
    """Seconds; ``None`` if the device runs none of the tiny models.

    Args:
        devices: Of the compile at hand.
        device: The device.
        key: Its key in the database.
        database: Where costs are kept.
    """
    known = database.costs(key, [WORK]).get(WORK)
    if known is not None:
        return known.seconds
    for op_type in CANDIDATES:
        model = _tiny(op_type)
        try:
            if len(devices.ask(model, device)) != 1:
                continue
            compiled = devices.core.compile_model(model, device, devices.config(device))
            seconds, samples = _measure(devices.core, device, compiled)
        except PLUGIN_FAILURES as error:  # whatever a broken device raises
            _log.info("%s does not run one %s: %s", device, op_type, in_words(error))
            continue
        database.add_costs([Cost(key, WORK, seconds, samples, "measured", f"one {op_type}")])
        return seconds
    return None


def _measure(core: CoreAPI, device: str, compiled: partita.DeviceModel) -> tuple[float, int]:
    tensor: partita.Tensor = HostTensor(np.zeros(1, np.float32))
    if not core.can_share(device, tensor.memory):
        tensor = core.transfer_to(device, tensor)
    runner = compiled.create_runner()
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
