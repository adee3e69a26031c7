"""What comes from outside is harmless on a terminal, and numbers read as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.text import duration, milliseconds, parse_margin, parse_share, percent, printable, share, throughput


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("KV cache pool is full", "KV cache pool is full"),
        ("Größe, 日本語, naïve", "Größe, 日本語, naïve"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[1;31;48;5;2mred", "red"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://evil.example\x1b\\link", "link"),
        ("\x1bcreset", "creset"),
        ("\x9b31mred", "31mred"),
        ("one\ntwo\r\nthree\x0bfour\x0cfive", "one two three four five"),
        ("ok\rFAILED", "ok FAILED"),
        ("a\x08\x08b\x00c\x7fd", "a b c d"),
        ("user\u202egnp.exe", "user gnp.exe"),
        ("a\u2066b\u2069c\u200ed\u061ce", "a b c d e"),
        ("a\u2028b\u2029c\x85d", "a b c d"),
        ("zero\u200bwidth\ufeff", "zero width"),
        ("tag\U000e0041s", "tag s"),
        ("half \ud83d pair", "half pair"),
        ("  many \t blanks  ", "many blanks"),
        ("", ""),
    ],
)
def test_text_from_outside_is_one_line_without_controls(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(codec=None)), st.integers(10, 400))
def test_whatever_comes_from_outside_is_harmless(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    shown.encode()
    assert printable(shown, limit) == shown


@pytest.mark.parametrize(("text", "value"), [("3%", 0.03), (" 0.03 ", 0.03), ("0.01%", 0.0001), ("99.9 %", 0.999)])
def test_a_margin_is_a_share_in_per_cent_or_not(text: str, value: float) -> None:
    assert parse_margin(text) == parse_share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "3", "1", "0", "-3%", "100%", "nan", "inf", "3%%", "three"])
def test_what_could_mean_either_or_nothing_is_no_share(text: str) -> None:
    for parse in (parse_margin, parse_share):
        with pytest.raises(ValueError):
            parse(text)


@pytest.mark.parametrize("text", ["0.009%", "0.00009", "1e-200"])
def test_a_margin_far_below_any_noise_is_none_though_it_is_a_share(text: str) -> None:
    assert 0 < parse_share(text) < 0.0001
    with pytest.raises(ValueError):
        parse_margin(text)


@given(st.text(st.sampled_from("\x1b[]0;m\x07\\31 ab\n")))
def test_no_piece_of_a_terminal_sequence_makes_another_one(text: str) -> None:
    assert printable(text).isprintable()


def test_long_text_is_cut_visibly() -> None:
    assert printable("x" * 1000, 20) == "x" * 17 + "..."
    assert printable("x" * 20, 20) == "x" * 20


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (-0.065, "-6.5 %"),
        (0.025, "+2.5 %"),
        (0.0, "+0.0 %"),
        (-0.0001, "+0.0 %"),
        (1.5, "+150.0 %"),
        (math.inf, "+inf"),
        (-math.inf, "-inf"),
        (1e9, "+inf"),
        (-1.0, "-100.0 %"),
    ],
)
def test_a_change_is_shown_with_its_sign(change: float, shown: str) -> None:
    assert percent(change) == shown


def test_a_change_may_be_shown_finer() -> None:
    assert percent(-0.00412, 2) == "-0.41 %"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1234567.8, "1,234,568"),
        (2984.4, "2,984"),
        (1000, "1,000"),
        (999.96, "1,000"),
        (773.0, "773.0"),
        (92.7, "92.7"),
        (9.999, "10.0"),
        (0.84, "0.84"),
        (0.0, "0.00"),
    ],
)
def test_a_rate_has_at_least_three_digits_and_separated_thousands(value: float, shown: str) -> None:
    assert throughput(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(0.03, "3 %"), (0.006, "0.6 %"), (0.9766, "97.7 %"), (0.0, "0 %")])
def test_a_size_is_shown_without_sign(value: float, shown: str) -> None:
    assert share(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(None, "-"), (0.0124, "12.4"), (0.0, "0.0"), (1.5, "1,500"), (0.09996, "100")]
)
def test_times_are_shown_in_milliseconds_and_what_is_absent_as_a_dash(seconds: float | None, shown: str) -> None:
    assert milliseconds(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (48.4, "48 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7800, "2 h 10 min"),
    ],
)
def test_a_duration_is_shown_in_two_units_at_most(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
