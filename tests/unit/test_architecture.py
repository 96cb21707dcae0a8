"""What keeps the house in order: no circles of imports, small folders, short functions.

`lint-imports` checks in which order the folders of a package stand (`pyproject.toml`); here single
modules are looked at. Imports inside functions and those for type checkers count as all others do.
"""

import ast
import graphlib
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import grimp
import pytest

from partita import Core

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "partita": "core",
    "partita_command": "core",
    "partita_cpu": "plugins/cpu",
    "partita_opencl": "plugins/opencl",
    "partita_hetero": "plugins/hetero",
    "partita_reference": "plugins/reference",
    "partita_ray": "plugins/ray",
    "partita_serve": "serve",
    "partita_virtual": "plugins/virtual",
    "partita_conformance": "conformance",
}

MOST_MODULES = 15
"""In one folder."""

MOST_LINES = 75
"""Of a function, without its docstring."""

MOST_ARGUMENTS = 10
"""Of a function."""

UNEXPLAINED_ARGUMENTS = 5
"""As many a function may have whose docstring does not say what each of them is."""

NAMED_BY_ONNX = {"kernel", "operator", "overload"}
"""Decorators of functions whose arguments are an operator's inputs, or explained elsewhere."""

OTHER_NAMES = {
    "core/partita/frontends/tflite/one_runtime.py",  # backends of ONE Runtime stand for devices
    "core/partita/system/processor_identity.py",  # what Linux calls lines of /proc/cpuinfo
}
"""Modules that have these names from elsewhere."""


PROPERTIES = Path("core/partita/properties")
"""Here all names are those of OpenVINO's properties, some of which hold a device's."""

OPENVINO_S = {"MULTI_DEVICE_PRIORITIES", "AUTO"}
"""Names of properties and values that begin like devices and are for all."""

TFLITE_S = {"BATCH_MATMUL", "BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND"}
"""Operators of TFLite whose names hold that of a device."""


def sources():
    for package, folder in PACKAGES.items():
        yield from sorted((ROOT / folder / package).rglob("*.py"))


def imports_of(packages):
    graph = grimp.build_graph(*packages, cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def circle_in(imports):
    """Modules of which each imports the next one, the last the first; empty if there are none."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return error.args[1][::-1]
    return []


class Findings(NamedTuple):
    """What is told of all modules, each with its place."""

    functions: list[tuple[str, int, int]]
    unexplained: list[str]
    packed: list[str]
    devices: list[str]


@pytest.fixture(scope="module")
def findings():
    """Each module is parsed once: that takes longer than all that is looked for."""
    names, found = device_names(), Findings([], [], [], [])
    for path in sources():
        place, nodes = path.relative_to(ROOT), nodes_of(path.read_bytes())
        found.functions.extend(
            (f"{place}:{where}", *sizes) for where, *sizes in functions_of(nodes)
        )
        found.unexplained.extend(f"{place}:{where}" for where in unexplained_functions(nodes))
        found.packed.extend(f"{place}:{line}" for line in packed_arguments(nodes))
        if place.is_relative_to("core/partita") and place.parent != PROPERTIES:
            lines = [] if str(place) in OTHER_NAMES else named_devices(nodes, names)
            found.devices.extend(f"{place}:{number} {line}" for number, line in lines)
    return found


@pytest.fixture(scope="module")
def imports():
    return imports_of(PACKAGES)


def test_a_circle_is_found_where_it_is_closed_late(tmp_path, monkeypatch):
    package = tmp_path / "roundabout"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("from roundabout import two\n")
    (package / "two.py").write_text("def later():\n    from roundabout import one\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(circle_in(imports_of(["roundabout"]))) == {"roundabout.one", "roundabout.two"}


def test_modules_import_each_other_in_no_circle(imports):
    circle = circle_in(imports)
    assert not circle, " -> ".join(circle)


def test_folders_hold_few_modules():
    modules = Counter(path.parent for path in sources() if path.name != "__init__.py")
    full = {str(folder): count for folder, count in modules.items() if count > MOST_MODULES}
    assert not full


def device_names():
    """The names and aliases that the plugins beside the framework give their devices."""
    plugins = Core().device_api.registry
    own = {name for name in plugins.names if plugins.release(name).startswith("partita ")}
    return {*own, *(alias for name in own for alias in plugins.plugin(name).aliases)}


def nodes_of(source):
    """All nodes of a module's syntax tree."""
    return list(ast.walk(ast.parse(source)))


def literals(nodes):
    """The string literals of a module with their lines, without docstrings."""
    strings = [node for node in nodes if isinstance(node, ast.Constant)]
    bare = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [
        (node.lineno, node.value)
        for node in strings
        if isinstance(node.value, str) and id(node) not in bare
    ]


def named_devices(nodes, names):
    """Lines of literals that name a device, but as an example.

    An example is a command line (`partita ...`), or stands behind "e.g." on the literal's line.
    """
    pattern = re.compile(rf"(?<![A-Z])({'|'.join(sorted(names))})(?![A-Z])")
    for number, text in literals(nodes):
        if text in OPENVINO_S | TFLITE_S:
            continue
        for line in text.splitlines():
            found = pattern.search(line)
            before = line[: found.start()] if found else ""
            if found and "e.g. " not in before and not re.match(r"\s*partita ", before):
                yield number, line.strip()


def test_the_framework_names_no_device(findings):
    assert {"CPU", "HETERO", "OPENCL", "GPU", "REFERENCE"} <= device_names()
    assert not findings.devices, "\n".join(findings.devices)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""Device CPU."""', 0),
        ('def f():\n    """On CPU."""\n    return "CPU"', 1),
        ('name = "HETERO_PINS"', 1),
        ('name = f"HETERO:{device}"', 1),
        ('text = "as on SCPU or CPUS"', 0),
        ('name = "MULTI_DEVICE_PRIORITIES"', 0),
        ('text = "e.g. CPU"', 0),
        ('text = "CPU, e.g. the first"', 1),
        ('text = "partita run -d CPU"', 0),
        ('text = "in partita CPU"', 1),
    ],
)
def test_a_named_device_is_found(source, count):
    assert len(list(named_devices(nodes_of(source), ["CPU", "HETERO", "MULTI"]))) == count


def functions_of(nodes):
    """Functions: line and name, lines without the docstring, arguments."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = node.args
            arguments = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                lines -= node.body[0].end_lineno - node.body[0].lineno + 1
            yield f"{node.lineno} {node.name}", lines, arguments


def test_functions_are_short(findings):
    lines = {where: count for where, count, _ in findings.functions if count > MOST_LINES}
    assert not lines, table(lines)


def test_functions_take_few_arguments(findings):
    arguments = {where: count for where, _, count in findings.functions if count > MOST_ARGUMENTS}
    assert not arguments, table(arguments)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def f():\n    return 1", 2),
        ('def f():\n    """F."""\n    return 1', 2),
        ('def f():\n    """F.\n\n    More.\n    """\n    return 1', 2),
    ],
)
def test_docstrings_do_not_make_functions_long(source, lines):
    assert list(functions_of(nodes_of(source))) == [("1 f", lines, 0)]


