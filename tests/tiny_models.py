"""Models of many architectures, as small as they come, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from ellp.layers import kind_of

VOCABULARY = 160
_seq2seq = ("t5", "bart", "marian")
_bert: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 40,
    "num_labels": 3,
}
_llama: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 96,
    "max_position_embeddings": 40,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_xlnet: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": 64, "n_layer": 1, "n_head": 2, "d_inner": 96}
_xlnet |= {"num_labels": 3}
_translator: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "scale_embedding": True,
}
_deberta: dict[str, Any] = {**_bert, "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]}

MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**_bert)),
    "bert-masked": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**_bert)),
    "bert-classifier": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**_bert)),
    "distilbert": lambda: transformers.DistilBertForMaskedLM(
        transformers.DistilBertConfig(
            vocab_size=VOCABULARY, dim=64, n_layers=1, n_heads=2, hidden_dim=96, max_position_embeddings=40
        )
    ),
    "roberta": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(**_bert)),
    "xlnet": lambda: transformers.XLNetLMHeadModel(transformers.XLNetConfig(**_xlnet)),
    "xlnet-classifier": lambda: transformers.XLNetForSequenceClassification(transformers.XLNetConfig(**_xlnet)),
    "albert": lambda: transformers.AlbertForMaskedLM(transformers.AlbertConfig(**_bert, embedding_size=48)),
    "electra": lambda: transformers.ElectraForMaskedLM(transformers.ElectraConfig(**_bert, embedding_size=48)),
    "mpnet": lambda: transformers.MPNetForMaskedLM(transformers.MPNetConfig(**_bert)),
    "deberta": lambda: transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config(**_deberta)),
    "deberta-classifier": lambda: transformers.DebertaV2ForSequenceClassification(
        transformers.DebertaV2Config(**_deberta)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=64, n_layer=1, n_head=2, n_positions=40, bos_token_id=1, eos_token_id=2
        )
    ),
    "llama-tied": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_llama, tie_word_embeddings=True)),
    "llama-untied": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**_llama, tie_word_embeddings=False)
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY, d_model=64, d_kv=32, d_ff=96, num_layers=1, num_heads=2, decoder_start_token_id=0
        )
    ),
    "bart": lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(**_translator)),
    "marian": lambda: transformers.MarianMTModel(transformers.MarianConfig(**_translator)),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**_llama, head_dim=32)),
}
TIED = (
    "bert-masked",
    "distilbert",
    "roberta",
    "xlnet",
    "albert",
    "electra",
    "mpnet",
    "deberta",
    "gpt2",
    "llama-tied",
    "t5",
    "bart",
    "marian",
    "gemma3",
)


def build(name: str, seed: int = 0) -> Any:
    """A tiny model in evaluation mode; the same numbers for the same seed."""
    torch.manual_seed(seed)
    return MODELS[name]().eval()


def questions(model: Any, seed: int = 0) -> dict[str, Tensor]:
    """Two random texts, as keyword arguments of the model."""
    ids = torch.randint(5, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    asked = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        asked["decoder_input_ids"] = ids[:, :5]
    return asked


@torch.no_grad()
def answer(model: Any, **more: Any) -> Tensor:
    """The model's logits, or its last hidden states."""
    found = model(**questions(model), **more)
    return found.logits if "logits" in found else found.last_hidden_state


def plant(model: nn.Module, rank: int) -> None:
    """Give every layer that can be factored a weight of low rank, rows of zeros staying zero."""
    seen = set()
    for layer in model.modules():
        if kind_of(layer) is None or id(layer.weight) in seen or min(layer.weight.shape) < 32:
            continue
        seen.add(id(layer.weight))
        with torch.no_grad():
            across = torch.randn(rank, layer.weight.shape[1]) / rank**0.5
            layer.weight.copy_(layer.weight[:, :rank] @ across)


def align(model: nn.Module) -> nn.Module:
    """Move every tensor to an address of its own, where the same numbers give the same sums to the last bit.

    Weights read from a file lie wherever the file puts them, and BLAS adds up in another order at odd addresses.
    """
    with torch.no_grad():
        for tensor in {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}.values():
            tensor.data = tensor.data.clone()
    return model
