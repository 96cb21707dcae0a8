"""Orders the compilation of kernels that a model will need, while its graph is still processed.

For a machine's first day, when no kernel is on disk. The order is a guess by operators, made before
shapes are known; kernels that it misses are compiled when the program is there, and those that it
has too many serve the next model.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partita.lowering import Array, Graph, Node
from partita.model.model import is_static
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.macrokernel import product_loop
from partita_cpu.gemm.packed_lhs import product
from partita_cpu.gemm.packing import kernels as packing
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_steps import BY_STORED, reads_stored
from partita_cpu.gemm.tile_kernels import STORED_PARTS
from partita_cpu.jit import compile_pool, disk_cache
from partita_cpu.jit.dispatch import available, order
from partita_cpu.jit.llvm_kernel import level_job
from partita_cpu.kernels.nhwc.channel_groups import fills_vectors
from partita_cpu.llvm.images.depthwise_pixels import ACROSS, depthwise_part, products_of
from partita_cpu.llvm.images.winograd import TAPS
from partita_cpu.llvm.module import groups_part, product_parts
from partita_cpu.runtime import call_layout, size_evaluator
from partita_cpu.scalar.activations import activate_floats
from partita_cpu.threads import call_queue, thread_pool
from partita_cpu.winograd import point_weights, tile_loop

_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_POOLS = frozenset({"AveragePool", "MaxPool"})
_ACTIVATIONS = frozenset({"Sigmoid", "Swish", "Gelu", "Erf"})
_OTHER_ACTIVATIONS = frozenset({"Elu", "HardSigmoid", "LeakyRelu", "Mish", "Softplus", "Tanh"})


def begin(policy: PrecisionPolicy, graph: Graph) -> None:
    """Has other processes compile what such a model needs, if nothing was compiled here so far.

    They do it, and import the compiler, while this one makes the program. What that waits for, the
    kernels that pack weights, comes first.
    """
    if not policy.native or not available():
        return
    level = level_job(policy.level)
    if disk_cache.is_stored(level.file):
        return
    compile_pool.order([level])
    order([*packing.CALLS, *thread_pool.CALLS])
    if any(not is_static(value.shape) for value in graph.inputs):
        order([*size_evaluator.CALLS, *call_layout.CALLS])
    compile_pool.order([level_job(policy.level, part) for part in sorted({*_parts(policy, graph)})])
    if any(node.op_type in _PRODUCTS for node in graph.nodes):
        order(product_loop.CALLS)
        order(product.CALLS if policy.arithmetic.planes > 1 else ())
        if any(node.op_type in _OTHER_ACTIVATIONS for node in graph.nodes):
            order([(activate_floats, (0, 0, 0, np.float32(0), np.float32(0)))])
    if any(_may_filter(policy, node) for node in graph.nodes):
        order([*point_weights.CALLS, *tile_loop.CALLS])
    if policy.threads == 1:  # queues of calls have a thread per stream
        order(call_queue.CALLS)


def _parts(policy: PrecisionPolicy, graph: Graph) -> Iterator[str]:
    """Parts of the level's kernels that operators need."""
    half = policy.arithmetic is Arithmetic.BF16 and policy.level.keeps_bfloat16
    rounds_all = policy.arithmetic is Arithmetic.BF16 and policy.level.tiles
    for node in graph.nodes:
        if node.op_type in _PRODUCTS and not rounds_all:
            yield from product_parts("_floats", policy.machine.tile_rows)
            weights = None if node.inputs[1] is None else node.inputs[1].const
            if weights is not None and reads_stored(policy, weights):
                yield STORED_PARTS[BY_STORED[weights.dtype]]
            elif weights is not None and _may_be_rounded(policy, weights):
                yield STORED_PARTS[Arithmetic.F32_BY_BF16]
        if node.op_type in _ACTIVATIONS:
            yield "_activated_halves" if half else "_activations"
        if node.op_type in _POOLS and len(node.attrs.get("kernel_shape", ())) == 2:
            yield "_windows"
        if node.op_type == "Conv" and node.attrs.get("group", 1) > 1 and node.inputs[1] is not None:
            sizes = tuple(n for n in node.inputs[1].shape or () if isinstance(n, int))
            if len(sizes) == 4 and sizes[1] == 1 and sizes[3] in ACROSS:
                products = products_of(sizes[3], half, policy.level)
                yield depthwise_part(sizes[3], products)
            elif fills_vectors(policy, node.attrs["group"], sizes):
                yield groups_part(sizes[1], half)
                if half:
                    yield "_winograd_halves"
        if _may_filter(policy, node):
            yield "_winograd"
            if half:
                yield "_winograd_halves"


def _may_be_rounded(policy: PrecisionPolicy, weights: Array) -> bool:
    """Whether a matrix becomes one of bfloat16, if few rows are multiplied by it."""
    large = weights.ndim == 2 and weights.size >= policy.stored_elements
    return policy.rounds_matrices and large and weights.dtype == np.float32


def _may_filter(policy: PrecisionPolicy, node: Node) -> bool:
    """Whether an operator may be computed by minimal filtering."""
    if not policy.filter_side or node.op_type != "Conv" or node.inputs[1] is None:
        return False
    window = (node.inputs[1].shape or ())[2:]
    strides = node.attrs.get("strides", ())
    return window == (TAPS, TAPS) and node.attrs.get("group", 1) == 1 and set(strides) <= {1}
