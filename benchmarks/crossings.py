"""A model cut between two devices, over its parts alone and the bytes that cross.

    python benchmarks/crossings.py [--devices CPU,OPENCL.0] [--cuts 2,8,one] [--rounds 12] [--json]
        [model ...]

Models: those of `cpu_networks` (random weights; default resnet50). Operations in their order are
cut into equal runs that alternate between the devices; with `one`, a single operation in the middle
lies on the second device, as a rare one does that only it has. All compute in float32. The
parts alone are the same compiled submodels, each run over and over on tensors that lie in its own
device's memory. What crosses is added at the speed of one copy of as many bytes to the second
device and back, measured here with page-locked memory; nothing is added where memory is shared.
Calls take turns in one process. Printed are medians in milliseconds, and the whole over that sum:
1.0 if what joins the parts costs nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from cpu_networks import BUILT
from cpu_peers import take_turns
from neighbours import UNPINNED, pin_alternately

import partita

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


def pin_one(model: partita.Model, devices: tuple[str, str]) -> None:
    """Pins one operation in the middle to the second device, all others to the first."""
    order = [op for op in model.ops if op.op_type not in UNPINNED]
    for op in order:
        op.affinity = devices[0]
    order[len(order) // 2].affinity = devices[1]


def parts_alone(core: Any, compiled: partita.CompiledModel) -> list[Callable[[], object]]:
    """A call for each submodel, on tensors in its device's memory."""
    assembly = compiled.device_model.assembly  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    calls: list[Callable[[], object]] = []
    for piece, part in zip(assembly.submodels, assembly.compiled, strict=True):
        runner = part.create_runner()
        inputs = [
            core.device_api.transfer_to(
                piece.device,
                partita.HostTensor(rng.standard_normal(port.shape).astype(port.dtype)),
            )
            for port in part.inputs
        ]
        calls.append(lambda run=runner.run, tensors=inputs: run(tensors))
    return calls


def link_call(core: Any, device: str, nbytes: int) -> Callable[[], object] | None:
    """Half of the bytes to a device and back; ``None`` where memory is shared."""
    block = core.device_api.host_memory(device, max(1, nbytes // 2))
    if block is None or core.device_api.can_share(device, "host"):
        return None
    host = partita.HostTensor(block)

    def there_and_back() -> None:
        core.device_api.transfer_to(device, host).copy_to(host)

    return there_and_back


def measure(name: str, devices: tuple[str, str], cut: str, rounds: int) -> dict[str, Any]:
    """Milliseconds of the whole, of its parts alone, and of what crosses."""
    proto, feeds = BUILT[name]()
    core = partita.Core()
    model = core.read_model(proto)
    if cut == "one":
        pin_one(model, devices)
    else:
        pin_alternately(model, int(cut), devices)
    properties = {d: EXACT for d in devices if core.device_api.accepts_property(d, *EXACT)}
    config = {"DEVICE_PROPERTIES": properties, "STRICT": True}
    compiled = core.compile_model(model, f"HETERO:{','.join(devices)}", config)
    request = compiled.create_infer_request()
    for key, array in feeds.items():
        request.set_tensor(key, partita.Tensor(array))
    calls: dict[str, Callable[[], object]] = {"whole": request.infer}
    alone = parts_alone(core, compiled)
    calls |= {f"part {number}": call for number, call in enumerate(alone, 1)}
    nbytes = compiled.explain().bytes_crossing
    link = link_call(core, devices[1], nbytes) if nbytes else None
    if link is not None:
        calls["link"] = link
    taken = take_turns(calls, rounds)
    whole = taken.pop("whole")
    crossing = taken.pop("link", 0.0)
    parts = sum(taken.values())
    return {
        "model": name,
        "devices": devices,
        "cut": cut,
        "submodels": len(alone),
        "ms": {"whole": whole, "parts alone": parts, "crossing": crossing},
        "over the sum": whole / (parts + crossing),
    }


def main() -> None:
    """Prints a line for every model and cut."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["resnet50"], help=", ".join(BUILT))
    parser.add_argument("--devices", default="CPU,OPENCL.0", help="two, separated by a comma")
    parser.add_argument("--cuts", default="2,8,one", help="numbers of parts, or one operation")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", action="store_true", help="an object a line")
    options = parser.parse_args()
    first, second = options.devices.split(",")
    for name in options.models:
        for cut in options.cuts.split(","):
            found = measure(name, (first, second), cut, options.rounds)
            if options.json:
                print(json.dumps(found), flush=True)
                continue
            times = "  ".join(f"{label} {ms:.3f} ms" for label, ms in found["ms"].items())
            print(
                f"{name:14} {options.devices:16} cut {cut:3} ({found['submodels']} submodels)  "
                f"{times}   over the sum {found['over the sum']:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
