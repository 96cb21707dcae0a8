"""Engine of the OPENCL devices: memory, requests, tensors, profiles, programs on disk."""

import gc
import itertools
import os
import threading
import weakref

import numpy as np
import onnx.parser
import pytest
from onnx import helper, numpy_helper

import partita
from partita import HostTensor
from partita.errors import (
    CompileError,
    DeviceMemoryError,
    DeviceNotFoundError,
    InferError,
    PropertyError,
)
from partita.lowering import Operand
from partita.system.threads.made_once import made_once
from partita_opencl.device import device as devices
from partita_opencl.device.buffer_pool import BufferPool
from partita_opencl.device.device import CURE, all_devices, find_device
from partita_opencl.device.device_tensor import OpenClTensor
from partita_opencl.drivers import driver_trial, program_cache
from partita_opencl.drivers.driver_trial import Tried
from partita_opencl.drivers.installed_drivers import Driver
from partita_opencl.drivers.program_cache import ProgramCache, ProgramKey
from partita_opencl.drivers.verdicts import Verdict
from partita_opencl.launches.work_sizes import Tuning
from partita_opencl.plugin import OpenClPlugin
from partita_opencl.properties import OpenClProperties
from partita_opencl.runtime import driver_loops, launch_batch, shared_kernels

from ..comparison import build, check, compiled, core, expected, floats, int64s, single


def residual_network(channels=8, blocks=3, dynamic=False):
    """A small network with branches, so that many tensors are alive at different times."""
    nodes, weights, last = [], [], "x"
    for n in range(blocks):
        for part in "ab":
            array = floats(channels, channels, 3, 3, seed=2 * n + (part == "a")) * 0.1
            weights.append(numpy_helper.from_array(array, f"w{n}{part}"))
        nodes += [
            helper.make_node("Conv", [last, f"w{n}a"], [f"a{n}"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"a{n}"], [f"r{n}"]),
            helper.make_node("Conv", [f"r{n}", f"w{n}b"], [f"b{n}"], pads=[1, 1, 1, 1]),
            helper.make_node("Add", [f"b{n}", last], [f"s{n}"]),
            helper.make_node("Sigmoid", [f"s{n}"], [f"t{n}"]),
            helper.make_node("Concat", [f"t{n}", f"r{n}"], [f"c{n}"], axis=1),
            helper.make_node("Split", [f"c{n}"], [f"u{n}", f"v{n}"], axis=1, num_outputs=2),
            helper.make_node("Mul", [f"u{n}", f"v{n}"], [f"m{n}"]),
        ]
        last = f"m{n}"
    feeds = {"x": floats(1, channels, 10, 12)}
    return build(nodes, feeds, [last, "r1"], weights, dynamic=dynamic), feeds


def test_a_network_with_branches():
    model, feeds = residual_network()
    check(model, feeds, feeds)


def test_slots_take_less_than_the_sum_of_the_tensors():
    model, _ = residual_network(blocks=6)
    built = compiled(model)
    plan = next(iter(built.device_model.plans.values()))
    assert 0 < plan.nbytes < sum(operand.nbytes for operand in plan.slots) / 2


def test_shapes_may_change_from_run_to_run():
    model, _ = residual_network(dynamic=True)
    feeds = [{"x": floats(n, 8, h, 9, seed=n)} for n, h in ((1, 10), (2, 5), (3, 17), (1, 10))]
    check(model, *feeds, *feeds)


def test_more_shapes_than_are_kept():
    model, _ = single("Tanh", [floats(3)], dynamic=True)
    check(model, *({"x0": floats(n)} for n in (*range(1, 45), 1, 2, 3)))


