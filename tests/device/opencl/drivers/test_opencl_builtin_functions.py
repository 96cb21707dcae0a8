"""Programs for PoCL declare the built-in functions that they call, as its own header does."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import llvmlite.binding
import pytest

from partita.errors import CompileError
from partita.storage import cache_folder
from partita_opencl.device.device import find_device
from partita_opencl.drivers import builtin_functions, driver_trial, installed_drivers
from partita_opencl.drivers.builtin_functions import GUARD, header_beside, with_declarations
from partita_opencl.drivers.program_cache import ProgramCache
from partita_opencl.trials import kernel_checks, own_device

from .broken_drivers import ABORT, broken_pocl, needs_pocl_of_pypi

_HEADER = """\
/* What a
 * header may hold. */
#ifndef _OPENCL_H_
#define _OPENCL_H_
#include "base.h"
#define __ovld \\
    __attribute__((overloadable))
// a comment
float __ovld exp(float);
float2 __ovld exp(float2);
int __ovld max(int x,
               int y);
void __ovld vstore16(float16 v, size_t at, float* p);
#endif
"""


@pytest.fixture
def header(tmp_path):
    (tmp_path / "base.h").write_text("typedef unsigned int uint;\nuint __ovld popcount(uint);\n")
    (tmp_path / "opencl-c.h").write_text(_HEADER)
    return str(tmp_path / "opencl-c.h")


def declared(header, source, options=()):
    """What a program has in front of its first line."""
    text, _ = with_declarations(header, source, options)
    before, line, after = text.rpartition("#line 1\n")
    assert line
    assert after == source
    return before


def test_types_and_macros_are_all_there_and_of_functions_those_that_are_named(header):
    before = declared(header, "kernel void k(global float* x) { x[0] = exp(x[1]); }")
    assert "typedef unsigned int uint;" in before
    assert "#define __ovld     __attribute__((overloadable))" in before
    assert "float __ovld exp(float);\nfloat2 __ovld exp(float2);" in before
    assert not any(name in before for name in ("max", "vstore16", "popcount", "comment", "header"))


def test_options_name_functions_and_macros_may_add_the_number_of_lanes(header):
    before = declared(header, "#define OF(name) name##16\nOF(vstore)", ["-DJOIN=max"])
    assert "int __ovld max(int x,\n               int y);" in before
    assert "vstore16(float16 v, size_t at, float* p);" in before
    assert "exp" not in before


def test_the_driver_is_told_to_leave_its_header_out(header):
    assert with_declarations(header, "", ["-w"])[1] == ["-w", f"-D{GUARD}"]


@pytest.mark.parametrize("folder", builtin_functions.FOLDERS)
def test_a_header_is_found_beside_pocls_library_and_no_others(tmp_path, folder):
    header = tmp_path / folder / "opencl-c.h"
    header.parent.mkdir(parents=True)
    assert not header_beside(str(tmp_path / "lib/x86_64-linux-gnu/libpocl.so.2"))
    header.touch()
    assert header_beside(str(tmp_path / "lib/x86_64-linux-gnu/libpocl.so.2")) == str(header)
    assert not header_beside(str(tmp_path / "lib/x86_64-linux-gnu/libnvidia-opencl.so.1"))
    assert not header_beside("libpocl.so.2")


def cache_with(header):
    device = find_device("")
    return ProgramCache(device.context, device.handle, "", on_disk=False, header=header)


@needs_pocl_of_pypi
def test_what_is_not_declared_is_refused_and_the_error_says_what_to_do():
    programs = cache_with(find_device("").driver.header)
    pasted = "#define OF(name) name##p\nkernel void k(global float* x) {\n  x[0] = OF(ex)(x[0]);\n}"
    with pytest.raises(CompileError, match=r"\.cl:3:(?s:.*)write it in a comment of the \.cl file"):
        programs.build("k.cl", pasted, [])
    assert programs.build("k.cl", f"// exp\n{pasted}", [])


@needs_pocl_of_pypi
def test_a_header_that_is_gone_is_an_error_of_the_build():
    with pytest.raises(CompileError, match=r"cannot build 'k\.cl' with -w: .*No such file"):
        cache_with("/nowhere/opencl-c.h").build("k.cl", "", ["-w"])


@needs_pocl_of_pypi
def test_the_driver_of_pypi_takes_programs_with_declarations_of_their_own():
    device = find_device("")
    assert Path(device.driver.header).name == builtin_functions.HEADER
    assert any(driver.header == device.driver.header for driver in installed_drivers.installed())


@needs_pocl_of_pypi
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("#define min(a, b) 0", "computes wrongly: a small kernel is"),
        ("#error no", "fails at a small kernel"),
        (ABORT, "its trial ended before that was tried"),
    ],
)
def test_a_driver_is_used_without_its_header_where_that_fails(
    tmp_path, monkeypatch, caplog, line, why
):
    """The library's own builds do not see that header: the driver works."""
    monkeypatch.setenv(cache_folder.CACHE_VARIABLE, str(tmp_path / "cache"))
    good = Path(find_device("").driver.header)
    for name in ("opencl-c.h", "opencl-c-base.h"):
        shutil.copy(good.with_name(name), tmp_path)
    header = tmp_path / "opencl-c.h"
    header.write_text(f"{header.read_text()}\n{line}\n")
    driver = replace(broken_pocl(tmp_path, ""), header=str(header))
    with caplog.at_level("INFO"):
        tried = driver_trial.judge_driver(driver)
    assert tried.verdict.good
    assert not tried.driver.header
    (told,) = [r.getMessage() for r in caplog.records if "parses declarations of" in r.getMessage()]
    assert why in told


