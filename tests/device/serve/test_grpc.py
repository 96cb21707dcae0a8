"""The gRPC service, by Triton's client and by messages that were made by hand."""

import json
import queue

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from models import add_sub, affine, lookup, neg
from onnx import TensorProto
from serving import running_server
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from partita.errors import PropertyError
from partita_serve.rpc.message_table import ENUMS, MESSAGES
from partita_serve.rpc.messages import message_type

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def serving(folder, **settings):
    """A server with small models."""
    models = {
        "neg": neg(),
        "wide": neg(["rows", 3]),
        "both": add_sub(),
        "dense": affine(),
        "lookup": lookup(),
        "bytes": neg((2, 2), TensorProto.INT8),
    }
    paths = {}
    for name, model in models.items():
        path = folder / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        paths[name] = str(path)
    return running_server(models=paths, defaults={"device": "CPU"}, **settings)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("models")) as running:
        yield running


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.grpc_address) as client:
        yield client


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield channel


@pytest.fixture
def stub(channel):
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


def tensor(name, array):
    found = triton.InferInput(name, array.shape, triton.np_to_triton_dtype(array.dtype))
    found.set_data_from_numpy(array)
    return found


# ------------------------------------------------------------------------------- messages


def fields_of(message):
    return {
        (field.name, field.number, field.type, field.is_repeated)
        for field in message.DESCRIPTOR.fields
    }


def test_fields_are_those_of_the_client():
    """A message of the same name has each field with the same number and type."""
    compared = 0
    for name in MESSAGES:
        theirs = getattr(service_pb2, name, None) or getattr(model_config_pb2, name, None)
        if theirs is not None:
            assert fields_of(message_type(name)) <= fields_of(theirs), name
            compared += 1
    assert compared > 35


def test_types_of_elements_have_the_numbers_of_the_client():
    theirs = model_config_pb2.DataType.items()
    assert list(enumerate(ENUMS["DataType"])) == sorted((number, name) for name, number in theirs)


# --------------------------------------------------------------------- calls of the client


def test_health(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("neg")
    assert client.is_model_ready("neg", "1")


def test_metadata(client):
    server = client.get_server_metadata(as_json=True)
    assert server["name"] == "partita"
    assert "statistics" in server["extensions"]
    model = client.get_model_metadata("wide", as_json=True)
    assert model["versions"] == ["1"]
    assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "3"]}]
    assert [out["name"] for out in model["outputs"]] == ["y"]


def test_config(client):
    config = client.get_model_config("both").config
    assert config.name == "both"
    assert [(one.name, one.data_type, list(one.dims)) for one in config.input] == [
        ("a", model_config_pb2.TYPE_FP32, [2, 3]),
        ("b", model_config_pb2.TYPE_FP32, [2, 3]),
    ]
    assert [one.name for one in config.output] == ["sum", "difference"]


def test_repository(client):
    index = client.get_model_repository_index(as_json=True)["models"]
    assert {"name": "neg", "version": "1", "state": "READY"} in index
    client.unload_model("dense")
    with pytest.raises(triton.InferenceServerException, match=r"'dense'.*not ready") as error:
        client.infer("dense", [tensor("x", np.ones((1, 4), np.float32))])
    assert error.value.status() == "StatusCode.UNAVAILABLE"
    client.load_model("dense", config=json.dumps({"max_batch_size": 4}))
    assert client.get_model_config("dense").config.max_batch_size == 4
    result = client.infer("dense", [tensor("x", np.ones((3, 4), np.float32))])
    assert result.as_numpy("y").shape == (3, 3)


def test_infer(client):
    result = client.infer("neg", [tensor("x", X)], request_id="seven")
    np.testing.assert_array_equal(result.as_numpy("y"), -X)
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("seven", "neg", "1")


