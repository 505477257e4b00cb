"""The page for a data-protection officer: of `guarantee.json` alone, for every kind of release."""

import html.parser
import json
import math
import pathlib
import re
import shutil

import numpy as np
import pytest

from dpjax import accounting, tuning
from dpjax.releases import statement_page, verification

FROZEN = pathlib.Path(__file__).parents[1] / "frozen"
PLAIN = FROZEN / "random_repetitions_plain"


def claim_of(name):
    return json.loads((FROZEN / name / "guarantee.json").read_text())


@pytest.mark.parametrize("name", sorted(path.name for path in FROZEN.iterdir()))
def test_every_kind_of_release_has_a_page_without_k_code_or_long_numbers(name):
    page = statement_page.markdown(claim_of(name))
    shown = page.partition("## How to verify")[0]
    assert "## Tuning is included" in page and "confirmed by" in page
    assert not re.search(r"\bK\b|Dense\(|\d\.\d{9}|None|nan", shown), shown
    stated = float(re.search(r"epsilon (\S+) at delta", shown)[1])
    assert claim_of(name)["epsilon"] <= stated <= claim_of(name)["epsilon"] + 0.01


def test_the_page_names_how_gradients_were_clipped():
    for name, rule in (("untuned_plain", "global"), ("untuned_automatic_clipping", "automatic")):
        page = statement_page.markdown(claim_of(name))
        assert (
            f"| What limits one unit's influence | {rule} clipping of gradients, and noise |"
            in page
        )
    assert "What limits" not in statement_page.markdown(claim_of("a_vote"))


def test_attacks_are_bounded_by_both_error_rates_and_by_the_truth():
    rates = np.array(statement_page.FALSE_ALARMS)
    for noise in (0.4, 1.0, 5.0):
        gaussian = accounting.gaussian(noise)
        epsilon = gaussian.epsilon(1e-5)
        allowed = [statement_page.attack_success(epsilon, 1e-5, rate) for rate in rates]
        assert np.all(gaussian.attack_success(rates) <= allowed)
    assert statement_page.attack_success(0.0, 0.0, 0.01) == pytest.approx(0.01)
    assert statement_page.attack_success(math.log(2), 0.0, 0.1) == pytest.approx(0.2)
    # Where nearly all are false alarms, the other error rate decides.
    assert statement_page.attack_success(math.log(2), 0.0, 0.9) == pytest.approx(0.95)


def test_what_the_training_alone_would_have_claimed():
    claim = claim_of("random_repetitions_plain")
    run = claim["training"][0]
    alone = accounting.dp_sgd(
        sampling_probability=run["lot_size"] / claim["training_records"]["public_size"],
        noise_multiplier=run["noise_multiplier"],
        steps=run["steps"],
    ).epsilon(claim["delta"])
    assert statement_page.training_alone(claim) == pytest.approx(alone, rel=1e-4)
    parts = claim_of("doubling_plain")["epsilon_of_parts"]
    found = statement_page.training_alone(claim_of("doubling_plain"))
    assert found == pytest.approx(parts["final_training_alone"], rel=1e-6)
    assert "would have claimed" not in statement_page.markdown(claim_of("untuned_plain"))
    assert "Nothing was chosen" in statement_page.markdown(claim_of("untuned_plain"))


TUNED = (
    "random_repetitions_plain",
    "random_repetitions_public_validation",
    "random_repetitions_score_on_training",
    "threshold_stopping_plain",
    "threshold_stopping_public_validation",
    "subset_tuning_final_on=all",
    "doubling_plain",
    "doubling_variant=segments",
    "exponential_plain",
    "permute_and_flip_public_validation",
)


