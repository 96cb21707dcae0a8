"""Generating with a small decoder on device CPU, compared with float64 without any cache."""

import gc
import os
import signal
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest
import tiny_decoder as tiny
import tiny_text
from models import neg

import partita
from partita.errors import (
    ContextLengthError,
    DeviceMemoryError,
    InferError,
    InputError,
    ModelFormatError,
    TokenizerError,
)
from partita.generate import Generator, model_source
from partita.generate.continuous_batch import ContinuousBatch
from partita_reference.plugin import ReferencePlugin

WEIGHTS = tiny.weights()
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [27, 18], [11], [8, 2, 8, 1, 8, 2]]


FORMS = {
    "growing": tiny.growing,
    "fixed, masked": tiny.fixed,
    "fixed, lengths": lambda arrays: tiny.fixed(arrays, masked=False),
}


@pytest.fixture(scope="module", params=FORMS)
def model(request):
    return partita.Core().read_model(FORMS[request.param](WEIGHTS))


@pytest.fixture(scope="module")
def make(model):
    """Makes a generator of the model on CPU."""

    def make(**options):
        return Generator(model, "CPU", **({"context": tiny.LONGEST} | options))

    return make


def tokens_of(pieces):
    found = {}
    for piece in pieces:
        found.setdefault(piece.sequence, []).append(piece.token)
    return [found[number] for number in sorted(found)]


def test_greedy_tokens_are_those_of_float64(make):
    [tokens] = tokens_of(make().generate(PROMPTS[0], max_new_tokens=40))
    assert tokens == tiny.expected_tokens(PROMPTS[0], 40, WEIGHTS)
    assert len(set(tokens)) > 5


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_chunks_of_a_prompt_change_nothing(make, chunk):
    [tokens] = tokens_of(make(chunk=chunk).generate(PROMPTS[0], max_new_tokens=8))
    assert tokens == tiny.expected_tokens(PROMPTS[0], 8, WEIGHTS)


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_prompts_of_any_lengths_go_together(make, batch):
    found = tokens_of(make(batch=batch).generate_batch(PROMPTS, max_new_tokens=9))
    assert found == [tiny.expected_tokens(prompt, 9, WEIGHTS) for prompt in PROMPTS]


class Outsider(ReferencePlugin):
    """A device that updates no state in place, of a kind for which the batch stays open or not."""

    device_name = "OUTSIDER"

    def __init__(self, kind):
        self.kind = kind

    def device_info(self, device_id):
        return replace(super().device_info(device_id), device=self.device_name, kind=self.kind)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["cpu", "gpu", "accelerator"])
@pytest.mark.parametrize("device", ["OUTSIDER", "AUTO:OUTSIDER", "HETERO:OUTSIDER,CPU"])
def test_prompts_go_together_on_devices_that_take_all_rows(model, kind, device):
    core = partita.Core()
    core.register_plugin(Outsider(kind))
    generator = Generator(model, device, context=tiny.LONGEST, batch=3, core=core)
    found = tokens_of(generator.generate_batch(PROMPTS, max_new_tokens=5))
    assert found == [tiny.expected_tokens(prompt, 5, WEIGHTS) for prompt in PROMPTS]


def test_generations_that_overlap_share_the_rows(make):
    generator = make(batch=2)
    runs = [generator.generate(prompt, max_new_tokens=7) for prompt in PROMPTS]
    found = [[] for _ in PROMPTS]
    for _ in range(7):
        for number, run in enumerate(runs):
            found[number].append(next(run).token)
    assert found == [tiny.expected_tokens(prompt, 7, WEIGHTS) for prompt in PROMPTS]


def test_threads_may_generate_at_the_same_time(make):
    generator = make(batch=2)
    found = {}

    def work(number):
        [found[number]] = tokens_of(generator.generate(PROMPTS[number], max_new_tokens=12))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, prompt in enumerate(PROMPTS):
        assert found[number] == tiny.expected_tokens(prompt, 12, WEIGHTS)


def test_a_generation_that_is_given_up_leaves_its_row(make):
    generator = make()
    run = generator.generate(PROMPTS[0])
    next(run)
    run.close()
    [tokens] = tokens_of(generator.generate(PROMPTS[1], max_new_tokens=5))
    assert tokens == tiny.expected_tokens(PROMPTS[1], 5, WEIGHTS)


