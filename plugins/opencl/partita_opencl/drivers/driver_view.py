"""Other forms of a driver: PoCL with another of the libraries of built-in functions that it brings.

PoCL 3.0 of PyPI makes code for AMD's Zen 4 as for Zen 3, while it takes built-in functions from
the library for AVX-512: vectors of 16 then end the process. The library of AVX2 serves there. PoCL
finds these libraries by the path of its own; so a folder of links, in which one name leads to
another library, is another driver.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from partita_opencl.drivers.installed_drivers import Driver, kept_folder

_log = logging.getLogger(__name__)

_LIBRARIES = "share/pocl"
_PREFIX = "kernel-"
_LEVELS = ("avx512", "avx2", "avx", "sse2")
"""Libraries of built-in functions, the most demanding one first."""

_BINARIES = ("pocl_binary_distribution", ".libs")
"""Where pocl-binary-distribution lies beside pyopencl, whose wheel brings the library of PoCL."""


def views(driver: Driver) -> Iterator[Driver]:
    """Forms of a driver in which the most demanding library's name leads to a lesser one's.

    None, if the driver is not the PoCL of PyPI, or if no folder can be made for a form.
    """
    library = Path(driver.binary)
    data = library.parent.parent.parent.joinpath(*_BINARIES)
    if not (library.is_absolute() and library.is_file() and data.joinpath(_LIBRARIES).is_dir()):
        return
    for level, lesser in itertools.pairwise(_LEVELS):
        view = _make(driver, library, data, level, lesser)
        if view is not None:
            yield view


def _make(driver: Driver, library: Path, data: Path, level: str, lesser: str) -> Driver | None:
    """The form in which one library stands for another; ``None`` if it cannot be made."""
    files = {f.name: f for f in data.joinpath(_LIBRARIES).iterdir()}
    replaced = {n: n[: -len(f"{level}.bc")] + f"{lesser}.bc" for n in files if _is_level(n, level)}
    if not replaced or not all(name in files for name in replaced.values()):
        return None
    folder = kept_folder("views")
    if folder is None:
        return None
    place = folder / hashlib.sha256(f"{library}\0{level}\0{lesser}".encode()).hexdigest()[:16]
    binaries = place.joinpath(*_BINARIES)
    links = {binaries / f.name: f for f in data.iterdir() if f.is_file()}
    links |= {binaries / _LIBRARIES / n: files[replaced.get(n, n)] for n in files}
    links |= {place / "pyopencl" / ".libs" / f.name: f for f in library.parent.iterdir()}
    try:
        for link, target in links.items():
            _link(link, target)
        cache = place / "cache"
        cache.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        _log.info("PoCL cannot be given other built-in functions: %s", error)
        return None
    return replace(
        driver,
        form=f"built-in functions of {lesser}",
        binary=str(place / "pyopencl" / ".libs" / library.name),
        cache=str(cache),
    )


def _is_level(name: str, level: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(f"-{level}.bc")


def _link(link: Path, target: Path) -> None:
    """Makes a link, in place of one that leads elsewhere; other processes may do the same."""
    if link.is_symlink() and link.readlink() == target:
        return
    link.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = link.with_name(f".{link.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(link)
