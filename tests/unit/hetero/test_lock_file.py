"""Placement locks are written, read by Python's own TOML reader, and compared with a model."""

from __future__ import annotations

import codecs
import enum
import errno
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import affine

from partita.errors import PlanError
from partita.frontends.reader import read_model
from partita_hetero.placement import lock_file as locks
from partita_hetero.placement import toml
from partita_hetero.placement.lock_file import Lock


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 7


scalars = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
)
numbers = st.one_of(
    st.floats().map(np.float64),
    st.floats(width=32).map(np.float32),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.booleans().map(np.bool_),
    st.sampled_from(Level),
)
texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(texts, scalars), st.dictionaries(texts, texts))
def test_any_table_is_read_back(entries, remarks):
    lines = toml.table("t", entries, remarks)
    assert all("\n" not in line for line in lines)
    read = tomllib.loads("\n".join(lines))["t"]
    assert read == entries
    assert {key: type(value) for key, value in read.items()} == {
        key: type(value) for key, value in entries.items()
    }


@given(st.dictionaries(texts, numbers))
def test_numbers_of_numpy_and_of_classes_of_numbers_are_read_back(entries):
    read = tomllib.loads("\n".join(toml.table("t", entries)))["t"]
    assert read.keys() == entries.keys()
    for key, value in entries.items():
        plain = int(value) if isinstance(value, Level) else value.item()
        assert repr(read[key]) == repr(plain)  # a NaN is not equal to itself


@pytest.mark.parametrize("value", [None, [1], np.float64([1, 2]), 1j])
def test_what_is_no_single_value_is_refused(value):
    with pytest.raises(TypeError, match="is not a text, number or truth value"):
        toml.scalar(value)


def lock_of(model, **changes):
    facts = {
        "model": model.name,
        "graph": locks.graph_digest(model),
        "devices": {"GPU.0": "driver 1", "CPU": "numba"},
        "ops": {"matmul": "GPU.0", "bias": "GPU.0", "relu": "CPU"},
        "op_types": {"matmul": "MatMul"},
        "plan": {"objective": "LATENCY", "latency_us": 12.5},
    }
    return Lock(**(facts | changes))


@pytest.fixture
def model():
    return read_model(affine())


def test_a_lock_can_be_read_by_people(model):
    lines = lock_of(model).text().splitlines()
    assert lines[0].startswith("# Where each operation runs.")
    assert '[model]\nname = "affine"' in lock_of(model).text()
    assert lines[-4:] == [
        "[ops]",
        'matmul = "GPU.0"  # MatMul',
        'bias = "GPU.0"',
        'relu = "CPU"',
    ]
    assert '"GPU.0" = "driver 1"' in lines


def test_a_lock_survives_the_disk(model, tmp_path):
    odd = {'/a"b\\c\n': "CPU", "ü.x": "CPU", "": "CPU"}
    lock = lock_of(model, ops=odd, op_types={})
    lock.save(tmp_path / "plan.toml")
    again = locks.load(tmp_path / "plan.toml")
    assert again == lock
    assert list(again.ops) == list(odd)
    with pytest.raises(PlanError, match="cannot be written"):
        lock.save(tmp_path / "no" / "plan.toml")


