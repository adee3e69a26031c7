"""`python -m perf`: what only reads files and writes baselines. What starts a server is pytest."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from perf import record, report
from perf.baseline import Store
from perf.files import FileError
from perf.gate import Word, worst
from perf.promotion import DEFAULT_BASELINES, DEFAULT_CAMPAIGNS, PromotionError, command, promote
from perf.record import Campaign, SuiteRecord
from perf.text import percent, printable, share, throughput
from perf.verdict import Verdict, judge

#: Exit codes of `check` by the worst verdict.
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


class _Parser(argparse.ArgumentParser):
    """argparse, but with the usage exit code of sysexits.h: 2 means INCONCLUSIVE here."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; the exit code."""
    options = parser().parse_args(arguments)
    try:
        return _promote(options) if options.verb == "promote" else _check(options)
    except (FileError, PromotionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE if options.verb == "check" else EXIT_REFUSED


def parser() -> argparse.ArgumentParser:
    """The command line of every verb."""
    whole = _Parser(prog="python -m perf", description=__doc__)
    verbs = whole.add_subparsers(dest="verb", required=True, parser_class=_Parser)
    promote_ = verbs.add_parser("promote", help="make a campaign's launches the stored baselines")
    promote_.add_argument("--reason", required=True, help="why, for whoever reads the baseline later")
    promote_.add_argument("--case", metavar="GLOB", help='only these cases, such as "*/eagle3/c016"')
    promote_.add_argument("--add", action="store_true", help="join the stored launches instead of replacing them")
    check = verbs.add_parser("check", help="judge a stored campaign again, without a server")
    for verb in (promote_, check):
        verb.add_argument("campaign", nargs="?", metavar="CAMPAIGN", help="its id or folder (default: the newest)")
        verb.add_argument("--baselines", type=Path, metavar="DIR", help="the store (default: baselines)")
        verb.add_argument("--campaign-dir", type=Path, default=DEFAULT_CAMPAIGNS, metavar="DIR")
    return whole


def _promote(options: argparse.Namespace) -> int:
    campaign = record.read(record.find(options.campaign_dir, options.campaign))
    store = Store(options.baselines or DEFAULT_BASELINES)
    outcome = promote(campaign, store, reason=options.reason, pattern=options.case, add=options.add)
    for case, old, new, launches in outcome.promoted:
        change = "" if old is None else f" ({percent(new / old - 1)})"
        was = "-" if old is None else throughput(old)
        print(f"promoted  {case}: {was} -> {throughput(new)} tok/s{change}, {launches} launches")
    for case, why in outcome.refused:
        print(f"refused   {case}: {printable(why)}")
    print(f"campaign {campaign.id} -> {store.folder}")
    return EXIT_REFUSED if outcome.refused or not outcome.promoted else 0


def _check(options: argparse.Namespace) -> int:
    folder = record.find(options.campaign_dir, options.campaign)
    campaign = record.read(folder)
    if not campaign.complete:
        raise FileError(f"campaign {campaign.id} is not complete (interrupted, or still running): it has no verdict")
    words: list[Word] = []
    nothing = True
    for suite in campaign.suites:
        judged = judge(suite if options.baselines is None else _against(suite, Store(options.baselines)))
        _print(suite, judged, campaign, folder, command(folder, options.baselines or DEFAULT_BASELINES))
        nothing = nothing and not judged
        words += [verdict.word for verdict in judged if report.word(verdict) != "ADVISORY"]
    if not words:
        print("nothing in this campaign is gated")
        return EXIT_BY_WORD[Word.INVALID] if nothing else 0
    return EXIT_BY_WORD[worst(words)]


def _against(suite: SuiteRecord, store: Store) -> SuiteRecord:
    """The suite with the baselines of another store in place of those it was judged with."""
    stored = {
        (variant, case.level): case
        for variant in {case.variant for case in suite.cases}
        for case in store.read(suite.rig_id, suite.name, variant)
    }
    return replace(
        suite, cases=tuple(replace(case, stored=stored.get((case.variant, case.level))) for case in suite.cases)
    )


def _print(suite: SuiteRecord, judged: tuple[Verdict, ...], campaign: Campaign, folder: Path, promote: str) -> None:
    print(f"{suite.name} on {suite.rig_id}, margin {share(suite.margin)}, campaign {campaign.id}\n")
    print(report.table(judged))
    print(f"\n{report.tally(judged)}\n")
    if remarks := report.remarks(judged, ((launch.name, launch.notes) for launch in suite.launches)):
        print(f"{remarks}\n")
    for verdict in judged:
        if not report.passes(verdict) or verdict.word is Word.IMPROVED:
            print(f"{verdict.id}\n{report.screen(verdict, promote, str(folder))}\n")


if __name__ == "__main__":
    sys.exit(main())
