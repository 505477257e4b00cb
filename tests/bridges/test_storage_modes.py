"""A private study's storage: whichever bit of its mode lets others in, it is refused."""

import os
import stat

import pytest

optuna = pytest.importorskip("optuna", reason="the extra bridges is not installed")

from optuna.distributions import FloatDistribution  # noqa: E402

from dpjax import accounting, bridges  # noqa: E402
from dpjax.bridges import optuna as bridge  # noqa: E402

BITS = [1 << place for place in range(9)]
"""Of a file's mode: of others, of the group, of its owner."""


def _storage(kind, file):
    if kind == "journal":
        backend = optuna.storages.journal.JournalFileBackend
        return optuna.storages.JournalStorage(backend(str(file)))
    return f"sqlite:///{file}"


@pytest.mark.parametrize("bit", BITS, ids=oct)
@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_storage_is_refused_for_each_bit_that_lets_others_in(tmp_path, kind, bit):
    file = tmp_path / "curator.db"
    file.touch()
    storage = _storage(kind, file)
    file.chmod(0o600 | bit)

    def study():
        return bridge.PrivateStudy(
            {"rate": FloatDistribution(0.1, 1.0)},
            base=accounting.gaussian(2.0),
            score=bridges.CountedScore("disjoint", 100, noise=3.0),
            repetitions=accounting.Fixed(2),
            storage=storage,
        )

    if bit & (stat.S_IRWXG | stat.S_IRWXO):
        with pytest.raises(
            ValueError, match=rf"open to others \(mode {0o600 | bit:04o}\)"
        ) as caught:
            study()
        assert "\n" not in str(caught.value) and "chmod 600" in str(caught.value)
        assert not file.stat().st_size, "something was written"
    else:
        assert study().ask() is not None
        assert not os.stat(file).st_mode & (stat.S_IRWXG | stat.S_IRWXO)
