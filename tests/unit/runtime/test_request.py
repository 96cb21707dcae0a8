"""Infer requests in the same thread: what goes in, what comes out, and who owns it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from models import add_sub, affine, model_of, neg, node, value, weight
from onnx import TensorProto
from toy_device import ToyDevice, ToyTensor, core_with

import partita as ov
from partita.errors import (
    CompileError,
    DeviceMemoryError,
    InferError,
    InputError,
    ModelError,
    OperandError,
    PluginError,
)
from partita.tensors.tensor import HostTensor

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
ONES = np.ones((2, 3), np.float32)


def compiled_toy(model=None, **device):
    return core_with(ToyDevice(**device)).compile_model(model or neg(), "TOY")


@pytest.fixture
def request_of_one():
    return compiled_toy().create_infer_request()


@pytest.fixture
def request_of_two():
    return compiled_toy(add_sub(), compute=lambda a, b: [a + b, a - b]).create_infer_request()


class Foreign:
    """An array of another library, known by one protocol."""

    def __init__(self, array, protocol):
        self.array = array
        if protocol == "array":
            self.__class__ = type("ByArray", (Foreign,), {"__array__": Foreign.as_array})
        else:
            self.__class__ = type(
                "ByDLPack",
                (Foreign,),
                {
                    "__dlpack__": lambda self, **options: self.array.__dlpack__(**options),
                    "__dlpack_device__": lambda self: self.array.__dlpack_device__(),
                },
            )

    def as_array(self, dtype=None, copy=None):
        return self.array


# --------------------------------------------------------------------- forms of inputs


def frozen(array):
    array = array.copy()
    array.flags.writeable = False
    return array


FORMS = {
    "array": X,
    "list": X.tolist(),
    "tuple of lists": tuple(X.tolist()),
    "integers": X.astype(int).tolist(),
    "Tensor": ov.Tensor(X),
    "HostTensor": HostTensor(X),
    "device tensor": ToyTensor(X),
    "foreign device tensor": ToyTensor(X, memory="other"),
    "__array__": Foreign(X, "array"),
    "__dlpack__": Foreign(X.copy(), "dlpack"),
    "not contiguous": np.repeat(X, 2, axis=1)[:, ::2],
    "Tensor, not contiguous": HostTensor(np.repeat(X, 2, axis=1)[:, ::2]),
    "negative strides": X[::-1].copy()[::-1],
    "Fortran order": np.asfortranarray(X),
    "read-only": frozen(X),
    "big-endian": X.astype(">f4"),
    "subclass": X.view(type("Sub", (np.ndarray,), {})),
    "masked": np.ma.masked_array(X),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("by", ["name", "index", "port", "list", "alone"])
def test_forms_of_inputs(form, by):
    request = compiled_toy().create_infer_request()
    data = FORMS[form]
    keys = {"name": "x", "index": np.int64(0), "port": request.model_inputs[0]}
    if by == "alone" and isinstance(data, (list, tuple)):
        data = np.asarray(data, np.float32)  # a list on its own is a list of inputs
    inputs = {keys[by]: data} if by in keys else [data] if by == "list" else data
    np.testing.assert_array_equal(request.infer(inputs)[0], -X)
    (tensor,) = request.runner.inputs
    if tensor.memory == "host":
        assert tensor.numpy().flags.c_contiguous
        assert tensor.dtype == np.float32
        assert type(tensor.numpy()) is np.ndarray
    else:
        assert form == "device tensor"


def test_arrays_that_fit_are_not_copied(request_of_one):
    request_of_one.infer(X)
    assert request_of_one.runner.inputs[0].numpy().base is X


def test_none_is_no_input_even_behind_one_that_was_converted(request_of_one):
    request_of_one.infer({0: [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]})
    with pytest.raises(InputError, match="NoneType cannot be made one"):
        request_of_one.infer({0: None})


def test_two_inputs(request_of_two):
    a, b = request_of_two.model_inputs
    for inputs in ({"a": X, "b": ONES}, {0: X, -1: ONES}, {a: X, b: ONES}, [X, ONES], (X, ONES)):
        result = request_of_two.infer(inputs)
        np.testing.assert_array_equal(result["sum"], X + 1)
        np.testing.assert_array_equal(result["difference"], X - 1)


def test_inputs_stay_until_they_are_replaced(request_of_two):
    request_of_two.infer([X, ONES])
    np.testing.assert_array_equal(request_of_two.infer({"b": X})["sum"], 2 * X)
    np.testing.assert_array_equal(request_of_two.infer()["sum"], 2 * X)
    request_of_two.set_tensors({"a": ONES, 1: ONES})
    np.testing.assert_array_equal(request_of_two.infer({})["sum"], 2 * ONES)


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        (TensorProto.FLOAT, 3),
        (TensorProto.FLOAT, 3.0),
        (TensorProto.FLOAT, np.float32(3)),
        (TensorProto.FLOAT, np.array(3, np.float32)),
        (TensorProto.INT8, 3),
        (TensorProto.UINT8, 3),
        (TensorProto.FLOAT16, 3.0),
        (TensorProto.BFLOAT16, 3.0),
        (TensorProto.BFLOAT16, np.array(3, ml_dtypes.bfloat16)),
        (TensorProto.BOOL, True),
    ],
)
def test_scalars(dtype, given):
    request = compiled_toy(neg([], dtype), compute=lambda x: [x]).create_infer_request()
    result = request.infer({"x": given})[0]
    assert result.shape == ()
    assert result == (True if dtype == TensorProto.BOOL else 3)


@pytest.mark.parametrize("given", [[], np.zeros(0, np.int32)])
def test_empty_inputs(given):
    request = compiled_toy(neg(["N"], TensorProto.INT32)).create_infer_request()
    result = request.infer({"x": given})[0]
    assert (result.shape, result.dtype) == ((0,), np.int32)


@pytest.mark.parametrize("given", [["a", "ä"], np.array(["a", "ä"]), np.array(["a", "ä"], object)])
def test_strings(given):
    model = neg([2], TensorProto.STRING)
    request = compiled_toy(model, compute=lambda x: [x]).create_infer_request()
    assert request.infer({"x": given})[0].tolist() == ["a", "ä"]


def test_a_model_without_inputs(core):
    compiled = core.compile_model(model_of([], [], ["w"], [weight("w", X)]), "REFERENCE")
    for inputs in (None, {}, []):
        np.testing.assert_array_equal(compiled(inputs)["w"], X)
    with pytest.raises(InputError, match=r"takes 0 inputs \(none\); one was given"):
        compiled(X)


# ------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"y": X}, "<CompiledModel 'm' on TOY> has no input 'y'; it takes 'x' float32[2, 3]."),
        ({1: X}, "has no input 1; it takes 'x' float32[2, 3]"),
        ({None: X}, "has no input None"),
        ([X, X], "takes 1 inputs ('x' float32[2, 3]); 2 were given. Give a dict of name to array."),
        (np.full((2, 3), "a"), "the elements of <U1[2, 3] cannot be converted"),
        (np.full((2, 3), "one"), "the elements of <U3[2, 3] cannot be converted: could not"),
        (np.full((2, 3), b"one"), "the elements of |S3[2, 3] cannot be converted: could not"),
        (X.astype("c8"), "the elements of complex64[2, 3] cannot be converted"),
        (np.full((2, 3), None), "the elements of object[2, 3] cannot be converted"),
        (np.full((2, 3), "one", object), "the elements of object[2, 3] cannot be converted"),
        (np.zeros((2, 3), [("a", "f4")]), "cannot be converted"),
        (np.zeros((2, 3), "M8[s]"), "the elements of datetime64[s][2, 3] cannot be converted"),
        (np.zeros((2, 3), "V4"), "cannot be converted"),
        (X[:1], "Input 'x' takes float32[2, 3]; found float32[1, 3]."),
        (X[0], "found float32[3]"),
        (np.float32(1), "found float32[]"),
        (HostTensor(X.astype("f8")), "found float64[2, 3]. Convert it with .astype('float32')."),
        (ToyTensor(X[:1]), "found float32[1, 3]"),
        ({"x": [[1, 2], [3]]}, "Input 'x' takes float32[2, 3]; list cannot be made one: "),
        ({"x": "text"}, "str cannot be made one: its elements are <U4"),
        ({"x": None}, "NoneType cannot be made one: its elements are object"),
        ({"x": [["1", "2", "3"]]}, "list cannot be made one"),
        ({"x": [[1j, 2, 3]] * 2}, "list cannot be made one: its elements are complex128"),
        (iter([X]), "cannot be made one"),
        (None, "Input 'x' (float32[2, 3]) is missing."),
        ({}, "Input 'x' (float32[2, 3]) is missing."),
    ],
)
def test_wrong_inputs(request_of_one, inputs, said):
    with pytest.raises(InputError) as caught:
        request_of_one.infer(inputs)
    assert said in str(caught.value)
    np.testing.assert_array_equal(request_of_one.infer(X)[0], -X)  # it can still be used


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        (TensorProto.INT32, [1.5]),
        (TensorProto.INT8, [300]),
        (TensorProto.UINT8, [-1]),
        (TensorProto.BOOL, [0.5]),
        (TensorProto.STRING, [1]),
        (TensorProto.INT64, [None]),
    ],
)
def test_lists_that_would_lose_something(dtype, given):
    request = compiled_toy(neg([1], dtype)).create_infer_request()
    with pytest.raises(InputError, match=r"list cannot be made one"):
        request.infer({"x": given})


@pytest.mark.parametrize("dtype", ["f8", ">f4", "i8", "?", object, ml_dtypes.bfloat16])
def test_arrays_of_other_numbers_are_converted(request_of_one, dtype):
    given = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    due = -given.astype(np.float32)
    np.testing.assert_array_equal(request_of_one.infer(given)[0], due)


def test_objects_whose_protocol_fails(request_of_one):
    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("tensor is on the moon")

    with pytest.raises(InputError, match=r"Broken cannot be made one: tensor is on the moon"):
        request_of_one.infer(Broken())


def test_no_element_that_is_masked_is_read(request_of_one):
    masked = np.ma.masked_greater(X, X.mean())
    for _ in range(6):
        request_of_one.infer(X)
    for given in (masked, [masked], masked.astype(int)):
        with pytest.raises(InputError, match=r"elements of it are masked, fill them with"):
            request_of_one.infer(given)
    np.testing.assert_array_equal(request_of_one.infer(masked.filled(7))[0], -masked.filled(7))


def test_one_array_for_two_inputs(request_of_two):
    said = r"takes 2 inputs \('a' float32\[2, 3\], 'b' float32\[2, 3\]\); one was given"
    with pytest.raises(InputError, match=said):
        request_of_two.infer(X)
    with pytest.raises(InputError, match=r"Input 'b' \(float32\[2, 3\]\) is missing"):
        request_of_two.infer([X])


def test_no_input_is_set_if_one_is_wrong(request_of_two):
    request_of_two.infer([X, X])
    with pytest.raises(InputError):
        request_of_two.infer({"a": ONES, "b": ONES[:1]})
    np.testing.assert_array_equal(request_of_two.infer()["sum"], 2 * X)


def test_symbolic_and_unknown_dimensions_take_any_size(core):
    compiled = core.compile_model(affine(), "REFERENCE")
    for rows in (0, 1, 5):
        assert compiled(np.ones((rows, 4), np.float32))[0].shape == (rows, 3)
    with pytest.raises(InputError, match=r"Input 'x' takes float32\[N, 4\]; found float32\[2, 5\]"):
        compiled(np.ones((2, 5), np.float32))
    anything = core.compile_model(neg(None), "REFERENCE")
    assert anything(np.ones((1, 2, 3, 4), np.float32))[0].shape == (1, 2, 3, 4)


# ------------------------------------------------------------------------------ results


def test_results_by_name_index_and_port(request_of_two):
    result = request_of_two.infer([X, ONES])
    compiled = request_of_two.compiled_model
    model_port = compiled.model.outputs[1]
    for key in ("difference", 1, -1, np.int64(1), compiled.output(1), model_port):
        np.testing.assert_array_equal(result[key], X - 1)
    assert list(result) == list(compiled.outputs)
    assert list(result.keys()) == list(compiled.outputs)
    assert len(result) == 2
    assert result.names() == ("sum", "difference")
    assert list(result.to_dict()) == ["sum", "difference"]
    np.testing.assert_array_equal(result.to_tuple()[0], X + 1)
    np.testing.assert_array_equal(next(iter(result.values())), X + 1)
    assert repr(result) == "<InferResult sum: float32[2, 3], difference: float32[2, 3]>"
    for absent in ("a", compiled.input(0)):
        with pytest.raises(KeyError, match=r"no output .*; there are 'sum', 'difference'"):
            result[absent]
    for absent in (2, -3):
        with pytest.raises(KeyError, match=rf"no output {absent}; there are 2, from 0 to 1"):
            result[absent]


def test_results_can_be_fed_to_another_model():
    first = compiled_toy(add_sub(), compute=lambda a, b: [a + b, a - b])
    names = {"a": "sum", "b": "difference"}
    second_model = model_of(
        [node("Mul", list(names.values()), "y")],
        [value(name, [2, 3]) for name in names.values()],
        ["y"],
    )
    second = compiled_toy(second_model, compute=lambda a, b: [a * b])
    np.testing.assert_array_equal(second(first([X, ONES]))[0], (X + 1) * (X - 1))


def test_results_are_copies_unless_shared(request_of_one):
    copied = request_of_one.infer(X)[0]
    shared = request_of_one.infer(X, share_outputs=True)[0]
    view, tensor = request_of_one.results[0], request_of_one.get_output_tensor()
    assert np.shares_memory(shared, view)
    assert np.shares_memory(shared, tensor.data)
    assert not np.shares_memory(copied, shared)
    request_of_one.infer(ONES)
    np.testing.assert_array_equal(copied, -X)
    np.testing.assert_array_equal(shared, -ONES)


def test_results_of_compiled_models():
    compiled = compiled_toy()
    first, second = compiled.infer_new_request(X)[0], compiled(ONES)[0]
    np.testing.assert_array_equal(first, -X)
    np.testing.assert_array_equal(second, -ONES)
    shared = compiled(X, share_inputs=True, share_outputs=True)[0]
    compiled(ONES)
    np.testing.assert_array_equal(shared, -ONES)


@pytest.mark.parametrize("take", [
    lambda request: request.results[0],
    lambda request: request.results["y"][::-1][::-1],
    lambda request: request.get_output_tensor(0),
    lambda request: request.infer(X, share_outputs=True)[0],
])  # fmt: skip
def test_outputs_fed_back_are_read_before_they_are_overwritten(request_of_one, take):
    request_of_one.infer(X)
    np.testing.assert_array_equal(request_of_one.infer({"x": take(request_of_one)})[0], X)
    request_of_one.infer(X)
    request_of_one.set_input_tensor(take(request_of_one))
    np.testing.assert_array_equal(request_of_one.infer()[0], X)


def test_texts_fed_back_leave_no_list_without_outputs(monkeypatch):
    texts = ([value(name, ["N"], TensorProto.STRING)] for name in "xy")
    request = compiled_toy(
        model_of([node("Identity", ["x"], ["y"])], *texts)
    ).create_infer_request()
    request.runner.plugin.compute, handed = lambda x: [x.copy()], []
    run = request.runner.run
    monkeypatch.setattr(request.runner, "run", lambda i, o=None: (handed.append(o), run(i, o))[1])
    words = request.infer({"x": np.array(["a", "b"], object)}, share_outputs=True)[0]
    for _ in range(2):
        words = request.infer({"x": words}, share_outputs=True)[0]
    assert words.tolist() == ["a", "b"]
    assert all(outputs is None or len(outputs) == 1 for outputs in handed), handed


# ------------------------------------------------------------------------------ tensors


def test_input_tensors(request_of_two):
    request_of_two.set_input_tensor(0, X)
    request_of_two.set_tensor("b", ov.Tensor(ONES))
    assert request_of_two.get_input_tensor(0).data is X
    request_of_two.get_tensor("b").data[:] = 2
    np.testing.assert_array_equal(request_of_two.infer()["sum"], X + 2)
    request_of_two.set_tensor(request_of_two.model_inputs[1], X)
    assert request_of_two.get_tensor(request_of_two.model_inputs[1]).data is X
    assert [tensor.data is X for tensor in request_of_two.input_tensors] == [True, True]
    assert request_of_two.get_tensor(1).data is X


def test_input_tensors_that_were_not_set_can_be_filled(request_of_one):
    request_of_one.get_input_tensor().data[:] = X
    np.testing.assert_array_equal(request_of_one.infer()[0], -X)
    dynamic = compiled_toy(neg(["N", 3])).create_infer_request()
    assert dynamic.get_input_tensor().shape == (0, 3)
    dynamic.get_input_tensor().shape = X.shape
    dynamic.get_input_tensor().data[:] = X
    np.testing.assert_array_equal(dynamic.infer()[0], -X)
    unknown = compiled_toy(neg(None)).create_infer_request()
    with pytest.raises(InputError, match=r"Input 'x' \(float32\[\.\.\.\]\) was not set yet"):
        unknown.get_input_tensor()


def test_one_input_is_set_without_a_name(request_of_one, request_of_two):
    request_of_one.set_input_tensor(ov.Tensor(X))
    np.testing.assert_array_equal(request_of_one.infer()[0], -X)
    with pytest.raises(InputError, match=r"takes 2 inputs"):
        request_of_two.set_input_tensor(X)
    with pytest.raises(InputError, match=r"has no input 5"):
        request_of_two.set_input_tensor(5, X)
    with pytest.raises(InputError, match=r"found float32\[3\]"):
        request_of_one.set_tensor("x", X[0])


def test_output_tensors(request_of_two):
    with pytest.raises(InferError, match=r"The results are not there: no run of the request has e"):
        _ = request_of_two.results
    request_of_two.infer([X, ONES])
    np.testing.assert_array_equal(request_of_two.get_tensor("difference").data, X - 1)
    np.testing.assert_array_equal(request_of_two.get_output_tensor("sum").data, X + 1)
    port = request_of_two.model_outputs[1]
    np.testing.assert_array_equal(request_of_two.get_tensor(port).data, X - 1)
    assert [t.shape for t in request_of_two.output_tensors] == [(2, 3), (2, 3)]
    with pytest.raises(ModelError, match=r"has no output 'z'; it has 'sum', 'difference'"):
        request_of_two.get_tensor("z")


def test_outputs_go_where_they_are_wanted(request_of_two):
    target, tensor = np.zeros((2, 3), np.float32), ov.Tensor(np.zeros((2, 3), np.float32))
    request_of_two.set_output_tensor(0, target)
    request_of_two.set_tensor("difference", tensor)
    result = request_of_two.infer([X, ONES], share_outputs=True)
    np.testing.assert_array_equal(target, X + 1)
    np.testing.assert_array_equal(tensor.data, X - 1)
    assert result[0] is target
    assert request_of_two.get_output_tensor(1) is tensor
    assert request_of_two.infer([X, X])[0] is not target
    request_of_two.set_tensor(request_of_two.model_outputs[1], target)
    request_of_two.set_output_tensor(0, np.zeros_like(X))
    request_of_two.infer([X, X])
    np.testing.assert_array_equal(target, 0 * X)


def test_outputs_that_cannot_go_there(request_of_one):
    for wrong, said in (
        (np.zeros((2, 2), np.float32), "Output 'y' takes float32[2, 3]; found float32[2, 2]."),
        (np.zeros((2, 3)), "found float64[2, 3]"),
        (frozen(X), "Output 'y' needs host memory that can be written"),
        (ToyTensor(X), "Output 'y' needs host memory that can be written"),
    ):
        with pytest.raises(InputError) as caught:
            request_of_one.set_output_tensor(wrong)
        assert said in str(caught.value)
    dynamic = compiled_toy(neg(["N"])).create_infer_request()
    dynamic.set_output_tensor(np.zeros(2, np.float32))
    with pytest.raises(InferError, match=r"'y' has shape \[3\]; the tensor set for it has \[2\]"):
        dynamic.infer(np.zeros(3, np.float32))


# ------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("raised", "error", "said"),
    [
        (ValueError("bad stride"), InferError, "'TOY' failed on model 'm': ValueError: bad stride"),
        (MemoryError("2 GiB"), DeviceMemoryError, "Device 'TOY' has no room to run: 2 GiB"),
        (CompileError("no room for 7"), InferError, "'TOY' cannot compute these inputs: no room"),
        (OperandError("3 and 4"), InputError, "'TOY' cannot compute these inputs: 3 and 4"),
        (InferError("as it is"), InferError, "as it is"),
        (DeviceMemoryError("as it is"), DeviceMemoryError, "as it is"),
    ],
)
def test_what_a_runner_raises(raised, error, said):
    def compute(x):
        if x[0, 0] < 0:
            raise raised
        return [x]

    request = compiled_toy(compute=compute).create_infer_request()
    request.infer(X)
    with pytest.raises(error, match=said) as caught:
        request.infer(-X)
    assert type(caught.value) is error
    with pytest.raises(InferError, match=r"is not there"):
        request.get_output_tensor()
    np.testing.assert_array_equal(request.infer(X)[0], X)


class TooLarge(np.ndarray):
    """An array of which no copy fits the memory."""

    def copy(self, order="C"):
        raise MemoryError("2 GiB")


def test_results_of_which_there_is_no_room_for_a_copy():
    request = compiled_toy(compute=lambda x: [(-x).view(TooLarge)]).create_infer_request()
    said = r"no room to copy the results of device 'TOY' \(2 GiB\).*share_outputs"
    with pytest.raises(DeviceMemoryError, match=said):
        request.infer(X)
    np.testing.assert_array_equal(request.infer(X, share_outputs=True)[0], -X)


def test_inputs_of_which_there_is_no_room_for_a_copy():
    request = compiled_toy(neg(["N"])).create_infer_request()
    with pytest.raises(DeviceMemoryError, match="no room for the inputs of"):
        request.start_async([np.broadcast_to(np.float32(7), (1 << 58,))])
    np.testing.assert_array_equal(request.infer(X[0])[0], -X[0])


class Endless:
    """A sequence that claims more elements than any memory holds."""

    def __len__(self):
        return 10**18

    def __getitem__(self, place):
        return 1.0


def test_inputs_without_end():
    request = compiled_toy(neg(["N"])).create_infer_request()
    with pytest.raises(DeviceMemoryError, match=r"no room for the inputs of .*: \S"):
        request.infer({"x": Endless()})
    np.testing.assert_array_equal(request.infer(X[0])[0], -X[0])


def test_a_runner_that_forgets_an_output():
    request = compiled_toy(add_sub(), compute=lambda a, b: [a]).create_infer_request()
    with pytest.raises(PluginError, match=r"Device 'TOY' returned 1 tensors; expected 2"):
        request.infer([X, X])


# -------------------------------------------------------------------------------- facts


def test_latency_and_counters(core):
    compiled = core.compile_model(neg(), "REFERENCE", {"PERF_COUNT": "YES"})
    request = compiled.create_infer_request()
    assert request.latency == 0
    request.infer(X)
    assert request.latency > 0
    assert request.get_profiling_info() == request.profiling_info
    assert len(request.profiling_info) > 0
    assert request.get_compiled_model() is compiled
    quiet = core.compile_model(neg(), "REFERENCE").create_infer_request()
    quiet.infer(X)
    assert len(quiet.profiling_info) == 0


def test_onnx_models_keep_no_variables(request_of_one):
    assert request_of_one.query_state() == []


def test_a_constant_that_is_given_is_called_one():
    model = ov.Core().read_model(
        model_of(
            [node("Add", ["x", "w"], "y")], ["x"], ["y"], [weight("w", np.ones(2, np.float32))]
        )
    )
    said = "has no input 'w'; it .*'x'.* 'w' is a constant of the model, .* leave it out, or take"
    with pytest.raises(ModelError, match=said):
        model.reshape({"w": [2, 3]})
    with pytest.raises(InputError, match=said.replace("'w'; it", ".w.; it")):
        ov.Core().compile_model(model, "REFERENCE")({"x": np.ones(2), "w": ONES})
    with pytest.raises(ModelError) as caught:
        model.input("z")
    assert "constant" not in str(caught.value)


def test_inputs_that_name_one_size_are_told_where_a_device_cannot_compute_them():
    def add(a, b):
        if a.shape != b.shape:
            raise CompileError("They do not broadcast.")
        return [a + b, a - b]

    request = compiled_toy(add_sub(("N", 3)), compute=add).create_infer_request()
    assert request.infer([ONES, ONES])[0].shape == (2, 3)
    told = r"They do not broadcast. Inputs 'a' and 'b' both have 'N' in their shapes, which is 2 of"
    with pytest.raises(InferError, match=told):
        request.infer([ONES, np.ones((5, 3), np.float32)])
