"""Images of object files for 64-bit ARM, where instructions hold parts of addresses."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from cpu_levels import kernel_texts
from llvmlite import binding

from partita_cpu.gemm.packing.kernels import pack_blocks
from partita_cpu.jit import dispatch, llvm_kernel
from partita_cpu.jit.loader import aarch64_relocations
from partita_cpu.jit.loader import elf_image as images
from partita_cpu.jit.loader.elf_image import Image, ImageError, image_of
from partita_cpu.llvm import module
from partita_cpu.llvm.levels import NEON, NEON_DOTPROD, NEON_I8MM

ARM_LINUX = "aarch64-unknown-linux-gnu"
LEVELS = [NEON, NEON_DOTPROD, NEON_I8MM]


def compiled_for_arm(text, model="jitdefault"):
    target = llvm_kernel.target_machine(ARM_LINUX)
    if model != "jitdefault":
        target = binding.Target.from_triple(ARM_LINUX).create_target_machine(codemodel=model)
    return llvm_kernel.object_code(text, target)


def loaded_at(image, base, **outside):
    """The content of an image as it would be in memory at an address."""
    view = np.frombuffer(bytearray(image.content), np.uint8)
    rows = [image.inner + np.array((0, 0, base))]
    for name, places in image.outer.items():
        rows.append(np.array([(*place, outside[name]) for place in places], np.int64))
    images.fill_in(view, np.concatenate(rows))
    return view.tobytes()


class Processor:
    """Runs the few instructions that load addresses and go there: Arm's manual, C6.2."""

    def __init__(self, content, base):
        self.content, self.base = content, base
        self.x = [0] * 32

    def read(self, address, size=8):
        at = address - self.base
        assert 0 <= at <= len(self.content) - size, "outside of the image"
        return int.from_bytes(self.content[at : at + size], "little")

    def run(self, pc):
        """Until it returns, or goes where there is no image; returns where it is then."""
        while self.base <= pc < self.base + len(self.content):
            word = self.read(pc, 4)
            to, source = word & 31, word >> 5 & 31
            if word == 0xD65F03C0:  # ret
                return pc
            if word >> 23 == 0b110100101:  # movz
                self.x[to] = (word >> 5 & 0xFFFF) << 16 * (word >> 21 & 3)
            elif word >> 23 == 0b111100101:  # movk
                at = 16 * (word >> 21 & 3)
                self.x[to] = self.x[to] & ~(0xFFFF << at) | (word >> 5 & 0xFFFF) << at
            elif word >> 31 and word >> 24 & 31 == 0b10000:  # adrp
                pages = signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21)
                self.x[to] = (pc & ~0xFFF) + (pages << 12)
            elif word >> 22 == 0b1111100101:  # ldr, at an offset of eights
                self.x[to] = self.read(self.x[source] + 8 * (word >> 10 & 0xFFF))
            elif word >> 24 == 0b01011000:  # ldr, near the instruction
                self.x[to] = self.read(pc + 4 * signed(word >> 5 & 0x7FFFF, 19))
            elif word >> 22 == 0b1001000100:  # add
                self.x[to] = self.x[source] + (word >> 10 & 0xFFF)
            elif word >> 10 == 0b1101011000011111000000:  # br
                pc = self.x[source]
                continue
            elif word >> 26 in (0b100101, 0b000101):  # bl, b
                pc += 4 * signed(word & 0x03FFFFFF, 26)
                continue
            else:
                raise AssertionError(f"what is {word:032b}?")
            pc += 4
        return pc


def signed(value, bits):
    return value - (1 << bits) if value >> bits - 1 else value


def run(text, model="jitdefault", **outside):
    """What the function f leaves in x0, and where it ends."""
    image = Image.unpack(image_of(compiled_for_arm(text, model), ["f"]).pack())
    base = 0x7F12_3456_7000
    processor = Processor(loaded_at(image, base, **outside), base)
    end = processor.run(base + image.functions["f"])
    return processor.x[0], end, processor, image


