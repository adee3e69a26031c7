"""`python -m perf`: what reads files, writes baselines and keeps the record. What measures a server is pytest."""

import argparse
import errno
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from perf import (
    coverage,
    docs,
    export,
    history,
    importing,
    plan,
    project,
    prospect,
    prune,
    record,
    report,
    trace_file,
    trend,
    verify,
)
from perf.baseline import Store
from perf.compact import compact
from perf.compare import compared
from perf.files import FileError, to_json, write_text
from perf.gate import Word, worst
from perf.history import History
from perf.measured import measurements
from perf.promotion import (
    DEFAULT_BASELINES,
    DEFAULT_CAMPAIGNS,
    MAX_REASON,
    PromotionError,
    command,
    promote,
    told,
)
from perf.record import Arm, Campaign, SuiteRecord
from perf.rig import probe, states
from perf.suite_file import SuiteError
from perf.text import MIN_MARGIN, parse_margin, parse_share, printable, share
from perf.verdict import Verdict, judge

#: Exit codes of `check` and `compare` by the worst verdict.
EXIT_BY_WORD = {
    Word.PASS: 0,
    Word.IMPROVED: 0,
    Word.REGRESSED: 1,
    Word.VIOLATED: 1,
    Word.INCONCLUSIVE: 2,
    Word.INVALID: 3,
    Word.NO_BASELINE: 3,
}
EXIT_REFUSED = 1
EXIT_USAGE = 64

#: Of many, as many as fit on a screen.
MAX_NAMED = 12

#: Verbs whose exit code 1 says something of a verdict: for them a file that cannot be read is a usage error.
_JUDGING = ("check", "compare", "report")

#: Verbs that have written their files before their first word is.
_WRITING = ("promote", "import", "prune", "docs")


class _Parser(argparse.ArgumentParser):
    """argparse, but with the usage exit code of sysexits.h: 2 means INCONCLUSIVE here."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; the exit code. Raises BrokenPipeError where who reads has seen enough."""
    verb = ""
    try:
        try:
            options = parser().parse_args(arguments)
            verb = options.verb
            code = _run(options)
        finally:
            sys.stdout.flush()  # of --help, too
        return code
    except BrokenPipeError:
        raise
    except (OSError, RuntimeError) as error:  # a full disk under the output, a name too long, a link to itself
        told = str(error)
        if isinstance(error, OSError) and error.filename is None and error.errno == errno.ENOSPC:
            told = f"the output cannot be written: {error.strerror}"
            told += "; what was asked for was done all the same" if verb in _WRITING else ""
        print(f"error: {printable(told, 400)}", file=sys.stderr)
        return EXIT_USAGE  # 1 would be REGRESSED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except SuiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except (FileError, PromotionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE if verb in _JUDGING else EXIT_REFUSED


