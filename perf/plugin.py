"""The pytest plugin: options, items, and what a user sees. The only module that knows pytest.

A campaign is measured once, when the first item of a suite is set up, for exactly the items that are left after every
selection (`session`); each item then judges its own case. The verdict is raised inside the item, so that JUnit, `--lf`,
`-x` and the summary see it.
"""

import errno
import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from perf import report, suite_file
from perf.carrier import (
    commit_info,
    pytest_benchmark_compare_machine_info,  # noqa: F401 - hooks, which pytest finds here
    pytest_benchmark_generate_machine_info,  # noqa: F401
    pytest_benchmark_scale_unit,  # noqa: F401
)
from perf.files import FileError
from perf.gate import Word
from perf.measure import Show
from perf.redaction import Secrets
from perf.session import CannotMeasureError, Judged, Session, Settings
from perf.suite import Case, Crossover, Relation, SameOutput, Suite
from perf.suite_file import SuiteError
from perf.text import MIN_MARGIN, parse_margin, printable, share
from perf.verdict import CaseVerdict

MARKERS = {
    "perf": "a case or relation of a suite: starts servers and measures them",
    "gpu": "a case of a suite for a GPU rig",
    "sglang_cpu": "a case of the suite for real SGLang on a CPU, or a test of it",
    "rehearsal": "a case of the suite for the embedded emulated server",
}

T = TypeVar("T")

Subject = Case | Relation | Crossover | SameOutput


@dataclass(frozen=True, slots=True)
class PerfItem:
    """What one item is about: a case, an expectation, or a suite file that could not be read."""

    suite: Suite | None
    subject: Subject | None
    problem: str | None = None

    def __repr__(self) -> str:
        """The id alone: it may be shown, and the commands of a suite may hold secrets."""
        return self.subject.id if self.subject else "unreadable"


# Options


def pytest_addoption(parser: pytest.Parser) -> None:
    """Every option has an ini twin; precedence: command line, ini, suite, built-in."""
    group = parser.getgroup("perf", "performance regression suite")
    group.addoption(
        "--perf-suite",
        action="append",
        metavar="PATH|NAME",
        help="a suite file, or the name of a shipped one; may be repeated. Always with =",
    )
    parser.addini("perf_suite", "suite files or names of shipped suites, one a line", type="linelist", default=[])
    for option in OPTIONS:
        group.addoption(f"--perf-{option.name}", metavar=option.metavar, help=option.help)
        parser.addini(f"perf_{option.name.replace('-', '_')}", option.help)


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    metavar: str
    help: str


OPTIONS = (
    _Option("baselines", "DIR", "the folder of stored baselines (default: baselines)"),
    _Option("campaign-dir", "DIR", "the folder of campaigns (default: .perf/campaigns)"),
    _Option("margin", "SHARE", "the relative loss that PASS excludes: 3%% or 0.03 (default: the suite's)"),
    _Option("budget-minutes", "N", "rig-minutes a suite may spend (default: the suite's)"),
    _Option("max-launches", "N", "most launches of one variant (default: the suite's, else 12; with a budget 200)"),
    _Option("base-url", "URL", "ask a server that already runs: one variant, advisory, never promoted"),
)


def _settings(config: pytest.Config) -> Settings:
    """The options, read and checked. Raises pytest.UsageError."""
    given = _Given(config)
    return Settings(
        baselines=given.folder("baselines", "baselines"),
        campaigns=given.folder("campaign-dir", ".perf/campaigns"),
        margin=given.value("margin", parse_margin, f"a share such as 3% or 0.03, at least {MIN_MARGIN}"),
        budget_minutes=given.value("budget-minutes", _positive, "minutes, more than 0"),
        max_launches=given.value("max-launches", _count, "a whole number of at least 1"),
        base_url=given.value("base-url", _url, "http://HOST:PORT or https://HOST:PORT, without /v1"),
    )


