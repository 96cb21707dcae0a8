"""Runs tests of device CPU on processors that are not here, emulated by qemu-user.

x86-64 processors run this Python; 64-bit ARM runs Debian's Python, unpacked into a folder beside
wheels of that architecture. Child processes are emulated too. onnxruntime judges outside of the
emulation (`tests/judge.py`), so this Python needs it; Debian's apt-get fetches the rest, and nobody
needs to be root. Kernels that are kept on disk this machine compiles, for the emulated processor
(`compiler.py`); what level portable has numba do is compiled under emulation.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PLUGINS = ("cpu", "hetero", "opencl", "ray", "reference", "virtual")
FOLDERS = ("core", "conformance", "serve", *(f"plugins/{name}" for name in PLUGINS))
DEBIAN = ("python3", "libgomp1", "libstdc++6")
"""What of Debian a foreign Python and its wheels need; apt-get adds what these depend on."""
NEWEST_GLIBC = 36
TESTS_NEED = ("hypothesis", "pytest", "pytest-timeout")

EXAMPLES = """\
examples:
  python tests/emulation/run.py                       short form on every processor
  python tests/emulation/run.py haswell arm64         short form on two of them
  python tests/emulation/run.py nehalem --full        all tests of device CPU: hours
  python tests/emulation/run.py arm64 tests/device/cpu/kernels/test_matmul.py -- -x -k gemm
  python tests/emulation/run.py arm64 --command -m partita.cli.main devices

processors:
"""


class Processor(NamedTuple):
    """A processor that qemu knows.

    Attributes:
        machine: Its architecture, as qemu and ``platform.machine()`` name it.
        model: Its name in qemu.
        about: What is tried with it.
    """

    machine: str
    model: str
    about: str


PROCESSORS = {
    "nehalem": Processor("x86_64", "Nehalem", "x86-64 without AVX: level portable"),
    "haswell": Processor("x86_64", "Haswell", "the first with AVX2 and FMA"),
    "skylake-server": Processor("x86_64", "Skylake-Server", "AVX-512 promised; qemu lacks it"),
    "cortex-a57": Processor("aarch64", "cortex-a57", "64-bit ARM of 2012: NEON and no more"),
    "neoverse-n1": Processor("aarch64", "neoverse-n1", "Graviton 2: sdot and half precision"),
    "arm64": Processor("aarch64", "max", "64-bit ARM with all that qemu knows: i8mm and bf16"),
}


class EmulationError(Exception):
    """What stops this script, and what to do."""


def main(arguments: Sequence[str]) -> int:
    given, extra = split_arguments(arguments)
    options = _parser().parse_intermixed_args(given)
    names = [name for name in options.what if name in PROCESSORS]
    tests = [name for name in options.what if name not in PROCESSORS]
    try:
        _check(tests)
        folder = Path(options.folder).expanduser().resolve()
        failed = []
        for name in names or PROCESSORS:
            began = time.monotonic()
            python = Python(name, folder)
            python.prepare()
            status = run_tests(python, tests, extra, options)
            if status:
                failed.append(name)
            verdict = f"failed ({status})" if status else "passed"
            say(f"== {name}: {verdict} after {time.monotonic() - began:.0f} s")
    except EmulationError as error:
        say(f"error: {error}")
        return 2
    return 1 if failed else 0


def say(text: str) -> None:
    """Prints a line at once, so that it stands before what child processes print."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments for this script, and those behind ``--`` or ``--command``."""
    given = list(arguments)
    for mark, kept in (("--command", 1), ("--", 0)):
        if mark in given:
            at = given.index(mark)
            return given[: at + kept], given[at + 1 :]
    return given, []


def _parser() -> argparse.ArgumentParser:
    about = "".join(f"  {name:15} {p.about}\n" for name, p in PROCESSORS.items())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES + about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("what", nargs="*", metavar="PROCESSOR|TEST", help="processors, and tests for pytest")
    add("--full", action="store_true", help="all tests of device CPU, not the short form")
    add("--folder", default="~/.cache/partita-emulation", help="where all this is kept")
    add("--command", action="store_true", help="what follows is run by each emulated Python")
    return parser


def _check(tests: Iterable[str]) -> None:
    if platform.system() != "Linux":
        raise EmulationError(f"qemu-user emulates programs of Linux; this is {platform.system()}.")
    for test in tests:
        if not Path(test.partition("::")[0]).exists():
            known = ", ".join(PROCESSORS)
            raise EmulationError(f"'{test}' is neither a file nor a processor ({known}).")
    if importlib.util.find_spec("onnxruntime") is None:
        raise EmulationError(
            f"onnxruntime judges, and {sys.executable} does not have it. Run this script by the "
            "Python of an environment with partita[dev]."
        )


