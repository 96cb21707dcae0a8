"""Kernels that other processes compile: who does it, and what happens when they end early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from partita.errors import CompileError
from partita_cpu.gemm.packing import kernels as packing
from partita_cpu.jit import compile_pool, disk_cache, dispatch
from partita_cpu.jit.deferred_numba import implementations
from partita_cpu.jit.isa import detected
from partita_cpu.jit.kernel import Kernel
from partita_cpu.kernels.elementwise.broadcast_loops import mapped
from partita_cpu.kernels.operator_table import TABLE
from partita_cpu.scalar.activations import relu
from partita_cpu.threads import call_queue, thread_pool

pytestmark = [
    pytest.mark.usefixtures("native_kernels"),  # of portable ones, nobody else compiles any
    pytest.mark.skipif(
        not detected().native or not sys.platform.startswith("linux"),
        reason="kernels are not kept here",
    ),
]

SOFTMAX = """
    import os, signal, sys
    import numpy as np
    from partita_cpu.kernels.reduction.softmax import softmax_rows
    from partita_cpu.jit import compile_pool, disk_cache, dispatch

    x, y = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    ARGS = x.reshape(-1), y.reshape(-1), 2, 3

    def softmax():
        softmax_rows(*ARGS, 0, 1)
        return bool(np.allclose(y, 1 / 3))

    def compiled_here():
        return "partita_cpu.jit.translation.object_code" in sys.modules
    """


def environment(folder, **more):
    return {**os.environ, "PARTITA_CACHE_DIR": str(folder), **more}


def python(code, folder, complaint="", **more):
    """What a process prints that begins with `SOFTMAX`."""
    code = textwrap.dedent(SOFTMAX) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert complaint in done.stderr
    assert done.stderr.count("\n") == bool(complaint)
    return done.stdout.strip()


def files(folder):
    """Names of what is on disk, without digests."""
    names = (path.name for path in (folder / "cpu" / disk_cache.machine()).iterdir())
    return sorted(name.rpartition("-")[0] for name in names)


def test_kernels_and_what_calls_them_are_compiled_by_others(tmp_path):
    python("dispatch.available()", tmp_path)  # LLVM tells what the processor has, once
    code = "print(softmax(), compiled_here(), 'llvmlite.binding' in sys.modules)"
    assert python(code, tmp_path) == "True False False"
    assert {"softmax_rows", "invoke"} <= set(files(tmp_path))


def test_others_find_kernels_of_any_module(tmp_path):
    """Those of queues of calls belong to no operator."""
    code = """
        from partita_cpu.threads.call_queue import CALLS

        made = dispatch.order(CALLS)
        compile_pool.wait(made)
        print(len(made) == len(CALLS), all(map(disk_cache.is_stored, made)), compiled_here())
        """
    assert python(code, tmp_path) == "True True False"


@pytest.mark.parametrize(
    ("kernel", "kinds", "home"),
    [
        ("map2_sub", ("<f4 1", "<f4 1", "<f4 1", "<i8 1"), "elementwise.binary"),
        (
            "sum_terms_same_term",
            ("<f4 1", "<f4 1", "<f8 1", "int", "int", "int"),
            "reduction.reduce",
        ),
    ],
)
def test_others_find_kernels_that_are_made_of_functions(tmp_path, kernel, kinds, home):
    """By the module that has them made, not by that of the function which makes them."""
    code = f"""
        import partita_cpu.kernels.{home}
        from partita_cpu.jit.kernel_definition import kernels

        found = [kernel for kernel in kernels if kernel.__qualname__ == {kernel!r}]
        made = dispatch.compile_order([(kernel, {kinds}) for kernel in found])
        compile_pool.wait(made)
        print(bool(made) and all(map(disk_cache.is_stored, made)), compiled_here())
        print(*{{kernel.home for kernel in found}})
        """
    assert python(code, tmp_path) == f"True False\npartita_cpu.kernels.{home}"


def test_implementations_come_with_what_they_stand_for():
    """Else a process that imports a kernel's module alone would take it for another kernel."""
    TABLE.load()
    assert implementations
    for function, choose in implementations.items():
        assert function.__module__ == choose.__module__, function


