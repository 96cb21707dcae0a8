"""The command line on this machine's own devices: results, JSON, exit codes, one-line errors."""

import dataclasses
import io
import json
import pkgutil
import signal
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.cli import commands
from partita.cli.commands import demo
from partita.cli.main import main
from partita.zoo import Answer, builtin

BOTH = "HETERO:CPU,REFERENCE"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setattr(demo, "RUNS_S", 0.02)


@pytest.fixture
def partita_(capsys):
    """Runs a command line; returns exit code, stdout, stderr."""

    def run(*argv):
        code = main([str(arg) for arg in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def ok(partita_):
    """Runs a command line that must succeed; returns stdout."""

    def run(*argv):
        code, out, err = partita_(*argv)
        assert code == 0, err
        return out

    return run


@pytest.fixture
def failing(partita_):
    """Runs a command line that must fail with one line on stderr; returns that line."""

    def run(*argv):
        code, _, err = partita_(*argv)
        assert code == 1
        lines = [line for line in err.splitlines() if not line.startswith("partita: note: ")]
        assert len(lines) == 1, err
        assert lines[0].startswith("partita: error: ")
        return lines[0]

    return run


@pytest.fixture
def model(tmp_path):
    """y = Relu(x W), with a free batch dimension."""
    weights = np.arange(12, dtype=np.float32).reshape(2, 6) - 5
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="multiply"),
            helper.make_node("Relu", ["h"], ["y"], name="clip"),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "model.onnx"
    opset = helper.make_opsetid("", 18)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


# ----------------------------------------------------------------------------------- devices


def test_devices_lists_what_core_lists(ok):
    data = json.loads(ok("devices", "--json"))
    assert list(data["devices"]) == partita.Core().available_devices
    assert data["devices"]["REFERENCE"]["kind"] == "reference"
    table = ok("devices")
    assert table.splitlines()[0].split() == ["device", "name", "kind", "memory", "driver"]
    for device in data["devices"]:
        assert f"\n{device} " in table


def test_devices_tells_what_is_missing_and_why(ok, monkeypatch):
    monkeypatch.setenv("PARTITA_DISABLE_PLUGINS", "cpu")
    out = ok("devices")
    assert "not available:\n" in out
    assert "  cpu: disabled by PARTITA_DISABLE_PLUGINS\n" in out
    assert "cpu" in json.loads(ok("devices", "--json"))["unavailable"]


def test_devices_resolves_aliases_or_says_why_not(ok):
    data = json.loads(ok("devices", "--json"))
    if any(info["kind"] == "gpu" for info in data["devices"].values()):
        assert data["aliases"]["GPU"] in data["devices"]
        assert f"= {data['aliases']['GPU']}" in ok("devices")
    else:
        assert "GPU" in data["unavailable"]


# ------------------------------------------------------------------------------------- query


def test_query_gives_a_device_for_every_operation(ok, model):
    data = json.loads(ok("query", model, "-d", "REFERENCE", "--json"))
    reason = {"code": "PRIORITY", "detail": "the only device"}
    assert data["ops"] == [
        {"name": name, "op_type": op_type, "device": "REFERENCE", "reason": reason}
        for name, op_type in (("multiply", "MatMul"), ("clip", "Relu"))
    ]
    assert data["counts"] == {"REFERENCE": 2}
    out = ok("query", model, "-d", "REFERENCE")
    assert out.splitlines()[0].split() == ["op", "type", "device", "why"]
    assert out.splitlines()[-1].endswith("model.onnx: 2 operations; REFERENCE 2")


@pytest.fixture
def odd_model(tmp_path, model):
    """The same with an operator in the middle that CPU does not take."""
    proto = onnx.load(model)
    proto.graph.node[1].input[0] = "texts"
    proto.graph.node.insert(1, helper.make_node("Cast", ["h"], ["t"], name="say", to=8))
    proto.graph.node.insert(2, helper.make_node("Cast", ["t"], ["texts"], name="hear", to=1))
    onnx.save(proto, tmp_path / "odd.onnx")
    return tmp_path / "odd.onnx"


def test_query_says_why_not_the_first_device(ok, odd_model):
    out = ok("query", odd_model, "-d", BOTH, "--only-refused")
    body, summary = out.rsplit("\n\n", 1)
    rows = body.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["say", "hear"]
    assert all("REFERENCE" in row and "not CPU: UNSUPPORTED_" in row for row in rows)
    assert "4 operations; CPU 2, REFERENCE 2" in summary
    data = json.loads(ok("query", odd_model, "-d", BOTH, "--only-refused", "--json"))
    assert {op["reason"]["code"] for op in data["ops"]} == {"FALLBACK"}
    assert data["operations"] == 4


def test_query_says_why_the_first_device(ok, model):
    out = ok("query", model, "-d", BOTH)
    assert [row.split(None, 3)[2:] for row in out.splitlines()[1:3]] == [["CPU", FIRST]] * 2
    found = json.loads(ok("query", model, "-d", BOTH, "--json"))["ops"]
    reason = {"code": "PRIORITY", "detail": "first in the list"}
    assert [op["reason"] for op in found] == [reason, reason]
    assert json.loads(ok("query", model, "-d", BOTH, "--only-refused", "--json"))["ops"] == []


FIRST, ONLY = "PRIORITY: first in the list", "PRIORITY: the only device"


def test_query_counts_by_type(ok, odd_model):
    data = json.loads(ok("query", odd_model, "-d", "REFERENCE", "--by-type", "--json"))
    assert data["by_type"] == [
        {"op_type": "Cast", "count": 2, "device": "REFERENCE", "why": ONLY},
        {"op_type": "MatMul", "count": 1, "device": "REFERENCE", "why": ONLY},
        {"op_type": "Relu", "count": 1, "device": "REFERENCE", "why": ONLY},
    ]
    assert "Cast" in ok("query", odd_model, "-d", "REFERENCE", "--by-type")


def test_query_goes_by_pins(ok, model, odd_model):
    out = ok("query", model, "-d", BOTH, "--pin", "type:Relu=REFERENCE", "--json")
    assert [op["device"] for op in json.loads(out)["ops"]] == ["CPU", "REFERENCE"]
    out = ok("query", model, "--pin", "clip=REFERENCE", "--only-refused")
    assert "PINNED: pin 'clip=REFERENCE'" in out
    found = json.loads(ok("query", odd_model, "-d", BOTH, "--pin", "say=CPU?", "--json"))
    (say,) = (op for op in found["ops"] if op["name"] == "say")
    assert say["device"] == "REFERENCE"
    assert "not CPU" in say["reason"]["detail"]


# --------------------------------------------------------------------------------------- run


def test_run_computes_what_numpy_computes(ok, model, tmp_path):
    x = np.array([[1, 2], [3, -4]], np.float32)
    np.save(tmp_path / "x.npy", x)
    target = tmp_path / "out.npz"
    out = ok("run", model, "-d", BOTH, "-i", f"x={tmp_path / 'x.npy'}", "-o", target)
    weights = np.arange(12, dtype=np.float32).reshape(2, 6) - 5
    expected = np.maximum(x @ weights, 0)
    with np.load(target) as outputs:
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-6)
    assert f"y       float32  [2, 6]  {expected.min():g}" in out
    assert f"written to {target}" in out


