"""MNIST (LeCun, Cortes and Burges), from TFDS's mirror of the four published files."""

from dpjax.data import readers
from dpjax.data.published_files import PublishedFile
from dpjax.data.source import Source, register

_ADDRESS = "https://storage.googleapis.com/cvdf-datasets/mnist/"
FILES = (
    PublishedFile(
        "train-images-idx3-ubyte.gz",
        _ADDRESS + "train-images-idx3-ubyte.gz",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        9912422,
    ),
    PublishedFile(
        "train-labels-idx1-ubyte.gz",
        _ADDRESS + "train-labels-idx1-ubyte.gz",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        28881,
    ),
    PublishedFile(
        "t10k-images-idx3-ubyte.gz",
        _ADDRESS + "t10k-images-idx3-ubyte.gz",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        1648877,
    ),
    PublishedFile(
        "t10k-labels-idx1-ubyte.gz",
        _ADDRESS + "t10k-labels-idx1-ubyte.gz",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        4542,
    ),
)

register(
    Source(
        name="mnist",
        description="70,000 handwritten digits, 28x28 grey pixels divided by 255 (60,000 train).",
        classes=10,
        input_shape=(28, 28, 1),
        train_count=60_000,
        test_count=10_000,
        read=readers.read_idx_folder,
        encode=readers.scaled_pixels,
        files=FILES,
        tfds_version="3.0.1",
        class_names=tuple("0123456789"),
    )
)
