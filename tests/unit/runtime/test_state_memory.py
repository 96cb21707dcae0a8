"""State that a device updates in place: one tensor each, in its memory, that nothing copies."""

from __future__ import annotations

import json
from unittest import mock

import numpy as np
import pytest
from cache_device import ROOM, WIDTH, CacheDevice, CacheTensor, caches, row
from toy_device import core_with

import partita
from partita.errors import (
    BlobError,
    DeviceMemoryError,
    InferError,
    InputError,
    PluginError,
    RequestBusyError,
)


@pytest.fixture
def device():
    CacheTensor.downloads = 0
    return CacheDevice()


def compiled(device, **options):
    core = core_with(device)
    return core.compile_model(core.read_model(caches(**options).SerializeToString()), "CACHE")


def fill(request, rows, start=0):
    """Puts rows 1, 2, ... from a place on; returns the last sum."""
    for at in range(start, start + rows):
        found = request.infer(row(at + 1, at))
    return found["sum"][0, 0]


def numbers(request, name="cache.0"):
    """The first column of a cache."""
    state = {one.name: one.state.data for one in request.query_state()}
    return state[name][0, :, 0].tolist()


def test_state_stays_where_it_is(device):
    request = compiled(device).create_infer_request()
    assert fill(request, ROOM) == ROOM * (ROOM + 1) / 2
    assert (device.copied, CacheTensor.downloads) == (0, 0)
    assert numbers(request) == numbers(request, "cache.1") == list(range(1, ROOM + 1))
    assert CacheTensor.downloads == 4


def test_runs_are_bound_and_look_at_no_state(device):
    request = compiled(device).create_infer_request()
    fill(request, 4)
    calls = device.calls
    with mock.patch.object(CacheTensor, "numpy", side_effect=AssertionError):
        assert fill(request, 4, 4) == 36
    assert device.calls == calls + 4


def test_bound_runs_read_what_is_set_in_between(device):
    request = compiled(device).create_infer_request()
    fill(request, 5)
    state = request.query_state()[1]
    state.state = np.full((1, ROOM, WIDTH), 10, np.float32)
    calls = device.calls
    assert fill(request, 1, 5) == 76
    request.reset_state()
    assert fill(request, 1) == 1
    assert device.calls == calls + 2
    assert numbers(request) == [1] + [0] * (ROOM - 1)
    assert "float32[1, 8, 3]" in repr(state)


def test_calls_for_shapes_that_come_again_are_kept(device):
    request = compiled(device, tokens="tokens").create_infer_request()
    fill(request, 4)
    several = {"x": np.full((1, 3, WIDTH), 7, np.float32), "at": np.array([0])}
    for _ in range(5):
        assert request.infer(several)["sum"][0, 0] == 21 + 4
        calls = device.calls
        assert fill(request, 3) == 6 + 4
        assert device.calls == calls + 3
    request.query_state()[1].state = np.ones((1, ROOM, WIDTH), np.float32)
    assert fill(request, 1) == 8
    assert request.infer(several)["sum"][0, 0] == 26


def test_state_may_be_given_as_an_input(device):
    request = compiled(device).create_infer_request()
    fill(request, 4)
    given = np.full((1, ROOM, WIDTH), 2, np.float32)
    found = request.infer({**row(1, 0), "past.1": given})
    given[:] = 100  # a copy was taken
    assert found["sum"][0, 0] == 15
    assert fill(request, 1, 1) == 15
    found = request.infer([*row(1, 0).values(), given, given])
    assert found["sum"][0, 0] == 701
    assert request.infer({**row(1, 0), -1: np.full_like(given, 3)})["sum"][0, 0] == 22
    assert device.copied == 0


def test_results_read_state_when_it_is_asked_for(device):
    request = compiled(device).create_infer_request()
    found = request.infer(row(1, 0))
    assert CacheTensor.downloads == 0
    assert repr(found).count("float32[1, 8, 3]") == 2
    assert [len(found), found[0].shape, found["present.0"][0, 0, 0]] == [3, (1, WIDTH), 1]
    request.infer(row(2, 0))
    assert [array.flat[0] for array in found.to_tuple()] == [1, 2, 2]
    assert request.get_tensor("present.1").memory == "CACHE"
    assert request.get_tensor("past.1") is request.get_tensor("present.1")


def test_requests_are_apart_and_share_state_if_asked(device):
    model = compiled(device)
    one, other = model.create_infer_request(), model.create_infer_request()
    third = model.create_infer_request(share_state_with=one)
    fill(one, 3)
    fill(other, 1)
    fill(third, 5, 3)
    assert numbers(one) == numbers(third) == list(range(1, ROOM + 1))
    assert numbers(other) == [1] + [0] * (ROOM - 1)


def test_sharing_requests_take_turns(device):
    model = compiled(device)
    one = model.create_infer_request()
    other = model.create_infer_request(share_state_with=one)
    refused = []

    def during():
        with pytest.raises(RequestBusyError):
            other.infer(row(1, 1))
        with pytest.raises(RequestBusyError):
            one.query_state()[0].reset()
        with pytest.raises(RequestBusyError):
            _ = one.query_state()[0].state
        refused.append(1)

    device.before = during
    one.infer(row(1, 0))
    assert refused


