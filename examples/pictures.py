"""Label new images with the help of private ones.

    pip install '.[features]'
    python examples/pictures.py                            ResNet-50, downloaded on first use
    python examples/pictures.py --model models/my-onnx     a folder with model.onnx: no network, no PyTorch

The images are 8 x 8 handwritten digits that come with scikit-learn. A public model turns them into features. For images
in files, use `indknn extract`, which continues where it was stopped.
"""

import argparse
import tempfile

import numpy as np
from sklearn.datasets import load_digits

from indknn import IndKNNClassifier
from indknn_lab.features import extract, find_extractor


def main(arguments=None):
    """Label new images. Returns the share of right labels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50", help="the public model: a folder or a name")
    parser.add_argument("--images", type=int, default=1797)
    parser.add_argument("--questions", type=int, default=200)
    chosen = parser.parse_args(arguments)
    digits = load_digits()
    images = (digits.images[: chosen.images] * 15.9).astype(np.uint8)
    is_round = np.isin(digits.target[: chosen.images], [0, 6, 8, 9])  # two classes: there are few images
    labels = np.where(is_round, "round", "straight")

    extractor = find_extractor(chosen.model)
    with tempfile.TemporaryDirectory() as cache:
        private = extract(images[chosen.questions :], extractor, cache + "/private")
        public = extract(images[: chosen.questions], extractor, cache + "/public", public=True)
    center = public.mean(axis=0)  # of the public questions; never of private images
    model = IndKNNClassifier(epsilon=4.0, classes=["round", "straight"], center=center)
    model.fit(private, labels[chosen.questions :])
    answers = model.predict(public)
    right = float(np.mean(answers == labels[: chosen.questions]))
    print(f"{right:.0%} of {len(answers):,} private answers are right")
    return right


if __name__ == "__main__":
    main()