def test_run_shows_the_largest_of_a_row(ok, model):
    data = json.loads(ok("run", model, "-d", "REFERENCE", "-i", "1", "--json"))
    facts = data["outputs"]["y"]
    assert facts["shape"] == [1, 6]
    assert [item["index"] for item in facts["top"]] == [5, 4, 3, 0, 1]
    assert facts["max"] == facts["top"][0]["value"] == 6


def test_models_of_ones_own_need_no_cache_folder(ok, failing, model, monkeypatch):
    monkeypatch.setenv("PARTITA_CACHE_DIR", "")
    assert "float32  [1, 6]" in ok("run", model, "-d", "REFERENCE")
    assert "2 operations; REFERENCE 2" in ok("query", model, "-d", "REFERENCE")
    assert "There is no folder for zoo models" in failing("run", "zoo:magika", "-d", "REFERENCE")


def test_run_makes_random_inputs_and_says_so(partita_, model):
    code, _, err = partita_("run", model, "-d", "REFERENCE", "--seed", "3")
    assert code == 0
    assert "input 'x' is float32[n, 2]; its free sizes are assumed: 1x2" in err
    assert "random input (seed 3) for 'x'" in err
    code, out, err = partita_("run", model, "-d", "REFERENCE", "--shape", "4x2")
    assert "[4, 6]" in out
    assert "assumed" not in err


