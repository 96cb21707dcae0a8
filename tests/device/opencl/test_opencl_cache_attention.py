"""GroupQueryAttention of device OPENCL, against onnxruntime and REFERENCE's float64."""

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import partita
from partita_reference.corrections import corrected_for

from .comparison import TILINGS, build, compiled, core, expected, floats

NAMES = ("q", "k", "v", "past_key", "past_value", "lengths", "total", "cosines", "sines")
NAMES += ("positions", "bias")
RESULTS = ("y", "present_key", "present_value")


class Case:
    """One operation: batch, heads, heads of keys, new tokens, size of a head; places; lengths."""

    def __init__(self, sizes, places, total, lengths, *, cache=np.float32, **attributes):
        batch, heads, kv_heads, tokens, size = sizes
        self.tokens, self.lengths = tokens, lengths
        self.attributes = {"num_heads": heads, "kv_num_heads": kv_heads, **attributes}
        self.inputs = {
            "q": floats(batch, tokens, heads * size),
            "k": floats(batch, tokens, kv_heads * size, seed=1),
            "v": floats(batch, tokens, kv_heads * size, seed=2),
            "past_key": floats(batch, kv_heads, places, size, seed=3).astype(cache),
            "past_value": floats(batch, kv_heads, places, size, seed=4).astype(cache),
            "lengths": np.array(lengths, np.int32),
            "total": np.array(total, np.int32),
        }
        if attributes.get("do_rotary"):
            angles = floats(places, size // 2, seed=5)
            self.inputs |= {"cosines": np.cos(angles), "sines": np.sin(angles)}

    def packed(self):
        """The same with queries, keys and values in one tensor."""
        q, k, v = (self.inputs.pop(name) for name in "qkv")
        self.inputs["q"] = np.concatenate([q, k, v], 2)
        return self

    def halved(self):
        """The same with float16 for float32."""
        for name, x in self.inputs.items():
            if x.dtype == np.float32:
                self.inputs[name] = x.astype(np.float16)
        return self

    def biased(self, rows, heads):
        """The same with numbers that are added to scores; some keys count nothing."""
        bias = floats(rows, heads, self.tokens, int(self.inputs["total"]), seed=6)
        bias[..., 1::3] = -np.inf
        self.inputs["bias"] = bias
        return self

    def without_past(self):
        """The same without a cache before it."""
        del self.inputs["past_key"], self.inputs["past_value"]
        return self

    def model(self, constant=("cosines", "sines")):
        names = [name if name in self.inputs else "" for name in NAMES]
        node = helper.make_node(
            "GroupQueryAttention",
            names,
            RESULTS,
            "attend",
            domain="com.microsoft",
            **self.attributes,
        )
        weights = [numpy_helper.from_array(x, n) for n, x in self.inputs.items() if n in constant]
        return build([node], self.feeds(constant), RESULTS, weights, opset=21)

    def feeds(self, constant=("cosines", "sines")):
        return {name: x for name, x in self.inputs.items() if name not in constant}

    def check(self, *, tolerance=2e-5, judged=True):
        model = self.model()
        assert not core().query_model(core().read_model(model), "OPENCL").reasons
        everything = self.model(constant=())
        evaluator = ReferenceEvaluator(everything, new_ops=corrected_for(21))
        due = evaluator.run(None, self.feeds(constant=()))
        theirs = expected(model, self.feeds()) if judged else due
        for tiling in TILINGS:
            found = compiled(model, TILING=tiling).infer_new_request(self.feeds()).to_tuple()
            for mine, wanted in zip(found, due, strict=True):
                assert mine.dtype == wanted.dtype
                np.testing.assert_allclose(
                    mine.astype(np.float64), wanted.astype(np.float64), tolerance, tolerance
                )
            for row, length in enumerate(self.lengths):  # the rest is left open by onnxruntime
                valid = min(self.tokens, length + 1)
                np.testing.assert_allclose(
                    found[0][row, :valid], theirs[0][row, :valid], tolerance, tolerance
                )


DECODE = ((2, 6, 2, 1, 16), 20, 12, (9, 11))
PROMPT = ((2, 4, 2, 9, 16), 20, 9, (6, 8))
CHUNK = ((1, 6, 3, 5, 32), 40, 31, (30,))
FEW = ((1, 9, 3, 2, 64), 40, 31, (30,))
LONG = ((1, 4, 1, 1, 64), 700, 651, (650,))


@pytest.mark.parametrize("form", [DECODE, PROMPT, CHUNK, FEW, LONG])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1, "local_window_size": 4},
        {"softcap": 2.0, "scale": 0.3},
    ],
)
def test_agrees_with_onnxruntime(form, attributes):
    Case(*form, **attributes).check()


