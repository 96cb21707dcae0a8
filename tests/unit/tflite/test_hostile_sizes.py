"""Small files that claim large sizes, or say the same thing many times: the work stays small."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from flatbuffers import flexbuffers
from test_tflite_operators import one, run
from tflite_files import File, litert

import partita
from partita.errors import ModelFormatError
from partita.frontends.tflite import graph
from partita.frontends.tflite.document import Document
from partita.frontends.value_names import TakenNames


def read(data):
    return partita.Core().read_model(data)


def largest_constant(model):
    return max((v.const_value.size for v in model.ir.graph.initializers.values()), default=0)


def doubled_calls(depth):
    """Subgraphs that call the next one twice each; the last one calls nothing."""
    file = File()
    graphs = [file.main, *(file.graph(f"g{n}") for n in range(depth))]
    for n, one_of_them in enumerate(graphs):
        value = one_of_them.input((2,))
        for _ in range(2 if n < depth else 0):
            made = one_of_them.tensor((2,))
            value = one_of_them.op("CALL", [value], [made], "CallOptions", subgraph=n + 1)
        one_of_them.outputs(value)
    return file.bytes()


def test_subgraphs_that_double_each_other_are_refused(monkeypatch):
    """Nothing is written, so that what is followed has to be counted."""
    assert len(read(doubled_calls(3)).ir.graph) == 1  # the Identity of the output
    monkeypatch.setattr(graph, "MOST_OPERATIONS", 1000)
    with pytest.raises(ModelFormatError, match="subgraphs become more than 1,000 operations"):
        read(doubled_calls(12))


def detections(options):
    file = File()
    boxes, scores = file.main.input((1, 6, 4)), file.main.input((1, 6, 3))
    anchors = file.main.constant(np.ones((6, 4), np.float32))
    outputs = [file.main.tensor(shape) for shape in ((1, 4, 4), (1, 4), (1, 4), (1,))]
    code = "TFLite_Detection_PostProcess"
    file.main.op(code, [boxes, scores, anchors], outputs, custom=options)
    file.main.outputs(*outputs)
    return file.bytes()


def nested_options(depth):
    """A map whose one entry is a vector of a vector twice, and so on: three bytes for each."""
    key, data = 0, bytearray(b"k\0")
    data += bytes([1, 0, flexbuffers.Type.Pack(flexbuffers.Type.INT, 0)])  # a vector of one number
    vector = len(data) - 2
    for _ in range(depth):
        data.append(2)
        start = len(data)
        data += bytes([start - vector, start + 1 - vector])
        data += bytes([flexbuffers.Type.Pack(flexbuffers.Type.VECTOR, 0)] * 2)
        vector = start
    data.append(1)
    keys = len(data)
    data.append(keys - key)
    data += bytes([len(data) - keys, 1, 1])  # of a map: its keys, their width, its size
    start = len(data)
    data += bytes([start - vector, flexbuffers.Type.Pack(flexbuffers.Type.VECTOR, 0)])
    root = len(data)
    data += bytes([root - start, flexbuffers.Type.Pack(flexbuffers.Type.MAP, 0), 1])
    return bytes(data)


def test_options_that_hold_one_another_are_not_written_out(monkeypatch):
    options = nested_options(12)
    (found,) = flexbuffers.Loads(nested_options(3)).values()
    assert found == [[[[0], [0]]] * 2] * 2
    parts, make = [], flexbuffers.Ref.PackedType

    def noted(*place, **more):
        parts.append(place)
        return make(*place, **more)

    monkeypatch.setattr(flexbuffers.Ref, "PackedType", staticmethod(noted))
    with pytest.raises(ModelFormatError, match="option 'max_detections' is None"):
        read(detections(options))
    assert len(parts) < 100


@pytest.mark.parametrize("options", [b"", b"\1", b"\7\7\7\7"])
def test_damaged_options_are_refused(options):
    with pytest.raises(ModelFormatError, match=r"its options (cannot be read|are not a map)"):
        read(detections(options))


def test_options_may_be_numbers_of_any_kind_and_nothing_else():
    with pytest.raises(ModelFormatError, match="option 'max_detections' is None, not a number"):
        read(detections(bytes(flexbuffers.Dumps({"max_detections": "4"}))))
    with pytest.raises(ModelFormatError, match="option 'max_detections' is inf, not a number"):
        read(detections(bytes(flexbuffers.Dumps({"max_detections": float("inf")}))))


def test_an_axis_of_any_length_is_mirrored_at_its_border():
    claimed = np.broadcast_to(np.float32(0), (2**31 - 4, 4))
    pads = np.array([[1, 1], [2, 0]], np.int32)
    of = {"constants": [1], "mode": 1}
    data, _ = one("MIRROR_PAD", [claimed, pads], (2**31 - 2, 6), "MirrorPadOptions", **of)
    assert largest_constant(read(data)) < 100


@pytest.mark.parametrize("pads", [[[-1, 0], [0, 0]], [[0, 0], [0, 5]]])
def test_borders_that_cannot_be_mirrored_are_refused(pads):
    arrays = [np.zeros((3, 4), np.float32), np.array(pads, np.int32)]
    data, _ = one("MIRROR_PAD", arrays, (3, 4), "MirrorPadOptions", constants=[1], mode=1)
    with pytest.raises(ModelFormatError, match=f"{pads[0][0]} and 0|0 and {pads[1][1]}"):
        read(data)


def test_a_block_of_any_size_is_not_placed_one_by_one():
    whole, block = ((1 << 20, 1 << 20, size) for size in (1 << 11, 1 << 10))
    arrays = [np.broadcast_to(np.float32(0), shape) for shape in (whole, block)]
    data, _ = one("DYNAMIC_UPDATE_SLICE", [*arrays, np.zeros(3, np.int32)], whole)
    with pytest.raises(ModelFormatError, match="too many rows to be placed one by one"):
        read(data)


@pytest.mark.parametrize(
    ("whole", "block", "numbers"),
    [((2, 8, 3), (2, 1, 3), 4), ((1, 8, 3), (1, 2, 3), 4), ((4, 3), (4, 3), 0)],
)
def test_rows_of_a_block_are_placed_as_they_are(whole, block, numbers):
    """A cache gets all of a place at once: one entry for each place, not for each number."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (whole, block)]
    begin = np.array([0, 5, 7][: len(whole)], np.int32)
    data, feeds = one("DYNAMIC_UPDATE_SLICE", [*arrays, begin], whole)
    assert largest_constant(read(data)) <= max(numbers, len(whole))
    np.testing.assert_array_equal(run(data, feeds)[0], litert(data, feeds)[0][0])