def parser() -> argparse.ArgumentParser:
    """The command line of every verb."""
    whole = _Parser(prog="python -m perf", description=__doc__)
    verbs = whole.add_subparsers(dest="verb", required=True, parser_class=_Parser)

    def verb(name: str, meaning: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=meaning, description=meaning)
        added.add_argument("--baselines", type=Path, metavar="DIR", help="the store (default: baselines)")
        where = f"where campaigns lie (default: {DEFAULT_CAMPAIGNS})"
        added.add_argument("--campaign-dir", type=Path, default=DEFAULT_CAMPAIGNS, metavar="DIR", help=where)
        return added

    def suites(added: argparse.ArgumentParser) -> None:
        added.add_argument(
            "--suite", action="append", metavar="PATH|NAME", help="may be repeated (default: what pytest.ini names)"
        )

    def one_campaign(added: argparse.ArgumentParser) -> None:
        added.add_argument("campaign", nargs="?", metavar="CAMPAIGN", help="its id or folder (default: the newest)")

    promote_ = verb("promote", "make a campaign's launches the stored baselines")
    one_campaign(promote_)
    promote_.add_argument("--reason", required=True, help="why, for whoever reads the baseline later")
    promote_.add_argument("--case", metavar="GLOB", help='only these cases, such as "*/eagle3/c016"')
    promote_.add_argument("--add", action="store_true", help="join the stored launches instead of replacing them")
    meaning = "the launches of the reference build join the stored ones, where they are of the same build"
    promote_.add_argument("--reference", action="store_true", help=meaning)

    check_ = verb("check", "judge a stored campaign again, and its numbers by their traces, without a server")
    one_campaign(check_)
    check_.add_argument("--margin", type=_margin, metavar="SHARE", help="ask for another margin, such as 5%% or 0.05")

    compare_ = verb("compare", "judge campaign B against campaign A, as if A were the stored baseline")
    compare_.add_argument("before", metavar="A", help="a campaign's id or folder")
    compare_.add_argument("after", metavar="B", help="a campaign's id or folder")

    report_ = verb("report", "a campaign as text, as markdown for a pull request, or as JSON for programs")
    one_campaign(report_)
    report_.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    report_.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to the terminal")

    export_ = verb("export", "the traces of a case, for other programs")
    one_campaign(export_)
    export_.add_argument("--case", required=True, metavar="ID", help='such as "mine/eagle3/c016"')
    export_.add_argument("--launch", type=_count, metavar="N", help="only this launch of its variant (default: all)")
    export_.add_argument("--round", type=_count, metavar="N", help="only this round of a launch (default: all)")
    meaning = "a timeline for ui.perfetto.dev, or a table with a row for every request or every chunk"
    export_.add_argument("--format", choices=("chrome", "csv", "csv-chunks"), required=True, help=meaning)
    export_.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to the terminal")

    trend_ = verb("trend", "a case over its nights: drawing, noise, and where it changed; advisory")
    meaning = 'such as "mine/eagle3/c016" for one, or "mine/eagle3/*" for all levels of a variant'
    trend_.add_argument("case", metavar="CASE", help=meaning)
    trend_.add_argument("--rig", metavar="ID", help="only of this rig (default: each that has it)")
    trend_.add_argument("--nights", type=_nights, default=trend.NIGHTS, metavar="N", help="the newest N of them")

    import_ = verb("import", "nights that were measured elsewhere, or a campaign's own, into the history")
    meaning = "a CSV file, the data.js of github-action-benchmark, or a campaign's id or folder"
    import_.add_argument("file", metavar="FILE", help=meaning)
    import_.add_argument("--suite", metavar="NAME", help="under which suite they are kept")
    import_.add_argument("--variant", metavar="V", help="under which variant (default: each series by its name)")
    meaning = f"under which rig (default: {importing.DEFAULT_RIG})"
    import_.add_argument("--rig", default=importing.DEFAULT_RIG, metavar="ID", help=meaning)
    for what in importing.GUESSES:
        import_.add_argument(f"--{what}", metavar="COLUMN", help=f"which column is the {what} (default: by its name)")
    meaning = "only rows with this value in this column; may be repeated"
    import_.add_argument("--where", action="append", type=_condition, default=[], metavar="COLUMN=VALUE", help=meaning)
    meaning = "takes apart the names in a data.js: groups such as (?P<level>...) and (?P<series>...) become columns"
    import_.add_argument("--name", metavar="REGEX", help=meaning)

    plan_ = verb("plan", "what a launch of each suite costs in rig-minutes, and what a night of it would find")
    suites(plan_)
    for name, of, type_ in (
        ("margin", "loss to be found", _margin),
        ("alpha", "false alarms of the suite", _share),
        ("power", "losses found", _share),
    ):
        plan_.add_argument(f"--{name}", type=type_, metavar="SHARE", help=f"{of}: 2%% or 0.02 (default: the suite's)")
    plan_.add_argument(
        "--reference",
        action=argparse.BooleanOptionalAction,
        help="as if there were a reference build, or none (default: as the suite says)",
    )
    meaning = f"simulate at most so many nights for each question (default: {prospect.NIGHTS})"
    plan_.add_argument("--nights", type=_count, default=prospect.NIGHTS, metavar="N", help=meaning)

    suites(verb("baselines", "which cases have a stored baseline, how old it is, and what is stored for nobody"))

    prune_ = verb("prune", "remove old campaigns; never one that a stored baseline came from")
    prune_.add_argument("--keep", type=_count, default=prune.DEFAULT_KEEP, metavar="N", help="how many stay")
    prune_.add_argument("--dry-run", action="store_true", help="say what would go, and remove nothing")

    doctor_ = verb("doctor", "is this machine fit to measure: idle, clocks, disk, ports, versions, noise")
    suites(doctor_)
    doctor_.add_argument(
        "--noise",
        nargs="?",
        const="",
        metavar="CASE",
        help="also measure a server against itself: the emulator, or this case of the suites",
    )

    docs_ = verb("docs", "renew the generated blocks of the documentation, and nothing else in it")
    docs_.add_argument("--check", action="store_true", help="change nothing; fail where a block is stale")
    docs_.add_argument("--root", type=Path, default=Path(), metavar="DIR", help="the project (default: here)")
    actions = docs_.add_subparsers(dest="action", parser_class=_Parser)
    meaning = "keep a campaign's record, and write the skeleton of an entry about it"
    add = actions.add_parser("add", help=meaning, description=meaning)
    one_campaign(add)
    add.add_argument("--title", required=True, help="of the entry: what was tried")
    add.add_argument("--log", type=Path, default=docs.LOG, metavar="FILE", help=f"(default: {docs.LOG})")
    for name in ("--root", "--baselines", "--campaign-dir"):  # before `add` or behind it
        add.add_argument(name, type=Path, default=argparse.SUPPRESS, metavar="DIR", help=argparse.SUPPRESS)
    return whole