@pytest.mark.parametrize("command", ["run", "bisect", "benchmark"])
def test_an_error_at_made_up_sizes_says_how_to_give_others(failing, tmp_path, command):
    nodes = [helper.make_node("Gather", ["x", "at"], ["y"], axis=1)]
    at = numpy_helper.from_array(np.array([600]), "at")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", None]) for name in "xy")
    graph = helper.make_graph(nodes, "far", [x], [y], [at])
    path = tmp_path / "far.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    message = failing(command, path, "-d", "REFERENCE")
    assert "Sizes of inputs were assumed (x=1x512)" in message
    assert "with --shape x=..., or give data with --input x=FILE." in message
    assert "assumed" not in failing(command, path, "-d", "REFERENCE", "--shape", "1x512")


def test_run_answers_for_models_with_a_natural_input(partita_):
    code, out, err = partita_("run", "builtin:digits", "-d", BOTH)
    assert code == 0
    assert "answer: reads 27182818" in out
    assert "(as expected)" in out
    assert "note: input: the number 27182818" in err
    code, out, err = partita_("run", "builtin:digits", "-d", BOTH, "--random")
    assert "answer" not in out
    assert "random input" in err


def test_run_compares_devices(ok, model):
    out = ok("run", model, "-d", BOTH, "--compare", "REFERENCE", "--shape", "3x2")
    assert "compared with REFERENCE:" in out
    assert out.splitlines()[-1].endswith("ok")
    data = json.loads(ok("run", model, "-d", BOTH, "--compare", "REFERENCE", "--json"))
    assert data["differences"][0]["ok"] is True


def test_properties_are_for_the_device_that_runs_and_not_for_what_it_is_compared_with(ok, model):
    own = ("--property", "HETERO_EXECUTOR=DATAFLOW", "--property", "CPU:PERF_COUNT=YES")
    out = ok("run", model, "-d", BOTH, *own, "--compare", "REFERENCE", "--shape", "3x2")
    assert out.splitlines()[-1].endswith("ok")


def test_run_fails_where_devices_differ(failing, model):
    proto = onnx.load(model)
    proto.graph.node[1].CopyFrom(helper.make_node("RandomNormalLike", ["h"], ["y"], name="dice"))
    onnx.save(proto, model)
    line = failing("run", model, "-d", "REFERENCE", "--compare", "REFERENCE", "--shape", "9x2")
    assert "1 of 1 outputs on REFERENCE differ from REFERENCE by more than rtol 0.001" in line


def test_run_writes_outputs_whatever_their_names(ok, model, tmp_path):
    proto = onnx.load(model)
    proto.graph.node[1].output[0] = proto.graph.output[0].name = "a/file:0"
    onnx.save(proto, model)
    ok("run", model, "-d", "REFERENCE", "-o", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as outputs:
        assert outputs.files == ["a/file:0"]


def test_run_writes_outputs_to_stdout_and_shows_the_rest_on_stderr(
    model, tmp_path, monkeypatch, capfdbinary
):
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(model), "-d", "REFERENCE", "-i", "1", "-o", "-"]) == 0
    out, err = capfdbinary.readouterr()
    weights = np.arange(12, dtype=np.float32).reshape(2, 6) - 5
    with np.load(io.BytesIO(out)) as outputs:
        np.testing.assert_array_equal(outputs["y"], np.maximum(weights.sum(0, keepdims=True), 0))
    assert b"float32  [1, 6]" in err
    assert not (tmp_path / "-").exists()