@pytest.mark.parametrize("executable", ["''", "'/usr/sbin/uwsgi'", "'/nowhere/python3'", "None"])
def test_without_an_interpreter_to_start(tmp_path, executable):
    code = f"sys.executable = {executable}; print(softmax(), compiled_here())"
    assert python(code, tmp_path) == "True True"


def test_a_folder_that_cannot_be_written_is_not_worked_for(tmp_path):
    (tmp_path / "file").write_text("")
    code = "print(softmax(), compiled_here(), compile_pool.current_workers)"
    complaint = "it is no folder. Fix that, or set PARTITA_CACHE_DIR"
    assert python(code, tmp_path / "file", complaint) == "True True None"


FULL = """
    import errno
    from partita.storage import cache_folder

    def no_room(*args, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    os.posix_fallocate = cache_folder.write_private = no_room
    """


def test_on_a_full_disk_others_leave_kernels_among_temporary_files(tmp_path):
    (tmp_path / "temporary").mkdir()
    code = textwrap.dedent(FULL) + (
        "\nprint(softmax(), compiled_here(), len(os.listdir(os.environ['TMPDIR'])))"
    )
    more = {"TMPDIR": str(tmp_path / "temporary")}
    told = "Nothing more is kept in"
    assert python(code, tmp_path / "cache", told, **more) == "True False 1"
    assert not list((tmp_path / "temporary").iterdir())
    assert files(tmp_path / "cache") == []


def test_a_full_disk_without_temporary_files_is_not_worked_for(tmp_path):
    code = textwrap.dedent(FULL) + (
        "\nimport tempfile"
        "\ntempfile.mkdtemp = no_room"
        "\nprint(softmax(), compiled_here(), compile_pool.current_workers)"
    )
    assert python(code, tmp_path, "Nothing more is kept in") == "True True None"


def test_a_frozen_program_starts_no_others(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    assert compile_pool.workers_possible()
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert not compile_pool.workers_possible()


def test_others_that_find_no_package(tmp_path):
    code = """
        compile_pool.child_environment = lambda: {"PATH": os.environ["PATH"]}
        print(softmax(), compiled_here())
        """
    outside = tmp_path / "empty"
    outside.mkdir()
    found = python(code, tmp_path, PYTHONPATH=os.pathsep.join(sys.path))
    assert found in ("True True", "True False")  # the latter where the package is installed


@pytest.mark.parametrize("others", [False, True])
def test_others_that_are_killed(tmp_path, others):
    code = f"""
        dispatch.order([(softmax_rows, ARGS)])
        os.killpg(compile_pool.current_workers.group, signal.SIGKILL)
        compile_pool.workers_possible = lambda: {others}
        print(softmax(), {others} or compiled_here())
        """
    assert python(code, tmp_path) == "True True"


def test_one_that_is_killed_at_its_job(tmp_path):
    code = """
        import pathlib, threading, time

        def group():
            found = []
            for folder in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[2]) == compile_pool.current_workers.group:
                    found.append((int(folder.name), int(fields[1])))
            return found

        def kill():
            while True:
                found = group()
                parents = {parent for _, parent in found}
                for pid, _ in found:
                    if len(found) > 1 and pid not in parents:
                        os.kill(pid, signal.SIGKILL)
                        return
                time.sleep(0.001)

        dispatch.order([(softmax_rows, ARGS)])
        threading.Thread(target=kill).start()
        print(softmax(), dispatch.order([(softmax_rows, ARGS)]))
        """
    assert python(code, tmp_path) == "True []"


def test_others_that_are_slow_are_waited_for(tmp_path):
    """They answer nothing for longer than others have patience, but they compute."""
    code = """
        import itertools

        compile_pool.PATIENCE_S = 0.5
        seconds, looks = compile_pool.group_seconds, itertools.count()
        # At each look a little more, also where other programs keep them from computing so long.
        compile_pool.group_seconds = lambda group: seconds(group) + 1e-3 * next(looks)
        print(softmax(), compiled_here())
        """
    assert python(code, tmp_path) == "True False"


def test_others_that_do_nothing_are_not_waited_for(tmp_path):
    code = """
        dispatch.order([(softmax_rows, ARGS)])
        os.killpg(compile_pool.current_workers.group, signal.SIGSTOP)
        compile_pool.PATIENCE_S = 0.5
        print(softmax(), compiled_here(), compile_pool.current_workers)
        """
    assert python(code, tmp_path) == "True True None"


def test_others_that_compute_without_end_are_given_up(tmp_path):
    package = tmp_path / "others" / "partita_cpu" / "runtime"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "compile_worker.py").write_text(
        "import os, signal\nif os.fork():\n    os._exit(0)\n"
        "signal.alarm(120)\nwhile True:\n    pass\n"  # not even if the test dies before
    )
    code = f"""
        compile_pool.child_environment = lambda: {{"PYTHONPATH": {str(tmp_path / "others")!r}}}
        compile_pool.PATIENCE_S = 1.0
        try:
            softmax()
        except compile_pool.CompileError as error:
            print(error, compile_pool.current_workers)
        """
    found = python(code, tmp_path / "cache", PARTITA_COMPILE_SECONDS="0.5")
    assert found.startswith("Compiling 1 kernels for this processor ('softmax_rows') took ")
    assert "s of processor time without finishing one; 0.5 s are allowed." in found
    assert found.endswith(
        "set PARTITA_COMPILE_SECONDS to more; else run the model on another device. None"
    )


