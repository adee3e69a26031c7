"""Make a tiny Llama with random weights, so that real SGLang has something to serve on a CPU.

Run it with the interpreter of the SGLang environment: `python make_model.py TARGET_DIR`. Everything is fixed by
a seed and by the text below, so the same versions make the same model on every machine. Its answers are noise:
it exists to be served, not to be read.
"""

import argparse
import random
from pathlib import Path

import torch  # type: ignore[import-not-found]
from tokenizers import (  # type: ignore[import-not-found]
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import (  # type: ignore[import-not-found]
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar  # type: ignore[import-not-found]

SEED = 20
# 256 bytes and the special tokens leave some 500 merges: enough that English is not spelled byte by byte.
VOCABULARY_SIZE = 768
# Long enough for an agentic prompt in so small a vocabulary (some 2 characters a token).
CONTEXT_TOKENS = 8192
END = "<|end|>"
# One token each, so that what all prompts share, and a prefix cache finds again, is one token long.
ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]

# The tokenizer learns its merges from sentences made of these words. Embedded, since any other text of the
# repository changes with the repository, and the model with it.
WORDS = """
a able about add after all an and any are array as async at await be before bool branch build but by bytes cache
call can case change check class client close code command commit config connection count data default def
delete describe directory each else empty error every except exit expect explain false field file find first fix
float for from function get given handle has have header if implement import in index input int integer into is
it item join json key keep kernel language last latency length less line list load local lock log loop main make
map match measure memory merge message method missing model module more must name need new next no none not number
object of on one only open option or order other output over parameter parse pass path patch process prompt python
raise range rate read reason refactor remove repository request response result retry return review run schedule
second see self sequence server set should size sort split start state step stop store stream string sum table
task test text than that the then there this thread time timeout to token trace true try tuple two type under
update use user valid value variable verify wait when where which while why window with without word work write
you
"""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def training_sentences() -> list[str]:
    """Sentences of seeded random words, a few of them with the punctuation and digits of code."""
    source = random.Random(SEED)
    vocabulary = WORDS.split()
    sentences: list[str] = []
    for _ in range(2000):
        words = source.choices(vocabulary, k=12)
        sentences.append(" ".join(words).capitalize() + ".")
        name = "_".join(words[:2])
        sentences.append(f"def {name}({words[2]}: int = {source.randrange(1000)}):\n    return {words[3]}")
    return sentences


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: any text can be written in it, and nothing is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_sentences(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY_SIZE:
        raise ValueError(
            f"the tokenizer has {tokenizer.get_vocab_size()} entries where the model has {VOCABULARY_SIZE}: "
            "give it more text, or lower VOCABULARY_SIZE"
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=ROLES,
        model_max_length=CONTEXT_TOKENS,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def stands_alone(tokenizer: PreTrainedTokenizerFast, token: int) -> bool:
    """Whether a token is visible text by itself: not special, not a part of a longer UTF-8 character."""
    text: str = tokenizer.decode([token], skip_special_tokens=True)
    return text != "" and "\N{REPLACEMENT CHARACTER}" not in text


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of some 0.17 million random weights, which at temperature 0 says only what stands alone as text.

    Random weights repeat themselves, and what they repeat may be half a character: SGLang then holds the text
    back, and a stream of many tokens arrives as one chunk. So the head gives those tokens a logit of 0, which the
    largest of hundreds of random logits is above.
    """
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    hidden = [token for token in range(VOCABULARY_SIZE) if not stands_alone(tokenizer, token)]
    with torch.no_grad():
        model.lm_head.weight[hidden] = 0.0
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, help="directory to write the model and its tokenizer to")
    target: Path = parser.parse_args().target
    disable_progress_bar()
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(target)
    make_model(tokenizer).save_pretrained(target)


if __name__ == "__main__":
    main()