class _Given:
    """The options as texts, of the command line or else of the ini file."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def _text(self, name: str) -> tuple[str | None, bool]:
        """The option's text and whether it is the command line's."""
        given = self._config.getoption(f"perf_{name.replace('-', '_')}")
        if given is not None:
            return str(given), True
        return str(self._config.getini(f"perf_{name.replace('-', '_')}") or "") or None, False

    def folder(self, name: str, default: str) -> Path:
        text, from_command_line = self._text(name)
        base = self._config.invocation_params.dir if from_command_line else self._config.rootpath
        return base / (text or default)

    def value(self, name: str, read: Callable[[str], T], allowed: str) -> T | None:
        text, from_command_line = self._text(name)
        if text is None:
            return None
        try:
            return read(text)
        except ValueError as error:
            key = f"--perf-{name}" if from_command_line else f"perf_{name.replace('-', '_')}"
            seen = Secrets(()).redact(text)  # a URL may hold a password
            raise pytest.UsageError(f"{key}: seen {seen!r}; allowed: {allowed}") from error


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1000:
        raise ValueError(text)
    return value


def _url(text: str) -> str:
    url = text.rstrip("/").removesuffix("/v1")
    if not re.fullmatch(r"https?://[^\s/]+", url):
        raise ValueError(text)
    return url


# Suites and items

_SETTINGS = pytest.StashKey[Settings]()
_ITEMS = pytest.StashKey[list[PerfItem]]()
_BENCH = pytest.StashKey[Session]()
_TOLD = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, read the options, and refuse at once what can never measure."""
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.stash[_SETTINGS] = _settings(config)
    config.stash[_TOLD] = set()
    spread = config.getoption("numprocesses", None) or config.getoption("dist", "no") != "no"
    if spread and _asks_for_cases(config):
        raise pytest.UsageError(_NO_XDIST)
    asked = config.getoption("perf_suite") or []
    config.stash[_ITEMS] = list(_perf_items(config, asked))
    problems = [item.problem for item in config.stash[_ITEMS] if item.problem]
    if asked and problems:
        raise pytest.UsageError("\n".join(problems))


_NO_XDIST = "performance cases share one rig and cannot be spread over xdist workers: run them without -n"


def _asks_for_cases(config: pytest.Config) -> bool:
    """Does the command line name performance cases? (Items refuse xdist too: this only says it earlier.)"""
    words = re.sub(r"\bnot\s+\w+", "", config.getoption("markexpr") or "")
    return bool(config.getoption("perf_suite")) or any(re.search(rf"\b{name}\b", words) for name in MARKERS)


def _perf_items(config: pytest.Config, asked: Sequence[str]) -> Iterator[PerfItem]:
    base = config.invocation_params.dir if asked else config.rootpath
    seen: dict[str, Path] = {}
    known: set[Path] = set()
    for name in asked or config.getini("perf_suite"):
        path = suite_file.find(name, base)
        if path.resolve() in known:
            continue  # given twice
        known.add(path.resolve())
        try:
            loaded = suite_file.load(path)
        except SuiteError as error:
            yield PerfItem(None, None, str(error))
            continue
        if seen.setdefault(loaded.name, path) != path:
            yield PerfItem(None, None, f"{path}: suite.name: {loaded.name!r} is also the name of {seen[loaded.name]}")
            continue
        subjects: tuple[Subject, ...] = (*loaded.cases, *loaded.relations, *loaded.crossovers, *loaded.same_outputs)
        for subject in subjects:
            yield PerfItem(loaded, subject)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for every case and expectation, and for every suite file that could not be read."""
    if "perf_item" not in metafunc.fixturenames:
        return
    params = []
    for item in metafunc.config.stash[_ITEMS]:
        if item.suite is None or item.subject is None:
            # Which marker it would have had is unknown: whoever asks for any of them is told.
            params.append(pytest.param(item, id="unreadable", marks=[getattr(pytest.mark, name) for name in MARKERS]))
            continue
        names = ["perf", *([item.suite.marker] if item.suite.marker else [])]
        params.append(pytest.param(item, id=item.subject.id, marks=[getattr(pytest.mark, name) for name in names]))
    metafunc.parametrize("perf_item", params)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is left after every selection: refuse a run that would measure nothing, or something else."""
    config = session.config
    items = _selected(session)
    problems = [item.problem for item in items if item.problem]
    if problems:
        raise pytest.UsageError("\n".join(problems))
    if any("perf_item" in getattr(item, "fixturenames", ()) for item in session.items) and not items:
        raise pytest.UsageError("no suite is named: give --perf-suite=PATH, or perf_suite in pytest.ini")
    if config.getoption("perf_suite") and not items and not hasattr(config, "workerinput"):
        raise pytest.UsageError(
            "--perf-suite was given, but no case of it is selected: add -m perf, and see -k and the paths given"
        )
    if not items:
        return
    for option, switch in _EMPTY_SWITCHES.items():
        if config.getoption(option, False) and not (
            option == "benchmark_disable" and config.getoption("benchmark_enable")
        ):
            raise pytest.UsageError(f"{switch} would judge nothing and look green: leave it out")
    _refuse_as_carrier(config)
    if config.stash[_SETTINGS].base_url is not None:
        variants = {name for item in items for name in _variants(item)}
        if len(variants) != 1:
            raise pytest.UsageError(
                f"--perf-base-url is one running server: select exactly one variant with -k, "
                f"seen {', '.join(sorted(variants))}"
            )


