"""State that runs update in place: judged by onnxruntime, which is handed past and present."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from decoders import WIDTH, WORDS, decoder, grouped_decoder, step

import partita
from partita.errors import InputError

CONTEXT = 64
TOKENS = np.random.default_rng(1).integers(0, WORDS, 57).tolist()
PARTS = [(TOKENS[:7], 0), *(([token], at) for at, token in enumerate(TOKENS[7:], 7))]
"""A prompt of seven tokens, then fifty one at a time."""

DEVICES = {
    "CPU": ("CPU", None),
    "whole": ("HETERO:CPU,REFERENCE", None),
    "processors": ("HETERO:CPU,CPU2", "CPU2"),
    "reference": ("HETERO:CPU,REFERENCE", "REFERENCE"),
    "reference alone": ("REFERENCE", None),
}
"""Where the layers run: the device, and that of the second layer."""

NAMES = [f"{layer}.{what}" for layer in range(2) for what in ("key", "value")]


def compiled(where="CPU", context=CONTEXT, state=True, config=None):
    device, second = DEVICES[where]
    core = partita.Core()
    core.register_plugin("partita_cpu", "CPU2")
    model = core.read_model(decoder(2, context, state).SerializeToString())
    for op in model.ops:
        if second is not None and op.name.startswith("layer1/"):
            op.affinity = second
    return core.compile_model(model, device, config)


def empty():
    return {name: np.zeros((1, CONTEXT, WIDTH), np.float32) for name in NAMES}


def judged(parts=PARTS, caches=None):
    """Logits of each part and the caches at the end, by onnxruntime."""
    proto = decoder(2, CONTEXT).SerializeToString()
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    caches = caches or empty()
    logits = []
    for tokens, at in parts:
        pasts = {f"past.{name}": cache for name, cache in caches.items()}
        found = session.run(None, step(tokens, at) | pasts)
        logits.append(found[0])
        caches = dict(zip(NAMES, found[1:], strict=True))
    return logits, caches


def close(found, due):
    np.testing.assert_allclose(found, due, rtol=1e-4, atol=1e-5)


def assert_right(request, parts=PARTS, caches=None):
    """Runs the parts, and looks at logits and caches."""
    logits, caches = judged(parts, caches)
    for (tokens, at), due in zip(parts, logits, strict=True):
        close(request.infer(step(tokens, at))["logits"], due)
    for one in request.query_state():
        close(one.state.data, caches[one.name.removeprefix("cache.")])


@pytest.mark.parametrize("where", DEVICES)
def test_fifty_steps_and_anew(where):
    request = compiled(where).create_infer_request()
    assert_right(request)
    request.reset_state()
    assert all(not one.state.data.any() for one in request.query_state())
    assert_right(request, PARTS[:9])


@pytest.mark.parametrize("where", DEVICES)
def test_steps_go_on_from_state_that_is_set_or_restored(where, tmp_path):
    model = compiled(where)
    one, other = model.create_infer_request(), model.create_infer_request()
    drawn = np.random.default_rng(5)
    caches = {name: drawn.standard_normal((1, CONTEXT, WIDTH), np.float32) for name in NAMES}
    for variable in one.query_state():
        variable.state = caches[variable.name.removeprefix("cache.")]
    assert_right(one, [([3], 40), ([4], 41), ([5], 42), ([6], 43)], caches)
    one.save_state(tmp_path / "state")
    later = {v.name.removeprefix("cache."): v.state.data.copy() for v in one.query_state()}
    assert_right(other, PARTS[:5])
    other.load_state(tmp_path / "state")
    assert_right(other, [([7], 44), ([8], 45)], later)
    assert_right(one, [([9], 44)], later)


@pytest.mark.parametrize("where", ["CPU", "processors"])
def test_requests_by_turns_are_apart(where):
    model = compiled(where)
    requests = [model.create_infer_request() for _ in range(2)]
    texts = [PARTS[:12], [([(token + 1) % WORDS], at) for token, at in zip(TOKENS, range(12))]]  # noqa: B905
    due = [judged(text)[0] for text in texts]
    for index in range(12):
        for request, text, logits in zip(requests, texts, due, strict=True):
            tokens, at = text[index]
            close(request.infer(step(tokens, at))["logits"], logits[index])


@pytest.mark.parametrize("where", DEVICES)
def test_one_array_for_past_and_present(where):
    request = compiled(where, state=False).create_infer_request()
    caches = empty()
    for name, cache in caches.items():
        request.set_tensor(f"past.{name}", cache)
        request.set_tensor(f"present.{name}", cache)
    logits, due = judged(PARTS[:20])
    for (tokens, at), expected in zip(PARTS[:20], logits, strict=True):
        close(request.infer(step(tokens, at))["logits"], expected)
    for name in NAMES:
        close(caches[name], due[name])


@pytest.mark.parametrize("where", DEVICES)
def test_past_and_present_apart_leave_the_past_as_it_was(where):
    request = compiled(where, state=False).create_infer_request()
    caches = empty()
    logits, due = judged(PARTS[:6])
    for (tokens, at), expected in zip(PARTS[:6], logits, strict=True):
        pasts = {f"past.{name}": cache for name, cache in caches.items()}
        before = {name: cache.copy() for name, cache in caches.items()}
        found = request.infer(step(tokens, at) | pasts)
        close(found["logits"], expected)
        for name in NAMES:
            np.testing.assert_array_equal(caches[name], before[name])
        caches = {name: found[f"present.{name}"] for name in NAMES}
    for name in NAMES:
        close(caches[name], due[name])


@pytest.mark.parametrize("where", ["CPU", "processors", "whole"])
def test_state_is_one_array_that_steps_write(where):
    request = compiled(where).create_infer_request()
    places = {request.get_tensor(f"past.{name}").numpy().ctypes.data for name in NAMES}
    for tokens, at in PARTS[:8]:
        request.infer(step(tokens, at))
    for name in NAMES:
        array = request.get_tensor(f"present.{name}").numpy()
        assert array.ctypes.data in places
        assert array[0, :14].all()
        assert not array[0, 14:].any()


def test_a_wrong_shape_is_refused_and_changes_nothing():
    request = compiled().create_infer_request()
    assert_right(request, PARTS[:4])
    with pytest.raises(InputError, match=r"takes float32\[1, 64, 16\]; found float32\[1, 63, 16\]"):
        request.query_state()[0].state = np.zeros((1, CONTEXT - 1, WIDTH), np.float32)
    _, caches = judged(PARTS[:4])
    assert_right(request, PARTS[4:6], caches)


def grouped_step(drawn, tokens, at):
    """Inputs of the decoder of one operator."""
    return {
        "x": drawn.standard_normal((1, tokens, 2 * WIDTH)).astype(np.float32),
        "seqlens_k": np.array([at + tokens - 1], np.int32),
        "total_sequence_length": np.array(at + tokens, np.int32),
    }


@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU,REFERENCE", "REFERENCE"])
def test_grouped_attention(device):
    proto = grouped_decoder().SerializeToString()
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    core = partita.Core()
    request = core.compile_model(core.read_model(proto), device).create_infer_request()
    pasts = {f"past.{x}": np.zeros((1, 1, CONTEXT, WIDTH), np.float32) for x in ("key", "value")}
    drawn = np.random.default_rng(3)
    for tokens, at in PARTS:
        feeds = grouped_step(drawn, len(tokens), at)
        logits, *caches = session.run(None, feeds | pasts)
        pasts = dict(zip(pasts, caches, strict=True))
        close(request.infer(feeds)["logits"], logits)
    for variable in request.query_state():
        close(variable.state.data, pasts[f"past.{variable.name}"])


@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU,REFERENCE"])
def test_memory_holds_no_second_copy_of_the_cache(device):
    resource = pytest.importorskip("resource")
    rows = 1 << 19  # of both caches 64 MiB
    core = partita.Core()
    model = core.read_model(grouped_decoder(rows).SerializeToString())
    request = core.compile_model(model, device).create_infer_request()
    request.reset_state()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    drawn = np.random.default_rng(3)
    for at in range(8):
        request.infer(grouped_step(drawn, 1, at))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 16 << 10  # KiB
