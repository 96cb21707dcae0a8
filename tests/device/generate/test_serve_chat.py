"""OpenAI's API with a small decoder, by OpenAI's own client; float64 says which texts are right."""

import asyncio
import gc
import importlib
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import onnx
import pytest
import tiny_decoder as tiny
from serving import client_of, running_server
from tiny_text import text_of, write_model

from partita.errors import InferError, TokenizerError
from partita.generate import Piece
from partita_serve.models.text_model import TextModel
from partita_serve.protocol.errors import InternalError, InvalidRequest, Overloaded

WEIGHTS = tiny.weights()


def expected(prompt, count):
    """What the model says, by float64 without any cache."""
    return text_of(tiny.expected_tokens(prompt, count, WEIGHTS))


def continued(prompt, count):
    """The same behind a prompt, from which a space parts it."""
    return f" {expected(prompt, count)}"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    template = (
        "{% for m in messages %}{{ 'w7 ' if m.role == 'user' else 'w8 ' }}{{ m.content }} "
        "{{ raise_exception('too long') if m.content == 'w9' }}{% endfor %}"
    )
    write_model(path, WEIGHTS, template)
    options = {"language_models": {"tiny": str(path)}, "texts_at_once": 2, "max_texts_waiting": 6}
    with running_server(**options, defaults={"device": "CPU"}) as running:
        yield running


@pytest.fixture(scope="module")
def openai():
    """The package of the client: 500 modules, which who only collects tests does without."""
    return importlib.import_module("openai")


@pytest.fixture(scope="module")
def client(openai, server):
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        yield client


def said(text):
    return [{"role": "user", "content": text}]


def test_a_model_without_a_tokenizer_is_refused_before_anybody_asks(tmp_path):
    onnx.save(tiny.fixed(WEIGHTS), tmp_path / "model.onnx")
    models = {"language_models": {"tiny": str(tmp_path)}, "context": 8}
    with (
        pytest.raises(TokenizerError, match=r"There is no 'tokenizer\.json'"),
        running_server(**models, defaults={"device": "CPU"}),
    ):
        pass


def test_too_many_texts_are_refused_before_one_is_read(openai, client, monkeypatch):
    monkeypatch.delattr(TextModel, "tokens_of")
    monkeypatch.delattr(TextModel, "chat_tokens_of")
    with pytest.raises(openai.BadRequestError, match="takes 8 at most"):
        client.completions.create(model="tiny", prompt=["w1"] * 5, n=2)
    with pytest.raises(openai.BadRequestError, match="takes 8 at most"):
        client.chat.completions.create(model="tiny", messages=said("w1"), n=9)


def test_models(openai, client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "partita"
    with pytest.raises(openai.NotFoundError, match="no language model 'other'"):
        client.models.retrieve("other")


def test_chat(client):
    answer = client.chat.completions.create(
        model="tiny", messages=said("w3 w1"), max_tokens=6, temperature=0
    )
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == expected([7, 3, 1], 6)
    assert choice.finish_reason == "length"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 6, 9)


def test_conversation_of_all_kinds_of_messages(client):
    parts = [{"type": "text", "text": "w3 "}, {"type": "text", "text": "w1"}]
    messages = [
        {"role": "developer", "content": "w5"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "w2"},
        {"role": "user", "content": "w4"},
    ]
    answer = client.chat.completions.create(
        model="tiny", messages=messages, max_completion_tokens=3, temperature=0
    )
    prompt = [8, 5, 7, 3, 1, 8, 2, 7, 4]
    assert answer.choices[0].message.content == expected(prompt, 3)


def test_without_a_limit_the_context_ends_the_text(client):
    answer = client.chat.completions.create(model="tiny", messages=said("w3"), temperature=0)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == 48
    assert answer.choices[0].message.content == expected([7, 3], 46)


def test_stream(client):
    stream = client.chat.completions.create(
        model="tiny",
        messages=said("w3 w1"),
        max_tokens=5,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = stream
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(deltas) == expected([7, 3, 1], 5)
    assert sum(map(bool, deltas)) == 5
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "length"]
    assert last.usage.completion_tokens == 5
    assert len({chunk.id for chunk in [*chunks, last]}) == 1


