"""Query answers and explanations."""

from __future__ import annotations

import copy
import json

import pytest
from models import affine

from partita.contract.explanation import Boundary, Explanation, OpPlacement
from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.errors import UnsupportedOpError
from partita.frontends.reader import read_model

NO_KERNEL = Reason(ReasonCode.UNSUPPORTED_OP, "no kernel")
FIRST = Reason(ReasonCode.PRIORITY, "first in the list")
FALLBACK = Reason(ReasonCode.FALLBACK)


# ----------------------------------------------------------------------- query answers


def test_an_answer_is_a_dict_that_can_be_edited():
    answer = QueryResult.of("GPU", {"conv": None, "exp": NO_KERNEL})
    assert answer == {"conv": "GPU"}
    assert "exp" not in answer
    assert answer.reasons == {"exp": NO_KERNEL}
    answer["exp"] = "CPU"
    assert dict(answer) == {"conv": "GPU", "exp": "CPU"}
    assert answer.device == "GPU"
    assert copy.deepcopy(answer).reasons == answer.reasons
    assert QueryResult("GPU", {"conv": "GPU"}).reasons == {}
    assert repr(QueryResult.of("GPU", {"a": None})) == "QueryResult('GPU', {'a': 'GPU'}, {})"


def test_reasons_in_words():
    assert str(NO_KERNEL) == "UNSUPPORTED_OP: no kernel"
    assert str(FALLBACK) == "FALLBACK"


def test_require_all():
    model = read_model(affine())
    QueryResult.of("GPU", dict.fromkeys(["matmul", "bias", "relu"])).require_all(model)
    answer = QueryResult.of("GPU", {"matmul": None, "bias": NO_KERNEL, "relu": NO_KERNEL})
    with pytest.raises(UnsupportedOpError) as caught:
        answer.require_all(model)
    assert str(caught.value) == (
        "Device 'GPU' does not take 2 of 3 operations of model 'affine': 'bias' (Add): "
        "UNSUPPORTED_OP: no kernel; 'relu' (Relu): UNSUPPORTED_OP: no kernel."
    )


# ------------------------------------------------------------------------ explanations


@pytest.fixture
def explanation():
    return Explanation(
        "net",
        [
            OpPlacement("conv", "Conv", "GPU", 1, FIRST),
            OpPlacement("exp", "Exp", "CPU", 2, FALLBACK, {"GPU": NO_KERNEL}),
            OpPlacement("shape", "Shape", "-", None, Reason(ReasonCode.CONSTANT, "computed once")),
        ],
        ["GPU", "CPU"],
        [
            Boundary("x", None, 1, "upload", 100),
            Boundary("a", 1, 2, "download", 3_000_000),
            Boundary("b", 1, 2, "shared", 50),
            Boundary("c", 1, 2, "download", None),
        ],
        ["GPU failed once"],
    )


def test_facts(explanation):
    assert explanation["exp"].device == "CPU"
    assert explanation["exp"].why == "FALLBACK; not GPU: UNSUPPORTED_OP: no kernel"
    assert explanation.ops_per_device == {"GPU": 1, "CPU": 1}
    assert explanation.bytes_crossing == 3_000_100
    with pytest.raises(KeyError, match="absent"):
        explanation["absent"]


def test_table_and_summary(explanation):
    lines = str(explanation).splitlines()
    assert lines[0].split() == ["op", "type", "device", "sub", "why"]
    assert lines[2].split(maxsplit=4)[:4] == ["exp", "Exp", "CPU", "2"]
    assert lines[-1] == "GPU failed once"
    assert lines[-2] == explanation.summary()
    assert explanation.summary() == (
        "net: GPU 1 ops, CPU 1 ops in 2 subgraphs; 3 tensors cross (1 shared, 3.00 MB copied, 1 of "
        "unknown size)"
    )


def test_json(explanation):
    data = json.loads(explanation.to_json())
    assert data["ops"][1]["refused"]["GPU"] == {"code": "UNSUPPORTED_OP", "detail": "no kernel"}
    assert data["summary"] == explanation.summary()
    assert data["boundaries"][0]["source"] is None


def test_one_device():
    explained = Explanation.single_device(read_model(affine()), "CPU")
    assert explained.ops_per_device == {"CPU": 3}
    assert explained.summary() == (
        "affine: CPU 3 ops in 1 subgraph; 0 tensors cross (0 shared, 0.00 MB copied)"
    )
    assert explained["relu"].reason.code == "PINNED"


def test_no_operations():
    assert Explanation("empty", [], []).summary().startswith("empty: no operations in 0 subgraphs")
    assert "op  type  device  sub  why" in str(Explanation("empty", [], []))