def unexplained_functions(nodes):
    """Functions of many arguments without an `Args:` section, but for those within functions.

    `_run` is what `onnx.reference` calls, with an operator's inputs and attributes.
    """
    functions = [
        node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    for node in functions:
        if not has_many_arguments(node) or node.name in ("_run", "__init__"):
            continue
        if any(each.lineno < node.lineno <= each.end_lineno for each in functions):
            continue
        decorators = {ast.unparse(each).partition("(")[0] for each in node.decorator_list}
        if not decorators & NAMED_BY_ONNX and "Args:" not in (ast.get_docstring(node) or ""):
            yield f"{node.lineno} {node.name}"


def has_many_arguments(node):
    given = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in given if name not in ("self", "cls")]) > UNEXPLAINED_ARGUMENTS


def test_functions_explain_many_arguments(findings):
    assert not findings.unexplained, "\n".join(findings.unexplained)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(a, b, c, d, e): ...", []),
        ("def f(a, b, c, d, *, e, g): ...", ["1 f"]),
        ('def f(a, b, c, d, e, g):\n    """F.\n\n    Args:\n        a: A.\n    """', []),
        ("class A:\n    def _f(self, a, b, c, d, e): ...", []),
        ("class A:\n    def _f(self, a, b, c, d, e, g): ...", ["2 _f"]),
        ("def f():\n    def g(a, b, c, d, e, g): ...", []),
        ("@kernel('Conv')\ndef f(a, b, c, d, e, g): ...", []),
    ],
)
def test_unexplained_arguments_are_found(source, found):
    assert list(unexplained_functions(nodes_of(source))) == found


def packed_arguments(nodes):
    """Lines of calls that unpack a tuple that they have just packed, unless it is of constants.

    Those are lists of names, which would take a line each.
    """
    for node in nodes:
        for given in node.args if isinstance(node, ast.Call) else ():
            packed = given.value if isinstance(given, ast.Starred) else None
            elements = packed.elts if isinstance(packed, ast.Tuple) else []
            if not all(isinstance(element, ast.Constant) for element in elements):
                yield node.lineno


def test_calls_pack_no_arguments_to_save_lines(findings):
    """They are named instead, where they are many."""
    assert not findings.packed, "\n".join(findings.packed)


@pytest.mark.parametrize(
    ("source", "lines"),
    [("f(*(a, b), c)", [1]), ("f(*found, *('a', 'b'))", []), ("(*(a, b), c)", [])],
)
def test_packed_arguments_are_found(source, lines):
    assert list(packed_arguments(nodes_of(source))) == lines


def table(counts):
    rows = sorted(counts.items(), key=lambda row: -row[1])
    return "\n".join(f"{count:5} {where}" for where, count in rows)
