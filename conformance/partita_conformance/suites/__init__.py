"""The checks, one module per suite."""

from partita.frontends.onnx.lazy_onnx_ir import import_onnx_ir

import_onnx_ir()  # before a suite does, which would bring sympy to each process of the kit
