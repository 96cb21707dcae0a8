"""ONNX's node cases with tensors of other element types, declared so, and declared as before."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx

from partita_conformance.inputs.node_cases import node_cases

from . import guard, tensors

TYPES = tuple(
    np.dtype(kind)
    for kind in (
        *(np.float16, np.float32, np.float64, np.bool_, np.complex64, np.complex128),
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
        *(ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn),
        *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz),
    )
)


def case(seed, device="CPU"):
    """Reads, compiles and runs one model; what that raises is the case's outcome."""
    rng = np.random.default_rng(seed)
    name = tensors.names()[rng.integers(len(tensors.names()))]
    chosen = node_cases()[name]
    proto = chosen.proto()
    feeds = list(chosen.runs[0][0]) if chosen.runs else []
    arrays = [i for i, feed in enumerate(feeds) if isinstance(feed, np.ndarray)]
    together = TYPES[rng.integers(len(TYPES))] if rng.random() < 0.5 else None
    declared = rng.random() < 0.7
    for i in arrays:
        if rng.random() < (0.9 if together else 0.6):
            feeds[i] = of_type(feeds[i], together or TYPES[rng.integers(len(TYPES))])
            if declared:
                declare(proto.graph.input[i], feeds[i].dtype)
    if rng.random() < 0.3:  # a false type for what is computed too
        declare(
            proto.graph.output[rng.integers(len(proto.graph.output))],
            TYPES[rng.integers(len(TYPES))],
        )
    if declared and arrays and rng.random() < 0.4:
        feeds = tensors.make_constant(rng, proto, feeds, arrays)
    feeds = [guard.guarded(f) if isinstance(f, np.ndarray) else f for f in feeds]
    yield f"{name}, {'declared' if declared else 'as fed'}"
    tensors.run_patiently(proto, feeds, device)


def of_type(array, dtype):
    """The elements in another type, as far as it has them; texts become their lengths."""
    with np.errstate(all="ignore"):
        if array.dtype.hasobject or array.dtype.kind in "SU":
            array = np.array([len(text) for text in array.reshape(-1)]).reshape(array.shape)
        if array.dtype.kind == "c" and dtype.kind != "c":
            array = array.real
        if dtype.kind == "V" or array.dtype.kind == "V":  # ml_dtypes' types know numpy's alone
            array = array.astype(np.float64)
        return np.asarray(array).astype(dtype)


def declare(value, dtype):
    """Says that an input or output is a tensor of a type; its shape stays."""
    if value.type.HasField("tensor_type"):
        value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(dtype)
