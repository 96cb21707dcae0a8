"""Shapes that vary on OPENCL: plans are kept by bytes, and all work in the same buffers."""

import numpy as np
import pyopencl
import pytest
from onnx import numpy_helper, parser

import partita
from partita.errors import DeviceMemoryError
from partita.lowering import specialize
from partita_opencl.device.device import Device, find_device
from partita_opencl.drivers import program_cache
from partita_opencl.runtime import device_model, runner
from partita_opencl.runtime.binding import request_buffers, tensor_binding

CHAIN = """<ir_version: 10, opset_import: ["" : 18]>
g (float[N, 8] x) => (float[N, 8] y) {
    a = MatMul(x, w)
    b = Relu(a)
    c = MatMul(b, w)
    y = Softmax(c)
}"""


def request_and_judge(**config):
    model = parser.parse_model(CHAIN)
    w = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))

    def wanted(x):
        c = np.maximum(x @ w, 0) @ w
        e = np.exp(c - c.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    compiled = partita.Core().compile_model(model, "OPENCL", config)
    return compiled.create_infer_request(), wanted


def counted(monkeypatch, module, name):
    made = []
    real = getattr(module, name)
    monkeypatch.setattr(
        module, name, lambda *args, **how: made.append(args or how) or real(*args, **how)
    )
    return made


def test_shapes_seen_before_are_neither_planned_nor_bound_again_when_buffers_grow(monkeypatch):
    plans = counted(monkeypatch, device_model.Plan, "__init__")
    bound = counted(monkeypatch, runner, "BoundPlan")
    request, wanted = request_and_judge()
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((n, 8)).astype(np.float32) for n in (*range(1, 50), 10_000)]
    for _ in range(3):
        for x in arrays:
            np.testing.assert_allclose(request.infer([x])["y"], wanted(x), rtol=1e-3, atol=1e-4)
    assert len(plans) == len(bound) == 50


def test_inputs_come_from_the_host_and_the_device_in_turns(monkeypatch):
    """Kernels of a shape are told where its tensors are when they are elsewhere, and only then."""
    monkeypatch.setitem(vars(find_device("")), "shares_host", False)
    bound = counted(monkeypatch, tensor_binding.TensorBinding, "_bind_outputs")
    request, wanted = request_and_judge()
    rng = np.random.default_rng(2)
    for on_device in (False, False, False, True, False, True, True, False):
        for n in (5, 9):
            x = rng.standard_normal((n, 8)).astype(np.float32)
            tensor = partita.HostTensor(x)
            if on_device:
                tensor = partita.Core().device_api.transfer_to("OPENCL", tensor)
            (y,) = request.runner.run([tensor])
            np.testing.assert_allclose(y.numpy(), wanted(x), rtol=1e-3, atol=1e-4)
    assert len(bound) < 2 * 8


@pytest.mark.parametrize("most", [0, 40_000])
def test_what_is_kept_of_shapes_has_a_bound_and_buffers_grow(most):
    request, wanted = request_and_judge(SHAPE_CACHE_BYTES=most)
    rng = np.random.default_rng(1)
    for n in [*range(1, 8000, 800), 1, 7201, 2]:
        x = rng.standard_normal((n, 8)).astype(np.float32)
        np.testing.assert_allclose(request.infer([x])["y"], wanted(x), rtol=1e-3, atol=1e-4)
        kept = request.runner.bound_plans
        assert kept.nbytes <= most or len(kept) == 1
        buffers = {id(buffer): buffer.size for bound in kept.values() for buffer in bound.slots}
        used = sum(buffer.size for buffer in kept.values()[-1].slots)  # by all new shapes
        assert sum(buffers.values()) - used <= most


def test_lack_of_memory_takes_the_buffers_of_shapes_seen_before(monkeypatch):
    request, wanted = request_and_judge()
    rng = np.random.default_rng(1)
    grown, refused = runner.grown, []

    def failing(take, nbytes, before, most):
        if before and not refused and len(request.runner.bound_plans) == 2:
            refused.append(nbytes)
            raise DeviceMemoryError("no room")
        return grown(take, nbytes, before, most)

    monkeypatch.setattr(runner, "grown", failing)
    bound = counted(monkeypatch, runner, "BoundPlan")
    for n in (2, 5_000, 30_000, 5_000, 2):
        x = rng.standard_normal((n, 8)).astype(np.float32)
        np.testing.assert_allclose(request.infer([x])["y"], wanted(x), rtol=1e-3, atol=1e-4)
    assert len(refused) == 1
    assert len(bound) == 4, "the first shape is bound again"


