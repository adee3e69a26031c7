"""What a server says of itself, in answers and in its log, is in the record; one that is another is not measured."""

import re
from functools import partial
from pathlib import Path

import pytest

from perf import server as servers
from perf import supervisor
from tests.emulated.inner import EMULATOR, PACED, Desk, Launches, running

#: A server that is not the one that its command names.
CLAIMS = """
class Handler(Handler):
    def do_GET(self):
        if self.path == "/get_server_info":
            said = {"version": "0.4.6", "model_path": "/models/other", "served_model_name": "other", "tp_size": 1}
            self.answer(200, said)
        else:
            super().do_GET()
"""

#: Twenty lines of decode batches a round, or so: one every 40 steps.
CHATTY = (*EMULATOR, "--step-ms", "1:3", "--prefill-ms", "3", "--prefill-token-ms", "0")
LONG = "output_tokens = 400"


def test_a_server_that_claims_another_model_is_invalid_by_name_and_promoted_by_nobody(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    command = (*desk.stranger(CLAIMS), "--model-path", "/models/mine", "--tp", "8")
    measured = desk.measure(desk.suite({"claims": command}), "--perf-max-launches=1")
    assert measured.words() == {"small/claims/c002": "INVALID"}
    message = measured.item("small/claims/c002").message
    assert "wrong server: --model-path: asked /models/mine, runs with /models/other" in message
    (launch,) = desk.campaign().suites[0].launches
    assert launch.notes[-1] == "--tp: asked 8, runs with 1"
    assert launch.measurements[0].rounds == ()
    assert desk.perf("promote", "--reason", "x").code == 1


def test_a_server_that_already_runs_is_asked_only_for_its_model(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with running("--model-path", "emulated/model") as url:
        named = desk.suite({"named": (*PACED, "--tp", "8")}, variant='model = "llama"')
        measured = desk.measure(named, f"--perf-base-url={url}")
        assert "wrong server: model: asked llama, it serves emulated/model" in measured.item("small/named/c002").message
        other = desk.suite({"other": (*PACED, "--tp", "8", "--model-path", "org/other")}, name="attached")
        assert desk.measure(other, f"--perf-base-url={url}").words() == {"attached/other/c002": "ADVISORY"}
    (launch,) = desk.campaign().suites[0].launches
    assert "--model-path: the suite has org/other, it runs with emulated/model" in launch.notes
    assert dict(launch.server_arguments)["tp_size"] == "1"
    assert launch.measurements[0].rounds[0].server_log is None


#: What is answered at /server_info.
SAYS = """
class Handler(Handler):
    def do_GET(self):
        self.answer(*SAID) if self.path == "/server_info" else super().do_GET()
"""


def test_a_server_that_does_not_tell_its_arguments_is_measured_with_a_note(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    suite = desk.suite({"served": desk.stranger(f"{SAYS}SAID = 500, {{}}")})
    launch = Launches(desk, suite).run("candidate", levels=(2,))
    assert not launch.measurements[0].all_reasons
    assert "it says nothing of its arguments: identity not checked" in launch.notes
    desk.stranger(f"{SAYS}SAID = 404, {{}}")
    assert not any("identity" in note for note in Launches(desk, suite).run("candidate", 2, levels=(2,)).notes)


@pytest.mark.parametrize("counts", [True, False])
def test_a_server_that_counts_no_tokens_is_measured_with_a_note(tmp_path: Path, *, counts: bool) -> None:
    desk = Desk(tmp_path)
    suite = desk.suite({"served": tuple(part for part in PACED if counts or part != "--enable-metrics")})
    launch = Launches(desk, suite).run("candidate", levels=(2,))
    assert not launch.measurements[0].all_reasons
    assert any("it counts no tokens at /metrics" in note for note in launch.notes) is not counts


def test_an_adaptive_server_that_counts_no_verify_steps_is_invalid(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    said = {"speculative_algorithm": "EAGLE3", "speculative_adaptive": True}
    suite = desk.suite({"served": desk.stranger(f"{SAYS}SAID = 200, {said}")})
    (measured,) = Launches(desk, suite).run("candidate", levels=(2,)).measurements
    assert [reason.name for reason in measured.all_reasons] == ["acceptance missing"]


def test_a_rounds_own_part_of_the_log_is_summed_up_and_a_capped_server_is_told(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    flags = ("--max-running-requests", "2", "--speculative-algorithm", "EAGLE3", "--acceptance", "2")
    suite = desk.suite({"capped": (*CHATTY, *flags)}, levels=(4,), workload=f"{LONG}\nrounds = 2")
    launch = Launches(desk, suite).run("candidate", levels=(4,))
    (measured,) = launch.measurements
    assert not measured.all_reasons
    logs = [each.server_log for each in measured.rounds]
    assert len(logs) == 2
    for log in logs:
        assert log is not None
        # 8 requests of 400 tokens, two at a time, two tokens a step: 800 steps, and no line of what was asked before.
        assert 15 <= log.lines <= 25
        assert (log.running_max, log.steps) == (2, None)
        assert log.queue_max is not None
        assert log.queue_max >= 2
        assert log.acceptance_length == pytest.approx(2, rel=0.1)
    assert sum("never ran more than 2 of 4 requests at once" in note for note in launch.notes) == 1
    assert not any("the server's log says" in note for note in launch.notes)
    arguments = dict(launch.server_arguments)
    assert (arguments["max_running_requests"], arguments["speculative_algorithm"]) == ("2", "EAGLE3")


#: A line of a decode batch for each request; whoever sets FLOOD has as many bytes beside it.
LOGS = """
import threading
LOCK = threading.Lock()
class Handler(Handler):
    def stream(self, *asked):
        with LOCK:
            print("Decode batch, #running-req: 2, gen throughput (token/s): 90.0, #queue-req: 0")
            print("x" * FLOOD, flush=True)
        super().stream(*asked)
"""


@pytest.mark.parametrize(("flood", "lines"), [(10, 4), (200_000, 4), (3_000_000, None)])
def test_a_log_that_was_cut_under_a_round_is_not_read_for_it_and_the_round_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flood: int, lines: int | None
) -> None:
    monkeypatch.setattr(servers, "Order", partial(supervisor.Order, log_head_bytes=1 << 18, log_tail_bytes=1 << 21))
    desk = Desk(tmp_path)
    suite = desk.suite({"logs": desk.stranger(f"FLOOD = {flood}{LOGS}")})
    (measured,) = Launches(desk, suite).run("candidate", levels=(2,)).measurements
    (one_round,) = measured.rounds
    assert not measured.all_reasons
    assert (None if one_round.server_log is None else one_round.server_log.lines) == lines


def test_the_death_of_a_server_is_told_with_the_line_of_its_log_that_says_why(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    dies = (*PACED, "--fault", "die-mid-round", "--fault-after", "2")
    launch = Launches(desk, desk.suite({"dies": dies})).run("candidate", levels=(2,))
    seen = [reason.seen for reason in launch.measurements[0].all_reasons if reason.name == "server died"]
    assert re.match(
        r"killed by SIGKILL.*; its log says: torch\.AcceleratorError: CUDA error: an illegal memory", seen[0]
    )


def test_what_a_server_resolves_otherwise_than_the_stored_one_is_said_beside_the_verdict(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    told = """
class Handler(Handler):
    def do_GET(self):
        if self.path == "/server_info":
            self.answer(200, {"version": "1.0", "attention_backend": BACKEND, "page_size": 1})
        else:
            super().do_GET()
"""
    suite = desk.suite({"served": desk.stranger(f"BACKEND = 'flashinfer'{told}")})
    assert desk.measure(suite, "--perf-max-launches=2").words() == {"small/served/c002": "NO_BASELINE"}
    assert desk.perf("promote", "--reason", "first").code == 0
    desk.stranger(f"BACKEND = 'fa3'{told}")
    measured = desk.measure(suite, "--perf-max-launches=2")
    assert "arguments that the server resolved otherwise: attention_backend fa3, was flashinfer" in measured.screen
    (stored,) = [case.stored for case in desk.campaign().suites[0].cases]
    assert stored is not None
    assert dict(stored.server_arguments) == {"attention_backend": "flashinfer", "page_size": "1"}


def test_a_log_that_its_server_replaced_by_a_pipe_holds_up_no_round(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    code = """
LOG = os.readlink(f"/proc/{os.getppid()}/fd/2")
class Handler(Handler):
    def stream(self, *asked):
        if not os.path.exists(f"{LOG}.gone"):
            os.rename(LOG, f"{LOG}.gone")
            os.mkfifo(LOG)
        super().stream(*asked)
"""
    workload = "output_tokens = 12\nmin_requests = 2\nrequests_per_stream = 1\nwarmup_requests = 0"
    suite = desk.suite({"plain": desk.stranger(code)}, levels=(1,), workload=workload)
    (measured,) = Launches(desk, suite).run("candidate").measurements
    assert [each.server_log for each in measured.rounds] == [None]