def test_outputs_that_were_asked_for(client):
    inputs = [tensor("a", X), tensor("b", 2 * X)]
    asked = [triton.InferRequestedOutput("difference")]
    result = client.infer("both", inputs, outputs=asked)
    np.testing.assert_array_equal(result.as_numpy("difference"), -X)
    assert result.as_numpy("sum") is None


def test_infer_with_a_deadline_and_a_priority(client):
    result = client.infer("neg", [tensor("x", X)], priority=1, timeout=10**7, client_timeout=30)
    np.testing.assert_array_equal(result.as_numpy("y"), -X)


def test_async_infer(client):
    ended = queue.Queue()
    client.async_infer("neg", [tensor("x", X)], lambda result, error: ended.put((result, error)))
    result, error = ended.get(timeout=60)
    assert error is None
    np.testing.assert_array_equal(result.as_numpy("y"), -X)


def test_stream_answers_in_order_and_outlives_errors(client):
    ended = queue.Queue()
    client.start_stream(lambda result, error: ended.put((result, error)))
    for number in range(150):  # more than are under way at once
        name = "missing" if number == 70 else "neg"
        client.async_stream_infer(name, [tensor("x", number * X)], request_id=str(number))
    for number in range(150):
        result, error = ended.get(timeout=60)
        if number == 70:
            assert "'missing'" in str(error)
        else:
            assert result.get_response().id == str(number)
            np.testing.assert_array_equal(result.as_numpy("y"), -number * X)
    client.stop_stream()


def test_stream_outlives_bytes_that_are_no_message(channel):
    good = request(x=("FP32", [2, 3], None), raw=[bytes(24)]).SerializeToString()
    call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    kind = message_type("ModelStreamInferResponse")
    wrong, right = map(kind.FromString, call(iter([b"\xff" * 40, good])))
    assert "not a message 'ModelInferRequest'" in wrong.error_message
    assert right.error_message == ""
    assert right.infer_response.outputs[0].shape == [2, 3]


def test_stream_marks_final_responses_for_who_asks(client):
    ended = queue.Queue()
    client.start_stream(lambda result, error: ended.put((result, error)))
    client.async_stream_infer("neg", [tensor("x", X)], enable_empty_final_response=True)
    result, _ = ended.get(timeout=60)
    assert result.get_response().parameters["triton_final_response"].bool_param
    client.stop_stream()


def test_statistics_count(client):
    def count():
        [stats] = client.get_inference_statistics("wide").model_stats
        return stats.inference_stats.success.count, stats.inference_stats.fail.count

    before = count()
    client.infer("wide", [tensor("x", X)])
    with pytest.raises(triton.InferenceServerException):
        client.infer("wide", [tensor("x", X.reshape(3, 2))])
    assert count() == (before[0] + 1, before[1] + 1)
    assert len(client.get_inference_statistics().model_stats) >= 4


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.get_system_shared_memory_status(),
        lambda client: client.register_system_shared_memory("a", "/a", 4),
        lambda client: client.unregister_system_shared_memory(),
        lambda client: client.get_cuda_shared_memory_status(),
        lambda client: client.register_cuda_shared_memory("a", b"", 0, 4),
        lambda client: client.unregister_cuda_shared_memory(),
        lambda client: client.get_trace_settings(),
        lambda client: client.update_trace_settings(),
        lambda client: client.get_log_settings(),
        lambda client: client.update_log_settings({}),
        lambda client: client.load_model("neg", files={"file:1/model.onnx": b"x"}, config="{}"),
        lambda client: client.infer(
            "neg", [tensor("x", X)], outputs=[triton.InferRequestedOutput("y", class_count=2)]
        ),
    ],
)
def test_what_is_not_done_is_said(client, call):
    with pytest.raises(triton.InferenceServerException) as error:
        call(client)
    assert error.value.status() == "StatusCode.UNIMPLEMENTED"
    assert error.value.message().endswith(".")


# -------------------------------------------------------------------- messages made by hand


