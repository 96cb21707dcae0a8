"""The kernel table: versions, numbers of inputs, element types, and what it says of wrong ones."""

import numpy as np
import pytest

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError
from partita.lowering import Node, Operand, Value
from partita_cpu.kernels.operator_table import F32, INT64, TABLE, emitter_for, find, kernel

F4, F8, I8 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)


@pytest.fixture
def own(monkeypatch):
    """A table with two kernels for one operator."""
    TABLE.load()
    monkeypatch.setattr(TABLE, "entries", {})

    def check(node):
        if node.attrs.get("mode") == "odd":
            return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "mode is 'odd'")
        return None

    @kernel("Try", domain="own", dtypes=F32, until=4)
    def old(b, node, x):
        return x

    @kernel("Try", domain="own", dtypes={0: F32, 1: INT64}, check=check, since=5, folds=False)
    def new(b, node, x, n=None, *more):
        return x

    return old, new


def node_of(version, inputs=1, **attrs):
    return Node(
        "Try", [Value()] * inputs, [Value()], attrs, domain="own", version=version, name="try1"
    )


def test_the_version_picks_the_kernel(own):
    old, new = own
    assert [find("own", "Try", version).emit for version in (1, 4, 5, 30)] == [old, old, new, new]
    assert find("own", "Other", 1) is None
    detail = "own::Try of opset 0; takes opsets 1 to 4, 5 to latest"
    assert TABLE.missing(node_of(0)).detail == detail
    assert [find("own", "Try", version).folds for version in (1, 5)] == [True, False]


@pytest.mark.parametrize(
    ("version", "dtypes", "code", "detail"),
    [
        (1, [F4], None, ""),
        (1, [None], None, ""),
        (1, [F8], "UNSUPPORTED_DTYPE", "input 0 is float64; takes float32"),
        (1, [F4, F4], "UNSUPPORTED_ATTRIBUTE", "2 inputs; takes 1 to 1"),
        (1, [], "UNSUPPORTED_ATTRIBUTE", "0 inputs; takes 1 to 1"),
        (5, [F4, I8, F8, F8], None, ""),
        (5, [F4, F4], "UNSUPPORTED_DTYPE", "input 1 is float32; takes int64"),
        (5, [F4, None], None, ""),
    ],
)
def test_inputs_are_checked_by_number_and_type(own, version, dtypes, code, detail):
    reason = find("own", "Try", version).refuse(node_of(version), dtypes)
    assert (None if reason is None else (str(reason.code), reason.detail)) == (
        None if code is None else (code, detail)
    )


def test_attributes_are_checked(own):
    reason = find("own", "Try", 5).refuse(node_of(5, mode="odd"), [F4])
    assert str(reason) == "UNSUPPORTED_ATTRIBUTE: mode is 'odd'"


def test_a_missing_kernel_is_an_error_with_advice(own):
    node = Node("Other", [Value()], [Value()], domain="own", name="o1")
    with pytest.raises(
        CompileError, match=r"'o1': device CPU has no kernel for own::Other of opset"
    ):
        emitter_for(node, [Operand((1,), F4)])


def test_types_only_known_at_run_time_are_checked_then(own):
    with pytest.raises(CompileError, match=r"'try1' \(own::Try\) on device CPU: UNSUPPORTED_DTYPE"):
        emitter_for(node_of(1), [Operand((1,), F8)])
