"""The tokenizer of a GGUF file (byte-level BPE as SmolLM2's) as a folder that Hugging Face's loads.

usage: make_tokenizer.py MODEL.gguf FOLDER
"""
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

NORMAL = 1  # a token's type


def field(reader, name):
    return reader.fields[name].contents()


def main():
    reader = GGUFReader(sys.argv[1])
    tokens = field(reader, "tokenizer.ggml.tokens")
    types = field(reader, "tokenizer.ggml.token_type")
    assert field(reader, "tokenizer.ggml.pre") == "smollm"
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token, kind in zip(tokens, types) if kind != NORMAL])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[field(reader, "tokenizer.ggml.bos_token_id")],
        eos_token=tokens[field(reader, "tokenizer.ggml.eos_token_id")],
        chat_template=field(reader, "tokenizer.chat_template"),
    ).save_pretrained(sys.argv[2])


main()
