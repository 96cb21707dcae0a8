"""Text generated over several devices: they are told the context, and keep limits of memory."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from decoders import grouped_decoder
from tiny_gguf import write_tiny_gguf

import partita
from partita.cli.main import main
from partita.contract.explanation import DecoderRates
from partita.errors import InfeasiblePlanError, PlanError
from partita.generate import Generator
from partita_cpu.plugin import CpuPlugin
from partita_hetero.cost.device_speed import DeviceSpeed
from partita_hetero.cost.token_work import PLAIN, WeightFormat
from partita_hetero.tuning.decoders import decoder_plan
from partita_hetero.tuning.decoders.decoder_chain import DecoderDevice

Q8 = WeightFormat(8, 32)
FAST = DeviceSpeed({PLAIN: 1e12, Q8: 1e12}, {PLAIN: 1e13, Q8: 1e13}, 1e-7)
SLOW = DeviceSpeed({PLAIN: 1e8, Q8: 1e8}, {PLAIN: 1e11, Q8: 1e11}, 1e-6)
PROMPT = [84, 104, 101]
BOTH = "HETERO:CPU2,CPU"


def told_speeds(devices, names, decoder):
    limits = devices.memory_limits
    return [
        DecoderDevice(
            *(name, FAST if name == "CPU2" else SLOW, limits.get(name)),
            is_reference=name == "REFERENCE",
        )
        for name in names
    ]


@pytest.fixture
def core(monkeypatch):
    """Device CPU2, which is thought to be fast, and CPU."""
    monkeypatch.setattr(decoder_plan, "describe_devices", told_speeds)
    core = partita.Core()
    core.register_plugin("partita_cpu", "CPU2")
    return core


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path, "Q8_0")
    return path


def tokens_of(generator, count=12):
    return [piece.token for piece in generator.generate(PROMPT, max_new_tokens=count)]


def test_a_layer_that_is_pinned_to_the_reference_goes_there_alone(path, core):
    expected = tokens_of(Generator(path, "CPU", 64))
    properties = {"HETERO_PINS": "re:blk\\.0=REFERENCE"}
    for devices in ("HETERO:CPU,REFERENCE", "HETERO:CPU"):
        generator = Generator(path, devices, 64, core=core, properties=properties)
        places = {op.name: op.device for op in generator.compiled_model.explain().ops}
        assert {places[name] for name in places if name.startswith("blk.0")} == {"REFERENCE"}
        others = {places[name] for name in places if not name.startswith("blk.0")}
        assert others - {"-"} == {"CPU"}  # "-" is folded
        assert tokens_of(generator) == expected


def needed(path, core, context, **size):
    """Bytes of all on CPU2."""
    compiled = Generator(path, BOTH, context, properties=size, core=core).compiled_model
    note, *_ = compiled.explain().decision.notes
    return int(1024 * float(re.search(r"CPU2 .* \(([\d.]+) KiB\)", note)[1]))


def test_the_context_places_layers_by_memory_and_text_is_the_same(path, core):
    limits = {"HETERO_MEMORY_LIMITS": {"CPU2": needed(path, core, 64) * 2 // 3}}
    generator = Generator(path, BOTH, 64, properties=limits, core=core)
    compiled = generator.compiled_model
    assert compiled.get_property("HETERO_CONTEXT") == 64
    assert set(compiled.explain().ops_per_device) == {"CPU2", "CPU"}
    longer = Generator(path, BOTH, 192, properties=limits, core=core).compiled_model.explain()
    assert longer.ops_per_device.get("CPU2", 0) < compiled.explain().ops_per_device["CPU2"]
    assert tokens_of(generator) == tokens_of(Generator(path, "CPU", 64))


def test_what_the_application_sets_stays(path, core):
    own = {"HETERO_CONTEXT": 50, "HETERO_NEW_TOKENS": 7}
    compiled = Generator(path, BOTH, 64, properties=own, core=core).compiled_model
    assert compiled.get_property("HETERO_CONTEXT") == 50
    for settings in ({"HETERO_CONTEXT": 0}, {"HETERO_SCHEDULE": "PRIORITY"}):
        compiled = Generator(path, BOTH, 64, properties=settings, core=core).compiled_model
        assert compiled.get_property("HETERO_CONTEXT") == 0
        assert compiled.explain().decision is None
    core.set_property("HETERO", {"HETERO_CONTEXT": 40})
    compiled = Generator(path, BOTH, 64, core=core).compiled_model
    assert compiled.get_property("HETERO_CONTEXT") == 40


@pytest.mark.usefixtures("no_costs")
@pytest.mark.parametrize("room", [40, 200])
def test_costs_are_measured_on_texts_that_caches_have_room_for(core, room):
    proto = grouped_decoder(room).SerializeToString()
    by_cost = {"HETERO_SCHEDULE": "COST"}
    decision = core.compile_model(proto, BOTH, by_cost).explain().decision
    assert f"x=1x{min(room, 128)}x32" in decision.notes[0]
    assert {candidate.failure for candidate in decision.candidates} == {""}


@pytest.mark.parametrize("asked", [None, 48])
def test_a_plan_reads_a_prompt_in_the_runs_of_the_generator(path, core, monkeypatch, asked):
    requests = []
    plan = decoder_plan.plan_decoder

    def note(placer, devices, request, *rest):
        requests.append(request)
        return plan(placer, devices, request, *rest)

    monkeypatch.setattr(decoder_plan, "plan_decoder", note)
    generator = Generator(path, BOTH, 200, chunk=asked, core=core)
    assert generator.chunk == (asked or 128)
    assert [request.chunk for request in requests] == [generator.chunk]


def test_too_little_memory_says_which_context_would_fit(path, core):
    size = needed(path, core, 192, HETERO_PROMPT_TOKENS=16)
    limits = {"HETERO_MEMORY_LIMITS": {"CPU": 1, "CPU2": size}, "HETERO_PROMPT_TOKENS": 16}
    with pytest.raises(
        InfeasiblePlanError, match=r"are lacking\. A context of \d+ tokens"
    ) as error:
        Generator(path, BOTH, 256, properties=limits, core=core)
    fits = int(re.search(r"A context of (\d+) tokens would fit", str(error.value))[1])
    assert 64 <= fits <= 192  # tables of angles are as long as they were read
    assert Generator(path, BOTH, fits, properties=limits, core=core).context == fits


def test_layers_that_no_device_takes_as_a_whole_are_split(path, core, caplog):
    core.register_plugin(Taking("D", lambda op: op.op_type != "GroupQueryAttention"))
    core.register_plugin(Taking("E", lambda op: op.op_type == "GroupQueryAttention"))
    with pytest.raises(PlanError, match="layer 0 as a whole"):
        Generator(path, "HETERO:D,E", 64, properties={"HETERO_CONTEXT": 64}, core=core)
    compiled = Generator(path, "HETERO:D,E", 64, core=core).compiled_model
    assert {"D", "E"} == set(compiled.explain().ops_per_device)
    assert "Layers are not placed by memory: No device takes layer 0 as a whole" in caplog.text


def test_what_no_placement_can_do_is_told_once(path, core, caplog):
    with pytest.raises(PlanError, match="Pin 'type:Conv=CPU' matches none of"):
        Generator(path, BOTH, 64, properties={"HETERO_PINS": "type:Conv=CPU"}, core=core)
    assert caplog.text == ""


def test_predictions_follow_how_full_the_cache_is(path, core):
    rates = Generator(path, "HETERO:CPU", 200, core=core).compiled_model.explain().decision.rates
    assert rates.context == 200
    assert rates.decode_behind(0) == pytest.approx(rates.decode_at_start)
    assert rates.decode_behind(199) == pytest.approx(rates.decode)
    assert 1 / rates.decode_behind(99.5) == pytest.approx(
        (1 / rates.decode + 1 / rates.decode_at_start) / 2
    )


def test_predictions_follow_how_many_tokens_of_a_prompt_a_run_reads():
    rates = DecoderRates(1000.0, 50.0, 100.0, 200, chunk=101)
    assert rates.prefill_in_runs_of(1) == pytest.approx(100.0)
    assert rates.prefill_in_runs_of(101) == pytest.approx(1000.0)
    assert rates.prefill_in_runs_of(51) == pytest.approx(51 / ((0.01 + 0.101) / 2))
    assert rates.prefill_in_runs_of(400) == 1000.0
    assert DecoderRates(90.0, 50.0, 100.0, 200).prefill_in_runs_of(7) == 90.0


def test_predictions_are_kept_with_an_exported_model(path, core):
    compiled = Generator(path, BOTH, 64, core=core).compiled_model
    again = core.import_model(compiled.export_model(), BOTH)
    assert again.explain().decision == compiled.explain().decision


@pytest.fixture
def command(core, path, monkeypatch, capsys):
    monkeypatch.setattr("partita.cli.commands.generate.Core", lambda: core)

    def run(*argv, device=BOTH):
        code = main(["generate", str(path), "-d", device, "--prompt", "The", *map(str, argv)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_command_keeps_limits_and_tells_predictions(command, path, core):
    limit = f"CPU2={needed(path, core, 64, HETERO_PROMPT_TOKENS=3) * 2 // 3}"
    options = ["--context", 64, "--max-new-tokens", 9]
    code, text, err = command(*options, "--memory", limit)
    assert code == 0, err
    assert text == command(*options, device="CPU")[1]
    last = err.splitlines()[-1]
    assert re.search(r"llama: CPU2? \d+ ops, CPU2? \d+ ops in \d subgraphs; .*; tokens/s: ", last)
    told = r"[\d.]+ of prompts in runs of 1.5 tokens predicted, [\d.]+ measured; [\d.]+ generated p"
    assert re.search(told, last), last  # three tokens are read by two runs
    code, out, err = command(*options, "--memory", limit, "--json")
    assert code == 0, err
    predicted = json.loads(out)["predicted"]
    assert predicted["prefill"] > 0
    assert predicted["prefill_run"] == 1.5
    assert predicted["decode"] > 0


def test_the_command_says_that_devices_were_measured_on_a_busy_machine(command, monkeypatch):
    told = decoder_plan.describe_devices

    def busy(**args):
        return [replace(one, busy=0.63) for one in told(**args)]

    options = ["--context", 64, "--max-new-tokens", 9]
    said = "; devices were measured while other processes used 63% of the processors"
    _, _, err = command(*options)
    assert said not in err
    monkeypatch.setattr(decoder_plan, "describe_devices", busy)
    _, _, err = command(*options)
    assert err.splitlines()[-1].endswith(said)


def test_the_command_tells_the_length_of_prompt_and_answer(command, monkeypatch):
    asked = []
    plan_for = decoder_plan.plan_for

    def note(placer, out):
        asked.append(placer.devices.properties)
        return plan_for(placer, out)

    monkeypatch.setattr(decoder_plan, "plan_for", note)
    code, _, err = command("--context", 64, "--max-new-tokens", 9, "--chunk", 16)
    assert code == 0, err
    [properties] = asked
    sizes = [properties.HETERO_PROMPT_TOKENS, properties.HETERO_NEW_TOKENS]
    assert [properties.HETERO_CONTEXT, *sizes] == [64, 3, 9]
    assert properties.HETERO_CHUNK_TOKENS == 16


def test_the_command_refuses_a_limit_without_a_device(command, capsys):
    with pytest.raises(SystemExit):
        command("--memory", "2GiB")
    assert "'2GiB': no device is named; write DEVICE=SIZE" in capsys.readouterr().err


class Taking(CpuPlugin):
    """Device CPU that takes some operations only."""

    def __init__(self, name, takes):
        self.device_name, self._takes = name, takes

    def query_model(self, model, properties):
        no = partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, "not this one")
        answers = {op.name: None if self._takes(op) else no for op in model.ops}
        return partita.QueryResult.of(self.device_name, answers)
