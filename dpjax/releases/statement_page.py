"""Writes a release's claim as one page for a data-protection officer: `statement.md` and `.html`.

The page is a function of `guarantee.json` alone. It lies beside the release's folder, not in it:
the release is what its hashes name, and anyone can make the page again. Its rows follow NIST SP
800-226 (2025), section 2, and the public registries of deployments: unit, parameters, who is
trusted, what is released, what is assumed.
"""

from __future__ import annotations

import html
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dpjax import accounting, files
from dpjax.certificate import CERTIFICATE
from dpjax.releases import release_files
from dpjax.releases.release import CONTEXT, SEAL, THIS_STATEMENT

PAGE = "statement"
"""Name of the page's files, without their endings."""

FALSE_ALARMS = (0.001, 0.01, 0.1)
"""False positive rates at which the success of attacks is stated."""

_BLANK = "______________________"
_CONFIRM = f"confirmed by {_BLANK}, date ____________"
_CONTENTS = {
    "guarantee.json": "the claim, which this page puts in words",
    "hyperparameters.json": "the settings that the model was trained with",
    "model.msgpack": "the trained model's parameters",
    "schema.json": "how records are encoded for the model; public",
    CERTIFICATE: "lets a separate program prove epsilon",
}
_UNTUNED = ("none:", "one run;")
"""How the rules of releases begin for which nothing was compared on the records."""

_GLOSSARY = {
    "Differential privacy": "whatever can be learned from a release could be learned almost as "
    "well had any one person's data been left out; 'almost' is what epsilon and delta measure",
    "Epsilon": "how much one person's data may change the odds of anything that can be observed: "
    "at most by a factor of e^epsilon; 0 would be no influence at all",
    "Delta": "a probability with which that factor may be exceeded; far below one over the number "
    "of records",
    "Membership attack": "an attempt to tell from the release whether a certain person's data was "
    "used; its false alarms are people of whom it says so wrongly",
    "Tuning": "training with many settings and keeping the best; the choice depends on the "
    "records too, and so has a cost in privacy",
}


def write(release: str | os.PathLike[str]) -> list[str]:
    """Writes the page beside a release's folder, replacing an older one; returns the two paths.

    `release` is the folder, its `guarantee.json`, or the run's folder that holds it; one whose
    hashes do not fit is refused (NotVerified).
    """
    statement = release_files.statement_in(release)
    blocks = _blocks(release_files.sealed_claim(statement))
    beside = os.path.dirname(os.path.dirname(os.path.abspath(statement)))
    paths = []
    for ending, text in ((".md", _markdown(blocks)), (".html", _html(blocks))):
        path = os.path.join(beside, PAGE + ending)
        with files.replacing(path, 0o644) as partial, open(partial, "w", encoding="utf-8") as file:
            file.write(text)
        paths.append(path)
    return paths


def markdown(claim: Mapping[str, Any]) -> str:
    """Returns the page of a statement in markdown."""
    return _markdown(_blocks(claim))


def attack_success(epsilon: float, delta: float, false_alarms: float) -> float:
    """Returns the largest true-positive rate of any membership attack at this false-alarm rate.

    Kairouz, Oh & Viswanath (ICML 2015), Theorem 2.1: both error rates of a test are bounded. The
    whole profile of the mechanism, as `dpjax price` uses it, would allow less, after a minute.
    """
    most = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    other = 1.0 - math.exp(-epsilon) * (1.0 - delta - false_alarms)
    return min(1.0, most, other)


def training_alone(claim: Mapping[str, Any]) -> float | None:
    """Returns the epsilon of the released training by itself; None where nothing was tuned.

    It is what a statement that leaves the tuning out would have claimed.
    """
    tree = claim["mechanism"]
    # A parallel part is of validation records; descend to the part that trains.
    while tree["mechanism"] == "parallel":
        tree = tree["parts"][0]
    if tree["mechanism"] in ("best_of", "stop_at_threshold"):
        tree = tree["parts"][0]
        if tree["mechanism"] in ("parallel", "compose"):  # The run, then its score.
            tree = tree["parts"][0]
    elif tree["mechanism"] in ("compose", "split"):
        tree = tree["parts"][-1]
    else:
        return None
    return accounting.from_provenance(tree).epsilon(claim["delta"])


