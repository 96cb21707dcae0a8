"""Discovery: one broken plugin costs only itself, and is named with its cause."""

from __future__ import annotations

import logging
import re
import sys
import threading
from importlib import metadata
from types import ModuleType

import pytest
from interleaving import between_steps
from models import model_of, node
from toy_device import ToyDevice, ToyProperties

import partita
from partita.contract.device_plugin import DevicePlugin
from partita.devices.registry import Registry
from partita.errors import DeviceNotFoundError, DeviceUnavailableError, PluginError
from partita.extensions import Extensions
from partita.model.op import EXTENSION


@pytest.fixture
def install(monkeypatch):
    """Makes modules out of hooks and installs them as the only entry points there are."""

    def install(**hooks):
        entries = []
        for name, hook in hooks.items():
            module = ModuleType(f"fake_{name}")
            if hook is not None:
                module.device_plugins = partita.hookimpl(hook)
            monkeypatch.setitem(sys.modules, module.__name__, module)
            entries.append(metadata.EntryPoint(name, module.__name__, "partita"))
        monkeypatch.setattr(metadata, "entry_points", lambda group: entries)

    return install


def cause_of(core, plugin):
    (failure,) = [failure for failure in core.plugin_failures if failure.plugin == plugin]
    assert core.unavailable_devices[plugin] == failure.cause
    with pytest.raises(DeviceNotFoundError, match=rf"Not loaded: plugin '{plugin}' of 'unknown'"):
        core.device_info("ABSENT")
    return failure.cause


def test_plugins_are_found_and_given_the_core_if_they_ask(install):
    given = []

    def with_core(core):
        given.append(core)
        return [ToyDevice("B")]

    install(one=lambda: [ToyDevice("A"), ToyDevice("C")], two=with_core)
    core = partita.Core()
    assert core.available_devices == ["A", "B", "C"]
    assert given == [core.device_api]
    assert core.plugin_failures == []
    assert core.unavailable_devices == {}


def test_a_generator_of_plugins_will_do(install):
    def hook():
        yield ToyDevice("A")

    install(one=hook)
    assert partita.Core().available_devices == ["A"]


def test_hooks_are_looked_for_again_when_the_module_holds_others(install):
    install(one=lambda: [ToyDevice("A")])
    assert partita.Core().available_devices == ["A"]
    sys.modules["fake_one"].device_plugins = partita.hookimpl(lambda: [ToyDevice("B")])
    assert partita.Core().available_devices == ["B"]
    install(one=lambda: [ToyDevice("C")])  # another module of the same name
    assert partita.Core().available_devices == ["C"]
    del sys.modules["fake_one"].device_plugins
    core = partita.Core()
    assert core.available_devices == []
    assert "implements no hook" in cause_of(core, "one")


def test_what_implements_hooks_need_not_be_a_module(install):
    install(one=None)
    hooks = type("Hooks", (), {"device_plugins": partita.hookimpl(lambda self: [ToyDevice(name)])})
    sys.modules["fake_one"] = hooks()
    for name in ("A", "B"):
        assert partita.Core().available_devices == [name]


def test_a_module_that_fails_to_import(install, monkeypatch, caplog):
    install(good=lambda: [ToyDevice("GOOD")], bad=None)
    monkeypatch.delitem(sys.modules, "fake_bad")
    with caplog.at_level(logging.WARNING, "partita"):
        core = partita.Core()
    assert core.available_devices == ["GOOD"]
    assert cause_of(core, "bad") == "ModuleNotFoundError: No module named 'fake_bad'"
    assert "Plugin 'bad' of 'unknown' did not load" in caplog.text


def test_a_plugin_that_ends_the_process_costs_only_itself(install):
    install(good=lambda: [ToyDevice("GOOD")], bad=lambda: sys.exit("no licence"))
    core = partita.Core()
    assert core.available_devices == ["GOOD"]
    assert cause_of(core, "bad") == "SystemExit: no licence"


def raising():
    raise OSError("libdevice.so: no such file")


def wrong_signature(core, extra):
    return []


def api_2():
    device = ToyDevice("NEW")
    device.api_version = 2
    return [device]


def api_of_another_type():
    device = ToyDevice("NEW")
    device.api_version = "1"
    return [device]


