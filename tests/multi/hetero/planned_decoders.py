"""Decoders planned for devices A and B (fast, with memories of their own) and C (slow, on host)."""

from __future__ import annotations

from partita_hetero.cost.database import LinkCost
from partita_hetero.cost.device_speed import DeviceSpeed
from partita_hetero.cost.token_work import PLAIN, WeightFormat
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.properties import HeteroProperties
from partita_hetero.tuning.decoders.decoder_chain import DecoderDevice
from partita_hetero.tuning.decoders.decoder_plan import plan_model

CONTEXT = 64
Q4, Q8, F16 = WeightFormat(4, 32), WeightFormat(8, 32), WeightFormat(16)
LAUNCH = 1e-8


def _speed(read, multiply, op_seconds):
    formats = (PLAIN, Q4, Q8, F16)
    return DeviceSpeed(dict.fromkeys(formats, read), dict.fromkeys(formats, multiply), op_seconds)


FAST, SLOW = _speed(1e12, 1e13, 1e-7), _speed(1e10, 1e11, 1e-6)


def told_speeds(devices, names, decoder):
    assert decoder.formats <= {Q4, Q8, F16, PLAIN}
    there = LinkCost("host", "a", 1e-8, 1e-10)
    return [
        DecoderDevice(
            name,
            SLOW if name == "C" else FAST,
            devices.memory_limits.get(name),
            LAUNCH,
            None if name == "C" else (there, there),
        )
        for name in names
    ]


def planned(core, model, priorities="A,C", context=CONTEXT, **properties):
    settings = {"MULTI_DEVICE_PRIORITIES": priorities, "HETERO_CONTEXT": context, **properties}
    devices = DeviceList(core.device_api, "HETERO", HeteroProperties(**settings))
    return plan_model(model, devices)


def homes(plan):
    return {layer.layer: layer.device for layer in plan.layers}


def share(plan, device):
    return next(one for one in plan.devices if one.device == device)
