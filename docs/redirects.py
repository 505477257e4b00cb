"""Addresses that pages of this site had, and where their text stands now.

`write` makes a small page at each old address, which leads on. A key with a heading (`costs#how`)
leads from that heading. A test refuses a page that is removed without an entry here.
"""

import html
import json
import os
import pathlib

MOVED = {
    "costs": "should_i_tune#what-tuning-costs",
    "costs#how-many-candidates": "procedures#how-many-candidates",
    "costs#tuning-on-a-secret-part-of-the-records": (
        "procedures#tuning-on-a-secret-part-of-the-records"
    ),
    "costs#other-runs-other-rules": "howto/price_a_study#more-flags",
    "faq": "troubleshooting#questions",
    "federated_figures": "figures#dp-hype-popets-2026",
    "glossary": "concepts#glossary",
    "guarantees": "epsilon#what-a-guarantee-answers",
    "guarantees#the-same-number-on-every-machine": "epsilon#the-same-number-on-every-machine",
    "guarantees#what-one-run-costs-when-you-know-little-about-it": (
        "howto/price_a_study#one-runs-cost-from-what-you-have"
    ),
    "howto/defend": "howto/publish#the-page-for-a-data-protection-officer",
    "howto/defend#a-signature": "howto/publish#a-signature",
    "howto/defend#adding-up": "howto/publish#adding-up",
    "howto/from_python": "howto/own_model",
    "howto/from_python#laws-of-k": "procedures#laws-of-k",
    "howto/from_python#records-from-tfds": "howto/own_data#your-own-reading-of-tfds",
    "howto/images": "howto/own_data#a-folder-of-images",
    "howto/images#tfds": "howto/own_data#tfds",
    "howto/jax_privacy": "bridges#a-jax-privacy-training",
    "howto/numbers_and_texts": "tables#predict-a-number-and-use-texts",
    "howto/numbers_and_texts#columns-of-text": "tables#columns-of-text",
    "howto/opacus": "bridges#an-opacus-training",
    "howto/serve": "howto/publish#serve-the-model",
    "howto/verify": "howto/publish#verify-it",
    "howto/vote_on_any_task": "federated#vote-on-any-task",
    "howto/vote_on_any_task#flowers-own-simulation": "federated#flowers-own-simulation",
    "run_folder": "howto/publish#what-you-may-publish",
    "run_folder#compiled-programs": "howto/long_sweeps#compiled-programs",
    "tasks": "howto/own_model#tasks-what-is-learned-and-what-ranks-candidates",
    "tasks#why-a-score-is-a-sum-over-records": (
        "howto/own_model#why-a-score-is-a-sum-over-records"
    ),
    "tasks#regression-name-the-public-range-of-the-targets": (
        "howto/own_model#regression-name-the-public-range-of-the-targets"
    ),
}
"""Old address -> new one, both below docs/ and without their ending."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Moved</title>
<script>const moved = {table}; location.replace(moved[location.hash] || moved[""]);</script>
<noscript><meta http-equiv="refresh" content="0; url={first}"></noscript></head>
<body><p>This page has moved:</p><ul>{links}</ul></body>
</html>
"""


def write(folder: str | os.PathLike) -> None:
    """Writes a page that leads on at each old address, below `folder`, which holds docs/."""
    for old in sorted({key.partition("#")[0] for key in MOVED}):
        path = pathlib.Path(folder, f"{old}.html")
        table = {}
        for key, new in MOVED.items():
            page, _, heading = key.partition("#")
            if page == old:
                name, _, anchor = new.partition("#")
                target = os.path.relpath(pathlib.Path(folder, f"{name}.html"), path.parent)
                table["#" * bool(heading) + heading] = target + "#" * bool(anchor) + anchor
        links = "".join(
            f'<li><a href="{html.escape(url)}">{html.escape(url)}</a></li>'
            for url in dict.fromkeys(table.values())
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        text = PAGE.format(table=json.dumps(table), first=html.escape(table[""]), links=links)
        path.write_text(text, encoding="utf-8")
