"""Constant folding before any shape is known: what depends on weights alone is computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.errors import CompileError, OperandError
from partita.lowering.emission.builder import Builder
from partita.lowering.emission.errors import blamed_on
from partita.lowering.emitter import Emitter
from partita.lowering.graph import Graph, Node, Value, taken_branch
from partita.lowering.loop_states import release_states
from partita.lowering.node_proto import model_proto, node_proto
from partita.lowering.program import Array, Operand, ProgramMaker, plain
from partita.lowering.shapes.fold_allowance import FoldAllowance, TooMuchToFold
from partita.lowering.shapes.shape_rules import check_demands
from partita.lowering.target import Target


def fold_constants(
    graph: Graph, target: Target, stays: Callable[[Node], bool] | None = None
) -> None:
    """Replaces nodes whose inputs are all constants by constants, and Ifs on them by a branch.

    Works on the graph in place, bodies included, which read what is constant among their states.
    Nodes that the target has no emitter for stay, and so do those whose results would be more than
    may be made, or take more operations than may be; what is left of that is for programs.

    Args:
        graph: Changed.
        target: Whose kernels compute the nodes.
        stays: Which nodes are not folded though their inputs are constants.

    Raises:
        CompileError: An If has a constant for its condition that is not of one element.
    """
    release_states(graph)
    allowance = target.allowance(graph)
    _fold_nodes(graph, target, allowance, stays)
    target.fold_bytes, target.fold_operations = allowance.left, allowance.operations


_QUANTIZES = frozenset({"QuantizeLinear", "com.microsoft::QuantizeLinear"})


def fold_quantized_weights(graph: Graph, target: Target) -> None:
    """Quantizes constants that the graph quantizes, and resolves other names of constants.

    As training for TensorRT leaves graphs, weights are floats in front of QuantizeLinear and
    DequantizeLinear. To be run before `fuse_levels`, which looks for constant levels; what makes
    floats of these stays.

    Args:
        graph: Changed, if anything in it is quantized so.
        target: Whose kernels compute the levels.
    """
    if any(
        node.kind in _QUANTIZES and node.inputs[0] is not None and node.inputs[0].const is not None
        for node in graph.all_nodes()
    ):
        folded = _QUANTIZES | {"Identity"}
        fold_constants(graph, target, lambda node: node.kind not in folded)


def _fold_nodes(
    graph: Graph,
    target: Target,
    allowance: FoldAllowance,
    stays: Callable[[Node], bool] | None,
) -> None:
    kept: list[Node] = []
    queue = list(reversed(graph.nodes))
    while queue:
        node = queue.pop()
        for body in node.graphs():
            _fold_nodes(body, target, allowance, stays)
        if any(value is not None and value.const is None for value in node.inputs):
            kept.append(node)
        elif node.kind == "If":
            branch, names = _taken(node)
            kept.extend(branch.nodes)  # folded above, as far as that goes
            queue.extend(reversed(names))
        elif (stays is not None and stays(node)) or not _fold(node, target, allowance):
            kept.append(node)
    graph.nodes = kept


def _taken(node: Node) -> tuple[Graph, list[Node]]:
    """The branch that an If on a constant takes, and names in the outer graph for its outputs."""
    source = node.inputs[0] if node.inputs else None
    branch = taken_branch(node, None if source is None else source.const)
    names = [
        Node("Identity", [source], [target], name=node.name, origins=node.origins)
        for source, target in zip(branch.outputs, node.outputs, strict=False)
        if target is not None
    ]
    return branch, names


def _fold(node: Node, target: Target, allowance: FoldAllowance) -> bool:
    """Computes a node of constants into its output values; false if that is not possible."""
    if node.kind == "Identity":
        results: Sequence[Any] = [node.inputs[0]]
    else:
        operands = [None if value is None else _operand(value) for value in node.inputs]
        try:
            with blamed_on(node):
                emitter = target.find(node, operands)
            check_demands(node, operands)  # kernels trust it
        except CompileError:
            return False
        if not emitter.folds:
            return False
        builder = Builder(_operand, target.prepacked, _no_body, allowance=allowance)
        computed = computed_now(builder, node, operands, emitter, target)
        if computed is None:
            return False
        results = computed
    for position, value in enumerate(node.outputs):
        if value is None:
            continue
        result = results[position] if position < len(results) else None
        if result is None:
            return False
        value.const = result.const
        value.dtype, value.shape = value.const.dtype, value.const.shape
    return True


def computed_now(
    builder: Builder,
    node: Node,
    operands: Sequence[Operand | None],
    emitter: Emitter,
    target: Target,
) -> Sequence[Any] | None:
    """What a node of constants computes, begun as folding.

    Args:
        builder: Of the program; its allowance is what may be made.
        node: The node.
        operands: Its inputs.
        emitter: The target's for it.
        target: Which folds it itself, or whose emitter does.

    Returns:
        Operands; ``None`` if they would be more than may be made or take too many operations, and
        nothing was begun.

    Raises:
        CompileError: It cannot be computed.
    """
    left = builder.allowance.left
    if not builder.allowance.begin(node, operands):
        return None
    builder.begin(node, True)
    try:
        with blamed_on(node):
            if target.fold is not None:
                arrays = target.fold(node, [None if o is None else o.const for o in operands])
                return [builder.constant(array) for array in arrays]
            emitted = emitter.emit(builder, node, *operands)
    except TooMuchToFold:
        builder.allowance.left = left
        builder.ops.pop()
        return None
    return emitted if isinstance(emitted, (tuple, list)) else (emitted,)


def _operand(value: Value) -> Operand:
    if value.const is None:
        raise CompileError(f"Value '{value.name}' is not constant.")
    array = plain(value.const)
    return Operand(array.shape, array.dtype, array, lasting=True)


def _no_body(graph: Graph, captures: Sequence[Value]) -> ProgramMaker:
    raise CompileError("Operators with bodies are not folded.")


def reference_fold(node: Node, arrays: Sequence[Array | None]) -> list[Array]:
    """Computes one node with ONNX's reference evaluator; a :attr:`Target.fold` for any device.

    Raises:
        OperandError: Numbers are not what the operation takes.
        CompileError: The evaluator fails, as it does on attributes that it does not know.
    """
    from onnx.reference import ReferenceEvaluator

    from partita.lowering.corrected_reference import corrected_for

    proto = node_proto(node)
    model = model_proto(node, proto, [(node.domain, node.version)])
    feeds = {name: array for name, array in zip(proto.input, arrays, strict=True) if name}
    try:
        evaluator = ReferenceEvaluator(model, new_ops=list(corrected_for(node.version)))
        with np.errstate(all="ignore"):  # infinities are results like others
            computed = iter(evaluator.run(None, feeds))
    except Exception as error:  # the evaluator checks little: it raises what Python happens to
        numbers = isinstance(error, (ArithmeticError, IndexError, ValueError))
        kind = OperandError if numbers else CompileError
        raise kind(
            f"Operation '{node.name}' ({node.model_kind}) cannot be computed from its constants by "
            f"ONNX's reference ({type(error).__name__}: {error}); check its attributes and inputs."
        ) from error
    return [np.asarray(next(computed)) if name else np.empty(0) for name in proto.output]
