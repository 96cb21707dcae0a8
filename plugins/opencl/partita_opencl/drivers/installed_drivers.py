"""The OpenCL drivers that are installed, without loading any, and the loader that loads some.

An OpenCL loader finds drivers by ``.icd`` files, each of which names a library. Those of Linux
(that in pyopencl's wheels, ocl-icd, Khronos's) read a folder that the environment names, so that
each driver can be loaded alone. Elsewhere the loader is taken as it is: one driver, for us.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from partita.storage.cache_folder import (
    CACHES_OF_USERS,
    cache_folder,
    keep_private,
    read_private,
    users_caches,
)
from partita.storage.temporary_folder import TemporaryFolder
from partita.system.memory_limits import memory_limits
from partita.system.processor_identity import processor_identity, processor_name
from partita_opencl.drivers.builtin_functions import header_beside
from partita_opencl.drivers.processor_name import name_processors
from partita_opencl.linking.linker_folder import SEARCHED

_VENDORS = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")
_FILENAMES = "OCL_ICD_FILENAMES"
_HOME = "PYOPENCL_HOME"
_SYSTEM_FOLDER = "/etc/OpenCL/vendors"
_INTEL = ("intel-opencl-rt", "libintelocl.so")
"""The package that brings Intel's driver for CPUs; its .icd file holds a path never filled in."""

_LIBRARIES = (
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"),
    *("/usr/local/lib", "/usr/local/nvidia/lib64"),
)
"""Where libraries are looked for to know their version; the loader searches by itself."""

LOADER = "the system's OpenCL loader"
"""The only driver where drivers cannot be told apart."""


@dataclass(frozen=True)
class Driver:
    """An installed driver.

    Attributes:
        name: What it is called: the name of its .icd file, or the library's.
        binary: The library that the loader opens; empty for the loader as it is.
        origin: The file that says so.
        form: What was changed of it; empty if it is loaded as it is.
        cache: Folder for what the driver itself keeps, if not its own choice.
        linker: Folder with the linker that it is to start, if not the system's.
        header: PoCL's declarations of built-in functions, for programs that bring those they need;
            empty if there is none, or if its trial said that it takes no such programs.
    """

    name: str
    binary: str
    origin: str
    form: str = ""
    cache: str = ""
    linker: str = ""
    header: str = ""

    def marks(self) -> list[str]:
        """What tells this driver, as it is installed now, on this machine from others.

        Limits on memory do: a driver that fails by them is none that fails.
        """
        files = [self.origin, _find_library(self.binary)]
        if self.header:
            files.append(self.header)
        return [
            self.name,
            self.binary,
            self.form,
            self.linker,
            *map(_stamp, files),
            *machine_marks(),
            *(f"{name} {most}" for name, most in memory_limits().items()),
        ]


@functools.cache
def machine_marks() -> tuple[str, ...]:
    """What tells this processor, system and binding from others."""
    processor = processor_identity() or processor_name()
    return processor, platform.system(), platform.release(), _version("pyopencl")


def installed() -> list[Driver]:
    """The drivers that the loader would load now, the user's and the system's first.

    As for the loader, ``OCL_ICD_VENDORS`` names another folder than the system's, or one driver.
    """
    if not sys.platform.startswith("linux"):
        return [Driver("OpenCL", "", LOADER)]
    cache = _room_for_drivers()
    return [
        replace(driver, cache=cache, header=header_beside(_library(driver)))
        for driver in _installed()
    ]


def _installed() -> list[Driver]:
    given = next((os.environ[name] for name in _VENDORS if os.environ.get(name)), "")
    place = Path(given or _SYSTEM_FOLDER)
    found = [_from_library(name) for name in os.environ.get(_FILENAMES, "").split(":") if name]
    if given and not place.is_dir():
        if place.suffix != ".icd":
            return [*found, _from_library(given)]
        system = Path(_SYSTEM_FOLDER) / given
        files = [place if place.is_file() or "/" in given else system]
        return [*found, *_from_files(files)]
    found += _from_files(_icd_files(place))
    if not given:
        found += _from_package(*_INTEL)
    package = importlib.util.find_spec("pyopencl")
    for folder in () if package is None else package.submodule_search_locations or ():
        found += _from_files(_icd_files(Path(folder) / ".libs"))
    # The same library may stand in several places, by its name and by its path.
    return list({_library(driver): driver for driver in reversed(found)}.values())[::-1]


def _room_for_drivers() -> str:
    """Where drivers may keep what they build if they cannot in the user's own caches; or empty.

    PoCL lists no device where it can write nothing, as in a container whose home is read-only.
    """
    if _is_writable(users_caches()):
        return ""
    given = os.environ.get("POCL_CACHE_DIR")
    if given:  # pyopencl's index goes there, too
        return given
    return str(kept_folder("drivers") or "")


def kept_folder(kind: str) -> Path | None:
    """A folder for what drivers need on disk; one of this process where nothing can be kept.

    Args:
        kind: What for, as ``"views"``.

    Returns:
        The folder; ``None`` if none can be made. One of this process is removed with it.
    """
    kept = cache_folder(f"opencl/{kind}")
    if kept is not None:
        return kept
    try:
        folder = _temporary_folder().path / kind
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return folder


@functools.cache
def _temporary_folder() -> TemporaryFolder:
    return TemporaryFolder("partita-opencl-")