def test_an_iterator_that_garbage_collection_closes_in_a_step_leaves_its_row(make, monkeypatch):
    generator, found = make(), []
    cycle = {"pieces": generator.generate(PROMPTS[0])}
    cycle["itself"] = cycle
    next(cycle["pieces"])
    make_step = ContinuousBatch.step

    def step(batch):
        if is_closed() is not None:
            gc.collect()  # as it may come at any time
        make_step(batch)

    def work():
        found.extend(tokens_of(generator.generate(PROMPTS[1], max_new_tokens=5)))

    monkeypatch.setattr(ContinuousBatch, "step", step)
    gc.disable()  # until the step it lies there
    try:
        is_closed = weakref.ref(cycle["pieces"])
        del cycle
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(60)  # a thread that waits for itself waits for ever
    finally:
        gc.enable()
    assert is_closed() is None
    assert found == [tiny.expected_tokens(PROMPTS[1], 5, WEIGHTS)]


def test_several_generators_share_one_compiled_model(make):
    compiled = make().compiled_model
    first, second = (Generator(compiled, context=tiny.LONGEST) for _ in range(2))
    runs = [first.generate(PROMPTS[0]), second.generate(PROMPTS[3])]
    pairs = [[next(run).token for run in runs] for _ in range(6)]
    expected = [tiny.expected_tokens(PROMPTS[n], 6, WEIGHTS) for n in (0, 3)]
    assert list(map(list, zip(*pairs, strict=True))) == expected


def test_a_seed_draws_the_same_tokens_whatever_is_beside_them(make):
    options = {"max_new_tokens": 12, "temperature": 1.5, "seed": 7}
    together = tokens_of(make(batch=4).generate_batch(PROMPTS, **options))
    assert together == tokens_of(make().generate_batch(PROMPTS, **options))
    greedy = [tiny.expected_tokens(prompt, 12, WEIGHTS) for prompt in PROMPTS]
    assert together != greedy
    assert together != tokens_of(make().generate_batch(PROMPTS, **(options | {"seed": 8})))


def test_a_text_ends_where_the_context_does(make):
    pieces = [*make(context=16).generate(PROMPTS[0])]
    assert len(pieces) == 8
    assert [piece.finish for piece in pieces] == [""] * 7 + ["context"]


def test_statistics_count_both_phases(make):
    generator = make()
    list(generator.generate(PROMPTS[0], max_new_tokens=5))
    statistics = generator.statistics
    assert (statistics.prefill_tokens, statistics.decode_tokens) == (8, 4)
    assert statistics.decode_runs == 4
    assert statistics.prefill_rate > 0
    statistics.clear()
    assert statistics.decode_rate is None


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (["a"], {}, "Token 'a' at place 0 of the prompt is a str; tokens are whole numbers"),
        ([True], {}, "Token True at place 0 of the prompt is a bool; tokens are whole numbers"),
        (np.array(3), {}, "The prompt is a ndarray; give a text or a list of tokens"),
        ([1, 1.5], {}, "Token 1.5 at place 1 of the prompt is a float; tokens are whole numbers"),
        ([1, 40], {}, "Token 40 at place 1 of the prompt is out of range; the model knows 0 to 39"),
        ([-1], {}, "Token -1 at place 0"),
        ([], {}, "has no tokens"),
        (None, {}, "The prompt is a NoneType; give a text or a list of tokens"),
        (b"text", {}, "The prompt is a bytes; give"),
        ({1, 2}, {}, "The prompt is a set; give"),
        ([1], {"stop": None}, "The stop words are None; give a list of texts"),
        ([1], {"max_new_tokens": True}, "max_new_tokens=True; it must be a whole number above 0"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens=0"),
        ([1], {"max_new_tokens": 1.5}, "max_new_tokens=1.5; it must be a whole number"),
        ([1], {"max_new_tokens": "5"}, "max_new_tokens=5; it must be a whole number"),
        ([1], {"temperature": "1"}, "temperature=1 is out of range"),
        ([1], {"temperature": -1.0}, "temperature=-1.0"),
        ([1], {"stop": ["x"]}, "Stop words need a tokenizer"),
    ],
)
def test_what_cannot_be_generated_is_refused_at_once(make, prompt, options, message):
    with pytest.raises(InputError, match=message):
        make().generate(prompt, **options)


def test_one_text_is_no_list_of_prompts(make):
    with pytest.raises(InputError, match="The prompts are one text; give a list of them, or call"):
        make().generate_batch("text")


