"""Kernels are tried by another process, by family, before a device claims their operators."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from partita import ReasonCode
from partita.devices.entry_points import DISABLE_VARIABLE, plugin_entries
from partita.errors import (
    CompileError,
    DeviceMemoryError,
    DeviceUnavailableError,
    InferError,
    PluginError,
    UnsupportedOpError,
)
from partita.storage import cache_folder
from partita_opencl.device.device import find_device
from partita_opencl.drivers import trial_process, verdicts
from partita_opencl.emitters.operator_table import TABLE
from partita_opencl.launches.work_sizes import Form
from partita_opencl.properties import Precision
from partita_opencl.runtime import device_model
from partita_opencl.trials import (
    kernel_checks,
    kernel_trial,
    matrix_unit_checks,
    own_device,
    standing_processes,
)
from partita_opencl.trials.kernel_trial import Fitness, Mode
from partita_opencl.trials.matrix_unit_checks import Units

from ..comparison import check_single, compiled, core, floats, single
from .broken_drivers import ABORT, broken_pocl, hanging_include, needs_pocl_of_pypi

REGISTERS = Mode(local_tiles=False, precision=Precision.F32)


@pytest.fixture
def untried(monkeypatch, tmp_path):
    """No verdict is known, and a folder to keep some in; no process waits."""
    monkeypatch.setenv(cache_folder.CACHE_VARIABLE, str(tmp_path / "cache"))
    kernel_trial.forget()
    standing_processes.end_all()
    yield
    kernel_trial.forget()
    standing_processes.end_all()


BROKEN_HEADER = """
#if defined(KX)  // depthwise convolutions
{abort}
#endif
#if defined(ITEMS) && defined(ROWS)  // softmax
#define exp exp2
#endif
#if defined(PICK)  // resizing by picking elements
{hang}
#endif
#if defined(PANELS) && !defined(PLAIN)  // products, unless a * b + c stands for fma
{abort}
#endif
"""

PROGRAM = """
import json, sys
import numpy as np
import onnx
import partita
from partita_opencl.trials import standing_processes

standing_processes.SECONDS = 15.0
if sys.argv[2:]:  # what was tried must not be tried again
    standing_processes.TrialProcess = None
core = partita.Core()
model = core.read_model(sys.argv[1])
query = core.query_model(model, "OPENCL")
compiled = core.compile_model(model, "HETERO:OPENCL,CPU")
feeds = {p.name: np.linspace(-1, 1, 6 * 9 * 10, dtype="f4").reshape(1, 6, 9, 10)
         for p in compiled.inputs}
results = compiled.create_infer_request().infer(feeds)
print(json.dumps({
    "reasons": {name: str(reason) for name, reason in query.reasons.items()},
    "taken": sorted(query),
    "results": {name: np.array(results[name]).tolist() for name in ("d", "s", "m", "r")},
}))
"""


def broken_network():
    """A depthwise convolution, a softmax, a product and a resizing of the same input."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((6, 1, 3, 3)),
        "v": rng.standard_normal((10, 4)),
        "scales": np.array([1.0, 1.0, 2.0, 2.0]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["d"], "depthwise", group=6),
        helper.make_node("Softmax", ["x"], ["s"], "softmax"),
        helper.make_node("MatMul", ["x", "v"], ["m"], "product"),
        helper.make_node("Resize", ["x", "", "scales"], ["r"], "resizing"),
        helper.make_node("Relu", ["x"], ["e"], "relu"),
    ]
    shape = (1, 6, 9, 10)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_empty_tensor_value_info(name) for name in "dsmre"],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.timeout(900)  # a dozen processes, one of which hangs until it is given up
@needs_pocl_of_pypi
def test_what_a_driver_fails_at_costs_its_family_alone(tmp_path):
    import onnx

    header = BROKEN_HEADER.format(abort=ABORT, hang=hanging_include(tmp_path))
    driver = broken_pocl(tmp_path, header)
    file = tmp_path / "model.onnx"
    onnx.save(broken_network(), file)
    environment = {
        **os.environ,
        "OCL_ICD_VENDORS": driver.origin,
        "OCL_ICD_FILENAMES": "",
        "PARTITA_CACHE_DIR": str(tmp_path / "cache"),
        "POCL_CACHE_DIR": str(tmp_path / "pocl"),
    }

    def run(*more):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(file), *more],
            env=environment,
            capture_output=True,
            text=True,
            timeout=420,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    found = run()
    reasons = found["reasons"]
    assert found["taken"] == ["product", "relu"]
    assert all(reason.startswith("DRIVER_FAULT: kernels of family") for reason in reasons.values())
    assert "ended by SIGABRT (LLVM ERROR" in reasons["depthwise"]
    assert "results are" in reasons["softmax"]
    assert "it said nothing for 15 s" in reasons["resizing"]
    feeds = {"x": np.linspace(-1, 1, 540, dtype="f4").reshape(1, 6, 9, 10)}
    wanted = core().compile_model(core().read_model(str(file)), "CPU").infer_new_request(feeds)
    for name, values in found["results"].items():
        np.testing.assert_allclose(values, wanted[name], rtol=1e-4, atol=1e-5)
    assert run("again") == found  # by the verdicts on disk