def platforms(drivers: Sequence[Driver]) -> list[Any]:
    """The platforms of some drivers, in their order; loads these and no others.

    In a process that has asked OpenCL for something before, these are the platforms loaded then.

    Raises:
        ImportError: There is no pyopencl, or it finds no loader.
        pyopencl.Error: The loader finds no platform.
        OSError: The same, but what names the drivers was changed meanwhile: it is not their fault.
    """
    import pyopencl as cl

    _set_linkers([driver.linker for driver in drivers if driver.linker])
    if any(not driver.binary for driver in drivers):
        return list(cl.get_platforms())
    caches = [driver.cache for driver in drivers if driver.cache]
    with _listed([driver.binary for driver in drivers]) as folder:
        changes: dict[str, str | None] = {
            **dict.fromkeys(_VENDORS, folder),
            _FILENAMES: None,
            # pyopencl's loader adds the drivers below this folder, and crashes without it.
            _HOME: "",
        }
        if caches:
            changes["POCL_CACHE_DIR"] = caches[0]
        _open_index(caches)
        with changed_environment(changes):
            found = list(cl.get_platforms())
            for one in found if caches else ():
                with contextlib.suppress(cl.Error):  # asked again, where it is told
                    one.get_devices()  # reads where its cache is
    for one in found:
        name_processors(one)
    return found


def opencl_library() -> ctypes.CDLL:
    """The loader that pyopencl itself is linked to: another one has other handles.

    Raises:
        OSError: It cannot be opened.
    """
    import pyopencl as cl

    return ctypes.CDLL(cl._cl.__file__)


def _set_linkers(folders: Sequence[str]) -> None:
    """Has compilers of this process and of those that it starts look for linkers in folders first.

    Drivers look whenever they have built a kernel.
    """
    searched = [one for one in os.environ.get(SEARCHED, "").split(os.pathsep) if one]
    missing = [folder for folder in dict.fromkeys(folders) if folder not in searched]
    if missing:
        os.environ[SEARCHED] = os.pathsep.join([*missing, *searched])


def _open_index(caches: Sequence[str]) -> None:
    """Has pyopencl open its index of kernels in one of these folders if it cannot in the user's.

    Otherwise it opens it when a kernel is made, and says so then if it can nowhere.
    """
    if not caches or _is_writable(users_caches()):
        return
    with contextlib.suppress(OSError), changed_environment({CACHES_OF_USERS: caches[0]}):
        importlib.import_module("pyopencl.invoker")


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def _listed(binaries: Sequence[str]) -> Iterator[str]:
    """A folder that names some libraries for a loader.

    It stays among what is kept on disk: a process that ends while drivers are loaded, as drivers
    have it end, could remove none.
    """
    contents = [f"{binary}\n".encode("utf-8", "surrogateescape") for binary in binaries]
    digest = hashlib.sha256(b"".join(contents)).hexdigest()[:16]
    kept = cache_folder(f"opencl/loaded/{digest}")
    if kept is not None and all(
        read_private(file) == content or keep_private(file, content)
        for file, content in _named(kept, contents)
    ):
        before = _states(kept)
        try:
            yield str(kept)
        except Exception as error:
            named = all(read_private(file) == content for file, content in _named(kept, contents))
            if named and _states(kept) == before:
                raise
            raise OSError(f"files in '{kept}' were changed while drivers were loaded") from error
        return
    folder = TemporaryFolder("partita-opencl-")
    try:
        for file, content in _named(folder.path, contents):
            file.write_bytes(content)
        yield str(folder.path)
    finally:
        folder.remove()


def _named(folder: Path, contents: Sequence[bytes]) -> list[tuple[Path, bytes]]:
    return [(folder / f"{number:03}.icd", content) for number, content in enumerate(contents)]


def _states(folder: Path) -> list[str]:
    return [_stamp(str(file)) for file in _icd_files(folder)]


def _icd_files(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.suffix == ".icd")
    except OSError:
        return []


def _from_files(files: Sequence[Path]) -> list[Driver]:
    found = []
    for file in files:
        try:
            with file.open(encoding="utf-8", errors="surrogateescape") as stream:
                library = stream.readline(4096).strip()
        except OSError:
            continue  # as the loader does
        if library:
            beside = file.parent / library
            near = "/" not in library and beside.is_file() and file.parent.name == ".libs"
            found.append(Driver(file.name, str(beside) if near else library, str(file)))
    return found


def _from_library(library: str) -> Driver:
    return Driver(Path(library).name, library, library)


def _from_package(package: str, library: str) -> list[Driver]:
    try:
        files = metadata.distribution(package).files or ()
    except metadata.PackageNotFoundError:
        return []
    for file in files:
        if file.name == library:
            path = str(Path(str(file.locate())).resolve())
            return [Driver(package, path, path)]
    return []


def _library(driver: Driver) -> str:
    """The file that is loaded, where that is known."""
    found = _find_library(driver.binary)
    return str(Path(found).resolve()) if found else driver.binary


def _find_library(library: str) -> str:
    if "/" in library or not library:
        return library
    folders = (*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_LIBRARIES)
    found = (Path(folder) / library for folder in folders if folder)
    return next((str(path) for path in found if path.exists()), "")


def _stamp(path: str) -> str:
    try:
        real = Path(path).resolve()
        status = real.stat()
    except (OSError, ValueError):
        return path
    return f"{real} {status.st_size} {status.st_mtime_ns}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@contextlib.contextmanager
def changed_environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Environment variables as they are to be while the block runs; ``None`` takes one away."""
    before = {name: os.environ.get(name) for name in changes}
    _set(changes)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
