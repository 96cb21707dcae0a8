"""The activation that fusion attaches to a node: ``node.attrs["activation"]``."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ActivationCode(enum.IntEnum):
    """A number per function, so that kernels can switch on it."""

    NONE = 0
    RELU = 1
    CLIP = 2
    LEAKY_RELU = 3
    HARD_SWISH = 4
    HARD_SIGMOID = 5
    SIGMOID = 6
    TANH = 7
    SILU = 8
    GELU = 9
    GELU_TANH = 10
    MISH = 11
    ELU = 12
    SOFTPLUS = 13


@dataclass(frozen=True, slots=True)
class Activation:
    """A function of one element, applied after bias and residual.

    ==============  =====================================================================
    code            result
    ==============  =====================================================================
    NONE            x
    RELU            max(x, 0)
    CLIP            min(max(x, alpha), beta); infinities stand for absent bounds
    LEAKY_RELU      x if x >= 0 else alpha * x
    HARD_SWISH      x * max(0, min(1, x / 6 + 0.5))
    HARD_SIGMOID    max(0, min(1, alpha * x + beta))
    SIGMOID         1 / (1 + exp(-x))
    TANH            tanh(x)
    SILU            x / (1 + exp(-x))
    GELU            x / 2 * (1 + erf(x / sqrt(2)))
    GELU_TANH       x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))
    MISH            x * tanh(log(1 + exp(x)))
    ELU             x if x >= 0 else alpha * (exp(x) - 1)
    SOFTPLUS        log(1 + exp(x))
    ==============  =====================================================================

    NaN stays NaN in all of them.

    Attributes:
        code: Which function.
        alpha: Its first parameter; 0 where it has none.
        beta: Its second parameter; 0 where it has none.
    """

    code: ActivationCode
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def kind(self) -> str:
        """The function's ONNX operator: ``"Relu"``, ``"HardSwish"``, ..."""
        name = "GELU" if self.code is ActivationCode.GELU_TANH else self.code.name
        return "".join(part.capitalize() for part in name.split("_"))


CLIP_DEFAULTS = (-3.4028234663852886e38, 3.4028234663852886e38)
"""Limits of a Clip before opset 11 that names none, whatever its type; they are in ONNX's schema.

Later ones are inputs, without which infinity passes (docs/adr/0028-onnx-cases-judge.md).
"""

NO_ACTIVATION = Activation(ActivationCode.NONE)
"""The activation that changes nothing."""