@pytest.mark.parametrize("name", TUNED)
def test_the_training_alone_is_found_below_every_kind_of_tuning(name):
    claim = claim_of(name)
    run = claim["training"][-1]
    alone = accounting.dp_sgd(
        sampling_probability=run["lot_size"] / claim["training_records"]["public_size"],
        noise_multiplier=run["noise_multiplier"],
        steps=run["steps"],
    ).epsilon(claim["delta"])
    found = statement_page.training_alone(claim)
    assert found == pytest.approx(alone, rel=1e-3) and found < claim["epsilon"]
    # Records that it does not touch, however many kinds of them, hide nothing.
    for count in (1, 2, 3):
        tree = accounting.from_provenance(claim["mechanism"])
        for _ in range(count):
            tree = accounting.parallel(tree, accounting.pure(1e-3, relation=tree.relation))
        assert statement_page.training_alone(claim | {"mechanism": tree.provenance}) == found


def test_the_page_has_the_same_words_in_both_forms(tmp_path):
    """Every heading, first to last."""
    shutil.copytree(PLAIN, tmp_path / "release")
    statement_page.write(tmp_path / "release")
    text = (tmp_path / "statement.html").read_text()
    lines = (tmp_path / "statement.md").read_text().splitlines()
    for level in (1, 2):
        marks = f"{'#' * level} "
        headings = [line.removeprefix(marks) for line in lines if line.startswith(marks)]
        found = re.findall(rf"<h{level}>(.*?)</h{level}>", text, re.DOTALL)
        assert [html.unescape(one) for one in found] == headings and headings
    assert lines[0] == "# Privacy statement of a released model"


def test_it_lies_beside_the_release_which_still_verifies(tmp_path):
    shutil.copytree(PLAIN, tmp_path / "release")
    for _ in range(2):  # Again: the same bytes, in the place of the old ones.
        paths = statement_page.write(tmp_path / "release")
    assert [pathlib.Path(path).name for path in paths] == ["statement.md", "statement.html"]
    assert len(list(tmp_path.iterdir())) == 3
    text = (tmp_path / "statement.html").read_text()
    html.parser.HTMLParser().feed(text)
    assert "<script" not in text and "Content-Security-Policy" in text
    verification.verify_release(tmp_path / "release")


def test_words_of_the_curator_are_bound_to_the_claim_and_harmless_on_the_page(tmp_path):
    statement = {name: value for name, value in claim_of(PLAIN.name).items() if name != "sha256"}
    release = tuning.Release({}, {}, statement)
    assert release.with_context() is release  # Absent: the bytes are as they were.
    said = release.with_context(claimed_by="A <b>& | B", purpose="triage")
    assert set(said.statement) - set(statement) == {"context"}
    hyperparameters = json.loads((PLAIN / "hyperparameters.json").read_text())
    whole = tuning.Release({}, hyperparameters, said.statement)
    whole.save(tmp_path / "release", certificate=False)
    verification.verify_release(tmp_path / "release")
    paths = statement_page.write(tmp_path)
    markdown, page = (pathlib.Path(path).read_text() for path in paths)
    assert "A &lt;b&gt;&amp; | B" in page and r"A \<b\>& \| B" in markdown and "triage" in page
    changed = tmp_path / "release" / "guarantee.json"
    changed.write_text(changed.read_text().replace("triage", "triagE"))
    with pytest.raises(verification.NotVerified, match="changed after it was written"):
        verification.verify_release(tmp_path / "release")


@pytest.mark.parametrize("words", ["", "  ", "two\nlines", "x" * 501, 3, "\x1b[2J"])
def test_what_is_no_line_of_text_is_refused(words):
    with pytest.raises(ValueError, match="claimed_by must be"):
        tuning.Release({}, {}, {}).with_context(claimed_by=words)


def test_a_release_without_a_claim_says_so():
    assert statement_page.markdown({"private": False}).startswith("# NOT private")
    seeded = claim_of(PLAIN.name)
    assert not seeded["randomness"]["secret"]
    assert "**A seed was given" in statement_page.markdown(seeded)


def test_what_is_no_statement_is_refused(tmp_path):
    (tmp_path / "guarantee.json").write_text("{}")
    with pytest.raises(ValueError, match="does not say whether it is private"):
        statement_page.write(tmp_path / "guarantee.json")
