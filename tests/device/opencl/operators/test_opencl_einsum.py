"""Einsum on device OPENCL, against numpy in float64."""

import numpy as np
import pytest

import partita

from ..comparison import TILINGS, check, compiled, floats, single

EQUATIONS = [
    ("ij->ji", [(3, 4)]),
    ("ij->", [(3, 4)]),
    ("ii->i", [(4, 4)]),
    ("ii", [(4, 4)]),
    ("iji->j", [(3, 4, 3)]),
    ("ij,jk->ik", [(3, 40), (40, 5)]),
    ("ij,jk", [(3, 4), (4, 5)]),
    ("ij,kj->ik", [(33, 40), (17, 40)]),
    ("ji,jk->ki", [(40, 3), (40, 5)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 9, 16), (2, 3, 11, 16)]),
    ("bhqk,bkhd->bqhd", [(2, 3, 9, 11), (2, 11, 3, 16)]),
    ("bhwc,hkc->bhwk", [(2, 6, 7, 16), (6, 5, 16)]),
    ("bhwc,wkc->bhwk", [(2, 6, 7, 16), (7, 5, 16)]),
    ("i,j->ij", [(3,), (4,)]),
    ("i,i->i", [(5,), (5,)]),
    ("i,i", [(5,), (5,)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 6)]),
    ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)]),
    ("bij,b->j", [(2, 3, 4), (2,)]),
    ("ab,cd->acbd", [(2, 3), (4, 5)]),
    ("ij,jk->ik", [(3, 0), (0, 5)]),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
@pytest.mark.parametrize("constant", [False, True])
def test_equations(equation, shapes, constant):
    arrays = [floats(*shape, seed=n) for n, shape in enumerate(shapes)]
    last = [len(arrays) - 1] if constant and len(arrays) > 1 else []
    model, feeds = single("Einsum", arrays, {"equation": equation}, constant=last)
    wanted = np.einsum(equation, *(x.astype(np.float64) for x in arrays))
    for tiling in TILINGS:
        (found,) = compiled(model, TILING=tiling)(feeds).values()
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("precision", ["f32", "f16", "bf16"])
def test_halves(dtype, precision):
    arrays = [floats(3, 40, seed=1).astype(dtype), floats(40, 5).astype(dtype)]
    model, feeds = single("Einsum", arrays, {"equation": "ij,jk->ki"})
    wanted = np.einsum("ij,jk->ki", *(x.astype(np.float64) for x in arrays))
    for tiling in TILINGS:
        built = compiled(model, TILING=tiling, INFERENCE_PRECISION_HINT=precision)
        (found,) = built(feeds).values()
        assert np.linalg.norm(found - wanted) < 2e-2 * np.linalg.norm(wanted)


def test_sizes_that_vary():
    attrs = {"equation": "bhqd,bhkd->bhqk"}
    arrays = [floats(2, 3, 9, 16), floats(2, 3, 11, 16, seed=1)]
    model, feeds = single("Einsum", arrays, attrs, dynamic=True)
    check(model, feeds, {"x0": floats(1, 3, 4, 8), "x1": floats(1, 3, 70, 8)}, feeds)


def test_labels_of_two_sizes():
    model, feeds = single(
        "Einsum", [floats(3, 4), floats(5, 6)], {"equation": "ij,jk->ik"}, dynamic=True
    )
    with pytest.raises(partita.PartitaError, match="sizes 4 and 5"):
        compiled(model)(feeds)