def test_tensors_of_all_shapes_share_a_requests_buffers(monkeypatch):
    """Of inputs that are not aligned, and of outputs, none is kept for its shape alone."""
    made = counted(monkeypatch, request_buffers.RequestBuffers, "_new")
    request, wanted = request_and_judge()
    rng = np.random.default_rng(5)
    flat = rng.standard_normal(4001 * 8 + 1).astype(np.float32)
    for n in [4000, *rng.integers(1, 4000, 30)]:
        x = flat[1 : 1 + 8 * n].reshape(n, 8)
        np.testing.assert_allclose(request.infer([x])["y"], wanted(x), rtol=1e-3, atol=1e-4)
    assert len(made) == 2, "one for the input, one for the output"


def test_a_result_that_the_next_run_reads_is_not_written_over_meanwhile(monkeypatch):
    monkeypatch.setitem(vars(find_device("")), "shares_host", False)
    request, wanted = request_and_judge()
    x = np.random.default_rng(7).standard_normal((40, 8)).astype(np.float32)
    for n in (20, 40, 7):
        (y,), due = request.runner.run([partita.HostTensor(x[:n])]), wanted(x[:n])
        for _ in range(3):
            np.testing.assert_allclose(y.numpy(), due, rtol=1e-3, atol=1e-4)
            (y,), due = request.runner.run([y]), wanted(due)


def test_a_new_size_builds_no_program_makes_no_kernel_and_is_no_new_class(monkeypatch):
    monkeypatch.setattr(Device, "cuda", None)  # whose first plans are OpenCL's, if it has them
    request, wanted = request_and_judge()
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((n, 8)).astype(np.float32) for n in range(64, 30, -1)]
    for x in arrays[:3]:
        request.infer([x])
    built = counted(monkeypatch, program_cache.ProgramCache, "build")
    kernels = counted(monkeypatch, pyopencl, "Kernel")
    learned = counted(monkeypatch, specialize, "learn")
    for x in arrays:
        np.testing.assert_allclose(request.infer([x])["y"], wanted(x), rtol=1e-3, atol=1e-4)
    assert built == kernels == learned == []


def test_what_varies_is_learned_once(monkeypatch):
    learned = counted(monkeypatch, specialize, "learn")
    request, wanted = request_and_judge()
    for n in range(2, 20):
        x = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)
        np.testing.assert_allclose(request.infer([x])["y"], wanted(x), rtol=1e-3, atol=1e-4)
    assert len(learned) == 1


@pytest.mark.parametrize("shared", [False, True])
def test_requests_and_sizes_by_turns_read_and_write_their_own_tensors(shared):
    first, wanted = request_and_judge()
    second = first if shared else request_and_judge()[0]
    rng = np.random.default_rng(3)
    for turn in range(30):
        request = (first, second)[turn % 2]
        n = int(rng.choice([3, 7, 40]))
        x = rng.standard_normal((n, 8)).astype(np.float32)
        y = partita.Tensor(np.full((n, 8), np.nan, np.float32))
        request.set_output_tensor(0, y)
        request.infer([x])
        np.testing.assert_allclose(y.numpy(), wanted(x), rtol=1e-3, atol=1e-4)


def test_results_of_shapes_seen_before_come_to_host_memory_with_the_kernels(monkeypatch):
    monkeypatch.setitem(vars(find_device("")), "shares_host", False)
    request, wanted = request_and_judge()
    targets = []
    run = request.runner.run

    def noted(inputs, outputs=None):
        targets.append(outputs)
        return run(inputs, outputs)

    monkeypatch.setattr(request.runner, "run", noted)
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((n, 8)).astype(np.float32) for n in (3, 9, 5)]
    kept = [(x, request.infer([x])["y"]) for x in arrays * 3]
    for x, y in kept:
        np.testing.assert_allclose(y, wanted(x), rtol=1e-3, atol=1e-4)
    assert targets[:3] == [None] * 3
    assert [one[0].shape for one in targets[3:]] == [x.shape for x in arrays] * 2

    x = arrays[0]
    for other in arrays[1:]:  # results are read where the next run would write them
        y = request.infer([x], share_outputs=True)["y"]
        judged = wanted(wanted(x))
        np.testing.assert_allclose(request.infer([y])["y"], judged, rtol=1e-3, atol=1e-4)
        x = other