@pytest.mark.usefixtures("untried")
def test_families_that_pass_are_tried_once(monkeypatch):
    device = find_device("")
    found = kernel_trial.fitness(device, REGISTERS, ["lrn", "argument"])
    assert found == {"lrn": Fitness(), "argument": Fitness()}
    kernel_trial.forget()
    monkeypatch.setattr(standing_processes, "lend", None)  # a second trial would fail
    assert kernel_trial.fitness(device, REGISTERS, ["lrn", "argument"]) == found


class Scripted:
    """A process that tells what a test says: a fault per family or part, or how it dies at one."""

    hangs = False
    is_transient = False
    advice = ""

    def __init__(self, module, request, seconds, *, lasting, doing):
        assert module == standing_processes.WORKER
        assert lasting
        self.family = self.part = None
        self.failed = False
        self.fault = ""

    def ask(self, request, doing=""):
        if request:
            self.family, _, self.part = request["task"]
            self.runs.append((self, self.family))

    def close(self):
        self.family = None

    def answers(self):
        if self.family is None:
            yield {"ready": True}
            return
        what, self.family = self.script[self.family], None
        if not isinstance(what, str):
            what = what[self.part]
        if what == "dies":
            self.fault = "the process that tried it ended by SIGSEGV"
            return
        if what == "fails after others" and not self.failed:
            what = ""
        self.failed = self.failed or bool(what)
        yield {"fault": what}


@pytest.fixture
def scripted(monkeypatch, untried):
    """Trials by a script."""

    def make(**script):
        monkeypatch.setattr(Scripted, "runs", [], raising=False)
        monkeypatch.setattr(Scripted, "script", script, raising=False)
        monkeypatch.setattr(standing_processes, "TrialProcess", Scripted)
        device = find_device("")
        monkeypatch.setattr(device, "limits", replace(device.limits, is_cpu=True))
        return device

    return make


@pytest.fixture
def graphics_card(monkeypatch):
    """Has a device be tried as a graphics card is."""

    def make(device):
        monkeypatch.setattr(device, "limits", replace(device.limits, is_cpu=False))
        return device

    return make


def test_a_graphics_card_tries_parts_of_families(scripted, graphics_card):
    families = "pooling", "softmax"
    device = graphics_card(scripted(pooling=["", "", ""], softmax=["", "wrong"]))
    found = kernel_trial.fitness(device, REGISTERS, families)
    assert found["pooling"] == Fitness()
    assert found["softmax"].reason.startswith("wrong")
    assert [family for _, family in Scripted.runs].count("pooling") == 3
    kernel_trial.forget()
    Scripted.runs.clear()
    assert kernel_trial.fitness(device, REGISTERS, families) == found
    assert not Scripted.runs  # each part's verdict is kept


@pytest.mark.usefixtures("untried")
def test_parts_of_families_are_right_on_a_device(graphics_card):
    device = graphics_card(find_device(""))
    families = "reduction", "elementwise"
    assert kernel_trial.fitness(device, REGISTERS, families) == dict.fromkeys(families, Fitness())


@pytest.mark.parametrize("family", kernel_checks.CHECKS)
def test_parts_of_a_family_are_all_of_it(family):
    whole = kernel_checks.sample(family)
    told = {}
    for number in range(kernel_checks.parts(family)):
        part = kernel_checks.sample(family, number)
        made = {*part.feeds, *part.weights, *(y for node in part.nodes for y in node.output)}
        assert {x for node in part.nodes for x in node.input if x} <= made
        assert {*part.feeds, *part.weights} <= {x for node in part.nodes for x in node.input}
        told |= part.expected
    assert told.keys() == whole.expected.keys()
    for name, wanted in whole.expected.items():
        np.testing.assert_array_equal(told[name], wanted)


