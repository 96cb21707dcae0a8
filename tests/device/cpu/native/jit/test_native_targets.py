"""The kernels of every level, compiled for it on any machine: objects, and no foreign instruction.

LLVM ends the process when it is asked for an instruction that its target lacks, so each level is
compiled by a process of its own. Of the parts only those with products of matrices are, those of
floats for one of the levels where they are the same, and objects are made of small parts; set
`VARIABLE` to 1 for all parts of all levels, and for all systems.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys

import pytest
from cpu_levels import PARTS_OF_BYTES, float_levels, kernel_texts

from partita_cpu.jit.isa import available
from partita_cpu.llvm import module
from partita_cpu.llvm.levels import AARCH64, CHAINS, EVERY, X86_64

TRIPLES = {
    X86_64: ("x86_64-unknown-linux-gnu", "x86_64-pc-windows-msvc", "x86_64-apple-macosx"),
    AARCH64: ("aarch64-unknown-linux-gnu", "arm64-apple-macosx", "aarch64-pc-windows-msvc"),
}
FLOAT_PARTS = "_floats", "_floats_tall"
PAIR_PARTS = "_pairs", "_pairs_tall"
PRODUCTS = ("", *FLOAT_PARTS, "_bytes", "_byte_levels", *PAIR_PARTS)
"""The parts in which products of matrices are."""
ADDS = {X86_64: "fmadd", AARCH64: "fmla"}
SPILLS = {X86_64: r"[yz]mm\d+, -?\d*\(%rsp\)", AARCH64: r"\bq\d+, (q\d+, )?\[(sp|x29)"}
"""Instructions that add products, and those that load or store what no register is left for."""
MAGIC = {"linux": b"\x7fELF", "windows": b"", "macosx": b"\xcf\xfa\xed\xfe"}
LEVELS = [level for chain in CHAINS.values() for level in chain if level.native]

SMALL = [next((level for level in LEVELS if level in chain), None) for chain in CHAINS.values()]
SMALL = [level for level in SMALL if level is not None]
VARIABLE = "PARTITA_TEST_ALL_TARGETS"
ALL = os.environ.get(VARIABLE, "0") not in ("", "0")

COMPILE = """
import json, sys
from llvmlite import binding
from partita_cpu.jit import llvm_kernel
from partita_cpu.llvm import module
from partita_cpu.llvm.levels import EVERY
level, kind = EVERY[sys.argv[1]], sys.argv[2]
for triple, part in json.loads(sys.argv[3]):
    print(f"at '{part}' for {triple}", file=sys.stderr, flush=True)
    machine = llvm_kernel.level_machine(level, triple)
    parsed = binding.parse_assembly(module.text(level, part))
    parsed.verify()
    made = machine.emit_object(parsed).hex() if kind == "object" else machine.emit_assembly(parsed)
    print(json.dumps(made))
"""

# By mnemonic, or by registers: what proves that a feature is in use.
SIGNS = {
    "avx512": r"[xyz]mm(?:1[6-9]|2\d|3[01])\b|%zmm|\{%k\d\}|%k[0-7]\b",
    "bfloat16": r"\bvdpbf16ps\b|\bvcvtne\w*ps2bf16\w*\b",
    "vnni": r"\bvpdpbusd\w*\b|\bvpdpwssd\w*\b",
    "tiles": r"\btdp\w+\b|\btileload\w*\b|\bldtilecfg\b|%tmm",
    "newer": r"\b(?:vp2intersect|vpopcnt[bwdq]|vpshld|vpmadd52|vaes|vgf2p8|vpclmul|vpermb|"
    r"vpermi2b|vcompress[bw]|vpcompress[bw]|vaddph|vfmadd\w*ph|vpdpb[su][su]ds?\b(?<!vpdpbusd))\w*",
    "bits": r"\b(?:sarx|shlx|shrx|rorx|pdep|pext|mulx|andn|blsr|blsi|bzhi|lzcnt|tzcnt|movbe)\w*\b",
}


def allowed(level):
    """The signs that may be in a level's code."""
    found = {"avx512": "avx512f", "bfloat16": "avx512bf16", "tiles": "amx-tile"}
    signs = {sign for sign, feature in found.items() if feature in level.features}
    return signs | ({"vnni"} if level.features & {"avxvnni", "avx512vnni"} else set())


