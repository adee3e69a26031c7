"""Is the server that answers the one that was started, and what did it make of its arguments? Pure.

SGLang tells its arguments, as it resolved them, in `/server_info`: the name of a flag with `_` for `-`. Only what
stands there under the name of a flag is compared; a server that tells nothing contradicts nothing.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from perf.redaction import MARK
from perf.text import printable
from perf.validity import Reason

Value = str | int | float | bool | None

#: Short and older names of flags.
ALIASES = {
    "model": "model_path",
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "speculative_draft_model": "speculative_draft_model_path",
}

#: What a server that differs here is another one by; any other argument it may resolve as it sees fit.
TELLING = ("model_path", "served_model_name", "port", "speculative_algorithm")

#: Names of one family of drafts, which SGLang turns into each other: NEXTN is EAGLE, and both are FROZEN_KV_MTP where
#: the draft is an assistant of Gemma 4.
EAGLES = ("EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP")

#: With it the algorithm only names a convention, and SGLang speculates with none.
NAMES_A_CONVENTION = "enable_return_aux_hidden_states"

#: Of SGLang's more than 500 arguments, those that decide how fast it is and are not a machine's paths.
RECORDED = re.compile(
    r".*_backend|.*dtype|.*quantization|(\w+_)?(tp|dp|pp|ep|cp)_size|(disable|enable)_.*|cuda_graph_.*|nnodes|device"
    r"|mem_fraction_static|(effective_)?max_running_requests.*|max_(total|prefill)_tokens|chunked_prefill_size|page_size"
    r"|schedule_.*|num_continuous_decode_steps|stream_interval|load_format|model_impl"
    r"|speculative_(algorithm|num_.*|eagle_topk|adaptive|attention_mode|accept_.*)"
)

#: Arguments of a record, characters of a name and of a value: of SGLang 0.5.23 about 70 are recorded.
MAX_RECORDED = 200
MAX_NAME = 80
MAX_VALUE = 100

_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")

#: Values that ask for nothing, and of which none is said.
LEFT_TO_IT = ("auto", "default", "none", "null", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What contradicts that it is our server, and what it resolved otherwise than asked."""

    wrong: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why nothing that it served must be believed."""
        if not self.wrong:
            return ()
        advice = "see what answers there: another server, or one that was started with other arguments"
        return (Reason(name="wrong server", seen=printable("; ".join(self.wrong), 400), advice=advice),)


def check(command: tuple[str, ...], said: Mapping[str, Value], *, port: int) -> Identity:
    """Does a server that was started by this command say so itself? `{port}` in it is `port`."""
    asked = _flags(tuple(part.replace("{port}", str(port)) for part in command))
    wrong: list[str] = []
    notes: list[str] = []
    for name, given in asked.items():
        if name not in said or (name == "speculative_algorithm" and NAMES_A_CONVENTION in asked):
            continue
        seen = said[name]
        if name == "max_running_requests" and "effective_max_running_requests_per_dp" in said:
            seen = _in_all(said)  # its scheduler may have lowered it
        # The last one counts. What tells a server may be given to its launcher, too: one that agrees is enough.
        values = given if name in TELLING else given[:1]
        if name == "model_path":
            differ = all(_is_other_model(value, asked, said) for _, value in values)
        else:
            differ = all(_agree(value, seen) is False for _, value in values)
        if not differ:
            continue
        flag, value = given[0]
        asked_text, seen_text = (printable(str(each), MAX_VALUE) for each in (value, seen))
        text = f"{printable(flag, MAX_NAME)}: asked {asked_text}, runs with {seen_text}"
        # A router's port is not that of the server behind it, which answers through it.
        routed = name == "port" and any("router" in part for part in command)
        eagles = name == "speculative_algorithm" and {str(value).upper(), str(seen).upper()} <= {*EAGLES}
        telling = name in TELLING and not routed and not eagles
        (wrong if telling else notes).append(text)
    return Identity(wrong=tuple(wrong), notes=tuple(notes))


def check_model(model: str, said: Mapping[str, Value], listed: tuple[str, ...]) -> Identity:
    """Does it serve the model that the suite names? SGLang answers for any name. `listed` are those of /v1/models."""
    served = {str(said[name]) for name in ("served_model_name", "model_path") if said.get(name)}
    if not served or {model, model.partition(":")[0]} & {*served, *listed}:  # `base:adapter` asks for a LoRA
        return Identity(wrong=(), notes=())
    others = ", ".join(sorted({printable(name, MAX_VALUE) for name in (*served, *listed)})[:4])
    return Identity(wrong=(f"model: asked {printable(model, MAX_VALUE)}, it serves {others}",), notes=())


def check_attached(command: tuple[str, ...], said: Mapping[str, Value]) -> Identity:
    """Of a server that already ran, its model alone: it may lie elsewhere there, so this is only a note."""
    asked = _flags(command)
    given = asked.get("model_path", [])
    if not given or not all(_is_other_model(value, asked, said) for _, value in given):
        return Identity(wrong=(), notes=())
    flag, value = given[0]
    seen = printable(str(said["model_path"]), MAX_VALUE)
    return Identity(wrong=(), notes=(f"{flag}: the suite has {printable(str(value), MAX_VALUE)}, it runs with {seen}",))


def recorded(said: Mapping[str, Value]) -> dict[str, str]:
    """The arguments worth recording, as text; what is off (None, False) is left out. Secrets are still in them."""
    kept = sorted(name for name in said if len(name) <= MAX_NAME and name.isidentifier() and RECORDED.fullmatch(name))
    shown = {name: f"{value:.2g}" if isinstance(value := said[name], float) else str(value) for name in kept}
    return {name: shown[name] for name in kept if said[name] not in (None, False)}  # 0 is False, and off, too


_Flags = dict[str, list[tuple[str, str | bool]]]


def _flags(command: tuple[str, ...]) -> _Flags:
    """By the name of the argument, the last first: the flag as written, and its one value, True where it has none."""
    found: _Flags = {}
    values: list[str] = []
    for part in reversed(command):
        if part == "--":  # what stands before it is not meant for what stands behind
            values = []
            continue
        if not re.match(r"--?[A-Za-z]", part):
            values.insert(0, part)
            continue
        flag, equals, value = part.partition("=")
        if equals:
            values = [value]
        if flag.startswith("--") and len(values) <= 1:
            name = flag.removeprefix("--").replace("-", "_")
            found.setdefault(ALIASES.get(name, name), []).append((flag, values[0] if values else True))
        values = []
    return found


def _agree(asked: str | bool, seen: Value) -> bool | None:
    """None where that cannot be told."""
    if isinstance(asked, bool):
        return seen if isinstance(seen, bool) else None
    text = asked.strip().lower()
    if MARK in asked or "redacted" in str(seen) or text in LEFT_TO_IT:
        return None
    if isinstance(seen, bool):
        return seen if text in _TRUE else not seen if text in _FALSE else None
    if seen is None:
        return None if text == "-1" else False  # -1 leaves it to the server
    try:
        return math.isclose(float(text), float(seen))
    except (ValueError, OverflowError):
        return text.rstrip("/") == seen.strip().lower().rstrip("/") if isinstance(seen, str) else None


def _is_other_model(value: str | bool, asked: _Flags, said: Mapping[str, Value]) -> bool:
    """A model that was downloaded lies in a folder named for it, and is served by the name that was asked.

    Hubs write `org/name` as `models--org--name` or `org/name`, some with other marks for a dot; of a repository of GGUF
    files one file is served.
    """
    seen, text = said.get("model_path"), str(value)
    if not isinstance(seen, str):
        return False
    if _agree(text, seen) is not False or ("served_model_name" not in asked and said.get("served_model_name") == text):
        return False
    organisation, _, last = text.rpartition("/")
    name = _bare(last.partition(":")[0])  # `org/name:Q8_0` is of one GGUF file
    if text.startswith(("/", ".", "~")) or not seen.startswith("/") or not name:
        return True
    names = {name, f"{_bare(organisation)}{name}", f"models{_bare(organisation)}{name}"}
    parts = [_bare(part) for part in seen.split("/")]
    return names.isdisjoint(parts) and not (seen.endswith(".gguf") and parts[-1].startswith(name))


def _bare(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()


def _in_all(said: Mapping[str, Value]) -> Value:
    each, schedulers = said["effective_max_running_requests_per_dp"], said.get("dp_size")
    return each * schedulers if isinstance(each, int) and isinstance(schedulers, int) else each