@needs_pocl_of_pypi
def test_kernels_are_the_same_with_declarations_of_their_own(tmp_path, monkeypatch):
    """What clang makes of the programs of all families, in both forms."""
    device, keys = find_device(""), {}
    get = ProgramCache.get

    def noting(self, wanted):
        wanted = list(wanted)
        keys.update(dict.fromkeys(wanted))
        return get(self, wanted)

    monkeypatch.setattr(ProgramCache, "get", noting)
    for family in kernel_checks.CHECKS:
        own_device.compile_model(kernel_checks.sample(family, None).model(), device.id, {})
    assert len(keys) > len(kernel_checks.CHECKS)
    programs = [(key.source(), key.build_options()) for key in keys]
    (tmp_path / "programs.json").write_text(json.dumps(programs))
    drivers = driver_trial.loaded_drivers()
    for one in drivers:
        one["driver"] |= {"cache": str(tmp_path)}  # where PoCL keeps what clang made
    code = (
        f"from tests.device.opencl.drivers import test_opencl_builtin_functions as this\n"
        f"this.build_both_ways({drivers!r}, {str(tmp_path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pairs = zip(*(sorted(tmp_path.glob(f"*.{form}")) for form in FORMS), strict=True)
    same = [ir(whole) == ir(own) for whole, own in pairs]
    assert len(same) == len(programs)
    assert not [key for key, is_same in zip(keys, same, strict=True) if not is_same]


FORMS = ("whole", "own")


def build_both_ways(drivers, folder):
    """Leaves what clang makes of programs in a folder; to be called in a process of its own."""
    driver_trial.adopt(drivers)
    device, folder = find_device(""), Path(folder)
    for number, (source, options) in enumerate(json.loads((folder / "programs.json").read_text())):
        for form, header in zip(FORMS, ("", device.driver.header), strict=True):
            cache_with(header).build("k.cl", source, options)
            (made,) = folder.rglob("program.bc")
            made.rename(folder / f"{number:03}.{form}")


def ir(file):
    """LLVM IR, without the names of its files, and numbers that tell its types from another's."""
    text = str(llvmlite.binding.parse_bitcode(file.read_bytes()))
    return re.sub(r"(%(?:struct|union)\.\w+)\.\d+", r"\1", text).splitlines()[2:]
