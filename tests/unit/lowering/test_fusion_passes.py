"""Fusion passes are found by their modules."""

from partita.lowering import fusion

SOURCE = """
from partita.lowering.fusion.rewriting import Rewriter, fusion_pass


@fusion_pass(15)
def fuse_nothing(rewriter: Rewriter) -> None:
    pass
"""


def test_a_file_is_enough_for_a_pass(tmp_path, monkeypatch):
    before = [run.__name__ for run in fusion.all_passes()]
    assert before[:3] == ["remove_idle", "drop_expansions", "fuse_hard_activations"]
    (tmp_path / "one_more.py").write_text(SOURCE)
    monkeypatch.setattr(fusion, "__path__", [*fusion.__path__, str(tmp_path)])
    kept = dict(fusion.PASSES)
    fusion.all_passes.cache_clear()
    try:
        found = [run.__name__ for run in fusion.all_passes()]
    finally:
        fusion.PASSES.clear()
        fusion.PASSES.update(kept)
        fusion.all_passes.cache_clear()
    assert found == [*before[:2], "fuse_nothing", *before[2:]]
