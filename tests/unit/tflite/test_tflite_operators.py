"""Each operator of TFLite: what onnxruntime makes of the translation is what LiteRT answers."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from flatbuffers import flexbuffers
from tflite_files import File, litert

import partita

RNG = np.random.default_rng(7)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def table(name, rows):
    """A case for each row: what makes a file, with the row's values."""

    def enter(function):
        for row in rows:
            label = "-".join(str(part) for part in row if isinstance(part, (str, int)))
            CASES[f"{name}-{label}"] = lambda row=row: function(*row)
        return function

    return enter


def numbers(shape, dtype="float32", low=-3, high=3):
    if dtype == "bool":
        return RNG.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return RNG.integers(low, high, shape).astype(dtype)
    return RNG.uniform(low, high, shape).astype(dtype)


def one(code, arrays, shape, options=None, dtype="float32", constants=(), **fields):
    """A file of one operator; the inputs at places ``constants`` are constants."""
    file = File()
    places, feeds = [], []
    for index, array in enumerate(arrays):
        array = np.asarray(array)
        if index in constants:
            places.append(file.main.constant(array))
        else:
            places.append(file.main.input(array.shape, array.dtype))
            feeds.append(array)
    outputs = shape if isinstance(shape, list) else [(shape, dtype)]
    made = [file.main.tensor(*output) for output in outputs]
    file.main.op(code, places, made, options, **fields)
    file.main.outputs(*made)
    return file.bytes(), feeds


IMAGE = (1, 6, 7, 4)

UNARY = "ABS CEIL COS ELU EXP FLOOR HARD_SWISH LOGISTIC NEG RELU RELU6 RELU_N1_TO_1 ROUND SIGN SIN"
UNARY += " SQUARE TANH ZEROS_LIKE RELU_0_TO_1"


@table("unary", [(code,) for code in UNARY.split()])
def unary(code):
    return one(code, [numbers((2, 5))], (2, 5))


@table("positive", [("LOG",), ("SQRT",), ("RSQRT",)])
def positive(code):
    return one(code, [numbers((2, 5), low=0.1)], (2, 5))


@table(
    "binary", [(code, dtype) for code in ("ADD", "SUB", "MUL") for dtype in ("float32", "int32")]
)
def binary(code, dtype):
    name = f"{code.capitalize()}Options"
    arrays = [numbers((2, 3, 4), dtype), numbers((3, 1), dtype)]
    act = 1 if dtype == "float32" else 0
    return one(code, arrays, (2, 3, 4), name, dtype, fusedActivationFunction=act)


@table(
    "pair",
    [
        (code, dtype)
        for code in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "FLOOR_MOD", "FLOOR_DIV")
        for dtype in ("float32", "int32")
    ],
)
def pair(code, dtype):
    arrays = [numbers((2, 3, 4), dtype, -9, 9), numbers((4,), dtype, 1, 4)]
    return one(code, arrays, (2, 3, 4), None, dtype)


@case
def divide():
    arrays = [numbers((2, 3)), numbers((2, 3), low=1)]
    return one("DIV", arrays, (2, 3), "DivOptions", fusedActivationFunction=3)


@case
def power():
    return one("POW", [numbers((4,), low=0.5), numbers((4,))], (4,))


COMPARE = "EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL"


@table("compare", [(code,) for code in COMPARE.split()])
def compare(code):
    return one(code, [numbers((3, 4), "int32"), numbers((4,), "int32")], (3, 4), dtype="bool")


@table("logic", [("LOGICAL_AND",), ("LOGICAL_OR",)])
def logic(code):
    return one(code, [numbers((3, 4), "bool"), numbers((3, 4), "bool")], (3, 4), dtype="bool")


@case
def logical_not():
    return one("LOGICAL_NOT", [numbers((3, 4), "bool")], (3, 4), dtype="bool")


@case
def add_n():
    return one("ADD_N", [numbers((3,)) for _ in range(3)], (3,), "AddNOptions")


@case
def leaky_relu():
    return one("LEAKY_RELU", [numbers((3, 4))], (3, 4), "LeakyReluOptions", alpha=0.2)


