"""What is told of a stored sample: what is not as it was, in words that do no harm."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.sample import MAX_ARGUMENTS_TOLD, Build, Fingerprint, StoredCase, differences, resolved_otherwise
from tests.unit.simulated import stored

MACHINE: Fingerprint = (("driver", "570.86"), ("CPU", "Xeon"))
BUILD = Build(
    sglang="0.5.23",
    torch="2.9.0",
    cuda="12.8",
    commit="a" * 40,
    dirty=None,
    kernels=(("sgl-kernel", "0.4.0"), ("triton", "3.5.0")),
    packages="0123456789abcdef",
)
STORED = replace(stored(100.0), fingerprint=MACHINE, build=BUILD)


def test_what_is_as_it_was_is_not_told() -> None:
    assert differences(STORED, MACHINE, BUILD) == ()


def test_what_changed_is_told_with_what_it_was() -> None:
    newer = replace(BUILD, cuda="12.9", kernels=(("sgl-kernel", "0.4.1"), ("vllm", "0.11.0")))
    assert differences(STORED, (("driver", "575.51"), ("CPU", "Xeon"), ("CPU governor", "powersave")), newer) == (
        "driver 575.51, was 570.86",
        "CPU governor powersave, was -",
        "CUDA of torch 12.9, was 12.8",
        "sgl-kernel 0.4.1, was 0.4.0",
        "vllm 0.11.0, was -",
        "triton -, was 3.5.0",
    )


def test_what_a_build_tells_of_itself_is_not_told_twice() -> None:
    assert differences(STORED, MACHINE, replace(BUILD, sglang="0.6", commit="b" * 40, dirty="d", packages="p")) == ()


@pytest.mark.parametrize(
    ("was", "fingerprint", "build"),
    [
        (replace(STORED, fingerprint=(), build=None), MACHINE, BUILD),  # as version 0.1 stored it
        (STORED, (), None),  # synthetic time
    ],
)
def test_of_what_is_not_known_no_difference_is_told(
    was: StoredCase, fingerprint: Fingerprint, build: Build | None
) -> None:
    assert differences(was, fingerprint, build) == ()


@given(text=st.text(min_size=1, max_size=300), other=st.text(max_size=300))
def test_whatever_a_machine_calls_itself_each_difference_is_one_short_printable_line(text: str, other: str) -> None:
    told = differences(
        replace(STORED, fingerprint=((text, other),)), ((text, text), (other, other)), replace(BUILD, torch=text)
    )
    assert told
    assert all(line.isprintable() and len(line) < 250 for line in told)


ARGUMENTS = (("attention_backend", "flashinfer"), ("dp_size", "1"), ("page_size", "1"))
RESOLVED = replace(STORED, server_arguments=ARGUMENTS, server_version="0.5.23")


def test_what_the_server_made_of_its_arguments_is_told_where_it_is_not_as_it_was() -> None:
    assert resolved_otherwise(RESOLVED, ARGUMENTS, "0.5.23") is None
    now = (("attention_backend", "fa3"), ("enable_mixed_chunk", "True"), ("page_size", "1"))
    assert resolved_otherwise(RESOLVED, now, "0.5.23") == (
        "arguments that the server resolved otherwise: attention_backend fa3, was flashinfer; dp_size -, was 1; "
        "enable_mixed_chunk True, was -"
    )
    # Another version has other arguments, which says nothing of those.
    assert resolved_otherwise(RESOLVED, now, "0.6.0") == (
        "arguments that the server resolved otherwise: attention_backend fa3, was flashinfer"
    )


def test_arguments_that_nobody_knows_differ_in_nothing_and_many_are_counted() -> None:
    assert resolved_otherwise(RESOLVED, (), "0.5.23") is None
    assert resolved_otherwise(STORED, ARGUMENTS, STORED.server_version) is None
    many = tuple((f"argument_{number}", "x") for number in range(MAX_ARGUMENTS_TOLD + 1))
    told = resolved_otherwise(RESOLVED, many, "0.5.23")
    assert told is not None
    assert told.endswith("; and 4 more")
