"""The linker for drivers on machines without one: what it makes is loaded and called."""

import ctypes
import logging
import math
import os
import platform
import random
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from partita.storage.cache_folder import CACHE_VARIABLE
from partita_opencl.drivers import driver_trial
from partita_opencl.linking import ld
from partita_opencl.linking.linker_folder import SEARCHED, linker_folder

from .broken_drivers import broken_pocl, needs_pocl_of_pypi

pytestmark = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"),
    reason="the linker is for the processors that PyPI has a PoCL for",
)

CODE = """
@table = constant [4 x ptr] [ptr @once, ptr @twice, ptr @strlen, ptr @text]
@text = constant [6 x i8] c"hello\\00"
@total = global i64 5
@zeros = internal global [5000 x i8] zeroinitializer, align 64
@environ = external global ptr

declare i64 @strlen(ptr)
declare double @cbrt(double)

define i64 @once(i64 %x) { ret i64 %x }
define i64 @twice(i64 %x) {
  %y = call i64 @once(i64 %x)
  %z = add i64 %x, %y
  ret i64 %z
}
define i64 @picked(i64 %n, i64 %x) {
  %at = getelementptr ptr, ptr @table, i64 %n
  %f = load ptr, ptr %at
  %y = call i64 %f(i64 %x)
  ret i64 %y
}
define i64 @length() {
  %at = getelementptr ptr, ptr @table, i64 3
  %text = load ptr, ptr %at
  %n = call i64 @strlen(ptr %text)
  ret i64 %n
}
define i64 @chosen(i64 %x) {
  switch i64 %x, label %other [ i64 0, label %a i64 1, label %b i64 2, label %c
                                i64 3, label %d i64 4, label %e i64 5, label %f ]
a: ret i64 7
b: ret i64 18
c: %y = call i64 @once(i64 4)
   ret i64 %y
d: ret i64 99
e: %z = call i64 @twice(i64 8)
   ret i64 %z
f: ret i64 1
other: ret i64 -1
}
define i64 @counted(i64 %x) {
  %before = load i64, ptr @total
  %after = add i64 %before, %x
  store i64 %after, ptr @total
  %place = getelementptr i8, ptr @zeros, i64 4999
  %byte = load i8, ptr %place
  %more = add i8 %byte, 1
  store i8 %more, ptr %place
  %wide = zext i8 %more to i64
  %sum = add i64 %after, %wide
  ret i64 %sum
}
define double @root(double %x) {
  %y = call double @cbrt(double %x)
  %z = fmul double %y, 1.25
  ret double %z
}
define ptr @environment() {
  %all = load ptr, ptr @environ
  ret ptr %all
}
define hidden i64 @unseen() { ret i64 0 }
"""


def object_of(code: str, reloc: str = "pic") -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(code)
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(reloc=reloc, codemodel="small")
    return machine.emit_object(module)


def test_what_was_linked_reaches_itself_and_other_libraries(tmp_path):
    source, target = tmp_path / "kernel.so.o", tmp_path / "kernel.so"
    source.write_bytes(object_of(CODE))
    linker = Path(linker_folder(), "ld")
    asked = ["-m", "elf_x86_64", "-shared", "-o", str(target), "-L/lib", str(source), "-lgcc"]
    subprocess.run([linker, *asked], check=True)
    library = ctypes.CDLL(str(target))

    def call(name, *arguments, kind=ctypes.c_int64):
        function = getattr(library, name)
        function.restype, function.argtypes = kind, [type(one) for one in arguments]
        return function(*arguments)

    long = ctypes.c_int64
    assert [call("picked", long(n), long(21)) for n in range(2)] == [21, 42]
    assert call("length") == 5
    assert [call("chosen", long(n)) for n in range(-1, 7)] == [-1, 7, 18, 4, 99, 16, 1, -1]
    assert [call("counted", long(n)) for n in (1, 10)] == [5 + 1 + 1, 5 + 11 + 2]
    assert ctypes.c_int64.in_dll(library, "total").value == 16
    root = call("root", ctypes.c_double(20.0), kind=ctypes.c_double)
    assert math.isclose(root, 1.25 * 20.0 ** (1 / 3), rel_tol=1e-12)
    environ = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ").value
    assert call("environment", kind=ctypes.c_void_p) == environ
    assert not hasattr(library, "unseen")