def request(model="neg", raw=(), **tensors):
    message = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=raw)
    for name, (datatype, shape, contents) in tensors.items():
        added = message.inputs.add(name=name, datatype=datatype, shape=shape)
        if contents is not None:
            added.contents.CopyFrom(service_pb2.InferTensorContents(**contents))
    return message


def test_typed_contents(stub):
    contents = {"fp32_contents": X.reshape(-1).tolist()}
    response = stub.ModelInfer(request(x=("FP32", [2, 3], contents)))
    found = np.frombuffer(response.raw_output_contents[0], np.float32).reshape(2, 3)
    np.testing.assert_array_equal(found, -X)
    response = stub.ModelInfer(
        request("bytes", x=("INT8", [2, 2], {"int_contents": [1, -2, 3, 127]}))
    )
    assert np.frombuffer(response.raw_output_contents[0], np.int8).tolist() == [-1, 2, -3, -127]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (request(x=("FP32", [2, 3], None), raw=[b"", b""]), "1 inputs and 2 entries"),
        (request(x=("FP32", [2, 3], {}), raw=[bytes(24)]), "give one of them"),
        (request(x=("FP32", [2, -3], None), raw=[bytes(24)]), r"shape \[2, -3\]"),
        (request(x=("FP32", [2, 3], None), raw=[bytes(20)]), "has 20 bytes"),
        (request(x=("FP32", [2, 3], {"fp32_contents": [1, 2]})), "2 elements"),
        (request(x=("FP32", [2, 3], {"int_contents": [1] * 6})), "belong into fp32_contents"),
        (request(x=("FP16", [2, 3], None)), "no typed contents"),
        (request(x=("FP31", [2, 3], None)), "'FP31'"),
        (request("bytes", x=("INT8", [2, 2], {"int_contents": [1, 2, 3, 128]})), "no INT8"),
        (request(z=("FP32", [2, 3], None), raw=[bytes(24)]), "'z'"),
        (request(), "takes 'x'"),
    ],
)
def test_wrong_tensors(stub, message, told):
    with pytest.raises(grpc.RpcError, match=told) as error:
        stub.ModelInfer(message)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_parameter_without_a_value(stub):
    message = request(x=("FP32", [2, 3], None), raw=[bytes(24)])
    message.parameters["priority"].SetInParent()
    with pytest.raises(grpc.RpcError, match="'priority' has no value"):
        stub.ModelInfer(message)


@pytest.mark.parametrize("config", ["[]", "{", "[" * 100_000])
def test_config_of_a_model_that_is_none(client, config):
    with pytest.raises(triton.InferenceServerException, match="'config' is") as error:
        client.load_model("neg", config=config)
    assert error.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "setting", ["instances", "max_batch_size", "max_queue_size", "max_sequences", "sequence_idle_s"]
)
def test_a_client_cannot_set_what_takes_all_threads_or_memory(client, setting):
    with pytest.raises(
        triton.InferenceServerException, match=f"'{setting}': .* less than"
    ) as error:
        client.load_model("neg", config=json.dumps({setting: 2**40}))
    assert error.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("index", "added", "said"),
    [(3, 1, "index 3 is out of range for a dimension of size 3"), (0, 2, "do not broadcast")],
)
def test_data_that_a_model_cannot_compute_is_the_clients_fault(client, index, added, said):
    rows = np.ones((3, 2), np.float32)
    inputs = [
        tensor("x", rows),
        tensor("indices", np.full(3, index)),
        tensor("z", rows[:added]),
    ]
    with pytest.raises(triton.InferenceServerException, match=said) as error:
        client.infer("lookup", inputs)
    assert error.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_model_that_is_not_there(client):
    with pytest.raises(triton.InferenceServerException, match="no model 'none'") as error:
        client.get_model_metadata("none")
    assert error.value.status() == "StatusCode.NOT_FOUND"


