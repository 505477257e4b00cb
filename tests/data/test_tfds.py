"""Records that TFDS reads without TensorFlow, as the guide has it: a folder that somebody built."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

from dpjax import data

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