def test_requests_run_side_by_side():
    model, _ = residual_network()
    built = compiled(model)
    feeds = [{"x": floats(1, 8, 10, 12, seed=n)} for n in range(4)]
    wanted = [expected(model, feed)[0] for feed in feeds]
    wrong = []

    def work(number):
        request = built.create_infer_request()
        for _ in range(10):
            found = request.infer(feeds[number])[0]
            if not np.allclose(found, wanted[number], rtol=1e-4, atol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_outputs_that_are_inputs_constants_and_views():
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Reshape", ["x", "shape"], ["view"]),
        helper.make_node("Exp", ["x"], ["computed"]),
        helper.make_node("Flatten", ["computed"], ["flat"]),
        helper.make_node("Shape", ["x"], ["dims"]),
    ]
    weights = [numpy_helper.from_array(int64s(6), "shape")]
    feeds = {"x": floats(2, 3)}
    outputs = ["same", "view", "computed", "flat", "computed", "dims", "shape"]
    model = build(nodes, feeds, dict.fromkeys(outputs), weights)
    check(model, feeds, {"x": floats(2, 3, seed=1)})


def device_tensor(array):
    return core().device_api.transfer_to("OPENCL", HostTensor(array))


@pytest.mark.usefixtures("apart")
def test_tensors_go_to_the_device_and_back():
    for array in (floats(3, 4), int64s(7)[0:1].reshape(()), np.zeros((0, 3), np.float32)):
        tensor = device_tensor(array)
        assert isinstance(tensor, OpenClTensor)
        assert (tensor.memory, tensor.shape) == ("opencl:0", array.shape)
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert core().device_api.transfer_to("OPENCL", tensor) is tensor


@pytest.mark.usefixtures("apart")
def test_uploads_use_memory_again():
    size = 123_457
    first = device_tensor(np.zeros(size, np.float32))
    buffer = first.buffer
    del first
    gc.collect()
    assert device_tensor(np.ones(size, np.float32)).buffer is buffer


@pytest.mark.usefixtures("apart")
def test_only_own_memory_is_shared():
    assert core().device_api.can_share("OPENCL", "opencl:0")
    assert not core().device_api.can_share("OPENCL", "host")
    assert not core().device_api.can_share("OPENCL", "opencl:7")


@pytest.mark.usefixtures("apart")
def test_runners_take_and_make_device_tensors():
    model, feeds = residual_network()
    runner = compiled(model).device_model.create_runner()
    wanted = expected(model, feeds)[0]
    first = runner.run([device_tensor(feeds["x"])])[0]
    assert isinstance(first, OpenClTensor)
    np.testing.assert_allclose(first.numpy(), wanted, rtol=1e-4, atol=1e-5)
    second = runner.run([HostTensor(feeds["x"])])[0]
    np.testing.assert_allclose(second.numpy(), wanted, rtol=1e-4, atol=1e-5)
    other = floats(1, 8, 10, 12, seed=9)
    third = runner.run([device_tensor(other)])[0]
    np.testing.assert_allclose(
        third.numpy(), expected(model, {"x": other})[0], rtol=1e-4, atol=1e-5
    )
    runner.close()


