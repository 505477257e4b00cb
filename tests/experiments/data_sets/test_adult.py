"""Adult: reading the published form, and an encoding by public constants only."""

import numpy as np
import pytest

from dpjax import data
from experiments.data_sets import adult

TRAIN = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, \
2174, 0, 40, United-States, <=50K
90, ?, 83311, Preschool, 1, Divorced, ?, Husband, Black, Female, 99999, 4356, 99, ?, >50K
17, Private, 1, Doctorate, 16, Widowed, Sales, Wife, Other, Male, 0, 0, 1, \
Outlying-US(Guam-USVI-etc), <=50K

"""
TEST = """\
|1x3 Cross validator
25, Private, 226802, 11th, 7, Never-married, Sales, Own-child, Black, Male, 0, 0, 40, Peru, <=50K.
95, Private, 1, 11th, 7, Separated, Sales, Own-child, White, Male, 200000, 0, 120, Hong, >50K.

"""


@pytest.fixture
def place(publish):
    """Returns a function that publishes two texts as Adult's files and says in which folder."""

    def published(train, test):
        contents = {"adult.data": train.encode(), "adult.test": test.encode()}
        return publish("adult", contents, place="{}", train_count=3, test_count=2)

    return published


@pytest.fixture
def small_adult(place):
    return place(TRAIN, TEST)


def column(split, name):
    return split.inputs[:, adult.FEATURE_NAMES.index(name)]


def test_records_come_back_encoded_in_the_published_order(small_adult):
    result = data.load("adult", small_adult)
    np.testing.assert_array_equal(result.train.labels, [0, 1, 0])
    np.testing.assert_array_equal(result.test.labels, [0, 1])
    np.testing.assert_allclose(column(result.train, "age"), [22 / 73, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(column(result.train, "education-num"), [0.8, 0, 1], rtol=1e-6)
    np.testing.assert_allclose(
        column(result.train, "capital-gain"), [np.log(2175) / np.log(1e5), 1, 0], rtol=1e-6
    )
    np.testing.assert_allclose(column(result.train, "hours-per-week"), [39 / 98, 1, 0], rtol=1e-6)
    np.testing.assert_array_equal(column(result.train, "sex=Male"), [1, 0, 1])
    np.testing.assert_array_equal(
        column(result.train, "native-country=Outlying-US(Guam-USVI-etc)"), [0, 0, 1]
    )
    np.testing.assert_array_equal(result.train.identifiers, np.arange(3))
    # Beyond the public range a value is clipped.
    np.testing.assert_array_equal(column(result.test, "age") <= 1, True)
    assert column(result.test, "capital-gain")[1] == 1
    assert column(result.test, "hours-per-week")[1] == 1


def test_nothing_is_left_among_temporary_files(small_adult, temporary):
    data.load("adult", small_adult)
    assert list(temporary.iterdir()) == []


def test_a_missing_value_is_all_zeros(small_adult):
    train = data.load("adult", small_adult).train
    for name, missing in (("workclass", 1), ("occupation", 1), ("native-country", 1), ("sex", 0)):
        places = [
            place
            for place, feature in enumerate(adult.FEATURE_NAMES)
            if feature.startswith(f"{name}=")
        ]
        np.testing.assert_array_equal(train.inputs[:, places].sum(axis=1), [1, 1 - missing, 1])


def test_the_encoding_of_a_record_does_not_depend_on_the_others(small_adult):
    columns = [
        np.array([30, 60, 90])
        if name not in adult.VOCABULARIES
        else np.array([0, 1, len(adult.VOCABULARIES[name])])
        for name in adult.COLUMNS
    ]
    table = np.stack(columns, axis=1)
    together = adult.encode_adult(table)
    for row in range(3):
        np.testing.assert_array_equal(together[row], adult.encode_adult(table[row : row + 1])[0])


def test_public_constants():
    assert len(adult.FEATURE_NAMES) == len(set(adult.FEATURE_NAMES)) == 104
    sizes = {name: len(values) for name, values in adult.VOCABULARIES.items()}
    assert sizes == {
        "workclass": 8,
        "education": 16,
        "marital-status": 7,
        "occupation": 14,
        "relationship": 6,
        "race": 5,
        "sex": 2,
        "native-country": 41,
    }
    assert set(adult.COLUMNS) == {*adult.RANGES, *adult.VOCABULARIES, "fnlwgt"}


def test_a_row_of_another_length_is_refused(tmp_path):
    path = tmp_path / "adult.data"
    path.write_text("39, State-gov\n")
    with pytest.raises(ValueError, match="line 1: 2 fields"):
        list(adult.rows(path))


@pytest.mark.parametrize(
    ("value", "other", "words"),
    [
        ("State-gov", "Elsewhere", "workclass 'Elsewhere'"),
        ("<=50K", "=50K", "class '=50K'"),
        ("77516", "many", "fnlwgt"),
    ],
)
def test_a_value_outside_the_vocabulary_is_refused(place, value, other, words):
    folder = place(TRAIN.replace(value, other), TEST)
    with pytest.raises(ValueError, match=words):
        data.load("adult", folder)
    assert not (folder / "adult" / "1.0.0").exists()
