"""Records that TFDS reads without TensorFlow, as the guide has it: a folder that somebody built."""

import json
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image
from processes import python

from dpjax import data
from dpjax.data import text

pytest.importorskip("array_record", reason="has no wheels here")
FEATURES = {
    "measured": tfds.features.Tensor(shape=(3,), dtype=np.float32),
    "label": tfds.features.Scalar(dtype=np.int64),
}


class BuiltByOthers(tfds.core.GeneratorBasedBuilder):
    """Sixty records of two classes."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(FEATURES))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for place in range(60):
            measured = np.float32([place, place % 2, 1.0])
            yield place, {"measured": measured, "label": place % 2}


def test_a_folder_that_a_community_built_is_read_without_tensorflow(tmp_path):
    made = BuiltByOthers(data_dir=tmp_path, file_format="array_record")
    made.download_and_prepare()
    source = tfds.builder_from_directory(str(made.data_path)).as_data_source(split="train")
    found = {name: np.stack([one[name] for one in source]) for name in FEATURES}
    loaded = data.from_arrays(found["measured"], found["label"], public_size=60, classes=2)
    inputs, labels = loaded.train.inputs, loaded.train.labels
    assert sorted(inputs[:, 0]) == list(range(60))
    np.testing.assert_array_equal(inputs[:, 1], labels)


class SmallShapes(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Pictures of several sizes, in two classes, with a caption and a price."""

    VERSION = tfds.core.Version("1.0.0")
    name = "small_shapes"
    keys = ("image", "label")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "fixed": tfds.features.Image(shape=(4, 4, 1)),
            "label": tfds.features.ClassLabel(names=["bar", "dot"]),
            "caption": tfds.features.Text(),
            "price": np.float32,
            "sizes": tfds.features.Sequence(np.int64),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=self.keys
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(40), "test": self._generate_examples(10)}

    def _generate_examples(self, number):
        for place in range(number):
            picture = np.full((6 + place % 3, 8, 3), place, np.uint8)
            yield (
                place,
                {
                    # As pictures, since TFDS packs arrays by TensorFlow.
                    "image": Image.fromarray(picture),
                    "fixed": Image.fromarray(np.full((4, 4), 255 - place, np.uint8)),
                    "label": place % 2,
                    "caption": f"number {place} is " + ("odd" if place % 2 else "even"),
                    "price": place / 2,
                    "sizes": [1] * (place % 3),
                },
            )


class WithoutKeys(SmallShapes, skip_registration=True):
    """Names no supervised keys."""

    name, keys = "without_keys", None


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    tfds.disable_progress_bar()
    for builder in (SmallShapes, WithoutKeys):
        with pytest.MonkeyPatch.context() as patch:
            # Until something is prepared TFDS asks its public bucket, which no test may.
            patch.setattr(tfds.core.DatasetInfo, "initialize_from_bucket", lambda self: None)
            made = builder(data_dir=folder, file_format="array_record")
        made.download_and_prepare(
            download_config=tfds.download.DownloadConfig(try_download_gcs=False)
        )
    return folder


def load(folder, name="small_shapes", public_size=40, **changed):
    settings = changed.pop("settings", {"image_size": (3, 4)})
    return data.load(f"tfds:{name}", folder, public_size=public_size, settings=settings, **changed)


def test_pictures_become_numbers_from_0_to_1_and_labels_have_names(prepared):
    found = load(prepared)
    assert found.train.inputs.shape == (40, 3, 4, 3) and found.test.inputs.shape == (10, 3, 4, 3)
    assert found.class_names == ("bar", "dot") and found.classes == 2
    values = np.rint(found.train.inputs[:, 0, 0, 0] * 255).astype(int)
    assert sorted(values) == list(range(40))
    np.testing.assert_array_equal(values % 2, found.train.labels)
    assert found.train.public_size == found.train.size_bound == 40
    assert load(prepared, "small_shapes:1.0.0").train.public_size == 40
    fixed = load(prepared, settings={"input_feature": "fixed"})  # All of one size: none is asked.
    assert fixed.train.inputs.shape == (40, 4, 4, 1)
    values = np.rint(fixed.train.inputs[:, 0, 0, 0] * 255).astype(int)
    np.testing.assert_array_equal(values % 2, 1 - fixed.train.labels)


def test_splits_are_chosen_in_tfds_words(prepared):
    settings = {"image_size": (3, 4), "train_split": "train[:30%]", "test_split": "train[-50%:]"}
    found = load(prepared, settings=settings)
    assert len(found.train.inputs) == 12 and len(found.test.inputs) == 20


