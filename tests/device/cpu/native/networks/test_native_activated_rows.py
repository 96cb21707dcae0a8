"""Activations between rows and convolutions are computed of the rows, channels last."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from .test_native_layout import Net, check, compiled

pytestmark = pytest.mark.usefixtures("level")


class Encoder(Net):
    """Layers of an encoder of speech."""

    def gelu(self, x):
        root, one, half = (self.const(values=np.float32(number)) for number in (np.sqrt(2), 1, 0.5))
        gate = self.add("Add", self.add("Erf", self.add("Div", x, root)), one)
        return self.add("Mul", self.add("Mul", x, gate), half)

    def layer(self, x, channels, outputs, activate, width=3, images=False):
        rank = 4 if images else 3
        scale, bias = self.const(channels), self.const(channels)
        rows = self.add("Transpose", x, perm=[0, *range(2, rank), 1])
        rows = self.add("LayerNormalization", rows, scale, bias, axis=-1)
        back = self.add("Transpose", rows, perm=[0, rank - 1, *range(1, rank - 1)])
        weights = self.const(outputs, channels, *[width] * (rank - 2))
        return self.add("Conv", activate(back), weights, strides=[2] * (rank - 2))


def transpositions(net, *outputs):
    """Steps that change an order of axes, without those of inputs and outputs."""
    device = compiled(net.model(*outputs))
    specs = [(port.shape, port.dtype) for port in device.inputs]
    steps = device.device_model.specializer.program(specs, None).steps
    names = [step.fn.__name__ for step in steps]
    return [name for name in names if "transpose" in name or name == "copy_nd"]


ACTIVATIONS = {
    "gelu": lambda net: net.gelu,
    "relu": lambda net: lambda x: net.add("Relu", x),
    "leaky": lambda net: lambda x: net.add("LeakyRelu", x, alpha=0.2),
    "two": lambda net: lambda x: net.add("Tanh", net.add("Mul", net.const(1, 1), x)),
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("images", [False, True])
def test_layers_of_an_encoder(kind, images, level):
    net = Encoder(1, 32, *([19, 23] if images else [67]))
    activate = ACTIVATIONS[kind](net)
    x = net.conv("x", 32, 32, 1) if images else net.add("Conv", "x", net.const(32, 32, 3))
    y = net.layer(x, 32, 48, activate, images=images)
    z = net.layer(y, 48, 32, activate, images=images)
    check(net, z, tolerance=4e-5 if level == "amx" else 4e-6)  # long sums are three of bfloat16
    # One each for what comes in and goes out.
    assert len(transpositions(net, z)) <= 2


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(5, 40)),
    st.integers(1, 40),
    st.sampled_from(list(ACTIVATIONS)),
    st.booleans(),
)
@examples(20)
def test_random_sequences(shape, outputs, kind, is_read):
    net = Encoder(*shape)
    activate, read = ACTIVATIONS[kind](net), []

    def kept(x):
        read.append(activate(x))
        return read[0]

    y = net.layer("x", shape[1], outputs, kept)
    check(net, y, *(read if is_read else ()), tolerance=1e-5)
