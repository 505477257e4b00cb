"""docs/howto/state_the_result.md: its sentences are what its program prints, of a real release."""

import json
import os
import pathlib
import re

import pytest
from processes import python

from dpjax import accounting
from dpjax.releases import statement_page

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "howto" / "state_the_result.md").read_text()


def _blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def _command(*words):
    done = python("-m", "dpjax", *words, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_sentences_are_those_of_the_release(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    known = {}
    for example in _blocks("python"):
        exec(compile(example, "state_the_result.md", "exec"), known)
    printed = capsys.readouterr().out.strip().splitlines()
    assert printed == [" ".join(block.split()) for block in _blocks("text")]
    claim = json.loads(pathlib.Path("release/guarantee.json").read_text())
    # The numbers in words are those that were priced.
    run = claim["mechanism"]["parts"][0]["parts"][0]["parameters"]
    assert f"rate {run['sampling_probability']:.3f}," in printed[0]
    assert f"multiplier {run['noise_multiplier']:.2f} and {run['steps']} steps" in printed[0]
    priced = accounting.from_provenance(claim["mechanism"]).epsilon(claim["delta"])
    stated = float(re.search(r"epsilon = ([\d.]+)", printed[0])[1])
    assert priced <= claim["epsilon"] <= stated < priced + 0.02
    # And each command prints its part.
    assert _command("verify", "release").count(f"{claim['epsilon']:.6f}") == 2
    _command("report", "release")
    statement = pathlib.Path("statement.md").read_text()
    assert claim["unit_of_privacy"] in statement
    assert "the training part never holds more than 1294 records" in statement
    alone = float(re.search(r"would have claimed ([\d.]+) ", statement)[1])
    assert alone == pytest.approx(statement_page.training_alone(claim), abs=0.01)
    found = re.search(r"at most ([\d.]+)%", printed[1])[1]
    assert f"recognises at most {found}%" in statement


def test_it_is_cited_as_the_citation_file_says():
    citation = (ROOT / "CITATION.cff").read_text()
    fields = dict(re.findall(r'^(title|version|license|  - name): "?(.*?)"?$', citation, re.M))
    (entry,) = _blocks("bibtex")
    shown = dict(re.findall(r"(\w+) = \{+(.*?)\}+,", entry))
    assert shown == {
        "title": fields["title"],
        "author": fields["  - name"],
        "version": fields["version"],
        "license": fields["license"],
    }
