"""What `test_other_systems` runs: Partita on a Linux that lacks what another system lacks."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import os
import pkgutil
import select
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType

SYSTEM, FOLDER = sys.argv[1], Path(sys.argv[2])

NOT_OURS = [
    "asyncio",
    "concurrent.futures.process",
    "llvmlite.binding",
    "llvmlite.ir",
    "ml_dtypes",
    "multiprocessing.connection",
    "multiprocessing.spawn",
    "numba.core.caching",
    "numba.extending",
    "numpy",
    "onnx.reference",
    "onnx_ir",
    "onnxscript",
    "platform",
    "platformdirs",
    "pluggy",
    "pydantic",
    "pyopencl",
    "pytest",
    "rich.progress",
    "scipy.optimize",
    "scipy.sparse",
    "sqlite3",
    "subprocess",
    "tempfile",
    "zipfile",
]

NOWHERE_ELSE = {
    os: ["sched_getaffinity", "sched_setaffinity", "posix_fadvise", "memfd_create", "eventfd"],
    select: ["epoll"],
    mmap: ["MAP_POPULATE"],
}
NOT_ON_WINDOWS = {
    os: [
        "fork",
        "forkpty",
        "getloadavg",
        "getpgid",
        "killpg",
        "O_CLOEXEC",
        "O_NOFOLLOW",
        "O_NONBLOCK",
        "posix_spawn",
        "pread",
        "register_at_fork",
        "setsid",
        "sysconf",
        "uname",
        "wait",
    ],
    select: ["poll"],
    signal: [
        "SIGKILL",
        "SIGALRM",
        "SIGUSR1",
        "setitimer",
        "alarm",
        "pthread_kill",
        "pthread_sigmask",
    ],
    mmap: ["PROT_READ", "PROT_WRITE", "MAP_PRIVATE", "MAP_ANONYMOUS", "MADV_DONTNEED"],
    socket: ["AF_UNIX", "SOCK_SEQPACKET"],
}
NO_MODULES_ON_WINDOWS = ["fcntl", "grp", "pwd", "resource", "termios", "pty", "syslog"]

FORBIDDEN = set('<>:"|?*')

PACKAGES = [
    "partita",
    "partita_cpu",
    "partita_opencl",
    "partita_hetero",
    "partita_reference",
    "partita_ray",
    "partita_conformance",
]


def import_what_is_not_ours():
    for name in NOT_OURS:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)


def take_away():
    sys.platform = SYSTEM
    lacking = [NOWHERE_ELSE, NOT_ON_WINDOWS] if SYSTEM == "win32" else [NOWHERE_ELSE]
    for names in lacking:
        for module, attributes in names.items():
            for name in attributes:
                if hasattr(module, name):
                    delattr(module, name)
    if SYSTEM == "win32":
        for name in NO_MODULES_ON_WINDOWS:
            sys.modules[name] = None
        sys.modules["winreg"] = registry()
    ctypes.CDLL = Libraries
    ctypes.WinDLL = lambda name: Kernel32()


class Libraries(ctypes.CDLL):
    """Libraries of another system; ``CDLL(None)``, the process itself, is one of macOS."""

    def __init__(self, name, *args, **options):
        if name is None and SYSTEM == "win32":
            raise TypeError("LoadLibrary() argument 1 must be str, not None")
        super().__init__(name, *args, **options)

    def __getattr__(self, name):
        if self._name is None:
            if name == "sysctlbyname" and SYSTEM == "darwin":
                return lambda *args: -1
            raise AttributeError(f"symbol {name} is not asked for on {SYSTEM}")
        return super().__getattr__(name)


class Function:
    """A function of a library, with types that can be set."""

    def __init__(self, act):
        self.act = act

    def __call__(self, *args):
        return self.act(*args)


class Kernel32:
    """What is called of it."""

    def __init__(self):
        def mask(process, of_process, of_machine):
            ctypes.c_size_t.from_address(of_process).value = 0b101
            return 1

        self.GetCurrentProcess = Function(lambda: 1)
        self.GetCurrentThread = Function(lambda: 2)
        self.GetProcessAffinityMask = Function(mask)
        self.SetThreadAffinityMask = Function(lambda thread, mask: 1)


def registry():
    def query(key, name):
        return f"{name} of Windows", 1

    module = ModuleType("winreg")
    module.HKEY_LOCAL_MACHINE = 0
    module.OpenKey = lambda *place: contextlib.nullcontext()
    module.QueryValueEx = query
    return module


def behave_like_windows():
    """Files with a colon in their name cannot be made, mapped ones not be replaced nor deleted."""
    mapped = set()

    def look(event, args):
        if event == "mmap.__new__" and args[0] >= 0:
            mapped.add(os.path.realpath(f"/proc/self/fd/{args[0]}"))
        elif event in ("open", "os.mkdir", "os.rename") and isinstance(
            args[event == "os.rename"], (str, Path)
        ):
            path = Path(args[event == "os.rename"])
            new = event != "open" or (isinstance(args[2], int) and args[2] & os.O_CREAT)
            name = path.name
            if new and (FORBIDDEN & set(name) or name.endswith((".", " "))):
                raise OSError(22, "The filename, directory name, or volume label is wrong", name)
        if event in ("os.rename", "os.remove"):
            for path in args[:2]:
                if isinstance(path, (str, Path)) and os.path.realpath(path) in mapped:
                    raise PermissionError(13, "The process cannot access the file", str(path))

    sys.addaudithook(look)


def import_everything():
    for package in PACKAGES:
        module = importlib.import_module(package)
        for found in pkgutil.walk_packages(module.__path__, f"{package}."):
            if not found.name.endswith(("__main__", "dynamo_backend")):  # PyTorch's entry point
                importlib.import_module(found.name)


def compute():
    import numpy as np
    from onnx import TensorProto, helper, save

    import partita
    from partita_cpu.threads.step_team import team_of

    rng = np.random.default_rng(3)
    weights = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 9, 9]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="first:conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Mul", ["r", "r"], ["y"], name="square"),
    ]
    held = helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights)
    graph = helper.make_graph(nodes, "name:of|a graph", ports[:1], ports[1:], [held])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, FOLDER / "model.onnx")
    x = rng.standard_normal((1, 3, 9, 9)).astype(np.float32)
    core = partita.Core()
    assert core.device_info("CPU").full_name
    assert core.device_info("CPU").details["level"] == "portable"
    wanted = core.compile_model(FOLDER / "model.onnx", "REFERENCE")({"x": x})[0]
    kept = {"CACHE_DIR": str(FOLDER / "cache"), "INFERENCE_NUM_THREADS": 3}
    placed = {"MULTI_DEVICE_PRIORITIES": "CPU,REFERENCE", "HETERO_DUMP_GRAPH_DOT": True}
    os.chdir(FOLDER)
    for device, config in (("CPU", kept), ("CPU", kept), ("HETERO", placed)):
        compiled = core.compile_model(FOLDER / "model.onnx", device, config)
        request = compiled.create_infer_request()
        for _ in range(3):
            np.testing.assert_allclose(request.infer({"x": x})[0], wanted, 1e-5, 1e-5)
        request.start_async({"x": x})
        request.wait()
        np.testing.assert_allclose(request.get_output_tensor(0).numpy(), wanted, 1e-5, 1e-5)
        again = core.import_model(compiled.export_model(), device)
        np.testing.assert_allclose(again({"x": x})[0], wanted, 1e-5, 1e-5)
    assert team_of(2, 0).pool is None
    if SYSTEM == "win32":
        core.set_property("CPU", {"ENABLE_CPU_PINNING": True})
        pinned = core.compile_model(FOLDER / "model.onnx", "CPU", {"INFERENCE_NUM_THREADS": 2})
        np.testing.assert_allclose(pinned({"x": x})[0], wanted, 1e-5, 1e-5)
    assert core.query_model(FOLDER / "model.onnx", "CPU")
    model = core.read_model(FOLDER / "model.onnx")
    model.save(FOLDER / "saved.onnx")
    if SYSTEM == "win32":
        refuse_to_replace(core, model, {**kept, "ENABLE_CPU_PINNING": False})


def refuse_to_replace(core, model, config):
    """Windows replaces no file that is mapped: what wanted that says so, and the rest goes on."""
    from partita.errors import ModelError

    try:
        model.save(FOLDER / "model.onnx")
    except ModelError as error:
        assert "Cannot save the model to" in str(error)
    else:
        raise AssertionError("a mapped file was replaced")
    assert not list(FOLDER.glob("*.new"))
    (kept,) = (FOLDER / "cache").glob("*.partita")
    kept.write_bytes(b"damaged")
    core.compile_model(FOLDER / "model.onnx", "CPU", config)
    assert [path.name for path in (FOLDER / "cache").iterdir()] == [kept.name]


import_what_is_not_ours()
take_away()
if SYSTEM == "win32":
    behave_like_windows()
import_everything()
compute()
sys.stdout.write("all is well")
