"""Caches that grow without a Generator: results become inputs, or are state; beside onnxruntime."""

import numpy as np
import pytest
from growing_decoder import WORDS, Form, decoder
from growing_judge import NAMES, Judge, runs
from models import node, value, weight
from onnx import TensorProto, helper

import partita
from partita.model.variables import METADATA_KEY, Variable, to_metadata

FORM = Form(heads=4, kv_heads=2)
CLOSE = {"rtol": 1e-4, "atol": 2e-5}
DEVICES = ["CPU", "REFERENCE", "HETERO:CPU,REFERENCE"]


def request_of(device, stateful=False):
    core = partita.Core()
    model = core.read_model(decoder(FORM))
    if stateful:
        pairs = [Variable(name, f"past_key_values.{name}", f"present.{name}") for name in NAMES]
        model.ir.metadata_props[METADATA_KEY] = to_metadata(pairs)
    return core.compile_model(model, device).create_infer_request()


def fed(tokens, before):
    """What goes in besides caches."""
    count = tokens.shape[1]
    return {
        "input_ids": tokens,
        "attention_mask": np.ones((len(tokens), before + count), np.int64),
        "position_ids": np.full((len(tokens), 1), before) + np.arange(count),
    }


def empty(batch):
    shape = batch, FORM.kv_heads, 0, FORM.size
    return {f"past_key_values.{name}": np.zeros(shape, np.float32) for name in NAMES}


def as_past(results):
    return {f"past_key_values.{name}": results[f"present.{name}"] for name in NAMES}


def all_runs(batch):
    """Tokens, and how many came before; the judge's masks see all."""
    before = 0
    for tokens, _, _ in runs(batch):
        yield tokens, before
        before += tokens.shape[1]


def judged(judge, tokens, before):
    lengths = np.full(len(tokens), before)
    return judge.run(tokens, lengths, np.ones(len(tokens), bool))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_results_that_become_inputs(device, share, batch):
    request, judge, caches = request_of(device), Judge(decoder(FORM), FORM, batch), empty(batch)
    for tokens, before in all_runs(batch):
        results = request.infer({**fed(tokens, before), **caches}, share_outputs=share)
        due = judged(judge, tokens, before)
        np.testing.assert_allclose(results["logits"][:, -1], due, **CLOSE)
        caches = as_past(results)
    for name in NAMES:
        np.testing.assert_allclose(caches[f"past_key_values.{name}"], judge.caches[name], **CLOSE)


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_that_are_set(device):
    request, judge = request_of(device), Judge(decoder(FORM), FORM, 2)
    request.set_tensors(empty(2))
    for tokens, before in all_runs(2):
        request.set_tensors(fed(tokens, before))
        request.infer()
        due = judged(judge, tokens, before)
        np.testing.assert_allclose(request.get_tensor("logits").data[:, -1], due, **CLOSE)
        for name in NAMES:
            cache = request.get_tensor(f"present.{name}")
            request.set_tensor(f"past_key_values.{name}", cache)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("device", DEVICES)
def test_state(device, batch, tmp_path):
    request, judge = request_of(device, stateful=True), Judge(decoder(FORM), FORM, batch)
    for place, (tokens, before) in enumerate(all_runs(batch)):
        if place == 6:
            request.save_state(tmp_path / "state")
            request = request_of(device, stateful=True)
            request.load_state(tmp_path / "state")
        results = request.infer(fed(tokens, before))
        np.testing.assert_allclose(results["logits"][:, -1], judged(judge, tokens, before), **CLOSE)
    for variable in request.query_state():
        np.testing.assert_allclose(variable.state.data, judge.caches[variable.name], **CLOSE)
    request.reset_state()
    (tokens, before), judge = next(all_runs(1)), Judge(decoder(FORM), FORM, 1)
    found = request.infer(fed(tokens, before))["logits"][:, -1]
    np.testing.assert_allclose(found, judged(judge, tokens, before), **CLOSE)


def test_no_cache_is_copied_on_its_way_back():
    request, caches = request_of("CPU"), empty(1)
    for tokens, before in all_runs(1):
        results = request.infer({**fed(tokens, before), **caches}, share_outputs=True)
        caches = as_past(results)
        request.set_tensors(caches)
        for name in caches:
            assert np.shares_memory(request.get_tensor(name).data, caches[name])


def test_old_caches_stay_and_may_be_changed():
    """Each result is its own: kept, gone back to, written over, or dropped."""
    request, rng, kept = request_of("CPU"), np.random.default_rng(0), []
    caches, before = empty(1), 0
    for place in range(24):
        tokens = rng.integers(0, WORDS, (1, int(rng.integers(1, 4))))
        feeds = {**fed(tokens, before), **{name: x.copy() for name, x in caches.items()}}
        session = Judge(decoder(FORM), FORM, 1)
        session.caches = {name: feeds[f"past_key_values.{name}"] for name in NAMES}
        session.mask = np.ones((1, before), np.int64)
        results = request.infer({**fed(tokens, before), **caches}, share_outputs=place % 3 == 0)
        due = judged(session, tokens, before)
        np.testing.assert_allclose(results["logits"][:, -1], due, **CLOSE)
        presents = as_past(results)
        if place % 3:
            kept.append((before + tokens.shape[1], presents, session.caches))
        if place % 5 == 4:
            before, caches, _ = kept[int(rng.integers(len(kept)))]  # a branch
        elif place % 7 == 6:
            before, caches, _ = kept.pop()
            for cache in caches.values():
                cache *= 0.5
        else:
            before, caches = before + tokens.shape[1], presents
    assert len(kept) > 5


def state_beside_a_sum():
    """State that is written in place, and ``y = z + 1``."""
    nodes = [
        node("TensorScatter", ["past", "x", "at"], "present", axis=1),
        node("Add", ["z", "one"], "y"),
    ]
    cache = [1, 8, 4]
    inputs = [value("x", [1, "tokens", 4]), value("at", [1], TensorProto.INT64)]
    inputs += [value("z", [3]), value("past", cache)]
    outputs = [value("y", [3]), value("present", cache)]
    ones = [weight("one", np.float32(1))]
    proto = helper.make_model(
        helper.make_graph(nodes, "rows", inputs, outputs, ones),
        opset_imports=[helper.make_opsetid("", 24)],
        ir_version=10,
    )
    pairs = to_metadata([Variable("rows", "past", "present")])
    helper.set_model_props(proto, {METADATA_KEY: pairs})
    return proto


def test_results_of_bound_calls_are_copied():
    """Calls that wait for their shapes to come again write where their results lie."""
    core = partita.Core()
    request = core.compile_model(core.read_model(state_beside_a_sum()), "CPU")
    request = request.create_infer_request()
    two, one = np.ones((1, 2, 4), np.float32), np.ones((1, 1, 4), np.float32)
    start = np.array([1, 2, 3], np.float32)
    for _ in range(4):
        request.infer({"x": two, "at": np.array([0]), "z": start}, share_outputs=True)
    request.set_tensor("x", one)
    request.set_tensor("z", request.get_tensor("y"))
    np.testing.assert_array_equal(request.infer()["y"], start + 2)
    request.set_tensor("x", two)
    for _ in range(3):
        np.testing.assert_array_equal(request.infer()["y"], start + 2)