def test_run_writes_no_archive_to_a_terminal_or_into_json(failing, model, monkeypatch):
    command = ("run", model, "-d", "REFERENCE", "-o", "-")
    assert "-o - and --json both write to stdout" in failing(*command, "--json")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "stdout is a terminal; redirect it" in failing(*command)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert "writes to stdout, which is closed" in failing(*command)


# --------------------------------------------------------------------------------- benchmark


def test_benchmark_counts_and_times(ok, model):
    data = json.loads(ok("benchmark", model, "-d", BOTH, "-niter", "20", "--json"))
    assert data["inferences"] == 20
    assert data["api"] == "sync"
    assert data["requests"] == 1
    assert 0 < data["min_ms"] <= data["median_ms"] <= data["p90_ms"] <= data["p99_ms"]
    assert data["min_ms"] <= data["mean_ms"]
    assert data["throughput"] == pytest.approx(20 / data["wall_s"])
    assert data["compile_ms"] > 0
    assert data["first_ms"] > 0


def test_benchmark_for_a_time_with_several_requests(ok, model):
    argv = ("benchmark", model, "-d", "REFERENCE", "-t", "0.2", "-nireq", "2")
    data = json.loads(ok(*argv, "--json"))
    assert data["api"] == "async"
    assert data["requests"] == 2
    assert data["wall_s"] >= 0.2
    assert data["inferences"] > 2
    assert "async, 2 requests" in ok(*argv)


def test_benchmark_prints_counters_per_subgraph(ok, odd_model):
    out = ok("benchmark", odd_model, "-d", BOTH, "-niter", "2", "-pc")
    counters, facts = out.split("\n\n")
    lines = counters.splitlines()
    assert lines[-1].startswith("Total time: ")
    assert all("layerType: " in line and "realTime: " in line for line in lines[:-1])
    assert {line.partition(":")[0] for line in lines[:-1]} >= {"subgraph1", "subgraph2"}
    assert f"device      {BOTH} (CPU, REFERENCE)" in facts
    assert "throughput  " in facts


def test_benchmark_takes_properties(failing, ok, model):
    line = failing("benchmark", model, "-d", "REFERENCE", "--property", "COLOUR=red")
    assert "has no property 'COLOUR'" in line
    ok("benchmark", model, "-d", "REFERENCE", "-niter", "1", "--property", "PERF_COUNT=NO", "-pc")


def test_a_property_of_one_device_of_hetero(failing, ok, odd_model):
    own = ("--property", "CPU:PERF_COUNT=NO", "--property", "REFERENCE:PERF_COUNT=YES")
    counters = ok("benchmark", odd_model, "-d", BOTH, "-niter", "2", "-pc", *own).split("\n\n")[0]
    lines = [line for line in counters.splitlines()[:-1] if "subgraph" in line]
    assert {line.partition(":")[0] for line in lines} == {"subgraph2"}
    line = failing("run", odd_model, "-d", BOTH, "--property", "CPU:COLOUR=red")
    assert "DEVICE_PROPERTIES sets 'COLOUR' for 'CPU'" in line


# --------------------------------------------------------------------------------------- zoo