def test_longer_texts_than_the_context_are_refused_with_what_fits(make):
    generator = make(context=16)
    with pytest.raises(ContextLengthError, match=r"into the context of 16 tokens; at most 8 new"):
        generator.generate(PROMPTS[0], max_new_tokens=9)
    with pytest.raises(ContextLengthError, match=r"A prompt of 16 tokens .*; shorten the prompt"):
        generator.generate([1] * 16)
    with pytest.raises(ContextLengthError):  # their number tells, and none of them is looked at
        generator.generate(["no token"] * 16)


def test_text_needs_a_tokenizer(make):
    with pytest.raises(TokenizerError, match="give Generator one, or prompts as tokens"):
        make().generate("text")


def test_the_tokenizer_is_made_before_the_first_text(tmp_path):
    """The first text waited for it: a quarter of a second for 49,000 tokens."""
    tiny_text.write_model(tmp_path, WEIGHTS, None)
    source = model_source.find(tmp_path)
    made = []

    def make_one():
        made.append(source.tokenizer())
        return made[-1]

    generator = Generator(replace(source, tokenizer=make_one), "CPU")
    assert len(made) == 1
    assert len(list(generator.generate("w3 w1", max_new_tokens=2))) == 2
    assert generator.tokenizer is made[0]
    assert len(made) == 1


def test_other_models_are_refused():
    model = partita.Core().read_model(neg())
    with pytest.raises(ModelFormatError, match=r"it lacks input 'input_ids' and output 'logits'"):
        Generator(model, "CPU")


def test_logits_that_are_no_numbers_are_an_error():
    broken = {**WEIGHTS, "head": np.full_like(WEIGHTS["head"], np.nan)}
    generator = Generator(partita.Core().read_model(tiny.growing(broken)), "CPU", context=16)
    with pytest.raises(partita.errors.InferError, match="their maximum is nan"):
        next(generator.generate([1]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_logits_of_one_text_that_are_no_numbers_end_that_text_alone(form, batch):
    broken = {**WEIGHTS, "embedding": WEIGHTS["embedding"].copy()}
    broken["embedding"][39] = np.nan
    model = partita.Core().read_model(FORMS[form](broken))
    generator = Generator(model, "CPU", context=tiny.LONGEST, batch=batch)
    found = {0: [], 1: [], 2: []}
    with pytest.raises(partita.errors.InferError, match="It ended sequence 0; others go on"):
        for piece in generator.generate_batch([[3, 1, 4, 39], *PROMPTS[1:3]], max_new_tokens=6):
            found[piece.sequence].append(piece.token)
    expected = [tiny.expected_tokens(prompt, 6, WEIGHTS) for prompt in PROMPTS[1:3]]
    assert found == {0: [], 1: expected[0], 2: expected[1]}
    for prompt, due in zip(PROMPTS[1:3], expected, strict=True):  # rows are as good as new
        assert [p.token for p in generator.generate(prompt, max_new_tokens=6)] == due


def test_a_cache_that_there_is_no_room_for_is_an_error_with_its_size(monkeypatch):
    def refuse(compiled):
        raise DeviceMemoryError("Out of memory.")

    monkeypatch.setattr("partita.generate.generator.Decoder", refuse)
    model = partita.Core().read_model(tiny.fixed(WEIGHTS))
    expected = r"keys and values of 3 sequences of 16 tokens, 0\.0 MB: Out of memory\. Each token"
    with pytest.raises(DeviceMemoryError, match=expected):
        Generator(model, "CPU", 16, batch=3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_process_forked_in_a_step_of_another_thread_refuses_to_go_on(make, monkeypatch):
    """Its caches may be half written; to wait for the thread would be for ever."""
    generator, step = make(), ContinuousBatch.step
    entered, leave = threading.Event(), threading.Event()

    def slow(batch):
        entered.set()
        leave.wait(60)
        step(batch)

    def tokens():
        return tokens_of(generator.generate(PROMPTS[0], max_new_tokens=3))

    monkeypatch.setattr(ContinuousBatch, "step", slow)
    other = threading.Thread(target=tokens)
    other.start()
    assert entered.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a process that waits for ever
        try:
            tokens()
        except InferError as error:
            os._exit("when the process was forked" not in str(error))
        os._exit(2)
    leave.set()
    other.join()
    assert os.waitpid(child, 0)[1] == 0
    assert tokens() == [tiny.expected_tokens(PROMPTS[0], 3, WEIGHTS)]
