"""The deployment examples: manifests that parse, agree with each other, and name real options."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
import yaml

from partita_serve import command

DEPLOY = Path(__file__).parents[3] / "examples" / "deploy"
MANIFESTS = sorted(DEPLOY.glob("*.yaml"))


def documents(path):
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def containers(document):
    spec = document["spec"]
    return spec.get("template", {}).get("spec", spec).get("containers", [])


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_document_is_one_of_kubernetes(path):
    for document in documents(path):
        assert {"apiVersion", "kind", "metadata", "spec"} <= document.keys()
        assert document["metadata"]["name"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_server_understands_its_arguments(path):
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    (container,) = (one for document in documents(path) for one in containers(document))
    args = parser.parse_args(["serve", *container["args"]])
    assert args.host == "0.0.0.0"  # noqa: S104  # a pod's own address
    ports = {int(one["containerPort"]) for one in container["ports"]}
    assert int(args.http_port) in ports


def test_a_service_leads_to_the_pods():
    deployment, service = documents(DEPLOY / "kubernetes.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    names = {one["name"] for one in containers(deployment)[0]["ports"]}
    assert {one["targetPort"] for one in service["spec"]["ports"]} <= names
    grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > 10 + 30  # what the server drains, and what requests have to end


def test_an_inference_service_names_its_runtime():
    runtime, service = documents(DEPLOY / "inference-service.yaml")
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = {one["name"] for one in runtime["spec"]["supportedModelFormats"]}
    assert model["modelFormat"]["name"] in formats


def test_the_container_installs_extras_that_there_are():
    import tomllib

    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    (extras,) = re.findall(r'"/src\[([\w,]+)\]"', text)
    project = tomllib.loads((DEPLOY.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(extras.split(",")) <= project["project"]["optional-dependencies"].keys()
    steps = [line.split()[0] for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert steps[0] == "FROM" and steps.index("USER") < steps.index("ENTRYPOINT")
