"""Real SGLang on a CPU that speculates, with drafts of known quality. Needs `make_environment.py` to have run."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from perf import record, trace_file
from perf.gate import Word
from perf.metrics import summarize
from perf.record import Campaign
from perf.same_output import SameOutputVerdict
from perf.suite import Suite, Variant
from perf.suite_file import load
from perf.trace import Counters, Round
from perf.verdict import CaseVerdict, RelationVerdict, Verdict, judge
from tests.sglang_cpu.sessions import ROOT, ask, free_port, run, serving, session

NAME = "sglang-cpu-speculative"
SUITE: Suite = load(ROOT / "perf" / "suites" / f"{NAME}.toml")
LEVELS = SUITE.workload.levels
#: Launched apart from the others, see `asked`.
NOISY = "eagle3-noisy"

pytestmark = pytest.mark.needs_sglang


def variant_of(name: str) -> Variant:
    return next(each for each in SUITE.variants if each.name == name)


def seen(folder: Path, launch: str, level: int) -> tuple[Round, Counters]:
    """One round as the client saw it, and what the server counted meanwhile."""
    trace = trace_file.read(trace_file.path(folder / launch, f"c{level:03d}", 0), level, 0)
    assert trace.counted is not None
    return trace.round, trace.counted


def acceptance(folder: Path, launch: str, level: int) -> float:
    """The acceptance length of a round, as the campaign has it where the round is believed."""
    measured, counted = seen(folder, launch, level)
    summary = summarize(measured, verify_steps=counted.verify_steps)
    assert summary is not None
    assert summary.acceptance_length is not None
    return summary.acceptance_length


@dataclass(frozen=True, slots=True)
class Measured:
    """A session in which every variant but NOISY was launched once."""

    folder: Path
    campaign: Campaign
    screen: str

    @property
    def verdicts(self) -> dict[str, Verdict]:
        return {each.id: each for each in judge(self.campaign.suites[0])}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("speculative")
    done = session(folder, NAME, "--perf-max-launches=1", "-k", f"not {NOISY}")
    campaign = record.find(folder / "campaigns", None)
    return Measured(folder=campaign, campaign=record.read(campaign), screen=done.stdout + done.stderr)


@dataclass(frozen=True, slots=True)
class Asked:
    """A server that speculates, and an advisory session on it."""

    folder: Path
    average: float
    verify_steps: list[int]
    lengths: list[int]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """The chain of noisy drafts at level 4, on a server that counts what was accepted at every step, not every 40th."""
    folder = tmp_path_factory.mktemp("asked")
    variant = variant_of(NOISY)
    port = free_port()
    command = [part.format(python=variant.python, port=port) for part in variant.command]
    with serving([*command, "--decode-log-interval", "1"], {**os.environ, **dict(variant.env)}, folder) as url:
        session(folder, NAME, f"--perf-base-url={url}", "-k", f"{variant.name}/c004")
        # The cache was flushed before the round, and with it these totals: they are the round's.
        state = json.loads(ask(url, "/server_info"))["internal_states"][0]
        sampling = {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True}
        answers = [
            json.loads(ask(url, "/generate", {"text": text, "sampling_params": sampling}))["meta_info"]
            for text in ("def load(path):", "The server is slow because", "class Cache:")
        ]
    return Asked(
        folder=record.find(folder / "campaigns", None),
        average=state["avg_spec_accept_length"],
        verify_steps=[each["spec_verify_ct"] for each in answers],
        lengths=[each["completion_tokens"] for each in answers],
    )


def test_acceptance_as_measured_is_what_the_server_says(asked: Asked) -> None:
    # Ours is output tokens / verify steps. The server adds up what each verify step yields: that leaves out the first
    # token of a request, which comes from prefill, and has what a last step yields beyond max_tokens. The two nearly
    # cancel out.
    assert acceptance(asked.folder, f"{NOISY}-1", 4) == pytest.approx(asked.average, rel=0.02)


def test_a_noisy_draft_is_accepted_now_and_then(asked: Asked) -> None:
    assert 1.2 < asked.average < 2.5
    assert all(length / 4 <= steps < length for length, steps in zip(asked.lengths, asked.verify_steps, strict=True))


@pytest.mark.parametrize("variant", [variant.name for variant in SUITE.variants if variant.name != NOISY])
@pytest.mark.parametrize("level", LEVELS)
def test_client_and_server_count_the_same_tokens(measured: Measured, variant: str, level: int) -> None:
    tokens_agree(measured.folder, f"{variant}-1", level)


def test_client_and_server_count_the_same_tokens_of_noisy_drafts(asked: Asked) -> None:
    tokens_agree(asked.folder, f"{NOISY}-1", 4)


def tokens_agree(folder: Path, launch: str, level: int) -> None:
    taken, counted = seen(folder, launch, level)
    wanted = taken.requested_tokens * taken.planned_requests
    assert sum(request.output_tokens or 0 for request in taken.requests) == wanted
    assert counted.generated == wanted


def test_a_draft_with_noise_is_accepted_less(measured: Measured, asked: Asked) -> None:
    noisy, exact = acceptance(asked.folder, f"{NOISY}-1", 4), acceptance(measured.folder, "eagle3-overlap-1", 4)
    assert 1 < noisy < exact <= 4


def test_drafts_of_any_kind_change_nothing_of_what_is_said(measured: Measured) -> None:
    (found,) = [each for each in measured.verdicts.values() if isinstance(each, SameOutputVerdict)]
    assert found.word is Word.PASS, measured.screen
    assert [each.alike for each in found.agreements] == [found.asked] * 4
    outputs = [launch.outputs for launch in measured.campaign.suites[0].launches if launch.variant == "baseline"]
    assert outputs[0] is not None
    assert len(set(outputs[0].texts)) > len(outputs[0].texts) // 2  # what is said depends on the prompt


def test_the_adaptive_server_is_held_against_the_better_of_the_two_at_every_level(measured: Measured) -> None:
    found = [each for each in measured.verdicts.values() if isinstance(each, RelationVerdict)]
    assert [(each.level, each.of) for each in found] == [(level, ("baseline", "eagle3-overlap")) for level in LEVELS]
    # One launch of each bounds nothing, so INCONCLUSIVE is all a PASS can be; what was seen is within the margin.
    assert {each.word for each in found} <= {Word.PASS, Word.INCONCLUSIVE}, measured.screen
    assert all(each.judgement is not None and each.judgement.change > -each.margin for each in found), measured.screen


def test_the_adaptive_server_speculates_for_one_stream_and_not_for_four(measured: Measured) -> None:
    assert "Switch adaptive runtime state: steps 3 -> 0" in (measured.folder / "adaptive-1" / "server.log").read_text()
    assert acceptance(measured.folder, "adaptive-1", 1) > acceptance(measured.folder, "adaptive-1", 4)


def test_two_ranks_serve_as_one(measured: Measured) -> None:
    log = (measured.folder / "tp2-1" / "server.log").read_text()
    assert "TP0" in log
    assert "TP1" in log


def test_a_draft_of_which_nothing_is_accepted_is_invalid(tmp_path: Path) -> None:
    hopeless = tmp_path / "hopeless.toml"
    text = SUITE.source.read_text(encoding="utf-8").partition("[[expect]]")[0].replace("../../", f"{ROOT}/")
    hopeless.write_text(
        text.replace("models/eagle3-noisy", "models/eagle3-hopeless").replace(f'name = "{NAME}"', 'name = "hopeless"'),
        encoding="utf-8",
    )
    session(tmp_path, hopeless, "--perf-max-launches=1", "-k", f"{NOISY}/c001")
    campaign = record.find(tmp_path / "campaigns", None)
    (found,) = judge(record.read(campaign).suites[0])
    assert isinstance(found, CaseVerdict)
    assert found.word is Word.INVALID
    assert "acceptance 1.0" in {reason.name for reason in found.reasons}
    shown = run("perf", "check", campaign.name, f"--campaign-dir={tmp_path / 'campaigns'}")
    assert "acceptance 1.0" in shown.stdout
    assert "the draft is not wired" in shown.stdout
