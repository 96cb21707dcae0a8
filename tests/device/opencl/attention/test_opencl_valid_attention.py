"""Attention with lengths of its keys, on device OPENCL, against float64; and TensorScatter."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import partita
from partita.model.variables import METADATA_KEY, Variable, to_metadata
from partita_reference.corrections import corrected_for

from ..comparison import TILINGS, build, compiled, core, floats

PLACES = 80


def attention(feeds, **attributes):
    names = [name if name in feeds else "" for name in ("q", "k", "v", "mask")]
    node = helper.make_node("Attention", [*names, "", "", "lengths"], ["y"], "attend", **attributes)
    return build([node], feeds, ["y"], opset=24)


def attended(feeds, is_causal=0, left_window_size=-1, softcap=0.0, scale=None):
    """Each query by itself, in float64."""
    q, k, v = (feeds[name].astype(np.float64) for name in "qkv")
    group, count = q.shape[1] // k.shape[1], q.shape[2]
    mask = np.broadcast_to(feeds.get("mask", np.zeros(1)), (*q.shape[:3], PLACES))
    y = np.zeros(q.shape)
    for batch, head, token in np.ndindex(*q.shape[:3]):
        length = min(max(int(feeds["lengths"][batch]), 0), PLACES)
        here = length - count + token
        first = max(here - left_window_size, 0) if left_window_size >= 0 else 0
        last = min(length, here + 1) if is_causal else length
        if first >= last:
            continue
        keys, values = (x[batch, head // group, first:last] for x in (k, v))
        scores = keys @ q[batch, head, token] * (scale or q.shape[3] ** -0.5)
        scores = softcap * np.tanh(scores / softcap) if softcap else scores
        powers = np.exp(scores + mask[batch, head, token, first:last])
        y[batch, head, token] = powers @ values / powers.sum()
    return y


def check_attention(feeds, tolerance=2e-5, **attributes):
    """Agrees with float64, and reads nothing behind the valid keys."""
    model = attention(feeds, **attributes)
    assert not core().query_model(core().read_model(model), "OPENCL").reasons
    due, given = attended(feeds, **attributes), dict(feeds)
    for name in "kv":
        given[name] = feeds[name].copy()
        for batch, length in enumerate(feeds["lengths"]):
            given[name][batch, :, min(max(length, 0), PLACES) :] = np.nan
    for tiling in TILINGS[: 2 if feeds["q"].shape[2] == 1 else 1]:
        found = compiled(model, TILING=tiling).infer_new_request(given)["y"]
        assert found.dtype == feeds["q"].dtype
        np.testing.assert_allclose(found.astype(np.float64), due, tolerance, tolerance)


def heads(tokens, size=16, count=4, kv_heads=2, lengths=(70, 33)):
    cache = (2, kv_heads, PLACES, size)
    return {
        "q": floats(2, count, tokens, size),
        "k": floats(*cache, seed=1),
        "v": floats(*cache, seed=2),
        "lengths": np.array(lengths, np.int64),
    }


@pytest.mark.parametrize(("tokens", "causal"), [(1, 0), (2, 1), (9, 1)])
def test_only_valid_keys_are_attended_to(tokens, causal):
    check_attention(heads(tokens), is_causal=causal)


def test_scores_are_bounded_and_masked():
    masked = {**heads(2, size=20), "mask": floats(2, PLACES, seed=3)}
    check_attention(masked, softcap=1.5, scale=0.4)


def test_masks_of_heads_and_of_one_row():
    check_attention({**heads(2), "mask": floats(2, 4, 2, PLACES, seed=3)})
    check_attention({**heads(2), "mask": floats(2, 1, 1, PLACES, seed=3)}, is_causal=1)


def test_halves():
    feeds = {**heads(2), "mask": floats(2, PLACES, seed=3)}
    halves = {n: x if n == "lengths" else x.astype(np.float16) for n, x in feeds.items()}
    check_attention(halves, tolerance=4e-3, is_causal=1)


def test_queries_side_by_side():
    feeds = heads(2)
    feeds["q"] = np.ascontiguousarray(feeds["q"].swapaxes(1, 2)).reshape(2, 2, 64)
    model = attention(feeds, q_num_heads=4, kv_num_heads=2)
    due = attended(heads(2))
    found = compiled(model).infer_new_request(feeds)["y"]
    np.testing.assert_allclose(found, due.swapaxes(1, 2).reshape(2, 2, 64), 2e-5, 2e-5)


def test_windows_and_lengths_that_cannot_be():
    check_attention(heads(1, lengths=(70, 1)), is_causal=1, left_window_size=4)
    check_attention(heads(2, lengths=(-5, 1 << 40)))
    check_attention(heads(2, lengths=(1, 0)), is_causal=1)


@pytest.mark.parametrize("opset", [23, 24, 25])
def test_without_lengths_it_is_that_of_earlier_opsets(opset):
    feeds = {name: x for name, x in heads(3).items() if name != "lengths"}
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], "attend", softcap=2.0)
    model = build([node], feeds, ["y"], opset=opset)
    found = compiled(model).infer_new_request(feeds)["y"]
    due = attended({**feeds, "lengths": np.array([PLACES, PLACES])}, softcap=2.0)
    np.testing.assert_allclose(found, due, 2e-5, 2e-5)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"right_window_size": 3, "is_causal": 1}, "right_window_size is 3"),
        ({"left_window_size": 3}, "left_window_size is 3"),
    ],
)
def test_refused(change, text):
    model = attention(heads(1), **change)
    reasons = core().query_model(core().read_model(model), "OPENCL").reasons
    assert text in reasons["attend"].detail


def scatter(past, update, starts, **attributes):
    feeds = {"past": past, "update": update}
    if starts is not None:
        feeds["starts"] = np.array(starts, np.int64)
    node = helper.make_node("TensorScatter", list(feeds), ["y"], "put", **attributes)
    return build([node], feeds, ["y"], opset=24), feeds


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.int8])
@pytest.mark.parametrize(
    ("starts", "attributes"),
    [
        ([3, 0], {}),
        (None, {"axis": 1}),
        ([6, 9], {"mode": "circular"}),
        ([-1, 5], {"mode": "circular", "axis": -1}),
    ],
)
def test_rows_are_put_into_a_cache(kind, starts, attributes):
    axis = attributes.get("axis", -2) % 4
    shape = [2, 10, 10, 10]
    past = (100 * floats(*shape)).astype(kind)
    shape[axis] = 4
    update = (100 * floats(*shape, seed=1)).astype(kind)
    model, feeds = scatter(past, update, starts, **attributes)
    (due,) = ReferenceEvaluator(model, new_ops=corrected_for(24)).run(None, feeds)
    np.testing.assert_array_equal(compiled(model).infer_new_request(feeds)["y"], due)


@pytest.mark.parametrize("starts", [[0, 7], [-1, 0], [1 << 62, 0]])
def test_rows_that_belong_nowhere(starts):
    model, feeds = scatter(floats(2, 1, 10, 4), floats(2, 1, 4, 4), starts)
    with pytest.raises(partita.PartitaError, match="put"):
        compiled(model).infer_new_request(feeds)


def test_a_cache_that_is_state_is_written_and_read_in_place():
    kinds = ("k", "v")
    nodes = [
        helper.make_node("TensorScatter", [f"past.{n}", n, "at"], [f"present.{n}"], axis=2)
        for n in kinds
    ]
    inputs = ["q", "present.k", "present.v", "", "", "", "lengths"]
    nodes.append(helper.make_node("Attention", inputs, ["y"], is_causal=1))
    of, row, cache = helper.make_tensor_value_info, [1, 2, "T", 16], [1, 2, PLACES, 16]
    graph = helper.make_graph(
        nodes,
        "state",
        [
            *(of(name, TensorProto.FLOAT, row) for name in ("q", *kinds)),
            *(of(name, TensorProto.INT64, [1]) for name in ("at", "lengths")),
            *(of(f"past.{name}", TensorProto.FLOAT, cache) for name in kinds),
        ],
        [
            of("y", TensorProto.FLOAT, row),
            *(of(f"present.{name}", TensorProto.FLOAT, cache) for name in kinds),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    pairs = [Variable(name, f"past.{name}", f"present.{name}") for name in kinds]
    helper.set_model_props(model, {METADATA_KEY: to_metadata(pairs)})
    request = compiled(model).create_infer_request()
    assert len(request.compiled_model.device_model.in_place_outputs()) == 2
    judge = ReferenceEvaluator(model, new_ops=corrected_for(24))
    pasts = {f"past.{name}": np.zeros((1, 2, PLACES, 16), np.float32) for name in kinds}
    at = 0
    for step, tokens in enumerate((2, 1, 1, 1, 2)):
        feeds = {n: floats(1, 2, tokens, 16, seed=10 * step + s) for s, n in enumerate("qkv")}
        feeds |= {"at": np.array([at]), "lengths": np.array([at + tokens])}
        due, *caches = judge.run(None, feeds | pasts)
        pasts = dict(zip(pasts, caches, strict=True))
        np.testing.assert_allclose(request.infer(feeds)["y"], due, 2e-5, 2e-5)
        at += tokens
    for variable in request.query_state():
        np.testing.assert_allclose(variable.state.data, pasts[f"past.{variable.name}"])
