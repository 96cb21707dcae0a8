"""A model of the error of matrix products, by arithmetic and by the number of terms.

The largest error of a product, relative to its largest result, is expected to be ``unit * depth **
power``. What splitting a factor in bfloat16 parts leaves out is the same part of every term.
Rounding errors of float32 sums grow with the number of terms: the longer sums are, the less
splitting adds to the error that there is anyway.
"""

from __future__ import annotations

from typing import NamedTuple

from partita_cpu.gemm.arithmetic import Arithmetic


class Fit(NamedTuple):
    """An error as a function of depth.

    Attributes:
        unit: Of a sum of one term.
        power: How it grows with the number of terms.
    """

    unit: float
    power: float


FITTED = {
    Arithmetic.F32: Fit(3.37e-8, 0.395),
    Arithmetic.BF16X6: Fit(2.03e-8, 0.373),
    Arithmetic.BF16X3: Fit(3.93e-6, 0.030),
    Arithmetic.BF16: Fit(1.93e-3, 0.037),
    Arithmetic.F16: Fit(2.35e-4, 0.037),
}
"""What ``benchmarks/cpu_product_errors.py`` prints for the networks that it fits."""


def predicted_error(arithmetic: Arithmetic, depth: int) -> float:
    """The largest error of a product in parts of its largest result, as to be expected."""
    fit = FITTED[arithmetic]
    return float(fit.unit * max(depth, 1) ** fit.power)


def excess(arithmetic: Arithmetic, depth: int) -> float:
    """How many times float32's own error a product is off; less for longer sums."""
    return predicted_error(arithmetic, depth) / predicted_error(Arithmetic.F32, depth)