def test_texts_are_hashed_words_and_numbers_may_be_targets(prepared):
    settings = {"input_feature": "caption", "slots": 16}
    found = load(prepared, settings=settings)
    words = [f"number {at} is {'odd' if at % 2 else 'even'}" for at in range(40)]
    assert sorted(map(tuple, found.train.inputs)) == sorted(
        map(tuple, text.hashed_words(words, 16))
    )
    priced = load(prepared, target_range=(0, 20), settings=settings | {"label_feature": "price"})
    assert sorted(priced.train.labels) == [at / 2 for at in range(40)]
    assert priced.classes is None and priced.class_names is None
    alone = load(prepared, settings={"input_feature": "price"})
    assert alone.train.inputs.shape == (40, 1)


def test_how_many_records_somebody_elses_folder_holds_is_not_read_off_it(prepared):
    with pytest.raises(ValueError, match="pass public_size=..., a number that is public"):
        load(prepared, public_size=None)


def test_a_set_of_the_catalogue_has_its_published_number(prepared, tmp_path):
    """What the folder says of who built it decides; TFDS's builders of any files are nobody's."""
    for module, published in (
        ("tensorflow_datasets.image_classification.mnist", True),
        ("tensorflow_datasets.core.folder_dataset.image_folder", False),
        ("my.tensorflow_datasets.builder", False),
    ):
        folder = tmp_path / module
        shutil.copytree(prepared, folder)
        statement = folder / "small_shapes" / "1.0.0" / "dataset_info.json"
        said = json.loads(statement.read_text())
        statement.write_text(json.dumps(said | {"moduleName": module}))
        if published:
            assert load(folder, public_size=None).train.public_size == 40
        else:
            with pytest.raises(ValueError, match="pass public_size=..."):
                load(folder, public_size=None)


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("nowhere", {}, "tfds:nowhere is not prepared in .*: prepare it by `python -c"),
        ("small_shapes:2.0.0", {}, "tfds:small_shapes:2.0.0 is not prepared in"),
        ("../secrets", {}, "is no name of TFDS: pass one such as tfds:mnist"),
        ("small_shapes", {"settings": {}}, "pass image_size=..., the height and the width"),
        (
            "small_shapes",
            {"settings": {"image_size": (3, 4), "train_split": "dev"}},
            "'dev' is no split of small_shapes with records: pass one of",
        ),
        (
            "small_shapes",
            {"settings": {"image_size": (3, 4), "train_split": "train[:0]"}},
            "is no split of small_shapes with records: pass one of",
        ),
        (
            "small_shapes",
            {"settings": {"input_feature": "picture"}},
            "pass input_feature=..., the name of one of ",
        ),
        (
            "small_shapes",
            {"settings": {"input_feature": "sizes"}},
            "feature 'sizes' of small_shapes is neither an image, a text nor numbers of one shape",
        ),
        (
            "small_shapes",
            {"settings": {"input_feature": "caption", "slots": 1}},
            "slots must be a number of slots from 2",
        ),
        (
            "small_shapes",
            {"settings": {"input_feature": "caption", "label_feature": "price"}},
            "pass classes=...",
        ),
        ("small_shapes", {"schema": "a.json"}, "schema= is not for 'tfds:small_shapes'"),
        ("without_keys", {}, "pass input_feature=..., the name of one of"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_says_what_to_pass(prepared, name, changed, words):
    with pytest.raises(ValueError, match=words) as refused:
        load(prepared, name, **changed)
    assert "\n" not in str(refused.value)


def test_what_only_tensorflow_reads_is_named_so(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "tfds")
    statement = tmp_path / "tfds" / "small_shapes" / "1.0.0" / "dataset_info.json"
    said = json.loads(statement.read_text()) | {"fileFormat": "tfrecord"}
    statement.write_text(json.dumps(said))
    with pytest.raises(data.DataNotFoundError, match="a format that only TensorFlow reads"):
        load(tmp_path / "tfds")


def test_neither_tensorflow_nor_the_network_is_touched(prepared):
    program = (
        "import socket, sys\n"
        "def refuse(*given, **more): raise AssertionError('the network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from dpjax import data\n"
        f"own = dict(public_size=40, settings=dict(image_size=(3, 4)))\n"
        f"print(data.load('tfds:small_shapes', {str(prepared)!r}, **own).train)\n"
        f"try: data.load('tfds:mnist', {str(prepared)!r})\n"
        "except data.DataNotFoundError: print('not prepared')\n"
        "print('tensorflow' in sys.modules)\n"
    )
    done = python("-c", program, check=True)
    assert done.stdout.splitlines()[-2:] == ["not prepared", "False"], done.stdout
    assert "input_shape=(3, 4, 3), public_size=40" in done.stdout and "OpenCV" not in done.stderr
