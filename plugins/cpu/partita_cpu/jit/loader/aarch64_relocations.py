"""Distances that instructions of 64-bit ARM hold, as a linker writes them.

Calls reach 128 MB and loads of addresses 4 GB: enough within an image, not for what lies outside.
For that there are stubs at the end of the image's code, of two instructions and one word that the
address is written to: calls go to the instructions, loads read the word. Numbers and formulas are
those of "ELF for the Arm 64-bit Architecture", 5.7, of instructions those of Arm's manual, C6.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

STUB = struct.pack("<IIQ", 0x58000050, 0xD61F0200, 0)
"""``ldr x16, word; br x16; word: .quad 0``; x16 is free for this between caller and function."""

STUB_WORD = 8
"""Where in a stub its word is."""

_JUMP26, _CALL26, _PAGE21, _GOT_PAGE21, _GOT_LOW12 = 282, 283, 275, 311, 312
_CALLS = (_JUMP26, _CALL26)
_LOADS = (_GOT_PAGE21, _GOT_LOW12)
_LOW12 = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, _GOT_LOW12: 3}
"""Low bits of an address, by the zeros that it must end with: sizes of what is read or written."""

KINDS = frozenset({*_CALLS, _PAGE21, *_LOADS, *_LOW12})
"""Types of relocation that are known here."""

_REACH = 1 << 27


def calls_in(code: bytes) -> Iterator[int]:
    """Where calls within a section go that were written when the object file was made.

    Args:
        code: Some instructions.

    Yields:
        Places, from the start of these instructions; also for calls that are to be written yet.
    """
    for number, (word,) in enumerate(struct.iter_unpack("<I", code)):
        if word >> 26 in _CALL_CODES:
            far = word & 0x03FFFFFF
            yield 4 * (number + far - (far >> 25 << 26))


_CALL_CODES = (0b000101, 0b100101)


def stub_offset(kind: int, outside: bool) -> int | None:
    """Where in a stub a distance ends; ``None`` if it ends at the thing itself.

    Raises:
        ValueError: It would have to end outside of the image.
    """
    if kind in _LOADS:
        return STUB_WORD
    if not outside:
        return None
    if kind in _CALLS:
        return 0
    raise ValueError(f"the distance of type {kind} is to something outside")


def with_distance(word: int, kind: int, place: int, target: int) -> int:
    """An instruction that knows how far it is to its target.

    Args:
        word: The instruction.
        kind: One of `KINDS`.
        place: Where it is, from the start of a page.
        target: Where the target is, from there.

    Raises:
        ValueError: The target is too far away, or not where such an instruction can reach it.
    """
    if kind in _CALLS:
        far = target - place
        if not -_REACH <= far < _REACH or far % 4:
            raise ValueError(f"a call goes {far} bytes far")
        return word & ~0x03FFFFFF | far >> 2 & 0x03FFFFFF
    if kind in (_PAGE21, _GOT_PAGE21):
        pages = (target >> 12) - (place >> 12)
        return word & ~0x60FFFFE0 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    low, zeros = target & 0xFFF, _LOW12[kind]
    if low & (1 << zeros) - 1:
        raise ValueError(f"{1 << zeros} bytes lie at {target}")
    return word & ~(0xFFF << 10) | low >> zeros << 10