@case
def prelu():
    return one("PRELU", [numbers(IMAGE), numbers((1, 1, 4))], IMAGE, constants=[1])


@table("gelu", [(False,), (True,)])
def gelu(approximate):
    return one("GELU", [numbers((3, 4))], (3, 4), "GeluOptions", approximate=approximate)


@table("cast", [("float32", "int32"), ("int32", "float32"), ("bool", "float32"), ("int32", "bool")])
def cast(source, target):
    return one("CAST", [numbers((3, 4), source)], (3, 4), "CastOptions", target)


@case
def atan2():
    y, x = np.float32([0, 1, -1, 2, -2, 3, 0]), np.float32([1, 0, 0, -2, -2, 4, -1])
    return one("ATAN2", [y, x], (7,))


@case
def bucketize():
    arrays = [np.float32([-5, 0, 1, 3.5, 90])]
    return one("BUCKETIZE", arrays, (5,), "BucketizeOptions", "int32", boundaries=[0.0, 1.0, 10.0])


@table("right_shift", [("int8",), ("int32",)])
def right_shift(dtype):
    arrays = [numbers((6,), dtype, -100, 100), np.array([0, 1, 2, 3, 6, 7], dtype)]
    return one("RIGHT_SHIFT", arrays, (6,), "RightShiftOptions", dtype)


@case
def matrix_diag():
    return one("MATRIX_DIAG", [numbers((2, 3))], (2, 3, 3), "MatrixDiagOptions")


@case
def fake_quant():
    fields = {"min": -1.7, "max": 2.2, "numBits": 8}
    return one("FAKE_QUANT", [numbers((5, 5))], (5, 5), "FakeQuantOptions", **fields)


@case
def select():
    arrays = [numbers((3,), "bool"), numbers((3, 4)), numbers((3, 4))]
    return one("SELECT", arrays, (3, 4))


@case
def select_v2():
    arrays = [numbers((3, 1), "bool"), numbers((3, 4)), numbers((1, 4))]
    return one("SELECT_V2", arrays, (3, 4))


@case
def fill():
    return one("FILL", [np.array([2, 3], np.int32), np.float32(4)], (2, 3), constants=[0, 1])


@case
def range_():
    arrays = [np.array(n, np.int32) for n in (1, 9, 3)]
    return one("RANGE", arrays, (3,), None, "int32", constants=[0, 1, 2])


@table("cumsum", [(e, r) for e in (False, True) for r in (False, True)])
def cumsum(exclusive, reverse):
    arrays = [numbers((3, 4)), np.array(1, np.int32)]
    fields = {"exclusive": exclusive, "reverse": reverse}
    return one("CUMSUM", arrays, (3, 4), "CumsumOptions", constants=[1], **fields)


