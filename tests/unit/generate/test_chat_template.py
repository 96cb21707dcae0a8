"""Chat templates: rendered as written, and held back where a stranger means harm."""

import time

import pytest

from partita.errors import InputError, TokenizerError
from partita.generate import ChatTemplate

MESSAGES = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "<b> & {{ 1 }}"},
]
BEGIN = "<s>"
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = """\
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- bos_token }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""


def render(source, messages=MESSAGES, **tokens):
    return ChatTemplate(source, "'m.gguf'", tokens).render(messages)


def test_chatml():
    assert render(CHATML) == (
        "<|im_start|>system\nBe helpful.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\n<b> & {{ 1 }}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert ChatTemplate(CHATML, "x").render(MESSAGES[:1], answer=False).endswith("Hi<|im_end|>\n")


def test_blocks_leave_no_lines_and_tokens_have_names():
    assert render(LLAMA_3, MESSAGES[:1], bos_token=BEGIN) == (
        f"{BEGIN}<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ loop.index }}{{ loop.last }}{% endfor %}", "1False2False3True"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content[0] }}{% endfor %}", "H<"),
        ("{{ {'a': ['é', '<']}|tojson }}", '{"a": ["é", "<"]}'),
        ("{{ [1]|tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ 'a\nb'|indent(2) }}{{ 'x'|indent(2, true) }}", "a\n  b  x"),
        ("{{ 'a' ~ 1 ~ none }}{{ ['a', 'b']|join('-') }}", "a1Nonea-b"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", "2"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('a') }}{{ f(2 * 3) }}", "[a][6]"),
        ("{{ ' a '.strip().upper().replace('A', 'bb') }}", "bb"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "2"),
        ("{{ 'bc'|replace('b', 'a') }}{{ [3, 1]|sort|first }}{{ x|default('d') }}", "ac1d"),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}", "Hello"),
        ("{{ 7 % 4 }}{{ 2 ** 3 }}{{ [1] + [2] }}{{ (1, 2)[1] }}", "38[1, 2]2"),
    ],
)
def test_what_templates_use_works(source, expected):
    assert render(source) == expected


def grown(step, begin="'0123456789'"):
    """A template that makes a value larger sixty times."""
    return (
        f"{{% set ns = namespace(x={begin}) %}}{{% for i in range(60) %}}{step}{{% endfor %}}"
        "{{ ns.x }}"
    )


HOSTILE = {
    "loops in loops": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    ),
    "a long range": "{% for i in range(10**9) %}{% endfor %}",
    "a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__['os'] }}",
    "init": "{{ namespace.__init__.__globals__ }}",
    "a class by a filter": "{{ ''|attr('__class__') }}",
    "a class by format": "{{ '{0.__class__}'.format(messages) }}",
    "a width by format": "{{ '{:999999999}'.format(1) }}",
    "a width by percent": "{{ '%999999999d' % 1 }}",
    "a width by a method": "{{ 'a'.ljust(1000000000) }}",
    "a width by a filter": "{{ 'a'|center(1000000000) }}",
    "a wide indent": "{{ 'a\nb'|indent(1000000000) }}",
    "a wide JSON": "{{ [1]|tojson(indent=1000000000) }}",
    "a long text": "{{ 'a' * 10**12 }}",
    "a long list": "{{ [1] * 10**12 }}",
    "a large number": "{{ 9**9**9 }}",
    "a number that grows": grown("{% set ns.x = ns.x * ns.x %}", "12345678"),
    "texts that double by +": grown("{% set ns.x = ns.x + ns.x %}"),
    "texts that double by ~": grown("{% set ns.x = ns.x ~ ns.x %}"),
    "texts that double in blocks": grown(
        "{% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = t %}"
    ),
    "texts that grow by join": grown("{% set ns.x = ns.x|join(ns.x) %}"),
    "texts that grow by replace": grown("{% set ns.x = ns.x.replace('0', ns.x) %}"),
    "texts that grow by a filter": grown("{% set ns.x = ns.x|replace('0', ns.x) %}"),
    "lists in lists": grown("{% set ns.x = [ns.x, ns.x] %}"),
    "tuples in tuples": grown("{% set ns.x = (ns.x, ns.x) %}"),
    "dicts in dicts": grown("{% set ns.x = {'a': ns.x, 'b': ns.x} %}"),
    "names in names": grown("{% set ns.x = namespace(a=ns.x, b=ns.x) %}"),
    "much text in a loop": "{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}",
    "macros that call themselves": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macros that call themselves twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a file": "{% include '/etc/passwd' %}",
    "a module": "{% import 'os' as os %}",
    "a change of the messages": "{{ messages.append(1) }}",
    "a refusal": "{{ raise_exception('no such role') }}",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_templates_are_stopped(what):
    start = time.process_time()
    with pytest.raises(TokenizerError, match=r"The chat template of 'm\.gguf' "):
        render(HOSTILE[what])
    assert time.process_time() - start < 30  # left alone, they take years or all memory


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ 1",
        "{% for x in y recursive %}{% endfor %}",
        "{{ " + "(" * 9999 + ")" * 9999,
    ],
)
def test_templates_that_do_not_parse_are_refused(source):
    with pytest.raises(
        TokenizerError, match=r"of 'm\.gguf' does not parse: .*[^.]\. Give the prompt"
    ):
        ChatTemplate(source, "'m.gguf'")


@pytest.mark.parametrize("made", ["(1).to_bytes(9, 'big')", "(1.5).hex()", "true.to_bytes(9)"])
def test_numbers_have_no_methods(made):
    """``to_bytes`` makes bytes of any length, for which no step of a template pays."""
    with pytest.raises(TokenizerError, match=r"of 'm\.gguf' fails on these messages"):
        render("{{ " + made + " }}")


def test_long_templates_are_refused():
    with pytest.raises(TokenizerError, match="has 300000 characters; at most 262144 are read"):
        ChatTemplate("x" * 300_000, "'m.gguf'")


def test_a_rendering_leaves_no_debts():
    template = ChatTemplate(
        "{% if messages|length > 1 %}{{ 'a' * 10**12 }}{% endif %}{{ messages[0].content }}", "x"
    )
    for _ in range(2):
        with pytest.raises(TokenizerError, match="makes more than"):
            template.render(MESSAGES)
        assert template.render(MESSAGES[:1]) == "Hi"


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TokenizerError, match=r"'jinja2' .* pip install \"partita\[generate\]\""):
        ChatTemplate("x", "'m.gguf'")


@pytest.mark.parametrize("messages", [None, "Hi", ["Hi"], {"role": "user", "content": "Hi"}])
def test_messages_are_a_list_of_entries(messages):
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", "'m.gguf'")
    with pytest.raises(InputError, match=r"The messages are .*; give a list of entries such as"):
        template.render(messages)
