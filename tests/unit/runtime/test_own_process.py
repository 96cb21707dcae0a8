"""What belongs to one process is neither pickled nor copied, and says what to do instead."""

from __future__ import annotations

import copy
import pickle

import pytest
from models import neg

import partita

WAYS = [pickle.dumps, copy.copy, copy.deepcopy]


def objects():
    compiled = partita.Core().compile_model(neg(), "REFERENCE")
    yield compiled
    yield compiled.create_infer_request()
    yield partita.AsyncInferQueue(compiled, 1)


@pytest.mark.parametrize("way", WAYS)
def test_what_belongs_to_a_process_is_not_copied(way):
    for one in objects():
        said = f"{type(one).__name__} belongs to the process that made it.* compile the model"
        with pytest.raises(TypeError, match=said):
            way(one)
