"""GroupQueryAttention of device OPENCL, against onnxruntime and REFERENCE's float64."""

import numpy as np
import pytest

import partita
from partita.errors import InputError

from ..comparison import TILINGS, compiled, core
from .attention_case import CHUNK, DECODE, FEW, LONG, MANY, PROMPT, Case


@pytest.mark.sampled(2)
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


@pytest.mark.parametrize("form", [DECODE, PROMPT, LONG])
def test_a_row_of_the_lowest_number_is_a_mean(form):
    Case(*form, causal=0).lowered(np.finfo(np.float32).min).check()


def test_a_row_of_the_lowest_number_among_many_is_a_mean():
    (batch, heads, kv_heads, tokens, _), *others = MANY
    case = Case((batch, heads, kv_heads, tokens, 64), *others, causal=0).lowered(0).halved()
    case.inputs["bias"][..., -1, :] = np.finfo(np.float16).min
    case.check(tolerance=4e-3, judged=False)


@pytest.mark.parametrize("form", [DECODE, CHUNK])
def test_tokens_in_one_tensor(form):
    Case(*form, do_rotary=1).packed().check()


@pytest.mark.parametrize("form", [DECODE, PROMPT])
def test_halves(form):
    Case(*form, do_rotary=1).halved().check(tolerance=4e-3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("size", "attributes"),
    [
        (24, {"do_rotary": 1}),
        (40, {"do_rotary": 1, "rotary_interleaved": 1, "local_window_size": 20}),
        (64, {"softcap": 2.0, "scale": 0.3}),
        (128, {"do_rotary": 1, "local_window_size": 90}),
        (32, {"causal": 0}),
    ],
)
@pytest.mark.parametrize("form", ["apart", "packed", "biased"])
def test_many_tokens_in_halves(size, attributes, form):
    (batch, heads, kv_heads, tokens, _), *others = MANY
    case = Case((batch, heads, kv_heads, tokens, size), *others, **attributes)
    if form == "packed":
        case = case.packed()
    elif form == "biased":
        case = case.biased(batch, 1)
    case.halved().check(tolerance=6e-3, judged=False)


def test_a_first_prompt_of_many_tokens_in_halves():
    (batch, heads, kv_heads, tokens, size), *_ = MANY
    sizes = batch, heads, kv_heads, tokens, size
    lengths = (69, 50, 9)
    case = Case(sizes, tokens, tokens, lengths, do_rotary=1).without_past().halved()
    case.check(tolerance=6e-3, judged=False)


def test_a_cache_of_halves():
    Case(*FEW, cache=np.float16, do_rotary=1).check(tolerance=1e-3, judged=False)


@pytest.mark.parametrize("name", ["k", "v"])
def test_a_number_that_is_none_is_in_what_sees_it(name):
    case = Case(*DECODE)
    case.inputs[name][0, 0, 3] = np.nan
    for y, *_ in case.found():
        assert np.isnan(y[0, 0, 3 if name == "v" else slice(0, 48)]).all()
        assert np.isfinite(y[0, 0, 48:]).all() and np.isfinite(y[1]).all()


@pytest.mark.parametrize("form", [DECODE, PROMPT, CHUNK, FEW, LONG])
def test_what_the_cache_has_behind_its_last_key_counts_nothing(form):
    """Keys are read before it is known how many there are."""
    case = Case(*form, do_rotary=1)
    due, *_ = case.due()
    for row, length in enumerate(case.lengths):
        first = 0 if case.inputs["total"] == case.tokens else length + 1 - case.tokens
        for name in ("past_key", "past_value"):
            case.inputs[name][row, :, first:] = np.nan
    for found, *_ in case.found():
        np.testing.assert_allclose(found, due, 2e-5, 2e-5)


def test_what_the_cache_has_behind_its_last_key_counts_nothing_for_many_tokens_in_halves():
    case = Case(*MANY, do_rotary=1).halved()
    due, *_ = case.due()
    for row, length in enumerate(case.lengths):
        for name in ("past_key", "past_value"):
            case.inputs[name][row, :, length + 1 - case.tokens :] = np.nan
    for found, *_ in case.found():
        np.testing.assert_allclose(found.astype(np.float64), due.astype(np.float64), 6e-3, 6e-3)


@pytest.mark.parametrize(
    ("form", "names"), [(FEW, "kv"), (FEW, "q"), (FEW, ["sines"]), (PROMPT, ["v", "cosines"])]
)
def test_inputs_of_several_widths(form, names):
    """No kernel reads halves as if they were numbers of twice the width, beyond their end."""
    case = Case(*form, do_rotary=1)
    for name in names:
        case.inputs[name] = case.inputs[name].astype(np.float16)
    case.check(tolerance=2e-3, judged=False)


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
        due = case.due()
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


@pytest.mark.parametrize(
    "wrong",
    [
        *({"total": 21}, {"total": 0}, {"total": 15, "lengths": [13, 11]}),  # rotated at 0 to 11
        *({"lengths": [9, 12]}, {"lengths": [-1, 11]}, {"lengths": [2**31 - 1, 3]}),
    ],
)
def test_what_does_not_fit_a_cache_is_told_in_the_words_of_cpu(wrong):
    case = Case(*DECODE, do_rotary=1)
    for table in ("cosines", "sines"):
        case.inputs[table] = case.inputs[table][:12]
    bad = case.feeds() | {name: np.array(value, np.int32) for name, value in wrong.items()}
    model, told = core().read_model(case.model()), []
    for device in ("OPENCL", "CPU"):
        request = core().compile_model(model, device).create_infer_request()
        with pytest.raises(InputError) as error:
            request.infer(bad)
        told.append(str(error.value))
        request.infer(case.feeds())  # what was told is told once
    assert told[0] == told[1]
