"""Turns Python into machine code, keeps that on disk, and loads it without a compiler.

A kernel is a function under :func:`kernel.jit`, or `loop_kernel.loop` if it allocates nothing; both
make a `kernel_definition.KernelDefinition` of it. Nothing is compiled before it is called:

1. `dispatch.entry_of` asks for the kernel with arguments of some kinds. What the machine code
   depends on, `code_hash.fingerprint`, names its file, which `disk_cache.read` looks for.
2. If there is none, `translation.object_code.object_of` makes an object file of the function's
   syntax; what it refuses, numba compiles (`codegen.object_of`). Processes of `compile_pool` do so
   side by side for what a model needs. `elf_image.image_of` keeps what can be reached of it.
3. `elf_image.load` places the image in memory. From then on the kernel is an address.
4. A row of a call table holds that address with the arguments, which `trampoline.trampoline` reads.
   Python itself enters machine code by `foreign_call.invoke` alone.

Kernels that are written in LLVM's language take the same way from 2 on (`llvm_kernel.addresses`).
Where machine code cannot be loaded so (`dispatch.available`), as with ``PARTITA_CPU_ISA=portable``,
numba compiles and calls all kernels by itself.
"""