@pytest.mark.parametrize("told", ["soon", "0", "-1", "nan"])
def test_a_budget_that_is_no_time(monkeypatch, told):
    monkeypatch.setenv(compile_pool.BUDGET_VARIABLE, told)
    with pytest.raises(CompileError, match=rf"COMPILE_SECONDS is '{told}'; it takes a number"):
        compile_pool.budget()


def test_processes_that_ask_for_the_same(tmp_path):
    code = textwrap.dedent(SOFTMAX) + "print(softmax())"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    assert [process.communicate()[0].strip() for process in running] == ["True"] * 3
    names = files(tmp_path)
    assert sorted(set(names)) == names


def test_a_child_asks_others_of_its_own(tmp_path):
    code = """
        from partita_cpu.threads.thread_pool import CALLS

        print(softmax(), flush=True)
        if os.fork():
            print(os.waitstatus_to_exitcode(os.wait()[1]))
        else:
            group = compile_pool.current_workers.group
            entries = [dispatch.entry_of(kernel, args) is not None for kernel, args in CALLS]
            os._exit(0 if all(entries) and compile_pool.current_workers.group != group else 1)
        """
    assert python(code, tmp_path) == "True\n0"


def test_the_main_module_is_not_run_again(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SOFTMAX) + "print('ran', softmax(), compiled_here())\n")
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n") == ["ran True False", ""]


