"""Memory of other interfaces on device OPENCL; that it is shared is tested on a real GPU."""

import re

import numpy as np
import pytest

from partita.errors import DeviceError
from partita_opencl.device import cuda_interop


def test_drivers_that_import_no_memory_say_so(monkeypatch):
    monkeypatch.setattr(cuda_interop, "EXTENSION", "cl_khr_of_no_driver")
    wanted = "'OPENCL.0' cannot import memory: its driver does not list cl_khr_of_no_driver"
    with pytest.raises(DeviceError, match=re.escape(wanted)):
        cuda_interop.import_memory(3, 64, (4,), np.float32)
