"""`partita plan zoo:...` of a language model: its sample, a prompt, is not what is planned for."""

import json

from partita.cli.main import main
from partita.zoo.naming import Named
from partita_hetero.cli import plan
from tests.gguf_files import decoder_metadata, decoder_tensors, write_gguf


def test_a_decoder_of_the_zoo_is_planned_for_the_context_that_is_asked_for(
    tmp_path, monkeypatch, capsys
):
    metadata = decoder_metadata()
    path = tmp_path / "decoder.gguf"
    write_gguf(path, metadata, decoder_tensors(metadata, "Q4_1"))

    def sample():
        raise AssertionError("the prompt's shapes were asked for")

    monkeypatch.setattr(plan, "resolve", lambda name, store: Named(name, path, sample))
    command = ["plan", "zoo:one", "-d", "HETERO:CPU,REFERENCE", "--context", "48", "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["request"]["context"] == 48