def test_what_cannot_be_shared():
    device = CacheDevice(in_place=False)
    model, other = compiled(device), compiled(device)
    request = model.create_infer_request()
    with pytest.raises(InferError, match="its device does not update it in place"):
        model.create_infer_request(share_state_with=request)
    with pytest.raises(InputError, match=r"A request of .* has none of"):
        other.create_infer_request(share_state_with=request)
    with pytest.raises(InputError, match="State is shared with another request; found 'one'"):
        model.create_infer_request(share_state_with="one")


def test_rows_of_state_are_of_the_hosts_memory(device):
    model = compiled(device)
    request = model.create_infer_request()
    with pytest.raises(InferError, match="in place in the host's memory"):
        model.create_infer_request(request, 1)
    with pytest.raises(InputError, match="say whose"):
        model.create_infer_request(state_rows=1)
    with pytest.raises(InputError, match="no rows of another one's state"):
        request.select_state_rows(0)


def test_a_device_that_offers_nothing_has_two_tensors_by_turns():
    device = CacheDevice(in_place=False)
    request = compiled(device).create_infer_request()
    assert fill(request, ROOM) == 36
    assert device.copied == 2 * ROOM
    assert numbers(request) == list(range(1, ROOM + 1))


def test_state_that_no_metadata_names_is_the_applications():
    device = CacheDevice(in_place=False)
    request = compiled(device, count=1, state=False).create_infer_request()
    cache = np.zeros((1, ROOM, WIDTH), np.float32)
    request.set_output_tensor("present.0", cache)
    for at in range(ROOM):
        request.infer({**row(at + 1, at), "past.0": cache})
    assert cache[0, :, 0].tolist() == list(range(1, ROOM + 1))
    assert request.query_state() == []


@pytest.mark.parametrize("in_place", [True, False])
def test_one_array_may_be_past_and_present(in_place):
    device = CacheDevice(in_place)
    request = compiled(device, count=1, state=False).create_infer_request()
    seen = []
    run = request.runner.run

    def noting(inputs, outputs=None):
        seen.append(outputs is not None and outputs[1] is not None)
        return run(inputs, outputs)

    request.runner.run = noting
    cache = np.zeros((1, ROOM, WIDTH), np.float32)
    request.infer({**row(9, 7), "past.0": cache})
    request.set_output_tensor("present.0", cache)
    request.set_input_tensor(2, cache)
    for at in range(ROOM):
        request.infer(row(at + 1, at))
    assert cache[0, :, 0].tolist() == list(range(1, ROOM + 1))
    assert any(seen) == in_place


def test_a_symbol_leaves_the_shape_to_who_sets_the_state(device):
    request = compiled(device, rows="rows").create_infer_request()
    state = request.query_state()
    assert [one.state.shape for one in state] == [(1, 0, WIDTH)] * 2
    for rows in (3, 5):
        for one in state:
            one.state = np.zeros((1, rows, WIDTH), np.float32)
        assert fill(request, rows) == rows * (rows + 1) / 2
        request.reset_state()
        assert [one.state.shape for one in state] == [(1, rows, WIDTH)] * 2
    assert device.copied == 0


def test_a_symbol_that_another_input_has_sizes_the_state(device):
    request = compiled(device, rows="tokens", tokens="tokens").create_infer_request()
    several = {"x": np.full((1, 5, WIDTH), 2, np.float32), "at": np.array([0])}
    assert request.infer(several)["sum"][0, 0] == 10
    assert request.query_state()[0].state.shape == (1, 5, WIDTH)
    assert device.copied == 0


def test_what_does_not_fit_is_refused(device):
    request = compiled(device).create_infer_request()
    fill(request, 2)
    with pytest.raises(InputError, match=r"'past.0' takes float32\[1, 8, 3\]; found float32\[8"):
        request.query_state()[0].state = np.zeros((8, 3), np.float32)
    with pytest.raises(InputError, match=r"'past.1' takes"):
        request.infer({"past.0": np.ones((1, ROOM, WIDTH), np.float32), "past.1": np.ones(3)})
    with pytest.raises(InputError, match=r"Output 'present\.0' is state"):
        request.set_output_tensor("present.0", np.zeros((1, ROOM, WIDTH), np.float32))
    assert numbers(request) == [1, 2] + [0] * 6


def test_a_device_without_room():
    with pytest.raises(DeviceMemoryError, match=r"no room for past\.0"):
        compiled(CacheDevice(room=10)).create_infer_request()


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({7: 0}, "write output 7 over input 0 of model 'm', which are not indices of its ports"),
        ({0: 2}, "write output 0 over input 2 .* which are float32"),
    ],
)
def test_a_plugin_that_offers_what_cannot_be(device, pairs, said):
    device.wrong_pairs = pairs
    with pytest.raises(PluginError, match=said):
        compiled(device).create_infer_request()