def test_a_lock_may_be_edited_on_windows(model, tmp_path):
    lock = lock_of(model, op_types={})
    lines = lock.text().splitlines()
    (tmp_path / "plan.toml").write_bytes(codecs.BOM_UTF8 + "\r\n".join(lines).encode())
    assert locks.load(tmp_path / "plan.toml") == lock


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "is not TOML"),
        (
            "x = 1",
            "does not say its format, as locks do; write one with 'partita plan",
        ),
        (
            'format = "q"\nversion = 2',
            "is 'q' version 2; this Partita reads 'partita-",
        ),
        (
            'format = "partita-placement"\nversion = 1\nmore = 2',
            "a key 'more', which means nothing",
        ),
        ('format = "partita-placement"\nversion = 1\nops = 2', "'ops' must be a table"),
        (
            'format = "partita-placement"\nversion = 1\n[plan]\na.b = 2',
            "'a' in .plan. must be a text, a number or true",
        ),
        (
            'format = "partita-placement"\nversion = 1\n[plan]\na = 1979-05-27',
            "'a' in .plan. must be a text, a number or true",
        ),
        (
            'format = "partita-placement"\nversion = 1\n[ops]\na = 2',
            "'a' in .ops. is 2; it must be",
        ),
        (
            'format = "partita-placement"\nversion = 1\n[devices]\nA = "1"\n[ops]\na = "B"',
            "gives operations to 'B', which .devices. does not list; it lists A",
        ),
    ],
)
def test_what_is_no_lock(text, message, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(PlanError, match=message):
        locks.load(path)
    with pytest.raises(PlanError, match="cannot be read"):
        locks.load(tmp_path / "other.toml")


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a" + ".a" * 100_000 + " = 1", "a key of more than 32 parts in line 1; quote names"),
        ("# b\n[" + "a." * 200 + "a]", "a key of more than 32 parts in line 2"),
        ("x = " + "[" * 50_000, "is not TOML"),
        ("x = " + "{a=" * 50_000, "is not TOML"),
        ("x = " + "9" * 5000, "is not TOML"),
        ("x = 1979-99-99", "is not TOML"),
        ("# " + "a" * (17 << 20), "has more than 16 MiB"),
    ],
    ids=["dots", "table", "arrays", "tables", "digits", "date", "long"],
)
def test_locks_that_would_take_forever(text, message, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(PlanError, match=message):
        locks.load(path)


def test_names_with_many_dots_are_fine_in_quotes(model, tmp_path):
    name = ".".join("model" * 20) + '"'
    lock = Lock("m", "g", {"CPU": "numba"}, {name: "CPU"}, {name: "Conv" + "." * 40})
    path = tmp_path / "plan.toml"
    lock.save(path)
    assert locks.load(path).ops == {name: "CPU"}


def found(lock, model, listed=None, refusal=lambda device, op: None):
    listed = {"GPU.0": "driver 1", "CPU": "numba"} if listed is None else listed
    placed = [op.name for op in model.ops]
    return locks.compare(lock, model, placed, listed, refusal).lines()


def test_a_lock_that_holds(model):
    assert found(lock_of(model), model) == []


def test_what_no_longer_holds_is_said_precisely(model):
    lock = lock_of(model, ops={"matmul": "GPU.0", "old": "CPU", "relu": "CPU"}, graph="0")
    assert found(lock, model) == [
        "In the lock alone: 1 operation, 'old'.",
        "In the model alone: 1 operation, 'bias'.",
    ]
    assert found(lock_of(model, graph="0"), model) == [
        "The operations have their names, but other types, or read other values."
    ]
    assert found(lock_of(model), model, {"CPU": "numba"}) == [
        "Device 'GPU.0', which has 2 operations in the lock, is not in the list."
    ]
    assert found(lock_of(model), model, {"GPU.0": "driver 2", "CPU": "numba"}) == [
        "Device 'GPU.0' had driver 'driver 1' and has 'driver 2'; its times may have changed."
    ]
    refuse = found(
        lock_of(model),
        model,
        refusal=lambda device, op: "UNSUPPORTED_OP: no" if device == "GPU.0" else None,
    )
    assert refuse == [
        "Device 'GPU.0' refuses 2 operations that the lock gives it: 'matmul', 'bias' "
        "(UNSUPPORTED_OP: no)."
    ]


def test_the_digest_changes_with_the_graph_alone(model):
    digest = locks.graph_digest(model)
    other = read_model(affine())
    other.ops[0].affinity = "GPU"
    other.reshape([7, 4])
    assert locks.graph_digest(other) == digest
    proto = affine()
    proto.graph.node[2].op_type = "Exp"
    assert locks.graph_digest(read_model(proto)) != digest


def test_half_of_a_lock_is_no_file(tmp_path, monkeypatch):
    def fill(self, text, **options):
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fill)
    with pytest.raises(PlanError, match=r"plan\.toml' cannot be written: .*No space left"):
        Lock("m", "0", {}, {}).save(tmp_path / "plan.toml")
    assert not list(tmp_path.iterdir())