def test_nothing_is_imported_from_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("open('taken', 'w')\n")
    (tmp_path / "numba.py").write_text("open('taken', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    compile_pool.stop_workers()
    try:
        from partita_cpu.kernels.reduction.softmax import softmax_rows

        kinds = ("<f8 1", "<f8 1", "int", "int")
        (file,) = dispatch.compile_order([(softmax_rows, kinds)])
        compile_pool.wait([file])
    finally:
        compile_pool.stop_workers()
    assert disk_cache.is_stored(file)
    assert not (tmp_path / "taken").exists()


def alive(group):
    """Whether a process of a group still runs."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            return True
    return False


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_others_end_with_whom_they_work_for(tmp_path, sent):
    code = """
        from partita_cpu.gemm.macrokernel.product_loop import multiply_tiles

        kinds = ("<f4 1", "<u2 1", *["<f4 1"] * 5, "|u1 1", *["<i8 1"] * 3)
        kinds += ("float", "float", "int", "float", "float", "int", "int", "float", "float")
        files = dispatch.compile_order([(multiply_tiles, kinds)])
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells' jobs begin without it
        try:
            print(compile_pool.current_workers.group, flush=True)
            compile_pool.wait(files)
        except KeyboardInterrupt:
            print("given up", flush=True)
        """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SOFTMAX) + textwrap.dedent(code)],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    group = int(process.stdout.readline())
    process.send_signal(sent)
    rest, _ = process.communicate()
    assert rest.strip() == ("given up" if sent == signal.SIGINT else "")
    while alive(group):
        time.sleep(0.1)


def test_only_kernels_of_this_package_are_ordered(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    ordered = []
    monkeypatch.setattr(compile_pool, "order", ordered.extend)

    def body(x, tid, nt):
        x[0] = 1

    own = Kernel(body, {}, True)
    theirs = mapped(relu)
    assert dispatch.order([(own, [1]), (theirs, [1, 2]), (theirs, ["text"]), (print, [])])
    module = "partita_cpu.kernels.elementwise.broadcast_loops"  # nothing is imported here
    wanted = {"module": module, "kernel": "map1_relu", "kinds": ("int", "int")}
    assert [job.spec for job in ordered] == [wanted]


def test_another_kernel_of_the_same_name_is_not_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    dispatch.make_for("map1_relu-0", mapped.__module__, "map1_relu", ("<f4 1", "<f4 1"))
    assert not tmp_path.joinpath("cpu").exists()


PRODUCT = """
    import partita
    import onnx.parser

    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 20, 6, 7)).astype(np.float32)
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[1,20,6,7] x) => (float[1,9,6,7] y)'
    text += " <float[9,20,1,1] w, float[9] b> { z = Conv (x, w, b) y = Elu (z) }"
    model = onnx.parser.parse_model(text)
    for name, shape in (("w", (9, 20, 1, 1)), ("b", (9,))):
        value = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    """


def test_what_a_model_will_need_is_compiled_before_its_program_is_made(tmp_path):
    code = """
        import onnx.parser
        import partita
        from partita_cpu.jit import llvm_kernel
        from partita_cpu.runtime import first_kernels

        text = '<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,9,9] x) => (float[1,8,4,4] y)'
        text += " <float[8,1,3,3] w> {"
        text += "z = Conv <group=8> (x, w) y = MaxPool <kernel_shape=[4,4]> (z)}"
        model = onnx.parser.parse_model(text)
        w = np.arange(72, dtype=np.float32).reshape(8, 1, 3, 3)
        model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
        graph = partita.lowering.lower_proto(model)
        policy = partita_cpu.gemm.precision_policy.choose(partita_cpu.properties.CpuProperties(), 1)
        ordered = []
        compile_pool.order = ordered.extend
        first_kernels.begin(policy, graph)
        print(*sorted(job.file.rpartition("-")[0] for job in ordered))
        """
    guess = python("import partita_cpu.properties\n" + textwrap.dedent(code), tmp_path).split()
    level = detected()
    assert {f"{level}", f"{level}_depthwise_3", f"{level}_windows", "multiply_tiles"} <= set(guess)
    assert {"multiply_panel", "pack_blocks", "_help"} <= set(guess)
    assert not {f"{level}_depthwise_5", f"{level}_bytes", "activate_floats"} & set(guess)


def test_kernels_that_are_compiled_apart(tmp_path):
    code = textwrap.dedent(PRODUCT) + textwrap.dedent("""
        y = partita.Core().compile_model(model.SerializeToString(), "CPU")({"x": x})[0]
        w, b = (onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer)
        z = np.einsum("ncyx,oc->noyx", x, w[:, :, 0, 0], dtype=np.float64) + b[:, None, None]
        wanted = np.where(z > 0, z, np.expm1(z))
        print(compiled_here(), bool(abs(y - wanted).max() < 1e-5 * abs(wanted).max()))
        """)
    assert python(code, tmp_path) == "False True"
    names = files(tmp_path)
    of_pools, of_queues = (
        {kernel.__qualname__ for kernel, _ in module.CALLS} for module in (thread_pool, call_queue)
    )
    # Nothing is compiled twice; on one processor requests go through a queue, with its own _serve.
    assert {name for name in names if names.count(name) > 1} <= of_pools & of_queues
    assert of_pools | {kernel.__qualname__ for kernel, _ in packing.CALLS} <= set(names)
    assert {"activate_floats", "multiply_panel", "multiply_tiles"} <= set(files(tmp_path))
    # What calls it is on disk and it is not: it is made when that is loaded.
    for alone in ("False", "True"):
        for path in (tmp_path / "cpu").glob("*/activate_floats-*"):
            path.unlink()
        found = python(f"sys.executable = None if {alone} else sys.executable\n" + code, tmp_path)
        assert found == f"{alone} True"