@pytest.mark.parametrize(
    ("form", "causal"), [(DECODE, 0), (PROMPT, 0), (CHUNK, 1), (FEW, 0), (LONG, 0)]
)
def test_bias_agrees_with_onnxruntime(form, causal):
    batch, heads, *_ = form[0]
    Case(*form, causal=causal, softcap=2.0).biased(1, heads).check()
    Case(*form, causal=causal, do_rotary=1).biased(batch, 1).halved().check(tolerance=4e-3)


@pytest.mark.parametrize("form", [DECODE, CHUNK])
def test_tokens_in_one_tensor(form):
    Case(*form, do_rotary=1).packed().check()


@pytest.mark.parametrize("form", [DECODE, PROMPT])
def test_halves(form):
    Case(*form, do_rotary=1).halved().check(tolerance=4e-3)


def test_a_cache_of_halves():
    Case(*FEW, cache=np.float16, do_rotary=1).check(tolerance=1e-3, judged=False)


def test_a_first_prompt_without_a_cache():
    Case(*PROMPT, do_rotary=1).without_past().check()


@pytest.mark.parametrize("size", [10, 24])
def test_heads_of_other_sizes(size):
    Case((1, 2, 1, 3, size), 12, 8, (7,), do_rotary=1).check(judged=False)


def test_lengths_vary_without_another_plan():
    case = Case(*LONG, do_rotary=1)
    request = compiled(case.model()).create_infer_request()
    for length in (0, 3, 64, 500, 699):
        case.inputs["lengths"] = np.array([length], np.int32)
        case.inputs["total"] = np.array(length + 1, np.int32)
        evaluator = ReferenceEvaluator(case.model(constant=()), new_ops=corrected_for(21))
        due = evaluator.run(None, case.feeds(constant=()))
        found = request.infer(case.feeds()).to_tuple()
        for mine, wanted in zip(found, due, strict=True):
            np.testing.assert_allclose(mine, wanted, 2e-5, 2e-5)
    assert len(request.compiled_model.device_model.plans) == 1


@pytest.mark.parametrize(
    ("total", "lengths"), [(21, (9, 20)), (0, (0, 0)), (12, (9, 12)), (12, (-1, 4)), (-5, (2, 2))]
)
def test_lengths_out_of_bounds(total, lengths):
    case = Case(DECODE[0], DECODE[1], total, lengths, do_rotary=1)
    for tiling in TILINGS:
        request = compiled(case.model(), TILING=tiling).create_infer_request()
        with pytest.raises(partita.PartitaError, match="attend"):
            request.infer(case.feeds())


def test_positions_beyond_the_tables():
    case = Case(*DECODE, do_rotary=1)
    for name in ("cosines", "sines"):
        case.inputs[name] = case.inputs[name][:11].copy()
    with pytest.raises(partita.PartitaError, match="attend"):
        compiled(case.model()).infer_new_request(case.feeds())


@pytest.mark.parametrize("name", ["k", "past_value", "lengths", "sines"])
def test_tensors_of_other_sizes(name):
    case = Case(*DECODE, do_rotary=1)
    case.inputs[name] = np.concatenate([case.inputs[name]] * 2, axis=-1)
    with pytest.raises(partita.PartitaError, match="attend"):
        compiled(case.model()).infer_new_request(case.feeds())


@pytest.mark.parametrize(
    ("attributes", "text"),
    [({"smooth_softmax": 1}, "smooth_softmax"), ({"sliding_window_cache": 1}, "sliding_window")],
)
def test_refused(attributes, text):
    model = Case(*DECODE, **attributes).model()
    reasons = core().query_model(core().read_model(model), "OPENCL").reasons
    assert text in reasons["attend"].detail
