"""Machine code on disk: found again, made anew when damaged, loaded without a compiler."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from partita.errors import InferError
from partita_cpu.jit import disk_cache, llvm_kernel
from partita_cpu.jit.code_hash import extent, fingerprint, units_of
from partita_cpu.jit.deferred_numba import compiler
from partita_cpu.jit.foreign_call import c_function
from partita_cpu.jit.isa import available, detected
from partita_cpu.jit.kernel import Kernel, jit
from partita_cpu.jit.loader.elf_image import Image, ImageError, image_of, load
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.function import Function

pytestmark = pytest.mark.skipif(
    not detected().native or not sys.platform.startswith("linux"),
    reason="kernels are not kept here",
)

LEVELS = list(available()[1:])


@pytest.fixture
def folder(monkeypatch, tmp_path, native_kernels):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    return tmp_path


def python(code, **environment):
    """What a process prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def add_scaled(x, y, factor, count, tid, nt):
    for i in range(count * tid // nt, count * (tid + 1) // nt):
        y[i] += np.exp(x[i]) * factor


def fresh(function=add_scaled):
    """A kernel that nothing is known of."""
    return Kernel(function, {"nogil": True, "error_model": "numpy"}, True)


def test_the_cache_folder_follows_the_environment(folder, monkeypatch):
    disk_cache.write("name", "key", b"content")
    assert [path.name for path in (folder / "cpu").iterdir()] == [disk_cache.machine()]
    monkeypatch.setenv("PARTITA_CACHE_DIR", "")
    assert disk_cache.read("name", "key") is None
    assert not disk_cache.keeps()


def test_a_folder_that_holds_code_is_not_looked_into_again(folder, monkeypatch):
    assert disk_cache.is_new()
    disk_cache.write("of the processor", "key", b"content")
    disk_cache.write("first", "key", b"content")
    assert disk_cache.is_new()
    disk_cache.write("second", "key", b"content")
    assert not disk_cache.is_new()
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail("a compile takes as long"))
    assert not disk_cache.is_new()


@pytest.mark.parametrize("harm", ["fifo", "link", "mode"])
def test_machine_code_that_others_could_have_put_there_is_not_loaded(folder, harm):
    disk_cache.write("name", "key", b"content")
    (path,) = (folder / "cpu" / disk_cache.machine()).iterdir()
    if harm == "mode":
        path.chmod(0o666)
    else:
        away = path.rename(folder / "elsewhere")
        os.mkfifo(path) if harm == "fifo" else path.symlink_to(away)
    assert disk_cache.read("name", "key") is None
    assert not disk_cache.is_stored(path.name)
    disk_cache.write("name", "key", b"content")  # takes its place
    assert disk_cache.read("name", "key") == b"content"
    assert disk_cache.is_stored(path.name)


def test_code_of_another_name_is_no_code_of_this(folder):
    """As where a file is copied over another one; to run it would end the process."""
    for name in ("one", "other"):
        disk_cache.write(name, "key", name.encode())
    machine = folder / "cpu" / disk_cache.machine()
    one, other = (machine / disk_cache.file_name(name, "key") for name in ("one", "other"))
    other.write_bytes(one.read_bytes())
    assert disk_cache.read("one", "key") == b"one"
    assert disk_cache.read("other", "key") is None


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_file_is_no_file(folder, damage):
    disk_cache.write("name", "key", b"content")
    assert disk_cache.read("name", "key") == b"content"
    assert disk_cache.read("name", "other") is None
    (path,) = (folder / "cpu" / disk_cache.machine()).iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    assert disk_cache.read("name", "key") is None


def test_machine_code_that_was_used_longest_ago_is_deleted_when_there_is_too_much(
    folder, monkeypatch
):
    monkeypatch.setattr(disk_cache, "FILES", 4)
    monkeypatch.setattr(disk_cache, "WRITES_PER_LOOK", 1)
    days_ago = {"a": 4, "b": 9, "c": 2, "d": 7}
    for name, days in days_ago.items():
        disk_cache.write(name, "key", name.encode())
        path = folder / "cpu" / disk_cache.machine() / disk_cache.file_name(name, "key")
        used = time.time() - days * 86_400
        os.utime(path, (used, used))
    assert disk_cache.read("b", "key") == b"b"  # used now
    disk_cache.write("e", "key", b"e")
    left = {name for name in "abcde" if disk_cache.read(name, "key") == name.encode()}
    assert left == {"b", "c", "e"}


def test_a_folder_that_cannot_be_written_does_no_harm(folder, monkeypatch):
    (folder / "file").write_text("")
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(folder / "file"))
    disk_cache.write("name", "key", b"content")
    assert disk_cache.read("name", "key") is None