#: Switches of pytest and pytest-benchmark, by their names in its configuration, under which no item is run.
_EMPTY_SWITCHES = {
    "benchmark_skip": "--benchmark-skip",
    "benchmark_disable": "--benchmark-disable",
    "setupplan": "--setup-plan",  # first: it sets the other too
    "setuponly": "--setup-only",
}


def _refuse_as_carrier(config: pytest.Config) -> None:
    """What pytest-benchmark would fail at only when the measurement is over. Raises pytest.UsageError."""
    if config.getoption("benchmark_compare_fail", None):
        raise pytest.UsageError(
            "--benchmark-compare-fail knows nothing of noise and speaks after the verdicts: leave it out; "
            "the loss that counts is --perf-margin"
        )
    carrier = config.pluginmanager.getplugin("pytest-benchmark")
    if (carrier is None or carrier.disabled) and not hasattr(config, "workerinput"):  # there each item says it
        raise pytest.UsageError(
            "pytest-benchmark, which carries the numbers of these cases, is off: leave out -p no:benchmark and xdist"
        )
    path: Path | None = config.getoption("benchmark_json")
    if path is not None and not config.getoption("collectonly"):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--benchmark-json={path}: cannot be written: {error.strerror}") from error
        # A FIFO would be waited for when the measurement is over.
        if path.is_dir() or path.is_fifo() or not os.access(path.parent, os.W_OK):
            raise pytest.UsageError(f"--benchmark-json={path}: cannot be written: name a file that may be written")


def _variants(item: PerfItem) -> tuple[str, ...]:
    if isinstance(item.subject, Relation):
        return tuple(f"{item.subject.suite}/{name}" for name in (item.subject.variant, *item.subject.of))
    if isinstance(item.subject, Crossover):
        return tuple(f"{item.subject.suite}/{name}" for name in (item.subject.first, item.subject.second))
    if isinstance(item.subject, SameOutput):
        return tuple(f"{item.subject.suite}/{name}" for name in item.subject.variants)
    return (f"{item.subject.suite}/{item.subject.variant}",) if item.subject else ()


def _selected(session: pytest.Session) -> list[PerfItem]:
    values = [item.callspec.params.get("perf_item") for item in session.items if hasattr(item, "callspec")]
    return [value for value in values if isinstance(value, PerfItem)]


# What a user sees


@pytest.fixture(scope="session")
def perf_session(request: pytest.FixtureRequest) -> Session:
    """The one campaign of this pytest session."""
    config, items = request.config, _selected(request.session)
    session = Session(
        config.stash[_SETTINGS],
        list({item.suite.name: item.suite for item in items if item.suite}.values()),
        frozenset(item.subject.id for item in items if item.subject),
        _show(config),
        rerun=bool(config.getoption("lf", False) or config.getoption("stepwise", False)),
    )
    config.stash[_BENCH] = session
    return session


