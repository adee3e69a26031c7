"""Whatever happens to a store, in whatever order: nothing is lost, nothing is half written, nothing is believed that
nobody promoted.

Campaigns are promoted as the command does it, beside a model of a few lines that says what must be stored then. Some
promotions are killed on the way, some run at once; files are damaged, moved, and brought back as from version control.
"""

import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier, Thread

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from perf.baseline import Store
from perf.files import FileError
from perf.promotion import PromotionError, promote
from perf.record import Arm, Campaign
from perf.sample import MAX_OTHERS, Build, LaunchSample, StoredCase
from tests.unit.simulated import RIG, campaign, launch, measured, suite

VARIANTS, LEVELS = ("baseline", "eagle3"), (1, 8)
#: Bits that are flipped in a file, one after the other.
FLIPS = 16

BUILD = Build(sglang="0.5.23", torch=None, cuda=None, commit="", dirty=None, kernels=(), packages="0" * 16)

Place = tuple[str, int]
Kept = tuple[str, str, float]  # a launch: its campaign, its name, its tok/s


@dataclass(frozen=True, slots=True)
class Known:
    """What must be stored of a case: which build, the launches, those that only tell of noise, and every reason."""

    build: str
    launches: tuple[Kept, ...]
    others: tuple[Kept, ...]
    reasons: tuple[str, ...]


def seen(case: StoredCase) -> Known:
    def kept(launches: tuple[LaunchSample, ...]) -> tuple[Kept, ...]:
        return tuple((each.campaign, each.launch, each.output_throughput[0]) for each in launches)

    assert case.build is not None
    reasons = tuple(each.reason for each in case.promotions)
    return Known(case.build.commit or "", kept(case.launches), kept(case.others), reasons)


@dataclass(frozen=True, slots=True)
class Promoting:
    """One call of the command."""

    campaign: Campaign
    arm: Arm
    add: bool
    levels: tuple[int, ...]
    reason: str

    @property
    def variants(self) -> set[str]:
        """Those whose file it would write."""
        return {each.variant for each in self.campaign.suites[0].launches if each.arm == self.arm}

    def run(self, store: Store) -> None:
        pattern = "*" if self.levels == LEVELS else f"*/c{self.levels[0]:03d}"
        promote(self.campaign, store, reason=self.reason, pattern=pattern, add=self.add, arm=self.arm)

    def after(self, before: dict[Place, Known], variant: str) -> dict[Place, Known]:
        """What must be stored of a variant afterwards, given what was."""
        (asked,) = self.campaign.suites
        taken = [each for each in asked.launches if (each.variant, each.arm) == (variant, self.arm)]
        found = {place: known for place, known in before.items() if place[0] == variant}
        for level in self.levels if taken else ():
            rates = [(each.name, one) for each in taken for one in each.measurements if one.level == level]
            launches = tuple(
                (self.campaign.id, name, one.rounds[0].summary.output_throughput)
                for name, one in rates
                if one.rounds[0].summary is not None
            )
            build = taken[-1].build.commit if taken[-1].build is not None else None
            new = Known(build or "", launches, (), (self.reason,))
            old = found.get((variant, level))
            if old is not None and (self.add or self.arm == "reference"):
                if old.build != new.build:
                    continue  # refused
                names = {each[:2] for each in launches}
                joined = (*(each for each in old.launches if each[:2] not in names), *launches)
                new = Known(new.build, joined, nights(old.others, joined), (*old.reasons, self.reason))
            elif old is not None:
                others = nights((*old.launches, *old.others), launches)
                new = replace(new, others=others, reasons=(*old.reasons, self.reason))
            found[variant, level] = new
        return found


def nights(launches: tuple[Kept, ...], holding: tuple[Kept, ...]) -> tuple[Kept, ...]:
    """Whole nights of two launches or more that do not hold themselves, the newest first, as many as may be kept."""
    found: list[Kept] = []
    for night in sorted({each[0] for each in launches} - {each[0] for each in holding}, reverse=True):
        of_it = [each for each in launches if each[0] == night]
        if len(of_it) > 1 and len(found) + len(of_it) <= MAX_OTHERS:
            found += of_it
    return tuple(found)


