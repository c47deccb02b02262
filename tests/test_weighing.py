"""From a model and its tokenizer to weights, kept on disk; and what they do to a compression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="needs transformers")

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast
from typer.testing import CliRunner

import ellp
from ellp import EllpConfig, InputError, cache, weighing
from ellp.cli import app
from ellp.importance import words
from ellp.recipe import Source, compress_folder
from ellp.table_weights import pooling_of
from ellp.weighing import weigh

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!ellp)")
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[unused1]", *(f"word{number}" for number in range(596))]
SIZES: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def tokenizer() -> Any:
    engine = Tokenizer(models.WordLevel({token: row for row, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=engine, pad_token="[PAD]", unk_token="[UNK]")


def encoder(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return BertModel(BertConfig(vocab_size=len(TOKENS), **SIZES)).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A classifier with its tokenizer, on disk."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=len(TOKENS), num_labels=2, **SIZES))
    model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    drawn = torch.randint(0, 40, (300, 8), generator=torch.Generator().manual_seed(0))
    lines = [" ".join(f"word{number}" for number in row) for row in drawn.tolist()]
    (tmp_path / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "corpus.txt"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELLP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(weighing, "TEXTS", 128)
    monkeypatch.setattr("ellp.importance.languages_of", lambda vocabulary: {})  # these words are no language's


def test_the_default_takes_the_best_there_is_and_says_so() -> None:
    found = weigh(encoder(), tokenizer())
    assert found.importance is not None and found.metric is not None
    assert found.importance.shape == (600,) and float(found.importance.mean()) == pytest.approx(1.0)
    assert found.importance[4] > found.importance[500] > found.importance[3] > 0
    assert float(torch.linalg.eigvalsh(found.metric)[0]) > 0.1
    assert found.record["importance"] == "(prior)^0.5" and "no language" in found.record["reason"]
    assert found.record["sensitivity"]["gradients"] > 0
    json.dumps(found.record)


def test_text_changes_rows_and_directions(text: Path) -> None:
    model = encoder()
    plain, told = weigh(model, tokenizer()), weigh(model, tokenizer(), text=text)
    assert told.record["importance"].startswith(("(0.", "(text:"))
    assert told.record["sensitivity"]["texts"] == "corpus.txt"
    assert plain.importance is not None and told.importance is not None
    common, rare = slice(4, 44), slice(100, 600)
    assert told.importance[common].sum() > 2 * plain.importance[common].sum()
    assert told.importance[rare].sum() < plain.importance[rare].sum()


def test_a_measurement_is_kept_and_belongs_to_its_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, calls = encoder(), []
    measure = weighing.sensitivity

    def counted(*given: Any, **settings: Any) -> Any:
        calls.append(1)
        return measure(*given, **settings)

    monkeypatch.setattr(weighing, "sensitivity", counted)
    first, second = weigh(model, tokenizer()), weigh(model, tokenizer())
    assert len(calls) == 1
    assert torch.equal(first.metric, second.metric) and first.record == second.record  # type: ignore[arg-type]
    with torch.no_grad():
        model.pooler.dense.bias[0] += 1e-3
    weigh(model, tokenizer())
    assert len(calls) == 2
    for file in (tmp_path / "cache").iterdir():
        file.write_bytes(b"broken")
    weigh(model, tokenizer())
    assert len(calls) == 3
    monkeypatch.setenv("ELLP_CACHE", "/proc/no/such/place")
    assert weigh(model, tokenizer()).metric is not None  # done without


def test_a_batch_leaves_behind_no_more_than_the_table_holds() -> None:
    model, lengths = encoder(), [1, 2, 3, 5, 8, 13, 21, 34] * 6
    texts = [" ".join(f"word{number}" for number in range(length)) for length in lengths]
    batches = weighing.text_batches(model, tokenizer(), texts)
    room = model.get_input_embeddings().weight.numel() // weighing.held_by_a_token(model)
    sizes = [batch["input_ids"].numel() for batch in batches]
    assert sum(len(batch["input_ids"]) for batch in batches) == len(texts)
    assert 34 < room < 34 * weighing.BATCH and max(sizes) <= room
    assert all(len(batch["input_ids"]) <= weighing.BATCH for batch in batches)
    held = sum(sum(one.weight.shape) for one in model.modules() if isinstance(one, nn.Linear))
    assert weighing.held_by_a_token(model) == held


def test_lists_of_words_are_forgotten_after_use() -> None:
    pytest.importorskip("wordfreq", reason="needs wordfreq: pip install 'ellp[words]'")
    weigh(encoder(), tokenizer(), importance="words:en", sensitive=False)
    assert words.word_frequencies.cache_info().currsize == 0


def test_the_cache_has_its_usual_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELLP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.folder() == Path("/somewhere/ellp")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/them")
    assert cache.folder() == Path("/home/them/.cache/ellp")


def test_a_model_that_cannot_run_is_weighed_without_and_says_so() -> None:
    model = encoder()
    model.forward = lambda input_ids, attention_mask: {"other": input_ids}
    found = weigh(model, tokenizer())
    assert found.metric is None and found.importance is not None
    assert "need logits or hidden states" in found.record["sensitivity_missing"]
    with pytest.raises(InputError, match="need logits or hidden states"):
        weigh(model, tokenizer(), sensitive=True)


def test_sensitivity_as_row_importance() -> None:
    model = encoder()
    found = weigh(model, tokenizer(), importance="sensitivity", sensitive=False)
    assert found.metric is None and found.importance is not None
    base = weigh(model, tokenizer(), importance="prior", sensitive=False).importance
    assert base is not None and not torch.allclose(found.importance, base)
    assert float(torch.corrcoef(torch.stack([found.importance.log(), base.log()]))[0, 1]) > 0.9


# Compressing ----------------------------------------------------------------------------------------------------------


def table_error(model: nn.Module, before: torch.Tensor, rows: slice) -> float:
    with torch.no_grad():
        return float((model[0](torch.arange(len(before)))[rows] - before[rows]).square().sum())  # type: ignore[index]


def test_rows_that_weigh_more_are_kept_better() -> None:
    torch.manual_seed(0)
    importance = torch.ones(400)
    importance[:40] = 100.0
    models_ = [nn.Sequential(nn.Embedding(400, 48)) for _ in range(2)]
    models_[1].load_state_dict(models_[0].state_dict())
    before = models_[0][0].weight.detach().clone()  # type: ignore[union-attr]
    ellp.compress(models_[0], rank=12)
    plan = ellp.compress(models_[1], rank=12, importance=importance)
    assert plan.layers[0].weighted and "(weighted)" in str(plan)
    plain_few, few = (table_error(model, before, slice(40)) for model in models_)
    plain_rest, rest = (table_error(model, before, slice(40, 400)) for model in models_)
    assert few < 0.7 * plain_few and rest > plain_rest


def test_directions_that_weigh_more_are_kept_better() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(400, 48))
    before = model[0].weight.detach().clone()
    metric = torch.ones(48)
    metric[:6] = 50.0
    ellp.compress(model, rank=12, metric=torch.diag(metric), p=2)
    with torch.no_grad():
        error = (model(torch.arange(400)) - before).square().sum(0)
    assert float(error[:6].max()) < 0.05 * float(error[6:].mean())


def test_weights_go_by_name_and_under_every_name() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(400, 48), nn.Embedding(300, 40))
    with pytest.raises(InputError, match="2 embeddings"):
        ellp.plan(model, rank=8, importance=torch.ones(400))
    with pytest.raises(InputError, match="got 7"):
        ellp.plan(model, rank=8, importance={"7": torch.ones(400)})
    planned = ellp.plan(model, rank=8, importance={"1": torch.arange(1.0, 301.0)})
    assert [layer.weighted for layer in planned.layers] == [False, True]
    with pytest.raises(InputError, match=r"0: need one importance per row \(400\)"):
        ellp.plan(model, rank=8, importance={"0": torch.ones(300)})


def test_a_spread_budget_does_not_depend_on_the_units_of_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(600, 48), nn.Linear(48, 64), nn.Linear(64, 48))
    with torch.no_grad():
        model[0].weight *= 0.3
    settings: dict[str, Any] = {"keep": 0.5, "layers": "all"}
    plain = ellp.plan(model, **settings)
    alike = ellp.plan(model, importance=torch.full((600,), 7.0), metric=3.0 * torch.eye(48), **settings)
    assert [layer.rank for layer in plain.layers] == [layer.rank for layer in alike.layers]
    importance = 1 / (torch.arange(600.0) + 1)
    one, other = (ellp.plan(model, importance=scale * importance, **settings) for scale in (1.0, 1000.0))
    assert [layer.rank for layer in one.layers] == [layer.rank for layer in other.layers]
    assert one.after <= 0.5 * one.before


# Folders and the command line -----------------------------------------------------------------------------------------


def test_a_folder_tells_what_its_rows_weighed(folder: Path, tmp_path: Path) -> None:
    record = compress_folder(Source(str(folder)), tmp_path / "small", {"keep": 0.4})
    assert record["weighing"]["importance"] == "(prior)^0.5" and record["weighing"]["sensitivity"]["gradients"] > 0
    assert record["layers"][0]["weighted"]
    config = json.loads((tmp_path / "small" / "config.json").read_text())["quantization_config"]
    assert (config["importance"], config["sensitivity"]) == ("(prior)^0.5", True)
    card = (tmp_path / "small" / "README.md").read_text(encoding="utf-8")
    assert "Importance of the token table's rows: `(prior)^0.5`" in card and "random projections" in card
    assert AutoModel.from_pretrained(tmp_path / "small").get_input_embeddings().weight.shape[1] < 48


def test_the_papers_method_stays_as_it_is(folder: Path, tmp_path: Path) -> None:
    plain = compress_folder(
        Source(str(folder)), tmp_path / "plain", {"keep": 0.72}, importance="uniform", sensitive=False
    )
    preset = compress_folder(Source(str(folder)), tmp_path / "preset", {}, preset="re-tiny")
    for record in (plain, preset):
        assert not record["layers"][0]["weighted"] and record["weighing"]["sensitivity"] is None
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "preset"))
    assert one == other


def test_labels_weigh_rows_of_a_classifier(folder: Path, tmp_path: Path) -> None:
    lines = ["sentence1\tlabel", *(f"word{number % 7} word{number % 5}\t{number % 2}" for number in range(80))]
    (tmp_path / "train.tsv").write_text("\n".join(lines), encoding="utf-8")
    np.save(tmp_path / "even.npy", np.ones(600))
    spec = f"fisher:{tmp_path}+0.01*file:{tmp_path / 'even.npy'}"
    record = compress_folder(Source(str(folder)), tmp_path / "small", {"keep": 0.4}, importance=spec, sensitive=False)
    assert record["weighing"]["importance"] == spec and record["layers"][0]["weighted"]


def test_compress_on_load_weighs_with_the_tokenizer_beside_the_model(folder: Path, tmp_path: Path) -> None:
    config = EllpConfig(keep=0.4, importance="prior", sensitivity=True)
    fresh = AutoModel.from_pretrained(folder, quantization_config=config)
    fresh.save_pretrained(tmp_path / "small")
    kept = json.loads((tmp_path / "small" / "config.json").read_text())["quantization_config"]
    assert kept["weighing"]["importance"] == "prior" and kept["weighing"]["sensitivity"]["gradients"] > 0
    with pytest.raises(InputError, match="frequency"):
        EllpConfig(keep=0.4, importance="frequency")


def test_the_command_line_takes_a_specification(folder: Path, tmp_path: Path, text: Path) -> None:
    given = ["compress", str(folder), "--keep", "0.4", "-o", str(tmp_path / "small"), "--no-sensitivity"]
    done = CliRunner().invoke(app, [*given, "--importance", f"(0.8*text:{text}+0.2*prior)^0.7"])
    assert done.exit_code == 0, done.output
    assert "importance  (0.8*text:" in done.output
    for bad, complaint in (("words:xx", "need a language"), ("often", "need one of uniform"), ("text:no", "check the")):
        wrong = CliRunner().invoke(app, [*given[:4], "-o", str(tmp_path / "none"), "--importance", bad])
        assert isinstance(wrong.exception, InputError) and complaint in str(wrong.exception)
    assert not (tmp_path / "none").exists()


def test_a_model_without_tokenizer_is_compressed_and_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()
    source = Source(str(folder), tokenizer_required=False)
    record = compress_folder(source, tmp_path / "small", {"keep": 0.4})
    assert record["weighing"]["importance"] == "uniform" and "no tokenizer" in record["weighing"]["reason"]
    with pytest.raises(InputError, match="need"):
        compress_folder(source, tmp_path / "other", {"keep": 0.4}, importance="prior")
    np.save(tmp_path / "c.npy", np.arange(1.0, 601.0))
    own = compress_folder(source, tmp_path / "own", {"keep": 0.4}, importance=f"file:{tmp_path / 'c.npy'}")
    assert own["layers"][0]["weighted"]


@pytest.mark.parametrize(
    ("facts", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode_max_tokens": True}, None),
    ],
)
def test_pooling_is_that_of_the_folder(tmp_path: Path, facts: dict[str, Any], pooling: str | None) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(facts))
    assert pooling_of(tmp_path) == pooling
    assert pooling_of(None) is None


def test_made_texts_need_no_files() -> None:
    pytest.importorskip("wordfreq", reason="needs wordfreq: pip install 'ellp[words]'")
    assert len(words.made_texts({"en": 1.0}, 5)) == 5
