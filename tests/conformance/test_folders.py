"""A draw is used once: what a finished folder holds, and that whatever of it is lost is not drawn.

For every tuner there is, and for runs of other libraries.
"""

import itertools
import os
import random
import shutil
import sys

import numpy as np
import pytest
import tiny_tuners
from runs_elsewhere import model_and_count

from dpjax import accounting, bridges, tuning
from dpjax.tuning import Job
from dpjax.tuning.job import CONSUMED_FILE, OUTCOME_FILE


def _bridge(job):
    return bridges.tune(
        model_and_count,
        tuning.Space(rate=tuning.Uniform(0.0, 1.0)),
        base=accounting.gaussian(2.0),
        score=bridges.CountedScore("disjoint", 100, noise=3.0),
        repetitions=accounting.Fixed(3),
        job=job,
    )


def _in_shards(name):
    def run(job):
        for index in (*range(2), None):
            result = tiny_tuners.run(name, job=Job(folder=job.folder, shard=(index, 2)))
        return result

    return run


PROCEDURES = {
    **{name: lambda job, name=name: tiny_tuners.run(name, job=job) for name in tiny_tuners.NAMES},
    "random_repetitions in shards": _in_shards("random_repetitions"),
    "subset_tuning in shards": _in_shards("subset_tuning"),
    "exponential in shards": _in_shards("exponential"),
    "bridges.tune": _bridge,
}


class Drawn(BaseException):
    """Something was drawn."""


class _NothingIsDrawn:
    """While it lasts the operating system has no randomness but for names of files."""

    def __enter__(self):
        self._patch = pytest.MonkeyPatch()
        usual = os.urandom

        def refused(number):
            frame = sys._getframe()
            while frame is not None:
                if frame.f_code.co_filename.endswith(os.path.join("dpjax", "files.py")):
                    return usual(number)
                frame = frame.f_back
            raise Drawn

        self._patch.setattr(os, "urandom", refused)
        self._patch.setattr(random, "_urandom", refused)

    def __exit__(self, *_):
        self._patch.undo()


def _files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _lost(files):
    """Which files are removed: every part of them that leaves one, if there are few.

    Of many: each one, each pair, and all but one. Where nothing is left a folder is a new one, and
    what is drawn in it is another procedure, which is paid for anew.
    """
    sizes = range(1, len(files)) if len(files) <= 4 else (1, 2, len(files) - 1)
    return [part for size in sizes for part in itertools.combinations(files, size)]


def _released(result, folder):
    result.release.save(folder)
    kept = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    return kept, result.curator.rows(), result.curator.details


@pytest.mark.parametrize("name", PROCEDURES)
def test_whatever_is_lost_of_a_finished_folder_nothing_is_drawn_again(name, tmp_path):
    run, work = PROCEDURES[name], tmp_path / "work"
    first = _released(run(Job(folder=str(work))), tmp_path / "first")
    files = _files(work)
    found, refused = 0, 0
    for place, lost in enumerate([(), *_lost(files)]):
        copy = tmp_path / f"copy_{place}"
        shutil.copytree(work, copy)
        for file in lost:
            os.remove(copy / file)
        try:
            with _NothingIsDrawn():
                again = run(Job(folder=str(copy)))
        except ValueError as error:
            line = str(error)
            assert "\n" not in line and "pass another folder" in line, (lost, line)
            assert lost, "the finished folder itself is refused"
            refused += 1
        except Drawn:
            pytest.fail(f"{name}: without {', '.join(lost)} something was drawn again")
        else:
            np.testing.assert_equal(_released(again, tmp_path / f"again_{place}"), first)
            found += 1
        shutil.rmtree(copy)
    assert found and refused
    # Keys, noise, exact counts and choices are gone.
    assert files == sorted([CONSUMED_FILE, OUTCOME_FILE])
