"""One GroupQueryAttention: its inputs, and what device OPENCL and judges make of it."""

import numpy as np
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from partita_reference.corrections import corrected_for

from ..comparison import TILINGS, build, compiled, core, expected, floats

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

    def lowered(self, number):
        """The same with a number that is added to all scores of the last token."""
        bias = np.zeros((1, 1, self.tokens, int(self.inputs["total"])), np.float32)
        bias[..., -1, :] = number
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

    def due(self):
        """What REFERENCE computes, in float64."""
        evaluator = ReferenceEvaluator(self.model(constant=()), new_ops=corrected_for(21))
        return evaluator.run(None, self.feeds(constant=()))

    def found(self):
        """What the device computes, for GPUs and for CPUs; each takes the operation."""
        model = self.model()
        assert not core().query_model(core().read_model(model), "OPENCL").reasons
        for tiling in TILINGS:
            yield compiled(model, TILING=tiling).infer_new_request(self.feeds()).to_tuple()

    def check(self, *, tolerance=2e-5, judged=True):
        due = self.due()
        theirs = expected(self.model(), self.feeds()) if judged else due
        for found in self.found():
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
MANY = ((3, 24, 12, 70, 24), 200, 180, (179, 174, 75))
"""So many tokens that matrix units are full, where a device has them."""