def test_a_diagonal_is_told_by_places():
    data, _ = one("MATRIX_DIAG", [np.zeros(4096, np.float32)], (4096, 4096), "MatrixDiagOptions")
    assert largest_constant(read(data)) <= 4096


def test_operators_do_not_read_long_rows_of_options():
    fields = {"newShape": [1] * 1000}
    data, _ = one("RESHAPE", [np.zeros(3, np.float32)], (3,), "ReshapeOptions", **fields)
    with pytest.raises(ModelFormatError, match="'NewShape' has 1000 numbers; at most 64 are read"):
        read(data)


def test_names_are_not_tried_again_from_the_first_on():
    tried = []

    class Name(str):
        """A name that notes when it is looked up."""

        __slots__ = ()

        def __hash__(self):
            tried.append(self)
            return super().__hash__()

    names = TakenNames()
    assert [names.fresh(Name("x")) for _ in range(300)] == ["x", *(f"x/{n}" for n in range(1, 300))]
    assert len(tried) < 5 * 300
    names.take(["y", "y/2"])
    assert [names.fresh("y") for _ in range(3)] == ["y/1", "y/3", "y/4"]


def test_outputs_and_their_names_are_not_compared_with_each_other(monkeypatch):
    """One comparison for each pair would be 40,000 of 200 outputs."""
    compared, count = [], 200
    file = File()
    x = file.main.input((2,))
    outputs = [file.main.op("EXP", [x], [file.main.tensor((2,))]) for _ in range(count)]
    file.main.outputs(*outputs)
    file.signature("main", {"x": x}, {f"out{n}": place for n, place in enumerate(outputs)})
    data = file.bytes()

    class Place(int):
        """A place of a tensor that notes when it is compared."""

        def __eq__(self, other):
            compared.append(other)
            return int(self) == int(other)

        __hash__ = int.__hash__

    document = Document(memoryview(data), "it")
    (main,) = document.subgraphs
    ends = {end: tuple(map(Place, getattr(main, end))) for end in ("inputs", "outputs")}
    vars(document)["subgraphs"] = (replace(main, **ends),)
    assert len(document.signatures["main"].outputs) == count
    monkeypatch.setattr(ir.Value, "__eq__", lambda a, b: (compared.append(b), a is b)[1])
    model = partita.Core().read_model(data, signature="main")
    assert [port.name for port in model.outputs] == [f"out{n}" for n in range(count)]
    assert len(compared) < 20 * count
