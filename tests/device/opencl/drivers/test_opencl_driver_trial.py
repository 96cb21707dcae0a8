"""Drivers are tried by another process before this one loads them; here, drivers that fail."""

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyopencl as cl
import pytest

from partita.storage import cache_folder
from partita_opencl.device.device import Device, find_device
from partita_opencl.drivers import (
    driver_trial,
    driver_view,
    installed_drivers,
    trial_process,
    verdicts,
)
from partita_opencl.drivers.driver_trial import Tried
from partita_opencl.drivers.installed_drivers import Driver
from partita_opencl.drivers.verdicts import Verdict

from .broken_drivers import (
    ABORT,
    WRONG,
    broken_pocl,
    hanging_include,
    library_that,
    needs_pocl_of_pypi,
)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """No verdict is known, and a folder to keep some in; no driver but those of the system."""
    monkeypatch.setenv(cache_folder.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv("OCL_ICD_FILENAMES", raising=False)


def test_a_driver_that_works_passes_and_its_versions_are_known():
    verdict = driver_trial.driver_verdict(find_device("").driver)
    assert verdict.good
    version = " ".join(find_device("").handle.platform.version.split())
    assert version in verdict.facts["versions"]
    assert not verdict.facts.get("vectors")


def test_a_driver_that_aborts_while_it_is_loaded(tmp_path):
    verdict = driver_trial.driver_verdict(library_that(tmp_path, "aborts"))
    assert verdict.reason.endswith("while it was loaded")
    assert "ended by SIG" in verdict.reason  # SIGILL or SIGTRAP


def test_a_driver_that_ends_its_process_leaves_no_folder(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    assert not driver_trial.driver_verdict(library_that(tmp_path, "aborts")).good
    assert not [*folder.iterdir()]


@pytest.mark.parametrize("cache", ["cache", "", "cache/file"])
def test_drivers_are_found_whatever_is_kept_on_disk(tmp_path, monkeypatch, cache):
    """Nothing, what was damaged, and nothing since nothing can be kept."""
    monkeypatch.setenv(cache_folder.CACHE_VARIABLE, cache and str(tmp_path / cache))
    code = (
        "from partita_opencl.drivers.installed_drivers import installed, platforms\n"
        "print([one.name for one in platforms(installed())])"
    )
    printed = []
    for _ in range(2):
        for file in tmp_path.rglob("*.icd"):
            file.write_text("/nowhere\n")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert "[" in printed[0], done.stderr


def test_a_driver_that_hangs_while_it_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(driver_trial, "SECONDS", 4.0)
    verdict = driver_trial.driver_verdict(library_that(tmp_path, "hangs"))
    assert verdict.reason == "it said nothing for 4 s, while it was loaded"


@needs_pocl_of_pypi
def test_a_driver_that_aborts_while_it_builds_a_kernel(tmp_path):
    verdict = driver_trial.driver_verdict(broken_pocl(tmp_path, ABORT))
    assert "ended by SIGABRT" in verdict.reason
    assert "llvm_fatal_error" in verdict.reason  # what it said last
    assert verdict.reason.endswith("while its devices built and ran a small kernel")


@needs_pocl_of_pypi
def test_a_driver_that_hangs_while_it_builds_a_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr(driver_trial, "SECONDS", 8.0)
    verdict = driver_trial.driver_verdict(broken_pocl(tmp_path, hanging_include(tmp_path)))
    assert verdict.reason.endswith("for 8 s, while its devices built and ran a small kernel")


@needs_pocl_of_pypi
def test_a_driver_that_computes_wrongly(tmp_path):
    broken = broken_pocl(tmp_path, WRONG)
    forms = [broken, *driver_view.views(broken)]  # some processors can run but one of them
    verdicts_of_forms = [driver_trial.driver_verdict(form) for form in forms]
    assert not any(verdict.good for verdict in verdicts_of_forms)
    reasons = [verdict.reason for verdict in verdicts_of_forms]
    assert any("computes wrongly: a small kernel is" in reason for reason in reasons), reasons


def test_a_driver_that_cannot_be_opened(tmp_path):
    verdict = driver_trial.driver_verdict(Driver("gone.icd", str(tmp_path / "gone.so"), "gone.icd"))
    assert verdict.reason.startswith("no platform of it can be listed")
    assert verdict.file is not None


def test_no_fault_is_kept_if_the_list_of_drivers_was_changed_meanwhile(tmp_path, monkeypatch):
    def truncate_and_look():
        (file,) = Path(os.environ["OCL_ICD_VENDORS"]).iterdir()
        file.write_bytes(b"")
        raise cl.LogicError("PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(cl, "get_platforms", truncate_and_look)
    gone = vars(Driver("gone.icd", str(tmp_path / "gone.so"), "gone.icd"))
    answers = []
    with pytest.raises(OSError, match="were changed while drivers were loaded"):
        driver_trial.main({"driver": gone, "vectors": True}, answers.append)
    assert not answers  # and what a trial itself raises is not kept


@needs_pocl_of_pypi
def test_a_driver_that_lacks_vectors_of_16_is_loaded_and_its_other_forms_are_tried(tmp_path):
    header = f"#ifdef VECTORS\n{ABORT}\n#endif"
    tried = driver_trial.judge_driver(broken_pocl(tmp_path, header))
    assert tried.verdict.good
    assert "SIGABRT" in tried.verdict.facts["vectors"]
    folder = cache_folder.cache_folder(verdicts.KIND)
    kept = (json.loads(cache_folder.read_sealed(file)) for file in folder.iterdir())
    subjects = {verdict["subject"] for verdict in kept}
    assert "OpenCL driver broken.icd with built-in functions of avx2" in subjects


@needs_pocl_of_pypi
def test_a_form_of_pocl_with_other_built_in_functions_is_a_driver_of_its_own(tmp_path):
    """It is loaded and lists its devices. What it computes depends on the processor: on some of
    Intel's with AVX-512, functions of AVX2 take vectors of 16 otherwise than they are given."""
    (view, *_) = driver_view.views(broken_pocl(tmp_path, ""))
    assert view.form == "built-in functions of avx2"
    library = Path(view.binary)
    data = library.parent.parent.parent / "pocl_binary_distribution/.libs/share/pocl"
    (high,) = data.glob("kernel-*-avx512.bc")
    assert high.resolve().name.endswith("-avx2.bc")
    verdict = driver_trial.driver_verdict(view)
    assert verdict.facts["versions"]
    assert verdict.good or verdict.reason.endswith("while its devices built and ran a small kernel")
    assert list(Path(view.cache).iterdir())  # programs of another form are kept apart


@needs_pocl_of_pypi
@pytest.mark.parametrize("cache", ["", "cache/file"])
def test_where_nothing_can_be_kept_pocl_has_other_forms_too(tmp_path, monkeypatch, cache):
    """Without them, compilers of processors with AVX-512 work on vectors of 16 for minutes."""
    tmp_path.joinpath("cache").write_text("")
    monkeypatch.setenv(cache_folder.CACHE_VARIABLE, cache and str(tmp_path / cache))
    (view, *_) = driver_view.views(broken_pocl(tmp_path, ""))
    assert view.form == "built-in functions of avx2"
    assert Path(view.binary).is_file()
    assert Path(view.cache).is_dir()


def test_other_drivers_have_no_other_forms(tmp_path):
    assert not list(driver_view.views(Driver("a.icd", "liba.so.1", "a.icd")))
    assert not list(driver_view.views(library_that(tmp_path, "aborts")))


def test_a_verdict_is_read_from_disk_the_second_time(tmp_path, monkeypatch):
    driver = library_that(tmp_path, "aborts")
    first = driver_trial.driver_verdict(driver)
    assert first.file.is_file()
    monkeypatch.setattr(driver_trial, "try_driver", None)  # a second trial would fail
    assert driver_trial.driver_verdict(driver) == first


def test_another_library_is_tried_anew(tmp_path):
    driver = library_that(tmp_path, "aborts")
    first = driver_trial.driver_verdict(driver)
    Path(driver.binary).write_bytes(b"no library at all")
    assert driver_trial.driver_verdict(driver).reason != first.reason


def test_verdicts_are_bounded_and_those_in_use_stay(tmp_path, monkeypatch):
    monkeypatch.setenv(cache_folder.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(verdicts, "FILES", 4)
    kept = [verdicts.write("a driver", [str(n)], Verdict("aborts")).file for n in range(4)]
    for age, file in enumerate(kept):
        os.utime(file, (0, 1000 - age))
    assert verdicts.read("a driver", ["3"]).reason == "aborts"  # the one used longest ago
    verdicts.write("a driver", ["4"], Verdict())
    found = [n for n in range(5) if verdicts.read("a driver", [str(n)]) is not None]
    assert found == [0, 3, 4]


def test_a_verdict_that_was_copied_over_another_of_its_subject_is_none():
    of_old = verdicts.write("a driver", ["version 1"], Verdict("aborts"))
    of_new = verdicts.write("a driver", ["version 2"], Verdict())
    of_old.file.write_bytes(of_new.file.read_bytes())
    assert verdicts.read("a driver", ["version 1"]) is None
    assert verdicts.read("a driver", ["version 2"]).good


def test_a_fault_that_is_found_where_files_have_no_room_is_not_kept():
    resource = pytest.importorskip("resource", reason="no limits of files on this system")
    found = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, found[1]))
    try:
        assert verdicts.write("a driver", [], Verdict("fails to build")).file is None
        assert verdicts.write("a driver", ["another"], Verdict()).file is not None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, found)
    assert verdicts.read("a driver", []) is None
    assert verdicts.write("a driver", [], Verdict("fails to build")).file is not None


@pytest.mark.parametrize("damage", ["cut", "empty", "list", "binary", "foreign"])
def test_damaged_verdicts_are_no_verdicts(tmp_path, monkeypatch, damage):
    driver = library_that(tmp_path, "aborts")
    first = driver_trial.driver_verdict(driver)
    good = first.file.read_bytes()
    bad = {
        "cut": good[:40],
        "empty": b"",
        "list": b"[1, 2]",
        "binary": bytes(range(256)),
        "foreign": good.replace(b"broken.icd", b"another.icd"),
    }
    first.file.write_bytes(bad[damage])
    again = Verdict("tried again")
    monkeypatch.setattr(driver_trial, "try_driver", lambda *_, **__: (again, True))
    assert driver_trial.driver_verdict(driver).reason == "tried again"
    assert (
        driver_trial.driver_verdict(driver).reason == "tried again"
    )  # it took the damaged one's place


def test_what_happened_by_chance_is_not_kept(tmp_path, monkeypatch):
    chance = Verdict("the process that tried it ended by SIGKILL")
    monkeypatch.setattr(driver_trial, "try_driver", lambda *_, **__: (chance, False))
    assert driver_trial.driver_verdict(library_that(tmp_path, "aborts")).reason == chance.reason
    assert not list(cache_folder.cache_folder(verdicts.KIND).iterdir())


@pytest.mark.parametrize(
    ("plain", "kept"),
    [
        (("Final linking of kernel trial failed", True), True),
        (("it is killed", True), True),
        (("it is killed", False), False),
    ],
    ids=["which lacks a linker", "which fails", "which fails by chance"],
)
def test_a_second_trial_without_vectors_has_its_say(tmp_path, monkeypatch, plain, kept):
    reason, lasts = plain

    def answer(_driver, *, vectors):
        facts = {"versions": ["PoCL"]}
        return (Verdict("SIGABRT", facts), True) if vectors else (Verdict(reason, facts), lasts)

    monkeypatch.setattr(driver_trial, "try_driver", answer)
    verdict = driver_trial.driver_verdict(library_that(tmp_path, "aborts"))
    assert verdict.reason == (reason if "linking" in reason else "SIGABRT")
    assert (verdict.file is not None) == kept


def test_where_no_process_can_be_started_it_is_said_what_to_do(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(driver_trial, "TrialProcess", refuse)
    tried = driver_trial.judge_driver(library_that(tmp_path, "aborts"))
    assert "; let the process have more, by RLIMIT_NPROC" in tried.explanation
    assert "remove it" not in tried.explanation  # nothing is known of the driver
    assert tried.verdict.file is None


def test_a_driver_that_gets_no_threads_is_not_to_blame(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    def list_none():
        raise cl.LogicError("clGetDeviceIDs failed: DEVICE_NOT_AVAILABLE")

    request = {"driver": vars(find_device("").driver), "vectors": True}
    monkeypatch.setattr(cl, "get_platforms", list_none)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    answers = []
    driver_trial.main(request, answers.append)
    (answer,) = answers
    assert answer["fault"].startswith("the system starts no threads (no platform of it can be")
    assert answer["advice"].startswith("let the process have more, by RLIMIT_NPROC")
    assert answer["facts"]["untried"]


@needs_pocl_of_pypi
@pytest.mark.parametrize(("cache", "of_pocl"), [("cache", ""), ("", ""), ("", "pocl")])
def test_where_drivers_can_keep_nothing_they_get_a_folder(tmp_path, cache, of_pocl):
    """As in a container whose home is read-only, where PoCL lists no device."""
    (tmp_path / "home").touch()  # no folder can be made in it, not even by root
    (tmp_path / "temporary").mkdir()
    code = (
        "import os\n"
        "from partita_opencl.drivers import driver_trial\n"
        "driver_trial.prepare = lambda worker: None\n"  # nothing is tried behind drivers
        "print([one.verdict.reason for one in driver_trial.tried()], flush=True)\n"
    )
    home, temporary = str(tmp_path / "home"), str(tmp_path / "temporary")
    kept = cache and str(tmp_path / cache)
    environment = {"HOME": home, "XDG_CACHE_HOME": f"{home}/x", "TMPDIR": temporary}
    given = of_pocl and str(tmp_path / of_pocl)
    environment |= {cache_folder.CACHE_VARIABLE: kept, "POCL_CACHE_DIR": given}
    if not cache:  # else the next process would read this one's verdict
        assert run(code + "os._exit(0)", **environment).strip() == "['']"
    assert run(code, **environment).strip() == "['']"
    assert not [*(tmp_path / "temporary").iterdir()]  # not even what the first one left


@pytest.mark.parametrize("module", ["pyopencl", "partita_opencl.drivers.driver_trial"])
def test_what_the_environment_lacks_is_no_verdict_on_a_driver(monkeypatch, module):
    missing = f"import sys\nsys.modules[{module!r}] = None\n"
    start = trial_process.START.replace("import sys\n", missing)
    driver = find_device("").driver
    with monkeypatch.context() as patch:
        patch.setattr(trial_process, "START", start)
        assert f"import of {module} halted" in driver_trial.driver_verdict(driver).reason
    assert driver_trial.driver_verdict(driver).good


def test_without_a_cache_folder_drivers_are_tried_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv(cache_folder.CACHE_VARIABLE, "")
    verdict = driver_trial.driver_verdict(library_that(tmp_path, "aborts"))
    assert verdict.reason
    assert verdict.file is None


def test_what_is_said_of_a_driver_names_file_reason_and_cure():
    driver = Driver("bad.icd", "/opt/libbad.so", "/etc/OpenCL/vendors/bad.icd")
    tried = Tried(driver, Verdict("it hangs", file=Path("/cache/v.json")))
    assert tried.explanation == (
        "the driver of '/etc/OpenCL/vendors/bad.icd' is not loaded: it hangs. Update or remove it; "
        "to try it again, delete '/cache/v.json'. docs/opencl-drivers.md lists drivers by machine."
    )


def run(code, **environment):
    """A program of a user, which must not die."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


DEVICES = "from partita.cli.main import main; raise SystemExit(main(['devices', '--json']))"


@needs_pocl_of_pypi
def test_a_program_goes_on_without_a_driver_that_aborts(tmp_path):
    library_that(tmp_path, "aborts")
    found = json.loads(run(DEVICES, OCL_ICD_VENDORS=str(tmp_path)))
    assert "OPENCL.0" in found["devices"]  # of the driver that pyopencl brings
    reason = found["unavailable"]["OpenCL driver broken.icd"]
    assert "while it was loaded" in reason
    assert str(tmp_path / "broken.icd") in reason


def test_a_program_goes_on_with_no_driver_but_a_broken_one(tmp_path):
    library_that(tmp_path, "aborts")
    found = json.loads(run(DEVICES, OCL_ICD_VENDORS=str(tmp_path / "broken.icd")))
    assert not [name for name in found["devices"] if name.startswith("OPENCL")]
    assert "while it was loaded" in found["unavailable"]["OPENCL"]


def test_the_environment_is_as_it_was():
    before = dict(os.environ)
    with installed_drivers.changed_environment({"OCL_ICD_VENDORS": "/x", "PATH": None}):
        assert os.environ["OCL_ICD_VENDORS"] == "/x"
        assert "PATH" not in os.environ
    assert dict(os.environ) == before


def test_drivers_are_found_as_the_loader_finds_them(tmp_path, monkeypatch):
    for name, library in (("b.icd", "libb.so"), ("a.icd", "/opt/liba.so"), ("note.txt", "no")):
        (tmp_path / name).write_text(f"{library}\n")
    (tmp_path / "empty.icd").write_text("")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    found = [driver.binary for driver in installed_drivers.installed()]
    assert found[:2] == ["/opt/liba.so", "libb.so"]
    assert all("pyopencl" in library for library in found[2:])
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path / "b.icd"))
    assert [driver.binary for driver in installed_drivers.installed()] == ["libb.so"]
    monkeypatch.setenv("OCL_ICD_VENDORS", "/opt/libc.so")
    assert installed_drivers.installed() == [Driver("libc.so", "/opt/libc.so", "/opt/libc.so")]
    monkeypatch.setenv("OCL_ICD_FILENAMES", "/opt/libd.so")
    assert [driver.name for driver in installed_drivers.installed()] == ["libd.so", "libc.so"]


def test_a_library_that_stands_in_several_places_is_one_driver(tmp_path, monkeypatch):
    library = tmp_path / "libone.so.1.2"
    library.write_bytes(b"")
    (tmp_path / "libone.so.1").symlink_to(library)
    (tmp_path / "one.icd").write_text(f"{library}\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    monkeypatch.setenv("OCL_ICD_FILENAMES", "libone.so.1")
    assert [one.binary for one in installed_drivers.installed() if "libone" in one.binary] == [
        "libone.so.1"
    ]


def test_intels_driver_of_pypi_is_found_where_it_lies(tmp_path, monkeypatch):
    library = tmp_path / "lib/libintelocl.so"
    library.parent.mkdir()
    library.write_bytes(b"")
    info = tmp_path / "intel_opencl_rt-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: intel-opencl-rt\nVersion: 1.0\n")
    (info / "RECORD").write_text("lib/libintelocl.so,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("OCL_ICD_VENDORS", raising=False)
    assert Driver("intel-opencl-rt", str(library), str(library)) in installed_drivers.installed()


def test_contexts_are_left_at_exit():
    """PoCL aborts when a context goes in which a build has failed; nothing may let it go."""
    import pyopencl as cl

    first = find_device("")
    device = Device(99, first.handle, first.driver)
    assert device.context is device.context
    ordinary = cl.Context([first.handle])
    holder = [ordinary]
    del ordinary
    kept = [device.context]
    del device
    assert sys.getrefcount(kept[0]) == sys.getrefcount(holder[0]) + 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
def test_a_verdict_of_a_process_with_little_memory_holds_for_no_other():
    """Drivers fail where memory may not be had, and must not be given up for it."""
    code = """
import resource
from partita_opencl.drivers.installed_drivers import Driver
driver = Driver("a driver", "", "libOpenCL.so.1")
before = driver.marks()
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
assert driver.marks() != before
"""
    subprocess.run([sys.executable, "-c", code], check=True)