def api_that_raises():
    class Undecided(ToyDevice):
        @property
        def api_version(self):
            raise OSError("no licence")

    return [Undecided("NEW")]


def without_properties():
    class Bare(DevicePlugin):
        device_name = "BARE"
        device_info = query_model = compile_model = None

    return [Bare()]


def abstract():
    class Half(DevicePlugin):
        device_name = "HALF"

    return [Half()]


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (raising, "OSError: libdevice.so: no such file"),
        (wrong_signature, "'bad' has a hook with a wrong signature: (?s:.*)'extra'"),
        (None, "'bad' implements no hook; it needs a function 'device_plugins' decorated with"),
        (
            lambda: None,
            "The hook 'device_plugins' of 'bad' returned None; expected a list of device plugin",
        ),
        (lambda: 3, "The hook 'device_plugins' of 'bad' returned int; expected a list"),
        (
            lambda: ToyDevice("X"),
            "The hook 'device_plugins' of 'bad' returned ToyDevice; expected a list",
        ),
        (lambda: [ToyDevice], "provides class ToyDevice, which is not a partita.DevicePlugin"),
        (lambda: [ToyDevice("lower")], "names its device 'lower'; a device name is capitals, dig"),
        (lambda: [ToyDevice("")], "names its device ''"),
        (api_2, "'NEW' of 'unknown' is made for plugin interface 2; this Partita has 1. Install"),
        (api_of_another_type, "'NEW' answered api_version with '1'; expected a number"),
        (api_that_raises, "'NEW' of 'unknown' failed to answer api_version: OSError: no licence"),
        (without_properties, "Device 'BARE' of 'unknown' needs 'properties_type', a subclass of"),
        (abstract, "TypeError: Can't instantiate abstract class Half"),
        (lambda: [ToyDevice("FINE"), 3], "provides 3, which is not a partita.DevicePlugin"),
    ],
)
def test_a_plugin_that_breaks_the_contract(install, hook, said):
    install(bad=hook, good=lambda: [ToyDevice("GOOD")])
    core = partita.Core()
    assert core.available_devices == ["GOOD"]
    assert re.search(said, cause_of(core, "bad"))


def test_a_plugin_may_bring_commands_alone(install):
    install(commands=None)
    sys.modules["fake_commands"].command_modules = partita.hookimpl(lambda: ())
    core = partita.Core()
    assert not core.plugin_failures
    assert core.available_devices == []


def test_a_hook_with_another_name_is_no_hook(install, monkeypatch):
    install(bad=None)
    sys.modules["fake_bad"].device_plugin = partita.hookimpl(raising)
    assert "implements no hook" in cause_of(partita.Core(), "bad")


def test_two_plugins_that_claim_one_name(install):
    install(
        one=lambda: [ToyDevice("DEV")],
        two=lambda: [ToyDevice("DEV"), ToyDevice("OTHER")],
        three=lambda: [ToyDevice("DEV")],
    )
    core = partita.Core()
    assert core.available_devices == ["OTHER"]
    said = "Device name 'DEV' is claimed by 'unknown:one' and by 'unknown:two'; uninstall one, or"
    with pytest.raises(PluginError, match=said):
        core.device_info("DEV")
    with pytest.raises(PluginError, match=r"'DEV' is claimed by"):
        core.register_plugin(ToyDevice("DEV"))


def test_disabling_one_of_two_that_claim_a_name(install, monkeypatch):
    monkeypatch.setenv("PARTITA_DISABLE_PLUGINS", "two, absent")
    install(one=lambda: [ToyDevice("DEV")], two=lambda: [ToyDevice("DEV")])
    core = partita.Core()
    assert core.available_devices == ["DEV"]
    assert cause_of(core, "two") == "disabled by PARTITA_DISABLE_PLUGINS"


def test_installed_plugins_can_be_disabled(monkeypatch):
    monkeypatch.setenv("PARTITA_DISABLE_PLUGINS", "reference,opencl")
    core = partita.Core()
    assert "REFERENCE" not in core.available_devices
    assert "HETERO" in core.available_devices
    said = "There is no device 'REFERENCE'; .* Not loaded: plugin 'reference' of 'partita': disab"
    with pytest.raises(DeviceNotFoundError, match=said):
        core.compile_model("x.onnx", "REFERENCE")


