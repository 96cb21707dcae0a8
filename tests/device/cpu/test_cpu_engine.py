"""Device CPU as an engine: memory, shapes, requests, threads, counters, properties."""

import gc
import os
import re
import subprocess
import sys
import threading
import weakref

import numpy as np
import onnx.parser
import pytest
from onnx import parser

import partita
from partita import HostTensor
from partita.errors import (
    CompileError,
    DeviceMemoryError,
    InferError,
    PropertyError,
    UnsupportedOpError,
)
from partita.lowering import lower_proto
from partita_cpu.query import refusals
from partita_cpu.runtime.call_table import CallTable
from partita_cpu.runtime.graph_runner import GraphRunner
from partita_cpu.threads.step_team import Team

RNG = np.random.default_rng(11)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def compiled(text, **config):
    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>\n' + text)
    return partita.Core().compile_model(model, "CPU", config)


CHAIN = "g (float[N, M] x) => (float[N, M] y) { a = Neg(x) b = Relu(a) c = Neg(b) y = Add(c, x) }"


def chain(x):
    return x - np.maximum(-x, 0)


def test_every_shape_gets_its_program_and_old_ones_still_work():
    request = compiled(CHAIN).create_infer_request()
    shapes = [(2, 3), (5, 1), (0, 4), (2, 3), (1, 1), *((n, 2) for n in range(1, 12)), (5, 1)]
    for shape in shapes:
        x = floats(*shape)
        np.testing.assert_array_equal(request.infer([x])["y"], chain(x))


def test_a_class_of_shapes_is_bound_to_memory_once(monkeypatch):
    from partita_cpu.runtime import bound_program

    made = []
    real = bound_program.BoundProgram.__init__
    monkeypatch.setattr(
        bound_program.BoundProgram,
        "__init__",
        lambda self, *args: made.append(args[0]) or real(self, *args),
    )
    request = compiled(CHAIN).create_infer_request()
    arrays = [floats(n, 7) for n in (60, *range(1, 60))]  # the largest first: no arena grows
    for most in (2, 0, 0):  # the first program, and the class of shapes that serves all others
        for x in arrays:
            np.testing.assert_array_equal(request.infer([x])["y"], chain(x))
        assert len(made) <= most
        made.clear()
    for x in (arrays[1], arrays[1]):  # the second run binds a call, which takes over what ran
        np.testing.assert_array_equal(request.infer([x])["y"], chain(x))
    assert not made
    for x in (arrays[1], arrays[2], arrays[1], arrays[0], arrays[1]):
        np.testing.assert_array_equal(request.infer([x])["y"], chain(x))


def test_results_of_one_size_are_read_by_the_next_ones():
    """What a class of shapes writes, in memory of the runner, is an input of its next program."""
    request = compiled(
        """g (float[P, 4] past, float[1, 4] x) => (float[Q, 4] now, float[Q, 4] y) {
            now = Concat<axis = 0>(past, x) y = Neg(now)
        }"""
    ).create_infer_request()
    for first in (3, 1, 3):  # sizes that come again, too
        past = wanted = floats(first, 4)
        for _ in range(40):
            x = floats(1, 4)
            found = request.infer({"past": past, "x": x}, share_outputs=True)
            past, wanted = found["now"], np.concatenate([wanted, x])
            np.testing.assert_array_equal(past, wanted)
            np.testing.assert_array_equal(found["y"], -wanted)


def test_all_shapes_work_in_one_block_that_grows():
    model = compiled(CHAIN).device_model
    runner = GraphRunner(model.specializer, Team(1))
    for n in (1000, 3, 100_000, 1000, 30_000):
        x = floats(n, 2)
        np.testing.assert_array_equal(runner.run([x])[0], chain(x))
    outputs = 8 * 100_000  # in one block, too
    arena = model.specializer.program_for([floats(100_000, 2)]).arena_bytes
    assert outputs + arena <= runner.kept_bytes <= outputs + arena + 50_000
    runner.close()
    assert runner.kept_bytes == 0


