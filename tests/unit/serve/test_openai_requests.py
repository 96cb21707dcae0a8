"""Requests for texts: hostile ones are refused in few words, without a look at all they hold."""

import tracemalloc

import pytest

from partita_serve.protocol.errors import InvalidRequest
from partita_serve.rest.openai_requests import ChatRequest, CompletionRequest, parsed

MANY = 100_000
SAID = b'{"role": "user", "content": "w1"}'


def chat(rest):
    return b'{"model": "m", "messages": [' + SAID + b"], " + rest + b"}"


def of_many(element, name=b"messages"):
    return b'{"model": "m", "' + name + b'": [' + b", ".join([element] * MANY) + b"]}"


def many_names():
    return b", ".join(b'"%d": 0' % number for number in range(MANY))


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        (ChatRequest, of_many(b"0"), "'messages.0': Input should be a valid dict"),
        (ChatRequest, of_many(b"{}"), "'messages.0.role': Field required"),
        (ChatRequest, of_many(SAID), "'messages': List should have at most 65536"),
        (ChatRequest, chat(many_names()), "it has 100002 names; 64 are read at most"),
        (
            ChatRequest,
            b'{"model": "m", "messages": [{' + many_names() + b"}]}",
            "'messages.0': it has 100000 names",
        ),
        (
            ChatRequest,
            of_many(b'{"role": "user", "content": [0, 0, 0, 0]}'),
            "'messages.0.content.str': Input should be a valid string",
        ),
        (
            ChatRequest,
            b'{"model": "m", "messages": [{"role": "user", "content": ['
            + b'{"type": "text", "text": ""}, ' * 4096
            + b'{"type": "text", "text": ""}]}]}',
            "List should have at most 4096 items",
        ),
        (ChatRequest, chat(b'"%s": 0' % (b"a" * MANY)), "'aaa"),
        (ChatRequest, chat(b'"stop": [%s"a"]' % (b'"a", ' * 64)), "at most 64 items"),
        (ChatRequest, chat(b'"stop": ["%s"]' % (b"a" * 1001)), "at most 1000 characters"),
        (ChatRequest, chat(b'"user": "%s"' % (b"a" * 1001)), "at most 1000 characters"),
        (ChatRequest, chat(b'"n": 17'), "'n': Input should be less than or equal to 16"),
        (ChatRequest, chat(b'"max_tokens": 2147483648'), "'max_tokens': Input should be less"),
        (ChatRequest, chat(b'"top_k": 1000000000000000000'), "'top_k': Input should be less"),
        (ChatRequest, chat(b'"logit_bias": {%s}' % many_names()), "'logit_bias' is unknown"),
        (CompletionRequest, of_many(b"0.5", b"prompt"), "'prompt': expected a text"),
        (CompletionRequest, of_many(b"[]", b"prompt"), "'prompt': expected a text"),
        (CompletionRequest, of_many(b'"a"', b"prompt"), "it has 100000 texts; 2048 are taken"),
        (CompletionRequest, b'{"model": "m", "prompt": [true]}', "'prompt': expected a text"),
        (CompletionRequest, b'{"model": "m", "prompt": [-1]}', "'prompt': expected a text"),
        (CompletionRequest, b'{"model": "m", "prompt": ["a", 1]}', "'prompt': expected a text"),
    ],
)
def test_hostile_bodies(kind, body, told):
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest) as raised:
            parsed(kind, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told in str(raised.value)
    assert len(str(raised.value)) < 1000
    assert peak < MANY * 1000


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        (b'"a b"', ["a b"]),
        (b'["a", ""]', ["a", ""]),
        (b"[1, 2]", [[1, 2]]),
        (b"[[1, 2], [3]]", [[1, 2], [3]]),
    ],
)
def test_prompts_of_each_kind(prompt, texts):
    assert parsed(CompletionRequest, b'{"model": "m", "prompt": ' + prompt + b"}").prompt == texts


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, chat(b'"response_format": {"type": "text"}, "tools": [], "store": false')),
        (ChatRequest, chat(b'"logit_bias": {}, "tool_choice": "none", "service_tier": "auto"')),
        (CompletionRequest, b'{"model": "m", "prompt": "w1", "suffix": "", "logit_bias": {}}'),
    ],
)
def test_values_that_ask_for_nothing_are_taken(kind, body):
    assert parsed(kind, body).model == "m"


@pytest.mark.parametrize(
    "asked",
    [
        b'"response_format": {"type": "json_object"}',
        b'"tools": [{"type": "function"}]',
        b'"logit_bias": {"5": 1}',
        b'"store": true',
    ],
)
def test_what_is_not_done_is_refused(asked):
    name = asked.split(b":")[0].decode().replace('"', "'")
    with pytest.raises(InvalidRequest, match=f"{name} is unknown"):
        parsed(ChatRequest, chat(asked))
