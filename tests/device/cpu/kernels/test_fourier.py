"""DFT and STFT against numpy's transforms in float64, and onnxruntime."""

import ml_dtypes
import numpy as np
import pytest
from campaign.guard import guarded
from judge import onnxruntime_results
from models import model_of as graph_of
from models import node, value, weight
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from single_op import check, model_of, normal, run_ours, run_shared

from partita.errors import CompileError, PartitaError
from partita.lowering import lower_proto, reference_fold
from partita_cpu.jit.isa import isa
from partita_cpu.runtime.device_model import run_graph

CLOSE = {np.float64: 1e-13, np.float32: 3e-6, np.float16: 2e-3, ml_dtypes.bfloat16: 2e-2}


def number(value, kind=np.int64):
    return None if value is None else np.array(value, kind)


def complex_of(x):
    """Numbers in float64 whose parts are in the last dimension."""
    x = x.astype(np.float64)
    return x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)


def parts_of(x):
    return np.stack([x.real, x.imag], -1)


def dft_of(x, length, axis, inverse, onesided):
    """The transform as numpy computes it."""
    numbers = complex_of(x)
    if inverse and onesided:
        return np.fft.irfft(numbers, length, axis)[..., None]
    found = (np.fft.ifft if inverse else np.fft.fft)(numbers, length, axis)
    half = np.arange(found.shape[axis] // 2 + 1)
    return parts_of(found.take(half, axis) if onesided else found)


def stft_of(signal, step, window, length, onesided):
    """Each frame by itself."""
    numbers = complex_of(signal if signal.ndim == 3 else signal[..., None])
    length = length or (numbers.shape[1] if window is None else window.size)
    factors = 1.0 if window is None else window.astype(np.float64)
    begins = range(0, numbers.shape[1] - length + 1, step)
    frames = [np.fft.fft(numbers[:, k : k + length] * factors) for k in begins]
    return parts_of(np.stack(frames, 1)[..., : length // 2 + 1 if onesided else length])


def assert_close(found, expected, kind):
    """Of a type and a shape, and equal up to what the type rounds of the largest."""
    assert found.dtype == kind
    assert found.shape == expected.shape
    if expected.size:
        largest = np.abs(expected).max()
        error = np.abs(found.astype(np.float64) - expected).max()
        assert error <= CLOSE[kind] * max(largest, 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis", "length"),
    [
        ((3, 8), 1, None),
        ((2, 5, 7), -2, None),
        ((4, 3, 6), 0, 3),
        ((4, 3, 6), 1, 8),
        ((9, 2), 0, 1),
        ((2, 1, 3), 1, 4),
        ((0, 5), 1, 4),
        ((3, 0), 1, 4),
        ((2, 211), 1, None),
        ((70, 3, 2), 1, 130),
        ((300, 211), 0, 400),
    ],
)
def test_dft_is_that_of_numpy(shape, axis, length, inverse, onesided, parts, kind):
    x = normal(1, *shape, parts).astype(kind)
    axis = axis - 1 if axis < 0 else axis  # of the numbers, and of the tensor of their parts
    ways = {"inverse": inverse, "onesided": onesided}
    expected = dft_of(x, length, axis % x.ndim, **ways)
    inputs = [x, number(length), number(axis)]
    made = model_of("DFT", inputs, opset=20, constants=(1, 2), **ways)
    assert_close(run_shared(lower_proto(made), [x])[0], expected, kind)
    old = run_ours("DFT", inputs[: 1 + (length is not None)], opset=17, axis=axis, **ways)
    assert_close(old[0], expected, kind)
    told = run_ours("DFT", inputs, opset=20, **ways)  # length and axis come with the run
    assert_close(told[0], expected, kind)


def test_a_dft_of_nothing_is_nothing():
    x = np.zeros((2, 0, 1), np.float32)
    assert run_ours("DFT", [x], opset=17)[0].shape == (2, 0, 2)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("parts", [None, 1, 2])
@pytest.mark.parametrize(
    ("batch", "samples", "step", "window", "length"),
    [
        (2, 30, 4, 8, None),
        (1, 30, 3, 9, 9),
        (3, 30, 7, None, 10),
        (2, 30, 1, None, None),
        (0, 30, 4, 8, 8),
        (2, 8, 5, 1, 1),
        (1, 5000, 11, 67, None),
        (200, 40, 13, 14, None),
        (2, 30, 2**62, 8, None),
        (2, 30, 2**31 - 1, 30, None),
    ],
)
def test_stft_is_that_of_numpy(batch, samples, step, window, length, parts, onesided, kind):
    shape = [batch, samples] if parts is None else [batch, samples, parts]
    signal = normal(1, *shape).astype(kind)
    factors = None if window is None else normal(2, window).astype(kind)
    inputs = [signal, number(step), factors, number(length)]
    expected = stft_of(signal, step, factors, length, onesided)
    made = model_of("STFT", inputs, opset=17, constants=(1, 2, 3), onesided=onesided)
    assert_close(run_shared(lower_proto(made), [signal])[0], expected, kind)
    told = run_ours("STFT", inputs, opset=17, onesided=onesided)  # step and length with the run
    assert_close(told[0], expected, kind)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("parts", [1, 2])
def test_16_bits(kind, parts):
    x, window = normal(1, 2, 40, parts).astype(kind), normal(2, 12).astype(kind)
    found = run_ours("DFT", [x], opset=20, onesided=1)[0]
    assert_close(found, dft_of(x, None, 1, 0, 1), kind)
    found = run_ours("DFT", [x], opset=20, onesided=1, inverse=1)[0]
    assert_close(found, dft_of(x, 78, 1, 1, 1), kind)
    found = run_ours("STFT", [x, number(7), window], opset=17)[0]
    assert_close(found, stft_of(x, 7, window, None, 1), kind)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_onnxruntime_agrees(kind, real):
    x = normal(1, 2, 400, 1, dtype=real)
    step, length = number(160, kind), number([64], kind)
    check("DFT", [x, length], opset=17, onesided=1)
    check("DFT", [normal(1, 3, 5, 2, dtype=real), length, number(-3)], opset=20, inverse=1)
    check("DFT", [normal(1, 3, 33, 2, dtype=real)], opset=20, onesided=1, inverse=1)
    check("STFT", [x, step, normal(2, 64, dtype=real)], opset=17)
    check("STFT", [x, step, None, length.reshape(())], opset=17, onesided=0)


MEL = [(8, 64, 16000, 0, 8000), (80, 400, 16000, 20.5, 7600), (40, 16, 8000, 0, 3000)]
MEL += [(3, 5, 100, 7, 7.5), (0, 64, 16000, 0, 8000), (1, 1, 10, 0, 4), (128, 512, 16000, 0, 7999)]


def mel_inputs(bands, length, rate, lower, upper, edges=np.float32):
    numbers = [np.array(n) for n in (bands, length, rate)]
    return [*numbers, *(np.array(edge, edges) for edge in (lower, upper))]


@pytest.mark.parametrize("given", MEL)
@pytest.mark.parametrize("kind", [None, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT32])
def test_mel_bands_are_those_of_the_reference(given, kind):
    inputs = mel_inputs(*given, np.float64)
    attributes = {} if kind is None else {"output_datatype": kind}
    model = model_of("MelWeightMatrix", inputs, **attributes)
    feeds = {f"x{k}": x for k, x in enumerate(inputs)}
    expected = ReferenceEvaluator(model).run(None, feeds)[0]
    for constants in ((), range(5)):
        found = run_ours("MelWeightMatrix", inputs, constants=constants, **attributes)[0]
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "given",
    [
        *((-1, 64, 16000, 0, 8000), (8, -(2**63), 16000, 0, 8000), (8, 64, 0, 0, 8000)),
        *((8, 64, -1, 0, 8000), (8, 64, 16000, np.nan, 8000), (8, 64, 16000, 0, np.inf)),
        *((8, 64, 16000, -701, 8000), (2**62, 64, 16000, 0, 8000), (8, 2**62, 16000, 0, 8000)),
    ],
)
def test_mel_bands_that_cannot_be(given):
    with pytest.raises(CompileError, match=r"\(MelWeightMatrix\) (makes|would make)"):
        run_ours("MelWeightMatrix", mel_inputs(*given))


@pytest.mark.parametrize("edges", [np.float16, ml_dtypes.bfloat16])
def test_mel_bands_of_edges_of_16_bits(edges):
    """Both ours and the corrected reference take the edge, and round nothing behind it."""
    inputs = mel_inputs(3, 16, 1000, 20, 300, edges)
    wide = [x.astype(np.float64) if x.dtype == edges else x for x in inputs]
    model = model_of("MelWeightMatrix", wide)
    expected = ReferenceEvaluator(model).run(None, {f"x{k}": x for k, x in enumerate(wide)})[0]
    graph = lower_proto(model_of("MelWeightMatrix", inputs))
    for found in (run_graph(graph, inputs)[0], reference_fold(graph.nodes[0], inputs)[0]):
        assert_close(found, expected, np.float32)


def test_mel_bands_beyond_the_frequencies():
    """Triangles are cut off there, and ones of no width are still a peak."""
    found = run_ours("MelWeightMatrix", mel_inputs(6, 16, 1000, 100, 5e8))[0]
    assert found.shape == (9, 6)
    assert ((found >= 0) & (found <= 1)).all()
    backwards = run_ours("MelWeightMatrix", mel_inputs(6, 16, 1000, 400, 1))[0]
    assert np.isfinite(backwards).all()


def spectra(samples):
    """A model of frames of signals of any length, and back from their frequencies."""
    nodes = [
        node("STFT", ["x", "step", "window"], "frames"),
        node("DFT", ["frames", "", "axis"], "back", onesided=1, inverse=1),
        node("Shape", ["x"], "size", start=1),
        node("Squeeze", ["size", "first"], "samples"),
        node("Unsqueeze", ["x", "last"], "column"),
        node("DFT", ["column", "samples"], "whole"),
    ]
    ints = {"step": 5, "axis": -2, "last": [2], "first": [0]}
    weights = [weight(name, np.array(given)) for name, given in ints.items()]
    window = weight("window", np.linspace(0.5, 1, 12, dtype=np.float32))
    ports = [value("x", ["B", samples])]
    return graph_of(nodes, ports, ["back", "whole"], [*weights, window], opset=20)


def test_signals_of_all_lengths_and_batches(core):
    """A program that is recorded once is filled with the numbers of each."""
    compiled = core.compile_model(spectra("N").SerializeToString(), "CPU")
    request = compiled.create_infer_request()
    window = np.linspace(0.5, 1, 12, dtype=np.float32)
    sizes = [(2, 40), (3, 41), (3, 17), (2, 100), (5, 77), (2, 18), (4, 63), (7, 90)]
    for batch, samples in sizes:
        x = normal(samples, batch, samples)
        back, whole = request.infer([x]).values()
        begins = range(0, samples - 11, 5)
        expected = np.stack([x[:, k : k + 12] * window for k in begins], 1)[..., None]
        np.testing.assert_allclose(back, expected, atol=1e-6)
        assert_close(whole, parts_of(np.fft.fft(x.astype(np.float64))), np.float32)
    programs = compiled.device_model.specializer.programs.values()
    filled = [program for program in programs if program.made is not None]
    assert len(filled) >= (len(sizes) - 2 if isa().native else 0)


def front_end():
    """What speech models do first: mirrored ends, power of frames in bands, how many count."""
    nodes = [
        node("Slice", ["x", "last", "least", "one", "back"], "mirrored"),
        node("Concat", ["mirrored", "x"], "padded", axis=1),
        node("STFT", ["padded", "step", "window"], "frames"),
        node("ReduceSumSquare", ["frames"], "power", axes=[-1], keepdims=0),
        node("MatMul", ["power", "bands"], "mel"),
        node("Clip", ["mel", "floor"], "kept"),
        node("Log", ["kept"], "features"),
        node("Shape", ["x"], "size", start=1),
        node("Squeeze", ["size"], "samples"),
        node("Mod", ["samples", "step"], "left"),
        node("Sub", ["samples", "left"], "whole"),
        node("Div", ["whole", "step"], "count"),
        node("Range", ["zero", "count", "unit"], "places"),
    ]
    ints = {"last": [-1], "least": [-(2**63)], "one": [1], "back": [-1], "step": 5}
    ints |= {"zero": 0, "unit": 1}
    rng = np.random.default_rng(0)
    weights = [weight(name, np.array(given)) for name, given in ints.items()]
    weights += [weight("window", np.linspace(0.5, 1, 12, dtype=np.float32))]
    weights += [weight("bands", rng.random((7, 4), np.float32))]
    weights += [weight("floor", np.array(1e-6, np.float32))]
    outputs = ["features", value("places", ["F"], TensorProto.INT64)]
    return graph_of(nodes, [value("x", ["B", "N"])], outputs, weights, opset=17)


def test_front_ends_of_speech_models(core):
    """Each utterance has a length of its own; a program is recorded once for all of them."""
    model = front_end()
    compiled = core.compile_model(model.SerializeToString(), "CPU")
    request = compiled.create_infer_request()
    for batch, samples in [(2, 40), (3, 41), (3, 17), (2, 100), (5, 77), (2, 18), (4, 63)]:
        x = normal(samples, batch, samples)
        expected = onnxruntime_results(model, {"x": x})
        for found, wanted in zip(request.infer([x]).to_tuple(), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    programs = compiled.device_model.specializer.programs.values()
    filled = [program for program in programs if program.made is not None]
    assert len(filled) >= (5 if isa().native else 0)


def test_nothing_beside_a_signal_is_read():
    """The last frame ends where the signal ends, and memory that is not ours begins."""
    signal, window = guarded(normal(1, 1, 1037)), guarded(normal(2, 101))
    for step in (1, 8, 936, 937, 2**62):
        found = run_ours("STFT", [signal, number(step), window], opset=17)[0]
        assert_close(found, stft_of(signal, step, window, 101, 1), np.float32)


@pytest.mark.parametrize(
    ("inputs", "attributes", "words"),
    [
        ([normal(1, 2, 4, 1), number(0)], {}, "transforms 0 points of"),
        ([normal(1, 2, 4, 1), number(-(2**63))], {}, "at least 1"),
        ([normal(1, 2, 4, 1), number(2**62)], {}, "more than any memory"),
        ([normal(1, 2, 4, 1), number(2**63 - 1)], {"onesided": 1}, "more than any memory"),
        ([normal(1, 2, 4, 1), number([3, 4])], {}, "dft_length is to hold 1 element"),
        ([normal(1, 2, 1, 2)], {"onesided": 1, "inverse": 1}, "transforms 0 points"),
        ([normal(1, 2, 0, 1)], {"onesided": 1}, "transforms 0 points"),
        ([normal(1, 2, 4, 3)], {}, "parts of a number: 1 of a real"),
        ([normal(1, 2, 4, 0)], {}, "parts of a number: 1 of a real"),
        ([normal(1, 4, 2), None, number(1)], {}, "has axis 1; its input"),
        ([normal(1, 4, 2), None, number(-1)], {}, "has axis -1"),
        ([normal(1, 4, 2), None, number(-3)], {}, "has axis -3"),
        ([normal(1, 4, 2), None, number(2**62)], {}, "has axis"),
        ([normal(1, 4, 2), None, number([0, 0])], {}, "axis is to hold 1 element"),
    ],
)
def test_a_dft_that_cannot_be(inputs, attributes, words):
    with pytest.raises(CompileError, match=words):
        run_ours("DFT", inputs, opset=20, **attributes)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([normal(1, 2, 20, 1), number(0), normal(2, 8)], "in steps of 0; both"),
        ([normal(1, 2, 20, 1), number(-(2**63)), normal(2, 8)], "both must be at least 1"),
        ([normal(1, 2, 20), number(2), None, number(0)], "frames of 0 samples"),
        ([normal(1, 2, 20), number(2), None, number(-5)], "frames of -5 samples"),
        ([normal(1, 2, 20), number(2), normal(2, 0)], "frames of 0 samples"),
        ([normal(1, 2, 0), number(2)], "frames of 0 samples"),
        ([normal(1, 2, 20), number(2), None, number(21)], "of a signal of 20; pad"),
        ([normal(1, 2, 20), number(2), None, number(2**63 - 1)], "of a signal of 20; pad"),
        ([normal(1, 2, 20), number(2), normal(2, 8), number(6)], "a window of 8 elements for"),
        ([normal(1, 2, 20), number([2, 2]), normal(2, 8)], "frame_step is to hold 1 element"),
        ([normal(1, 2, 20), number(2), normal(2, 8, 1)], "window is to have one dimension"),
        ([normal(1, 2, 20), number(2), None, number([4, 4])], "frame_length is to hold 1"),
        ([normal(1, 20), number(2), normal(2, 8).astype(np.float64)], "expected one type"),
        ([normal(1, 20), number(2), normal(2, 8)], None),
        ([normal(1, 2, 20, 3), number(2), normal(2, 8)], "the signal is batch by samples"),
        ([normal(1, 2, 20, 1, 1), number(2), normal(2, 8)], "the signal is batch by samples"),
    ],
)
def test_an_stft_that_cannot_be(inputs, words):
    if words is None:  # a signal of one dimension less is none
        inputs = [inputs[0].reshape(-1), *inputs[1:]]
        words = "the signal is batch by samples"
    with pytest.raises(CompileError, match=words):
        run_ours("STFT", inputs, opset=17)


def test_values_that_come_with_the_run_are_bounded(core):
    ports = [value("x", ["B", "N", 1])]
    ports += [value(name, [], TensorProto.INT64) for name in ("step", "length")]
    made = graph_of([node("STFT", ["x", "step", "", "length"], "y")], ports, ["y"], opset=17)
    request = core.compile_model(made.SerializeToString(), "CPU").create_infer_request()
    x = normal(1, 2, 50, 1)
    for step, length in [(0, 8), (-1, 8), (4, 0), (4, -(2**62)), (4, 2**62), (-(2**63), 2**63 - 1)]:
        with pytest.raises(PartitaError, match=r"at least 1|pad the signal"):
            request.infer([x, np.array(step), np.array(length)])
    for step, length in [(3, 8), (50, 50), (2**63 - 1, 7)]:
        found = request.infer([x, np.array(step), np.array(length)])[0]
        assert_close(found, stft_of(x, step, None, length, 1), np.float32)