def test_bytes_that_are_no_message(channel):
    for name in ("ModelInfer", "ModelReady"):
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
        with pytest.raises(grpc.RpcError, match=f"not a message '{name}Request'") as error:
            call(b"\xff" * 40)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    assert call(request(x=("FP32", [2, 3], None), raw=[bytes(24)]).SerializeToString())


# ------------------------------------------------------------------------ health and access


def health(channel, service=""):
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_type("HealthCheckResponse").FromString,
    )
    return check(message_type("HealthCheckRequest")(service=service), timeout=60).status


def test_health_service(channel):
    assert health(channel) == ENUMS["ServingStatus"].index("SERVING")
    assert health(channel, "inference.GRPCInferenceService") == 1
    with pytest.raises(grpc.RpcError, match="no service 'other'") as error:
        health(channel, "other")
    assert error.value.code() is grpc.StatusCode.NOT_FOUND


def test_watched_health_tells_that_the_server_drains(channel, server):
    watch = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        response_deserializer=message_type("HealthCheckResponse").FromString,
    )(b"")
    assert next(watch).status == ENUMS["ServingStatus"].index("SERVING")
    server.server.drain()
    assert next(watch).status == ENUMS["ServingStatus"].index("NOT_SERVING")
    watch.cancel()


def test_keys_and_limits(tmp_path):
    keys = tmp_path / "keys.txt"
    keys.write_text("# of the tests\nsecret\n")
    with (
        serving(tmp_path, api_keys=keys, max_body=1000) as running,
        triton.InferenceServerClient(running.grpc_address) as client,
        grpc.insecure_channel(running.grpc_address) as channel,
    ):
        for headers in ({}, {"authorization": "Bearer other"}, {"authorization": "Basic secret"}):
            with pytest.raises(triton.InferenceServerException, match="needs a key") as error:
                client.is_server_ready(headers=headers)
            assert error.value.status() == "StatusCode.UNAUTHENTICATED"
        assert client.is_server_ready(headers={"authorization": "Bearer secret"})
        assert client.is_server_ready(headers={"x-api-key": "secret"})
        assert health(channel) == ENUMS["ServingStatus"].index("SERVING")

        large = [tensor("x", np.ones((200, 3), np.float32))]
        with pytest.raises(triton.InferenceServerException) as error:
            client.infer("wide", large, headers={"x-api-key": "secret"})
        assert error.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


def test_metadata_beyond_the_limit(tmp_path):
    with (
        serving(tmp_path, max_header=4096) as running,
        triton.InferenceServerClient(running.grpc_address) as client,
    ):
        with pytest.raises(triton.InferenceServerException) as error:
            client.is_server_live(headers={f"a{number}": "b" * 500 for number in range(20)})
        assert error.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        assert client.is_server_live(headers={"a": "b" * 500})


def test_calls_beyond_those_that_are_answered_at_once_are_refused(tmp_path):
    with (
        serving(tmp_path, max_connections=1) as running,
        grpc.insecure_channel(running.grpc_address) as channel,
    ):
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        next(watch)
        with pytest.raises(grpc.RpcError) as error:
            health(channel)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        watch.cancel()


def test_a_call_that_its_client_takes_back_counts_as_cancelled(server, client, stub):
    """A stream of requests of which none is read is taken back."""
    call = stub.ModelStreamInfer(iter([request(x=("FP32", [2, 3], None), raw=[bytes(24)])]))
    call.cancel()
    with pytest.raises(grpc.RpcError):
        next(call)
    assert client.infer("neg", [tensor("x", X)]).as_numpy("y") is not None


def test_a_port_that_is_taken(server):
    port = int(server.grpc_address.rpartition(":")[2])
    with (
        pytest.raises(
            PropertyError, match=rf"gRPC cannot listen at 127.0.0.1:{port}: .*--grpc-port"
        ),
        running_server(models={}, grpc_port=port),
    ):
        pass
