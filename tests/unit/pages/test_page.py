"""Pages are one file: modules joined in order, texts that stay texts, a policy that fits."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from partita.pages.page import build_page

NASTY = '</script><!--<script>"&\u202e'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tool.js").write_text("export const TOOL = 1;\n")
    (tmp_path / "demo.js").write_text(
        'import { element,\n  stored } from "partita/element.js";\n'
        'import { TOOL } from "./tool.js";\nimport { OTHER } from "./other.js";\nelement(TOOL);\n'
    )
    (tmp_path / "other.js").write_text(
        'import { TOOL } from "./tool.js";\nexport class Other {}\nexport const OTHER = TOOL;\n'
    )
    (tmp_path / "demo.css").write_text("p { margin: 0; }\n")
    return tmp_path


def parts(page, tag):
    return re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", page, re.DOTALL)


def test_modules_come_once_and_before_those_that_import_them(folder):
    *_, code = parts(build_page("T", folder, "demo", {}), "script")
    assert not re.search("^(import|export)", code, re.MULTILINE)
    places = [code.index(text) for text in ("function element(", "TOOL = 1", "OTHER = ", "(TOOL)")]
    assert places == sorted(places)
    assert code.count("const TOOL") == 1


def test_texts_stay_texts(folder):
    page = build_page(f"T {NASTY}", folder, "demo", {"facts": {NASTY: [NASTY, 1.5, None]}})
    assert "<title>T &lt;/script&gt;&lt;!--&lt;script&gt;&quot;&amp;\\u202e</title>" in page
    facts, _ = parts(page, "script")
    spelled = NASTY.replace("\u202e", "\\u202e")
    assert json.loads(facts) == {spelled: [spelled, 1.5, None]}
    assert "<" not in facts


def test_the_policy_allows_what_is_there_and_nothing_else(folder):
    page = build_page("T", folder, "demo", {"facts": 1})
    policy = re.search('Policy" content="([^"]*)"', page)[1]
    *_, code = parts(page, "script")
    (sheet,) = parts(page, "style")
    for kind, text in (("script", code), ("style", sheet)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "p { margin: 0; }" in sheet


def test_numbers_must_be_finite(folder):
    with pytest.raises(ValueError, match="not JSON compliant"):
        build_page("T", folder, "demo", {"facts": [float("nan")]})
