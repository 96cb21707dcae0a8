"""Sounds made from formulas: tones, noise, and vowels that a voice detector takes for speech."""

from __future__ import annotations

import math

import numpy as np

from partita.zoo.sample import Array

NOTE_NAMES = ("A", "A#", "B", "C", "C#", "D", "D#", "E", "F", "F#", "G", "G#")

VOWELS = (
    (730.0, 1090.0, 2440.0),  # as in "father"
    (270.0, 2290.0, 3010.0),  # as in "see"
    (300.0, 870.0, 2240.0),  # as in "too"
)
"""Formant frequencies in hertz: Peterson and Barney, Control methods used in a study of the vowels,
J. Acoust. Soc. Am. 24 (1952), averages for men."""


def tone(frequency: float, rate: int, samples: int, level: float = 0.5) -> Array:
    """A sine as float32.

    Args:
        frequency: In hertz.
        rate: Samples a second.
        samples: How many there are.
        level: Amplitude; 1 is the loudest that players take.
    """
    phase = 2 * math.pi * frequency / rate * np.arange(samples)
    wave: Array = (level * np.sin(phase)).astype(np.float32)
    return wave


def noise(samples: int, level: float = 0.05, seed: int = 0) -> Array:
    """White noise as float32."""
    return (level * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32)


def vowels(rate: int, samples: int, pitch: float = 140.0, level: float = 0.6) -> Array:
    """Short vowels one after another, as float32: glottal pulses through three resonances each.

    Args:
        rate: Samples a second.
        samples: How many there are; silence fills what no syllable fits into.
        pitch: Of the voice, in hertz; it sways by a twentieth.
        level: Amplitude; 1 is the loudest that players take.
    """
    syllable, gap = int(0.14 * rate), int(0.03 * rate)
    decay = np.arange(int(0.03 * rate)) / rate
    sound = np.zeros(samples)
    for number, start in enumerate(range(0, samples - syllable, syllable + gap)):
        sway = 1 + 0.05 * np.sin(2 * math.pi * 3 * np.arange(syllable) / rate)
        pulses = np.diff(np.floor(np.cumsum(pitch * sway) / rate), prepend=0.0)
        for formant, bandwidth in zip(VOWELS[number % 3], (90, 110, 170), strict=True):
            response = np.exp(-math.pi * bandwidth * decay) * np.sin(2 * math.pi * formant * decay)
            pulses = np.convolve(pulses, response)[:syllable]
        pulses *= np.hanning(syllable) ** 0.3
        sound[start : start + syllable] = level * pulses / np.abs(pulses).max()
    return sound.astype(np.float32)


def note_name(semitones_above_a0: int) -> str:
    """The name of a piano key counted from the lowest, A0.

    Example:
        >>> note_name(36), note_name(39)
        ('A3', 'C4')
    """
    return f"{NOTE_NAMES[semitones_above_a0 % 12]}{(semitones_above_a0 + 9) // 12}"
