"""INFERENCE_PRECISION_HINT on every level: what is computed, and what is told if it is another."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from cpu_levels import float_levels

import partita
from partita_cpu.gemm import precision_policy
from partita_cpu.jit.isa import detected
from partita_cpu.llvm.levels import CHAINS, EVERY, X86_64

from ..networks.test_native_layout import Net

LEVELS = [level.name for level in float_levels()]
ABLE = {"f32": lambda level: True, "bf16": lambda a: a.dots_bfloat16, "f16": lambda a: a.native}


@pytest.fixture(params=LEVELS, autouse=True)
def level(request, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", request.param)
    return EVERY[request.param]


def made(precision, device="CPU"):
    net = Net(1, 32, 9, 10)
    model = net.model(net.conv(net.conv("x", 32, 40), 40, 24, 1))
    core = partita.Core()
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": precision, "PERF_COUNT": True})
    return core.compile_model(core.read_model(model.SerializeToString()), device)


@pytest.mark.parametrize("precision", list(ABLE))
def test_the_property_is_what_is_computed(level, precision):
    compiled = made(precision)
    effective = compiled.get_property("INFERENCE_PRECISION_HINT")
    assert effective == (precision if ABLE[precision](level) else "f32")
    request = compiled.create_infer_request()
    request.infer({"x": np.ones((1, 32, 9, 10), np.float32)})
    kinds = {info.exec_type.partition("_")[2] for info in request.get_profiling_info()}
    narrow = {kind for kind in kinds if kind in ("bf16", "f16")}
    assert narrow == ({effective} - {"f32"})


@pytest.mark.parametrize("precision", list(ABLE))
@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU"])
def test_a_note_says_why_it_is_another(level, precision, device):
    compiled = made(precision, device)
    notes = "\\n".join(compiled.explain().notes)
    if ABLE[precision](level):
        assert "INFERENCE_PRECISION_HINT" not in notes
        return
    assert f"INFERENCE_PRECISION_HINT={precision} computes f32 here" in notes
    assert f"'{level.name}'" in notes
    assert notes.count("INFERENCE_PRECISION_HINT") == 1
    assert notes in str(compiled.explain())
    if device == "CPU":
        assert compiled.get_property("INFERENCE_PRECISION_NOTE") == notes


def test_the_note_says_what_would_help():
    avx2, amx = EVERY["avx2"], EVERY["amx"]
    assert "levels that have them: avx512_bf16, amx" in precision_policy.lacking_bfloat16(
        "bf16", avx2, avx2
    ) or (detected() not in CHAINS[X86_64])
    assert "set PARTITA_CPU_ISA to 'amx'" in precision_policy.lacking_bfloat16("bf16", avx2, amx)
    assert (
        precision_policy.lacking_bfloat16("f32", avx2, avx2)
        == precision_policy.lacking_bfloat16("bf16", amx, amx)
        == ""
    )


def test_the_log_says_it_once(caplog, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", "portable")
    precision_policy.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "partita_cpu"):
        made("bf16")
        made("bf16")
    told = [record for record in caplog.records if "INFERENCE_PRECISION_HINT" in record.message]
    assert len(told) == 1