def killed(step: int, work: Callable[[], None]) -> None:
    """Work in a process of its own that is killed before the step-th of the calls that bring a file to the disk."""
    child = os.fork()
    if child == 0:
        left = step

        def dying(call: Callable[..., object]) -> Callable[..., object]:
            def called(*arguments: object, **more: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **more)

            return called

        try:
            for name in ("fdopen", "fsync", "chmod", "replace"):
                setattr(os, name, dying(getattr(os, name)))
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody may ask of the command; `campaign` counts those that were measured, over and over."""

    campaign: int
    arm: Arm
    add: bool
    levels: tuple[int, ...]


ARMS: tuple[Arm, ...] = ("candidate", "candidate", "reference")
ASKS = st.builds(
    Ask,
    campaign=st.integers(0, 11),
    arm=st.sampled_from(ARMS),
    add=st.booleans(),
    levels=st.sampled_from((LEVELS, LEVELS[:1], LEVELS[1:])),
)


class Stores(RuleBasedStateMachine):
    """One store, and what must be in it."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sglang-perf-store-"))
        self.store = Store(self.folder / "baselines")
        self.known: dict[Place, Known] = {}
        self.campaigns: list[Campaign] = []
        self.promotions = 0
        self.measure(candidate="a", reference="b", blocks=2, variants=VARIANTS, rate=100)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    # What happens

    @rule(
        candidate=st.sampled_from("ab"),
        reference=st.sampled_from(("", "a", "b")),
        blocks=st.integers(1, 3),
        variants=st.sampled_from((VARIANTS, VARIANTS[:1])),
        rate=st.integers(50, 200),
    )
    def measure(self, candidate: str, reference: str, blocks: int, variants: tuple[str, ...], rate: int) -> None:
        arms: tuple[tuple[Arm, str], ...] = (("candidate", candidate), ("reference", reference))
        launches = tuple(
            launch(
                *(measured(rate + 10 * block + level, level=level) for level in LEVELS),
                variant=variant,
                arm=arm,
                ordinal=block,
                build=replace(BUILD, commit=build),
            )
            for variant in variants
            for block in range(1, blocks + 1)
            for arm, build in arms
            if build
        )
        state = suite(levels=LEVELS, variants=variants, launches=launches, reference=bool(reference))
        self.campaigns.append(campaign(state, id=f"20260101-{len(self.campaigns):06d}"))

    def asked(self, ask: Ask) -> Promoting:
        self.promotions += 1
        return Promoting(
            campaign=self.campaigns[ask.campaign % len(self.campaigns)],
            arm=ask.arm,
            add=ask.add,
            levels=ask.levels,
            reason=f"promotion {self.promotions}",
        )

    @rule(ask=ASKS)
    def promote(self, ask: Ask) -> None:
        one = self.asked(ask)
        one.run(self.store)
        for variant in VARIANTS:
            self.known |= one.after(self.known, variant)

    @rule(ask=ASKS, step=st.integers(0, 15))
    def promote_and_be_killed(self, ask: Ask, step: int) -> None:
        one = self.asked(ask)
        killed(step, lambda: one.run(self.store))
        for variant in VARIANTS:
            self.settle(variant, self.of(variant), one.after(self.known, variant))

    @rule(asks=st.tuples(ASKS, ASKS))
    def promote_two_at_once(self, asks: tuple[Ask, Ask]) -> None:
        both = (self.asked(asks[0]), self.asked(asks[1]))
        start = Barrier(2)
        refused: list[tuple[Promoting, str]] = []

        def run(one: Promoting) -> None:
            start.wait()
            try:
                one.run(self.store)
            except (FileError, PromotionError) as error:
                refused.append((one, str(error)))

        threads = [Thread(target=run, args=(one,)) for one in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all("cannot join" in why for _, why in refused)
        for variant in VARIANTS:
            ways = []
            for first, second in (both, both[::-1]):
                then = first.after(self.known, variant)
                ways += [second.after(self.known | then, variant), *(then for one, _ in refused if one is second)]
            self.settle(variant, *ways)

    def settle(self, variant: str, *ways: dict[Place, Known]) -> None:
        """What is stored now is one of these, and known from now on."""
        found = self.read(variant)
        assert found in ways
        self.known |= found

    @rule(variant=st.sampled_from(VARIANTS))
    def leave_a_part_of_a_file_behind(self, variant: str) -> None:
        place = self.store.path(RIG.id, "sim", variant)
        place.parent.mkdir(parents=True, exist_ok=True)
        (place.parent / f".{place.name}.0123.tmp").write_text('{"benchmarks": [')

    @precondition(lambda self: self.known)
    @rule(
        which=st.integers(0, 1),
        kind=st.sampled_from(("cut", "flip", "move", "other rig")),
        place=st.integers(0, 100_000),
        bit=st.integers(0, 7),
        ask=ASKS,
    )
    def damage_a_file_and_restore_it(self, which: int, kind: str, place: int, bit: int, ask: Ask) -> None:
        variants = sorted({variant for variant, _ in self.known})
        path = self.store.path(RIG.id, "sim", variants[which % len(variants)])
        good = path.read_bytes()
        if kind == "move":
            moved = path.rename(path.with_stem("medusa"))
            assert "belongs elsewhere" in self.refusal(moved)
            moved.unlink()
        elif kind == "other rig":
            elsewhere = self.store.path("another-rig", "sim", path.stem)
            elsewhere.parent.mkdir(parents=True)
            assert "is of rig" in self.refusal(path.rename(elsewhere))
            shutil.rmtree(elsewhere.parents[1])
        elif kind == "cut":
            path.write_bytes(good[: place % (len(good) - 2)])
            self.promotes_nothing(replace(self.asked(ask), levels=LEVELS), path)
        else:
            for flip in range(FLIPS):
                bad = bytearray(good)
                bad[(place + flip * len(good) // FLIPS) % len(good)] ^= 1 << bit
                path.write_bytes(bad)
                # What is read all the same was changed beside the sample, in what is for others and never read.
                assert self.refusal(path) or self.read(path.stem) == self.of(path.stem)
        path.write_bytes(good)

    def refusal(self, path: Path) -> str:
        """Why a file is not read; empty where it is."""
        try:
            self.store.read(path.parts[-3], path.parts[-2], path.stem)
        except FileError as error:
            return str(error)
        return ""

    def promotes_nothing(self, one: Promoting, damaged: Path) -> None:
        assert self.refusal(damaged).startswith(f"{damaged}: ")
        if damaged.stem in one.variants:
            before = self.files()
            with pytest.raises(FileError, match=re.escape(f"{damaged}: ")):
                one.run(self.store)
            assert self.files() == before

    # What is true at any time

    def files(self) -> dict[Path, bytes]:
        return {
            path: path.read_bytes()
            for path in self.store.folder.rglob("*")
            if path.is_file() and path.suffix == ".json"
        }

    def of(self, variant: str) -> dict[Place, Known]:
        return {place: known for place, known in self.known.items() if place[0] == variant}

    def read(self, variant: str) -> dict[Place, Known]:
        return {(variant, case.level): seen(case) for case in self.store.read(RIG.id, "sim", variant)}

    @invariant()
    def what_was_promoted_is_stored_and_nothing_else(self) -> None:
        if hasattr(self, "store"):
            assert {place: known for variant in VARIANTS for place, known in self.read(variant).items()} == self.known

    @invariant()
    def every_file_is_whole(self) -> None:
        if hasattr(self, "store"):
            for path, data in self.files().items():
                assert json.loads(data), path


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=settings().max_examples // 8, stateful_step_count=20)
