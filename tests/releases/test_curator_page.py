"""The curator's page: complete in itself, readable by its owner, and opened by a real browser."""

import json
import re
import shutil
import stat
import subprocess
from html.parser import HTMLParser

import pytest

from dpjax import plotting
from dpjax.releases import curator_page
from dpjax.releases.release import sealed
from dpjax.releases.release_files import sealed_claim
from dpjax.releases.rules import NO_CHOICE as RULE

ROWS = [
    {
        "candidate": i,
        "winner": int(i == 2),
        "score": s,
        "validation_accuracy": s,
        "learning_rate": r,
    }
    for i, (s, r) in enumerate([(0.91, 0.5), ("-inf", 40.0), (0.93, 1.25), (0.88, 0.1)])
]


def _seal(folder, statement):
    files = {"hyperparameters.json": b"{}", "model.msgpack": b"model"}
    for name, content in sealed(files, statement).items():
        (folder / name).write_bytes(content)


def _page(run):
    names = [path.name for path in (run / "release").iterdir()]
    return curator_page.page(run / "curator", sealed_claim(run / "release"), names)


def _write(run):
    names = [path.name for path in (run / "release").iterdir()]
    stated = sealed_claim(run / "release")
    curator_page.beside(run / "curator", [], stated, files_released=names)


@pytest.fixture
def run(tmp_path):
    """The folder of a run with four candidates, the third selected."""
    release, curator = tmp_path / "release", tmp_path / "curator"
    release.mkdir()
    curator.mkdir()
    statement = {
        "private": True,
        "epsilon": 1.9993,
        "delta": 1e-5,
        "neighbouring_relation": "add_or_remove_one",
        "model": "Net(\n    # attributes\n    width = <script>\n)",
        "randomness": {"secret": True},
    }
    _seal(release, statement)
    lines = ["# never publish", ",".join(ROWS[0]), *(",".join(map(str, r.values())) for r in ROWS)]
    (curator / "candidates.csv").write_text("\n".join(lines) + "\n")
    facts = {
        "warning": "never",
        "number_of_candidates": 4,
        "seconds": 3.5,
        "test_accuracy": None,
        "epsilon_of_one_run": 1.5738,
        "epsilon": 1.9993,
        "epsilon_of_naive_composition": 3.3667,
    }
    (curator / "run.json").write_text(json.dumps(facts))
    rows = [row for row in ROWS if row["score"] != "-inf"]
    figure = plotting.candidate_scores(rows, "learning_rate", 0.5, "every candidate")
    plotting.save_figure(figure, curator, "candidates", formats=("png",))
    return tmp_path


def test_an_untuned_run_has_no_score(run):
    path = run / "release" / "guarantee.json"
    stated = json.loads(path.read_text())
    assert "0.93" in _page(run) and "Untuned" not in _page(run)
    _seal(path.parent, stated | {"selection": {"rule": RULE}})
    (run / "curator" / "candidates.png").unlink()
    page = _page(run)
    assert "there is no validation score" in page and "1.25" in page
    assert not re.search("0\\.93|candidates: 4|score</th>", page, re.IGNORECASE)


class _Tags(HTMLParser):
    VOID = ("meta", "img", "rect")

    def __init__(self):
        super().__init__()
        self.open, self.links = [], []

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("src", "href", "action")]
        assert tag not in ("script", "link", "iframe", "form")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.VOID:  # <rect/>
            return
        assert self.open.pop() == tag


def test_it_is_well_formed_and_reaches_for_nothing(run):
    tags = _Tags()
    text = _page(run)
    tags.feed(text)
    assert tags.open == []
    assert tags.links and all(link.startswith("data:image/png;base64,") for link in tags.links)
    assert "<p>Net(width = &lt;script&gt;)</p>" in text
    assert "http:" not in text and "https:" not in text and "<script" not in text


def test_it_shows_the_cost_the_winner_first_and_what_may_be_published(run):
    text = _page(run)
    assert "epsilon 1.9993 at delta 1e-05, add or remove one" in text
    widths = [float(one) for one in re.findall(r'<rect [^>]*width="([\d.]+)"', text)]
    assert widths == pytest.approx([350 * e / 3.3667 for e in (1.5738, 1.9993, 3.3667)], abs=0.06)
    rates = re.findall(r"<td>([^<]*)</td></tr>", text.split("The run")[0])
    assert rates == ["1.25", "0.5", "0.1", "40"]
    assert text.count('class="winner"') == 1
    assert "<li>release/model.msgpack</li>" in text and "NOT PRIVATE" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"private": False}, "NOT private, no guarantee"),
        ({"randomness": {"secret": False}}, "nobody who knows the seed"),
    ],
)
def test_what_has_no_guarantee_is_not_called_publishable(run, changes, words):
    path = run / "release" / "guarantee.json"
    _seal(path.parent, json.loads(path.read_text()) | changes)
    text = _page(run)
    assert words in text and "May be published" not in text


def test_its_owner_alone_may_read_it(run):
    _write(run)
    path = run / "curator" / curator_page.REPORT_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == _page(run)
    assert sorted(one.name for one in path.parent.iterdir()) == [
        *("candidates.csv", "candidates.png", "report.html", "run.json")
    ]


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_opens_it_without_network(run, tmp_path):
    _write(run)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,1400"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--proxy-server=127.0.0.1:1"]
    shot = tmp_path / "shot.png"
    done = subprocess.run(
        [
            *(CHROMIUM, *options, "--virtual-time-budget=2000", f"--screenshot={shot}"),
            *("--dump-dom", (run / "curator" / curator_page.REPORT_FILE).as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "What may be published" in done.stdout and "</svg>" in done.stdout
    assert "Refused to" not in done.stderr  # By the page's own policy.
