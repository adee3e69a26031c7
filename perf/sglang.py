"""SGLang's own endpoints: cache flush, counters, what it says of itself. Used where a server has them.

Every call here is a control call: made between rounds, never inside the measured window. A server that lacks an
endpoint answers None, not zero.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from perf.identity import LEFT_TO_IT, Value
from perf.trace import Counters

#: A control call that takes longer, from connecting to the last byte, is not going to answer; between rounds it would
#: only cost rig-minutes.
CALL_TIMEOUT_S = 10.0

#: SGLang 0.5.23 counts a request by the time its last event is sent (300 of 300 readings on a CPU). A server that hands
#: its counts between processes may be later: waited for at most this long, and only while the count is short.
COUNTER_SETTLE_S = 5.0
COUNTER_POLL_S = 0.1

#: Bodies beyond this are no answer to a control call.
MAX_BODY_BYTES = 32 * 1024 * 1024

#: A counter beyond this is none: floats tell whole numbers apart up to nine times as many.
MAX_COUNT = 1e15

#: What is answered where there is no such path; by SGLang's router in front of gRPC workers with 501.
NO_SUCH_PATH = (httpx2.codes.NOT_FOUND, httpx2.codes.METHOD_NOT_ALLOWED, httpx2.codes.NOT_IMPLEMENTED)

#: Arguments that are listened to, and the length of one as text: SGLang 0.5.23 tells 546.
MAX_SAID = 2000
MAX_SAID_LENGTH = 1000

#: What a scheduler made of `max_running_requests` stands only in its own state.
_EFFECTIVE = "effective_max_running_requests_per_dp"

_METRICS = {
    "sglang:generation_tokens_total": "generated",
    "sglang:prompt_tokens_total": "prompt",
    "sglang:cached_tokens_total": "cached",
    "sglang:spec_verify_calls_total": "verify_steps",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What a server says of itself; None where it does not. `said` are its arguments as it resolved them, by name.

    `silent` is one that has a place to say so and did not answer there in time, or not with that.
    """

    version: str | None
    speculative_algorithm: str | None
    said: Mapping[str, Value]
    silent: bool = False


class Control:
    """Control calls to one server, each within `call_timeout_s` seconds."""

    def __init__(self, base_url: str, authorization: str | None, *, call_timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._call_timeout_s = call_timeout_s
        headers = {"Authorization": authorization} if authorization else {}
        self._runner = asyncio.Runner()  # only a loop can end a call that drips
        self._client = httpx2.AsyncClient(
            base_url=base_url,
            headers=headers,
            timeout=call_timeout_s,
            trust_env=False,
            follow_redirects=False,
            # A round lies between two calls: the server has closed the connection meanwhile, or is about to.
            limits=httpx2.Limits(max_keepalive_connections=0),
        )

    def close(self) -> None:
        """Give the connection back."""
        try:
            self._runner.run(self._client.aclose())
        finally:
            self._runner.close()

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False where the server cannot."""
        return self._answer("POST", "/flush_cache")[1] is not None

    def info(self) -> ServerInfo:
        """Version and arguments, by the new endpoint name or the old one."""
        silent = False
        for path in ("/server_info", "/get_server_info"):
            status, body = self._answer("GET", path)
            answer = _object(body)
            if answer is not None:
                algorithm = _text_of(answer.get("speculative_algorithm"))
                return ServerInfo(
                    version=_text_of(answer.get("version")),
                    speculative_algorithm=None if (algorithm or "").strip().lower() in LEFT_TO_IT else algorithm,
                    said=dict(_scalars(answer)),
                )
            silent = silent or status not in NO_SUCH_PATH
        return ServerInfo(version=None, speculative_algorithm=None, said={}, silent=silent)

    def models(self) -> tuple[str, ...]:
        """The models that it lists."""
        listed = (_object(self._answer("GET", "/v1/models")[1]) or {}).get("data")
        named = [each.get("id") for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        return tuple(name for name in named if isinstance(name, str))

    def counters(self) -> Counters | None:
        """The server's counters now; None where it has none. One that is none (negative, NaN, too large) is None."""
        _, text = self._answer("GET", "/metrics")
        if text is None:
            return None
        totals: dict[str, float] = {}
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    name = _METRICS.get(sample.name)
                    if name is not None:
                        totals[name] = totals.get(name, 0.0) + sample.value
        except ValueError:  # not Prometheus text: no counters of SGLang's
            return None
        counted = {name: int(value) for name, value in totals.items() if 0 <= value <= MAX_COUNT}
        return Counters(**counted) if totals else None

    def settled_counters(self, before: Counters | None, generated: int) -> Counters | None:
        """The counters once they show `generated` tokens since `before`, or as they are after COUNTER_SETTLE_S."""
        if before is None:
            return None
        deadline = time.monotonic() + COUNTER_SETTLE_S
        while True:
            now = self.counters()
            seen = None if now is None else now.since(before).generated
            if (now is not None and (seen is None or seen >= generated)) or time.monotonic() > deadline:
                return now
            time.sleep(COUNTER_POLL_S)

    def _answer(self, method: str, path: str) -> tuple[int | None, str | None]:
        """The status, None where there is no answer; and the body where that is 200 and came whole and in time."""
        try:
            return self._runner.run(self._asked(method, path))
        except (httpx2.HTTPError, TimeoutError):
            return None, None

    async def _asked(self, method: str, path: str) -> tuple[int, str | None]:
        body = bytearray()
        async with asyncio.timeout(self._call_timeout_s), self._client.stream(method, path) as response:
            if response.status_code != httpx2.codes.OK:
                return response.status_code, None
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    return response.status_code, None
        return response.status_code, body.decode("utf-8", errors="replace")


def _object(text: str | None) -> dict[str, object] | None:
    try:
        value: object = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _scalars(answer: Mapping[str, object]) -> Iterator[tuple[str, Value]]:
    states = answer.get("internal_states")
    first = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    effective = {_EFFECTIVE: first[_EFFECTIVE]} if _EFFECTIVE in first else {}
    for name, value in [*effective.items(), *answer.items()][:MAX_SAID]:
        if isinstance(value, str | int | float | None) and len(str(value)) <= MAX_SAID_LENGTH:
            yield name, value


def _text_of(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