@pytest.mark.usefixtures("apart")
def test_results_go_to_given_tensors():
    model, feeds = residual_network()
    runner = compiled(model).device_model.create_runner()
    wanted = expected(model, feeds)
    for make in (HostTensor, device_tensor):
        targets = [make(np.zeros_like(array)) for array in wanted]
        found = runner.run([HostTensor(feeds["x"])], [targets[0], None])
        assert found[0] is targets[0]
        for mine, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-4, atol=1e-5)
    again = runner.run([HostTensor(feeds["x"])])
    assert again[0] is not targets[0]
    np.testing.assert_allclose(again[0].numpy(), wanted[0], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("apart")
def test_results_that_are_constants_go_to_given_tensors():
    nodes = [helper.make_node("Shape", ["x"], ["dims"]), helper.make_node("Neg", ["x"], ["y"])]
    model = build(nodes, {"x": floats(2, 3)}, ["dims", "y"])
    runner = compiled(model).device_model.create_runner()
    for make in (HostTensor, device_tensor):
        target = make(np.zeros(2, np.int64))
        runner.run([HostTensor(floats(2, 3))], [target, None])
        assert target.numpy().tolist() == [2, 3]


def test_profiles_name_every_operation():
    model, feeds = residual_network(blocks=2)
    request = compiled(model, PERF_COUNT="YES").create_infer_request()
    request.infer(feeds)
    infos = {info.node_type: info for info in reversed(request.profiling_info)}
    assert len(request.profiling_info) == 16
    assert infos["Conv"].status == "EXECUTED"
    assert "product_" in infos["Conv"].exec_type
    assert infos["Conv"].real_time_us > 0
    assert infos["Relu"].status == "OPTIMIZED_OUT"
    assert infos["Relu"].node_name in infos["Conv"].covers
    quiet = compiled(model).create_infer_request()
    quiet.infer(feeds)
    assert not quiet.profiling_info


@pytest.mark.usefixtures("apart")
def test_what_a_device_is():
    info = core().device_info("OPENCL")
    assert info.device == "OPENCL.0"
    assert info.kind in ("cpu", "gpu", "accelerator")
    assert info.memory == "opencl:0"
    assert info.memory_bytes > 0
    assert info.driver
    assert info.full_name
    assert core().device_info("OPENCL.0") == info


def test_ids_are_numbers_in_order():
    ids = OpenClPlugin().device_ids()
    assert list(ids) == [str(n) for n in range(len(ids))]


def test_a_device_that_does_not_exist():
    with pytest.raises(DeviceNotFoundError, match=r"no device 'OPENCL.99'; there are 'OPENCL.0'"):
        find_device("99")


def test_no_device_says_what_cures_it(monkeypatch):
    from partita.errors import DeviceUnavailableError

    monkeypatch.setattr(devices, "search_devices", lambda: ((), {"X": "platform 'X' fails (boom)"}))
    with pytest.raises(DeviceUnavailableError, match=r"platform 'X' fails \(boom\)") as caught:
        all_devices()
    assert CURE in str(caught.value)


def test_missing_pyopencl_says_what_cures_it(monkeypatch):
    import sys

    from partita.errors import DeviceUnavailableError

    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(DeviceUnavailableError, match="pyopencl cannot be imported") as caught:
        devices.search_devices.__wrapped__()
    assert CURE in str(caught.value)


def test_a_device_whose_memory_others_hold_says_so(monkeypatch):
    import pyopencl as cl

    from partita.errors import DeviceUnavailableError

    class Library:
        @staticmethod
        def clCreateContext(*_):  # OpenCL's name
            return None

    def full(_handles):
        raise cl.RuntimeError("Context failed: OUT_OF_HOST_MEMORY")

    first = all_devices()[0]
    monkeypatch.setattr(devices.installed_drivers, "opencl_library", Library)
    monkeypatch.setattr(cl, "Context", full)
    with pytest.raises(DeviceUnavailableError, match=r"OUT_OF_HOST_MEMORY\. Other programs may"):
        _ = devices.Device(0, first.handle, first.driver).context


def test_a_context_is_made_by_a_call_that_other_threads_do_not_wait_for(monkeypatch):
    """pyopencl's constructor keeps Python's lock while the driver opens the device."""
    import pyopencl as cl

    class Waiting:
        from_int_ptr = cl.Context.from_int_ptr

    first = all_devices()[0]
    monkeypatch.setattr(cl, "Context", Waiting)
    context = devices.Device(0, first.handle, first.driver).context
    assert [one.int_ptr for one in context.devices] == [first.handle.int_ptr]
    assert cl.Buffer(context, cl.mem_flags.READ_WRITE, 64).size == 64


def test_a_broken_platform_costs_only_itself(monkeypatch):
    import pyopencl as cl

    good = cl.get_platforms()

    class Broken:
        name = "Broken"
        version = good[0].version

        def get_devices(self):
            raise cl.LogicError("clGetDeviceIDs failed")

    monkeypatch.setattr(cl, "get_platforms", lambda: [Broken(), *good])
    found, failures = devices.search_devices.__wrapped__()
    assert [device.id for device in found] == OpenClPlugin().device_ids()
    assert "platform 'Broken' fails" in failures["OpenCL platform Broken"]


def test_a_platform_of_no_driver_that_was_tried_is_left_alone(monkeypatch):
    import pyopencl as cl

    good = cl.get_platforms()

    class Stranger:
        name = "Stranger"
        version = "OpenCL 1.2 of another program"

        def get_devices(self):
            raise AssertionError("its driver may do anything")

    monkeypatch.setattr(cl, "get_platforms", lambda: [*good, Stranger()])
    monkeypatch.setattr(devices.installed_drivers, "platforms", lambda _: cl.get_platforms())
    found, failures = devices.search_devices.__wrapped__()
    assert [device.id for device in found] == OpenClPlugin().device_ids()
    assert "has passed no trial" in failures["OpenCL platform Stranger"]


def test_threads_that_look_for_devices_at_once_find_the_same():
    assert devices.search_devices.__code__ is made_once(len).__code__


def test_a_driver_that_is_gone_since_its_trial_is_told_of(monkeypatch, caplog):
    """Its file was truncated, say, while another driver was loaded: a loader says nothing."""
    gone = Tried(
        Driver("gone.icd", "/opt/gone.so", "/etc/gone.icd"),
        Verdict(facts={"versions": ["OpenCL 3.0 gone"]}),
    )
    tried = driver_trial.tried()
    monkeypatch.setattr(driver_trial, "tried", lambda: (*tried, gone))
    found, failures = devices.search_devices.__wrapped__()
    assert [device.id for device in found] == OpenClPlugin().device_ids()
    assert "lists no platform in this process" in failures["OpenCL driver gone.icd"]
    assert "OpenCL driver 'gone.icd' is missing" in caplog.text


@pytest.mark.parametrize(
    ("hints", "requests"),
    [
        ({}, 6),
        ({"PERFORMANCE_HINT": "THROUGHPUT"}, 6),
        ({"PERFORMANCE_HINT": "LATENCY", "EXECUTION_MODE_HINT": "ACCURACY"}, 1),
        ({"PERFORMANCE_HINT": "THROUGHPUT", "PERFORMANCE_HINT_NUM_REQUESTS": 2}, 2),
        ({"PERFORMANCE_HINT_NUM_REQUESTS": 9}, 6),
    ],
)
def test_hints_say_how_many_requests_are_recommended(hints, requests):
    model, _ = single("Neg", [floats(3)])
    found = compiled(model, **hints).get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    assert found == (1 if find_device("").limits.is_cpu else requests)
    assert OpenClProperties(**hints).recommended_requests(6) == requests


def test_unknown_properties_are_refused():
    model, _ = single("Neg", [floats(3)])
    with pytest.raises(PropertyError, match="TILING"):
        compiled(model, TILING="WILD")


def limits(**changes):
    from dataclasses import replace

    return replace(find_device("").limits, **changes)


def test_a_tensor_that_is_too_large_names_the_sizes():
    device = find_device("")
    pool = BufferPool(device.context, limits(allocation_bytes=1 << 20), "OPENCL.0")
    with pytest.raises(DeviceMemoryError, match=r"tensor of 2.0 MiB.*largest buffer is 1.0 MiB"):
        pool.allocate(2 << 20)


def test_a_model_that_is_too_large_does_not_compile(monkeypatch):
    monkeypatch.setattr(find_device(""), "limits", limits(allocation_bytes=1 << 16))
    nodes = [helper.make_node("Softmax", ["x"], ["a"]), helper.make_node("Softmax", ["a"], ["y"])]
    model = build(nodes, {"x": floats(200, 200)}, ["y"])
    with pytest.raises(CompileError, match=r"is too large.*its largest buffer has 65536"):
        compiled(model)


def test_buffers_are_used_again():
    device = find_device("")
    pool = BufferPool(device.context, device.limits, "OPENCL.0")
    first = pool.take(100_000)
    pool.give(first)
    assert pool.take(90_000) is first
    assert pool.take(90_000) is not first


def test_tensors_that_live_at_the_same_time_never_share_a_slot():
    model, _ = residual_network(blocks=6)
    plan = next(iter(compiled(model).device_model.plans.values()))
    lives = {}
    for number, step in enumerate(plan.steps):
        for arg in step.args:
            if isinstance(arg, Operand) and arg.root in plan.slots:
                lives.setdefault(arg.root, [number, number])[1] = number
    assert len(set(plan.slots.values())) == len(plan.sizes)
    for one, two in itertools.combinations(lives, 2):
        if plan.slots[one] == plan.slots[two]:
            assert lives[one][1] < lives[two][0] or lives[two][1] < lives[one][0]
    for operand, slot in plan.slots.items():
        assert operand.nbytes <= plan.sizes[slot]


def test_tuning_stays_within_the_device():
    small = limits(group_items=64, item_sizes=(64, 8, 8), local_bytes=1 << 10, is_cpu=False)
    tuning = Tuning.of(small)
    assert not tuning.local_tiles
    assert tuning.row_items <= 64
    for sizes in (tuning.flat(1000), tuning.grid(7, 100, 3), tuning.grid(1000, 1, 1)):
        for total, local, most in zip(*sizes, small.item_sizes, strict=False):
            assert total % local == 0
            assert local <= most
        assert np.prod(sizes[1]) <= 64


def fresh_cache():
    device = find_device("")
    return ProgramCache(device.context, device.handle, device.identity)


KEY = ProgramKey("lrn.cl")


def test_programs_are_kept_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    fresh_cache().get([KEY])
    files = list((tmp_path / "opencl").iterdir())
    assert len(files) == 1
    monkeypatch.setattr(ProgramCache, "build", None)  # a second build would fail
    assert fresh_cache().get([KEY])[KEY] is not None


def test_programs_are_kept_apart_by_what_pocl_builds_them_with(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    for flags in ("-DONE", "-DANOTHER", "-DONE"):
        monkeypatch.setenv("POCL_EXTRA_BUILD_FLAGS", flags)
        fresh_cache().get([KEY])
    assert len(list((tmp_path / "opencl").iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "changed", "foreign", "of another program"])
def test_damaged_programs_are_built_again(monkeypatch, tmp_path, caplog, damage):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    cache = fresh_cache()
    cache.get([KEY])
    (file,) = (tmp_path / "opencl").iterdir()
    good, bad = file.read_bytes(), b"something else"
    if damage == "of another program":
        cache.get([ProgramKey("move.cl", (("T", "char"), ("DIMS", 2)))])
        (bad,) = (one.read_bytes() for one in (tmp_path / "opencl").iterdir() if one != file)
    file.write_bytes({"cut": good[:100], "changed": good[:-1] + b"?"}.get(damage, bad))
    assert fresh_cache().get([KEY])[KEY] is not None
    assert f"'{file}' is damaged; it is built again" in caplog.text
    assert len(file.read_bytes()) > 100


def test_the_folder_of_programs_stays_small(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(program_cache, "FILES", 4)
    cache = fresh_cache()
    kinds = ("uint", "uchar", "ushort", "ulong", "int", "char")
    cache.get([KEY])
    verdicts = tmp_path / "opencl" / "verdicts"  # as old as any file, and no program
    verdicts.mkdir()
    os.utime(verdicts, (0, 0))
    for kind in kinds:
        cache.get([ProgramKey("move.cl", (("T", kind), ("DIMS", 2)))])
    assert len(list((tmp_path / "opencl").glob("*.clbin"))) <= 4
    assert verdicts.is_dir()


def test_programs_in_memory_are_bounded(monkeypatch):
    monkeypatch.setattr(program_cache, "PROGRAMS", 2)
    cache = fresh_cache()
    keys = [ProgramKey("move.cl", (("T", k), ("DIMS", 2))) for k in ("uint", "uchar", "ushort")]
    assert set(cache.get(keys)) == set(keys)
    assert set(cache.get(keys[:2])) == set(keys[:2])
    assert len(cache.programs) == 2


def test_programs_go_with_their_last_plan_and_are_shared_until_then(monkeypatch):
    monkeypatch.setattr(program_cache, "PROGRAMS", 1)
    cache = fresh_cache()
    used, unused, last = (
        ProgramKey("move.cl", (("T", k), ("DIMS", 2))) for k in ("uint", "uchar", "ushort")
    )
    plan = cache.get([used])
    gone = weakref.ref(cache.get([unused])[unused])
    cache.get([last])
    assert gone() is None
    assert cache.get([used])[used] is plan[used]


def test_the_disk_cache_can_be_turned_off(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTITA_CACHE_DIR", "")
    assert program_cache.program_folder() is None
    assert fresh_cache().get([KEY])[KEY] is not None


def test_a_program_that_does_not_build_shows_the_log(monkeypatch):
    monkeypatch.setenv("PARTITA_CACHE_DIR", "")
    with pytest.raises(CompileError, match=r"cannot build 'chain.cl'"):
        fresh_cache().get([ProgramKey("chain.cl", generated="this is no C")])


def test_several_programs_are_built_at_once(monkeypatch):
    monkeypatch.setenv("PARTITA_CACHE_DIR", "")
    keys = [ProgramKey("move.cl", (("T", kind), ("DIMS", 2))) for kind in ("uint", "uchar")]
    assert set(fresh_cache().get(keys)) == set(keys)


def test_exported_models_come_back():
    model, feeds = residual_network()
    blob = compiled(model, FUSE_ELEMENTWISE=False).export_model()
    restored = core().import_model(blob, "OPENCL")
    assert restored.get_property("FUSE_ELEMENTWISE") is False
    np.testing.assert_allclose(
        restored.infer_new_request(feeds)[0], expected(model, feeds)[0], rtol=1e-4, atol=1e-5
    )


def test_finding_the_plugin_loads_no_driver():
    import subprocess
    import sys

    code = (
        "import sys, partita; partita.Core(); "
        "sys.exit(any(name in sys.modules for name in ('pyopencl', 'onnx', 'onnx_ir')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_driver_that_writes_a_log_raises_no_warning(monkeypatch, recwarn):
    import pyopencl as cl

    monkeypatch.setenv("PARTITA_CACHE_DIR", "")
    monkeypatch.setattr(cl._cl._Program, "_get_build_logs", lambda _: [("device", "chatter")])
    assert fresh_cache().get([KEY])[KEY] is not None
    assert not recwarn.list


@pytest.fixture(params=["function", "handles", "none"])
def loops(request, monkeypatch):
    """The native loops, which cannot be had for a reason, or can."""
    find = driver_loops.driver_loops
    if request.param == "function":
        monkeypatch.setattr(driver_loops, "opencl_library", object)
        by_driver = driver_loops.kernel_functions.__wrapped__
        monkeypatch.setattr(driver_loops, "kernel_functions", by_driver)
        find = find.__wrapped__
    elif request.param == "handles":
        monkeypatch.setattr(driver_loops.struct, "calcsize", lambda _: 4)
        find = find.__wrapped__
    for module in (launch_batch, shared_kernels):
        monkeypatch.setattr(module, "driver_loops", find)
    return find()


def test_kernels_are_enqueued_and_bound_with_and_without_native_loops(loops, request):
    assert (loops is None) == ("none" not in request.node.name)
    model, feeds = residual_network()
    check(model, feeds)


def test_loops_keep_their_machine_code():
    """Threads that ask for the first loops at a time get some each, of which one is kept."""
    kept = [driver_loops.driver_loops.__wrapped__().set_all for _ in range(4)]
    gc.collect()
    assert [set_all(0, 0) for set_all in kept] == [0] * 4


def test_arguments_that_the_driver_refuses_are_a_typed_error(loops):
    import pyopencl as cl

    device = find_device("")
    source = "__kernel void add(__global float* x, float y) { x[get_global_id(0)] += y; }"
    program = program_cache.built_program(
        cl._cl._Program(device.context, source), "", device.handle
    )
    array = np.zeros(4, np.float32)
    buffers = [device.pool.allocate(array.nbytes, array) for _ in range(3)]
    kernels = [driver_loops.DriverKernel(program, "add") for _ in range(2)]
    queue = cl.CommandQueue(device.context, device.handle)
    values = [[buffers[0], np.float32(1).tobytes()], [buffers[1], np.float32(2).tobytes()]]
    arguments = shared_kernels.KernelArguments(kernels, values)
    for buffer in buffers[1:]:
        arguments.change(1, 0, buffer)
        arguments.set_all()
        for kernel in kernels:
            launch_batch.enqueued(queue, (kernel, (4,), (4,)))
    results = []
    for buffer in buffers:
        cl.enqueue_copy(queue, array, buffer)
        results.append(array.tolist())
    assert results == [[2.0] * 4, [2.0] * 4, [2.0] * 4]
    values = [[buffers[0], np.float32(1).tobytes()], [buffers[1], np.float64(2).tobytes()]]
    with pytest.raises(cl.Error, match="INVALID_ARG_SIZE"):
        shared_kernels.KernelArguments(kernels, values).set_all()


def test_a_run_makes_no_kernels_of_pyopencls(monkeypatch):
    import pyopencl as cl

    model, feeds = residual_network()
    request = partita.Core().compile_model(model, "OPENCL").create_infer_request()

    def refuse(*_):
        raise AssertionError("pyopencl makes a kernel")

    with monkeypatch.context() as held:
        held.setattr(cl, "Kernel", refuse)
        first = request.infer(feeds)[0].copy()
        moved = {name: array.copy() for name, array in feeds.items()}
        np.testing.assert_array_equal(request.infer(moved)[0], first)
    np.testing.assert_allclose(first, expected(model, feeds)[0], rtol=1e-4, atol=1e-5)


def test_a_kernel_that_a_program_lacks_is_a_typed_error(loops):
    import pyopencl as cl

    device = find_device("")
    source = "__kernel void there(__global float* x) { x[0] = 1; }"
    program = program_cache.built_program(
        cl._cl._Program(device.context, source), "", device.handle
    )
    assert driver_loops.DriverKernel(program, "there").opencl.function_name == "there"
    with pytest.raises(cl.Error, match="INVALID_KERNEL_NAME"):
        driver_loops.DriverKernel(program, "elsewhere")


def test_kernels_are_released(monkeypatch):
    import pyopencl as cl

    device = find_device("")
    source = "__kernel void there(__global float* x) { x[0] = 1; }"
    program = program_cache.built_program(
        cl._cl._Program(device.context, source), "", device.handle
    )
    create, release = driver_loops.kernel_functions()
    released = []

    def note(handle):
        released.append((handle, release(handle)))

    monkeypatch.setattr(driver_loops, "kernel_functions", lambda: (create, note))
    kernel = driver_loops.DriverKernel(program, "there")
    handle, outlives = kernel.int_ptr, kernel.opencl
    del kernel
    assert released == [(handle, 0)]
    assert outlives.reference_count == 1


def test_a_kernel_that_the_driver_refuses_is_a_typed_error():
    import pyopencl as cl

    device = find_device("")
    source = "__kernel void half_of(__global float* x) { x[get_global_id(0)] *= 0.5f; }"
    program = program_cache.built_program(
        cl._cl._Program(device.context, source), "", device.handle
    )
    array = np.ones(8, np.float32)
    buffer = device.pool.allocate(array.nbytes, array)
    good, bad = (driver_loops.DriverKernel(program, "half_of") for _ in range(2))
    good.opencl.set_arg(0, buffer)
    queue = cl.CommandQueue(device.context, device.handle)
    calls = [(good, (8,), (4,))] * 3
    launch_batch.KernelSequence(calls).enqueue(queue)
    cl.enqueue_copy(queue, array, buffer)
    assert (array == 0.125).all()
    with pytest.raises(cl.Error, match="INVALID_KERNEL_ARGS"):
        launch_batch.KernelSequence([*calls, (bad, (8,), (4,)), *calls]).enqueue(queue)
    queue.finish()


def test_a_message_names_the_operator_that_the_model_has():
    """A Gemm and its Relu are one product by the time that shapes turn out not to fit."""
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, K] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
            [mine] g = Gemm(x, w)
            [act] y = Relu(g)
        }"""
    )
    compiled = partita.Core().compile_model(graph, "OPENCL")
    with pytest.raises(InferError, match=r"Operation 'mine' \(Gemm\) cannot multiply"):
        compiled(np.ones((2, 5), np.float32))


def test_what_is_told_of_devices_that_fail_is_the_callers():
    before = dict(OpenClPlugin().unavailable_devices())
    OpenClPlugin().unavailable_devices()["broken"] = "by a caller"
    assert OpenClPlugin().unavailable_devices() == before