ADDRESSES = [0x1234_5678_9ABC_DEF0, 0xFFFF_0000_0001, 7, (1 << 63) - 1]
MODELS = ["jitdefault", "small"]


@pytest.fixture
def anything(monkeypatch):
    """Lets images name what no library here has."""
    monkeypatch.setattr(images, "is_linked_later", lambda name: True)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_outside(address, model, anything):
    text = "@there = external global i8\ndefine ptr @f() { ret ptr @there }"
    assert run(text, model, there=address)[0] == address


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("address", ADDRESSES[:3])
def test_calls_outside(address, model, anything):
    text = "declare void @there()\ndefine void @f() { tail call void @there()\n ret void }"
    assert run(text, model, there=address)[1] == address


@pytest.mark.parametrize("model", MODELS)
def test_calls_and_addresses_inside(model):
    text = (
        "@word = internal global i64 5\n@place = internal global ptr @word\n"
        "define internal ptr @g() noinline { ret ptr @place }\n"
        "define ptr @f() { %r = tail call ptr @g()\n ret ptr %r }"
    )
    place, _, processor, image = run(text, model)
    assert processor.read(processor.read(place)) == 5
    assert place - processor.base >= image.fixed  # it can be written


@pytest.mark.parametrize("model", MODELS)
def test_numbers_that_are_read(model):
    text = (
        "@words = internal constant [3 x i64] [i64 3, i64 4, i64 99]\n"
        "define i64 @f() {\n"
        " %r = load volatile i64, ptr getelementptr (i64, ptr @words, i64 2)\n ret i64 %r }"
    )
    assert run(text, model)[0] == 99


def test_what_is_no_distance_is_refused():
    code = compiled_for_arm("@there = external global i8\ndefine ptr @f() { ret ptr @there }")
    other = code.replace(struct.pack("<I", 311), struct.pack("<I", 310))
    assert other != code
    with pytest.raises(ImageError, match="an address is filled in as no address is here"):
        image_of(other, ["f"])


def test_distances_to_what_is_outside_are_refused(anything):
    code = compiled_for_arm("@there = external global i8\ndefine ptr @f() { ret ptr @there }")
    near = code.replace(struct.pack("<I", 311), struct.pack("<I", 275))
    with pytest.raises(ImageError, match="type 275 is to something outside: there"):
        image_of(near, ["f"])


@pytest.mark.parametrize(
    ("kind", "target", "reason"),
    [
        (283, 1 << 27, "a call goes 134217728 bytes far"),
        (282, 2, "a call goes 2 bytes far"),
        (286, 4, "8 bytes lie at 4"),
    ],
)
def test_distances_that_no_instruction_holds(kind, target, reason):
    with pytest.raises(ValueError, match=reason):
        aarch64_relocations.with_distance(0, kind, 0, target)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", module.PARTS)
def test_kernels_for_arm_become_images(part):
    """Once for levels whose kernels are the same."""
    levels = {kernel_texts(level, part): level for level in LEVELS}
    for level in levels.values():
        machine = llvm_kernel.level_machine(level, ARM_LINUX)
        names = [function.name for function in module.functions(level, part)]
        image = image_of(llvm_kernel.object_code(module.text(level, part), machine), names)
        assert list(image.functions) == names
        assert not image.outer  # they call nothing, not even for what the processor lacks


def test_images_of_another_format_are_not_read(monkeypatch):
    before = llvm_kernel.object_file(LEVELS[0], ""), dispatch.file_and_entry(pack_blocks, ())
    for user in (llvm_kernel, dispatch):
        monkeypatch.setattr(user, "FORMAT", 0)
    after = llvm_kernel.object_file(LEVELS[0], ""), dispatch.file_and_entry(pack_blocks, ())
    assert all(one != two for one, two in zip(before, after, strict=True))