def test_after_a_crash_another_process_goes_on(scripted):
    device = scripted(lrn="dies", argument="", softmax="")
    found = kernel_trial.fitness(device, REGISTERS, ["lrn", "argument", "softmax"])
    assert "SIGSEGV" in found["lrn"].reason
    assert found["argument"] == found["softmax"] == Fitness()
    first, second, third = (process for process, _ in Scripted.runs[:3])
    assert first is not second is third


def test_what_would_fail_after_another_failure_is_tried_by_another_process(scripted):
    device = scripted(lrn="no such kernel", argument="fails after others", softmax="")
    found = kernel_trial.fitness(device, REGISTERS, ["lrn", "argument", "softmax"])
    assert "no such kernel" in found["lrn"].reason
    assert found["argument"] == found["softmax"] == Fitness()
    assert [process for process, _ in Scripted.runs].count(Scripted.runs[0][0]) == 1


def test_many_trials_share_processes_that_are_opened_ahead(scripted, monkeypatch):
    families = "lrn", "argument", "softmax", "pooling", "movement"
    device = scripted(**dict.fromkeys(families, ""))
    monkeypatch.setattr(standing_processes, "best_count", lambda device, trials: 3)
    found = kernel_trial.fitness(device, REGISTERS, families)
    assert found == dict.fromkeys(families, Fitness())
    assert len({process for process, _ in Scripted.runs}) <= 3
    assert len(Scripted.runs) == len(families)
    lent = [standing_processes.lend(device) for _ in range(3)]  # those of the trials
    assert {process for process, _ in Scripted.runs} <= set(lent)


def test_batches_of_trials_at_the_same_time_have_the_processes_of_one(scripted, monkeypatch):
    families = "lrn", "argument", "softmax", "pooling"
    device = scripted(**dict.fromkeys(families, ""))
    parts = matrix_unit_checks.parts(Units.MATRIX, device.limits)
    Scripted.script[Units.MATRIX] = [""] * parts
    monkeypatch.setattr(standing_processes, "best_count", lambda device, trials: 3)
    working, most, lock = set(), [], threading.Lock()
    answers = Scripted.answers

    def counted(process):
        is_trial = process.family is not None
        if is_trial:
            with lock:
                working.add(process)
                most.append(len(working))
            time.sleep(0.01)
        found = list(answers(process))
        with lock:
            working.discard(process)
        return iter(found)

    monkeypatch.setattr(Scripted, "answers", counted)
    with ThreadPoolExecutor(1) as pool:
        units = pool.submit(kernel_trial.objections, device, {Units.MATRIX: range(parts)})
        found = kernel_trial.fitness(device, REGISTERS, families)
    assert found == dict.fromkeys(families, Fitness())
    assert units.result() == {Units.MATRIX: ""}
    assert len(Scripted.runs) == len(families) + parts
    assert max(most) <= 3
    assert len({process for process, _ in Scripted.runs}) <= 3


def test_units_are_tried_beside_families(monkeypatch):
    both = threading.Barrier(2, timeout=60)

    def answered(answer):
        both.wait()
        return answer

    def no_objections(_, units):
        return answered(dict.fromkeys(units, ""))

    monkeypatch.setattr(device_model, "objections", no_objections)
    monkeypatch.setattr(device_model, "expanded_refusals", lambda *_: answered({}))
    model, feeds = single("Relu", [floats(2, 3)])
    result = compiled(model, INFERENCE_PRECISION_HINT="f16")(feeds)[0]
    np.testing.assert_allclose(result, np.maximum(next(iter(feeds.values())), 0), atol=1e-3)


