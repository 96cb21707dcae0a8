"""Importing Partita and making a Core loads nothing that only models or properties need."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import partita
import partita.properties
from partita.errors import PluginError, PropertyError
from partita.properties.deferred import deferred_properties
from partita_reference.plugin import ReferencePlugin

HEAVY = [
    "google.protobuf",
    "llvmlite",
    "ml_dtypes",
    "numba",
    "numpy",
    "onnx",
    "onnx_ir",
    "platformdirs",
    "pydantic",
    "pyopencl",
    "rich",
    "scipy",
    "sqlite3",
    "subprocess",
    "sympy",
]
LATER = [
    "partita.bisection",
    "partita.cli",
    "partita.runtime.compiled_model",
    "partita.contract.explanation",
    "partita.model.model",
    "partita.properties.schema",
    "partita.frontends.reader",
    "partita.runtime.infer_request",
    "partita.tensors.tensor",
    "partita_cpu.properties",
    "partita_hetero.properties",
    "partita_opencl.properties",
]


def test_a_core_is_made_without_what_only_models_and_properties_need():
    code = "import json, sys, partita; partita.Core(); print(json.dumps(list(sys.modules)))"
    bare = "import json, sys; print(json.dumps(list(sys.modules)))"
    loaded, before = (
        json.loads(subprocess.run([sys.executable, "-c", c], stdout=-1, check=True).stdout)
        for c in (code, bare)
    )
    assert "partita_cpu.plugin" in loaded
    assert [name for name in (*HEAVY, *LATER) if name in loaded and name not in before] == []
    engines = ("partita_cpu.", "partita_opencl.", "partita_hetero.", "partita_reference.")
    of_plugins = [name for name in loaded if name.startswith(engines)]
    assert {name.rpartition(".")[2] for name in of_plugins} == {"plugin"}


@pytest.mark.parametrize("package", [partita, partita.properties])
def test_every_public_name_is_there(package):
    for name in package.__all__:
        assert getattr(package, name) is not None, name


def test_names_come_by_import_too():
    code = "from partita import *; from partita.properties import *; print(Model, validate, bisect)"
    code = (
        "import partita as p; assert 'Model' in dir(p); assert 'validate' in dir(p.properties);"
        + code
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=-1)


@pytest.mark.parametrize("package", [partita, partita.properties])
def test_a_name_that_is_not_there(package):
    with pytest.raises(AttributeError, match=f"'{package.__name__}' has no attribute 'Modle'"):
        _ = package.Modle


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("partita_absent:Any", "of 'Device' at 'partita_absent:Any' did not load: ModuleNotFound"),
        ("partita.properties.schema:Any2", "did not load: AttributeError"),
        (
            "partita.tensors.tensor:Tensor",
            "'Device' names 'partita.tensors.tensor:Tensor' as its 'properties_type'",
        ),
    ],
)
def test_deferred_properties_that_are_none(place, said):
    class Device:
        properties_type = deferred_properties(place)

    with pytest.raises(PluginError, match=said):
        _ = Device.properties_type


def test_a_plugin_whose_properties_do_not_load_costs_only_itself(monkeypatch):
    core = partita.Core()
    monkeypatch.setattr(
        ReferencePlugin, "properties_type", deferred_properties("partita_absent:Any")
    )
    core.set_property("CPU", {"PERF_COUNT": True})
    assert core.get_property("CPU", "PERF_COUNT") is True
    with pytest.raises(PluginError, match="properties of 'ReferencePlugin' at"):
        core.set_property("REFERENCE", {"PERF_COUNT": True})


def test_properties_of_core_hold_from_the_first_question():
    core = partita.Core()
    assert core.get_property("CACHE_DIR") == ""
    core.set_property({"CACHE_DIR": "here"})
    assert core.get_property("CACHE_DIR") == "here"
    with pytest.raises(PropertyError, match="Core has no property"):
        core.set_property({"CACHE_DIRS": "here"})
    assert core.get_property("CACHE_DIR") == "here"
