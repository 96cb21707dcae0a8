"""Inputs that do not fit each other are refused before a kernel sees them."""

import numpy as np
import pytest

from partita.errors import CompileError
from partita.lowering import Node, Operand
from partita.lowering.geometry.boxes import Box
from partita.lowering.shapes.shape_rules import check_demands
from partita.lowering.shapes.type_rules import check_types


def operand(shape):
    return None if shape is None else Operand(tuple(shape), np.dtype(np.float32))


def check(kind, shapes, **attrs):
    domain, _, op_type = kind.rpartition("::")
    node = Node(op_type, (), (), attrs, domain=domain, name="n", version=17)
    check_demands(node, [operand(shape) for shape in shapes])


def other_shape(shapes, place):
    """The shapes with one of them a little larger."""
    return [*shapes[:place], tuple(n + 1 for n in shapes[place]), *shapes[place + 1 :]]


LSTM = [(5, 2, 3), (1, 16, 3), (1, 16, 4), (1, 32), (2,), (1, 2, 4), (1, 2, 4), (1, 12)]
QUANTIZED_LSTM = [(5, 2, 3), (1, 3, 16), (1, 4, 16), (1, 32), (2,), (1, 2, 4), (1, 2, 4), (1, 12)]
QUANTIZED_LSTM += [(1,), (1, 16), (1,), (1,)]
EMBEDDING = [(2, 3), None, (9, 8), (3, 8), None, (8,), (8,)]
FITS = [
    ("Transpose", [(2, 3)], {"perm": [1, 0]}),
    ("Transpose", [(2, 3)], {}),
    ("Concat", [(2, 3), (2, 5), (0,)], {"axis": -1}),
    ("GatherElements", [(2, 3), (1, 9)], {"axis": -1}),
    ("ScatterElements", [(2, 3), (1, 2), (1, 2)], {}),
    ("GatherND", [(2, 3, 4), (2, 5, 1)], {"batch_dims": 1}),
    ("ScatterND", [(2, 3, 4), (5, 2), (5, 4)], {}),
    ("ReverseSequence", [(4, 2), (2,)], {}),
    ("OneHot", [(3,), (), (2,)], {}),
    ("PRelu", [(2, 3, 4), (3, 1)], {}),
    ("PRelu", [(2, 3), (2, 3)], {}),
    ("BatchNormalization", [(2, 3, 4), (3,), (3,), (3,), (3,)], {}),
    ("LayerNormalization", [(2, 3, 4), (3, 1), (1, 1, 4)], {}),
    ("RMSNormalization", [(2, 3, 4), (2, 1, 4)], {"axis": 1}),
    ("GroupNormalization", [(2, 6, 4), (3,), (3,)], {"num_groups": 3}),
    ("ArgMax", [(0, 0)], {"axis": 1}),
    ("ArgMin", [(0, 3)], {"axis": 1}),
    ("Conv", [(1, 4, 5, 5), (6, 2, 3, 3), (6,)], {"group": 2, "pads": [1, -1, 1, 1]}),
    ("ConvTranspose", [(1, 4, 5), (4, 3, 2), (6,)], {"group": 2, "output_padding": [0]}),
    ("MaxPool", [(1, 4, 5)], {"kernel_shape": [2]}),
    ("LSTM", LSTM, {}),
    ("LSTM", [(2, 5, 3), *LSTM[1:5], (2, 1, 4), (2, 1, 4)], {"layout": 1}),
    ("QuantizeLinear", [(2, 3), (), None], {}),
    ("DequantizeLinear", [(2, 3), (2,), (2,)], {"axis": -2}),
    ("DequantizeLinear", [(2, 6), (2, 3), (2, 3)], {"axis": 1, "block_size": 2}),
    ("QuantizeLinear", [(2, 5), (2, 3)], {"axis": -1, "block_size": 2}),
    ("QuantizeLinear", [(2, 5), ()], {"block_size": 2}),
    ("QLinearConv", [(1, 2, 5), (), (), (3, 2, 1), (3,), (3,), (1,), (1,), (3,)], {}),
    ("ConvInteger", [(1, 2, 5), (3, 2, 1), (), (3,)], {}),
    ("QLinearMatMul", [(4, 2), (), (), (2, 3), (3,), (3,), (1,), (1,)], {}),
    ("com.microsoft::QGemm", [(4, 2), (), (), (3, 2), (3,), (3,)], {"transB": 1}),
    ("QuantizeLinear", [(6,), (3,)], {"axis": 0, "block_size": 2}),
    ("MatMulInteger", [(4, 2), (2, 3), (4,)], {}),
    ("MatMulInteger", [(5, 4, 2), (5, 2, 3), (4,)], {}),
    ("MatMulInteger", [(2,), (2,), (1,)], {}),
    ("GlobalMaxPool", [(1, 2)], {}),
    ("NonMaxSuppression", [(1, 6, 4), (1, 2, 6)], {}),
    ("RoiAlign", [(1, 2, 8, 8), (3, 4), (3,)], {}),
    ("com.microsoft::MatMulIntegerToFloat", [(4, 2), (2,), (), (), None, None, (1,)], {}),
    ("com.microsoft::QLinearAdd", [(4,), (), (), (4,), (1,), None, (), None], {}),
    ("com.microsoft::QLinearSigmoid", [(4,), (), None, (), ()], {}),
    ("com.microsoft::QLinearConcat", [(), (), (4,), (), (), (5,), (), ()], {"axis": 0}),
    ("com.microsoft::DynamicQuantizeLSTM", QUANTIZED_LSTM, {}),
    ("com.microsoft::EmbedLayerNormalization", EMBEDDING, {}),
    ("GridSample", [(1, 2, 8, 8), (1, 3, 3, 2)], {}),
    ("DFT", [(2, 9, 1), (1,), ()], {}),
    ("STFT", [(2, 30), (), (8,), (1,)], {}),
    ("STFT", [(2, 30, 2), (1,), None, None], {}),
    ("Relu", [(2, 3)], {}),
]
FAULTS = [
    ("Transpose", [(2, 3)], {"perm": [1, 1]}, "not a permutation of 2 dimensions"),
    ("Transpose", [(2, 3)], {"perm": [0, 1, 0]}, "not a permutation"),
    ("Transpose", [], {"perm": [0]}, "incomplete"),
    ("Concat", [(2, 3), (4, 3)], {"axis": 1}, "all dimensions but 1"),
    ("Split", [(7,)], {"num_outputs": 1 << 62}, "but it has 0"),
    ("GatherElements", [(2, 3), (5, 1)], {"axis": 1}, "larger than data along axis 1 only"),
    ("GatherElements", [(2, 3), (2,)], {}, "as many dimensions"),
    ("ScatterElements", [(2, 3), (2, 3), (2, 2)], {}, "updates is to be of shape"),
    ("GatherND", [(2, 3), (3, 1)], {"batch_dims": 1}, "share 1 leading"),
    ("GatherND", [(2, 3), (4, 3)], {}, "no 3 dimensions behind 0"),
    ("ScatterND", [(2, 3), (4, 1), (4, 2)], {}, "updates is to be of shape"),
    ("ScatterND", [(2, 3), (4, 3), (4,)], {}, "no 3 dimensions"),
    ("ReverseSequence", [(4, 2), (3,)], {}, "sequence_lens is to be of shape"),
    ("ReverseSequence", [(4, 2), (2,)], {"batch_axis": 3}, "to be 0 and 1"),
    ("OneHot", [(3,), (), (1,)], {}, "values is to be a row of 2 elements"),
    ("OneHot", [(3,), (), (1, 2)], {}, "values is to be a row of 2 elements"),
    ("PRelu", [(1, 3), (2, 3)], {}, "the slope is to broadcast to the first input"),
    ("PRelu", [(3,), (1, 3)], {}, "the slope is to broadcast to the first input"),
    ("BatchNormalization", [(2, 3), (3,), (3,), (2,), (3,)], {}, "mean is to hold 3 elements"),
    ("InstanceNormalization", [(2, 3, 4), (3,), (4,)], {}, "bias is to hold 3 elements"),
    ("LayerNormalization", [(2, 3, 4), (12,)], {"axis": 1}, "scale does not broadcast"),
    ("LayerNormalization", [(2, 3, 4), (4,), (1, 2, 3, 4)], {}, "bias does not broadcast"),
    ("RMSNormalization", [(2, 3, 4), (4, 1)], {}, "scale does not broadcast"),
    ("Conv", [(1, 4, 5), (6, 3, 3)], {}, "do not fit the input in 1 groups"),
    ("Conv", [(1, 3, 8, 8), (4, 3, 3)], {}, "do not fit the input in 1 groups"),
    ("ConvTranspose", [(1, 3, 8), (4, 2, 3)], {}, "do not fit the input in 1 groups"),
    ("ConvTranspose", [(1, 3, 8), (3, 2, 3)], {"group": 2}, "do not fit the input in 2 groups"),
    ("Conv", [(1, 4, 5), (6, 4, 3)], {"group": 0}, "in 0 groups"),
    ("Conv", [(1, 4, 5), (3, 2, 3)], {"group": 2}, "3 outputs do not fall into 2 groups"),
    ("Conv", [(1, 4, 5), (6, 4, 3), (5,)], {}, "the bias is to hold 6 elements"),
    ("Conv", [(1, 4, 5), (6, 4, 3)], {"strides": [0]}, "number that is too small"),
    ("Conv", [(1, 4, 5), (6, 4, 3)], {"pads": [1]}, "pads \\[1\\] is to have 2 numbers"),
    ("ConvTranspose", [(1, 4, 5), (4, 3, 2)], {"output_padding": [-1]}, "too small"),
    ("ConvTranspose", [(1, 4, 5), (4, 3, 2), (2,)], {}, "the bias is to hold 3 elements"),
    ("MaxPool", [(1, 4, 5, 5)], {"kernel_shape": [2]}, "kernel_shape \\[2\\] is to have 2"),
    ("MaxUnpool", [(1, 1, 2), (1, 1, 3)], {"kernel_shape": [2]}, "indices is to be of shape"),
    ("LSTM", [LSTM[0], (1, 16, 2), LSTM[2]], {}, "W is to be of shape \\[1, 16, 3\\]"),
    ("LSTM", [*LSTM[:5], (1, 1, 4)], {}, "initial_h is to be of shape"),
    ("LSTM", LSTM[:3], {"activations": ["Tanh"]}, "3 activations are needed, not 1"),
    ("DequantizeLinear", [(2, 3), (3,), ()], {"axis": 1}, "the zero point is to hold 3"),
    ("DequantizeLinear", [(2, 3), (2,)], {"axis": 1}, "one for each along axis 1"),
    ("GroupNormalization", [(2, 6, 4), (4,), (4,)], {"num_groups": 4}, "6 channels do not fall"),
    ("GroupNormalization", [(2, 6, 4), (0,), (0,)], {"num_groups": 0}, "into 0 groups"),
    ("ArgMax", [(3, 0)], {"axis": -1}, "axis -1 holds no element"),
    ("QuantizeLinear", [(2, 6), (1, 6)], {"axis": 1, "block_size": 2}, "of shape \\[2, 3\\]"),
    ("QuantizeLinear", [(3, 4), (3,)], {"axis": 0, "block_size": 2}, "of shape \\[2, 4\\]"),
    ("QuantizeLinear", [(2, 6), (1,)], {"axis": 1, "block_size": 2}, "of shape \\[2, 3\\]"),
    ("QuantizeLinear", [(2, 6), (2, 3), (6,)], {"axis": 1, "block_size": 2}, "a zero point for"),
    ("QuantizeLinear", [(2, 6), ()], {"block_size": -1}, "is negative"),
    ("QuantizeLinear", [(6,), (2,)], {"axis": 0, "block_size": 2}, "of shape \\[3\\]"),
    ("QLinearConv", [(1, 2, 5), (2,), (), (3, 2, 1), ()], {}, "of input or output is to hold 1"),
    ("ConvInteger", [(1, 2, 5), (3, 2, 1), (), (2,)], {}, "of the weights is to hold 1 or 3"),
    ("MatMulInteger", [(4, 2), (2, 3), (), (2,)], {}, "of the weights is to hold 1 or 3"),
    ("MatMulInteger", [(4, 2), (2,), (), (0,)], {}, "of the weights is to hold 1 element"),
    (
        "com.microsoft::MatMulIntegerToFloat",
        [(4, 2), (2,), (), (), None, None, (2,)],
        {},
        "the bias is to hold 1 element",
    ),
    ("MatMulInteger", [(4, 2), (3, 3)], {}, "rows of 2 cannot be multiplied by columns of 3"),
    ("MatMulInteger", [(4, 2), (3,)], {}, "rows of 2 cannot be multiplied by columns of 3"),
    ("MatMulInteger", [(4, 0), (0, 3), (0,)], {}, "of the rows is to hold 1 or 4"),
    ("QLinearMatMul", [(4, 2), (), (3,), (2, 5), (), ()], {}, "of the rows is to hold 1 or 4"),
    (
        "QLinearMatMul",
        [(4, 2), (), (), (2, 5), (2,), ()],
        {"transB": 1},
        "of the weights is to hold 1 or 5",
    ),
    ("com.microsoft::QGemm", [(4, 2), (), (), (2, 3), (), ()], {"transB": 1}, "columns of 3"),
    ("com.microsoft::QLinearAdd", [(4,), (0,), (), (4,), ()], {}, "zero point is to hold 1"),
    (
        "com.microsoft::QLinearAveragePool",
        [(1, 2, 5), (), (), (), ()],
        {"kernel_shape": [2], "strides": [-1]},
        "a number that is too small",
    ),
    ("GlobalMaxPool", [(5,)], {}, "to have 2 dimensions or more"),
    ("Gemm", [(2, 3, 0), (3, 4)], {}, "the factors are to have 2 dimensions"),
    ("com.microsoft::FusedGemm", [(2, 3), (3,)], {}, "the factors are to have 2 dimensions"),
    ("Conv", [(1, 4, 5), (6, 4, 0)], {}, "a window of \\[0\\] holds no element"),
    ("ConvTranspose", [(1, 4, 5), (4, 6, 0)], {}, "a window of \\[0\\] holds no element"),
    ("ConvInteger", [(1, 0, 5), (6, 0, 3)], {}, "the input has no channels"),
    ("com.microsoft::QLinearConcat", [(), (), (4,), (0,), ()], {"axis": 0}, "is to hold 1"),
    *(
        ("com.microsoft::DynamicQuantizeLSTM", other_shape(QUANTIZED_LSTM, place), {}, said)
        for place, said in enumerate(
            ["W is", "W is", "W is", "B is", "sequence_lens", "initial_h", "initial_c", "P is"]
        )
    ),
    ("com.microsoft::EmbedLayerNormalization", other_shape(EMBEDDING, 5), {}, "gamma is to hold 8"),
    ("com.microsoft::EmbedLayerNormalization", other_shape(EMBEDDING, 6), {}, "beta is to hold 8"),
    ("NonMaxSuppression", [(1, 6, 4), (1, 2, 6, 3)], {}, "scores is to have 3 dimensions"),
    ("NonMaxSuppression", [(1, 6, 4), (1, 2, 7)], {}, "boxes is to be of shape \\[1, 7, 4\\]"),
    ("RoiAlign", [(1, 2, 8, 8), (3, 4), (2,)], {}, "batch_indices is to be of shape"),
    ("GridSample", [(1, 2, 8, 8), (2, 3, 3, 2)], {}, "as many dimensions and images"),
    ("DeformConv", [(1, 3, 8, 8), (4, 2, 3, 3)], {}, "do not fit the input in 1 groups"),
    ("DeformConv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"offset_group": 2}, "offset_group must divide"),
    ("DeformConv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"kernel_shape": [2, 3]}, "that of the weights"),
    ("DeformConv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"strides": [0, 1]}, "a number that is too small"),
    ("DeformConv", [(1, 3, 8, 8), (4, 3, 3, 3), None, (3,)], {}, "the bias is to hold 4 elements"),
    ("DFT", [(2, 9, 3)], {}, "1 of a real one, 2 of a complex one"),
    ("DFT", [(2,)], {}, "1 of a real one, 2 of a complex one"),
    ("DFT", [(2, 9, 1), (2,)], {}, "dft_length is to hold 1 element"),
    ("DFT", [(2, 9, 1), (), (0,)], {}, "axis is to hold 1 element"),
    ("STFT", [(30,), ()], {}, "the signal is batch by samples"),
    ("STFT", [(2, 30, 3), ()], {}, "the signal is batch by samples"),
    ("STFT", [(2, 30), (2,)], {}, "frame_step is to hold 1 element"),
    ("STFT", [(2, 30), (), (8, 1)], {}, "the window is to have one dimension"),
    ("STFT", [(2, 30), (), None, (2,)], {}, "frame_length is to hold 1 element"),
]


@pytest.mark.parametrize(("kind", "shapes", "attrs"), FITS)
def test_what_fits(kind, shapes, attrs):
    check(kind, shapes, **attrs)


@pytest.mark.parametrize(("kind", "shapes", "attrs", "message"), FAULTS)
def test_what_does_not_fit(kind, shapes, attrs, message):
    with pytest.raises(CompileError, match=f"Operation 'n' \\({kind}\\).*{message}"):
        check(kind, shapes, **attrs)


F32, F16, F64, I8, I64 = (np.dtype(t) for t in (np.float32, np.float16, np.float64, "i1", "i8"))


@pytest.mark.parametrize(
    ("kind", "types", "fits"),
    [
        ("Add", [F32, F32], True),
        ("Add", [F32, F16], True),  # a back-end keeps one of them in fewer bits
        ("Add", [F32, F64], False),
        ("Add", [I8, F32], False),
        ("Pow", [F32, I64], True),
        ("Concat", [F32, F32, F32], True),
        ("Concat", [F32, F32, I8], False),
        ("Clip", [F32, None, I8], False),
        ("ScatterElements", [F32, I64, I8], False),
        ("Pad", [F32, I64, F32, I64], True),
        ("partita::Add", [F32, I8], True),
        ("Unheard", [F32, I8], True),
        ("com.microsoft::QLinearConcat", [F32, I8, I8, F32, I8, I8, F32, I8], True),
        ("com.microsoft::QLinearConcat", [F32, I8, I8, F32, I8, F64, F32, I8], False),
        ("com.microsoft::QLinearConcat", [F32, I8, I8, F32, I8, I8, F32, I64], False),
    ],
)
def test_types_that_are_to_be_the_same(kind, types, fits):
    domain, _, op_type = kind.rpartition("::")
    node = Node(op_type, (), (), {"axis": 0}, domain=domain, name="n", version=18)
    operands = [None if dtype is None else Operand((2,), dtype) for dtype in types]
    if fits:
        check_types(node, operands)
        return
    with pytest.raises(
        CompileError, match=rf"'n' \({kind}\) has inputs of types .*; expected one type"
    ):
        check_demands(node, operands)


@pytest.mark.parametrize(
    ("sizes", "steps", "start", "fits"),
    [
        ((2, 3), (3, 1), 0, True),
        ((2, 3), (-3, -1), 5, True),
        ((9,), (0,), 5, True),
        ((2, 3), (3, 1), 1, False),
        ((2, 3), (-3, 1), 2, False),
    ],
)
def test_boxes_within_a_tensor(sizes, steps, start, fits):
    node = Node("Slice", (), (), name="n")
    if fits:
        Box(operand((2, 3)), steps, start).check(node, sizes)
        return
    with pytest.raises(
        CompileError, match=r"would copy elements beyond a tensor of shape \[2, 3\]"
    ):
        Box(operand((2, 3)), steps, start).check(node, sizes)
