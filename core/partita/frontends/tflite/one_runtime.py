"""ONE Runtime's environment variables for choosing backends, as a device string and pins.

They act where a TFLite or circle model is compiled and no device is named. Their meanings:
https://github.com/Samsung/ONE/blob/master/docs/howto/how-to-use-specific-backend.md
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from partita.errors import PropertyError

CODE_KEY = "partita.tflite.operator"
"""The entry of an operation's metadata with the code of the operator it came of."""

INDEX_KEY = "partita.tflite.index"
"""The entry of an operation's metadata with that operator's place in the file."""

PRODUCER = "TFLite"
"""What a model of a TFLite or circle file names as its producer."""

_DEVICES = {
    "acl_cl": "GPU",
    "acl_neon": "CPU",
    "cpu": "CPU",
    "gpu_cl": "GPU",
    "ruy": "CPU",
    "xnnpack": "CPU",
}
"""Backend to device; other names are taken for those of devices."""

_OPERATORS = {
    "ArgMax": "ARG_MAX ARG_MIN",
    "BatchMatMul": "BATCH_MATMUL",
    "BatchToSpaceND": "BATCH_TO_SPACE_ND",
    "BinaryArithmetic": "ADD SUB MUL DIV",
    "BroadcastTo": "BROADCAST_TO",
    "Comparison": "EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL",
    "Concat": "CONCATENATION",
    "Conv2D": "CONV_2D",
    "DepthToSpace": "DEPTH_TO_SPACE",
    "DepthwiseConv2D": "DEPTHWISE_CONV_2D",
    "ElementwiseActivation": "ELU LEAKY_RELU LOGISTIC RELU RELU6 RELU_N1_TO_1 TANH",
    "ElementwiseBinary": "FLOOR_DIV FLOOR_MOD LOGICAL_AND LOGICAL_OR MAXIMUM MINIMUM",
    "ElementwiseUnary": "ABS CAST COS DEQUANTIZE EXP FLOOR LOG LOGICAL_NOT NEG QUANTIZE ROUND RSQRT"
    " SIN SQRT SQUARE ZEROS_LIKE",
    "EmbeddingLookup": "EMBEDDING_LOOKUP",
    "ExpandDims": "EXPAND_DIMS",
    "Fill": "FILL",
    "FullyConnected": "FULLY_CONNECTED",
    "Gather": "GATHER",
    "If": "IF",
    "InstanceNorm": "INSTANCE_NORM",
    "L2Normalization": "L2_NORMALIZATION",
    "LocalResponseNormalization": "LOCAL_RESPONSE_NORMALIZATION",
    "LogSoftmax": "LOG_SOFTMAX",
    "LSTM": "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "OneHot": "ONE_HOT",
    "Pack": "PACK",
    "Pad": "PAD PADV2 MIRROR_PAD",
    "Pool2D": "AVERAGE_POOL_2D MAX_POOL_2D L2_POOL_2D",
    "Pow": "POW",
    "PReLU": "PRELU",
    "Range": "RANGE",
    "Rank": "RANK",
    "Reduce": "MEAN SUM REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD",
    "Reshape": "RESHAPE",
    "ResizeBilinear": "RESIZE_BILINEAR",
    "ResizeNearestNeighbor": "RESIZE_NEAREST_NEIGHBOR",
    "Reverse": "REVERSE_V2",
    "Select": "SELECT SELECT_V2",
    "Shape": "SHAPE",
    "Slice": "SLICE",
    "Softmax": "SOFTMAX",
    "SpaceToBatchND": "SPACE_TO_BATCH_ND",
    "SpaceToDepth": "SPACE_TO_DEPTH",
    "Split": "SPLIT",
    "SplitV": "SPLIT_V",
    "SquaredDifference": "SQUARED_DIFFERENCE",
    "Squeeze": "SQUEEZE",
    "StridedSlice": "STRIDED_SLICE",
    "Tile": "TILE",
    "TopKV2": "TOPK_V2",
    "Transpose": "TRANSPOSE",
    "TransposeConv": "TRANSPOSE_CONV",
    "Unpack": "UNPACK",
    "While": "WHILE",
}
"""ONE Runtime's name of an operation to the codes of TFLite and circle."""

_EXECUTORS = ("Linear", "Dataflow", "Parallel")
_PREFIX = "OP_BACKEND_"


def is_set(environ: Mapping[str, str]) -> bool:
    """Whether any of the variables says something."""
    names = ("BACKENDS", "EXECUTOR")
    return any(environ.get(name) for name in names) or any(
        name.startswith(_PREFIX) and value for name, value in environ.items()
    )


def placement(environ: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """The device string and properties that the variables ask for.

    ``BACKENDS`` lists backends between semicolons, the first of which takes what no other variable
    names; ``OP_BACKEND_ALLOPS`` names another one for that, ``OP_BACKEND_<operation>`` one for an
    operation, ``OP_BACKEND_MAP`` for operators by their places, ``EXECUTOR`` how parts run.

    Example:
        >>> placement({"BACKENDS": "cpu;acl_cl", "OP_BACKEND_Conv2D": "acl_cl"})
        ('HETERO:CPU,GPU', {'HETERO_PINS': ['meta:partita.tflite.operator=CONV_2D=GPU']})

    Raises:
        PropertyError: A variable names what is not known.
    """
    listed = [name for name in environ.get("BACKENDS", "cpu").split(";") if name.strip()]
    devices = [_device(name) for name in listed]
    if everything := environ.get(f"{_PREFIX}ALLOPS"):
        devices.insert(0, _device(everything))
    pins = []
    for name, backend in environ.items():
        operation = name.removeprefix(_PREFIX)
        if operation == name or operation == "ALLOPS" or not backend:
            continue
        if operation == "MAP":
            wanted = _by_place(backend)
        elif operation in _OPERATORS:
            device = _device(backend)
            wanted = [(f"{CODE_KEY}={code}", device) for code in _OPERATORS[operation].split()]
        else:
            raise PropertyError(
                f"The environment variable '{name}' names no operation that is known; known are "
                f"{', '.join(_OPERATORS)}. Unset it, or name a device where the model is compiled."
            )
        devices += [device for _, device in wanted]
        pins += [f"meta:{entry}={device}" for entry, device in wanted]
    config: dict[str, Any] = {"HETERO_PINS": pins} if pins else {}
    if executor := environ.get("EXECUTOR"):
        if executor not in _EXECUTORS:
            raise PropertyError(
                f"The environment variable 'EXECUTOR' is '{executor}'; {', '.join(_EXECUTORS)} "
                "are known."
            )
        config["HETERO_EXECUTOR"] = executor.upper()
    return f"HETERO:{','.join(dict.fromkeys(devices))}", config


def _device(backend: str) -> str:
    name = backend.strip()
    return _DEVICES.get(name, name)


def _by_place(text: str) -> list[tuple[str, str]]:
    """Places of operators and devices, out of ``10=acl_cl;11=cpu``."""
    wanted = []
    for part in filter(None, text.split(";")):
        form = re.fullmatch(r"\s*(\d+)\s*=\s*(\w+)\s*", part)
        if form is None:
            raise PropertyError(
                f"The environment variable '{_PREFIX}MAP' holds '{part}'; write PLACE=BACKEND with "
                "semicolons between."
            )
        wanted.append((f"{INDEX_KEY}={form[1]}", _device(form[2])))
    return wanted
