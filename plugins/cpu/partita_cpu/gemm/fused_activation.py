"""Splits an activation in what tile kernels compute (bounds and a gate) and what is left."""

from __future__ import annotations

import math

from partita.lowering import NO_ACTIVATION, Activation, ActivationCode
from partita_cpu.gemm.product_records import Epilogue, gate_word
from partita_cpu.jit import llvm_kernel
from partita_cpu.llvm import activations
from partita_cpu.llvm.levels import Level


def split_gate(activation: Activation) -> tuple[int, Activation]:
    """The word of the gate that tile kernels know if the activation is it, and what remains then.

    A HardSwish whose parameters are not 0 has a factor and a summand; see `passes.scaled_gates`.
    """
    if activation.code is ActivationCode.HARD_SWISH:
        return gate_word(activation.alpha or 1.0, activation.beta), NO_ACTIVATION
    return 0, activation


def bounds_of(activation: Activation | None) -> tuple[float, float, Activation]:
    """Lower bound, upper bound, and the activation that remains to be applied."""
    act = activation or NO_ACTIVATION
    if act.code is ActivationCode.RELU:
        return 0.0, math.inf, NO_ACTIVATION
    if act.code is ActivationCode.CLIP:
        return act.alpha, act.beta, NO_ACTIVATION
    return -math.inf, math.inf, act


def _left_over(activation: Activation | None) -> ActivationCode:
    """What bounds and the gate do not express of an activation."""
    return split_gate(bounds_of(activation)[2])[1].code


def needs_pass(activation: Activation | None) -> bool:
    """Whether bounds and the gate do not express an activation."""
    return bool(_left_over(activation))


def has_kernel(activation: Activation | None) -> bool:
    """Whether a kernel applies what bounds and the gate do not express."""
    return _left_over(activation) in activations.KERNELS


def activation_kernel(level: Level, activation: Activation | None, half: bool) -> int:
    """Address of `llvm.activations.activate_rows`, or for bfloat16 of `activate_halves`.

    It is 0 where bounds and the gate express all of it.
    """
    if not needs_pass(activation):
        return 0
    name = activations.KERNELS[_left_over(activation)]
    if half:
        return llvm_kernel.addresses(level, "_activated_halves")[f"{name}_halves"]
    return llvm_kernel.addresses(level, "_activations")[name]


def epilogue_of(activation: Activation | None, has_residual: bool) -> Epilogue:
    """What drivers of tiles do to sums.

    Args:
        activation: What is applied to sums; ``None`` for nothing.
        has_residual: Whether an operand of the result's shape is added before.
    """
    low, high, act = bounds_of(activation)
    gate, act = split_gate(act)
    code = int(act.code), float(act.alpha), float(act.beta)
    return Epilogue(int(has_residual), low, high, gate, *code)