@pytest.mark.parametrize("level", LEVELS[:1])
def test_a_level_is_compiled_once(folder, level, monkeypatch):
    first = llvm_kernel.level_image(level)
    monkeypatch.setattr(llvm_kernel, "object_code", None)
    again = llvm_kernel.level_image(level)
    assert again.content == first.content
    assert again.functions == first.functions


def test_processes_that_start_together(tmp_path):
    code = (
        "from partita_cpu.jit import llvm_kernel\n"
        "from partita_cpu.llvm.levels import AVX2\n"
        "assert llvm_kernel.addresses(AVX2)"
    )
    environment = {**os.environ, "PARTITA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, env=environment) for _ in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    names = [path.name for path in (tmp_path / "cpu" / disk_cache.machine()).iterdir()]
    assert sorted(name.partition("-")[0] for name in names) == ["avx2", "processor"]


@pytest.mark.parametrize("shares", [1, 3])
def test_a_kernel_is_called_with_its_share(folder, shares):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(50), rng.standard_normal(50)
    wanted = y + np.exp(x) * 1.5
    kernel = fresh()
    for share in range(shares):
        kernel(x, y, 1.5, 50, share, shares)
    np.testing.assert_allclose(y, wanted, rtol=1e-12)
    assert list(kernel.entries) == [("<f8 1", "<f8 1", "float", "int")]


def test_a_second_process_needs_no_compiler(folder):
    code = """
        import sys
        import numpy as np
        from partita_cpu.runtime.device_model import run_graph
        import onnx.parser
        from partita.lowering import lower_proto
        text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y)'
        model = onnx.parser.parse_model(text + ' { y = Softmax (x) }')
        rows = run_graph(lower_proto(model), {"x": np.ones((2, 3), np.float32)})[0]
        print(np.allclose(rows, 1 / 3), 'numba' in sys.modules or 'llvmlite' in sys.modules)
        """
    assert python(code, PARTITA_CACHE_DIR=str(folder)) == "True True"
    assert python(code, PARTITA_CACHE_DIR=str(folder)) == "True False"


def test_what_has_no_image_is_called_by_numba(folder):
    def total(x, tid, nt):
        return x.sum()

    kernel = fresh(total)
    assert kernel(np.arange(4.0), 0, 1) == 6.0
    assert list(kernel.entries.values()) == [None]
    other = fresh(total)
    assert other(np.arange(4.0)[::2], 0, 1) == 2.0  # not contiguous
    assert not other.entries


def test_a_kernel_that_fails(folder):
    def refusing(x, tid, nt):
        if x[0] > 0:
            raise ValueError("no")

    kernel = fresh(refusing)
    kernel(np.zeros(1), 0, 1)
    with pytest.raises(InferError, match="Kernel refusing failed on device CPU"):
        kernel(np.ones(1), 0, 1)


@jit
def callee(x):
    return x + 1


def caller_of(function):
    def caller(x, tid, nt):
        x[0] = function(x[0])

    return fresh(caller)


def test_the_fingerprint_covers_what_is_called():
    def other(x):
        return x + 2

    same, changed = caller_of(callee), caller_of(jit(other))
    assert fingerprint(same) == fingerprint(caller_of(callee))
    assert fingerprint(same) != fingerprint(changed)
    assert fingerprint(loop(callee.py_func)) != fingerprint(callee)


def in_a_module(code, **names):
    """The function of some source, in a module of such names."""
    module = {"__name__": __name__, **names}
    exec(code, module)  # noqa: S102  # the code is written below
    return module["function"]


def test_the_fingerprint_does_not_cover_what_has_the_name_of_an_attribute():
    code = "def function(x):\n    return x.size + size_of(x) + (lambda: x.shape)()"
    first, second = (in_a_module(code, size=n, shape=n, size_of=callee) for n in (1, 2))
    assert fingerprint(first) == fingerprint(second)
    changed = in_a_module(code, size=1, shape=1, size_of=caller_of)
    assert fingerprint(first) != fingerprint(changed)


@pytest.mark.parametrize("which", [0, 127, 128, 299])
def test_the_fingerprint_covers_each_of_many_names(which):
    names = {f"n{place}": place for place in range(300)}
    code = f"def function(x):\n    return (lambda: x + {' + '.join(names)})()"
    first, changed = in_a_module(code, **names), in_a_module(code, **names | {f"n{which}": -1})
    assert fingerprint(first) != fingerprint(changed)


def test_the_fingerprint_covers_what_is_compiled_apart():
    def body(x):
        return x + 1

    def other(x):
        return x + 2

    def apart(function, kinds=("int",)):
        return jit(apart=kinds, answers=True)(function)

    first = apart(body)
    assert units_of(caller_of(first)) == [first]
    assert units_of(first) == units_of(caller_of(callee)) == []
    prints = [caller_of(apart(body)), caller_of(apart(other)), caller_of(apart(body, ("float",)))]
    prints += [caller_of(jit(body))]
    assert len(set(map(fingerprint, prints))) == 4
    assert fingerprint(caller_of(first)) == fingerprint(prints[0])
    assert extent(caller_of(first)) < extent(caller_of(jit(body)))


def test_the_fingerprint_covers_where_that_is():
    def body(x):
        return x + 1

    here, moved = (jit(apart=("int",), answers=True)(body) for _ in range(2))
    moved.__module__ = f"{__name__}.elsewhere"
    assert fingerprint(caller_of(here)) != fingerprint(caller_of(moved))


def test_threads_that_find_the_cache_to_be_full_share_one_folder(folder):
    """The first of two would go, and what others left there, when the second is made."""
    spec = importlib.util.find_spec(disk_cache.__name__)
    anew = importlib.util.module_from_spec(spec)  # nothing was found to be full in it so far
    spec.loader.exec_module(anew)
    met = threading.Barrier(2)

    def has_no_room(*_):
        with contextlib.suppress(threading.BrokenBarrierError):
            met.wait(0.2)  # for one that looks meanwhile
        return False

    anew.has_room = has_no_room
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda _: anew.root_with_room(), range(2))
    assert one == other
    assert one.is_dir()


