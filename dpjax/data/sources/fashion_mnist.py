"""Fashion-MNIST (Xiao, Rasul and Vollgraf, arXiv:1708.07747): MNIST's form and file names."""

from dpjax.data import readers
from dpjax.data.published_files import PublishedFile
from dpjax.data.source import Source, register

_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FILES = (
    PublishedFile(
        "train-images-idx3-ubyte.gz",
        _ADDRESS + "train-images-idx3-ubyte.gz",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        26421880,
    ),
    PublishedFile(
        "train-labels-idx1-ubyte.gz",
        _ADDRESS + "train-labels-idx1-ubyte.gz",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        29515,
    ),
    PublishedFile(
        "t10k-images-idx3-ubyte.gz",
        _ADDRESS + "t10k-images-idx3-ubyte.gz",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        4422102,
    ),
    PublishedFile(
        "t10k-labels-idx1-ubyte.gz",
        _ADDRESS + "t10k-labels-idx1-ubyte.gz",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        5148,
    ),
)

register(
    Source(
        name="fashion_mnist",
        description="70,000 pictures of clothing, 28x28 grey pixels divided by 255 (60,000 train).",
        classes=10,
        input_shape=(28, 28, 1),
        train_count=60_000,
        test_count=10_000,
        read=readers.read_idx_folder,
        encode=readers.scaled_pixels,
        files=FILES,
        version="3.0.1",
        in_tfds=True,
        reading="idx 1",
        class_names=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
    )
)
