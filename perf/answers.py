"""What a server says to a few prompts, one at a time at temperature 0: what speculation must not change.

Asked outside every measured window, without a stream; no time is taken of it.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import httpx2

from perf.load import Target, body_of
from perf.workload import PlannedRequest, Prompt

#: Enough to tell a draft path that is wrong from one near tie; on a rig they are seconds of a launch of minutes.
PROMPTS = 8

#: Output tokens of each: a wrong draft token shows within a few steps, and every further token is one more near tie.
TOKENS = 64

#: No server that is fit to be measured takes so long for one answer to one stream.
TIMEOUT_S = 120.0

#: Bodies beyond this are no answer of so few tokens.
MAX_BODY_BYTES = 1024 * 1024


class NoAnswerError(Exception):
    """A prompt that was not answered with a text; what was seen is the server's word, secrets and all."""


def chosen(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """The prompts that are asked, spread evenly over a set: neighbours are of one kind."""
    count = min(PROMPTS, len(prompts))
    return tuple(prompts[place * len(prompts) // count] for place in range(count))


def ask(target: Target, prompts: Sequence[Prompt], tokens: int) -> tuple[str, ...]:
    """What is said to each prompt in `tokens` tokens. Raises NoAnswerError with the first that has no answer."""
    return asyncio.run(_ask(target, prompts, tokens))


async def _ask(target: Target, prompts: Sequence[Prompt], tokens: int) -> tuple[str, ...]:
    headers = {"Authorization": target.authorization} if target.authorization else {}
    said: list[str] = []
    async with httpx2.AsyncClient(
        base_url=target.base_url, headers=headers, timeout=TIMEOUT_S, trust_env=False, follow_redirects=False
    ) as client:
        for place, prompt in enumerate(prompts, start=1):
            try:
                async with asyncio.timeout(TIMEOUT_S):  # only a loop can end an answer that drips
                    said.append(await _answer(client, target, prompt, tokens))
            except (httpx2.HTTPError, TimeoutError, NoAnswerError) as error:
                why = str(error) or type(error).__name__
                raise NoAnswerError(f"prompt {place} of {len(prompts)}, {prompt.id!r}: {why}") from error
    return tuple(said)


async def _answer(client: httpx2.AsyncClient, target: Target, prompt: Prompt, tokens: int) -> str:
    chat = target.endpoint == "chat"
    request = PlannedRequest(index=0, prompt_id=prompt.id, messages=prompt.messages)
    asked = body_of(replace(target, temperature=0.0), request, tokens) | {"stream": False}
    body = bytearray()
    async with client.stream("POST", f"/v1/{'chat/' if chat else ''}completions", json=asked) as response:
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise NoAnswerError(f"more than {MAX_BODY_BYTES:,} bytes")
    text = body.decode("utf-8", errors="replace")
    if response.status_code != httpx2.codes.OK:
        raise NoAnswerError(f"HTTP {response.status_code}: {text}")
    try:
        said = json.loads(text)
        (choice,) = said["choices"]
        ended, counted = choice.get("finish_reason"), (said.get("usage") or {}).get("completion_tokens")
        # Servers that all stop too soon may well agree, on less than is said of them; "stop" ends the last token, too.
        if (counted, ended) not in ((None, "length"), (tokens, "length"), (tokens, "stop")):
            raise NoAnswerError(f"{'-' if counted is None else counted} tokens of {tokens}, finish_reason {ended}")
        # Models that think say so in a field of its own, where the server was told to tell the two apart.
        parts = [choice["message"].get(key) for key in ("reasoning_content", "content")] if chat else [choice["text"]]
        return "".join(part for part in parts if part is not None)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise NoAnswerError(f"not an answer of the OpenAI format: {text}") from error
