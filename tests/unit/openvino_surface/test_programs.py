"""Programs written for OpenVINO's Python API run after one changed import, and answer rightly."""

from __future__ import annotations

import numpy as np
import pytest
from program_files import functions, write_models

FUNCTIONS = functions()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    write_models(folder)
    return folder


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_program_answers_rightly(name, files):
    found, expected = FUNCTIONS[name](files)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_there_are_as_many_as_promised():
    assert len([name for name in FUNCTIONS if name.startswith("samples.")]) >= 9
    assert len([name for name in FUNCTIONS if name.startswith("cells.")]) >= 30
