"""Object files of kernels, translated without numba: for those that its compiler need not see."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

from partita_cpu.jit.deferred_numba import ir, types_from
from partita_cpu.jit.kernel_definition import Effort, KernelDefinition, Kinds
from partita_cpu.jit.llvm_kernel import target_machine
from partita_cpu.jit.record_arguments import grouped
from partita_cpu.jit.translation import kinds
from partita_cpu.jit.translation.foreign import entry_type, received
from partita_cpu.jit.translation.functions import Functions
from partita_cpu.jit.translation.kinds import UntranslatableError, of_argument
from partita_cpu.jit.translation.values import NOTHING, Value, tuple_of

ENTRY = "kernel"
"""What the function in an object file is called."""


def object_of(kernel: KernelDefinition, given: Kinds) -> bytes:
    """An object file with a function `ENTRY`, called as numba calls its functions.

    Args:
        kernel: The kernel.
        given: Kinds of its arguments, without the share.

    Raises:
        UntranslatableError: It holds something that only numba takes.
    """
    from llvmlite import binding

    machine = _machine()
    parsed = binding.parse_assembly(text_of(kernel, given))
    parsed.data_layout = str(machine.target_data)
    _optimize(parsed, kernel.effort, machine)
    code: bytes = machine.emit_object(parsed)
    return code


_FLATTENING = "always_inliner", "global_dead_code_eliminate"

_CLEANING = (
    *("sroa", "simplify_cfg", "instruction_combine", *_FLATTENING),
    *("sroa", "simplify_cfg", "instruction_combine", "new_gvn", "simplify_cfg"),
    *("aggressive_dce", "loop_rotate", "instruction_combine", "simplify_cfg"),
)
"""LLVM's passes for `Effort.CALLS`: each function is simplified, and then what they become."""


def _optimize(module: Any, effort: Effort, machine: Any) -> None:
    """Runs LLVM's passes.

    Those of a level simplify functions again each time that others are inlined into them, which
    takes most of the time where many are.
    """
    from llvmlite import binding

    options = binding.create_pipeline_tuning_options(speed_level=3 if effort is Effort.ALL else 1)
    options.loop_vectorization, options.slp_vectorization = True, False
    options.loop_unrolling = effort is Effort.ALL
    builder = binding.create_pass_builder(machine, options)
    if effort is not Effort.ALL:
        first = binding.create_new_module_pass_manager()
        for name in _CLEANING if effort is Effort.CALLS else _FLATTENING:
            getattr(first, f"add_{name}_pass")()
        first.run(module, builder)
    if effort is not Effort.CALLS:
        builder.getModulePassManager().run(module, builder)


def text_of(kernel: KernelDefinition, given: Kinds) -> str:
    """A kernel in LLVM's language; see :func:`object_of`."""
    share = () if kernel.apart else (kinds.int64, kinds.int64)
    wanted = [*map(of_argument, given), *share]
    module = ir.Module(ENTRY)
    module.triple = _triple()
    function = ir.Function(module, entry_type(wanted, kernel.answers), ENTRY)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    with types_from(kinds):
        flat = [*received(wanted, function.args[2:])]
        functions = Functions(module, flat=kernel.effort is not Effort.ALL)
        given_values = _grouped(kernel, flat)
        result, status = functions.call_kernel(builder, kernel, given_values)
    if kernel.answers:
        if result.kind != kinds.int64:
            raise UntranslatableError(f"a result of kind {result.kind}")
        builder.store(result.number, function.args[0])
    elif result != NOTHING:
        raise UntranslatableError(f"a result of kind {result.kind}")
    builder.ret(status)
    return str(module)


def _grouped(kernel: KernelDefinition, flat: Sequence[Value]) -> Sequence[Value]:
    return grouped(kernel.py_func, flat, lambda record, items: tuple_of(items, record))


def _triple() -> str:
    from llvmlite import binding

    triple: str = binding.get_process_triple()
    return triple


def prepare() -> None:
    """Loads LLVM, which :func:`object_of` needs."""
    ir.Module(ENTRY)
    _machine()


@functools.cache
def _machine() -> Any:
    """This processor, or the one that numba is told to compile for, with what it has."""
    from llvmlite import binding

    name = os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        features = binding.get_host_cpu_features().flatten()
    return target_machine(cpu=name, features=features, opt=3)


__all__ = ["ENTRY", "UntranslatableError", "object_of", "prepare", "text_of"]
