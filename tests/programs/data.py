"""Small data sets of random numbers, in the formats that public programs read."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

RANDOM = np.random.default_rng(0)
TEXT = "To be or not to be: O God, that is the question!\n" * 400


def mnist(folder: Path) -> None:
    """The files of MNIST as torchvision keeps them: yann.lecun.com's IDX format."""
    (folder / "raw").mkdir()
    for split, count in (("train", 600), ("t10k", 200)):
        pixels = RANDOM.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = RANDOM.integers(0, 10, count, dtype=np.uint8)
        for kind, values in (("images", pixels), ("labels", labels)):
            header = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            path = folder / "raw" / f"{split}-{kind}-idx{values.ndim}-ubyte"
            path.write_bytes(header + values.tobytes())


def images(folder: Path) -> None:
    """Two classes of images for training and validation, as ImageFolder reads them."""
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for index in range(8):
                pixels = RANDOM.integers(0, 256, (64, 64, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{index}.png")


def text(folder: Path) -> None:
    """Words for language models: train.txt, valid.txt, test.txt, input.txt."""
    for name in ("train", "valid", "test", "input"):
        (folder / f"{name}.txt").write_text(TEXT)


def cora(folder: Path) -> None:
    """A graph of papers that cite each other, as the LINQS group publishes Cora."""
    count, words, classes = 1500, 16, ("Theory", "Neural_Networks", "Case_Based")
    papers = [
        "\t".join([str(paper), *map(str, RANDOM.integers(0, 2, words)), classes[paper % len(classes)]])
        for paper in range(count)
    ]
    cites = ["\t".join(map(str, RANDOM.integers(0, count, 2))) for _ in range(3 * count)]
    (folder / "cora.content").write_text("\n".join(papers))
    (folder / "cora.cites").write_text("\n".join(cites))


def boxes(folder: Path) -> None:
    """Images with boxes of one class, as Ultralytics' programs read them."""
    for split in ("train", "val"):
        (folder / "images" / split).mkdir(parents=True)
        (folder / "labels" / split).mkdir(parents=True)
        for index in range(8):
            pixels = RANDOM.integers(0, 256, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / split / f"{index}.png")
            (folder / "labels" / split / f"{index}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    text = "path: /data/boxes\ntrain: images/train\nval: images/val\nnames: {0: thing}\n"
    (folder / "boxes.yaml").write_text(text)


def sentences(folder: Path) -> None:
    """A data set of texts, as `datasets` loads a folder."""
    row = json.dumps({"text": "to be or not to be that is the question"})
    (folder / "data.json").write_text(f"{row}\n" * 200)


def choices(folder: Path) -> None:
    """Preferences: a prompt with a chosen and a rejected answer."""
    row = json.dumps({"prompt": "to be or", "chosen": " not to be", "rejected": " the question"})
    (folder / "data.json").write_text(f"{row}\n" * 64)


def gpt2(folder: Path) -> None:
    """A tiny GPT-2 and a tokenizer of words, as transformers saves them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"]))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>").save_pretrained(
        folder
    )
    size = tokenizer.get_vocab_size()
    settings = GPT2Config(vocab_size=size, n_positions=64, n_embd=16, n_layer=1, n_head=1)
    settings.eos_token_id = settings.bos_token_id = settings.pad_token_id = 0
    GPT2LMHeadModel(settings).save_pretrained(folder)


MAKERS: dict[str, Callable[[Path], None]] = {
    "boxes": boxes,
    "choices": choices,
    "cora": cora,
    "gpt2": gpt2,
    "images": images,
    "mnist": mnist,
    "sentences": sentences,
    "text": text,
}