def test_the_installed_plugins_load():
    core = partita.Core()
    assert core.plugin_failures == []
    assert {"CPU", "HETERO", "REFERENCE"} <= set(core.available_devices)


# ------------------------------------------------------------------ register_plugin


def test_register_an_object(install):
    install()
    core, plugin = partita.Core(), ToyDevice("A")
    core.register_plugin(plugin)
    core.register_plugin(plugin, "B")
    assert core.available_devices == ["A", "B"]
    assert plugin.device_name == "A"
    assert [core.device_info(name).device for name in "AB"] == ["A", "B"]


@pytest.mark.parametrize("source", ["partita_reference", "partita_reference.plugin", "reference"])
def test_register_a_module_once_more_under_another_name(core, source):
    core.register_plugin(source, "REF2")
    assert {"REFERENCE", "REF2"} <= set(core.available_devices)
    assert core.device_info("REF2").device == "REF2"
    assert core.device_info("REFERENCE").device == "REFERENCE"


def test_register_a_module_that_is_no_entry_point(install, monkeypatch):
    install()
    module = ModuleType("toy_module")
    shared = ToyDevice("TOY")
    module.device_plugins = partita.hookimpl(lambda: [shared])
    monkeypatch.setitem(sys.modules, "toy_module", module)
    core = partita.Core()
    core.register_plugin("toy_module", "TOY")
    core.register_plugin("toy_module", "TOY2")
    assert [core.device_info(name).device for name in ("TOY", "TOY2")] == ["TOY", "TOY2"]


def test_what_register_plugin_refuses(core, install, monkeypatch):
    with pytest.raises(PluginError, match=r"Give the device name under which 'cpu' is registered"):
        core.register_plugin("cpu")
    with pytest.raises(PluginError, match=r"Device name 'CPU' is claimed by 'partita:cpu' and by"):
        core.register_plugin(ToyDevice("CPU"))
    with pytest.raises(PluginError, match=r"Device name 'CPU' is claimed by"):
        core.register_plugin("partita_reference", "CPU")
    with pytest.raises(PluginError, match=r"names its device 'my dev'"):
        core.register_plugin("partita_reference", "my dev")
    with pytest.raises(PluginError, match=r"provides 3, which is not a partita.DevicePlugin"):
        core.register_plugin(3)
    with pytest.raises(
        PluginError, match=r"'no.such' is neither an entry point of group 'partita'"
    ):
        core.register_plugin("no.such", "X")
    with pytest.raises(PluginError, match=r"'json' implements no hook"):
        core.register_plugin("json", "X")
    install(pair=lambda: [ToyDevice("A"), ToyDevice("B")], bad=raising, wrong=wrong_signature)
    with pytest.raises(PluginError, match=r"'pair' provides 2 device plugins; only a module that"):
        core.register_plugin("pair", "X")
    with pytest.raises(PluginError, match=r"Plugin 'bad' did not load: OSError: libdevice.so"):
        core.register_plugin("bad", "X")
    with pytest.raises(PluginError, match=r"'wrong' has a hook with a wrong signature"):
        core.register_plugin("wrong", "X")


def test_a_refused_object_is_not_renamed(core):
    plugin = ToyDevice("TOY")
    with pytest.raises(PluginError):
        core.register_plugin(plugin, "CPU")
    assert plugin.device_name == "TOY"


def test_cores_do_not_share_plugins():
    first, second = partita.Core(), partita.Core()
    first.register_plugin(ToyDevice("TOY"))
    assert "TOY" not in second.available_devices


# --------------------------------------------------------------------- what is there


class Driverless(ToyDevice):
    def __init__(self, ids):
        super().__init__("NODRIVER")
        self.ids = ids

    def device_ids(self):
        if isinstance(self.ids, Exception):
            raise self.ids
        return self.ids


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([], "Device 'NODRIVER' found no hardware"),
        (OSError("no driver"), "Device 'NODRIVER' cannot be used: OSError: no driver"),
        (DeviceUnavailableError("Install it."), "Install it."),
        ([0, 1], r"answered device_ids with \[0, 1\]; expected different strings of letters"),
        (["a", "a"], "different strings"),
        (["a b"], "different strings"),
        (None, "cannot be used: TypeError"),
    ],
)
def test_a_device_without_a_driver(core, ids, said):
    core.register_plugin(Driverless(ids))
    assert "NODRIVER" not in core.available_devices
    assert "NODRIVER" in core.unavailable_devices
    with pytest.raises(DeviceUnavailableError, match=said):
        core.compile_model("x.onnx", "NODRIVER")