def test_the_fingerprint_is_the_same_in_other_processes():
    code = """
        from partita_cpu.gemm.macrokernel.product_loop import multiply_tiles
        from partita_cpu.jit.code_hash import extent, fingerprint, units_of
        print(fingerprint(multiply_tiles))
        """
    found = {python(code, PYTHONHASHSEED=seed) for seed in ("1", "2")}
    assert len(found) == 1


def test_kernels_of_other_kernels(folder):
    x = np.zeros(1)
    caller_of(callee)(x, 0, 1)
    assert x[0] == 1


def plain_function(body):
    """Machine code of an LLVM function of an i64."""
    f = Function("tried", "i64 %x", "i64")
    body(f)
    declared = "declare i64 @labs(i64)\ndeclare i64 @nowhere(i64)\n"
    return llvm_kernel.object_code(f.text() + declared, llvm_kernel.target_machine())


def test_an_image_goes_through_bytes():
    code = plain_function(lambda f: f.do(f"ret i64 {f.let('call i64 @labs(i64 %x)')}"))
    image = Image.unpack(image_of(code, ["tried"]).pack())
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(load(image)["tried"])
    assert function(-5) == 5


ENDLESS = """
import ctypes, pathlib, sys, threading
from partita_cpu.jit.loader.elf_image import Image, load
(address,) = load(Image.unpack(pathlib.Path(sys.argv[1]).read_bytes())).values()
begun = ctypes.c_int64(0)
function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address)
threading.Thread(target=function, args=(ctypes.addressof(begun),), daemon=True).start()
while not begun.value:
    pass
"""


def test_a_process_ends_well_while_a_thread_runs_an_image(tmp_path):
    text = """
    define i64 @endless(ptr %begun) {
        br label %again
    again:
        store volatile i64 1, ptr %begun
        br label %again
    }"""
    code = llvm_kernel.object_code(text, llvm_kernel.target_machine())
    file = tmp_path / "image"
    file.write_bytes(image_of(code, ["endless"]).pack())
    done = subprocess.run([sys.executable, "-c", ENDLESS, file], timeout=600, check=False)
    assert done.returncode == 0


def test_a_function_of_machine_code_holds_what_python_reads_when_it_is_freed():
    (definition,) = gc.get_referents(c_function("nothing", 0))
    assert isinstance(definition, ctypes.Structure)


def test_an_image_of_what_is_not_there():
    code = plain_function(lambda f: f.do(f"ret i64 {f.let('call i64 @nowhere(i64 %x)')}"))
    with pytest.raises(ImageError, match="there is no nowhere outside"):
        image_of(code, ["tried"])
    with pytest.raises(ImageError, match="there is no other"):
        image_of(code, ["other"])


def test_an_image_for_another_process():
    code = plain_function(lambda f: f.do(f"ret i64 {f.let('call i64 @labs(i64 %x)')}"))
    image = image_of(code, ["tried"])
    image.outer["nowhere"] = image.outer.pop("labs")
    with pytest.raises(ImageError, match="there is no nowhere outside"):
        load(image)


def test_numba_comes_with_what_modules_registered():
    assert compiler().__name__ == "numba"