def _run(options: argparse.Namespace) -> int:
    store = Store(options.baselines or DEFAULT_BASELINES)
    match options.verb:
        case "promote":
            return _promote(options, store)
        case "check":
            return _check(options)
        case "compare":
            return _compare(options)
        case "report":
            return _report(options)
        case "export":
            return _export(options)
        case "trend":
            return _trend(options, store)
        case "import":
            return _import(options)
        case "plan":
            return _plan(options, store)
        case "baselines":
            return _baselines(options, store)
        case "prune":
            return _prune(options, store)
        case "doctor":
            return _doctor(options, store)
        case _:
            return _add_entry(options) if options.action == "add" else _docs(options)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _nights(text: str) -> int:
    value = _count(text)
    if value > trend.MAX_NIGHTS:
        raise argparse.ArgumentTypeError(f"at most {trend.MAX_NIGHTS:,}")
    return value


def _margin(text: str) -> float:
    try:
        return parse_margin(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a share such as 3% or 0.03, at least {MIN_MARGIN}"
        ) from error


def _share(text: str) -> float:
    try:
        return parse_share(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 3% or 0.03") from error


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not column or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not COLUMN=VALUE")
    return column, value


def _trend(options: argparse.Namespace, store: Store) -> int:
    kept = History.beside(options.campaign_dir)
    places = [place for place in kept.places() if options.rig in (None, place.rig_id)]
    texts: list[str] = []
    for place in places:
        if trend.is_of(options.case, place):
            stored = store.by_case(place.rig_id, place.suite, (place.variant,))
            promotions = {level: case.promotion for (_, level), case in stored.items()}
            texts += trend.texts(options.case, place, kept.read(place), promotions, _look(), newest=options.nights)
    if not texts:
        known = (
            ", ".join(map(str, places[:MAX_NAMED])) or "none; nights are added by pytest and by python -m perf import"
        )
        raise FileError(
            f"no history of {printable(options.case, 120)!r} in {record.as_typed(kept.folder)}; there are {known}"
        )
    print("\n".join(texts), end="")
    return 0


def _look() -> trend.Look:
    try:
        trend.CHARACTERS.encode(sys.stdout.encoding)
        only_ascii = False
    except UnicodeEncodeError:
        only_ascii = True
    return trend.Look(ascii=only_ascii, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)


def _import(options: argparse.Namespace) -> int:
    kept = History.beside(options.campaign_dir)
    said: list[str] = []
    if record.ID.fullmatch(Path(options.file).name):
        _, campaign = _complete(options.campaign_dir, options.file)
        nights = history.nights(campaign)
    elif options.suite is None:
        parser().error("import FILE needs --suite NAME; only a campaign has one of its own")
    else:
        columns = {what: getattr(options, what) for what in importing.GUESSES}
        wanted = importing.Wanted(
            rig_id=options.rig,
            suite=options.suite,
            variant=options.variant,
            **columns,
            where=tuple(options.where),
            name=options.name,
        )
        found = importing.read(Path(options.file), wanted)
        nights = found.nights
        said.append("columns   " + ", ".join(f"{what}: {printable(name, 80)}" for what, name in found.columns))
        if found.left_out:
            said.append(f"left out  {found.left_out} rows, by --where")
        if found.without_value:
            said.append(f"left out  {len(found.without_value)} rows without a value, such as {found.without_value[0]}")
    for place, new in kept.append(nights).items():
        said.append(f"imported  {place}: {new} new of {len(nights[place])}")
    said.append(
        f"-> {record.as_typed(kept.folder)}" if nights else "nothing in it is gated and valid: nothing was added"
    )
    print("\n".join(said))
    return 0 if nights else EXIT_REFUSED


def _plan(options: argparse.Namespace, store: Store) -> int:
    here = probe().id
    for suite in project.suites(options.suite, Path()):
        rig_id, stored = coverage.stored_for(suite, store, here)
        forecast = plan.forecast(suite, stored)
        print(plan.text(forecast, str(store.folder / rig_id)), flush=True)
        asked = prospect.question(
            suite, margin=options.margin, alpha=options.alpha, power=options.power, reference=options.reference
        )
        found = prospect.prospect(suite, stored, forecast, asked, nights=options.nights)
        print(prospect.text(found) if found else prospect.why_not(suite, forecast, stored))
    return 0


def _baselines(options: argparse.Namespace, store: Store) -> int:
    suites = project.suites(options.suite, Path())
    here = None if all(suite.emulated for suite in suites) else probe().id
    found = coverage.examine(suites, store, here, all_of_them=options.suite is None)
    print(coverage.text(found, datetime.now(UTC).date()), end="")
    return 0 if found.whole else EXIT_REFUSED


def _prune(options: argparse.Namespace, store: Store) -> int:
    found = prune.prune(options.campaign_dir, store, keep=options.keep, dry_run=options.dry_run, now_s=time.time())
    print(prune.text(found, options.campaign_dir, dry_run=options.dry_run), end="")
    return EXIT_REFUSED if found.failed else 0


def _doctor(options: argparse.Namespace, store: Store) -> int:
    from perf import doctor  # noqa: PLC0415 - it brings the client along, which takes a second to import

    rig, chosen = probe(), project.suites(options.suite, Path())
    fit = True

    def say(findings: Iterable[doctor.Finding]) -> None:
        nonlocal fit
        for finding in findings:
            print(finding, flush=True)
            fit = fit and finding.fitness is not doctor.Fitness.UNFIT

    say(doctor.machine((options.campaign_dir, store.folder)))
    say(doctor.gpus(rig, states(rig)))
    say(doctor.others(chosen, rig))
    say((doctor.client(rig),))
    for each in chosen:
        say(doctor.suite_needs(each, rig, asked=options.suite is not None))
    if options.noise is not None:
        cases = {case.id: (each, case) for each in chosen for case in each.cases}
        if options.noise and options.noise not in cases:
            raise SuiteError(f"--noise: no case {options.noise!r}; there are {', '.join(cases)}")
        measured, case = cases[options.noise] if options.noise else doctor.steady_case()
        # The emulator stands for whatever is measured here, so for the strictest of the suites.
        margin = measured.gate.margin if options.noise else min(each.gate.margin for each in chosen)
        folder = Path(tempfile.mkdtemp(prefix="sglang-perf-doctor-"))
        found: tuple[doctor.Finding, ...] = ()
        try:
            found = tuple(doctor.noise(measured, case, margin, rig, folder, lambda line: print(f"       {line}")))
        finally:
            if not any(doctor.SERVER_LOG in (each.advice or "") for each in found):
                shutil.rmtree(folder)
        say(found)
    print("fit to measure" if fit else "not fit to measure: see UNFIT above")
    return 0 if fit else EXIT_REFUSED


def _promote(options: argparse.Namespace, store: Store) -> int:
    _, campaign = _complete(options.campaign_dir, options.campaign)
    arm: Arm = "reference" if options.reference else "candidate"
    outcome = promote(campaign, store, reason=options.reason, pattern=options.case, add=options.add, arm=arm)
    for line in told(outcome):
        print(line)
    print(f'campaign {campaign.id} -> {store.folder}, "{printable(options.reason, MAX_REASON)}"')
    return EXIT_REFUSED if outcome.refused or not (outcome.promoted or outcome.crossovers) else 0


def _check(options: argparse.Namespace) -> int:
    folder, campaign = _complete(options.campaign_dir, options.campaign)
    suites = campaign.suites
    if options.margin is not None:
        suites = tuple(replace(suite, margin=options.margin) for suite in suites)
    if options.baselines is not None:
        suites = tuple(_against(suite, Store(options.baselines)) for suite in suites)
    found = tuple(verify.verify(suite, folder) for suite in suites)
    code = _judged(tuple(each.suite for each in found), campaign, folder, options)
    print(verify.text(found))
    return code


def _compare(options: argparse.Namespace) -> int:
    _, before = _complete(options.campaign_dir, options.before)
    folder, after = _complete(options.campaign_dir, options.after)
    if before.id == after.id:
        raise FileError(f"{after.id} against itself says nothing: name two campaigns")
    found = compared(before, after)
    print(f"{after.id} against {before.id}: the column baseline is {before.id}")
    for line in found.left_out:
        print(line)
    print()
    return _judged(found.suites, after, folder, options)


def _complete(campaigns: Path, name: str | None) -> tuple[Path, Campaign]:
    """A campaign that may be judged, and its folder. Raises FileError."""
    folder = record.find(campaigns, name)
    return folder, record.read_complete(folder)


def _judged(suites: tuple[SuiteRecord, ...], campaign: Campaign, folder: Path, options: argparse.Namespace) -> int:
    """Show the verdicts of suites; the exit code of the worst."""
    words: list[Word] = []
    nothing = True
    for suite in suites:
        verdicts = judge(suite)
        print(_text(suite, verdicts, campaign, folder, command(folder, options.baselines or DEFAULT_BASELINES)))
        nothing = nothing and not verdicts
        words += [verdict.word for verdict in verdicts if report.word(verdict) != "ADVISORY"]
    if not words:
        print("nothing in this campaign is gated")
        return EXIT_BY_WORD[Word.INVALID] if nothing else 0
    return EXIT_BY_WORD[worst(words)]


def _against(suite: SuiteRecord, store: Store) -> SuiteRecord:
    """The suite with the baselines of another store in place of those it was judged with."""
    stored = store.by_case(suite.rig_id, suite.name, dict.fromkeys(case.variant for case in suite.cases))
    crossovers = store.crossovers(suite.rig_id, suite.name) if suite.crossovers else {}
    return replace(
        suite,
        cases=tuple(replace(case, stored=stored.get((case.variant, case.level))) for case in suite.cases),
        crossovers=tuple(replace(each, stored=crossovers.get(each.crossover.id)) for each in suite.crossovers),
    )


def _report(options: argparse.Namespace) -> int:
    folder, campaign = _complete(options.campaign_dir, options.campaign)
    promote_command = command(folder, options.baselines or DEFAULT_BASELINES)
    match options.format:
        case "json":
            text = to_json(asdict(compact(campaign)), indent=1)
        case "markdown":
            text = report.markdown(campaign, promote_command, str(folder))
        case _:
            text = "\n".join(_text(suite, judge(suite), campaign, folder, promote_command) for suite in campaign.suites)
    _put((text if text.endswith("\n") else text + "\n",), options.output)
    return 0


def _put(pieces: Iterable[str], output: Path | None) -> None:
    """To the terminal, or whole into a file. Raises FileError."""
    if output is None:
        sys.stdout.writelines(pieces)
        return
    path = output.resolve()  # a link stays one
    if path.exists() and not path.is_file():
        raise FileError(f"{output}: is there and is no file; without --output it goes to the terminal")
    write_text(path, "".join(pieces))


def _export(options: argparse.Namespace) -> int:
    folder = record.find(options.campaign_dir, options.campaign)
    campaign = record.read(folder)  # also of one that was interrupted: to see why
    rounds = _traced(campaign, folder, options)
    match options.format:
        case "chrome":
            pieces = export.chrome(rounds, f"{options.case}, campaign {campaign.id}")
        case "csv":
            pieces = export.csv_of_requests(rounds)
        case _:
            pieces = export.csv_of_chunks(rounds)
    _put(pieces, options.output)
    return 0


def _traced(campaign: Campaign, folder: Path, options: argparse.Namespace) -> Iterator[export.Exported]:
    """The chosen rounds of a case, each read when it is its turn. Raises FileError where there is none."""
    cases = {case.id: (suite, case) for suite in campaign.suites for case in suite.cases}
    if options.case not in cases:
        raise FileError(f"--case: no case {options.case!r} in {campaign.id}; there are {', '.join(cases) or 'none'}")
    suite, case = cases[options.case]
    places = [
        (launch.name, trace_file.path(folder / launch.name, case.id.rpartition("/")[2], each.index), each.index)
        for launch, taken in measurements(suite, case.variant, case.level)
        for each in taken.rounds
        if options.launch in (None, launch.ordinal) and options.round in (None, each.index + 1)
    ]
    found = [place for place in places if place[1].exists()]
    if not found:
        seen = f"the first of {len(places)} would be {places[0][1]}" if places else "no such launch or round"
        raise FileError(f"no trace of {case.id} in {campaign.id}: {seen}; choose by --launch and --round, or measure")
    if missing := len(places) - len(found):
        print(f"left out: {missing} of {len(places)} rounds, which have no trace", file=sys.stderr)
    return (
        export.Exported(launch=name, round=trace_file.read(path, case.level, index).round)
        for name, path, index in found
    )


def _docs(options: argparse.Namespace) -> int:
    pages = docs.rendered(options.root)
    count, stale = sum(page.blocks for page in pages), sum(len(page.stale) for page in pages)
    if not stale:
        print(f"generated blocks: {count} in {len(pages)} pages, all as their records say")
    elif options.check:
        for page in pages:
            for line in docs.difference(page):
                print(line)
        root = "" if options.root == Path() else f" --root={shlex.quote(str(options.root))}"
        print(f"stale blocks: {stale} of {count}; renew them: python -m perf docs{root}")
        return EXIT_REFUSED
    else:
        docs.write(options.root, pages)
        for page in pages:
            if page.stale:
                print(f"renewed  {page.path}: {len(page.stale)} of {page.blocks}")
    return 0


def _add_entry(options: argparse.Namespace) -> int:
    if options.check:
        parser().error("docs add has nothing to check; leave out --check")
    campaign = record.read(record.find(options.campaign_dir, options.campaign))
    kept, log = docs.add(options.root, options.log, campaign, title=options.title)
    print(f"campaign {campaign.id} -> {kept}\nwrite its story: {log}")
    return 0


def _text(
    suite: SuiteRecord, judged: tuple[Verdict, ...], campaign: Campaign, folder: Path, promote_command: str
) -> str:
    parts = [
        f"{suite.name} on {suite.rig_id}, margin {share(suite.margin)}, campaign {campaign.id}",
        report.table(judged),
        report.tally(judged),
        report.remarks(suite, judged),
    ]
    parts += [
        f"{verdict.id}\n{report.screen(verdict, promote_command, str(folder))}"
        for verdict in judged
        if not report.passes(verdict) or verdict.word is Word.IMPROVED
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows no umlaut shows its number
    try:
        code = main()
    except BrokenPipeError:  # `| head`: who reads has seen enough
        code = 128 + signal.SIGPIPE
    try:
        sys.stdout.flush()
    except OSError:  # it was said, and Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
