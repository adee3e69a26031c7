"""What is seen of GPUs while a round is measured: a process that asks a simulated driver, and whole campaigns on it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from perf import rig
from perf.files import refuse_doubtful, to_json
from perf.nvml import POWER_CAP, PcieLink
from perf.record import RoundRecord
from perf.rig import GpuTelemetry
from perf.telemetry import MAX_TRIES, Sampler
from tests.emulated.inner import PACED, PATIENCE_S, POLL_S, Desk, Run, wait_until
from tests.nvml.script import CONSUMER, OLDER, WORKING, Driver, no_driver, path_with

#: Looks follow each other quickly, so that a window is short.
QUICK_S = 0.02
WINDOW_S = 0.4


@contextmanager
def sampler(driver: Driver, *uuids: str, answer_s: float = 5.0) -> Iterator[Sampler]:
    """What looks at these GPUs of a simulated driver, which its process finds first on our module path."""
    sys.path.insert(0, str(driver.folder))
    try:
        with Sampler(uuids or ("GPU-0",), interval_s=QUICK_S, answer_s=answer_s) as made:
            yield made
    finally:
        sys.path.remove(str(driver.folder))


def window(made: Sampler, meanwhile: Callable[[], None] = lambda: None, *, server: int | None = None) -> GpuTelemetry:
    """What one window told of the only GPU."""
    made.start()
    made.begin(server)
    time.sleep(WINDOW_S / 2)
    meanwhile()
    time.sleep(WINDOW_S / 2)
    seen = made.end()
    assert seen is not None, made.problem
    (gpu,) = seen
    return gpu


def test_a_window_has_one_summary_of_what_a_gpu_did_in_it(tmp_path: Path) -> None:
    with sampler(
        Driver(tmp_path, WORKING | {"sm_mhz": [2400, 2390, 2400, 2350], "power_mw": [550_000, 590_000]})
    ) as it:
        seen = window(it)
    assert seen.samples >= 4
    assert (seen.index, seen.uuid, seen.idle_samples) == (0, "GPU-0", 0)
    assert seen.sm_clock_median_mhz == pytest.approx(2395, abs=5)
    assert seen.sm_clock_min_mhz == 2350
    assert seen.sm_clock_mean_mhz == pytest.approx(2385, abs=8)
    assert (seen.memory_clock_median_mhz, seen.temperature_max_celsius) == (1593, 62)
    assert seen.power_mean_w == pytest.approx(570, abs=8)
    assert seen.power_max_w == 590
    assert seen.utilisation_mean == pytest.approx(0.97)
    assert (seen.slowed_by, seen.ecc_corrected, seen.ecc_uncorrected, seen.xids, seen.foreign) == ((), 0, 0, (), ())
    assert seen.pcie == seen.pcie_most == PcieLink(generation=5, width=16)


def test_each_gpu_that_was_asked_for_is_told_of_and_no_other(tmp_path: Path) -> None:
    driver = Driver(tmp_path, *(WORKING | {"uuid": f"GPU-{n}", "sm_mhz": 2400 - n} for n in range(3)))
    with sampler(driver, "GPU-2", "GPU-0") as it:
        it.begin(None)
        time.sleep(WINDOW_S)
        seen = it.end()
    assert seen is not None
    assert [(each.index, each.sm_clock_median_mhz) for each in seen] == [(2, 2398), (0, 2400)]


def test_what_a_board_does_not_tell_is_absent_and_never_0(tmp_path: Path) -> None:
    with sampler(Driver(tmp_path, {"uuid": "GPU-0"})) as it:
        seen = window(it)
    known = {name for name in GpuTelemetry.__slots__ if getattr(seen, name) is not None}
    assert known == {"index", "uuid", "samples", "idle_samples"}
    driver = Driver(tmp_path / "consumer", CONSUMER)
    with sampler(driver) as it:
        seen = window(it)
    assert (seen.ecc_corrected, seen.ecc_uncorrected, seen.xids) == (None, None, None)
    assert seen.sm_clock_median_mhz == 2400


def test_numbers_that_no_board_can_have_are_absent(tmp_path: Path) -> None:
    odd = {"sm_mhz": 0, "memory_mhz": -5, "power_mw": 2**64, "celsius": 2**63, "xids": [13]}
    driver = Driver(tmp_path, WORKING | odd)
    with sampler(driver) as it:
        seen = window(it, lambda: driver.change(xids=[13, 2**64 - 1], ecc_uncorrected=2**64 - 1))
    assert (seen.sm_clock_median_mhz, seen.sm_clock_mean_mhz, seen.memory_clock_median_mhz) == (None, None, None)
    assert (seen.power_mean_w, seen.power_max_w, seen.temperature_max_celsius) == (None, None, None)
    assert seen.ecc_uncorrected is None
    assert seen.xids is not None
    assert len(seen.xids) == 1  # an error all the same
    refuse_doubtful(to_json(asdict(seen)).encode())


def test_reasons_for_slow_clocks_are_shares_of_the_samples_and_what_users_set_is_none_of_them(tmp_path: Path) -> None:
    bits = [0x20, 0, 0x4 | 0x2, 0]  # heat by the driver; power cap, and clocks that somebody set
    with sampler(Driver(tmp_path, WORKING | {"reasons": bits})) as it:
        seen = window(it)
    assert seen.slowed_by is not None
    shares = dict(seen.slowed_by)
    assert shares == {"heat (the driver)": pytest.approx(0.25, abs=0.2), POWER_CAP: pytest.approx(0.25, abs=0.2)}


def test_an_older_driver_is_asked_by_the_older_name(tmp_path: Path) -> None:
    with sampler(Driver(tmp_path, OLDER)) as it:
        seen = window(it)
    assert seen.slowed_by == (("heat (the hardware)", 1.0),)


def test_looks_at_a_card_that_ramps_up_or_down_are_no_clocks_of_the_work(tmp_path: Path) -> None:
    driver = Driver(tmp_path, WORKING | {"sm_mhz": 210, "memory_mhz": 405})
    slow_s = 0.2  # between looks: the first is after half of it
    sys.path.insert(0, str(driver.folder))
    with Sampler(["GPU-0"], interval_s=slow_s) as it:
        sys.path.remove(str(driver.folder))
        it.begin(None)
        time.sleep(slow_s)
        driver.change(sm_mhz=2400, memory_mhz=1593)
        time.sleep(5 * slow_s)
        seen = it.end()
    assert seen is not None
    assert seen[0].samples >= 3
    assert (seen[0].sm_clock_min_mhz, seen[0].sm_clock_mean_mhz, seen[0].memory_clock_median_mhz) == (2400, 2400, 1593)


def test_an_idle_gpu_is_not_slow_and_its_clocks_are_no_clocks_of_the_work(tmp_path: Path) -> None:
    states = {"reasons": [0, 0x1 | 0x20], "sm_mhz": [2400, 210]}  # idle in every second look, with a bit of heat
    with sampler(Driver(tmp_path, WORKING | states)) as it:
        seen = window(it)
    assert seen.idle_samples == pytest.approx(seen.samples / 2, abs=1)
    assert (seen.sm_clock_median_mhz, seen.sm_clock_min_mhz, seen.slowed_by) == (2400, 2400, ())


def test_errors_count_in_the_window_in_which_they_came(tmp_path: Path) -> None:
    driver = Driver(tmp_path, WORKING | {"xids": [13]})
    with sampler(driver) as it:
        before = window(it)
        during = window(it, lambda: driver.change(xids=[13, 48, 94], ecc_corrected=9, ecc_uncorrected=1))
        after = window(it)
    assert (before.xids, during.xids, after.xids) == ((), (48, 94), ())
    assert (before.ecc_uncorrected, during.ecc_uncorrected, after.ecc_uncorrected) == (0, 1, 0)
    assert (before.ecc_corrected, during.ecc_corrected, after.ecc_corrected) == (0, 2, 0)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_a_process_on_a_gpu_that_is_not_the_servers_is_named(tmp_path: Path) -> None:
    driver = Driver(tmp_path, WORKING)
    # Its supervisor starts the server; both end when their input does.
    serve = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()']); print(p.pid, flush=True)"
    supervisor = subprocess.Popen(
        [sys.executable, "-c", f"{serve}; input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stranger = sleeper()
    try:
        assert supervisor.stdout is not None
        server = int(supervisor.stdout.readline())
        with sampler(driver) as it:
            driver.change(processes=[server])
            alone = window(it, server=server)
            driver.change(processes=[server, stranger.pid])
            together = window(it, server=server)
            driver.change(processes=[stranger.pid])  # as a container's numbers would be
            unknown = window(it, server=server)
    finally:
        stranger.kill()
        stranger.wait()
        supervisor.communicate()
    assert alone.foreign == ()
    assert together.foreign is not None
    assert [each.pid for each in together.foreign] == [stranger.pid]
    assert "python" in together.foreign[0].name
    assert unknown.foreign is None


@pytest.mark.parametrize("breaks", ["dies", "hangs"])
def test_a_driver_that_dies_or_hangs_costs_the_telemetry_and_never_holds_up_a_round(
    tmp_path: Path, breaks: str
) -> None:
    driver = Driver(tmp_path, WORKING)
    with sampler(driver, answer_s=1.0) as it:
        assert window(it).samples
        it.begin(None)
        driver.breaks(**{breaks: True})
        time.sleep(WINDOW_S / 4)
        began = time.monotonic()
        assert it.end() is None
        assert time.monotonic() - began < PATIENCE_S
        assert it.problem is not None
        assert "clocks and errors of its GPUs are not known" in it.problem
        driver.breaks(**{breaks: False})
        assert window(it).samples  # the next round is seen again
        assert it.problem is None


def test_a_round_that_was_broken_off_leaves_the_next_its_telemetry(tmp_path: Path) -> None:
    with sampler(Driver(tmp_path, WORKING)) as it:
        it.begin(None)
        assert window(it).samples < 2 * WINDOW_S / QUICK_S
        assert it.problem is None


def test_the_process_is_there_before_the_first_round_and_a_round_never_waits_for_its_start(tmp_path: Path) -> None:
    """Else the GPUs would idle between the warm-up and the round."""
    driver = Driver(tmp_path, WORKING)
    with sampler(driver) as it:
        (child,) = psutil.Process().children()
        child.kill()
        it.begin(None)  # it is lost
        assert it.problem is not None
        it.begin(None)
        assert psutil.Process().children() == []
        assert it.end() is None
        it.start()
        assert len(psutil.Process().children()) == 1


@pytest.mark.parametrize("left", [0, 2])
def test_where_no_file_can_be_opened_a_round_is_measured_without_telemetry(tmp_path: Path, left: int) -> None:
    """Neither the pair of sockets nor, where `left` are left, the process."""
    driver = Driver(tmp_path, WORKING)
    code = (
        "import os, resource; from perf.telemetry import Sampler; "
        f"free = os.dup(0); os.close(free); resource.setrlimit(resource.RLIMIT_NOFILE, (free + {left},) * 2); "
        "it = Sampler(['GPU-0']); it.start(); it.begin(None); print(it.end(), it.problem); "
        "print(os.dup(0) == free)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(driver.folder), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "None the process that asks NVML could not be started (Too many open files)" in done.stdout, done.stderr
    if left:
        assert done.stdout.endswith("True\n")  # and what it opened is closed


def test_a_driver_that_never_answers_is_asked_a_few_times_and_then_left_alone(tmp_path: Path) -> None:
    driver = Driver(tmp_path, WORKING, init="DRIVER_NOT_LOADED")
    with sampler(driver) as it:
        for _ in range(MAX_TRIES):
            it.start()
            it.begin(None)
            assert it.end() is None
        driver.breaks(init=None)
        it.start()
        it.begin(None)
        assert it.end() is None
        assert it.problem is not None
        assert "NVML answers Driver Not Loaded" in it.problem


def test_the_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    driver = Driver(tmp_path, WORKING)
    code = (
        "import psutil, time; from perf.telemetry import Sampler; it = Sampler(['GPU-0']); it.start(); it.begin(None); "
        "print(psutil.Process().children()[0].pid, flush=True); time.sleep(60)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(driver.folder), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.nice() > 0
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    deadline = time.monotonic() + PATIENCE_S
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(POLL_S)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(no_driver() is not None, reason=f"needs a GPU: {no_driver()}")
def test_the_real_driver_tells_of_every_gpu_what_it_is_asked() -> None:
    here = rig.probe()
    assert here.gpus
    assert here.links
    with Sampler([gpu.uuid for gpu in here.gpus]) as it:
        it.begin(None)
        time.sleep(3.0)
        seen = it.end()
    assert seen is not None, it.problem
    assert [each.uuid for each in seen] == [gpu.uuid for gpu in here.gpus]
    for each in seen:
        assert each.samples >= 4
        assert each.temperature_max_celsius is None or 0 < each.temperature_max_celsius < 120
        assert each.slowed_by is not None
        assert each.idle_samples == each.samples or (each.sm_clock_median_mhz or 0) > 0


# Whole campaigns on the emulator, of a suite that needs a GPU

GPU = 'requires = "gpu"\ngpus = 1'
#: Long enough for the looks from which clocks are told.
WORKLOAD = "output_tokens = 48\nrequests_per_level = 8\nwarmup_requests = 1"


class Night:
    """A desk of a machine with one simulated GPU; every night is a session of its own."""

    def __init__(self, folder: Path) -> None:
        self.desk = Desk(folder)
        self.driver = Driver(folder / "nvml", WORKING)
        self.path = self.desk.suite(
            {"plain": PACED}, suite=GPU, workload=WORKLOAD, gate="margin = 0.3\nalpha = 0.2\nmax_launches = 2"
        )

    def run(self, **answers: Any) -> Run:
        self.driver.change(**answers)
        return self.desk.measure(self.path, env={"PYTHONPATH": path_with(self.driver)})

    def promote(self) -> None:
        done = self.desk.perf("promote", "--reason", "first baseline")
        assert done.code == 0, done.screen

    def rounds(self) -> list[RoundRecord]:
        """The rounds of the newest campaign."""
        (suite,) = self.desk.campaign().suites
        return [each for launch in suite.launches for taken in launch.measurements for each in taken.rounds]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    """With a baseline that was stored at 2,470 MHz."""
    made = Night(tmp_path_factory.mktemp("night"))
    first = made.run(sm_mhz=2470)
    assert first.words() == {"small/plain/c002": "NO_BASELINE"}, first.screen
    assert first.items()[0].properties["campaign"]
    made.promote()
    return made


def test_a_night_like_the_stored_one_passes_and_its_campaign_holds_how_the_gpus_fared(night: Night) -> None:
    done = night.run(sm_mhz=2470)
    assert (done.code, done.words()) == (0, {"small/plain/c002": "PASS"}), done.screen
    assert night.desk.campaign().rig.links == "PCIe 5.0 x16, no NVLink"
    for each in night.rounds():
        assert each.gpus is not None
        assert [(gpu.uuid, gpu.sm_clock_median_mhz, gpu.power_mean_w) for gpu in each.gpus] == [("GPU-0", 2470, 550)]
    assert night.desk.perf("check").code == 0


def test_clocks_that_are_not_those_of_the_stored_night_are_not_comparable_though_nothing_was_slowed(
    night: Night,
) -> None:
    done = night.run(sm_mhz=2190)
    assert (done.code, done.words()) == (1, {"small/plain/c002": "INVALID"}), done.screen
    message = done.item("small/plain/c002").message
    assert (
        "clocks differ: tonight ran at 2,190 MHz (median of the slowest GPU), the stored baseline at 2,470" in message
    )
    assert "nvidia-smi -lgc" in message
    assert len(night.desk.campaign().suites[0].launches) == 1  # what is at fault is not launched again
    checked = night.desk.perf("check")
    assert (checked.code, "clocks differ" in checked.out) == (3, True), checked.screen
    assert night.desk.perf("promote", "--reason", "slower").code == 1


def test_a_card_that_heat_holds_down_makes_the_case_invalid(night: Night) -> None:
    done = night.run(sm_mhz=2470, reasons=0x40, celsius=91)
    night.driver.change(reasons=0, celsius=62)
    assert (done.code, done.words()) == (1, {"small/plain/c002": "INVALID"}), done.screen
    message = done.item("small/plain/c002").message
    assert "GPU throttled: GPU 0 was held down by heat (the hardware) in 100 % of" in message
    assert "at up to 91 degrees Celsius" in message


def test_an_error_that_the_driver_reports_during_a_round_makes_the_case_invalid(night: Night) -> None:
    done = night.run(sm_mhz=2470, xids=[13, [1.5, 79]])  # one before the round
    night.driver.change(xids=[])
    assert (done.code, done.words()) == (1, {"small/plain/c002": "INVALID"}), done.screen
    assert "GPU error: GPU 0: Xid 79" in done.item("small/plain/c002").message


def test_a_driver_that_dies_when_it_is_sampled_leaves_a_note_and_a_night_without_telemetry(tmp_path: Path) -> None:
    made = Night(tmp_path)
    made.driver.breaks(no_events=True)
    done = made.run()
    assert done.words() == {"small/plain/c002": "NO_BASELINE"}, done.screen
    assert [each.gpus for each in made.rounds()] == [None] * len(made.rounds())
    (suite,) = made.desk.campaign().suites
    assert all(any("are not known" in note for note in launch.notes) for launch in suite.launches)


def test_a_driver_that_answers_again_before_a_warm_up_is_asked_again(tmp_path: Path) -> None:
    made = Night(tmp_path)
    made.driver.breaks(no_events=True)

    def mends() -> None:
        wait_until(lambda: any((folder / "plain-1").is_dir() for folder in made.desk.folders()), "the first launch")
        made.driver.breaks(no_events=False)

    mending = Thread(target=mends)
    mending.start()
    made.run()
    mending.join()
    assert made.rounds()[-1].gpus is not None
