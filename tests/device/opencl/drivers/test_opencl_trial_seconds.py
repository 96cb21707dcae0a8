"""What the log tells of the time that trials take."""

import logging
import re

import pytest

from partita_opencl.drivers import trial_seconds


def test_a_trial_is_told_with_its_parts_and_in_order(caplog):
    with (
        caplog.at_level(logging.INFO, "partita_opencl"),
        trial_seconds.logged("The trial") as seconds,
    ):
        seconds.end("load")
        seconds.end("list")
    number = r"\d+\.\d\d s"
    text = rf"The trial took {number} \(load at {number}, list at {number}\)"
    assert re.fullmatch(text, caplog.messages[-1])


def test_a_trial_that_raises_is_told_too(caplog):
    with (
        caplog.at_level(logging.INFO, "partita_opencl"),
        pytest.raises(OSError, match="gone"),
        trial_seconds.logged("The trial"),
    ):
        raise OSError("gone")
    assert re.fullmatch(r"The trial took \d+\.\d\d s", caplog.messages[-1])