@pytest.mark.parametrize("most", [0, 100_000])
def test_what_is_kept_of_shapes_has_a_bound(most):
    request = compiled(CHAIN, SHAPE_CACHE_BYTES=most).create_infer_request()
    for n in [*range(1, 2000, 100), 1, 1901]:
        x = floats(n, 8)
        np.testing.assert_array_equal(request.infer([x])["y"], chain(x))
    graph = request.runner.graph
    largest = 1901 * 8 * 4 + 10_000
    assert graph.bound_programs.nbytes <= max(most, largest)


def test_inputs_in_every_memory_layout():
    request = compiled(CHAIN).create_infer_request()
    base = floats(8, 10)
    frozen = base.copy()
    frozen.flags.writeable = False
    raw = np.empty(base.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(base.shape)
    raw[...] = base
    for x in (
        base,
        base[::2],
        base[:, 3:7],
        base.T,
        base[::-1],
        frozen,
        raw,
        np.asfortranarray(base),
    ):
        np.testing.assert_array_equal(request.infer([x])["y"], chain(x))
    np.testing.assert_array_equal(frozen, base)


def test_an_array_that_changes_between_runs_is_read_anew():
    request = compiled(CHAIN).create_infer_request()
    x = floats(4, 4)
    for _ in range(3):
        x += 1
        np.testing.assert_array_equal(request.infer([x])["y"], chain(x))


def test_a_contiguous_input_is_read_in_place_and_a_given_output_written_in_place():
    runner = compiled(CHAIN).device_model.create_runner()
    for _ in range(3):
        x, y = floats(3, 5), floats(3, 5)
        given = HostTensor(y)
        (result,) = runner.run([HostTensor(x)], [given])
        assert result is given
        np.testing.assert_array_equal(y, chain(x))
    (own,) = runner.run([HostTensor(x)])
    assert own.numpy() is not y
    np.testing.assert_array_equal(own.numpy(), y)


def test_memory_for_outputs_is_taken_when_they_are_not_given():
    runner = GraphRunner(compiled(CHAIN).device_model.specializer, Team(1))
    x, y = floats(100_000, 2), floats(100_000, 2)
    runner.run([x], [y])
    without = runner.kept_bytes
    (own,) = runner.run([x])
    np.testing.assert_array_equal(own, y)
    assert runner.kept_bytes == without + x.nbytes
    given = floats(100_000, 2)
    runner.run([x], [given])
    assert runner.run([x])[0] is own
    np.testing.assert_array_equal(given, y)
    assert runner.kept_bytes == without + x.nbytes


def test_results_of_all_shapes_lie_in_memory_that_grows():
    runner = GraphRunner(compiled(CHAIN).device_model.specializer, Team(1))
    arrays = [floats(n, 2) for n in (300, 500, 20, 600, 20, 599)]
    places = []
    for x in arrays:
        (result,) = runner.run([x])
        np.testing.assert_array_equal(result, chain(x))
        places.append(result.ctypes.data)
    assert len(set(places)) == 2  # the second one has room for twice the first
    assert places[1:] == places[1:2] * 5


def test_a_result_that_is_fed_back_is_not_written_over_by_other_shapes():
    """Though the results of all shapes are made in the same memory."""
    text = "g (float[N] x, float[M] y) => (float[N] a, float[M] b) { a = Neg(x) b = Neg(y) }"
    request = compiled(text).create_infer_request()
    request.infer({"x": floats(3), "y": (y := floats(100))})
    request.set_tensor("x", request.get_output_tensor("b"))
    for n in (99, 7, 100, 7, 7, 7, 300, 8):
        other = floats(n)
        result = request.infer({"y": other})
        np.testing.assert_array_equal(result["a"], y)
        np.testing.assert_array_equal(result["b"], -other)


def test_a_given_output_that_steps_cannot_write_to_is_declined():
    runner = compiled(CHAIN).device_model.create_runner()
    x = floats(3, 5)
    strided = HostTensor(np.zeros((3, 10), np.float32)[:, ::2])
    (result,) = runner.run([HostTensor(x)], [strided])
    assert result is not strided
    np.testing.assert_array_equal(result.numpy(), chain(x))


OTHER_SHAPES = [(5, 3), (1, 15), (2, 5), (4, 5)]


@pytest.mark.parametrize("shape", OTHER_SHAPES)
@pytest.mark.parametrize("runs", [0, 3])
def test_a_tensor_of_another_shape_is_told_of_and_not_the_devices_fault(shape, runs):
    request = compiled(CHAIN).create_infer_request()
    x = floats(3, 5)
    for _ in range(runs):
        request.infer([x])
    target = np.zeros(shape, np.float32)
    request.set_output_tensor(HostTensor(target))
    said = re.escape(f"'y' has shape [3, 5]; the tensor set for it has {list(shape)}")
    for _ in range(2):
        with pytest.raises(InferError, match=said):
            request.infer([x])
    assert not target.any()
    x = floats(*shape)
    np.testing.assert_array_equal(request.infer([x])["y"], chain(x))


@pytest.mark.parametrize("shape", OTHER_SHAPES)
def test_no_output_takes_the_shape_of_a_tensor_that_was_set_for_it(shape):
    """As where the shapes of the model's ports tell nothing about each other."""
    text = "g (float[A, B] x, int64[2] s) => (float[C, D] y) { t = Neg(x) y = Reshape(t, s) }"
    request = compiled(text).create_infer_request()
    request.set_output_tensor(HostTensor(np.zeros(shape, np.float32)))
    with pytest.raises(InferError, match=r"the tensor set for it has"):
        request.infer([floats(3, 5), np.array([3, 5])])


def test_an_output_may_be_written_over_the_input_it_is_computed_from():
    runner = compiled(CHAIN).device_model.create_runner()
    state = floats(30, 40)
    wanted = chain(chain(state))
    for _ in range(2):
        runner.run([HostTensor(state)], [HostTensor(state)])
    np.testing.assert_array_equal(state, wanted)


def test_outputs_that_are_inputs_constants_and_repeated():
    model = compiled(
        """g (float[N] x) => (float[N] x, float[2] k, float[N] a, float[N] b, int64[1] n)
        <float[2] k = {1, 2}> {
            a = Neg(x)
            b = Identity(a)
            n = Shape(x)
        }"""
    )
    runner = model.device_model.create_runner()
    for count in (3, 4):
        x = floats(count)
        outputs = [HostTensor(np.zeros(s, np.float32)) for s in (count, 2, count, count)]
        results = runner.run([HostTensor(x)], [*outputs, None])
        same, k, a, b, n = (tensor.numpy() for tensor in results)
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(a, -x)
        np.testing.assert_array_equal(b, -x)
        assert k.tolist() == [1, 2]
        assert n.tolist() == [count]
        assert [result is given for result, given in zip(results, outputs, strict=False)] == [
            True
        ] * 4


def test_results_of_data_dependent_shape():
    model = compiled(
        """g (float[N] x) => (int64[1, K] where, int64[1, K] y, int64[2] s) {
            where = NonZero(x)
            y = Neg(where)
            s = Shape(y)
        }"""
    )
    request = model.create_infer_request()
    for x in ([0, 1, 0, 2], [0, 0], [3, 0, 0, 0], [0, 1, 0, 2]):
        result = request.infer([np.array(x, np.float32)])
        wanted = np.array(np.nonzero(x))
        np.testing.assert_array_equal(result["where"], wanted)
        np.testing.assert_array_equal(result["y"], -wanted)
        assert result["s"].tolist() == list(wanted.shape)


def test_requests_of_one_model_run_at_the_same_time():
    model = compiled(CHAIN)
    inputs = [floats(400, 500) for _ in range(4)]
    failures = []

    def work(x):
        request = model.create_infer_request()
        for _ in range(20):
            y = request.infer([x])["y"]
            if not np.array_equal(y, chain(x)):
                failures.append(x)

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads_gives_the_same(threads):
    x = floats(701, 997)
    request = compiled(CHAIN, INFERENCE_NUM_THREADS=threads).create_infer_request()
    np.testing.assert_array_equal(request.infer([x])["y"], chain(x))


def test_a_team_computes_every_share_and_raises_what_a_share_raises():
    team = Team(3)
    seen = []

    def share(out, tid, nt):
        out.append((tid, nt))

    def fail(tid, nt):
        if tid == 1:
            raise ValueError("share 1")

    team.run(share, seen)
    assert sorted(seen) == [(0, 3), (1, 3), (2, 3)]
    with pytest.raises(ValueError, match="share 1"):
        team.run(fail)
    seen.clear()
    team.run(share, seen)
    assert sorted(seen) == [(0, 3), (1, 3), (2, 3)]


def test_a_busy_team_lets_the_caller_compute_alone():
    team = Team(2)
    inner = []

    def outer(tid, nt):
        if tid == 0:
            team.run(lambda tid, nt: inner.append((tid, nt)))

    team.run(outer)
    assert inner == [(0, 1)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_threads_work_in_a_forked_child():
    x = floats(800, 900)
    request = compiled(CHAIN, INFERENCE_NUM_THREADS=2).create_infer_request()
    request.infer([x])
    child = os.fork()
    if child == 0:
        right = np.array_equal(request.infer([x])["y"], chain(x))
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_memory_of_a_request_is_freed_with_it():
    model = compiled("g (float[8, 64] x) => (float[8, 64] y) { a = Softmax(x) y = Sin(a) }")
    gc.collect()
    gc.disable()  # memory that only a collection frees would pile up
    try:
        before = sum(type(one) is CallTable for one in gc.get_objects())
        request = model.create_infer_request()
        for _ in range(4):
            request.infer([floats(8, 64)])
        del request
        assert sum(type(one) is CallTable for one in gc.get_objects()) == before
    finally:
        gc.enable()


def test_counters_name_every_operation_of_the_model():
    model = compiled(
        """g (float[N, 4] x) => (float[M, 2] y) <int64[1] two = {2}, int64[1] rest = {-1}> {
            shape = Concat <axis = 0> (rest, two)
            s = Sigmoid(x)
            a = Mul(x, s)
            b = Reshape(a, shape)
            y = Neg(b)
        }""",
        PERF_COUNT=True,
    )
    request = model.create_infer_request()
    for _ in range(2):
        request.infer([floats(200, 4)])
        infos = request.get_profiling_info()
        found = {info.node_type: (info.status.value, info.exec_type) for info in infos}
        assert [info.node_name for info in infos] == [op.name for op in model.model.ops]
        assert found == {
            "Concat": ("OPTIMIZED_OUT", ""),
            "Sigmoid": ("OPTIMIZED_OUT", ""),
            "Mul": ("EXECUTED", "numba"),
            "Reshape": ("EXECUTED", "view"),
            "Neg": ("EXECUTED", "numba"),
        }
        assert all(info.real_time_us > 0 for info in infos if info.exec_type == "numba")
        kernels = {info.node_type: (info.node_name, *info.covers) for info in infos}
        assert [len(kernels[kind]) for kind in ("Mul", "Sigmoid", "Neg")] == [2, 1, 1]
        assert kernels["Sigmoid"][0] in kernels["Mul"]


def test_without_perf_count_there_are_no_counters():
    request = compiled(CHAIN).create_infer_request()
    request.infer([floats(2, 2)])
    assert request.get_profiling_info() == ()


def test_an_exported_model_computes_the_same():
    model = compiled(CHAIN, INFERENCE_NUM_THREADS=1)
    again = partita.Core().import_model(model.export_model(), "CPU")
    x = floats(3, 2)
    np.testing.assert_array_equal(again([x])["y"], model([x])["y"])
    assert again.get_property("INFERENCE_NUM_THREADS") == 1


def test_streams_share_the_threads():
    model = compiled(CHAIN, PERFORMANCE_HINT="THROUGHPUT", INFERENCE_NUM_THREADS=4)
    assert model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 4
    assert compiled(CHAIN).get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 1
    two = compiled(CHAIN, NUM_STREAMS=2, INFERENCE_NUM_THREADS=4)
    assert two.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 2
    x = floats(900, 800)
    np.testing.assert_array_equal(two([x])["y"], chain(x))


def test_a_precision_that_the_device_does_not_have_is_refused():
    with pytest.raises(
        PropertyError, match=r"'INFERENCE_PRECISION_HINT' of device 'CPU' cannot be 'f64'"
    ):
        compiled(CHAIN, INFERENCE_PRECISION_HINT="f64")


def test_negative_threads_are_refused():
    with pytest.raises(PropertyError, match="INFERENCE_NUM_THREADS"):
        compiled(CHAIN, INFERENCE_NUM_THREADS=-1)


def test_an_operation_without_kernel_is_named():
    text = "g (float[N] x) => (float[N] y) { a = Relu(x) y = Unheard(a) }"
    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>\n' + text)
    from partita_cpu.plugin import CpuPlugin
    from partita_cpu.properties import CpuProperties

    assert CpuPlugin.properties_type is CpuProperties
    (reason,) = refusals(lower_proto(model)).values()
    assert str(reason) == "UNSUPPORTED_OP: no kernel for Unheard"


def test_a_body_with_an_unknown_operation_takes_the_whole_operation_away():
    text = """g (bool c, float[2] x) => (float[2] y) {
        y = If (c) <
            then_branch = t () => (float[2] u) { u = Unheard(x) },
            else_branch = e () => (float[2] v) { v = Relu(x) }
        >
    }"""
    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>\n' + text)
    (reason,) = refusals(lower_proto(model)).values()
    assert "no kernel for Unheard" in reason.detail
    assert "its body holds" in reason.detail


def test_an_element_type_that_a_kernel_does_not_take_is_a_reason_and_an_error():
    text = "g (string[N] x) => (string[M] y) { a = Identity(x) y = Concat <axis = 0> (a, x) }"
    proto = parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>\n' + text)
    core = partita.Core()
    model = core.read_model(proto)
    result = core.query_model(model, "CPU")
    name = model.ops[-1].name
    assert set(result) == {model.ops[0].name}
    assert result.reasons[name].code.value == "UNSUPPORTED_DTYPE"
    with pytest.raises(UnsupportedOpError, match=rf"'{name}' \(Concat\): UNSUPPORTED_DTYPE"):
        core.compile_model(model, "CPU")


def test_shapes_that_do_not_fit_are_named_when_they_occur():
    request = compiled(
        "g (float[N] x, float[M] z) => (float[K] y) { y = Add(x, z) }"
    ).create_infer_request()
    with pytest.raises((CompileError, InferError), match="Add"):
        request.infer([floats(3), floats(4)])
    np.testing.assert_array_equal(request.infer([np.ones(3, "f"), np.ones(3, "f")])["y"], [2, 2, 2])


BODIES = {
    "walked by the thread pool": "a = Neg(x) y = Relu(a)",
    "called by Python": 'a = Einsum <equation = "ij->ij"> (x) b = NonZero(x) y = Neg(x)',
    "a view": "y = Identity(x)",
}


@pytest.mark.parametrize("body", list(BODIES))
def test_a_runner_keeps_no_input_after_a_run(body):
    """Neither of the same arrays again, nor of other ones, nor of none."""
    graph = f"g (float[3, 4] x) => (float[3, 4] y) {{ {BODIES[body]} }}"
    runner = compiled(graph).device_model.create_runner()
    for _ in range(2):
        x = floats(3, 4)
        want = np.array(runner.run([HostTensor(x.copy())])[0].numpy())
        tensor = HostTensor(x)
        for _ in range(3):
            np.testing.assert_array_equal(runner.run([tensor])[0].numpy(), want)
        seen = weakref.ref(x)
        del x, tensor
        gc.collect()
        assert seen() is None
    runner.close()


def test_the_plugin_is_listed_without_importing_numba():
    code = (
        "import sys, partita; core = partita.Core(); core.available_devices; "
        "core.device_info('CPU'); sys.exit('numba' in sys.modules or 'onnx_ir' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_run_that_finds_no_room_says_so(monkeypatch):
    def no_room(*args):
        raise MemoryError("Unable to allocate 8 GiB")

    request = compiled(CHAIN).create_infer_request()
    monkeypatch.setattr(GraphRunner, "run", no_room)
    with pytest.raises(DeviceMemoryError, match=r"Device CPU has no room to run: .* 8 GiB"):
        request.infer([floats(3, 2)])


def test_a_message_names_the_operator_that_the_model_has():
    """A Gemm and its Relu are one product by the time that shapes turn out not to fit."""
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, K] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
            [mine] g = Gemm(x, w)
            [act] y = Relu(g)
        }"""
    )
    compiled = partita.Core().compile_model(graph, "CPU")
    with pytest.raises(InferError, match=r"Operation 'mine' \(Gemm\) cannot multiply"):
        compiled(np.ones((2, 5), np.float32))
