"""What kernels do behind the last barrier of a condition: PoCL, when it optimizes, gets it wrong.

PoCL 3.0 lets all items of a group, or none, store in a loop or a branch that depends on the item
where that ends a condition, or a function behind a `return`, which holds a barrier. So these end
with a barrier. Tests compile kernels without optimizing them, and would not see it.
"""

import re
from itertools import takewhile
from pathlib import Path

import pytest

import partita_opencl

CL = Path(partita_opencl.__file__).parent / "cl"
SOURCES = sorted(CL.glob("*.cl"))
ITEM = r"\b(tid|lid|lane|warp|LOCAL_INDEX|get_local_id)\b"
DEPENDS = re.compile(rf"(if|for|while) \(.*{ITEM}|\w+\(.*{ITEM}.*\);")
CONDITION = re.compile(r"(} )?(else )?if \(|(} )?else\b")
RETURN = re.compile(r"(if \(.*\) )?return;")


def with_includes(name):
    """The text of a file, with that of the files that it names: some are parts of a kernel."""
    text = (CL / name).read_text(encoding="utf-8")
    return re.sub(r'^#include "(.+)"$', lambda m: with_includes(m[1]), text, flags=re.MULTILINE)


def lines_of(text):
    """Indentation and code of each line that other drivers than NVIDIA's compile, no directives."""
    skips = []  # for each #if round a line
    for line in re.sub(r"\\\n", " ", text).split("\n"):
        code = line.partition("//")[0].rstrip()
        if code.startswith("#if"):
            skips.append(code == "#ifdef NVIDIA")
        elif code.startswith("#el"):
            skips[-1] = False
        elif code == "#endif":
            skips.pop()
        elif code and not code.lstrip().startswith("#") and not any(skips):
            yield len(code) - len(code.lstrip()), code.strip()


def functions_of(text):
    """Names and bodies of functions."""
    name, body = "", []
    for indentation, line in lines_of(text):
        if indentation:
            body.append((indentation, line))
        elif found := re.search(r"(\w+)\(", line.replace("__attribute__((", "")):
            name, body = found[1], []
        elif line == "}":
            yield name, body


def with_barriers(sources):
    """What calls a barrier, or what calls one."""
    functions = [pair for text in sources for pair in functions_of(text)]
    names = {"barrier"}
    while True:
        found = {name for name, body in functions if any(calls(line, names) for _, line in body)}
        if found <= names:
            return names
        names |= found


def calls(line, names):
    return any(called in names for called in re.findall(r"(\w+)\(", line))


def within(body, number):
    """What the condition in a line of a function holds, or what comes behind its return."""
    indentation, line = body[number]
    if RETURN.match(line):
        return body[number + 1 :]
    if CONDITION.match(line) and not line.endswith(";"):
        return list(takewhile(lambda pair: pair[0] > indentation, body[number + 1 :]))
    return []


def faults(text, names):
    """What depends on the item behind the last barrier of a condition."""
    for function, body in functions_of(text):
        for number in range(len(body)):
            inside = [code for _, code in within(body, number)]
            barriers = [n for n, code in enumerate(inside) if calls(code, names)]
            tail = inside[barriers[-1] + 1 :] if barriers else []
            yield from (f"{function}: {code}" for code in tail if DEPENDS.match(code))


BAD = """
void store(const int tid) {
  for (int i = tid; i < 3; i += 16) y[i] = 1;
}
void wait() {
  barrier(CLK_LOCAL_MEM_FENCE);
}
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void bad(const int n) {
  if (n < 3) {
    wait();
    %s
  }
}
"""


@pytest.mark.parametrize(
    "code", ["store(tid);", "if (tid == 0) y[0] = 1;", "for (int i = tid; i < n; i++) y[i] = 1;"]
)
def test_what_is_looked_for_is_found(code):
    bad = BAD % code
    names = with_barriers([bad])
    assert names == {"barrier", "wait", "bad"}
    assert list(faults(bad, names)) == [f"bad: {code}"]
    assert not list(faults(BAD % f"{code}\n    barrier(CLK_LOCAL_MEM_FENCE);", names))


def test_conditions_with_barriers_end_with_one():
    texts = {path.name: with_includes(path.name) for path in SOURCES}
    names = with_barriers(texts.values())
    assert "encode" in names
    found = [f"{name}: {fault}" for name, text in texts.items() for fault in faults(text, names)]
    assert not found
