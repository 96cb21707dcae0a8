"""Toolkit for back-ends: lowered graph, fusion, shape specialization, memory plan.

A back-end takes a model through these stages, each a folder or module here::

    Model --models/--> Graph --fusion/, nhwc/--> Graph --specialize--> Program --the back-end--> run

- `graph`: the mutable graph that passes rewrite; `models.model_lowering` makes it of a model.
- `fusion` and `nhwc`: passes that all back-ends share; `constant_folding`.
- `kernel_table` and `emitter`: which function, the emitter, records the steps of an operator.
- `specialize`: calls emitters for concrete shapes (`emission`) through a `builder`, and caches the
  resulting `program`, whose tensors lie where `memory_plan` says.
- `shapes`: shape inference and checks; `recording`: programs with symbolic sizes, which are made
  once for many shapes.

`target` has all hooks that a back-end may implement.
"""

from __future__ import annotations

from partita.lowering.constant_folding import (
    fold_constants,
    fold_quantized_weights,
    reference_fold,
)
from partita.lowering.emission.builder import Builder
from partita.lowering.emitter import Emitter, GraphBody, NeedsValue, OtherSizes
from partita.lowering.fusion import fuse, fuse_for_shapes, fuse_levels
from partita.lowering.fusion.activation import NO_ACTIVATION, Activation, ActivationCode
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.models.function_expansion import expand_functions
from partita.lowering.models.model_lowering import lower, lower_ir, lower_proto
from partita.lowering.nhwc.conversion import ChannelsLast
from partita.lowering.program import (
    Array,
    Elements,
    Operand,
    OpRecord,
    Packed,
    Program,
    ProgramMaker,
    Step,
)
from partita.lowering.specialize import Specializer, made_ahead
from partita.lowering.target import Target
from partita.lowering.transformed_weights import Form, Prepacked

__all__ = [
    "NO_ACTIVATION",
    "Activation",
    "ActivationCode",
    "Array",
    "Builder",
    "ChannelsLast",
    "Elements",
    "Emitter",
    "Form",
    "Graph",
    "GraphBody",
    "NeedsValue",
    "Node",
    "OpRecord",
    "Operand",
    "OtherSizes",
    "Packed",
    "Prepacked",
    "Program",
    "ProgramMaker",
    "Specializer",
    "Step",
    "Target",
    "Value",
    "expand_functions",
    "fold_constants",
    "fold_quantized_weights",
    "fuse",
    "fuse_for_shapes",
    "fuse_levels",
    "lower",
    "lower_ir",
    "lower_proto",
    "made_ahead",
    "reference_fold",
]
