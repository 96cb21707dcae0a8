"""Of the trials of matrix units those parts are made that a graph, or what it launches, needs."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper

from partita.lowering import lower
from partita_opencl.device.device import find_device
from partita_opencl.drivers.program_cache import ProgramKey
from partita_opencl.trials.matrix_unit_checks import Units, Use, trial_parts
from partita_opencl.trials.needed_parts import parts_for, parts_launched
from partita_opencl.tuning import product_tiles

from ..comparison import build, core, floats


@pytest.fixture
def limits():
    return replace(find_device("").limits, is_cpu=False)


def parts_of(units, limits, *, uses=(None,), sizes=None):
    """Numbers of the parts of some uses, of a tile's if its rows and columns are given."""
    return {
        number
        for number, part in enumerate(trial_parts(units, limits))
        if part.use in uses
        and (sizes is None or (part.tile and (part.tile.high, part.tile.wide) == sizes))
    }


def program(file, *flags, **sizes):
    return ProgramKey(file, (*sizes.items(), *((flag, None) for flag in flags)))


@pytest.mark.parametrize(
    ("flags", "uses"),
    [
        ((), (None,)),
        (("BFLOAT",), (None, Use.BFLOAT)),
        (("NORMALIZE", "EXACT"), (None, Use.NORMALIZED)),
    ],
)
def test_a_launch_of_four_warps_needs_the_parts_of_its_tile(limits, flags, uses):
    launched = program("product_stream.cl", "WARPGROUP", *flags, BM=64, BN=32)
    wanted = parts_of(Units.WARPGROUP, limits, uses=uses, sizes=(64, 32))
    assert len(wanted) == 3 + len(uses)
    assert parts_launched([launched], limits) == {Units.WARPGROUP: wanted}


def test_launches_need_the_parts_of_what_they_do(limits):
    programs = [
        program("product_stream.cl", BM=32, BN=64),
        program("attention.cl"),
        program("chain.cl"),
        program("product_bulk.cl", BM=128, BN=192),
        program("block_tiles.cl", PRODUCTS=3),
        program("recurrent_units.cl", SHARES=2),
    ]
    blocks = {Use.BLOCKS}
    by_a_warp = parts_of(Units.MATRIX, limits, sizes=(32, 64))
    by_a_warp |= parts_of(Units.MATRIX, limits, uses={Use.ATTENTION, Use.RECURRENT})
    assert parts_launched(programs, limits) == {
        Units.MATRIX: by_a_warp,
        Units.COPY_ENGINE: parts_of(Units.COPY_ENGINE, limits, sizes=(128, 192))
        | parts_of(Units.COPY_ENGINE, limits, uses=blocks),
        Units.RESIDENT: parts_of(Units.RESIDENT, limits, uses={Use.BLOCKS, Use.RECURRENT}),
    }
    alone = [program("recurrent_units.cl", SHARES=1), program("block_rows.cl")]
    assert parts_launched(alone, limits) == {
        Units.MATRIX: parts_of(Units.MATRIX, limits, uses={Use.RECURRENT}),
        Units.COPY_ENGINE: parts_of(Units.COPY_ENGINE, limits, uses=blocks),
    }


@pytest.mark.parametrize("tile", product_tiles.STREAM_TILES, ids=lambda t: f"{t.high}x{t.wide}")
def test_a_trial_that_leaves_products_one_tile_compiles_as_others_do(limits, monkeypatch, tile):
    x = floats(4, 4)
    node = helper.make_node("MatMul", ["x", "x"], ["y"])
    graph = lower(core().read_model(build([node], {"x": x}, ["y"], [])))
    wanted = parts_for(graph, limits, bfloat=False)
    monkeypatch.setattr(product_tiles, "STREAM_TILES", (tile,))
    assert parts_for(graph, limits, bfloat=False) == wanted


def test_a_tile_that_no_part_tries_needs_them_all(limits):
    launched = program("product_bulk.cl", BM=8, BN=8)
    wanted = {Units.COPY_ENGINE: parts_of(Units.COPY_ENGINE, limits)}
    assert parts_launched([launched], limits) == wanted


@pytest.mark.parametrize(
    ("op_type", "attrs", "uses"),
    [
        ("MatMul", {}, {None}),
        ("Softmax", {}, {None, Use.ATTENTION}),
        ("ReduceMean", {}, {None, Use.NORMALIZED}),
        ("LSTM", {"hidden_size": 4}, {None, Use.RECURRENT}),
    ],
)
def test_a_graph_needs_the_parts_of_what_it_may_become(limits, op_type, attrs, uses):
    x = floats(1, 4, 4)
    weights = {"MatMul": ["x"], "LSTM": ["w", "r"]}.get(op_type, [])
    arrays = {"w": np.zeros((1, 16, 4), "f4"), "r": np.zeros((1, 16, 4), "f4")}
    node = helper.make_node(op_type, ["x", *weights], ["y"], **attrs)
    constants = [numpy_helper.from_array(arrays[name], name) for name in weights if name != "x"]
    graph = lower(core().read_model(build([node], {"x": x}, ["y"], constants)))
    assert set(parts_for(graph, limits, bfloat=False)) == parts_of(Units.MATRIX, limits, uses=uses)
    halves = parts_of(Units.MATRIX, limits, uses={*uses, Use.BFLOAT})
    assert set(parts_for(graph, limits, bfloat=True)) == halves