@pytest.fixture
def judged(
    perf_item: PerfItem,
    perf_session: Session,
    record_property: Callable[[str, object], None],
    request: pytest.FixtureRequest,
) -> Judged:
    """The verdict of an item, with the properties that travel to JUnit."""
    if hasattr(request.config, "workerinput"):
        pytest.fail(_NO_XDIST, pytrace=False)
    if perf_item.suite is None or perf_item.subject is None:
        pytest.fail(perf_item.problem or "unreadable", pytrace=False)
    try:
        found = perf_session.judged(perf_item.suite.name, perf_item.subject.id)
    except CannotMeasureError as error:
        pytest.fail(str(error), pytrace=False)
    for name, value in report.properties(found.verdict):
        record_property(name, value)
    record_property("campaign", perf_session.folder.name if perf_session.folder else "")
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note which verdicts an item really gave: only a call does, not its setup."""
    subject = getattr(getattr(item, "callspec", None), "params", {}).get("perf_item")
    if call.when == "call" and isinstance(subject, PerfItem) and subject.subject:
        item.config.stash[_TOLD].add(subject.subject.id)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
    """The category stays pytest's, so that messages are shown; only word and letter are the verdict's."""
    word = dict(getattr(report, "user_properties", ())).get("verdict")
    if word is None or getattr(report, "when", None) != "call" or report.outcome not in ("passed", "failed"):
        return None
    return report.outcome, str(word)[0] if report.failed else ".", str(word)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> Generator[None, None, None]:
    """A campaign is complete when its session ran to its end. Who judged less than was selected is not green.

    The campaign comes first: whatever fails to be written after it does not lose it.
    """
    config = session.config
    show = _show(config)
    bench = config.stash.get(_BENCH, None)
    if bench is not None and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        try:
            bench.finish()
        except FileError as error:
            show.line(str(error))
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        else:
            _append_summary(bench.markdown(), show)
    told = config.stash[_TOLD]
    owed = {item.subject.id for item in _selected(session) if item.subject} - told
    if owed and exitstatus == pytest.ExitCode.OK and not config.getoption("collectonly"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        show.line(f"{len(owed)} selected cases were not judged, such as {min(owed)}: not a pass")
    if bench is not None and bench.folder is not None:
        try:
            _save_numbers(config, bench.folder.name)
        except OSError as error:
            show.line(f"pytest-benchmark could not write its file: {error}; the campaign is kept")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return (yield)


def _append_summary(text: str, show: Show) -> None:
    """To the summary of a GitHub job, below what is there; it is a courtesy, and its failure no verdict."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        if Path(path).is_fifo():
            raise OSError(errno.EINVAL, "Not a file")  # it would be waited for
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        show.line(f"GITHUB_STEP_SUMMARY={path}: cannot be written: {error.strerror}; the verdicts are as below")


def _save_numbers(config: pytest.Config, campaign: str) -> None:
    """Let pytest-benchmark write its files now: where it fails by itself, neither JUnit nor table are written."""
    carrier = config.pluginmanager.getplugin("pytest-benchmark")
    if carrier is None:
        return
    if carrier.autosave:
        carrier.autosave = campaign  # of itself it names the file by the commit of this repository
    try:
        carrier.handle_saving()
    finally:
        carrier.json = carrier.save = carrier.autosave = None


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_generate_commit_info(config: pytest.Config) -> dict[str, object] | None:
    """The commit of a file is that of the server, by the last launch; never that of the folder we are in."""
    bench = config.stash.get(_BENCH, None)
    campaign = None if bench is None else bench.campaign
    launches = [] if campaign is None else [launch for each in campaign.suites for launch in each.launches]
    return commit_info(launches[-1].build, launches[-1].server_version) if launches else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table of every suite, where the campaign lies, and what to do next."""
    bench = config.stash.get(_BENCH, None)
    if bench is None or bench.campaign is None:
        return
    write = terminalreporter.write_line
    for each in bench.campaign.suites:
        owned = [*(case.id for case in each.cases), *(one.relation.id for one in each.relations)]
        owned += [one.crossover.id for one in each.crossovers]
        owned += [one.same_output.id for one in each.same_outputs]
        verdicts = [bench.verdicts[id] for id in owned if id in bench.verdicts]
        if not verdicts:
            continue
        terminalreporter.section(f"{each.name} on {each.rig_id}, margin {share(each.margin)}", sep="-")
        write(report.table(verdicts))
        write("")
        write(report.tally(verdicts))
        if remarks := report.remarks(each, verdicts):
            write(remarks)
        for found in verdicts:
            if found.word is Word.IMPROVED:
                write(found.id)
                write(report.screen(found, bench.promote, bench.shown))
        # Without --case everything is promoted, a loss too: said only where nothing else would be.
        words = {found.word for found in verdicts if isinstance(found, CaseVerdict)}
        if words == {Word.NO_BASELINE} and not each.advisory:
            write(f'record what has no baseline: {bench.promote} --reason "first baseline"')
    state = "" if bench.campaign.complete else " (not complete: it cannot be promoted)"
    write(f"campaign {bench.shown}{state}")


def _show(config: pytest.Config) -> Show:
    """Progress on the terminal: rewritten in place where there is one, else one line for every finished round."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")
    if reporter is None:
        return Show(line=lambda _: None, live=lambda _: None)

    @contextmanager
    def outside() -> Iterator[None]:
        if capture is None:
            yield
        else:
            with capture.global_and_fixture_disabled():
                yield

    def line(text: str) -> None:
        with outside():
            if reporter.isatty:
                reporter.rewrite("", erase=True)
            reporter.ensure_newline()
            for each in text.splitlines():
                reporter.write_line("  " + printable(each, 400))

    def live(text: str) -> None:
        if reporter.isatty:
            with outside():
                reporter.rewrite("  " + printable(text, 100), erase=True)

    return Show(line=line, live=live)
