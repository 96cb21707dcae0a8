"""Caches that grow by Concat: as if they did, whether or not they are buffers with room.

Logits and caches are judged by onnxruntime, which is handed past and present of the model as it is.
"""

import logging
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from growing_decoder import LAYERS, WORDS, Form, decoder
from growing_judge import Judge, runs

import partita
from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.generate.caches.attention_sites import UnusualCacheError
from partita.generate.caches.room import ROOM_KEY, give_room, with_room
from partita.generate.caches.whole_masks import WHOLE_MASK_KEY
from partita.generate.decoder import Decoder, prepare
from partita.generate.decoder_ports import SEQUENCE_AXIS, DecoderPorts
from partita.tensors.cache_rows import decoded

FORMS = {
    "plain": Form(),
    "groups": Form(heads=4, kv_heads=2),
    "one head of keys": Form(heads=6, kv_heads=1, size=16, mask="chosen"),
    "where": Form(mask="chosen", scale="divided"),
    "padding": Form(mask="padding", scale="queries"),
    "window": Form(mask="window", scale="both", guard=True),
    "distances": Form(heads=4, kv_heads=4, mask="distances"),
    "triangle": Form(heads=4, kv_heads=2, mask="triangle"),
    "old opset": Form(heads=4, kv_heads=2, opset=13),
    "no positions": Form(positions=False, guard=True),
    "float16": Form(heads=4, kv_heads=2, half=True),
}
LEFT = {"mean": Form(extra="mean"), "cap": Form(extra="cap")}
"""What attends otherwise than the operator does, or reads a cache elsewhere."""

CONTEXT = 64
"""Fewer tokens than come: buffers grow beyond it."""


def assert_right(form, device, batch=1, config=None, second=None, cache_type=None):
    """Runs a decoder; returns what it has become."""
    proto = decoder(form)
    core = partita.Core()
    core.register_plugin("partita_cpu", "CPU2")
    model = prepare(core.read_model(proto), batch, CONTEXT, core, device, cache_type)
    for op in model.ops:
        if second is not None and op.name.startswith("layer1"):
            op.affinity = second
    compiled = core.compile_model(model, device, config)
    found, judge = Decoder(compiled), Judge(proto, form, batch)
    coarse = form.half or cache_type
    close = {"rtol": 2e-2, "atol": 2e-2} if coarse else {"rtol": 1e-4, "atol": 2e-5}
    for step in runs(batch):
        due = judge.run(*step)
        np.testing.assert_allclose(found.run(*step), due.astype(np.float32), **close)
    for variable in found.request.query_state():
        due = judge.caches[variable.name.removeprefix("past_key_values.")]
        valid = variable.state.data[:, :, : due.shape[2]]
        if cache_type == "int8":
            valid = decoded(valid, form.size)
        np.testing.assert_allclose(valid, due, **close)
    return compiled.model


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_caches_with_room(form, batch):
    model = assert_right(FORMS[form], "CPU", batch)
    assert model.metadata[ROOM_KEY] == str(CONTEXT)
    assert WHOLE_MASK_KEY in model.metadata
    kinds = [op.op_type for op in model.ops]
    assert kinds.count("GroupQueryAttention") == LAYERS
    assert "Softmax" not in kinds


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["groups", "window", "distances"])
@pytest.mark.parametrize(
    ("device", "second"),
    [
        ("HETERO:CPU,REFERENCE", None),
        ("HETERO:CPU,CPU2", "CPU2"),
        ("HETERO:CPU,REFERENCE", "REFERENCE"),
        ("REFERENCE", None),
    ],
)
def test_caches_with_room_on_several_devices(form, device, second):
    config = {"STRICT": True} if device.startswith("HETERO") else None
    model = assert_right(FORMS[form], device, 2, config, second)
    assert ROOM_KEY in model.metadata


@pytest.mark.parametrize(
    ("form", "device", "second"),
    [("groups", "OPENCL", None), ("window", "HETERO:OPENCL,CPU", "CPU")],
)
def test_caches_with_room_in_memory_of_opencl(form, device, second):
    config = {"STRICT": True} if second else None
    model = assert_right(FORMS[form], device, 2, config, second)
    assert ROOM_KEY in model.metadata