def test_processes_opened_ahead_that_cannot_start_are_told_to_who_asks(scripted, monkeypatch):
    families = "lrn", "argument", "softmax", "pooling"
    device = scripted(**dict.fromkeys(families, ""))
    monkeypatch.setattr(standing_processes, "best_count", lambda device, trials: 2)

    def refuse(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr(standing_processes, "TrialProcess", refuse)
    found = kernel_trial.fitness(device, REGISTERS, families)
    assert all("no more processes" in fitness.reason for fitness in found.values())


def test_a_process_in_which_nothing_failed_tries_the_next_families(scripted):
    device = scripted(lrn="", argument="", softmax="wrong", pooling="")
    for family in ("lrn", "argument", "softmax", "pooling"):
        kernel_trial.fitness(device, REGISTERS, [family])
    first, second, third, fourth = (process for process, _ in Scripted.runs)
    assert first is second is third
    assert fourth is not third


@pytest.mark.usefixtures("untried")
def test_a_process_that_has_ended_meanwhile_is_replaced():
    device = find_device("")
    assert kernel_trial.fitness(device, REGISTERS, ["lrn"]) == {"lrn": Fitness()}
    process = standing_processes.lend(device)
    process.process.kill()
    process.process.wait()
    standing_processes.take_back(device, process)
    assert kernel_trial.fitness(device, REGISTERS, ["argument"]) == {"argument": Fitness()}
    other = standing_processes.lend(device)
    assert other is not process
    other.close()


def test_what_forked_leaves_the_processes_of_its_parent(scripted, monkeypatch):
    device = scripted(lrn="")
    process = standing_processes.lend(device)
    standing_processes.take_back(device, process)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    monkeypatch.setattr(process, "close", None, raising=False)  # may not be called
    other = standing_processes.lend(device)
    assert other is not process
    standing_processes.end_all()


def test_every_form_is_tried_before_a_family_that_has_some_is_given_up(scripted, monkeypatch):
    device = scripted(lrn="wrong", softmax="wrong")
    assert kernel_trial.fitness(device, REGISTERS, ["lrn"])["lrn"].reason.startswith("wrong")
    assert len(Scripted.runs) == len(Form)
    assert kernel_trial.fitness(device, REGISTERS, ["softmax"])["softmax"].reason
    assert len(Scripted.runs) == len(Form) + 1  # its kernels are the same in every form
    device = scripted(matmul="dies")
    monkeypatch.setattr(Scripted, "hangs", True)
    assert kernel_trial.fitness(device, REGISTERS, ["matmul"])["matmul"].reason
    assert len(Scripted.runs) == 1  # that it hangs is waited for once


def test_families_that_sum_by_fma_have_forms():
    """Of the kernel files that use fma, each belongs to a family with forms."""
    cl = Path(kernel_trial.__file__).parents[1] / "cl"
    using = {file.stem for file in cl.glob("*.cl") if "fma(" in file.read_text()}
    assert using == {
        *(
            "attention",
            "cache_attention",
            "cache_prompt",
            "conv_depthwise",
            "conv_transpose",
            "driver_trial",
            "lrn",
        ),
        *("normalize", "prelude", "recurrent", "roi_align"),
        *("block_product", "block_rows", "block_run", "block_tiles", "tile_sums", "window_last"),
        *("mixture_rows", "mixture_tiles", "product_lanes", "product_tile", "product_vector"),
    }


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"format": 1}', bytes(range(256))])
def test_damaged_verdicts_are_no_verdicts(scripted, damage):
    device = scripted(lrn="wrong")
    kernel_trial.fitness(device, REGISTERS, ["lrn"])
    for file in cache_folder.cache_folder(verdicts.KIND).iterdir():
        file.write_bytes(damage)
    kernel_trial.forget()
    scripted(lrn="")
    assert kernel_trial.fitness(device, REGISTERS, ["lrn"]) == {"lrn": Fitness()}


def test_without_a_process_nothing_is_used_and_nothing_kept(scripted, monkeypatch):
    device = scripted(lrn="")

    def refuse(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr(standing_processes, "TrialProcess", refuse)
    reason = kernel_trial.fitness(device, REGISTERS, ["lrn"])["lrn"].reason
    assert "no process can be started to try it (no more processes)" in reason
    assert not list(cache_folder.cache_folder(verdicts.KIND).iterdir())


def kept():
    """The verdicts on disk."""
    return list(cache_folder.cache_folder(verdicts.KIND).iterdir())


@pytest.mark.usefixtures("untried")
def test_trials_need_no_plugin_that_the_environment_finds(monkeypatch):
    device = find_device("")
    names = {entry.entry.name for entry in plugin_entries()}
    monkeypatch.setenv(DISABLE_VARIABLE, ",".join(names))
    assert kernel_trial.fitness(device, REGISTERS, ["lrn"]) == {"lrn": Fitness()}


@pytest.mark.usefixtures("untried")
def test_what_the_environment_lacks_is_no_verdict_on_a_driver(monkeypatch):
    device = find_device("")
    start = trial_process.START.replace("import sys\n", "import sys\nsys.modules['onnx'] = None\n")
    with monkeypatch.context() as patch:
        patch.setattr(trial_process, "START", start)
        reason = kernel_trial.fitness(device, REGISTERS, ["lrn"])["lrn"].reason
    assert reason.startswith("it could not be tried (ModuleNotFoundError: import of onnx halted")
    assert not kept()
    kernel_trial.forget()
    assert kernel_trial.fitness(device, REGISTERS, ["lrn"]) == {"lrn": Fitness()}


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        *((error, None) for error in (DeviceUnavailableError, DeviceMemoryError, PluginError)),
        (CompileError, RuntimeError("can't start new thread")),
        (InferError, OSError(errno.EMFILE, "too many files")),
        (CompileError, MemoryError()),
    ],
)
def test_errors_that_are_not_of_kernels_are_raised(monkeypatch, error, cause):
    def fail(*_):
        raise error("gone") from cause

    monkeypatch.setattr(own_device, "compile_model", fail)
    monkeypatch.setattr(kernel_trial, "under_trial", None)
    request = {"precision": "f32", "local_tiles": False, "task": ["lrn", Form.USUAL, 0]}
    with pytest.raises(error, match="gone"):
        kernel_trial.perform(find_device(""), request, None)


