"""Which files of a model folder are what, by their names."""

from __future__ import annotations

import fnmatch

VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "*.spm", "tekken.json", "*.tiktoken", "*.bpe")
TOKENIZER = (*VOCABULARIES, "tokenizer_config.json", "merges.txt", "special_tokens_map.json", "added_tokens.json")
TEMPLATES = ("chat_template*", "additional_chat_templates/*")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.joblib")
WEIGHTS = ("*.safetensors", "*.h5", "*.msgpack", "*.ot", "*.onnx", "*.onnx_data", "*.gguf", "*.tflite", "*.index.json")
OTHER_FORMATS = ("onnx", "openvino", "coreml", "original", "__pycache__", "checkpoint-*")
REWRITTEN = ("README.md", "config.json", "generation_config.json")


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