def test_a_plugin_that_allocates_something_else(device):
    model = compiled(device)
    model.device_model.allocate = lambda port, shape: partita.HostTensor(np.zeros(3, np.float32))
    with pytest.raises(PluginError, match=r"for 'past.0'; expected float32\[1, 8, 3\]"):
        model.create_infer_request()


# ------------------------------------------------------------------------------- files


def test_state_is_saved_and_goes_on_elsewhere(device, tmp_path):
    one, other = (compiled(device).create_infer_request() for _ in range(2))
    fill(one, 5)
    one.save_state(tmp_path / "state")
    fill(one, 1, 5)
    fill(other, 4)
    other.load_state(tmp_path / "state")
    assert numbers(other) == [1, 2, 3, 4, 5, 0, 0, 0]
    assert fill(other, 3, 5) == 36
    assert [file.name for file in tmp_path.iterdir()] == ["state"]
    by_turns = compiled(CacheDevice(in_place=False)).create_infer_request()
    by_turns.load_state(tmp_path / "state")
    assert fill(by_turns, 3, 5) == 36


def test_others_read_the_file(device, tmp_path):
    request = compiled(device).create_infer_request()
    fill(request, 2)
    request.save_state(tmp_path / "state")
    raw = (tmp_path / "state").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    start, end = json.loads(raw[8 : 8 + length])["past.1"]["data_offsets"]
    found = np.frombuffer(raw[8 + length :][start:end], np.float32).reshape(1, ROOM, WIDTH)
    assert found[0, :, 0].tolist() == [1, 2] + [0] * 6


def entry(**changes):
    return {"dtype": "F32", "shape": [1, ROOM, WIDTH], "data_offsets": [0, 96]} | changes


GOOD = {"past.0": entry(), "past.1": entry()}


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (GOOD | {"past.2": entry()}, "3 variables; expected 2, and 'past.2'"),
        ({"past.0": entry()}, "and 'past.1' are only there or only here"),
        (GOOD | {"past.0": entry(dtype="F16")}, r"as F16\[1, 8, 3\]; expected float32\[1, 8, 3\]"),
        (GOOD | {"past.0": entry(shape=[1, 8, -3])}, r"F32\[1, 8, -3\]"),
        (GOOD | {"past.0": entry(shape=[1, 8, True])}, r"F32\[1, 8, True\]"),
        (
            GOOD | {"past.0": entry(data_offsets=[0, 200])},
            "96 bytes, but its offsets are 0 and 200",
        ),
        (GOOD | {"past.0": entry(data_offsets=[150, 246])}, "are 150 and 246, of 192 bytes"),
        (GOOD | {"past.0": entry(data_offsets=[-96, 0])}, "are -96 and 0"),
        (GOOD | {"past.0": entry(data_offsets=[0.5, 96])}, "says nothing of what 'past.0' is"),
        (GOOD | {"past.0": 7}, "says nothing of what 'past.0' is"),
        ([], "names no tensors"),
        ("{", "not a file of state, or is damaged"),
        ("[" * 100000, "not a file of state, or is damaged"),
    ],
)
def test_a_damaged_or_foreign_file_changes_nothing(device, tmp_path, header, said):
    request = compiled(device).create_infer_request()
    fill(request, 2)
    text = header if isinstance(header, str) else json.dumps(header)
    content = len(text).to_bytes(8, "little") + text.encode() + bytes(192)
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(BlobError, match=said):
        request.load_state(tmp_path / "state")
    assert numbers(request) == [1, 2] + [0] * 6


@pytest.mark.parametrize("content", [b"", b"1234567", (2**63).to_bytes(8, "little") + b"{}"])
def test_a_file_without_header(device, tmp_path, content):
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(BlobError, match="its header of"):
        compiled(device).create_infer_request().load_state(tmp_path / "state")


def test_a_file_that_cannot_be_written_leaves_none(device, tmp_path):
    request = compiled(device).create_infer_request()
    (tmp_path / "folder").mkdir()
    with pytest.raises(
        BlobError, match=r"cannot be written to '.*folder': .*Give the path of a file"
    ):
        request.save_state(tmp_path / "folder")
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("name", ["missing", "folder", "a\0b"])
def test_a_file_that_cannot_be_read_is_an_error_that_says_what_to_give(device, tmp_path, name):
    (tmp_path / "folder").mkdir()
    said = r"cannot be read from '.*Give the path of a file that save_state\(\) wrote"
    with pytest.raises(BlobError, match=said):
        compiled(device).create_infer_request().load_state(tmp_path / name)


@pytest.mark.parametrize("name", ["missing/state", "a\0b"])
def test_a_path_that_cannot_be_written_is_an_error_that_says_what_to_give(device, tmp_path, name):
    with pytest.raises(BlobError, match=r"cannot be written to '.*Give the path of a file"):
        compiled(device).create_infer_request().save_state(tmp_path / name)