@table(
    "conv",
    [
        (pad, stride, dil, act)
        for pad in (0, 1)
        for stride, dil in ((1, 1), (2, 1), (1, 2))
        for act in (0, 3)
    ],
)
def conv(padding, stride, dilation, activation):
    out = [-(-n // stride) if not padding else -(-(n - 2 * dilation) // stride) for n in (6, 7)]
    arrays = [numbers(IMAGE), numbers((5, 3, 3, 4)), numbers((5,))]
    return one(
        "CONV_2D",
        arrays,
        (1, *out, 5),
        "Conv2DOptions",
        constants=[1, 2],
        padding=padding,
        strideW=stride,
        strideH=stride,
        dilationWFactor=dilation,
        dilationHFactor=dilation,
        fusedActivationFunction=activation,
    )


@case
def grouped_conv():
    arrays = [numbers(IMAGE), numbers((6, 1, 1, 2)), numbers((6,))]
    return one(
        "CONV_2D",
        arrays,
        (1, 6, 7, 6),
        "Conv2DOptions",
        constants=[1, 2],
        padding=1,
        strideW=1,
        strideH=1,
    )


@table("depthwise", [(1, 1), (2, 1), (1, 2)])
def depthwise(multiplier, stride):
    out = (1, -(-6 // stride), -(-7 // stride), 4 * multiplier)
    arrays = [numbers(IMAGE), numbers((1, 3, 3, 4 * multiplier)), numbers((4 * multiplier,))]
    return one(
        "DEPTHWISE_CONV_2D",
        arrays,
        out,
        "DepthwiseConv2DOptions",
        constants=[1, 2],
        padding=0,
        strideW=stride,
        strideH=stride,
        depthMultiplier=multiplier,
    )


@table("transpose_conv", [(0, 12, 14), (0, 11, 13), (1, 13, 15), (1, 14, 16)])
def transpose_conv(padding, height, width):
    shape = np.array([1, height, width, 3], np.int32)
    arrays = [shape, numbers((3, 3, 3, 4)), numbers(IMAGE), numbers((3,))]
    return one(
        "TRANSPOSE_CONV",
        arrays,
        tuple(shape),
        "TransposeConvOptions",
        constants=[0, 1, 3],
        padding=padding,
        strideW=2,
        strideH=2,
    )


@table("conv_3d_transpose", [("same", 0, (1, 4, 6, 8, 5)), ("valid", 1, (1, 5, 7, 9, 5))])
def conv_3d_transpose(_, padding, shape):
    arrays = [np.array(shape, np.int32), numbers((3, 3, 3, 5, 2)), numbers((1, 2, 3, 4, 2))]
    return one(
        "CONV_3D_TRANSPOSE",
        arrays,
        shape,
        "Conv3DOptions",
        constants=[0, 1],
        padding=padding,
        strideD=2,
        strideH=2,
        strideW=2,
    )


@case
def conv_3d():
    arrays = [numbers((1, 4, 5, 6, 2)), numbers((3, 3, 3, 2, 5)), numbers((5,))]
    return one(
        "CONV_3D",
        arrays,
        (1, 2, 3, 3, 5),
        "Conv3DOptions",
        constants=[1, 2],
        padding=0,
        strideD=2,
        strideH=2,
        strideW=2,
    )


@table("pool", [(c, p) for c in ("MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D") for p in (0, 1)])
def pool(code, padding):
    out = (1, 3, 4, 4) if padding == 0 else (1, 2, 3, 4)
    return one(
        code,
        [numbers(IMAGE)],
        out,
        "Pool2DOptions",
        padding=padding,
        strideW=2,
        strideH=2,
        filterWidth=3,
        filterHeight=3,
        fusedActivationFunction=1,
    )


@table("bilinear", [(False, False, 12), (True, False, 11), (False, True, 9), (False, True, 3)])
def bilinear(corners, middle, size):
    arrays = [numbers(IMAGE), np.array([size, size], np.int32)]
    return one(
        "RESIZE_BILINEAR",
        arrays,
        (1, size, size, 4),
        "ResizeBilinearOptions",
        constants=[1],
        alignCorners=corners,
        halfPixelCenters=middle,
    )


@table("nearest", [(False, False, 12), (True, False, 11), (False, True, 9), (False, True, 3)])
def nearest(corners, middle, size):
    arrays = [numbers(IMAGE), np.array([size, size], np.int32)]
    return one(
        "RESIZE_NEAREST_NEIGHBOR",
        arrays,
        (1, size, size, 4),
        "ResizeNearestNeighborOptions",
        constants=[1],
        alignCorners=corners,
        halfPixelCenters=middle,
    )


@case
def depth_to_space():
    return one(
        "DEPTH_TO_SPACE", [numbers((1, 3, 2, 8))], (1, 6, 4, 2), "DepthToSpaceOptions", blockSize=2
    )


@case
def space_to_depth():
    return one(
        "SPACE_TO_DEPTH", [numbers((1, 6, 4, 2))], (1, 3, 2, 8), "SpaceToDepthOptions", blockSize=2
    )


@case
def local_response_normalization():
    return one(
        "LOCAL_RESPONSE_NORMALIZATION",
        [numbers(IMAGE)],
        IMAGE,
        "LocalResponseNormalizationOptions",
        radius=1,
        bias=1.0,
        alpha=0.3,
        beta=0.7,
    )


@table(
    "fully_connected",
    [
        ((2, 6), (2, 5), False),
        ((2, 3, 6), (6, 5), False),
        ((2, 3, 6), (2, 3, 5), True),
        ((2, 12), (4, 5), False),
    ],
)
def fully_connected(shape, out, keep):
    arrays = [numbers(shape), numbers((5, 6)), numbers((5,))]
    return one(
        "FULLY_CONNECTED",
        arrays,
        out,
        "FullyConnectedOptions",
        constants=[1, 2],
        keepNumDims=keep,
        fusedActivationFunction=1,
    )


@table("batch_matmul", [(a, b) for a in (False, True) for b in (False, True)])
def batch_matmul(first, second):
    arrays = [
        numbers((2, 4, 3) if first else (2, 3, 4)),
        numbers((2, 5, 4) if second else (2, 4, 5)),
    ]
    return one("BATCH_MATMUL", arrays, (2, 3, 5), "BatchMatMulOptions", adjX=first, adjY=second)


@case
def embedding_lookup():
    arrays = [np.array([2, 0, 1], np.int32), numbers((4, 5))]
    return one("EMBEDDING_LOOKUP", arrays, (3, 5), constants=[1])


REDUCE = "MEAN SUM REDUCE_PROD REDUCE_MAX REDUCE_MIN"


@table("reduce", [(code, keep) for code in REDUCE.split() for keep in (False, True)])
def reduce(code, keep):
    shape = (1, 1, 1, 4) if keep else (1, 4)
    arrays = [numbers(IMAGE), np.array([1, 2], np.int32)]
    return one(code, arrays, shape, "ReducerOptions", constants=[1], keepDims=keep)


@table("reduce_bool", [("REDUCE_ANY",), ("REDUCE_ALL",)])
def reduce_bool(code):
    arrays = [numbers((3, 4), "bool"), np.array([-1], np.int32)]
    return one(code, arrays, (3,), "ReducerOptions", "bool", constants=[1])


@table("arg", [("ARG_MAX", "int64"), ("ARG_MIN", "int32")])
def arg(code, dtype):
    arrays = [numbers(IMAGE), np.array(3, np.int32)]
    name = {"ARG_MAX": "ArgMaxOptions", "ARG_MIN": "ArgMinOptions"}[code]
    kind = {"int32": 2, "int64": 4}[dtype]
    return one(code, arrays, IMAGE[:3], name, dtype, constants=[1], outputType=kind)


@table("softmax", [(1.0,), (0.5,)])
def softmax(beta):
    return one("SOFTMAX", [numbers((2, 5))], (2, 5), "SoftmaxOptions", beta=beta)


@case
def log_softmax():
    return one("LOG_SOFTMAX", [numbers((2, 5))], (2, 5))


@case
def l2_normalization():
    return one("L2_NORMALIZATION", [numbers(IMAGE)], IMAGE, "L2NormOptions")


@case
def reshape():
    return one("RESHAPE", [numbers(IMAGE), np.array([-1, 4], np.int32)], (42, 4), constants=[1])


@case
def reshape_by_options():
    return one("RESHAPE", [numbers(IMAGE)], (42, 4), "ReshapeOptions", newShape=[42, 4])


@table("squeeze", [((0,), (6, 1, 4)), ((), (6, 4)), ((0, -2), (6, 4))])
def squeeze(axes, shape):
    return one("SQUEEZE", [numbers((1, 6, 1, 4))], shape, "SqueezeOptions", squeezeDims=list(axes))


@case
def expand_dims():
    return one("EXPAND_DIMS", [numbers((3, 4)), np.array(-1, np.int32)], (3, 4, 1), constants=[1])


@case
def transpose():
    arrays = [numbers(IMAGE), np.array([0, 3, 1, 2], np.int32)]
    return one("TRANSPOSE", arrays, (1, 4, 6, 7), constants=[1])


@case
def concatenation():
    arrays = [numbers((1, 2, 3)), numbers((1, 4, 3))]
    return one(
        "CONCATENATION",
        arrays,
        (1, 6, 3),
        "ConcatenationOptions",
        axis=-2,
    )


@case
def split():
    arrays = [np.array(1, np.int32), numbers((2, 6))]
    return one(
        "SPLIT", arrays, [((2, 2), "float32")] * 3, "SplitOptions", constants=[0], numSplits=3
    )


@case
def split_v():
    arrays = [numbers((2, 6)), np.array([1, -1], np.int32), np.array(1, np.int32)]
    shapes = [((2, 1), "float32"), ((2, 5), "float32")]
    return one("SPLIT_V", arrays, shapes, "SplitVOptions", constants=[1, 2], numSplits=2)


@case
def pack():
    return one(
        "PACK", [numbers((2, 3)), numbers((2, 3))], (2, 2, 3), "PackOptions", axis=1, valuesCount=2
    )


@case
def unpack():
    return one("UNPACK", [numbers((2, 3))], [((2,), "float32")] * 3, "UnpackOptions", axis=1, num=3)


@case
def slice_():
    arrays = [numbers((3, 4, 5)), np.array([0, 1, 2], np.int32), np.array([2, -1, 3], np.int32)]
    return one("SLICE", arrays, (2, 3, 3), constants=[1, 2])


STRIDED = [
    # begin, end, steps, (begin, end, ellipsis, new axis, shrink) masks, shape of the result
    ([0, 1, 1], [2, 4, 5], [1, 2, 1], (0, 0, 0, 0, 0), (2, 2, 4)),
    ([0, 1, 1], [2, 4, 5], [1, 2, 1], (1, 6, 0, 0, 0), (2, 2, 4)),
    ([1, 1, -1], [2, 4, 0], [1, 1, -2], (0, 0, 0, 0, 0), (1, 3, 2)),
    ([1, 0, 0], [2, 4, 5], [1, 1, 1], (0, 0, 0, 0, 1), (4, 5)),
    ([-1, 0, 0], [0, 4, 5], [1, 1, 1], (0, 0, 0, 0, 1), (4, 5)),
    ([0, 2], [0, 5], [1, 1], (0, 0, 1, 0, 0), (3, 4, 3)),
    ([0, 0, 1], [0, 3, 4], [1, 1, 1], (0, 0, 0, 1, 0), (1, 3, 3, 5)),
    ([0, 0, 0], [0, 0, 0], [1, 1, -1], (7, 7, 0, 0, 0), (3, 4, 5)),
]


@table("strided_slice", [(index, *row) for index, row in enumerate(STRIDED)])
def strided_slice(_, begin, end, steps, masks, shape):
    names = ("beginMask", "endMask", "ellipsisMask", "newAxisMask", "shrinkAxisMask")
    arrays = [numbers((3, 4, 5)), *(np.array(row, np.int32) for row in (begin, end, steps))]
    fields = dict(zip(names, masks, strict=True))
    return one("STRIDED_SLICE", arrays, shape, "StridedSliceOptions", constants=[1, 2, 3], **fields)


@table("strided_slice_by_lengths", [("front", [0, 1, 2]), ("back", [0, -2, -3])])
def strided_slice_by_lengths(_, begin):
    rows = (begin, [3, 2, 2], [1, 1, 1])
    arrays = [numbers((3, 4, 5)), *(np.array(row, np.int32) for row in rows)]
    return one(
        "STRIDED_SLICE", arrays, (3, 2, 2), "StridedSliceOptions", constants=[1, 2, 3], offset=True
    )


@case
def strided_slice_of_a_computed_place():
    arrays = [numbers((3, 4)), *(np.array(row, np.int32) for row in ([1, 0], [2, 3], [1, 1]))]
    return one(
        "STRIDED_SLICE", arrays, (3,), "StridedSliceOptions", constants=[2, 3], shrinkAxisMask=1
    )


@case
def pad():
    arrays = [numbers((2, 3)), np.array([[0, 1], [2, 0]], np.int32)]
    return one("PAD", arrays, (3, 5), constants=[1])


@case
def pad_with_a_number():
    arrays = [numbers((2, 3)), np.array([[0, 1], [2, 0]], np.int32), np.array([9], np.float32)]
    return one("PADV2", arrays, (3, 5), constants=[1, 2])


@table("mirror_pad", [(0,), (1,)])
def mirror_pad(mode):
    arrays = [numbers((3, 4)), np.array([[1, 1], [2, 0]], np.int32)]
    return one("MIRROR_PAD", arrays, (5, 6), "MirrorPadOptions", constants=[1], mode=mode)


@case
def tile():
    return one("TILE", [numbers((2, 3)), np.array([1, 2], np.int32)], (2, 6), constants=[1])


@case
def broadcast_to():
    arrays = [numbers((2, 1)), np.array([3, 2, 4], np.int32)]
    return one("BROADCAST_TO", arrays, (3, 2, 4), constants=[1])


@case
def gather():
    arrays = [numbers((3, 4)), np.array([2, 0], np.int32)]
    return one("GATHER", arrays, (3, 2), "GatherOptions", axis=1)


@case
def gather_in_batches():
    arrays = [numbers((2, 4, 3)), np.array([[2, 0], [1, 1]], np.int32)]
    return one("GATHER", arrays, (2, 2, 3), "GatherOptions", axis=1, batchDims=1)


@case
def gather_nd():
    return one("GATHER_ND", [numbers((3, 4)), np.array([[2, 0], [1, 1]], np.int32)], (2,))


@case
def scatter_nd():
    arrays = [np.array([[2], [0], [2]], np.int32), numbers((3, 4)), np.array([5, 4], np.int32)]
    return one("SCATTER_ND", arrays, (5, 4), constants=[2])


@case
def reverse_v2():
    return one("REVERSE_V2", [numbers((3, 4)), np.array([1], np.int32)], (3, 4), constants=[1])


@case
def reverse_sequence():
    arrays = [numbers((2, 4, 3)), np.array([3, 2], np.int32)]
    return one(
        "REVERSE_SEQUENCE", arrays, (2, 4, 3), "ReverseSequenceOptions", seqDim=1, batchDim=0
    )


@case
def reverse_sequence_of_last_batches():
    arrays = [numbers((3, 4, 2)), np.array([3, 2], np.int32)]
    return one(
        "REVERSE_SEQUENCE", arrays, (3, 4, 2), "ReverseSequenceOptions", seqDim=1, batchDim=2
    )


@table("broadcast_args", [("short", [4, 1], [2, 1, 3]), ("equal", [1, 5], [0, 1])])
def broadcast_args(_, first, second):
    arrays = [np.array(sizes, np.int32) for sizes in (first, second)]
    return one("BROADCAST_ARGS", arrays, (len(second),), None, "int32")


@case
def shape():
    return one("SHAPE", [numbers((2, 4, 3))], (3,), "ShapeOptions", "int32", outType=2)


@case
def rank():
    return one("RANK", [numbers((2, 4, 3))], (), dtype="int32")


@case
def space_to_batch_nd():
    arrays = [
        numbers((1, 5, 6, 2)),
        np.array([2, 3], np.int32),
        np.array([[1, 0], [0, 0]], np.int32),
    ]
    return one("SPACE_TO_BATCH_ND", arrays, (6, 3, 2, 2), constants=[1, 2])


@case
def batch_to_space_nd():
    arrays = [
        numbers((6, 3, 2, 2)),
        np.array([2, 3], np.int32),
        np.array([[1, 0], [0, 2]], np.int32),
    ]
    return one("BATCH_TO_SPACE_ND", arrays, (1, 5, 4, 2), constants=[1, 2])


@table("dynamic_update_slice", [(1,), (3,), (-2,)])
def dynamic_update_slice(place):
    arrays = [numbers((4, 5)), numbers((2, 3)), np.array([place, 1], np.int32)]
    return one("DYNAMIC_UPDATE_SLICE", arrays, (4, 5))


@case
def top_k():
    shapes = [((3, 2), "float32"), ((3, 2), "int32")]
    return one("TOPK_V2", [numbers((3, 6)), np.array(2, np.int32)], shapes, constants=[1])


@case
def where():
    return one("WHERE", [np.array([[True, False], [True, True]])], (3, 2), dtype="int64")


@case
def one_hot():
    return _one_hot(np.array([1, -1, 5, 2], np.int32), (4, 4))


@case
def one_hot_of_a_scalar():
    return _one_hot(np.array(2, np.int32), (4,))


def _one_hot(indices, shape):
    arrays = [indices, np.array(4, np.int32), np.float32(2), np.float32(-1)]
    return one("ONE_HOT", arrays, shape, "OneHotOptions", constants=[1, 2, 3], axis=-1)


@case
def unique():
    shapes = [((3,), "float32"), ((5,), "int32")]
    arrays = [np.array([5, 2, 5, 9, 2], np.float32)]
    return one("UNIQUE", arrays, shapes, "UniqueOptions", idxOutType=2)


@case
def non_max_suppression():
    boxes = np.array([[0, 0, 2, 2], [0, 0, 2, 2.1], [3, 3, 5, 5], [0, 0, 1, 1]], np.float32)
    limits = [np.array(4, np.int32), np.float32(0.5), np.float32(0.2)]
    arrays = [boxes, np.array([0.9, 0.8, 0.7, 0.1], np.float32), *limits]
    shapes = [((4,), "int32"), ((), "int32")]
    return one("NON_MAX_SUPPRESSION_V4", arrays, shapes, constants=[2, 3, 4])


@case
def segment_sum():
    return one("SEGMENT_SUM", [numbers((4, 3)), np.array([0, 0, 1, 2], np.int32)], (3, 3))


@table("unsorted_segment", [(kind,) for kind in ("SUM", "PROD", "MAX", "MIN")])
def unsorted_segment(kind):
    arrays = [numbers((4, 3)), np.array([2, 0, 1, 2], np.int32), np.array(4, np.int32)]
    return one(f"UNSORTED_SEGMENT_{kind}", arrays, (4, 3), constants=[2])


@table("dropped_segment", [(kind,) for kind in ("SUM", "PROD", "MAX", "MIN")])
def dropped_segment(kind):
    arrays = [numbers((4, 3)), np.array([2, -1, 1, 2], np.int32), np.array(3, np.int32)]
    return one(f"UNSORTED_SEGMENT_{kind}", arrays, (3, 3), constants=[2])


@case
def sparse_to_dense():
    arrays = [
        np.array([[0, 1], [2, 0]], np.int32),
        np.array([3, 2], np.int32),
        np.array([5, 6], np.float32),
        np.float32(1),
    ]
    return one("SPARSE_TO_DENSE", arrays, (3, 2), constants=[1, 3])


@table("detections", [(False,), (True,)])
def detections(regular):
    file = File()
    rng = np.random.default_rng(3)
    boxes = rng.normal(0, 1, (1, 12, 4)).astype(np.float32)
    scores = rng.random((1, 12, 4)).astype(np.float32)
    anchors = rng.uniform(0.2, 0.9, (12, 4)).astype(np.float32)
    inputs = [file.main.input(a.shape) for a in (boxes, scores)] + [file.main.constant(anchors)]
    outputs = [file.main.tensor(s) for s in ((1, 10, 4), (1, 10), (1, 10), (1,))]
    options = {
        "max_detections": 10,
        "max_classes_per_detection": 1,
        "detections_per_class": 5,
        "use_regular_nms": regular,
        "nms_score_threshold": 0.3,
        "nms_iou_threshold": 0.5,
        "num_classes": 3,
        "y_scale": 10.0,
        "x_scale": 10.0,
        "h_scale": 5.0,
        "w_scale": 5.0,
    }
    custom = flexbuffers.Dumps(options)
    file.main.op("TFLite_Detection_PostProcess", inputs, outputs, custom=custom)
    file.main.outputs(*outputs)
    return file.bytes(), [boxes, scores]


@pytest.mark.parametrize("name", CASES)
def test_an_operator_answers_as_litert(name):
    data, feeds = CASES[name]()
    expected = litert(data, feeds)[0]
    for found, answer in zip(run(data, feeds), expected, strict=True):
        assert found.dtype == answer.dtype
        np.testing.assert_allclose(found, answer, rtol=2e-5, atol=2e-5)


def run(data, feeds):
    """What onnxruntime makes of the translation."""
    model = partita.Core().read_model(data)
    written = model.to_onnx()
    assert all(node.input[-1] for node in written.graph.node if node.input)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        written.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    named = {port.name: array for port, array in zip(model.inputs, feeds, strict=True)}
    return session.run(None, named)
