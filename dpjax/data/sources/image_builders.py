"""The stock TFDS builders of the image sets, with their reading replaced so that no TensorFlow is
needed: download without extracting, parse the idx or tar file, yield PIL images.

Name, version, features and record keys stay the stock ones, so what is prepared is the same data
set that any TFDS user would have prepared. The classes are made inside functions because importing
TFDS is heavy.
"""

from __future__ import annotations

import functools
import tarfile

import numpy as np
from PIL import Image

from dpjax.data.sources import images
from dpjax.data.tfds_store import LocalBuilder


@functools.cache
def mnist_builder() -> type:
    """Returns the stock MNIST builder, reading idx files without TensorFlow."""
    from tensorflow_datasets.image_classification import mnist

    return _idx_builder(mnist.MNIST, "mnist")


@functools.cache
def fashion_mnist_builder() -> type:
    """Returns the stock Fashion-MNIST builder, reading idx files without TensorFlow."""
    from tensorflow_datasets.image_classification import mnist

    return _idx_builder(mnist.FashionMNIST, "fashion_mnist")


def _idx_builder(stock: type, builder_name: str) -> type:
    class IdxBuilder(LocalBuilder, stock, skip_registration=True):
        name = builder_name

        def _split_generators(self, dl_manager):
            names = (
                images.TRAIN_IMAGES,
                images.TRAIN_LABELS,
                images.TEST_IMAGES,
                images.TEST_LABELS,
            )
            paths = dl_manager.download({file: self.URL + file for file in names})
            return {
                "train": self._generate_examples(
                    paths[images.TRAIN_IMAGES], paths[images.TRAIN_LABELS]
                ),
                "test": self._generate_examples(
                    paths[images.TEST_IMAGES], paths[images.TEST_LABELS]
                ),
            }

        def _generate_examples(self, images_path, labels_path):
            pairs = zip(images.read_idx(images_path), images.read_idx(labels_path), strict=True)
            for key, (image, label) in enumerate(pairs):
                yield key, {"image": Image.fromarray(image), "label": int(label)}

    return IdxBuilder


@functools.cache
def cifar10_builder() -> type:
    """Returns the stock CIFAR-10 builder, reading the tar file without TensorFlow."""
    from tensorflow_datasets.image_classification import cifar

    class TarBuilder(LocalBuilder, cifar.Cifar10, skip_registration=True):
        name = "cifar10"

        def _split_generators(self, dl_manager):
            stated = self._cifar_info
            path = dl_manager.download(stated.url)
            with tarfile.open(path, "r:gz") as archive:
                text = archive.extractfile(stated.prefix + stated.label_files[0]).read().decode()
            self.info.features["label"].names = text.split()
            return {
                "train": self._generate_examples("train_", path, stated.train_files),
                "test": self._generate_examples("test_", path, stated.test_files),
            }

        def _generate_examples(self, split_prefix, path, files):
            members = [self._cifar_info.prefix + file for file in files]
            for key, (image, label) in enumerate(zip(*images.read_cifar_tar(path, members))):
                yield (
                    key,
                    {
                        "id": f"{split_prefix}{key:05d}",
                        "image": Image.fromarray(np.ascontiguousarray(image)),
                        "label": int(label),
                    },
                )

    return TarBuilder