def test_completions_of_several_prompts(client):
    answer = client.completions.create(
        model="tiny", prompt=["w3 w1", "w4"], max_tokens=4, temperature=0
    )
    due = [continued([3, 1], 4), continued([4], 4)]
    assert [choice.text for choice in answer.choices] == due
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.prompt_tokens == 3
    tokens = client.completions.create(
        model="tiny", prompt=[[3, 1], [4]], max_tokens=4, temperature=0
    )
    assert [one.text for one in tokens.choices] == [one.text for one in answer.choices]


def test_a_completion_has_sixteen_tokens_if_nothing_is_said(client):
    answer = client.completions.create(model="tiny", prompt=[3, 1], temperature=0)
    assert answer.choices[0].text == continued([3, 1], 16)


def test_stream_of_a_completion(client):
    stream = client.completions.create(
        model="tiny", prompt="w3", max_tokens=3, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == continued([3], 3)


def test_stop_words(client):
    words = expected([3, 1], 8).split()
    answer = client.completions.create(
        model="tiny", prompt="w3 w1", max_tokens=8, temperature=0, stop=[words[4]]
    )
    first = words.index(words[4])
    assert answer.choices[0].text.split() == words[:first]
    assert answer.choices[0].finish_reason == "stop"


def test_a_seed_draws_the_same_and_choices_differ(client):
    def draw(seed):
        answer = client.chat.completions.create(
            model="tiny", messages=said("w3"), max_tokens=12, n=2, seed=seed, temperature=2
        )
        return [choice.message.content for choice in answer.choices]

    one = draw(1)
    assert one == draw(1)
    assert one[0] != one[1]


def test_clients_at_once_get_their_own_texts(client):
    prompts = [[number, number + 1] for number in range(1, 9)]

    def ask(prompt):
        answer = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=10, temperature=0
        )
        return answer.choices[0].text

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, prompts)) == [continued(prompt, 10) for prompt in prompts]


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("chat/completions", {"messages": said("w3")}, 400, "'model': Field required"),
        ("chat/completions", {"model": "tiny", "messages": []}, 400, "'messages': List should"),
        ("chat/completions", {"model": "x", "messages": said("w3")}, 404, "model 'x'"),
        ("completions", {"model": "tiny", "prompt": "w3", "logprobs": 3}, 400, "'logprobs' is unk"),
        ("completions", {"model": "tiny", "prompt": "w3", "max_tokens": 0}, 400, "'max_tokens'"),
        ("completions", {"model": "tiny", "prompt": "w3", "max_tokens": 99}, 400, "at most 47"),
        ("completions", {"model": "tiny", "prompt": "w3", "temperature": 3}, 400, "'temperature'"),
        ("completions", {"model": "tiny", "prompt": [1] * 48}, 400, "shorten the prompt"),
        ("completions", {"model": "tiny", "prompt": [40]}, 400, "out of range"),
        ("completions", {"model": "tiny", "prompt": ""}, 400, "prompt"),
        ("completions", {"model": "tiny", "prompt": ["w1"] * 9}, 400, "takes 8 at most"),
        ("chat/completions", {"model": "tiny", "messages": said("w9")}, 400, "too long"),
        ("completions", {"model": "tiny", "prompt": "w" * 13_000}, 400, "12288 letters are read"),
        (
            "chat/completions",
            {"model": "tiny", "messages": said("w" * 13_000)},
            400,
            "has 13000 letters",
        ),
        (
            "chat/completions",
            {"model": "tiny", "messages": [{"role": "robot", "content": "w3"}]},
            400,
            "'messages.0.role': Input should be",
        ),
        (
            "chat/completions",
            {"model": "tiny", "messages": said([{"type": "image_url", "image_url": "a"}])},
            400,
            "image_url",
        ),
    ],
)
def test_what_is_refused(server, path, body, status, told):
    with client_of(server) as http:
        answer = http.post(f"/v1/{path}", json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert told in error["message"]
    assert error["type"] == {400: "invalid_request_error", 404: "not_found_error"}[status]


@pytest.mark.parametrize("body", [b"{", b"[" * 5000, b"\xff", b"[]", b"null", b""])
def test_bodies_that_are_no_requests(server, body):
    with client_of(server) as http:
        answer = http.post("/v1/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith(".")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_clients_that_leave_amid_their_request_are_no_failures(server, path, caplog):
    host, port = server.netloc.split(":")
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{"
    with caplog.at_level(logging.WARNING), client_of(server) as client:
        for _ in range(5):
            with socket.create_connection((host, int(port)), timeout=30) as leaving:
                leaving.sendall(head.encode())
                assert client.get("/v1/models").status_code == 200  # so that it has been read
            assert client.get("/v1/models").status_code == 200
    assert not caplog.records


def test_the_status_page_and_metrics_tell_of_texts(client, server):
    client.completions.create(model="tiny", prompt="w3", max_tokens=1)
    with client_of(server) as http:
        assert '"model":"tiny"' in http.get("/").text
        assert 'partita_requests_total{model="tiny",outcome="ok"}' in http.get("/metrics").text


# ---------------------------------------------------------------- with a generator that waits


class Waiting:
    """Generates pieces when it is told to, and notes when it is closed."""

    def __init__(self, failure=None):
        self.go, self.is_closed, self.began = (threading.Event() for _ in range(3))
        self.failure = failure

    def generate_batch(self, prompts, **options):
        try:
            self.began.set()
            yield Piece(0, 1, "a")
            assert self.go.wait(60)
            if self.failure is not None:
                raise self.failure
            while True:
                yield Piece(0, 1, "b")
        finally:
            self.is_closed.set()


async def taken(model, prompts):
    """The pieces of texts, as soon as the model takes them."""
    while True:
        try:
            return model.generate(prompts)
        except Overloaded:
            await asyncio.sleep(0.01)


def test_texts_beyond_the_queue_are_refused_until_one_ends():
    async def check():
        generator = Waiting()
        model = TextModel("slow", generator, 1, 1)
        with pytest.raises(InvalidRequest, match="has 3 texts; model 'slow' takes 2"):
            model.generate([[1]] * 3)
        pieces = model.generate([[1], [2]])
        assert (await anext(pieces)).text == "a"
        with pytest.raises(Overloaded, match="is at 2 texts, and takes 2 at most"):
            model.generate([[1]])
        await pieces.aclose()  # as when a client goes
        generator.go.set()
        assert await asyncio.to_thread(generator.is_closed.wait, 60)
        again = await taken(model, [[1]])
        assert (await anext(again)).text == "a"
        await again.aclose()
        model.close()

    asyncio.run(check())


def test_texts_count_before_their_answers_are_read():
    """Streams begin to be read when their headers are sent, and others ask before that."""

    async def check():
        generator = Waiting()
        model = TextModel("slow", generator, 1, 0)
        pieces = model.generate([[1]])
        with pytest.raises(Overloaded, match="is at 1 texts, and takes 1 at most"):
            model.generate([[1]])
        assert await asyncio.to_thread(generator.began.wait, 60)
        del pieces  # its client went before the headers: nobody closes it
        gc.collect()
        generator.go.set()
        assert await asyncio.to_thread(generator.is_closed.wait, 60)
        await (await taken(model, [[1]])).aclose()
        model.close()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (InferError("The device is lost."), "The device is lost"),
        (KeyError("x"), "its log says why"),
    ],
)
def test_failures_while_generating_are_told(failure, told):
    async def check():
        generator = Waiting(failure)
        model = TextModel("faulty", generator, 1, 0)
        pieces = model.generate([[1]])
        await anext(pieces)
        generator.go.set()
        with pytest.raises(InternalError, match=told):
            await anext(pieces)
        model.close()

    asyncio.run(check())