def _blocks(claim: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns the page as (kind, content): headings, paragraphs, lists, tables with a head row."""
    if not claim["private"]:
        return [
            ("h1", "NOT private: this model carries no guarantee"),
            ("p", "It was trained without noise, or without a limit on what one record changes."),
        ]
    # Words and numbers follow from the claim alone, so anyone can make the page again and compare.
    epsilon, delta = claim["epsilon"], claim["delta"]
    context = claim.get(CONTEXT, {})
    federated = "federated" in claim["mechanism"]["mechanism"] or "fingerprint" in claim
    blocks: list[tuple[str, Any]] = [("h1", "Privacy statement of a released model")]
    if claim["randomness"]["secret"] is False:
        blocks.append(
            ("warning", "A seed was given: the claim holds against nobody who knows the seed.")
        )
    blocks += [
        (
            "table",
            [
                ("What is claimed", f"epsilon {_up(epsilon)} at delta {delta:g}, tuning included"),
                ("Whose data is protected", claim["unit_of_privacy"]),
                ("On which data", context.get("data_description", _BLANK)),
                ("Claimed by", context.get("claimed_by", _BLANK)),
                ("For what purpose", context.get("purpose", _BLANK)),
                ("Valid until", _BLANK),
                ("Who is trusted", _TRUST[federated]),
                ("Neighbouring data sets", _RELATIONS[claim["neighbouring_relation"]]),
                *_limit(claim),
            ],
        ),
        ("h2", "What an attacker can learn"),
        ("p", _attacks_in_words(attack_success(epsilon, delta, 0.01))),
        (
            "table",
            [
                ("False alarms that the attacker accepts", "Largest success without privacy loss")
                + ("Largest success with this release",),
                *(
                    (f"{rate:.1%}", f"{rate:.1%}", _percent(attack_success(epsilon, delta, rate)))
                    for rate in FALSE_ALARMS
                ),
            ],
        ),
        ("h2", "Tuning is included"),
        ("p", _tuning_in_words(claim)),
        ("h2", "What is released, and what never leaves"),
        ("ul", [f"{name}: {_CONTENTS.get(name, 'part of the release')}" for name in _names(claim)]),
        (
            "p",
            "Never released: the records, how many candidates there were, the candidates that were "
            "not chosen and their scores, timings, and what the programs printed.",
        ),
        ("h2", "What this rests on"),
        ("ul", [f"☐ {_plain(one)} - {_CONFIRM}" for one in claim["assumptions"]]),
        ("h2", "How to verify it"),
        ("code", _commands(claim)),
        (
            "p",
            f"This page was made from the statement whose SHA-256 is "
            f"{claim.get(SEAL, {}).get(THIS_STATEMENT, 'missing')}, with dpjax "
            f"{claim['library_versions']['dpjax']}; `dpjax report` makes it again.",
        ),
        ("h2", "Five terms"),
        ("ul", [f"{term}: {meaning}." for term, meaning in _GLOSSARY.items()]),
    ]
    return blocks


_TRUST = {
    False: "the curator, who holds all records and keeps everything but the release",
    True: "no curator: each participant keeps its records; the server sees sums alone",
}
_RELATIONS = {
    "add_or_remove_one": "with and without one such unit",
    "replace_one": "one such unit exchanged for another",
}


def _limit(claim: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the row that says how gradients were clipped, where the statement knows it."""
    if "run_options" not in claim:
        return []
    rule = claim["run_options"].get("clipping", {}).get("rule", "global")
    bands = claim["run_options"].get("bands") or 1
    noise = "noise" if bands == 1 else f"noise that is correlated over {bands} steps"
    stages = len(claim["run_options"].get("stages", {}).get("shares", ()))
    noise += f", in {stages} stages" if stages else ""
    return [("What limits one unit's influence", f"{rule} clipping of gradients, and {noise}")]


def _names(claim: Mapping[str, Any]) -> list[str]:
    """Returns the files of the release."""
    return sorted({*claim.get(SEAL, {}), "guarantee.json"} - {THIS_STATEMENT})


def _commands(claim: Mapping[str, Any]) -> list[str]:
    """Returns the shell commands that check the release."""
    version = claim["library_versions"]["dpjax"]
    proof = ["dpjax certificate release   # proves epsilon, by separate code"]
    return [
        f"# with dpjax {version}, from its repository (pip install -e . in a checkout):",
        "dpjax verify release        # computes the whole statement anew",
        *(proof if CERTIFICATE in _names(claim) else []),
    ]


def _attacks_in_words(success: float) -> str:
    """Says how well an attack can recognise people, at 1% of false alarms."""
    return (
        "Suppose that an attacker knows every other record, sees all that is released, and "
        "suspects that one certain person's data was used. Of people whose data was used, any such "
        "attack that errs on one in a hundred others recognises at most "
        f"{_percent(success)}. A guess without the release recognises 1.0%."
    )


def _tuning_in_words(claim: Mapping[str, Any]) -> str:
    """Explains in plain text what was chosen, and what the stated epsilon covers."""
    rule = str(claim.get("selection", {}).get("rule", ""))
    if rule.startswith(_UNTUNED):
        return (
            "Nothing was chosen by means of these records: the settings were public beforehand. "
            f"Epsilon {_up(claim['epsilon'])} covers the one training."
        )
    try:
        alone = training_alone(claim)
    except (KeyError, IndexError, TypeError, ValueError):
        alone = None
    words = (
        f"Epsilon {_up(claim['epsilon'])} covers the whole procedure: every candidate that was "
        "tried, the choice among them, and what is released."
    )
    if alone is None or not alone < claim["epsilon"]:
        return words
    return (
        f"{words} A statement that left the tuning out would have claimed {_up(alone)} for the "
        "same model, and would have been wrong."
    )


def _up(number: float) -> str:
    """Returns a number with two decimals, rounded up."""
    return f"{math.ceil(number * 100 - 1e-9) / 100:.2f}"


def _percent(rate: float) -> str:
    """Returns a chance in percent with one decimal, rounded up."""
    return f"{min(100.0, math.ceil(rate * 1000 - 1e-9) / 10):.1f}%"


def _plain(assumption: str) -> str:
    """Returns an assumption without the symbol for the number of candidates."""
    plain = assumption.replace("the law of K", "the distribution of the number of candidates")
    return re.sub(r"\bK\b", "the number of candidates", plain)


def _markdown(blocks: Sequence[tuple[str, Any]]) -> str:
    """Renders the blocks of the page as Markdown."""

    def text(words: object) -> str:
        return re.sub(r"([\\|*#<>\[\]])", r"\\\1", " ".join(str(words).split()))

    lines = []
    for kind, content in blocks:
        if kind in ("h1", "h2"):
            lines.append(f"{'#' * int(kind[1])} {text(content)}")
        elif kind == "table":
            rows = [f"| {' | '.join(map(text, row))} |" for row in content]
            lines.append("\n".join([rows[0], "|---" * len(content[0]) + "|", *rows[1:]]))
        elif kind == "ul":
            lines.append("\n".join(f"- {text(one)}" for one in content))
        elif kind == "code":
            lines.append("\n".join(f"    {one}" for one in content))
        else:
            lines.append(f"**{text(content)}**" if kind == "warning" else text(content))
    return "\n\n".join(lines) + "\n"


_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 46rem; margin: 0 auto;
  padding: 0 1rem 2rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 1.2rem 0 .3rem; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .2rem .6rem; text-align: left;
  border-bottom: 1px solid #ddd; vertical-align: top; } td { overflow-wrap: anywhere; }
.warning { background: #8c1d18; color: #fff; padding: .5rem 1rem; font-weight: 600; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f4f4f4; padding: .5rem; }
p, li { overflow-wrap: anywhere; } ul { padding-left: 1.2rem; }
@media print { body { font-size: 10px; max-width: none; } h2 { margin: .6rem 0 .2rem; } }
"""


def _html(blocks: Sequence[tuple[str, Any]]) -> str:
    """Renders the blocks of the page as HTML."""

    def text(words: object) -> str:
        return html.escape(" ".join(str(words).split()), quote=True)

    parts = []
    for kind, content in blocks:
        if kind == "table":
            headed = len(content[0]) > 2
            rows = []
            for place, row in enumerate(content):
                cells = [
                    f"<{tag}>{text(one)}</{tag}>"
                    for at, one in enumerate(row)
                    for tag in ("th" if (place == 0 if headed else at == 0) else "td",)
                ]
                rows.append(f"<tr>{''.join(cells)}</tr>")
            parts.append("<table>\n" + "\n".join(rows) + "\n</table>")
        elif kind == "ul":
            parts.append("<ul>\n" + "\n".join(f"<li>{text(one)}</li>" for one in content) + "</ul>")
        elif kind == "code":
            parts.append("<pre>" + html.escape("\n".join(content)) + "</pre>")
        elif kind == "warning":
            parts.append(f'<p class="warning">{text(content)}</p>')
        else:
            parts.append(f"<{kind}>{text(content)}</{kind}>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(blocks[0][1])}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )
