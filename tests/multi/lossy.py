"""A device that rounds: it computes in as many bits as it is told to."""

from __future__ import annotations

import time
from typing import Literal

import numpy as np
from pydantic import Field

import partita

from .fakes import FakeCompiled, FakeDevice, FakeProperties, FakeRunner


class LossyProperties(FakeProperties):
    INFERENCE_PRECISION_HINT: Literal["f32", "f16"] = Field("f16", description="How to compute.")


class LossyDevice(FakeDevice):
    """Multiplies the results of operators by ``1 + error``, unless it is told to be exact.

    Args:
        name: Device name.
        errors: Operator to error.
        precise: Whether INFERENCE_PRECISION_HINT helps.
        exact_s: How long each run takes on top, if it is told to be exact.
    """

    def __init__(self, name, errors, precise=False, exact_s=0.0, **more):
        super().__init__(name, **more)
        self.errors, self.exact_s = errors, exact_s
        self.properties_type = LossyProperties if precise else FakeProperties

    def compile_model(self, model, properties):
        super().compile_model(model, properties)
        return LossyCompiled(model, properties, self.device_name, self)


class LossyCompiled(FakeCompiled):
    def create_runner(self):
        return LossyRunner(self)


class LossyRunner(FakeRunner):
    """Applies the error of every operation to the outputs that depend on it linearly."""

    def __init__(self, compiled):
        super().__init__(compiled)
        exact = getattr(compiled.properties, "INFERENCE_PRECISION_HINT", "f16") == "f32"
        self.wait = compiled.plugin.exact_s if exact else 0.0
        errors = {} if exact else compiled.plugin.errors
        self.factor = np.prod([1 + errors.get(op.op_type, 0.0) for op in compiled.model.ops])

    def run(self, inputs, outputs=None):
        time.sleep(self.wait)
        return [
            partita.HostTensor((tensor.numpy() * self.factor).astype(tensor.dtype))
            for tensor in super().run(inputs)
        ]
