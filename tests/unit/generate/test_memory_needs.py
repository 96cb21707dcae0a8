"""Contexts for which a device has no room are refused before anything is made."""

import pytest

import partita
from partita.contract.device_plugin import DeviceInfo
from partita.errors import DeviceMemoryError
from partita.generate.memory_needs import check_memory
from partita.system.host_memory import available_memory

MB = 10**6


class OneDevice(partita.Core):
    """Knows one device."""

    def __init__(self, info):
        super().__init__()
        self.info = info

    def device_info(self, device):
        assert device == self.info.device
        return self.info


def gpu(memory):
    return OneDevice(DeviceInfo("GPU", "a GPU", "gpu", "gpu:0", memory))


def test_what_fits_passes():
    check_memory(gpu(150 * MB), "GPU", 100 * MB, 1 * MB, 50)
    check_memory(gpu(None), "GPU", 100 * MB, 1 * MB, 10**9)
    check_memory(OneDevice(DeviceInfo("HETERO", "", "virtual")), "HETERO:GPU,CPU", MB, MB, 10**9)


def test_what_does_not_fit_is_refused_with_what_would():
    message = (
        r"Device 'GPU' has 150 MB, which is 14 MB too little: the weights take 100 MB, keys and "
        r"values of 64 tokens 64 MB; a context of 50 would fit\."
    )
    with pytest.raises(DeviceMemoryError, match=message):
        check_memory(gpu(150 * MB), "GPU", 100 * MB, 1 * MB, 64)
    with pytest.raises(DeviceMemoryError, match=r"; no context would fit\."):
        check_memory(gpu(99 * MB), "GPU", 100 * MB, 1 * MB, 1)


def test_processors_have_what_the_system_can_hand_out(monkeypatch):
    cpu = OneDevice(DeviceInfo("CPU", "a processor", "cpu"))
    monkeypatch.setattr("partita.generate.memory_needs.available_memory", lambda: 10 * MB)
    with pytest.raises(DeviceMemoryError, match="a context of 9 would fit"):
        check_memory(cpu, "CPU", 1 * MB, 1 * MB, 10)
    check_memory(cpu, "CPU", 1 * MB, 1 * MB, 9)
    monkeypatch.setattr("partita.generate.memory_needs.available_memory", lambda: None)
    check_memory(cpu, "CPU", 1 * MB, 1 * MB, 10**9)


def test_linux_says_how_much_memory_is_available(tmp_path):
    assert available_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   1234 kB\n")
    assert available_memory(tmp_path) == 1234 * 1024
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9 kB\n")
    assert available_memory(tmp_path) is None