def run_tests(python: Python, tests: Sequence[str], extra: Sequence[str], options: object) -> int:
    """Runs what is asked for; 0 if all is well."""
    if options.command:  # type: ignore[attr-defined]
        return python.run(*extra)
    say(f"== {python.name}: {python.processor.about}")
    if status := python.run(HERE / "small_network.py"):
        return status
    chosen = tomllib.loads((HERE / "selection.toml").read_text())
    left_out = [
        one
        for one in chosen.get("left_out", [])
        if python.name in one.get("processors", PROCESSORS)
    ]
    for one in left_out:
        say(f"left out: {one['test']}\n  {one['why']}")
    if not tests:
        tests = ["tests/device/cpu"] if options.full else chosen["short"]["tests"]  # type: ignore[attr-defined]
    patient = ("--timeout", "3000", "-p", "no:cacheprovider", "-q")
    deselected = [f"--deselect={one['test']}" for one in left_out]
    return python.run("-m", "pytest", *patient, *deselected, *tests, *extra)


class Python:
    """A Python that runs on an emulated processor."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.processor = PROCESSORS[name]
        self._shared = folder
        self._home = folder / name

    def prepare(self) -> None:
        """Makes it, if it is not there as it should be."""
        if self.processor.machine == "x86_64":
            if platform.machine() != "x86_64":
                raise EmulationError(
                    f"'{self.name}' runs this machine's Python, which is {platform.machine()}."
                )
            base = Path(
                sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}"
            )
            places = [Path(place) for place in sys.path if place.endswith("site-packages")]
            self._make_venv(base, places, [])
        else:
            root = Foreign(self.processor.machine, self._shared)
            root.prepare()
            self._make_venv(root.python, [root.site], ["-L", str(root.root)])

    def run(self, *arguments: str | Path) -> int:
        """Runs it in the repository; returns how it ended."""
        command = [str(self._home / "bin" / "python"), *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, env=self._environment(), check=False).returncode

    def _environment(self) -> dict[str, str]:
        """What it finds in its environment: folders of its own, and who judges."""
        cache = self._home / "cache"
        environment = {
            **os.environ,
            "PARTITA_CACHE_DIR": str(cache),
            "NUMBA_CACHE_DIR": str(cache / "numba"),
            "PARTITA_TEST_JUDGE": sys.executable,
            "PYTHONPYCACHEPREFIX": str(
                self._shared / "bytecode"
            ),  # the sources' folders stay clean
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment.pop("PYTHONPATH", None)
        return environment

    def _make_venv(self, base: Path, places: Sequence[Path], options: Sequence[str]) -> None:
        """A virtual environment whose interpreter is a script: what `sys.executable` names then."""
        version = base.name.removeprefix("python")
        site = self._home / "lib" / base.name / "site-packages"
        python = self._home / "bin" / "python"
        for folder in (site, python.parent):
            folder.mkdir(parents=True, exist_ok=True)
        settings = (
            f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {version}\n"
        )
        (self._home / "pyvenv.cfg").write_text(settings)
        found = [*(ROOT / package for package in FOLDERS), *places]
        (site / "places.pth").write_text("".join(f"{place}\n" for place in found))
        write_entry_points(site)
        qemu = find_qemu(self.processor.machine, self._shared)
        model = run_model(qemu, self.processor.model, base, options)
        words = [qemu, "-cpu", model, *options, "-0", '"$0"', base, '"$@"']
        emulated = f"exec {' '.join(map(str, words))}\n"
        python.write_text(f"#!/bin/sh\n{emulated}")
        python.chmod(0o755)
        self._let_this_machine_compile(python, emulated)

    def _let_this_machine_compile(self, python: Path, emulated: str) -> None:
        """Has what the interpreter starts to compile kernels run here."""
        compiler, target = HERE / "compiler.py", self._home / "target.json"
        command = [python, compiler, "describe"]
        asked = subprocess.run(command, env=self._environment(), capture_output=True, check=False)
        if asked.returncode:
            raise EmulationError(f"{python} fails: {asked.stderr.decode().strip()}")
        target.write_bytes(asked.stdout)
        folders = ":".join(str(ROOT / package) for package in FOLDERS)
        words = ["exec", sys.executable, "-P", "-W", "ignore", compiler, target, '"$@"']
        python.write_text(
            "#!/bin/sh\n"
            'case "$*" in *"-m partita_cpu.runtime.compile_worker "*)\n'
            f"  export PYTHONPATH={folders}\n  {' '.join(map(str, words))};;\n"
            f"esac\n{emulated}"
        )


class Foreign:
    """Debian's Python and PyPI's wheels of another architecture, in a folder."""

    def __init__(self, machine: str, folder: Path) -> None:
        self.machine = machine
        self._debian = {"aarch64": "arm64", "x86_64": "amd64"}[machine]
        self._home = folder / f"debian-{self._debian}"
        self.root = self._home / "root"
        self.site = self._home / "site"

    @property
    def python(self) -> Path:
        """The interpreter, by the name that says its version."""
        here = self.root / "usr" / "bin"
        return here / (here / "python3").readlink().name

    def prepare(self) -> None:
        """Fetches all of it, if that was never done, or other packages are needed now."""
        wanted = [*DEBIAN, *_requirements()]
        stamp = self._home / "stamp"
        found = hashlib.sha256("\n".join(wanted).encode()).hexdigest()
        if stamp.exists() and stamp.read_text() == found:
            return
        shutil.rmtree(self._home, ignore_errors=True)
        self.root.mkdir(parents=True)
        say(f"== fetching Debian's Python for {self._debian}")
        for package in _download(self._home / "apt", self._debian, DEBIAN):
            run_machine("dpkg", "-x", package, self.root)
        say(f"== fetching wheels for {self.machine}")
        version = self.python.name.removeprefix("python")
        platforms = [f"manylinux_2_{n}_{self.machine}" for n in range(NEWEST_GLIBC, 16, -1)]
        named = [word for name in platforms for word in ("--platform", name)]
        named += ["--platform", f"manylinux2014_{self.machine}"]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
        pip += ["--python-version", version, "--implementation", "cp", "--only-binary=:all:"]
        run_machine(*pip, *named, "--target", self.site, *_requirements())
        stamp.write_text(found)


def _requirements() -> list[str]:
    """What the project needs, and its tests without those that judge or read the sources."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tools = [
        line
        for line in project["optional-dependencies"]["dev"]
        if re.match(r"[\w-]+", line)[0] in TESTS_NEED
    ]
    return [*project["dependencies"], *tools]