def test_zoo_list_and_info(ok, tmp_path):
    data = json.loads(ok("zoo", "--json", "list"))  # the option counts wherever it stands
    assert data["folder"] == str(tmp_path / "cache" / "zoo")
    assert data["zoo"][0]["entry"]["name"] == "ppocr-det"
    assert data["zoo"][0]["cached"] is False
    assert data["builtin"] == builtin.names()
    table = ok("zoo", "list")
    assert "zoo:magika" in table
    assert "light:resnet50" in table
    info = ok("zoo", "info", "magika")
    assert "magika==1.0.3" in info
    assert "no ('partita zoo get magika')" in info
    assert json.loads(ok("zoo", "info", "zoo:magika", "--json"))["entry"]["licence"] == "Apache-2.0"


def test_zoo_get_without_network_says_so(failing, partita_, tmp_path):
    line = failing("zoo", "get", "basic-pitch", "--dir", tmp_path / "models")
    assert "pip could not download 'basic-pitch==0.4.0'" in line
    _, out, err = partita_("run", "zoo:basic-pitch", "-d", "REFERENCE")
    assert out == ""
    assert "note: downloading basic-pitch==0.4.0 from the package index (0.8 MB)" in err


def test_zoo_refuses_unknown_names(failing):
    assert "has no model 'x'" in failing("zoo", "get", "x")
    assert "has no model 'x'" in failing("zoo", "info", "x")
    assert "has no model 'x'" in failing("run", "zoo:x", "-d", "REFERENCE")
    assert "no built-in model 'x'" in failing("run", "builtin:x", "-d", "REFERENCE")
    assert "no topology 'x'" in failing("query", "light:x", "-d", "REFERENCE")


# -------------------------------------------------------------------------------------- demo


def test_demo_without_network_runs_a_built_in_model(partita_):
    code, out, err = partita_("demo", "-d", BOTH)
    assert code == 0
    assert "pip could not download 'rapidocr-onnxruntime==1.4.4'" in err
    assert "Running the built-in model 'builtin:digits' instead" in err
    assert "answer  reads 27182818" in out
    assert "as expected" in out
    assert "CPU" in out
    assert "milliseconds" in out


def test_demo_explains_its_placement(ok):
    data = json.loads(ok("demo", "--model", "pitch", "-d", BOTH, "--json"))
    assert data["model"] == "builtin:pitch"
    assert data["correct"] is True
    groups = data["placement"]
    assert sum(group["count"] for group in groups) == len(builtin.model("pitch").graph.node)
    assert all(group["why"] for group in groups)


def test_demo_times_the_list_and_each_device_that_can_do_it_alone(ok):
    core = partita.Core()
    data = json.loads(ok("demo", "--model", "pitch", "-d", BOTH, "--json"))
    timing = {row["device"]: row for row in data["timing"]}
    able = core.query_model(core.read_model(builtin.model("pitch")), "CPU")
    alone = ["CPU"] if len(able) == len(builtin.model("pitch").graph.node) else []
    assert list(timing) == [BOTH, *alone]  # never the reference
    for row in timing.values():
        assert row["answer"] == "as expected"
        assert row["median_ms"] > 0
    assert "as expected" in ok("demo", "--model", "pitch", "-d", BOTH).splitlines()[-1]


def test_demo_uses_all_devices_of_this_machine(ok):
    data = json.loads(ok("demo", "--model", "builtin:pitch", "--json"))
    head, _, devices = data["device"].partition(":")
    assert head == "HETERO"
    core = partita.Core()
    infos = map(core.device_info, core.available_devices)
    everything = {info.device for info in infos if info.kind != "virtual"}
    assert set(devices.split(",")) == everything
    assert devices.endswith(",REFERENCE"), "the reference is the last resort"


def test_demo_fails_if_the_answer_is_wrong(failing, monkeypatch):
    task, make, natural = builtin.MODELS["digits"]
    wrong = dataclasses.replace(natural(), answer=lambda infer: Answer("reads 1", correct=False))
    monkeypatch.setitem(builtin.MODELS, "digits", (task, make, lambda: wrong))
    line = failing("demo", "--model", "digits", "-d", "REFERENCE")
    assert "the model should have answered: 27182818" in line


