"""What a newcomer passes wrongly is refused in one clear line, before anything is drawn."""

import gzip

import flax.linen as nn
import numpy as np
import optax
import pandas
import pytest

from dpjax import accounting, data, training, tuning

INPUTS = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
LABELS = (INPUTS[:, 0] > 0).astype(np.int32)
BRACKETS = (
    r"pass such as lambda h: optax.adam\(h\['learning_rate'\]\).*training.momentum\(\) with its"
)


def _parts():
    return (
        tuning.Records((INPUTS[:40].copy(), LABELS[:40].copy()), 40, 40),
        tuning.Records((INPUTS[40:].copy(), LABELS[40:].copy()), 20, 20),
    )


def _module(call):
    return type("Own", (nn.Module,), {"__call__": nn.compact(call)})()


def _two(self, x):
    return nn.Dense(2)(x), x


def _named(self, x):
    return {"scores": nn.Dense(2)(x)}


def _untold(self, x):
    return nn.Dropout(0.5)(nn.Dense(2)(x))


def _always(self, x):
    return nn.Dropout(0.5, deterministic=False)(nn.Dense(2)(x))


MODELS = {
    "a tuple": (_two, "returns a tuple, of 2 arrays: pass one that returns one array"),
    "a dictionary": (_named, "returns a dict, of 1 arrays"),
    "dropout that is not told": (_untold, "an argument `deterministic` or `train`"),
    "dropout that always draws": (_always, "an argument `deterministic` or `train`"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    call, message = MODELS[name]
    with pytest.raises(ValueError, match=message) as caught:
        tuning.classification(_module(call), *_parts(), with_rng=True)
    assert "\n" not in str(caught.value)


OPTIMIZERS = {
    "training's, without brackets": (training.momentum, BRACKETS),
    "optax's, without brackets": (optax.adam, BRACKETS),
    "optax's, made already": (optax.adam(1e-3), "optimizer is not a function"),
    "a name that is not drawn": (lambda h: optax.sgd(h["lr"]), "'lr', and candidates have.*learn"),
    "an attribute": (lambda h: optax.sgd(h.learning_rate), BRACKETS),
    "no transformation": (lambda h: h["learning_rate"], BRACKETS),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    optimizer, message = OPTIMIZERS[name]
    with pytest.raises(ValueError, match=message) as caught:
        tuning.tune(
            tuning.classification(nn.Dense(2), *_parts()),
            tuning.Space(learning_rate=0.1),
            tuning.RandomRepetitions(accounting.Fixed(2)),
            run=tuning.RunOptions(lot_size=8, steps=2, noise_multiplier=2.0),
            optimizer=optimizer,
        )
    assert "\n" not in str(caught.value)


SCHEMA = {
    "target": {"column": "y", "classes": ["no", "yes"]},
    "columns": {"café": {"range": [0, 1]}},
}
TEXT = "café,y\n0.5,yes\n"
TABLES = {
    "latin.csv": (TEXT.encode("latin-1"), "not in UTF-8, perhaps in Latin-1: .*iconv"),
    "late.csv": (b"x,y\n0.5,yes\n" + "0.5,né\n".encode("latin-1"), "perhaps in Latin-1"),
    "utf16.csv": (TEXT.encode("utf-16"), "in UTF-16.*save it in UTF-8"),
    "table.csv.gz": (gzip.compress(TEXT.encode()), "compressed.*gunzip"),
    "table.parquet": (b"PAR1" + bytes(9), "parquet.*read it with pandas"),
    "table.xlsx": (b"PK\x03\x04" + bytes(9), "spreadsheet.*save it as CSV"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name, tmp_path):
    content, message = TABLES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        data.from_table(tmp_path / name, SCHEMA, public_size=10)
    assert "\n" not in str(caught.value)


def test_frames_whose_columns_are_numbers(tmp_path):
    frame = pandas.DataFrame({0: [1, 2], 1: ["no", "yes"]})
    with pytest.raises(ValueError, match=r"no text, such as 0: name each, as by frame.columns"):
        data.from_table(frame, SCHEMA, public_size=10)
    with pytest.raises(ValueError, match="no text, such as 0"):
        data.write_schema(frame, tmp_path / "schema.json")


def test_arrays_of_masked_or_complex_numbers_and_of_no_features():
    masked = np.ma.masked_array(INPUTS, INPUTS > 1)
    cases = {
        "masked": masked,
        "complex": INPUTS.astype(complex),
        "one record and feature": INPUTS[:, :0],
    }
    for message, inputs in cases.items():
        with pytest.raises(ValueError, match=message):
            data.from_arrays(inputs, LABELS, public_size=60, classes=2)