def write_entry_points(site: Path) -> None:
    """Lets the project be found as an installed one; its sources are used where they stand."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def find_qemu(machine: str, folder: Path) -> Path:
    """The emulator: the system's, or Debian's, unpacked."""
    for name in (f"qemu-{machine}", f"qemu-{machine}-static"):
        if found := shutil.which(name):
            return Path(found)
    home = folder / "qemu"
    found = home / "usr" / "bin" / f"qemu-{machine}-static"
    if not found.exists():
        say("== fetching qemu-user-static")
        own = {"aarch64": "arm64", "x86_64": "amd64"}[platform.machine()]
        for package in _download(folder / "apt-qemu", own, ["qemu-user-static"]):
            if package.name.startswith("qemu-user-static"):
                run_machine("dpkg", "-x", package, home)
    return found


def run_model(qemu: Path, model: str, base: Path, options: Sequence[str]) -> str:
    """A processor without the features that qemu would complain about in every process."""
    command = [qemu, "-cpu", model, *options, base, "-c", "pass"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise EmulationError(f"{qemu} cannot run {base} as {model}: {ended.stderr.strip()}")
    lacking = re.findall(r"doesn't support requested feature: [\w.:]+\.([\w-]+) \[", ended.stderr)
    return ",".join([model, *(f"-{feature}" for feature in dict.fromkeys(lacking))])


def _download(folder: Path, architecture: str, packages: Sequence[str]) -> list[Path]:
    """Debian's packages for an architecture with all that they depend on; installs nothing."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise EmulationError("apt-get and dpkg fetch what is needed; this system has none.")
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "Dir::State::Lists": folder / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": folder / "cache",
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in settings.items())]
    run_machine(*apt, "update")
    run_machine(*apt, "--download-only", "-y", "--no-install-recommends", "install", *packages)
    return sorted((folder / "cache" / "archives").glob("*.deb"))


def run_machine(*command: str | Path) -> None:
    ended = subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, check=False)
    if ended.returncode:
        raise EmulationError(f"this failed: {' '.join(map(str, command))}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
