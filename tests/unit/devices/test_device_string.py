"""Device strings."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from partita.devices.device_string import (
    DeviceString,
    is_device_id,
    is_device_name,
    parse,
    parse_list,
)
from partita.errors import DeviceStringError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CPU", DeviceString("CPU")),
        (" CPU ", DeviceString("CPU")),
        ("OPENCL.1", DeviceString("OPENCL", "1")),
        ("MY_DEV2.slot-3_b", DeviceString("MY_DEV2", "slot-3_b")),
        ("HETERO:GPU,CPU", DeviceString("HETERO", "", ("GPU", "CPU"))),
        ("HETERO: GPU.1 , CPU ", DeviceString("HETERO", "", ("GPU.1", "CPU"))),
        ("HETERO.a:CPU", DeviceString("HETERO", "a", ("CPU",))),
    ],
)
def test_parses(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "an empty name"),
        ("cpu", "'cpu'; the form is NAME, NAME.ID or NAME:DEVICE,DEVICE in capitals"),
        ("CPU.", "'CPU.'"),
        (".0", "'.0'"),
        ("2CPU", "'2CPU'"),
        ("C PU", "'C PU'"),
        ("CPU.0.1", "'CPU.0.1'"),
        ("ＣＰＵ", "'ＣＰＵ'"),
        ("HETERO:", "an empty name"),
        ("HETERO:GPU,", "an empty name"),
        ("HETERO:GPU,,CPU", "an empty name"),
        ("HETERO:GPU;CPU", "'GPU;CPU'"),
        ("HETERO:HETERO:CPU", "'HETERO:CPU'"),
        ("HETERO:GPU,CPU,GPU", "lists 'GPU' twice; name each device once"),
    ],
)
def test_refuses(text, said):
    with pytest.raises(DeviceStringError) as caught:
        parse(text)
    assert said in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("wrong", [None, 1, b"CPU", ["CPU"]])
def test_refuses_what_is_no_string(wrong):
    with pytest.raises(DeviceStringError, match=rf"found {type(wrong).__name__}"):
        parse(wrong)


@given(st.text() | st.text(alphabet="AB0._-:, \n", max_size=12))
def test_any_text_parses_or_raises_the_one_error(text):
    try:
        parsed = parse(text)
    except DeviceStringError:
        return
    again = parsed.device + ("" if parsed.priorities is None else ":" + ",".join(parsed.priorities))
    assert parse(again) == parsed
    assert is_device_name(parsed.name)
    assert is_device_id(parsed.device_id)


def test_a_list_on_its_own():
    assert parse_list("GPU.1, CPU") == ("GPU.1", "CPU")
    with pytest.raises(DeviceStringError, match=r"'A,,B' holds an empty name"):
        parse_list("A,,B")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("CPU,OPENCL", "stands behind the one that uses them and a colon: 'NAME:CPU,OPENCL'."),
        ("cpu,opencl", "and a colon: 'NAME:CPU,OPENCL'."),
        ("BATCH:CPU(x)", "is a whole number from 1, of requests or of a batch: 'BATCH:CPU(4)'."),
        ("MULTI:CPU(0)", "is a whole number from 1, of requests or of a batch: 'MULTI:CPU(4)'."),
        ("HETERO:CPU,", "Did you mean 'HETERO:CPU'?"),
        ("HETERO:CPU;GPU", "Did you mean 'HETERO:CPU,GPU'?"),
        ("HETERO(CPU)", "Did you mean 'HETERO:CPU'?"),
        ("hetero gpu,cpu", "Did you mean 'HETERO:GPU,CPU'?"),
    ],
)
def test_a_malformed_list_is_told_what_to_write(text, hint):
    with pytest.raises(DeviceStringError, match=re.escape(hint)):
        parse(text)
