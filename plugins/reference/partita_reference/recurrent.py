"""LSTM, GRU and RNN with all their attributes, in float64, by ONNX's equations.

The originals leave out ``clip``, ``activations``, ``input_forget`` and ``sequence_lens``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]
Function = Callable[[Array, float, float], Array]
State = tuple[Array, ...]

_HUNDREDTH, _FIFTH = float(np.float32(0.01)), float(np.float32(0.2))

ACTIVATIONS: dict[str, tuple[Function, float | None, float | None]] = {
    "sigmoid": (lambda x, a, b: 1 / (1 + np.exp(-x)), None, None),
    "tanh": (lambda x, a, b: np.tanh(x), None, None),
    "relu": (lambda x, a, b: np.maximum(x, 0), None, None),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: np.where(x < 0, a * x, x), _HUNDREDTH, None),
    "thresholdedrelu": (lambda x, a, b: np.where(x < a, 0, x), 1.0, None),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), _FIFTH, 0.5),
    "elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(x), x), 1.0, None),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), None, None),
    "softplus": (lambda x, a, b: np.logaddexp(0, x), None, None),
}
"""Each with the default of alpha and of beta; ``None`` where it takes none."""


def _activations(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[Callable[[Array], Array]]:
    """The activations of all directions, which take alphas and betas in turn."""
    left = [list(alphas or ()), list(betas or ())]

    def one(name: str) -> Callable[[Array], Array]:
        function, *defaults = ACTIVATIONS[name.lower()]
        a, b = (
            given.pop(0) if default is not None and given else default or 0.0
            for given, default in zip(left, defaults, strict=True)
        )
        return lambda x: function(x, a, b)

    return [one(name) for name in names]


class _Recurrent(OpRun):
    """What the three have in common: directions, lengths, layout and biases."""

    usual: tuple[str, ...]
    """Activations of one direction."""
    gates: int

    def _run(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        *initial: Array | None,
        activations: Sequence[str] | None = None,
        direction: str | None = None,
        layout: int | None = None,
        **attributes: Any,
    ) -> tuple[Array, ...]:
        if layout:
            x = x.swapaxes(0, 1)
        steps, batch = x.shape[:2]
        directions, hidden = w.shape[0], r.shape[2]
        if directions != (2 if direction == "bidirectional" else 1):
            raise ValueError(f"direction is {direction!r}, but W holds {directions}")
        names = list(activations or self.usual * directions)[: directions * len(self.usual)]
        if len(names) < directions * len(self.usual):
            raise ValueError(f"{len(names)} activations for {directions} directions")
        functions = _activations(
            names, attributes.get("activation_alpha"), attributes.get("activation_beta")
        )
        bound = attributes.get("clip") or np.inf
        counts = np.full(batch, steps) if lengths is None else np.clip(lengths, 0, steps)
        peepholes = initial[2] if len(initial) > 2 else None
        states = [self._initial(t, (directions, batch, hidden), layout) for t in initial[:2]]
        states += [np.zeros((directions, batch, hidden))] * (self._states() - len(states))
        y, last = np.zeros((steps, directions, batch, hidden)), [s.copy() for s in states]
        for d in range(directions):
            backwards = direction == "reverse" or d == 1
            bias = np.zeros(2 * self.gates * hidden) if b is None else b[d]
            weights = tuple(t.astype(np.float64) for t in (w[d], r[d], bias))
            peep = np.zeros(3 * hidden) if peepholes is None else peepholes[d].astype(np.float64)
            own = functions[d * len(self.usual) : (d + 1) * len(self.usual)]
            for n in range(batch):
                state = tuple(s[d, n] for s in states)
                for step in range(counts[n]):
                    at = counts[n] - 1 - step if backwards else step
                    state = self._step(
                        x[at, n].astype(np.float64), state, weights, peep, own, bound, attributes
                    )
                    y[at, d, n] = state[0]
                for kept, value in zip(last, state, strict=True):
                    kept[d, n] = value
        results = [y, *last]
        if layout:
            results = [y.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in last)]
        return tuple(t.astype(x.dtype) for t in results[: len(self.onnx_node.output)])

    def _states(self) -> int:
        return 1

    def _initial(self, given: Array | None, shape: tuple[int, ...], layout: int | None) -> Array:
        if given is None:
            return np.zeros(shape)
        wide: Array = given.astype(np.float64)
        return wide.swapaxes(0, 1) if layout else wide

    def _step(
        self,
        x: Array,
        state: State,
        weights: tuple[Array, ...],
        peepholes: Array,
        functions: Sequence[Callable[[Array], Array]],
        bound: float,
        attributes: dict[str, Any],
    ) -> State:
        """The state after one element of one sequence.

        Gates are kept within ``bound`` of 0 before their activation; a cell is not, as in
        onnxruntime.

        Args:
            x: The element's products with the weights of the input, gates one after another.
            state: The state before.
            weights: Weights and biases of the recurrence.
            peepholes: An LSTM's, gates one after another.
            functions: The activations.
            bound: How far gates may be from 0 before their activation.
            attributes: The operator's.
        """
        raise NotImplementedError  # each operator below has its own


class RNN(_Recurrent):
    """``H = f(X W + H R + B)``."""

    usual = ("Tanh",)
    gates = 1

    def _step(self, x: Any, state: Any, weights: Any, *others: Any) -> Any:
        w, r, b = weights
        _, functions, bound, _ = others
        return (functions[0](np.clip(w @ x + r @ state[0] + sum(np.split(b, 2)), -bound, bound)),)


class GRU(_Recurrent):
    """Gates z, r and h; ``linear_before_reset`` says what r is multiplied with."""

    usual = ("Sigmoid", "Tanh")
    gates = 3

    def _step(self, x: Any, state: Any, weights: Any, *others: Any) -> Any:
        w, r, b = weights
        _, functions, bound, attributes = others
        (before,) = state

        def f(x: Array) -> Any:
            return functions[0](np.clip(x, -bound, bound))

        wz, wr, wh = np.split(w @ x + b[: len(b) // 2], 3)
        rz, rr, rh = np.split(r, 3)
        bz, br, bh = np.split(b[len(b) // 2 :], 3)
        z = f(wz + rz @ before + bz)
        reset = f(wr + rr @ before + br)
        if attributes.get("linear_before_reset"):
            h = wh + reset * (rh @ before + bh)
        else:
            h = wh + rh @ (reset * before) + bh
        h = functions[1](np.clip(h, -bound, bound))
        return ((1 - z) * h + z * before,)


class LSTM(_Recurrent):
    """Gates i, o, f and c, with peepholes; ``input_forget`` couples i and f."""

    usual = ("Sigmoid", "Tanh", "Tanh")
    gates = 4

    def _states(self) -> int:
        return 2

    def _step(self, x: Any, state: Any, weights: Any, *others: Any) -> Any:
        w, r, b = weights
        peepholes, functions, bound, attributes = others
        before, cell = state
        sums = np.split(w @ x + r @ before + sum(np.split(b, 2)), 4)
        pi, po, pf = np.split(peepholes, 3)
        i = functions[0](np.clip(sums[0] + pi * cell, -bound, bound))
        f = functions[0](np.clip(sums[2] + pf * cell, -bound, bound))
        f = 1 - i if attributes.get("input_forget") else f
        cell = f * cell + i * functions[1](np.clip(sums[3], -bound, bound))
        o = functions[0](np.clip(sums[1] + po * cell, -bound, bound))
        return o * functions[2](cell), cell
