"""Large arrays in another type, beside numpy's own conversion of each."""

import ml_dtypes
import numpy as np
import pytest

from partita.system import array_conversion
from partita.system.array_conversion import convert_into, converted

NUMBERS = np.array([0.1, -0.0, 65519, 65520, 1e30, -np.inf, 1e-8, 3e-5, np.pi], np.float32)


@pytest.fixture(params=["one piece", "pieces"])
def pieces(request, monkeypatch):
    if request.param == "pieces":
        monkeypatch.setattr(array_conversion, "PIECE", 4)
        monkeypatch.setattr(array_conversion, "usable_processors", lambda: 3)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("shape", [(9,), (3, 3), (1,), (), (0,), (2, 0)])
def test_numbers_are_those_of_numpy(dtype, shape):
    array = NUMBERS[: int(np.prod(shape))].reshape(shape)
    with np.errstate(over="ignore"):
        expected = array.astype(dtype)
    with np.errstate(all="raise"):
        result = converted(array, dtype)
    assert result.shape == shape and result.dtype == dtype
    assert result.tobytes() == expected.tobytes()


@pytest.mark.usefixtures("pieces")
def test_strides_do_not_matter():
    array = np.arange(60, dtype=np.float16).reshape(5, 12)[::2, ::-3].T
    result, expected = converted(array, np.float32), array.astype(np.float32)
    np.testing.assert_array_equal(result, expected)
    assert result.strides == expected.strides
    rows = np.zeros((14, 5), np.float32)
    convert_into(rows[::7, :3], array[:2])
    np.testing.assert_array_equal(rows[::7, :3], expected[:2])
    assert np.count_nonzero(rows) <= 6
