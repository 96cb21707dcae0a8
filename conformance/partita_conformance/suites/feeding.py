"""Inputs of checks: tensors for runners without a request, and operations that the device takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import onnx

import partita
from partita_conformance.bench.bench import Bench
from partita_conformance.inputs.models import Array, beside, parse
from partita_conformance.judging.requirements import NotApplicableError


class HasInputs(Protocol):
    """A compiled model, of an application or of a device."""

    @property
    def inputs(self) -> Sequence[partita.Port]:
        """Its input ports."""


def host_tensors(model: HasInputs, feeds: Mapping[str, Any]) -> list[partita.Tensor]:
    """The inputs of a run, one per port, in order: tensors over the arrays, not copies."""
    return [partita.HostTensor(feeds[port.name]) for port in model.inputs]


def sums_of_any_sizes(bench: Bench) -> onnx.ModelProto:
    """A model whose runs fail where the sizes of its inputs do not fit each other.

    Raises:
        NotApplicableError: The device does not take it.
    """
    proto = parse("g (float[N] a, float[M] b) => (float[K] y) { y = Add(a, b) }")
    if bench.refusals(proto):
        raise NotApplicableError("the device does not take Add of any sizes")
    return proto


def steps_taken(
    bench: Bench,
    steps: Sequence[str],
    ports: Sequence[str],
    weights: dict[str, Array],
    setting: Mapping[str, Any] | None = None,
) -> list[str]:
    """Those operations, of a model with one output of each, that a device takes under a setting.

    Args:
        bench: The device.
        steps: The operations, as :func:`~partita_conformance.inputs.models.beside` takes them.
        ports: Likewise.
        weights: Likewise.
        setting: Properties with other values than usual.
    """
    model = bench.read(beside(steps, ports, weights))
    properties = {**bench.target.config, **(setting or {})}
    answer = bench.core.query_model(model, bench.device, properties)
    return [step for step, op in zip(steps, model.ops, strict=True) if op.name in answer]
