"""Numbers in front of a convolution: they move into its weights where nothing else changes."""

import numpy as np
import pytest
from test_lowering_fusion import CONV, CONV_INPUT, X, check, model_of, normal

POINT = {"w": normal(4, 6, 1, 1), "b": normal(4)}
NUMBERS = {"k": np.float32(-0.7), "l": np.array([0.4], np.float32)}
PADDED = "<pads = [1, 1, 1, 1]>"


def model(chain, weights=POINT, **more):
    return model_of(f"{CONV_INPUT} => (float[2, 4, H, W] y) {{ {chain} }}", weights | more)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("m = Mul(k, x) a = Add(m, l) y = Conv(a, w, b)", "Conv"),
        ("m = Mul(x, k) a = Add(l, m) y = Conv(a, w)", "Conv"),
        ("a = Add(x, l) y = Conv(a, w, b)", "Conv"),
        ("m = Mul(x, k) c = Conv(m, w) y = Relu(c)", "partita::Conv"),
        ("r = Relu(x) m = Mul(r, k) a = Add(m, l) c = Conv(a, w, b) y = Relu(c)",
         "Relu partita::Conv"),
    ],
)  # fmt: skip
def test_a_factor_and_a_summand_move_into_the_convolution(chain, expected):
    graph = check(model(chain, **NUMBERS), expected, x=X)
    names = {name for node in graph.nodes for name in node.origins}
    assert len(names) == chain.count("=")


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (f"m = Mul(x, k) a = Add(m, l) y = Conv {PADDED} (a, w, b)", "Add Conv"),
        (f"m = Mul(x, k) y = Conv {PADDED} (m, w, b)", "Conv"),
        (f"a = Add(x, l) y = Conv {PADDED} (a, w, b)", "Add Conv"),
        ('m = Mul(x, k) a = Add(m, l) y = Conv <auto_pad = "SAME_UPPER"> (a, w, b)', "Add Conv"),
    ],
)
def test_what_is_padded_keeps_its_summand(chain, expected):
    check(model(chain, CONV, **NUMBERS), expected, x=X)


def test_factors_that_are_too_small_to_divide_by_stay():
    chain = f"m = Mul(x, k) a = Add(m, l) y = Conv {PADDED} (a, w, b)"
    check(model(chain, CONV, k=np.float32(1e-6), l=NUMBERS["l"]), "Mul Add Conv", x=X)


def test_groups_share_a_factor():
    chain = "m = Mul(x, k) a = Add(m, l) y = Conv <group = 2> (a, w, b)"
    check(model(chain, {"w": normal(4, 3, 3, 3), "b": normal(4)}, **NUMBERS), "Conv", x=X)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        # Somebody else reads what is computed.
        ("m = Mul(x, k) a = Add(m, l) c = Conv(a, w, b) d = Conv(a, w) e = Relu(c) y = Add(e, d)",
         "Mul Add partita::Conv partita::Conv"),
        # One number per channel, and what is no constant.
        ("m = Mul(x, v) y = Conv(m, w, b)", "Mul Conv"),
        ("m = Mul(x, x) y = Conv(m, w, b)", "Mul Conv"),
        # The other way round only the factor is next to the convolution.
        ("a = Add(x, l) m = Mul(a, k) y = Conv(m, w, b)", "Add Conv"),
    ],
)  # fmt: skip
def test_what_stays(chain, expected):
    check(model(chain, v=normal(1, 6, 1, 1), **NUMBERS), expected, x=X)