def test_refused_operators_say_so_and_others_are_taken(scripted):
    scripted(elementwise="", softmax="wrong")
    model, _ = single("Softmax", [floats(3, 4)])
    answer = core().query_model(core().read_model(model), "OPENCL")
    assert answer.reasons["Softmax"].code is ReasonCode.DRIVER_FAULT
    assert answer.reasons["Softmax"].detail.startswith("kernels of family 'softmax': wrong")
    with pytest.raises(UnsupportedOpError, match="kernels of family 'softmax': wrong"):
        compiled(model)


def test_element_wise_steps_are_refused_where_the_driver_fails_at_them(scripted):
    scripted(elementwise="wrong", movement="")
    model, _ = single("Gemm", [floats(3, 4), floats(4, 2)], {"alpha": 2.0})
    scripted(elementwise="wrong", matmul="")
    with pytest.raises(CompileError, match="has element-wise steps, which device"):
        compiled(model)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize(
    ("op_type", "shapes", "constant"),
    [
        ("MatMul", [(30, 21), (21, 35)], (1,)),
        ("MatMul", [(2, 5, 21), (2, 21, 19)], ()),
        ("Conv", [(1, 3, 9, 8), (18, 3, 3, 3)], (1,)),
    ],
)
def test_every_form_computes_the_same(monkeypatch, form, op_type, shapes, constant):
    monkeypatch.setattr(
        kernel_trial, "fitness", lambda _, __, names: dict.fromkeys(names, Fitness(form))
    )
    monkeypatch.setattr("partita_opencl.runtime.device_model.fitness", kernel_trial.fitness)
    arrays = [floats(*shape, seed=n) for n, shape in enumerate(shapes)]
    check_single(op_type, arrays, constant=constant)
    model, _ = single(op_type, arrays, constant=constant)
    plan = next(iter(compiled(model, TILING="REGISTERS").device_model.plans.values()))
    options = dict(next(key for key in plan.programs if key.file == "product_lanes.cl").options)
    assert ("PLAIN" in options) == (form is not Form.USUAL)
    assert ("NARROW" in options) == (form is Form.NARROW)


def test_every_family_with_kernels_is_checked():
    """A new module of kernels needs a check, or matrix units, whose trial covers it."""
    TABLE.find("", "Relu", 18)  # imports all emitters
    folder = Path(kernel_trial.__file__).parents[1] / "emitters"
    emitting = [f for f in folder.rglob("*.py") if "\n@operator" in f.read_text()]
    launching = {f.stem for f in emitting if "k.launch" in f.read_text()}
    launching |= {"matmul", "elementwise"}
    with_matrix_units = {"attention", "nhwc_images"}
    assert launching >= {"convolution", "normalization", "pooling", "reduction"}
    assert launching - with_matrix_units <= kernel_checks.CHECKS.keys()


def test_verdicts_depend_on_kernels_launches_and_checks():
    names = {file.name for file in kernel_trial.source_files()}
    checked = {"kernel_checks.py", "builtin_functions.py"}
    assert names >= {"prelude.cl", "chain.cl", "matmul.py", "pooling.py"} | checked


def test_a_wrong_result_is_far_off():
    sample = kernel_checks.sample("softmax")
    right = dict(sample.expected)
    assert sample.error(right) == 0.0
    name = next(iter(right))
    assert sample.error({**right, name: right[name] * 1.01}) > 5e-3
    assert sample.error({**right, name: right[name][:1]}) == np.inf
