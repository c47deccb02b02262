"""Packed batches give the answers that each text gets alone, whatever the model, the batch and the padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'ellp[hf]'")

import transformers
from tiny_models import VOCABULARY, build
from tiny_tasks import SPECIAL, WORDS, bert, save, sentences, write_tokenizer

from ellp import InputError, compress
from ellp.bundle.model import Bundle
from ellp.predict import class_columns, guesses, padded, prepare
from ellp.quiet import quiet
from ellp.tasks.data import Examples
from ellp.tasks.glue import TASKS, task_named
from ellp.tasks.task import Task

TEXTS = [(text,) for text, _ in sentences(23)]
PAIRS = [(one, other) for (one,), (other,) in zip(TEXTS, reversed(TEXTS), strict=True)]
THREE = Task("file", "classify", ("accuracy",), ("a", "b", "c"))


def bundle_of(model: Any, folder: Path) -> Bundle:
    return Bundle(model, save(model, folder), str(folder), folder.name, 0)


def examples(texts: list[tuple[str, ...]]) -> Examples:
    return Examples(texts, np.zeros(len(texts)))


@torch.no_grad()
def alone(model: Any, tokenizer: Any, text: tuple[str, ...], **options: Any) -> Any:
    return model(**tokenizer(*text, return_tensors="pt", **options))


@pytest.mark.parametrize("batch", [1, 4, 32])
@pytest.mark.parametrize("texts", [TEXTS, PAIRS], ids=["one text", "pairs"])
def test_batches_change_nothing(tmp_path: Path, texts: list[tuple[str, ...]], batch: int) -> None:
    bundle = bundle_of(bert(num_labels=1), tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(bundle.folder)
    wanted = [float(alone(bundle.model, tokenizer, text).logits[0, 0]) for text in texts]
    prepared = prepare(bundle, TASKS["stsb"], examples(texts), batch)
    assert len(prepared.batches) == -(-len(texts) // batch)
    assert guesses(bundle.model, prepared) == pytest.approx(np.array(wanted), abs=1e-5)


def test_one_preparation_serves_every_model_and_tells_progress(tmp_path: Path) -> None:
    bundle = bundle_of(bert(num_labels=3), tmp_path / "model")
    prepared = prepare(bundle, THREE, examples(TEXTS), batch=5)
    dense, told = guesses(bundle.model, prepared), []
    compress(bundle.model, rank=8)
    again = prepare(bundle, THREE, examples(TEXTS), batch=5)
    small = guesses(bundle.model, prepared, lambda done, total: told.append((done, total)))
    assert (small == guesses(bundle.model, again)).all() and small.shape == dense.shape
    assert told == [(5, 23), (10, 23), (15, 23), (20, 23), (23, 23)]


def test_padding_is_cheap_and_complete(tmp_path: Path) -> None:
    bundle = bundle_of(bert(num_labels=3), tmp_path / "model")
    prepared = prepare(bundle, THREE, examples(TEXTS), batch=6)
    lengths = [batch["input_ids"].shape[1] for batch in prepared.batches]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1]
    assert sorted(prepared.order.tolist()) == list(range(23))


def test_tokenizers_that_pad_at_the_start_do_so() -> None:
    class Left:
        pad_token_id, pad_token_type_id, padding_side = 9, 3, "left"

    rows = [{"input_ids": [1, 2, 3], "token_type_ids": [0, 0, 2], "attention_mask": [1, 1, 1]}]
    rows.append({"input_ids": [4], "token_type_ids": [2], "attention_mask": [1]})
    found = padded(Left(), rows)
    assert found["input_ids"].tolist() == [[1, 2, 3], [9, 9, 4]]
    assert found["token_type_ids"].tolist() == [[0, 0, 2], [3, 3, 2]]
    assert found["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize("head", ["gpt2", "roberta", "xlnet"])
def test_classifiers_of_other_kinds(tmp_path: Path, head: str) -> None:
    sizes = {"vocab_size": VOCABULARY, "num_labels": 3, "pad_token_id": 0}
    kinds: dict[str, Any] = {
        "gpt2": lambda: transformers.GPT2ForSequenceClassification(
            transformers.GPT2Config(**sizes | {"pad_token_id": None}, n_embd=32, n_layer=1, n_head=2, n_positions=40)
        ),
        "roberta": lambda: transformers.RobertaForSequenceClassification(
            transformers.RobertaConfig(
                **sizes, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=20
            )
        ),
        "xlnet": lambda: build("xlnet-classifier"),
    }
    model = kinds[head]().eval()
    if head == "xlnet":
        model.config.pad_token_id = 0
    texts = [*TEXTS[:5], (" ".join(WORDS[:60]),)]  # the last is longer than the positions
    bundle = bundle_of(model, tmp_path / "model")
    if head == "xlnet":
        write_tokenizer(tmp_path / "model", padding_side="left")
    found = guesses(model, prepare(bundle, THREE, examples(texts), 4))
    tokenizer = transformers.AutoTokenizer.from_pretrained(bundle.folder)
    with torch.no_grad():
        for text, said in zip(texts[:5], found, strict=False):
            assert model(**tokenizer(*text, return_tensors="pt")).logits.argmax() == said


def test_classes_are_matched_by_their_names(tmp_path: Path) -> None:
    names = {0: "CONTRADICTION", 1: "Neutral", 2: "entailment"}
    config = transformers.BertConfig(id2label=names)
    assert class_columns(config, TASKS["mnli"]) == [2, 1, 0]
    assert class_columns(transformers.BertConfig(num_labels=3), TASKS["mnli"]) == [0, 1, 2]
    flipped = transformers.BertConfig(id2label={0: "equivalent", 1: "not-equivalent"})
    assert class_columns(flipped, TASKS["mrpc"]) == [1, 0]
    bundle = bundle_of(
        bert(id2label=names, label2id={name: index for index, name in names.items()}, initializer_range=0.5),
        tmp_path / "m",
    )
    said = guesses(bundle.model, prepare(bundle, TASKS["mnli"], examples(PAIRS)))
    raw = guesses(bundle.model, prepare(bundle, THREE, examples(PAIRS)))
    assert (said == 2 - raw).all() and len(set(raw.tolist())) > 1


# Sentence encoders ----------------------------------------------------------------------------------------------------


def encoder_folder(folder: Path, pooling: dict[str, Any], **facts: Any) -> Path:
    """A sentence-transformers model as it lies on a disk."""
    save(bert("BertModel"), folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    files = {"modules.json": modules, "1_Pooling/config.json": {"word_embedding_dimension": 64, **pooling}}
    files["sentence_bert_config.json"] = {"max_seq_length": 7, "do_lower_case": False}
    files["config_sentence_transformers.json"] = facts
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


POOLINGS = {
    "mean": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
    "cls": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    "max": {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False},
    "last": {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False},
    "root": {"pooling_mode_mean_sqrt_len_tokens": True, "pooling_mode_mean_tokens": False},
}


@pytest.mark.parametrize("pooling", POOLINGS.values(), ids=POOLINGS.keys())
@pytest.mark.parametrize("prompt", [None, "word3 word4 "], ids=["bare", "prompted"])
def test_sentence_vectors_are_those_of_sentence_transformers(
    tmp_path: Path, pooling: dict[str, Any], prompt: str | None
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    facts = {} if prompt is None else {"prompts": {"query": prompt}, "default_prompt_name": "query"}
    folder = encoder_folder(tmp_path / "sentences", pooling, **facts)
    with quiet():
        whole = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
        vectors = [whole.encode([text[side] for text in PAIRS]) for side in (0, 1)]
    model = transformers.AutoModel.from_pretrained(folder).eval()
    found = guesses(model, prepare(Bundle(model, folder, "", "", 0), TASKS["sts"], examples(PAIRS), batch=4))
    assert found == pytest.approx((vectors[0] * vectors[1]).sum(axis=1), abs=1e-5)


def test_a_sentence_is_read_once(tmp_path: Path) -> None:
    bundle = bundle_of(bert("BertModel"), tmp_path / "model")
    prepared = prepare(bundle, TASKS["sts"], examples([("word1", "word2"), ("word2", "word1"), ("word1", "word1")]))
    assert len(prepared.order) == 2
    found = guesses(bundle.model, prepared)
    assert found[0] == pytest.approx(found[1]) and found[2] == pytest.approx(1)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules.json": '[{"type": "x.models.Dense", "path": "2_Dense"}]'}, "got a Dense"),
        ({"modules.json": "{"}, "need a list of modules"),
        (
            {
                "modules.json": '[{"type": "x.Pooling", "path": "1"}]',
                "1/config.json": '{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}',
            },
            "need one way of pooling",
        ),
    ],
)
def test_encoders_that_do_more_are_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    bundle = bundle_of(bert("BertModel"), tmp_path / "model")
    for name, content in files.items():
        (tmp_path / "model" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "model" / name).write_text(content)
    with pytest.raises(InputError, match=message):
        prepare(bundle, TASKS["sts"], examples(PAIRS))


# Language models ------------------------------------------------------------------------------------------------------


def test_causal_losses_are_the_models_own(tmp_path: Path) -> None:
    model = build("gpt2")
    bundle = bundle_of(model, tmp_path / "model")
    text = " ".join(text for (text,) in TEXTS)
    prepared = prepare(bundle, TASKS["perplexity"], examples([(text,)]))
    found = guesses(model, prepared)
    tokenizer = transformers.AutoTokenizer.from_pretrained(bundle.folder)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert sum(len(tokenizer(part, add_special_tokens=False)["input_ids"]) for (part,) in prepared.examples.texts) in (
        len(ids),
        len(ids) - 1,
    )
    room = max(batch["input_ids"].shape[1] for batch in prepared.batches)
    with torch.no_grad():
        one = torch.tensor([ids[: room - (tokenizer.bos_token_id is not None)]])
        wanted = float(model(input_ids=one, labels=one).loss) * (one.shape[1] - 1)
    if tokenizer.bos_token_id is None:
        assert found[0] == pytest.approx(wanted, rel=1e-4)
    assert np.exp(found.sum() / prepared.examples.labels.sum()) == pytest.approx(VOCABULARY, rel=0.2)


def test_masks_are_drawn_by_the_seed(tmp_path: Path) -> None:
    model = bert("BertForMaskedLM")
    bundle = bundle_of(model, tmp_path / "model")
    text = examples([(" ".join(text for (text,) in TEXTS),)])
    found = [guesses(model, prepare(bundle, TASKS["perplexity"], text, seed=seed)) for seed in (0, 0, 1)]
    assert (found[0] == found[1]).all() and (found[0] != found[2]).any()
    prepared = prepare(bundle, TASKS["perplexity"], text)
    mask = SPECIAL.index("[MASK]")
    for batch in prepared.batches:
        asked = batch["labels"] != -100
        assert (batch["input_ids"][asked] == mask).all() and (batch["labels"][asked] >= len(SPECIAL)).all()
        assert not (batch["input_ids"][~asked] == mask).any()
    total = sum(int((batch["labels"] != -100).sum()) for batch in prepared.batches)
    words = len(text.texts[0][0].split())
    assert total == prepared.examples.labels.sum() and 0.1 < total / words < 0.2


def test_a_text_too_short_to_predict_is_refused(tmp_path: Path) -> None:
    bundle = bundle_of(build("gpt2"), tmp_path / "model")
    with pytest.raises(InputError, match="at least two tokens"):
        prepare(bundle, TASKS["perplexity"], examples([("",)]))


# Heads and tokenizers that do not belong ------------------------------------------------------------------------------

HEADS = {
    "a regression head for classes": (
        lambda: bert(num_labels=1),
        "mrpc",
        "head with 2 classes for mrpc, got a regress",
    ),
    "classes for a regression": (
        lambda: bert(num_labels=2),
        "stsb",
        "need a regression head .* got one with 2 outputs",
    ),
    "two classes for three": (
        lambda: bert(num_labels=2),
        "mnli",
        "need a head with 3 classes for mnli, got one with 2",
    ),
    "three classes for two": (lambda: bert(num_labels=3), "rte", "need a head with 2 classes for rte, got one with 3"),
    "no head": (lambda: bert("BertModel"), "mrpc", "need a sequence classifier for mrpc, got BertModel"),
    "a classifier for vectors": (lambda: bert(num_labels=2), "sts", "need a sentence encoder for sts"),
    "an encoder for tokens": (lambda: bert("BertModel"), "perplexity", "need a masked or causal language model"),
}


@pytest.mark.parametrize("case", HEADS.values(), ids=HEADS.keys())
def test_a_head_that_does_not_fit_is_named(tmp_path: Path, case: tuple[Any, str, str]) -> None:
    make, name, message = case
    with pytest.raises(InputError, match=message):
        prepare(bundle_of(make(), tmp_path / "model"), task_named(name), examples(PAIRS))


def test_a_larger_tokenizer_is_refused(tmp_path: Path) -> None:
    bundle = bundle_of(bert(num_labels=2), tmp_path / "model")
    write_tokenizer(tmp_path / "model", [*SPECIAL, *WORDS, "more"])
    with pytest.raises(InputError, match=r"belongs to the model \(160 tokens\), got one of 161"):
        prepare(bundle, TASKS["sst2"], examples(TEXTS))


def test_a_tokenizer_with_other_numbers_is_refused(tmp_path: Path) -> None:
    bundle = bundle_of(bert(num_labels=2), tmp_path / "model")
    write_tokenizer(tmp_path / "model", [*SPECIAL[::-1], *WORDS])
    with pytest.raises(InputError, match=r"its pad token is number 0\), got one where it is 4"):
        prepare(bundle, TASKS["sst2"], examples(TEXTS))