@pytest.mark.parametrize(
    ("code", "reloc"),
    [
        (CODE, "static"),  # addresses of 32 bits
        ("@x = thread_local global i64 1\ndefine ptr @f() { ret ptr @x }", "pic"),
        ("@x = common global i64 0\ndefine ptr @f() { ret ptr @x }", "pic"),
    ],
)
def test_what_no_kernel_has_is_refused(code, reloc):
    with pytest.raises(ld.LinkError):
        ld.shared_library(object_of(code, reloc))


def test_damaged_objects_are_linked_or_refused():
    whole, rng = object_of(CODE), random.Random(0)
    refused = 0
    for number in range(400):
        data = bytearray(whole[: rng.randrange(len(whole))] if number % 4 == 0 else whole)
        for _ in range(number % 4):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            ld.shared_library(bytes(data))
        except ld.LinkError:
            refused += 1
    assert 100 <= refused < 400


def test_other_requests_go_to_the_systems_linker(tmp_path):
    linker = Path(linker_folder(), "ld")
    asked = [linker, "-o", "program", "crt1.o", "main.o", "-lc"]
    environment = {"PATH": str(tmp_path)}
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ld: this links one object to a shared library, no more\n"
    system = tmp_path / "ld"
    system.write_text('#!/bin/sh\necho "$@"\n')
    system.chmod(0o700)
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "-o program crt1.o main.o -lc\n"
    done = subprocess.run(
        [sys.executable, ld.__file__, "-shared", "-o", "x.so", str(system)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"'{system}' cannot be linked: it ends early" in done.stderr


def broken_linker(folder):
    """A folder with a program that links nothing."""
    folder.mkdir(exist_ok=True)
    linker = folder / "ld"
    linker.write_text("#!/bin/sh\nexit 1\n")
    linker.chmod(0o700)
    return str(folder)


@needs_pocl_of_pypi
def test_a_driver_that_finds_no_linker_is_given_ours(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(SEARCHED, broken_linker(tmp_path))
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    driver = broken_pocl(tmp_path, "")
    with monkeypatch.context() as patched:
        patched.setenv(CACHE_VARIABLE, "")
        tried = driver_trial.judge_driver(driver)
    assert "Final linking" in tried.verdict.reason
    assert f"install that, or set {CACHE_VARIABLE}" in tried.explanation
    tried = driver_trial.judge_driver(driver)
    assert tried.verdict.good
    assert tried.driver.linker == linker_folder()
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


@needs_pocl_of_pypi
def test_what_was_linked_before_does_not_count(tmp_path, monkeypatch):
    """As when a driver is tried again, with its kernels on disk, where gcc was removed."""
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    driver = broken_pocl(tmp_path, "")
    monkeypatch.setenv(SEARCHED, linker_folder())
    assert driver_trial.judge_driver(driver).driver.linker == ""
    monkeypatch.setenv(SEARCHED, broken_linker(tmp_path / "broken"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "without verdicts"))
    tried = driver_trial.judge_driver(driver)
    assert tried.verdict.good
    assert tried.driver.linker == linker_folder()


@needs_pocl_of_pypi
def test_a_driver_is_tried_again_when_the_systems_linker_changes(tmp_path, monkeypatch):
    driver = broken_pocl(tmp_path, "")
    first = driver_trial.driver_verdict(driver)
    assert driver_trial.driver_verdict(driver).file == first.file
    path = broken_linker(tmp_path / "broken"), os.environ["PATH"]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    assert driver_trial.driver_verdict(driver).file != first.file
