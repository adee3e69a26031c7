"""Make tiny Llamas with random weights and drafts for them, so that real SGLang has something to serve on a CPU.

Run it with the interpreter of the SGLang environment: `python make_model.py TARGET_DIR` makes TARGET_DIR/plain, a
Llama as it comes; TARGET_DIR/target, one that a draft can follow; and EAGLE-3 drafts of that one. Everything is fixed
by seeds and by the text below, so the same versions make the same models on every machine. Their answers are noise:
they exist to be served, not to be read.
"""

import argparse
import json
import random
from pathlib import Path

import torch  # type: ignore[import-not-found]
from safetensors.torch import save_file  # type: ignore[import-not-found]
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
# Of a few, the one whose answers to the shipped prompts differ most from each other.
TARGET_SEED = 22
# 256 bytes and the special tokens leave some 500 merges: enough that English is not spelled byte by byte.
VOCABULARY_SIZE = 768
# Long enough for an agentic prompt in so small a vocabulary (some 2 characters a token).
CONTEXT_TOKENS = 8192
# What the layers of the target add counts by so much: 1 is a Llama as it is, 0 one that sees its last token alone.
CONTEXT_WEIGHT = 0.4
# Added to the head of the noisy draft, whose weights have a standard deviation of 0.02. More noise, less acceptance.
DRAFT_NOISE = 0.01
# How many times as large a draft's logits are. They decide what a tree of drafts looks like, not what is said first:
# as small as they come from random weights, all tokens are about as likely, and trees are wide and flat.
DRAFT_CERTAINTY = 50.0
# The layers whose output an EAGLE-3 draft is given. More than one: with one, SGLang leaves `fc` out.
SEEN_LAYERS = [0, 1]
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


def make_model(tokenizer: PreTrainedTokenizerFast, *, layers: int, seed: int) -> LlamaForCausalLM:
    """A small Llama of random weights, which at temperature 0 says only what stands alone as text.

    Random weights repeat themselves, and what they repeat may be half a character: SGLang then holds the text
    back, and a stream of many tokens arrives as one chunk. So the head gives those tokens a logit of 0, which the
    largest of hundreds of random logits is above.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
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


def make_target(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama that a draft can follow: what it says next depends mostly on its last token.

    All that its layers add to the embedding goes through `o_proj` and `down_proj`. These are scaled down, not to
    nothing: then what is before the last token would not matter, and wrong attention would not be seen.
    """
    model = make_model(tokenizer, layers=3, seed=TARGET_SEED)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight *= CONTEXT_WEIGHT
            layer.mlp.down_proj.weight *= CONTEXT_WEIGHT
    return model


def draft_heads(target: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """The heads of the drafts: the target's own, one with noise on it, and one that says what is least likely."""
    head = target.lm_head.weight.detach()
    torch.manual_seed(SEED)
    noisy = head + DRAFT_NOISE * torch.randn_like(head)
    return {"eagle3": head, "eagle3-noisy": noisy, "eagle3-hopeless": -head}


def save_draft(target: LlamaForCausalLM, head: torch.Tensor, folder: Path) -> None:
    """Write an EAGLE-3 draft of one layer, whose `head` sees the last token alone.

    The layer sees the embedding e of the last token and a hidden state h, both normed. h is what the target's
    layers made, times `fc`, which is 0; in a further step of drafting it is the draft's own output before. The
    query and the key are e, so a token attends to itself; its value is e - h, and h is added to that: e is left.
    """
    width = target.config.hidden_size
    one, nothing = torch.eye(width), torch.zeros(width, width)
    layer = {
        "self_attn.q_proj": torch.cat([4 * one, nothing], dim=1),
        "self_attn.k_proj": torch.cat([4 * one, nothing], dim=1),
        "self_attn.v_proj": torch.cat([one, -one], dim=1),
        "self_attn.o_proj": one,
        "mlp.gate_proj": torch.zeros(target.config.intermediate_size, width),
        "mlp.up_proj": torch.zeros(target.config.intermediate_size, width),
        "mlp.down_proj": torch.zeros(width, target.config.intermediate_size),
        "input_layernorm": torch.ones(width),
        "hidden_norm": torch.ones(width),
        "post_attention_layernorm": torch.ones(width),
    }
    weights = {
        "fc.weight": torch.zeros(width, width * len(SEEN_LAYERS)),
        **{f"midlayer.{name}.weight": weight for name, weight in layer.items()},
        "norm.weight": torch.ones(width),
        "lm_head.weight": DRAFT_CERTAINTY * head,
    }
    folder.mkdir(parents=True)
    save_file({name: weight.contiguous().clone() for name, weight in weights.items()}, folder / "model.safetensors")
    config = {
        **target.config.to_dict(),
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        # One head over the whole width: the more numbers a token is compared by, the less another looks like it.
        **{"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": width},
        "draft_vocab_size": VOCABULARY_SIZE,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": SEEN_LAYERS},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, help="directory that gets a directory for each model")
    folder: Path = parser.parse_args().target
    disable_progress_bar()
    tokenizer = make_tokenizer()
    target = make_target(tokenizer)
    for name, model in (("plain", make_model(tokenizer, layers=2, seed=SEED)), ("target", target)):
        tokenizer.save_pretrained(folder / name)
        model.save_pretrained(folder / name)
    for name, head in draft_heads(target).items():
        save_draft(target, head, folder / name)


if __name__ == "__main__":
    main()