def test_unknown_devices_are_answered_with_those_there_are(install):
    install(one=lambda: [ToyDevice("ALPHA"), ToyDevice("BETA")])
    core = partita.Core()
    with pytest.raises(
        DeviceNotFoundError, match=r"no device 'ALPA'; there are ALPHA, BETA. Did yo"
    ):
        core.device_info("ALPA")
    install()
    with pytest.raises(DeviceNotFoundError, match=r"There is no device 'CPU'; there are none"):
        partita.Core().device_info("CPU")


def test_devices_that_cannot_be_used_are_not_offered_but_say_what_they_need(install):
    class Driverless(ToyDevice):
        def device_ids(self):
            raise DeviceUnavailableError("Toys are not installed; pip install toys.")

    install(one=lambda: [ToyDevice("ALPHA"), Driverless("BETA")])
    with pytest.raises(DeviceNotFoundError) as caught:
        partita.Core().device_info("BET")
    assert str(caught.value) == (
        "There is no device 'BET'; there are ALPHA. Did you mean 'BETA'? BETA cannot be used: Toys "
        "are not installed; pip install toys."
    )


# --------------------------------------------------------------------- several threads


def test_plugins_may_be_added_while_others_are_asked(core):
    class Asked(ToyDevice):
        """Another thread adds a plugin when this one is asked for its properties or aliases."""

        @property
        def properties_type(self):
            add()
            return ToyProperties

        @property
        def aliases(self):
            add()
            return {}

        @aliases.setter
        def aliases(self, _):
            pass

    def add():
        core.register_plugin(ToyDevice(f"OTHER{len(core.available_devices)}"))

    core.register_plugin(Asked("ASKED"))
    core.register_plugin(ToyDevice("BESIDE"))
    core.set_property("BESIDE", {"LEVEL": 2})
    with pytest.raises(DeviceNotFoundError, match="There is no device 'ABSENT'"):
        core.resolve_device("ABSENT")
    assert core.get_property("BESIDE", "LEVEL") == 2


def test_devices_may_be_forgotten_while_they_are_looked_for(core):
    core.register_plugin(ToyDevice("MANY", kinds=("cpu", "gpu")))
    with between_steps(Registry.ids, lambda: core.unload_plugin("MANY")):
        assert core.resolve_device("MANY.1") == "MANY.1"


def test_properties_may_be_set_while_others_are_forgotten(core):
    core.register_plugin(ToyDevice("MANY", kinds=("cpu",) * 9))
    core.register_plugin(ToyDevice("OTHER"))
    left = iter(range(1, 9))

    def set_another(frame, event, function):
        if event == "c_call" and function.__name__ == "partition":
            for number in left:
                core.set_property(f"MANY.{number}", {"LEVEL": number})
                break

    core.set_property("MANY.0", {"LEVEL": 1})
    sys.setprofile(set_another)
    try:
        core.unload_plugin("OTHER")
    finally:
        sys.setprofile(None)
    assert core.get_property("MANY.1", "LEVEL") == 1


def test_operators_that_two_threads_add_first_are_both_known(core, monkeypatch):
    def add(name):
        core.add_extension(partita.CustomOperator(name, "own", lambda x: x))

    other = threading.Thread(target=add, args=("Second",))
    make = Extensions.__init__

    def made_slowly(self):
        make(self)
        if other.ident is None:
            other.start()
            other.join(0.1)  # it may have to wait

    monkeypatch.setattr(Extensions, "__init__", made_slowly)
    add("First")
    other.join()
    nodes = [node("First", ["x"], "y", domain="own"), node("Second", ["y"], "z", domain="own")]
    proto = model_of(nodes, ["x"], ["z"])
    proto.opset_import.add(domain="own", version=1)
    assert all(op.node.meta.get(EXTENSION) for op in core.read_model(proto).ops)
