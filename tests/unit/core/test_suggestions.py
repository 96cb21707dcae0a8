"""What may have been meant: names nearby, and never others."""

from __future__ import annotations

import pytest

import partita
from partita.errors import DeviceNotFoundError
from partita.suggestions import guess, nearest


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("CPUX", ["CPU", "HETERO"], "CPU"),
        ("hetro", ["CPU", "HETERO"], "HETERO"),
        ("CPV", ["CPU", "HETERO"], "CPU"),
        ("NPU", ["CPU", "RAY"], None),  # another device, of which one letter differs
        ("PERF", ["INFERENCE_PRECISION_HINT", "PERF_COUNT"], None),
        ("", ["CPU"], None),
    ],
)
def test_only_a_near_name_is_proposed(name, known, meant):
    assert nearest(name, known) == meant
    assert guess(name, known) == (f" Did you mean '{meant}'?" if meant else "")


def test_another_device_is_not_proposed_for_one_that_is_not_there():
    with pytest.raises(DeviceNotFoundError) as caught:
        partita.Core().compile_model("builtin:digits", "NPU")
    assert "Did you mean" not in str(caught.value)
