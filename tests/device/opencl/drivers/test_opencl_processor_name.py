"""PoCL's name of a processor that its compiler does not know, in the memory of its device."""

import ctypes
import platform
from types import SimpleNamespace

import pytest

from partita_opencl.drivers.processor_name import KNOWN, UNKNOWN, name_processors

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() != "x86_64",
    reason="PoCL's compiler refuses a name on x86, and memory is a file on Linux alone",
)


def _described(name: bytes, platform_name: str) -> bytes:
    """What a name is after its device was looked at; beside it pointers that lead nowhere."""
    text = ctypes.create_string_buffer(name, len(name))
    device = (ctypes.c_uint64 * 512)(0, 8, 2**63, 2**64 - 1, ctypes.addressof(text))
    handle = SimpleNamespace(int_ptr=ctypes.addressof(device))
    name_processors(SimpleNamespace(name=platform_name, get_devices=lambda: [handle]))
    return text.raw


def test_a_name_that_no_compiler_knows_is_replaced() -> None:
    assert _described(UNKNOWN, "Portable Computing Language") == KNOWN


@pytest.mark.parametrize("name", [b"znver3\0\0", b"generic-rv64\0"])
def test_other_names_stay(name: bytes) -> None:
    assert _described(name, "Portable Computing Language") == name


def test_other_platforms_are_left_alone() -> None:
    assert _described(UNKNOWN, "NVIDIA CUDA") == UNKNOWN
