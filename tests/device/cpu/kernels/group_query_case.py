"""One GroupQueryAttention: its inputs, and what devices and judges make of it."""

from __future__ import annotations

from unittest import mock

import numpy as np
from judge import onnxruntime_results
from onnx import helper
from onnx.reference import ReferenceEvaluator
from single_op import model_of, normal, run_shared

from partita.lowering import Specializer, Target, lower_proto
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.kernels.operator_table import emitter_for
from partita_cpu.machine_model import MachineModel
from partita_cpu.runtime import bound_program
from partita_cpu.runtime.device_model import run_graph
from partita_cpu.runtime.graph_runner import GraphRunner
from partita_cpu.threads.step_team import Team
from partita_reference.corrections import corrected_for

NAMES = ("q", "k", "v", "past_key", "past_value", "lengths", "total", "cosines", "sines")
NAMES += ("positions", "bias", "sinks", "key_scale", "value_scale", "query_norm", "key_norm")


class Case:
    """One operation: its inputs by name, and its attributes."""

    def __init__(self, sizes, places, total, lengths, seed=0, **attributes):
        self.batch, self.heads, self.kv_heads, self.count, self.size = sizes
        rows = (self.batch, self.count)
        cache = (self.batch, self.kv_heads, places, self.size)
        self.total, self.lengths = total, list(lengths)
        self.inputs = dict.fromkeys(NAMES)
        self.inputs.update(
            q=normal(seed, *rows, self.heads * self.size),
            k=normal(seed + 1, *rows, self.kv_heads * self.size),
            v=normal(seed + 2, *rows, self.kv_heads * self.size),
            past_key=normal(seed + 3, *cache),
            past_value=normal(seed + 4, *cache),
            lengths=np.array(lengths, np.int32),
            total=np.array(total, np.int32),
        )
        self.attributes = {"num_heads": self.heads, "kv_num_heads": self.kv_heads, **attributes}
        if attributes.get("do_rotary"):
            angles = normal(seed + 5, places + 3, self.size // 2)
            self.inputs.update(cosines=np.cos(angles), sines=np.sin(angles))

    def packed(self):
        """The same with queries, keys and values in one tensor."""
        parts = [self.inputs[name] for name in ("q", "k", "v")]
        self.inputs.update(q=np.concatenate(parts, axis=2), k=None, v=None)
        return self

    def model(self):
        given = [self.inputs[name] for name in NAMES]
        while given[-1] is None:
            given.pop()
        model = model_of(
            "GroupQueryAttention", given, outputs=3, domain="com.microsoft", **self.attributes
        )
        past = self.inputs["q"] if self.inputs["past_key"] is None else self.inputs["past_key"]
        kind = helper.np_dtype_to_tensor_dtype(past.dtype)  # results have no type of their own
        for cache in (*model.graph.input, *model.graph.output):
            if cache.name in ("x3", "x4", "y1", "y2"):
                shape = [None, None, "places", None]  # of a fixed capacity
                cache.CopyFrom(helper.make_tensor_value_info(cache.name, kind, shape))
        return model

    def feeds(self):
        found = [self.inputs[name] for name in NAMES]
        return {f"x{place}": x for place, x in enumerate(found) if x is not None}

    def expected(self):
        """What REFERENCE computes."""
        evaluator = ReferenceEvaluator(self.model(), new_ops=corrected_for(21))
        return evaluator.run(None, self.feeds())

    def computed(self, threads=1):
        graph, arrays = lower_proto(self.model()), list(self.feeds().values())
        return run_graph(graph, arrays) if threads == 1 else run_shared(graph, arrays)

    def native(self, level, threads, arithmetic=Arithmetic.F32):
        """What kernels of a level compute, on memory that holds NaN before."""
        policy = PrecisionPolicy(MachineModel(level), arithmetic, threads)
        specializer = Specializer(lower_proto(self.model()), Target(emitter_for, options=policy))
        with mock.patch.object(bound_program, "PARALLEL_WORK", 0):
            runner = GraphRunner(specializer, Team(threads))
            arrays = list(self.feeds().values())
            scratch = np.full(specializer.program_for(arrays).arena_bytes + 64, 0xFF, np.uint8)
            outputs = [np.full_like(x, _worst(x.dtype)) for x in self.expected()]
            bound = runner.bind(arrays, outputs, scratch)
            for segment in bound.segments():
                segment()
        return outputs

    def check(self, tolerance=2e-5):
        """Both ways of running agree with REFERENCE."""
        expected = self.expected()
        for results in (self.computed(), self.computed(3)):
            for got, want in zip(results, expected, strict=True):
                assert got.dtype == want.dtype
                wide = got.astype(np.float64), want.astype(np.float64)
                np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)

    def check_onnxruntime(self):
        """Both agree with onnxruntime, which leaves open what lies behind the valid keys."""
        judged = onnxruntime_results(self.model(), self.feeds())
        for results in (self.computed(), self.computed(3), self.expected()):
            for row, length in enumerate(self.lengths):
                valid = min(self.count, length + 1)
                pairs = [(results[0][row, :valid], judged[0][row, :valid])]
                pairs += [
                    (results[n][row, :, : length + 1], judged[n][row, :, : length + 1])
                    for n in (1, 2)
                ]
                for got, want in pairs:
                    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def _worst(dtype):
    """What spoils results if it is read."""
    return -1 if dtype == np.int8 else np.nan