@pytest.mark.parametrize(
    ("cache_type", "device", "second"),
    [
        *((kind, "CPU", None) for kind in ("int8", "float16", "bfloat16", "float32")),
        *((kind, "REFERENCE", None) for kind in ("int8", "float16", "bfloat16", "float32")),
        ("int8", "OPENCL", None),
        ("int8", "HETERO:OPENCL,CPU", "CPU"),
    ],
)
def test_caches_of_another_type(cache_type, device, second):
    form = Form(heads=4, kv_heads=2, mask="window")
    config = {"STRICT": True} if second else None
    model = assert_right(form, device, 3, config, second, cache_type)
    assert {str(model.input(one.read).dtype) for one in model.variables} == {cache_type}


def test_a_mask_that_is_not_understood_grows_with_the_tokens(caplog):
    with caplog.at_level(logging.INFO, logger="partita.generate"):
        model = assert_right(Form(heads=4, mask="joined"), "CPU", 2)
    assert ROOM_KEY in model.metadata
    assert WHOLE_MASK_KEY not in model.metadata
    (record,) = caplog.records
    assert (
        "Calls of 'growing' are made ready for each length: 'Expand_0' (Expand) " in record.message
    )
    assert "depends on the number of tokens in an unknown way" in record.message


def test_calls_stay_bound_while_buffers_stay():
    proto, core = decoder(Form(heads=4, kv_heads=2)), partita.Core()
    compiled = core.compile_model(prepare(core.read_model(proto), 1, 4000, core, "CPU"), "CPU")
    found = Decoder(compiled)
    graph = found.request.runner.graph
    for length in range(4):
        found.run(np.array([[1]]), np.array([length]), np.ones(1, bool))
    with mock.patch.object(graph, "run", side_effect=AssertionError("not bound")):
        for length in range(4, 300):
            found.run(np.array([[length % WORDS]]), np.array([length]), np.ones(1, bool))


@pytest.mark.parametrize("form", LEFT)
def test_caches_that_are_read_otherwise_are_copied(form, caplog):
    with caplog.at_level(logging.WARNING, logger="partita.generate"):
        model = assert_right(LEFT[form], "CPU", 2)
    assert ROOM_KEY not in model.metadata
    assert "Softmax" in [op.op_type for op in model.ops]
    (record,) = caplog.records
    reasons = {"mean": "is read by others too", "cap": "is read by 0 attentions"}
    assert "Caches of 'growing' are copied for each token: 'past_key_values.0" in record.message
    assert reasons[form] in record.message


def swapped(proto):
    concat = next(node for node in proto.graph.node if node.output[0] == "present.0.key")
    concat.input[:] = concat.input[::-1]


def of_open_heads(proto):
    for port in proto.graph.input:
        if port.name == "past_key_values.1.value":
            port.type.tensor_type.shape.dim[1].dim_param = "heads"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swapped, "'present.0.key' is not made by a Concat of past and new"),
        (of_open_heads, "how many heads 'past_key_values.1.value' has is not known"),
    ],
)
def test_caches_of_unusual_models_say_what_is_unusual(change, words):
    proto = decoder(Form())
    change(proto)
    model = partita.Core().read_model(proto)
    with pytest.raises(UnusualCacheError, match=words):
        with_room(model, DecoderPorts.of(model).caches, SEQUENCE_AXIS, 8)


def test_a_cache_whose_beginning_a_run_computes_stays():
    model = partita.Core().read_model(decoder(Form()))
    caches = [replace(one, begun="flag") for one in DecoderPorts.of(model).caches]
    with pytest.raises(UnusualCacheError, match="a run computes what a cache begins with"):
        with_room(model, caches, SEQUENCE_AXIS, 8)


def test_a_cache_that_grows_along_another_axis_stays():
    model = partita.Core().read_model(decoder(Form()))
    with pytest.raises(UnusualCacheError, match="does not grow along axis 1 of four"):
        with_room(model, DecoderPorts.of(model).caches, 1, 8)


def test_a_device_that_lacks_the_operator_gets_the_model_as_it_is(caplog):
    class Lacking:
        def query_model(self, model, device):
            why = Reason(ReasonCode.UNSUPPORTED_OP, "it has none")
            grouped = "GroupQueryAttention"
            found = {op.name: why if op.op_type == grouped else None for op in model.ops}
            return QueryResult.of(device, found)

    model = partita.Core().read_model(decoder(Form()))
    before = [op.name for op in model.ops]
    caches = DecoderPorts.of(model).caches
    with caplog.at_level(logging.WARNING, logger="partita.generate"):
        assert give_room(Lacking(), "NEW", model, caches, SEQUENCE_AXIS, 8) is model
    assert [op.name for op in model.ops] == before
    assert "would not run on NEW: UNSUPPORTED_OP: it has none" in caplog.text