def test_demo_needs_a_natural_input(failing, model):
    assert "has no natural input" in failing("demo", "--model", model, "-d", "REFERENCE")


# ------------------------------------------------------------------------ errors, exit codes


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("run", "nothing.onnx", "-d", "REFERENCE"), "Model file 'nothing.onnx' does not exist"),
        (("query", "MODEL", "-d", "NOPE"), "There is no device 'NOPE'"),
        (("query", "MODEL", "-d", "nope!"), "Device string 'nope!' holds 'nope!'"),
        (("benchmark", "MODEL", "-d", "HETERO:CPU,,X"), "holds an empty name"),
        (("run", "MODEL", "-d", "CPU", "--compare", "NOPE"), "There is no device 'NOPE'"),
        (("run", "MODEL", "-d", "CPU", "-i", "y=1"), "has no input 'y'; it has 'x'"),
        (("run", "MODEL", "-d", "CPU", "--shape", "1x2x3"), "has rank 2"),
        (("run", "MODEL", "-d", "REFERENCE", "--shape", "1x3"), ""),
    ],
)
def test_errors_are_one_line_with_exit_code_1(failing, model, argv, message):
    assert message in failing(*(model if arg == "MODEL" else arg for arg in argv))


def test_a_file_that_is_no_model(failing, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    assert "not an ONNX model" in failing("run", tmp_path / "bad.onnx", "-d", "REFERENCE")


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("fly",),
        ("run",),
        ("run", "m.onnx", "--shape", "axb"),
        ("run", "m.onnx", "--property", "x"),
        ("run", "m.onnx", "-o", "/nowhere/out.npz"),
        ("run", "m.onnx", "--property", ":x=1"),
        ("run", "m.onnx", "-d", ""),
        ("benchmark", "m.onnx", "-niter", "0"),
        ("benchmark", "m.onnx", "-niter", "3", "-t", "3"),
        ("benchmark", "m.onnx", "-api", "sync", "-nireq", "4"),
        ("zoo",),
        ("zoo", "get"),
    ],
)
def test_wrong_usage_is_exit_code_2(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "usage: partita" in captured.err


@pytest.mark.parametrize(
    "command",
    [(module.name.replace("_", "-"),) for module in pkgutil.iter_modules(commands.__path__)]
    + [("plan",), ("report",)]
    + [("zoo", a) for a in ("list", "get", "info")],
)
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert f"examples:\n  partita {command[0]}" in out
    assert "--json" in out


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"partita {partita.__version__}\n"


def test_an_interrupt_is_exit_code_130(partita_, monkeypatch):
    def interrupted(args, out):
        raise KeyboardInterrupt

    monkeypatch.setattr("partita.cli.commands.devices.run", interrupted)
    assert partita_("devices") == (130, "", "partita: interrupted\n")


def start(*argv):
    return subprocess.Popen(
        [sys.executable, "-m", "partita", *map(str, argv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_ends_a_benchmark_cleanly(model):
    with start("benchmark", model, "-d", "REFERENCE", "-t", "60") as process:
        line = process.stderr.readline()  # a note on the inputs: the model is read
        assert line.startswith("partita: note: ")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "partita: interrupted"
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_traceback():
    with start("zoo", "list", "--json") as process:
        process.stdout.close()  # before it has written anything
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_imports_stay_light():
    """A command loads no others, and the parser of all of them not what only some need.

    Before interrupts are told as such, hardly anything is loaded at all.
    """
    code = (
        "import sys; before = {'typing', 're', 'logging'} - {*sys.modules}; "
        "from partita.cli.main import build_parser; print([m for m in before if m in sys.modules]);"
        "build_parser('new-plugin'); "
        "others = ('partita.cli.commands.run', 'partita_hetero.cli.plan'); "
        "print([m for m in others if m in sys.modules]); build_parser(); "
        "print([m for m in ('onnx', 'onnx_ir', 'numba', 'pyopencl', 'rich', 'PIL') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout == "[]\n[]\n[]\n"