def compiled(level, kind, wanted):
    """Objects or assemblies of pairs of triple and part, made by a process that LLVM may end."""
    command = [sys.executable, "-c", COMPILE, level.name, kind, json.dumps(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{level} {done.stderr[-2000:]}"
    made = [json.loads(line) for line in done.stdout.splitlines()]
    return [bytes.fromhex(one) for one in made] if kind == "object" else made


@pytest.fixture(scope="session")
def assemblies(tmp_path_factory):
    """Gives the assembly of each part of a level; processes of one test run share them."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    @functools.cache
    def made(level):
        path = folder / f"assemblies_{level}.json"
        if not path.exists():
            names = parts()[level]
            triple = TRIPLES[level.architecture][0]
            texts = compiled(level, "assembly", [(triple, name) for name in names])
            beside = path.with_suffix(f".{os.getpid()}")
            beside.write_text(json.dumps(dict(zip(names, texts, strict=True))))
            beside.replace(path)
        return json.loads(path.read_text())

    return made


def of(assembly, name):
    """The lines of a function."""
    return assembly.partition(f"\n{name}:")[2].partition(".Lfunc_end")[0]


FIRST_OF_FLOATS = {}
for each in LEVELS:
    texts = (kernel_texts(each, part) for part in FLOAT_PARTS)
    FIRST_OF_FLOATS.setdefault((each.architecture, *texts), each)
FLOATS = [*FIRST_OF_FLOATS.values()]
"""The levels whose kernels of floats are those of no level before."""


@functools.cache
def parts(whole=ALL):
    """The parts of each level that have kernels in them, and are compiled."""
    names = module.PARTS if whole else PRODUCTS
    return {
        level: [
            name
            for name in names
            if kernel_texts(level, name) and (whole or name not in FLOAT_PARTS or level in FLOATS)
        ]
        for level in LEVELS
    }


def test_levels_of_floats_stand_for_those_that_are_left_out():
    """Tests of floats do not go through the others: their kernels are the same ones."""
    kept = float_levels()
    names = [name for name in module.PARTS if name not in PARTS_OF_BYTES]
    for level in [one for one in available() if one.native and one not in kept]:
        size = level.lanes, level.rows
        stand_in = next(one for one in kept if (one.lanes, one.rows) == size)
        assert all(kernel_texts(level, name) == kernel_texts(stand_in, name) for name in names)


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_compiled_on_any_machine_for_itself_alone(level, assemblies):
    for part in parts()[level]:
        require_of_its_own(level, part, assemblies(level)[part])


def require_of_its_own(level, part, assembly):
    """Looks for a part's functions, and for what a level's code may not, or must, hold."""
    for function in module.functions(level, part):
        assert f"\n{function.name}:" in assembly, function.name
    assert not re.search(r"^\s+(?:callq?|bl)\s+(?!\*)", assembly, re.MULTILINE)
    if level.architecture != X86_64:
        return
    for sign, pattern in SIGNS.items():
        found = re.findall(rf"^\s+(?=.*?(?:{pattern})).*$", assembly, re.MULTILINE)
        if sign not in allowed(level):
            assert not found, f"'{part}' has {sign}: {found[:3]}"
        elif part == ("_bytes" if sign == "vnni" else "") and sign != "newer":
            assert found, f"{level} has no {sign}"


@pytest.mark.parametrize("level", [level for level in LEVELS if level.architecture == X86_64])
def test_products_use_the_instruction_that_the_level_has(level, assemblies):
    assembly = "".join(assemblies(level).get(part, "") for part in PRODUCTS)
    of_bytes = (f for part in ("_bytes", "_byte_levels") for f in module.functions(level, part))
    dots = [f.name for f in of_bytes if f.name.startswith(("dot_bytes_", "dot_levels_"))]
    assert dots
    for name in dots:
        body = of(assembly, name)
        assert ("vpdpbusd" in body) == level.dots_bytes
        assert ("vpmaddwd" in body) != level.dots_bytes
        assert ("zmm" in body) == (level.lanes == 16)
    made = (f for part in ("", *PAIR_PARTS) for f in module.functions(level, part))
    pairs = [f.name for f in made if re.fullmatch(r"bf16_(narrow_)?\d+", f.name)]
    assert bool(pairs) == level.dots_bfloat16
    for name in pairs:
        wanted = "tdpbf16ps" if level.tiles else "vdpbf16ps"
        assert wanted in of(assembly, name), name
    for name in re.findall(
        r"^((?:bf16|bf16_narrow|dot_(?:bytes|levels)(?:_\d+)?)_\d+):", assembly, re.MULTILINE
    ):
        for block in re.split(r"^\.LBB", of(assembly, name), flags=re.MULTILINE):
            if re.search("dpbf16|dpbusd|maddwd", block):
                assert not re.search(SPILLS[X86_64], block), f"{name} spills"


@pytest.mark.parametrize("level", [level for level in LEVELS if level.architecture == AARCH64])
def test_products_of_arm_use_the_instruction_that_the_level_has(level, assemblies):
    assembly = "".join(assemblies(level).get(part, "") for part in PRODUCTS)
    assert bool(re.search(r"\b[su]+dot\b", assembly)) == level.dots_bytes
    assert ("bfdot" in assembly) == ("bfcvtn" in assembly) == level.dots_bfloat16
    for rows in range(1, level.rows + 1) if level.dots_bfloat16 else ():
        blocks = re.split(r"^\.LBB", of(assembly, f"bf16_{rows}"), flags=re.MULTILINE)
        loops = [block for block in blocks if "bfdot" in block]
        assert loops
        assert not any(re.search(r"\bq\d+, \[sp", block) for block in loops), "it spills"


@pytest.mark.parametrize("level", LEVELS if ALL else FLOATS, ids=str)
def test_sums_stay_in_registers(level, assemblies):
    assembly = "".join(assemblies(level).get(part, "") for part in FLOAT_PARTS)
    names = re.findall(r"^(fma_\d+):", assembly, re.MULTILINE)
    assert len(names) == level.rows
    for name in names:
        blocks = re.split(r"^\.LBB", of(assembly, name), flags=re.MULTILINE)
        # HardSwish, the bounds of which are a minimum, comes once behind the sums.
        loops = [b for b in blocks if ADDS[level.architecture] in b and "min" not in b]
        assert loops
        for block in loops:
            assert not re.search(SPILLS[level.architecture], block), f"{name} spills"


@pytest.mark.parametrize("level", LEVELS if ALL else SMALL, ids=str)
def test_every_system_gets_objects(level):
    """In each system's format, which does not depend on what is in them."""
    names = [part for part in (module.PARTS if ALL else ("_f16",)) if module.functions(level, part)]
    wanted = [(triple, part) for triple in TRIPLES[level.architecture] for part in names]
    for (triple, _), made in zip(wanted, compiled(level, "object", wanted), strict=True):
        system = next(name for name in MAGIC if name in triple)
        assert made.startswith(MAGIC[system])
        assert len(made) > 1000


def test_llvm_ends_a_process_that_asks_for_what_the_level_lacks():
    """So that the tests above can fail."""
    code = COMPILE.replace("module.text(level, part)", "module.text(EVERY['avx512_bf16'], part)")
    wanted = json.dumps([(TRIPLES[X86_64][0], "_pairs")])
    command = [sys.executable, "-c", code, "avx512_vnni", "assembly", wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "LLVM ERROR" in done.stderr


def test_every_level_that_has_kernels_is_compiled():
    assert {level.name for level in LEVELS} == {
        level.name for level in EVERY.values() if level.native
    }
    assert all(parts()[level] for level in LEVELS)
